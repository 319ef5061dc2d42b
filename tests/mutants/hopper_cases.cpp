// SPDX-License-Identifier: Apache-2.0
// sm_90a: both schedules with every grouping whose kernel differs, every cluster, the tiles that the planner takes for
// large products, epilogues of 32 and 64 columns with one and two staging buffers, and every kind of output.
#include "cases.h"

#include <numeric>

#include "tests/support/custom_sinks.h"

namespace moxie::mutants {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

struct Outputs {
  std::optional<DataType> pre, out;
};

Case make_case(WarpSchedule schedule, Grouping grouping, Multicast multicast, int tile_m, int tile_n,
               Activation activation, GateLayout gate, Outputs outputs, bool bias) {
  constexpr const char* kGroupings[] = {"dense", "batched", "offsets", "row groups", "masked", "pointers"};
  constexpr const char* kClusters[] = {"one block", "A shared", "B shared", "A or B shared"};
  Case c;
  Job job;
  job.seed = 5;
  ProductSpec& p = job.problem;
  p.schedule = schedule;
  p.grouping = grouping;
  p.multicast = multicast;
  p.tile_m = tile_m, p.tile_n = tile_n;
  p.activation = activation, p.gate = gate;
  p.pre = outputs.pre, p.out = outputs.out;
  p.bias = bias;
  // One kernel for all problems: with decode_tile, and without.
  p.expected_rows = tile_m * tile_n < 128 * 128 && (tile_m > 64 || multicast != Multicast::B) ? 64 : 1024;
  c.name =
      fmt::format("sm_90a {}, {}, {}, {}x{}{}{}{}", schedule == WarpSchedule::Cooperative ? "cooperative" : "ping-pong",
                  kGroupings[int(grouping)], kClusters[int(multicast)], tile_m, tile_n,
                  is_gated(activation) ? gate == GateLayout::Interleaved ? ", gated" : ", split gate" : "",
                  bias ? ", bias" : "", outputs_text(outputs.pre, outputs.out));
  const bool own = grouping == Grouping::Pointers;
  // Tails in every direction; with two multiprocessors each block has at least six tiles of at least four k tiles.
  Job large = job;
  const int64_t n = large.n = 2 * tile_n + 48, k = large.k = 4 * 64 + 24;
  switch (grouping) {
    case Grouping::Dense:
      large.rows = {4 * tile_m + 40};
      break;
    case Grouping::Batched:
      large.rows.assign(6, tile_m + 9);
      break;
    default:
      large.rows = {tile_m + 9, 5, 0, tile_m, 17, tile_m + 33};
      if (schedule == WarpSchedule::PingPong) large.rows[0] += 3 * tile_m;
      break;
  }
  if (own) {
    large.group_n = {n, n - 16, 64, tile_n + 32, n, 48};
    large.group_k = {k, 200, 64, 328, 136, 264};
  }
  // Nothing to sum over.
  Job empty = large;
  empty.k = 0;
  if (own) empty.group_k = {0, 200, 64, 0, 0, 0};
  c.jobs = {large, empty};
  // Groups of one tile, one or two k tiles and one chunk of the epilogue: another group with every tile, so that maps
  // are rewritten while the copies of the groups before are in flight. The last group lies at the end of its memory.
  if (grouping != Grouping::Dense) {
    Job small = job;
    small.n = n, small.k = 72;
    small.rows = {tile_m + 5, 3, 1, 0, 7, 2, 9, 4, 1, 5, 3, 8, 2, 1, 6, 3};
    if (grouping == Grouping::Batched) small.rows.assign(16, 5);
    if (own) {
      small.group_n = {32, tile_n, 32, 32, 32, tile_n, tile_n, 32, 32, 32, 48, 32, 16, 32, 32, 32};
      small.group_k = {72, 8, 64, 64, 128, 72, 64, 16, 136, 64, 64, 64, 72, 24, 64, 72};
    } else {
      const bool wide = multicast == Multicast::A || multicast == Multicast::Either;
      small.n = wide ? tile_n + 32 : 32;
    }
    c.jobs.push_back(small);
  }
  // Weights that the kernel before does not write.
  if (!own) {
    large.weights_ready = empty.weights_ready = true;
    if (tile_m < 64 || (tile_m == 64 && tile_n == 64))
      large.k = (tile_m < 64 ? 26 : 16) * 64 + 24;  // more than the ring holds
    c.jobs.insert(c.jobs.end(), {large, empty});
    if (multicast == Multicast::Either) {  // the first tile alone in its group, so that the cluster shares A
      std::swap(large.rows[0], large.rows[1]);
      c.jobs.push_back(large);
    }
  }
  return c;
}

// `out` quantized, in place of the case's.
Case with_quantized_out(Case c, DataType type) {
  c.name += outputs_text({}, type);
  for (Job& job : c.jobs) {
    job.problem.out = type;
    job.n = (job.n + 63) / 64 * 64;
    for (int64_t& n : job.group_n) n = (n + 63) / 64 * 64;
  }
  return c;
}

// The same with one sink that stores by itself, without staging and tensor maps.
Case with_plain_sink(Case c) {
  c.name += ", plain sink";
  for (Job& job : c.jobs) {
    const int64_t ld = (job.n + 31) / 32;
    const int64_t rows = std::accumulate(job.rows.begin(), job.rows.end(), job.spare_rows);
    c.sink_outputs.push_back(std::make_shared<test::Buffer>(size_t(rows * ld) * sizeof(float)));
    job.problem.sinks = {test::row_max_sink({c.sink_outputs.back()->get<float>(), ld, 0, 0})};
  }
  return c;
}

// The same product with packed weights.
Case with_packed_b(Case c) {
  c.name += ", packed B";
  // Stages are deeper, so K is longer: five stages, the last of which holds half a block.
  const int64_t stage = *c.jobs.front().problem.tile_m < 64 ? 256 : 128;
  for (Job& job : c.jobs) {
    job.problem.b_format = OperandFormat::Mxfp4;
    if (&job == &c.jobs.front()) job.k = 4 * stage + 32;
    job.k = (job.k + 31) / 32 * 32;
    for (int64_t& k : job.group_k) k = (k + 31) / 32 * 32 * (&job == &c.jobs.front() ? stage / 64 : 1);
  }
  // One block of K, of which only one of two consumers of the same columns has a part.
  Job one = c.jobs.front();
  one.k = 64;
  one.group_k.assign(one.group_k.size(), 64);
  c.jobs.push_back(one);
  // Two stages a tile, of which the second is not for every consumer.
  one.k = stage + 32;
  one.group_k.assign(one.group_k.size(), stage + 32);
  c.jobs.push_back(one);
  if (stage == 256) {
    // One stage more than the ring of a tile of 32 rows holds. The last is not for every consumer. One that does not
    // wait for it comes there before the others have let go what the stage held first.
    one.k = 6 * stage + 32;
    one.group_k.assign(one.group_k.size(), 6 * stage + 32);
    c.jobs.push_back(one);
  }
  // An even number of k tiles: which set of fragments comes last depends on it.
  Job even = c.jobs.front();
  even.k = 128;
  even.group_k.assign(even.group_k.size(), 128);
  c.jobs.push_back(even);
  return c;
}

}  // namespace

