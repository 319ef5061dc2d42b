// SPDX-License-Identifier: Apache-2.0
// Asynchronous work in the simulator against direct computation: bulk and tensor copies of every rank and swizzle,
// out-of-bounds fill, reductions, multicast, mbarrier phases, rewritten tensor maps, wgmma on its types and layouts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "sim/arithmetic/panel_product.h"
#include "sim/memory/tensor_map.h"
#include "tests/sim/formats.h"
#include "tests/sim/run_ptx.h"

namespace {

using sim::TensorElement;
using sim::TensorFill;
using sim::TensorMapFields;
using sim::TensorSwizzle;
using namespace sim_test;

struct Map {
  uint8_t bytes[128];
};

Map encoded(const TensorMapFields& fields) {
  Map map;
  sim::encode(fields, map.bytes);
  return map;
}

std::vector<uint8_t> random_bytes(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<uint8_t> v(n);
  for (uint8_t& b : v) b = static_cast<uint8_t>(rng());
  return v;
}

// Waits for phase parity %2 of the mbarrier at %1; `label` must be new.
std::string wait(const std::string& barrier, const std::string& parity, const std::string& label) {
  return label + ": mbarrier.try_wait.parity.shared::cta.b64 %p9, [" + barrier + "], " + parity + ";\n @!%p9 bra " +
         label + ";\n";
}

const char* const kRegisters = R"(
  .reg .pred %p<12>; .reg .b16 %h<8>; .reg .b32 %r<80>; .reg .b64 %rd<40>; .reg .f32 %f<300>;
)";

class Orders : public testing::TestWithParam<sim::Order> {
 protected:
  Shape shape(uint32_t threads) const {
    Shape s;
    s.block = {threads, 1, 1};
    s.order = GetParam();
    return s;
  }
  sim::GlobalMemory memory_;
};
std::string order_name(const testing::TestParamInfo<sim::Order>& info) {
  const char* const names[] = {"eager", "lazy", "random"};
  return names[static_cast<int>(info.param.mode)] + std::to_string(info.param.seed);
}
INSTANTIATE_TEST_SUITE_P(All, Orders, testing::ValuesIn(sim_test::all_orders()), order_name);

// ---- the tensor map itself ----------------------------------------------------------------------

TEST(TensorMap, RoundTrip) {
  TensorMapFields f;
  f.address = 0x123456789ab0;
  f.element = TensorElement::BF16;
  f.rank = 5;
  f.dims = {uint64_t{1} << 32, 7, 6, 5, 1};
  f.strides = {0xffffffff0, 32, 48, 64};
  f.box = {256, 1, 2, 3, 4};
  f.element_strides = {1, 2, 3, 4, 8};
  f.swizzle = TensorSwizzle::Bytes64;
  f.l2 = sim::TensorL2::Bytes256;
  f.fill = TensorFill::Nan;
  const auto back = sim::decode(encoded(f).bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->address, f.address);
  EXPECT_EQ(back->element, f.element);
  EXPECT_EQ(back->rank, f.rank);
  EXPECT_EQ(back->dims, f.dims);
  EXPECT_EQ(back->strides, f.strides);
  EXPECT_EQ(back->box, f.box);
  EXPECT_EQ(back->element_strides, f.element_strides);
  EXPECT_EQ(back->swizzle, f.swizzle);
  EXPECT_EQ(back->l2, f.l2);
  EXPECT_EQ(back->fill, f.fill);
  const uint8_t nothing[128] = {};
  EXPECT_FALSE(sim::decode(nothing));
}

// ---- tensor copies ------------------------------------------------------------------------------

struct TileCase {
  const char* name;
  TensorMapFields map;  // address and strides are filled in
  std::vector<int32_t> at;
};

void PrintTo(const TileCase& c, std::ostream* out) { *out << c.name; }

// PTX ISA 5.5.7: where the 16-byte piece of a line of eight stands.
int swizzled_piece(TensorSwizzle swizzle, int line, int piece) {
  static const int k128[8][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5},
                                 {3, 2, 1, 0, 7, 6, 5, 4}, {4, 5, 6, 7, 0, 1, 2, 3}, {5, 4, 7, 6, 1, 0, 3, 2},
                                 {6, 7, 4, 5, 2, 3, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}};
  switch (swizzle) {
    case TensorSwizzle::None:
      return piece;
    case TensorSwizzle::Bytes32:
      return k128[line % 2][piece];
    case TensorSwizzle::Bytes64:
      return k128[line % 4][piece];
    case TensorSwizzle::Bytes128:
      return k128[line % 8][piece];
  }
  return -1;
}

int rows_of(const TensorMapFields& m, int d) {
  return d == 0 ? static_cast<int>(m.box[0])
                : static_cast<int>((m.box[d] + m.element_strides[d] - 1) / m.element_strides[d]);
}

// Calls f(offset in the box as it lies in shared memory, inside, byte offset in the tensor) for each element.
template <class F>
void each_element(const TensorMapFields& m, const std::vector<int32_t>& at, uint32_t shared_base, F f) {
  const int bytes = sim::bytes_of(m.element);
  int n[5] = {1, 1, 1, 1, 1};
  for (uint32_t d = 0; d < m.rank; ++d) n[d] = rows_of(m, static_cast<int>(d));
  int linear = 0;
  for (int i4 = 0; i4 < n[4]; ++i4)
    for (int i3 = 0; i3 < n[3]; ++i3)
      for (int i2 = 0; i2 < n[2]; ++i2)
        for (int i1 = 0; i1 < n[1]; ++i1)
          for (int i0 = 0; i0 < n[0]; ++i0, linear += bytes) {
            const int i[5] = {i0, i1, i2, i3, i4};
            bool inside = true;
            int64_t offset = 0;
            for (uint32_t d = 0; d < m.rank; ++d) {
              const int64_t c = at[d] + int64_t{i[d]} * (d == 0 ? 1 : m.element_strides[d]);
              inside = inside && c >= 0 && c < static_cast<int64_t>(m.dims[d]);
              offset += c * (d == 0 ? bytes : static_cast<int64_t>(m.strides[d - 1]));
            }
            const uint32_t address = shared_base + static_cast<uint32_t>(linear);
            const int piece =
                swizzled_piece(m.swizzle, static_cast<int>(address / 128 % 8), static_cast<int>(address / 16 % 8));
            f(static_cast<size_t>((address & ~127u) + static_cast<uint32_t>(16 * piece) + address % 16 - shared_base),
              inside, offset);
          }
}

TensorMapFields map_of(TensorElement element, std::vector<uint64_t> dims, std::vector<uint32_t> box,
                       TensorSwizzle swizzle = TensorSwizzle::None, TensorFill fill = TensorFill::Zero,
                       std::vector<uint32_t> element_strides = {}) {
  TensorMapFields m;
  m.element = element;
  m.rank = static_cast<uint32_t>(dims.size());
  uint64_t stride = static_cast<uint64_t>(sim::bytes_of(element));
  for (size_t d = 0; d < dims.size(); ++d) {
    m.dims[d] = dims[d];
    m.box[d] = box[d];
    if (d < element_strides.size()) m.element_strides[d] = element_strides[d];
    stride = (stride * dims[d] + 15) / 16 * 16 + (d == 0 ? 16 : 0);  // rows are apart
    if (d < 4) m.strides[d] = stride;
  }
  m.swizzle = swizzle;
  m.fill = fill;
  return m;
}

