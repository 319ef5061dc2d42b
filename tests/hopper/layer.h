// SPDX-License-Identifier: Apache-2.0
// One grouped product on a device with its answer: lays out operands and outputs for any grouping, with gaps, guards
// and NaN wherever nothing may be read or written, launches, and compares every byte.
#pragma once
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "moxie/moxie.h"
#include "reference/comparison.h"
#include "reference/formats.h"
#include "reference/product.h"
#include "tests/support/product_spec.h"

namespace moxie::test {

// The device of the whole program. The simulator gets few SMs, so that every block walks over several tiles and groups.
inline const Device& device() {
  // Never closed: at exit the driver may be gone before it.
  static const Device& d = *new Device([] {
    setenv("MOXIE_SIM_SMS", "4", 0);
    if (!std::getenv("MOXIE_DEVICE")) setenv("MOXIE_DEVICE", "sim", 0);
    return Device::open();
  }());
  return d;
}

// The simulator reads its order at every launch; a GPU has one of its own.
inline void set_order(const char* order) { setenv("MOXIE_SIM_ORDER", order, 1); }
inline std::vector<const char*> orders() {
  if (!device().info().simulated) return {"eager"};
  return {"eager", "lazy", "random:1"};
}

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) : bytes_(bytes), pointer_(device().allocate(bytes)) {
    if (pointer_) live()[pointer_] = bytes;
  }
  template <typename T>
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size() * sizeof(T)) {
    device().upload(pointer_, values.data(), bytes_);
  }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~Buffer() {
    if (!pointer_) return;
    live().erase(pointer_);
    device().free(pointer_);
  }
  // Every buffer there is: its address and bytes.
  static std::map<void*, size_t>& live() {
    static std::map<void*, size_t> all;
    return all;
  }
  template <typename T = void>
  T* get() const {
    return static_cast<T*>(pointer_);
  }
  size_t size() const { return bytes_; }
  void fill(uint8_t value) const { device().fill(pointer_, value, bytes_); }
  std::vector<uint8_t> download() const {
    std::vector<uint8_t> bytes(bytes_);
    if (bytes_ > 0) device().download(bytes.data(), pointer_, bytes_);
    return bytes;
  }

 private:
  size_t bytes_ = 0;
  void* pointer_ = nullptr;
};

inline uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

// Random bf16 of magnitude scale / 16 to scale, never zero.
inline uint16_t random_bf16(uint64_t seed, uint64_t index, float scale) {
  const uint64_t bits = mix(seed * 0x100000001b3 + index);
  const float magnitude = scale * (1.0f / 16 + float(bits >> 40) * (15.0f / 16 / float(1 << 24)));
  return reference::float_to_bf16(bits & 1 ? -magnitude : magnitude);
}

// What to compute. `problem` gives grouping, types, activation and choices; sizes come from rows, n and k.
struct Job {
  ProductSpec problem;
  std::vector<int64_t> rows;  // of each group. Dense: one entry; Batched: all the same
  int64_t n = 64, k = 64;
  std::vector<int64_t> group_n, group_k;  // Pointers: of each group; empty: n and k
  int64_t spare_rows = 3;                 // rows allocated past the last one
  int64_t pad_a = 8, pad_b = 16;          // elements between rows beyond the width
  int64_t pad_pre = 8, pad_out = 24;
  bool host_sizes = false;
  bool weights_ready = false;
  float alpha = 1.702f, limit = 7.0f;
  float scale = 1;  // of A
  uint64_t seed = 1;
  // Routing data to hand to the kernel instead of the right ones (Pointers: [groups][3]). Any row of the outputs may
  // then be written, but nothing beside them.
  std::vector<int32_t> corrupt_sizes;
};

// Bytes of pre and out as they lie in device memory, guards included.
struct Results {
  std::vector<uint8_t> pre, out;
  bool operator==(const Results&) const = default;
};

class Layer {
 public:
  explicit Layer(Job job) : job_(std::move(job)) { build(); }

