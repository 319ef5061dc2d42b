// SPDX-License-Identifier: Apache-2.0
// Rows of bf16 or float32 to MXFP4, MXFP8 or NVFP4, and back, on the device.
//
// MXFP4 (E2M1 elements) and MXFP8 (E4M3), as OCP MX v1.0 says: 32 neighbors of a row share a scale of
// 2^(floor(log2(amax)) - e), amax their largest magnitude and e the exponent of the largest element (2, 8), at least
// 2^-127, which a block of zeros gets too. Their quotients by it are rounded to nearest, ties to even, and saturate at
// the largest element (6, 448). A block that holds an infinity or a NaN gets the scale NaN (255) and elements 0.
//
// NVFP4: E2M1 elements, 16 share an E4M3 scale, and the tensor has one float t. A block's scale is amax / (6 t),
// rounded to nearest even and at most 448; its elements are the quotients of its values by float32(scale * t), rounded
// and saturated as above, 0 where that is 0. A block that holds an infinity or a NaN gets the scale NaN (127) and
// elements 0.
//
// Zeros keep their sign. Dequantized, an element is float32(element * scale) (NVFP4: element * float32(scale * t)), NaN
// under a scale of NaN; bf16 rounds that to nearest even.
#pragma once
#include <cstddef>
#include <cstdint>

#include "moxie/device.h"
#include "moxie/scales.h"

namespace moxie {

// How scales lie in memory.
enum class ScaleLayout : int { Blocked, RowMajor };  // see moxie/scales.h
template <>
struct EnumTable<ScaleLayout> {
  static constexpr std::string_view kType = "ScaleLayout";
  static constexpr EnumName<ScaleLayout> kNames[] = {{ScaleLayout::Blocked, "Blocked", "blocked"},
                                                     {ScaleLayout::RowMajor, "RowMajor", "row-major"}};
};

// What quantize() and dequantize() have in common. Pointers to values and elements are device pointers aligned to 16
// bytes; leading dimensions count elements, are multiples of 16 bytes and at least k; 0 stands for k.
struct QuantizedRows {
  DataType format = DataType::Mxfp4;          // Mxfp4, Mxfp8 or Nvfp4
  DataType type = DataType::Bf16;             // of the values: Bf16 or F32
  ScaleLayout layout = ScaleLayout::Blocked;  // of the scales
  int64_t groups = 1;                         // 1 to 65,535; their rows lie one after the other
  int64_t rows = 0;                           // of each group; with offsets of all together
  int64_t k = 0;                              // elements of a row, a multiple of 32 (NVFP4: 16)
  // int32 [groups] in device memory, or null: the ends of the groups, as in Rows::ends. The scales of every
  // group then begin with a tile of their own (blocked); rows past the last end are neither read nor written.
  const int32_t* offsets = nullptr;
  Stream stream = nullptr;  // where the kernel runs; null: the default stream
};

// The arguments of quantize().
struct Quantization : QuantizedRows {
  const void* values = nullptr;         // what is quantized
  int64_t ld_values = 0;                // leading dimension of values
  void* elements = nullptr;             // receives the elements
  int64_t ld_elements = 0;              // leading dimension of elements
  void* scales = nullptr;               // blocked: aligned to 16 bytes; places of scales that do not exist become 0
  const float* tensor_scale = nullptr;  // NVFP4: t, positive, in device memory; null for others
};

// The arguments of dequantize().
struct Dequantization : QuantizedRows {
  const void* elements = nullptr;       // what quantize() wrote
  int64_t ld_elements = 0;              // leading dimension of elements
  const void* scales = nullptr;         // in QuantizedRows::layout
  const float* tensor_scale = nullptr;  // NVFP4: t, in device memory; null for others
  void* values = nullptr;               // receives the values
  int64_t ld_values = 0;                // leading dimension of values
};

// Bytes of the scales. With offsets and blocked scales: room for the tiles that groups of any sizes can need.
size_t scale_bytes(const QuantizedRows& rows);

// Asynchronous on the stream. All throw Error: InvalidArgument, Compile, Driver.
void quantize(const Device& device, const Quantization& arguments);
// The way back, under the same rules.
void dequantize(const Device& device, const Dequantization& arguments);

// Writes the t of NVFP4 that uses the range of both: the largest finite magnitude over 6 * 448, at least 2^-126; 1 when
// all are 0. Of `arguments` it needs neither elements nor scales nor tensor_scale. `to`: float32 in device memory.
void find_tensor_scale(const Device& device, const Quantization& arguments, float* to);

}  // namespace moxie
