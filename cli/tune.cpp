// SPDX-License-Identifier: Apache-2.0
// moxie tune: times the kernels that the plan chooses among, on this machine's GPU, and writes the winners as a table
// that MOXIE_TUNED names.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ostream.h>

#include "bench/timing/benchmark_case.h"
#include "bench/timing/data.h"
#include "bench/timing/gpu_clock.h"
#include "bench/timing/tuning.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "moxie/moxie.h"
#include "moxie/tuned.h"

namespace moxie::cli {

namespace {

using timing::BenchmarkCase;
using timing::Contender;
using timing::GpuClock;
using timing::Measured;

struct TuneOptions {
  std::string list, out = "moxie-tuned.txt";
  int top = 12;
  bool exhaustive = false, include = false;
  double slack = 0.01;
};

// A product whose kernel is fixed.
struct Variant {
  GemmDescription description;
  TunedHopper choice;               // schedule, tile and multicast
  std::optional<GroupedGemm> gemm;  // empty until compile_all()
};

bool same_choice(const TunedHopper& a, const TunedHopper& b) {
  return a.schedule == b.schedule && a.tile_m == b.tile_m && a.tile_n == b.tile_n && a.multicast == b.multicast;
}

// Returns the `most` candidates that the cost model likes best, whatever a tuned table has put in front.
std::vector<Variant> variants_of(const GemmDescription& description, const DeviceInfo& device, size_t most) {
  std::vector<PlanCandidate> candidates =
      plan_gemm(description, {device.arch, device.sm_count, device.shared_bytes}).candidates;
  std::stable_sort(candidates.begin(), candidates.end(), [](const PlanCandidate& a, const PlanCandidate& b) {
    return a.possible != b.possible ? a.possible : a.cycles < b.cycles;
  });
  std::vector<Variant> variants;
  for (const PlanCandidate& candidate : candidates) {
    if (!candidate.possible || variants.size() == most) break;
    const auto& tuning = std::get<HopperTuning>(candidate.tuning);
    Variant variant{description, {}, {}};
    variant.description.hopper = tuning;
    variant.choice.schedule = *tuning.schedule;
    variant.choice.tile_m = *tuning.tile_m;
    variant.choice.tile_n = *tuning.tile_n;
    variant.choice.multicast = *tuning.multicast;
    variants.push_back(std::move(variant));
  }
  return variants;
}

// Compiles all kernels on all cores. Throws the first error when all threads are done.
void compile_all(const Device& device, std::vector<std::vector<Variant>>& variants) {
  std::vector<Variant*> all;
  for (auto& of_product : variants) {
    for (Variant& variant : of_product) all.push_back(&variant);
  }
  std::atomic<size_t> next = 0;
  std::vector<std::future<void>> workers;
  for (int i = 0; i < timing::worker_threads(); ++i) {
    workers.push_back(std::async(std::launch::async, [&] {
      for (size_t mine = next++; mine < all.size(); mine = next++)
        all[mine]->gemm.emplace(device, all[mine]->description);
    }));
  }
  for (std::future<void>& worker : workers) worker.wait();
  for (std::future<void>& worker : workers) worker.get();
}

// Products that differ in their extents alone can share kernels.
std::string class_of(const GroupedGemm& gemm) {
  const GemmDescription& d = gemm.description();
  const auto type = [](const std::optional<DataType>& t) { return t ? to_string(*t) : "-"; };
  return fmt::format("{} {} {} {} {} {} {}", to_string(grouping_of(d.groups)), to_string(d.activation.function),
                     to_string(d.gate), d.bias, type(d.pre), type(d.out), gemm.plan().decode_tile);
}

Measured measure(const GpuClock& clock, const std::vector<Variant>& variants) {
  const GroupedGemm& first = *variants.front().gemm;
  const BenchmarkCase work(first, /*skewed=*/true);
  std::vector<Workspace> spaces;
  for (const Variant& v : variants) spaces.emplace_back(first.device(), v.gemm->workspace_bytes());
  // All of them are timed roughly, then the best few against each other.
  std::vector<size_t> order(variants.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<double> seconds(variants.size());
  const auto time = [&](int rounds, double graph_seconds) {
    std::vector<Contender> launches;
    for (size_t i : order) {
      launches.push_back(
          {[&, i](int turn, Stream stream) { work.launch(*variants[i].gemm, spaces[i], turn, stream); }});
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
  const GemmDescription& d = first.description();
  const int64_t groups = timing::timed_groups(d).count;
  measured.kernel_class = class_of(first);
  measured.shape.grouping = grouping_of(d.groups);
  measured.shape.n = d.n;
  measured.shape.k = d.k;
  measured.shape.gated = is_gated(d.activation.function);
  measured.rows = d.expected_rows.value_or(std::max<int64_t>(timing::rows_of(d) / groups, 1));
  for (size_t i : order) measured.candidates.push_back({variants[i].choice, seconds[i]});
  return measured;
}

const char* describe_multicast(Multicast multicast) {
  switch (multicast) {
    case Multicast::None:
      break;
    case Multicast::A:
      return ", A shared";
    case Multicast::B:
      return ", B shared";
    case Multicast::Either:
      return ", A or B shared";
  }
  return "";
}

int run_tune(const TuneOptions& options) {
  const Device device = Device::open();
  if (device.info().simulated) throw InputError("tune needs a GPU: times in the simulator say nothing about one");
  if (device.info().arch != 90) throw InputError("tune chooses among kernels for sm_90a, which this GPU is not");
  std::vector<std::string> names;
  const std::vector<GemmDescription> products = read_products(options.list, device.info().arch, &names);
  std::vector<std::vector<Variant>> variants;
  for (const GemmDescription& product : products) {
    const size_t most = options.exhaustive ? 1000 : static_cast<size_t>(options.top);
    variants.push_back(variants_of(product, device.info(), most));
  }
  fmt::print("{}: {} problems; compiling\n", device.info().name, products.size());
  compile_all(device, variants);

  std::vector<Measured> measured;
  const GpuClock clock(device);
  for (size_t i = 0; i < products.size(); ++i) {
    measured.push_back(measure(clock, variants[i]));
    const Measured& m = measured.back();
    double planned = 0;
    for (const auto& candidate : m.candidates) {
      if (same_choice(candidate.choice, variants[i].front().choice)) planned = candidate.seconds;
    }
    const auto& best = m.candidates.front();
    fmt::print("{:<36} {:>9.4f} ms {:>7.1f} TFLOP/s {:>6.0f} GB/s  {} {}x{}{}  ({} tried; the model's first {})\n",
               names[i], best.seconds * 1e3, timing::flops_of(products[i]) / best.seconds * 1e-12,
               timing::compulsory_bytes(products[i]) / best.seconds * 1e-9, to_string(best.choice.schedule),
               best.choice.tile_m, best.choice.tile_n, describe_multicast(best.choice.multicast), variants[i].size(),
               planned == 0 ? "is not among the best six" : fmt::format("{:.3f} of it", planned / best.seconds));
    fflush(stdout);
  }

  const std::vector<size_t> chosen = timing::choose_candidates(measured, options.slack);
  std::set<std::string> kernels;
  for (size_t i = 0; i < measured.size(); ++i) {
    const TunedHopper& c = measured[i].candidates[chosen[i]].choice;
    kernels.insert(fmt::format("{} {} {}x{} {}", measured[i].kernel_class, to_string(c.schedule), c.tile_m, c.tile_n,
                               to_string(c.multicast)));
  }
  const std::vector<TunedHopper> table = timing::make_table(measured, chosen);
  std::ofstream file(options.out);
  fmt::print(file, "# moxie tune {} on {}\n", options.list, device.info().name);
  for (const TunedHopper& row : table) fmt::print(file, "{}\n", tuned_line(row));
  file.close();
  if (!file) throw OutputError(options.out + ": cannot be written");
  if (options.include) {
    for (const TunedHopper& row : table) fmt::print("{}\n", timing::include_line(row));
  }
  fmt::print("{}: {} rows, {} kernels; used where MOXIE_TUNED names it\n", options.out, table.size(), kernels.size());
  return 0;
}

}  // namespace

Run add_tune(CLI::App& command) {
  auto options = std::make_shared<TuneOptions>();
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
  return [options] { return run_tune(*options); };
}

}  // namespace moxie::cli
