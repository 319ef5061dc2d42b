// SPDX-License-Identifier: Apache-2.0
// Wrong usage and wrong files: exit status 2, one line on stderr that names the tensor or option and the rule, nothing
// on stdout and no output file.
#include <unistd.h>

#include <climits>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/output_file.h"
#include "cli/safetensors.h"
#include "tests/cli/program.h"

namespace moxie::test {
namespace {

using Strings = std::vector<std::string>;
using testing::HasSubstr;

// `says` is the whole sentence. DIR stands for the folder of the test's files.
// "(..." at its end stands for what the JSON library says.
void expect_refused(const Finished& finished, const Folder& folder, const std::string& says, int status = 2) {
  EXPECT_EQ(finished.status, status) << finished.err;
  EXPECT_EQ(finished.out, "");
  const std::string sentence = folder.without_path(finished.err);
  const size_t foreign = says.ends_with("(...") ? says.size() - 3 : std::string::npos;
  if (foreign == std::string::npos) {
    EXPECT_EQ(sentence, "moxie: " + says + "\n");
  } else {
    EXPECT_EQ(finished.lines_on_stderr(), 1) << finished.err;
    EXPECT_THAT(sentence, testing::StartsWith("moxie: " + says.substr(0, foreign)));
    EXPECT_THAT(sentence, testing::EndsWith(")\n"));
  }
}

// Two groups of rows, K 64, N 32.
RawFile grouped() {
  RawFile file;
  file.add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {4, 10});
  return file;
}

struct UsageCase {
  std::string name;
  Strings arguments;  // IN and OUT stand for a good file and a path beside it
  std::string says;
};

void PrintTo(const UsageCase& c, std::ostream* out) { *out << c.name; }
template <class T>
std::string case_name(const testing::TestParamInfo<T>& info) {
  return info.param.name;
}

class WrongUsage : public testing::TestWithParam<UsageCase> {};

TEST_P(WrongUsage, IsRefused) {
  const Folder folder;
  write_file(folder / "in.safetensors", grouped().bytes());
  Strings arguments = GetParam().arguments;
  for (auto& argument : arguments) {
    if (argument == "IN") argument = folder / "in.safetensors";
    if (argument == "OUT") argument = folder / "out.safetensors";
    if (argument == "FOLDER") argument = folder.path();
    if (argument == "NOWHERE") argument = folder / "absent/out.safetensors";
    if (argument == "BELOW_A_FILE") argument = folder / "in.safetensors/out.safetensors";
  }
  expect_refused(run_moxie(arguments), folder, GetParam().says);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.safetensors"));
  EXPECT_EQ(read_file(folder / "in.safetensors"), grouped().bytes());
}

INSTANTIATE_TEST_SUITE_P(
    Cli, WrongUsage,
    testing::ValuesIn(std::vector<UsageCase>{
        {"no_command", {}, "no command was given; see moxie --help"},
        {"unknown_command", {"multiply"}, "The following argument was not expected: multiply (see moxie --help)"},
        {"no_input", {"gemm"}, "IN is required (see moxie gemm --help)"},
        {"no_output", {"gemm", "IN"}, "OUT is required (see moxie gemm --help)"},
        {"third_file",
         {"gemm", "IN", "OUT", "more"},
         "The following argument was not expected: more (see moxie gemm --help)"},
        {"unknown_option",
         {"gemm", "IN", "OUT", "--fast"},
         "The following argument was not expected: --fast (see moxie gemm --help)"},
        {"activation",
         {"gemm", "IN", "OUT", "--activation", "swish"},
         "--activation: 'swish' is none of none, relu, relu2, gelu, gelu-erf, silu, swiglu, swiglu-oai, geglu, reglu, "
         "swiglu-clamped, situ"},
        {"activation_without_value",
         {"gemm", "IN", "OUT", "--activation"},
         "--activation: 1 required TEXT missing (see moxie gemm --help)"},
        {"gate",
         {"gemm", "IN", "OUT", "--activation", "swiglu", "--gate", "halves"},
         "--gate: 'halves' is none of interleaved, split, split-up-first"},
        {"gate_without_gated_form",
         {"gemm", "IN", "OUT", "--activation", "relu2", "--gate", "split"},
         "--gate: --activation relu2 has no gated form; silu, gelu, relu and the gated ones have"},
        {"gate_of_none",
         {"gemm", "IN", "OUT", "--gate", "split"},
         "--gate: --activation none has no gated form; silu, gelu, relu and the gated ones have"},
        {"outputs",
         {"gemm", "IN", "OUT", "--outputs", "pre,post"},
         "--outputs: 'pre,post' is none of pre, out, pre,out"},
        {"outputs_twice",
         {"gemm", "IN", "OUT", "--outputs", "out,out"},
         "--outputs: 'out,out' is none of pre, out, pre,out"},
        {"out_dtype",
         {"gemm", "IN", "OUT", "--out-dtype", "f16"},
         "--out-dtype: 'f16' is none of bf16, f32, mxfp4, mxfp8, nvfp4"},
        {"pre_dtype",
         {"gemm", "IN", "OUT", "--pre-dtype", "f64"},
         "--pre-dtype: 'f64' is none of bf16, f32, mxfp4, mxfp8, nvfp4"},
        {"grouping", {"gemm", "IN", "OUT", "--grouping", "rows"}, "--grouping: 'rows' is none of auto, pointers"},
        {"sizes", {"gemm", "IN", "OUT", "--sizes", "both"}, "--sizes: 'both' is none of device, host"},
        {"schedule",
         {"gemm", "IN", "OUT", "--schedule", "ping-pong"},
         "--schedule: 'ping-pong' is none of auto, cooperative, pingpong"},
        {"tile_without_columns",
         {"gemm", "IN", "OUT", "--tile", "128"},
         "--tile: '128' is not ROWSxCOLUMNS, such as 128x256"},
        {"tile_with_more",
         {"gemm", "IN", "OUT", "--tile", "128x128x64"},
         "--tile: '128x128x64' is not ROWSxCOLUMNS, such as 128x256"},
        {"tile_not_a_number",
         {"gemm", "IN", "OUT", "--tile", "largexsmall"},
         "--tile: 'largexsmall' is not ROWSxCOLUMNS, such as 128x256"},
        {"tile_of_a_width_there_is_not",
         {"gemm", "IN", "OUT", "--tile", "128x100"},
         "tile_n is 100, but only 64 to 256 in steps of 32 are possible"},
        {"tile_of_a_height_there_is_not",
         {"gemm", "IN", "OUT", "--tile", "96x128"},
         "tile_m is 96, but only 8, 64, 128 and 256 are possible"},
        {"cluster", {"gemm", "IN", "OUT", "--cluster", "3"}, "--cluster: 3 is neither 1 nor 2"},
        {"cluster_not_a_number",
         {"gemm", "IN", "OUT", "--cluster", "two"},
         "Could not convert: --cluster = two (see moxie gemm --help)"},
        {"multicast",
         {"gemm", "IN", "OUT", "--multicast", "c"},
         "--multicast: 'c' is none of auto, none, a, b, either"},
        {"alpha_not_a_number",
         {"gemm", "IN", "OUT", "--alpha", "big"},
         "Could not convert: --alpha = big (see moxie gemm --help)"},
        {"alpha_nan", {"gemm", "IN", "OUT", "--alpha", "nan"}, "--alpha: must be a finite number"},
        {"limit_zero", {"gemm", "IN", "OUT", "--limit", "0"}, "--limit: 0 is not positive"},
        {"limit_negative", {"gemm", "IN", "OUT", "--limit=-7"}, "--limit: -7 is not positive"},
        {"limit_nan", {"gemm", "IN", "OUT", "--limit", "nan"}, "--limit: nan is not positive"},
        {"gate_limit_zero", {"gemm", "IN", "OUT", "--gate-limit", "0"}, "--gate-limit: 0 is not positive"},
        {"up_limit_negative", {"gemm", "IN", "OUT", "--up-limit=-1"}, "--up-limit: -1 is not positive"},
        {"beta_infinite", {"gemm", "IN", "OUT", "--beta", "inf"}, "--beta: inf is not positive and finite"},
        {"linear_beta_zero",
         {"gemm", "IN", "OUT", "--linear-beta", "0"},
         "--linear-beta: 0 is not positive and finite"},
        {"output_is_the_input", {"gemm", "IN", "IN"}, "OUT: DIR/in.safetensors is the input file"},
        {"output_is_a_folder", {"gemm", "IN", "FOLDER"}, "DIR: cannot be written: it exists and is not a regular file"},
        {"output_is_a_device",
         {"gemm", "IN", "/dev/null"},
         "/dev/null: cannot be written: it exists and is not a regular file"},
        {"output_in_no_folder",
         {"gemm", "IN", "NOWHERE"},
         "DIR/absent/out.safetensors: cannot be written: DIR/absent: No such file or directory"},
        {"output_below_a_file",
         {"gemm", "IN", "BELOW_A_FILE"},
         "DIR/in.safetensors/out.safetensors: cannot be written: DIR/in.safetensors: Not a directory"},
        {"input_absent",
         {"gemm", "absent.safetensors", "OUT"},
         "absent.safetensors: cannot be opened: No such file or directory"},
        {"input_is_a_folder", {"gemm", "FOLDER", "OUT"}, "DIR: is not a regular file"},
        {"plan_without_shape", {"plan", "128"}, "N is required (see moxie plan --help)"},
        {"plan_negative_rows", {"plan", "-5", "128", "64"}, "m is -5, but cannot be negative"},
        {"plan_odd_columns", {"plan", "128", "100", "64"}, "n is 100, but must be a multiple of 8"},
        {"plan_odd_sums", {"plan", "128", "128", "63"}, "k is 63, but must be a multiple of 8 with bf16 operands"},
        {"plan_no_groups", {"plan", "128", "128", "64", "--groups", "0"}, "--groups: 0, but a dense product has 1"},
        {"plan_unknown_grouping",
         {"plan", "128", "128", "64", "--grouping", "tree"},
         "--grouping: 'tree' is none of dense, batched, offsets, row-groups, masked, pointers, k-groups"},
        {"plan_other_architecture",
         {"plan", "128", "128", "64", "--arch", "80"},
         "--arch: '80' is none of sm_90a, sm_100a, 90, 100"},
        {"plan_unknown_format",
         {"plan", "128", "128", "64", "--format", "fp4"},
         "--format: 'fp4' is none of bf16, mxfp4, nvfp4"},
        {"plan_format_of_blackwell",
         {"plan", "128", "128", "64", "--format", "nvfp4"},
         "the device is of architecture sm_90a, but nvfp4 operands need sm_100a"},
        {"plan_odd_blocks",
         {"plan", "8", "64", "40", "--format", "nvfp4", "--arch", "sm_100a"},
         "k is 40, but must be a multiple of 32 with nvfp4 operands"},
        {"plan_swap",
         {"plan", "8", "64", "64", "--arch", "sm_100a", "--swap", "maybe"},
         "--swap: 'maybe' is none of auto, on, off"},
        {"plan_schedule_of_hopper",
         {"plan", "8", "64", "64", "--arch", "sm_100a", "--schedule", "pingpong"},
         "--schedule: the kernels of sm_100a have only one schedule"},
        {"plan_multicast_of_hopper",
         {"plan", "8", "64", "64", "--arch", "sm_100a", "--multicast", "a"},
         "--multicast: the kernels of sm_100a have no multicast"},
        {"plan_scheduler_of_blackwell",
         {"plan", "8", "64", "64", "--scheduler", "launch-control"},
         "--scheduler: launch-control is for sm_100a, the kernels of sm_90a have static scheduling"},
        {"plan_swap_of_blackwell",
         {"plan", "8", "64", "64", "--swap", "on"},
         "--swap: the kernels of sm_90a do not swap their operands"},
        {"plan_groups_of_a_dense_product",
         {"plan", "8", "64", "64", "--grouping", "dense", "--groups", "2"},
         "--groups: 2, but a dense product has 1"},
        {"plan_negative_rows_of_row_groups",
         {"plan", "-5", "64", "64", "--grouping", "row-groups", "--groups", "2"},
         "rows.total is -5, but cannot be negative"},
        {"plan_no_tokens",
         {"plan", "0", "64", "64", "--ranks", "2", "--groups", "8"},
         "M: 0 tokens of a rank, but must be 1 to 1048576"},
        {"plan_tokens_of_a_rank",
         {"plan", "1048577", "64", "64", "--ranks", "2", "--groups", "8"},
         "M: 1048577 tokens of a rank, but must be 1 to 1048576"},
        {"plan_device",
         {"plan", "8", "64", "64", "--device", "a100"},
         "--device: 'a100' is none of h100-sxm, h100-pcie, h200, h20, gh200, b200"},
        {"plan_device_arch",
         {"plan", "8", "64", "64", "--device", "h20", "--arch", "sm_100a"},
         "--arch: sm_100a, but --device h20 is sm_90a"},
        {"plan_no_processors", {"plan", "8", "64", "64", "--sms", "0"}, "sm_count is 0, but must be at least 1"},
        {"demo_tokens", {"demo", "--tokens=-1"}, "--tokens: -1 is not 1 to 1048576"},
        {"demo_arch", {"demo", "--arch", "sm_80"}, "--arch: 'sm_80' is none of sm_90a, sm_100a"},
        {"bench_extent", {"bench", "--m", "0"}, "--groups, --m, --n, --k: 0 is not 1 to 1048576"},
        {"bench_arch", {"bench", "--arch", "sm_80"}, "--arch: 'sm_80' is none of sm_90a, sm_100a"},
        {"bench_format", {"bench", "--format", "fp8"}, "--format: 'fp8' is none of bf16, mxfp4, nvfp4"},
    }),
    case_name<UsageCase>);

// A file whose tensor has other bytes than its type and shape say would be refused.
TEST(Safetensors, EveryTypeHasItsSize) {
  const std::pair<const char*, int> sizes[] = {
      {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"U16", 2}, {"I16", 2},
      {"F16", 2},  {"BF16", 2}, {"U32", 4}, {"I32", 4},     {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  const Folder folder;
  for (const auto& [type, size] : sizes) {
    const std::string fields = R"("shape":[5],"data_offsets":[0,)" + std::to_string(5 * size) + "]";
    write_file(folder / type, RawFile::with_header(std::string(R"({"a":{"dtype":")") + type + "\"," + fields + "}}",
                                                   std::string(size_t(5 * size), 'x')));
    try {
      EXPECT_EQ(cli::SafetensorsReader(folder / type).find("a")->dtype, type);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

struct FileCase {
  std::string name;
  std::string bytes;
  std::string says;
  Strings options = {};
};

void PrintTo(const FileCase& c, std::ostream* out) { *out << c.name; }

class WrongFile : public testing::TestWithParam<FileCase> {};

TEST_P(WrongFile, IsRefused) {
  const Folder folder;
  write_file(folder / "in.safetensors", GetParam().bytes);
  Strings arguments = {"gemm", folder / "in.safetensors", folder / "out.safetensors"};
  arguments.insert(arguments.end(), GetParam().options.begin(), GetParam().options.end());
  expect_refused(run_moxie(arguments), folder, GetParam().says);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.safetensors"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "something was left behind";
}

std::string entry(const std::string& fields) {
  return RawFile::with_header("{\"a\":{" + fields + "}}", std::string(16, 0));
}

std::string length_of(uint64_t bytes) {
  std::string head(8, '\0');
  for (size_t i = 0; i < 8; ++i) head[i] = static_cast<char>(bytes >> (8 * i));
  return head + "{}";
}

std::string without_last_byte(std::string bytes) {
  bytes.pop_back();
  return bytes;
}

INSTANTIATE_TEST_SUITE_P(
    Header, WrongFile,
    testing::ValuesIn(std::vector<FileCase>{
        {"empty", "", "DIR/in.safetensors: has 0 bytes, a safetensors file has at least 8"},
        {"seven_bytes", "1234567", "DIR/in.safetensors: has 7 bytes, a safetensors file has at least 8"},
        {"header_of_2_to_the_60", length_of(1ull << 60),
         "DIR/in.safetensors: its header would be 1152921504606846976 bytes long, at most 100000000 are allowed"},
        {"header_of_2_to_the_64", length_of(~0ull),
         "DIR/in.safetensors: its header would be 18446744073709551615 bytes long, at most 100000000 are allowed"},
        {"header_past_the_end", length_of(1000),
         "DIR/in.safetensors: its header would be 1000 bytes long, only 2 follow"},
        {"no_json", RawFile::with_header("not json"), "DIR/in.safetensors: its header is not valid JSON in UTF-8 (..."},
        {"cut_json", RawFile::with_header("{\"a\":{"),
         "DIR/in.safetensors: its header is not valid JSON in UTF-8 (..."},
        {"no_utf8", RawFile::with_header("{\"\xff\xfe\":1}"),
         "DIR/in.safetensors: its header is not valid JSON in UTF-8 (..."},
        {"a_list", RawFile::with_header("[1]"), "DIR/in.safetensors: its header must be a JSON object"},
        {"deep", RawFile::with_header(std::string(100000, '[')), "DIR/in.safetensors: its header is nested too deeply"},
        {"twice", RawFile::with_header(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}})"),
         "DIR/in.safetensors: its header names 'a' twice"},
        {"field_twice", entry(R"("dtype":"U8","dtype":"U8","shape":[16],"data_offsets":[0,16])"),
         "DIR/in.safetensors: its header names 'dtype' twice"},
        {"metadata", RawFile::with_header(R"({"__metadata__":{"x":1}})"),
         "DIR/in.safetensors: __metadata__ must be an object of strings"},
        {"no_dtype", entry(R"("shape":[8],"data_offsets":[0,16])"),
         "DIR/in.safetensors: tensor 'a' must have dtype, shape and data_offsets"},
        {"no_offsets", entry(R"("dtype":"BF16","shape":[8])"),
         "DIR/in.safetensors: tensor 'a' must have dtype, shape and data_offsets"},
        {"unknown_dtype", entry(R"("dtype":"BF17","shape":[8],"data_offsets":[0,16])"),
         "DIR/in.safetensors: tensor 'a': dtype 'BF17' is not known"},
        {"dtype_a_number", entry(R"("dtype":7,"shape":[8],"data_offsets":[0,16])"),
         "DIR/in.safetensors: tensor 'a': dtype must be a string"},
        {"shape_negative", entry(R"("dtype":"BF16","shape":[-8],"data_offsets":[0,16])"),
         "DIR/in.safetensors: tensor 'a': shape must be a list of integers from 0 up"},
        {"shape_a_fraction", entry(R"("dtype":"BF16","shape":[8.0],"data_offsets":[0,16])"),
         "DIR/in.safetensors: tensor 'a': shape must be a list of integers from 0 up"},
        {"shape_a_number", entry(R"("dtype":"BF16","shape":8,"data_offsets":[0,16])"),
         "DIR/in.safetensors: tensor 'a': shape must be a list of integers from 0 up"},
        {"shape_overflows", entry(R"("dtype":"BF16","shape":[4294967296,4294967296],"data_offsets":[0,16])"),
         "DIR/in.safetensors: tensor 'a': shape [4294967296, 4294967296] has more than 2^64 bytes"},
        {"shape_past_int64", entry(R"("dtype":"BF16","shape":[18446744073709551615],"data_offsets":[0,16])"),
         "DIR/in.safetensors: tensor 'a': shape has an extent of 18446744073709551615"},
        {"offsets_negative", entry(R"("dtype":"BF16","shape":[8],"data_offsets":[-16,0])"),
         "DIR/in.safetensors: tensor 'a': data_offsets must be a list of integers from 0 up"},
        {"offsets_decrease", entry(R"("dtype":"BF16","shape":[8],"data_offsets":[16,0])"),
         "DIR/in.safetensors: tensor 'a': data_offsets 16, 0 decrease"},
        {"offsets_three", entry(R"("dtype":"BF16","shape":[8],"data_offsets":[0,8,16])"),
         "DIR/in.safetensors: tensor 'a': data_offsets must be two integers"},
        {"offsets_past_the_end", entry(R"("dtype":"BF16","shape":[16],"data_offsets":[0,32])"),
         "DIR/in.safetensors: tensor 'a': data_offsets end at byte 32, the file holds 16 bytes of data"},
        {"offsets_of_2_to_the_70", entry(R"("dtype":"BF16","shape":[8],"data_offsets":[0,1180591620717411303424])"),
         "DIR/in.safetensors: tensor 'a': data_offsets must be a list of integers from 0 up"},
        {"span_disagrees", entry(R"("dtype":"BF16","shape":[4],"data_offsets":[0,16])"),
         "DIR/in.safetensors: tensor 'a': data_offsets span 16 bytes, [4] of BF16 takes 8"},
        {"span_of_a_later_tensor_disagrees",
         RawFile::with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                              R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[4,16]}})",
                              std::string(16, 0)),
         "DIR/in.safetensors: tensor 'b': data_offsets span 12 bytes, [4] of BF16 takes 8"},
        {"overlap",
         RawFile::with_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                              R"("b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})",
                              std::string(12, 0)),
         "DIR/in.safetensors: tensor 'b': data_offsets overlap another tensor's"},
        {"gap",
         RawFile::with_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                              R"("b":{"dtype":"U8","shape":[8],"data_offsets":[12,20]}})",
                              std::string(20, 0)),
         "DIR/in.safetensors: tensor 'b': data_offsets leave a gap of 4 bytes before it"},
        {"bytes_of_no_tensor", entry(R"("dtype":"BF16","shape":[4],"data_offsets":[0,8])"),
         "DIR/in.safetensors: 8 bytes after the last tensor belong to none"},
        {"truncated", without_last_byte(grouped().bytes()),
         "DIR/in.safetensors: tensor 'offsets': data_offsets end at byte 9480, the file holds 9479 bytes of data"},
        {"newline_in_a_name", RawFile::with_header("{\"x\\ny\":{}}"),
         "DIR/in.safetensors: tensor 'x y' must have dtype, shape and data_offsets"},
    }),
    case_name<FileCase>);

