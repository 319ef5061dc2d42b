// What the library costs on the host: planning, the cache's key, and a kernel from NVRTC or from the cache.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>

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
