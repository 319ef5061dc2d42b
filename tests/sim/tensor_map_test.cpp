// SPDX-License-Identifier: Apache-2.0
// Tensor copies through maps of every type, rank and swizzle (PTX ISA 5.5, 9.7.9.25.5, 9.7.9.27) and every field of
// tensormap.replace (9.7.9.28), on random data against a direct computation from the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "run_ptx.h"
#include "sim/memory/tensor_map.h"

namespace {

using namespace sim_test;
using sim::TensorAtom;
using sim::TensorElement;
using sim::TensorMapFields;
using sim::TensorSwizzle;

std::mt19937& rng() {
  static std::mt19937 generator(7);
  return generator;
}
std::vector<uint8_t> random_bytes(size_t n) {
  std::vector<uint8_t> bytes(n);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(rng()());
  return bytes;
}

struct alignas(64) Map {
  uint8_t bytes[128];
};
Map encoded(const TensorMapFields& fields) {
  Map map;
  sim::encode(fields, map.bytes);
  return map;
}

constexpr const char* kElementNames[] = {"u8",       "u16",   "u32",       "s32",      "u64",  "s64",
                                         "f16",      "f32",   "f32.ftz",   "f64",      "bf16", "tf32",
                                         "tf32.ftz", "b4x16", "b4x16_p64", "b6x16_p32"};

// The layout of one line of eight 16-byte pieces (the tables of 5.5.7): which piece of the box stands at each place.
using Lines = std::vector<std::array<int, 8>>;
Lines lines_of(TensorSwizzle swizzle, TensorAtom atom) {
  if (swizzle == TensorSwizzle::None) return {{0, 1, 2, 3, 4, 5, 6, 7}};
  if (swizzle == TensorSwizzle::Bytes32) return {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}};
  if (swizzle == TensorSwizzle::Bytes64)
    return {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5}, {3, 2, 1, 0, 7, 6, 5, 4}};
  switch (atom) {
    case TensorAtom::Bytes16:
      return {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}, {2, 3, 0, 1, 6, 7, 4, 5}, {3, 2, 1, 0, 7, 6, 5, 4},
              {4, 5, 6, 7, 0, 1, 2, 3}, {5, 4, 7, 6, 1, 0, 3, 2}, {6, 7, 4, 5, 2, 3, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}};
    case TensorAtom::Bytes32:
    case TensorAtom::Bytes32Flip:
      return {{0, 1, 2, 3, 4, 5, 6, 7}, {2, 3, 0, 1, 6, 7, 4, 5}, {4, 5, 6, 7, 0, 1, 2, 3}, {6, 7, 4, 5, 2, 3, 0, 1}};
    case TensorAtom::Bytes64:
      return {{0, 1, 2, 3, 4, 5, 6, 7}, {4, 5, 6, 7, 0, 1, 2, 3}};
  }
  return {};
}

// Where byte `at` of the box stands in shared memory whose first line is a multiple of 1024.
uint32_t place_of(const TensorMapFields& map, uint32_t at) {
  const Lines lines = lines_of(map.swizzle, map.atom);
  const uint32_t line = at / 128, piece = at / 16 % 8;
  const auto& row = lines[line % lines.size()];
  const auto place = static_cast<uint32_t>(std::find(row.begin(), row.end(), static_cast<int>(piece)) - row.begin());
  uint32_t byte = at % 16;
  if (map.atom == TensorAtom::Bytes32Flip && line % 2 == 1) byte ^= 8;
  return line * 128 + place * 16 + byte;
}

struct Group {
  uint32_t elements, global_bytes, shared_bytes;
};
Group group_of(TensorElement e) {
  if (e == TensorElement::B4x16) return {2, 1, 1};
  if (e == TensorElement::B4x16Padded) return {16, 8, 16};
  if (e == TensorElement::B6x16Padded) return {16, 12, 16};
  static constexpr uint32_t kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4};
  const uint32_t bytes = kBytes[static_cast<int>(e)];
  return {1, bytes, bytes};
}