std::vector<Case> packed_cases(const std::string& arch) {
  constexpr auto kCooperative = WarpSchedule::Cooperative;
  constexpr auto kInterleaved = GateLayout::Interleaved, kSplit = GateLayout::Split;
  constexpr auto kOai = Activation::SwigluOai;
  std::vector<Case> cases = {
      // Weights unpacked in registers, accumulators that go through shared memory.
      with_packed_b(make_case(kCooperative, Grouping::Offsets, Multicast::None, 128, 128, kOai, kInterleaved,
                              {kBf16, kBf16}, true)),
      with_packed_b(
          make_case(kCooperative, Grouping::Offsets, Multicast::A, 256, 128, kOai, kInterleaved, {{}, kBf16}, true)),
      with_packed_b(make_case(kCooperative, Grouping::Dense, Multicast::None, 128, 256, Activation::None, kInterleaved,
                              {{}, kF32}, false)),
      with_packed_b(make_case(kCooperative, Grouping::Pointers, Multicast::A, 128, 128, Activation::Swiglu, kSplit,
                              {{}, kBf16}, true)),
      with_packed_b(make_case(kCooperative, Grouping::Masked, Multicast::A, 64, 256, Activation::None, kInterleaved,
                              {{}, kBf16}, true)),
      with_packed_b(make_case(kCooperative, Grouping::Pointers, Multicast::None, 128, 128, Activation::None,
                              kInterleaved, {kF32, {}}, false)),
      // Four consumers: each has a strip of its own, or two share one.
      with_packed_b(
          make_case(kCooperative, Grouping::Offsets, Multicast::None, 8, 256, kOai, kInterleaved, {{}, kBf16}, true)),
      with_packed_b(
          make_case(kCooperative, Grouping::Offsets, Multicast::None, 32, 128, kOai, kInterleaved, {{}, kBf16}, true)),
      with_packed_b(make_case(kCooperative, Grouping::Batched, Multicast::None, 16, 128, Activation::None, kInterleaved,
                              {{}, kF32}, true)),
      with_quantized_out(with_packed_b(make_case(kCooperative, Grouping::Offsets, Multicast::A, 128, 128, kOai,
                                                 kInterleaved, {{}, {}}, true)),
                         DataType::Mxfp8),
      with_plain_sink(with_packed_b(make_case(kCooperative, Grouping::Offsets, Multicast::None, 128, 128,
                                              Activation::None, kInterleaved, {{}, {}}, true))),
  };
  for (Case& c : cases) c.name.replace(0, std::string("sm_90a").size(), arch);
  return cases;
}

