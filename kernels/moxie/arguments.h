// SPDX-License-Identifier: Apache-2.0
// The arguments of the kernels, filled in by the host. Compiled by the host compiler and by NVRTC. What their tensor
// maps describe stands in docs/tensor_maps.md.
#pragma once
#include "moxie/types.h"

namespace moxie {
namespace kernel {

// A 128-byte tensor map (CUtensorMap).
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// The operands of each group with Grouping::Pointers: arrays in device memory with one entry a group.
struct GroupArrays {
  const void* const* a = nullptr;
  const void* const* b = nullptr;
  const void* const* bias = nullptr;
  const int64_t* lda = nullptr;    // elements
  const int64_t* ldb = nullptr;    // elements
  const int32_t* sizes = nullptr;  // [groups][3]: M_g, N_g, K_g
};

// HopperConfig::gather, BlackwellConfig::gather: which row of A a row of the product is computed from, rows[row] /
// divisor; one that is not 0 to count - 1 stands for zeros.
struct GatherParams {
  const int32_t* rows = nullptr;  // [m]
  uint32_t divisor = 1;
  uint32_t count = 0;      // rows of A
  uint32_t lda_bytes = 0;  // from row to row of A
};

// First argument of every grouped GEMM.
struct GemmParams {
  TensorMap a;  // the map itself, or the template that is rewritten per group
  TensorMap b;
  TensorMap a_part;  // loads_in_parts: A again, in boxes of kPartRows rows
  int32_t groups = 1;
  // Rows. Dense, Offsets, RowGroups, KGroups: all of A. Batched: of one group. Masked, Pointers: the most of any group.
  int32_t m = 0;
  // Columns of the product, before a gate halves them. Pointers: the most of any group.
  int32_t n = 0;
  // Pointers: the most of any group. KGroups: of all groups together.
  int32_t k = 0;
  int32_t weights_ready = 0;  // Hopper, 1: B and sizes may be read before griddepcontrol.wait
  int32_t panel_columns = 8;  // columns of cluster tiles that are walked together so that B stays in L2
  float alpha = 1.702f;       // of Activation::SwigluOai, as is limit
  float limit = 7.0f;
  // Offsets, KGroups: the end of each group. RowGroups: the group of each row. Masked: the rows of each group.
  const int32_t* sizes = nullptr;
  const void* bias = nullptr;                     // bf16 [groups][n], 16-byte aligned, or null
  int64_t bias_stride = 0;                        // elements between groups, a multiple of 8
  GroupArrays arrays;                             // Pointers only
  uint8_t* workspace = nullptr;                   // per-group maps: see workspace_maps in layout.h
  const void* a_base = nullptr;                   // KGroups, gather: A itself, and with KGroups B
  const void* b_base = nullptr;                   // and packed weights, but for Pointers
  const void* const* a_scale_pointers = nullptr;  // Pointers with scales: those of each group
  const void* const* b_scale_pointers = nullptr;
  GatherParams gather;
  float gate_limit = 10.0f, up_limit = 10.0f;  // of Activation::SwigluClamped
  float beta = 4.0f, inverse_beta = 0.25f;     // of Activation::Situ, as are the next two
  float linear_beta = 25.0f, inverse_linear_beta = 0.04f;
};

// Second argument of a Blackwell kernel whose operands have scales.
struct ScaleParams {
  TensorMap a;
  TensorMap b;
  TensorMap half_group;         // has_half_group: b's scales again
  TensorMap half_group_values;  // has_half_group: B itself
  // Nvfp4: factors of the product, in device memory, or null for 1.
  const float* a_tensor_scale = nullptr;
  const float* b_tensor_scale = nullptr;  // [groups]
};

// Rows whose scales lie in tiles. The rows of every group begin with a tile of their own.
struct ScaleRows {
  const int32_t* offsets = nullptr;  // ends of the groups, or null
  int32_t groups = 1;
  int32_t rows = 0;  // with offsets the rows of all groups, without them those of each group
};

// Argument of the kernel that brings scales into tiles (scaling/block_scales.cuh); see moxie/scales.h.
enum class ScaleConversion : int { Block, Unblock, BlockFloats };
struct BlockScalesParams {
  ScaleConversion conversion = ScaleConversion::Block;
  const void* from = nullptr;
  uint8_t* to = nullptr;
  ScaleRows rows;
  int32_t columns = 0;  // scales of a row
  int32_t along_k = 0;  // 1: rows.offsets are ends along K, in elements
  int32_t k = 0, block = kScaleBlock;
};
constexpr int kBlockScalesThreads = kScaleTileRows;  // a block has the tiles of 128 rows, a thread those of one row

// Argument of the kernels of scaling/quantize.cuh; see moxie/quantize.h. `from` holds the values to be quantized, or
// the elements to be dequantized.
struct QuantizeParams {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t ld_from = 0, ld_to = 0;  // elements
  uint8_t* scales = nullptr;
  float* tensor_scale = nullptr;  // Nvfp4
  ScaleRows rows;
  int32_t columns = 0;  // elements of a row
  int32_t blocked = 1;  // 1: the scales lie in tiles; 0: row by row
  GatherParams gather;  // of the kernel that gathers
};
constexpr int kQuantizeThreads = 256;

// Argument of the kernels of scaling/pack_weights.cuh; see moxie/weights.h.
struct PackWeightsParams {
  uint8_t* codes = nullptr;   // [groups][n][k / 2]
  uint8_t* scales = nullptr;  // [groups][n][k / 32]
  uint8_t* packed = nullptr;
  unsigned long long* refused = nullptr;
  int32_t n = 0, k = 0;
  int32_t gated = 0;
  GateLayout gate = GateLayout::Interleaved;
};
constexpr int kPackWeightsThreads = 128;  // a block has 16 packed rows of a group

// Argument of the kernels of routing/sort.cuh; see moxie/routing.h. A pair is a token and one of its choices.
struct SortParams {
  const void* ids = nullptr;
  const int32_t* token_count = nullptr;  // or null
  int32_t* ends = nullptr;
  int32_t* order = nullptr;
  int32_t* inverse = nullptr;
  // With more than one slice: of each slice the pairs of each expert in those slices of its cluster that come before,
  // [slices][experts]; and of each cluster its pairs of each expert, [sort_clusters(slices)][experts].
  int32_t* before = nullptr;
  int32_t* clusters = nullptr;
  int64_t first_expert = 0;
  int32_t tokens = 0, top_k = 1, experts = 1;
  int32_t slices = 1, rounds = 1, rows = 1;  // SortShape
  // Ids from first_expert on that are experts; which of `experts` each is, its own number where there is no table.
  int32_t ids_here = 1;
  const int32_t* places = nullptr;
};
// The block of a slice takes its pairs in rounds, and a warp `rows` times 32 of them in each. No more experts than a
// block has threads.
constexpr int kSortThreads = 1024, kSortRows = 8;
static_assert(kMaxRoutedExperts <= kSortThreads);
// Blocks of these count pairs; the clusters in which they do so.
constexpr int kCountThreads = 256, kSortCluster = 8;
// Of a thread that places pairs, so that its block fits beside one that still counts: 1,024 x 56 and 256 x 32
// registers.
constexpr int kPlaceRegisters = 56;
constexpr int sort_clusters(int slices) { return (slices + kSortCluster - 1) / kSortCluster; }

// How pairs are divided: as many slices as there may be, since each has a multiprocessor of its own. What one block
// sorts about as fast as two launches do is one slice.
struct SortShape {
  int slices = 1, rounds = 1, rows = 1;
};
constexpr int kMostSlices = 128, kPairsOfOneSlice = 2 * kSortThreads;
constexpr SortShape sort_shape(int64_t pairs) {
  const int rows = static_cast<int>((pairs + kSortThreads - 1) / kSortThreads);
  if (pairs <= kPairsOfOneSlice) return {1, 1, rows > 1 ? rows : 1};
  const int of_slice = (rows + kMostSlices - 1) / kMostSlices;
  SortShape shape;
  shape.rounds = (of_slice + kSortRows - 1) / kSortRows;
  shape.rows = (of_slice + shape.rounds - 1) / shape.rounds;
  shape.slices = (rows + shape.rounds * shape.rows - 1) / (shape.rounds * shape.rows);
  return shape;
}

// What a block that places pairs has in shared memory, from byte 0 on: the pairs of a round in the order of their
// experts, what leads from a place there to its row, and of each warp how many pairs of each expert it has, and of
// none.
struct PlaceLayout {
  int32_t shifts = 0, counters = 0, bytes = 0;
};
constexpr PlaceLayout place_layout(int warps, int rows, int experts) {
  PlaceLayout layout;
  layout.shifts = warps * rows * 32 * 4;
  layout.counters = layout.shifts + experts * 4;
  layout.bytes = layout.counters + warps * (experts + 1) * 4;
  return layout;
}

// Argument of the kernel of routing/route.cuh; see moxie/routing.h.
struct RouteParams {
  const void* logits = nullptr;
  int64_t ld = 0;                        // elements between tokens
  const float* bias = nullptr;           // or null
  const int32_t* token_count = nullptr;  // or null
  int32_t* ids = nullptr;
  float* weights = nullptr;
  int32_t tokens = 0, experts = 1, top_k = 1;
  int32_t expert_groups = 1, chosen_groups = 1;
  int32_t renormalize = 1;
  float scaling_factor = 1;
};
constexpr int kRouteThreads = 128;  // a warp has a token

// Argument of the kernel of routing/permute.cuh; see moxie/routing.h. A word is 16 bytes.
struct PermuteParams {
  const void* from = nullptr;            // [tokens][words]
  const int32_t* inverse = nullptr;      // [tokens][top_k]
  const int32_t* token_count = nullptr;  // or null
  void* out = nullptr;                   // [rows][words]
  int64_t ld_from = 0, ld_out = 0;       // words
  int32_t tokens = 0, top_k = 1, rows = 0, words = 0;
};
constexpr int kPermuteThreads = 128;  // a thread has a word of a token

// Argument of the kernel of routing/combine.cuh; see moxie/routing.h.
struct CombineParams {
  const void* from = nullptr;                        // [rows][columns]
  const int32_t* inverse = nullptr;                  // [tokens][top_k]
  const float* weights = nullptr;                    // [tokens][top_k], or null for 1
  const void* residual = nullptr;                    // [tokens][columns], or null for 0
  const int32_t* token_count = nullptr;              // or null
  void* out = nullptr;                               // [tokens][columns]
  int64_t ld_rows = 0, ld_residual = 0, ld_out = 0;  // elements
  int32_t tokens = 0, top_k = 1, rows = 0, columns = 0;
  int32_t tokens_of_block = 1;  // times top_k it is 32 at most
  uint32_t first_pairs = 1;     // bit i: a block's pair i is the first of its token
};
constexpr int kCombineThreads = 128;  // a thread has eight columns of its block's tokens
constexpr int kCombineBlocks = 8;     // blocks of a multiprocessor
constexpr int kCombineTokens = 4;     // the most tokens of a block

// Argument of a standard output sink (epilogue/store.cuh).
struct StoreParams {
  TensorMap map;                    // the map itself, or the template; not used with stores_directly
  void* base = nullptr;             // first element
  int64_t ld = 0;                   // elements between rows
  int64_t group_stride = 0;         // Batched, Masked: elements between groups
  void* const* pointers = nullptr;  // Pointers: first element of each group
  const int64_t* lds = nullptr;     // Pointers: elements between rows of each group
};

// Argument of a quantized output sink (epilogue/quantized_store.cuh), which stores without a tensor map.
struct QuantizedStoreParams {
  uint8_t* base = nullptr;
  int64_t ld = 0;            // elements between rows
  int64_t group_stride = 0;  // Batched, Masked, KGroups: elements between groups
  uint8_t* scales = nullptr;
  int64_t group_scales = 0;  // Batched, Masked, KGroups: bytes between groups
  // Pointers: the same of each group.
  void* const* pointers = nullptr;
  const int64_t* lds = nullptr;
  void* const* scale_pointers = nullptr;
  const float* tensor_scale = nullptr;  // Nvfp4: one float, or null for 1
};

}  // namespace kernel
}  // namespace moxie
