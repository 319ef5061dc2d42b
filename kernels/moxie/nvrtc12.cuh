// SPDX-License-Identifier: Apache-2.0
// What CUDA 13's headers expect of the compiler and NVRTC 12 does not bring along. NVRTC 12 includes this file before
// every source (src/jit/obtain.cpp), so no kernel has to.
#pragma once

#define __NV_SILENCE_DEPRECATION_BEGIN
#define __NV_SILENCE_DEPRECATION_END

struct __align__(16) double4_16a {
  double x, y, z, w;
};
struct __align__(32) double4_32a {
  double x, y, z, w;
};
