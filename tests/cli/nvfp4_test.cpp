// `moxie gemm` of NVFP4 operands and of k groups on the simulated sm_100a, against products in double precision.
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/microscaling.h"
#include "cli/reference.h"
#include "cli/safetensors.h"
#include "tests/cli/program.h"

namespace moxie::test {
namespace {

Setting blackwell() {
  Setting setting;
  setting.environment = {
      {"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}, {"MOXIE_SIM_SMS", "4"}, {"MOXIE_SIM_ORDER", "lazy"}};
  return setting;
}

uint64_t hash(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

template <typename T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Random rows, quantised by the reference, and what they stand for.
struct Rows {
  std::vector<uint8_t> elements, scales;
  std::vector<float> values;
  Rows(int64_t rows, int64_t k, float tensor_scale, uint64_t seed)
      : elements(size_t(rows * k / 2)), scales(size_t(rows * k / 16)), values(size_t(rows * k)) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < k; ++j)
        row[size_t(j)] = float(int64_t(hash(seed + uint64_t(i * k + j)) >> 40) - (1 << 23)) * 0x1p-23f;
      uint8_t* const to = elements.data() + i * k / 2;
      uint8_t* const scale = scales.data() + i * k / 16;
      reference::quantize_row(DataType::Nvfp4, row.data(), k, tensor_scale, to, scale);
      reference::dequantize_row(DataType::Nvfp4, to, scale, k, tensor_scale, values.data() + i * k);
    }
  }
};

TEST(Nvfp4File, EqualsTheReference) {
  const int64_t m = 150, n = 72, k = 160, groups = 2;
  const std::vector<float> a_scale = {1 / 2688.0f}, b_scale = {1 / 2688.0f, 1 / 1344.0f};
  const Rows a(groups * m, k, a_scale[0], 1);
  const Rows first(n, k, b_scale[0], 2), second(n, k, b_scale[1], 3);
  std::vector<uint8_t> b = first.elements, sfb = first.scales;
  b.insert(b.end(), second.elements.begin(), second.elements.end());
  sfb.insert(sfb.end(), second.scales.begin(), second.scales.end());
  const Folder folder;
  cli::write_safetensors(folder / "in", {{"a", "U8", {groups, m, k / 2}, a.elements},
                                         {"b", "U8", {groups, n, k / 2}, b},
                                         {"sfa", "F8_E4M3", {groups, m, k / 16}, a.scales},
                                         {"sfb", "F8_E4M3", {groups, n, k / 16}, sfb},
                                         {"a_tensor_scale", "F32", {1}, bytes_of(a_scale)},
                                         {"b_tensor_scale", "F32", {groups}, bytes_of(b_scale)}});
  for (const char* grouping : {"auto", "pointers"}) {
    const Finished finished = run_moxie(
        {"gemm", folder / "in", folder / "out", "--out-dtype", "f32", "--format", "nvfp4", "--grouping", grouping},
        blackwell());
    ASSERT_EQ(finished.status, 0) << finished.err;
    const auto out = cli::SafetensorsReader(folder / "out").read("out");
    reference::Comparison comparison(reference::kF32Bound);
    for (int64_t i = 0; i < groups * m; ++i) {
      const Rows& other = i < m ? first : second;
      std::vector<double> expected;
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l)
          sum += double(a.values[size_t(i * k + l)]) * double(other.values[size_t(j * k + l)]);
        expected.push_back(sum);
      }
      comparison.add_row(i, expected.data(), out.data() + i * n * 4, DataType::F32, n);
    }
    EXPECT_EQ(comparison.failure(), "");
  }
}

// bf16 rows whose K is divided among the groups.
struct KGroupsFile {
  int64_t m = 140, n = 72, k = 208;
  std::vector<int32_t> ends = {64, 64, 136, 200};
  std::vector<uint16_t> a, b;
  KGroupsFile() {
    for (int64_t i = 0; i < m * k; ++i) a.push_back(reference::float_to_bf16(float(hash(uint64_t(i)) % 256) - 128));
    for (int64_t i = 0; i < n * k; ++i) b.push_back(reference::float_to_bf16(float(hash(uint64_t(~i)) % 64) - 32));
  }
  void write(const std::string& path) const {
    cli::write_safetensors(path, {{"a", "BF16", {m, k}, bytes_of(a)},
                                  {"b", "BF16", {n, k}, bytes_of(b)},
                                  {"k_offsets", "I32", {int64_t(ends.size())}, bytes_of(ends)}});
  }
};

TEST(KGroupsFile, EqualsTheReference) {
  const KGroupsFile in;
  const Folder folder;
  in.write(folder / "in");
  const Finished finished = run_moxie({"gemm", folder / "in", folder / "out", "--out-dtype", "f32"}, blackwell());
  ASSERT_EQ(finished.status, 0) << finished.err;
  const cli::SafetensorsReader got(folder / "out");
  EXPECT_EQ(got.find("out")->shape, (std::vector<int64_t>{4, in.m, in.n}));
  const auto out = got.read("out");
  for (size_t g = 0; g < in.ends.size(); ++g) {
    const int64_t begin = g ? in.ends[g - 1] : 0;
    const auto expected = reference::product(
        {in.a.data() + begin, in.k, in.b.data() + begin, in.k, nullptr, in.m, in.n, in.ends[g] - begin});
    for (size_t i = 0; i < expected.size(); ++i) {
      float value;
      std::memcpy(&value, out.data() + (g * expected.size() + i) * 4, 4);
      ASSERT_EQ(double(value), expected[i]) << g << " " << i;
    }
  }
}

TEST(KGroupsFile, WrongEndsAreRefused) {
  for (const auto& [ends, says] :
       std::vector<std::pair<std::vector<int32_t>, const char*>>{{{64, 60}, "entry 1 is 60"},
                                                                 {{64, 216}, "entry 1 is 216"},
                                                                 {{63}, "entry 0 is 63"},
                                                                 {{}, "'k_offsets' is [0]"}}) {
    KGroupsFile in;
    in.ends = ends;
    const Folder folder;
    in.write(folder / "in");
    const Finished finished = run_moxie({"gemm", folder / "in", folder / "out"}, blackwell());
    EXPECT_NE(finished.status, 0);
    EXPECT_NE(finished.err.find(says), std::string::npos) << finished.err;
    EXPECT_EQ(finished.lines_on_stderr(), 1) << finished.err;
  }
}

}  // namespace
}  // namespace moxie::test
