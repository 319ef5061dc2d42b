// SPDX-License-Identifier: Apache-2.0
// `moxie gemm` of MXFP4 and NVFP4 operands in every grouping, by pointers too, and of k groups of bf16, on the
// simulated sm_100a, against products in double precision.
#include <cstring>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/safetensors.h"
#include "moxie/scales.h"
#include "reference/comparison.h"
#include "reference/formats.h"
#include "reference/product.h"
#include "reference/splitmix.h"
#include "tests/cli/program.h"
#include "tests/support/print.h"

namespace moxie::test {
namespace {

Setting blackwell(const char* order = "lazy") {
  Setting setting;
  setting.environment = {
      {"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", "sm_100a"}, {"MOXIE_SIM_SMS", "4"}, {"MOXIE_SIM_ORDER", order}};
  return setting;
}

uint64_t hash(uint64_t x) { return reference::splitmix64(x); }

template <typename T>
std::vector<uint8_t> bytes_of(const std::vector<T>& values) {
  const auto* const first = reinterpret_cast<const uint8_t*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

// Random rows, quantized by the reference, and what they stand for.
struct Rows {
  int64_t rows, k, block;
  std::vector<uint8_t> elements, scales;
  std::vector<float> values;
  Rows(DataType format, int64_t count, int64_t width, float tensor_scale, uint64_t seed)
      : rows(count),
        k(width),
        block(scale_block(format)),
        elements(size_t(rows * k / 2)),
        scales(size_t(rows * k / block)),
        values(size_t(rows * k)) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < k; ++j)
        row[size_t(j)] = float(int64_t(hash(seed + uint64_t(i * k + j)) >> 40) - (1 << 23)) * 0x1p-23f;
      uint8_t* const to = elements.data() + i * k / 2;
      uint8_t* const scale = scales.data() + i * k / block;
      reference::quantize_row(format, row.data(), k, tensor_scale, to, scale);
      reference::dequantize_row(format, to, scale, k, tensor_scale, values.data() + i * k);
    }
  }
  // Appends the blocked scales of some rows and of their elements from k_begin to k_end.
  void block_scales(std::vector<uint8_t>& to, int64_t first, int64_t count, int64_t k_begin, int64_t k_end) const {
    const size_t at = to.size();
    to.resize(at + size_t(blocked_scale_bytes(count, k_end - k_begin, block)));
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < (k_end - k_begin) / block; ++c)
        to[at + size_t(blocked_scale_index(r, c, k_end - k_begin, block))] =
            scales[size_t(((first + r) * k + k_begin) / block + c)];
    }
  }
};

enum class Layout { Batched, Offsets, Masked, KOffsets };
constexpr const char* kLayoutNames[] = {"Batched", "Offsets", "Masked", "KOffsets"};
void PrintTo(Layout layout, std::ostream* out) { *out << kLayoutNames[int(layout)]; }

