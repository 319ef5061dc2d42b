// SPDX-License-Identifier: Apache-2.0
// bf16, MXFP4, MXFP8 and NVFP4 on the CPU, by the rules of moxie/quantize.h. The program uses them for tensors on the
// host, and the tests hold the kernels to them bit for bit.
#pragma once
#include <cstdint>

#include "moxie/types.h"

namespace moxie::reference {

float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);  // to nearest, ties to even; NaN stays NaN

// These round to the nearest element, ties to even, and saturate. NaN becomes 0 in E2M1 and NaN in E4M3.
uint8_t float_to_e2m1(float value);
uint8_t float_to_e4m3(float value);
float e2m1_to_float(uint8_t code);
float e4m3_to_float(uint8_t code);
float e8m0_to_float(uint8_t code);

// The float of an NVFP4 tensor whose largest finite magnitude is amax.
float tensor_scale_of(float amax);

// A row has k values, k * bits_of(format) / 8 bytes of packed elements, and k / scale_block(format) scales.
void quantize_row(DataType format, const float* values, int64_t k, float tensor_scale, uint8_t* elements,
                  uint8_t* scales);
void dequantize_row(DataType format, const uint8_t* elements, const uint8_t* scales, int64_t k, float tensor_scale,
                    float* values);

}  // namespace moxie::reference
