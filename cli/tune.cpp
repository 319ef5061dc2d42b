// SPDX-License-Identifier: Apache-2.0
// moxie tune: times the kernels that the plan chooses among, on this machine's GPU, and writes the winners as a table
// that MOXIE_TUNED names.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/timing/benchmark_case.h"
#include "bench/timing/data.h"
#include "bench/timing/gpu_clock.h"
#include "bench/timing/sample.h"
#include "bench/timing/tuning.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "moxie/moxie.h"
#include "moxie/tuned.h"
#include "reference/comparison.h"
#include "reference/formats.h"
#include "reference/product.h"

namespace moxie::cli {

namespace {

using timing::BenchmarkCase;
using timing::Contender;
using timing::GpuClock;
using timing::Measured;
using timing::Popularity;

struct TuneOptions {
  std::string list, out = "moxie-tuned.txt", times, set = "drawn";
  int top = 12, sample = 0;
  uint64_t seed = 1;
  bool exhaustive = false, include = false, scattered = false;
  double slack = 0.01, limit = 0;
};

// A product whose kernel is fixed.
struct Variant {
  GemmDescription description;
  TunedHopper choice;               // schedule, tile and multicast
  std::optional<GroupedGemm> gemm;  // empty until compile_all()
};

// Orders indices of `seconds`, the least first.
void sort_by_time(std::vector<size_t>& order, const std::vector<double>& seconds) {
  std::ranges::stable_sort(order, {}, [&](size_t i) { return seconds[i]; });
}

bool same_choice(const TunedHopper& a, const TunedHopper& b) {
  return a.schedule == b.schedule && a.tile_m == b.tile_m && a.tile_n == b.tile_n && a.multicast == b.multicast;
}

// Returns the `most` candidates that the cost model likes best, whatever a tuned table has put in front. All are
// possible, since only sinks of the caller's own can take so much shared memory that one is not.
std::vector<Variant> variants_of(const GemmDescription& description, const DeviceFigures& device, size_t most) {
  std::vector<PlanCandidate> candidates = plan_gemm(description, device).candidates;
  std::ranges::stable_sort(candidates, {}, &PlanCandidate::cycles);
  std::vector<Variant> variants;
  for (const PlanCandidate& candidate : candidates) {
    if (variants.size() == most) break;
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
  const BenchmarkCase work(first, Popularity::Mixed, &clock);
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
    sort_by_time(order, seconds);
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

// ---- Times of all candidates, for fitting the cost model ----

// Rows of the result that are compared, from the first to the last.
constexpr int kCheckedRows = 8;

int64_t checked_row(int64_t rows, int i) { return i * (rows - 1) / (kCheckedRows - 1); }

// Some rows of the first turn's result, and some columns of them as computed in double precision.
class CheckedRows {
 public:
  CheckedRows(const Device& device, const BenchmarkCase& work) : device_(device), work_(work) {
    const GemmDescription& d = work.gemm.description();
    std::vector<int32_t> ends(static_cast<size_t>(timing::timed_groups(d).count));
    device.download(ends.data(), work.ends[0].as(), ends.size() * sizeof(int32_t));
    for (int i = 0; i < kCheckedRows; ++i) {
      const int64_t row = checked_row(timing::rows_of(d), i);
      const int64_t group = std::upper_bound(ends.begin(), ends.end(), static_cast<int32_t>(row)) - ends.begin();
      std::vector<uint16_t> a(static_cast<size_t>(d.k)), b(static_cast<size_t>(columns() * d.k)),
          bias(static_cast<size_t>(columns()));
      device.download(a.data(), work.a[0].as<uint16_t>() + work.row_of_a(row) * d.k, a.size() * 2);
      for (const int64_t first : {int64_t{0}, d.n - columns()}) {
        if (d.b_format) {
          const uint8_t* packed = work.b[0].as<uint8_t>() + group * packed_weight_bytes(1, d.n, d.k);
          b = timing::download_packed(device, d, packed, first, columns());
        } else {
          device.download(b.data(), work.b[0].as<uint16_t>() + (group * d.n + first) * d.k, b.size() * 2);
        }
        if (d.bias) device.download(bias.data(), work.bias.as<uint16_t>() + group * d.n + first, bias.size() * 2);
        const std::vector<double> pre =
            reference::product({a.data(), d.k, b.data(), d.k, d.bias ? bias.data() : nullptr, 1, columns(), d.k});
        exact_.push_back(reference::activate_all(d.activation, d.gate, pre, 1, columns()));
      }
    }
  }

  // What is wrong with the rows that a kernel has just written; empty when nothing is. Where it did not compute
  // exactly, its rows may differ from the first kernel's, which adds up in another order, by the results' precision.
  std::string failure() {
    const GemmDescription& d = work_.gemm.description();
    const int64_t width = is_gated(d.activation.function) ? d.n / 2 : d.n, part = width * columns() / d.n;
    std::vector<uint16_t> found(static_cast<size_t>(kCheckedRows * width));
    reference::Comparison comparison;
    for (int i = 0; i < kCheckedRows; ++i) {
      const int64_t row = checked_row(timing::rows_of(d), i);
      uint16_t* const got = found.data() + i * width;
      device_.download(got, work_.out[0].as<uint16_t>() + row * width, static_cast<size_t>(width) * 2);
      const size_t at = 2 * static_cast<size_t>(i);
      comparison.add(exact_[at], got, DataType::Bf16, 1, part, part, row);
      comparison.add(exact_[at + 1], got + width - part, DataType::Bf16, 1, part, part, row);
    }
    if (!comparison.pass()) return comparison.failure();
    if (first_.empty()) first_ = found;
    double off = 0, norm = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      const double value = reference::bf16_to_float(found[i]), other = reference::bf16_to_float(first_[i]);
      off += (value - other) * (value - other), norm += other * other;
    }
    return off <= 1e-6 * norm ? "" : fmt::format("differs from the first kernel by {:.2g}", std::sqrt(off / norm));
  }

 private:
  int64_t columns() const { return std::min<int64_t>(64, work_.gemm.description().n); }

  const Device& device_;
  const BenchmarkCase& work_;
  std::vector<std::vector<double>> exact_;  // the first and the last columns of each row
  std::vector<uint16_t> first_;             // the rows of the kernel that came first
};

std::string short_name(const TunedHopper& c) {
  std::string name = fmt::format("{}:{}x{}", to_string(c.schedule), c.tile_m, c.tile_n);
  if (c.multicast != Multicast::None) name += fmt::format(":{}", to_string(c.multicast));
  return name;
}

const char* name_of(Popularity popularity) {
  return popularity == Popularity::Skewed ? "skewed" : popularity == Popularity::Scattered ? "scattered" : "balanced";
}

// Times every variant for one routing, the better ones precisely, and the best one launched plainly as well. Returns
// the record as one line of JSON, with the times in the order of `kernels`: null where the problem lacks the kernel,
// negative where it was timed roughly. `again` has two kernels with later times: the model's choice and the best one.
// Every result is checked before it is timed.
std::string record_times(const GpuClock& clock, const std::vector<Variant>& variants, Popularity popularity,
                         const TuneOptions& options, const std::vector<std::string>& kernels) {
  const GroupedGemm& first = *variants.front().gemm;
  const Device& device = first.device();
  const BenchmarkCase work(first, popularity, &clock);
  std::vector<double> seconds(variants.size());
  std::vector<bool> precise(variants.size(), false);
  std::vector<std::optional<Workspace>> spaces(variants.size());
  CheckedRows checked(device, work);
  const auto launch_of = [&](size_t i, bool programmatic = true) -> timing::Launch {
    return [&, i, programmatic](int turn, Stream stream) {
      work.launch(*variants[i].gemm, *spaces[i], turn, stream, programmatic);
    };
  };
  for (size_t i = 0; i < variants.size(); ++i) {
    spaces[i].emplace(device, variants[i].gemm->workspace_bytes());
    const timing::Buffer& result = work.out.front();
    device.fill(result.as(), 0xff, result.bytes());  // NaN
    seconds[i] = clock.rough_seconds(launch_of(i), work.turns());
    if (const std::string wrong = checked.failure(); !wrong.empty())
      throw Error(ErrorCode::Driver, fmt::format("{}: {}: {}", timing::words_of(first.description()),
                                                 short_name(variants[i].choice), wrong));
  }
  // The better ones again by turns, and the few best for longer.
  const auto again = [&](double within, size_t most, int rounds, double graph_seconds) {
    const double best = *std::min_element(seconds.begin(), seconds.end());
    std::vector<size_t> order(variants.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    sort_by_time(order, seconds);
    order.resize(std::min(order.size(), most));
    while (seconds[order.back()] > within * best) order.pop_back();
    std::vector<Contender> launches;
    for (const size_t i : order) launches.push_back({.launch = launch_of(i), .rough_seconds = seconds[i]});
    launches.push_back({.launch = launch_of(order.front(), false), .rough_seconds = seconds[order.front()]});
    const std::vector<double> found = clock.seconds(launches, work.turns(), rounds, graph_seconds);
    for (size_t j = 0; j < order.size(); ++j) seconds[order[j]] = found[j], precise[order[j]] = true;
    return std::pair(order.front(), found.back());
  };
  const bool is_long = *std::min_element(seconds.begin(), seconds.end()) > 3e-3;
  if (!is_long) again(1.4, 40, 3, 4e-4);
  const auto [plain, plain_seconds] = again(is_long ? 1.15 : 1.1, 12, is_long ? 3 : 7, 1e-3);

  // The least of many times is partly luck. So the model's choice and the kernel with the least time meet once more.
  const auto best = static_cast<size_t>(std::min_element(seconds.begin(), seconds.end()) - seconds.begin());
  constexpr size_t kModelsChoice = 0;  // variants_of() puts it first
  std::vector<double> met{seconds[kModelsChoice]};
  if (best != kModelsChoice) {
    const std::vector<Contender> both{{.launch = launch_of(kModelsChoice), .rough_seconds = seconds[kModelsChoice]},
                                      {.launch = launch_of(best), .rough_seconds = seconds[best]}};
    met = clock.seconds(both, work.turns(), is_long ? 5 : 11, 1e-3);
  }

  std::string line = fmt::format(R"({{"set":"{}","problem":"{}","routing":"{}","turns":{},"plain":["{}",{:.5g}],)",
                                 options.set, timing::words_of(first.description()), name_of(popularity), work.turns(),
                                 short_name(variants[plain].choice), plain_seconds);
  line += fmt::format(R"("again":["{}",{:.5g},"{}",{:.5g}],"seconds":[)", short_name(variants[kModelsChoice].choice),
                      met.front(), short_name(variants[best].choice), met.back());
  for (const std::string& kernel : kernels) {
    const auto is_it = [&](const Variant& v) { return short_name(v.choice) == kernel; };
    const auto i = static_cast<size_t>(std::find_if(variants.begin(), variants.end(), is_it) - variants.begin());
    if (&kernel != &kernels.front()) line += ',';
    line += i == variants.size() ? "null" : fmt::format("{:.5g}", precise[i] ? seconds[i] : -seconds[i]);
  }
  return line + "]}";
}

void print_times(const TuneOptions& options, const Device& device, const std::vector<std::string>& names,
                 const std::vector<std::vector<Variant>>& variants, OutputFile& file) {
  const GpuClock clock(device);
  const DeviceInfo& info = device.info();
  std::vector<std::string> kernels;
  for (const auto& of_product : variants) {
    for (const Variant& variant : of_product) {
      const std::string name = short_name(variant.choice);
      if (std::find(kernels.begin(), kernels.end(), name) == kernels.end()) kernels.push_back(name);
    }
  }
  file.write(fmt::format(
      R"({{"gpu": "{}", "sm_count": {}, "shared_bytes": {}, "l2_bytes": {}, "clock": {}, "memory_rate": {}, )"
      R"("kernels": ["{}"], "times": [)"
      "\n",
      info.name, info.sm_count, info.shared_bytes, info.l2_bytes, info.clock, info.memory_rate,
      fmt::join(kernels, R"(", ")")));
  const auto begun = std::chrono::steady_clock::now();
  bool any = false;
  for (size_t i = 0; i < variants.size(); ++i) {
    const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    if (options.limit > 0 && spent > options.limit) {
      fmt::print("{} of {}: {}: not timed, since the limit has passed\n", i + 1, variants.size(), names[i]);
      continue;
    }
    for (const Popularity popularity : {Popularity::Equal, Popularity::Skewed, Popularity::Scattered}) {
      if (popularity != Popularity::Equal && timing::rows_of(variants[i].front().description) < 2) continue;
      if (popularity == Popularity::Scattered && !options.scattered) continue;
      file.write((any ? ",\n" : "") + record_times(clock, variants[i], popularity, options, kernels));
      any = true;
    }
    fmt::print("{} of {}: {}\n", i + 1, variants.size(), names[i]);
    fflush(stdout);
  }
  file.write("\n]}\n");
  file.finish();
}

int run_tune(const TuneOptions& options) {
  OutputFile file(options.times.empty() ? options.out : options.times);
  const Device device = Device::open();
  if (device.info().simulated) throw InputError("tune needs a GPU: times in the simulator say nothing about one");
  if (device.info().arch != 90) throw InputError("tune chooses among kernels for sm_90a, which this GPU is not");
  std::vector<std::string> names;
  std::vector<GemmDescription> products;
  if (!options.list.empty()) products = read_products(options.list, device.info().arch, &names);
  for (GemmDescription& drawn : timing::draw_problems(options.seed, options.sample)) {
    names.push_back(timing::words_of(drawn));
    products.push_back(std::move(drawn));
  }
  if (products.empty()) throw InputError("tune needs a LIST or --sample");
  const bool packed = std::any_of(products.begin(), products.end(), [](const auto& d) { return d.b_format; });
  if (packed && options.times.empty())
    throw InputError("tune makes a table for products of bf16 alone; --times takes those with --format mxfp4, too");
  const bool gathers = std::any_of(products.begin(), products.end(), [](const auto& d) { return d.gather; });
  if (gathers && options.times.empty())
    throw InputError("tune makes a table for rows in order alone; --times takes products with --gather, too");
  std::vector<std::vector<Variant>> variants;
  for (const GemmDescription& product : products) {
    const size_t most = options.exhaustive ? 1000 : static_cast<size_t>(options.top);
    variants.push_back(variants_of(product, figures_of(device.info()), most));
  }
  fmt::print("{}: {} problems; compiling\n", device.info().name, products.size());
  compile_all(device, variants);
  if (!options.times.empty()) {
    print_times(options, device, names, variants, file);
    return 0;
  }

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
  file.write(fmt::format("# moxie tune {} on {}\n", options.list, device.info().name));
  for (const TunedHopper& row : table) file.write(tuned_line(row) + "\n");
  file.finish();
  if (options.include) {
    for (const TunedHopper& row : table) fmt::print("{}\n", timing::include_line(row));
  }
  fmt::print("{}: {} rows, {} kernels; used where MOXIE_TUNED names it\n", options.out, table.size(), kernels.size());
  return 0;
}

}  // namespace

Run add_tune(CLI::App& command) {
  auto options = std::make_shared<TuneOptions>();
  command.add_option("LIST", options->list,
                     "Text file of problems with groups by offsets, one a line in the words of `moxie plan`");
  command.add_option("--sample", options->sample, "Draw so many problems, beside those of LIST")
      ->check(CLI::Range(0, 100000));
  command.add_option("--seed", options->seed, "What --sample draws")->capture_default_str();
  command.add_option("--times", options->times,
                     "Write the times of all kernels to this file, as JSON, for balanced and for skewed groups, in "
                     "place of a table; results are checked first");
  command.add_flag("--scattered", options->scattered,
                   "With --times: time groups of scattered rows, too, each row's group drawn by itself");
  command.add_option("--set", options->set, "With --times: what the records call their problems")
      ->capture_default_str();
  command.add_option("--limit", options->limit, "With --times: begin no further problem after so many seconds");
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