uint64_t tensor_bytes(const TensorMapFields& m) {
  return m.rank == 1 ? m.dims[0] * static_cast<uint64_t>(sim::bytes_of(m.element))
                     : m.strides[m.rank - 2] * m.dims[m.rank - 1];
}

uint32_t box_bytes(const TensorMapFields& m) {
  uint32_t bytes = static_cast<uint32_t>(sim::bytes_of(m.element));
  for (uint32_t d = 0; d < m.rank; ++d) bytes *= static_cast<uint32_t>(rows_of(m, static_cast<int>(d)));
  return bytes;
}

std::vector<TileCase> tile_cases() {
  using E = TensorElement;
  using S = TensorSwizzle;
  using F = TensorFill;
  return {
      {"u8_1d", map_of(E::U8, {100}, {64}), {16}},
      {"u8_1d_past_the_end", map_of(E::U8, {100}, {64}), {64}},
      {"u16_2d", map_of(E::U16, {40, 30}, {16, 9}), {8, 5}},
      {"bf16_2d_swizzle128", map_of(E::BF16, {200, 70}, {64, 64}, S::Bytes128), {64, 0}},
      {"bf16_2d_swizzle128_tail", map_of(E::BF16, {200, 70}, {64, 64}, S::Bytes128), {168, 40}},
      {"bf16_2d_swizzle64", map_of(E::BF16, {200, 70}, {32, 40}, S::Bytes64), {8, 2}},
      {"bf16_2d_swizzle32", map_of(E::BF16, {200, 70}, {16, 24}, S::Bytes32), {8, 60}},
      {"f32_3d_swizzle128_before_the_start", map_of(E::F32, {50, 20, 6}, {32, 5, 3}, S::Bytes128), {-8, -2, -1}},
      {"f16_4d_nan", map_of(E::F16, {24, 5, 4, 3}, {16, 3, 2, 2}, S::None, F::Nan), {16, 3, 3, 2}},
      {"f32_2d_nan_swizzle64", map_of(E::F32, {24, 5}, {16, 4}, S::Bytes64, F::Nan), {-8, 3}},
      {"f64_5d", map_of(E::F64, {10, 4, 3, 3, 2}, {6, 2, 2, 2, 2}), {2, 1, 1, 1, 0}},
      {"s64_5d_outside", map_of(E::S64, {10, 4, 3, 3, 2}, {6, 2, 2, 2, 2}), {-20, 1, 1, 1, 0}},
      {"u32_3d_strided", map_of(E::U32, {40, 20, 9}, {8, 7, 5}, S::None, F::Zero, {1, 2, 3}), {4, 3, 2}},
      {"u8_2d_swizzle128_wide", map_of(E::U8, {300, 300}, {128, 256}, S::Bytes128), {112, 20}},
  };
}

class Tiles : public testing::TestWithParam<TileCase> {
 protected:
  sim::GlobalMemory memory_;
};
INSTANTIATE_TEST_SUITE_P(All, Tiles, testing::ValuesIn(tile_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

std::string coordinates(size_t rank) {
  std::string text = "{";
  for (size_t d = 0; d < rank; ++d) text += (d ? ", " : "") + ("%r" + std::to_string(20 + d));
  return text + "}";
}

// One warp. tile: 1024-byte aligned; %r1 its address, %r2 the mbarrier, %r3 the lane, %rd1 the map, %rd2 `p_data`,
// %r20... the coordinates. The mbarrier is initialised for one arrival.
std::string tile_kernel(size_t rank, const std::string& body) {
  std::string text = R"(
.visible .entry k(.param .align 64 .b8 p_map[128], .param .u64 p_data)
{
  .shared .align 1024 .b8 tile[65536];
  .shared .align 8 .b64 bar;)" +
                     std::string(kRegisters) + R"(
  mov.b64 %rd1, p_map;
  cvta.param.u64 %rd1, %rd1;
  ld.param.u64 %rd2, [p_data];
  mov.u32 %r1, tile;
  mov.u32 %r2, bar;
  mov.u32 %r3, %tid.x;
  setp.eq.u32 %p1, %r3, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  bar.sync 0;
)";
  // The coordinates stand before the data.
  for (size_t d = 0; d < rank; ++d)
    text += "  ld.global.s32 %r" + std::to_string(20 + d) + ", [%rd2+" + std::to_string(4 * d) + "];\n";
  return text + "  add.s64 %rd2, %rd2, 32;\n" + body + "  ret;\n}\n";
}

std::string copy_words(const char* load, const char* from, const char* store, const char* to, uint32_t bytes) {
  return "  shl.b32 %r10, %r3, 2;\n"
         "C1: setp.ge.u32 %p2, %r10, " +
         std::to_string(bytes) + ";\n @%p2 bra C2;\n" +
         "  add.u32 %r11, %r1, %r10;\n  cvt.u64.u32 %rd10, %r10;\n  add.s64 %rd11, %rd2, %rd10;\n  " + load +
         " %r12, [" + from + "];\n  " + store + " [" + to + "], %r12;\n  add.u32 %r10, %r10, 128;\n  bra C1;\nC2:\n";
}

TEST_P(Tiles, Load) {
  TileCase c = GetParam();
  const std::vector<uint8_t> tensor = random_bytes(tensor_bytes(c.map), 1);
  Buffer<uint8_t> source(memory_, tensor);
  c.map.address = source.address();
  const uint32_t bytes = box_bytes(c.map);
  const std::string text =
      tile_kernel(c.at.size(), "  @!%p1 bra W;\n  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], " +
                                   std::to_string(bytes) + ";\n  cp.async.bulk.tensor." + std::to_string(c.at.size()) +
                                   "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, " +
                                   coordinates(c.at.size()) + "], [%r2];\n" + wait("%r2", "0", "W") +
                                   copy_words("ld.shared.u32", "%r11", "st.global.u32", "%rd11", bytes));
  std::vector<uint8_t> expected(bytes);
  each_element(c.map, c.at, 0, [&](size_t to, bool inside, int64_t from) {
    for (int b = 0; b < sim::bytes_of(c.map.element); ++b) {
      uint8_t value = 0;
      if (inside) {
        value = tensor[static_cast<size_t>(from + b)];
      } else if (c.map.fill == TensorFill::Nan) {
        value = b % 2 == 1 ? 0x7f : 0xf7;
      }
      expected[to + static_cast<size_t>(b)] = value;
    }
  });
  for (const sim::Order& order : sim_test::all_orders()) {
    std::vector<uint8_t> data(32 + bytes, 0xee);
    std::memcpy(data.data(), c.at.data(), c.at.size() * 4);
    Buffer<uint8_t> out(memory_, data);
    Shape shape;
    shape.order = order;
    sim_test::run_ptx(text, "k", Params().add(encoded(c.map)).add(out.address()), memory_, shape);
    const std::vector<uint8_t> result = out.values();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), result.begin() + 32));
  }
}