INSTANTIATE_TEST_SUITE_P(
    Tensors, WrongFile,
    testing::ValuesIn(std::vector<FileCase>{
        {"no_tensor", RawFile().bytes(), "tensor 'a' is missing"},
        {"no_b", RawFile().add("a", "BF16", {8, 64}).bytes(), "tensor 'b' is missing"},
        {"a_float32", RawFile().add("a", "F32", {8, 64}).add("b", "BF16", {32, 64}).bytes(),
         "tensor 'a' is F32, it must be BF16"},
        {"b_half", RawFile().add("a", "BF16", {8, 64}).add("b", "F16", {32, 64}).bytes(),
         "tensor 'b' is F16, it must be BF16"},
        {"a_of_rank_1", RawFile().add("a", "BF16", {64}).add("b", "BF16", {32, 64}).bytes(),
         "tensor 'a' is [64], it must be [M, K] or [G, M, K]"},
        {"a_of_rank_4", RawFile().add("a", "BF16", {1, 1, 8, 64}).add("b", "BF16", {32, 64}).bytes(),
         "tensor 'a' is [1, 1, 8, 64], it must be [M, K] or [G, M, K]"},
        {"b_of_no_group", RawFile().add("a", "BF16", {0, 8, 64}).add("b", "BF16", {0, 32, 64}).bytes(),
         "tensor 'b' is [0, 32, 64], it must have a group at least"},
        {"a_dense_b_grouped", RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {2, 32, 64}).bytes(),
         "tensor 'b' is [2, 32, 64], with 'a' [M, K] and no group sizes it must be [N, K]"},
        {"a_batched_b_dense", RawFile().add("a", "BF16", {2, 8, 64}).add("b", "BF16", {32, 64}).bytes(),
         "tensor 'b' is [32, 64], with 'a' [G, M, K] it must be [G, N, K]"},
        {"groups_disagree", RawFile().add("a", "BF16", {3, 8, 64}).add("b", "BF16", {2, 32, 64}).bytes(),
         "tensor 'a' is [3, 8, 64] and 'b' [2, 32, 64], the numbers of groups must be equal"},
        {"k_disagrees", RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {32, 72}).bytes(),
         "tensor 'a' is [8, 64] and 'b' [32, 72], the last extents (K) must be equal"},
        {"k_odd", RawFile().add("a", "BF16", {8, 60}).add("b", "BF16", {32, 60}).bytes(),
         "k is 60, but must be a multiple of 8 with bf16 operands"},
        {"n_odd", RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {28, 64}).bytes(),
         "n is 28, but must be a multiple of 8"},
        {"n_zero", RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {0, 64}).bytes(),
         "tensor 'b' is [0, 64], its last extent but one (N) must not be 0"},
        {"n_odd_for_a_gate",
         RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {24, 64}).bytes(),
         "n is 24, but must be a multiple of 16 with a gated activation",
         {"--activation", "swiglu"}},
        {"rows_past_int32", RawFile().add("a", "BF16", {1ll << 40, 0}).add("b", "BF16", {32, 0}).bytes(),
         "tensor 'a' is [1099511627776, 0], no extent may pass 2^31 - 1"},
        {"bias_float32", grouped().add("bias", "F32", {2, 32}).bytes(), "tensor 'bias' is F32, it must be BF16"},
        {"bias_shape", grouped().add("bias", "BF16", {2, 16}).bytes(),
         "tensor 'bias' is [2, 16], with this 'b' it must be [2, 32]"},
        {"bias_rank", grouped().add("bias", "BF16", {64}).bytes(),
         "tensor 'bias' is [64], with this 'b' it must be [2, 32]"},
        {"offsets_int64",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add("offsets", "I64", {2}).bytes(),
         "tensor 'offsets' is I64, it must be I32"},
        {"offsets_rank",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add("offsets", "I32", {2, 1}).bytes(),
         "tensor 'offsets' is [2, 1], it must be [G]"},
        {"offsets_length",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {1, 2, 3}).bytes(),
         "tensor 'offsets' is [3], with these 'a' and 'b' it must be [2]"},
        {"offsets_decrease",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {6, 5}).bytes(),
         "tensor 'offsets': entry 1 is 5, below 6 where the group starts; offsets must not decrease"},
        {"offsets_negative",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {-1, 5}).bytes(),
         "tensor 'offsets': entry 0 is -1, below 0 where the group starts; offsets must not decrease"},
        {"offsets_past_the_rows",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {5, 11}).bytes(),
         "tensor 'offsets': entry 1 is 11, past the 10 rows of 'a'"},
        {"offsets_with_batched_a",
         RawFile().add("a", "BF16", {2, 10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {5, 10}).bytes(),
         "tensor 'a' is [2, 10, 64], with 'offsets' it must be [M, K]"},
        {"offsets_with_dense_b",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {32, 64}).add_int32("offsets", {10}).bytes(),
         "tensor 'b' is [32, 64], with 'offsets' it must be [G, N, K]"},
        {"indices_length",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("m_indices", {0, 1}).bytes(),
         "tensor 'm_indices' is [2], with these 'a' and 'b' it must be [10]"},
        {"indices_past_the_groups",
         RawFile().add("a", "BF16", {2, 64}).add("b", "BF16", {2, 32, 64}).add_int32("m_indices", {0, 2}).bytes(),
         "tensor 'm_indices': entry 1 is 2, it must be -1 (padding) or 0 to 1"},
        {"indices_below_minus_1",
         RawFile().add("a", "BF16", {2, 64}).add("b", "BF16", {2, 32, 64}).add_int32("m_indices", {-2, 0}).bytes(),
         "tensor 'm_indices': entry 0 is -2, it must be -1 (padding) or 0 to 1"},
        {"indices_not_aligned",
         RawFile().add("a", "BF16", {4, 64}).add("b", "BF16", {2, 32, 64}).add_int32("m_indices", {0, 0, 1, 1}).bytes(),
         "tensor 'm_indices': group 1 starts at row 2, groups must start at multiples of 64"},
        {"indices_as_pointers",
         RawFile().add("a", "BF16", {2, 64}).add("b", "BF16", {2, 32, 64}).add_int32("m_indices", {0, 0}).bytes(),
         "--grouping: tensor 'm_indices' cannot become pointers; offsets, masked_m and equal groups can",
         {"--grouping", "pointers"}},
        {"masked_past_the_rows",
         RawFile().add("a", "BF16", {2, 10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("masked_m", {3, 11}).bytes(),
         "tensor 'masked_m': entry 1 is 11, it must be 0 to 10 (the rows of each group of 'a')"},
        {"masked_negative",
         RawFile().add("a", "BF16", {2, 10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("masked_m", {-3, 1}).bytes(),
         "tensor 'masked_m': entry 0 is -3, it must be 0 to 10 (the rows of each group of 'a')"},
        {"masked_with_flat_a",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("masked_m", {3, 1}).bytes(),
         "tensor 'a' is [10, 64], with 'masked_m' it must be [G, M, K]"},
        {"b_with_one_dimension", RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {64}).bytes(),
         "tensor 'b' is [64], it must be [N, K] or [G, N, K]"},
        {"two_kinds_of_sizes", grouped().add_int32("masked_m", {3, 1}).bytes(),
         "tensors 'offsets' and 'masked_m' are both there, at most one may be"},
    }),
    case_name<FileCase>);

