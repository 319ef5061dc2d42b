// SPDX-License-Identifier: Apache-2.0
// Tensor copies in the modes im2col::w and im2col::w::128 (PTX ISA 5.5.5) against the pixels that its words name, and
// what they refuse.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <random>

#include "sim/memory/tensor_map.h"
#include "tests/sim/async.h"

namespace {

using namespace sim_test;
using sim::TensorAtom;
using sim::TensorMapFields;
using sim::TensorSwizzle;

constexpr uint32_t kUntouched = 0xeeeeeeee;
constexpr uint32_t kRowsBehind = 8;  // of shared memory that no copy may touch

struct Load {
  int rank;
  std::array<int, 5> size, at;  // C, W, H, D, N; H and D are 1 and 0 where the tensor has none
  int lower, upper, stride;     // of W
  int channels, pixels;         // of a copy; 128 pixels in any case with `w128`
  uint32_t halo, offset;
  TensorSwizzle swizzle = TensorSwizzle::Bytes128;
  TensorAtom atom = TensorAtom::Bytes16;
  bool w128 = false;
};

const Load kLoads[] = {
    // Examples of 5.5.5.3 and 5.5.5.4, with fewer images.
    {4, {64, 7, 9, 1, 30}, {0, 3, 2, 0, 7}, 0, 0, 1, 64, 128, 2, 0},
    {4, {64, 67, 4, 1, 12}, {0, -1, 2, 0, 7}, -1, 0, 2, 64, 128, 1, 0},
    {4, {64, 67, 4, 1, 12}, {0, -1, 2, 0, 7}, -1, 0, 2, 64, 128, 0, 1},
    {4, {64, 7, 4, 1, 90}, {0, -1, 2, 0, 7}, -1, -1, 3, 64, 128, 0, 0},
    {4, {64, 7, 4, 1, 90}, {0, -1, 2, 0, 7}, -1, -1, 3, 64, 128, 0, 1},
    {4, {64, 7, 4, 1, 90}, {0, -1, 2, 0, 7}, -1, -1, 3, 64, 128, 0, 2},
    {4, {64, 7, 9, 1, 30}, {0, 3, 2, 0, 7}, 0, 0, 1, 64, 1, 0, 0, TensorSwizzle::Bytes128, TensorAtom::Bytes16, true},
    // Other ranks, swizzles and channels; images that end; a halo that begins another image.
    {3, {32, 20, 1, 1, 3}, {0, 4, 0, 0, 0}, -2, 1, 1, 32, 40, 3, 0, TensorSwizzle::Bytes64},
    {3, {24, 11, 1, 1, 2}, {8, 0, 0, 0, 1}, 0, -2, 1, 24, 9, 1, 2},
    {3, {16, 300, 1, 1, 2}, {0, 40, 0, 0, 0}, -5, 3, 1, 16, 3, 511, 31, TensorSwizzle::Bytes32},
    {4, {64, 9, 7, 1, 4}, {0, 7, 6, 0, 1}, 2, -1, 1, 64, 17, 7, 1, TensorSwizzle::Bytes128, TensorAtom::Bytes32},
    {4, {64, 9, 7, 1, 4}, {16, 1, 6, 0, 0}, -1, -3, 4, 40, 20, 5, 4, TensorSwizzle::Bytes128, TensorAtom::Bytes64},
    {5, {16, 5, 4, 6, 20}, {0, -1, 3, 5, 2}, -1, 0, 1, 16, 70, 2, 3, TensorSwizzle::Bytes64},
    {5, {32, 6, 5, 4, 5}, {0, 3, 0, 2, 1}, 0, 0, 2, 32, 8, 4, 0},
    {5, {32, 6, 5, 4, 700}, {0, 3, 0, 2, 1}, 0, 0, 2, 8, 1024, 0, 0, TensorSwizzle::Bytes32},
    {3, {32, 50, 1, 1, 2}, {0, 7, 0, 0, 0}, -1, 1, 1, 32, 9, 0, 5, TensorSwizzle::Bytes64, TensorAtom::Bytes16, true},
    {5, {16, 9, 3, 2, 40}, {0, -1, 2, 1, 1}, -1, 0, 2, 16, 9, 0, 1, TensorSwizzle::Bytes128, TensorAtom::Bytes32, true},
    // The first pixel lies left of the box.
    {4, {32, 9, 3, 1, 6}, {0, -4, 1, 0, 0}, 1, -1, 2, 32, 30, 1, 2, TensorSwizzle::Bytes64},
    // H, D and the image lie outside the tensor.
    {4, {32, 9, 3, 1, 6}, {0, 0, -1, 0, 0}, 0, 0, 1, 32, 12, 1, 0, TensorSwizzle::Bytes64},
    {5, {32, 9, 3, 2, 6}, {0, 0, 1, 2, 0}, 0, 0, 1, 32, 12, 1, 0, TensorSwizzle::Bytes64},
    {4, {32, 9, 3, 1, 6}, {0, 0, 1, 0, -1}, 0, 0, 1, 32, 12, 1, 0, TensorSwizzle::Bytes64},
};

int rows_of(const Load& l) { return (l.w128 ? 128 : l.pixels) + static_cast<int>(l.halo); }
uint32_t span_of(const Load& l) { return 16u << static_cast<int>(l.swizzle); }
uint32_t shared_of(const Load& l) { return (static_cast<uint32_t>(rows_of(l)) + kRowsBehind) * span_of(l); }

// The first element of pixel `p` in the tensor, or -1 outside it. The box, the first pixel and all others are `offset`
// to the right (5.5.5.4); W goes on by the stride to the end of the box, and then at its beginning in the next image,
// while H and D stay.
int64_t pixel(const Load& l, int p) {
  const int shift = static_cast<int>(l.offset);
  const int first = l.at[1] + shift, begin = l.lower + shift, last = l.size[1] - 1 + l.upper + shift;
  const int in_first_image = (last - first) / l.stride + 1, in_image = (last - begin) / l.stride + 1;
  const int behind = p - in_first_image;
  const int w = behind < 0 ? first + p * l.stride : begin + behind % in_image * l.stride;
  const int n = behind < 0 ? l.at[4] : l.at[4] + 1 + behind / in_image;
  int64_t index = 0;
  for (const auto& [place, size] :
       {std::pair{n, l.size[4]}, {l.at[3], l.size[3]}, {l.at[2], l.size[2]}, {w, l.size[1]}}) {
    if (place < 0 || place >= size) return -1;
    index = index * size + place;
  }
  return index * l.size[0];
}

// 5.5.7: where a byte of the unswizzled tile lies.
uint32_t swizzled(const Load& l, uint32_t address) {
  const uint32_t line = address / 128;
  if (l.atom == TensorAtom::Bytes32) return address ^ line % 4 * 32;
  if (l.atom == TensorAtom::Bytes64) return address ^ line % 2 * 64;
  return address ^ line % (span_of(l) / 16) * 16;
}

TensorMapFields map_of(const Load& l) {
  TensorMapFields m;
  m.mode = l.w128 ? sim::TensorMode::Im2colW128 : sim::TensorMode::Im2colW;
  m.element = sim::TensorElement::U16;
  m.rank = static_cast<uint32_t>(l.rank);
  uint64_t stride = 2;
  for (int i = 0; i < 5; ++i) {
    const auto d = static_cast<size_t>(i == 4 ? l.rank - 1 : i);
    if (i > 0 && (i == 4 || i < l.rank - 1)) m.strides[d - 1] = stride;
    if (i == 4 || i < l.rank - 1) m.dims[d] = static_cast<uint64_t>(l.size[static_cast<size_t>(i)]);
    stride *= static_cast<uint64_t>(l.size[static_cast<size_t>(i)]);
  }
  // That of W alone counts (5.5.5.2).
  m.element_strides = {1, 5, 5, 5, 5};
  m.element_strides[1] = static_cast<uint32_t>(l.stride);
  m.im2col.lower[0] = l.lower;
  m.im2col.upper[0] = l.upper;
  m.im2col.channels = static_cast<uint32_t>(l.channels);
  m.im2col.pixels = static_cast<uint32_t>(l.pixels);
  m.swizzle = l.swizzle;
  m.atom = l.atom;
  return m;
}

std::string coordinates(const Load& l) {
  std::string text;
  for (int i = 0; i < 5; ++i) {
    if (i == 4 || i < l.rank - 1) text += (i > 0 ? ", " : "{") + std::to_string(l.at[static_cast<size_t>(i)]);
  }
  return text + "}";
}

// Who loads, and whose mbarrier counts.
enum class Form { One, Multicast, PairMulticast };

// Fills shared memory, performs `issue` and writes shared memory out. %r1 the tile, %r2 the mbarrier, %r4 the rank, %p1
// lane 0, {%h1, %h2} im2colInfo.
std::string kernel(const Load& l, const std::string& before, const std::string& issue) {
  const std::string bytes = std::to_string(shared_of(l));
  const auto each_word = [&](const std::string& label, const std::string& body) {
    return "  shl.b32 %r10, %r3, 2;\n" + label + "1: setp.ge.u32 %p2, %r10, " + bytes + ";\n @%p2 bra " + label +
           "2;\n  add.u32 %r11, %r1, %r10;\n" + body + "  add.u32 %r10, %r10, 128;\n  bra " + label + "1;\n" + label +
           "2:\n";
  };
  const std::string meet = "  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n";
  return R"(
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .align 64 .b8 p_map[128], .param .u64 p_out)
{
  .shared .align 8 .b64 bar;)" +
         std::string(kRegisters) + R"(
  mov.b64 %rd1, p_map;
  cvta.param.u64 %rd1, %rd1;
  ld.param.u64 %rd2, [p_out];
  mov.u32 %r1, smem;
  mov.u32 %r2, bar;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %cluster_ctarank;
  mad.wide.u32 %rd2, %r4, )" +
         bytes + R"(, %rd2;
  setp.eq.u32 %p1, %r3, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  mov.u32 %r12, )" +
         std::to_string(kUntouched) + ";\n" + each_word("F", "  st.shared.u32 [%r11], %r12;\n") +
         "  fence.proxy.async;\n  mov.u16 %h1, " + std::to_string(l.halo) + ";\n  mov.u16 %h2, " +
         std::to_string(l.offset) + ";\n" + before + meet + issue + meet +
         each_word("D",
                   "  ld.shared.u32 %r12, [%r11];\n  cvt.u64.u32 %rd10, %r10;\n  add.u64 %rd10, %rd10, %rd2;\n"
                   "  st.global.u32 [%rd10], %r12;\n") +
         "  ret;\n}\n";
}