TEST_P(Tiles, Store) {
  TileCase c = GetParam();
  for (int32_t& x : c.at) x = std::max(x, 0);  // stores take no negative coordinates
  const std::vector<uint8_t> before = random_bytes(tensor_bytes(c.map), 2);
  const uint32_t bytes = box_bytes(c.map);
  std::vector<uint8_t> data = random_bytes(32 + bytes, 3);
  std::memcpy(data.data(), c.at.data(), c.at.size() * 4);
  const std::string text = tile_kernel(
      c.at.size(), copy_words("ld.global.u32", "%rd11", "st.shared.u32", "%r11", bytes) +
                       "  fence.proxy.async.shared::cta;\n  bar.sync 0;\n  @!%p1 bra E;\n  cp.async.bulk.tensor." +
                       std::to_string(c.at.size()) + "d.global.shared::cta.tile.bulk_group [%rd1, " +
                       coordinates(c.at.size()) +
                       "], [%r1];\n  cp.async.bulk.commit_group;\n  cp.async.bulk.wait_group 0;\nE:\n");
  std::vector<uint8_t> expected = before;
  each_element(c.map, c.at, 0, [&](size_t from, bool inside, int64_t to) {
    if (!inside) return;
    for (int b = 0; b < sim::bytes_of(c.map.element); ++b)
      expected[static_cast<size_t>(to + b)] = data[32 + from + static_cast<size_t>(b)];
  });
  for (const sim::Order& order : sim_test::all_orders()) {
    Buffer<uint8_t> tensor(memory_, before);
    Buffer<uint8_t> in(memory_, data);
    c.map.address = tensor.address();
    Shape shape;
    shape.order = order;
    sim_test::run_ptx(text, "k", Params().add(encoded(c.map)).add(in.address()), memory_, shape);
    EXPECT_EQ(tensor.values(), expected);
  }
}

TEST_P(Orders, TensorReductions) {
  const TensorMapFields shape_of = map_of(TensorElement::U32, {8, 4}, {4, 2});
  struct Case {
    const char* op;
    TensorElement element;
    uint32_t (*f)(uint32_t, uint32_t);
  };
  const Case cases[] = {
      {"add", TensorElement::U32, [](uint32_t a, uint32_t b) { return a + b; }},
      {"min", TensorElement::S32,
       [](uint32_t a, uint32_t b) {
         return static_cast<uint32_t>(std::min(static_cast<int32_t>(a), static_cast<int32_t>(b)));
       }},
      {"max", TensorElement::U32, [](uint32_t a, uint32_t b) { return std::max(a, b); }},
      {"inc", TensorElement::U32, [](uint32_t a, uint32_t b) { return a >= b ? 0 : a + 1; }},
      {"dec", TensorElement::U32, [](uint32_t a, uint32_t b) { return a == 0 || a > b ? b : a - 1; }},
      {"and", TensorElement::U32, [](uint32_t a, uint32_t b) { return a & b; }},
      {"or", TensorElement::U32, [](uint32_t a, uint32_t b) { return a | b; }},
      {"xor", TensorElement::U32, [](uint32_t a, uint32_t b) { return a ^ b; }},
      {"add", TensorElement::F32,
       [](uint32_t a, uint32_t b) {
         return std::bit_cast<uint32_t>(std::bit_cast<float>(a) + std::bit_cast<float>(b));
       }},
      {"add", TensorElement::BF16,
       [](uint32_t a, uint32_t b) {
         uint32_t result = 0;
         for (int h = 0; h < 32; h += 16) {
           const double sum = value_of(a >> h & 0xffff, kBF16) + value_of(b >> h & 0xffff, kBF16);
           result |= code_of(sum, kBF16) << h;
         }
         return result;
       }},
  };
  for (const Case& c : cases) {
    TensorMapFields map = shape_of;
    map.element = c.element;
    if (c.element == TensorElement::BF16) {
      map.dims[0] = 16;
      map.box[0] = 8;
    }
    std::mt19937 rng(7);
    std::vector<uint32_t> before(tensor_bytes(map) / 4), data(8 + 8);
    for (uint32_t& x : before) x = (rng() & 0x807fffff) | 0x3f000000;
    for (uint32_t& x : data) x = (rng() & 0x807fffff) | 0x3f800000;
    data[0] = c.element == TensorElement::BF16 ? 8 : 4;
    data[1] = 1;
    Buffer<uint32_t> tensor(memory_, before), in(memory_, data);
    map.address = tensor.address();
    std::vector<uint32_t> expected = before;
    for (uint32_t row = 0; row < 2; ++row) {
      for (uint32_t i = 0; i < 4; ++i) {
        uint32_t& e = expected[(row + 1) * map.strides[0] / 4 + 4 + i];
        e = c.f(e, data[8 + row * 4 + i]);
      }
    }
    const std::string text = tile_kernel(2, copy_words("ld.global.u32", "%rd11", "st.shared.u32", "%r11", 32) +
                                                "  fence.proxy.async;\n  bar.sync 0;\n  @!%p1 bra E;\n  "
                                                "cp.reduce.async.bulk.tensor.2d.global.shared::cta." +
                                                c.op +
                                                ".tile.bulk_group [%rd1, {%r20, %r21}], [%r1];\n  "
                                                "cp.async.bulk.commit_group;\n  cp.async.bulk.wait_group 0;\nE:\n");
    sim_test::run_ptx(text, "k", Params().add(encoded(map)).add(in.address()), memory_, shape(32));
    EXPECT_EQ(tensor.values(), expected) << c.op;
  }
}

// ---- bulk copies --------------------------------------------------------------------------------

// A block of one warp in a cluster of `blocks`; %rd2 `p_in`, %rd3 `p_out`, %r1 a buffer, %r2 an mbarrier, %r3 the
// lane, %r4 the block's rank, %p1 lane 0.
std::string bulk_kernel(const std::string& body) {
  return R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out)
{
  .shared .align 128 .b8 buffer[8192];
  .shared .align 8 .b64 bar;)" +
         std::string(kRegisters) + R"(
  ld.param.u64 %rd2, [p_in];
  ld.param.u64 %rd3, [p_out];
  mov.u32 %r1, buffer;
  mov.u32 %r2, bar;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %cluster_ctarank;
  setp.eq.u32 %p1, %r3, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.relaxed.aligned;
  barrier.cluster.wait.aligned;
)" + body +
         "  ret;\n}\n";
}

// Each lane stores its word of the buffer at offset `at` to out[rank * 32 + lane].
std::string store_words(int at) {
  return "  shl.b32 %r10, %r3, 2;\n  add.u32 %r11, %r1, %r10;\n  ld.shared.u32 %r12, [%r11+" + std::to_string(at) +
         "];\n  shl.b32 %r13, %r4, 7;\n  add.u32 %r13, %r13, %r10;\n  cvt.u64.u32 %rd10, %r13;\n"
         "  add.s64 %rd11, %rd3, %rd10;\n  st.global.u32 [%rd11], %r12;\n";
}

std::vector<uint32_t> iota(size_t n, uint32_t first) {
  std::vector<uint32_t> v(n);
  std::iota(v.begin(), v.end(), first);
  return v;
}