// The extents of an empty tensor may be what they like.
TEST(File, AnEmptyTensorHasNoSizeThatOverflows) {
  for (const char* shape : {"[0,4294967296,4294967296]", "[4294967296,0,4294967296]", "[4294967296,4294967296,0]",
                            "[9223372036854775807,9223372036854775807,9223372036854775807,0]"}) {
    const Folder folder;
    write_file(folder / "in.safetensors", RawFile::with_header("{\"e\":{\"dtype\":\"F32\",\"shape\":" +
                                                               std::string(shape) + ",\"data_offsets\":[0,0]}}"));
    const cli::SafetensorsReader file(folder / "in.safetensors");
    ASSERT_NE(file.find("e"), nullptr);
    EXPECT_EQ(file.find("e")->bytes, 0u);
    EXPECT_EQ(cli::shape_text(file.find("e")->shape).size(),
              std::string(shape).size() + file.find("e")->shape.size() - 1);
  }
}

// The size of a file of the Linux kernel is not that of its text.
TEST(File, MayEndBeforeItsSize) {
  const std::string path = "/sys/kernel/fscaps";
  if (!std::filesystem::exists(path) || std::filesystem::file_size(path) < 8) GTEST_SKIP() << "no " << path;
  const Folder folder;
  expect_refused(run_moxie({"gemm", path, folder / "out"}), folder, path + ": ends before byte 8");
}

