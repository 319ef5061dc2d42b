// SPDX-License-Identifier: Apache-2.0
// `moxie gemm` of a GPT-OSS layer's products: bf16 activations and MXFP4 weights as the checkpoint holds them, or as
// `moxie quantize --layout hopper` has packed them.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

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
                            Activation activation, const std::vector<std::string>& more, const Setting& setting = {}) {
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
  const Finished finished = run_moxie(arguments, setting);
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

// Blackwell computes it too, whatever choices of a kernel are made for packed weights there.
TEST(PackedWeights, AreForBlackwellToo) {
  const cli::SafetensorsReader tokens(kFolder + "tokens.safetensors");
  const auto x = values_of<uint16_t>(tokens, "x");
  const auto rows = static_cast<int32_t>(x.size()) / static_cast<int32_t>(kHidden);
  const Setting blackwell{{{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}}};
  std::vector<int32_t> ends(kExperts, rows);
  ends[0] = 1, ends[1] = ends[2] = rows / 2;
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--tile", "64x128", "--schedule", "cooperative"}})
    check(Weights("gate_up_proj", 2 * kWidth, kHidden), x, ends, Activation::SwigluOai, more, blackwell);
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

TEST(PackedWeights, DemoPasses) {
  Setting simulated;
  simulated.environment = {{"MOXIE_DEVICE", "sim"}};
  const Finished demo = run_moxie({"demo", "--format", "mxfp4", "--arch", "sm_90a", "--tokens", "1"}, simulated);
  EXPECT_EQ(demo.status, 0) << demo.err;
  for (const char* words : {"PASS", "a checkpoint's MXFP4 weights", "mxfp4 weights"})
    EXPECT_NE(demo.out.find(words), std::string::npos) << words << " in " << demo.out;
}

// ---- Files of packed weights ---------------------------------------------------------------------------------------

using Strings = std::vector<std::string>;

void run_well(const Strings& arguments) {
  const Finished finished = run_moxie(arguments);
  ASSERT_EQ(finished.status, 0) << finished.err;
  EXPECT_EQ(finished.err, "");
}

Strings pack(const Folder& folder, const std::string& in, const std::string& out, const Strings& more) {
  Strings all = {"quantize", folder / in, folder / out, "--format", "mxfp4", "--layout", "hopper"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::map<std::string, std::pair<std::vector<int64_t>, std::vector<uint8_t>>> tensors_of(const std::string& path) {
  const cli::SafetensorsReader file(path);
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<uint8_t>>> all;
  for (const auto& [name, entry] : file.entries()) all[name + " " + entry.dtype] = {entry.shape, file.read(name)};
  return all;
}

TEST(PackedFile, OfACheckpointComesBack) {
  const Folder folder;
  std::filesystem::copy(kFolder + "model.safetensors", folder / "in");
  const std::string prefix = "model.layers.0.mlp.experts.", up = prefix + "gate_up_proj", down = prefix + "down_proj";
  for (const char* gate : {"interleaved", "split", "split-up-first"}) {
    SCOPED_TRACE(gate);
    run_well(pack(folder, "in", "one", {"--gate", gate, "--tensors", up}));
    run_well(pack(folder, "one", "both", {"--tensors", down}));
    run_well(pack(folder, "in", "device", {"--gate", gate, "--tensors", up, "--on", "device"}));
    EXPECT_EQ(read_file(folder / "one"), read_file(folder / "device"));
    const cli::SafetensorsReader both(folder / "both");
    EXPECT_EQ(both.find(up)->shape, (std::vector<int64_t>{kExperts, 2 * kWidth * (kHidden / 2 + kHidden / 32 + 1)}));
    EXPECT_EQ(both.find(down)->shape, (std::vector<int64_t>{kExperts, kHidden * (kWidth / 2 + kWidth / 32 + 1)}));
    EXPECT_EQ(both.find(up + "_blocks"), nullptr);
    EXPECT_EQ(both.find(up + "_scales"), nullptr);
    EXPECT_EQ(both.metadata().size(), 2u);
    for (const char* on : {"host", "device"}) {
      run_well(pack(folder, "both", "back", {"--reverse", "--tensors", up + "," + down, "--on", on}));
      EXPECT_EQ(tensors_of(folder / "back"), tensors_of(folder / "in"));
      EXPECT_TRUE(cli::SafetensorsReader(folder / "back").metadata().empty());
    }
  }
}

// From values to packed weights, and in two steps back.
TEST(PackedFile, OfValuesIsThatOfTheirElements) {
  const Folder folder;
  std::vector<uint16_t> values;
  for (int i = 0; i < 3 * 48 * 96; ++i)
    values.push_back(reference::float_to_bf16(std::sin(float(i) * 1.3f) * std::exp2(float(i / 32 % 9) - 4)));
  cli::write_safetensors(folder / "in", {{"w", "BF16", {3, 48, 96}, bytes_of(values)}, {"x", "U8", {2}, {1, 2}}});
  run_well(pack(folder, "in", "host", {"--tensors", "w"}));
  run_well(pack(folder, "in", "device", {"--tensors", "w", "--on", "device"}));
  EXPECT_EQ(read_file(folder / "host"), read_file(folder / "device"));
  run_well({"quantize", folder / "in", folder / "elements", "--format", "mxfp4", "--tensors", "w"});
  run_well(pack(folder, "elements", "again", {"--tensors", "w"}));
  EXPECT_EQ(read_file(folder / "host"), read_file(folder / "again"));

  run_well(pack(folder, "host", "unpacked", {"--reverse", "--tensors", "w"}));
  const cli::SafetensorsReader unpacked(folder / "unpacked"), elements(folder / "elements");
  EXPECT_EQ(unpacked.find("w_blocks")->shape, (std::vector<int64_t>{3, 48, 3, 16}));
  EXPECT_EQ(unpacked.read("w_blocks"), elements.read("w"));
  EXPECT_EQ(unpacked.read("w_scales"), elements.read("w_scales"));
  // Blocks are dequantized as elements are.
  for (const char* file : {"unpacked", "elements"})
    run_well({"quantize", folder / file, folder / (std::string(file) + "_values"), "--format", "mxfp4", "--tensors",
              "w", "--reverse"});
  EXPECT_EQ(tensors_of(folder / "unpacked_values"), tensors_of(folder / "elements_values"));
}

TEST(PackedFile, GivesTheProductOfTheCheckpoint) {
  const Folder folder;
  const Weights w("gate_up_proj", 2 * kWidth, kHidden);
  std::vector<uint16_t> a;
  for (int i = 0; i < 11 * kHidden; ++i) a.push_back(reference::float_to_bf16(std::sin(float(i))));
  const std::vector<int32_t> ends = {1, 1, 4, 5, 5, 9, 11, 11};
  const std::vector<cli::TensorToWrite> others = {{"a", "BF16", {11, kHidden}, bytes_of(a)},
                                                  {"bias", "BF16", {kExperts, w.n}, bytes_of(w.bias)},
                                                  {"offsets", "I32", {kExperts}, bytes_of(ends)}};
  for (const char* gate : {"interleaved", "split-up-first"}) {
    std::vector<cli::TensorToWrite> plain = others, blocks = others;
    plain.push_back({"b", "U8", {kExperts, w.n, w.k / 2}, w.blocks});
    plain.push_back({"sfb", "U8", {kExperts, w.n, w.k / 32}, w.scales});
    blocks.push_back({"b_blocks", "U8", {kExperts, w.n, w.k / 2}, w.blocks});
    blocks.push_back({"b_scales", "U8", {kExperts, w.n, w.k / 32}, w.scales});
    cli::write_safetensors(folder / "plain", plain);
    cli::write_safetensors(folder / "blocks", blocks);
    run_well(pack(folder, "blocks", "packed", {"--tensors", "b", "--gate", gate}));
    for (const char* grouping : {"auto", "pointers"}) {
      for (const char* in : {"plain", "packed"})
        run_well({"gemm", folder / in, folder / (std::string(in) + "_out"), "--activation", "swiglu-oai", "--gate",
                  gate, "--grouping", grouping});
      EXPECT_EQ(read_file(folder / "plain_out"), read_file(folder / "packed_out")) << gate << ", " << grouping;
    }
  }
}

struct Wrong {
  const char* name;
  Strings arguments;  // but for the files
  const char* says;
};
void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }
class WrongPackedFile : public testing::TestWithParam<Wrong> {};
TEST_P(WrongPackedFile, IsRefusedInOneSentence) {
  const Folder folder;
  const auto zeros = [](size_t count) { return std::vector<uint8_t>(count); };
  std::vector<uint8_t> far(3 * 16 * 2, 127);
  far[(2 * 16 + 5) * 2] = 200, far[(2 * 16 + 5) * 2 + 1] = 60;
  const std::string good = R"({"format":"mxfp4","layout":"hopper","n":16,"k":64,"gate":"none"})";
  const int64_t packed = 16 * (32 + 2 + 1);
  cli::write_safetensors(
      folder / "in",
      {{"a", "BF16", {4, 64}, zeros(512)},
       {"b", "U8", {packed}, zeros(size_t(packed))},
       {"rows", "U8", {packed}, zeros(size_t(packed))},
       {"rows_scales", "U8", {1}, zeros(1)},
       {"far_blocks", "U8", {3, 16, 2, 16}, zeros(3 * 16 * 32)},
       {"far_scales", "U8", {3, 16, 2}, far},
       {"odd", "BF16", {24, 64}, zeros(24 * 128)},
       {"none", "BF16", {0, 64}, {}},
       {"bare_blocks", "U8", {16, 32}, zeros(512)},
       {"w", "BF16", {16, 64}, zeros(2048)},
       {"not_json", "U8", {packed}, zeros(size_t(packed))},
       {"other", "U8", {packed}, zeros(size_t(packed))},
       {"no_gate", "U8", {packed}, zeros(size_t(packed))},
       {"no_n", "U8", {packed}, zeros(size_t(packed))},
       {"short", "U8", {packed - 1}, zeros(size_t(packed - 1))}},
      {{"moxie.packed.b", good},
       {"moxie.packed.rows", good},
       {"moxie.packed.short", good},
       {"moxie.packed.not_json", "16 x 64"},
       {"moxie.packed.other", R"({"format":"mxfp4","layout":"ampere","n":16,"k":64,"gate":"none"})"},
       {"moxie.packed.no_gate", R"({"format":"mxfp4","layout":"hopper","n":16,"k":64})"},
       {"moxie.packed.no_n", R"({"format":"mxfp4","layout":"hopper","n":"16","k":64,"gate":"none"})"}});
  Strings arguments = {GetParam().arguments[0], folder / "in", folder / "out"};
  arguments.insert(arguments.end(), GetParam().arguments.begin() + 1, GetParam().arguments.end());
  const Finished finished = run_moxie(arguments);
  EXPECT_EQ(finished.status, 2) << finished.err;
  EXPECT_EQ(finished.err, "moxie: " + std::string(GetParam().says) + "\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}
const auto packing = [](const char* tensors, const Strings& more = {}) {
  Strings all = {"quantize", "--format", "mxfp4", "--layout", "hopper", "--tensors", tensors};
  all.insert(all.end(), more.begin(), more.end());
  return all;
};
INSTANTIATE_TEST_SUITE_P(
    Cli, WrongPackedFile,
    testing::Values(
        Wrong{"Far", packing("w,far"),
              "tensor 'far_scales': row 5 of group 2 has scales above 128 that are more than 133 above its smallest, "
              "whose weights bf16 cannot hold beside each other"},
        Wrong{"FarOnDevice", packing("w,far", {"--on", "device"}),
              "tensor 'far_scales': row 5 of group 2 has scales above 128 that are more than 133 above its smallest, "
              "whose weights bf16 cannot hold beside each other"},
        Wrong{"Format",
              {"quantize", "--format", "nvfp4", "--layout", "hopper", "--tensors", "w"},
              "--layout: hopper is for mxfp4, not for nvfp4"},
        Wrong{"Layout",
              {"quantize", "--format", "mxfp4", "--layout", "ampere", "--tensors", "w"},
              "--layout: 'ampere' is none of rows, hopper"},
        Wrong{"Gate", packing("w", {"--gate", "mixed"}),
              "--gate: 'mixed' is none of none, interleaved, split, split-up-first"},
        Wrong{"GateOfRows",
              {"quantize", "--format", "mxfp4", "--gate", "split", "--tensors", "w"},
              "--gate: only --layout hopper brings gate and up together"},
        Wrong{"GateBack", packing("b", {"--gate", "split", "--reverse"}), "--gate: of packed weights the file says it"},
        Wrong{"Scales", packing("w", {"--scales", "blocked"}),
              "--scales: packed weights hold their scales, none can be blocked"},
        Wrong{"Rows", packing("odd", {"--gate", "interleaved"}),
              "tensor 'odd' is [24, 64]: n is 24, but must be a multiple of 16 from 0 to 1073741824 with a gate"},
        Wrong{"Nothing", packing("none"), "tensor 'none' is [0, 64], to be packed no extent may be 0"},
        Wrong{"Type", packing("far_scales_"), "tensor 'far_scales_' is missing"},
        Wrong{"NoScales", packing("bare"), "tensor 'bare_scales' is missing"},
        Wrong{"Packed", packing("b"), "tensor 'b' is packed, --reverse --layout hopper unpacks it"},
        Wrong{"PackedToValues",
              {"quantize", "--format", "mxfp4", "--reverse", "--tensors", "b"},
              "tensor 'b' is packed, --reverse --layout hopper unpacks it"},
        Wrong{"NotPacked", packing("w", {"--reverse"}), "tensor 'w' is not packed, the metadata lack 'moxie.packed.w'"},
        Wrong{"Taken", packing("rows", {"--reverse"}),
              "tensor 'rows_scales' is there already, 'rows' would become one of that name"},
        Wrong{"NotJson", packing("not_json", {"--reverse"}),
              "metadata 'moxie.packed.not_json' is 16 x 64, which is no packing that is known"},
        Wrong{"OtherLayout", packing("other", {"--reverse"}),
              "metadata 'moxie.packed.other' is {\"format\":\"mxfp4\",\"layout\":\"ampere\",\"n\":16,\"k\":64,"
              "\"gate\":\"none\"}, which is no packing that is known"},
        Wrong{"NoGate", packing("no_gate", {"--reverse"}),
              "metadata 'moxie.packed.no_gate' is {\"format\":\"mxfp4\",\"layout\":\"hopper\",\"n\":16,\"k\":64}, "
              "which is no packing that is known"},
        Wrong{"NoN", packing("no_n", {"--reverse"}),
              "metadata 'moxie.packed.no_n' is {\"format\":\"mxfp4\",\"layout\":\"hopper\",\"n\":\"16\",\"k\":64,"
              "\"gate\":\"none\"}: n is -1, but must be a multiple of 8 from 0 to 1073741824"},
        Wrong{"Short", packing("short", {"--reverse"}),
              "tensor 'short' is U8 [559], by metadata 'moxie.packed.short' it must be U8 [560]"},
        Wrong{"GateOfTheProduct",
              {"gemm", "--activation", "swiglu"},
              "tensor 'b' is packed with gate none, but that of the product is interleaved"},
        Wrong{"FormatOfTheProduct",
              {"gemm", "--format", "bf16"},
              "tensor 'b' is packed, beside it 'a' must be BF16 and --format mxfp4 or auto"}),
    [](const auto& info) { return std::string(info.param.name); });

// What else may not stand beside packed weights.
TEST(PackedFile, OfAnotherDepthOrWithScales) {
  const Folder folder;
  const std::map<std::string, std::string> metadata = {
      {"moxie.packed.b", R"({"format":"mxfp4","layout":"hopper","n":16,"k":64,"gate":"none"})"}};
  const cli::TensorToWrite b = {"b", "U8", {560}, std::vector<uint8_t>(560)};
  cli::write_safetensors(folder / "deep", {{"a", "BF16", {4, 96}, std::vector<uint8_t>(768)}, b}, metadata);
  EXPECT_EQ(run_moxie({"gemm", folder / "deep", folder / "out"}).err,
            "moxie: tensor 'a' is [4, 96] and 'b' [16, 64], the last extents (K) must be equal\n");
  cli::write_safetensors(folder / "scales",
                         {{"a", "BF16", {4, 64}, std::vector<uint8_t>(512)}, b, {"sfb", "U8", {1}, {7}}}, metadata);
  EXPECT_EQ(run_moxie({"gemm", folder / "scales", folder / "out"}).err,
            "moxie: tensor 'sfb' is there, but 'b' is packed with its scales\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

}  // namespace
}  // namespace moxie::test
