// SPDX-License-Identifier: Apache-2.0
// How a call fails: the exception that carries its error code, and the log of what people should know about it.
#pragma once
#include <string>

#include "sim/driver/abi.h"

namespace sim::driver {

// The answer of an entry point that failed. The detail is for people and goes to CUDA_LOG_FILE.
struct ApiError {
  CUresult code;
  std::string detail;
};
[[noreturn]] void fail(CUresult code, const std::string& detail = {});
inline void require(bool condition, CUresult code = CUDA_ERROR_INVALID_VALUE, const std::string& detail = {}) {
  if (!condition) fail(code, detail);
}

// The code for the exception that is being handled, after a line in the log.
CUresult answer_for_current_exception(const char* function);

}  // namespace sim::driver
