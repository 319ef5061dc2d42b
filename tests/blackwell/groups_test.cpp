// SPDX-License-Identifier: Apache-2.0
// Groups whose operands have tensor maps of their own on sm_100a: by pointers, and k groups. Every format, one block
// and pairs, operands swapped and not, either scheduling; sums are exact, so float32 must be equal to the last bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/support/grouped_product.h"

namespace moxie::test {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

constexpr OperandFormat kFormats[] = {OperandFormat::Bf16, OperandFormat::Mxfp4, OperandFormat::Nvfp4};
constexpr const char* kFormatNames[] = {"Bf16", "Mxfp4", "Nvfp4"};

// With sums that are exact in float32, whatever the format.
Job exact_job(OperandFormat format, Grouping grouping) {
  Job job = job_of(format);
  job.problem.grouping = grouping;
  job.problem.out = kF32;
  job.e2m1 = true;
  return job;
}
// Changes N, of each group where it has its own.
template <class Change>
void change_n(Job& job, Change change) {
  job.n = change(job.n);
  for (int64_t& n : job.group_n) n = change(n);
}

Job k_groups(OperandFormat format) {
  Job job = exact_job(format, Grouping::KGroups);
  // Tails of every kind behind which the next group follows at once; groups without a sum.
  job.group_k = {96, 0, 32, 320, 512, 0, 160, 64};
  job.rows.assign(job.group_k.size(), 200), job.n = 136;
  job.seed = 3 + uint64_t(format);
  return job;
}
Job pointers(OperandFormat format) {
  Job job = exact_job(format, Grouping::Pointers);
  job.rows = {5, 0, 140, 1, 128, 270, 3};
  job.group_n = {136, 64, 96, 200, 16, 136, 0};
  job.group_k = {96, 64, 320, 0, 32, 160, 64};
  job.seed = 11 + uint64_t(format);
  return job;
}

// Routing data at their worst, and special values, of this run.
void add_dimensions(Job& job) {
  Random random(run_seed() + job.seed);
  job.wild_sizes = random.next() | 1, job.specials = random.next() | 1;
}

// format, blocks of a cluster, operands swapped, scheduling
class OwnMaps : public testing::TestWithParam<std::tuple<int, int, bool, int>> {
 protected:
  void choose(Job& job) const {
    const auto [format, cluster, swap, scheduling] = GetParam();
    job.problem.cluster = cluster;
    job.problem.swap_ab = swap;
    job.problem.scheduling = TileSource(scheduling);
    add_dimensions(job);
  }
  OperandFormat format() const { return kFormats[std::get<0>(GetParam())]; }
};
TEST_P(OwnMaps, KGroups) {
  Job job = k_groups(format());
  choose(job);
  run_in_all_orders(job);
}
TEST_P(OwnMaps, Pointers) {
  Job job = pointers(format());
  choose(job);
  job.problem.bias = true;
  run_in_all_orders(job);
}
// Every choice with MXFP4, every second one with the others.
std::vector<std::tuple<int, int, bool, int>> choices() {
  std::vector<std::tuple<int, int, bool, int>> all;
  for (int format = 0; format < 3; ++format) {
    for (int i = 0; i < 8; ++i) {
      const int cluster = 1 + (i & 1), swap = i >> 1 & 1, scheduling = i >> 2;
      if (format == 1 || (cluster + swap + scheduling + format / 2) % 2 == 0)
        all.emplace_back(format, cluster, swap == 1, scheduling);
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Blackwell, OwnMaps, testing::ValuesIn(choices()), [](const auto& info) {
  return fmt::format("{}{}{}{}", kFormatNames[std::get<0>(info.param)], std::get<1>(info.param) == 2 ? "Pair" : "",
                     std::get<2>(info.param) ? "Swapped" : "", std::get<3>(info.param) ? "LaunchControl" : "");
});

// Half groups have a map of B of their own.
TEST(OwnMaps, HalfGroups) {
  for (OperandFormat format : {OperandFormat::Mxfp4, OperandFormat::Nvfp4}) {
    for (int tile_n : {16, 80, 208}) {
      SCOPED_TRACE(tile_n);
      Job k = k_groups(format), p = pointers(format);
      k.problem.tile_n = p.problem.tile_n = tile_n;
      k.problem.cluster = p.problem.cluster = 1;
      run_in_all_orders(k);
      run_in_all_orders(p);
      if (HasFailure()) return;
    }
  }
}

// Every second combination, so that any three of format, gate, swapped operands and grouping meet; all of them with
// MOXIE_TEST_ALL=1.
TEST(OwnMaps, GatesBiasAndBf16) {
  for (OperandFormat format : kFormats) {
    for (int gate = 0; gate < 3; ++gate) {
      for (bool swap : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", int(format), gate, swap));
        for (int grouping = 0; grouping < 2; ++grouping) {
          if ((int(format) + gate + swap + grouping) % 2 != 0 && !std::getenv("MOXIE_TEST_ALL")) continue;
          Job job = grouping == 0 ? k_groups(format) : pointers(format);
          ProductSpec& p = job.problem;
          p.activation = Activation::Swiglu;
          p.gate = GateLayout(gate);
          p.bias = true;
          p.out = kBf16;
          p.swap_ab = swap;
          const int64_t unit = has_scales(format) && gate > 0 ? 64 : 16;
          change_n(job, [&](int64_t n) { return n / unit * unit; });
          run_in_all_orders(job);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Quantised: grouping, operands swapped, blocks of a cluster. Widths that are no multiple of 128, rows that fill no
// tile of scales, groups without rows or sum. Every second format and gate, all of them with MOXIE_TEST_ALL=1.
class OwnMapsQuantized : public testing::TestWithParam<std::tuple<int, bool, int>> {};
TEST_P(OwnMapsQuantized, IsTheQuantizedFloat32) {
  const auto [grouping, swap, cluster] = GetParam();
  for (OperandFormat format : kFormats) {
    for (bool gated : {false, true}) {
      if ((int(format) + gated + grouping + swap + cluster) % 2 == 0 && !std::getenv("MOXIE_TEST_ALL")) continue;
      SCOPED_TRACE(fmt::format("{} {}", int(format), gated));
      Job job = grouping == 0 ? k_groups(format) : pointers(format);
      ProductSpec& p = job.problem;
      p.swap_ab = swap, p.cluster = cluster;
      p.bias = gated;
      if (gated) p.activation = Activation::Swiglu, p.gate = GateLayout((int(format) + cluster) % 3);
      p.out = format == OperandFormat::Nvfp4 ? DataType::Nvfp4
              : (int(format) + gated) % 2    ? DataType::Mxfp4
                                             : DataType::Mxfp8;
      p.scheduling = gated ? TileSource::LaunchControl : TileSource::Static;
      const int64_t rest = gated ? 0 : 32;
      change_n(job, [&](int64_t n) { return n == 0 ? 0 : n / 64 * 64 + rest; });
      add_dimensions(job);
      run_in_all_orders(job);
      if (HasFailure()) return;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Blackwell, OwnMapsQuantized,
                         testing::Combine(testing::Values(0, 1), testing::Bool(), testing::Values(1, 2)),
                         [](const auto& info) {
                           return fmt::format("{}{}{}", std::get<0>(info.param) == 0 ? "KGroups" : "Pointers",
                                              std::get<1>(info.param) ? "Swapped" : "",
                                              std::get<2>(info.param) == 2 ? "Pair" : "");
                         });

// A group whose place for elements or scales cannot be written is left alone; the others are right.
TEST(QuantizedPlaces, WrongOnesAreLeftAlone) {
  Job job = pointers(OperandFormat::Bf16);
  job.problem.out = DataType::Mxfp8;
  change_n(job, [](int64_t n) { return n / 32 * 32; });
  GroupedProduct product(job);
  const Results results = product.run();
  product.check(results);
  const std::vector<uint8_t>& right = results.out;
  ProductTensors& x = product.arguments();
  std::vector<Buffer> kept;
  const auto spoil = [&](auto*& array, auto value) {
    using T = std::remove_const_t<std::remove_reference_t<decltype(*array)>>;
    std::vector<T> values(job.rows.size());
    device().download(values.data(), array, values.size() * sizeof(T));
    values[2] = T(value);
    kept.emplace_back(values);
    array = kept.back().get<T>();
  };
  for (int wrong = 0; wrong < 6; ++wrong) {
    SCOPED_TRACE(wrong);
    const ProductTensors before = x;
    if (wrong == 0) spoil(x.pointers.out.scales, nullptr);
    if (wrong == 1) spoil(x.pointers.out.scales, reinterpret_cast<void*>(uintptr_t{1} << 20 | 8));
    if (wrong == 2) spoil(x.pointers.out.data, reinterpret_cast<void*>(uintptr_t{1} << 20 | 8));
    if (wrong == 3) spoil(x.pointers.out.ld, int64_t{72});
    if (wrong == 4) spoil(x.pointers.out.ld, job.group_n[2] - 16);
    if (wrong == 5) spoil(x.pointers.out.ld, job.group_n[2] + 8);
    std::vector<uint8_t> got;
    ASSERT_NO_THROW(got = product.run().out);
    int64_t left = 0, other = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      left += got[i] == 0xff && right[i] != 0xff;
      other += got[i] != 0xff && got[i] != right[i];
    }
    EXPECT_GT(left, 0);
    EXPECT_EQ(other, 0);
    x = before;
  }
}

// Another group with every tile, so that maps are rewritten while the copies of the groups before are in flight.
TEST(OwnMaps, ManyTinyGroups) {
  for (OperandFormat format : {OperandFormat::Bf16, OperandFormat::Nvfp4}) {
    for (int cluster : {1, 2}) {
      for (Grouping grouping : {Grouping::KGroups, Grouping::Pointers}) {
        SCOPED_TRACE(fmt::format("{} {} {}", int(format), cluster, int(grouping)));
        Job job = exact_job(format, grouping);
        job.problem.cluster = cluster;
        job.problem.scheduling =
            (cluster == 1) == (format == OperandFormat::Nvfp4) ? TileSource::LaunchControl : TileSource::Static;
        job.problem.swap_ab = false;
        job.n = 24;
        for (int64_t g = 0; g < 133; ++g) {
          job.group_k.push_back(32 * (g % 3));
          job.rows.push_back(grouping == Grouping::KGroups ? 9 : g % 5);
        }
        run_in_all_orders(job);
        if (HasFailure()) return;
      }
    }
  }
}

// Ends that decrease, pass K or lie within a unit are brought into range: nothing outside the results is touched.
TEST(KGroups, WrongEnds) {
  for (OperandFormat format : {OperandFormat::Bf16, OperandFormat::Mxfp4}) {
    GroupedProduct product(k_groups(format));
    const auto results = [&](const std::vector<int32_t>& ends) {
      const Buffer sizes(ends);
      product.arguments().sizes = sizes.get<int32_t>();
      std::vector<uint8_t> got;
      EXPECT_NO_THROW(got = product.run().out);
      return got;
    };
    const int32_t unit = k_unit(format), depth = int32_t(product.problem().k);
    for (const std::vector<int32_t>& wrong : {std::vector<int32_t>{96, -5, 13, 5000, 64, 2000000000, 40, 1184},
                                              {13, -5, 40, 101, 77, 333, 1001, 2000000000}}) {
      std::vector<int32_t> meant;
      for (const int32_t end : wrong) {
        const int32_t clamped = std::clamp(end, 0, depth) / unit * unit;
        meant.push_back(meant.empty() ? clamped : std::max(clamped, meant.back()));
      }
      const std::vector<uint8_t> got = results(wrong);
      ASSERT_FALSE(got.empty());
      for (size_t i = 0; i < 64 * 4; ++i) ASSERT_EQ(got[i], 0xff);
      EXPECT_TRUE(got == results(meant));
    }
  }
}

// Blocked and back.
TEST(KGroups, ScalesBothWays) {
  const std::vector<int32_t> ends = {96, 96, 128, 448};
  // The same groups by ends within a unit of 32, that decrease, or that are negative.
  for (const auto& [block, given] : {std::pair{int64_t{16}, ends},
                                     {32, ends},
                                     {16, {101, 77, 140, 479}},
                                     {32, {127, -31, 129, 450}},
                                     {32, {96, -2000000000, 128, 448}}}) {
    SCOPED_TRACE(testing::PrintToString(given));
    const int64_t rows = 200, k = 512, columns = k / block;
    std::vector<uint8_t> from(size_t(rows * columns));
    for (size_t i = 0; i < from.size(); ++i) from[i] = uint8_t(1 + mix(i) % 255);
    const size_t bytes = size_t(k_group_scale_bytes(rows, k, 4, block));
    std::vector<uint8_t> wanted(bytes, 0xee);
    int64_t first = 0, begin = 0;
    for (int32_t end : ends) {
      const int64_t size = blocked_scale_bytes(rows, end - begin, block);
      std::fill_n(wanted.begin() + first, size, 0);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < (end - begin) / block; ++c)
          wanted[size_t(first + blocked_scale_index(r, c, end - begin, block))] =
              from[size_t(r * columns + begin / block + c)];
      }
      first += size, begin = end;
    }
    const Buffer source(from), to(std::vector<uint8_t>(bytes, 0xee)), sizes(given);
    const Buffer back(std::vector<uint8_t>(from.size(), 0x77));
    ScaleBlocking x;
    x.from = source.get(), x.to = to.get();
    x.groups = 4, x.rows = rows, x.k = k, x.block = block;
    x.offsets = sizes.get<int32_t>(), x.along_k = true;
    block_scales(device(), x);
    EXPECT_TRUE(to.download() == wanted) << block;
    x.from = to.get(), x.to = back.get();
    unblock_scales(device(), x);
    const std::vector<uint8_t> got = back.download();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const auto at = size_t(r * columns + c);
        ASSERT_EQ(got[at], c < ends.back() / block ? from[at] : 0x77) << r << " " << c;
      }
    }
  }
}

}  // namespace
}  // namespace moxie::test
