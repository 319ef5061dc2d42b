// SPDX-License-Identifier: Apache-2.0
// The driver's private tables, of which the simulator has none (docs/simulator.md says what that means for NVIDIA's own
// runtime). NVRTC asks any libcuda.so.1 that is already loaded for one, and crashes where the function itself is
// absent.
#include <cstdio>
#include <cstring>
#include <mutex>

#include "sim/driver/abi.h"

namespace {

// The table that the runtime of CUDA 12 and 13 asks for first, before any call of its own can succeed.
constexpr unsigned char kOfTheRuntime[] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                           0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};

}  // namespace

CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid* id) {
  if (table == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  if (id != nullptr && std::memcmp(id->bytes, kOfTheRuntime, sizeof kOfTheRuntime) == 0) {
    static std::once_flag said;
    std::call_once(said, [] {
      std::fputs(
          "moxie simulator: this program brings NVIDIA's own CUDA runtime, which needs private functions of NVIDIA's "
          "driver; link it with `nvcc -cudart shared`, and the simulator's libcudart.so.13 serves it\n",
          stderr);
    });
  }
  return CUDA_ERROR_NOT_FOUND;
}
