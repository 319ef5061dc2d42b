// SPDX-License-Identifier: Apache-2.0
// Assembles for sm_100a every kernel that a plan returns over a grid of problems (NVRTC's own ptxas, as the library
// does) and reads its report: nothing may spill, and registers, shared memory and tensor memory must suffice.
//
//   assembly [--sample N] [--jobs N] [--results FILE]   one line for each kernel that fails, then the extremes
//   assembly --table                                    the table of docs/blackwell.md
//
// FILE remembers what has been assembled, so that a run that was stopped goes on.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string_view>
#include <thread>

#include "jit/jit.h"
#include "moxie/error.h"
#include "ops/gemm.h"
#include "tests/assembly/grid.h"

namespace moxie::assembly {
namespace {

constexpr int kRegistersOfSm = 65536, kSkipped = 77;  // ctest's SKIP_RETURN_CODE

// What ptxas reports of a kernel, or why there is none.
struct Code {
  int registers = 0, stack = 0, stores = 0, loads = 0, shared = 0;  // bytes but for registers; shared: static
  std::string error;
};

struct Kernel {
  ProductSpec problem;
  test::Planned prepared;
  const kernel::BlackwellConfig& config() const { return prepared.blackwell().config; }
  std::string name() const { return plan::describe(config()) + "; " + assembly::describe(problem); }
};

// The first number in `text` that `unit` follows, or -1. Threads call it at once, and std::regex would not let them:
// libstdc++'s std::ctype keeps what it has narrowed without a lock.
int number(const std::string& text, std::string_view unit) {
  for (size_t end = text.find(unit); end != std::string::npos; end = text.find(unit, end + 1)) {
    const size_t begin = text.find_last_not_of("0123456789", end - 1) + 1;
    if (begin < end) return std::stoi(text.substr(begin, end - begin));
  }
  return -1;
}

Code assemble(const jit::Request& request) {
  Code code;
  try {
    std::string log;
    jit::Compiler::get().compile(request, &log);
    code.registers = number(log, " registers");
    code.stack = number(log, " bytes stack frame");
    code.stores = number(log, " bytes spill stores");
    code.loads = number(log, " bytes spill loads");
    code.shared = std::max(0, number(log, " bytes smem"));
    if (std::min({code.registers, code.stack, code.stores, code.loads}) < 0)
      code.error = "no report of registers and spills: " + log;
  } catch (const Error& error) {
    code.error = error.what();
  }
  return code;
}

// Reports by the name that the cache of kernels would give their code.
class Results {
 public:
  explicit Results(const std::string& path) : path_(path) {
    std::ifstream file(path);
    std::string key;
    for (Code c; file >> key >> c.registers >> c.stack >> c.stores >> c.loads >> c.shared;) known_[key] = c;
  }
  Code get(const jit::Request& request) {
    const std::string key = jit::cache_key(request, jit::Compiler::get().version());
    {
      std::lock_guard lock(mutex_);
      if (const auto found = known_.find(key); found != known_.end()) return found->second;
    }
    const Code c = assemble(request);
    std::lock_guard lock(mutex_);
    if (c.error.empty() && !path_.empty()) {
      std::ofstream(path_, std::ios::app)
          << fmt::format("{} {} {} {} {} {}\n", key, c.registers, c.stack, c.stores, c.loads, c.shared);
    }
    return known_[key] = c;
  }

