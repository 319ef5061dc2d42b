// SPDX-License-Identifier: Apache-2.0
// `moxie gemm` of MXFP4 operands on the simulated sm_100a, against the answers in golden files.
#include <cstring>
#include <tuple>

#include <gtest/gtest.h>

#include "cli/safetensors.h"
#include "moxie/scales.h"
#include "reference/formats.h"
#include "tests/cli/program.h"

namespace moxie::test {
namespace {

std::string golden(const std::string& name) { return MOXIE_SOURCE_DIR "/tests/golden/mxfp4-" + name + ".safetensors"; }

Setting blackwell(const char* order) {
  Setting setting;
  setting.environment = {
      {"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}, {"MOXIE_SIM_SMS", "4"}, {"MOXIE_SIM_ORDER", order}};
  return setting;
}

// Which rows of the file's result are compared.
std::vector<bool> valid_rows(const cli::SafetensorsReader& file, int64_t rows) {
  std::vector<bool> valid(static_cast<size_t>(rows), true);
  const auto read = [&](const char* name) {
    const auto bytes = file.read(name);
    std::vector<int32_t> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  if (file.find("m_indices") != nullptr) {
    const auto groups = read("m_indices");
    for (size_t i = 0; i < groups.size(); ++i) valid[i] = groups[i] >= 0;
  }
  if (file.find("masked_m") != nullptr) {
    const auto sizes = read("masked_m");
    const size_t most = valid.size() / sizes.size();
    for (size_t i = 0; i < valid.size(); ++i) valid[i] = int64_t(i % most) < sizes[i / most];
  }
  return valid;
}

// Bit for bit, float32 or its rounding to bf16.
void expect_equal(const std::string& result, const std::string& name) {
  const cli::SafetensorsReader file(golden(name)), got(result);
  const auto* entry = got.find("out");
  ASSERT_NE(entry, nullptr);
  ASSERT_EQ(entry->shape, file.find("expected")->shape);
  const int64_t width = entry->shape.back();
  const auto wanted = file.read("expected"), found = got.read("out");
  const size_t count = wanted.size() / 4;
  const auto valid = valid_rows(file, int64_t(count) / width);
  int64_t different = 0, compared = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!valid[i / size_t(width)]) continue;
    ++compared;
    float value;
    std::memcpy(&value, wanted.data() + 4 * i, 4);
    if (entry->dtype == "F32") {
      different += std::memcmp(&value, found.data() + 4 * i, 4) != 0;
    } else {
      const uint16_t rounded = reference::float_to_bf16(value);
      different += std::memcmp(&rounded, found.data() + 2 * i, 2) != 0;
    }
  }
  EXPECT_GT(compared, 0);
  EXPECT_EQ(different, 0) << "of " << compared << " elements";
}

class Mxfp4 : public testing::TestWithParam<std::tuple<std::string, std::string, std::string, std::string>> {};

TEST_P(Mxfp4, EqualsTheGoldenAnswer) {
  const auto& [name, order, type, swap] = GetParam();
  const Folder folder;
  const Finished finished =
      run_moxie({"gemm", golden(name), folder / "out", "--out-dtype", type, "--swap", swap}, blackwell(order.c_str()));
  ASSERT_EQ(finished.status, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
  expect_equal(folder / "out", name);
}

INSTANTIATE_TEST_SUITE_P(Cli, Mxfp4,
                         testing::Combine(testing::Values("dense", "contiguous", "masked"),
                                          testing::Values("eager", "lazy", "random:3"), testing::Values("f32", "bf16"),
                                          testing::Values("off", "on")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param).substr(0, 6) + "_" +
                                  std::get<2>(info.param) + (std::get<3>(info.param) == "on" ? "_swapped" : "");
                         });

// The masked file again with its scales blocked beforehand.
TEST(Mxfp4File, TakesBlockedScales) {
  const Folder folder;
  const cli::SafetensorsReader file(golden("masked"));
  std::vector<cli::TensorToWrite> tensors;
  for (const char* name : {"a", "b", "masked_m"}) {
    const auto* entry = file.find(name);
    tensors.push_back({name, entry->dtype, entry->shape, file.read(name)});
  }
  for (const char* name : {"sfa", "sfb"}) {
    const auto shape = file.find(name)->shape;
    const int64_t groups = shape[0], rows = shape[1], columns = shape[2], k = columns * kScaleBlock;
    const auto from = file.read(name);
    std::vector<uint8_t> to(size_t(groups * blocked_scale_bytes(rows, k)));
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c)
          to[size_t(g * blocked_scale_bytes(rows, k) + blocked_scale_index(r, c, k))] =
              from[size_t((g * rows + r) * columns + c)];
      }
    }
    tensors.push_back({name, "U8", {int64_t(to.size())}, to});
  }
  cli::write_safetensors(folder / "in", tensors);
  const Finished finished = run_moxie(
      {"gemm", folder / "in", folder / "out", "--out-dtype", "f32", "--scales", "blocked"}, blackwell("lazy"));
  ASSERT_EQ(finished.status, 0) << finished.err;
  expect_equal(folder / "out", "masked");
}

TEST(Mxfp4File, AsPointers) {
  for (const char* name : {"dense", "masked"}) {
    const Folder folder;
    const Finished finished = run_moxie(
        {"gemm", golden(name), folder / "out", "--out-dtype", "f32", "--grouping", "pointers"}, blackwell("random:3"));
    ASSERT_EQ(finished.status, 0) << finished.err;
    expect_equal(folder / "out", name);
  }
}