struct Case {
  TensorMapFields map;
  std::vector<int32_t> at;  // for case_of the first one counts pieces of 16 bytes (5.5.3.1), or 128 padded elements
};

// f(byte of the box, inside, byte of the tensor) for each group of elements that moves as one.
void each_group(const Case& c, const std::function<void(uint32_t, bool, int64_t)>& f) {
  const Group g = group_of(c.map.element);
  uint32_t count[5] = {1, 1, 1, 1, 1}, i[5], linear = 0;
  for (uint32_t d = 0; d < c.map.rank; ++d)
    count[d] =
        d == 0 ? c.map.box[0] / g.elements : (c.map.box[d] + c.map.element_strides[d] - 1) / c.map.element_strides[d];
  for (i[4] = 0; i[4] < count[4]; ++i[4])
    for (i[3] = 0; i[3] < count[3]; ++i[3])
      for (i[2] = 0; i[2] < count[2]; ++i[2])
        for (i[1] = 0; i[1] < count[1]; ++i[1])
          for (i[0] = 0; i[0] < count[0]; ++i[0], linear += g.shared_bytes) {
            bool inside = true;
            int64_t offset = 0;
            for (uint32_t d = 0; d < c.map.rank; ++d) {
              const int64_t x = c.at[d] + int64_t{i[d]} * (d == 0 ? g.elements : c.map.element_strides[d]);
              inside = inside && x >= 0 && x < static_cast<int64_t>(c.map.dims[d]);
              offset += d == 0 ? x / static_cast<int64_t>(g.elements) * g.global_bytes
                               : x * static_cast<int64_t>(c.map.strides[d - 1]);
            }
            f(linear, inside, offset);
          }
}

uint32_t box_bytes(const Case& c) {
  uint32_t bytes = 0;
  each_group(c, [&](uint32_t, bool, int64_t) { bytes += group_of(c.map.element).shared_bytes; });
  return bytes;
}
uint64_t tensor_bytes(const TensorMapFields& m) {
  return m.rank == 1 ? m.dims[0] / group_of(m.element).elements * group_of(m.element).global_bytes
                     : m.strides[m.rank - 2] * m.dims[m.rank - 1];
}

Case case_of(TensorElement element, uint32_t rank, TensorSwizzle swizzle, TensorAtom atom, std::vector<int32_t> at) {
  const Group g = group_of(element);
  Case c;
  c.map.element = element;
  c.map.rank = rank;
  c.map.swizzle = swizzle;
  c.map.atom = atom;
  const bool padded = sim::is_padded(element);
  const uint32_t width = swizzle == TensorSwizzle::None ? 64 : 16u << static_cast<int>(swizzle);
  static constexpr uint32_t kDims[] = {0, 7, 5, 4, 3}, kBox[] = {0, 5, 3, 2, 2};
  uint64_t stride = 0;
  for (uint32_t d = 0; d < rank; ++d) {
    c.map.box[d] = d == 0 ? (padded ? 128 : width / g.shared_bytes * g.elements) : kBox[d];
    c.map.dims[d] = d == 0 ? (padded ? 256 : c.map.box[0] + c.map.box[0] / 2 / g.elements * g.elements) : kDims[d];
    stride = d == 0 ? (c.map.dims[0] / g.elements * g.global_bytes + 31) / 32 * 32 : stride * kDims[d] + 32;
    if (d < 4) c.map.strides[d] = stride;
  }
  at.resize(rank);
  at[0] *= static_cast<int32_t>(padded ? 128 : 16 / g.global_bytes * g.elements);
  c.at = at;
  return c;
}

std::string coordinates(const std::vector<int32_t>& at) {
  std::string text = "{";
  for (size_t d = 0; d < at.size(); ++d) text += (d ? ", " : "") + std::to_string(at[d]);
  return text + "}";
}

