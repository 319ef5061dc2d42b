// SPDX-License-Identifier: Apache-2.0
// The published products (reference_shapes.h) at their full size: hours of `make nightly`, not of CI
// (MOXIE_TEST_ALL=1).
//
// Every element is checked, but not by computing it again. The sums are exact, so 4 D is a matrix of integers, and with
// random integers x, modulo 2^64, (4 D) x must equal (2 A) ((2 B)^T x): a wrong row passes by a chance of 2^-23 at
// most.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "tests/blackwell/reference_shapes.h"
#include "tests/support/device.h"
#include "tests/support/random.h"

namespace moxie::test {
namespace {

// Rows of random elements and scales, made in pieces: the largest do not fit twice.
class Operand {
 public:
  Operand(int64_t rows, int64_t k, uint64_t seed)
      : rows_(rows), k_(k), seed_(seed), elements_(size_t(rows * k / 2)), scales_(size_t(rows * k / kScaleBlock)) {}

  // Uploads the rows; hands each to visit(row, its doubled elements times their scales).
  template <class Visit>
  void make(Visit&& visit) {
    constexpr int64_t kPiece = 1024;
    constexpr int64_t kDoubled[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    std::vector<uint8_t> elements, scales;
    std::vector<int64_t> values(static_cast<size_t>(k_));
    for (int64_t begin = 0; begin < rows_; begin += kPiece) {
      const int64_t count = std::min(kPiece, rows_ - begin);
      elements.resize(size_t(count * k_ / 2)), scales.resize(size_t(count * k_ / kScaleBlock));
      for (int64_t r = 0; r < count; ++r) {
        uint8_t* const row = elements.data() + r * k_ / 2;
        for (int64_t i = 0; i < k_ / 2; i += 16) {  // one scale, 16 bytes
          const uint64_t at = uint64_t((begin + r) * k_ / 32 + i / 16);
          const uint64_t bits[2] = {mix(seed_ + 2 * at), mix(seed_ + 2 * at + 1)};
          std::memcpy(row + i, bits, 16);
          const int64_t shift = mix(seed_ ^ at) & 1;
          scales[size_t(r * k_ / kScaleBlock + i / 16)] = uint8_t(127 + shift);
          for (int64_t j = i; j < i + 16; ++j) {
            values[size_t(2 * j)] = kDoubled[row[j] & 15] << shift;
            values[size_t(2 * j + 1)] = kDoubled[row[j] >> 4] << shift;
          }
        }
        visit(begin + r, values);
      }
      device().upload(elements_.get<uint8_t>() + begin * k_ / 2, elements.data(), elements.size());
      device().upload(scales_.get<uint8_t>() + begin * k_ / kScaleBlock, scales.data(), scales.size());
    }
  }
  const void* elements() const { return elements_.get(); }
  const void* scales() const { return scales_.get(); }

 private:
  int64_t rows_, k_;
  uint64_t seed_;
  Buffer elements_, scales_;
};

constexpr uint8_t kPoison[] = {0xff, 0xff, 0xff, 0xff};
using Vector = std::vector<uint64_t>;  // modulo 2^64

class FullSize : public testing::TestWithParam<ReferenceShape> {
 protected:
  // Rows of each group, and where they begin.
  void place() {
    const ReferenceShape& s = GetParam();
    p_ = problem_of(s);
    uint64_t random = run_seed();
    int64_t total = 0;
    const int64_t alignment = s.grouping == Grouping::RowGroups ? row_alignment(device(), p_) : 1;
    for (int64_t g = 0; g < s.groups; ++g) {
      int64_t rows = s.rows * s.percent / 100;
      if (s.grouping != Grouping::Dense) {  // around the mean
        const int64_t share = 700 + int64_t(mix(random++) % 601), more = int64_t(mix(random++) % 2);
        rows = rows * share / 1000 + (rows < 8 ? more : 0);
        if (s.grouping == Grouping::Masked) rows = std::min(rows, s.rows);
      }
      first_.push_back(s.grouping == Grouping::Masked ? g * s.rows : total);
      rows_.push_back(rows);
      total += (rows + alignment - 1) / alignment * alignment;
      sizes_.push_back(int32_t(s.grouping == Grouping::Offsets ? total : rows));
      if (s.grouping == Grouping::RowGroups) {
        indices_.insert(indices_.end(), size_t(rows), int32_t(g));
        indices_.resize(size_t(total), -1);
      }
    }
    if (s.grouping == Grouping::Masked) {
      total_ = s.groups * s.rows;
    } else {
      p_.m = total_ = total;
    }
    if (s.grouping == Grouping::RowGroups) sizes_ = indices_;
  }

