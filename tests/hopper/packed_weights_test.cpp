// SPDX-License-Identifier: Apache-2.0
// Products of bf16 activations and packed MXFP4 weights over tile x grouping x gate layout x activation x outputs, each
// for sizes that are drawn anew in every run, in every order of the simulator. Part of test_hopper and test_blackwell.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>

#include "moxie/quantize.h"
#include "reference/packed_weights.h"
#include "tests/support/custom_sinks.h"
#include "tests/support/grouped_product.h"

namespace moxie::test {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;
constexpr Grouping kGroupings[] = {Grouping::Dense,     Grouping::Batched, Grouping::Offsets,
                                   Grouping::RowGroups, Grouping::Masked,  Grouping::Pointers};
struct Tile {
  int m, n;
  Multicast multicast;
};
constexpr auto kAlone = Multicast::None, kShareA = Multicast::A;
constexpr Tile kTiles[] = {
    {256, 128, kAlone}, {256, 128, kShareA}, {128, 256, kAlone}, {128, 256, kShareA},
    {128, 128, kAlone}, {128, 128, kShareA}, {64, 256, kAlone},  {64, 256, kShareA},
    {64, 128, kAlone},  {64, 128, kShareA},  {32, 256, kAlone},  {32, 128, kAlone},
    {16, 256, kAlone},  {16, 128, kAlone},   {8, 256, kAlone},   {8, 128, kAlone},
};
constexpr int kTileCount = int(std::size(kTiles));
struct Outputs {
  std::optional<DataType> pre, out;
};
constexpr Outputs kOutputs[] = {{{}, kBf16}, {kBf16, kBf16}, {kF32, {}}, {{}, kF32}, {kF32, kBf16}, {kBf16, kF32}};

struct Entry {
  ProductSpec problem;
  std::string name;
  bool first;  // of its tile
};

// Five of every tile. Grouping, gate, outputs and activation come in turn, each at a step of its own.
std::vector<Entry> entries() {
  std::vector<Entry> all;
  int plain = 0, gated = 0;
  for (int i = 0; i < 5 * kTileCount; ++i) {
    const Tile& tile = kTiles[i % kTileCount];
    const int turn = i / kTileCount, gate = (i + turn) % 4;
    Entry e;
    e.first = turn == 0;
    ProductSpec& p = e.problem;
    p.b_format = OperandFormat::Mxfp4;
    p.tile_m = tile.m, p.tile_n = tile.n, p.multicast = tile.multicast;
    // Tiles of fewer than 64 rows, and those of 128x256, are not for pointers.
    p.grouping =
        kGroupings[(i % kTileCount + i / 9 + 4 * turn) % (tile.m < 64 || (tile.m == 128 && tile.n == 256) ? 5 : 6)];
    p.activation = gate == 0 ? Activation(plain++ % 6) : Activation(6 + (gated + gated / 6) % 6);
    if (gate > 0) p.gate = GateLayout(gate - 1), ++gated;
    const int of_outputs = (2 * i + i / 6 + 5 * turn) % 6;
    const Outputs& outputs = kOutputs[of_outputs];
    p.pre = outputs.pre, p.out = outputs.out;
    p.bias = (i + i / 8) % 3 != 0;
    if (tile.m < 64) {
      p.expected_rows = 1;
    } else if (turn % 2 == 0 && p.grouping != Grouping::Pointers) {
      p.expected_rows = 16;  // a kernel for few rows
    }
    e.name = fmt::format("Tile{}x{}{}{}{}{}Outputs{}{}", tile.m, tile.n, tile.multicast == kShareA ? "ShareA" : "",
                         fmt::format("Grouping{}", int(p.grouping)), fmt::format("Activation{}", int(p.activation)),
                         gate ? fmt::format("Gate{}", gate - 1) : "", of_outputs, p.bias ? "Bias" : "");
    all.push_back(e);
  }
  return all;
}

// Extents with tails in every direction: empty groups, one row, one over a tile, half a block of K, half a unit of
// rows.
Job draw_job(const ProductSpec& problem, Random& random) {
  Job job;
  job.problem = problem;
  const int m = *problem.tile_m;
  const int64_t rows[] = {0, 1, 7, 8, m - 1, m, m + 1, 67, 130}, unit = is_gated(problem.activation) ? 16 : 8;
  const int64_t columns[] = {unit, 3 * unit, 48, 64, 80, 128, 176, 272}, depths[] = {32, 64, 96, 160, 256, 672};
  job.n = random.of(columns), job.k = random.of(depths);
  const size_t groups = problem.grouping == Grouping::Dense ? 1 : size_t(random.between(2, 5));
  const bool alike = problem.grouping == Grouping::Batched;
  for (size_t g = 0; g < groups; ++g) {
    job.rows.push_back(alike && g > 0 ? job.rows[0] : random.of(rows));
    if (problem.grouping != Grouping::Pointers) continue;
    job.group_n.push_back(random.of(columns));
    job.group_k.push_back(random.one_in(6) ? 0 : random.of(depths));
  }
  // The plan must stay one that the tile is possible with.
  job.host_sizes = m >= 64 && !problem.expected_rows && random.one_in(2);
  job.weights_ready = random.one_in(2);
  job.seed = random.next() % 1000;
  // Exact sums, or products of any bf16. Activations of sums that large underflow.
  job.e2m1 = random.one_in(2) && (!problem.out || problem.activation == Activation::None);
  if (random.one_in(3)) job.wild_sizes = random.next() | 1;
  if (random.one_in(3)) job.specials = random.next() | 1;
  return job;
}

class PackedMatrix : public ::testing::TestWithParam<Entry> {};

TEST_P(PackedMatrix, IsRight) {
  if (device().info().arch != 90 && !GetParam().first && !std::getenv("MOXIE_TEST_ALL"))
    GTEST_SKIP() << "one kernel of each tile, all of them with MOXIE_TEST_ALL=1";
  Random random(run_seed() ^ std::hash<std::string>()(GetParam().name));
  const int jobs = std::getenv("MOXIE_TEST_ALL") ? 5 : 3;
  for (int i = 0; i < jobs; ++i) {
    const Job job = draw_job(GetParam().problem, random);
    SCOPED_TRACE(fmt::format("n {}, k {}, rows {}, {} sizes, MOXIE_TEST_SEED={}", job.n, job.k,
                             ::testing::PrintToString(job.rows), job.host_sizes ? "host" : "device", run_seed()));
    run_in_all_orders(job);
    if (HasFatalFailure() || HasFailure()) return;
  }
}

void PrintTo(const Entry& entry, std::ostream* stream) { *stream << entry.name; }

INSTANTIATE_TEST_SUITE_P(Kernels, PackedMatrix, ::testing::ValuesIn(entries()),
                         [](const auto& info) { return info.param.name; });

// The table itself: what is claimed above to meet does meet.
TEST(PackedMatrixTable, CoversThePairs) {
  std::set<std::pair<int, int>> tile_gate, grouping_gate, grouping_outputs, gate_outputs;
  std::set<int> activations;
  for (const Entry& e : entries()) {
    const ProductSpec& p = e.problem;
    const int gate = is_gated(p.activation) ? 1 + int(p.gate) : 0;
    const int outputs = (p.pre ? 1 + int(*p.pre) : 0) * 8 + (p.out ? 1 + int(*p.out) : 0);
    tile_gate.insert({*p.tile_m * 1000 + *p.tile_n + int(*p.multicast) * 1000000, gate});
    grouping_gate.insert({int(p.grouping), gate});
    grouping_outputs.insert({int(p.grouping), outputs});
    gate_outputs.insert({gate, outputs});
    activations.insert(int(p.activation));
  }
  EXPECT_EQ(entries().size(), 80u);
  EXPECT_EQ(tile_gate.size(), 64u);
  EXPECT_EQ(grouping_gate.size(), 24u);
  EXPECT_EQ(grouping_outputs.size(), 36u);
  EXPECT_EQ(gate_outputs.size(), 24u);
  EXPECT_EQ(activations.size(), names<Activation>().size());
}

// ---- Packing -------------------------------------------------------------------------------------------------------

struct Packing {
  WeightShape shape;
  std::vector<uint8_t> codes, scales;
};

// Codes are random, scales are drawn from those of `lowest` to `highest`; one of `nan_each` is NaN.
Packing draw_packing(const WeightShape& shape, Random& random, int lowest, int highest, int nan_each) {
  Packing p{shape, {}, {}};
  p.codes.resize(size_t(shape.groups * shape.n * shape.k / 2));
  p.scales.resize(size_t(shape.groups * shape.n * shape.k / 32));
  for (uint8_t& code : p.codes) code = uint8_t(random.next());
  for (uint8_t& scale : p.scales) {
    const bool nan = nan_each > 0 && random.one_in(uint64_t(nan_each));
    scale = nan ? 255 : uint8_t(random.between(lowest, highest));
  }
  return p;
}

std::optional<GateLayout> gate_of(const WeightShape& s) { return s.gated ? std::optional(s.gate) : std::nullopt; }

std::vector<uint8_t> reference_of(const Packing& p) {
  const WeightShape& s = p.shape;
  std::vector<uint8_t> all;
  for (int64_t g = 0; g < s.groups; ++g) {
    const std::vector<uint8_t> group = reference::pack_weights(
        p.codes.data() + g * s.n * s.k / 2, p.scales.data() + g * s.n * s.k / 32, s.n, s.k, gate_of(s));
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

uint64_t pack_on_device(const Packing& p, std::vector<uint8_t>& packed) {
  const Buffer codes(p.codes), scales(p.scales), to(packed_weight_bytes(p.shape) + 16);
  const Buffer refused(std::vector<uint64_t>{~uint64_t{0}});
  to.fill(0xab);
  WeightPacking packing{p.shape, codes.get(), scales.get(), to.get(), refused.get<uint64_t>()};
  pack_weights(device(), packing);
  device().synchronize();
  packed = to.download();
  const std::vector<uint8_t> bytes = refused.download();
  uint64_t row;
  std::memcpy(&row, bytes.data(), 8);
  return row;
}

Packing unpack_on_device(const WeightShape& shape, const std::vector<uint8_t>& packed) {
  Packing p{shape, {}, {}};
  const Buffer from(packed), codes(size_t(shape.groups * shape.n * shape.k / 2) + 16),
      scales(size_t(shape.groups * shape.n * shape.k / 32) + 16);
  codes.fill(0xab), scales.fill(0xab);
  unpack_weights(device(), WeightUnpacking{shape, from.get(), codes.get(), scales.get()});
  device().synchronize();
  p.codes = codes.download(), p.scales = scales.download();
  return p;
}

constexpr uint64_t kNoRow = ~uint64_t{0};

void check_packing(const Packing& p) {
  std::vector<uint8_t> packed;
  EXPECT_EQ(pack_on_device(p, packed), kNoRow);
  const std::vector<uint8_t> guard(16, 0xab);
  ASSERT_EQ(packed.size(), reference_of(p).size() + 16);
  EXPECT_TRUE(std::equal(guard.begin(), guard.end(), packed.end() - 16)) << "bytes behind the packed weights";
  packed.resize(packed.size() - 16);
  EXPECT_EQ(packed, reference_of(p));
  Packing back = unpack_on_device(p.shape, packed);
  EXPECT_TRUE(std::equal(guard.begin(), guard.end(), back.codes.end() - 16)) << "bytes behind the codes";
  EXPECT_TRUE(std::equal(guard.begin(), guard.end(), back.scales.end() - 16)) << "bytes behind the scales";
  back.codes.resize(back.codes.size() - 16), back.scales.resize(back.scales.size() - 16);
  EXPECT_EQ(back.codes, p.codes);
  EXPECT_EQ(back.scales, p.scales);
  back.codes.assign(p.codes.size(), 0xab), back.scales.assign(p.scales.size(), 0xab);
  // The CPU's way back, which `moxie quantize` takes.
  const WeightShape& s = p.shape;
  for (int64_t g = 0; g < s.groups; ++g)
    reference::unpack_weights(packed.data() + g * int64_t(packed_weight_bytes(1, s.n, s.k)), s.n, s.k, gate_of(s),
                              back.codes.data() + g * s.n * s.k / 2, back.scales.data() + g * s.n * s.k / 32);
  EXPECT_EQ(back.codes, p.codes);
  EXPECT_EQ(back.scales, p.scales);
}

TEST(PackWeights, IsWhatTheLayoutSaysAndComesBack) {
  Random random(run_seed());
  for (const bool gated : {false, true}) {
    for (const GateLayout gate : {GateLayout::Interleaved, GateLayout::Split, GateLayout::SplitUpFirst}) {
      for (const int64_t k : {32, 64, 96, 320}) {
        for (const int64_t n : {8, 16, 56, 64, 80, 200, 208}) {
          if (gated && n % 16 != 0) continue;
          const WeightShape shape{random.between(1, 3), n, k, gated, gate};
          SCOPED_TRACE(fmt::format("groups {}, n {}, k {}, gate {}", shape.groups, n, k, gated ? int(gate) : -1));
          check_packing(draw_packing(shape, random, 110, 132, 9));
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Every row has one scale, so that every one can stand beside its row's largest.
TEST(PackWeights, EveryScaleWithEveryCodeComesBack) {
  Packing p{{1, 256, 32}, {}, {}};
  for (int scale = 0; scale < 256; ++scale) {
    p.scales.push_back(uint8_t(scale));
    for (int pair = 0; pair < 16; ++pair) p.codes.push_back(uint8_t(pair | (15 - pair) << 4));
  }
  check_packing(p);
}

// Weights in bf16: quantize() writes with row-major scales what pack_weights() takes.
TEST(PackWeights, TakesWhatQuantizeWrites) {
  Random random(run_seed());
  Packing p{{2, 48, 96, true, GateLayout::Split}, {}, {}};
  const int64_t rows = 2 * 48, k = p.shape.k;
  std::vector<uint16_t> values;
  p.codes.resize(size_t(rows * k / 2)), p.scales.resize(size_t(rows * k / 32));
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> of_row;
    for (int64_t i = 0; i < k; ++i) {
      values.push_back(
          reference::float_to_bf16(std::ldexp(float(random.between(-99, 99)), int(random.between(-9, 0)))));
      of_row.push_back(reference::bf16_to_float(values.back()));
    }
    reference::quantize_row(DataType::Mxfp4, of_row.data(), k, 1, &p.codes[size_t(row * k / 2)],
                            &p.scales[size_t(row * k / 32)]);
  }
  const Buffer from(values), codes(p.codes.size()), scales(p.scales.size()), packed(packed_weight_bytes(p.shape));
  Quantization q;
  q.layout = ScaleLayout::RowMajor;
  q.groups = p.shape.groups, q.rows = p.shape.n, q.k = k;
  q.values = from.get(), q.elements = codes.get(), q.scales = scales.get();
  quantize(device(), q);
  pack_weights(device(), {p.shape, codes.get(), scales.get(), packed.get()});
  device().synchronize();
  EXPECT_EQ(packed.download(), reference_of(p));
}

// Experts in any order through memory for one of them, which the next one overwrites: each is packed to its place and
// nothing else is touched. And back.
TEST(PackWeights, ExpertByExpertThroughMemoryForOne) {
  constexpr int64_t kExperts = 5;
  constexpr size_t kGuard = 64;
  Random random(run_seed());
  const int64_t n = 8 * random.between(1, 20), k = 32 * random.between(1, 7);
  const Packing p = draw_packing({kExperts, n, k}, random, 100, 140, 9);
  const WeightShape one{1, n, k};
  const size_t bytes = packed_weight_bytes(one), code_bytes = size_t(n * k / 2), scale_bytes = size_t(n * k / 32);
  const std::vector<uint8_t> wanted = reference_of(p);
  const Buffer all(kExperts * bytes + 2 * kGuard), codes(code_bytes + 16), scales(scale_bytes + 16);
  const Buffer refused(std::vector<uint64_t>{~uint64_t{0}});
  codes.fill(0xcd), scales.fill(0xcd), all.fill(0xab);
  std::vector<uint8_t> expected(all.size(), 0xab);
  for (const int64_t expert : {3, 0, 4, 1, 2}) {
    SCOPED_TRACE(expert);
    device().upload(codes.get(), p.codes.data() + size_t(expert) * code_bytes, code_bytes);
    device().upload(scales.get(), p.scales.data() + size_t(expert) * scale_bytes, scale_bytes);
    const size_t place = kGuard + size_t(expert) * bytes;
    pack_weights(device(), {one, codes.get(), scales.get(), all.get<uint8_t>() + place, refused.get<uint64_t>()});
    device().synchronize();
    std::copy_n(wanted.begin() + expert * int64_t(bytes), bytes, expected.begin() + int64_t(place));
    ASSERT_EQ(all.download(), expected);
  }
  for (const int64_t expert : {2, 4, 0}) {
    SCOPED_TRACE(expert);
    unpack_weights(device(), {one, all.get<uint8_t>() + kGuard + size_t(expert) * bytes, codes.get(), scales.get()});
    device().synchronize();
    std::vector<uint8_t> of_codes(code_bytes + 16, 0xcd), of_scales(scale_bytes + 16, 0xcd);
    std::copy_n(p.codes.begin() + expert * int64_t(code_bytes), code_bytes, of_codes.begin());
    std::copy_n(p.scales.begin() + expert * int64_t(scale_bytes), scale_bytes, of_scales.begin());
    ASSERT_EQ(codes.download(), of_codes);
    ASSERT_EQ(scales.download(), of_scales);
  }
  const std::vector<uint8_t> row = refused.download();
  EXPECT_EQ(row, std::vector<uint8_t>(8, 0xff));
}

TEST(PackWeights, NamesTheFirstRowWhoseScalesAreTooFarApart) {
  // 133 binades are exact, 134 are not; with scales of at most 128 all are.
  const struct {
    int lowest, highest;
    bool refused;
  } kCases[] = {{0, 128, false},   {0, 133, false},  {0, 134, true},
                {120, 253, false}, {120, 254, true}, {254, 254, false}};
  for (const auto& [lowest, highest, refused] : kCases) {
    SCOPED_TRACE(fmt::format("scales {} and {}", lowest, highest));
    Packing p{{2, 24, 64}, std::vector<uint8_t>(2 * 24 * 32, 0x21), std::vector<uint8_t>(2 * 24 * 2, 127)};
    for (const size_t row : {size_t{40}, size_t{29}}) {  // of all groups: rows 16 and 5 of the second
      p.scales[row * 2] = uint8_t(lowest), p.scales[row * 2 + 1] = uint8_t(highest);
    }
    std::vector<uint8_t> packed;
    EXPECT_EQ(pack_on_device(p, packed), refused ? 29 : kNoRow);
    EXPECT_EQ(reference::first_unpackable_row(p.scales.data(), 2 * 24, 64),
              refused ? std::optional<int64_t>(29) : std::nullopt);
    const size_t group = packed_weight_bytes(1, 24, 64);
    EXPECT_EQ(packed[2 * group - 32 + 5] >> 7, refused ? 1 : 0) << "the row's byte says NaN";
    EXPECT_EQ(packed[group - 32 + 5] >> 7, 0) << "the other group's does not";
    if (!refused) check_packing(p);
  }
}

// ---- Values --------------------------------------------------------------------------------------------------------

// A sink of the caller's own beside out gets what is stored there, and nothing else: narrow fragments in tiles of few
// rows, transposed ones in others, and such as all sinks take beside float32.
TEST(PackedProduct, SinksOfTheCallersOwn) {
  struct Kernel {
    int m, n;
    std::optional<GateLayout> gate;
    bool decode;
    DataType out = kBf16;
  };
  for (const auto& [m, n, gate, decode, out_type] : {Kernel{8, 128, GateLayout::Split, true},
                                                     {64, 256, GateLayout::Interleaved, true},
                                                     {64, 128, {}, true},
                                                     {64, 128, GateLayout::SplitUpFirst, false},
                                                     {128, 256, {}, false},
                                                     {128, 128, GateLayout::Interleaved, false},
                                                     {256, 128, GateLayout::Split, false},
                                                     {128, 128, GateLayout::Interleaved, false, kF32}}) {
    SCOPED_TRACE(fmt::format("{}x{}, gate {}, {}", m, n, gate ? int(*gate) : -1, decode ? "few rows" : "many"));
    Job job;
    ProductSpec& p = job.problem;
    p.b_format = OperandFormat::Mxfp4;
    p.grouping = Grouping::Offsets;
    p.tile_m = m, p.tile_n = n;
    p.multicast = kAlone;
    p.activation = gate ? Activation::SwigluOai : Activation::None;
    if (gate) p.gate = *gate;
    p.bias = true;
    p.out = out_type;
    if (decode) p.expected_rows = 16;
    job.rows = {33, 0, m + 1, 8};
    if (m < 64) job.rows = {3, 0, 8, 9}, p.expected_rows = 1;
    job.n = 176, job.k = 96;
    const int64_t width = gate ? job.n / 2 : job.n, ld = width + 3;
    const GroupRows rows(p.grouping, job.rows, job.spare_rows);
    Buffer copy(size_t(rows.total * ld) * sizeof(float));
    p.sinks = {float_copy_sink({copy.get<float>(), ld, gate.has_value()})};
    const GroupedProduct product(job);
    for (const char* order : orders()) {
      SCOPED_TRACE(order);
      set_order(order);
      copy.fill(0xff);
      product.check(product.run());
      std::vector<float> got(size_t(rows.total * ld));
      const std::vector<uint8_t> bytes = copy.download();
      std::memcpy(got.data(), bytes.data(), bytes.size());
      std::vector<bool> due(got.size());
      for (size_t g = 0; g < job.rows.size(); ++g) {
        const std::vector<double> expected = product.expected_out(g);
        for (int64_t i = 0; i < job.rows[g] * width; ++i) {
          const auto at = size_t((rows.first[g] + i / width) * ld + i % width);
          due[at] = true;
          ASSERT_NEAR(got[at], expected[size_t(i)], 1e-4 * std::max(1.0, std::abs(expected[size_t(i)])))
              << "group " << g << " row " << i / width << " column " << i % width;
        }
      }
      for (size_t i = 0; i < got.size(); ++i) ASSERT_TRUE(due[i] || std::isnan(got[i])) << "written at " << i;
    }
  }
}

// Without any K neither operand need exist; the bias is all there is.
TEST(PackedProduct, WithoutKThereNeedBeNoWeights) {
  for (const bool gated : {false, true}) {
    GemmDescription d;
    d.groups = Batched{3, 5}, d.n = 80, d.k = 0;
    d.b_format = OperandFormat::Mxfp4;
    d.bias = true;
    d.activation = gated ? Activation::Reglu : Activation::None;
    d.out = kF32;
    std::vector<uint16_t> bias;
    for (int i = 0; i < 3 * 80; ++i) bias.push_back(reference::float_to_bf16(float(i % 29)));
    const int64_t width = gated ? 40 : 80;
    const Buffer b(bias), out(size_t(3 * 5 * width * 4));
    GemmTensors t;
    t.bias = b.get(), t.out.data = out.get();
    GroupedGemm(device(), d).run(t);
    device().synchronize();
    const std::vector<uint8_t> bytes = out.download();
    int64_t wrong = 0;
    for (int64_t i = 0; i < 3 * 5 * width; ++i) {
      const int64_t group = i / (5 * width), column = i % width, first = group * 80;
      float got;
      std::memcpy(&got, &bytes[size_t(i * 4)], 4);
      const auto of = [&](int64_t c) { return float((first + c) % 29); };
      wrong += got != (gated ? of(2 * column) * of(2 * column + 1) : of(column));
    }
    EXPECT_EQ(wrong, 0) << (gated ? "gated" : "plain");
  }
}

// What a description or a call may not say.
TEST(PackedProduct, WrongUseIsNamed) {
  const auto refusal = [](const auto& function) -> std::string {
    try {
      function();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  GemmDescription d;
  d.groups = Dense{8}, d.n = 64, d.k = 64;
  d.b_format = OperandFormat::Mxfp4;
  const auto planned = [&](auto change) {
    GemmDescription changed = d;
    change(changed);
    return refusal([&] { plan_gemm(changed); });
  };
  EXPECT_EQ(planned([](auto& x) { x.k = 40; }), "k is 40, but must be a multiple of 32 with mxfp4 operands");
  EXPECT_EQ(planned([](auto& x) { x.b_format = OperandFormat::Nvfp4; }),
            "b_format is nvfp4 and format bf16, but only mxfp4 beside bf16 differs");
  EXPECT_EQ(planned([](auto& x) { x.format = OperandFormat::Mxfp4, x.b_format = OperandFormat::Bf16; }),
            "b_format is bf16 and format mxfp4, but only mxfp4 beside bf16 differs");
  EXPECT_EQ(planned([](auto& x) {
              x.groups = KGroups{2, 8};
            }),
            "b_format is given, but k-groups have operands of one format");
  const auto tuned = [&](const HopperTuning& tuning) { return planned([&](auto& x) { x.hopper = tuning; }); };
  EXPECT_EQ(tuned({.tile_m = 48}),
            "tile_m is 48, but with packed weights only 8, 16, 32, 64, 128 and 256 are possible");
  EXPECT_EQ(tuned({.tile_n = 96}), "tile_n is 96, but with packed weights only 128 and 256 are possible");
  EXPECT_EQ(tuned({.multicast = Multicast::B}), "multicast shares b, but with packed weights only a is shared");
  EXPECT_EQ(tuned({.schedule = WarpSchedule::PingPong, .tile_m = 8}),
            "schedule is PingPong, but with packed weights only Cooperative is possible");

  const GroupedGemm product(device(), d);
  const Buffer a(size_t(8 * 64 * 2)), b(packed_weight_bytes(1, 64, 64) + 16), out(size_t(8 * 64 * 2));
  const auto ran = [&](auto change) {
    GemmTensors t;
    t.a.data = a.get(), t.b.data = b.get(), t.out.data = out.get();
    change(t);
    return refusal([&] { product.run(t); });
  };
  EXPECT_EQ(ran([](auto& t) { t.b.ld = 64; }), "b.ld is 64, but packed weights have no leading dimension");
  EXPECT_EQ(ran([](auto& t) { t.b.data = nullptr; }), "b is null, but must point to device memory");
  EXPECT_EQ(ran([](auto& t) { t.out.data = const_cast<void*>(t.b.data); }), "out overlaps b in memory");
  EXPECT_EQ(ran([&](auto& t) { t.b.scales = a.get(); }), "b.scales is given, but bf16 operands have no scales");

  const Buffer codes(64 * 32), scales(64 * 2), whole(packed_weight_bytes(1, 64, 64));
  const auto packed = [&](auto change) {
    WeightPacking w{{1, 64, 64}, codes.get(), scales.get<uint8_t>(), whole.get()};
    change(w);
    return refusal([&] { pack_weights(device(), w); });
  };
  EXPECT_EQ(packed([](auto& w) { w.n = 12; }), "n is 12, but must be a multiple of 8 from 0 to 1073741824");
  EXPECT_EQ(packed([](auto& w) { w.n = 24, w.gated = true; }),
            "n is 24, but must be a multiple of 16 from 0 to 1073741824 with a gate");
  EXPECT_EQ(packed([](auto& w) { w.k = 48; }), "k is 48, but must be a multiple of 32 from 0 to 1073741824");
  EXPECT_EQ(packed([](auto& w) { w.k = -32; }), "k is -32, but must be a multiple of 32 from 0 to 1073741824");
  EXPECT_EQ(packed([](auto& w) { w.n = -8; }), "n is -8, but must be a multiple of 8 from 0 to 1073741824");
  constexpr int64_t kTooMany = (int64_t{1} << 30) + 32;
  for (const int64_t wrong : {int64_t{-32}, kTooMany}) {
    EXPECT_EQ(refusal([&] { packed_weight_bytes(1, 8, wrong); }),
              fmt::format("k is {}, but must be a multiple of 32 from 0 to 1073741824", wrong));
    EXPECT_EQ(refusal([&] { packed_weight_bytes(1, wrong, 32); }),
              fmt::format("n is {}, but must be a multiple of 8 from 0 to 1073741824", wrong));
  }
  EXPECT_EQ(refusal([] { packed_weight_bytes(512, 1 << 20, 1 << 11); }), "nothing");
  EXPECT_EQ(refusal([] { packed_weight_bytes(1024, 1 << 20, 1 << 11); }),
            "the packed weights would take 2^40 bytes or more: 1024 groups of 1048576 rows of 2048");
  EXPECT_EQ(refusal([] { packed_weight_bytes(65535, 1 << 30, 1 << 30); }),
            "the packed weights would take 2^40 bytes or more: 65535 groups of 1073741824 rows of 1073741824");
  EXPECT_EQ(packed([](auto& w) { w.groups = 0; }), "groups is 0, but must be 1 to 65535");
  EXPECT_EQ(packed([](auto& w) { w.gate = GateLayout(7); }), "gate is 7, but only 0 to 2 have a meaning");
  EXPECT_EQ(packed([](auto& w) { w.codes = nullptr; }), "codes is null, but must point to device memory");
  EXPECT_EQ(packed([](auto& w) { w.codes = w.packed; }), "codes overlaps packed in memory");
  EXPECT_EQ(packed([](auto& w) { w.n = 0, w.codes = nullptr; }), "nothing");
}

// Rows of B with one weight that is not zero: the product of an A of ones is the weight, for every code and scale.
TEST(PackedProduct, EveryWeightIsExact) {
  constexpr int64_t kRows = 8, kN = 256 * 8, kK = 32;
  std::vector<uint8_t> codes(size_t(kN * kK / 2)), scales(static_cast<size_t>(kN));
  for (int64_t n = 0; n < kN; ++n) {
    scales[size_t(n)] = uint8_t(n / 8);
    // In each of eight rows two weights of magnitude n % 8, of either sign, under A's rows of which one is not zero.
    codes[size_t(n * 16 + n % 16)] = uint8_t(n % 8 | (n % 8 | 8) << 4);
  }
  std::vector<uint16_t> a(size_t(kRows * kK));
  for (int64_t k = 0; k < kK; ++k) {
    a[size_t(k % 2 * kK + k)] = reference::float_to_bf16(1);
    a[size_t((2 + k % 2) * kK + k)] = reference::float_to_bf16(-0.5);
  }
  const Buffer b(reference::pack_weights(codes.data(), scales.data(), kN, kK, {})), x(a), out(size_t(kRows * kN * 4));
  GemmDescription d;
  d.groups = Dense{kRows}, d.n = kN, d.k = kK;
  d.b_format = OperandFormat::Mxfp4;
  d.out = kF32;
  const GroupedGemm product(device(), d);
  GemmTensors t;
  t.a.data = x.get(), t.b.data = b.get(), t.out.data = out.get();
  product.run(t);
  device().synchronize();
  const std::vector<uint8_t> bytes = out.download();
  int64_t wrong = 0;
  std::string first;
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t n = 0; n < kN; ++n) {
      float got;
      std::memcpy(&got, &bytes[size_t((row * kN + n) * 4)], 4);
      const int code = int(n % 8) | (row % 2 == 1 ? 8 : 0);
      const double wanted = double(reference::e8m0_to_float(uint8_t(n / 8))) * reference::e2m1_to_float(uint8_t(code)) *
                            (row < 2 ? 1.0 : -0.5);
      const bool bad = std::isnan(wanted) ? !std::isnan(got) : float(wanted) != got;
      if (bad && wrong++ == 0)
        first = fmt::format("row {}, scale {}, code {}: {} instead of {}", row, n / 8, code, got, wanted);
    }
  }
  EXPECT_EQ(wrong, 0) << first;
}

}  // namespace
}  // namespace moxie::test
