// SPDX-License-Identifier: Apache-2.0
// The kernels over schedule x grouping x outputs x gate layout x activation x tile x cluster, each for several sizes,
// with sizes known to the host or only to the device, in every order of the simulator. Each run draws which of them get
// routing data that only mean the same (tests/support/routing.h), and where special values stand among the operands.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/grouped_product.h"

namespace moxie::test {
namespace {

constexpr Grouping kGroupings[] = {Grouping::Dense,     Grouping::Batched, Grouping::Offsets,
                                   Grouping::RowGroups, Grouping::Masked,  Grouping::Pointers};
constexpr const char* kGroupingNames[] = {"Dense", "Batched", "Offsets", "RowGroups", "Masked", "Pointers"};
constexpr const char* kActivationNames[] = {"None",   "Relu",      "Relu2", "GeluTanh", "GeluErf",       "Silu",
                                            "Swiglu", "SwigluOai", "Geglu", "Reglu",    "SwigluClamped", "Situ"};
constexpr const char* kGateNames[] = {"", "Interleaved", "Split", "SplitUpFirst"};
constexpr int kCooperativeTiles[][2] = {{128, 64}, {128, 96},  {256, 64},  {128, 192},
                                        {256, 96}, {128, 160}, {256, 128}, {128, 256}};
constexpr int kPingPongTiles[][2] = {{64, 64},  {64, 96},   {128, 64}, {64, 160}, {128, 96},
                                     {64, 224}, {128, 128}, {64, 256}, {128, 160}};
constexpr int kTinyTiles[][2] = {{8, 64}, {8, 96}, {8, 128}, {8, 160}, {8, 192}, {8, 224}, {8, 256}};
struct Outputs {
  std::optional<DataType> pre, out;
};
constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;
constexpr Outputs kOutputs[] = {{{}, kBf16},   {kBf16, kBf16}, {kF32, {}},   {{}, kF32},
                                {kF32, kBf16}, {kBf16, {}},    {kBf16, kF32}};

struct Entry {
  ProductSpec problem;
  int gate;  // 0: not gated, else 1 + GateLayout
  int outputs;
  std::string name;
};

// Every grouping with every schedule and gate layout; the rest in turn, so that each appears with each of the others'
// kinds.
std::vector<Entry> entries() {
  std::vector<Entry> all;
  int plain = 0, gated = 0;
  const auto add = [&](int schedule, int grouping, int gate, int multicast, const int* tiny = nullptr) {
    const int index = int(all.size()), shape = (index * 3 + index / 8) % (schedule == 0 ? 8 : 9);
    Entry e;
    ProductSpec& p = e.problem;
    p.schedule = WarpSchedule(schedule);
    p.grouping = kGroupings[grouping];
    p.activation = gate == 0 ? Activation(plain++ % 6) : Activation(6 + (gated + gated / 6) % 6);
    if (gate > 0) p.gate = GateLayout(gate - 1), ++gated;
    e.gate = gate;
    e.outputs = index % 7;
    p.pre = kOutputs[e.outputs].pre, p.out = kOutputs[e.outputs].out;
    p.bias = (index + index / 8) % 4 != 0;
    const int* tile = tiny ? tiny : schedule == 0 ? kCooperativeTiles[shape] : kPingPongTiles[shape];
    // With erff, ping-pong tiles of 128 rows have no more than 128 columns.
    constexpr int kWidestErf[] = {128, 128};
    if (p.activation == Activation::GeluErf && schedule == 1 && tile[0] == 128 && tile[1] > 128) tile = kWidestErf;
    p.tile_m = tile[0], p.tile_n = tile[1];
    p.multicast = Multicast(multicast);
    constexpr const char* kMulticastNames[] = {"", "MulticastA", "MulticastB", "MulticastEither"};
    e.name = fmt::format("{}{}{}{}{}x{}{}Outputs{}{}", schedule == 0 ? "Cooperative" : "PingPong",
                         kGroupingNames[grouping], kActivationNames[int(p.activation)], kGateNames[gate], tile[0],
                         tile[1], kMulticastNames[multicast], e.outputs, p.bias ? "Bias" : "");
    all.push_back(e);
  };
  for (int schedule = 0; schedule < 2; ++schedule) {
    for (int grouping = 0; grouping < 6; ++grouping) {
      for (int gate = 0; gate < 4; ++gate) add(schedule, grouping, gate, (schedule + grouping + gate) % 3);
    }
  }
  for (int schedule = 0; schedule < 2; ++schedule) {
    for (int grouping = 0; grouping < 6; ++grouping) {
      if (kGroupings[grouping] != Grouping::Offsets && kGroupings[grouping] != Grouping::Masked) continue;
      for (int gate = 0; gate < 4; ++gate) add(schedule, grouping, gate, int(Multicast::Either));
    }
  }
  // Ten of 20 pairs of a grouping and a gate layout, with every width and output.
  for (int i = 0; i < 10; ++i) add(1, i % 5, i % 4, int(Multicast::None), kTinyTiles[i * 3 % 7]);
  return all;
}

// Sizes for a grouping: few and skewed, with tails in every direction.
std::vector<Job> jobs(const Entry& entry) {
  Job small, large;
  small.problem = large.problem = entry.problem;
  small.seed = 11, large.seed = 12;
  // Interleaved and split gates need multiples of 16; 8 (mod 16) tests the narrowest tail.
  small.n = entry.gate ? 48 : 72, small.k = 40;
  large.n = entry.gate ? 272 : 264, large.k = 200;
  large.host_sizes = true;
  switch (entry.problem.grouping) {
    case Grouping::Dense:
      small.rows = {33};
      large.rows = {200};
      break;
    case Grouping::Batched:
      small.rows = {17, 17, 17};
      large.rows = {130, 130};
      break;
    default:
      small.rows = {5, 0, 70, 1, 0, 0, 9};
      large.rows = {129, 0, 64, 7};
      break;
  }
  if (entry.problem.grouping == Grouping::Pointers) {
    small.group_n = {48, 16, 64, 128, 32, 16, 80};
    small.group_k = {40, 8, 72, 0, 16, 64, 136};
    large.group_n = {272, 16, 144, 64};
    large.group_k = {200, 64, 0, 8};
  }
  // Tiles of 64 rows store directly where groups have few rows: so does the small problem; the large one is to go
  // through shared memory as where they have many.
  if (entry.problem.tile_m == 64) {
    large.host_sizes = false;
    large.problem.expected_rows = 1024;
    if (entry.problem.grouping == Grouping::Dense) large.rows = {264};
  }
  // Tiles of 8 rows need a plan for few rows. Groups of more than one tile all the same, and of exactly one.
  if (entry.problem.tile_m == 8) {
    small.problem.expected_rows = 1;
    large.rows = entry.problem.grouping == Grouping::Dense     ? std::vector<int64_t>{41}
                 : entry.problem.grouping == Grouping::Batched ? std::vector<int64_t>{26, 26}
                                                               : std::vector<int64_t>{19, 0, 8, 7};
    large.k = 1704;  // more than the ring holds
  }
  // float32 outputs may have leading dimensions of 4 (mod 8).
  if (entry.problem.out == kF32) large.pad_out = 12;
  if (entry.problem.pre == kF32) large.pad_pre = 4;
  Job ready = large;
  ready.weights_ready = true;
  std::vector<Job> all = {small, large, ready};
  Random random(run_seed() ^ std::hash<std::string>()(entry.name));
  for (Job& job : all) {
    if (random.one_in(2)) job.wild_sizes = random.next() | 1;
    if (random.one_in(2)) job.specials = random.next() | 1;
  }
  return all;
}

class Matrix : public ::testing::TestWithParam<Entry> {};

TEST_P(Matrix, IsRight) {
  for (const Job& job : jobs(GetParam())) {
    SCOPED_TRACE(fmt::format("n {}, k {}, {} sizes, MOXIE_TEST_SEED={}", job.n, job.k,
                             job.host_sizes ? "host" : "device", run_seed()));
    run_in_all_orders(job);
    if (HasFatalFailure() || HasFailure()) return;
  }
}

void PrintTo(const Entry& entry, std::ostream* stream) { *stream << entry.name; }

INSTANTIATE_TEST_SUITE_P(Kernels, Matrix, ::testing::ValuesIn(entries()),
                         [](const auto& info) { return info.param.name; });

// The table itself: what is claimed above to meet does meet.
TEST(MatrixTable, CoversThePairs) {
  std::set<std::pair<int, int>> grouping_gate, grouping_outputs, gate_outputs, gate_multicast, grouping_multicast,
      activation_schedule;
  std::set<std::pair<int, int>> tiles, tile_multicast;
  std::set<std::pair<int, int>> tiny_gates;
  std::set<int> tiny_tiles, tiny_outputs;
  for (const Entry& e : entries()) {
    if (e.problem.tile_m == 8) {
      tiny_gates.insert({int(e.problem.grouping), e.gate});
      tiny_tiles.insert(*e.problem.tile_n), tiny_outputs.insert(e.outputs);
      continue;
    }
    const int schedule = int(*e.problem.schedule), multicast = int(*e.problem.multicast);
    grouping_gate.insert({int(e.problem.grouping) * 2 + schedule, e.gate});
    grouping_outputs.insert({int(e.problem.grouping), e.outputs});
    gate_outputs.insert({e.gate, e.outputs});
    gate_multicast.insert({e.gate, multicast});
    grouping_multicast.insert({int(e.problem.grouping), multicast});
    activation_schedule.insert({int(e.problem.activation), schedule});
    tile_multicast.insert({schedule * 1000000 + *e.problem.tile_m * 1000 + *e.problem.tile_n, multicast});
    tiles.insert({*e.problem.tile_m * 1000 + *e.problem.tile_n, schedule});
  }
  EXPECT_EQ(entries().size(), 74u);
  EXPECT_EQ(grouping_gate.size(), 12u * 4);
  EXPECT_EQ(gate_outputs.size(), 4u * 7);
  EXPECT_EQ(grouping_outputs.size(), 6u * 7);
  EXPECT_EQ(gate_multicast.size(), 4u * 4);
  EXPECT_EQ(grouping_multicast.size(), 6u * 3 + 2);
  EXPECT_EQ(activation_schedule.size(), names<Activation>().size() * 2);
  EXPECT_EQ(tiles.size(), 17u);
  EXPECT_EQ(tiny_gates.size(), 10u);
  EXPECT_EQ(tiny_tiles.size(), 7u);
  EXPECT_EQ(tiny_outputs.size(), 7u);
  EXPECT_GE(tile_multicast.size(), 36u);
}

}  // namespace
}  // namespace moxie::test
