// SPDX-License-Identifier: Apache-2.0
// See grouped_product.h.
#include "tests/support/grouped_product.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "reference/comparison.h"
#include "reference/formats.h"
#include "reference/packed_weights.h"
#include "reference/product.h"
#include "tests/support/routing.h"
#include "tests/support/special.h"

namespace moxie::test {
namespace {

constexpr int64_t kGuardBytes = 1024;  // before and behind every output
constexpr int64_t kLeadBytes = 16;     // before every operand: none is better aligned than it must be
constexpr int64_t kAnyAlignment = 512;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// How many of a row's float32 elements are not what they should be: equal, or, where the sums are not exact in float32,
// within what `terms` additions may lose. Each cuts off less than 2^-23 of the sum so far, which is at most the sum of
// all terms' magnitudes; those of a product may cancel, so its own size says nothing. Below 2^-126 float32 counts in
// steps of 2^-149: there each addition may be off by half a step, however small the magnitudes are.
int64_t count_wrong(const double* expected, const double* magnitudes, int64_t terms, const uint8_t* got,
                    int64_t columns) {
  int64_t wrong = 0;
  for (int64_t j = 0; j < columns; ++j) {
    float value;
    std::memcpy(&value, got + 4 * j, 4);
    const double off = magnitudes == nullptr ? 0 : double(terms) * (0x1p-23 * magnitudes[j] + 0x1p-150);
    wrong += std::isnan(expected[j]) ? !std::isnan(value) : !(std::fabs(double(value) - expected[j]) <= off);
  }
  return wrong;
}

}  // namespace

Job job_of(OperandFormat format) {
  Job job;
  job.problem.format = format;
  return job;
}

// ---- Before the launch ---------------------------------------------------------------------------------------------

GroupedProduct::GroupedProduct(Job job) : job_(std::move(job)) {
  set_sizes();
  draw_operands();
  upload_sizes();
  for (const bool of_a : {true, false}) {
    if (!of_a && packed_b()) {
      upload_packed_b();
      continue;
    }
    upload_operand(of_a);
    if (has_scales(job_.problem.format)) upload_scales(of_a);
  }
  learn_plain_rows();
  // float32 outputs may have leading dimensions of 4 (mod 8).
  const auto pad = [&](const std::optional<DataType>& type, int64_t usual) {
    if (type && is_quantized(*type)) return int64_t{32};
    return type == DataType::F32 && has_scales(job_.problem.format) ? usual - 4 : usual;
  };
  make_output(pre_, job_.pad_pre.value_or(pad(pre_.type, 8)));
  make_output(out_, job_.pad_out.value_or(pad(out_.type, 24)));
  x_.weights_ready = job_.weights_ready;
  x_.workspace_bytes = workspace_bytes(device(), job_.problem);
  // What it holds does not matter. It is written, since ptxas makes tensormap.cp_fenceproxy an atomic exchange, which
  // compute-sanitizer's initcheck takes for a read.
  x_.workspace = upload(std::vector<uint8_t>(x_.workspace_bytes, 0xa5));
}

void GroupedProduct::set_sizes() {
  ProductSpec& p = job_.problem;
  p.groups = int64_t(groups());
  p.n = job_.n, p.k = job_.k;
  if (by_pointers()) {
    if (job_.group_n.empty()) job_.group_n.assign(groups(), job_.n);
    if (job_.group_k.empty()) job_.group_k.assign(groups(), job_.k);
    p.n = *std::max_element(job_.group_n.begin(), job_.group_n.end());
    p.k = *std::max_element(job_.group_k.begin(), job_.group_k.end());
  }
  if (along_k()) p.k = std::accumulate(job_.group_k.begin(), job_.group_k.end(), job_.spare_k);
  if (job_.host_sizes) p.host_rows = job_.rows;
  pre_.type = p.pre, out_.type = p.out;
  out_.gated = is_gated(p.activation);
  if (p.grouping == Grouping::RowGroups) {
    p.m = std::accumulate(job_.rows.begin(), job_.rows.end(), int64_t{0});
    tile_rows_ = row_alignment(device(), p);
    // The product that a quantized output is compared with has another plan, and rows in the same places.
    if (job_.row_alignment == 0) job_.row_alignment = quantized() ? kAnyAlignment : tile_rows_;
  }
  rows_ = GroupRows(p.grouping, job_.rows, job_.spare_rows, job_.row_alignment);
  p.m = rows_.m;
}

Operand GroupedProduct::lay_out(bool of_a) const {
  const ProductSpec& p = job_.problem;
  const bool packed = !of_a && packed_b();  // whose rows lie without gaps before they are packed
  const int64_t unit = Operand::unit(format(of_a)), block = scale_block(format(of_a));
  std::vector<OperandRows> all;
  int64_t end = unit, scales = 0, k_begin = 0;
  for (size_t g = 0; g < groups(); ++g) {
    OperandRows r;
    r.rows = of_a ? job_.rows[g] : group_n(g);
    r.k = group_k(g);
    const int64_t width = by_pointers() ? r.k : p.k;
    // Each group of Pointers has a leading dimension of its own.
    r.ld = packed ? r.k : width + (of_a ? unit : 2 * unit) + (by_pointers() ? unit * int64_t(g % 3) : 0);
    r.ld_scale = width / block;
    if (by_pointers()) {
      r.first = end, r.first_scale = scales;
      end += r.rows * r.ld + unit, scales += r.rows * r.ld_scale;
    } else if (along_k()) {
      r.first = unit + k_begin, r.first_scale = k_begin / block;
      k_begin += r.k;
    } else {
      const int64_t row = of_a ? rows_.first[g] : int64_t(g) * p.n;
      r.first = unit + row * r.ld, r.first_scale = row * r.ld_scale;
    }
    all.push_back(r);
  }
  if (!by_pointers()) {
    const int64_t rows = along_k() ? all[0].rows : of_a ? rows_.total : p.groups * p.n;
    end = unit + rows * all[0].ld, scales = rows * all[0].ld_scale;
  }
  return {format(of_a), std::move(all), end, has_scales(format(of_a)) ? scales : 0};
}

void GroupedProduct::draw_operands() {
  a_ = lay_out(true), b_ = lay_out(false);
  if (has_e2m1()) {
    const ScaleCodes usual = job_.problem.format == OperandFormat::Nvfp4 ? ScaleCodes{0x30, 0x3c, 4} : ScaleCodes{};
    a_.draw_e2m1(job_.seed, job_.a_scales.value_or(usual), job_.nan_scale_each);
    b_.draw_e2m1(job_.seed + 1, job_.b_scales.value_or(usual), job_.nan_scale_each);
  } else {
    // pre of a standard deviation near one, so that every activation shows its curve and the clamps are met.
    a_.draw_bf16(job_.seed * 1000, job_.scale, false);
    if (packed_b()) {
      b_.draw_e2m1(job_.seed + 1, job_.b_scales.value_or(ScaleCodes{122, 125, 1}), job_.nan_scale_each);
    } else {
      b_.draw_bf16(job_.seed * 1000 + 1, 3, true);
    }
  }
  for (size_t g = 0; g < groups(); ++g) {
    first_bias_.push_back(int64_t(bias_.size()));
    for (int64_t j = 0; j < group_n(g); ++j) {
      const size_t i = bias_.size();
      bias_.push_back(has_e2m1() ? reference::float_to_bf16(float(i % 17) - 8)
                                 : random_bf16(job_.seed * 1000 + 2, i, 0.5f));
    }
  }
  if (job_.specials != 0) plant_specials();
}

// Where a tensor scale becomes special, all of its group does.
void GroupedProduct::plant_specials() {
  Random random(job_.specials);
  a_.plant_specials(random.next());
  b_.plant_specials(random.next());
  special_bias_.resize(bias_.size());
  for (size_t i = 0; job_.problem.bias && i < bias_.size(); ++i) {
    if (!random.one_in(40)) continue;
    bias_[i] = random.of(kSpecialBf16);
    special_bias_[i] = true;
  }
  constexpr float kFloats[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                               0x1.fffffep127f, 0x1p-149f, -0.0f};
  if (!job_.b_tensor_scale.empty()) {
    const auto most = std::max_element(job_.rows.begin(), job_.rows.end());
    special_group_ = random.one_in(2) ? most - job_.rows.begin() : random.between(0, int64_t(groups()) - 1);
    job_.b_tensor_scale[size_t(special_group_)] = random.of(kFloats);
  }
}

void GroupedProduct::upload_sizes() {
  std::vector<int32_t> sizes = rows_.sizes;
  if (along_k()) {
    for (const int64_t k : job_.group_k) sizes.push_back((sizes.empty() ? 0 : sizes.back()) + int32_t(k));
  } else if (by_pointers()) {
    for (size_t g = 0; g < groups(); ++g)
      sizes.insert(sizes.end(), {int32_t(job_.rows[g]), int32_t(group_n(g)), int32_t(group_k(g))});
  }
  if (job_.wild_sizes != 0) sizes = disguise(job_.problem, std::move(sizes), job_.wild_sizes);
  if (!job_.corrupt_sizes.empty()) sizes = job_.corrupt_sizes;
  if (!sizes.empty()) (by_pointers() ? x_.pointers.sizes : x_.sizes) = upload(sizes);
  if (job_.problem.bias) {
    const uint16_t* const bias = upload(bias_);
    std::vector<const void*> each;
    for (const int64_t first : first_bias_) each.push_back(bias + first);
    if (by_pointers()) {
      x_.pointers.bias = upload(each);
    } else {
      x_.bias = bias;
    }
  }
  if (!job_.a_tensor_scale.empty()) x_.a_tensor_scale = upload(job_.a_tensor_scale);
  if (!job_.b_tensor_scale.empty()) x_.b_tensor_scale = upload(job_.b_tensor_scale);
}

// Memory ends with the last element of the last row. Each group of Pointers has memory of its own.
void GroupedProduct::upload_operand(bool of_a) {
  const Operand& o = of_a ? a_ : b_;
  const int64_t unit = Operand::unit(job_.problem.format);
  if (by_pointers()) {
    std::vector<const void*> data;
    std::vector<int64_t> ld;
    for (const OperandRows& r : o.groups()) {
      data.push_back(upload(o.bytes(r.first - unit, r.end())) + kLeadBytes);
      ld.push_back(r.ld);
    }
    ConstTensorArray& to = of_a ? x_.pointers.a : x_.pointers.b;
    to.data = upload(data), to.ld = upload(ld);
    return;
  }
  OperandRows all = o.groups()[0];
  all.first = unit, all.k = job_.problem.k;
  if (!along_k()) all.rows = of_a ? rows_.total : job_.problem.groups * job_.problem.n;
  const std::vector<uint8_t> bytes = o.bytes(0, all.end());
  (of_a ? x_.a : x_.b) = upload(of_a && job_.problem.gather ? scattered(bytes, all) : bytes) + kLeadBytes;
  (of_a ? x_.lda : x_.ldb) = all.ld;
}

// The rows of A in another order, between others that are NaN, and the list that finds them again. The entries of rows
// that no group has name such a row.
std::vector<uint8_t> GroupedProduct::scattered(const std::vector<uint8_t>& bytes, const OperandRows& all) {
  Random random(job_.seed + 7);
  const auto row_bytes = all.ld * 2, width = all.k * 2;
  const int64_t count = rows_.total + 1 + random.between(0, 5);
  std::vector<int32_t> places(static_cast<size_t>(count)), list;
  std::iota(places.begin(), places.end(), 0);
  for (size_t i = places.size() - 1; i > 0; --i) std::swap(places[i], places[size_t(random.between(0, int64_t(i)))]);
  const auto divisor = int32_t(random.one_in(2) ? 1 : random.between(2, 16));
  // The last row ends with its last element.
  std::vector<uint8_t> to(static_cast<size_t>(kLeadBytes + (count - 1) * row_bytes + width), 0xff);
  const int64_t used = job_.corrupt_sizes.empty() ? rows_.first.back() + job_.rows.back() : rows_.total;
  for (int64_t r = 0; r < rows_.total; ++r) {
    const int32_t place = places[size_t(r < used ? r : rows_.total)];
    list.push_back(place * divisor + int32_t(random.between(0, divisor - 1)));
    if (r < used)
      std::copy_n(bytes.begin() + kLeadBytes + r * row_bytes, width, to.begin() + kLeadBytes + place * row_bytes);
  }
  x_.gather = {list.empty() ? nullptr : upload(list), divisor, count};
  return to;
}

void GroupedProduct::upload_packed_b() {
  const ProductSpec& p = job_.problem;
  std::vector<uint8_t> all(kLeadBytes, 0xff);
  std::vector<const void*> data;
  for (size_t g = 0; g < groups(); ++g) {
    const OperandRows& r = b_.groups()[g];
    const std::vector<uint8_t> packed =
        reference::pack_weights(b_.bytes(r.first, r.first + r.rows * r.k).data(), b_.scales().data() + r.first_scale,
                                r.rows, r.k, is_gated(p.activation) ? std::optional(p.gate) : std::nullopt);
    if (by_pointers()) all.resize(kLeadBytes);
    all.insert(all.end(), packed.begin(), packed.end());
    if (by_pointers()) data.push_back(upload(all) + kLeadBytes);
  }
  if (by_pointers()) {
    x_.pointers.b.data = upload(data);
  } else {
    x_.b = upload(all) + kLeadBytes;
  }
}

void GroupedProduct::upload_scales(bool of_a) {
  const ProductSpec& p = job_.problem;
  const Operand& o = of_a ? a_ : b_;
  const Buffer row_major(o.scales());
  ScaleBlocking blocking;
  blocking.block = scale_block(p.format);
  const auto block = [&](int64_t first, size_t bytes) {
    blocking.from = row_major.get<uint8_t>() + first;
    blocking.to = upload(std::vector<uint8_t>(bytes, 0xff));
    if (blocking.rows > 0 && blocking.k > 0) block_scales(device(), blocking);
    return blocking.to;
  };
  if (by_pointers()) {
    std::vector<const void*> each;
    for (const OperandRows& r : o.groups()) {
      blocking.rows = r.rows, blocking.k = r.k;
      each.push_back(block(r.first_scale, size_t(blocked_scale_bytes(r.rows, r.k, blocking.block)) + 16));
    }
    (of_a ? x_.pointers.a : x_.pointers.b).scales = upload(each);
  } else {
    blocking.groups = of_a && rows_.one_matrix() ? 1 : p.groups;
    blocking.rows = along_k() ? o.groups()[0].rows : !of_a ? p.n : rows_.stacked() ? p.m : rows_.total;
    blocking.k = p.k;
    blocking.along_k = along_k();
    if (along_k() || (of_a && p.grouping == Grouping::Offsets)) blocking.offsets = x_.sizes;
    (of_a ? x_.sfa : x_.sfb) = block(0, of_a ? a_scale_bytes(p) : b_scale_bytes(p));
  }
  device().synchronize();
}

void GroupedProduct::make_output(Output& o, int64_t pad) {
  if (!o.type) return;
  const ProductSpec& p = job_.problem;
  const bool quantized = is_quantized(*o.type);
  const int64_t unit = quantized ? 32 : 8, guard = kGuardBytes * 8 / bits_of(*o.type);
  int64_t end = guard;
  for (size_t g = 0; g < groups(); ++g) {
    o.width.push_back(o.gated ? group_n(g) / 2 : group_n(g));
    o.ld.push_back(o.width[g] + pad + (by_pointers() ? unit * int64_t(g % 3) : 0));
    o.first.push_back(by_pointers() ? end : guard + rows_.first[g] * o.ld[g]);
    end += job_.rows[g] * o.ld[g] + 2 * unit;
  }
  if (!by_pointers()) end = guard + rows_.total * o.ld[0];
  o.elements = Buffer(size_t(o.bytes(end + guard)));
  for (size_t g = 0; quantized && g < (by_pointers() ? groups() : 1); ++g) {
    const size_t bytes = by_pointers() ? size_t(blocked_scale_bytes(job_.rows[g], o.width[g], scale_block(*o.type)))
                         : is_pre(o)   ? pre_scale_bytes(p)
                                       : out_scale_bytes(p);
    o.scales.emplace_back(bytes + 16);  // behind them nothing is written
  }
  if (o.type == DataType::Nvfp4 && job_.output_tensor_scale != 0)
    (is_pre(o) ? x_.pre_tensor_scale : x_.out_tensor_scale) = upload(std::vector<float>{job_.output_tensor_scale});
  if (by_pointers()) {
    std::vector<void*> data, scales;
    for (const int64_t first : o.first) data.push_back(o.elements.get<uint8_t>() + o.bytes(first));
    for (const Buffer& buffer : o.scales) scales.push_back(buffer.get());
    TensorArray& to = is_pre(o) ? x_.pointers.pre : x_.pointers.out;
    to.data = upload(data), to.ld = upload(o.ld);
    if (quantized) to.scales = upload(scales);
  } else {
    (is_pre(o) ? x_.pre : x_.out) = o.elements.get<uint8_t>() + kGuardBytes;
    (is_pre(o) ? x_.ld_pre : x_.ld_out) = o.ld[0];
    if (quantized) (is_pre(o) ? x_.pre_scales : x_.out_scales) = o.scales[0].get();
  }
}

// What quantized outputs are made of, from the same kernel but for its sink.
void GroupedProduct::learn_plain_rows() {
  if (!quantized()) return;
  Job job = job_;
  for (auto* type : {&job.problem.pre, &job.problem.out}) {
    if (*type && is_quantized(**type)) *type = DataType::F32;
  }
  const GroupedProduct plain(std::move(job));
  const Results results = plain.run();
  plain.check(results);
  for (size_t g = 0; g < groups(); ++g) {
    if (pre_.type) pre_.plain.push_back(plain.rows_of(plain.pre_, results.pre, g));
    if (out_.type) out_.plain.push_back(plain.rows_of(plain.out_, results.out, g));
  }
}

// ---- The launch ----------------------------------------------------------------------------------------------------

std::vector<const void*> GroupedProduct::written() const {
  std::vector<const void*> all;
  for (const Output* output : {&pre_, &out_}) {
    all.push_back(output->elements.get());
    for (const Buffer& buffer : output->scales) all.push_back(buffer.get());
  }
  return all;
}

void GroupedProduct::poison(uint8_t value) const {
  for (const Output* output : {&pre_, &out_}) {
    output->elements.fill(value);
    for (const Buffer& buffer : output->scales) buffer.fill(value);
  }
}

Results GroupedProduct::results() const {
  Results r{pre_.elements.download(), out_.elements.download(), {}, {}};
  for (const Buffer& buffer : pre_.scales) r.pre_scales.push_back(buffer.download());
  for (const Buffer& buffer : out_.scales) r.out_scales.push_back(buffer.download());
  return r;
}

Results GroupedProduct::run(uint8_t value) const {
  poison(value);
  launch();
  device().synchronize();
  return results();
}

// ---- The answer ----------------------------------------------------------------------------------------------------

std::vector<double> GroupedProduct::sums(size_t g, double (*of_value)(double)) const {
  const auto each = [&](std::vector<double> values) {
    std::transform(values.begin(), values.end(), values.begin(), of_value);
    return values;
  };
  const int64_t n = group_n(g);
  std::vector<double> pre = reference::product(each(other_a_.empty() ? a_.values(g) : other_a_[g]), each(b_.values(g)),
                                               job_.rows[g], n, group_k(g));
  const double factor = (job_.a_tensor_scale.empty() ? 1.0 : double(job_.a_tensor_scale[0])) *
                        (job_.b_tensor_scale.empty() ? 1.0 : double(job_.b_tensor_scale[g]));
  for (size_t i = 0; i < pre.size(); ++i) {
    pre[i] *= of_value(factor);
    if (job_.problem.bias) pre[i] += of_value(reference::bf16_to_float(bias_[size_t(first_bias_[g]) + i % size_t(n)]));
  }
  return pre;
}

std::vector<double> GroupedProduct::expected_pre(size_t g) const {
  return sums(g, [](double value) { return value; });
}

std::vector<double> GroupedProduct::expected_out(size_t g) const {
  const ProductSpec& p = job_.problem;
  return reference::activate_all(activation_of(p), p.gate, expected_pre(g), job_.rows[g], group_n(g));
}

std::vector<uint8_t> GroupedProduct::rows_of(const Output& o, const std::vector<uint8_t>& bytes, size_t g) const {
  std::vector<uint8_t> rows;
  for (int64_t i = 0; i < job_.rows[g]; ++i) {
    const auto row = bytes.begin() + o.bytes(o.first[g] + i * o.ld[g]);
    rows.insert(rows.end(), row, row + o.bytes(o.width[g]));
  }
  return rows;
}

int64_t GroupedProduct::scale_index(const Output& o, size_t g, int64_t r, int64_t column) const {
  const int64_t block = scale_block(*o.type);
  return by_pointers() ? blocked_scale_index(r, column, o.width[g], block)
                       : rows_.scale_index(g, r, column, o.width[g], block);
}

std::vector<std::vector<double>> GroupedProduct::out_values(const Results& results) const {
  const DataType type = *out_.type;
  std::vector<std::vector<double>> all;
  for (size_t g = 0; g < groups(); ++g) {
    const std::vector<uint8_t> rows = rows_of(out_, results.out, g);
    const int64_t width = out_.width[g], columns = width / scale_block(type);
    std::vector<float> row(static_cast<size_t>(width));
    std::vector<uint8_t> scales(static_cast<size_t>(columns));
    std::vector<double>& values = all.emplace_back();
    for (int64_t i = 0; i < job_.rows[g]; ++i) {
      const uint8_t* const from = rows.data() + i * out_.bytes(width);
      if (type == DataType::Bf16) {
        for (int64_t j = 0; j < width; ++j) {
          uint16_t bits;
          std::memcpy(&bits, from + 2 * j, 2);
          row[size_t(j)] = reference::bf16_to_float(bits);
        }
      } else if (type == DataType::F32) {
        std::memcpy(row.data(), from, row.size() * 4);
      } else {
        for (int64_t c = 0; c < columns; ++c)
          scales[size_t(c)] = results.out_scales[by_pointers() ? g : 0][size_t(scale_index(out_, g, i, c))];
        const float t = job_.output_tensor_scale != 0 ? job_.output_tensor_scale : 1.0f;
        reference::dequantize_row(type, from, scales.data(), width, t, row.data());
      }
      values.insert(values.end(), row.begin(), row.end());
    }
  }
  return all;
}

// ---- The comparison ------------------------------------------------------------------------------------------------

void GroupedProduct::check(const Results& results) const {
  for (const Output* output : {&pre_, &out_}) {
    if (!output->type) continue;
    SCOPED_TRACE(is_pre(*output) ? "pre" : "out");
    check_elements(*output, is_pre(*output) ? results.pre : results.out);
    if (is_quantized(*output->type)) check_scales(*output, is_pre(*output) ? results.pre_scales : results.out_scales);
  }
}

// Bytes of a group's rows that are not those of the plain rows, quantized where the output is.
int64_t GroupedProduct::count_different(const Output& o, const std::vector<uint8_t>& got, size_t g) const {
  const std::vector<uint8_t> rows = rows_of(o, got, g);
  std::vector<uint8_t> wanted = o.plain[g];
  if (is_quantized(*o.type)) {
    const int64_t width = o.width[g];
    const float t = job_.output_tensor_scale != 0 ? job_.output_tensor_scale : 1.0f;
    std::vector<float> row(static_cast<size_t>(width));
    std::vector<uint8_t> scales(size_t(width / scale_block(*o.type)));
    wanted.resize(rows.size());
    for (int64_t i = 0; i < job_.rows[g]; ++i) {
      std::memcpy(row.data(), o.plain[g].data() + i * width * 4, row.size() * 4);
      reference::quantize_row(*o.type, row.data(), width, t, wanted.data() + i * o.bytes(width), scales.data());
    }
  }
  int64_t different = 0;
  for (size_t i = 0; i < rows.size(); ++i) different += rows[i] != wanted[i];
  return different;
}

std::vector<int64_t> GroupedProduct::sources(const Output& o, size_t g, int64_t column) const {
  if (!o.gated) return {column};
  if (job_.problem.gate == GateLayout::Interleaved) return {2 * column, 2 * column + 1};
  if (job_.problem.gate == GateLayout::Split) return {column, column + o.width[g]};
  return {column + o.width[g], column};
}

bool GroupedProduct::is_touched(const Output& o, size_t g, int64_t row, int64_t column) const {
  if (int64_t(g) == special_group_ || a_.has_special(g, row)) return true;
  const std::vector<int64_t> columns = sources(o, g, column);
  return std::any_of(columns.begin(), columns.end(),
                     [&](int64_t j) { return b_.has_special(g, j) || special_bias_[size_t(first_bias_[g] + j)]; });
}

void GroupedProduct::check_touched(const Output& o, const std::vector<uint8_t>& got, size_t g) const {
  const ProductSpec& p = job_.problem;
  const std::vector<double> a = a_.values(g), b = b_.values(g);
  const int64_t k = group_k(g);
  const double factor = (job_.a_tensor_scale.empty() ? 1.0 : double(job_.a_tensor_scale[0])) *
                        (job_.b_tensor_scale.empty() ? 1.0 : double(job_.b_tensor_scale[g]));
  int64_t wrong = 0;
  std::string first;
  for (int64_t i = 0; i < job_.rows[g]; ++i) {
    for (int64_t j = 0; j < o.width[g]; ++j) {
      if (!is_touched(o, g, i, j)) continue;
      std::vector<PossibleValues> pre;
      for (const int64_t column : sources(o, g, j)) {
        const float bias = p.bias ? reference::bf16_to_float(bias_[size_t(first_bias_[g] + column)]) : 0.0f;
        pre.push_back(possible_sums(a.data() + i * k, b.data() + column * k, k, factor, bias));
      }
      const PossibleValues possible = is_pre(o) ? pre[0] : possible_activations(p, pre);
      const uint8_t* const at = got.data() + o.bytes(o.first[g] + i * o.ld[g] + j);
      if (possible.has(*o.type, at)) continue;
      if (wrong++ == 0) first = fmt::format("row {}, column {} of group {}: {}", i, j, g, possible.text(*o.type, at));
    }
  }
  EXPECT_EQ(wrong, 0) << "elements that special values touch: " << first;
}

void GroupedProduct::check_untouched(const Results& results, const Results& without) const {
  for (const Output* o : {&pre_, &out_}) {
    if (!o->type) continue;
    const std::vector<uint8_t>&got = is_pre(*o) ? results.pre : results.out,
          &wanted = is_pre(*o) ? without.pre : without.out;
    ASSERT_EQ(got.size(), wanted.size());
    // A quantized element depends on its whole block; 32 is a multiple of every one.
    const int64_t unit = is_quantized(*o->type) ? 32 : 1;
    int64_t different = 0;
    for (size_t g = 0; g < groups(); ++g) {
      std::vector<int64_t> columns;  // that no special value of B or of the bias touches, in units
      for (int64_t j = 0; j < o->width[g]; j += unit) {
        bool touched = int64_t(g) == special_group_;
        for (int64_t c = j; c < j + unit; ++c) {
          for (const int64_t column : sources(*o, g, c))
            touched = touched || b_.has_special(g, column) || special_bias_[size_t(first_bias_[g] + column)];
        }
        if (!touched) columns.push_back(j);
      }
      for (int64_t i = 0; i < job_.rows[g]; ++i) {
        if (a_.has_special(g, i)) continue;
        for (const int64_t j : columns) {
          const auto at = size_t(o->bytes(o->first[g] + i * o->ld[g] + j)), bytes = size_t(o->bytes(unit));
          different += std::memcmp(&got[at], &wanted[at], bytes) != 0;
        }
      }
    }
    EXPECT_EQ(different, 0) << "elements that changed although no special value touches them";
  }
}

void GroupedProduct::check_elements(const Output& o, const std::vector<uint8_t>& got) const {
  const ProductSpec& p = job_.problem;
  const bool corrupt = !job_.corrupt_sizes.empty();
  const bool is_sum = has_e2m1() && o.type == DataType::F32 && (is_pre(o) || p.activation == Activation::None);
  ASSERT_EQ(got.size(), o.elements.size());
  std::vector<bool> may_be_written(got.size(), false);
  reference::Comparison comparison(o.type == DataType::Bf16 ? reference::kBf16Bound : reference::kF32Bound);
  int64_t wrong = 0, different = 0;
  for (size_t g = 0; g < groups(); ++g) {
    // Padding rows of RowGroups may be overwritten up to the end of their tile; wrong routing data may fill any row.
    int64_t rows = job_.rows[g];
    if (!by_pointers()) {
      const int64_t until_next = (g + 1 < groups() ? rows_.first[g + 1] : rows_.total) - rows_.first[g];
      if (p.grouping == Grouping::RowGroups) rows = std::min(until_next, round_up(rows, tile_rows_));
      if (corrupt) rows = until_next;
    }
    const int64_t width = o.width[g], ld = o.ld[g];
    for (int64_t i = 0; i < rows; ++i)
      std::fill_n(may_be_written.begin() + o.bytes(o.first[g] + i * ld), o.bytes(width), true);
    if (corrupt || job_.rows[g] == 0 || width == 0) continue;
    if (!o.plain.empty()) different += count_different(o, got, g);
    if (is_quantized(*o.type)) continue;
    if (job_.specials != 0) {
      check_touched(o, got, g);
      continue;
    }
    const std::vector<double> expected = is_pre(o) ? expected_pre(g) : expected_out(g);
    const uint8_t* const first = got.data() + o.bytes(o.first[g]);
    if (!is_sum) comparison.add(expected, first, *o.type, job_.rows[g], width, ld, by_pointers() ? 0 : rows_.first[g]);
    if (!is_sum) continue;
    std::vector<double> magnitudes;
    if (!job_.exact) magnitudes = sums(g, [](double value) { return std::fabs(value); });
    for (int64_t i = 0; i < job_.rows[g]; ++i)
      wrong += count_wrong(expected.data() + i * width, job_.exact ? nullptr : magnitudes.data() + i * width,
                           group_k(g) + 1, first + i * ld * 4, width);
  }
  EXPECT_EQ(comparison.failure(), "");
  EXPECT_EQ(wrong, 0) << "elements that differ from the sum";
  EXPECT_EQ(different, 0) << "bytes that differ from the same product's without a quantized output";
  int64_t spoiled = 0, first_spoiled = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    if (may_be_written[i] || got[i] == kPoison) continue;
    if (spoiled++ == 0) first_spoiled = int64_t(i);
  }
  EXPECT_EQ(spoiled, 0) << "bytes that must not be written, the first at " << first_spoiled << " of " << got.size();
}

