// moxie bench: times of products on a GPU; of compilation and loading on any machine; on the simulator how fast it is.
// Each contender is timed by the same code on the same data, so that further ones can stand beside the library.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>

#include <fmt/format.h>

#include "cli/buffer.h"
#include "cli/commands.h"
#include "cli/data.h"
#include "cli/options.h"
#include "cli/safetensors.h"
#include "cli/timing.h"
#include "moxie/moxie.h"

namespace moxie::cli {

namespace {

struct Options : ProblemOptions {
  int64_t groups = 8, m = 1024, n = 4096, k = 2048;
  bool shape_given = false;
};

struct Shape {
  std::string name;
  int64_t groups, rows, n, k;  // rows of each group
};

// What the library is compared on: inputs rotated past the L2 cache.
struct Work {
  Shape shape;
  GemmProblem problem;
  std::vector<Buffer> a, b, out;
  Buffer bias, ends, workspace;
};

struct Contender {
  std::string name;
  std::function<void(const Device&, const Work&, int turn)> launch;
};

void launch_moxie(const Device& device, const Work& work, int turn) {
  const auto i = static_cast<size_t>(turn) % work.a.size();
  GemmArguments arguments;
  arguments.a = work.a[i].as();
  arguments.b = work.b[i].as();
  arguments.bias = work.problem.bias ? work.bias.as() : nullptr;
  arguments.out = work.out[i].as();
  arguments.sizes = work.ends.as<int32_t>();
  arguments.workspace = work.workspace.as();
  arguments.workspace_bytes = work.workspace.bytes();
  gemm(device, work.problem, arguments);
}

GemmProblem make_problem(const Shape& shape, const ProblemOptions& options) {
  GemmProblem problem;
  options.apply(problem);
  problem.pre.reset();
  if (!problem.out) problem.out = DataType::Bf16;
  problem.grouping = Grouping::Offsets;
  problem.groups = shape.groups;
  problem.m = shape.groups * shape.rows;
  problem.n = shape.n;
  problem.k = shape.k;
  problem.bias = true;
  problem.expected_rows = shape.rows;
  return problem;
}

Work make_work(const Device& device, const Shape& shape, const ProblemOptions& options) {
  Work work;
  work.shape = shape;
  work.problem = make_problem(shape, options);
  const GemmProblem& problem = work.problem;
  std::vector<int32_t> ends;
  for (int64_t g = 1; g <= shape.groups; ++g) ends.push_back(static_cast<int32_t>(g * shape.rows));
  const int64_t a_count = problem.m * problem.k, b_count = problem.groups * problem.n * problem.k;
  const int64_t out_count = problem.m * (is_gated(problem.activation) ? problem.n / 2 : problem.n);
  const auto set_bytes = static_cast<uint64_t>((a_count + b_count) * 2 + out_count * size_of(*problem.out));
  const uint64_t sets = device.info().simulated ? 1 : 2 * device.info().l2_bytes / set_bytes + 2;
  for (uint64_t i = 0; i < sets; ++i) {
    work.a.emplace_back(device, random_bf16(10 * i + 1, a_count, 1.0f));
    work.b.emplace_back(device, random_bf16(10 * i + 2, b_count, 0.1f));
    work.out.emplace_back(device, static_cast<size_t>(out_count * size_of(*problem.out)));
  }
  work.bias = Buffer(device, random_bf16(3, problem.groups * problem.n, 1.0f));
  work.ends = Buffer(device, ends);
  work.workspace = Buffer(device, workspace_bytes(device, problem));
  return work;
}

double flops_of(const GemmProblem& problem) {
  return 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) * static_cast<double>(problem.k);
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

int run(const Options& options) {
  const DeviceInfo info = Device::open().info();
  const bool simulated = info.simulated;
  std::vector<Shape> shapes;
  if (options.shape_given) {
    shapes.push_back({"given", options.groups, options.m, options.n, options.k});
  } else if (simulated) {
    shapes.push_back({"4 groups", 4, 128, 512, 512});
  } else {
    shapes = {{"8 groups", 8, 1024, 4096, 2048},
              {"gpt-oss-20b, 16384 rows", 32, 512, 5760, 2880},
              {"gpt-oss-20b, 512 rows", 32, 16, 5760, 2880}};
  }
  fmt::print("{}{}\n", info.name, simulated ? " (simulated)" : "");
  print_compile_times(make_problem(shapes.front(), options));

  const Device device = Device::open();
  const std::vector<Contender> contenders = {{"moxie", launch_moxie}};
  fmt::print("{:<24} {:<24} {:>12} {:>8} {:>6}  {}\n", "shape", "groups x (M x N x K)",
             simulated ? "simulated in" : "time", simulated ? "GFLOP/s" : "TFLOP/s", "GB/s", "kernel");
  for (const Shape& shape : shapes) {
    const Work work = make_work(device, shape, options);
    for (const Contender& contender : contenders) {
      auto launch = [&](int turn) { contender.launch(device, work, turn); };
      const double seconds = simulated ? seconds_of([&] {
        launch(0);
        device.synchronize();
      })
                                       : launch_seconds(device, launch);
      const double bytes = static_cast<double>(work.a[0].bytes() + work.b[0].bytes() + work.out[0].bytes());
      fmt::print("{:<24} {:<24} {:>12} {:>8.1f} {:>6}  {}: {}\n", shape.name,
                 fmt::format("{} x ({} x {} x {})", shape.groups, shape.rows, shape.n, shape.k),
                 simulated ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.4f} ms", seconds * 1e3),
                 flops_of(work.problem) / seconds * (simulated ? 1e-9 : 1e-12),
                 simulated ? "-" : fmt::format("{:.0f}", bytes / seconds * 1e-9), contender.name,
                 plan_headline(work.problem, info));
    }
  }
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