// 128 threads; %s is the box in shared memory, %map the tensor map, %data global memory of %n bytes.
std::string kernel(const std::string& body) {
  return R"(
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .align 64 .b8 p_map[128], .param .u64 p_data, .param .u32 p_bytes) {
  .reg .b32 %s, %bar, %n, %me, %i, %x, %w;
  .reg .b64 %map, %data, %g, %state;
  .reg .pred %first, %p;
  mov.b64 %map, p_map;
  cvta.param.u64 %map, %map;
  ld.param.u64 %data, [p_data];
  ld.param.u32 %n, [p_bytes];
  mov.u32 %s, smem;
  add.u32 %bar, %s, 65536;
  mov.u32 %me, %tid.x;
  setp.eq.u32 %first, %me, 0;
  @%first mbarrier.init.shared::cta.b64 [%bar], 1;
  fence.mbarrier_init.release.cluster;
  bar.sync 0;
)" + body +
         "  ret;\n}\n";
}
std::string move(const std::string& statement) {
  return "  shl.b32 %i, %me, 2;\nMOVE:\n  setp.ge.u32 %p, %i, %n;\n  @%p bra MOVED;\n  add.u32 %x, %s, %i;\n"
         "  cvt.u64.u32 %g, %i;\n  add.u64 %g, %g, %data;\n" +
         statement + "  add.u32 %i, %i, 512;\n  bra MOVE;\nMOVED:\n";
}

// The nearest number with 10 bits behind the point of its mantissa; of two the even one.
float nearest_tf32(float f) {
  const double unit = std::ldexp(1.0, std::max(f == 0 ? -126 : std::ilogb(f), -126) - 10);
  return static_cast<float>(std::nearbyint(f / unit) * unit);
}

void check_load(const Case& given, int arch, const sim::Order& order) {
  Case c = given;
  sim::GlobalMemory memory;
  const std::vector<uint8_t> tensor = random_bytes(tensor_bytes(c.map));
  Buffer<uint8_t> source(memory, tensor);
  c.map.address = source.address();
  const uint32_t bytes = box_bytes(c);
  Buffer<uint8_t> out(memory, bytes, uint8_t{0xee});
  const std::string d = std::to_string(c.map.rank) + "d";
  const Group g = group_of(c.map.element);
  const std::string counted = std::to_string(bytes / g.shared_bytes * g.global_bytes);  // not the padding
  const std::string text =
      kernel("  @%first mbarrier.arrive.expect_tx.shared::cta.b64 %state, [%bar], " + counted +
             ";\n  @%first cp.async.bulk.tensor." + d +
             ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%s], [%map, " + coordinates(c.at) +
             "], [%bar];\nWAIT:\n  mbarrier.try_wait.parity.shared::cta.b64 %p, [%bar], 0;\n  @!%p bra WAIT;\n" +
             move("  ld.shared.b32 %w, [%x];\n  st.global.b32 [%g], %w;\n"));
  Shape shape;
  shape.arch = arch;
  shape.block = {128, 1, 1};
  shape.dynamic_shared = 65544;
  shape.order = order;
  run_ptx(text, "k", Params().add(encoded(c.map)).add(out.address()).add(bytes), memory, shape);
  const TensorElement element = c.map.element;
  const bool round = element == TensorElement::TF32 || element == TensorElement::TF32Ftz;
  int wrong = 0;
  each_group(c, [&](uint32_t to, bool inside, int64_t from) {
    std::vector<uint8_t> want(g.shared_bytes);
    if (inside) std::copy_n(tensor.begin() + from, g.global_bytes, want.begin());
    if (!inside && c.map.fill == sim::TensorFill::Nan)
      for (uint32_t i = 0; i < g.shared_bytes; ++i) want[i] = i % 2 == 1 ? 0x7f : 0xf7;
    if (inside && round) {
      float f;
      std::memcpy(&f, want.data(), 4);
      const uint32_t bits =
          std::isnan(f) ? 0x7fffe000 : std::bit_cast<uint32_t>(std::isfinite(f) ? nearest_tf32(f) : f);
      std::memcpy(want.data(), &bits, 4);
    }
    const uint32_t compared = inside ? g.global_bytes : g.shared_bytes;  // padding is not initialised
    for (uint32_t i = 0; i < compared; ++i) wrong += out[place_of(c.map, to + i)] != want[i];
  });
  EXPECT_EQ(wrong, 0) << "load of " << kElementNames[static_cast<int>(c.map.element)] << ", rank " << c.map.rank
                      << ", swizzle " << static_cast<int>(c.map.swizzle) << ", atom " << static_cast<int>(c.map.atom)
                      << ", at " << coordinates(c.at);
}

