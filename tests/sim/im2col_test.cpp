// SPDX-License-Identifier: Apache-2.0
// Tensor copies in im2col mode (PTX ISA 5.5.4) against the places that a convolution visits, and what they refuse.
#include <gmock/gmock.h>

#include <array>
#include <random>

#include "sim/memory/tensor_map.h"
#include "tests/sim/async.h"

namespace {

using namespace sim_test;
using sim::TensorMapFields;

// A convolution over N, D, H and W whose filter has its corner at `lower` first. Its output has out[i] places along W,
// H and D, `step` apart; the filter's tap is `tap` from its corner.
struct Convolution {
  int rank;
  std::array<int, 3> size, padding, filter, step;
  int images, channels, first_channel, load_channels, pixels, first_output;
  std::array<int, 3> tap;
  sim::TensorSwizzle swizzle = sim::TensorSwizzle::None;
};

int outputs(const Convolution& c, int i) {
  return i >= c.rank - 2 ? 1 : (c.size[i] + 2 * c.padding[i] - c.filter[i]) / c.step[i] + 1;
}
int extent(const Convolution& c, int i) { return i >= c.rank - 2 ? 1 : c.size[i]; }

const Convolution kConvolutions[] = {
    {3, {20, 1, 1}, {1, 0, 0}, {3, 1, 1}, {1, 1, 1}, 3, 16, 0, 8, 50, 0, {0, 0, 0}},
    {3, {20, 1, 1}, {0, 0, 0}, {3, 1, 1}, {2, 1, 1}, 3, 16, 8, 8, 40, 5, {2, 0, 0}},
    {4, {9, 7, 1}, {1, 1, 0}, {3, 3, 1}, {1, 1, 1}, 4, 64, 0, 64, 130, 11, {2, 1, 0}, sim::TensorSwizzle::Bytes128},
    {4, {9, 8, 1}, {0, 0, 0}, {3, 3, 1}, {1, 1, 1}, 2, 24, 16, 16, 64, 40, {1, 2, 0}},
    {4, {11, 8, 1}, {2, 1, 0}, {5, 3, 1}, {3, 2, 1}, 3, 32, 0, 32, 36, 4, {4, 2, 0}, sim::TensorSwizzle::Bytes64},
    {5, {5, 4, 6}, {1, 1, 1}, {3, 3, 3}, {1, 1, 1}, 2, 8, 0, 8, 200, 17, {2, 0, 1}},
    {5, {6, 5, 4}, {0, 1, 0}, {2, 3, 2}, {2, 1, 2}, 2, 16, 0, 16, 70, 3, {1, 2, 1}, sim::TensorSwizzle::Bytes32},
};

uint32_t swizzled(sim::TensorSwizzle swizzle, uint32_t address) {
  const uint32_t lines = (1u << static_cast<int>(swizzle)) - 1;
  return address ^ (address / 128 % 8 & lines) * 16;
}

std::string list(const char* kind, int first, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i ? ", %" : "{%") + std::string(kind) + std::to_string(first + i);
  return text + "}";
}

TensorMapFields map_of(const Convolution& c) {
  TensorMapFields m;
  m.mode = sim::TensorMode::Im2col;
  m.element = sim::TensorElement::U16;
  m.rank = static_cast<uint32_t>(c.rank);
  m.dims[0] = static_cast<uint64_t>(c.channels);
  uint64_t stride = 2 * m.dims[0];
  for (int i = 0; i + 2 < c.rank; ++i) {
    m.dims[static_cast<size_t>(i) + 1] = static_cast<uint64_t>(c.size[i]);
    m.strides[static_cast<size_t>(i)] = stride;
    stride *= static_cast<uint64_t>(c.size[i]);
    m.element_strides[static_cast<size_t>(i) + 1] = static_cast<uint32_t>(c.step[i]);
    m.im2col.lower[static_cast<size_t>(i)] = -c.padding[i];
    m.im2col.upper[static_cast<size_t>(i)] = c.padding[i] - (c.filter[i] - 1);
  }
  m.dims[m.rank - 1] = static_cast<uint64_t>(c.images);
  m.strides[m.rank - 2] = stride;
  m.im2col.channels = static_cast<uint32_t>(c.load_channels);
  m.im2col.pixels = static_cast<uint32_t>(c.pixels);
  m.swizzle = c.swizzle;
  return m;
}