TEST_P(Orders, BulkCopyInAndOut) {
  Buffer<uint32_t> in(memory_, iota(32, 100)), out(memory_, 32, 0u);
  sim_test::run_ptx(bulk_kernel(R"(
  @!%p1 bra E;
  mbarrier.arrive.expect_tx.shared::cta.b64 %rd5, [%r2], 128;
  cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd2], 128, [%r2];
W: mbarrier.try_wait.shared::cta.b64 %p3, [%r2], %rd5;
  @!%p3 bra W;
  cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%r1], 64;
  cp.async.bulk.commit_group;
  cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd3+64], [%r1], 64;
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group.read 1;
  cp.async.bulk.wait_group 0;
E:
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, shape(32));
  std::vector<uint32_t> expected = iota(16, 100);
  for (uint32_t i = 0; i < 16; ++i) expected.push_back(100 + i);
  EXPECT_EQ(out.values(), expected);
}

TEST_P(Orders, MulticastReachesEveryBlockOfTheMask) {
  Buffer<uint32_t> in(memory_, iota(64, 500)), out(memory_, 64, 0u);
  Shape s = shape(32);
  s.grid = s.cluster = {2, 1, 1};
  // Block r multicasts half r to both; each waits for both halves and stores words 16..47.
  sim_test::run_ptx(bulk_kernel(R"(
  @!%p1 bra W;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
  shl.b32 %r5, %r4, 7;
  cvt.u64.u32 %rd5, %r5;
  add.s64 %rd5, %rd2, %rd5;
  add.u32 %r6, %r1, %r5;
  mov.u16 %h1, 3;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r6], [%rd5], 128, [%r2], %h1;
)" + wait("%r2", "0", "W") + store_words(64) +
                                R"(
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, s);
  std::vector<uint32_t> expected = iota(32, 516);
  const std::vector<uint32_t> again = expected;
  expected.insert(expected.end(), again.begin(), again.end());
  EXPECT_EQ(out.values(), expected);
}

TEST_P(Orders, CopyAndReduceIntoAnotherBlock) {
  Buffer<uint32_t> in(memory_, iota(32, 7)), out(memory_, 64, 0u);
  Shape s = shape(32);
  s.grid = s.cluster = {2, 1, 1};
  // Block 0 sends its words to block 1 and adds them once more.
  sim_test::run_ptx(bulk_kernel(R"(
  shl.b32 %r10, %r3, 2;
  cvt.u64.u32 %rd10, %r10;
  add.s64 %rd10, %rd2, %rd10;
  add.u32 %r11, %r1, %r10;
  ld.global.u32 %r12, [%rd10];
  st.shared.u32 [%r11], %r12;
  mov.u32 %r13, 0;
  st.shared.u32 [%r11+1024], %r13;
  fence.proxy.async;
  setp.eq.u32 %p4, %r4, 1;
  and.pred %p5, %p4, %p1;
  @%p5 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  @%p4 bra W;
  @!%p1 bra E;
  mapa.shared::cluster.u32 %r20, %r1, 1;
  mapa.shared::cluster.u32 %r21, %r2, 1;
  cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r20+512], [%r1], 128, [%r21];
  cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r20+1024], [%r1], 128, [%r21];
  bra E;
)" + wait("%r2", "0", "W") + R"(
  ld.shared.u32 %r14, [%r11+512];
  ld.shared.u32 %r15, [%r11+1024];
  add.u32 %r14, %r14, %r15;
  cvt.u64.u32 %rd11, %r10;
  add.s64 %rd11, %rd3, %rd11;
  st.global.u32 [%rd11], %r14;
E:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, s);
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], 2 * (7 + i));
}

TEST_P(Orders, CpAsyncGroupsAndZeroFill) {
  Buffer<uint32_t> in(memory_, iota(128, 1)), out(memory_, 32, 0u);
  sim_test::run_ptx(bulk_kernel(R"(
  shl.b32 %r10, %r3, 4;
  cvt.u64.u32 %rd10, %r10;
  add.s64 %rd10, %rd2, %rd10;
  add.u32 %r11, %r1, %r10;
  cp.async.cg.shared.global [%r11], [%rd10], 16;
  cp.async.commit_group;
  cp.async.ca.shared.global [%r11+1024], [%rd10], 8, 4;
  cp.async.commit_group;
  cp.async.wait_group 1;
  ld.shared.u32 %r12, [%r11+12];
  cp.async.wait_all;
  ld.shared.v2.u32 {%r13, %r14}, [%r11+1024];
  mad.lo.u32 %r12, %r13, 1000, %r12;
  mad.lo.u32 %r12, %r14, 100000, %r12;
  shl.b32 %r15, %r3, 2;
  cvt.u64.u32 %rd11, %r15;
  add.s64 %rd11, %rd3, %rd11;
  st.global.u32 [%rd11], %r12;
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, shape(32));
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], 4 * i + 4 + 1000 * (4 * i + 1));
}

TEST_P(Orders, CpAsyncArrivesAtAnMbarrier) {
  Buffer<uint32_t> in(memory_, iota(32, 40)), out(memory_, 32, 0u);
  sim_test::run_ptx(bulk_kernel(R"(
  shl.b32 %r10, %r3, 2;
  cvt.u64.u32 %rd10, %r10;
  add.s64 %rd12, %rd2, %rd10;
  add.u32 %r11, %r1, %r10;
  cp.async.ca.shared.global [%r11], [%rd12], 4;
  cp.async.mbarrier.arrive.shared::cta.b64 [%r2];
  bar.warp.sync 0xffffffff;
  @%p1 mbarrier.arrive.shared::cta.b64 _, [%r2];
)" + wait("%r2", "0", "W") + R"(
  xor.b32 %r12, %r10, 4;
  add.u32 %r12, %r1, %r12;
  ld.shared.u32 %r13, [%r12];
  add.s64 %rd11, %rd3, %rd10;
  st.global.u32 [%rd11], %r13;
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, shape(32));
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], 40 + (i ^ 1));
}

// ---- mbarriers ----------------------------------------------------------------------------------

