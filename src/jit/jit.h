// SPDX-License-Identifier: Apache-2.0
// From a kernel's source text to machine code: NVRTC, loaded at run time, behind a cache on disk.
// Knows nothing of operations or plans.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jit/headers.h"

namespace moxie::jit {

enum class ImageKind { Cubin, Ptx };

struct Request {
  std::string source;                          // translation unit
  std::map<std::string, std::string> headers;  // headers beside the embedded ones, or in their place: name -> text
  int arch = 90;                               // 90 -> sm_90a / compute_90a, 100 -> sm_100a
  ImageKind kind = ImageKind::Cubin;
};

// The options every kernel is compiled with.
std::vector<std::string> compile_options(const Request& request);

// The header that NVRTC of this major version includes before the source, or nullptr, and all headers that it is given.
const char* prelude_header(int compiler_major);
std::vector<IncludedHeader> headers_of(const Request& request, int compiler_major);

// NVRTC 12.8 or newer, found at run time (docs/nvrtc.md). It reads no file: the headers that a kernel includes come
// from the library (jit/headers.h) and from the request. Thread-safe; kernels may be compiled in several threads at
// once.
class Compiler {
 public:
  static const Compiler& get();            // throws Error(Compile) naming where it looked
  static const Compiler* find() noexcept;  // nullptr when there is none
  std::string version() const;             // "13.0"
  std::string path() const;
  // Throws Error(Compile): a sentence with the first error line, then the log. *log receives the whole log, for
  // Cubin with ptxas' report of registers, spills and shared memory.
  std::string compile(const Request& request, std::string* log = nullptr) const;

 private:
  struct Impl;
  static const Compiler* find(std::string* why);
  std::shared_ptr<Impl> impl_;
};

// $MOXIE_CACHE_DIR, else $XDG_CACHE_HOME/moxie, else ~/.cache/moxie. Entries are files named by their key, with a
// header line that carries a checksum. Written to a temporary name and renamed; folder mode 0700, files 0600; an entry
// that is damaged or belongs to another user is treated as absent and replaced; a folder that belongs to another user
// is refused with Error(InvalidArgument). When the folder cannot be written (full disk, read-only) compilation still
// succeeds and store() says why nothing was kept. Temporary files older than an hour are removed when something is
// stored.
//
// A folder with a file VERSION is a pack: it names the version of the compiler that made its entries, which are used
// whatever compiler is installed, or none. A pack may belong to root as well as to the user.
class Cache {
 public:
  explicit Cache(std::filesystem::path folder);
  static std::filesystem::path default_folder();
  std::optional<std::string> load(const std::string& key) const;
  std::string store(const std::string& key, const std::string& image) const;  // why it cannot be kept, or ""
  const std::filesystem::path& folder() const { return folder_; }
  std::optional<std::string> pack_version() const;  // the text of VERSION; nothing when this is no pack

 private:
  std::filesystem::path folder_;
  bool pack_ = false;
};

// Name of the request's entry: SHA-256 of compiler version, options, source and the headers that the source includes,
// and the kind. Comments and white space of headers do not count, nor do headers that are not included.
std::string cache_key(const Request& request, const std::string& compiler_version);

// From the cache, else compiled and stored. Several processes may do this at once. A hit does not load NVRTC: its
// version is remembered in the cache as well, in an entry named after the library's path, size, time and inode.
struct Image {
  std::string bytes;
  bool from_cache = false;
  std::string warning;  // why it could not be stored, or ""
};
// Throws Error: Compile (rejected, or neither cached nor NVRTC found), InvalidArgument (the cache folder is another
// user's).
Image obtain(const Request& request);

}  // namespace moxie::jit