// Where output `number` of the convolution has its filter's corner: W, H, D and N.
std::array<int, 4> corner(const Convolution& c, int number) {
  std::array<int, 4> at{};
  for (int i = 0; i < 3; ++i) {
    at[static_cast<size_t>(i)] = number % outputs(c, i) * c.step[i] - c.padding[i];
    number /= outputs(c, i);
  }
  at[3] = number;
  return at;
}
// The first element of a pixel in the tensor, or -1 outside it.
int64_t pixel(const Convolution& c, const std::array<int, 4>& at, const std::array<int, 3>& tap) {
  int64_t index = at[3];
  if (at[3] >= c.images) return -1;
  for (int i = 2; i >= 0; --i) {
    const int place = i < c.rank - 2 ? at[static_cast<size_t>(i)] + tap[static_cast<size_t>(i)] : 0;
    if (place < 0 || place >= extent(c, i)) return -1;
    index = index * extent(c, i) + place;
  }
  return index * c.channels;
}

// %r20... the coordinates of the first output, %h1... the tap.
std::string kernel(const Convolution& c, const std::string& body) {
  const std::array<int, 4> at = corner(c, c.first_output);
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
  bar.sync 0;
)";
  const auto set = [&](int r, int value) {
    text += "  mov.u32 %r" + std::to_string(r) + ", " + std::to_string(value) + ";\n";
  };
  set(20, c.first_channel);
  for (int i = 0; i + 2 < c.rank; ++i) {
    set(21 + i, at[static_cast<size_t>(i)]);
    text += "  mov.u16 %h" + std::to_string(1 + i) + ", " + std::to_string(c.tap[static_cast<size_t>(i)]) + ";\n";
  }
  set(20 + c.rank - 1, at[3]);
  return text + body + "  ret;\n}\n";
}

std::string each_word(const Convolution& c, const std::string& body) {
  return "  mov.u32 %r10, %r3;\nC1: setp.ge.u32 %p2, %r10, " + std::to_string(c.pixels * c.load_channels / 2) +
         ";\n @%p2 bra C2;\n  shl.b32 %r11, %r10, 2;\n  cvt.u64.u32 %rd10, %r11;\n  add.s64 %rd11, %rd2, %rd10;\n"
         "  add.u32 %r11, %r1, %r11;\n" +
         body + "  add.u32 %r10, %r10, 32;\n  bra C1;\nC2:\n";
}

std::string dimensions(const Convolution& c) { return std::to_string(c.rank) + "d"; }

size_t tensor_size(const Convolution& c) {
  return static_cast<size_t>(c.images * extent(c, 0) * extent(c, 1) * extent(c, 2) * c.channels);
}

template <class T>
std::vector<T> random_values(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<T> values(n);
  for (T& v : values) v = static_cast<T>(rng());
  return values;
}

class Im2col : public Orders {};
INSTANTIATE_TEST_SUITE_P(All, Im2col, testing::ValuesIn(all_orders()), testing::PrintToStringParamName());

TEST_P(Im2col, LoadsTheColumnsOfAConvolution) {
  for (const Convolution& c : kConvolutions) {
    for (const auto fill : {sim::TensorFill::Zero, sim::TensorFill::Nan}) {
      const std::vector<uint16_t> tensor = random_values<uint16_t>(tensor_size(c), 5);
      Buffer<uint16_t> source(memory_, tensor);
      Buffer<uint16_t> out(memory_, static_cast<size_t>(c.pixels * c.load_channels), uint16_t{0xeeee});
      TensorMapFields m = map_of(c);
      m.address = source.address();
      m.fill = fill;
      if (fill == sim::TensorFill::Nan) m.element = sim::TensorElement::F16;
      std::array<uint8_t, 128> map;
      sim::encode(m, map.data());
      const int bytes = c.pixels * c.load_channels * 2;
      const std::string load = "." + dimensions(c) +
                               ".shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], [%rd1, " +
                               list("r", 20, c.rank) + "], [%r2], " + list("h", 1, c.rank - 2) + ";\n";
      const std::string prefetch = "  @%p1 cp.async.bulk.prefetch.tensor." + dimensions(c) +
                                   ".L2.global.im2col [%rd1, " + list("r", 20, c.rank) + "], " +
                                   list("h", 1, c.rank - 2) + ";\n";
      const std::string text =
          kernel(c, prefetch + "  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], " + std::to_string(bytes) +
                        ";\n  @%p1 cp.async.bulk.tensor" + load + wait("%r2", "0", "W") +
                        each_word(c,
                                  "  ld.shared.u32 %r12, [%r11];\n  st.global.u32 [%rd11], "
                                  "%r12;\n"));
      run_ptx(text, "k", Params().add(map).add(out.address()), memory_, shape(32));
      for (int p = 0; p < c.pixels; ++p) {
        const int64_t from = pixel(c, corner(c, c.first_output + p), c.tap);
        for (int e = 0; e < c.load_channels; ++e) {
          const bool inside = from >= 0 && c.first_channel + e < c.channels;
          const uint16_t want = inside                         ? tensor[static_cast<size_t>(from + c.first_channel + e)]
                                : fill == sim::TensorFill::Nan ? uint16_t{0x7ff7}
                                                               : uint16_t{0};
          const uint32_t at = swizzled(c.swizzle, static_cast<uint32_t>((p * c.load_channels + e) * 2));
          ASSERT_EQ(out[at / 2], want) << dimensions(c) << " pixel " << p << " channel " << e;
        }
      }
    }
  }
}

