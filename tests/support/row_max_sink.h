// SPDX-License-Identifier: Apache-2.0
// The sink of row_max_sink.cuh, as a caller hands it to the library.
#pragma once
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/support/product_spec.h"

namespace moxie::test {

struct RowMaxParams {  // row_max::RowMax::Params
  float* base = nullptr;
  int64_t ld = 0, group_rows = 0;
  int32_t gated = 0;
  int32_t unused = 0;
};

inline SinkSpec row_max_sink(const RowMaxParams& params = {}) {
  std::ifstream file(MOXIE_SOURCE_DIR "/tests/support/row_max_sink.cuh");
  if (!file) throw std::runtime_error("cannot read row_max_sink.cuh: the tests run from the source folder");
  std::ostringstream text;
  text << file.rdbuf();
  SinkSpec sink{"row_max::RowMax", text.str(), std::vector<uint8_t>(sizeof params), {}};
  std::memcpy(sink.params.data(), &params, sizeof params);
  return sink;
}

}  // namespace moxie::test