void GroupedProduct::check_scales(const Output& o, const std::vector<std::vector<uint8_t>>& got) const {
  // Padding rows of RowGroups may have scales.
  const bool padded = job_.problem.grouping == Grouping::RowGroups;
  const int64_t block = scale_block(*o.type);
  const float t = job_.output_tensor_scale != 0 ? job_.output_tensor_scale : 1.0f;
  std::vector<std::vector<uint8_t>> wanted;
  std::vector<std::vector<bool>> checked;
  for (const Buffer& buffer : o.scales) {
    wanted.emplace_back(buffer.size(), kPoison);
    checked.emplace_back(buffer.size(), !padded);
    std::fill_n(checked.back().end() - 16, 16, true);
  }
  for (size_t g = 0; g < groups(); ++g) {
    const int64_t width = o.width[g], columns = width / block;
    std::vector<float> row(static_cast<size_t>(width));
    std::vector<uint8_t> elements(size_t(o.bytes(width))), scales(static_cast<size_t>(columns));
    const int64_t rows = padded ? job_.rows[g] : round_up(job_.rows[g], kScaleTileRows);
    for (int64_t r = 0; width > 0 && r < rows; ++r) {
      const bool exists = r < job_.rows[g];
      if (exists) {
        std::memcpy(row.data(), o.plain[g].data() + r * width * 4, row.size() * 4);
        reference::quantize_row(*o.type, row.data(), width, t, elements.data(), scales.data());
      }
      for (int64_t c = 0; c < round_up(columns, kScaleTileColumns); ++c) {
        const size_t buffer = by_pointers() ? g : 0;
        const auto at = size_t(scale_index(o, g, r, c));
        wanted[buffer][at] = exists && c < columns ? scales[size_t(c)] : 0;
        checked[buffer][at] = true;
      }
    }
  }
  ASSERT_EQ(got.size(), wanted.size());
  int64_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), wanted[i].size());
    for (size_t j = 0; j < got[i].size(); ++j) wrong += checked[i][j] && got[i][j] != wanted[i][j];
  }
  EXPECT_EQ(wrong, 0) << "scales";
}

namespace {

void run_with_specials(const Job& job, const Results& without) {
  SCOPED_TRACE(fmt::format("special values {}", job.specials));
  const GroupedProduct product(job);
  set_order(Random(job.specials).of(orders()));
  Results results;
  ASSERT_NO_THROW(results = product.run());
  product.check(results);
  product.check_untouched(results, without);
}

}  // namespace

void run_in_all_orders(const Job& job) {
  Job plain = job;
  plain.specials = 0;  // those come at the end
  const GroupedProduct product(plain);
  std::optional<Results> first;
  for (const char* order : orders()) {
    SCOPED_TRACE(order);
    set_order(order);
    Results results;
    ASSERT_NO_THROW(results = product.run());
    if (first) {
      EXPECT_TRUE(results == *first) << "other bits than in the first order";
    } else {
      product.check(results);
      first = std::move(results);
    }
    if (::testing::Test::HasFailure()) return;
  }
  if (job.specials != 0) run_with_specials(job, *first);
}

}  // namespace moxie::test
