// The MXFP4 products over grouping x width of a tile x extents x outputs, in every order of the simulator.
#include "tests/blackwell/mxfp4.h"

#include "moxie/scales.h"

namespace moxie::test {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

Mxfp4Job dense(int64_t m, int64_t n, int64_t k) {
  Mxfp4Job job;
  job.problem.out = kF32;
  job.problem.swap_ab = false;  // swap_test.cpp has the others
  job.rows = {m};
  job.n = n, job.k = k;
  job.seed = uint64_t(m * 7 + n * 3 + k);
  return job;
}

TEST(Mxfp4, OneTile) { run_in_all_orders(dense(128, 128, 256)); }

TEST(Mxfp4, ManyTiles) { run_in_all_orders(dense(300, 520, 512)); }

class Depth : public testing::TestWithParam<int> {};
TEST_P(Depth, IsRight) { run_in_all_orders(dense(70, 72, GetParam())); }
INSTANTIATE_TEST_SUITE_P(Mxfp4, Depth, testing::Values(0, 32, 64, 96, 128, 160, 256, 288, 736, 2880));

// Tiles that begin in the middle of a group of 32 columns, with every kind of remainder.
class HalfGroup : public testing::TestWithParam<int> {};
TEST_P(HalfGroup, IsRight) {
  for (int64_t extra : {0, 8, 24, 48}) {
    Mxfp4Job job = dense(140, 4 * GetParam() + extra, 320);
    job.problem.tile_n = GetParam();
    run_in_all_orders(job);
    if (HasFailure()) return;
  }
}
TEST_P(HalfGroup, GroupsWithBiasAndBf16) {
  Mxfp4Job job = dense(0, 3 * GetParam() + 8, 96);
  job.problem.grouping = Grouping::Offsets;
  job.rows = {5, 0, 140, 1};
  job.problem.tile_n = GetParam();
  job.problem.bias = true;
  job.problem.activation = Activation::Relu;
  job.problem.out = kBf16;
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Mxfp4, HalfGroup, testing::Values(16, 48, 80, 112, 144, 176, 208, 240));

// Blocks of a cluster and columns of a tile.
class Tile : public testing::TestWithParam<std::tuple<int, int>> {};
TEST_P(Tile, IsRight) {
  const auto [cluster, tile_n] = GetParam();
  Mxfp4Job job = dense(140 * cluster, 3 * tile_n + 40, 320);
  job.problem.cluster = cluster, job.problem.tile_n = tile_n;
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(Mxfp4, Tile,
                         testing::Combine(testing::Values(1, 2), testing::Values(32, 64, 96, 128, 160, 192, 224, 256)));

struct GroupedCase {
  Grouping grouping;
  std::vector<int64_t> rows;
  const char* name;
};
class Groups : public testing::TestWithParam<std::tuple<GroupedCase, int>> {
 protected:
  Mxfp4Job job(int64_t n, int64_t k) const {
    Mxfp4Job j = dense(0, n, k);
    j.problem.grouping = std::get<0>(GetParam()).grouping;
    j.problem.cluster = std::get<1>(GetParam());
    j.rows = std::get<0>(GetParam()).rows;
    return j;
  }
};
TEST_P(Groups, Float32) {
  Mxfp4Job job = this->job(200, 288);
  job.problem.tile_n = 96;
  run_in_all_orders(job);
}
TEST_P(Groups, BiasAndBf16) {
  Mxfp4Job job = this->job(328, 96);
  job.problem.bias = true;
  job.problem.out = kBf16;
  run_in_all_orders(job);
}
TEST_P(Groups, GatedActivation) {
  Mxfp4Job job = this->job(336, 160);
  job.problem.bias = true;
  job.problem.activation = Activation::SwigluOai;
  job.problem.out = kBf16;
  job.problem.tile_n = 96;
  job.lowest_scale = 122, job.highest_scale = 126;
  run_in_all_orders(job);
}
// Halves of N that begin at any 32 of 128.
TEST_P(Groups, SplitGate) {
  const int cluster = std::get<1>(GetParam());
  for (int64_t n : {192, 448}) {
    Mxfp4Job job = this->job(n, 160);
    job.problem.bias = true;
    job.problem.activation = Activation::SwigluOai;
    job.problem.gate = n == 192 ? GateLayout::Split : GateLayout::SplitUpFirst;
    job.problem.out = n == 192 ? kBf16 : kF32;
    job.problem.tile_n = n == 192 ? 64 : 128 + 64 * cluster;
    job.lowest_scale = 122, job.highest_scale = 126;
    run_in_all_orders(job);
    if (HasFailure()) return;
  }
}
TEST_P(Groups, GatedPre) {
  Mxfp4Job job = this->job(272, 96);
  job.problem.activation = Activation::Swiglu;
  job.problem.pre = kF32;
  job.problem.out.reset();
  run_in_all_orders(job);
}
INSTANTIATE_TEST_SUITE_P(
    Mxfp4, Groups,
    testing::Combine(testing::Values(GroupedCase{Grouping::Dense, {200}, "Dense"},
                                     GroupedCase{Grouping::Batched, {150, 150, 150}, "Batched"},
                                     GroupedCase{Grouping::Offsets, {5, 0, 140, 1, 128, 0, 270}, "Offsets"},
                                     GroupedCase{Grouping::RowGroups, {5, 0, 140, 1, 128, 0, 270}, "RowGroups"},
                                     GroupedCase{Grouping::Masked, {5, 0, 140, 1, 128, 0, 270}, "Masked"}),
                     testing::Values(1, 2)),
    [](const auto& info) {
      return fmt::format("{}{}", std::get<0>(info.param).name, std::get<1>(info.param) == 2 ? "Pair" : "");
    });

// Scales over the range whose products and sums float32 holds: 2^-60 to 2^53 for each operand, one for every row.
TEST(Mxfp4, ScalesFarApart) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Mxfp4Job job = dense(64, 64, 32);
    job.seed = seed;
    job.lowest_scale = 67, job.highest_scale = 180;
    run_in_all_orders(job);
  }
}

