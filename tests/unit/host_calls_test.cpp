// SPDX-License-Identifier: Apache-2.0
// What a run asks of the driver: the first one tensor maps and the launch, the next one only the launch,
// and how it asks for that. What is said when the driver refuses.
#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "bench/timing/buffer.h"
#include "bench/timing/data.h"
#include "device_state.h"
#include "driver/functions.h"
#include "moxie/layer.h"
#include "moxie/moxie.h"
#include "ops/gemm.h"
#include "scratch.h"
#include "tests/support/product_spec.h"

namespace moxie::test {
namespace {

namespace fs = std::filesystem;

class HostCalls : public testing::Test {
 protected:
  HostCalls() {
    open();
    void* const handle = dlopen(library_.c_str(), RTLD_NOW | RTLD_LOCAL);
    count_ = reinterpret_cast<int (*)(const char*)>(dlsym(handle, "idle_driver_calls"));
    programmatic_ = reinterpret_cast<int (*)()>(dlsym(handle, "idle_driver_programmatic"));
    fail_ = reinterpret_cast<void (*)(const char*, int)>(dlsym(handle, "idle_driver_fail"));
    problem_.grouping = Grouping::Offsets;
    problem_.groups = 3, problem_.m = 70, problem_.n = 128, problem_.k = 64;
    problem_.bias = true;
    problem_.activation = Activation::SwigluOai;
    problem_.pre = DataType::F32, problem_.out = DataType::F32;
    arguments_.a = buffer(1), arguments_.b = buffer(2), arguments_.bias = buffer(3);
    arguments_.sizes = static_cast<const int32_t*>(buffer(4));
    arguments_.pre = buffer(5), arguments_.out = buffer(6), arguments_.workspace = buffer(7);
    arguments_.workspace_bytes = size_t{1} << 30;
  }
  // With the driver's own version, or the one given.
  void open(const std::optional<std::string>& version = {}) {
    const ScopedVariable library("MOXIE_SIM_LIBRARY", fs::absolute(library_).string());
    const ScopedVariable reported("MOXIE_IDLE_VERSION", version);
    device_.reset();  // an open device's driver is not asked again
    device_ = std::make_unique<Device>(Device::open(DeviceKind::Sim));
  }
  static void* buffer(uintptr_t i) { return reinterpret_cast<void*>(i << 32); }

  struct Counts {
    int maps, launches, loads, others;
    bool operator==(const Counts&) const = default;
  };
  // Of one call.
  Counts launch() {
    const GroupedGemm product(*device_, describe(problem_));
    const Counts before = counts();
    test::run(product, problem_, arguments_);
    const Counts after = counts();
    return {after.maps - before.maps, after.launches - before.launches, after.loads - before.loads,
            after.others - before.others};
  }
  Counts counts() const {
    int others = 0;
    for (const char* name : {"cuMemAlloc", "cuMemFree", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemsetD8Async",
                             "cuStreamSynchronize", "cuModuleGetFunction", "cuFuncSetAttribute", "cuCtxPushCurrent"}) {
      others += count_(name);
    }
    return {count_("cuTensorMapEncodeTiled"), count_("cuLaunchKernelEx"), count_("cuModuleLoadDataEx"), others};
  }

  bool launches_programmatically() {
    const int before = programmatic_();
    EXPECT_EQ(launch().launches, 1);
    return programmatic_() > before;
  }