void check_store(const Case& given, int arch, const sim::Order& order) {
  Case c = given;
  sim::GlobalMemory memory;
  std::vector<uint8_t> want = random_bytes(tensor_bytes(c.map));
  Buffer<uint8_t> tensor(memory, want);
  c.map.address = tensor.address();
  const uint32_t bytes = box_bytes(c);
  Buffer<uint8_t> box(memory, random_bytes(bytes));
  const std::string d = std::to_string(c.map.rank) + "d";
  const std::string text = kernel(move("  ld.global.b32 %w, [%g];\n  st.shared.b32 [%x], %w;\n") +
                                  "  fence.proxy.async.shared::cta;\n  bar.sync 0;\n  @%first cp.async.bulk.tensor." +
                                  d + ".global.shared::cta.tile.bulk_group [%map, " + coordinates(c.at) +
                                  "], [%s];\n  cp.async.bulk.commit_group;\n  cp.async.bulk.wait_group 0;\n");
  Shape shape;
  shape.arch = arch;
  shape.block = {128, 1, 1};
  shape.dynamic_shared = 65544;
  shape.order = order;
  run_ptx(text, "k", Params().add(encoded(c.map)).add(box.address()).add(bytes), memory, shape);
  const Group g = group_of(c.map.element);
  each_group(c, [&](uint32_t from, bool inside, int64_t to) {
    if (!inside) return;
    std::vector<uint8_t> group(g.shared_bytes);
    for (uint32_t i = 0; i < g.shared_bytes; ++i) group[i] = box[place_of(c.map, from + i)];
    if (c.map.element == TensorElement::B6x16Padded) {  // b6p2x16: the low six bits of each byte, without gaps
      std::vector<uint8_t> packed(12);
      for (uint32_t bit = 0; bit < 96; ++bit)
        packed[bit / 8] |= static_cast<uint8_t>((group[bit / 6] >> bit % 6 & 1) << bit % 8);
      group = packed;
    }
    std::copy(group.begin(), group.end(), want.begin() + to);
  });
  EXPECT_EQ(tensor.values(), want) << "store of " << kElementNames[static_cast<int>(c.map.element)] << ", rank "
                                   << c.map.rank << ", swizzle " << static_cast<int>(c.map.swizzle) << ", atom "
                                   << static_cast<int>(c.map.atom) << ", at " << coordinates(c.at);
}

const std::vector<std::vector<int32_t>> kPlaces = {{1, 2, 1, 1, 0}, {0, 5, 3, 3, 2}, {-1, -2, -1, 0, -1}};

TEST(TensorMaps, EveryTypeRankAndSwizzle) {
  for (int e = 0; e <= static_cast<int>(TensorElement::TF32Ftz); ++e) {
    for (uint32_t rank = 1; rank <= 5; ++rank) {
      for (int swizzle = 0; swizzle < 4; ++swizzle) {
        const auto& order = all_orders()[static_cast<size_t>(e + swizzle) % 4];
        for (const auto& at : kPlaces) {
          Case c = case_of(static_cast<TensorElement>(e), rank, static_cast<TensorSwizzle>(swizzle),
                           TensorAtom::Bytes16, at);
          check_load(c, 90, order);
          if (at[0] >= 0) check_store(c, 90, order);
          if (!sim::is_float(c.map.element)) continue;
          c.map.fill = sim::TensorFill::Nan;
          check_load(c, 90, order);
        }
      }
    }
  }
}

