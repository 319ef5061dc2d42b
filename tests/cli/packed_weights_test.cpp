// SPDX-License-Identifier: Apache-2.0
// `moxie gemm` of a GPT-OSS layer's products: bf16 activations and MXFP4 weights as the checkpoint holds them.
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "cli/safetensors.h"
#include "reference/comparison.h"
#include "reference/formats.h"
#include "reference/product.h"
#include "tests/cli/program.h"

namespace moxie::test {
namespace {

const std::string kFolder = MOXIE_SOURCE_DIR "/tests/golden/gpt-oss-layer/";
constexpr int64_t kExperts = 8, kHidden = 192, kWidth = 160, kTop = 3;

template <class T>
std::vector<T> values_of(const cli::SafetensorsReader& file, const std::string& name) {
  const auto bytes = file.read(name);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
template <class T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// The layer's weights of one of its products.
struct Weights {
  int64_t n, k;
  std::vector<uint8_t> blocks, scales;
  std::vector<uint16_t> bias;

  Weights(const std::string& name, int64_t rows, int64_t columns) : n(rows), k(columns) {
    const cli::SafetensorsReader model(kFolder + "model.safetensors");
    const std::string prefix = "model.layers.0.mlp.experts." + name;
    blocks = model.read(prefix + "_blocks");
    scales = model.read(prefix + "_scales");
    bias = values_of<uint16_t>(model, prefix + "_bias");
  }
  // The weights of an expert: [n, k].
  std::vector<double> values(int64_t expert) const {
    std::vector<float> row(static_cast<size_t>(k));
    std::vector<double> all;
    for (int64_t r = expert * n; r < (expert + 1) * n; ++r) {
      reference::dequantize_row(DataType::Mxfp4, blocks.data() + r * k / 2, scales.data() + r * k / 32, k, 1,
                                row.data());
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
};

// Computes the product of sorted rows with `moxie gemm`, compares every group with a product in double precision, and
// returns it.
std::vector<uint16_t> check(const Weights& w, const std::vector<uint16_t>& a, const std::vector<int32_t>& ends,
                            Activation activation, const std::vector<std::string>& more) {
  const Folder folder;
  const auto rows = static_cast<int64_t>(a.size()) / w.k;
  cli::write_safetensors(folder / "in", {{"a", "BF16", {rows, w.k}, bytes_of(a)},
                                         {"b", "U8", {kExperts, w.n, w.k / 2}, w.blocks},
                                         {"sfb", "U8", {kExperts, w.n, w.k / 32}, w.scales},
                                         {"bias", "BF16", {kExperts, w.n}, bytes_of(w.bias)},
                                         {"offsets", "I32", {kExperts}, bytes_of(ends)}});
  std::vector<std::string> arguments = {"gemm", folder / "in", folder / "out"};
  if (activation != Activation::None) arguments.insert(arguments.end(), {"--activation", "swiglu-oai"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Finished finished = run_moxie(arguments);
  EXPECT_EQ(finished.status, 0) << finished.err;
  if (finished.status != 0) return {};
  const auto out = values_of<uint16_t>(cli::SafetensorsReader(folder / "out"), "out");
  const int64_t width = is_gated(activation) ? w.n / 2 : w.n;
  EXPECT_EQ(static_cast<int64_t>(out.size()), rows * width);
  reference::Comparison comparison;
  for (int64_t e = 0, begin = 0; e < kExperts; begin = ends[static_cast<size_t>(e++)]) {
    const int64_t count = ends[static_cast<size_t>(e)] - begin;
    std::vector<double> x;
    for (int64_t i = begin * w.k; i < (begin + count) * w.k; ++i)
      x.push_back(reference::bf16_to_float(a[static_cast<size_t>(i)]));
    std::vector<double> pre = reference::product(x, w.values(e), count, w.n, w.k);
    for (size_t i = 0; i < pre.size(); ++i)
      pre[i] += reference::bf16_to_float(w.bias[static_cast<size_t>(e * w.n) + i % static_cast<size_t>(w.n)]);
    comparison.add(reference::activate_all(activation, GateLayout::Interleaved, pre, count, w.n),
                   out.data() + begin * width, DataType::Bf16, count, width, width, begin);
  }
  EXPECT_EQ(comparison.failure(), "");
  return out;
}

class GptOssLayer : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(GptOssLayer, IsComputedFromTheCheckpoint) {
  const cli::SafetensorsReader tokens(kFolder + "tokens.safetensors");
  const auto x = values_of<uint16_t>(tokens, "x");
  const auto experts = values_of<int32_t>(tokens, "expected_experts");
  const auto weights = values_of<float>(tokens, "expected_weights");
  const auto expected = values_of<float>(tokens, "expected_y");
  // Rows in the order of their experts.
  std::vector<uint16_t> sorted;
  std::vector<int32_t> ends;
  std::vector<size_t> row_of(experts.size());
  for (int32_t e = 0; e < kExperts; ++e) {
    for (size_t i = 0; i < experts.size(); ++i) {
      if (experts[i] != e) continue;
      row_of[i] = sorted.size() / kHidden;
      const auto row = x.begin() + static_cast<int64_t>(i) / kTop * kHidden;
      sorted.insert(sorted.end(), row, row + kHidden);
    }
    ends.push_back(static_cast<int32_t>(sorted.size() / kHidden));
  }
  const auto h = check(Weights("gate_up_proj", 2 * kWidth, kHidden), sorted, ends, Activation::SwigluOai, GetParam());
  ASSERT_FALSE(HasFailure());
  const auto y = check(Weights("down_proj", kHidden, kWidth), h, ends, Activation::None, GetParam());
  ASSERT_FALSE(HasFailure());
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t token = i / kHidden, column = i % kHidden;
    double sum = 0;
    for (size_t top = token * kTop; top < (token + 1) * kTop; ++top)
      sum += double(weights[top]) * reference::bf16_to_float(y[row_of[top] * kHidden + column]);
    error += (sum - expected[i]) * (sum - expected[i]), norm += double(expected[i]) * expected[i];
  }
  EXPECT_LE(std::sqrt(error / norm), 8e-3);  // of two products that are rounded to bf16
}

INSTANTIATE_TEST_SUITE_P(Cli, GptOssLayer,
                         testing::Values(std::vector<std::string>{}, std::vector<std::string>{"--grouping", "pointers"},
                                         std::vector<std::string>{"--sizes", "host", "--tile", "8x128"},
                                         std::vector<std::string>{"--schedule", "cooperative", "--format", "mxfp4"}),
                         [](const auto& info) { return "Options" + std::to_string(info.index); });

TEST(PackedWeights, ScalesThatBf16CannotHoldAreNamed) {
  const Folder folder;
  std::vector<uint8_t> scales(3 * 16 * 2, 127);
  scales[(2 * 16 + 5) * 2] = 200, scales[(2 * 16 + 5) * 2 + 1] = 60;
  cli::write_safetensors(folder / "in", {{"a", "BF16", {3, 1, 64}, std::vector<uint8_t>(3 * 128)},
                                         {"b", "U8", {3, 16, 32}, std::vector<uint8_t>(3 * 16 * 32, 0x22)},
                                         {"sfb", "U8", {3, 16, 2}, scales}});
  const Finished finished = run_moxie({"gemm", folder / "in", folder / "out"});
  EXPECT_NE(finished.status, 0);
  EXPECT_EQ(finished.err,
            "moxie: tensor 'sfb': row 5 of group 2 has scales above 128 that are more than 133 above its smallest, "
            "whose weights bf16 cannot hold beside each other\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(PackedWeights, ScalesAreMissing) {
  const Folder folder;
  cli::write_safetensors(folder / "in", {{"a", "BF16", {4, 64}, std::vector<uint8_t>(4 * 128)},
                                         {"b", "U8", {16, 32}, std::vector<uint8_t>(16 * 32)}});
  const Finished finished = run_moxie({"gemm", folder / "in", folder / "out"});
  EXPECT_NE(finished.status, 0);
  EXPECT_EQ(finished.err, "moxie: tensor 'sfb' is missing, which operands of U8 (MXFP4, NVFP4) need\n");
}

TEST(PackedWeights, DepthsMustMeet) {
  const Folder folder;
  cli::write_safetensors(folder / "in", {{"a", "BF16", {4, 64}, std::vector<uint8_t>(4 * 128)},
                                         {"b", "U8", {16, 64}, std::vector<uint8_t>(16 * 64)}});
  const Finished finished = run_moxie({"gemm", folder / "in", folder / "out"});
  EXPECT_NE(finished.status, 0);
  EXPECT_EQ(finished.err,
            "moxie: tensor 'a' is [4, 64] and 'b' [16, 64], the last extent of 'b' (K / 2 bytes) must be "
            "half of a's\n");
}

TEST(PackedWeights, PlansAndTimes) {
  const Finished plan = run_moxie({"plan", "4096", "5760", "2880", "--groups", "32", "--format", "mxfp4"});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_NE(plan.out.find("mxfp4 weights"), std::string::npos) << plan.out;
  Setting simulated;
  simulated.environment = {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_SMS", "2"}};
  const Finished bench =
      run_moxie({"bench", "--format", "mxfp4", "--groups", "2", "--m", "20", "--n", "128", "--k", "96"}, simulated);
  EXPECT_EQ(bench.status, 0) << bench.err << bench.out;
}

}  // namespace
}  // namespace moxie::test
