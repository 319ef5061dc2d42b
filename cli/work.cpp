// See work.h.
#include "cli/work.h"

#include <algorithm>

#include "cli/data.h"
#include "cli/safetensors.h"

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

// A block of random values over and over: the weights of a large model would take the host seconds.
Buffer random_buffer(const Device& device, uint64_t seed, int64_t count, float scale) {
  constexpr int64_t kBlock = 1 << 24;
  const std::vector<uint16_t> values = random_bf16(seed, std::min(count, kBlock), scale);
  Buffer buffer(device, static_cast<size_t>(count) * 2);
  for (int64_t at = 0; at < count; at += kBlock)
    device.upload(buffer.as<uint16_t>() + at, values.data(), static_cast<size_t>(std::min(count - at, kBlock)) * 2);
  return buffer;
}

int64_t out_columns(const GemmProblem& p) { return is_gated(p.activation) ? p.n / 2 : p.n; }

}  // namespace

double flops_of(const GemmProblem& problem) {
  return 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) * static_cast<double>(problem.k);
}

Work::Work(const Device& on, const GemmProblem& of) : device(on), problem(of) {
  if (problem.grouping != Grouping::Offsets) throw InputError("only groups given by offsets are timed");
  if ((problem.out && is_quantized(*problem.out)) || (problem.pre && is_quantized(*problem.pre)))
    throw InputError("--out-dtype: only products with bf16 and f32 outputs are timed");
  const uint64_t l2 = device.info().l2_bytes;
  const int64_t b_count = problem.groups * problem.n * problem.k;
  const auto turns =
      device.info().simulated
          ? 1
          : std::clamp<uint64_t>(4 * l2 / static_cast<uint64_t>(compulsory_bytes(problem) + 1) + 1, 2, 12);
  const auto copies = std::clamp<uint64_t>(4 * l2 / static_cast<uint64_t>(2 * b_count + 1) + 1, 1, turns);
  for (uint64_t i = 0; i < turns; ++i) {
    a.push_back(random_buffer(device, 10 * i + 1, problem.m * problem.k, 1.0f));
    if (i < copies) b.push_back(random_buffer(device, 10 * i + 2, b_count, 0.1f));
    const auto results = [&](const std::optional<DataType>& type, int64_t columns) {
      return Buffer(device, type ? static_cast<size_t>(problem.m * columns * size_of(*type)) : 0);
    };
    pre.push_back(results(problem.pre, problem.n));
    out.push_back(results(problem.out, out_columns(problem)));
    ends.emplace_back(device, ends_of(problem, static_cast<int>(i)));
    workspace.emplace_back(device, workspace_bytes(device, problem));
  }
  bias = random_buffer(device, 3, problem.bias ? problem.groups * problem.n : 0, 1.0f);
}

void Work::launch(int turn, Stream stream) const {
  launch(problem, workspace[static_cast<size_t>(turn) % a.size()], turn, stream);
}

void Work::launch(const GemmProblem& variant, const Buffer& space, int turn, Stream stream) const {
  const size_t i = static_cast<size_t>(turn) % a.size();
  GemmArguments arguments;
  arguments.a = a[i].as();
  arguments.b = b[i % b.size()].as();
  arguments.bias = problem.bias ? bias.as() : nullptr;
  arguments.pre = problem.pre ? pre[i].as() : nullptr;
  arguments.out = problem.out ? out[i].as() : nullptr;
  arguments.sizes = ends[i].as<int32_t>();
  arguments.workspace = space.as();
  arguments.workspace_bytes = space.bytes();
  arguments.stream = stream;
  gemm(device, variant, arguments);
}

double Work::compulsory_bytes(const GemmProblem& p) {
  const auto columns =
      static_cast<double>((p.pre ? p.n * size_of(*p.pre) : 0) + (p.out ? out_columns(p) * size_of(*p.out) : 0));
  const auto n = static_cast<double>(p.n), k = static_cast<double>(p.k), m = static_cast<double>(p.m);
  return static_cast<double>(std::min(p.groups, p.m)) * n * (2 * k + (p.bias ? 2 : 0)) + m * (2 * k + columns);
}

}  // namespace moxie::cli
