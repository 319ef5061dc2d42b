// SPDX-License-Identifier: Apache-2.0
// The names that a caller, the host code and the kernels share: groupings, activations, formats and the choices of a
// plan. Compiled by the host compiler and by NVRTC. It includes nothing but fixed-width integers.
#pragma once
#ifdef __CUDACC_RTC__
#include <cuda/std/cstdint>
using cuda::std::int32_t;
using cuda::std::int64_t;
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;
#else
#include <cstdint>
#endif

namespace moxie {

// How rows are divided into groups. What each one needs from the caller stands in moxie/gemm.h.
enum class Grouping : int { Dense, Batched, Offsets, RowGroups, Masked, Pointers, KGroups };

// Applied to pre = A B^T + bias. The ones after Silu are gated: they halve the width.
enum class Activation : int {
  None,
  Relu,
  Relu2,
  GeluTanh,
  GeluErf,
  Silu,
  Swiglu,         // silu(gate) * up
  SwigluOai,      // min(gate, limit) * sigmoid(alpha * min(gate, limit)) * (clamp(up, -limit, limit) + 1)
  Geglu,          // gelu_tanh(gate) * up
  Reglu,          // relu(gate) * up
  SwigluClamped,  // silu(min(gate, gate_limit)) * clamp(up, -up_limit, up_limit)
  Situ,           // beta * tanh(gate / beta) * sigmoid(gate) * linear_beta * tanh(up / linear_beta)
};
// Whether an activation takes two columns, gate and up, for one of out.
constexpr bool is_gated(Activation a) { return static_cast<int>(a) > static_cast<int>(Activation::Silu); }

// Where the gate and up columns of a gated product lie along N.
enum class GateLayout : int {
  Interleaved,   // columns 2i, 2i + 1 are gate, up
  Split,         // gate in the first N / 2 columns, up in the second
  SplitUpFirst,  // up in the first N / 2 columns, gate in the second
};

// What the elements of an output are.
enum class DataType : int {
  Bf16,
  F32,
  Mxfp4,  // E2M1, two in a byte, the first in the low nibble; an E8M0 scale for every 32 along a row (OCP MX v1.0)
  Mxfp8,  // E4M3 with the same scales
  Nvfp4,  // E2M1 with an E4M3 scale for every 16 and one float for the whole tensor
};
// Bits of an element.
constexpr int bits_of(DataType t) {
  return t == DataType::F32 ? 32 : t == DataType::Bf16 ? 16 : t == DataType::Mxfp8 ? 8 : 4;
}
constexpr int size_of(DataType t) { return bits_of(t) / 8; }  // bytes; not for elements of four bits
// Whether there are scales.
constexpr bool is_quantized(DataType t) { return t != DataType::Bf16 && t != DataType::F32; }

// What the elements of A and B are.
enum class OperandFormat : int {
  Bf16,
  Mxfp4,  // E2M1, two in a byte, the first in the low nibble; an E8M0 scale for every 32 along K (OCP MX v1.0)
  Nvfp4,  // E2M1 with an E4M3 scale for every 16 and one float for the whole matrix
};
constexpr bool has_scales(OperandFormat f) { return f != OperandFormat::Bf16; }  // whether there are scales
constexpr int bits_of(OperandFormat f) { return has_scales(f) ? 4 : 16; }        // bits of an element
constexpr int kScaleBlock = 32;  // elements of an MXFP4 row that share a scale

// Scales lie in tiles of 128 rows by 4 scales, 512 bytes each: scale (r, k) of a tile at (r % 32) * 16 + (r / 32) * 4 +
// k (cuBLASLt's VEC32_UE8M0 layout). Tiles of the same rows lie side by side.
constexpr int kScaleTileRows = 128;
constexpr int kScaleTileColumns = 4;  // scales of a row
constexpr int kScaleTileBytes = 512;  // of a tile
// Elements that share a scale.
constexpr int scale_block(DataType t) { return t == DataType::Nvfp4 ? 16 : kScaleBlock; }
// The same for an operand.
constexpr int scale_block(OperandFormat f) { return f == OperandFormat::Nvfp4 ? 16 : kScaleBlock; }
// Elements along K that a tile's scales belong to.
constexpr int scale_tile_k(OperandFormat f) { return kScaleTileColumns * scale_block(f); }
// K is a multiple of this, that of every group, too: 16 bytes.
constexpr int kScaledUnit = 32;
constexpr int k_unit(OperandFormat f) { return has_scales(f) ? kScaledUnit : 8; }  // the multiple for a format

// How the two consumer warp groups of a Hopper kernel share the tiles of a block.
enum class WarpSchedule : int {
  Cooperative,  // two consumer warp groups share one tile
  PingPong,     // each consumer warp group has a tile of its own
};

// Who tells the blocks of a Blackwell kernel which tiles to compute.
enum class TileSource : int {
  Static,         // as many blocks as the device holds, each walking over every so-manieth tile
  LaunchControl,  // a grid of all tiles: a block that is done cancels the launch of another and computes its tile
};

// Which operand the two blocks of a cluster load together. Either (Offsets, Masked): rows of tiles are taken two at a
// time, which share B; the last one of a group with an odd number shares A between two columns of tiles.
enum class Multicast : int { None, A, B, Either };

// The most that routing (moxie/routing.h) takes.
constexpr int kMaxRoutedExperts = 1024;    // experts
constexpr int kMaxTopK = 16;               // choices of a token
constexpr int kMaxExpertGroups = 32;       // groups of experts that a token is limited to
constexpr int kMaxRoutedTokens = 1 << 20;  // tokens of a call

// What a router makes of its logits before it chooses (moxie/routing.h).
enum class RouterScore : int {
  Softmax,  // exp(logit) over the sum of those of all experts, or of the chosen ones
  Sigmoid,  // 1 / (1 + exp(-logit))
};

constexpr int kMaxRanks = 72;  // over which experts are spread (moxie/layer.h)

// What travels from a token's rank to those of its experts (moxie/layer.h).
enum class RowFormat : int {
  Bf16,   // tokens as they are
  Fp8,    // E4M3 with a float scale for every 128 columns, and bf16 again where the experts are
  Mxfp8,  // E4M3 with an E8M0 scale for every 32 columns, as DataType::Mxfp8, and bf16 again where the experts are
};

// What travels back.
enum class ResultFormat : int {
  Rows,      // a row in bf16 for each pair, summed where the token is, as one rank would
  Sums,      // for each token and each rank that has experts of its the weighted sum of their rows, in float32
  Bf16Sums,  // the same, rounded to bf16
};

// What a launch of a layer over ranks computes (moxie/layer.h).
enum class LayerPart : int {
  All,
  Send,      // sends this rank's tokens and tells the others so
  Multiply,  // waits for the others' tokens, multiplies them and tells the others so
  Sum,       // waits for the results of this rank's tokens and sums them
};

// What a custom sink asks of the kernel. The sink states it as kNeeds (kernels/moxie/epilogue/sink.cuh), the caller
// repeats it in CustomSink::needs.
struct SinkNeeds {
  int staging_bytes = 0;    // shared memory per warp group and buffer, a multiple of 1024; 0 when it stores directly
  bool tensor_map = false;  // it stores through a tensor map, which is rewritten per group where groups are not aligned
  bool narrow = false;      // it takes fragments of 8 and 16 columns as well as wider ones
  bool transposed = false;  // it has store_transposed(), which packed weights' kernels prefer

  bool operator==(const SinkNeeds&) const = default;
};

}  // namespace moxie
