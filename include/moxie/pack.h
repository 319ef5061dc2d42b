// SPDX-License-Identifier: Apache-2.0
// Kernels compiled beforehand, for machines without any compiler.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "moxie/gemm.h"
#include "moxie/plan.h"

namespace moxie {

// What a pack holds.
enum class PackImage : int {
  MachineCode,  // for GPUs
  Ptx,          // for drivers that take no machine code, such as the simulator
};

// What pack() did.
struct PackResult {
  int kernels = 0;     // distinct ones that the descriptions need
  int compiled = 0;    // of these; the others were in the folder already
  uint64_t bytes = 0;  // of all of them
};

// Plans each product for a device with these figures and writes the kernels that they need into `folder`. With
// MOXIE_CACHE_DIR naming that folder, products so described need no NVRTC and no CUDA headers. threads 0: as many as
// there are cores. Throws Error: as plan_gemm for a description and for the figures; Compile; InvalidArgument when the
// folder holds a pack of another compiler; OutOfMemory when it cannot be written.
PackResult pack(const std::vector<GemmDescription>& descriptions, const std::string& folder,
                const DeviceFigures& device = {}, PackImage image = PackImage::MachineCode, int threads = 0);

}  // namespace moxie
