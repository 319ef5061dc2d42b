// SPDX-License-Identifier: Apache-2.0
// Brings MXFP4 weights as checkpoints hold them into the order that a Hopper kernel reads (layout.h), and back. One
// block has 16 packed rows, a unit, of one group.
#pragma once
#include "moxie/arguments.h"
#include "moxie/isa.cuh"
#include "moxie/layout.h"

namespace moxie::kernel {

// Where a bit of a code, 3 its sign, stands in the word of eight: that of the code for half `half` of a fragment's
// register `i`. Unpacking brings it to the half's bit 6 + bit, the sign to bit 15.
constexpr int packed_bit(int i, int half, int bit) {
  const int target = 16 * half + (bit == 3 ? 15 : 6 + bit);
  return i == 0 ? target : i == 1 ? target - 6 : i == 2 ? (target + 4) % 32 : bit == 2 ? target + 6 : target - 2;
}

// One 16-row unit of a group: where its rows lie in both orders.
class PackUnit {
 public:
  MOXIE_DEVICE explicit PackUnit(const PackWeightsParams& params)
      : params_(params),
        unit_(blockIdx.x),
        group_(params.packed + blockIdx.y * packed_group_bytes(params.n, params.k)) {}

  // Row `row` of the unit as the checkpoint counts it, within the group; -1 for padding. Rows of gate and up alternate
  // in eights.
  MOXIE_DEVICE int32_t source(int row) const {
    const int32_t packed = unit_ * kPackUnit + row;
    if (packed >= params_.n) return -1;
    if (!params_.gated) return packed;
    const int32_t pair = unit_ * 8 + row % 8, half = row / 8;
    return params_.gate == GateLayout::Interleaved ? 2 * pair + half : half * (params_.n / 2) + pair;
  }
  MOXIE_DEVICE int64_t row_of_all(int32_t source) const { return int64_t{blockIdx.y} * params_.n + source; }
  MOXIE_DEVICE uint8_t* codes(int32_t source) const { return params_.codes + row_of_all(source) * (params_.k / 2); }
  MOXIE_DEVICE uint8_t* scales(int32_t source) const {
    return params_.scales + row_of_all(source) * (params_.k / kScaleBlock);
  }
  MOXIE_DEVICE uint8_t& row_byte(int row) const {
    return group_[packed_block_bytes(params_.n, params_.k) + unit_ * kPackUnit + row];
  }

  // Columns of K from `k` on that a block holds: 64 or 32.
  MOXIE_DEVICE int columns(int32_t k) const { return min(params_.k - k, kPackColumns); }
  // This lane's words in the block whose columns begin at `k`, one for each 16 columns.
  MOXIE_DEVICE uint32_t* words(int32_t k, int lane) const {
    return reinterpret_cast<uint32_t*>(block(k) + (unit_ % 4 * 32 + lane) * (columns(k) / 4));
  }
  // The scales of rows `row` and `row` + 8 there: columns / 32 of either.
  MOXIE_DEVICE uint8_t* unit_scales(int32_t k, int row) const {
    const int count = columns(k) / kScaleBlock;
    return block(k) + block_rows() * (columns(k) / 2) + unit_ % 4 * kPackUnit * count + row * 2 * count;
  }

 private:
  MOXIE_DEVICE int32_t first_row() const { return unit_ / 4 * kPackRows; }
  MOXIE_DEVICE int32_t block_rows() const {
    return min(static_cast<int32_t>(packed_rows(params_.n)) - first_row(), kPackRows);
  }
  MOXIE_DEVICE uint8_t* block(int32_t k) const { return group_ + packed_block(params_.n, params_.k, first_row(), k); }

