// SPDX-License-Identifier: Apache-2.0
// sm_100a: every format of operands, one block and pairs, every grouping whose kernel differs, both schedulings,
// operands swapped and not, one and two accumulators, half groups, gates, gathered rows, and every kind of output.
#include "cases.h"

namespace moxie::mutants {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

struct Choice {
  OperandFormat format;
  Grouping grouping;
  int cluster, width;  // columns of a tile; with swapped operands its rows
  Activation activation = Activation::None;
  GateLayout gate = GateLayout::Interleaved;
  bool bias = false;
  std::optional<DataType> pre, out = kBf16;
  TileSource scheduling = TileSource::Static;
  bool swap_ab = false;
};

ProductSpec problem_of(const Choice& c) {
  ProductSpec p;
  p.format = c.format;
  p.grouping = c.grouping;
  p.cluster = c.cluster, p.swap_ab = c.swap_ab;
  (c.swap_ab ? p.tile_m : p.tile_n) = c.width;
  p.activation = c.activation, p.gate = c.gate, p.bias = c.bias;
  p.pre = c.pre, p.out = c.out;
  p.scheduling = c.scheduling;
  return p;
}

std::string name_of(const Choice& c) {
  constexpr const char* kFormats[] = {"bf16", "MXFP4", "NVFP4"};
  constexpr const char* kGroupings[] = {"dense", "batched", "offsets", "row groups", "masked", "pointers", "k groups"};
  return fmt::format("sm_100a {}, {}, {}, {} {}{}{}{}{}", kFormats[int(c.format)], kGroupings[int(c.grouping)],
                     c.cluster == 2 ? "pair" : "one block", c.width, c.swap_ab ? "rows, swapped" : "wide",
                     is_gated(c.activation) ? c.gate == GateLayout::Interleaved ? ", gated" : ", split gate" : "",
                     c.bias ? ", bias" : "", c.scheduling == TileSource::LaunchControl ? ", launch control" : "",
                     outputs_text(c.pre, c.out));
}

// Of a block's or a pair's tile; elements of a stage.
int tile_rows(const Choice& c) { return c.swap_ab ? c.width : 128 * c.cluster; }
int tile_columns(const Choice& c) {
  const bool two_products = has_scales(c.format) && is_gated(c.activation) && c.gate != GateLayout::Interleaved;
  return c.swap_ab ? 128 * c.cluster * (two_products ? 2 : 1) : c.width;
}
int stage_elements(const Choice& c) { return has_scales(c.format) ? 256 : 64; }

// What n must be a multiple of.
int64_t unit_of(const Choice& c) {
  if (c.out && is_quantized(*c.out)) return is_gated(c.activation) ? 64 : 32;
  if (!is_gated(c.activation)) return 8;
  return has_scales(c.format) && c.gate != GateLayout::Interleaved ? 64 : 16;
}
int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Groups with maps of their own operands.
void add_grouped(const Choice& c, Case& result) {
  const auto add = [&](std::vector<int64_t> m, std::vector<int64_t> n, std::vector<int64_t> k) {
    Job job;
    job.problem = problem_of(c);
    job.rows = std::move(m), job.n = n[0], job.group_k = std::move(k);
    if (c.grouping == Grouping::Pointers) job.group_n = std::move(n);
    job.e2m1 = true;
    job.seed = 5;
    result.jobs.push_back(std::move(job));
  };
  const int64_t tile_m = tile_rows(c), unit = unit_of(c), deep = 4 * stage_elements(c) - 32;
  // Of a width that leaves half groups the last row of B is in one.
  const int64_t n = tile_columns(c) % 32 != 0 ? 3 * tile_columns(c) : round_up(2 * tile_columns(c) + 16, unit);
  if (c.grouping == Grouping::KGroups) {
    // The last group ends within an instruction, and behind it lie NaN: in memory that is K's, and in none.
    const int64_t tail = has_scales(c.format) ? 96 : 40;
    // Twice as deep as elsewhere: a block whose requests launch control refuses has one tile to fill its ring with.
    add(std::vector<int64_t>(4, tile_m + 20), std::vector<int64_t>(4, n), {2 * deep, 0, 2 * stage_elements(c), tail});
    add(std::vector<int64_t>(2, tile_m + 9), std::vector<int64_t>(2, n), {0, 0});
    add(std::vector<int64_t>(12, 7), std::vector<int64_t>(12, unit), {32, 64, 0, 32, 96, 32, 32, 64, 0, 32, 32, 64});
  } else {
    add({tile_m + 9, 5, 0, tile_m, 17, 40}, {n, n - unit, unit, round_up(tile_columns(c) + 32, unit), n, unit},
        {deep, 96, 64, 2 * stage_elements(c), 32, deep});
    add({tile_m + 9, 5}, {n, unit}, {0, 0});
    add({7, 3, 1, 0, 7, 2, 9, 4, 1, 5, 3, 8}, std::vector<int64_t>(12, unit),
        {32, 64, 64, 32, 96, 32, 32, 64, 0, 32, 32, 64});
  }
}

Case make_case(const Choice& c) {
  Case result;
  result.name = name_of(c);
  if (c.grouping == Grouping::KGroups || c.grouping == Grouping::Pointers) {
    add_grouped(c, result);
    return result;
  }
  const auto add = [&](std::vector<int64_t> rows, int64_t n, int64_t k) {
    Job job;
    job.seed = 5;
    job.problem = problem_of(c);
    job.rows = std::move(rows), job.n = n, job.k = k;
    if (c.format == OperandFormat::Nvfp4) {
      job.a_tensor_scale = {0.25f};
      job.b_tensor_scale.assign(job.rows.size(), 0.5f);
    } else if (c.activation != Activation::None) {
      job.a_scales = job.b_scales = {122, 126};
    }
    result.jobs.push_back(std::move(job));
  };
  // Tails in every direction. Two multiprocessors share at least six tiles of at least four stages.
  const int64_t tile_m = tile_rows(c), unit = unit_of(c);
  const int64_t n = round_up(2 * tile_columns(c) + 16, unit);
  const int64_t k = has_scales(c.format) ? 4 * 256 - 96 : 4 * 64 + 24;
  std::vector<int64_t> large = {tile_m + 9, 5, 0, tile_m, 17, 40};
  if (c.swap_ab) large.push_back(tile_m - 8);
  if (c.grouping == Grouping::Dense) large = {2 * tile_m + 40};
  if (c.grouping == Grouping::Batched) large.assign(3, tile_m + 9);
  add(large, n, k);
  // Nothing to sum over.
  if (!c.out || !is_quantized(*c.out)) add({large[0]}, n, 0);
  // Groups of one tile, one store and one stage: another group with every tile, so that maps are rewritten while the
  // copies of the groups before are in flight.
  if (c.grouping != Grouping::Dense) {
    std::vector<int64_t> small = {7, 3, 1, 0, 7, 2, 9, 4, 1, 5, 3, 8};
    if (c.grouping == Grouping::Batched) small.assign(12, 5);
    add(small, round_up(32, unit), has_scales(c.format) ? 96 : 72);
  }
  return result;
}

}  // namespace