  const fs::path library_ = fs::path(MOXIE_SIM_LIBRARY).parent_path() / "../../libmoxie_idle_driver.so";
  std::unique_ptr<Device> device_;
  int (*count_)(const char*) = nullptr;
  int (*programmatic_)() = nullptr;
  void (*fail_)(const char*, int) = nullptr;
  ProductSpec problem_;
  ProductTensors arguments_;
};

TEST_F(HostCalls, ASecondCallOnlyLaunches) {
  const Counts first = launch();
  EXPECT_GE(first.maps, 2);  // of a and b at least
  EXPECT_EQ(first.launches, 1);
  EXPECT_EQ(first.loads, 0);  // the kernel is loaded when the product is made
  const Counts second = launch();
  // The thread has no current context here: the launch makes it so.
  EXPECT_EQ(second, (Counts{0, 1, 0, 1}));
  const driver::Functions& call = device_->state().context().driver().call();
  CUcontext context = nullptr;
  ASSERT_EQ(call.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(call.cuCtxPushCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(launch(), (Counts{0, 1, 0, 0})) << "the context is current";
  ASSERT_EQ(call.cuCtxPopCurrent(&context), CUDA_SUCCESS);
}

// Neither gathered rows nor outputs that are stored directly. Other rows of A have two, one of parts of a tile.
TEST_F(HostCalls, OnlyWhatTheCopyEngineMovesHasAMap) {
  const int32_t* const rows = static_cast<const int32_t*>(buffer(8));
  for (const bool gather : {false, true}) {
    problem_.gather = gather;
    arguments_.gather = gather ? Gather{rows, 1, 50} : Gather{};
    for (const auto& [tile_m, outputs] : {std::pair{64, 0}, {128, 2}}) {
      problem_.tile_m = tile_m;
      open();  // with no map of earlier calls
      EXPECT_EQ(launch().maps, (gather ? 1 : 3) + outputs) << gather << " " << tile_m;
    }
  }
}

TEST_F(HostCalls, WhatWasLoadedIsUnloadedWithItsDevice) {
  const int loaded = counts().loads, unloaded = count_("cuModuleUnload");
  launch();
  ASSERT_EQ(counts().loads, loaded + 1);
  const int pushed = count_("cuCtxPushCurrent"), popped = count_("cuCtxPopCurrent");
  const int released = count_("cuDevicePrimaryCtxRelease");
  device_.reset();
  EXPECT_EQ(count_("cuModuleUnload"), unloaded + 1);
  EXPECT_EQ(count_("cuCtxPushCurrent"), pushed + 1);
  EXPECT_EQ(count_("cuCtxPopCurrent"), popped + 1);
  EXPECT_EQ(count_("cuDevicePrimaryCtxRelease"), released + 1);
}

// At the end of a process the driver may refuse already: what needs a context is left alone then.
TEST_F(HostCalls, WithoutAContextNothingIsUnloadedOrFreed) {
  launch();
  const auto undone = [&] { return count_("cuModuleUnload") + count_("cuMemFree") + count_("cuCtxPopCurrent"); };
  const int before = undone();
  fail_("cuCtxPushCurrent", CUDA_ERROR_DEINITIALIZED);
  device_->free(buffer(1));
  device_.reset();
  fail_("cuCtxPushCurrent", CUDA_SUCCESS);
  EXPECT_EQ(undone(), before);
}

TEST_F(HostCalls, AProductOfNothingLoadsNothing) {
  const int before = counts().loads;
  problem_.n = 0;
  const GroupedGemm nothing(*device_, describe(problem_));
  EXPECT_EQ(counts().loads, before);
  problem_.n = 128;
  const GroupedGemm something(*device_, describe(problem_));
  EXPECT_EQ(counts().loads, before + 1);
}

// No rank may wait for another one that compiles: all that a call may launch is there before.
TEST_F(HostCalls, ALayerOverRanksLoadsNothingInACall) {
  ExpertLayerDescription d;
  d.experts = 4, d.top_k = 2, d.hidden = 64, d.width = 64;
  d.activation = Activation::Relu;
  d.max_tokens = 4096, d.expected_tokens = 16;
  void* const windows[] = {buffer(10), buffer(11)};
  for (const bool router : {false, true}) {
    for (const ResultFormat results : {ResultFormat::Rows, ResultFormat::Sums}) {
      SCOPED_TRACE(fmt::format("{} {}", router, to_string(results)));
      d.router.reset();
      if (router) d.router.emplace();
      d.id_type = router ? IdType::Int32 : IdType::Int64;
      d.ranks = RankDescription{.ranks = 2, .results = results};
      open();  // kernels that a device has are not loaded again
      const ExpertLayer layer(*device_, d);
      ExpertLayerTensors t;
      t.x.data = buffer(1), t.up.data = buffer(2), t.down.data = buffer(3), t.out.data = buffer(4);
      (router ? t.logits : t.topk_ids) = buffer(5);
      t.windows = windows;
      std::vector<int> launches;
      for (const int64_t tokens : {0, 1, 4096}) {  // whose rows are sent in one launch, and in several
        t.tokens = tokens;
        const Counts before = counts();
        layer.run(t, {buffer(6), layer.workspace_bytes()});
        EXPECT_EQ(counts().loads, before.loads) << tokens;
        launches.push_back(counts().launches - before.launches);
        EXPECT_GT(launches.back(), 3) << tokens;
      }
      // send_few(), both products and what sums.
      EXPECT_EQ(launches[1], 4 + router);
      // Two launches to sort, exchange, dispatch, a meeting; and where rows travel one in front of what sums them.
      EXPECT_EQ(launches[2], launches[1] + (results == ResultFormat::Rows ? 5 : 4));
    }
  }
}

// Where nobody says how many rows there will be, a product has a kernel for each range of them.
TEST_F(HostCalls, AProductLoadsTheKernelsOfAllItsTotals) {
  GemmDescription d{.n = 5760, .k = 2880};
  d.groups = Offsets{32};
  std::vector<std::string> keys;
  for (const int64_t total : ops::planned_totals(d))
    keys.push_back(ops::request_key(ops::kernel_request(ops::plan_kernel(figures_of(device_->info()), d, total), d)));
  EXPECT_EQ(std::count(keys.begin(), keys.end(), keys[1]), 1) << "a kernel that no other range has";
  const int before = counts().loads;
  const GroupedGemm product(*device_, d);
  EXPECT_EQ(counts().loads - before, int(std::set<std::string>(keys.begin(), keys.end()).size()));
  EXPECT_EQ(product.plan().mean_rows, 1024);  // of 512: the power of four that is nearest, upwards
}

TEST_F(HostCalls, AProductIsNotMadeWhereAnyOfItsKernelsFails) {
  GemmDescription d{.n = 5760, .k = 2880};
  d.groups = Offsets{32};
  const int64_t least = ops::planned_totals(d).front();
  d.groups = Offsets{32, least};
  const GroupedGemm first(*device_, d);  // the kernel of the lowest range is there
  d.groups = Offsets{32};
  fail_("cuModuleLoadDataEx", CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(GroupedGemm(*device_, d), Error);
  fail_("cuModuleLoadDataEx", CUDA_SUCCESS);
  EXPECT_NO_THROW(GroupedGemm(*device_, d));
}

TEST_F(HostCalls, AWorkspaceIgnoresATotalThatItsGroupingDoesNotTake) {
  problem_.grouping = Grouping::Masked, problem_.n = 0;
  const GroupedGemm product(*device_, describe(problem_));
  EXPECT_GT(product.workspace_bytes(), 0u);
  EXPECT_EQ(product.workspace_bytes(5), product.workspace_bytes());
}

TEST_F(HostCalls, APlanIsOfATotalThatACallMayBring) {
  const auto refusal = [&](int64_t total) -> std::string {
    try {
      GroupedGemm(*device_, describe(problem_)).plan(total);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(refusal(-7), "rows.total is -7, but cannot be negative");
  EXPECT_EQ(refusal(int64_t{1} << 31), "rows.total is 2147483648, but at most 2147482624 is possible");
  EXPECT_EQ(refusal(0), "nothing");
  problem_.grouping = Grouping::Dense;
  problem_.groups = 1;
  EXPECT_EQ(refusal(-7), "nothing");
}

// Without a row or a column nothing need be given, and whatever else is possible may be said.
TEST_F(HostCalls, ConversionsOfNothingLaunchNothing) {
  const Counts before = counts();
  const auto* const ends = static_cast<const int32_t*>(buffer(1));
  for (const int32_t* const offsets : {static_cast<const int32_t*>(nullptr), ends}) {
    for (const auto& [rows, k] : {std::pair<int64_t, int64_t>{0, 64}, {70, 0}}) {
      Quantization quantization;
      Dequantization dequantization;
      ScaleBlocking blocking;
      quantization.groups = dequantization.groups = blocking.groups = 3;
      quantization.rows = dequantization.rows = blocking.rows = rows;
      quantization.k = dequantization.k = blocking.k = k;
      quantization.offsets = dequantization.offsets = blocking.offsets = offsets;
      quantize(*device_, quantization);
      dequantize(*device_, dequantization);
      block_scales(*device_, blocking);
      unblock_scales(*device_, blocking);
      if (!offsets) continue;
      blocking.along_k = true;
      for (const int64_t groups : {1, 65535}) {
        blocking.groups = groups;
        block_scales(*device_, blocking);
        unblock_scales(*device_, blocking);
      }
    }
  }
  for (const WeightShape& shape : {WeightShape{1, 0, 32}, WeightShape{1, 8, 0}}) {
    pack_weights(*device_, {shape});
    unpack_weights(*device_, {shape});
  }
  EXPECT_EQ(counts(), before);
}

TEST_F(HostCalls, ConversionsTakeTwoToTheFortiethElements) {
  Quantization x;
  x.rows = 64, x.k = 64, x.ld_values = int64_t{1} << 34;
  x.values = buffer(1), x.elements = buffer(1 << 20), x.scales = buffer(1 << 21);
  EXPECT_NO_THROW(quantize(*device_, x));
}

TEST_F(HostCalls, AMapIsMadeAnewForWhateverDiffers) {
  launch();
  arguments_.b = buffer(20);
  EXPECT_EQ(launch().maps, 1);
  arguments_.ldb = problem_.k + 8;
  EXPECT_EQ(launch().maps, 1);
  arguments_.ldb = 0, arguments_.b = buffer(2);
  EXPECT_EQ(launch().maps, 0) << "both are known";
  problem_.k += 64;
  EXPECT_GE(launch().maps, 2);
}

TEST_F(HostCalls, MapsThatGaveWayAreMadeAgain) {
  launch();
  for (uintptr_t i = 0; i < 5000; ++i) {
    arguments_.b = buffer(1000 + i);
    ASSERT_LE(launch().maps, 4);
  }
  arguments_.b = buffer(1000);
  EXPECT_GE(launch().maps, 1);
  EXPECT_EQ(launch().maps, 0);
}

TEST_F(HostCalls, LaunchesAreProgrammaticUnlessSwitchedOff) {
  EXPECT_TRUE(launches_programmatically());
  arguments_.programmatic_launch = false;
  EXPECT_FALSE(launches_programmatically());
  arguments_.programmatic_launch = true;
  EXPECT_TRUE(launches_programmatically());
}

// The first launch of what waits for other ranks is a plain one in a call in parts, since the stream may have been told
// to wait for an event before it.
TEST_F(HostCalls, PartsOfALayerBeginWithAPlainLaunch) {
  for (const ResultFormat results : {ResultFormat::Rows, ResultFormat::Sums}) {
    SCOPED_TRACE(to_string(results));
    ExpertLayerDescription d;
    d.experts = 2, d.top_k = 1, d.hidden = 64, d.width = 64, d.max_tokens = 4, d.expected_tokens = 4;
    d.ranks = RankDescription{.ranks = 2, .results = results};
    const ExpertLayer layer(*device_, d);
    void* const windows[] = {buffer(1), buffer(2)};
    ExpertLayerTensors t;
    t.tokens = 4, t.windows = windows;
    t.x.data = buffer(3), t.topk_ids = buffer(4), t.out.data = buffer(5);
    t.up.data = buffer(6), t.down.data = buffer(7);
    for (const LayerPart part : {LayerPart::All, LayerPart::Send, LayerPart::Multiply, LayerPart::Sum}) {
      const int launches = counts().launches, plain = launches - programmatic_();
      layer.run(t, {buffer(8), layer.workspace_bytes()}, {}, part);
      EXPECT_EQ(counts().launches - programmatic_() - plain, part == LayerPart::Multiply || part == LayerPart::Sum)
          << to_string(part);
      // What adds few rows, or sums, waits for them.
      if (part == LayerPart::Sum) {
        EXPECT_EQ(counts().launches - launches, 1);
      }
    }
  }
}

// Graphs of older drivers have no programmatic edges: a captured launch would fail.
TEST_F(HostCalls, LaunchesAreProgrammaticFromCuda123On) {
  for (const auto& [version, programmatic] : {std::pair{"12020", false}, {"12030", true}}) {
    open(version);
    EXPECT_EQ(device_->info().driver_version, std::stoi(version));
    EXPECT_EQ(launches_programmatically(), programmatic) << version;
  }
}

TEST_F(HostCalls, WhatTheDriverRefusesIsNamed) {
  struct Case {
    const char* function;
    std::function<void()> work;
    std::string said;  // how the sentence begins; empty: with the function's name
  };
  uint32_t word = 0;
  const auto opening = [&] { open(); };
  const auto running = [&] { launch(); };
  const std::vector<Case> cases = {
      {"cuInit", opening, "the CUDA driver " + fs::absolute(library_).string() + " does not start: cuInit: "},
      {"cuDriverGetVersion", opening, {}},
      {"cuDeviceGetCount", opening, {}},
      {"cuDeviceGet", opening, {}},
      {"cuDeviceGetName", opening, {}},
      {"cuDeviceGetAttribute", opening, {}},
      {"cuDeviceTotalMem", opening, {}},
      {"cuDevicePrimaryCtxRetain", opening, {}},
      {"cuModuleLoadDataEx", running, "cuModuleLoadDataEx (moxie_kernel): CUDA error "},
      {"cuModuleGetFunction", running, "cuModuleGetFunction (moxie_kernel): "},
      {"cuFuncSetAttribute", running, "cuFuncSetAttribute (moxie_kernel, "},
      {"cuLaunchKernelEx", running, {}},
      {"cuMemAlloc", [&] { device_->free(device_->allocate(4096)); }, "cuMemAlloc of 4096 bytes: "},
      {"cuMemcpyHtoDAsync", [&] { device_->upload(buffer(1), &word, 4); }, {}},
      {"cuMemcpyDtoHAsync", [&] { device_->download(&word, buffer(1), 4); }, {}},
      {"cuMemsetD8Async", [&] { device_->fill(buffer(1), 0, 4); }, {}},
      {"cuStreamSynchronize", [&] { device_->upload(buffer(1), &word, 4); }, {}},
      {"cuStreamSynchronize", [&] { device_->download(&word, buffer(1), 4); }, {}},
      {"cuStreamSynchronize", [&] { device_->fill(buffer(1), 0, 4); }, {}},
      {"cuStreamSynchronize", [&] { device_->synchronize(); }, {}},
      {"cuCtxPushCurrent", [&] { device_->synchronize(); }, {}},
  };
  for (const Case& c : cases) {
    for (const auto& [result, code] :
         {std::pair{CUDA_ERROR_UNKNOWN, ErrorCode::Driver}, {CUDA_ERROR_OUT_OF_MEMORY, ErrorCode::OutOfMemory}}) {
      open();  // with nothing loaded
      fail_(c.function, result);
      std::optional<ErrorCode> got;
      std::string said;
      try {
        c.work();
      } catch (const Error& error) {
        got = error.code(), said = error.what();
      }
      fail_(c.function, CUDA_SUCCESS);
      const bool starts = std::string(c.function) == "cuInit";  // a driver that does not start is no lack of memory
      EXPECT_EQ(got, starts ? ErrorCode::Driver : code) << c.function;
      EXPECT_THAT(said, testing::StartsWith(c.said.empty() ? std::string(c.function) + ": " : c.said));
    }
  }
  open();
  EXPECT_EQ(launch().launches, 1) << "all is well again";
}

TEST_F(HostCalls, AFunctionThatTheDriverLacksIsNamed) {
  const ScopedVariable missing("MOXIE_IDLE_MISSING", "cuLaunchKernelEx");
  try {
    open();
    FAIL() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Driver);
    EXPECT_EQ(error.what(), "the CUDA driver " + fs::absolute(library_).string() +
                                " has no cuLaunchKernelEx (CUDA 12.0 or newer is needed)");
  }
}

// Two drivers encode in ways of their own: maps of one must not reach the other.
TEST_F(HostCalls, ADevicesMapsAreItsOwn) {
  const Device device = Device::open(DeviceKind::Sim);
  ProductSpec p;
  p.m = 64, p.n = 64, p.k = 64;
  const std::vector<uint16_t> a = timing::random_bf16(1, p.m * p.k, 1), b = timing::random_bf16(2, p.n * p.k, 1);
  const timing::Buffer first[] = {{device, a}, {device, b}, {device, size_t(p.m * p.n * 2)}};
  const timing::Buffer second[] = {{device, a}, {device, b}, {device, size_t(p.m * p.n * 2)}};
  const auto run = [&](const Device& on, const timing::Buffer(&buffers)[3]) {
    ProductTensors arguments;
    arguments.a = buffers[0].as(), arguments.b = buffers[1].as(), arguments.out = buffers[2].as();
    ASSERT_EQ(workspace_bytes(on, p), 0u);
    gemm(on, p, arguments);
  };
  run(*device_, first);  // where every map is made of zeros
  run(device, first);
  run(device, second);
  device.synchronize();
  std::vector<uint16_t> values[2];
  for (int i = 0; i < 2; ++i) {
    values[i].resize(size_t(p.m * p.n));
    device.download(values[i].data(), (i == 0 ? first : second)[2].as(), first[2].bytes());
  }
  EXPECT_EQ(values[0], values[1]);
}

}  // namespace
}  // namespace moxie::test
