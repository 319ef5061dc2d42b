// What the library costs on the host: a call of gemm() behind a driver that does nothing, planning, the cache's key,
// and a kernel from NVRTC or from the cache.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>
#include <vector>

#include "jit/jit.h"
#include "moxie/gemm.h"
#include "src/ops/gemm.h"
#include "src/plan/plan.h"

namespace {

namespace fs = std::filesystem;

// GPT-OSS-20B's first product over 32 experts.
moxie::GemmProblem layer() {
  moxie::GemmProblem problem;
  problem.grouping = moxie::Grouping::Offsets;
  problem.groups = 32;
  problem.m = 16384;
  problem.n = 5760;
  problem.k = 2880;
  problem.bias = true;
  problem.activation = moxie::Activation::SwigluOai;
  return problem;
}

moxie::plan::DeviceFigures h200() { return {}; }

moxie::jit::Request request() {
  const moxie::GemmProblem problem = layer();
  const auto plan = moxie::plan::make_hopper_plan(moxie::ops::shape_of(problem), h200());
  return moxie::ops::kernel_request(plan.config, problem);
}

// Buffers that nobody reads: an address of its own for each.
void* buffer(uintptr_t i) { return reinterpret_cast<void*>(i << 32); }

struct Call {
  explicit Call(moxie::GemmProblem p, uintptr_t turn = 0) : problem(std::move(p)) {
    arguments.a = buffer(8 * turn + 1), arguments.b = buffer(8 * turn + 2), arguments.bias = buffer(8 * turn + 3);
    arguments.sizes = static_cast<const int32_t*>(buffer(8 * turn + 4));
    arguments.pre = buffer(8 * turn + 5), arguments.out = buffer(8 * turn + 6);
    arguments.workspace = buffer(8 * turn + 7);
    arguments.workspace_bytes = moxie::workspace_bytes(device(), problem);
  }
  static const moxie::Device& device() {
    static const moxie::Device idle = [] {
      setenv("MOXIE_SIM_LIBRARY", MOXIE_IDLE_DRIVER, 1);
      return moxie::Device::open(moxie::DeviceKind::Sim);
    }();
    return idle;
  }
  void launch() const { moxie::gemm(device(), problem, arguments); }

  moxie::GemmProblem problem;
  moxie::GemmArguments arguments;
};

moxie::GemmProblem few_rows() {
  moxie::GemmProblem problem = layer();
  problem.m = 4;
  problem.expected_rows = 1;
  problem.pre = moxie::DataType::Bf16;
  return problem;
}

// What a call costs besides the driver's own work.
void call(benchmark::State& state) {
  const Call one(layer());
  for (auto _ : state) one.launch();
}
BENCHMARK(call)->Unit(benchmark::kNanosecond)->ThreadRange(1, 2);

void call_few_rows(benchmark::State& state) {
  const Call one(few_rows());
  for (auto _ : state) one.launch();
}
BENCHMARK(call_few_rows)->Unit(benchmark::kNanosecond);

void call_of_layers(benchmark::State& state) {  // as many weights in turn as a model has, on the same activations
  std::vector<Call> calls;
  for (int64_t i = 0; i < state.range(0); ++i) {
    calls.emplace_back(layer());
    calls.back().arguments.b = buffer(uintptr_t(1000 + i));
  }
  size_t i = 0;
  for (auto _ : state) calls[i++ % calls.size()].launch();
}
BENCHMARK(call_of_layers)->Unit(benchmark::kNanosecond)->Arg(72)->Arg(1000);

void plan(benchmark::State& state) {
  const auto shape = moxie::ops::shape_of(layer());
  for (auto _ : state) benchmark::DoNotOptimize(moxie::plan::make_hopper_plan(shape, h200()));
}
BENCHMARK(plan)->Unit(benchmark::kMicrosecond);

void plan_again(benchmark::State& state) {  // what every later call of gemm() for the same problem pays
  const moxie::GemmProblem problem = layer();
  for (auto _ : state) benchmark::DoNotOptimize(moxie::ops::prepare_gemm(h200(), problem));
}
BENCHMARK(plan_again)->Unit(benchmark::kMicrosecond);

void cache_key(benchmark::State& state) {
  const auto wanted = request();
  for (auto _ : state) benchmark::DoNotOptimize(moxie::jit::cache_key(wanted, "13.0"));
}
BENCHMARK(cache_key)->Unit(benchmark::kMicrosecond);

void kernel_compiled(benchmark::State& state) {
  const auto wanted = request();
  for (auto _ : state) benchmark::DoNotOptimize(moxie::jit::Compiler::get().compile(wanted));
}
BENCHMARK(kernel_compiled)->Unit(benchmark::kMillisecond);

void kernel_from_cache(benchmark::State& state) {
  std::string folder = (fs::temp_directory_path() / "moxie-bench-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return state.SkipWithError("no temporary folder");
  setenv("MOXIE_CACHE_DIR", folder.c_str(), 1);
  const auto wanted = request();
  moxie::jit::obtain(wanted);
  for (auto _ : state) {
    if (!moxie::jit::obtain(wanted).from_cache) state.SkipWithError("the cache did not keep the kernel");
  }
  fs::remove_all(folder);
}
BENCHMARK(kernel_from_cache)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