std::string mode_of(const Load& l) { return l.w128 ? ".im2col::w::128" : ".im2col::w"; }
std::string expect(const std::string& predicate, int bytes) {
  return "  @" + predicate + " mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], " + std::to_string(bytes) + ";\n";
}

std::string load_kernel(const Load& l, Form form) {
  const std::string dim = "." + std::to_string(l.rank) + "d", place = "[%rd1, " + coordinates(l) + "]";
  const int bytes = rows_of(l) * l.channels * 2;
  if (form == Form::One) {
    return kernel(l, expect("%p1", bytes),
                  "  @%p1 cp.async.bulk.prefetch.tensor" + dim + ".L2.global" + mode_of(l) + " " + place +
                      ", {%h1, %h2};\n  @%p1 cp.async.bulk.tensor" + dim + ".shared::cta.global" + mode_of(l) +
                      ".mbarrier::complete_tx::bytes [%r1], " + place + ", [%r2], {%h1, %h2};\n" +
                      wait("%r2", "0", "W"));
  }
  const std::string copy = ".shared::cluster.global" + mode_of(l) +
                           ".mbarrier::complete_tx::bytes.multicast::cluster [%r1], " + place +
                           ", [%r5], {%h1, %h2}, %h3;\n";
  if (form == Form::Multicast) {
    return kernel(l, expect("%p1", bytes),
                  "  or.b32 %r6, %r3, %r4;\n  setp.eq.u32 %p3, %r6, 0;\n  mov.u32 %r5, %r2;\n  mov.u16 %h3, 3;\n"
                  "  @%p3 cp.async.bulk.tensor" +
                      dim + copy + wait("%r2", "0", "W"));
  }
  // The mbarrier of the even block counts the bytes of both.
  return kernel(l,
                "  or.b32 %r6, %r3, %r4;\n  setp.eq.u32 %p3, %r6, 0;\n  setp.eq.and.u32 %p4, %r4, 1, %p1;\n" +
                    expect("%p3", 2 * bytes),
                "  mapa.shared::cluster.u32 %r5, %r2, 0;\n  mov.u16 %h3, 3;\n  @%p4 cp.async.bulk.tensor" + dim +
                    ".cta_group::2" + copy + "  setp.ne.u32 %p5, %r4, 0;\n  @%p5 bra WAITED;\n" +
                    wait("%r2", "0", "W") + "WAITED:\n");
}

