// SPDX-License-Identifier: Apache-2.0
// A sink of the second product where rows travel back: rounds a row to bf16 and stores it where its token came from, in
// that rank's window, at the place of the token's choice. So rows are on their way while others are still multiplied,
// and what sums them reads its own memory. Stores wait for no answer.
//
// A warp's fragment has neighboring columns in other lanes, two by two, and links carry long stores best. Through
// staging a warp brings 64 columns of a row together, 128 bytes. Where experts have few rows the four lanes of a row
// swap what they have, and store 64 bytes together: so kernels for few rows need no barriers in their epilogue, and
// keep all shared memory for weights.
#pragma once
#include "moxie/epilogue/sink.cuh"
#include "moxie/ranks/meet.cuh"
#include "moxie/window.h"

namespace moxie::kernel {

template <bool kStaged>
class RowsToRanks {
 public:
  using Params = RowSinkParams;
  static constexpr Value kValue = Value::Out;
  static constexpr SinkNeeds kNeeds = row_sink_needs(kStaged);

  MOXIE_DEVICE explicit RowsToRanks(const Params& params) : params_(params) {}

  template <int kColumns>
  MOXIE_DEVICE void store(const Fragment<kColumns>& values, const Chunk& chunk, int block, uint8_t* staging) const {
    const int32_t first = chunk.column + chunk.warp_column();
    if (chunk.warp_row(block) >= chunk.rows || first >= chunk.n) return;
    if constexpr (kStaged) {
#pragma unroll
      for (int part = 0; part < kColumns; part += kRowSinkColumns) {
        if constexpr (kColumns >= kRowSinkColumns)
          store_part<kRowSinkColumns>(values, chunk, block, first, part, staging);
        else
          store_part<kColumns>(values, chunk, block, first, part, staging);
      }
    } else {
      store_quads(values, chunk, block, first);
    }
  }

  // Nothing is left to copy.
  MOXIE_DEVICE void issue(const void*, const Chunk&, const uint8_t*) const {}

 private:
  // `part` is the first of kPart columns of the fragment.
  template <int kPart, int kColumns>
  MOXIE_DEVICE void store_part(const Fragment<kColumns>& values, const Chunk& chunk, int block, int32_t first, int part,
                               uint8_t* staging) const {
    static_assert(kColumns % kPart == 0);
    const int lane = chunk.thread % 32;
    uint8_t* const own = staging + chunk.warp() * (16 * kRowSinkStride);
    __syncwarp();  // what lay there has been read
    uint8_t* const to = own + lane % 16 * kRowSinkStride + lane / 16 * 16;
#pragma unroll
    for (int pair = 0; pair < kPart / 16; ++pair) {
      const float(&left)[4] = values.v[part / 8 + 2 * pair];
      const float(&right)[4] = values.v[part / 8 + 2 * pair + 1];
      stmatrix_x4(to + pair * 32, cvt_bf16x2(left[0], left[1]), cvt_bf16x2(left[2], left[3]),
                  cvt_bf16x2(right[0], right[1]), cvt_bf16x2(right[2], right[3]));
    }
    __syncwarp();
    constexpr int kLanes = kPart / 8, kRows = 32 / kLanes;  // lanes of a row, and rows at once
    const int32_t column = first + part + lane % kLanes * 8;
#pragma unroll
    for (int i = 0; i < 16; i += kRows) {
      const int32_t in_warp = i + lane / kLanes, row = chunk.warp_row(block) + in_warp;
      uint16_t* const there = row < chunk.rows ? row_of(chunk.row_begin + chunk.row + row) : nullptr;
      if (there != nullptr && column < chunk.n) {
        *reinterpret_cast<uint4*>(there + column) =
            *reinterpret_cast<const uint4*>(own + in_warp * kRowSinkStride + lane % kLanes * 16);
      }
    }
  }

  template <int kColumns>
  MOXIE_DEVICE void store_quads(const Fragment<kColumns>& values, const Chunk& chunk, int block, int32_t first) const {
    const int lane = chunk.thread % 4;  // of the quad
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t row = chunk.fragment_row(block, h);
      uint16_t* const to = row < chunk.rows ? row_of(chunk.row_begin + chunk.row + row) : nullptr;
#pragma unroll
      for (int j = 0; j < kColumns / 8; j += 4) {
        uint32_t words[4] = {};
#pragma unroll
        for (int i = 0; i < 4 && j + i < kColumns / 8; ++i)
          words[i] = cvt_bf16x2(values.v[j + i][2 * h], values.v[j + i][2 * h + 1]);
        swap_in_quad(words, lane);
        const int32_t column = first + (j + lane) * 8;
        if (to != nullptr && j + lane < kColumns / 8 && column < chunk.n)
          *reinterpret_cast<uint4*>(to + column) = {words[0], words[1], words[2], words[3]};
      }
    }
  }

  // Where a row of our experts belongs; null where the call has failed, or where no token can be.
  MOXIE_DEVICE uint16_t* row_of(int32_t row) const {
    const RankParams& ranks = params_.ranks;
    const uint8_t* const own = ranks.windows[ranks.rank];
    // The outcome and the origins do not change while this kernel runs, so the compiler may read them once a tile.
    if (__ldg(reinterpret_cast<const int32_t*>(own + offsetof(WindowHeader, outcome))) !=
        static_cast<int32_t>(Outcome::Fine))
      return nullptr;
    const auto* const origins = reinterpret_cast<const long long*>(own + ranks.at.origins);
    const auto origin = static_cast<uint64_t>(__ldg(origins + row));
    const auto rank = static_cast<uint32_t>(origin >> 32), pair = static_cast<uint32_t>(origin);
    if (rank >= static_cast<uint32_t>(ranks.ranks) || pair >= static_cast<uint32_t>(ranks.tokens * params_.top_k))
      return nullptr;
    return reinterpret_cast<uint16_t*>(ranks.windows[rank] + ranks.at.rows) + int64_t{pair} * params_.columns;
  }

  // Lane l of a quad gives word i to lane i, and gets word l of lane i in its place.
  static MOXIE_DEVICE void swap_in_quad(uint32_t (&words)[4], int lane) {
#pragma unroll
    for (int step = 1; step <= 2; ++step) {
      const bool upper = (lane & step) != 0;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int low = step == 1 ? 2 * k : k, high = low + step;
        const uint32_t got = __shfl_xor_sync(~0u, upper ? words[low] : words[high], step);
        (upper ? words[low] : words[high]) = got;
      }
    }
  }

  const Params& params_;
};

}  // namespace moxie::kernel