// What moxie says of a file whose only tensor has this name and nothing else.
std::string complaint_of(const std::string& name, std::string* path = nullptr) {
  const Folder folder;
  const std::string in = folder / "in.safetensors";
  if (path != nullptr) *path = in;
  write_file(in, RawFile::with_header("{\"" + name + "\":{}}"));
  const Finished finished = run_moxie({"gemm", in, folder / "out.safetensors"});
  EXPECT_EQ(finished.status, 2);
  EXPECT_EQ(finished.lines_on_stderr(), 1) << finished.err;
  return finished.err;
}

TEST(Message, ControlCharactersOfNamesAreReplaced) {
  for (const char* escaped : {"\\u0001", "\\t", "\\u001b", "\\u001f", "\\u007f"})
    EXPECT_THAT(complaint_of(std::string("x") + escaped + "y"), HasSubstr("'x?y'")) << escaped;
  EXPECT_THAT(complaint_of("x\\u0020~\\u00e9y"), HasSubstr("'x ~\xc3\xa9y'"));
  EXPECT_THAT(complaint_of("x\\ny"), HasSubstr("'x y'"));
}

// 600 characters are shown whole, of more the first 600.
TEST(Message, LongOnesAreCut) {
  const std::string program = "moxie: ", rest = "' must have dtype, shape and data_offsets";
  std::string path;
  complaint_of("x", &path);  // every folder's name has the same length
  const size_t room = 600 - (path.size() + std::string(": tensor '").size() + rest.size());
  const std::string whole = complaint_of(std::string(room, 'n'));
  EXPECT_EQ(whole.size(), program.size() + 600 + 1);
  EXPECT_THAT(whole, testing::EndsWith(rest + "\n"));
  const std::string cut = complaint_of(std::string(room + 1, 'n'));
  EXPECT_EQ(cut.size(), program.size() + 600 + 4 + 1);
  EXPECT_THAT(cut, testing::EndsWith(rest.substr(0, rest.size() - 1) + " ...\n"));
  EXPECT_EQ(complaint_of(std::string(5000, 'n')).size(), cut.size());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need more address space than that
TEST(Message, TooLittleMemoryIsAFailureOfTheMachine) {
  const Folder folder;
  const uint64_t length = 99'000'000;
  write_file(folder / "in.safetensors", length_of(length));
  std::filesystem::resize_file(folder / "in.safetensors", 8 + length);
  Setting setting;
  setting.memory_limit = 90 << 20;
  expect_refused(run_moxie({"gemm", folder / "in.safetensors", folder / "out.safetensors"}, setting), folder,
                 "out of memory on the host", 1);
}
#endif

TEST(WrongOutput, AnUnfinishedFileIsClosedAndRemoved) {
  const Folder folder;
  const auto entries = [](const std::filesystem::path& of) {
    return std::distance(std::filesystem::directory_iterator(of), {});
  };
  const auto open_before = entries("/proc/self/fd");
  cli::OutputFile(folder / "out").write("some");
  EXPECT_EQ(entries("/proc/self/fd"), open_before);
  EXPECT_EQ(entries(folder.path()), 0);
}

TEST(WrongOutput, ANameMayBeAsLongAsAFilesCanBe) {
  const Folder folder;
  const std::string longest = folder / std::string(NAME_MAX, 'n'), longer = longest + 'n';
  EXPECT_NO_THROW(cli::check_writable(longest));
  cli::OutputFile file(longest);
  file.write("ab", 2);
  file.finish();
  EXPECT_EQ(read_file(longest), "ab");
  try {
    cli::check_writable(longer);
    ADD_FAILURE() << "it is said to be writable";
  } catch (const cli::InputError& error) {
    EXPECT_EQ(error.what(), longer + ": cannot be written: File name too long");
  }
}

// Root may write everywhere, as far as permissions go.
TEST(WrongOutput, AFolderThatTakesNoFilesIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "permissions refuse the folder already";
  try {
    cli::OutputFile file("/proc/moxie");
    ADD_FAILURE() << "it was opened";
  } catch (const cli::OutputError& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("/proc/moxie: cannot be written: "));
  }
}

TEST(WrongOutput, FullDiskLeavesNothing) {
  const Folder folder;
  write_file(folder / "in.safetensors", RawFile().add("a", "BF16", {64, 64}).add("b", "BF16", {256, 64}).bytes());
  // The limit is below the output's 32 KiB and above nothing else that this run writes: its kernel is in the cache.
  const Finished warm = run_moxie({"gemm", folder / "in.safetensors", folder / "warm.safetensors"});
  ASSERT_EQ(warm.status, 0) << warm.err;
  Setting setting;
  setting.file_limit = 16 << 10;
  expect_refused(run_moxie({"gemm", folder / "in.safetensors", folder / "out.safetensors"}, setting), folder,
                 "DIR/out.safetensors: cannot be written: File too large", 1);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.safetensors"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2) << "something was left behind";
}

}  // namespace
}  // namespace moxie::test
