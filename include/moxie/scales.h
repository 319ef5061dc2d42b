// E8M0 scales of MXFP4 operands, one for every 32 elements along K.
//
// Row-major: uint8 [rows, k / 32]. Blocked, what gemm() reads (cuBLASLt's VEC32_UE8M0 layout, PyTorch's to_blocked):
// tiles of 128 rows by 4 scales, 512 bytes each, ceil(rows / 128) * ceil(k / 128) of them, those of the same rows side
// by side; scale (r, c) of a tile stands at (r % 32) * 16 + (r / 32) * 4 + c. Places of scales that do not exist hold
// 0.
//
// A of gemm(): Dense and RowGroups: one matrix of m rows. Batched and Masked: one of m rows for each group, one after
// the other. Offsets: one for each group as well, of as many rows as the group has, one after the other, so that every
// group begins with a tile of its own. B: one of n rows for each group.
#pragma once
#include <cstddef>
#include <cstdint>

#include "moxie/device.h"
#include "moxie/gemm.h"

namespace moxie {

// Bytes of one blocked matrix of scales of `rows` rows and `k` elements.
constexpr int64_t blocked_scale_bytes(int64_t rows, int64_t k) {
  return (rows + kScaleTileRows - 1) / kScaleTileRows * ((k + kScaleTileK - 1) / kScaleTileK) * kScaleTileBytes;
}
// Where in it the scale of row `row` and elements 32 * column to 32 * column + 31 stands.
constexpr int64_t blocked_scale_index(int64_t row, int64_t column, int64_t k) {
  const int64_t tile = row / kScaleTileRows * ((k + kScaleTileK - 1) / kScaleTileK) + column / 4;
  return tile * kScaleTileBytes + row % 32 * 16 + row % kScaleTileRows / 32 * 4 + column % 4;
}

// Bytes that GemmArguments::sfa and sfb must have. Offsets: room for the tiles that groups of any sizes can need.
// Throws Error(InvalidArgument) as gemm() does for the problem.
size_t a_scale_bytes(const GemmProblem& problem);
size_t b_scale_bytes(const GemmProblem& problem);

// From row-major to blocked scales, on the device.
struct ScaleBlocking {
  const void* from = nullptr;  // uint8 [groups, rows, k / 32], dense; with offsets [rows, k / 32]
  void* to = nullptr;          // aligned to 16 bytes
  int64_t groups = 1;          // 1 to 65,535
  int64_t rows = 0;            // of each group; with offsets of all together
  int64_t k = 0;               // elements, a multiple of 32
  // int32 [groups] in device memory, or null: the ends of the groups, as in GemmArguments::sizes. `to` then has
  // rows / 128 + groups rows of tiles; those that no group needs are not written.
  const int32_t* offsets = nullptr;
  Stream stream = nullptr;
};
// Asynchronous on the stream. Throws Error: InvalidArgument, Compile, Driver.
void block_scales(const Device& device, const ScaleBlocking& arguments);

}  // namespace moxie
