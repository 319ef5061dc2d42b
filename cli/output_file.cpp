// SPDX-License-Identifier: Apache-2.0
// See output_file.h.
#include "cli/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

namespace moxie::cli {

void check_writable(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode))
      throw InputError(fmt::format("{}: cannot be written: it exists and is not a regular file", path));
  } else if (errno == ENAMETOOLONG) {
    throw InputError(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  }
  auto folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  int reason = 0;
  if (stat(folder.c_str(), &status) != 0) {
    reason = errno;
  } else if (!S_ISDIR(status.st_mode)) {
    reason = ENOTDIR;
  } else if (access(folder.c_str(), W_OK | X_OK) != 0) {
    reason = errno;
  }
  if (reason != 0) {
    throw InputError(fmt::format("{}: cannot be written: {}: {}", path, folder.string(), std::strerror(reason)));
  }
}

// The temporary name is short, so that the output's may be as long as a file's name can be.
OutputFile::OutputFile(const std::string& path)
    : path_(path), temporary_(std::filesystem::path(path).parent_path() / ".moxie-XXXXXX") {
  check_writable(path);
  file_ = mkostemp(temporary_.data(), O_CLOEXEC);
  if (file_ < 0) refuse(errno);
}

OutputFile::~OutputFile() {
  if (file_ >= 0) close(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void OutputFile::refuse(int reason) const {
  throw OutputError(fmt::format("{}: cannot be written: {}", path_, std::strerror(reason)));
}

void OutputFile::write(const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::write(file_, from, std::min<size_t>(bytes, 1u << 30));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) refuse(errno);
    from += put;
    bytes -= static_cast<size_t>(put);
  }
}

void OutputFile::finish() {
  const mode_t mask = umask(0);
  umask(mask);
  int reason = fchmod(file_, 0666 & ~mask) == 0 ? 0 : errno;
  if (close(file_) != 0 && reason == 0) reason = errno;
  file_ = -1;
  if (reason == 0 && rename(temporary_.c_str(), path_.c_str()) != 0) reason = errno;
  if (reason != 0) refuse(reason);
  temporary_.clear();
}

}  // namespace moxie::cli
