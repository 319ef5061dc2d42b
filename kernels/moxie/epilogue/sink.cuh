// SPDX-License-Identifier: Apache-2.0
// What an output of the epilogue is: the contract of a sink, and the fragments and chunks that it is given.
//
// A sink takes one of the two values of the product (pre, or out = activation(pre)) as float32 fragments and brings it
// to memory. To add one, write a struct in a header of your own and pass its type name with the header; no file of the
// kernel changes. It has:
//
//   struct Params { ... };
//     Its kernel argument, trivially copyable; the host fills in the bytes.
//   static constexpr Value kValue = Value::Out;
//     Which value it takes.
//   static constexpr SinkNeeds kNeeds = {};
//     What it asks of the kernel (moxie/types.h); {} for a sink that stores with plain instructions. The caller repeats
//     it in CustomSink::needs.
//
//   explicit Sink(const Params&);
//     One object a thread for the whole kernel; it may keep state in registers. It touches no global memory, for the
//     kernel has not yet executed griddepcontrol.wait.
//
//   template <int kColumns>
//   void store(const Fragment<kColumns>& values, const Chunk& chunk, int block, uint8_t* staging);
//     Called by whole warps for each chunk and, within it, for each of chunk.blocks accumulator blocks. The warp has 16
//     rows of the block by kColumns columns, a multiple of 32 (with kNeeds.narrow also 16, and with packed weights 8 of
//     a gated `out`, a chunk of its own for each warp); Chunk tells which ones. It
//     must write nothing past chunk.rows rows or past the value's columns. Mostly a warp has 16 of 64 rows and all
//     columns of the chunk, and chunks come from left to right. With swapped operands warps lie side by side, some
//     warps may have no columns, and chunks come from top to bottom.
//
// With kNeeds.staging_bytes > 0, `staging` is that much shared memory, aligned to 1024, which store() fills. Then
//
//   void issue(const void* map, const Chunk& chunk, const uint8_t* staging);
//     One thread, the same for the whole kernel: starts bulk copies from `staging`. The epilogue orders generic before
//     asynchronous accesses, commits the copies, and waits for them before it hands out the same buffer again.
//
// With kNeeds.transposed it has besides
//
//   template <int kColumns>
//   void store_transposed(const TransposedFragment<kColumns>& values, const Chunk& chunk, int row, uint8_t* staging);
//     Called instead of store() by packed weights' kernels whose chunks are 64 rows by 64 columns of the product, where
//     every sink has it, unless all are narrow and store from the registers of a decode kernel. `row` is 0 or 32,
//     counted from chunk.row, and 32 only where such rows exist. The warp has rows row .. row + 31 of the value's
//     kColumns columns from chunk.warp() * kColumns on: 16, of a gated `out` 8. Chunk's other functions do not apply.
//     As in store() nothing may be written past chunk.rows rows or the value's columns.
//
// With kNeeds.tensor_map it has besides
//
//   const TensorMap& map() const;
//     The map, or the template of the per-group maps.
//
//   bool rewrite(MapEditor map, const Chunk& group) const;
//     One thread: points the map at group.group, which has group.rows rows. False says that no map can describe the
//     group's memory; nothing is issued for the group then. Called only where outputs_need_group_maps(grouping).
//
// A sink that depends on the kernel's configuration is a template over it; its type name may use `kConfig`.
//
// A gated `pre` comes in the order of the accumulator, which alternates between eight columns of either half. Columns
// 16 q + 0..7 of a fragment are columns 8 q + 0..7 of the first half (gate; up for SplitUpFirst), and columns
// 16 q + 8..15 are the matching ones of the second half.
#pragma once
#include "moxie/isa.cuh"

namespace moxie::kernel {

enum class Value { Pre, Out };

// A warp's part of an accumulator block: 16 rows by kColumns columns. v[j][2 h + c] is the element in row
// lane / 4 + 8 h and column 8 j + 2 (lane % 4) + c. This is how wgmma leaves its accumulator (PTX ISA 9.7.15.5.1.1) and
// how a load of shape 16x256b from tensor memory gives it (9.7.16.2.3).
template <int kColumns>
struct Fragment {
  float v[kColumns / 8][4];
};

// A warp's part of a transposed accumulator: 32 rows of the product by kColumns columns, 8 or 16. v[j][2 h + c] is the
// element in row 8 j + 2 (lane % 4) + c and column lane / 4 + 8 h.
template <int kColumns>
struct TransposedFragment {
  float v[4][kColumns / 4];
};

// Where a step of the epilogue, epilogue_rows by epilogue_columns of the product, lies. Its rows are divided into
// accumulator blocks, and of each block a warp has one fragment of 16 rows.
struct Chunk {
  int32_t group;
  int32_t row;           // first row of the chunk, within the group (Dense, RowGroups: within the tensor)
  int32_t rows;          // rows that exist from `row` on; may exceed those of the chunk
  int32_t row_begin;     // Offsets: the tensor's row where the group begins, else 0
  int32_t column;        // first column of the product; a gated `out` begins at column / 2
  int32_t n;             // columns of the product
  int32_t thread;        // of the warp group, 0 to 127
  int32_t warp_rows;     // from one warp's rows to the next's: 16 on Hopper, 32 on Blackwell, 0 with swapped operands
  int32_t block_rows;    // from one block's rows to the next's: 64 on Hopper, 16 on Blackwell
  int32_t scale_tiles;   // Offsets: tiles of a quantized output's scales before the group's first, else 0
  int32_t blocks;        // accumulator blocks of the chunk
  int32_t row_warps;     // warps that lie one below the other: 4, with swapped operands 1 or 2
  int32_t warp_columns;  // with swapped operands columns of the value from those warps to the ones beside them, else 0

  MOXIE_DEVICE int warp() const { return static_cast<int>(static_cast<uint32_t>(thread) / 32); }
  // First of the 16 rows that this warp has of a block, counted from `row`.
  MOXIE_DEVICE int warp_row(int block) const { return block * block_rows + warp() % row_warps * warp_rows; }
  // First of this warp's columns of the value, counted from the chunk's first.
  MOXIE_DEVICE int warp_column() const { return warp() / row_warps * warp_columns; }
  // Row of the element v[..][2 h + ..] of a fragment, counted from `row`.
  MOXIE_DEVICE int fragment_row(int block, int h) const { return warp_row(block) + thread % 32 / 4 + h * 8; }
  // Column of the element v[j][.. + c] of a fragment, counted from the chunk's first.
  MOXIE_DEVICE int fragment_column(int j, int c) const { return warp_column() + j * 8 + thread % 4 * 2 + c; }
};

}  // namespace moxie::kernel
