// SPDX-License-Identifier: Apache-2.0
// The folder of compiled kernels. An entry is one header line, made from the key and the image alone, and the image;
// it is valid when its header is byte for byte the one that its image would be given.
#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>

#include "jit/jit.h"
#include "jit/sha256.h"
#include "moxie/error.h"

namespace moxie::jit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTemporaryPrefix = ".tmp-";
constexpr time_t kStaleSeconds = 3600;
constexpr const char* kPackFile = "VERSION";

std::string header_of(const std::string& key, std::string_view image) {
  return fmt::format("moxie-cache 1 {} {} {}\n", key, image.size(), sha256_hex(image));
}

class File {
 public:
  File(const fs::path& path, int flags, mode_t mode = 0)
      : descriptor_(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, mode)) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  bool close() {
    const bool good = descriptor_ < 0 || ::close(descriptor_) == 0;
    descriptor_ = -1;
    return good;
  }

 private:
  int descriptor_;
};

bool trusted_owner(uid_t owner, bool pack) { return owner == ::geteuid() || (pack && owner == 0); }

// The whole of a regular file that its user may trust, else nothing.
std::optional<std::string> read_trusted(const fs::path& path, bool pack) {
  const File file(path, O_RDONLY);
  struct stat status;
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      !trusted_owner(status.st_uid, pack)) {
    return std::nullopt;
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = TEMP_FAILURE_RETRY(::read(file.get(), text.data() + have, text.size() - have));
    if (got <= 0) return std::nullopt;
    have += static_cast<size_t>(got);
  }
  return text;
}

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = TEMP_FAILURE_RETRY(::write(descriptor, bytes.data(), bytes.size()));
    if (wrote <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

// What processes that were killed while they wrote have left.
void remove_stale(const fs::path& folder) {
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    if (!at->path().filename().string().starts_with(kTemporaryPrefix)) continue;
    struct stat status;
    if (::lstat(at->path().c_str(), &status) == 0 && std::time(nullptr) - status.st_mtime > kStaleSeconds) {
      ::unlink(at->path().c_str());
    }
  }
}

}  // namespace

Cache::Cache(fs::path folder) : folder_(std::move(folder)) {
  if (!folder_.has_filename()) folder_ = folder_.parent_path();  // a closing slash
  struct stat status;
  if (folder_.empty() || ::stat(folder_.c_str(), &status) != 0) return;
  if (!S_ISDIR(status.st_mode)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("cache directory {} is not a directory (MOXIE_CACHE_DIR names another)", folder_.string()));
  }
  // Shipped packs are installed by root for everybody; what another user wrote is not run.
  struct stat pack;
  pack_ =
      ::lstat((folder_ / kPackFile).c_str(), &pack) == 0 && S_ISREG(pack.st_mode) && trusted_owner(pack.st_uid, true);
  if (!trusted_owner(status.st_uid, pack_)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("cache directory {} belongs to another user (uid {}, this process runs as uid {}); "
                            "MOXIE_CACHE_DIR names another",
                            folder_.string(), status.st_uid, ::geteuid()));
  }
}

fs::path Cache::default_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string named = variable("MOXIE_CACHE_DIR"); !named.empty()) return named;
  // The XDG base directory specification has relative paths ignored.
  if (const std::string xdg = variable("XDG_CACHE_HOME"); xdg.starts_with('/')) return fs::path(xdg) / "moxie";
  std::string home = variable("HOME");
  if (home.empty()) {
    if (const passwd* user = ::getpwuid(::geteuid()); user != nullptr && user->pw_dir != nullptr) home = user->pw_dir;
  }
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "moxie";
}

std::optional<std::string> Cache::load(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  std::optional<std::string> entry = read_trusted(folder_ / key, pack_);
  if (!entry) return std::nullopt;
  const size_t header_bytes = entry->find('\n') + 1;  // 0 when there is no line, and no header is that short
  if (entry->substr(0, header_bytes) != header_of(key, std::string_view(*entry).substr(header_bytes))) {
    return std::nullopt;
  }
  entry->erase(0, header_bytes);
  return entry;
}

std::string Cache::store(const std::string& key, const std::string& image) const {
  if (folder_.empty()) {
    return "compiled kernels cannot be kept: there is no home directory and MOXIE_CACHE_DIR is not set";
  }
  const auto not_kept = [&](int reason) {
    return fmt::format("compiled kernels cannot be kept in {}: {}", folder_.string(), std::strerror(reason));
  };
  std::error_code failed;
  fs::create_directories(folder_.parent_path(), failed);
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) return not_kept(errno);
  remove_stale(folder_);

  static thread_local std::mt19937_64 random{std::random_device{}()};
  const fs::path temporary = folder_ / fmt::format("{}{}-{:016x}", kTemporaryPrefix, ::getpid(), random());
  File file(temporary, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (!file.is_open()) return not_kept(errno);
  // A full disk may show only when the file is closed.
  if (!write_all(file.get(), header_of(key, image)) || !write_all(file.get(), image) || !file.close() ||
      ::rename(temporary.c_str(), (folder_ / key).c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    return not_kept(reason);
  }
  return "";
}

std::optional<std::string> Cache::pack_version() const {
  if (!pack_) return std::nullopt;
  std::optional<std::string> text = read_trusted(folder_ / kPackFile, true);
  while (text && !text->empty() && (text->back() == '\n' || text->back() == '\r' || text->back() == ' ')) {
    text->pop_back();
  }
  return text;
}

}  // namespace moxie::jit
