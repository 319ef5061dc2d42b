// SPDX-License-Identifier: Apache-2.0
// `moxie quantize`, and `moxie gemm` with quantized outputs that the next product reads.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/safetensors.h"
#include "moxie/scales.h"
#include "reference/formats.h"
#include "tests/cli/program.h"

namespace moxie::test {
namespace {

using Strings = std::vector<std::string>;

Setting simulated(const char* arch) {
  Setting setting;
  setting.environment = {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", arch}, {"MOXIE_SIM_SMS", "4"}};
  return setting;
}

void run_well(const Strings& arguments, const char* arch = "sm_100a") {
  const Finished finished = run_moxie(arguments, simulated(arch));
  ASSERT_EQ(finished.status, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
}

std::vector<uint8_t> floats(size_t count, float scale) {
  std::vector<uint8_t> bytes(4 * count);
  for (size_t i = 0; i < count; ++i) {
    const float x = scale * std::sin(float(i) * 1.7f) * std::exp2(float(i / 32 % 7) - 3);
    std::memcpy(&bytes[4 * i], &x, 4);
  }
  return bytes;
}

bool same_tensor(const cli::SafetensorsReader& x, const cli::SafetensorsReader& y, const std::string& name) {
  return x.find(name) != nullptr && y.find(name) != nullptr && x.find(name)->dtype == y.find(name)->dtype &&
         x.find(name)->shape == y.find(name)->shape && x.read(name) == y.read(name);
}

class QuantizeFile : public testing::TestWithParam<std::string> {};
// Host and device make the same file; other tensors and metadata pass; back again every value is one of the format's.
TEST_P(QuantizeFile, HostAndDeviceAgreeBothWays) {
  const Folder folder;
  cli::write_safetensors(folder / "in",
                         {{"w", "F32", {2, 5, 64}, floats(640, 3)},
                          {"other", "I32", {1}, {1, 2, 3, 4}},
                          {"v", "F32", {130, 32}, floats(4160, 1)}},
                         {{"made", "here"}});
  for (const char* layout : {"row-major", "blocked"}) {
    const Strings common = {"--format", GetParam(), "--scales", layout, "--tensors", "w,v"};
    const auto with = [&](Strings first, const Strings& more) {
      first.insert(first.end(), common.begin(), common.end());
      first.insert(first.end(), more.begin(), more.end());
      return first;
    };
    run_well(with({"quantize", folder / "in", folder / "host"}, {}));
    run_well(with({"quantize", folder / "in", folder / "device"}, {"--on", "device"}), "sm_90a");
    EXPECT_EQ(read_file(folder / "host"), read_file(folder / "device"));
    const cli::SafetensorsReader in(folder / "in"), host(folder / "host");
    EXPECT_TRUE(same_tensor(in, host, "other"));
    EXPECT_EQ(host.metadata().at("made"), "here");
    const int64_t block = GetParam() == "nvfp4" ? 16 : 32;
    EXPECT_EQ(host.find("w")->shape, (std::vector<int64_t>{2, 5, GetParam() == "mxfp8" ? 64 : 32}));
    EXPECT_EQ(host.find("w_scales")->shape,
              layout[0] == 'r' ? (std::vector<int64_t>{2, 5, 64 / block}) : (std::vector<int64_t>{2 * 512}));
    for (const char* dtype : {"bf16", "f32"}) {
      run_well(with({"quantize", folder / "host", folder / "back"}, {"--reverse", "--dtype", dtype}));
      run_well(
          with({"quantize", folder / "host", folder / "back2"}, {"--reverse", "--dtype", dtype, "--on", "device"}));
      EXPECT_EQ(read_file(folder / "back"), read_file(folder / "back2"));
    }
    const cli::SafetensorsReader back(folder / "back");
    EXPECT_EQ(back.entries().size(), in.entries().size());
    const auto before = in.read("v"), after = back.read("v");
    for (size_t i = 0; i < before.size(); i += 4 * 16) {
      float amax = 0, error = 0;
      for (size_t j = i; j < i + 4 * 16; j += 4) {
        float x, y;
        std::memcpy(&x, &before[j], 4), std::memcpy(&y, &after[j], 4);
        amax = std::max(amax, std::fabs(x)), error = std::max(error, std::fabs(x - y));
      }
      EXPECT_LE(error, 0.26f * amax) << i;  // the coarsest step, and what saturates
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Cli, QuantizeFile, testing::Values("mxfp4", "mxfp8", "nvfp4"));

TEST(QuantizeFile, OfNoRows) {
  const Folder folder;
  cli::write_safetensors(
      folder / "in", {{"x", "F32", {0, 64}, {}}, {"groups", "F32", {0, 5, 64}, {}}, {"rows", "F32", {2, 0, 64}, {}}});
  for (const char* on : {"host", "device"}) {
    run_well(
        {"quantize", folder / "in", folder / "out", "--format", "mxfp4", "--tensors", "x,groups,rows", "--on", on});
    const cli::SafetensorsReader out(folder / "out");
    EXPECT_EQ(out.find("x")->shape, (std::vector<int64_t>{0, 32}));
    EXPECT_EQ(out.find("groups")->shape, (std::vector<int64_t>{0, 5, 32}));
    EXPECT_EQ(out.find("groups_scales")->shape, (std::vector<int64_t>{0, 5, 2}));
    EXPECT_EQ(out.find("rows_scales")->shape, (std::vector<int64_t>{2, 0, 2}));
  }
}

// Rows of no group have scales of zero, whatever a tile has written beside rows of one.
TEST(QuantizedGemm, ScalesOfPaddingAreZero) {
  const int64_t rows = 256;
  std::string ones;
  for (int64_t i = 0; i < 2 * rows * 64; ++i) ones += "\x80\x3f";
  std::vector<int32_t> groups(size_t(rows), -1);
  std::fill_n(groups.begin(), 5, 0);
  const Folder folder;
  RawFile by_rows, masked;
  by_rows.add("a", "BF16", {rows, 64}, ones.substr(0, size_t(rows * 64 * 2)));
  by_rows.add("b", "BF16", {1, 64, 64}, ones.substr(0, 64 * 64 * 2)).add_int32("m_indices", groups);
  masked.add("a", "BF16", {2, rows, 64}, ones).add("b", "BF16", {2, 64, 64}, ones.substr(0, 2 * 64 * 64 * 2));
  masked.add_int32("masked_m", {5, 130});
  write_file(folder / "by_rows", by_rows.bytes());
  write_file(folder / "masked", masked.bytes());
  const auto scales = [&](const char* in, const char* layout) {
    run_well({"gemm", folder / in, folder / "out", "--out-dtype", "mxfp4", "--scales", layout});
    return cli::SafetensorsReader(folder / "out").read("out_scales");
  };
  const std::vector<uint8_t> row_major = scales("by_rows", "row-major"), blocked = scales("by_rows", "blocked");
  const std::vector<uint8_t> of_masked = scales("masked", "row-major");
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < 2; ++c) {
      EXPECT_EQ(row_major[size_t(row * 2 + c)] != 0, row < 5) << row;
      EXPECT_EQ(blocked[size_t(blocked_scale_index(row, c, 64))] != 0, row < 5) << row;
      EXPECT_EQ(of_masked[size_t(row * 2 + c)] != 0, row < 5) << row;
      EXPECT_EQ(of_masked[size_t((rows + row) * 2 + c)] != 0, row < 130) << row;
    }
  }
}

// quantize, gemm with a quantized output, gemm of that: the chain of an expert layer from file to file.
TEST(QuantizedGemm, ChainOfFiles) {
  const Folder folder;
  const int64_t tokens = 40, hidden = 64, width = 96, groups = 2;
  std::vector<uint8_t> sizes(8);
  const int32_t ends[] = {13, 40};
  std::memcpy(sizes.data(), ends, 8);
  cli::write_safetensors(folder / "in",
                         {{"a", "F32", {tokens, hidden}, floats(size_t(tokens * hidden), 2)},
                          {"b", "F32", {groups, 2 * width, hidden}, floats(size_t(groups * 2 * width * hidden), 1)},
                          {"offsets", "I32", {groups}, sizes}});
  run_well({"quantize", folder / "in", folder / "q", "--format", "mxfp4", "--tensors", "a,b"});
  const auto rename = [&](const std::string& from, const std::string& to,
                          const std::vector<std::pair<std::string, std::string>>& names,
                          std::vector<cli::TensorToWrite> more) {
    const cli::SafetensorsReader file(folder / from);
    for (const auto& [name, becomes] : names)
      more.push_back({becomes, file.find(name)->dtype, file.find(name)->shape, file.read(name)});
    cli::write_safetensors(folder / to, more);
  };
  rename("q", "first", {{"a", "a"}, {"a_scales", "sfa"}, {"b", "b"}, {"b_scales", "sfb"}, {"offsets", "offsets"}}, {});
  const Strings first = {"gemm", folder / "first", folder / "plain", "--activation", "swiglu"};
  const auto with = [](Strings arguments, const std::string& out, const Strings& more) {
    arguments[2] = out;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  run_well(with(first, folder / "plain", {"--out-dtype", "f32"}));
  for (const DataType format : {DataType::Mxfp4, DataType::Mxfp8, DataType::Nvfp4}) {
    const std::string name(to_string(format));
    SCOPED_TRACE(name);
    run_well(with(first, folder / "out", {"--out-dtype", name}));
    const cli::SafetensorsReader plain(folder / "plain"), out(folder / "out");
    const int64_t row_bytes = width * bits_of(format) / 8, columns = width / scale_block(format);
    EXPECT_EQ(out.find("out")->dtype, format == DataType::Mxfp8 ? "F8_E4M3" : "U8");
    EXPECT_EQ(out.find("out")->shape, (std::vector<int64_t>{tokens, row_bytes}));
    EXPECT_EQ(out.find("out_scales")->dtype, format == DataType::Nvfp4 ? "F8_E4M3" : "U8");
    EXPECT_EQ(out.find("out_scales")->shape, (std::vector<int64_t>{tokens, columns}));
    const auto values = plain.read("out");
    std::vector<float> row(static_cast<size_t>(width));
    std::vector<uint8_t> elements, scales;
    for (int64_t r = 0; r < tokens; ++r) {
      std::vector<uint8_t> e(static_cast<size_t>(row_bytes)), s(static_cast<size_t>(columns));
      std::memcpy(row.data(), values.data() + r * width * 4, size_t(width) * 4);
      reference::quantize_row(format, row.data(), width, 1, e.data(), s.data());
      elements.insert(elements.end(), e.begin(), e.end()), scales.insert(scales.end(), s.begin(), s.end());
    }
    EXPECT_TRUE(out.read("out") == elements);
    EXPECT_TRUE(out.read("out_scales") == scales);
    // Groups by pointers give the same file.
    run_well(with(first, folder / "by_pointers", {"--out-dtype", name, "--grouping", "pointers"}));
    EXPECT_TRUE(read_file(folder / "by_pointers") == read_file(folder / "out"));
  }
  // The second product, once from row-major scales and once from the blocked ones.
  run_well(with(first, folder / "out", {"--out-dtype", "mxfp4"}));
  const std::vector<uint8_t> weights(size_t(groups * 32 * width / 2), 0x2a);
  const std::vector<cli::TensorToWrite> more = {{"b", "U8", {groups, 32, width / 2}, weights},
                                                {"offsets", "I32", {groups}, sizes}};
  std::vector<cli::TensorToWrite> row_major = more, blocked = more;
  row_major.push_back(
      {"sfb", "U8", {groups, 32, width / 32}, std::vector<uint8_t>(size_t(groups * 32 * width / 32), 127)});
  std::vector<uint8_t> tiles(size_t(groups) * 512, 0);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < 32; ++r) std::memset(&tiles[size_t(g * 512 + blocked_scale_index(r, 0, width))], 127, 3);
  }
  blocked.push_back({"sfb", "U8", {groups * 512}, tiles});
  rename("out", "second", {{"out", "a"}, {"out_scales", "sfa"}}, row_major);
  run_well({"gemm", folder / "second", folder / "result", "--out-dtype", "f32"});

  rename("q", "again", {{"a", "a"}, {"b", "b"}, {"offsets", "offsets"}}, [&] {
    run_well({"quantize", folder / "in", folder / "qb", "--format", "mxfp4", "--tensors", "b", "--scales", "blocked"});
    const cli::SafetensorsReader q(folder / "q"), qb(folder / "qb");
    // Offsets: a tile of 128 rows for each group, and one to spare.
    std::vector<uint8_t> sfa(2 * 512, 0);
    const auto rows = q.read("a_scales");
    for (int64_t r = 0; r < tokens; ++r) {
      const int64_t g = r < 13 ? 0 : 1, within = r < 13 ? r : r - 13;
      std::memcpy(&sfa[size_t(g * 512 + blocked_scale_index(within, 0, hidden))], &rows[size_t(r * 2)], 2);
    }
    const auto sfb = qb.read("b_scales");
    return std::vector<cli::TensorToWrite>{{"sfa", "U8", {int64_t(sfa.size())}, sfa},
                                           {"sfb", "U8", {int64_t(sfb.size())}, sfb}};
  }());
  Strings again = with(first, folder / "out", {"--out-dtype", "mxfp4", "--scales", "blocked"});
  again[1] = folder / "again";
  run_well(again);
  rename("out", "second", {{"out", "a"}, {"out_scales", "sfa"}}, blocked);
  run_well({"gemm", folder / "second", folder / "result2", "--out-dtype", "f32", "--scales", "blocked"});
  EXPECT_EQ(read_file(folder / "result"), read_file(folder / "result2"));
}

TEST(Demo, OfBf16Passes) {
  const Finished finished = run_moxie({"demo", "--tokens", "1"}, simulated("sm_90a"));
  EXPECT_EQ(finished.status, 0);
  EXPECT_EQ(finished.err,
            "opening the device ...\ncompiling the kernels, or loading them from the cache ...\nmaking 4 of 32 experts "
            "...\nrunning on the simulator ...\nchecking in double precision ...\n");
  EXPECT_TRUE(std::regex_match(
      finished.out,
      std::regex(R"(GPT-OSS-20B expert layer: 32 experts \(28 of them empty\), 1 tokens x 4 = 4 rows, width 2880,
router, biases, swiglu-oai, interleaved gate, weighted sum

device     Moxie simulator \(sm_90a\) \(simulated\)
up         .*
down       .*
time       .* s to simulate
router     0 of 4 choices differ
error      1[.]6[567]e-03 of at most 4e-03 \(relative, 1 of 1 tokens\); worst element 0[.]2[345] of its bound
result     PASS
)"))) << finished.out;
}

TEST(Demo, OfMxfp4Passes) {
  const Finished finished = run_moxie({"demo", "--arch", "sm_100a", "--tokens", "3"}, simulated("sm_90a"));
  EXPECT_EQ(finished.status, 0);
  EXPECT_EQ(finished.err,
            "opening the device ...\ncompiling the kernels, or loading them from the cache ...\nmaking 4 experts of "
            "5760 x 2880 ...\nrunning on the simulator ...\nchecking in double precision ...\n");
  EXPECT_TRUE(std::regex_match(
      finished.out,
      std::regex(
          R"(GPT-OSS-20B expert layer in MXFP4, first product: 4 of its experts \(1 of them empty\), 3 tokens x 2 = 6 )"
          R"(rows, 5760 x 2880,
bias, swiglu-oai, interleaved gate and MXFP4 output in one kernel

device     Moxie simulator \(sm_100a\)
kernel     mxfp4 .*
time       .* s to simulate
error      (4[.]9|5[.][0-5])[0-9]e-08 \(float32 output, relative, whole result\); worst element 0[.]0[0-9] of its bound
quantized  0 bytes of 17280 elements and scales differ from the rounded float32 output
result     PASS
)"))) << finished.out;
}

struct Wrong {
  const char* name;
  Strings arguments;
  const char* says;
};
void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }
class WrongQuantize : public testing::TestWithParam<Wrong> {};
TEST_P(WrongQuantize, IsRefusedInOneSentence) {
  const Folder folder;
  RawFile file;
  file.add("x", "F32", {4, 64}).add("i", "I32", {4, 64}).add("flat", "F32", {64}).add("odd", "BF16", {4, 48});
  file.add("y", "BF16", {2, 32}).add("y_scales", "U8", {7}).add("q", "U8", {4, 32}).add("q_scales", "U8", {4, 3});
  file.add("w", "F32", {4, 64}).add("w_scales", "F32", {4, 64}).add("four", "F32", {1, 1, 4, 64});
  file.add("alone", "U8", {4, 32}).add("typed", "U8", {4, 32}).add("typed_scales", "I8", {4, 2});
  file.add("n", "U8", {4, 32}).add("n_scales", "U8", {4, 4}).add("s", "U8", {4, 32}).add("s_scales", "U8", {4, 4});
  file.add("s_tensor_scale", "F32", {2}).add("b", "U8", {4, 32}).add("b_scales", "U8", {4, 4});
  file.add("b_tensor_scale", "BF16", {2}).add("short", "U8", {4, 24}).add("bytes", "F8_E4M3", {4, 40});
  write_file(folder / "in", file.bytes());
  Strings arguments = {"quantize", folder / "in", folder / "out"};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  const Finished finished = run_moxie(arguments, simulated("sm_100a"));
  EXPECT_EQ(finished.status, 2) << finished.err;
  EXPECT_EQ(folder.without_path(finished.err), "moxie: " + std::string(GetParam().says) + "\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}
INSTANTIATE_TEST_SUITE_P(
    Cli, WrongQuantize,
    testing::Values(
        Wrong{"NoFormat", {"--tensors", "x"}, "--format is required (see moxie quantize --help)"},
        Wrong{"Format", {"--format", "mxfp6", "--tensors", "x"}, "--format: 'mxfp6' is none of mxfp4, mxfp8, nvfp4"},
        Wrong{"NoTensors", {"--format", "mxfp4"}, "--tensors is required (see moxie quantize --help)"},
        Wrong{"Missing", {"--format", "mxfp4", "--tensors", "z"}, "tensor 'z' is missing"},
        Wrong{"Twice", {"--format", "mxfp4", "--tensors", "x,x"}, "--tensors: 'x' is named twice"},
        Wrong{"Type",
              {"--format", "mxfp4", "--tensors", "i"},
              "tensor 'i' is I32, to be quantized it must be BF16 or F32"},
        Wrong{"Rank",
              {"--format", "mxfp4", "--tensors", "flat"},
              "tensor 'flat' is [64], it must be [rows, K] or [groups, rows, K]"},
        Wrong{"Depth",
              {"--format", "mxfp4", "--tensors", "odd"},
              "tensor 'odd' is [4, 48], its last extent (K) must be a multiple of 32"},
        Wrong{"NameTaken",
              {"--format", "mxfp4", "--tensors", "y"},
              "tensor 'y_scales' is there already, 'y' would become one of that name"},
        Wrong{"Layout",
              {"--format", "mxfp4", "--tensors", "x", "--scales", "tiles"},
              "--scales: 'tiles' is none of blocked, row-major"},
        Wrong{"Place", {"--format", "mxfp4", "--tensors", "x", "--on", "gpu"}, "--on: 'gpu' is none of host, device"},
        Wrong{"ReverseOfFloats",
              {"--format", "mxfp4", "--tensors", "x", "--reverse"},
              "tensor 'x' is F32, to be dequantized it must be U8"},
        Wrong{"ReverseScales",
              {"--format", "mxfp4", "--tensors", "q", "--reverse"},
              "tensor 'q_scales' has 12 bytes, with 'q' it must have 8"},
        Wrong{"ReverseTensorScale",
              {"--format", "nvfp4", "--tensors", "q", "--reverse"},
              "tensor 'q_scales' has 12 bytes, with 'q' it must have 16"},
        Wrong{"RankFour",
              {"--format", "mxfp4", "--tensors", "four"},
              "tensor 'four' is [1, 1, 4, 64], it must be [rows, K] or [groups, rows, K]"},
        Wrong{"DepthOfNvfp4",
              {"--format", "nvfp4", "--tensors", "x,odd,flat"},
              "tensor 'flat' is [64], it must be [rows, K] or [groups, rows, K]"},
        Wrong{"DepthOfMxfp8",
              {"--format", "mxfp8", "--tensors", "odd"},
              "tensor 'odd' is [4, 48], its last extent (K) must be a multiple of 32"},
        Wrong{"OneName",
              {"--format", "mxfp4", "--tensors", "w,w_scales"},
              "--tensors: two of them would become 'w_scales'"},
        Wrong{
            "DType", {"--format", "mxfp4", "--tensors", "x", "--dtype", "f64"}, "--dtype: 'f64' is none of bf16, f32"},
        Wrong{"ReverseMissing",
              {"--format", "mxfp4", "--tensors", "alone", "--reverse"},
              "tensor 'alone_scales' is missing"},
        Wrong{"ReverseScaleType",
              {"--format", "mxfp4", "--tensors", "typed", "--reverse"},
              "tensor 'typed_scales' is I8, it must be U8"},
        Wrong{"ReverseNoTensorScale",
              {"--format", "nvfp4", "--tensors", "n", "--reverse"},
              "tensor 'n_tensor_scale' is missing, which NVFP4 needs"},
        Wrong{"ReverseTwoTensorScales",
              {"--format", "nvfp4", "--tensors", "s", "--reverse"},
              "tensor 's_tensor_scale' is F32 [2], it must be one F32"},
        Wrong{"ReverseTensorScaleType",
              {"--format", "nvfp4", "--tensors", "b", "--reverse"},
              "tensor 'b_tensor_scale' is BF16 [2], it must be one F32"},
        Wrong{"ReverseDepth",
              {"--format", "mxfp4", "--tensors", "short", "--reverse"},
              "tensor 'short' is [4, 48], its last extent (K) must be a multiple of 32"},
        Wrong{"ReverseDepthOfMxfp8",
              {"--format", "mxfp8", "--tensors", "bytes", "--reverse"},
              "tensor 'bytes' is [4, 40], its last extent (K) must be a multiple of 32"},
        Wrong{"ReverseTypeOfMxfp8",
              {"--format", "mxfp8", "--tensors", "q", "--reverse"},
              "tensor 'q' is U8, to be dequantized it must be F8_E4M3"},
        Wrong{"ReverseBlocked",
              {"--format", "mxfp4", "--tensors", "q", "--reverse", "--scales", "blocked"},
              "tensor 'q_scales' has 12 bytes, with 'q' it must have 512"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moxie::test