  const PackWeightsParams& params_;
  int32_t unit_;
  uint8_t* group_;
};

MOXIE_DEVICE void pack_weights(const PackWeightsParams& params) {
  const PackUnit unit(params);
  __shared__ uint8_t shifts[kPackUnit];  // of each row, kPackNan included

  // The shift of each row, by eight threads.
  {
    const int row = threadIdx.x / 8;
    const int32_t source = unit.source(row);
    int most = 0, least = 255;
    bool nan = false;
    if (source >= 0) {
      for (int32_t i = threadIdx.x % 8; i < params.k / kScaleBlock; i += 8) {
        const int scale = unit.scales(source)[i];
        if (scale == 255) {
          nan = true;
        } else {
          most = max(most, scale), least = min(least, scale);
        }
      }
    }
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
      most = max(most, __shfl_xor_sync(~0u, most, step));
      least = min(least, __shfl_xor_sync(~0u, least, step));
      nan = __shfl_xor_sync(~0u, nan, step) || nan;
    }
    if (threadIdx.x % 8 == 0) {
      // A code of 0.5 under the least scale is 2^(least - 128 - shift), and bf16 ends at 2^-133.
      const int shift = max(most - 128, 0);
      const bool refused = least < shift - 5;
      if (refused && params.refused != nullptr)
        atomicMin(params.refused, static_cast<unsigned long long>(unit.row_of_all(source)));
      shifts[row] = static_cast<uint8_t>(shift | (nan || refused ? kPackNan : 0));
      unit.row_byte(row) = shifts[row];
    }
  }
  __syncthreads();

  // Each warp takes every fourth block along K.
  const int lane = threadIdx.x % 32;
  for (int32_t k = threadIdx.x / 32 * kPackColumns; k < params.k; k += 4 * kPackColumns) {
    uint32_t* const words = unit.words(k, lane);
    for (int step = 0; step < unit.columns(k) / 16; ++step) {
      uint32_t word = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t source = unit.source(lane / 4 + i % 2 * 8);
        if (source < 0) continue;
        const uint32_t pair = unit.codes(source)[k / 2 + step * 8 + lane % 4 + i / 2 * 4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int bit = 0; bit < 4; ++bit) word |= (pair >> (4 * half + bit) & 1) << packed_bit(i, half, bit);
        }
      }
      words[step] = word;
    }
    if (lane < kPackUnit / 2) {
      const int count = unit.columns(k) / kScaleBlock;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = lane + 8 * h;
        const int32_t source = unit.source(row);
        for (int i = 0; i < count; ++i) {
          const int scale = source < 0 ? 0 : unit.scales(source)[k / kScaleBlock + i];
          const int stored = scale == 255 ? 0 : max(scale + 126 - (shifts[row] & ~kPackNan), 1);
          unit.unit_scales(k, lane)[h * count + i] = static_cast<uint8_t>(stored);
        }
      }
    }
  }
}

MOXIE_DEVICE void unpack_weights(const PackWeightsParams& params) {
  const PackUnit unit(params);
  const int lane = threadIdx.x % 32;
  for (int32_t k = threadIdx.x / 32 * kPackColumns; k < params.k; k += 4 * kPackColumns) {
    const uint32_t* const words = unit.words(k, lane);
    for (int step = 0; step < unit.columns(k) / 16; ++step) {
      const uint32_t word = words[step];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t source = unit.source(lane / 4 + i % 2 * 8);
        if (source < 0) continue;
        uint32_t pair = 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int bit = 0; bit < 4; ++bit) pair |= (word >> packed_bit(i, half, bit) & 1) << (4 * half + bit);
        }
        unit.codes(source)[k / 2 + step * 8 + lane % 4 + i / 2 * 4] = static_cast<uint8_t>(pair);
      }
    }
    if (lane < kPackUnit / 2) {
      const int count = unit.columns(k) / kScaleBlock;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = lane + 8 * h;
        const int32_t source = unit.source(row);
        if (source < 0) continue;
        for (int i = 0; i < count; ++i) {
          const int stored = unit.unit_scales(k, lane)[h * count + i];
          unit.scales(source)[k / kScaleBlock + i] =
              static_cast<uint8_t>(stored == 0 ? 255 : stored - 126 + (unit.row_byte(row) & ~kPackNan));
        }
      }
    }
  }
}

}  // namespace moxie::kernel