 private:
  std::string path_;
  std::mutex mutex_;
  std::map<std::string, Code> known_;
};

Kernel kernel_of(const ProductSpec& p) { return {p, test::plan_of(b200(), p)}; }
jit::Request request_of(const Kernel& k) { return ops::kernel_request(k.config(), test::describe(k.problem)); }

// What is wrong with a kernel's code, or "".
std::string fault_of(const Kernel& k, const Code& code) {
  const kernel::BlackwellConfig& c = k.config();
  const int columns = kernel::tensor_columns(c);
  if (!code.error.empty()) return code.error;
  if (code.stack + code.stores + code.loads > 0)
    return fmt::format("spills: {} bytes of stack, {} bytes stored, {} bytes loaded", code.stack, code.stores,
                       code.loads);
  if (code.registers * kernel::kBlackwellThreads > kRegistersOfSm)
    return fmt::format("{} registers a thread are more than an SM has", code.registers);
  if (k.prepared.shared_bytes + code.shared > b200().shared_bytes)
    return fmt::format("{} bytes of shared memory and {} of static", k.prepared.shared_bytes, code.shared);
  if (columns > kernel::kTensorColumns || columns < 32 || !std::has_single_bit(unsigned(columns)) ||
      columns < kernel::tensor_layout(c).columns)
    return fmt::format("{} columns of tensor memory", columns);
  return "";
}

int check(Results& results, size_t sample, unsigned jobs) {
  std::map<std::string, Kernel> distinct;
  const std::vector<ProductSpec> problems = grid();
  for (const ProductSpec& p : problems) {
    Kernel k = kernel_of(p);
    distinct.emplace(k.prepared.key, k);
  }
  std::vector<Kernel> kernels;
  for (auto& [key, k] : distinct) kernels.push_back(k);
  const size_t all = kernels.size();
  if (sample > 0 && sample < all) {
    for (size_t i = 0; i < sample; ++i) kernels[i] = kernels[i * all / sample];
    kernels.resize(sample);
  }

  std::vector<Code> codes(kernels.size());
  std::atomic<size_t> next = 0;
  std::atomic<int> faults = 0;
  const auto work = [&] {
    for (size_t i = next++; i < kernels.size(); i = next++) {
      codes[i] = results.get(request_of(kernels[i]));
      const std::string fault = fault_of(kernels[i], codes[i]);
      if (fault.empty()) continue;
      ++faults;
      fmt::print("{}\n  {}\n", kernels[i].name(), fault);
      fflush(stdout);
    }
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < jobs; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();

  int registers = 0, shared = 0, columns = 0;
  for (size_t i = 0; i < kernels.size(); ++i) {
    registers = std::max(registers, codes[i].registers);
    shared = std::max(shared, kernels[i].prepared.shared_bytes + codes[i].shared);
    columns = std::max(columns, kernel::tensor_columns(kernels[i].config()));
  }
  fmt::print(
      "{} of the {} kernels of {} problems assembled for sm_100a: {} with a fault; at most {} registers a thread, {} "
      "bytes of shared memory, {} columns of tensor memory\n",
      kernels.size(), all, problems.size(), faults.load(), registers, shared, columns);
  return faults == 0 ? 0 : 1;
}

double cycles_of(const plan::BlackwellPlan& plan, int accumulators) {
  const auto found = std::find_if(plan.candidates.begin(), plan.candidates.end(), [&](const auto& c) {
    return c.possible && !c.config.swap_ab && c.config.accumulators == accumulators &&
           (accumulators == 2 || c.config.block_n == 256);
  });
  return found == plan.candidates.end() ? NAN : found->cycles;
}

int print_table(Results& results) {
  fmt::print(
      "| M x N x K | kernel | stages | accumulators | registers | shared memory, bytes | tensor memory, columns used "
      "(of) "
      "| TFLOP/s predicted | published | error |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Published& shape : published()) {
    const ProductSpec& p = shape.problem;
    const Kernel k = kernel_of(p);
    const kernel::BlackwellConfig& c = k.config();
    const Code code = results.get(request_of(k));
    if (const std::string fault = fault_of(k, code); !fault.empty()) {
      fmt::print(stderr, "{}\n  {}\n", k.name(), fault);
      return 1;
    }
    const double seconds = plan_gemm(test::describe(p), b200()).predicted_seconds;
    const double tflops = 2e-12 * double(p.m) * double(p.n) * double(p.k) / seconds;
    fmt::print("| {} | {}x{}x{}{}{} | {} | {} | {} | {} | {} ({}) | {:.0f} | {:.0f} | {:+.0f}% |\n", shape.name,
               kernel::cluster_tile_rows(c), kernel::cluster_tile_columns(c), kernel::stage_elements(c),
               c.cluster == 2 ? ", pair" : "", c.swap_ab ? ", swapped" : "", c.stages, c.accumulators, code.registers,
               k.prepared.shared_bytes + code.shared, kernel::tensor_layout(c).columns, kernel::tensor_columns(c),
               tflops, shape.tflops, 100 * (tflops / shape.tflops - 1));
  }
  const plan::BlackwellPlan swept = plan::make_blackwell_plan(test::shape_of(published()[5].problem), b200());
  fmt::print(
      "\nOn 4096 x 4096 x 7168 the widest tile, whose one accumulator exposes the epilogue, is predicted to take "
      "{:.1f}% "
      "longer than the best with two; published are {:.1f}%.\n",
      100 * (cycles_of(swept, 1) / cycles_of(swept, 2) - 1), 100 * (3925.0 / 3647 - 1));
  return 0;
}

int run(const std::vector<std::string>& arguments) {
  size_t sample = 0;
  unsigned jobs = std::max(1u, std::thread::hardware_concurrency());
  std::string path;
  bool table = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool last = i + 1 == arguments.size();
    if (arguments[i] == "--table") {
      table = true;
    } else if (arguments[i] == "--sample" && !last) {
      sample = std::stoul(arguments[++i]);
    } else if (arguments[i] == "--jobs" && !last) {
      jobs = unsigned(std::stoul(arguments[++i]));
    } else if (arguments[i] == "--results" && !last) {
      path = arguments[++i];
    } else {
      fmt::print(stderr, "usage: assembly [--table | --sample N] [--jobs N] [--results FILE]\n");
      return 2;
    }
  }
  if (jit::Compiler::find() == nullptr) {
    fmt::print("skipped: there is no NVRTC to assemble with\n");
    return kSkipped;
  }
  Results results(path);
  return table ? print_table(results) : check(results, sample, jobs);
}

}  // namespace
}  // namespace moxie::assembly

int main(int count, char** arguments) {
  try {
    return moxie::assembly::run({arguments + 1, arguments + count});
  } catch (const std::exception& error) {
    fmt::print(stderr, "assembly: {}\n", error.what());
    return 2;
  }
}