  const ProductSpec& problem() const { return job_.problem; }
  ProductTensors& arguments() { return arguments_; }
  const std::vector<int64_t>& first_rows() const { return first_rows_; }  // of each group in A (not Pointers)
  int64_t total_rows() const { return rows_; }
  int64_t out_width() const { return is_gated(job_.problem.activation) ? job_.problem.n / 2 : job_.problem.n; }

  void poison() {
    pre_.buffer.fill(kPoison);
    out_.buffer.fill(kPoison);
  }
  void launch() { gemm(device(), job_.problem, arguments_); }
  Results results() const { return {pre_.buffer.download(), out_.buffer.download()}; }
  Results run() {
    poison();
    launch();
    device().synchronize();
    return results();
  }

  // The double-precision answer of group g: [rows, N_g], or [rows, N_g / 2] for out with a gate.
  std::vector<double> expected_pre(size_t g) const { return reference_pre(g); }
  std::vector<double> expected_out(size_t g) const {
    const Place& place = groups_[g];
    return reference::activate_all(job_.problem.activation, job_.problem.gate, reference_pre(g), place.m, place.n,
                                   job_.alpha, job_.limit);
  }

  // The same with another A [rows, K] for its only group.
  std::vector<double> expected_out_with(const uint16_t* a, int64_t lda) const {
    const Place& place = groups_.front();
    const auto pre = reference::product({a, lda, b_.data() + place.b, place.ldb,
                                         job_.problem.bias ? bias_.data() : nullptr, place.m, place.n, place.k});
    return reference::activate_all(job_.problem.activation, job_.problem.gate, pre, place.m, place.n, job_.alpha,
                                   job_.limit);
  }

  // First byte of the downloaded results in device memory.
  const void* pre_base() const { return pre_.buffer.get(); }
  const void* out_base() const { return out_.buffer.get(); }

  // Every element that should be there is right, every other byte is still poison.
  void check(const Results& results) const {
    if (job_.problem.pre) check(results.pre, pre_, *job_.problem.pre, true);
    if (job_.problem.out) check(results.out, out_, *job_.problem.out, false);
  }

 private:
  static constexpr uint8_t kPoison = 0xff;      // NaN as bf16 and as float32
  static constexpr uint16_t kNan = 0x7fc1;      // operands where nothing may be read into a result
  static constexpr int64_t kGuardBytes = 1024;  // before and behind every output

  // One group in memory; offsets in elements of the arrays that hold all groups.
  struct Place {
    int64_t m, n, k;
    int64_t a, lda, b, ldb, bias;
    int64_t pre, ld_pre, out, ld_out;
  };
  struct Output {
    Buffer buffer;
    int64_t elements = 0;
  };

