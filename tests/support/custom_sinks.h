// SPDX-License-Identifier: Apache-2.0
// The sinks of row_max_sink.cuh and float_copy_sink.cuh, as a caller hands them to the library.
#pragma once
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/support/product_spec.h"

namespace moxie::test {

template <class Params>
SinkSpec sink_of_file(const char* file, const char* type, const Params& params, SinkNeeds needs) {
  std::ifstream stream(std::string(MOXIE_SOURCE_DIR "/tests/support/") + file);
  if (!stream) throw std::runtime_error(std::string("cannot read ") + file + ": tests run from the source folder");
  std::ostringstream text;
  text << stream.rdbuf();
  SinkSpec sink{type, text.str(), std::vector<uint8_t>(sizeof params), needs};
  std::memcpy(sink.params.data(), &params, sizeof params);
  return sink;
}

struct RowMaxParams {  // row_max::RowMax::Params
  float* base = nullptr;
  int64_t ld = 0, group_rows = 0;
  int32_t gated = 0;
  int32_t unused = 0;
};
inline SinkSpec row_max_sink(const RowMaxParams& params = {}) {
  return sink_of_file("row_max_sink.cuh", "row_max::RowMax", params, {});
}

struct FloatCopyParams {  // float_copy::FloatCopy::Params
  float* base = nullptr;
  int64_t ld = 0;
  int32_t gated = 0;
  int32_t unused = 0;
};
inline SinkSpec float_copy_sink(const FloatCopyParams& params) {
  return sink_of_file("float_copy_sink.cuh", "float_copy::FloatCopy", params, {.narrow = true, .transposed = true});
}

}  // namespace moxie::test