TEST(TensorMaps, ElementStrides) {
  for (uint32_t rank = 2; rank <= 5; ++rank) {
    Case c = case_of(TensorElement::U32, rank, TensorSwizzle::Bytes128, TensorAtom::Bytes16, {1, 1, 0, 0, 0});
    c.map.element_strides = {1, 2, 3, 1, 2};
    check_load(c, 90, {});
    check_store(c, 90, {});
  }
}

// sm_100: atoms of 32 and 64 bytes, and types of 4 and 6 bits with and without padding.
TEST(TensorMaps, AtomsAndPackedTypes) {
  for (const int e : {0, 2, 4, 6, 10, 13, 14, 15}) {
    const auto element = static_cast<TensorElement>(e);
    for (const uint32_t rank : {1u, 2u, 3u, 4u, 5u}) {
      for (int mode = 0; mode < 7; ++mode) {
        const auto swizzle = mode < 3 ? static_cast<TensorSwizzle>(mode) : TensorSwizzle::Bytes128;
        const auto atom = mode < 4 ? TensorAtom::Bytes16 : static_cast<TensorAtom>(mode - 3);
        if (sim::is_padded(element) && (mode == 1 || mode == 2 || atom == TensorAtom::Bytes32Flip)) continue;
        for (const auto& at : kPlaces) {
          const Case c = case_of(element, rank, swizzle, atom, at);
          check_load(c, 100, all_orders()[static_cast<size_t>(mode) % 4]);
          if (at[0] >= 0 && element != TensorElement::B4x16Padded) check_store(c, 100, {});
        }
      }
    }
  }
}

std::string fault_of_load(const TensorMapFields& map, const std::vector<int32_t>& at) {
  sim::GlobalMemory memory;
  Buffer<uint8_t> source(memory, size_t{65536}, uint8_t{0}), out(memory, size_t{64}, uint8_t{0});
  TensorMapFields m = map;
  m.address += source.address();
  Shape shape;
  shape.arch = 100;
  shape.block = {128, 1, 1};
  shape.dynamic_shared = 65544;
  return fault_of(kernel("  @%first cp.async.bulk.tensor." + std::to_string(map.rank) +
                         "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%s], [%map, " + coordinates(at) +
                         "], [%bar];\n"),
                  "k", Params().add(encoded(m)).add(out.address()).add(uint32_t{64}), memory, shape);
}

TEST(TensorMaps, RulesOfPackedTypes) {
  const Case good = case_of(TensorElement::B6x16Padded, 2, TensorSwizzle::None, TensorAtom::Bytes16, {0, 0});
  const auto flawed = [&](const std::function<void(TensorMapFields&)>& bend, const char* why) {
    TensorMapFields m = good.map;
    bend(m);
    EXPECT_NE(fault_of_load(m, good.at).find(why), std::string::npos) << fault_of_load(m, good.at);
  };
  flawed([](TensorMapFields& m) { m.dims[0] = 64; }, "multiple of 128 elements");
  flawed([](TensorMapFields& m) { m.box[0] = 64; }, "must be 128 elements");
  flawed([](TensorMapFields& m) { m.address = 16; }, "multiple of 32");
  flawed([](TensorMapFields& m) { m.strides[0] += 16; }, "multiples of 32");
  flawed([](TensorMapFields& m) { m.swizzle = TensorSwizzle::Bytes64; }, "no swizzle but that of 128 bytes");
  flawed([](TensorMapFields& m) { m.fill = sim::TensorFill::Nan; }, "no NaN fill");
  EXPECT_NE(fault_of_load(good.map, {64, 0}).find("must be a multiple of 128"), std::string::npos);
  Case atom = case_of(TensorElement::U8, 2, TensorSwizzle::Bytes64, TensorAtom::Bytes32, {0, 0});
  EXPECT_NE(fault_of_load(atom.map, atom.at).find("need the 128-byte swizzle"), std::string::npos);
}

