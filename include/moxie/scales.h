// SPDX-License-Identifier: Apache-2.0
// Scales of rows: of MXFP4 and MXFP8 (E8M0) one for every 32 elements along K, of NVFP4 (E4M3) one for every 16.
//
// Row-major: uint8 [rows, k / 32]. Blocked, what products read and write (cuBLASLt's VEC32_UE8M0 and VEC16_UE4M3
// layouts, PyTorch's to_blocked): tiles of 128 rows by 4 scales, 512 bytes each, ceil(rows / 128) * ceil(k / 128) of
// them (NVFP4: ceil(k / 64)), those of the same rows side by side; scale (r, c) of a tile stands at (r % 32) * 16 +
// (r / 32) * 4 + c. Places of scales that do not exist hold 0.
//
// A of a product. Dense and RowGroups: one matrix of m rows. Batched and Masked: one of m rows for each group, one
// after the other. Offsets: one for each group as well, of as many rows as the group has, one after the other, so that
// every group begins with a tile of its own. B: one of n rows for each group. KGroups: A and B have one matrix for each
// group, of all m or n rows and as many elements as the group has, one after the other, so that every group's K begins
// with a tile of its own.
#pragma once
#include <cstddef>
#include <cstdint>

#include "moxie/device.h"
#include "moxie/gemm.h"

namespace moxie {

// Bytes of one blocked matrix of scales of `rows` rows and `k` elements; block: elements of a scale, 32 or 16.
constexpr int64_t blocked_scale_bytes(int64_t rows, int64_t k, int64_t block = kScaleBlock) {
  const int64_t k_tiles = (k + kScaleTileColumns * block - 1) / (kScaleTileColumns * block);
  return (rows + kScaleTileRows - 1) / kScaleTileRows * k_tiles * kScaleTileBytes;
}
// Where in it the scale of row `row` and elements block * column to block * column + block - 1 stands.
constexpr int64_t blocked_scale_index(int64_t row, int64_t column, int64_t k, int64_t block = kScaleBlock) {
  const int64_t k_tiles = (k + kScaleTileColumns * block - 1) / (kScaleTileColumns * block);
  const int64_t tile = row / kScaleTileRows * k_tiles + column / kScaleTileColumns;
  return tile * kScaleTileBytes + row % 32 * 16 + row % kScaleTileRows / 32 * 4 + column % kScaleTileColumns;
}

// Bytes of the blocked scales of one operand of Grouping::KGroups: room for the tiles that groups of any sizes can
// need.
constexpr int64_t k_group_scale_bytes(int64_t rows, int64_t k, int64_t groups, int64_t block = kScaleBlock) {
  const int64_t k_tiles = k / (kScaleTileColumns * block) + groups;
  return (rows + kScaleTileRows - 1) / kScaleTileRows * k_tiles * kScaleTileBytes;
}

// Bytes that the scales of a call's operands must have; 0 for bf16. `total` is Rows::total, where absent the
// description's. Offsets, KGroups: room for the tiles that groups of any sizes can need. Throw Error(InvalidArgument)
// as GroupedGemm does for the description.
size_t a_scale_bytes(const GemmDescription& description, std::optional<int64_t> total = {});
// The same for B.
size_t b_scale_bytes(const GemmDescription& description, std::optional<int64_t> total = {});

// Bytes that the scales of a call's outputs must have: 0 where the output is not quantized. Throw as above.
size_t pre_scale_bytes(const GemmDescription& description, std::optional<int64_t> total = {});
// The same for out.
size_t out_scale_bytes(const GemmDescription& description, std::optional<int64_t> total = {});

// Between row-major and blocked scales, on the device.
struct ScaleBlocking {
  // block_scales: uint8 [groups, rows, k / block], dense; with offsets [rows, k / block]. unblock_scales: blocked.
  const void* from = nullptr;
  void* to = nullptr;           // the other layout; blocked scales are aligned to 16 bytes
  int64_t groups = 1;           // 1 to 65,535
  int64_t rows = 0;             // of each group; with offsets of all together
  int64_t k = 0;                // elements, a multiple of block
  int64_t block = kScaleBlock;  // elements of a scale: 32, or 16 (NVFP4)
  // int32 [groups] in device memory, or null: the ends of the groups, as in Rows::ends. The blocked scales
  // then have rows / 128 + groups rows of tiles; those that no group needs are not touched, nor are row-major scales
  // past the last end.
  const int32_t* offsets = nullptr;
  // The offsets are the ends of groups along k instead, as with Grouping::KGroups: multiples of 32 elements. `groups`
  // is their number, all have the same rows. The blocked scales are those of one group after the other and have
  // k_group_scale_bytes() bytes, of which those that no group needs are not touched.
  bool along_k = false;
  // block_scales: `from` holds float32 (aligned to 4 bytes), powers of two from 2^-127 to 2^127, that become E8M0.
  // Any other value becomes NaN (255), so that it shows.
  bool from_floats = false;
  Stream stream = nullptr;  // where the kernel runs; null: the default stream
};
// Asynchronous on the stream. Throw Error: InvalidArgument, Compile, Driver.
void block_scales(const Device& device, const ScaleBlocking& arguments);
// The way back, under the same rules.
void unblock_scales(const Device& device, const ScaleBlocking& arguments);

}  // namespace moxie
