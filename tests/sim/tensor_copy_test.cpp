// SPDX-License-Identifier: Apache-2.0
// Tensor copies of every rank and swizzle against direct computation, with out-of-bounds fill and reductions; tensor
// maps, also those that the device rewrites.
#include <gmock/gmock.h>

#include <numeric>
#include <random>

#include "sim/memory/tensor_map.h"
#include "tests/sim/async.h"
#include "tests/sim/formats.h"

namespace {

using namespace sim_test;
using sim::TensorElement;
using sim::TensorFill;
using sim::TensorMapFields;
using sim::TensorSwizzle;

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
  // Beside the copy each lane reads the coordinates.
  uint64_t read = c.at.size() * 4 * 32;
  each_element(c.map, c.at, 0, [&](size_t to, bool inside, int64_t from) {
    read += inside ? static_cast<uint64_t>(sim::bytes_of(c.map.element)) : 0;
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
    sim::Statistics statistics;
    shape.statistics = &statistics;
    sim_test::run_ptx(text, "k", Params().add(encoded(c.map)).add(out.address()), memory_, shape);
    EXPECT_EQ(statistics.bytes_read, read);
    EXPECT_EQ(statistics.bytes_written, (bytes + 3) / 4 * 4);
    const std::vector<uint8_t> result = out.values();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), result.begin() + 32));
  }
}

// Three rows of 32 bytes end in the middle of the 128 bytes that a swizzle permutes.
TEST(TensorLoad, LeavesTheBytesBehindItsBoxToOthers) {
  sim::GlobalMemory memory;
  TensorMapFields map = map_of(TensorElement::BF16, {64, 8}, {16, 3}, TensorSwizzle::Bytes32);
  Buffer<uint8_t> source(memory, tensor_bytes(map), uint8_t{1}), data(memory, size_t{32}, uint8_t{0});
  map.address = source.address();
  const auto said = [&](uint32_t offset, const sim::Order& order) {
    const std::string place = "[%r1+" + std::to_string(offset) + "]";
    Shape shape;
    shape.order = order;
    return sim_test::fault_of(
        tile_kernel(2, "  @!%p1 bra E;\n  st.shared.u32 " + place +
                           ", %r3;\n  fence.proxy.async.shared::cta;\n"
                           "  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 96;\n"
                           "  cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], "
                           "[%rd1, {%r20, %r21}], [%r2];\n  ld.shared.u32 %r12, " +
                           place + ";\n" + wait("%r2", "0", "W") + "E:\n"),
        "k", Params().add(encoded(map)).add(data.address()), memory, shape);
  };
  for (const sim::Order& order : sim_test::all_orders()) {
    EXPECT_EQ(said(96, order), "");
    EXPECT_THAT(said(92, order), testing::HasSubstr("offset 0x5c while a copy is writing it"));
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
  uint64_t written = 0;
  each_element(c.map, c.at, 0, [&](size_t from, bool inside, int64_t to) {
    if (!inside) return;
    written += static_cast<uint64_t>(sim::bytes_of(c.map.element));
    for (int b = 0; b < sim::bytes_of(c.map.element); ++b)
      expected[static_cast<size_t>(to + b)] = data[32 + from + static_cast<size_t>(b)];
  });
  for (const sim::Order& order : sim_test::all_orders()) {
    Buffer<uint8_t> tensor(memory_, before);
    Buffer<uint8_t> in(memory_, data);
    c.map.address = tensor.address();
    Shape shape;
    shape.order = order;
    sim::Statistics statistics;
    shape.statistics = &statistics;
    sim_test::run_ptx(text, "k", Params().add(encoded(c.map)).add(in.address()), memory_, shape);
    EXPECT_EQ(statistics.bytes_read, c.at.size() * 4 * 32 + (bytes + 3) / 4 * 4);
    EXPECT_EQ(statistics.bytes_written, written);
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

}  // namespace