class Im2colW : public Orders {
 protected:
  Shape wide_shape(const Load& l, Form form) const {
    Shape s = shape(32);
    s.arch = 100;
    s.dynamic_shared = shared_of(l);
    s.grid = s.cluster = {form == Form::One ? 1u : 2u, 1, 1};
    return s;
  }
};
INSTANTIATE_TEST_SUITE_P(All, Im2colW, testing::ValuesIn(all_orders()), testing::PrintToStringParamName());

TEST_P(Im2colW, LoadsPixelsAlongWAndTheirHalo) {
  std::mt19937 rng(9);
  for (const Load& l : kLoads) {
    std::vector<uint16_t> values(static_cast<size_t>(l.size[0] * l.size[1] * l.size[2] * l.size[3] * l.size[4]));
    for (uint16_t& v : values) v = static_cast<uint16_t>(rng());
    Buffer<uint16_t> tensor(memory_, values);
    for (const Form form : {Form::One, Form::Multicast, Form::PairMulticast}) {
      const bool nan = form == Form::Multicast;
      TensorMapFields m = map_of(l);
      m.address = tensor.address();
      if (nan) {
        m.element = sim::TensorElement::F16;
        m.fill = sim::TensorFill::Nan;
      }
      std::array<uint8_t, 128> map;
      sim::encode(m, map.data());
      std::vector<uint16_t> expected(shared_of(l) / 2, static_cast<uint16_t>(kUntouched));
      for (int p = 0; p < rows_of(l); ++p) {
        const int64_t from = pixel(l, p);
        for (int e = 0; e < l.channels; ++e) {
          const int channel = l.at[0] + e;
          const uint32_t to = static_cast<uint32_t>(p) * span_of(l) + static_cast<uint32_t>(e) * 2;
          expected[swizzled(l, to) / 2] = from >= 0 && channel < l.size[0] ? values[static_cast<size_t>(from + channel)]
                                          : nan                            ? uint16_t{0x7ff7}
                                                                           : uint16_t{0};
        }
      }
      const size_t blocks = form == Form::One ? 1 : 2;
      Buffer<uint16_t> out(memory_, blocks * expected.size());
      ASSERT_EQ(fault_of(load_kernel(l, form), "k", Params().add(map).add(out.address()), memory_, wide_shape(l, form)),
                "")
          << "load " << &l - kLoads;
      for (size_t i = 0; i < out.size(); ++i)
        ASSERT_EQ(out[i], expected[i % expected.size()])
            << "load " << &l - kLoads << " form " << static_cast<int>(form) << " at byte " << 2 * i;
    }
  }
}

