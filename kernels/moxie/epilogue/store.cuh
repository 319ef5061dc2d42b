// SPDX-License-Identifier: Apache-2.0
// The standard sinks: pre or out, rounded to bf16 (nearest even) or as float32. StagedStore writes through shared
// memory and a tensor map, DirectStore from registers. stores_directly() in config.h says which one a kernel has.
#pragma once
#include "moxie/epilogue/sink.cuh"
#include "moxie/layout.h"
#include "moxie/tensor_map.cuh"

namespace moxie::kernel {

// Writes through shared memory and a tensor map: whole lines, clipped by the copy engine. store_box() in layout.h is
// the shape of its copies. The staging buffer holds [copy][half][row][box row], swizzled.
template <auto C, Value kTakes, DataType kType>
class StagedStore {
  static constexpr bool kPre = kTakes == Value::Pre;
  static constexpr StoreBox kBox = store_box(C, kPre, kType);
  static constexpr bool kInterleaves = kPre && is_gated(C.activation) && C.gate == GateLayout::Interleaved;
  static constexpr int kElement = size_of(kType);
  static constexpr int kPlane = kBox.rows * kBox.swizzle;  // bytes of one half of a copy
  static constexpr int kCopy = kBox.halves * kPlane;

 public:
  using Params = StoreParams;
  static constexpr Value kValue = kTakes;
  static constexpr SinkNeeds kNeeds = store_needs(C, kPre, kType);

  MOXIE_DEVICE explicit StagedStore(const Params& params) : params_(params) {}
  MOXIE_DEVICE const TensorMap& map() const { return params_.map; }

