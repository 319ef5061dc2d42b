// SPDX-License-Identifier: Apache-2.0
// NaN, infinities, zeros of both signs, subnormals and the largest numbers: through every activation, into quantized
// outputs, and through the sums themselves. The programs of both architectures have these tests.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "moxie/scales.h"
#include "reference/formats.h"
#include "reference/product.h"
#include "tests/support/device.h"
#include "tests/support/product_spec.h"
#include "tests/support/random.h"

namespace moxie::test {
namespace {

// All of them are bf16. Sigmoids of the finite ones are either 0 or no smaller than float32 has them.
const std::vector<float> kSpecial = {std::numeric_limits<float>::quiet_NaN(),
                                     std::numeric_limits<float>::infinity(),
                                     -std::numeric_limits<float>::infinity(),
                                     0x1.fep127f,
                                     -0x1.fep127f,
                                     0.0f,
                                     -0.0f,
                                     0x1p-126f,
                                     -0x1p-133f,
                                     1.0f,
                                     -1.5f,
                                     9.0f,
                                     -20.0f};

struct BiasOutputs {
  std::vector<float> pre;            // of the first row
  std::vector<uint8_t> out, scales;  // of all rows
};
constexpr int64_t kBiasRows = 70;

// A dense product without depth, whose pre is the bias in every row.
BiasOutputs bias_product(ProductSpec p, const std::vector<float>& bias) {
  p.m = kBiasRows, p.n = int64_t(bias.size()), p.k = 0;
  p.bias = true;
  p.pre = DataType::F32;
  p.tile_n = 64;
  std::vector<uint16_t> rounded;
  for (const float x : bias) rounded.push_back(reference::float_to_bf16(x));
  const int64_t width = is_gated(p.activation) ? p.n / 2 : p.n;
  const Buffer biases(rounded), pre(size_t(p.m * p.n * 4)), out(size_t(p.m * width * bits_of(*p.out) / 8));
  const Buffer scales(std::vector<uint8_t>(out_scale_bytes(p), 0xee)), workspace(workspace_bytes(device(), p));
  ProductTensors x;
  x.bias = biases.get(), x.pre = pre.get(), x.out = out.get(), x.out_scales = scales.get();
  x.workspace = workspace.get(), x.workspace_bytes = workspace.size();
  pre.fill(0xee), out.fill(0xee);
  gemm(device(), p, x);
  device().synchronize();
  BiasOutputs outputs{std::vector<float>(bias.size()), out.download(), scales.download()};
  device().download(outputs.pre.data(), pre.get(), bias.size() * 4);
  return outputs;
}

// NaN is NaN, an infinity itself. Others agree but for rounding, and for what the smallest numbers leave.
void expect_like(double expected, float got) {
  const auto wanted = float(expected);
  if (std::isnan(wanted)) {
    EXPECT_TRUE(std::isnan(got)) << got;
  } else if (std::isinf(wanted)) {
    EXPECT_EQ(got, wanted);
  } else {
    EXPECT_LE(std::fabs(got - expected), 2e-5 * std::fabs(expected) + 0x1p-120) << got << " for " << expected;
  }
}

ProductSpec with_activation(const ActivationSpec& activation) {
  ProductSpec p;
  p.activation = activation.function;
  p.alpha = activation.swiglu_oai.alpha, p.limit = activation.swiglu_oai.limit;
  p.swiglu_clamped = activation.swiglu_clamped, p.situ = activation.situ;
  p.out = DataType::F32;
  return p;
}

void check_activation(const ActivationSpec& activation) {
  SCOPED_TRACE(fmt::format("{}, limits {}, {} and {}, betas {} and {}", to_string(activation.function),
                           activation.swiglu_oai.limit, activation.swiglu_clamped.gate_limit,
                           activation.swiglu_clamped.up_limit, activation.situ.beta, activation.situ.linear_beta));
  const ProductSpec p = with_activation(activation);
  std::vector<float> bias;
  const bool gated = is_gated(activation.function);
  for (const float x : kSpecial) {
    if (gated) {
      for (const float up : kSpecial) bias.push_back(x), bias.push_back(up);
    } else {
      bias.push_back(x);
    }
  }
  while (bias.size() % 16 != 0) bias.push_back(1);
  set_order("eager");
  const BiasOutputs got = bias_product(p, bias);
  const size_t width = gated ? bias.size() / 2 : bias.size();
  for (size_t i = 0; i < bias.size(); ++i) expect_like(bias[i], got.pre[i]);
  for (size_t row = 0; row < size_t(kBiasRows); ++row) {
    for (size_t j = 0; j < width; ++j) {
      const float x = gated ? bias[2 * j] : bias[j], up = gated ? bias[2 * j + 1] : 0;
      SCOPED_TRACE(fmt::format("row {}: {} {}", row, x, up));
      float value;
      std::memcpy(&value, &got.out[(row * width + j) * 4], 4);
      expect_like(reference::activate(activation, x, up), value);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// A block with an infinity or a NaN gets the scale NaN and elements 0; zeros, subnormals and the largest follow the
// rules of moxie/quantize.h. NVFP4: without a tensor scale.
void check_quantized(DataType format) {
  SCOPED_TRACE(to_string(format));
  ProductSpec p;
  p.activation = Activation::None;
  p.out = format;
  std::vector<float> bias(32 * 3, 1.0f);
  for (const float x : kSpecial) {
    const size_t first = bias.size();
    bias.resize(first + 32, x == 0 ? 0.0f : 2.0f);
    bias[first + 17] = x;  // in the second half, which is a block of NVFP4
  }
  set_order("eager");
  const BiasOutputs got = bias_product(p, bias);
  const auto n = int64_t(bias.size());
  const int64_t block = scale_block(format), row_bytes = n * bits_of(format) / 8;
  std::vector<uint8_t> elements(static_cast<size_t>(row_bytes)), scales(size_t(n / block));
  reference::quantize_row(format, got.pre.data(), n, 1, elements.data(), scales.data());
  for (int64_t row = 0; row < kBiasRows; ++row) {
    EXPECT_TRUE(std::equal(elements.begin(), elements.end(), got.out.begin() + row * row_bytes)) << row;
    for (int64_t c = 0; c < n / block; ++c)
      ASSERT_EQ(got.scales[size_t(blocked_scale_index(row, c, n, block))], scales[size_t(c)]) << row << " " << c;
  }
}

// Rows and columns of special values among others, in groups: each element is what its sum is, and the rows beside are
// untouched by it.
void check_sums(ProductSpec p) {
  SCOPED_TRACE(to_string(p.grouping));
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  p.groups = 3, p.m = 40, p.n = 48, p.k = 72;
  p.out = DataType::F32;
  std::vector<uint16_t> a(size_t(p.m * p.k)), b(size_t(p.groups * p.n * p.k));
  const auto value = [](size_t i) { return float(int64_t(mix(i) % 9) - 4); };
  for (size_t i = 0; i < a.size(); ++i) a[i] = reference::float_to_bf16(value(i));
  for (size_t i = 0; i < b.size(); ++i) b[i] = reference::float_to_bf16(value(i + 77777));
  const auto set = [](std::vector<uint16_t>& matrix, int64_t at, float x) {
    matrix[size_t(at)] = reference::float_to_bf16(x);
  };
  set(a, 3 * p.k + 5, nan);
  set(a, 4 * p.k + 71, inf);
  set(a, 13 * p.k, -inf);
  set(a, 14 * p.k + 1, inf), set(a, 14 * p.k + 2, -inf);
  set(b, (p.n + 7) * p.k + 40, nan);
  set(b, (2 * p.n + 47) * p.k + 64, inf);
  for (int64_t k = 0; k < p.k; ++k) {
    set(a, 20 * p.k + k, std::ldexp(value(size_t(k)), -131));  // subnormal
    set(a, 21 * p.k + k, -0.0f);
  }
  const std::vector<int32_t> ends = {12, 26, 40};
  const Buffer a_buffer(a), b_buffer(b), rows(ends), out(size_t(p.m * p.n * 4)),
      workspace(workspace_bytes(device(), p));
  ProductTensors x;
  x.a = a_buffer.get(), x.b = b_buffer.get(), x.out = out.get();
  x.sizes = rows.get<int32_t>();
  x.workspace = workspace.get(), x.workspace_bytes = workspace.size();
  for (const char* order : orders()) {
    set_order(order);
    out.fill(0xee);
    gemm(device(), p, x);
    device().synchronize();
    const std::vector<uint8_t> got = out.download();
    for (int64_t row = 0; row < p.m; ++row) {
      const int64_t group = row < 12 ? 0 : row < 26 ? 1 : 2;
      for (int64_t column = 0; column < p.n; ++column) {
        SCOPED_TRACE(fmt::format("{}: {} {}", order, row, column));
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k)
          sum += double(reference::bf16_to_float(a[size_t(row * p.k + k)])) *
                 reference::bf16_to_float(b[size_t((group * p.n + column) * p.k + k)]);
        float element;
        std::memcpy(&element, &got[size_t((row * p.n + column) * 4)], 4);
        if (row == 20 && std::isfinite(sum)) {
          EXPECT_EQ(double(element), sum);  // exact, and below 2^-120
        } else {
          expect_like(sum, element);
        }
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

bool on_blackwell() { return device().info().arch == 100; }

// Both architectures share the activations; one has all of them here.
TEST(SpecialValues, ThroughEveryActivation) {
  for (size_t i = 0; i < names<Activation>().size(); ++i) {
    const auto activation = Activation(i);
    if (!on_blackwell() || activation == Activation::Relu2 || activation == Activation::SwigluOai ||
        activation == Activation::Situ)
      check_activation(activation);
    if (HasFailure()) return;
  }
  if (on_blackwell()) return;
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kSubnormal = 0x1p-149f;
  constexpr float kMost = std::numeric_limits<float>::max();
  check_activation(swiglu_oai({.limit = kInfinity}));
  check_activation(swiglu_clamped({.gate_limit = kInfinity, .up_limit = kInfinity}));
  check_activation(swiglu_clamped({.gate_limit = kSubnormal, .up_limit = 3}));
  check_activation(situ({.beta = kMost, .linear_beta = kMost}));
  check_activation(situ({.beta = 1e30f, .linear_beta = 1e30f}));
  check_activation(situ({.beta = kSubnormal, .linear_beta = kSubnormal}));
}

// Situ keeps the bound that activation.cuh states, where its two formulas meet and where tanh would cancel.
TEST(SpecialValues, SituIsAccurateEverywhere) {
  for (const SituParameters& parameters : {SituParameters{}, {0.75f, 3.0f}}) {
    const ActivationSpec activation = situ(parameters);
    std::vector<float> bias;
    for (const float sign : {1.0f, -1.0f}) {
      for (int exponent = -24; exponent < 8; ++exponent) {
        for (int step = 0; step < 8; ++step) {
          const float x = sign * std::ldexp(1 + float(step) / 8, exponent);
          if (std::fabs(x) < 80) bias.insert(bias.end(), {x, 9});
          bias.insert(bias.end(), {1.25f, x});
        }
      }
    }
    while (bias.size() % 16 != 0) bias.push_back(1);
    set_order("eager");
    const BiasOutputs got = bias_product(with_activation(activation), bias);
    for (size_t j = 0; j < bias.size() / 2; ++j) {
      float value;
      std::memcpy(&value, &got.out[j * 4], 4);
      const float gate = bias[2 * j], up = bias[2 * j + 1];
      const double expected = reference::activate(activation, gate, up);
      EXPECT_LE(std::fabs(value - expected), (32 + std::fabs(gate)) * 0x1p-23 * std::fabs(expected))
          << gate << " " << up << ": " << value << " for " << expected;
    }
  }
}

TEST(SpecialValues, InQuantizedOutputs) {
  for (const DataType format : {DataType::Mxfp4, DataType::Mxfp8, DataType::Nvfp4}) check_quantized(format);
}

TEST(SpecialValues, InSums) {
  for (const WarpSchedule schedule : {WarpSchedule::Cooperative, WarpSchedule::PingPong}) {
    ProductSpec p;
    p.grouping = Grouping::Offsets;
    p.tile_n = 64;
    if (!on_blackwell()) p.schedule = schedule, p.tile_m = schedule == WarpSchedule::Cooperative ? 128 : 64;
    if (on_blackwell()) p.swap_ab = schedule == WarpSchedule::PingPong;
    if (p.swap_ab == true) p.tile_n.reset();
    check_sums(p);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace moxie::test
