// Both schedules with every grouping whose kernel differs, every cluster, and every kind of output.
#include "cases.h"

namespace moxie::mutants {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

struct Outputs {
  std::optional<DataType> pre, out;
};

Case make_case(Schedule schedule, Grouping grouping, Multicast multicast, int tile_m, int tile_n, Activation activation,
               GateLayout gate, Outputs outputs, bool bias) {
  constexpr const char* kGroupings[] = {"dense", "batched", "offsets", "row groups", "masked", "pointers"};
  constexpr const char* kClusters[] = {"one block", "A shared", "B shared"};
  Case c;
  GemmProblem& p = c.job.problem;
  p.schedule = schedule;
  p.grouping = grouping;
  p.multicast = multicast;
  p.tile_m = tile_m, p.tile_n = tile_n;
  p.activation = activation, p.gate = gate;
  p.pre = outputs.pre, p.out = outputs.out;
  p.bias = bias;
  c.name = fmt::format("{}, {}, {}, {}x{}{}{}{}{}", schedule == Schedule::Cooperative ? "cooperative" : "ping-pong",
                       kGroupings[int(grouping)], kClusters[int(multicast)], tile_m, tile_n,
                       is_gated(activation) ? ", gated" : "", bias ? ", bias" : "",
                       outputs.pre ? *outputs.pre == kBf16 ? ", pre bf16" : ", pre f32" : "",
                       outputs.out ? *outputs.out == kBf16 ? ", out bf16" : ", out f32" : "");
  // Tails in every direction; with two multiprocessors each block has at least six tiles of at least four k tiles.
  c.job.n = 2 * tile_n + 48, c.job.k = 4 * 64 + 24;
  c.job.seed = 5;
  switch (grouping) {
    case Grouping::Dense:
      c.job.rows = {4 * tile_m + 40};
      break;
    case Grouping::Batched:
      c.job.rows = {tile_m + 9, tile_m + 9, tile_m + 9};
      break;
    default:
      c.job.rows = {tile_m + 9, 5, 0, tile_m, 17, tile_m + 33};
      break;
  }
  if (grouping == Grouping::Pointers) {
    const int64_t n = c.job.n;
    c.job.group_n = {n, n - 16, 64, tile_n + 32, n, 48};
    c.job.group_k = {c.job.k, 200, 64, 328, 136, 264};
  }
  return c;
}

}  // namespace

std::vector<Case> cases() {
  constexpr auto kCooperative = Schedule::Cooperative, kPingPong = Schedule::PingPong;
  constexpr auto kInterleaved = GateLayout::Interleaved, kSplit = GateLayout::Split;
  return {
      make_case(kCooperative, Grouping::Offsets, Multicast::None, 128, 64, Activation::None, kInterleaved, {{}, kBf16},
                false),
      make_case(kPingPong, Grouping::Offsets, Multicast::None, 64, 64, Activation::SwigluOai, kInterleaved,
                {{}, kBf16}, true),
      make_case(kCooperative, Grouping::Pointers, Multicast::None, 128, 64, Activation::None, kInterleaved,
                {kF32, kBf16}, true),
      make_case(kPingPong, Grouping::Pointers, Multicast::None, 64, 64, Activation::Swiglu, kSplit, {{}, kBf16},
                false),
      make_case(kCooperative, Grouping::Masked, Multicast::None, 128, 64, Activation::Silu, kInterleaved, {kBf16, {}},
                true),
      make_case(kPingPong, Grouping::Masked, Multicast::None, 64, 64, Activation::None, kInterleaved, {{}, kF32}, true),
      make_case(kCooperative, Grouping::Dense, Multicast::None, 128, 128, Activation::None, kInterleaved, {{}, kBf16},
                false),
      make_case(kPingPong, Grouping::Dense, Multicast::None, 128, 128, Activation::None, kInterleaved, {{}, kBf16},
                true),
      make_case(kCooperative, Grouping::Offsets, Multicast::A, 128, 64, Activation::Swiglu, kInterleaved,
                {kBf16, kBf16}, true),
      make_case(kCooperative, Grouping::Offsets, Multicast::B, 128, 64, Activation::None, kInterleaved, {{}, kBf16},
                true),
      make_case(kPingPong, Grouping::Offsets, Multicast::A, 64, 64, Activation::None, kInterleaved, {{}, kBf16}, true),
      make_case(kPingPong, Grouping::Offsets, Multicast::B, 64, 64, Activation::Swiglu, kSplit, {kBf16, kBf16}, true),
      make_case(kCooperative, Grouping::Pointers, Multicast::A, 128, 64, Activation::None, kInterleaved, {{}, kBf16},
                true),
      make_case(kPingPong, Grouping::Pointers, Multicast::B, 64, 64, Activation::None, kInterleaved, {{}, kBf16}, true),
      make_case(kCooperative, Grouping::RowGroups, Multicast::B, 128, 64, Activation::None, kInterleaved,
                {{}, kBf16}, true),
      make_case(kPingPong, Grouping::Batched, Multicast::A, 64, 64, Activation::None, kInterleaved, {{}, kF32}, true),
  };
}

}  // namespace moxie::mutants