  // Integers that the rows of 4 D times x must add up to.
  void make_operands(Operand& a, Operand& b) {
    const int64_t n = p_.n, k = p_.k;
    for (int64_t j = 0; j < n; ++j) x_.push_back(mix(run_seed() * 3 + uint64_t(j)));
    std::vector<Vector> bx(size_t(p_.groups), Vector(static_cast<size_t>(k)));
    b.make([&](int64_t row, const std::vector<int64_t>& values) {
      Vector& sum = bx[size_t(row / n)];
      const uint64_t factor = x_[size_t(row % n)];
      for (size_t i = 0; i < values.size(); ++i) sum[i] += uint64_t(values[i]) * factor;
    });
    group_of_.assign(size_t(total_), -1);
    for (size_t g = 0; g < rows_.size(); ++g) std::fill_n(group_of_.begin() + first_[g], rows_[g], int64_t(g));
    wanted_.assign(size_t(total_), 0);
    a.make([&](int64_t row, const std::vector<int64_t>& values) {
      const int64_t g = group_of_[size_t(row)];
      for (size_t i = 0; g >= 0 && i < values.size(); ++i)
        wanted_[size_t(row)] += uint64_t(values[i]) * bx[size_t(g)][i];
    });
  }

  void check(const Buffer& out) const {
    constexpr int64_t kPiece = 4096;
    const int64_t n = p_.n;
    std::vector<float> piece;
    int64_t wrong = 0, spoiled = 0;
    for (int64_t begin = 0; begin < total_; begin += kPiece) {
      const int64_t count = std::min(kPiece, total_ - begin);
      piece.resize(size_t(count * n));
      device().download(piece.data(), out.get<float>() + begin * n, piece.size() * 4);
      for (int64_t r = 0; r < count; ++r) {
        const float* const row = piece.data() + r * n;
        if (group_of_[size_t(begin + r)] < 0) {
          // Padding that shares a tile with rows may be written.
          for (int64_t j = 0; p_.grouping != Grouping::RowGroups && j < n; ++j)
            spoiled += std::memcmp(row + j, kPoison, 4) != 0;
          continue;
        }
        uint64_t sum = 0;
        bool integers = true;
        for (int64_t j = 0; j < n; ++j) {
          const float value = 4 * row[j];
          if (!(std::fabs(value) < 0x1p40f) || std::rint(value) != value) {
            integers = false;
            break;
          }
          sum += uint64_t(int64_t(value)) * x_[size_t(j)];
        }
        wrong += !integers || sum != wanted_[size_t(begin + r)];
      }
    }
    EXPECT_EQ(wrong, 0) << "rows that differ from the sum";
    EXPECT_EQ(spoiled, 0) << "elements that must not be written";
  }

  static Buffer block(const void* scales, int64_t groups, int64_t rows, int64_t k, const int32_t* offsets,
                      size_t bytes) {
    Buffer blocked(bytes);
    ScaleBlocking blocking;
    blocking.from = scales, blocking.to = blocked.get();
    blocking.groups = groups, blocking.rows = rows, blocking.k = k;
    blocking.offsets = offsets;
    block_scales(device(), blocking);
    device().synchronize();
    return blocked;
  }

  ProductSpec p_;
  int64_t total_ = 0;
  std::vector<int64_t> first_, rows_, group_of_;
  std::vector<int32_t> sizes_, indices_;
  Vector x_, wanted_;
};

TEST_P(FullSize, IsRight) {
  SCOPED_TRACE(fmt::format("MOXIE_TEST_SEED={} repeats these data", run_seed()));
  place();
  Operand a(total_, p_.k, mix(run_seed())), b(p_.groups * p_.n, p_.k, mix(run_seed() + 1));
  make_operands(a, b);
  const Buffer sizes(sizes_), out(size_t(total_ * p_.n) * 4), workspace(workspace_bytes(device(), p_));
  const bool offsets = p_.grouping == Grouping::Offsets, masked = p_.grouping == Grouping::Masked;
  set_order("eager");
  const Buffer sfa = block(a.scales(), masked || offsets ? p_.groups : 1, p_.m, p_.k,
                           offsets ? sizes.get<int32_t>() : nullptr, a_scale_bytes(p_));
  const Buffer sfb = block(b.scales(), p_.groups, p_.n, p_.k, nullptr, b_scale_bytes(p_));
  ProductTensors x;
  x.a = a.elements(), x.b = b.elements();
  x.sfa = sfa.get(), x.sfb = sfb.get();
  if (p_.grouping != Grouping::Dense) x.sizes = sizes.get<int32_t>();
  x.out = out.get();
  x.workspace = workspace.get(), x.workspace_bytes = workspace.size();
  for (const char* order : orders()) {
    SCOPED_TRACE(order);
    set_order(order);
    out.fill(kPoison[0]);
    const auto start = std::chrono::steady_clock::now();
    ASSERT_NO_THROW(gemm(device(), p_, x));
    device().synchronize();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::printf("%s: %.1f s\n", order, took.count());
    check(out);
    if (HasFailure()) return;
  }
}

std::vector<ReferenceShape> full_sizes() {
  return std::getenv("MOXIE_TEST_ALL") ? reference_shapes() : std::vector<ReferenceShape>();
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FullSize);
INSTANTIATE_TEST_SUITE_P(Mxfp4, FullSize, testing::ValuesIn(full_sizes()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moxie::test
