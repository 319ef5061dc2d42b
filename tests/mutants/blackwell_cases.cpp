// sm_100a: both formats of operands, one block and pairs, every grouping whose kernel differs, one and two
// accumulators, gates, and both kinds of output.
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
  Scheduling scheduling = Scheduling::Static;
  bool swap_ab = false;
};

template <class AnyJob>
AnyJob job_of(const Choice& c, std::vector<int64_t> rows, int64_t n, int64_t k) {
  AnyJob job;
  job.seed = 5;
  GemmProblem& p = job.problem;
  p.grouping = c.grouping;
  p.cluster = c.cluster, p.swap_ab = c.swap_ab;
  (c.swap_ab ? p.tile_m : p.tile_n) = c.width;
  p.activation = c.activation, p.gate = c.gate, p.bias = c.bias;
  p.pre = c.pre, p.out = c.out;
  p.scheduling = c.scheduling;
  job.rows = std::move(rows), job.n = n, job.k = k;
  return job;
}

Case make_case(const Choice& c) {
  constexpr const char* kGroupings[] = {"dense", "batched", "offsets", "row groups", "masked", "pointers"};
  const bool mxfp4 = c.format == OperandFormat::Mxfp4;
  Case result;
  result.name =
      fmt::format("sm_100a {}, {}, {}, {} {}{}{}{}{}{}", mxfp4 ? "MXFP4" : "bf16", kGroupings[int(c.grouping)],
                  c.cluster == 2 ? "pair" : "one block", c.width, c.swap_ab ? "rows, swapped" : "wide",
                  is_gated(c.activation) ? c.gate == GateLayout::Interleaved ? ", gated" : ", split gate" : "",
                  c.bias ? ", bias" : "", c.scheduling == Scheduling::LaunchControl ? ", launch control" : "",
                  c.pre ? *c.pre == kBf16 ? ", pre bf16" : ", pre f32" : "",
                  c.out ? *c.out == kBf16 ? ", out bf16" : ", out f32" : "");
  const auto add = [&](std::vector<int64_t> rows, int64_t n, int64_t k) {
    if (mxfp4) {
      auto job = job_of<test::Mxfp4Job>(c, std::move(rows), n, k);
      if (c.activation != Activation::None) job.lowest_scale = 122, job.highest_scale = 126;
      result.jobs.emplace_back(std::move(job));
    } else {
      result.jobs.emplace_back(job_of<test::Job>(c, std::move(rows), n, k));
    }
  };
  // Tails in every direction. Two multiprocessors share at least six tiles of at least four stages.
  const int64_t side = 128 * c.cluster, tile_m = c.swap_ab ? c.width : side;
  const int64_t n = 2 * (c.swap_ab ? side : c.width) + 16, k = mxfp4 ? 4 * 256 - 96 : 4 * 64 + 24;
  std::vector<int64_t> large = {tile_m + 9, 5, 0, tile_m, 17, 40};
  if (c.grouping == Grouping::Dense) large = {2 * tile_m + 40};
  if (c.grouping == Grouping::Batched) large.assign(3, tile_m + 9);
  add(large, n, k);
  add({large[0]}, n, 0);  // nothing to sum over
  // Groups of one tile, one store and one stage: another group with every tile, so that maps are rewritten while the
  // copies of the groups before are in flight.
  if (c.grouping != Grouping::Dense) {
    std::vector<int64_t> small = {7, 3, 1, 0, 7, 2, 9, 4, 1, 5, 3, 8};
    if (c.grouping == Grouping::Batched) small.assign(12, 5);
    add(small, 32, mxfp4 ? 96 : 72);
  }
  return result;
}

}  // namespace

std::vector<Case> blackwell_cases() {
  constexpr auto kMxfp4 = OperandFormat::Mxfp4, kPlain = OperandFormat::Bf16;
  constexpr auto kInterleaved = GateLayout::Interleaved, kSplit = GateLayout::Split;
  constexpr auto kNone = Activation::None;
  return {
      make_case({kMxfp4, Grouping::Offsets, 1, 64, kNone, kInterleaved, false, {}, kF32}),
      make_case({kMxfp4, Grouping::Offsets, 2, 64, Activation::SwigluOai, kInterleaved, true, {}, kBf16}),
      make_case({kMxfp4, Grouping::Masked, 1, 96, Activation::Swiglu, kInterleaved, true, {}, kBf16}),
      make_case({kMxfp4, Grouping::Masked, 2, 64, kNone, kInterleaved, false, {}, kF32}),
      make_case({kMxfp4, Grouping::Batched, 1, 48, kNone, kInterleaved, true, {}, kBf16}),
      make_case({kMxfp4, Grouping::RowGroups, 2, 96, kNone, kInterleaved, false, kF32, {}}),
      make_case({kMxfp4, Grouping::Dense, 1, 256, kNone, kInterleaved, false, {}, kBf16}),
      make_case({kPlain, Grouping::Offsets, 1, 64, Activation::SwigluOai, kInterleaved, true, kF32, kBf16}),
      make_case({kPlain, Grouping::Offsets, 2, 64, Activation::Swiglu, kSplit, false, {}, kBf16}),
      make_case({kPlain, Grouping::Masked, 2, 64, Activation::GeluTanh, kInterleaved, true, kBf16, kBf16}),
      make_case({kPlain, Grouping::Batched, 2, 128, kNone, kInterleaved, false, {}, kBf16}),
      make_case({kPlain, Grouping::RowGroups, 1, 64, kNone, kInterleaved, true, {}, kF32}),
      make_case({kMxfp4, Grouping::Offsets, 1, 32, kNone, kInterleaved, true, {}, kBf16, Scheduling::Static, true}),
      make_case({kPlain, Grouping::Masked, 2, 32, kNone, kInterleaved, false, {}, kF32, Scheduling::Static, true}),
      make_case({kMxfp4, Grouping::Offsets, 1, 64, kNone, kInterleaved, false, {}, kBf16, Scheduling::LaunchControl}),
      make_case({kMxfp4, Grouping::Masked, 2, 64, kNone, kInterleaved, true, {}, kF32, Scheduling::LaunchControl}),
  };
}

}  // namespace moxie::mutants