TEST(TensorMaps, ReductionsOfEveryRank) {
  struct Op {
    const char* name;
    uint32_t (*f)(uint32_t, uint32_t);
  };
  const Op ops[] = {{"add", [](uint32_t a, uint32_t b) { return a + b; }},
                    {"min", [](uint32_t a, uint32_t b) { return std::min(a, b); }},
                    {"max", [](uint32_t a, uint32_t b) { return std::max(a, b); }},
                    {"inc", [](uint32_t a, uint32_t b) { return a >= b ? 0 : a + 1; }},
                    {"dec", [](uint32_t a, uint32_t b) { return a == 0 || a > b ? b : a - 1; }},
                    {"and", [](uint32_t a, uint32_t b) { return a & b; }},
                    {"or", [](uint32_t a, uint32_t b) { return a | b; }},
                    {"xor", [](uint32_t a, uint32_t b) { return a ^ b; }}};
  for (const Op& op : ops) {
    for (uint32_t rank = 1; rank <= 5; ++rank) {
      Case c = case_of(TensorElement::U32, rank, TensorSwizzle::Bytes64, TensorAtom::Bytes16, {3, 4, 1, 2, 1});
      sim::GlobalMemory memory;
      std::vector<uint32_t> want(tensor_bytes(c.map) / 4);
      for (uint32_t& w : want) w = static_cast<uint32_t>(rng()());
      Buffer<uint32_t> tensor(memory, want);
      c.map.address = tensor.address();
      const uint32_t bytes = box_bytes(c);
      std::vector<uint32_t> values(bytes / 4);
      for (uint32_t& w : values) w = static_cast<uint32_t>(rng()());
      Buffer<uint32_t> box(memory, values);
      const std::string text =
          kernel(move("  ld.global.b32 %w, [%g];\n  st.shared.b32 [%x], %w;\n") +
                 "  fence.proxy.async.shared::cta;\n  bar.sync 0;\n  @%first cp.reduce.async.bulk.tensor." +
                 std::to_string(rank) + "d.global.shared::cta." + op.name + ".tile.bulk_group [%map, " +
                 coordinates(c.at) + "], [%s];\n  cp.async.bulk.commit_group;\n  cp.async.bulk.wait_group 0;\n");
      Shape shape;
      shape.block = {128, 1, 1};
      shape.dynamic_shared = 65544;
      shape.order = all_orders()[rank % 4];
      run_ptx(text, "k", Params().add(encoded(c.map)).add(box.address()).add(bytes), memory, shape);
      each_group(c, [&](uint32_t from, bool inside, int64_t to) {
        if (inside)
          want[static_cast<size_t>(to / 4)] =
              op.f(want[static_cast<size_t>(to / 4)], values[place_of(c.map, from) / 4]);
      });
      EXPECT_EQ(tensor.values(), want) << op.name << " of rank " << rank;
    }
  }
}

