// SPDX-License-Identifier: Apache-2.0
// `moxie layer`: a layer of GPT-OSS with its answers, layers of all models that are drawn and computed in double
// precision, and checkpoints that are wrong.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/safetensors.h"
#include "reference/formats.h"
#include "reference/product.h"
#include "tests/cli/program.h"

namespace moxie::test {
namespace {

using reference::bf16_to_float;
using reference::float_to_bf16;
using Strings = std::vector<std::string>;

const std::string kGolden = MOXIE_SOURCE_DIR "/tests/golden/gpt-oss-layer";

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

// y as numbers.
std::vector<double> result_of(const cli::SafetensorsReader& file) {
  std::vector<double> y;
  if (file.find("y")->dtype == "F32") {
    for (const float v : values_of<float>(file, "y")) y.push_back(v);
  } else {
    for (const uint16_t v : values_of<uint16_t>(file, "y")) y.push_back(bf16_to_float(v));
  }
  return y;
}

// The error relative to the norm of everything.
template <class T>
double relative_error(const std::vector<double>& got, const std::vector<T>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += double(expected[i]) * expected[i];
  }
  return std::sqrt(error / norm);
}

constexpr double kRoundedTwice = 8e-3;  // of rows that are rounded to bf16 behind both products

struct FixtureCase {
  std::string name;
  Strings more;
  std::map<std::string, std::string> environment;
};
void PrintTo(const FixtureCase& c, std::ostream* out) { *out << c.name; }

class GptOssFixture : public testing::TestWithParam<FixtureCase> {};

TEST_P(GptOssFixture, GivesItsAnswers) {
  const Folder folder;
  Strings arguments = {"layer", kGolden, kGolden + "/tokens.safetensors", folder / "out", "--layer", "0"};
  arguments.insert(arguments.end(), GetParam().more.begin(), GetParam().more.end());
  const Finished finished = run_moxie(arguments, {GetParam().environment});
  ASSERT_EQ(finished.status, 0) << finished.err;
  EXPECT_EQ(finished.out, "");
  const cli::SafetensorsReader tokens(kGolden + "/tokens.safetensors"), out(folder / "out");
  EXPECT_EQ(out.entries().size(), 3u);
  EXPECT_EQ(out.find("y")->shape, (std::vector<int64_t>{54, 192}));
  EXPECT_EQ(out.find("experts")->dtype, "I32");
  EXPECT_EQ(values_of<int32_t>(out, "experts"), values_of<int32_t>(tokens, "expected_experts"));
  EXPECT_EQ(out.find("weights")->dtype, "F32");
  const auto weights = values_of<float>(out, "weights"), expected = values_of<float>(tokens, "expected_weights");
  ASSERT_EQ(weights.size(), expected.size());
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights[i], expected[i], 2e-6) << i;
  EXPECT_LE(relative_error(result_of(out), values_of<float>(tokens, "expected_y")), kRoundedTwice);
}

INSTANTIATE_TEST_SUITE_P(
    Cli, GptOssFixture,
    testing::ValuesIn(std::vector<FixtureCase>{
        {"Stored", {}, {}},
        {"StoredLazy", {}, {{"MOXIE_SIM_ORDER", "lazy"}}},
        {"StoredRandom", {}, {{"MOXIE_SIM_ORDER", "random:7"}}},
        {"Bf16", {"--weights", "bf16"}, {}},
        {"Bf16Lazy", {"--weights", "bf16"}, {{"MOXIE_SIM_ORDER", "lazy"}}},
        {"Bf16Random", {"--weights", "bf16"}, {{"MOXIE_SIM_ORDER", "random:8"}}},
        {"Bf16Output", {"--out-dtype", "bf16"}, {}},
        {"Blackwell", {}, {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}}},
        {"BlackwellLazy", {}, {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}, {"MOXIE_SIM_ORDER", "lazy"}}},
        {"BlackwellRandom",
         {},
         {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}, {"MOXIE_SIM_ORDER", "random:9"}}},
    }),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moxie::test