std::vector<Case> blackwell_cases() {
  constexpr auto kMxfp4 = OperandFormat::Mxfp4, kPlain = OperandFormat::Bf16, kNvfp4 = OperandFormat::Nvfp4;
  constexpr auto kInterleaved = GateLayout::Interleaved, kSplit = GateLayout::Split;
  constexpr auto kNone = Activation::None, kSwiglu = Activation::Swiglu, kOai = Activation::SwigluOai;
  constexpr auto kStatic = TileSource::Static, kControl = TileSource::LaunchControl;
  constexpr auto kFp4 = DataType::Mxfp4, kFp8 = DataType::Mxfp8;
  std::vector<Case> cases = {
      make_case({kMxfp4, Grouping::Offsets, 1, 64, kNone, kInterleaved, false, {}, kF32}),
      make_case({kMxfp4, Grouping::Offsets, 2, 64, kOai, kInterleaved, true, {}, kBf16}),
      make_case({kMxfp4, Grouping::Masked, 1, 96, kSwiglu, kInterleaved, true, {}, kBf16}),
      make_case({kMxfp4, Grouping::Masked, 2, 64, kNone, kInterleaved, false, {}, kF32}),
      make_case({kMxfp4, Grouping::Batched, 1, 48, kNone, kInterleaved, true, {}, kBf16}),
      make_case({kMxfp4, Grouping::RowGroups, 2, 96, kNone, kInterleaved, false, kF32, {}}),
      make_case({kMxfp4, Grouping::Dense, 1, 256, kNone, kInterleaved, false, {}, kBf16}),
      make_case({kPlain, Grouping::Offsets, 1, 64, kOai, kInterleaved, true, kF32, kBf16}),
      make_case({kPlain, Grouping::Offsets, 2, 64, kSwiglu, kSplit, false, {}, kBf16}),
      make_case({kPlain, Grouping::Masked, 2, 64, Activation::GeluTanh, kInterleaved, true, kBf16, kBf16}),
      make_case({kPlain, Grouping::Batched, 2, 128, kNone, kInterleaved, false, {}, kBf16}),
      make_case({kPlain, Grouping::RowGroups, 1, 64, kNone, kInterleaved, true, {}, kF32}),
      // NVFP4.
      make_case({kNvfp4, Grouping::Offsets, 1, 96, kNone, kInterleaved, true, {}, kF32}),
      make_case({kNvfp4, Grouping::Masked, 2, 64, kOai, kInterleaved, true, {}, kBf16, kControl}),
      // Maps of operands that change from group to group.
      make_case({kMxfp4, Grouping::KGroups, 1, 80, kNone, kInterleaved, false, {}, kF32}),
      make_case({kPlain, Grouping::KGroups, 2, 64, kNone, kInterleaved, true, {}, kBf16}),
      make_case({kNvfp4, Grouping::KGroups, 2, 64, kNone, kInterleaved, false, {}, kF32, kControl}),
      make_case({kMxfp4, Grouping::KGroups, 1, 32, kSwiglu, kInterleaved, true, {}, kBf16, kControl, true}),
      make_case({kMxfp4, Grouping::Pointers, 1, 64, kOai, kInterleaved, true, {}, kBf16}),
      make_case({kNvfp4, Grouping::Pointers, 2, 64, kNone, kInterleaved, false, {}, kF32}),
      make_case({kMxfp4, Grouping::Pointers, 1, 48, kNone, kInterleaved, false, {}, kBf16, kControl}),
      make_case({kPlain, Grouping::Pointers, 2, 32, kNone, kInterleaved, true, {}, kBf16, kStatic, true}),
      // A split gate of operands with scales: two products.
      make_case({kMxfp4, Grouping::Offsets, 1, 64, kSwiglu, kSplit, true, {}, kBf16}),
      make_case({kMxfp4, Grouping::Masked, 2, 128, kSwiglu, kSplit, false, kF32, {}, kControl}),
      // Quantised output.
      make_case({kMxfp4, Grouping::Offsets, 1, 64, kOai, kInterleaved, true, {}, kFp4}),
      make_case({kMxfp4, Grouping::Masked, 2, 96, Activation::Silu, kInterleaved, true, {}, kFp8}),
      make_case({kPlain, Grouping::Offsets, 1, 64, kSwiglu, kInterleaved, false, {}, kFp4, kControl}),
      make_case({kMxfp4, Grouping::KGroups, 1, 64, kNone, kInterleaved, true, {}, kFp4}),
      make_case({kNvfp4, Grouping::Pointers, 2, 128, kOai, kInterleaved, true, {}, kFp8}),
      // Swapped operands.
      make_case({kMxfp4, Grouping::Offsets, 1, 32, kNone, kInterleaved, true, {}, kBf16, kStatic, true}),
      make_case({kPlain, Grouping::Masked, 2, 32, kNone, kInterleaved, false, {}, kF32, kStatic, true}),
      make_case({kMxfp4, Grouping::Masked, 1, 16, kOai, kInterleaved, true, {}, kBf16, kControl, true}),
      make_case({kNvfp4, Grouping::Offsets, 2, 32, kNone, kInterleaved, true, {}, kF32, kControl, true}),
      make_case({kMxfp4, Grouping::Offsets, 2, 16, kSwiglu, kSplit, true, {}, kBf16, kStatic, true}),
      make_case({kMxfp4, Grouping::Offsets, 1, 32, kOai, kInterleaved, true, {}, kFp4, kStatic, true}),
      make_case({kMxfp4, Grouping::Offsets, 1, 64, kOai, kInterleaved, true, {}, kFp4, kStatic, true}),
      make_case({kMxfp4, Grouping::Masked, 1, 32, kSwiglu, kInterleaved, false, {}, kFp8, kStatic, true}),
      make_case({kMxfp4, Grouping::Offsets, 1, 64, kOai, kInterleaved, false, kF32, kFp4, kStatic, true}),
      make_case({kMxfp4, Grouping::Masked, 2, 16, Activation::Silu, kInterleaved, true, {}, kFp8, kControl, true}),
      // Tiles given out by the hardware.
      make_case({kMxfp4, Grouping::Offsets, 1, 64, kNone, kInterleaved, false, {}, kBf16, kControl}),
      make_case({kMxfp4, Grouping::Masked, 2, 64, kNone, kInterleaved, true, {}, kF32, kControl}),
      // Gathered rows of A.
      with_gather(make_case({kPlain, Grouping::Offsets, 1, 64, kOai, kInterleaved, true, {}, kBf16})),
      with_gather(make_case({kPlain, Grouping::Offsets, 2, 64, kNone, kInterleaved, false, {}, kF32, kControl})),
      with_gather(make_case({kPlain, Grouping::Offsets, 2, 16, kNone, kInterleaved, false, {}, kBf16, kStatic, true})),
  };
  // Hopper's kernels of packed weights, without wgmma.
  for (Case& c : packed_cases("sm_100a")) cases.push_back(std::move(c));
  return cases;
}

}  // namespace moxie::mutants