  template <int kColumns>
  MOXIE_DEVICE void store(const Fragment<kColumns>& values, const Chunk& chunk, int block, uint8_t* staging) const {
    const int lane = chunk.thread % 32;
    if constexpr (kInterleaves) {
      // The two gate and up pairs of a thread are four neighboring columns.
      const Cursor to(staging, chunk.fragment_row(block, 0), chunk.warp_column() + 4 * (lane % 4));
#pragma unroll
      for (int q = 0; q < kColumns / 16; ++q) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float* gate = &values.v[2 * q][2 * h];
          const float* up = &values.v[2 * q + 1][2 * h];
          if constexpr (kType == DataType::Bf16) {
            *reinterpret_cast<uint2*>(to.at(0, 8 * h, 16 * q)) = {cvt_bf16x2(gate[0], up[0]),
                                                                  cvt_bf16x2(gate[1], up[1])};
          } else {
            *reinterpret_cast<float4*>(to.at(0, 8 * h, 16 * q)) = {gate[0], up[0], gate[1], up[1]};
          }
        }
      }
    } else if constexpr (kType == DataType::Bf16) {
      // stmatrix stores four 8 x 8 matrices: two groups of columns of one half by two groups of rows.
      const Cursor to(staging, chunk.warp_row(block) + lane % 16, chunk.warp_column() / kBox.halves + lane / 16 * 8);
#pragma unroll
      for (int half = 0; half < kBox.halves; ++half) {
#pragma unroll
        for (int pair = 0; pair < kColumns / 16 / kBox.halves; ++pair) {
          const float(&left)[4] = values.v[2 * pair * kBox.halves + half];
          const float(&right)[4] = values.v[(2 * pair + 1) * kBox.halves + half];
          stmatrix_x4(to.at(half, 0, 16 * pair), cvt_bf16x2(left[0], left[1]), cvt_bf16x2(left[2], left[3]),
                      cvt_bf16x2(right[0], right[1]), cvt_bf16x2(right[2], right[3]));
        }
      }
    } else {
      const Cursor to(staging, chunk.fragment_row(block, 0), chunk.warp_column() / kBox.halves + 2 * (lane % 4));
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          *reinterpret_cast<float2*>(to.at(j % kBox.halves, 8 * h, j / kBox.halves * 8)) = {values.v[j][2 * h],
                                                                                            values.v[j][2 * h + 1]};
        }
      }
    }
  }

  // Stores the 32 rows of this warp from `row` on. The kColumns columns of the four warps lie side by side.
  template <int kColumns>
  MOXIE_DEVICE void store_transposed(const TransposedFragment<kColumns>& values, const Chunk& chunk, int row,
                                     uint8_t* staging) const {
    static_assert(kType == DataType::Bf16 && !kInterleaves);
    const int lane = chunk.thread % 32;
    const auto pair = [&](int j, int h) { return cvt_bf16x2(values.v[j][2 * h], values.v[j][2 * h + 1]); };
    // stmatrix stores four 8 x 8 matrices: four below each other, or two by two.
    if constexpr (kColumns == 8) {
      const Cursor to(staging, row + lane, chunk.warp() * 8);
      stmatrix_x4_trans(to.at(0, 0, 0), pair(0, 0), pair(1, 0), pair(2, 0), pair(3, 0));
    } else {
      const int second = lane / 8 % 2, below = lane / 16 * 8 + lane % 8;
      const Cursor to(staging + (kBox.halves == 2 ? second * kPlane : 0), row + below,
                      kBox.halves == 2 ? chunk.warp() * 8 : chunk.warp() * 16 + second * 8);
#pragma unroll
      for (int j = 0; j < 4; j += 2)
        stmatrix_x4_trans(to.at(0, 8 * j, 0), pair(j, 0), pair(j, 1), pair(j + 1, 0), pair(j + 1, 1));
    }
  }

  MOXIE_DEVICE void issue(const void* map, const Chunk& chunk, const uint8_t* staging) const {
    const int column = is_gated(C.activation) && !kInterleaves ? chunk.column / 2 : chunk.column;
#pragma unroll
    for (int copy = 0; copy < kBox.copies; ++copy) {
      copy_out(map, column + copy * kBox.columns, chunk.row, chunk.group, staging + copy * kCopy);
    }
  }

  MOXIE_DEVICE bool rewrite(MapEditor map, const Chunk& group) const {
    map.size<1>(group.rows);
    if constexpr (C.grouping == Grouping::Pointers) {
      const void* base = params_.pointers[group.group];
      const int64_t ld = params_.lds[group.group], stride = ld * kElement;
      const int32_t columns = is_gated(C.activation) && !kPre ? group.n / 2 : group.n;
      if (!valid_map_address(base) || !valid_map_stride(stride) || ld < columns) return false;
      const int32_t width = is_gated(C.activation) && !kInterleaves ? group.n / 2 : group.n;
      map.address(base);
      map.size<0>(width);
      map.stride<1>(stride);
      if constexpr (kBox.halves == 2) map.stride<2>(int64_t{width} * kElement);
    } else {
      const int64_t first = group.row_begin * params_.ld + group.group * params_.group_stride;
      map.address(static_cast<const uint8_t*>(params_.base) + first * kElement);
    }
    return true;
  }

 private:
  // The place of a thread in the staging buffer. The swizzle (5.5.6) permutes the 16-byte pieces of a box row by the
  // row modulo 8. So a step by a multiple of 8 rows adds an offset, and a step along the row is one exclusive or.
  struct Cursor {
    MOXIE_DEVICE Cursor(uint8_t* staging, uint32_t row, uint32_t column)
        : first(staging + column / kBox.columns * kCopy + row * kBox.swizzle),
          along((column % kBox.columns * kElement) ^ (row * kBox.swizzle >> 3 & (kBox.swizzle - 16))) {}
    // The address in `half` of a split gate, `rows` and `columns` further on. rows is a multiple of 8, columns of what
    // the warp covers with one instruction.
    MOXIE_DEVICE uint8_t* at(int half, int rows, int columns) const {
      return first + (half * kPlane + columns / kBox.columns * kCopy + rows * kBox.swizzle) +
             (along ^ (columns % kBox.columns * kElement));
    }
    uint8_t* first;
    int along;
  };

  static MOXIE_DEVICE void copy_out(const void* map, int32_t column, int32_t row, int32_t group, const uint8_t* from) {
    constexpr auto kGlobal = cuda::ptx::space_global;
    constexpr auto kShared = cuda::ptx::space_shared;
    if constexpr (outputs_are_stacked(C.grouping)) {
      if constexpr (kBox.halves == 2) {
        cuda::ptx::cp_async_bulk_tensor(kGlobal, kShared, map, {column, row, 0, group}, from);
      } else {
        cuda::ptx::cp_async_bulk_tensor(kGlobal, kShared, map, {column, row, group}, from);
      }
    } else if constexpr (kBox.halves == 2) {
      cuda::ptx::cp_async_bulk_tensor(kGlobal, kShared, map, {column, row, 0}, from);
    } else {
      cuda::ptx::cp_async_bulk_tensor(kGlobal, kShared, map, {column, row}, from);
    }
  }

  const Params& params_;
};

