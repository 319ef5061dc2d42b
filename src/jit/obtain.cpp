// SPDX-License-Identifier: Apache-2.0
// A kernel's image: its name in the cache, and where it comes from.
#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>

#include "jit/jit.h"
#include "jit/search.h"
#include "jit/sha256.h"
#include "jit/source_text.h"
#include "moxie/error.h"

namespace moxie::jit {
namespace {

namespace fs = std::filesystem;

// The entry that keeps the version of the compiler at `file`, for as long as the file is the same. Asking the library
// itself means mapping 100 MB.
std::string compiler_entry(const fs::path& file) {
  std::error_code failed;
  const fs::path real = fs::canonical(file, failed);
  struct stat status;
  if (failed || ::stat(real.c_str(), &status) != 0) return "";
  return sha256_hex(fmt::format("{} {} {}.{:09} {}", real.string(), status.st_size, status.st_mtim.tv_sec,
                                status.st_mtim.tv_nsec, status.st_ino)) +
         ".nvrtc";
}

// The version of the compiler that this process uses or would use.
std::string compiler_version(const Cache& cache) {
  const std::vector<fs::path> candidates = nvrtc_candidates();
  const std::string entry = candidates.empty() ? "" : compiler_entry(candidates.front());
  if (const auto known = cache.load(entry)) return *known;  // no entry has an empty name
  const Compiler& compiler = Compiler::get();
  // Only for the file that was taken; a better candidate that did not load would be asked again each time.
  if (!entry.empty() && entry == compiler_entry(compiler.path())) cache.store(entry, compiler.version());
  return compiler.version();
}

}  // namespace

std::vector<std::string> compile_options(const Request& request) {
  return {"-std=c++20",
          fmt::format("--gpu-architecture={}_{}a", request.kind == ImageKind::Cubin ? "sm" : "compute", request.arch),
          "-default-device", "-lineinfo", "--ptxas-options=-v"};
}

const char* prelude_header(int compiler_major) { return compiler_major < 13 ? "moxie/nvrtc12.cuh" : nullptr; }

std::vector<IncludedHeader> headers_of(const Request& request, int compiler_major) {
  const char* prelude = prelude_header(compiler_major);
  if (prelude == nullptr) return included_headers(request.source, request.headers);
  return included_headers(fmt::format("#include \"{}\"\n{}", prelude, request.source), request.headers);
}

std::string cache_key(const Request& request, const std::string& compiler_version) {
  Sha256 hash;
  hash.add_field(compiler_version);
  for (const std::string& option : compile_options(request)) hash.add_field(option);
  hash.add_field(request.source);
  for (const IncludedHeader& header : headers_of(request, std::atoi(compiler_version.c_str()))) {
    hash.add_field(header.name);
    hash.add_field(header.digest != nullptr ? header.digest : sha256_hex(normalized(header.text)));
  }
  return hash.hex() + (request.kind == ImageKind::Cubin ? ".cubin" : ".ptx");
}

Image obtain(const Request& request) {
  const Cache cache(Cache::default_folder());
  // In a pack every entry was compiled by the version it names; whether a compiler is installed does not matter.
  if (const auto packed = cache.pack_version()) {
    if (auto bytes = cache.load(cache_key(request, *packed))) return {std::move(*bytes), true, ""};
  }
  const std::string key = cache_key(request, compiler_version(cache));
  if (auto bytes = cache.load(key)) return {std::move(*bytes), true, ""};
  Image image{Compiler::get().compile(request), false, ""};
  image.warning = cache.store(key, image.bytes);
  return image;
}

}  // namespace moxie::jit