TEST(Im2colWRules, AreKept) {
  sim::GlobalMemory memory;
  const Load right = {4, {64, 9, 7, 1, 4}, {0, 8, 3, 0, 1}, -1, 0, 1, 64, 16, 2, 1};
  Load right128 = right;
  right128.w128 = true;
  right128.halo = 0;
  Buffer<uint16_t> tensor(memory, size_t{64 * 9 * 7 * 4}, uint16_t{1});
  const auto run = [&](const Load& l, TensorMapFields m, const std::string& text) {
    Buffer<uint8_t> out(memory, size_t{shared_of(l)});
    m.address = tensor.address();
    std::array<uint8_t, 128> map;
    sim::encode(m, map.data());
    Shape shape;
    shape.arch = 100;
    shape.dynamic_shared = shared_of(l);
    return fault_of(text, "k", Params().add(map).add(out.address()), memory, shape);
  };
  const auto said = [&](const Load& l, const TensorMapFields& m) { return run(l, m, load_kernel(l, Form::One)); };
  const auto refused = [&](const Load& l, const TensorMapFields& m, const std::string& text) {
    EXPECT_THAT(said(l, m), testing::HasSubstr(text));
  };
  const auto with = [](const Load& l, auto change) {
    Load changed = l;
    change(changed);
    return changed;
  };
  const auto map_with = [](const Load& l, auto change) {
    TensorMapFields m = map_of(l);
    change(m);
    return m;
  };
  EXPECT_EQ(said(right, map_of(right)), "");
  EXPECT_EQ(said(right128, map_of(right128)), "");
  refused(right, map_of(right128), "an im2col::w copy with an im2col::w::128 tensor map");
  refused(right128, map_of(right), "an im2col::w::128 copy with an im2col::w tensor map");
  for (const auto& other : {std::pair{sim::TensorMode::Tiled, "a tiled"}, {sim::TensorMode::Im2col, "an im2col"}})
    refused(right, map_with(right, [&](TensorMapFields& m) { m.mode = other.first; }),
            std::string("an im2col::w copy with ") + other.second + " tensor map");
  const std::string store =
      "  @%p1 cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%rd1, {0, 0, 0, 0}], [%r1];\n";
  EXPECT_THAT(run(right, map_of(right), kernel(right, "", store)),
              testing::HasSubstr("an im2col copy with an im2col::w tensor map"));

  refused(with(right, [](Load& l) { l.halo = 512; }), map_of(right), "wHalo is 512; allowed are 0 to 511");
  refused(with(right, [](Load& l) { l.offset = 32; }), map_of(right), "wOffset is 32; allowed are 0 to 31");
  refused(with(right128, [](Load& l) { l.offset = 32; }), map_of(right128), "wOffset is 32; allowed are 0 to 31");
  refused(with(right128, [](Load& l) { l.halo = 32; }), map_of(right128), "wHalo is 32; allowed are 0 to 31");
  for (const uint32_t halo : {1u, 31u})
    refused(with(right128, [&](Load& l) { l.halo = halo; }), map_of(right128),
            "im2col::w::128 with a wHalo of " + std::to_string(halo) + " is not simulated");
  // The first pixel may lie left of the box, and not right of it.
  EXPECT_EQ(said(with(right, [](Load& l) { l.at[1] = -7; }), map_of(right)), "");
  refused(with(right, [](Load& l) { l.at[1] = 9; }), map_of(right),
          "the filter is at 9 in W, outside the tensor map's box of pixels, -1 to 8");
  const char* const swizzle = "im2col::w and im2col::w::128 need a swizzle, and one without flipped halves";
  refused(right, map_with(right, [](TensorMapFields& m) { m.swizzle = TensorSwizzle::None; }), swizzle);
  refused(right, map_with(right, [](TensorMapFields& m) { m.atom = TensorAtom::Bytes32Flip; }), swizzle);
  // A prefetch has the same rules.
  EXPECT_THAT(run(right, map_of(right),
                  kernel(right, "",
                         "  @%p1 cp.async.bulk.prefetch.tensor.4d.L2.global.im2col::w [%rd1, {0, 0, 0, 0}], "
                         "{%h1, 32};\n")),
              testing::HasSubstr("wOffset is 32; allowed are 0 to 31"));
}

}  // namespace
