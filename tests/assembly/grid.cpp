// SPDX-License-Identifier: Apache-2.0
// See grid.h.
#include "tests/assembly/grid.h"

#include <fmt/format.h>

#include <initializer_list>
#include <random>

#include "tests/support/custom_sinks.h"

namespace moxie::assembly {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

class Random {
 public:
  int64_t pick(std::initializer_list<int64_t> values) { return values.begin()[below(values.size())]; }
  uint64_t below(uint64_t n) { return generator_() % n; }

 private:
  std::mt19937_64 generator_{5};
};

constexpr Activation kPlain[] = {Activation::Relu, Activation::Relu2, Activation::GeluTanh, Activation::GeluErf,
                                 Activation::Silu};
constexpr Activation kGated[] = {Activation::Swiglu, Activation::SwigluOai,     Activation::Geglu,
                                 Activation::Reglu,  Activation::SwigluClamped, Activation::Situ};

// The epilogues, each as a change of a problem.
constexpr int kEpilogues = 15;
void set_epilogue(ProductSpec& p, int which, Random& random) {
  const Activation plain = kPlain[random.below(5)], gated = kGated[random.below(6)];
  p.bias = random.below(2) == 0;
  switch (which) {
    case 0:
      p.out = kF32, p.bias = false;
      break;
    case 1:
      p.out = kBf16;
      break;
    case 2:
      p.out = kF32, p.bias = true;
      break;
    case 3:
      p.out = kBf16, p.activation = plain;
      break;
    case 4:
      p.pre = kBf16, p.out = kF32, p.activation = plain;
      break;
    case 5:
      p.out = kBf16, p.activation = gated;
      break;
    case 6:
      p.pre = kF32, p.out = kF32, p.activation = gated;
      break;
    case 7:
      p.out = kBf16, p.activation = gated, p.gate = GateLayout::Split;
      break;
    case 8:
      p.pre = kF32, p.out = kBf16, p.activation = gated, p.gate = GateLayout::SplitUpFirst;
      break;
    case 9:
      p.pre = kF32, p.out.reset();
      break;
    case 10:
      p.out = kBf16, p.sinks = {test::row_max_sink()}, p.activation = random.below(2) ? gated : Activation::None;
      break;
    case 11:
      p.out = DataType::Mxfp4, p.activation = random.below(2) ? plain : Activation::None;
      break;
    case 12:
      p.out = DataType::Mxfp8, p.activation = gated;
      break;
    case 13:
      p.pre = kBf16, p.out = DataType::Mxfp4, p.activation = gated;
      p.gate = random.below(2) ? GateLayout::Split : GateLayout::SplitUpFirst;
      break;
    default:
      p.pre = DataType::Mxfp8, p.out = random.below(2) ? DataType::Mxfp4 : kBf16, p.activation = plain;
  }
}

bool is_scaled(const ProductSpec& p) { return (p.pre && is_quantized(*p.pre)) || (p.out && is_quantized(*p.out)); }

ProductSpec offsets(int64_t groups, int64_t rows, int64_t n, int64_t k) {
  ProductSpec p;
  p.format = OperandFormat::Mxfp4;
  p.grouping = Grouping::Offsets;
  p.groups = groups;
  p.m = groups * rows, p.n = n, p.k = k;
  return p;
}

}  // namespace

DeviceFigures b200() { return {100, 148, 232448}; }