TEST_P(Orders, MbarrierPhasesTurnARing) {
  // Warp 0 produces 20 values into two slots, warp 1 adds them up: full and empty barriers, parity waits.
  Buffer<uint32_t> in(memory_, 1, 0u), out(memory_, 1, 0u);
  sim_test::run_ptx(R"(
.visible .entry k(.param .u64 p_in, .param .u64 p_out)
{
  .shared .align 8 .b64 full[2];
  .shared .align 8 .b64 empty[2];
  .shared .align 16 .b32 slot[8];)" +
                        std::string(kRegisters) + R"(
  ld.param.u64 %rd3, [p_out];
  mov.u32 %r1, full;
  mov.u32 %r2, empty;
  mov.u32 %r5, slot;
  mov.u32 %r3, %tid.x;
  setp.eq.u32 %p1, %r3, 0;
  @!%p1 bra I;
  mbarrier.init.shared::cta.b64 [%r1], 32;
  mbarrier.init.shared::cta.b64 [%r1+8], 32;
  mbarrier.init.shared::cta.b64 [%r2], 1;
  mbarrier.init.shared::cta.b64 [%r2+8], 1;
I: bar.sync 0;
  mov.u32 %r6, 0;
  mov.u32 %r7, 0;
  setp.ge.u32 %p2, %r3, 32;
  @%p2 bra CONSUME;
PRODUCE:
  and.b32 %r8, %r6, 1;
  shr.u32 %r9, %r6, 1;
  and.b32 %r9, %r9, 1;
  xor.b32 %r10, %r9, 1;
  shl.b32 %r11, %r8, 3;
  add.u32 %r12, %r2, %r11;
)" + wait("%r12", "%r10", "W1") +
                        R"(
  shl.b32 %r13, %r8, 4;
  add.u32 %r13, %r5, %r13;
  @%p1 st.shared.u32 [%r13], %r6;
  add.u32 %r12, %r1, %r11;
  bar.warp.sync 0xffffffff;
  mbarrier.arrive.shared::cta.b64 _, [%r12];
  add.u32 %r6, %r6, 1;
  setp.lt.u32 %p3, %r6, 20;
  @%p3 bra PRODUCE;
  ret;
CONSUME:
  and.b32 %r8, %r6, 1;
  shr.u32 %r9, %r6, 1;
  and.b32 %r9, %r9, 1;
  shl.b32 %r11, %r8, 3;
  add.u32 %r12, %r1, %r11;
)" + wait("%r12", "%r9", "W2") +
                        R"(
  shl.b32 %r13, %r8, 4;
  add.u32 %r13, %r5, %r13;
  ld.shared.u32 %r14, [%r13];
  mad.lo.u32 %r7, %r7, 3, %r14;
  add.u32 %r12, %r2, %r11;
  bar.warp.sync 0xffffffff;
  setp.eq.u32 %p4, %r3, 32;
  @%p4 mbarrier.arrive.shared::cta.b64 _, [%r12];
  add.u32 %r6, %r6, 1;
  setp.lt.u32 %p3, %r6, 20;
  @%p3 bra CONSUME;
  @%p4 st.global.u32 [%rd3], %r7;
  ret;
}
)",
                    "k", Params().add(in.address()).add(out.address()), memory_, shape(64));
  uint32_t expected = 0;
  for (uint32_t i = 0; i < 20; ++i) expected = expected * 3 + i;
  EXPECT_EQ(out[0], expected);
}

TEST_P(Orders, MbarrierDropPendingCountAndTransactions) {
  Buffer<uint32_t> in(memory_, 1, 0u), out(memory_, 8, 0u);
  sim_test::run_ptx(bulk_kernel(R"(
  @!%p1 bra E;
  mbarrier.inval.shared::cta.b64 [%r2];
  mbarrier.init.shared::cta.b64 [%r2], 3;
  mbarrier.arrive.noComplete.shared::cta.b64 %rd5, [%r2], 2;
  mbarrier.pending_count.b64 %r10, %rd5;
  st.global.u32 [%rd3], %r10;
  mbarrier.arrive_drop.shared::cta.b64 %rd6, [%r2];
  mbarrier.pending_count.b64 %r10, %rd6;
  st.global.u32 [%rd3+4], %r10;
  mbarrier.test_wait.shared::cta.b64 %p3, [%r2], %rd6;
  selp.u32 %r10, 1, 0, %p3;
  st.global.u32 [%rd3+8], %r10;
  mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 48;
  mbarrier.arrive.shared::cta.b64 %rd5, [%r2], 2;
  mbarrier.test_wait.shared::cta.b64 %p3, [%r2], %rd5;
  selp.u32 %r10, 1, 0, %p3;
  st.global.u32 [%rd3+12], %r10;
  mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 48;
  mbarrier.test_wait.shared::cta.b64 %p3, [%r2], %rd5;
  selp.u32 %r10, 1, 0, %p3;
  st.global.u32 [%rd3+16], %r10;
  mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r2], 0;
  selp.u32 %r10, 1, 0, %p3;
  st.global.u32 [%rd3+20], %r10;
E:
)"),
                    "k", Params().add(in.address()).add(out.address()), memory_, shape(32));
  EXPECT_THAT(out.values(), testing::ElementsAre(3, 1, 1, 0, 1, 0, 0, 0));
}

// ---- tensor maps that the device rewrites --------------------------------------------------------

TEST_P(Orders, RewrittenTensorMap) {
  // Two groups of rows: the map is copied to shared memory, given the group's address and row count, published to the
  // block's slot, acquired, and used; then rewritten once the copy has completed.
  const uint32_t kWidth = 64;
  std::vector<uint16_t> rows(20 * kWidth);
  std::iota(rows.begin(), rows.end(), uint16_t{1});
  Buffer<uint16_t> source(memory_, rows);
  TensorMapFields fields = map_of(TensorElement::U16, {kWidth, 1}, {64, 8});
  fields.strides[0] = 2 * kWidth;
  fields.address = source.address();
  Buffer<Map> maps(memory_, std::vector<Map>{encoded(fields), Map{}});
  Buffer<uint16_t> out(memory_, 2 * 8 * kWidth, uint16_t{0xeeee});
  struct alignas(16) Group {
    uint64_t address;
    uint32_t rows, unused;
  };
  Buffer<Group> groups(memory_, std::vector<Group>{{source.address() + 3 * 2 * kWidth, 5, 0},
                                                   {source.address() + 9 * 2 * kWidth, 8, 0}});
  sim_test::run_ptx(R"(
.visible .entry k(.param .u64 p_maps, .param .u64 p_groups, .param .u64 p_out)
{
  .shared .align 1024 .b8 tile[1024];
  .shared .align 128 .b8 map[128];
  .shared .align 8 .b64 bar;)" +
                        std::string(kRegisters) + R"(
  ld.param.u64 %rd1, [p_maps];
  ld.param.u64 %rd2, [p_groups];
  ld.param.u64 %rd3, [p_out];
  mov.u32 %r1, tile;
  mov.u32 %r2, bar;
  mov.u32 %r5, map;
  mov.u32 %r3, %tid.x;
  setp.eq.u32 %p1, %r3, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  shl.b32 %r10, %r3, 2;
  cvt.u64.u32 %rd10, %r10;
  add.s64 %rd11, %rd1, %rd10;
  ld.global.u32 %r11, [%rd11];
  add.u32 %r12, %r5, %r10;
  st.shared.u32 [%r12], %r11;
  add.s64 %rd4, %rd1, 128;
  bar.sync 0;
  mov.u32 %r6, 0;
GROUP:
  fence.proxy.async.shared::cta;
  bar.warp.sync 0xffffffff;
  @!%p1 bra PUBLISH;
  ld.global.u64 %rd5, [%rd2];
  ld.global.u32 %r7, [%rd2+8];
  tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r5], %rd5;
  tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r5], 1, %r7;
  tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r5], 0, 128;
  tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r5], 1;
  tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r5], 0, 64;
  tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r5], 1, 1;
  tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r5], 1;
  tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%r5], 0;
  tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r5], 0;
  tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%r5], 0;
PUBLISH:
  bar.warp.sync 0xffffffff;
  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd4], [%r5], 128;
  fence.proxy.tensormap::generic.acquire.gpu [%rd4], 128;
  @!%p1 bra W;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
  mov.u32 %r20, 0;
  cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd4, {%r20, %r20}], [%r2];
)" + wait("%r2", "%r6", "W") +
                        R"(
  mov.u32 %r13, %r10;