// A NaN scale spoils its row (of A) and its column (of B), and nothing else.
TEST(Mxfp4, NanScale) {
  Mxfp4Layer layer(dense(130, 136, 320));
  const GemmProblem& p = layer.problem();
  std::vector<uint8_t> sfa(a_scale_bytes(p)), sfb(b_scale_bytes(p));
  device().download(sfa.data(), layer.arguments().sfa, sfa.size());
  device().download(sfb.data(), layer.arguments().sfb, sfb.size());
  sfa[size_t(blocked_scale_index(129, 7, p.k))] = 255;
  sfb[size_t(blocked_scale_index(70, 9, p.k))] = 255;
  const Buffer a(sfa), b(sfb);
  const auto clean = layer.run();
  layer.arguments().sfa = a.get(), layer.arguments().sfb = b.get();
  const auto spoiled = layer.run();
  const int64_t ld = layer.arguments().ld_out, first = 2 * ld;  // after the guard rows
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      float before, after;
      std::memcpy(&before, clean.data() + (first + i * ld + j) * 4, 4);
      std::memcpy(&after, spoiled.data() + (first + i * ld + j) * 4, 4);
      if (i == 129 || j == 70) {
        ASSERT_TRUE(std::isnan(after)) << i << " " << j;
      } else {
        ASSERT_EQ(before, after) << i << " " << j;
      }
    }
  }
}

// The conversion agrees with the formula, group by group, and writes nothing where no scale is.
TEST(BlockScales, AgreesWithTheFormula) {
  const std::vector<int32_t> ends = {5, 5, 133, 400, 401};
  for (bool offsets : {false, true}) {
    for (int64_t k : {32, 160, 288}) {
      const int64_t groups = 5, rows = offsets ? 410 : 130, columns = k / kScaleBlock;
      std::vector<uint8_t> from(size_t((offsets ? 1 : groups) * rows * columns));
      for (size_t i = 0; i < from.size(); ++i) from[i] = uint8_t(1 + mix(i) % 255);
      const int64_t k_tiles = (k + kScaleTileK - 1) / kScaleTileK;
      const int64_t tiles = offsets ? rows / kScaleTileRows + groups : groups * ((rows + 127) / 128);
      std::vector<uint8_t> wanted(size_t(tiles * k_tiles * kScaleTileBytes), 0xee);
      int64_t first_tile = 0;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t begin = offsets ? (g ? ends[size_t(g - 1)] : 0) : g * rows;
        const int64_t count = offsets ? ends[size_t(g)] - begin : rows;
        uint8_t* const group = wanted.data() + first_tile * k_tiles * kScaleTileBytes;
        std::fill_n(group, blocked_scale_bytes(count, k), 0);
        for (int64_t r = 0; r < count; ++r) {
          for (int64_t c = 0; c < columns; ++c)
            group[blocked_scale_index(r, c, k)] = from[size_t((begin + r) * columns + c)];
        }
        first_tile += (count + 127) / 128;
      }
      const Buffer source(from), to(std::vector<uint8_t>(wanted.size(), 0xee)), sizes(ends);
      ScaleBlocking x;
      x.from = source.get(), x.to = to.get();
      x.groups = groups, x.rows = rows, x.k = k;
      if (offsets) x.offsets = sizes.get<int32_t>();
      block_scales(device(), x);
      EXPECT_TRUE(to.download() == wanted) << offsets << " " << k;
    }
  }
}