  void build() {
    ProductSpec& p = job_.problem;
    const int64_t groups = int64_t(job_.rows.size());
    const bool own = p.grouping == Grouping::Pointers;
    p.groups = groups;
    p.n = job_.n, p.k = job_.k;
    p.alpha = job_.alpha, p.limit = job_.limit;
    if (own) {
      if (job_.group_n.empty()) job_.group_n.assign(groups, job_.n);
      if (job_.group_k.empty()) job_.group_k.assign(groups, job_.k);
      p.n = *std::max_element(job_.group_n.begin(), job_.group_n.end());
      p.k = *std::max_element(job_.group_k.begin(), job_.group_k.end());
    }
    const int64_t most = *std::max_element(job_.rows.begin(), job_.rows.end());
    if (job_.host_sizes) p.host_rows = job_.rows;

    // The rows of A: where each group begins, and how many there are.
    std::vector<int32_t> sizes;
    first_rows_.clear();
    switch (p.grouping) {
      case Grouping::Dense:
        p.m = rows_ = most;
        first_rows_ = {0};
        break;
      case Grouping::Batched:
      case Grouping::Masked:
        p.m = p.grouping == Grouping::Masked ? most + job_.spare_rows : most;
        rows_ = groups * p.m;
        for (int64_t g = 0; g < groups; ++g) {
          first_rows_.push_back(g * p.m);
          sizes.push_back(int32_t(job_.rows[g]));
        }
        break;
      case Grouping::Offsets:
        rows_ = 0;
        for (int64_t rows : job_.rows) {
          first_rows_.push_back(rows_);
          rows_ += rows;
          sizes.push_back(int32_t(rows_));
        }
        p.m = rows_ += job_.spare_rows;
        break;
      case Grouping::RowGroups: {
        p.m = std::accumulate(job_.rows.begin(), job_.rows.end(), int64_t{0});
        const int64_t alignment = alignment_ = row_alignment(device(), p);
        rows_ = 0;
        for (int64_t g = 0; g < groups; ++g) {
          first_rows_.push_back(rows_);
          sizes.insert(sizes.end(), job_.rows[g], int32_t(g));
          rows_ += job_.rows[g];
          if (g + 1 == groups) break;
          const int64_t next = (rows_ + alignment - 1) / alignment * alignment;
          sizes.insert(sizes.end(), next - rows_, -1);
          rows_ = next;
        }
        sizes.insert(sizes.end(), job_.spare_rows, -1);
        p.m = rows_ += job_.spare_rows;
        break;
      }
      case Grouping::Pointers:
      case Grouping::KGroups:  // not of this layer: tests/blackwell/grouped.h
        p.m = most;
        break;
    }
    place_groups();
    make_operands();
    make_outputs();
    if (!job_.corrupt_sizes.empty()) sizes = job_.corrupt_sizes;
    set_arguments(sizes);
  }

  void place_groups() {
    const ProductSpec& p = job_.problem;
    const bool own = p.grouping == Grouping::Pointers;
    const bool gated = is_gated(p.activation);
    const int64_t guard_pre = p.pre ? kGuardBytes / size_of(*p.pre) : 0,
                  guard_out = p.out ? kGuardBytes / size_of(*p.out) : 0;
    int64_t a = 8, b = 8, bias = 0, pre = guard_pre, out = guard_out;
    for (size_t g = 0; g < job_.rows.size(); ++g) {
      Place place;
      place.m = job_.rows[g];
      place.n = own ? job_.group_n[g] : p.n;
      place.k = own ? job_.group_k[g] : p.k;
      // Each group of Pointers has leading dimensions of its own.
      const int64_t more = own ? int64_t(g % 3) * 8 : 0;
      const int64_t out_n = gated ? place.n / 2 : place.n;
      place.lda = place.k + job_.pad_a + more;
      place.ldb = place.k + job_.pad_b + more;
      place.ld_pre = place.n + job_.pad_pre + more;
      place.ld_out = out_n + job_.pad_out + more;
      if (own) {
        place.a = a, place.b = b, place.bias = bias, place.pre = pre, place.out = out;
        a += place.m * place.lda + 8, b += place.n * place.ldb + 8, bias += place.n;
        pre += place.m * place.ld_pre + 16, out += place.m * place.ld_out + 16;
      } else {
        const int64_t row = first_rows_[g];
        place.a = 8 + row * place.lda, place.b = 8 + int64_t(g) * p.n * place.ldb, place.bias = int64_t(g) * p.n;
        place.pre = guard_pre + row * place.ld_pre, place.out = guard_out + row * place.ld_out;
        a = 8 + rows_ * place.lda, b = place.b + p.n * place.ldb, bias = place.bias + p.n;
        pre = guard_pre + rows_ * place.ld_pre, out = guard_out + rows_ * place.ld_out;
      }
      groups_.push_back(place);
    }
    a_.assign(a, kNan), b_.assign(b, kNan), bias_.assign(bias, kNan);
    pre_.elements = pre + guard_pre, out_.elements = out + guard_out;
  }