// The map as it is after each replacement, in shared and in global memory.
TEST(TensorMaps, ReplaceOfEveryField) {
  TensorMapFields start =
      case_of(TensorElement::U16, 4, TensorSwizzle::Bytes128, TensorAtom::Bytes16, {0, 0, 0, 0}).map;
  start.address = 0x10000;
  struct Change {
    const char *field, *operands;
    void (*f)(TensorMapFields&);
  };
  const Change changes[] = {
      {"global_address.SPACE.b1024.b64", "0x123450", [](TensorMapFields& m) { m.address = 0x123450; }},
      {"rank.SPACE.b1024.b32", "2", [](TensorMapFields& m) { m.rank = 3; }},
      {"box_dim.SPACE.b1024.b32", "0, 32", [](TensorMapFields& m) { m.box[0] = 32; }},
      {"box_dim.SPACE.b1024.b32", "3, 7", [](TensorMapFields& m) { m.box[3] = 7; }},
      {"global_dim.SPACE.b1024.b32", "1, 1000", [](TensorMapFields& m) { m.dims[1] = 1000; }},
      {"global_dim.SPACE.b1024.b32", "4, 9", [](TensorMapFields& m) { m.dims[4] = 9; }},
      {"global_stride.SPACE.b1024.b64", "0, 4096", [](TensorMapFields& m) { m.strides[0] = 4096; }},
      {"global_stride.SPACE.b1024.b64", "3, 0x100000000", [](TensorMapFields& m) { m.strides[3] = 0x100000000; }},
      {"element_stride.SPACE.b1024.b32", "2, 8", [](TensorMapFields& m) { m.element_strides[2] = 8; }},
      {"elemtype.SPACE.b1024.b32", "10", [](TensorMapFields& m) { m.element = TensorElement::BF16; }},
      {"elemtype.SPACE.b1024.b32", "15", [](TensorMapFields& m) { m.element = TensorElement::B6x16Padded; }},
      {"interleave_layout.SPACE.b1024.b32", "1",
       [](TensorMapFields& m) { m.interleave = sim::TensorInterleave::Bytes16; }},
      {"swizzle_mode.SPACE.b1024.b32", "2", [](TensorMapFields& m) { m.swizzle = TensorSwizzle::Bytes64; }},
      {"swizzle_atomicity.SPACE.b1024.b32", "1", [](TensorMapFields& m) { m.atom = TensorAtom::Bytes32; }},
      {"swizzle_atomicity.SPACE.b1024.b32", "3", [](TensorMapFields& m) { m.atom = TensorAtom::Bytes64; }},
      {"fill_mode.SPACE.b1024.b32", "1", [](TensorMapFields& m) { m.fill = sim::TensorFill::Nan; }}};
  for (const bool shared : {true, false}) {
    for (const Change& change : changes) {
      std::string field = change.field;
      field.replace(field.find("SPACE"), 5, shared ? "shared::cta" : "global");
      sim::GlobalMemory memory;
      const Map map = encoded(start);
      Buffer<uint8_t> data(memory, std::vector<uint8_t>(map.bytes, map.bytes + 128));
      const std::string replace = "  @%first tensormap.replace.tile." + field + " [" + (shared ? "%s" : "%data") +
                                  "], " + change.operands + ";\n  bar.sync 0;\n";
      const std::string text =
          shared
              ? kernel(
                    move("  ld.global.b32 %w, [%g];\n  st.shared.b32 [%x], %w;\n") + "  bar.sync 0;\n" + replace +
                    "  shl.b32 %i, %me, 2;\n  setp.ge.u32 %p, %i, 128;\n  add.u32 %x, %s, %i;\n  cvt.u64.u32 %g, %i;\n"
                    "  add.u64 %g, %g, %data;\n  @!%p ld.shared.b32 %w, [%x];\n  @!%p st.global.b32 [%g], %w;\n")
              : kernel(replace);
      Shape shape;
      shape.arch = 100;
      shape.block = {128, 1, 1};
      shape.dynamic_shared = 65544;
      run_ptx(text, "k", Params().add(map).add(data.address()).add(uint32_t{128}), memory, shape);
      const auto got = sim::decode(data.data());
      ASSERT_TRUE(got.has_value()) << field;
      TensorMapFields want = start;
      change.f(want);
      uint8_t got_bytes[128], want_bytes[128];
      sim::encode(*got, got_bytes);
      sim::encode(want, want_bytes);
      EXPECT_TRUE(std::equal(got_bytes, got_bytes + 128, want_bytes)) << field << " " << change.operands;
      EXPECT_FALSE(std::equal(got_bytes, got_bytes + 128, map.bytes)) << field << " " << change.operands;
    }
  }
}

}  // namespace
