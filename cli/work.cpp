// See work.h.
#include "cli/work.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "cli/data.h"
#include "cli/safetensors.h"
#include "moxie/scales.h"

namespace moxie::cli {

namespace {

// Ends of groups of equal rows. Where there are fewer rows than groups, each turn has others, so that not always the
// same weights are read.
std::vector<int32_t> ends_of(const GemmProblem& p, int turn) {
  const int64_t rows = p.m / p.groups, extra = p.m % p.groups;
  std::vector<int64_t> counts(static_cast<size_t>(p.groups), rows);
  for (int64_t i = 0; i < extra; ++i) ++counts[static_cast<size_t>((i * p.groups / extra + turn * extra) % p.groups)];
  std::vector<int32_t> ends;
  for (int64_t count : counts) ends.push_back(static_cast<int32_t>((ends.empty() ? 0 : ends.back()) + count));
  return ends;
}

// Rows in proportion to 1 / sqrt(r) for the group of popularity r, which is another one each turn.
std::vector<int32_t> skewed_ends_of(const GemmProblem& p, int turn) {
  const auto groups = static_cast<size_t>(p.groups);
  std::vector<double> bounds = {0};
  for (size_t r = 1; r <= groups; ++r) bounds.push_back(bounds.back() + 1 / std::sqrt(static_cast<double>(r)));
  const auto rows_up_to = [&](size_t r) { return std::llround(bounds[r] / bounds.back() * static_cast<double>(p.m)); };
  std::vector<int64_t> counts(groups);
  std::vector<size_t> order(groups);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<uint32_t>(turn)));
  for (size_t r = 0; r < groups; ++r) counts[order[r]] = rows_up_to(r + 1) - rows_up_to(r);
  std::vector<int32_t> ends;
  for (int64_t count : counts) ends.push_back(static_cast<int32_t>((ends.empty() ? 0 : ends.back()) + count));
  return ends;
}

constexpr int64_t kBlock = 1 << 24;

// A block of values over and over: the weights of a large model would take the host seconds.
template <class T>
Buffer repeated(const Device& device, const std::vector<T>& block, int64_t count) {
  Buffer buffer(device, static_cast<size_t>(count) * sizeof(T));
  for (int64_t at = 0; at < count; at += kBlock)
    device.upload(buffer.as<T>() + at, block.data(), static_cast<size_t>(std::min(count - at, kBlock)) * sizeof(T));
  return buffer;
}

Buffer random_buffer(const Device& device, uint64_t seed, int64_t count, float scale) {
  return repeated(device, random_bf16(seed, std::min(count, kBlock), scale), count);
}

// Elements of A or B: bf16, or pairs of four bits.
Buffer random_elements(const Device& device, const GemmProblem& p, uint64_t seed, int64_t count, float scale) {
  if (!has_scales(p.format)) return random_buffer(device, seed, count, scale);
  return repeated(device, random_bytes(seed, std::min(count / 2, kBlock)), count / 2);
}

// Neither zero nor NaN: E8M0 of 2^-4 to 2^-1, E4M3 of 0.06 to 0.23.
Buffer random_scales(const Device& device, const GemmProblem& p, uint64_t seed, size_t bytes) {
  const auto count = static_cast<int64_t>(bytes);
  std::vector<uint8_t> block = random_bytes(seed, std::min(count, kBlock));
  for (uint8_t& scale : block)
    scale = p.format == OperandFormat::Nvfp4 ? static_cast<uint8_t>(0x18 + scale % 16)
                                             : static_cast<uint8_t>(123 + scale % 4);
  return repeated(device, block, count);
}

int64_t out_columns(const GemmProblem& p) { return is_gated(p.activation) ? p.n / 2 : p.n; }

}  // namespace

double flops_of(const GemmProblem& problem) {
  return 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) * static_cast<double>(problem.k);
}

Work::Work(const Device& on, const GemmProblem& of, bool skewed) : device(on), problem(of) {
  if (problem.grouping != Grouping::Offsets) throw InputError("only groups given by offsets are timed");
  if ((problem.out && is_quantized(*problem.out)) || (problem.pre && is_quantized(*problem.pre)))
    throw InputError("--out-dtype: only products with bf16 and f32 outputs are timed");
  const uint64_t l2 = device.info().l2_bytes;
  const int64_t b_count = problem.groups * problem.n * problem.k;
  const auto turns =
      device.info().simulated
          ? 1
          : std::clamp<uint64_t>(4 * l2 / static_cast<uint64_t>(compulsory_bytes(problem) + 1) + 1, 2, 12) / 2 * 2;
  const auto copies =
      std::clamp<uint64_t>(4 * l2 / static_cast<uint64_t>(b_count * bits_of(problem.format) / 8 + 1) + 1, 1, turns);
  for (uint64_t i = 0; i < turns; ++i) {
    a.push_back(random_elements(device, problem, 10 * i + 1, problem.m * problem.k, 1.0f));
    if (i < copies) b.push_back(random_elements(device, problem, 10 * i + 2, b_count, 0.1f));
    const auto results = [&](const std::optional<DataType>& type, int64_t columns) {
      return Buffer(device, type ? static_cast<size_t>(problem.m * columns * size_of(*type)) : 0);
    };
    pre.push_back(results(problem.pre, problem.n));
    out.push_back(results(problem.out, out_columns(problem)));
    ends.emplace_back(device, (skewed && i % 2 == 1 ? skewed_ends_of : ends_of)(problem, static_cast<int>(i)));
    workspace.emplace_back(device, workspace_bytes(device, problem));
  }
  bias = random_buffer(device, 3, problem.bias ? problem.groups * problem.n : 0, 1.0f);
  if (has_scales(problem.format)) {
    sfa = random_scales(device, problem, 4, a_scale_bytes(problem));
    sfb = random_scales(device, problem, 5, b_scale_bytes(problem));
  }
}

void Work::launch(int turn, Stream stream) const {
  launch(problem, workspace[static_cast<size_t>(turn) % a.size()], turn, stream);
}

void Work::launch(const GemmProblem& variant, const Buffer& space, int turn, Stream stream) const {
  const size_t i = static_cast<size_t>(turn) % a.size();
  GemmArguments arguments;
  arguments.a = a[i].as();
  arguments.b = b[i % b.size()].as();
  arguments.sfa = sfa.as();
  arguments.sfb = sfb.as();
  arguments.bias = problem.bias ? bias.as() : nullptr;
  arguments.pre = problem.pre ? pre[i].as() : nullptr;
  arguments.out = problem.out ? out[i].as() : nullptr;
  arguments.sizes = ends[i].as<int32_t>();
  arguments.workspace = space.as();
  arguments.workspace_bytes = space.bytes();
  arguments.weights_ready = true;  // no launch writes them
  arguments.stream = stream;
  gemm(device, variant, arguments);
}

double Work::compulsory_bytes(const GemmProblem& p) {
  const auto columns =
      static_cast<double>((p.pre ? p.n * size_of(*p.pre) : 0) + (p.out ? out_columns(p) * size_of(*p.out) : 0));
  const auto n = static_cast<double>(p.n), k = static_cast<double>(p.k), m = static_cast<double>(p.m);
  const double element = has_scales(p.format) ? 0.5 + 1.0 / scale_block(p.format) : 2;
  return static_cast<double>(std::min(p.groups, p.m)) * n * (element * k + (p.bias ? 2 : 0)) +
         m * (element * k + columns);
}

}  // namespace moxie::cli
