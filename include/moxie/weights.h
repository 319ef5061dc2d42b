// SPDX-License-Identifier: Apache-2.0
// MXFP4 weights for products with activations of bf16 (GemmDescription::b_format), in the order in which a Hopper
// kernel reads them. They are packed once, on the device; one packed form serves every number of rows.
//
// What goes in is what checkpoints hold: codes [G, N, K / 2], E2M1, two in a byte, the first in the low nibble, and
// scales [G, N, K / 32], E8M0 (OCP MX v1.0). A weight is its code's value times 2^(scale - 127); a scale of 255 makes
// it NaN. What comes out has the same bytes and one more for every row, where N is a multiple of 16; rows are padded
// to that. docs/weights.md describes the layout.
//
// Packed groups lie one after the other, packed_weight_bytes(1, n, k) each, and none depends on another. A call may
// therefore pack or unpack any of them, and a model needs memory for the checkpoint's tensors of one expert beside its
// packed weights: load an expert, pack it with groups = 1 to its place, load the next one over it. `refused` then
// counts the rows of the call.
//
// Weights of bf16 or float32 take two steps: quantize() (moxie/quantize.h) with format Mxfp4 and ScaleLayout::RowMajor
// writes the codes and scales that pack_weights() reads. Both are asynchronous, so one stream needs no wait between.
#pragma once
#include <cstddef>
#include <cstdint>

#include "moxie/device.h"
#include "moxie/types.h"

namespace moxie {

// What pack_weights() and unpack_weights() have in common. Pointers are device pointers aligned to 16 bytes.
struct WeightShape {
  int64_t groups = 1;  // 1 to 65,535
  int64_t n = 0;       // rows of each group: a multiple of 8, of 16 with a gate
  int64_t k = 0;       // columns, a multiple of 32
  // Where gate and up lie along N, for products with a gated activation: GemmDescription::gate. Absent for others. The
  // packed rows of gate and up alternate in eights, whatever it says.
  bool gated = false;
  GateLayout gate = GateLayout::Interleaved;  // read where gated alone
};

// Bytes of packed weights. Throws Error: InvalidArgument.
size_t packed_weight_bytes(const WeightShape& shape);
// The same of a shape without a gate, which has as many.
inline size_t packed_weight_bytes(int64_t groups, int64_t n, int64_t k) {
  return packed_weight_bytes(WeightShape{groups, n, k});
}

// The arguments of pack_weights().
struct WeightPacking : WeightShape {
  const void* codes = nullptr;   // [G, N, K / 2]
  const void* scales = nullptr;  // [G, N, K / 32]
  void* packed = nullptr;        // packed_weight_bytes()
  // uint64 in device memory, or null: lowered to the first row, g N + n, that cannot be represented; the caller writes
  // 2^64 - 1 before. A row can be represented unless its largest scale is above 128 and more than 133 above its
  // smallest. Other rows' products are not affected; those of such a row are NaN.
  uint64_t* refused = nullptr;
  Stream stream = nullptr;  // where the kernel runs; null: the default stream
};

// The arguments of unpack_weights().
struct WeightUnpacking : WeightShape {
  const void* packed = nullptr;  // what pack_weights() wrote
  void* codes = nullptr;         // receives [G, N, K / 2]
  void* scales = nullptr;        // receives [G, N, K / 32]
  Stream stream = nullptr;       // where the kernel runs; null: the default stream
};

// Asynchronous on the stream. Both throw Error: InvalidArgument, Compile, Driver.
void pack_weights(const Device& device, const WeightPacking& arguments);
// The way back, to the last bit, but for rows that were refused.
void unpack_weights(const Device& device, const WeightUnpacking& arguments);

}  // namespace moxie
