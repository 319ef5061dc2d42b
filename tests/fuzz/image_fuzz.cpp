// SPDX-License-Identifier: Apache-2.0
// Fuzzing of images (libFuzzer): any bytes, as a file with a module would hold them, are unpacked, parsed and prepared,
// and their variables get memory. What cannot be loaded is an ApiError that says why; anything else that leaves is a
// finding.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "sim/driver/image.h"
#include "sim/driver/module.h"
#include "sim/driver/state.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string image(reinterpret_cast<const char*>(data), size);  // a zero follows
  try {
    sim::driver::load_image(sim::driver::ptx_of(image.data(), image.size()), 0);
  } catch (const sim::driver::ApiError& e) {
    if (e.code == CUDA_SUCCESS || e.detail.empty()) std::abort();
  }
  if (sim::driver::state().memory.used() != 0) std::abort();  // what was loaded is gone
  return 0;
}