TEST_P(Im2col, StoresAndAddsColumns) {
  for (Convolution c : kConvolutions) {
    // Stores have no offsets and stay inside the tensor.
    c.padding = c.tap = {0, 0, 0};
    for (const bool reduce : {false, true}) {
      const std::vector<uint32_t> before = random_values<uint32_t>(tensor_size(c), 6);
      const std::vector<uint32_t> data = random_values<uint32_t>(static_cast<size_t>(c.pixels * c.load_channels), 7);
      Buffer<uint32_t> tensor(memory_, before);
      Buffer<uint32_t> in(memory_, data);
      Convolution words = c;  // of twice as many bytes
      words.swizzle = sim::TensorSwizzle::None;
      TensorMapFields m = map_of(words);
      m.element = sim::TensorElement::U32;
      for (uint64_t& s : m.strides) s *= 2;
      m.address = tensor.address();
      std::array<uint8_t, 128> map;
      sim::encode(m, map.data());
      words.pixels *= 2;
      const std::string store = each_word(words, "  ld.global.u32 %r12, [%rd11];\n  st.shared.u32 [%r11], %r12;\n") +
                                "  fence.proxy.async.shared::cta;\n  bar.sync 0;\n  @%p1 cp." +
                                (reduce ? "reduce." : "") + "async.bulk.tensor." + dimensions(c) +
                                ".global.shared::cta" + (reduce ? ".add" : "") + ".im2col_no_offs.bulk_group [%rd1, " +
                                list("r", 20, c.rank) +
                                "], [%r1];\n  @%p1 cp.async.bulk.commit_group;\n"
                                "  @%p1 cp.async.bulk.wait_group 0;\n";
      run_ptx(kernel(c, store), "k", Params().add(map).add(in.address()), memory_, shape(32));
      std::vector<uint32_t> expected = before;
      for (int p = 0; p < c.pixels; ++p) {
        const int64_t to = pixel(c, corner(c, c.first_output + p), {0, 0, 0});
        for (int e = 0; to >= 0 && e < c.load_channels && c.first_channel + e < c.channels; ++e) {
          uint32_t& word = expected[static_cast<size_t>(to + c.first_channel + e)];
          word = (reduce ? word : 0) + data[static_cast<size_t>(p * c.load_channels + e)];
        }
      }
      EXPECT_EQ(tensor.values(), expected) << dimensions(c) << (reduce ? " add" : "");
    }
  }
}

TEST(Im2colRules, AreKept) {
  sim::GlobalMemory memory;
  const Convolution right = {4, {9, 7, 1}, {1, 1, 0}, {3, 3, 1}, {1, 1, 1}, 4, 64, 0, 64, 32, 0, {2, 1, 0}};
  Buffer<uint16_t> tensor(memory, tensor_size(right), uint16_t{1});
  const auto said = [&](const Convolution& c, const TensorMapFields& fields, const std::string& instruction) {
    TensorMapFields m = fields;
    m.address = tensor.address();
    std::array<uint8_t, 128> map;
    sim::encode(m, map.data());
    return fault_of(kernel(c, "  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 4096;\n  @%p1 " +
                                  instruction + ";\n" + wait("%r2", "0", "W")),
                    "k", Params().add(map).add(tensor.address()), memory, {});
  };
  const std::string load =
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r20, %r21, "
      "%r22, %r23}], [%r2], {%h1, %h2}";
  const std::string tiled =
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r20, %r21, %r22, "
      "%r23}], [%r2]";
  const std::string store =
      "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%rd1, {%r20, %r20, %r20, %r23}], [%r1]";
  EXPECT_EQ(said(right, map_of(right), load), "");
  TensorMapFields box = map_of(right);
  box.mode = sim::TensorMode::Tiled;
  EXPECT_THAT(said(right, box, load), testing::HasSubstr("an im2col copy with a tiled tensor map"));
  EXPECT_THAT(said(right, map_of(right), tiled), testing::HasSubstr("a tiled copy with an im2col tensor map"));
  EXPECT_THAT(said(right, map_of(right), store), testing::HasSubstr("a tensor store with a box of pixels that leaves"));
  Convolution wrong = right;
  wrong.tap[1] = 256;
  EXPECT_THAT(said(wrong, map_of(right), load),
              testing::HasSubstr("the im2col offset of H is 256; allowed are 0 to 255"));
  wrong = right;
  wrong.padding = {2, 1, 0};
  EXPECT_THAT(said(wrong, map_of(right), load),
              testing::HasSubstr("the filter is at -2 in W, outside the tensor map's box of pixels, -1 to 7"));
}

}  // namespace
