// moxie bench: on a GPU times of products, by CUDA graphs, beside two ceilings measured in the same run: the best
// cuBLASLt product of the same multiply-adds, and a copy. On any machine times of compilation and loading; on the
// simulator how fast it is.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <memory>

#include <fmt/format.h>

#include "cli/buffer.h"
#include "cli/commands.h"
#include "cli/cublaslt.h"
#include "cli/gpu_clock.h"
#include "cli/options.h"
#include "cli/safetensors.h"
#include "cli/timing.h"
#include "cli/work.h"
#include "moxie/moxie.h"

namespace moxie::cli {

namespace {

struct Options : ProblemOptions {
  int64_t groups = 8, m = 1024, n = 4096, k = 2048;
  std::string list;
  bool shape_given = false;
};

struct Shape {
  std::string name;
  GemmProblem problem;
};

GemmProblem make_problem(int64_t groups, int64_t rows, int64_t n, int64_t k, const ProblemOptions& options) {
  GemmProblem problem;
  options.apply(problem);
  problem.grouping = Grouping::Offsets;
  problem.groups = groups;
  problem.m = groups * rows;
  problem.n = n;
  problem.k = k;
  problem.bias = true;
  problem.expected_rows = rows;
  return problem;
}

// A folder for a cache of its own, gone at the end.
class PrivateCache {
 public:
  PrivateCache() {
    std::string name = (std::filesystem::temp_directory_path() / "moxie-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw OutputError(name + ": cannot be made");
    folder_ = name;
    const char* old = getenv("MOXIE_CACHE_DIR");
    if (old != nullptr) old_ = old;
    setenv("MOXIE_CACHE_DIR", name.c_str(), 1);
  }
  ~PrivateCache() {
    old_.empty() ? unsetenv("MOXIE_CACHE_DIR") : setenv("MOXIE_CACHE_DIR", old_.c_str(), 1);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  PrivateCache(const PrivateCache&) = delete;
  PrivateCache& operator=(const PrivateCache&) = delete;

 private:
  std::filesystem::path folder_;
  std::string old_;
};

// Kernels live as long as a Device that uses them, so this runs before another is opened.
void print_compile_times(const GemmProblem& problem) {
  const PrivateCache cache;
  auto first_use = [&] {
    const Device device = Device::open();
    return seconds_of([&] { prepare(device, problem); });
  };
  const double cold = first_use();
  const double warm = first_use();
  fmt::print("first use of a kernel: {:.0f} ms compiled, {:.1f} ms from the cache\n\n", cold * 1e3, warm * 1e3);
}

std::vector<Shape> shapes_of(const Options& options, bool simulated) {
  if (!options.list.empty()) {
    std::vector<std::string> names;
    std::vector<GemmProblem> problems = read_problems(options.list, &names);
    std::vector<Shape> shapes;
    for (size_t i = 0; i < problems.size(); ++i) shapes.push_back({names[i], problems[i]});
    return shapes;
  }
  const auto shape = [&](const char* name, int64_t groups, int64_t rows, int64_t n, int64_t k) {
    return Shape{name, make_problem(groups, rows, n, k, options)};
  };
  if (options.shape_given) return {shape("given", options.groups, options.m, options.n, options.k)};
  if (simulated) return {shape("4 groups", 4, 128, 512, 512)};
  return {shape("8 groups", 8, 1024, 4096, 2048), shape("gpt-oss-20b, 4096 tokens", 32, 512, 5760, 2880),
          shape("gpt-oss-20b, 128 tokens", 32, 16, 5760, 2880)};
}

std::string extents(const GemmProblem& p) {
  return fmt::format("{} x ({} x {} x {})", p.groups, (p.m + p.groups - 1) / p.groups, p.n, p.k);
}

void simulate(const Device& device, const std::vector<Shape>& shapes) {
  fmt::print("{:<24} {:<24} {:>12} {:>8}  {}\n", "shape", "groups x (M x N x K)", "simulated in", "GFLOP/s", "kernel");
  for (const Shape& shape : shapes) {
    const Work work(device, shape.problem);
    const double seconds = seconds_of([&] {
      work.launch(0, nullptr);
      device.synchronize();
    });
    fmt::print("{:<24} {:<24} {:>10.2f} s {:>8.1f}  {}\n", shape.name, extents(shape.problem), seconds,
               flops_of(shape.problem) / seconds * 1e-9, plan_headline(shape.problem, device.info()));
  }
}

// cuBLASLt's product of all rows with one group's weights: as many multiply-adds. The fastest of its algorithms.
struct Dense {
  Dense(const Device& device, const CublasLt& library, const Work& of, const GpuClock& clock)
      : work(of),
        product(library.product(of.problem.m, of.problem.n, of.problem.k)),
        workspace(device, CublasLt::kWorkspaceBytes) {
    const auto bytes = static_cast<size_t>(work.problem.m * work.problem.n * 2);
    for (int i = 0; i < work.turns(); ++i) d.emplace_back(device, bytes);
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < product->algorithms(); ++i) {
      algorithm = i;
      const double seconds = clock.seconds({{launch()}}, work.turns(), 3, 5e-4)[0];
      if (seconds < best) best = seconds, chosen = i;
    }
    algorithm = chosen;
  }
  Launch launch() {
    return [this](int turn, Stream stream) {
      const size_t i = static_cast<size_t>(turn) % d.size();
      product->run(algorithm, work.a[i].as(), work.b[i % work.b.size()].as(), d[i].as(), workspace.as(), stream);
    };
  }
  const Work& work;
  std::unique_ptr<CublasLt::Product> product;
  std::vector<Buffer> d;
  Buffer workspace;
  int algorithm = 0, chosen = 0;
};

void time_on_gpu(const Device& device, const std::vector<Shape>& shapes) {
  const GpuClock clock(device);
  std::string why;
  const std::unique_ptr<CublasLt> cublaslt = CublasLt::find(&why);
  if (cublaslt == nullptr) fmt::print("cuBLASLt: {}\n", why);
  constexpr size_t kCopyBytes = 512 << 20;
  const Buffer from(device, kCopyBytes), to(device, kCopyBytes);
  device.fill(from.as(), 0x5a, kCopyBytes);

  fmt::print("{:<36} {:<24} {:>10} {:>8} {:>6} {:>8} {:>8} {:>8}  {}\n", "shape", "groups x (M x N x K)", "time",
             "TFLOP/s", "GB/s", "/cublas", "/copy", "host", "kernel");
  for (const Shape& shape : shapes) {
    const Work work(device, shape.problem);
    const Launch ours = [&](int turn, Stream stream) { work.launch(turn, stream); };
    const Launch copies = [&](int, Stream stream) { clock.copy(to.as(), from.as(), kCopyBytes, stream); };
    std::vector<Contender> contenders = {{ours}, {copies, false}};
    std::unique_ptr<Dense> dense;
    if (cublaslt != nullptr) {
      dense = std::make_unique<Dense>(device, *cublaslt, work, clock);
      contenders.push_back({dense->launch()});
    }
    const std::vector<double> seconds = clock.seconds(contenders, work.turns());
    const double host = clock.host_seconds(ours, work.turns());
    const double bytes = Work::compulsory_bytes(work.problem) / seconds[0], copied = 2.0 * kCopyBytes / seconds[1];
    fmt::print("{:<36} {:<24} {:>7.4f} ms {:>8.1f} {:>6.0f} {:>8} {:>8.3f} {:>5.1f} us  {}\n", shape.name,
               extents(shape.problem), seconds[0] * 1e3, flops_of(shape.problem) / seconds[0] * 1e-12, bytes * 1e-9,
               dense != nullptr ? fmt::format("{:.3f}", seconds[2] / seconds[0]) : "-", bytes / copied, host * 1e6,
               plan_headline(shape.problem, device.info()));
    fflush(stdout);
  }
}

int run(const Options& options) {
  const DeviceInfo info = Device::open().info();
  const std::vector<Shape> shapes = shapes_of(options, info.simulated);
  fmt::print("{}{}\n", info.name, info.simulated ? " (simulated)" : "");
  print_compile_times(shapes.front().problem);

  const Device device = Device::open();
  info.simulated ? simulate(device, shapes) : time_on_gpu(device, shapes);
  return 0;
}

}  // namespace

Run add_bench(CLI::App& command) {
  auto options = std::make_shared<Options>();
  options->activation = "swiglu-oai";
  auto* groups = command.add_option("--groups", options->groups, "Groups")->capture_default_str();
  auto* m = command.add_option("--m", options->m, "Rows of each group")->capture_default_str();
  auto* n = command.add_option("--n", options->n, "Columns, before a gate halves them")->capture_default_str();
  auto* k = command.add_option("--k", options->k, "Length of the sums")->capture_default_str();
  command.add_option("--list", options->list,
                     "Text file of problems with groups by offsets, one a line in the words of `moxie plan`");
  options->add_to(command);
  return [=] {
    options->shape_given = groups->count() + m->count() + n->count() + k->count() > 0;
    for (const int64_t extent : {options->groups, options->m, options->n, options->k}) {
      if (extent < 1 || extent > 1 << 20)
        throw InputError(fmt::format("--groups, --m, --n, --k: {} is not 1 to {}", extent, 1 << 20));
    }
    return run(*options);
  };
}

}  // namespace moxie::cli