// Wrong calls: one sentence that names the argument, and nothing touched.
struct Wrong {
  const char* name;
  ErrorCode code;
  const char* says;
  void (*spoil)(GemmProblem&, GemmArguments&);
};
class WrongCall : public testing::TestWithParam<Wrong> {};
TEST_P(WrongCall, IsRefused) {
  Mxfp4Layer layer(dense(64, 64, 96));
  const std::vector<uint8_t> before = layer.run();
  GemmProblem p = layer.problem();
  GemmArguments x = layer.arguments();
  GetParam().spoil(p, x);
  try {
    gemm(device(), p, x);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_NE(std::string(error.what()).find(GetParam().says), std::string::npos) << error.what();
  }
  device().synchronize();
  EXPECT_TRUE(layer.output() == before);
}
constexpr auto kInvalid = ErrorCode::InvalidArgument, kUnsupported = ErrorCode::Unsupported;
template <typename T>
T* shifted(T* pointer, int64_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + uintptr_t(bytes));
}
INSTANTIATE_TEST_SUITE_P(
    Mxfp4, WrongCall,
    testing::Values(
        Wrong{"Depth", kInvalid, "k is 72", [](auto& p, auto&) { p.k = 72; }},
        Wrong{"Format", kInvalid, "format is 7", [](auto& p, auto&) { p.format = OperandFormat(7); }},
        Wrong{"NoScalesOfA", kInvalid, "sfa is null", [](auto&, auto& x) { x.sfa = nullptr; }},
        Wrong{"NoScalesOfB", kInvalid, "sfb is null", [](auto&, auto& x) { x.sfb = nullptr; }},
        Wrong{"ScalesOfAMisaligned", kInvalid, "sfa is 0x", [](auto&, auto& x) { x.sfa = shifted(x.sfa, 8); }},
        Wrong{"ScalesOfBMisaligned", kInvalid, "sfb is 0x", [](auto&, auto& x) { x.sfb = shifted(x.sfb, 4); }},
        Wrong{"ScalesOfBf16", kInvalid, "sfa is given", [](auto& p, auto&) { p.format = OperandFormat::Bf16; }},
        Wrong{"AMisaligned", kInvalid, "a is 0x", [](auto&, auto& x) { x.a = shifted(x.a, 8); }},
        Wrong{"LdaNoMultiple", kInvalid, "lda is 104", [](auto&, auto& x) { x.lda = 104; }},
        Wrong{"LdaSmall", kInvalid, "lda is 64", [](auto&, auto& x) { x.lda = 64; }},
        Wrong{"LdbNoMultiple", kInvalid, "ldb is 112", [](auto&, auto& x) { x.ldb = 112; }},
        Wrong{"OutIsA", kInvalid, "out overlaps a", [](auto&, auto& x) { x.out = const_cast<void*>(x.a); }},
        Wrong{"OutIsScales", kInvalid, "out overlaps sfa", [](auto&, auto& x) { x.out = const_cast<void*>(x.sfa); }},
        Wrong{"OutIsScalesOfB", kInvalid, "out overlaps sfb", [](auto&, auto& x) { x.out = const_cast<void*>(x.sfb); }},
        Wrong{"NoOutput", kInvalid, "pre, out and sinks", [](auto& p, auto&) { p.out.reset(); }},
        Wrong{"Width", kInvalid, "n is 60", [](auto& p, auto&) { p.n = 60; }},
        Wrong{"GatedWidth", kInvalid, "n is 72", [](auto& p, auto&) { p.n = 72, p.activation = Activation::Swiglu; }},
        Wrong{"DenseGroups", kInvalid, "groups is 2", [](auto& p, auto&) { p.groups = 2; }},
        Wrong{"HostRows", kInvalid, "host_rows has 2",
              [](auto& p, auto&) {
                p.host_rows = {32, 32};
              }},
        Wrong{"NoSizes", kInvalid, "sizes is null", [](auto& p, auto&) { p.grouping = Grouping::RowGroups; }},
        Wrong{"Workspace", kInvalid, "workspace is null",
              [](auto& p, auto& x) { p.grouping = Grouping::Masked, x.workspace = nullptr; }},
        Wrong{"SplitGate", kUnsupported, "n is 48",
              [](auto& p, auto&) { p.activation = Activation::Swiglu, p.gate = GateLayout::Split, p.n = 48; }},
        Wrong{"Schedule", kInvalid, "schedule is given", [](auto& p, auto&) { p.schedule = Schedule::PingPong; }},
        Wrong{"Multicast", kInvalid, "multicast is given", [](auto& p, auto&) { p.multicast = Multicast::A; }},
        Wrong{"Cluster", kInvalid, "cluster is 4", [](auto& p, auto&) { p.cluster = 4; }},
        Wrong{"TileRows", kInvalid, "tile_m is 64", [](auto& p, auto&) { p.tile_m = 64; }},
        Wrong{"TileRowsOfThePair", kInvalid, "tile_m is 128", [](auto& p, auto&) { p.tile_m = 128, p.cluster = 2; }},
        Wrong{"TileColumns", kInvalid, "tile_n is 40", [](auto& p, auto&) { p.tile_n = 40; }},
        Wrong{"TileColumnsOfThePair", kInvalid, "on a pair of blocks",
              [](auto& p, auto&) { p.tile_n = 48, p.cluster = 2; }},
        Wrong{"TileColumnsWithAGate", kInvalid, "with a gated activation",
              [](auto& p, auto&) { p.tile_n = 48, p.activation = Activation::Swiglu; }},
        Wrong{"TileColumnsOfBf16", kInvalid, "with bf16 operands",
              [](auto& p, auto&) { p.tile_n = 48, p.format = OperandFormat::Bf16; }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moxie::test
