// SPDX-License-Identifier: Apache-2.0
// The kernel of bench/swiglu_quantise.ptx, as compiled by `nvcc -arch=sm_90a -ptx`: bias, SwiGLU, a scale for each 32
// columns, E4M3; work as an epilogue does it.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
// pre: rows of 512 bf16 (gate, up interleaved). out: 256 e4m3 a row, a scale for each 32.
extern "C" __global__ void __launch_bounds__(128) k(unsigned char* buffer, unsigned turns) {
  __shared__ float bias[256];
  __shared__ uint4 stage[128];
  unsigned char* const base = buffer + blockIdx.x * 16384ull;
  const int tid = threadIdx.x;
  bias[tid] = tid * 0.01f;
  bias[tid + 128] = tid * -0.01f;
  __syncthreads();
  for (unsigned turn = 0; turn < turns; ++turn) {
    const uint4* in = reinterpret_cast<const uint4*>(base + (turn & 3) * 2048) + tid;
    const uint4 v = __ldg(in);
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    float out[4];
    float top = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = reinterpret_cast<const __nv_bfloat162&>(words[i]);
      float gate = __low2float(pair) + bias[(tid * 8 + 2 * i) & 255];
      float up = __high2float(pair) + bias[(tid * 8 + 2 * i + 1) & 255];
      gate = fminf(gate, 7.0f);
      up = fminf(fmaxf(up, -7.0f), 7.0f);
      out[i] = gate * __fdividef(1.0f, 1.0f + exp2f(gate * -2.4554669f)) * (up + 1.0f);
      top = fmaxf(top, fabsf(out[i]));
    }
    for (int d = 1; d < 8; d <<= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    int e = ((__float_as_uint(top) >> 23) & 255) - 8;
    e = max(e, 1);
    const float inverse = __uint_as_float(unsigned(254 - e) << 23);
    unsigned packed = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 two = {out[2 * i] * inverse, out[2 * i + 1] * inverse};
      packed |= unsigned(__nv_cvt_float2_to_fp8x2(two, __NV_SATFINITE, __NV_E4M3)) << (16 * i);
    }
    reinterpret_cast<unsigned*>(stage)[tid ^ (tid >> 3 & 7)] = packed;
    __syncwarp();
    const unsigned word = reinterpret_cast<unsigned*>(stage)[(tid & 96) | ((tid & 31) ^ (tid >> 3 & 7))];
    reinterpret_cast<unsigned*>(base + 8192)[tid + 128 * (turn & 3)] = word;
    __syncwarp();
    if ((tid & 7) == 0) base[8192 + 4096 + (tid >> 3) + 16 * (turn & 3)] = e;
  }
}