template <DataType kType>
struct ElementOf {
  using Type = float;
};
template <>
struct ElementOf<DataType::Bf16> {
  using Type = uint16_t;
};

// Writes from the registers, row by row. For decode tiles, of which few rows exist.
template <auto C, Value kTakes, DataType kType>
class DirectStore {
  static_assert(!operands_need_group_maps(C.grouping), "all groups lie behind one base address");
  static constexpr bool kPre = kTakes == Value::Pre;
  static constexpr bool kGatedPre = kPre && is_gated(C.activation);

 public:
  using Params = StoreParams;
  static constexpr Value kValue = kTakes;
  static constexpr SinkNeeds kNeeds = store_needs(C, kPre, kType);

  MOXIE_DEVICE explicit DirectStore(const Params& params) : params_(params) {}

  template <int kColumns>
  MOXIE_DEVICE void store(const Fragment<kColumns>& values, const Chunk& chunk, int block, uint8_t*) const {
    if (chunk.warp_row(block) >= chunk.rows) return;
    // Columns of the product that are 8 of the value: 16 of a gated `out`.
    constexpr int kStep = !kPre && is_gated(C.activation) ? 16 : 8;
    const int32_t columns = chunk.n - chunk.column;
    const int32_t column =
        (kStep == 16 || kSplitPre ? chunk.column / 2 : chunk.column) + chunk.thread % 4 * (kInterleavedPre ? 4 : 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t row = chunk.fragment_row(block, h);
      const int32_t left = row < chunk.rows ? columns : 0;
      Element* const to = static_cast<Element*>(params_.base) + chunk.group * params_.group_stride +
                          (chunk.row_begin + chunk.row + row) * params_.ld + column;
      Element* const second_half = to + (kSplitPre ? chunk.n / 2 : 0);
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
        const float* const own = &values.v[j][2 * h];
        // Groups of eight columns of gate and up alternate in a gated `pre`.
        const float *gate = &values.v[j / 2 * 2][2 * h], *up = &values.v[j / 2 * 2 + 1][2 * h];
        if (j * kStep >= left) continue;
        if constexpr (kInterleavedPre) {
          write(to + j / 2 * 16 + j % 2 * 2, gate[j % 2], up[j % 2]);
        } else if constexpr (kSplitPre) {
          write((j % 2 == 0 ? to : second_half) + j / 2 * 8, own[0], own[1]);
        } else {
          write(to + j * 8, own[0], own[1]);
        }
      }
    }
  }

 private:
  static constexpr bool kInterleavedPre = kGatedPre && C.gate == GateLayout::Interleaved;
  static constexpr bool kSplitPre = kGatedPre && C.gate != GateLayout::Interleaved;
  using Element = typename ElementOf<kType>::Type;

  static MOXIE_DEVICE void write(uint16_t* to, float left, float right) {
    *reinterpret_cast<uint32_t*>(to) = cvt_bf16x2(left, right);
  }
  static MOXIE_DEVICE void write(float* to, float left, float right) { *reinterpret_cast<float2*>(to) = {left, right}; }

  const Params& params_;
};

template <auto C, Value kTakes, DataType kType, bool kDirect>
struct StoreOf {
  using Type = StagedStore<C, kTakes, kType>;
};
template <auto C, Value kTakes, DataType kType>
struct StoreOf<C, kTakes, kType, true> {
  using Type = DirectStore<C, kTakes, kType>;
};
// The standard sink of a kernel.
template <auto C, Value kTakes, DataType kType>
using Store = typename StoreOf<C, kTakes, kType, stores_directly(C)>::Type;

}  // namespace moxie::kernel