std::vector<Case> hopper_cases() {
  constexpr auto kCooperative = WarpSchedule::Cooperative, kPingPong = WarpSchedule::PingPong;
  constexpr auto kInterleaved = GateLayout::Interleaved, kSplit = GateLayout::Split;
  constexpr auto kOai = Activation::SwigluOai;
  std::vector<Case> cases = {
      make_case(kCooperative, Grouping::Offsets, Multicast::None, 128, 64, Activation::None, kInterleaved, {{}, kBf16},
                false),
      make_case(kPingPong, Grouping::Offsets, Multicast::None, 64, 64, Activation::SwigluOai, kInterleaved, {{}, kBf16},
                true),
      make_case(kCooperative, Grouping::Pointers, Multicast::None, 128, 64, Activation::None, kInterleaved,
                {kF32, kBf16}, true),
      make_case(kPingPong, Grouping::Pointers, Multicast::None, 64, 64, Activation::Swiglu, kSplit, {{}, kBf16}, false),
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
      make_case(kCooperative, Grouping::RowGroups, Multicast::B, 128, 64, Activation::None, kInterleaved, {{}, kBf16},
                true),
      make_case(kPingPong, Grouping::Batched, Multicast::A, 64, 64, Activation::None, kInterleaved, {{}, kF32}, true),
      with_plain_sink(make_case(kCooperative, Grouping::Offsets, Multicast::None, 256, 64, Activation::None,
                                kInterleaved, {{}, {}}, true)),
      // What the planner takes for large products, mostly.
      make_case(kPingPong, Grouping::Offsets, Multicast::None, 128, 128, kOai, kInterleaved, {kBf16, kBf16}, true),
      make_case(kPingPong, Grouping::Offsets, Multicast::A, 128, 128, Activation::None, kInterleaved, {{}, kBf16},
                true),
      make_case(kPingPong, Grouping::Masked, Multicast::B, 128, 128, kOai, kInterleaved, {kBf16, kBf16}, true),
      make_case(kPingPong, Grouping::Pointers, Multicast::None, 128, 128, kOai, kInterleaved, {{}, kBf16}, true),
      make_case(kPingPong, Grouping::Batched, Multicast::B, 128, 128, Activation::None, kInterleaved, {{}, kBf16},
                false),
      make_case(kPingPong, Grouping::Offsets, Multicast::A, 64, 256, kOai, kInterleaved, {kBf16, kBf16}, true),
      make_case(kPingPong, Grouping::Dense, Multicast::A, 64, 192, Activation::None, kInterleaved, {{}, kF32}, true),
      make_case(kCooperative, Grouping::Offsets, Multicast::B, 128, 256, kOai, kInterleaved, {kBf16, kBf16}, true),
      make_case(kCooperative, Grouping::RowGroups, Multicast::A, 256, 96, Activation::None, kInterleaved, {kF32, kBf16},
                false),
      make_case(kPingPong, Grouping::Offsets, Multicast::Either, 128, 160, kOai, kInterleaved, {{}, kBf16}, true),
      make_case(kPingPong, Grouping::Masked, Multicast::Either, 64, 96, Activation::None, kInterleaved, {{}, kBf16},
                true),
      make_case(kPingPong, Grouping::Offsets, Multicast::None, 8, 64, kOai, kInterleaved, {{}, kBf16}, true),
      // Epilogues of 64 columns beside the ping-pong schedule, and stores without staging.
      with_quantized_out(
          make_case(kPingPong, Grouping::Offsets, Multicast::A, 128, 128, kOai, kInterleaved, {{}, {}}, true),
          DataType::Mxfp8),
      with_quantized_out(
          make_case(kPingPong, Grouping::Masked, Multicast::None, 64, 64, kOai, kInterleaved, {{}, {}}, true),
          DataType::Mxfp4),
      with_quantized_out(make_case(kCooperative, Grouping::Offsets, Multicast::B, 128, 96, Activation::None,
                                   kInterleaved, {{}, {}}, true),
                         DataType::Mxfp4),
      with_quantized_out(make_case(kPingPong, Grouping::Pointers, Multicast::None, 64, 128, Activation::Swiglu, kSplit,
                                   {{}, {}}, true),
                         DataType::Mxfp4),
      // Threads copy A.
      with_gather(
          make_case(kCooperative, Grouping::Offsets, Multicast::None, 128, 128, kOai, kInterleaved, {{}, kBf16}, true)),
      with_gather(make_case(kPingPong, Grouping::Offsets, Multicast::B, 64, 64, Activation::None, kInterleaved,
                            {{}, kBf16}, true)),
      with_gather(
          make_case(kPingPong, Grouping::Offsets, Multicast::None, 8, 64, kOai, kInterleaved, {{}, kBf16}, true)),
      with_gather(with_packed_b(make_case(kCooperative, Grouping::Offsets, Multicast::None, 128, 128, kOai,
                                          kInterleaved, {{}, kBf16}, true))),
      with_gather(with_packed_b(
          make_case(kCooperative, Grouping::Offsets, Multicast::None, 16, 128, kOai, kInterleaved, {{}, kBf16}, true))),
  };
  for (Case& c : packed_cases("sm_90a")) cases.push_back(std::move(c));
  return cases;
}

}  // namespace moxie::mutants
