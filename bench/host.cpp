// SPDX-License-Identifier: Apache-2.0
// What the library costs on the host: a call behind a driver that does nothing, planning, the cache's key, and a kernel
// from NVRTC or from the cache. The steps before a call are measured one by one, and for that this program links the
// library's internals, as tests do. The call itself goes through the public interface.
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <filesystem>
#include <vector>

#include "jit/jit.h"
#include "moxie/gemm.h"
#include "ops/gemm.h"
#include "plan/plan.h"

namespace {

namespace fs = std::filesystem;

constexpr int64_t kExperts = 32, kRows = 16384;

// GPT-OSS-20B's first product over 32 experts.
moxie::GemmDescription layer() {
  moxie::GemmDescription description;
  description.groups = moxie::Offsets{kExperts, kRows};
  description.n = 5760;
  description.k = 2880;
  description.bias = true;
  description.activation = moxie::swiglu_oai();
  return description;
}

moxie::GemmDescription few_rows() {
  moxie::GemmDescription description = layer();
  description.groups = moxie::Offsets{kExperts, 4};
  description.expected_rows = 1;
  description.pre = moxie::DataType::Bf16;
  return description;
}

moxie::DeviceFigures h200() { return {}; }

moxie::jit::Request request() {
  return moxie::ops::kernel_request(moxie::ops::plan_kernel(h200(), layer(), kRows), layer());
}

const moxie::Device& idle_device() {
  static const moxie::Device idle = [] {
    setenv("MOXIE_SIM_LIBRARY", MOXIE_IDLE_DRIVER, 1);
    return moxie::Device::open(moxie::DeviceKind::Sim);
  }();
  return idle;
}

// Nobody reads these buffers, but each needs an address of its own.
void* buffer(uintptr_t i) { return reinterpret_cast<void*>(i << 32); }

struct Call {
  explicit Call(const moxie::GroupedGemm& product) : gemm(product) {
    tensors.a.data = buffer(1), tensors.b.data = buffer(2), tensors.bias = buffer(3);
    tensors.rows.ends = static_cast<const int32_t*>(buffer(4));
    if (gemm.description().pre) tensors.pre.data = buffer(5);
    tensors.out.data = buffer(6);
    workspace = {buffer(7), gemm.workspace_bytes()};
  }
  void launch() const { gemm.run(tensors, workspace); }

  moxie::GroupedGemm gemm;
  moxie::GemmTensors tensors;
  moxie::WorkspaceView workspace;
};

// A call without the driver's own work.
void call(benchmark::State& state) {
  const Call one(moxie::GroupedGemm(idle_device(), layer()));
  for (auto _ : state) one.launch();
}
BENCHMARK(call)->Unit(benchmark::kNanosecond)->ThreadRange(1, 2);

void call_few_rows(benchmark::State& state) {
  const Call one(moxie::GroupedGemm(idle_device(), few_rows()));
  for (auto _ : state) one.launch();
}
BENCHMARK(call_few_rows)->Unit(benchmark::kNanosecond);

// Calls with as many weights in turn as a model has, on the same activations.
void call_of_layers(benchmark::State& state) {
  const moxie::GroupedGemm gemm(idle_device(), layer());
  std::vector<Call> calls;
  for (int64_t i = 0; i < state.range(0); ++i) {
    calls.emplace_back(gemm);
    calls.back().tensors.b.data = buffer(uintptr_t(1000 + i));
  }
  size_t i = 0;
  for (auto _ : state) calls[i++ % calls.size()].launch();
}
BENCHMARK(call_of_layers)->Unit(benchmark::kNanosecond)->Arg(72)->Arg(1000);

void plan(benchmark::State& state) {
  const auto shape = moxie::ops::plan_shape(layer(), kRows);
  for (auto _ : state) benchmark::DoNotOptimize(moxie::plan::make_hopper_plan(shape, h200()));
}
BENCHMARK(plan)->Unit(benchmark::kMicrosecond);

// The construction of a second object for a product whose kernel is loaded already.
void construct_again(benchmark::State& state) {
  const moxie::GroupedGemm first(idle_device(), layer());
  for (auto _ : state) benchmark::DoNotOptimize(moxie::GroupedGemm(idle_device(), layer()));
}
BENCHMARK(construct_again)->Unit(benchmark::kMicrosecond);

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
