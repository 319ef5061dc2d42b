// moxie tune: times the kernels that the plan chooses among, on this machine's GPU, and writes the winners as a table
// that MOXIE_TUNED names.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "cli/commands.h"
#include "cli/data.h"
#include "cli/gpu_clock.h"
#include "cli/options.h"
#include "cli/safetensors.h"
#include "cli/tuning.h"
#include "cli/work.h"
#include "moxie/moxie.h"
#include "src/ops/gemm.h"

namespace moxie::cli {

namespace {

struct Options {
  std::string list, out = "moxie-tuned.txt";
  int top = 12;
  bool exhaustive = false, include = false;
  double slack = 0.01;
};

// A problem whose kernel is fixed.
struct Variant {
  plan::TunedHopper choice;
  GemmProblem problem;
  bool decode_tile;  // of the kernel: follows from the problem
};

std::vector<Variant> variants_of(const GemmProblem& problem, const DeviceInfo& device, size_t most) {
  const plan::Plan plan = plan::make_hopper_plan(ops::shape_of(problem), ops::figures_of(device), {});
  std::vector<Variant> variants;
  for (const plan::Candidate& candidate : plan.candidates) {
    if (!candidate.possible || variants.size() == most) break;
    const kernel::HopperConfig& c = candidate.config;
    Variant variant{{}, problem, c.decode_tile};
    variant.choice.schedule = *(variant.problem.schedule = c.schedule);
    variant.choice.tile_m = *(variant.problem.tile_m = c.block_m);
    variant.choice.tile_n = *(variant.problem.tile_n = c.block_n);
    variant.choice.multicast = *(variant.problem.multicast = c.multicast);
    variant.problem.cluster = c.cluster;
    variants.push_back(variant);
  }
  return variants;
}

// Compiles with every core; what cannot be compiled fails again, and is reported, where it is used.
void prepare_all(const Device& device, const std::vector<std::vector<Variant>>& variants) {
  std::vector<const GemmProblem*> all;
  for (const auto& of_problem : variants) {
    for (const Variant& variant : of_problem) all.push_back(&variant.problem);
  }
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < worker_threads(); ++i) {
    threads.emplace_back([&] {
      for (size_t mine = next++; mine < all.size(); mine = next++) {
        try {
          prepare(device, *all[mine]);
        } catch (const Error&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Problems that differ in their extents alone can share kernels.
std::string class_of(const GemmProblem& p, bool decode_tile) {
  const auto type = [](const std::optional<DataType>& t) { return t ? static_cast<int>(*t) : -1; };
  return fmt::format("{} {} {} {} {} {} {}", static_cast<int>(p.grouping), static_cast<int>(p.activation),
                     static_cast<int>(p.gate), p.bias, type(p.pre), type(p.out), decode_tile);
}

Measured measure(const Device& device, const GpuClock& clock, const GemmProblem& problem,
                 const std::vector<Variant>& variants) {
  const Work work(device, problem, /*skewed=*/true);
  std::vector<Buffer> spaces;
  for (const Variant& v : variants) spaces.emplace_back(device, workspace_bytes(device, v.problem));
  // All of them roughly, then the best few against each other.
  std::vector<size_t> order(variants.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<double> seconds(variants.size());
  const auto time = [&](int rounds, double graph_seconds) {
    std::vector<Contender> launches;
    for (size_t i : order) {
      launches.push_back(
          {[&, i](int turn, Stream stream) { work.launch(variants[i].problem, spaces[i], turn, stream); }});
    }
    const std::vector<double> found = clock.seconds(launches, work.turns(), rounds, graph_seconds);
    for (size_t j = 0; j < order.size(); ++j) seconds[order[j]] = found[j];
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return seconds[a] < seconds[b]; });
  };
  constexpr size_t kFinalists = 6;
  time(5, 5e-4);
  if (order.size() > kFinalists) order.resize(kFinalists);
  time(15, 2e-3);

  Measured measured;
  measured.kernel_class = class_of(problem, variants.front().decode_tile);
  measured.shape.grouping = problem.grouping;
  measured.shape.n = problem.n;
  measured.shape.k = problem.k;
  measured.shape.gated = is_gated(problem.activation);
  measured.rows = problem.expected_rows.value_or(std::max<int64_t>(problem.m / problem.groups, 1));
  for (size_t i : order) measured.candidates.push_back({variants[i].choice, seconds[i]});
  return measured;
}

const char* name_of(WarpSchedule schedule) {
  return schedule == WarpSchedule::Cooperative ? "cooperative" : "pingpong";
}

int run(const Options& options) {
  const Device device = Device::open();
  if (device.info().simulated) throw InputError("tune needs a GPU: times in the simulator say nothing about one");
  if (device.info().arch != 90) throw InputError("tune chooses among kernels for sm_90a, which this GPU is not");
  std::vector<std::string> names;
  const std::vector<GemmProblem> problems = read_problems(options.list, &names);
  std::vector<std::vector<Variant>> variants;
  for (const GemmProblem& problem : problems) {
    const size_t most = options.exhaustive ? 1000 : static_cast<size_t>(options.top);
    variants.push_back(variants_of(problem, device.info(), most));
  }
  fmt::print("{}: {} problems; compiling\n", device.info().name, problems.size());
  prepare_all(device, variants);

  std::vector<Measured> measured;
  const GpuClock clock(device);
  for (size_t i = 0; i < problems.size(); ++i) {
    measured.push_back(measure(device, clock, problems[i], variants[i]));
    const Measured& m = measured.back();
    double planned = 0;
    for (const auto& candidate : m.candidates) {
      const plan::TunedHopper &a = candidate.choice, &b = variants[i].front().choice;
      if (a.schedule == b.schedule && a.tile_m == b.tile_m && a.tile_n == b.tile_n && a.multicast == b.multicast)
        planned = candidate.seconds;
    }
    const auto& best = m.candidates.front();
    fmt::print("{:<36} {:>9.4f} ms {:>7.1f} TFLOP/s {:>6.0f} GB/s  {} {}x{}{}  ({} tried; the model's first {})\n",
               names[i], best.seconds * 1e3, flops_of(problems[i]) / best.seconds * 1e-12,
               Work::compulsory_bytes(problems[i]) / best.seconds * 1e-9, name_of(best.choice.schedule),
               best.choice.tile_m, best.choice.tile_n,
               best.choice.multicast == Multicast::None ? ""
               : best.choice.multicast == Multicast::A  ? ", A shared"
               : best.choice.multicast == Multicast::B  ? ", B shared"
                                                        : ", A or B shared",
               variants[i].size(),
               planned == 0 ? "is not among the best six" : fmt::format("{:.3f} of it", planned / best.seconds));
    fflush(stdout);
  }

  const std::vector<size_t> chosen = choose_candidates(measured, options.slack);
  std::set<std::string> kernels;
  for (size_t i = 0; i < measured.size(); ++i) {
    const plan::TunedHopper& c = measured[i].candidates[chosen[i]].choice;
    kernels.insert(fmt::format("{} {} {}x{} {}", measured[i].kernel_class, name_of(c.schedule), c.tile_m, c.tile_n,
                               static_cast<int>(c.multicast)));
  }
  const std::vector<plan::TunedHopper> table = make_table(measured, chosen);
  std::ofstream file(options.out);
  fmt::print(file, "# moxie tune {} on {}\n", options.list, device.info().name);
  for (const plan::TunedHopper& row : table) fmt::print(file, "{}\n", plan::tuned_line(row));
  file.close();
  if (!file) throw OutputError(options.out + ": cannot be written");
  if (options.include) {
    for (const plan::TunedHopper& row : table) fmt::print("{}\n", include_line(row));
  }
  fmt::print("{}: {} rows, {} kernels; used where MOXIE_TUNED names it\n", options.out, table.size(), kernels.size());
  return 0;
}

}  // namespace

Run add_tune(CLI::App& command) {
  auto options = std::make_shared<Options>();
  command
      .add_option("LIST", options->list,
                  "Text file of problems with groups by offsets, one a line in the words of `moxie plan`")
      ->required();
  command.add_option("--out", options->out, "The table, for MOXIE_TUNED")->capture_default_str();
  command.add_option("--top", options->top, "Kernels to time for each problem: the model's best")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_flag("--exhaustive", options->exhaustive, "Time every kernel that is possible");
  command
      .add_option("--slack", options->slack,
                  "How much slower than the fastest a kernel may be that serves more problems: 0.01 is one per cent")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command.add_flag("--include", options->include, "Print the rows as src/plan/tuned_hopper.inc holds them, too");
  return [options] { return run(*options); };
}

}  // namespace moxie::cli
