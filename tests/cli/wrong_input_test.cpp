// SPDX-License-Identifier: Apache-2.0
// Wrong usage and wrong files: exit status 2, one line on stderr that names the tensor or option and the rule, nothing
// on stdout and no output file.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/safetensors.h"
#include "tests/cli/program.h"

namespace moxie::test {
namespace {

using Strings = std::vector<std::string>;
using testing::HasSubstr;

void expect_refused(const Finished& finished, const Strings& words, int status = 2) {
  EXPECT_EQ(finished.status, status) << finished.err;
  EXPECT_EQ(finished.lines_on_stderr(), 1) << finished.err;
  EXPECT_EQ(finished.out, "");
  for (const auto& word : words) EXPECT_THAT(finished.err, HasSubstr(word));
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
  Strings words;
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
  expect_refused(run_moxie(arguments), GetParam().words);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.safetensors"));
  EXPECT_EQ(read_file(folder / "in.safetensors"), grouped().bytes());
}

INSTANTIATE_TEST_SUITE_P(
    Cli, WrongUsage,
    testing::ValuesIn(std::vector<UsageCase>{
        {"no_command", {}, {"no command"}},
        {"unknown_command", {"multiply"}, {"multiply"}},
        {"no_input", {"gemm"}, {"IN"}},
        {"no_output", {"gemm", "IN"}, {"OUT"}},
        {"third_file", {"gemm", "IN", "OUT", "more"}, {"more"}},
        {"unknown_option", {"gemm", "IN", "OUT", "--fast"}, {"--fast"}},
        {"activation", {"gemm", "IN", "OUT", "--activation", "swish"}, {"--activation", "swish", "swiglu-oai"}},
        {"activation_without_value", {"gemm", "IN", "OUT", "--activation"}, {"--activation"}},
        {"gate", {"gemm", "IN", "OUT", "--activation", "swiglu", "--gate", "halves"}, {"--gate", "split-up-first"}},
        {"gate_without_gated_form",
         {"gemm", "IN", "OUT", "--activation", "relu2", "--gate", "split"},
         {"--gate", "relu2"}},
        {"gate_of_none", {"gemm", "IN", "OUT", "--gate", "split"}, {"--gate", "none"}},
        {"outputs", {"gemm", "IN", "OUT", "--outputs", "pre,post"}, {"--outputs", "pre,post"}},
        {"outputs_twice", {"gemm", "IN", "OUT", "--outputs", "out,out"}, {"--outputs", "out,out"}},
        {"out_dtype", {"gemm", "IN", "OUT", "--out-dtype", "f16"}, {"--out-dtype", "f16"}},
        {"pre_dtype", {"gemm", "IN", "OUT", "--pre-dtype", "f64"}, {"--pre-dtype", "f64"}},
        {"grouping", {"gemm", "IN", "OUT", "--grouping", "rows"}, {"--grouping", "rows"}},
        {"sizes", {"gemm", "IN", "OUT", "--sizes", "both"}, {"--sizes", "both"}},
        {"schedule", {"gemm", "IN", "OUT", "--schedule", "ping-pong"}, {"--schedule", "pingpong"}},
        {"tile_without_columns", {"gemm", "IN", "OUT", "--tile", "128"}, {"--tile", "128"}},
        {"tile_with_more", {"gemm", "IN", "OUT", "--tile", "128x128x64"}, {"--tile", "128x128x64"}},
        {"tile_not_a_number", {"gemm", "IN", "OUT", "--tile", "largexsmall"}, {"--tile", "largexsmall"}},
        {"tile_of_a_width_there_is_not", {"gemm", "IN", "OUT", "--tile", "128x100"}, {"tile_n", "100"}},
        {"tile_of_a_height_there_is_not", {"gemm", "IN", "OUT", "--tile", "96x128"}, {"tile_m", "96"}},
        {"cluster", {"gemm", "IN", "OUT", "--cluster", "3"}, {"--cluster", "3"}},
        {"cluster_not_a_number", {"gemm", "IN", "OUT", "--cluster", "two"}, {"--cluster"}},
        {"multicast", {"gemm", "IN", "OUT", "--multicast", "c"}, {"--multicast", "c"}},
        {"alpha_not_a_number", {"gemm", "IN", "OUT", "--alpha", "big"}, {"--alpha"}},
        {"alpha_nan", {"gemm", "IN", "OUT", "--alpha", "nan"}, {"--alpha"}},
        {"limit_zero", {"gemm", "IN", "OUT", "--limit", "0"}, {"--limit"}},
        {"limit_negative", {"gemm", "IN", "OUT", "--limit=-7"}, {"--limit", "-7"}},
        {"limit_nan", {"gemm", "IN", "OUT", "--limit", "nan"}, {"--limit"}},
        {"output_is_the_input", {"gemm", "IN", "IN"}, {"OUT", "input"}},
        {"output_is_a_folder", {"gemm", "IN", "FOLDER"}, {"not a regular file"}},
        {"output_is_a_device", {"gemm", "IN", "/dev/null"}, {"/dev/null", "not a regular file"}},
        {"output_in_no_folder", {"gemm", "IN", "NOWHERE"}, {"cannot be written", "No such file"}},
        {"output_below_a_file", {"gemm", "IN", "BELOW_A_FILE"}, {"cannot be written"}},
        {"input_absent", {"gemm", "absent.safetensors", "OUT"}, {"absent.safetensors", "No such file"}},
        {"input_is_a_folder", {"gemm", "FOLDER", "OUT"}, {"regular file"}},
        {"plan_without_shape", {"plan", "128"}, {"N"}},
        {"plan_negative_rows", {"plan", "-5", "128", "64"}, {"m"}},
        {"plan_odd_columns", {"plan", "128", "100", "64"}, {"n", "100"}},
        {"plan_odd_sums", {"plan", "128", "128", "63"}, {"k", "63"}},
        {"plan_no_groups", {"plan", "128", "128", "64", "--groups", "0"}, {"groups"}},
        {"plan_unknown_grouping", {"plan", "128", "128", "64", "--grouping", "tree"}, {"--grouping", "tree"}},
        {"plan_other_architecture", {"plan", "128", "128", "64", "--arch", "80"}, {"--arch", "80", "sm_100a"}},
        {"plan_unknown_format", {"plan", "128", "128", "64", "--format", "fp4"}, {"--format", "fp4", "mxfp4"}},
        {"plan_format_of_blackwell", {"plan", "128", "128", "64", "--format", "mxfp4"}, {"mxfp4", "sm_100a"}},
        {"plan_odd_blocks", {"plan", "8", "64", "40", "--format", "nvfp4", "--arch", "sm_100a"}, {"k is 40", "nvfp4"}},
        {"plan_swap", {"plan", "8", "64", "64", "--arch", "sm_100a", "--swap", "maybe"}, {"--swap", "maybe"}},
        {"plan_schedule_of_hopper",
         {"plan", "8", "64", "64", "--arch", "sm_100a", "--schedule", "pingpong"},
         {"--schedule", "sm_100a"}},
        {"plan_multicast_of_hopper",
         {"plan", "8", "64", "64", "--arch", "sm_100a", "--multicast", "a"},
         {"--multicast", "sm_100a"}},
        {"plan_scheduler_of_blackwell",
         {"plan", "8", "64", "64", "--scheduler", "launch-control"},
         {"--scheduler", "launch-control", "sm_100a"}},
        {"plan_swap_of_blackwell", {"plan", "8", "64", "64", "--swap", "on"}, {"--swap", "sm_90a"}},
        {"plan_groups_of_a_dense_product",
         {"plan", "8", "64", "64", "--grouping", "dense", "--groups", "2"},
         {"--groups", "dense"}},
        {"plan_negative_rows_of_row_groups",
         {"plan", "-5", "64", "64", "--grouping", "row-groups", "--groups", "2"},
         {"total is -5"}},
        {"plan_device", {"plan", "8", "64", "64", "--device", "a100"}, {"--device", "a100", "h100-pcie"}},
        {"plan_device_arch",
         {"plan", "8", "64", "64", "--device", "h20", "--arch", "sm_100a"},
         {"--arch", "sm_100a", "h20 is sm_90a"}},
        {"plan_no_processors", {"plan", "8", "64", "64", "--sms", "0"}, {"sm_count is 0"}},
        {"demo_tokens", {"demo", "--tokens=-1"}, {"--tokens"}},
        {"demo_arch", {"demo", "--arch", "sm_80"}, {"--arch", "sm_80", "sm_100a"}},
        {"bench_extent", {"bench", "--m", "0"}, {"--m"}},
        {"bench_arch", {"bench", "--arch", "sm_80"}, {"--arch", "sm_80"}},
        {"bench_format", {"bench", "--format", "fp8"}, {"--format", "fp8"}},
    }),
    case_name<UsageCase>);

struct FileCase {
  std::string name;
  std::string bytes;
  Strings words;
  Strings options = {};
};

void PrintTo(const FileCase& c, std::ostream* out) { *out << c.name; }

class WrongFile : public testing::TestWithParam<FileCase> {};

TEST_P(WrongFile, IsRefused) {
  const Folder folder;
  write_file(folder / "in.safetensors", GetParam().bytes);
  Strings arguments = {"gemm", folder / "in.safetensors", folder / "out.safetensors"};
  arguments.insert(arguments.end(), GetParam().options.begin(), GetParam().options.end());
  expect_refused(run_moxie(arguments), GetParam().words);
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
        {"empty", "", {"at least 8"}},
        {"seven_bytes", "1234567", {"at least 8"}},
        {"header_of_2_to_the_60", length_of(1ull << 60), {"header", "1152921504606846976"}},
        {"header_of_2_to_the_64", length_of(~0ull), {"header", "at most"}},
        {"header_past_the_end", length_of(1000), {"header", "1000"}},
        {"no_json", RawFile::with_header("not json"), {"JSON"}},
        {"cut_json", RawFile::with_header("{\"a\":{"), {"JSON"}},
        {"no_utf8", RawFile::with_header("{\"\xff\xfe\":1}"), {"UTF-8"}},
        {"a_list", RawFile::with_header("[1]"), {"object"}},
        {"deep", RawFile::with_header(std::string(100000, '[')), {"nested"}},
        {"twice",
         RawFile::with_header(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}})"),
         {"'a' twice"}},
        {"field_twice", entry(R"("dtype":"U8","dtype":"U8","shape":[16],"data_offsets":[0,16])"), {"'dtype' twice"}},
        {"metadata", RawFile::with_header(R"({"__metadata__":{"x":1}})"), {"__metadata__"}},
        {"no_dtype", entry(R"("shape":[8],"data_offsets":[0,16])"), {"'a'", "dtype"}},
        {"no_offsets", entry(R"("dtype":"BF16","shape":[8])"), {"'a'", "data_offsets"}},
        {"unknown_dtype", entry(R"("dtype":"BF17","shape":[8],"data_offsets":[0,16])"), {"'a'", "BF17"}},
        {"dtype_a_number", entry(R"("dtype":7,"shape":[8],"data_offsets":[0,16])"), {"'a'", "dtype"}},
        {"shape_negative", entry(R"("dtype":"BF16","shape":[-8],"data_offsets":[0,16])"), {"'a'", "shape"}},
        {"shape_a_fraction", entry(R"("dtype":"BF16","shape":[8.0],"data_offsets":[0,16])"), {"'a'", "shape"}},
        {"shape_a_number", entry(R"("dtype":"BF16","shape":8,"data_offsets":[0,16])"), {"'a'", "shape"}},
        {"shape_overflows",
         entry(R"("dtype":"BF16","shape":[4294967296,4294967296],"data_offsets":[0,16])"),
         {"'a'", "2^64"}},
        {"shape_past_int64",
         entry(R"("dtype":"BF16","shape":[18446744073709551615],"data_offsets":[0,16])"),
         {"'a'", "shape"}},
        {"offsets_negative", entry(R"("dtype":"BF16","shape":[8],"data_offsets":[-16,0])"), {"'a'", "data_offsets"}},
        {"offsets_decrease", entry(R"("dtype":"BF16","shape":[8],"data_offsets":[16,0])"), {"'a'", "decrease"}},
        {"offsets_three", entry(R"("dtype":"BF16","shape":[8],"data_offsets":[0,8,16])"), {"'a'", "two"}},
        {"offsets_past_the_end", entry(R"("dtype":"BF16","shape":[16],"data_offsets":[0,32])"), {"'a'", "32", "16"}},
        {"offsets_of_2_to_the_70",
         entry(R"("dtype":"BF16","shape":[8],"data_offsets":[0,1180591620717411303424])"),
         {"'a'", "data_offsets"}},
        {"span_disagrees", entry(R"("dtype":"BF16","shape":[4],"data_offsets":[0,16])"), {"'a'", "span 16"}},
        {"overlap",
         RawFile::with_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                              R"("b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})",
                              std::string(12, 0)),
         {"overlap"}},
        {"gap",
         RawFile::with_header(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                              R"("b":{"dtype":"U8","shape":[8],"data_offsets":[12,20]}})",
                              std::string(20, 0)),
         {"'b'", "gap"}},
        {"bytes_of_no_tensor", entry(R"("dtype":"BF16","shape":[4],"data_offsets":[0,8])"), {"8 bytes after"}},
        {"truncated", without_last_byte(grouped().bytes()), {"data_offsets end"}},
        {"newline_in_a_name", RawFile::with_header("{\"x\\ny\":{}}"), {"x y"}},
    }),
    case_name<FileCase>);