COPY:
  add.u32 %r14, %r1, %r13;
  ld.shared.u32 %r15, [%r14];
  cvt.u64.u32 %rd12, %r13;
  add.s64 %rd12, %rd3, %rd12;
  st.global.u32 [%rd12], %r15;
  add.u32 %r13, %r13, 128;
  setp.lt.u32 %p2, %r13, 1024;
  @%p2 bra COPY;
  add.s64 %rd2, %rd2, 16;
  add.s64 %rd3, %rd3, 1024;
  add.u32 %r6, %r6, 1;
  setp.lt.u32 %p2, %r6, 2;
  @%p2 bra GROUP;
  ret;
}
)",
                    "k", Params().add(maps.address()).add(groups.address()).add(out.address()), memory_, shape(32));
  for (uint32_t g = 0; g < 2; ++g) {
    for (uint32_t r = 0; r < 8; ++r) {
      for (uint32_t c = 0; c < kWidth; ++c) {
        const uint16_t expected = r < (g == 0 ? 5u : 8u) ? rows[((g == 0 ? 3 : 9) + r) * kWidth + c] : 0;
        ASSERT_EQ(out[(g * 8 + r) * kWidth + c], expected) << g << " " << r << " " << c;
      }
    }
  }
}

// ---- wgmma --------------------------------------------------------------------------------------

struct MmaCase {
  const char* name;
  int n, k;               // k: of all operations together
  const char *d, *a, *b;  // types
  int swizzle = 128;      // bytes; 0: none
  bool transpose_a = false, transpose_b = false, registers_a = false;
  int scale_a = 1, scale_b = 1;
  bool accumulate = false;  // from what the registers held
};

void PrintTo(const MmaCase& c, std::ostream* out) { *out << c.name; }

int bits_of(const std::string& type) { return type == "tf32" ? 32 : type == "f16" || type == "bf16" ? 16 : 8; }

// A small value that every type has, and its bits.
uint32_t bits_for(const std::string& type, int value) {
  const float f = static_cast<float>(value);
  if (type == "tf32") return std::bit_cast<uint32_t>(f) | 0x155;  // the low bits must not count
  if (type == "bf16") return code_of(f, kBF16);
  if (type == "f16") return code_of(f, kF16);
  if (type == "s8" || type == "u8") return static_cast<uint32_t>(value) & 0xff;
  const FloatFormat& format = type == "e4m3" ? kE4M3 : kE5M2;
  const uint32_t code = code_of(value, format);
  EXPECT_EQ(value_of(code, format), value) << type;
  return code;
}

// PTX ISA 9.7.15.5.1.2: element (mn, k) of an operation's operand in one of the canonical layouts, whose repeating
// pattern starts at a 1024-byte boundary. The strides are chosen here.
struct Layout {
  int bits, swizzle, mn;
  bool transpose;
  int t() const { return 128 / bits; }
  int w() const { return swizzle == 0 ? 1 : swizzle / 16; }
  int operation_k() const { return 256 / bits; }
  // byte offsets
  int lbo() const {
    if (!transpose) return swizzle == 0 ? mn * 16 : 16;
    return swizzle == 0 ? mn / t() * 128 : operation_k() / 8 * 128 * w();
  }
  int sbo() const {
    if (!transpose) return 8 * 16 * w();
    return swizzle == 0 ? 128 : 8 * 16 * w();
  }
  int offset(int m, int k) const {
    const int bytes = bits / 8;
    int o;
    if (!transpose) {  // ((8,m),(T,2k)):((wT,SBO),(1,T or LBO))
      o = m % 8 * w() * 16 + m / 8 * sbo() + k % t() * bytes + k / t() * (swizzle == 0 ? lbo() : 16);
    } else {  // ((T,w,m),(8,k)):((1,T,LBO),(wT,SBO)); without a swizzle ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))
      o = m % t() * bytes + k % 8 * w() * 16;
      o += swizzle == 0 ? m / t() * sbo() + k / 8 * lbo() : m / t() % w() * 16 + m / t() / w() * lbo() + k / 8 * sbo();
    }
    const int line = o / 128 % 8, piece = o / 16 % 8;
    return (o & ~127) + 16 * (piece ^ (line & (w() - 1))) + o % 16;
  }
  int bytes() const {
    int most = 0;
    for (int m = 0; m < mn; ++m)
      for (int k = 0; k < operation_k(); ++k) most = std::max(most, offset(m, k) + bits / 8);
    return (most + 1023) / 1024 * 1024;
  }
  uint64_t descriptor() const {
    const uint64_t mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : swizzle == 32 ? 3 : 0;
    return mode << 62 | static_cast<uint64_t>(sbo() >> 4) << 32 | static_cast<uint64_t>(lbo() >> 4) << 16;
  }
};