// Format, layout, grouping by pointers, scales blocked in the file.
using Fp4Case = std::tuple<DataType, Layout, bool, bool>;
class Fp4Groups : public testing::TestWithParam<Fp4Case> {};
TEST_P(Fp4Groups, EqualTheProducts) {
  const auto [format, layout, pointers, blocked] = GetParam();
  const bool nvfp4 = format == DataType::Nvfp4, along_k = layout == Layout::KOffsets;
  const bool stacked = layout == Layout::Batched || layout == Layout::Masked;
  const int64_t n = 72, k = 224, groups = 3, m = 150;  // rows of a, of each group where they are stacked
  const std::vector<int32_t> sizes = layout == Layout::Offsets  ? std::vector<int32_t>{5, 5, 141}
                                     : layout == Layout::Masked ? std::vector<int32_t>{7, 150, 0}
                                                                : std::vector<int32_t>{96, 96, 160};
  const std::vector<float> a_scale = {1 / 2688.0f}, b_scale = {1 / 2688.0f, 1 / 1344.0f, 1 / 2000.0f};
  const Rows a(format, stacked ? groups * m : m, k, nvfp4 ? a_scale[0] : 1, 1);
  // With k groups one tensor, quantized by the first group's float.
  std::vector<Rows> b;
  for (int64_t g = 0; g < (along_k ? 1 : groups); ++g)
    b.emplace_back(format, n, k, nvfp4 ? b_scale[size_t(g)] : 1, uint64_t(2 + g));

  const auto first_row = [&](int64_t g) {
    return stacked ? g * m : layout == Layout::Offsets && g > 0 ? int64_t(sizes[size_t(g - 1)]) : 0;
  };
  const auto rows_of = [&](int64_t g) {
    return layout == Layout::Offsets  ? sizes[size_t(g)] - first_row(g)
           : layout == Layout::Masked ? sizes[size_t(g)]
                                      : m;
  };
  const auto k_begin = [&](int64_t g) { return along_k && g > 0 ? int64_t(sizes[size_t(g - 1)]) : 0; };
  const auto k_end = [&](int64_t g) { return along_k ? int64_t(sizes[size_t(g)]) : k; };
  std::vector<uint8_t> b_elements, sfa = a.scales, sfb;
  for (const Rows& rows : b) {
    b_elements.insert(b_elements.end(), rows.elements.begin(), rows.elements.end());
    sfb.insert(sfb.end(), rows.scales.begin(), rows.scales.end());
  }
  if (blocked) {
    sfa.clear(), sfb.clear();
    for (int64_t g = 0; g < groups; ++g) {
      a.block_scales(sfa, first_row(g), stacked ? m : rows_of(g), k_begin(g), k_end(g));
      b[along_k ? 0 : size_t(g)].block_scales(sfb, 0, n, k_begin(g), k_end(g));
    }
    // Room for what groups of other sizes would need.
    if (layout == Layout::Offsets)
      sfa.resize(size_t((m / kScaleTileRows + groups) * blocked_scale_bytes(1, k, a.block)));
    if (along_k) {
      sfa.resize(size_t(k_group_scale_bytes(m, k, groups, a.block)));
      sfb.resize(size_t(k_group_scale_bytes(n, k, groups, a.block)));
    }
  }
  std::vector<uint16_t> bias;
  for (int64_t i = 0; i < groups * n; ++i) bias.push_back(reference::float_to_bf16(float(i % 17) - 8));

  const char* const scale_type = nvfp4 ? "F8_E4M3" : "U8";
  const auto shape = [&](bool of_a, int64_t width) {
    if (of_a) return stacked ? std::vector<int64_t>{groups, m, width} : std::vector<int64_t>{m, width};
    return along_k ? std::vector<int64_t>{n, width} : std::vector<int64_t>{groups, n, width};
  };
  const auto scale_shape = [&](bool of_a, const std::vector<uint8_t>& scales) {
    return blocked ? std::vector<int64_t>{int64_t(scales.size())} : shape(of_a, k / a.block);
  };
  std::vector<cli::TensorToWrite> tensors = {{"a", "U8", shape(true, k / 2), a.elements},
                                             {"b", "U8", shape(false, k / 2), b_elements},
                                             {"sfa", scale_type, scale_shape(true, sfa), sfa},
                                             {"sfb", scale_type, scale_shape(false, sfb), sfb},
                                             {"bias", "BF16", {groups, n}, bytes_of(bias)}};
  if (layout != Layout::Batched)
    tensors.push_back({layout == Layout::Offsets  ? "offsets"
                       : layout == Layout::Masked ? "masked_m"
                                                  : "k_offsets",
                       "I32",
                       {groups},
                       bytes_of(sizes)});
  if (nvfp4) {
    tensors.push_back({"a_tensor_scale", "F32", {1}, bytes_of(a_scale)});
    const std::vector<float> same(size_t(groups), b_scale[0]);
    tensors.push_back({"b_tensor_scale", "F32", {groups}, bytes_of(along_k ? same : b_scale)});
  }
  const Folder folder;
  cli::write_safetensors(folder / "in", tensors);

  for (const char* order : {"eager", "lazy", "random:5"}) {
    for (const char* swap : {"off", "on"}) {
      SCOPED_TRACE(fmt::format("{}, swap {}", order, swap));
      const Finished finished = run_moxie(
          {"gemm", folder / "in", folder / "out", "--out-dtype", "f32", "--format", nvfp4 ? "nvfp4" : "mxfp4",
           "--grouping", pointers ? "pointers" : "auto", "--scales", blocked ? "blocked" : "row-major", "--swap", swap},
          blackwell(order));
      ASSERT_EQ(finished.status, 0) << finished.err;
      const auto out = cli::SafetensorsReader(folder / "out").read("out");
      ASSERT_EQ(int64_t(out.size()), (stacked || along_k ? groups * m : m) * n * 4);
      std::vector<bool> valid(out.size() / size_t(n * 4), false);
      reference::Comparison comparison(reference::Bound{1e-6, 0, 1e-6});
      for (int64_t g = 0; g < groups; ++g) {
        const Rows& other = b[along_k ? 0 : size_t(g)];
        for (int64_t i = 0; i < rows_of(g); ++i) {
          const int64_t from = first_row(g) + i, to = along_k ? g * m + i : from;
          std::vector<double> expected;
          for (int64_t j = 0; j < n; ++j) {
            double sum = reference::bf16_to_float(bias[size_t(g * n + j)]);
            for (int64_t l = k_begin(g); l < k_end(g); ++l)
              sum += double(a.values[size_t(from * k + l)]) * double(other.values[size_t(j * k + l)]);
            expected.push_back(sum);
          }
          valid[size_t(to)] = true;
          comparison.add_row(to, expected.data(), out.data() + to * n * 4, DataType::F32, n);
        }
      }
      EXPECT_EQ(comparison.failure(), "");
      int64_t spoiled = 0;
      for (size_t i = 0; i < out.size(); ++i) spoiled += !valid[i / size_t(n * 4)] && out[i] != 0;
      EXPECT_EQ(spoiled, 0) << "bytes of rows of no group";
    }
  }
}
std::vector<Fp4Case> fp4_cases() {
  std::vector<Fp4Case> all;
  for (const DataType format : {DataType::Mxfp4, DataType::Nvfp4}) {
    for (const Layout layout : {Layout::Batched, Layout::Offsets, Layout::Masked, Layout::KOffsets}) {
      for (const bool pointers : {false, true}) {
        if (!(pointers && layout == Layout::KOffsets))
          all.emplace_back(format, layout, pointers, (int(layout) + pointers + (format == DataType::Nvfp4)) % 2 == 0);
      }
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cli, Fp4Groups, testing::ValuesIn(fp4_cases()), [](const auto& info) {
  return fmt::format("{}{}{}{}", std::get<0>(info.param) == DataType::Nvfp4 ? "Nvfp4" : "Mxfp4",
                     kLayoutNames[int(std::get<1>(info.param))], std::get<2>(info.param) ? "Pointers" : "",
                     std::get<3>(info.param) ? "Blocked" : "");
});

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
  for (const auto& [ends, says] : std::vector<std::pair<std::vector<int32_t>, const char*>>{
           {{64, 60}, "tensor 'k_offsets': entry 1 is 60, below 64 where the group starts; offsets must not decrease"},
           {{64, 216}, "tensor 'k_offsets': entry 1 is 216, past the 208 columns (K) of 'a'"},
           {{63}, "tensor 'k_offsets': entry 0 is 63, it must be a multiple of 8"},
           {{64, 32}, "tensor 'k_offsets': entry 1 is 32, below 64 where the group starts; offsets must not decrease"},
           {{}, "tensor 'k_offsets' is [0], it must have a group at least"}}) {
    KGroupsFile in;
    in.ends = ends;
    const Folder folder;
    in.write(folder / "in");
    const Finished finished = run_moxie({"gemm", folder / "in", folder / "out"}, blackwell());
    EXPECT_EQ(finished.status, 2);
    EXPECT_EQ(folder.without_path(finished.err), "moxie: " + std::string(says) + "\n");
  }
}

}  // namespace
}  // namespace moxie::test
