// SPDX-License-Identifier: Apache-2.0
// See pack.h.
#include "jit/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include "moxie/error.h"

namespace moxie::jit {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_write(const fs::path& folder, const std::string& why) {
  throw Error(ErrorCode::OutOfMemory, fmt::format("the pack {} cannot be written: {}", folder.string(), why));
}

void set_mode(const fs::path& folder, const fs::path& path, unsigned mode) {
  std::error_code failed;
  fs::permissions(path, fs::perms(mode), failed);
  if (failed) cannot_write(folder, failed.message());
}

void begin_pack(const fs::path& folder, const std::string& version) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) cannot_write(folder, failed.message());
  if (const auto there = Cache(folder).pack_version()) {
    if (*there == version) return;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} holds a pack made by NVRTC {}, and this is NVRTC {}; choose another folder",
                            folder.string(), *there, version));
  }
  std::ofstream file(folder / "VERSION");
  file << version << '\n';
  file.close();
  if (!file) cannot_write(folder, "VERSION cannot be written");
  set_mode(folder, folder, 0755);
  set_mode(folder, folder / "VERSION", 0644);
}

}  // namespace

PackSummary write_pack(const fs::path& folder, const std::vector<Request>& requests, int threads) {
  const Compiler& compiler = Compiler::get();
  begin_pack(folder, compiler.version());
  const Cache cache(folder);
  std::atomic<size_t> next{0};
  std::atomic<int> compiled{0};
  std::atomic<uint64_t> bytes{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (size_t i = next++; i < requests.size(); i = next++) {
      try {
        const std::string key = cache_key(requests[i], compiler.version());
        auto image = cache.load(key);
        if (!image) {
          image = compiler.compile(requests[i]);
          if (const std::string why = cache.store(key, *image); !why.empty()) cannot_write(folder, why);
          set_mode(folder, folder / key, 0644);
          ++compiled;
        }
        bytes += image->size();
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = requests.size();
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < std::min<int>(threads, static_cast<int>(requests.size())); ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  if (error) std::rethrow_exception(error);
  return {static_cast<int>(requests.size()), compiled, bytes};
}

}  // namespace moxie::jit