class Mma : public testing::TestWithParam<MmaCase> {
 protected:
  sim::GlobalMemory memory_;
};
INSTANTIATE_TEST_SUITE_P(
    All, Mma,
    testing::Values(MmaCase{"bf16_n64", 64, 64, "f32", "bf16", "bf16"},
                    MmaCase{"bf16_n256", 256, 32, "f32", "bf16", "bf16"},
                    MmaCase{"bf16_n8", 8, 16, "f32", "bf16", "bf16"},
                    MmaCase{"bf16_n136", 136, 48, "f32", "bf16", "bf16"},
                    MmaCase{"bf16_n16_swizzle64", 16, 32, "f32", "bf16", "bf16", 64},
                    MmaCase{"bf16_n24_swizzle32", 24, 32, "f32", "bf16", "bf16", 32},
                    MmaCase{"bf16_n32_no_swizzle", 32, 32, "f32", "bf16", "bf16", 0},
                    MmaCase{"bf16_n128_transposed_b", 128, 32, "f32", "bf16", "bf16", 128, false, true},
                    MmaCase{"bf16_n64_transposed_both", 64, 32, "f32", "bf16", "bf16", 128, true, true},
                    MmaCase{"bf16_n64_transposed_64", 64, 32, "f32", "bf16", "bf16", 64, true, true},
                    MmaCase{"bf16_n64_transposed_32", 64, 32, "f32", "bf16", "bf16", 32, true, true},
                    MmaCase{"bf16_n64_transposed_no_swizzle", 64, 32, "f32", "bf16", "bf16", 0, true, true},
                    MmaCase{"bf16_n40_registers", 40, 32, "f32", "bf16", "bf16", 128, false, false, true},
                    MmaCase{"bf16_n48_negated", 48, 32, "f32", "bf16", "bf16", 128, false, false, false, -1, 1, true},
                    MmaCase{"f16_n72_registers_negated", 72, 32, "f32", "f16", "f16", 128, false, false, true, -1, -1},
                    MmaCase{"f16_n80", 80, 32, "f32", "f16", "f16", 128, false, false, false, 1, -1, true},
                    MmaCase{"f16_n64_half", 64, 32, "f16", "f16", "f16", 128, false, true, false, 1, 1, true},
                    MmaCase{"tf32_n32", 32, 16, "f32", "tf32", "tf32"},
                    MmaCase{"tf32_n32_registers", 32, 16, "f32", "tf32", "tf32", 32, false, false, true},
                    MmaCase{"e4m3_e5m2_n128", 128, 32, "f32", "e4m3", "e5m2"},
                    MmaCase{"e4m3_e5m2_n96", 96, 64, "f32", "e4m3", "e5m2"},
                    MmaCase{"e5m2_n16_half_registers", 16, 32, "f16", "e5m2", "e4m3", 64, false, false, true},
                    MmaCase{"s8_u8_n48", 48, 64, "s32", "s8", "u8", 128, false, false, false, 1, 1, true},
                    MmaCase{"u8_n24_registers", 24, 32, "s32", "u8", "s8", 0, false, false, true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(Mma, EqualsDirectComputation) {
  const MmaCase c = GetParam();
  const bool integer = std::string(c.d) == "s32", half = std::string(c.d) == "f16";
  const int bits = bits_of(c.a), step = 256 / bits, steps = c.k / step;
  const Layout la{bits, c.swizzle, 64, c.transpose_a}, lb{bits, c.swizzle, c.n, c.transpose_b};
  std::mt19937 rng(static_cast<unsigned>(c.n * 31 + c.k));
  const auto value_for = [&](const std::string& type) {
    const int v = static_cast<int>(rng() % 7) - 3;
    return type == "u8" ? v + 3 : v;
  };
  std::vector<int> a(static_cast<size_t>(64 * c.k)), b(static_cast<size_t>(c.n * c.k)),
      d0(static_cast<size_t>(64 * c.n));
  for (int& v : a) v = value_for(c.a);
  for (int& v : b) v = value_for(c.b);
  for (int& v : d0) v = static_cast<int>(rng() % 9) - 4;
  // Shared memory: the operand of each operation in its own 1024-byte aligned piece, all of A, then all of B.
  const int a_bytes = la.bytes(), b_bytes = lb.bytes(), total = steps * (a_bytes + b_bytes);
  std::vector<uint8_t> image(static_cast<size_t>(total));
  const auto put = [&](int base, const Layout& layout, int mn, int k, uint32_t value) {
    std::memcpy(image.data() + base + layout.offset(mn, k), &value, static_cast<size_t>(bits / 8));
  };
  for (int s = 0; s < steps; ++s) {
    for (int k = 0; k < step; ++k) {
      for (int m = 0; m < 64; ++m)
        put(s * a_bytes, la, m, k, bits_for(c.a, a[static_cast<size_t>(m * c.k + s * step + k)]));
      for (int n = 0; n < c.n; ++n)
        put(steps * a_bytes + s * b_bytes, lb, n, k, bits_for(c.b, b[static_cast<size_t>(n * c.k + s * step + k)]));
    }
  }
  // Register fragments of A, and accumulators before and after: [register][thread].
  const int registers = half ? c.n / 4 : c.n / 2, per = 32 / bits;
  std::vector<uint32_t> fragments(static_cast<size_t>(steps * 4 * 128));
  for (int s = 0; s < steps; ++s) {
    for (int i = 0; i < 4; ++i) {
      for (int t = 0; t < 128; ++t) {
        uint32_t word = 0;
        for (int x = 0; x < per; ++x) {
          const int row = t / 32 * 16 + t % 32 / 4 + 8 * (i % 2);
          const int k = s * step + i / 2 * (step / 2) + t % 4 * per + x;
          word |= bits_for(c.a, a[static_cast<size_t>(row * c.k + k)]) << (bits * x % 32);
        }
        fragments[static_cast<size_t>((s * 4 + i) * 128 + t)] = word;
      }
    }
  }
  const auto pack = [&](const std::vector<int>& d) {
    std::vector<uint32_t> words(static_cast<size_t>(registers * 128));
    for (int i = 0; i < c.n / 2; ++i) {
      for (int t = 0; t < 128; ++t) {
        const int row = t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2), column = i / 4 * 8 + t % 4 * 2 + i % 2;
        const int v = d[static_cast<size_t>(row * c.n + column)];
        if (half) {
          words[static_cast<size_t>(i / 2 * 128 + t)] |= code_of(v, kF16) << (16 * (i % 2));
        } else {
          words[static_cast<size_t>(i * 128 + t)] =
              integer ? static_cast<uint32_t>(v) : std::bit_cast<uint32_t>(static_cast<float>(v) + 0.0f);
        }
      }
    }
    return words;
  };
  std::vector<int> expected(d0.size());
  for (int m = 0; m < 64; ++m) {
    for (int n = 0; n < c.n; ++n) {
      int sum = c.accumulate ? d0[static_cast<size_t>(m * c.n + n)] : 0;
      for (int k = 0; k < c.k; ++k)
        sum += c.scale_a * c.scale_b * a[static_cast<size_t>(m * c.k + k)] * b[static_cast<size_t>(n * c.k + k)];
      expected[static_cast<size_t>(m * c.n + n)] = sum;
    }
  }
  Buffer<uint8_t> shared(memory_, image);
  Buffer<uint32_t> a_registers(memory_, fragments), before(memory_, pack(d0));

  std::string text = R"(
.extern .shared .align 1024 .b8 operands[];
.visible .entry k(.param .u64 p_image, .param .u64 p_a, .param .u64 p_before, .param .u64 p_out)
{
  .reg .b32 %d<132>; .reg .b32 %a<64>;)" +
                     std::string(kRegisters) + R"(
  ld.param.u64 %rd1, [p_image];
  ld.param.u64 %rd2, [p_a];
  ld.param.u64 %rd3, [p_before];
  ld.param.u64 %rd4, [p_out];
  mov.u32 %r1, operands;
  mov.u32 %r3, %tid.x;
  shl.b32 %r10, %r3, 2;
  cvt.u64.u32 %rd10, %r10;
  add.s64 %rd1, %rd1, %rd10;
  add.s64 %rd2, %rd2, %rd10;
  add.s64 %rd3, %rd3, %rd10;
  add.s64 %rd4, %rd4, %rd10;
COPY:
  ld.global.u32 %r11, [%rd1];
  add.u32 %r12, %r1, %r10;
  st.shared.u32 [%r12], %r11;
  add.u32 %r10, %r10, 512;
  add.s64 %rd1, %rd1, 512;
  setp.lt.u32 %p1, %r10, )" +
                     std::to_string(total) + R"(;
  @%p1 bra COPY;
  fence.proxy.async;
  bar.sync 0;
  cvt.u64.u32 %rd5, %r1;
  shr.u64 %rd5, %rd5, 4;
)";
  for (int i = 0; i < registers; ++i)
    text += "  ld.global.u32 %d" + std::to_string(i) + ", [%rd3+" + std::to_string(512 * i) + "];\n";
  for (int i = 0; c.registers_a && i < 4 * steps; ++i)
    text += "  ld.global.u32 %a" + std::to_string(i) + ", [%rd2+" + std::to_string(512 * i) + "];\n";
  text += "  wgmma.fence.sync.aligned;\n";
  const auto vector = [](const char* name, int first, int count) {
    std::string v = "{";
    for (int i = 0; i < count; ++i) v += (i ? ", " : "") + (name + std::to_string(first + i));
    return v + "}";
  };
  text += c.accumulate ? "  setp.eq.u32 %p2, 0, 0;\n" : "  setp.ne.u32 %p2, 0, 0;\n";
  for (int s = 0; s < steps; ++s) {
    text += "  add.s64 %rd6, %rd5, " +
            std::to_string(static_cast<int64_t>(la.descriptor() + static_cast<uint64_t>(s * a_bytes >> 4))) + ";\n";
    text += "  add.s64 %rd7, %rd5, " +
            std::to_string(
                static_cast<int64_t>(lb.descriptor() + static_cast<uint64_t>((steps * a_bytes + s * b_bytes) >> 4))) +
            ";\n";
    text += "  wgmma.mma_async.sync.aligned.m64n" + std::to_string(c.n) + "k" + std::to_string(step) + "." + c.d + "." +
            c.a + "." + c.b + " " + vector("%d", 0, registers) + ", " +
            (c.registers_a ? vector("%a", 4 * s, 4) : std::string("%rd6")) + ", %rd7, " + (s == 0 ? "%p2" : "1");
    if (!integer) text += ", " + std::to_string(c.scale_a) + ", " + std::to_string(c.scale_b);
    if (bits == 16 && !c.registers_a) text += c.transpose_a ? ", 1" : ", 0";
    if (bits == 16) text += c.transpose_b ? ", 1" : ", 0";
    text += ";\n";
  }
  text += "  wgmma.commit_group.sync.aligned;\n  wgmma.wait_group.sync.aligned 0;\n";
  for (int i = 0; i < registers; ++i)
    text += "  st.global.u32 [%rd4+" + std::to_string(512 * i) + "], %d" + std::to_string(i) + ";\n";
  text += "  ret;\n}\n";

  const std::vector<uint32_t> wanted = pack(expected);
  for (const sim::Order& order : sim_test::all_orders()) {
    Buffer<uint32_t> out(memory_, wanted.size(), 0xeeeeeeeeu);
    Shape shape;
    shape.block = {128, 1, 1};
    shape.dynamic_shared = static_cast<uint32_t>(total);
    shape.order = order;
    sim_test::run_ptx(
        text, "k", Params().add(shared.address()).add(a_registers.address()).add(before.address()).add(out.address()),
        memory_, shape);
    // -0 and 0 are one value.
    std::vector<uint32_t> got = out.values();
    if (!integer) {
      for (uint32_t& word : got) {
        if (word == 0x80000000u && !half) word = 0;
        if (half && (word & 0xffff) == 0x8000) word &= 0xffff0000;
        if (half && word >> 16 == 0x8000) word &= 0xffff;
      }
    }
    EXPECT_EQ(got, wanted);
  }
}