INSTANTIATE_TEST_SUITE_P(
    Tensors, WrongFile,
    testing::ValuesIn(std::vector<FileCase>{
        {"no_tensor", RawFile().bytes(), {"'a' is missing"}},
        {"no_b", RawFile().add("a", "BF16", {8, 64}).bytes(), {"'b' is missing"}},
        {"a_float32", RawFile().add("a", "F32", {8, 64}).add("b", "BF16", {32, 64}).bytes(), {"'a'", "F32", "BF16"}},
        {"b_half", RawFile().add("a", "BF16", {8, 64}).add("b", "F16", {32, 64}).bytes(), {"'b'", "F16", "BF16"}},
        {"a_of_rank_1", RawFile().add("a", "BF16", {64}).add("b", "BF16", {32, 64}).bytes(), {"'a'", "[64]", "[M, K]"}},
        {"a_of_rank_4",
         RawFile().add("a", "BF16", {1, 1, 8, 64}).add("b", "BF16", {32, 64}).bytes(),
         {"'a'", "[1, 1, 8, 64]"}},
        {"b_of_no_group",
         RawFile().add("a", "BF16", {0, 8, 64}).add("b", "BF16", {0, 32, 64}).bytes(),
         {"'b'", "a group"}},
        {"a_dense_b_grouped",
         RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {2, 32, 64}).bytes(),
         {"'b'", "[N, K]"}},
        {"a_batched_b_dense",
         RawFile().add("a", "BF16", {2, 8, 64}).add("b", "BF16", {32, 64}).bytes(),
         {"'b'", "[G, N, K]"}},
        {"groups_disagree",
         RawFile().add("a", "BF16", {3, 8, 64}).add("b", "BF16", {2, 32, 64}).bytes(),
         {"'a'", "'b'", "groups"}},
        {"k_disagrees", RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {32, 72}).bytes(), {"'a'", "'b'", "(K)"}},
        {"k_odd", RawFile().add("a", "BF16", {8, 60}).add("b", "BF16", {32, 60}).bytes(), {"k is 60", "multiple of 8"}},
        {"n_odd", RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {28, 64}).bytes(), {"n is 28", "multiple of 8"}},
        {"n_zero", RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {0, 64}).bytes(), {"'b'", "(N)"}},
        {"n_odd_for_a_gate",
         RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {24, 64}).bytes(),
         {"n is 24", "multiple of 16"},
         {"--activation", "swiglu"}},
        {"rows_past_int32",
         RawFile().add("a", "BF16", {1ll << 40, 0}).add("b", "BF16", {32, 0}).bytes(),
         {"'a'", "2^31"}},
        {"bias_float32", grouped().add("bias", "F32", {2, 32}).bytes(), {"'bias'", "F32"}},
        {"bias_shape", grouped().add("bias", "BF16", {2, 16}).bytes(), {"'bias'", "[2, 16]", "[2, 32]"}},
        {"bias_rank", grouped().add("bias", "BF16", {64}).bytes(), {"'bias'", "[64]", "[2, 32]"}},
        {"offsets_int64",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add("offsets", "I64", {2}).bytes(),
         {"'offsets'", "I64"}},
        {"offsets_rank",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add("offsets", "I32", {2, 1}).bytes(),
         {"'offsets'", "[2, 1]"}},
        {"offsets_length",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {1, 2, 3}).bytes(),
         {"'offsets'", "[3]", "[2]"}},
        {"offsets_decrease",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {6, 5}).bytes(),
         {"'offsets'", "decrease"}},
        {"offsets_negative",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {-1, 5}).bytes(),
         {"'offsets'", "-1"}},
        {"offsets_past_the_rows",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {5, 11}).bytes(),
         {"'offsets'", "11", "10 rows"}},
        {"offsets_with_batched_a",
         RawFile().add("a", "BF16", {2, 10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("offsets", {5, 10}).bytes(),
         {"'a'", "'offsets'"}},
        {"offsets_with_dense_b",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {32, 64}).add_int32("offsets", {10}).bytes(),
         {"'b'", "'offsets'"}},
        {"indices_length",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("m_indices", {0, 1}).bytes(),
         {"'m_indices'", "[2]", "[10]"}},
        {"indices_past_the_groups",
         RawFile().add("a", "BF16", {2, 64}).add("b", "BF16", {2, 32, 64}).add_int32("m_indices", {0, 2}).bytes(),
         {"'m_indices'", "entry 1 is 2"}},
        {"indices_below_minus_1",
         RawFile().add("a", "BF16", {2, 64}).add("b", "BF16", {2, 32, 64}).add_int32("m_indices", {-2, 0}).bytes(),
         {"'m_indices'", "entry 0 is -2"}},
        {"indices_not_aligned",
         RawFile().add("a", "BF16", {4, 64}).add("b", "BF16", {2, 32, 64}).add_int32("m_indices", {0, 0, 1, 1}).bytes(),
         {"'m_indices'", "group 1 starts at row 2"}},
        {"indices_as_pointers",
         RawFile().add("a", "BF16", {2, 64}).add("b", "BF16", {2, 32, 64}).add_int32("m_indices", {0, 0}).bytes(),
         {"--grouping", "'m_indices'"},
         {"--grouping", "pointers"}},
        {"masked_past_the_rows",
         RawFile().add("a", "BF16", {2, 10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("masked_m", {3, 11}).bytes(),
         {"'masked_m'", "entry 1 is 11"}},
        {"masked_negative",
         RawFile().add("a", "BF16", {2, 10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("masked_m", {-3, 1}).bytes(),
         {"'masked_m'", "entry 0 is -3"}},
        {"masked_with_flat_a",
         RawFile().add("a", "BF16", {10, 64}).add("b", "BF16", {2, 32, 64}).add_int32("masked_m", {3, 1}).bytes(),
         {"'a'", "'masked_m'"}},
        {"two_kinds_of_sizes",
         grouped().add_int32("masked_m", {3, 1}).bytes(),
         {"'offsets'", "'masked_m'", "at most one"}},
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
  expect_refused(run_moxie({"gemm", folder / "in.safetensors", folder / "out.safetensors"}, setting),
                 {"moxie: out of memory on the host"}, 1);
}
#endif

TEST(WrongOutput, FullDiskLeavesNothing) {
  const Folder folder;
  write_file(folder / "in.safetensors", RawFile().add("a", "BF16", {64, 64}).add("b", "BF16", {256, 64}).bytes());
  // The limit is below the output's 32 KiB and above nothing else that this run writes: its kernel is in the cache.
  const Finished warm = run_moxie({"gemm", folder / "in.safetensors", folder / "warm.safetensors"});
  ASSERT_EQ(warm.status, 0) << warm.err;
  Setting setting;
  setting.file_limit = 16 << 10;
  expect_refused(run_moxie({"gemm", folder / "in.safetensors", folder / "out.safetensors"}, setting),
                 {"out.safetensors", "cannot be written"}, 1);
  EXPECT_FALSE(std::filesystem::exists(folder / "out.safetensors"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2) << "something was left behind";
}

}  // namespace
}  // namespace moxie::test
