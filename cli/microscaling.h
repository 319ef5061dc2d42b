// MXFP4, MXFP8 and NVFP4 on the CPU, by the rules of moxie/quantize.h. Serves the program for tensors on the host, and
// the tests as what the kernels must agree with bit for bit.
#pragma once
#include <cstdint>
#include <vector>

#include "moxie/types.h"

namespace moxie::reference {

// The codes of the nearest elements, ties to even, saturating. NaN gives 0 (E2M1) and NaN (E4M3).
uint8_t float_to_e2m1(float value);
uint8_t float_to_e4m3(float value);
float e2m1_to_float(uint8_t code);
float e4m3_to_float(uint8_t code);
float e8m0_to_float(uint8_t code);

// The float of an NVFP4 tensor whose largest finite magnitude is amax.
float tensor_scale_of(float amax);

// A row of k values: its elements, packed (k * bits_of(format) / 8 bytes), and k / scale_block(format) scales.
void quantize_row(DataType format, const float* values, int64_t k, float tensor_scale, uint8_t* elements,
                  uint8_t* scales);
void dequantize_row(DataType format, const uint8_t* elements, const uint8_t* scales, int64_t k, float tensor_scale,
                    float* values);

}  // namespace moxie::reference