TEST(Product, IsTheSameOnEveryHost) {
  // Values whose sums are inexact: any other order or rounding would show.
  std::mt19937 rng(5);
  const auto values = [&](int64_t n) {
    std::vector<float> v(static_cast<size_t>(n) + 16);
    for (float& x : v) x = sim::bf16_to_f32(static_cast<uint16_t>((rng() & 0x80ff) | 0x3f00));
    return v;
  };
  // The first element on a 64-byte boundary.
  const auto aligned = [](std::vector<float>& v) {
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(v.data()) + 63) & ~uintptr_t{63});
  };
  const int n = 88, depth = 37;
  std::vector<float> a = values(sim::a_panel_floats(depth)), b = values(sim::b_panel_floats(depth, n));
  const std::vector<float> start = values(n / 2 * 32);
  for (const bool fresh : {false, true}) {
    std::vector<std::vector<float>> results;
    for (const sim::Vectors vectors : {sim::Vectors::None, sim::Vectors::Avx2, sim::Vectors::Avx512}) {
      std::vector<float> storage = start;
      float* const sums = aligned(storage);
      std::copy(start.begin(), start.begin() + n / 2 * 32, sums);
      std::vector<float*> rows;
      for (int i = 0; i < n / 2; ++i) rows.push_back(sums + 32 * i);
      if (!sim::multiply_by(vectors, rows.data(), n, aligned(a), aligned(b), depth, fresh)) continue;
      results.emplace_back(sums, sums + n / 2 * 32);
    }
    // Element (row 0, column 3) of warp 0: register 1, lane 1.
    float expected = fresh ? 0.0f : start[32 + 1];
    for (int k = 0; k < depth; ++k)
      expected =
          std::fma(sim::a_panel(aligned(a), depth, 0, k, 0)[1], sim::b_panel(aligned(b), depth, 0, k)[4 + 1], expected);
    for (const std::vector<float>& result : results) {
      EXPECT_EQ(result, results[0]);
      EXPECT_EQ(result[32 + 1], expected);
    }
  }
}

TEST(Product, PacksTheSameOnEveryHost) {
  using sim::Element;
  std::mt19937 rng(6);
  alignas(64) float a[2][16 * 2 * sim::kPanelRow], b[2][16 * 8];
  for (const Element element :
       {Element::F16, Element::BF16, Element::TF32, Element::E4M3, Element::E5M2, Element::S8, Element::U8}) {
    // All codes of eight bits in 256 rounds, all of sixteen but for a few in 8192; infinities and NaNs are among them.
    const int bytes = sim::element_bytes(element), count = 16 / bytes;
    for (int round = 0; round < (bytes == 1 ? 256 : 8192); ++round) {
      uint8_t data[8][16];
      for (int i = 0; i < 128; ++i) data[i / 16][i % 16] = static_cast<uint8_t>(bytes == 1 ? i + round : rng());
      sim::Pieces pieces;
      for (int i = 0; i < 8; ++i) pieces.at[i] = data[i];
      pieces.element = element;
      pieces.across = bytes == 2 && round % 2 != 0;
      pieces.flip = round % 3 == 0 ? 0x80000000u : 0;
      std::memset(a, 0, sizeof a);
      std::memset(b, 0, sizeof b);
      sim::pack_a_by(sim::Vectors::None, pieces, a[0], 16, 0, 0, 0);
      sim::pack_b_by(sim::Vectors::None, pieces, b[0], 16, 0, 0);
      for (int k = 0; k < count; ++k) {  // one element where the panel has it: row 5, column 5
        const uint8_t* const at = pieces.across ? data[k] + 5 * bytes : data[5] + k * bytes;
        ASSERT_EQ(std::memcmp(&a[0][k * 2 * sim::kPanelRow + 21], &b[0][k * 8 + 6], 4), 0);
        if (element == Element::S8) {
          ASSERT_EQ(b[0][k * 8 + 6], (round % 3 ? 1 : -1) * static_cast<int8_t>(*at));
        }
      }
      if (!sim::pack_a_by(sim::Vectors::Avx2, pieces, a[1], 16, 0, 0, 0)) GTEST_SKIP() << "this host has no AVX2";
      sim::pack_b_by(sim::Vectors::Avx2, pieces, b[1], 16, 0, 0);
      // A signalling NaN may have become a quiet one, as in the first product it would.
      const auto same = [](const float* x, const float* y, size_t n) {
        for (size_t i = 0; i < n; ++i) {
          const uint32_t p = std::bit_cast<uint32_t>(x[i]), q = std::bit_cast<uint32_t>(y[i]);
          if (p != q && !(std::isnan(x[i]) && (p | 0x400000) == (q | 0x400000))) return false;
        }
        return true;
      };
      ASSERT_TRUE(same(a[0], a[1], std::size(a[0]))) << "element " << static_cast<int>(element) << " round " << round;
      ASSERT_TRUE(same(b[0], b[1], std::size(b[0]))) << "element " << static_cast<int>(element) << " round " << round;
    }
  }
}

}  // namespace