struct Wrong {
  const char* name;
  std::vector<std::string> arguments;
  std::vector<int64_t> a, sfa;
  const char* sfa_type;
  const char* arch;
  const char* says;
  std::vector<std::tuple<const char*, const char*, std::vector<int64_t>>> more = {};
};
void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }
class Mxfp4Wrong : public testing::TestWithParam<Wrong> {};
TEST_P(Mxfp4Wrong, IsRefusedInOneSentence) {
  const Wrong& wrong = GetParam();
  const Folder folder;
  RawFile file;
  file.add("a", "U8", wrong.a).add("b", "U8", {16, wrong.a.back()});
  if (!wrong.sfa.empty()) file.add("sfa", wrong.sfa_type, wrong.sfa);
  file.add("sfb", wrong.sfa_type, {16, wrong.a.back() / (wrong.sfa_type == std::string("U8") ? 16 : 8)});
  for (const auto& [name, type, shape] : wrong.more) file.add(name, type, shape);
  write_file(folder / "in", file.bytes());
  std::vector<std::string> arguments = {"gemm", folder / "in", folder / "out"};
  arguments.insert(arguments.end(), wrong.arguments.begin(), wrong.arguments.end());
  Setting setting = blackwell("eager");
  setting.environment["MOXIE_SIM_ARCH"] = wrong.arch;
  setting.environment["MOXIE_DEVICE"] = "sim";
  const Finished finished = run_moxie(arguments, setting);
  EXPECT_EQ(finished.status, 2);
  EXPECT_EQ(folder.without_path(finished.err), "moxie: " + std::string(wrong.says) + "\n");
}
INSTANTIATE_TEST_SUITE_P(
    Cli, Mxfp4Wrong,
    testing::Values(
        Wrong{"NoScales",
              {},
              {8, 32},
              {},
              "U8",
              "sm_100a",
              "tensor 'sfa' is missing, which operands of U8 (MXFP4, NVFP4) need"},
        Wrong{"ScaleType", {}, {8, 32}, {8, 2}, "I8", "sm_100a", "tensor 'sfa' is I8, it must be U8"},
        Wrong{"ScaleShape",
              {},
              {8, 32},
              {8, 4},
              "U8",
              "sm_100a",
              "tensor 'sfa' is [8, 4], it must be [8, 2]: a scale for 32 elements along K"},
        Wrong{"BlockedSize",
              {"--scales", "blocked"},
              {8, 32},
              {8, 2},
              "U8",
              "sm_100a",
              "tensor 'sfa' has 16 bytes, the blocked scales of this product have 512"},
        Wrong{
            "Depth", {}, {8, 24}, {8, 1}, "U8", "sm_100a", "k is 48, but must be a multiple of 32 with mxfp4 operands"},
        Wrong{"Hopper",
              {},
              {8, 32},
              {8, 2},
              "U8",
              "sm_90a",
              "the device is of architecture sm_90a, but mxfp4 operands need sm_100a"},
        Wrong{"Format",
              {"--format", "nvfp4"},
              {8, 32},
              {8, 2},
              "U8",
              "sm_100a",
              "tensor 'sfa' is U8, it must be F8_E4M3"},
        Wrong{"SplitGate",
              {"--activation", "swiglu", "--gate", "split"},
              {8, 32},
              {8, 2},
              "U8",
              "sm_100a",
              "n is 16, but mxfp4 operands with a split gate need a multiple of 64"},
        Wrong{"Schedule",
              {"--schedule", "pingpong"},
              {8, 32},
              {8, 2},
              "U8",
              "sm_100a",
              "--schedule: the kernels of sm_100a have only one schedule"},
        Wrong{"Tile",
              {"--tile", "128x40"},
              {8, 32},
              {8, 2},
              "U8",
              "sm_100a",
              "tile_n is 40, but only 16 to 256 in steps of 16 are possible"},
        Wrong{"ScaleShapeOfNvfp4",
              {},
              {8, 32},
              {8, 2},
              "F8_E4M3",
              "sm_100a",
              "tensor 'sfa' is [8, 2], it must be [8, 4]: a scale for 16 elements along K"},
        Wrong{"TensorScaleOfA",
              {},
              {8, 32},
              {8, 4},
              "F8_E4M3",
              "sm_100a",
              "tensor 'a_tensor_scale' is [2], it must be [1]",
              {{"a_tensor_scale", "F32", {2}}}},
        Wrong{"TensorScaleOfB",
              {},
              {8, 32},
              {8, 4},
              "F8_E4M3",
              "sm_100a",
              "tensor 'b_tensor_scale' is [3], it must be [1]",
              {{"b_tensor_scale", "F32", {3}}}},
        Wrong{"TensorScaleType",
              {},
              {8, 32},
              {8, 4},
              "F8_E4M3",
              "sm_100a",
              "tensor 'a_tensor_scale' is BF16, it must be F32",
              {{"a_tensor_scale", "BF16", {1}}}},
        Wrong{"TensorScaleRank",
              {},
              {8, 32},
              {8, 4},
              "F8_E4M3",
              "sm_100a",
              "tensor 'b_tensor_scale' is [1, 1], it must be [1]",
              {{"b_tensor_scale", "F32", {1, 1}}}},
        Wrong{"Bias",
              {},
              {8, 32},
              {8, 2},
              "U8",
              "sm_100a",
              "tensor 'bias' is [8], with this 'b' it must be [16]",
              {{"bias", "BF16", {8}}}},
        Wrong{"Bf16", {"--format", "bf16"}, {8, 32}, {8, 2}, "U8", "sm_100a", "tensor 'a' is U8, it must be BF16"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moxie::test