std::vector<ProductSpec> grid() {
  std::vector<ProductSpec> all;
  Random random;
  for (int turn = 0; turn < 2; ++turn) {
    for (int grouping = 0; grouping <= int(Grouping::KGroups); ++grouping) {
      for (int format = 0; format <= int(OperandFormat::Nvfp4); ++format) {
        for (int epilogue = 0; epilogue < kEpilogues; ++epilogue) {
          ProductSpec p;
          p.grouping = Grouping(grouping);
          p.format = OperandFormat(format);
          p.groups = p.grouping == Grouping::Dense ? 1 : random.pick({1, 4, 8, 32, 128});
          p.m = random.pick({1, 8, 64, 100, 256, 512, 1024, 4096, 16384});
          p.n = random.pick({64, 192, 320, 768, 2048, 2880, 4096, 5760, 7168, 24576});
          p.k = random.pick({32, 96, 512, 736, 1536, 2048, 2880, 7168, 8192});
          set_epilogue(p, epilogue, random);
          const uint64_t swap = random.below(4), scheduling = random.below(6);
          if (swap > 0) p.swap_ab = swap % 2 == 1;
          if (swap == 3) p.swap_ab.reset();
          if (scheduling < 2) p.scheduling = TileSource(scheduling);
          const bool ragged = p.grouping == Grouping::Offsets || p.grouping == Grouping::Masked;
          if (ragged && random.below(4) == 0) p.expected_rows = random.pick({1, 16, 100, 4000});
          const bool has_kernel =
              !is_scaled(p) || (p.grouping != Grouping::Pointers && p.grouping != Grouping::KGroups);
          if (has_kernel) all.push_back(p);
        }
      }
    }
  }
  // Every tile by the caller's choice, with a full epilogue.
  for (int block_n = 16; block_n <= 256; block_n += 16) {
    ProductSpec p = offsets(8, 512, 4096, 4096);
    const bool half = block_n % 32 != 0;
    p.format = half ? OperandFormat(1 + block_n / 16 % 4 / 2) : OperandFormat(block_n / 32 % 3);
    p.bias = true;
    p.activation = half ? Activation::GeluErf : block_n % 64 ? Activation::Situ : Activation::SwigluOai;
    p.tile_n = block_n;
    if (block_n % 64 == 0) p.cluster = 2;
    p.pre = kF32;
    all.push_back(p);
  }
  for (int rows = 16; rows <= 256; rows *= 2) {
    for (const OperandFormat format : {OperandFormat::Bf16, OperandFormat::Mxfp4, OperandFormat::Nvfp4}) {
      for (const GateLayout gate : {GateLayout::Interleaved, GateLayout::Split}) {
        ProductSpec p = offsets(8, 512, 4096, 4096);
        p.format = format;
        p.grouping = rows == 32 ? Grouping::RowGroups : Grouping::Masked;
        p.bias = true;
        p.activation = rows == 64 ? Activation::GeluErf : Activation::SwigluOai;
        if (is_gated(p.activation)) p.gate = gate;
        p.swap_ab = true;
        p.tile_m = rows;
        if (rows == 128) p.cluster = 2;
        p.pre = kF32;
        const bool two_products = has_scales(format) && is_gated(p.activation) && gate == GateLayout::Split;
        if (rows < 256 || !two_products) all.push_back(p);
      }
    }
  }
  return all;
}

std::vector<Published> published() {
  std::vector<Published> all;
  const auto add = [&](int64_t groups, int64_t m, int64_t n, int64_t k, double tflops) {
    ProductSpec p = offsets(groups, m, n, k);
    p.out = kF32;
    if (groups == 1) p.grouping = Grouping::Dense;
    p.expected_rows = groups == 1 ? std::nullopt : std::optional(m);
    all.push_back(
        {(groups == 1 ? "" : fmt::format("{} groups of ", groups)) + fmt::format("{} x {} x {}", m, n, k), p, tflops});
  };
  add(1, 128, 2048, 7168, 328);
  add(1, 128, 24576, 1536, 980);
  add(1, 512, 2048, 7168, 1178);
  add(1, 512, 7168, 2048, 1439);
  add(1, 1024, 7168, 2048, 2056);
  add(1, 4096, 4096, 7168, 5332);
  add(1, 8192, 8192, 8192, 5702);
  add(4, 8192, 24576, 1536, 2640);
  add(4, 8192, 32768, 512, 1282);
  return all;
}

std::string describe(const ProductSpec& p) {
  const auto type = [](const std::optional<DataType>& t) { return t ? int(*t) : -1; };
  return fmt::format("grouping {}, {} x ({} x {} x {}), activation {}, gate {}, bias {}, pre {}, out {}, {} sinks",
                     int(p.grouping), p.groups, p.m, p.n, p.k, int(p.activation), int(p.gate), p.bias, type(p.pre),
                     type(p.out), p.sinks.size());
}

}  // namespace moxie::assembly
