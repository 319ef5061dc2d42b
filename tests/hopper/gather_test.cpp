// SPDX-License-Identifier: Apache-2.0
// What a list of gathered rows means, what is refused, and what a kernel that gathers is made of. The programs of both
// architectures have these tests.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "jit/jit.h"
#include "reference/formats.h"
#include "tests/support/grouped_product.h"
#include "tests/support/planned.h"

namespace moxie::test {
namespace {

using ::testing::HasSubstr;

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

// Rows of A that hold their own number, and weights that give it back.
struct Numbered {
  static constexpr int64_t kK = 64, kN = 8, kCount = 37;
  Numbered() : a(a_values()), b(b_values()) {}
  static std::vector<uint16_t> a_values() {
    std::vector<uint16_t> values;
    for (int64_t i = 0; i < kCount * kK; ++i)
      values.push_back(reference::float_to_bf16(i % kK == 0 ? float(i / kK + 1) : 0));
    return values;
  }
  static std::vector<uint16_t> b_values() {
    return std::vector<uint16_t>(size_t(2 * kN * kK), reference::float_to_bf16(1));
  }
  static GemmDescription description() {
    GemmDescription d;
    d.groups = Offsets{2};
    d.n = kN, d.k = kK;
    d.gather = true;
    d.out = kF32;
    return d;
  }
  // The number that every row of the product holds.
  std::vector<float> run(const std::vector<int32_t>& list, std::vector<int32_t> ends, int32_t divisor = 1,
                         int64_t count = kCount) const {
    const Buffer rows(list), sizes(ends), out(list.size() * kN * 4);
    out.fill(0xff);
    const GroupedGemm gemm(device(), description());
    const auto total = int64_t(list.size());
    const Buffer workspace(gemm.workspace_bytes(total));
    GemmTensors t;
    t.a.data = a.get(), t.b.data = b.get(), t.out.data = out.get();
    t.rows.ends = sizes.get<int32_t>(), t.rows.total = total;
    t.gather = {rows.get<int32_t>(), divisor, count};
    gemm.run(t, {workspace.get(), gemm.workspace_bytes(total)});
    device().synchronize();
    const std::vector<uint8_t> bytes = out.download();
    std::vector<float> numbers;
    for (size_t r = 0; r < list.size(); ++r) {
      float values[kN];
      std::memcpy(values, bytes.data() + r * sizeof values, sizeof values);
      for (const float value : values) EXPECT_TRUE(std::isnan(values[0]) ? std::isnan(value) : value == values[0]);
      numbers.push_back(values[0] - 1);
    }
    return numbers;
  }
  Buffer a, b;
};

TEST(Gather, RowsMayComeAgainAndInAnyOrder) {
  const Numbered product;
  EXPECT_EQ(product.run({5, 5, 36, 0, 5, 20, 20}, {3, 7}), (std::vector<float>{5, 5, 36, 0, 5, 20, 20}));
  EXPECT_EQ(product.run({0, 3, 4, 147, 11}, {1, 5}, 4), (std::vector<float>{0, 0, 1, 36, 2}));
}

TEST(Gather, RowsThatAreNotThereAreZeros) {
  const Numbered product;
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max(), kLeast = std::numeric_limits<int32_t>::min();
  EXPECT_EQ(product.run({37, -1, kMost, kLeast, 36}, {2, 5}), (std::vector<float>{-1, -1, -1, -1, 36}));
  EXPECT_EQ(product.run({0, 2}, {1, 2}, 1, 0), (std::vector<float>{-1, -1}));
  EXPECT_EQ(product.run({3, 2}, {1, 2}, 1, 3), (std::vector<float>{-1, 2}));
}

TEST(Gather, RowsPastTheLastEndAreNeitherReadNorWritten) {
  const std::vector<float> numbers = Numbered().run({1, 2, 3, 4, 5}, {1, 3});
  EXPECT_EQ(std::vector<float>(numbers.begin(), numbers.begin() + 3), (std::vector<float>{1, 2, 3}));
  EXPECT_TRUE(std::isnan(numbers[3]) && std::isnan(numbers[4]));
}

std::string refusal(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Gather, WrongUseIsNamed) {
  const auto planned = [](const std::function<void(GemmDescription&)>& change, int arch = 90) {
    GemmDescription d = Numbered::description();
    change(d);
    DeviceFigures device;
    device.arch = arch;
    return refusal([&] { plan_gemm(d, device); });
  };
  EXPECT_EQ(planned([](auto&) {}), "nothing");
  EXPECT_EQ(planned([](auto& d) {
              d.groups = Masked{2, 8};
            }),
            "gather is true, but rows of masked groups are not gathered, only those of offsets");
  EXPECT_EQ(planned([](auto& d) { d.format = OperandFormat::Mxfp4; }, 100),
            "gather is true, but rows of mxfp4 operands are not gathered, only those of bf16");
  EXPECT_EQ(planned([](auto&) {}, 100), "nothing");
  const auto shared = [&](Multicast multicast) {
    return planned([&](auto& d) { d.hopper = HopperTuning{{}, {}, {}, {}, multicast}; });
  };
  EXPECT_EQ(shared(Multicast::A), "multicast shares a, but gathered rows are not shared");
  EXPECT_EQ(shared(Multicast::Either), "nothing");
  EXPECT_EQ(shared(Multicast::B), "nothing");

  const Numbered product;
  const Buffer rows(std::vector<int32_t>{0, 1}), ends(std::vector<int32_t>{1, 2}), out(2 * 8 * 4), workspace(1 << 20);
  const auto ran = [&](const std::function<void(GemmTensors&)>& change, bool gather = true) {
    GemmDescription d = Numbered::description();
    d.gather = gather;
    GemmTensors t;
    t.a.data = product.a.get(), t.b.data = product.b.get(), t.out.data = out.get();
    t.rows.ends = ends.get<int32_t>(), t.rows.total = 2;
    if (gather) t.gather = {rows.get<int32_t>(), 1, Numbered::kCount};
    change(t);
    return refusal([&] { GroupedGemm(device(), d).run(t, {workspace.get(), 1 << 20}); });
  };
  EXPECT_EQ(ran([](auto&) {}), "nothing");
  EXPECT_EQ(ran([](auto& t) { t.gather.rows = nullptr; }), "gather.rows is null, but must point to device memory");
  EXPECT_EQ(ran([](auto& t) { t.gather.divisor = 0; }), "gather.divisor is 0, but must be positive");
  EXPECT_EQ(ran([](auto& t) { t.gather.count = -1; }), "gather.count is -1, but cannot be negative");
  EXPECT_EQ(ran([](auto& t) { t.a.ld = int64_t{1} << 31; }),
            "a.ld is 2147483648, but must be below 2^31 elements where rows are gathered");
  EXPECT_THAT(ran([](auto& t) { t.gather.rows = reinterpret_cast<const int32_t*>(uintptr_t(t.gather.rows) + 2); }),
              HasSubstr("must be aligned to 4 bytes"));
  EXPECT_EQ(ran([&](auto& t) { t.out.data = rows.get(); }), "out overlaps gather.rows in memory");
  EXPECT_EQ(ran([&](auto& t) { t.out.data = const_cast<void*>(t.a.data); }), "out overlaps a in memory");
  EXPECT_EQ(ran([&](auto& t) { t.gather.rows = rows.get<int32_t>(); }, false),
            "gather is given, but the description gathers no rows");
  EXPECT_EQ(ran([&](auto& t) { t.rows.total = 0, t.gather.rows = nullptr; }), "nothing");
}

// Nothing of a gather in a kernel without one, and no permuted copy of A in one with it.
TEST(Gather, IsOnlyInKernelsThatGather) {
  for (const bool gather : {false, true}) {
    for (const int rows : {1, 1000}) {
      ProductSpec p;
      p.grouping = Grouping::Offsets;
      p.groups = 4, p.m = 4 * rows, p.n = 256, p.k = 256;
      p.gather = gather;
      DeviceFigures figures;
      figures.arch = device().info().arch;
      jit::Request request = request_of(figures, p);
      request.kind = jit::ImageKind::Ptx;
      const std::string ptx = jit::obtain(request).bytes;
      const auto has = [&](const char* text) { return ptx.find(text) != std::string::npos; };
      const bool hopper = figures.arch == 90;
      for (const char* sign : hopper ? std::vector{"cp.async.cg.shared.global", "cp.async.mbarrier.arrive.noinc"}
                                     : std::vector{"tile::gather4"}) {
        EXPECT_EQ(has(sign), gather) << sign;
      }
      // Outputs leave by the copy engine, but for few rows on Hopper, where every store is one of the sink's.
      EXPECT_EQ(has("st.global"), hopper && rows == 1);
    }
  }
}

}  // namespace
}  // namespace moxie::test
