// SPDX-License-Identifier: Apache-2.0
// `moxie gemm` against the answers in a golden file, and each kind of group sizes against each other.
#include <cstring>
#include <filesystem>
#include <random>
#include <regex>
#include <sstream>
#include <tuple>

#include <gtest/gtest.h>

#include "cli/safetensors.h"
#include "reference/comparison.h"
#include "reference/formats.h"
#include "reference/product.h"
#include "tests/cli/program.h"

namespace moxie::test {
namespace {

const std::string kGolden = MOXIE_SOURCE_DIR "/tests/golden/grouped-fc1.safetensors";

std::vector<double> floats(const cli::SafetensorsReader& file, const std::string& name) {
  const auto bytes = file.read(name);
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return {values.begin(), values.end()};
}

void expect_close(const std::string& path, const std::string& tensor, const std::string& expected) {
  const cli::SafetensorsReader golden(kGolden), got(path);
  const auto* entry = got.find(tensor);
  ASSERT_NE(entry, nullptr) << tensor;
  const auto* wanted = golden.find(expected);
  ASSERT_EQ(entry->shape, wanted->shape);
  const DataType type = entry->dtype == "BF16" ? DataType::Bf16 : DataType::F32;
  const auto data = got.read(tensor);
  reference::Comparison comparison;
  comparison.add(floats(golden, expected), data.data(), type, entry->shape[0], entry->shape[1], entry->shape[1]);
  EXPECT_TRUE(comparison.pass()) << tensor << ": " << comparison.failure();
}

class Golden : public testing::TestWithParam<std::tuple<std::string, std::string, std::string>> {};

TEST_P(Golden, PreAndSwigluOai) {
  const auto& [schedule, sizes, grouping] = GetParam();
  const Folder folder;
  const Finished finished = run_moxie({"gemm", kGolden, folder / "out", "--activation", "swiglu-oai", "--outputs",
                                       "pre,out", "--schedule", schedule, "--sizes", sizes, "--grouping", grouping});
  ASSERT_EQ(finished.status, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  expect_close(folder / "out", "pre", "expected_pre");
  expect_close(folder / "out", "out", "expected_swiglu_oai");
}

TEST_P(Golden, SwigluOfSplitGates) {
  const auto& [schedule, sizes, grouping] = GetParam();
  const Folder folder;
  const Finished finished = run_moxie({"gemm", kGolden, folder / "out", "--activation", "swiglu", "--gate", "split",
                                       "--schedule", schedule, "--sizes", sizes, "--grouping", grouping});
  ASSERT_EQ(finished.status, 0) << finished.err;
  expect_close(folder / "out", "out", "expected_silu_gated_split");
}

INSTANTIATE_TEST_SUITE_P(Cli, Golden,
                         testing::Combine(testing::Values("cooperative", "pingpong"), testing::Values("device", "host"),
                                          testing::Values("auto", "pointers")),
                         [](const auto& info) {
                           const std::string grouping = std::get<2>(info.param);
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" +
                                  (grouping == "auto" ? "offsets" : grouping);
                         });

TEST(Gemm, PlainSiluWithAGateIsSwiglu) {
  const Folder folder;
  ASSERT_EQ(run_moxie({"gemm", kGolden, folder / "out", "--activation", "silu", "--gate", "split"}).status, 0);
  expect_close(folder / "out", "out", "expected_silu_gated_split");
}

TEST(Gemm, ParametersReachTheirActivation) {
  struct Case {
    std::vector<std::string> words;
    ActivationSpec activation;
  };
  const Case cases[] = {
      {{"swiglu-clamped"}, swiglu_clamped()},
      {{"swiglu-clamped", "--gate-limit", "0.25", "--up-limit", "0.5"}, swiglu_clamped({0.25f, 0.5f})},
      {{"situ"}, situ()},
      {{"situ", "--beta", "0.25", "--linear-beta", "0.5"}, situ({0.25f, 0.5f})},
      {{"swiglu-oai", "--alpha", "3", "--limit", "0.5"}, swiglu_oai({3, 0.5f})},
  };
  const cli::SafetensorsReader golden(kGolden);
  const auto pre = floats(golden, "expected_pre");
  const auto rows = golden.find("expected_pre")->shape[0], n = golden.find("expected_pre")->shape[1];
  for (const auto& [words, activation] : cases) {
    SCOPED_TRACE(words[0] + (words.size() > 1 ? words[1] : ""));
    const Folder folder;
    std::vector<std::string> arguments = {"gemm", kGolden, folder / "out", "--activation"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const Finished finished = run_moxie(arguments);
    ASSERT_EQ(finished.status, 0) << finished.err;
    const auto out = cli::SafetensorsReader(folder / "out").read("out");
    ASSERT_EQ(out.size(), static_cast<size_t>(rows * n));  // half as wide, of two bytes each
    reference::Comparison comparison;
    comparison.add(reference::activate_all(activation, GateLayout::Interleaved, pre, rows, n), out.data(),
                   DataType::Bf16, rows, n / 2, n / 2);
    EXPECT_TRUE(comparison.pass()) << comparison.failure();
  }
}

TEST(Gemm, OutputsOfFloat32) {
  const Folder folder;
  ASSERT_EQ(run_moxie({"gemm", kGolden, folder / "out", "--outputs", "pre", "--out-dtype", "f32"}).status, 0);
  const cli::SafetensorsReader file(folder / "out");
  EXPECT_EQ(file.entries().size(), 1u);
  EXPECT_EQ(file.find("pre")->dtype, "F32");
  expect_close(folder / "out", "pre", "expected_pre");
}

// Three groups of 40 rows at most, K 72, N 48, random; `rows` of each are valid.
struct Layer {
  static constexpr int64_t kGroups = 3, kMax = 40, kN = 48, kK = 72;
  std::vector<int32_t> rows = {40, 0, 17};
  std::vector<uint16_t> a, b, bias;

  Layer() {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (auto* values : {&a, &b, &bias}) {
      values->resize(values == &a ? kGroups * kMax * kK : values == &b ? kGroups * kN * kK : kGroups * kN);
      for (auto& value : *values) value = reference::float_to_bf16(uniform(random));
    }
  }
  static std::string text(const uint16_t* values, int64_t count) {
    return {reinterpret_cast<const char*>(values), static_cast<size_t>(count) * 2};
  }
  RawFile weights(RawFile file) const {
    file.add("b", "BF16", {kGroups, kN, kK}, text(b.data(), kGroups * kN * kK));
    file.add("bias", "BF16", {kGroups, kN}, text(bias.data(), kGroups * kN));
    return file;
  }
  std::vector<double> expected(int64_t group, int64_t count) const {
    const auto pre = reference::product(
        {a.data() + group * kMax * kK, kK, b.data() + group * kN * kK, kK, bias.data() + group * kN, count, kN, kK});
    return reference::activate_all(Activation::Relu, GateLayout::Interleaved, pre, count, kN);
  }
};

void expect_rows(const std::vector<uint8_t>& out, int64_t first, const std::vector<double>& expected) {
  reference::Comparison comparison;
  const auto rows = static_cast<int64_t>(expected.size()) / Layer::kN;
  comparison.add(expected, out.data() + first * Layer::kN * 2, DataType::Bf16, rows, Layer::kN, Layer::kN, first);
  EXPECT_TRUE(comparison.pass()) << comparison.failure();
}

void expect_zero(const std::vector<uint8_t>& out, int64_t first, int64_t rows) {
  for (int64_t i = first * Layer::kN * 2; i < (first + rows) * Layer::kN * 2; ++i) ASSERT_EQ(out[i], 0) << "byte " << i;
}

class Groups : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  std::vector<uint8_t> run(const RawFile& file) {
    const Folder folder;
    write_file(folder / "in", file.bytes());
    const auto& [grouping, sizes] = GetParam();
    const Finished finished = run_moxie(
        {"gemm", folder / "in", folder / "out", "--activation", "relu", "--grouping", grouping, "--sizes", sizes});
    EXPECT_EQ(finished.status, 0) << finished.err;
    return finished.status == 0 ? cli::SafetensorsReader(folder / "out").read("out") : std::vector<uint8_t>();
  }
};

class RowGroups : public Groups {};

TEST_P(Groups, Masked) {
  const Layer layer;
  RawFile file;
  file.add("a", "BF16", {Layer::kGroups, Layer::kMax, Layer::kK},
           Layer::text(layer.a.data(), Layer::kGroups * Layer::kMax * Layer::kK));
  const auto out = run(layer.weights(file).add_int32("masked_m", layer.rows));
  ASSERT_EQ(out.size(), size_t{Layer::kGroups * Layer::kMax * Layer::kN * 2});
  for (int64_t g = 0; g < Layer::kGroups; ++g) {
    expect_rows(out, g * Layer::kMax, layer.expected(g, layer.rows[static_cast<size_t>(g)]));
    expect_zero(out, g * Layer::kMax + layer.rows[static_cast<size_t>(g)],
                Layer::kMax - layer.rows[static_cast<size_t>(g)]);
  }
}

TEST_P(Groups, Batched) {
  const Layer layer;
  RawFile file;
  file.add("a", "BF16", {Layer::kGroups, Layer::kMax, Layer::kK},
           Layer::text(layer.a.data(), Layer::kGroups * Layer::kMax * Layer::kK));
  const auto out = run(layer.weights(file));
  ASSERT_EQ(out.size(), size_t{Layer::kGroups * Layer::kMax * Layer::kN * 2});
  for (int64_t g = 0; g < Layer::kGroups; ++g) expect_rows(out, g * Layer::kMax, layer.expected(g, Layer::kMax));
}

TEST_P(Groups, OffsetsWithRowsPastTheLast) {
  const Layer layer;
  RawFile file;
  // All of the first group, none of the second, then rows of no group.
  file.add("a", "BF16", {Layer::kMax + 5, Layer::kK}, Layer::text(layer.a.data(), (Layer::kMax + 5) * Layer::kK));
  const auto out = run(layer.weights(file).add_int32("offsets", {40, 40, 40}));
  ASSERT_EQ(out.size(), size_t{(Layer::kMax + 5) * Layer::kN * 2});
  expect_rows(out, 0, layer.expected(0, Layer::kMax));
  expect_zero(out, Layer::kMax, 5);
}

TEST_P(Groups, Dense) {
  const Layer layer;
  RawFile file;
  file.add("a", "BF16", {Layer::kMax, Layer::kK}, Layer::text(layer.a.data(), Layer::kMax * Layer::kK));
  file.add("b", "BF16", {Layer::kN, Layer::kK}, Layer::text(layer.b.data(), Layer::kN * Layer::kK));
  file.add("bias", "BF16", {Layer::kN}, Layer::text(layer.bias.data(), Layer::kN));
  const auto out = run(file);
  ASSERT_EQ(out.size(), size_t{Layer::kMax * Layer::kN * 2});
  expect_rows(out, 0, layer.expected(0, Layer::kMax));
}

TEST_P(RowGroups, PaddingIsZero) {
  const Layer layer;
  // 256 rows a group: a multiple of every row alignment there is.
  constexpr int64_t kStep = 256;
  std::vector<uint16_t> a(2 * kStep * Layer::kK);
  std::vector<int32_t> groups(2 * kStep, -1);
  for (const int64_t g : {0, 2}) {
    const int64_t first = g / 2 * kStep;
    std::copy_n(layer.a.data() + g * Layer::kMax * Layer::kK, layer.rows[static_cast<size_t>(g)] * Layer::kK,
                a.data() + first * Layer::kK);
    std::fill_n(groups.data() + first, layer.rows[static_cast<size_t>(g)], static_cast<int32_t>(g));
  }
  RawFile file;
  file.add("a", "BF16", {2 * kStep, Layer::kK}, Layer::text(a.data(), 2 * kStep * Layer::kK));
  const auto out = run(layer.weights(file).add_int32("m_indices", groups));
  ASSERT_EQ(out.size(), size_t{2 * kStep * Layer::kN * 2});
  for (const int64_t g : {0, 2}) {
    const int64_t first = g / 2 * kStep, rows = layer.rows[static_cast<size_t>(g)];
    expect_rows(out, first, layer.expected(g, rows));
    expect_zero(out, first + rows, kStep - rows);
  }
}

INSTANTIATE_TEST_SUITE_P(Cli, Groups,
                         testing::Combine(testing::Values("auto", "pointers"), testing::Values("device", "host")),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

INSTANTIATE_TEST_SUITE_P(Cli, RowGroups, testing::Combine(testing::Values("auto"), testing::Values("device", "host")),
                         [](const auto& info) { return std::get<1>(info.param); });

TEST(Gemm, NoRows) {
  const Folder folder;
  write_file(folder / "in",
             RawFile().add("a", "BF16", {0, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {0, 0}).bytes());
  const Finished finished = run_moxie({"gemm", folder / "in", folder / "out"});
  ASSERT_EQ(finished.status, 0) << finished.err;
  EXPECT_EQ(cli::SafetensorsReader(folder / "out").find("out")->shape, (std::vector<int64_t>{0, 32}));
}

TEST(Gemm, ReplacesAnOlderOutput) {
  const Folder folder;
  write_file(folder / "out", "older");
  ASSERT_EQ(run_moxie({"gemm", kGolden, folder / "out"}).status, 0);
  EXPECT_EQ(cli::SafetensorsReader(folder / "out").entries().size(), 1u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Help, ShowsEveryActivationWithItsFormula) {
  const Finished finished = run_moxie({"gemm", "--help"});
  EXPECT_EQ(finished.status, 0);
  for (const char* text :
       {"relu2", "gelu-erf", "silu(g) * u", "c * sigmoid(alpha * c) * (clamp(u, -limit, limit) + 1)", "gelu(g) * u",
        "relu(g) * u", "split-up-first", "silu(min(g, gate-limit)) * clamp(u, -up-limit, up-limit)",
        "beta * tanh(g / beta) * sigmoid(g) * linear-beta * tanh(u / linear-beta)",
        "Elements of a and b: auto (what the tensors say), bf16, mxfp4 or nvfp4"}) {
    EXPECT_NE(finished.out.find(text), std::string::npos) << text;
  }
}

TEST(Plan, SaysWhichAndWhy) {
  const Finished finished =
      run_moxie({"plan", "16384", "5760", "2880", "--groups", "32", "--activation", "swiglu-oai", "--bias"});
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_NE(finished.out.find("chosen by"), std::string::npos) << finished.out;
  const Finished forced =
      run_moxie({"plan", "16384", "5760", "2880", "--groups", "32", "--schedule", "pingpong", "--tile", "64x160"});
  EXPECT_NE(forced.out.find("64x160"), std::string::npos) << forced.out;
}

TEST(Plan, OfABlackwellShowsWhatItJudged) {
  struct Case {
    std::vector<std::string> words;
    std::string found;
  };
  for (const Case& c : std::vector<Case>{
           {{"4096", "4096", "7168", "--out-dtype", "f32"}, "dense, 1 group of about 4096 rows"},
           {{"4096", "5760", "2880", "--groups", "32", "--activation", "swiglu-oai"}, "offsets, 32 groups"},
           {{"512", "7168", "2048", "--groups", "32", "--grouping", "masked", "--expected-rows", "8"}, "swapped"},
           {{"512", "7168", "2048", "--groups", "32", "--grouping", "masked", "--swap", "on"}, "caller's choice"},
           {{"64", "4096", "4096", "--groups", "8", "--grouping", "k-groups"}, "k groups, 8 groups"},
           {{"4096", "5760", "2880", "--activation", "swiglu", "--out-dtype", "mxfp4"}, "chosen by model"},
       }) {
    for (const char* format : {"mxfp4", "nvfp4", "bf16"}) {
      std::vector<std::string> words = {"plan", "--arch", "sm_100a", "--format", format};
      words.insert(words.end(), c.words.begin(), c.words.end());
      const Finished finished = run_moxie(words);
      EXPECT_EQ(finished.status, 0) << finished.err;
      for (const std::string& text : {c.found, std::string(format), std::string("148 SMs"), std::string("TFLOP/s")})
        EXPECT_NE(finished.out.find(text), std::string::npos) << text << " in " << finished.out;
    }
  }
}

// The numbers of a line that begins with `name`.
std::vector<double> numbers_behind(const std::string& out, const std::string& name) {
  std::vector<double> numbers;
  const size_t at = out.find("\n" + name + " ");
  std::istringstream words(at == std::string::npos ? "" : out.substr(at + 1 + name.size()));
  for (double number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

TEST(Plan, OfRanksCountsBytesAndSumsTimes) {
  std::vector<std::string> layer = {"plan",    "512", "4096",         "7168",   "--groups", "256",
                                    "--top-k", "8",   "--activation", "swiglu", "--device", "h100-sxm"};
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), layer.begin(), layer.end());
    const Finished finished = run_moxie(more);
    EXPECT_EQ(finished.status, 0) << finished.err;
    return finished.out;
  };
  const std::string eight = plan({"--ranks", "8"});
  // A pair comes back from another rank with probability 7/8; a token misses a given rank of 32 of 256 experts with
  // probability (224 223 ... 217) / (256 255 ... 249) = 0.338168.
  const double row = 2 * 7168, combine = 512 * 8 * 7.0 / 8 * row * 1e-6, dispatch = 512 * 7 * (1 - 0.338168);
  const std::vector<double> windows = numbers_behind(eight, "windows");
  const std::vector<double> all = numbers_behind(eight, "all_to_all");
  ASSERT_EQ(windows.size(), 7u) << eight;
  ASSERT_EQ(all.size(), 7u) << eight;
  EXPECT_NEAR(windows[0], dispatch * row * 1e-6, 0.02) << eight;
  EXPECT_NEAR(all[0], dispatch * (row + 32) * 1e-6, 0.02) << eight;
  for (const std::vector<double>& line : {windows, all}) {
    EXPECT_NEAR(line[1], combine, 0.01) << eight;
    EXPECT_NEAR(line[2] + line[3] + line[4], line[5], 0.2) << eight;
  }
  EXPECT_NEAR(all[4], 26 + 6 * 0.5 + combine / 0.278, 1) << eight;
  // The second product, which takes longer, hides the rows that travel.
  EXPECT_EQ(windows[4], 6) << eight;
  const std::vector<double> two = numbers_behind(plan({"--ranks", "2"}), "windows");
  ASSERT_EQ(two.size(), 7u);
  EXPECT_NEAR(two[1], 512 * 4 * row * 1e-6, 0.01);
  // That of narrow experts hides a part of them alone. Between two ranks a token's sums in float32 are less then.
  layer[2] = "512";
  const std::string narrow_experts = plan({"--ranks", "8"});
  const double down = std::stod(narrow_experts.substr(narrow_experts.find("down ") + 5));
  EXPECT_NEAR(numbers_behind(narrow_experts, "windows").at(4), 6 + combine / 0.295 - down, 1) << narrow_experts;
  const std::vector<double> sums = numbers_behind(plan({"--ranks", "2"}), "windows");
  ASSERT_EQ(sums.size(), 7u);
  EXPECT_NEAR(sums[1], 512 * (1 - 0.00349) * 2 * row * 1e-6, 0.02);
  EXPECT_NEAR(sums[1], 2 * sums[0], 0.02);
  EXPECT_NEAR(sums[4], 6 + sums[1] / 0.31, 1);
  layer[2] = "4096";
  // One byte for each element, and four for the scales of 128.
  for (const char* format : {"fp8", "mxfp8"}) {
    const std::vector<double> narrow = numbers_behind(plan({"--ranks", "2", "--row-format", format}), "windows");
    ASSERT_EQ(narrow.size(), 7u) << format;
    EXPECT_NEAR(narrow[0], two[0] * (0.5 + 2.0 / 128), 0.02);
    EXPECT_EQ(narrow[1], two[1]);
  }
  // Windows reach no other domain, to which 56 of 63 other ranks belong.
  const std::string many = plan({"--ranks", "64", "--network", "25"});
  EXPECT_TRUE(numbers_behind(many, "windows").empty()) << many;
  const std::vector<double> far = numbers_behind(many, "all_to_all");
  ASSERT_EQ(far.size(), 7u) << many;
  EXPECT_NEAR(far[4], 26 + 62 * 0.5 + 10 + far[1] * 56 / 63 / (0.9 * 0.025), 1) << many;
  // One rank sends nothing.
  const std::vector<double> one = numbers_behind(plan({"--ranks", "1"}), "windows");
  ASSERT_EQ(one.size(), 7u);
  EXPECT_EQ(one[0] + one[1] + one[2] + one[4], 0);
}

// The shape that options give has a bias, as one of a list with --bias: both get one kernel and make one error.
TEST(Bench, HasABias) {
  const Folder folder;
  const auto result = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "bench");
    const Finished finished = run_moxie(arguments, {.environment = {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_SMS", "2"}}});
    EXPECT_EQ(finished.status, 0) << finished.err << finished.out;
    std::smatch found;  // the error and the kernel
    EXPECT_TRUE(std::regex_search(finished.out, found, std::regex(R"( s +\S+ +(\S+e-\d+  .*)\n)"))) << finished.out;
    return found[1].str();
  };
  const auto listed = [&](const std::string& bias) {
    write_file(folder / "list", "40 128 8 --groups 2 --expected-rows 20 --outputs pre --pre-dtype f32 " + bias + "\n");
    return result({"--list", folder / "list"});
  };
  const std::string given =
      result({"--groups", "2", "--m", "20", "--n", "128", "--k", "8", "--outputs", "pre", "--pre-dtype", "f32"});
  EXPECT_EQ(given, listed("--bias"));
  EXPECT_NE(given, listed(""));
}

TEST(Bench, TheShapeIsTheDefaultOrTheOneGiven) {
  const Setting simulated{.environment = {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_SMS", "2"}}};
  for (const auto& [more, row] :
       {std::pair{std::vector<std::string>{}, R"(4 groups +4 x \(128 x 512 x 512\) )"},
        {{"--groups", "1", "--m", "1", "--n", "128", "--k", "8"}, R"(given +1 x \(1 x 128 x 8\) )"},
        {{"--groups", "3", "--m", "33", "--n", "128", "--k", "8", "--gather"},
         R"(given +3 x \(33 x .*gathered rows)"}}) {
    std::vector<std::string> arguments = {"bench"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished finished = run_moxie(arguments, simulated);
    EXPECT_EQ(finished.status, 0) << finished.err;
    EXPECT_TRUE(std::regex_search(
        finished.out, std::regex(R"(first use of a kernel: \d+\.\d\d s compiled, \d+\.\d ms from the cache\n\n)"
                                 R"(shape +groups x \(M x N x K\) +simulated in +GFLOP/s +error +kernel\n)" +
                                 std::string(row))))
        << finished.out;
  }
}

// The kernel comes from a compiler that gives a right kernel with an activation more.
TEST(Bench, AWrongResultIsToldAndFails) {
  const Folder folder;
  Setting setting{.environment = {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_SMS", "2"}, {"MOXIE_CACHE_DIR", folder / "1"}}};
  const std::vector<std::string> arguments = {"bench", "--groups", "1",  "--m",          "20",  "--n",
                                              "128",   "--k",      "64", "--activation", "none"};
  const Finished right = run_moxie(arguments, setting);
  ASSERT_EQ(right.status, 0) << right.err;
  std::string ptx;
  for (const auto& file : std::filesystem::directory_iterator(folder / "1"))
    if (file.path().extension() == ".ptx") ptx = read_file(file.path());
  ptx = std::regex_replace(ptx.substr(ptx.find('\n') + 1), std::regex(R"(cvt\.rn\.bf16x2\.f32)"),
                           "cvt.rn.relu.bf16x2.f32");
  write_file(folder / "wrong.ptx", ptx);
  setting.environment["MOXIE_CACHE_DIR"] = folder / "2";
  setting.environment["MOXIE_NVRTC"] = std::filesystem::canonical(
      std::filesystem::path(MOXIE_SIM_LIBRARY).parent_path() / "../../libmoxie_idle_nvrtc.so");
  setting.environment["MOXIE_IDLE_VERSION"] = "1300";
  setting.environment["MOXIE_IDLE_IMAGE"] = folder / "wrong.ptx";
  const Finished wrong = run_moxie(arguments, setting);
  EXPECT_EQ(wrong.status, 1) << wrong.err;
  EXPECT_NE(wrong.out.find("\nWRONG: "), std::string::npos) << wrong.out;
}

// Nothing is compiled or timed before every shape has been looked at.
TEST(Bench, EveryShapeIsLookedAtFirst) {
  const Folder folder;
  write_file(folder / "list", "8 64 64 --groups 2\n8 64 63 --groups 2\n");
  const Finished finished = run_moxie({"bench", "--list", folder / "list"}, {.environment = {{"MOXIE_DEVICE", "sim"}}});
  EXPECT_EQ(finished.status, 2);
  EXPECT_EQ(finished.out, "");
  EXPECT_EQ(finished.err, "moxie: k is 63, but must be a multiple of 8 with bf16 operands\n");
  // The shapes that a GPU is timed with take a simulator too long, but are not refused.
  const pid_t process = start_moxie({"bench"}, simulator_as_gpu(), folder / "log");
  EXPECT_TRUE(kill_when_it_says(process, folder / "log", "from the cache\n\n")) << read_file(folder / "log");
}

TEST(Bench, OfAGpuSaysWhatIsMissing) {
  Setting setting = simulator_as_gpu();
  setting.environment["MOXIE_CUBLASLT"] = MOXIE_SIM_LIBRARY;  // which is another library
  const Finished finished = run_moxie({"bench", "--groups", "1", "--m", "1", "--n", "64", "--k", "8"}, setting);
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_NE(finished.out.find("\ncuBLASLt: libcublasLt lacks functions\nshape "), std::string::npos) << finished.out;
  std::smatch line;
  ASSERT_TRUE(std::regex_search(finished.out, line, std::regex(R"(\ngiven +1 x \(1 x 64 x 8\) +(\S+) ms )")))
      << finished.out;
  EXPECT_LT(std::stod(line[1]), 900) << "milliseconds, for 1024 operations";
}

TEST(Bench, ChecksFourBitOperandsInTheSimulator) {
  for (const char* format : {"mxfp4", "nvfp4"}) {
    const Finished finished = run_moxie(
        {"bench", "--arch", "sm_100a", "--format", format, "--groups", "2", "--m", "20", "--n", "128", "--k", "96"},
        {.environment = {{"MOXIE_DEVICE", "sim"}}});
    EXPECT_EQ(finished.status, 0) << finished.err << finished.out;
    EXPECT_NE(finished.out.find(format + std::string(" ")), std::string::npos) << finished.out;
  }
}

}  // namespace
}  // namespace moxie::test