  void make_operands() {
    const uint64_t seed = job_.seed * 1000;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Place& place = groups_[g];
      // pre of a standard deviation near one, so that every activation shows its curve and the clamps are met.
      const float scale = 3.0f / std::sqrt(float(std::max<int64_t>(place.k, 1)));
      for (int64_t i = 0; i < place.m; ++i) {
        for (int64_t j = 0; j < place.k; ++j) {
          const int64_t at = place.a + i * place.lda + j;
          a_[at] = random_bf16(seed, uint64_t(at), job_.scale);
        }
      }
      for (int64_t i = 0; i < place.n; ++i) {
        for (int64_t j = 0; j < place.k; ++j) {
          const int64_t at = place.b + i * place.ldb + j;
          b_[at] = random_bf16(seed + 1, uint64_t(at), scale);
        }
        bias_[place.bias + i] = random_bf16(seed + 2, uint64_t(place.bias + i), 0.5f);
      }
    }
    device_a_ = Buffer(a_), device_b_ = Buffer(b_), device_bias_ = Buffer(bias_);
  }

  void make_outputs() {
    const ProductSpec& p = job_.problem;
    if (p.pre) pre_.buffer = Buffer(size_t(pre_.elements * size_of(*p.pre)));
    if (p.out) out_.buffer = Buffer(size_t(out_.elements * size_of(*p.out)));
  }

  template <typename T, typename Offset>
  const void* const* pointer_array(const Buffer& buffer, Offset offset, size_t element) {
    std::vector<T*> pointers;
    for (const Place& place : groups_)
      pointers.push_back(reinterpret_cast<T*>(buffer.get<uint8_t>() + place.*offset * element));
    arrays_.emplace_back(pointers);
    return arrays_.back().get<const void*>();
  }
  const int64_t* ld_array(int64_t Place::*ld) {
    std::vector<int64_t> values;
    for (const Place& place : groups_) values.push_back(place.*ld);
    arrays_.emplace_back(values);
    return arrays_.back().get<const int64_t>();
  }

  void set_arguments(const std::vector<int32_t>& sizes) {
    const ProductSpec& p = job_.problem;
    ProductTensors& x = arguments_;
    const size_t pre_bytes = p.pre ? size_of(*p.pre) : 0, out_bytes = p.out ? size_of(*p.out) : 0;
    if (p.grouping == Grouping::Pointers) {
      x.pointers.a.data = pointer_array<const void>(device_a_, &Place::a, 2);
      x.pointers.b.data = pointer_array<const void>(device_b_, &Place::b, 2);
      x.pointers.bias = pointer_array<const void>(device_bias_, &Place::bias, 2);
      x.pointers.a.ld = ld_array(&Place::lda), x.pointers.b.ld = ld_array(&Place::ldb);
      std::vector<int32_t> own = job_.corrupt_sizes;
      if (own.empty()) {
        for (const Place& place : groups_)
          own.insert(own.end(), {int32_t(place.m), int32_t(place.n), int32_t(place.k)});
      }
      arrays_.emplace_back(own);
      x.pointers.sizes = arrays_.back().get<const int32_t>();
      if (p.pre) {
        x.pointers.pre.data = const_cast<void* const*>(pointer_array<void>(pre_.buffer, &Place::pre, pre_bytes));
        x.pointers.pre.ld = ld_array(&Place::ld_pre);
      }
      if (p.out) {
        x.pointers.out.data = const_cast<void* const*>(pointer_array<void>(out_.buffer, &Place::out, out_bytes));
        x.pointers.out.ld = ld_array(&Place::ld_out);
      }
    } else {
      const Place& first = groups_.front();
      x.a = device_a_.get<uint16_t>() + 8, x.lda = first.lda;
      x.b = device_b_.get<uint16_t>() + 8, x.ldb = first.ldb;
      if (p.bias) x.bias = device_bias_.get();
      if (p.pre) x.pre = pre_.buffer.get<uint8_t>() + kGuardBytes, x.ld_pre = first.ld_pre;
      if (p.out) x.out = out_.buffer.get<uint8_t>() + kGuardBytes, x.ld_out = first.ld_out;
      if (!sizes.empty()) {
        arrays_.emplace_back(sizes);
        x.sizes = arrays_.back().get<const int32_t>();
      }
    }
    x.weights_ready = job_.weights_ready;
    // What it holds does not matter. Written, since ptxas makes tensormap.cp_fenceproxy an atomic exchange, which
    // compute-sanitizer's initcheck takes for a read.
    workspace_ = Buffer(std::vector<uint8_t>(workspace_bytes(device(), p), 0xa5));
    x.workspace = workspace_.get();
    x.workspace_bytes = workspace_.size();
  }

  std::vector<double> reference_pre(size_t g) const {
    const Place& place = groups_[g];
    return reference::product({a_.data() + place.a, place.lda, b_.data() + place.b, place.ldb,
                               job_.problem.bias ? bias_.data() + place.bias : nullptr, place.m, place.n, place.k});
  }

  void check(const std::vector<uint8_t>& got, const Output& output, DataType type, bool pre) const {
    const char* name = pre ? "pre" : "out";
    const int64_t bytes = size_of(type);
    ASSERT_EQ(int64_t(got.size()), output.elements * bytes);
    enum : uint8_t { Untouched, Written, Maybe };
    std::vector<uint8_t> rule(output.elements, Untouched);
    reference::Comparison comparison(type == DataType::Bf16 ? reference::kBf16Bound : reference::kF32Bound);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Place& place = groups_[g];
      const int64_t width = !pre && is_gated(job_.problem.activation) ? place.n / 2 : place.n;
      const int64_t first = pre ? place.pre : place.out, ld = pre ? place.ld_pre : place.ld_out;
      // Padding rows of RowGroups may be overwritten up to the end of their tile; wrong routing data may fill any row.
      int64_t rows = place.m;
      if (job_.problem.grouping != Grouping::Pointers) {
        const int64_t until_next = (g + 1 < groups_.size() ? first_rows_[g + 1] : rows_) - first_rows_[g];
        if (!job_.corrupt_sizes.empty()) {
          rows = until_next;
        } else if (job_.problem.grouping == Grouping::RowGroups) {
          rows = std::min(until_next, (rows + alignment_ - 1) / alignment_ * alignment_);
        }
      }
      for (int64_t i = 0; i < rows; ++i) {
        const bool must = i < place.m && job_.corrupt_sizes.empty();
        std::fill_n(rule.begin() + first + i * ld, width, must ? Written : Maybe);
      }
      if (!job_.corrupt_sizes.empty() || place.m == 0 || width == 0) continue;
      comparison.add(pre ? expected_pre(g) : expected_out(g), got.data() + first * bytes, type, place.m, width, ld,
                     first_rows_.empty() ? 0 : first_rows_[g]);
    }
    EXPECT_EQ(comparison.failure(), "") << name;
    int64_t touched = 0, first_touched = -1;
    for (int64_t i = 0; i < output.elements; ++i) {
      if (rule[i] != Untouched) continue;
      for (int64_t j = 0; j < bytes; ++j) {
        if (got[i * bytes + j] == kPoison) continue;
        ++touched;
        if (first_touched < 0) first_touched = i;
        break;
      }
    }
    EXPECT_EQ(touched, 0) << name << ": elements that must not be written, the first at " << first_touched << " of "
                          << output.elements;
  }

  Job job_;
  int64_t rows_ = 0;       // of A, all groups together (not Pointers)
  int64_t alignment_ = 1;  // RowGroups
  std::vector<int64_t> first_rows_;
  std::vector<Place> groups_;
  std::vector<uint16_t> a_, b_, bias_;
  Buffer device_a_, device_b_, device_bias_, workspace_;
  Output pre_, out_;
  std::vector<Buffer> arrays_;
  ProductTensors arguments_;
};

// Runs a job in every order: right each time, and the same bits.
inline void run_in_all_orders(const Job& job) {
  Layer layer(job);
  Results first;
  bool have_first = false;
  for (const char* order : orders()) {
    SCOPED_TRACE(order);
    set_order(order);
    Results results;
    ASSERT_NO_THROW(results = layer.run());
    layer.check(results);
    if (have_first) {
      EXPECT_TRUE(results == first) << "other bits than in the first order";
    } else {
      first = std::move(results);
      have_first = true;
    }
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace moxie::test
