// SPDX-License-Identifier: Apache-2.0
// The options of a call that loads an image: of them the simulator serves the logs.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "sim/driver/error.h"

namespace sim::driver {

// Says where the logs go. finish() writes the outputs.
class JitOptions {
 public:
  JitOptions(unsigned count, const CUjit_option* options, void** values)
      : count_(count), options_(options), values_(values) {
    require(count == 0 || (options != nullptr && values != nullptr));
    for (unsigned i = 0; i < count; ++i) require(options[i] >= 0 && options[i] < CU_JIT_NUM_OPTIONS);
  }
  void finish(const std::string& error) {
    write(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error);
    write(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "");
    if (void** time = value(CU_JIT_WALL_TIME)) {
      const float none = 0;
      std::memcpy(time, &none, sizeof none);
    }
  }

 private:
  void** value(CUjit_option option) const {
    for (unsigned i = 0; i < count_; ++i) {
      if (options_[i] == option) return &values_[i];
    }
    return nullptr;
  }
  void write(CUjit_option buffer_option, CUjit_option size_option, const std::string& text) {
    void** buffer = value(buffer_option);
    void** size = value(size_option);
    if (size == nullptr) return;
    const uint64_t room = reinterpret_cast<uintptr_t>(*size) & 0xffffffffu;
    uint64_t used = 0;
    if (buffer != nullptr && *buffer != nullptr && room > 0) {
      used = std::min<uint64_t>(text.size(), room - 1);
      std::memcpy(*buffer, text.data(), used);
      static_cast<char*>(*buffer)[used] = 0;
    }
    *size = reinterpret_cast<void*>(static_cast<uintptr_t>(used));
  }
  unsigned count_;
  const CUjit_option* options_;
  void** values_;
};

// Runs the body. The log buffers get the reason for which it refuses an image.
template <class Body>
void with_log(JitOptions& options, Body body) {
  try {
    body();
    options.finish("");
  } catch (const ApiError& e) {
    options.finish(e.detail.empty() ? "" : "error: " + e.detail + "\n");
    throw;
  }
}

}  // namespace sim::driver
