// SPDX-License-Identifier: Apache-2.0
// The machine code of the kernels, without running it: nothing stands in it for what a problem does not ask for, a
// further sink leaves the main loop and the scheduler as they are, and nothing spills.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>

#include "jit/jit.h"
#include "jit/source.h"
#include "ops/ranks.h"
#include "tests/support/custom_sinks.h"
#include "tests/support/planned.h"

namespace moxie {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using test::row_max_sink;

ProductSpec problem_of(Grouping grouping, std::optional<DataType> pre, std::optional<DataType> out) {
  ProductSpec p;
  p.grouping = grouping;
  p.groups = grouping == Grouping::Dense ? 1 : 8;
  p.m = 1024, p.n = 1024, p.k = 1024;
  p.activation = Activation::Swiglu;
  p.bias = true;
  p.pre = pre, p.out = out;
  p.schedule = WarpSchedule::Cooperative, p.tile_m = 128, p.tile_n = 128, p.cluster = 1;
  return p;
}

std::string ptx_of(const ProductSpec& p, std::optional<int> stages = {}) {
  kernel::HopperConfig config = test::plan_of({}, p).hopper().config;
  if (stages) config.stages = *stages, config.store_buffers = 1;
  jit::Request request = ops::kernel_request(config, test::describe(p));
  request.kind = jit::ImageKind::Ptx;
  return jit::obtain(request).bytes;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

struct MapWork {
  int replaced, published, acquired;
  bool operator==(const MapWork&) const = default;
};
MapWork map_work(const std::string& ptx) {
  return {count(ptx, "tensormap.replace"), count(ptx, "tensormap.cp_fenceproxy"), count(ptx, "fence.proxy.tensormap")};
}
void PrintTo(const MapWork& work, std::ostream* stream) {
  *stream << work.replaced << " replaced, " << work.published << " published, " << work.acquired << " acquired";
}

constexpr auto kBf16 = DataType::Bf16;

int shared_bytes(const ProductSpec& p) {
  const auto prepared = test::plan_of({}, p);
  kernel::HopperConfig config = prepared.hopper().config;
  config.stages = 2, config.store_buffers = 1;
  return kernel::shared_bytes(config, prepared.needs.data(), int(prepared.needs.size()));
}

TEST(Code, WithoutGroupMapsThereIsNothingForThem) {
  for (Grouping grouping : {Grouping::Dense, Grouping::Batched, Grouping::RowGroups}) {
    const ProductSpec p = problem_of(grouping, kBf16, kBf16);
    EXPECT_EQ(map_work(ptx_of(p)), (MapWork{0, 0, 0})) << int(grouping);
    EXPECT_EQ(test::plan_of({}, p).workspace_bytes, 0u);
  }
  // Ragged groups, but no sink that stores through a map: nothing either.
  for (Grouping grouping : {Grouping::Offsets, Grouping::Masked}) {
    ProductSpec p = problem_of(grouping, {}, {});
    p.sinks = {row_max_sink()};
    EXPECT_EQ(map_work(ptx_of(p)), (MapWork{0, 0, 0})) << int(grouping);
    EXPECT_EQ(test::plan_of({}, p).workspace_bytes, 0u);
    ProductSpec dense = problem_of(Grouping::Dense, {}, {});
    dense.sinks = p.sinks;
    EXPECT_EQ(shared_bytes(p), shared_bytes(dense));
  }
}

TEST(Code, EachMapIsThereOnce) {
  // A sink of ragged groups: address and rows. Its shared memory: one map for each consumer warp group.
  const MapWork one{2, 1, 1};
  const ProductSpec dense = problem_of(Grouping::Dense, {}, kBf16);
  for (Grouping grouping : {Grouping::Offsets, Grouping::Masked}) {
    const ProductSpec out = problem_of(grouping, {}, kBf16), pre = problem_of(grouping, kBf16, {}),
                      both = problem_of(grouping, kBf16, kBf16);
    EXPECT_EQ(map_work(ptx_of(out)), one);
    EXPECT_EQ(map_work(ptx_of(pre)), one);
    EXPECT_EQ(map_work(ptx_of(both)), (MapWork{4, 2, 2}));
    EXPECT_EQ(shared_bytes(out), shared_bytes(dense) + 2 * 128);
    EXPECT_EQ(test::plan_of({}, both).workspace_bytes, 2 * test::plan_of({}, out).workspace_bytes);
    ProductSpec custom = out;  // a sink without a map adds nothing
    custom.sinks = {row_max_sink()};
    EXPECT_EQ(map_work(ptx_of(custom)), one);
    EXPECT_EQ(test::plan_of({}, custom).workspace_bytes, test::plan_of({}, out).workspace_bytes);
  }
  // Pointers: A and B as well.
  const MapWork own = map_work(ptx_of(problem_of(Grouping::Pointers, {}, kBf16)));
  EXPECT_EQ(own.published, 3);
  EXPECT_EQ(own.acquired, 3);
  EXPECT_GT(own.replaced, 8);
}

// Operations of the main loop in the order of the text: products, loads, barriers of the ring, register hand-over.
std::string loop_operations(const std::string& ptx) {
  std::istringstream words(ptx);
  std::string word, operations;
  while (words >> word) {
    const bool load =
        word.starts_with("cp.async.bulk.tensor.") && word.find("mbarrier::complete_tx") != std::string::npos;
    if (load || word.starts_with("wgmma.") || word.starts_with("mbarrier.") || word.starts_with("setmaxnreg."))
      operations += word + "\n";
  }
  return operations;
}

TEST(Code, AFurtherSinkLeavesMainLoopAndScheduler) {
  for (Grouping grouping : {Grouping::Dense, Grouping::Offsets}) {
    const auto p = [&](bool pre, bool custom) {
      ProductSpec problem = problem_of(grouping, {}, kBf16);
      if (pre) problem.pre = kBf16;
      if (custom) problem.sinks = {row_max_sink()};
      return problem;
    };
    const std::string one = loop_operations(ptx_of(p(false, false), 3));
    EXPECT_GE(count(one, "wgmma.mma_async"), 4) << one;
    EXPECT_GE(count(one, "cp.async.bulk.tensor"), 2) << one;
    EXPECT_EQ(one, loop_operations(ptx_of(p(true, false), 3)));
    EXPECT_EQ(one, loop_operations(ptx_of(p(false, true), 3)));
    EXPECT_EQ(one, loop_operations(ptx_of(p(true, true), 3)));
  }
  for (const char* file :
       {"moxie/hopper/loader.cuh", "moxie/hopper/mainloop.cuh", "moxie/scheduler.cuh", "moxie/group_walk.cuh"}) {
    const std::string& text = jit::kernel_headers().at(file);
    for (const char* word : {"sink", "Sink", "Store", "epilogue/", "pre;", "RowMax"})
      EXPECT_THAT(text, Not(HasSubstr(word))) << file;
  }
}

TEST(Code, TheThirdSinkIsKnownToNoFileOfTheKernel) {
  for (const auto& [name, text] : jit::kernel_headers()) {
    EXPECT_THAT(text, Not(HasSubstr("row_max"))) << name;
    EXPECT_THAT(text, Not(HasSubstr("RowMax"))) << name;
  }
}

// A grid that never says so keeps the launch behind it from beginning early.
TEST(Code, KernelsOfALayerLetTheNextBegin) {
  std::vector<std::string> sources = {
      jit::permute_source(),
      jit::combine_source(kBf16, kBf16),
      jit::route_source(kBf16, RouterScore::Softmax, 0),
      jit::exchange_source(),
      jit::meet_source(),
      jit::dispatch_source(IdType::Int32, RowFormat::Fp8),
      jit::send_few_source(IdType::Int32, RowFormat::Fp8),
      jit::gather_rows_source(RowFormat::Fp8),
      jit::combine_ranks_source(kBf16, false),
      jit::combine_ranks_source(kBf16, true),
      jit::combine_sums_source(kBf16, ResultFormat::Sums),
      jit::quantize_source(jit::QuantizeKernel::GatherAndQuantize, DataType::Mxfp4, kBf16),
  };
  for (int kernel = 0; kernel < jit::kSortKernels; ++kernel)
    sources.push_back(jit::sort_source(jit::SortKernel(kernel), IdType::Int32, false));
  const char* const lets_begin = "griddepcontrol.launch_dependents;";
  for (const std::string& source : sources) {
    jit::Request request;
    request.source = source, request.arch = 90, request.kind = jit::ImageKind::Ptx;
    EXPECT_THAT(jit::obtain(request).bytes, HasSubstr(lets_begin)) << source;
  }
  EXPECT_THAT(ptx_of(problem_of(Grouping::Dense, {}, kBf16)), HasSubstr(lets_begin));
}

// ---- Spills --------------------------------------------------------------------------------------------------------

struct Kernel {
  std::string name;
  jit::Request request;
};

// The kernels that the plan returns over a grid of layers, the distinct ones, and first the ones that need most
// registers.
std::vector<Kernel> shipped() {
  std::vector<Kernel> kernels;
  std::map<std::string, bool> seen;
  const auto add = [&](const ProductSpec& p) {
    const auto prepared = test::plan_of({}, p);
    if (!seen.emplace(prepared.key, true).second) return;
    kernels.push_back({fmt::format("{}, grouping {}, activation {}, gate {}, bias {}, pre {}, out {}",
                                   plan::describe(prepared.hopper().config), int(p.grouping), int(p.activation),
                                   int(p.gate), p.bias, p.pre ? int(*p.pre) : -1, p.out ? int(*p.out) : -1),
                       ops::kernel_request(prepared, test::describe(p))});
  };
  const int widest[][3] = {{1, 128, 160}, {0, 128, 256}, {0, 256, 128}, {1, 64, 256}, {1, 128, 128}};
  int turn = 0;
  for (const auto& [schedule, m, n] : widest) {
    for (Grouping grouping : {Grouping::Offsets, Grouping::Pointers}) {
      ProductSpec p = problem_of(grouping, DataType::F32, DataType::F32);
      p.schedule = WarpSchedule(schedule), p.tile_m = m, p.tile_n = n, p.cluster.reset();
      const auto plain = schedule == 1 && m == 128 && n == 160 ? Activation::GeluTanh : Activation::GeluErf;
      p.activation = turn % 2 ? plain : Activation::SwigluOai;
      p.gate = GateLayout(turn++ % 3);
      add(p);
      p.activation = Activation::Situ;
      add(p);
    }
  }
  // Rows that leave for other ranks.
  const struct {
    bool packed, staged;
    int schedule, m, n;
  } leaving[] = {{false, true, 0, 128, 256}, {false, true, 1, 128, 160}, {false, true, 0, 256, 128},
                 {false, false, 1, 64, 256}, {true, true, 0, 256, 128},  {true, false, 0, 32, 256}};
  for (const auto& [has_packed, staged, schedule, m, n] : leaving) {
    ProductSpec p = problem_of(Grouping::Offsets, {}, {});
    if (has_packed) p.b_format = OperandFormat::Mxfp4;
    p.activation = Activation::None;
    p.schedule = WarpSchedule(schedule), p.tile_m = m, p.tile_n = n, p.cluster.reset();
    p.expected_rows = staged ? 1000 : 8;
    const CustomSink sink = ops::row_sink(staged);
    p.sinks = {{sink.type, sink.source, std::vector<uint8_t>(sink.param_bytes), sink.needs}};
    add(p);
  }
  // Packed weights: every tile with accumulators of 128 registers, and the epilogues that need most. For few rows, the
  // tiles whose loader needs most.
  const struct {
    int m, n, rows;
    Activation activation;
  } packed[] = {{256, 128, 1000, Activation::SwigluOai}, {256, 128, 1000, Activation::GeluErf},
                {128, 256, 1000, Activation::SwigluOai}, {128, 128, 1000, Activation::GeluErf},
                {64, 256, 8, Activation::SwigluOai},     {128, 256, 8, Activation::SwigluOai},
                {32, 256, 8, Activation::GeluErf},       {32, 128, 8, Activation::SwigluOai},
                {256, 128, 1000, Activation::Situ},      {256, 128, 1000, Activation::Situ},
                {128, 256, 1000, Activation::Situ},      {64, 256, 8, Activation::Situ},
                {32, 256, 8, Activation::Situ}};
  for (const auto& [m, n, rows, activation] : packed) {
    // Groups by pointers have no kernel with packed weights of 128 x 256, and none of fewer than 64 rows.
    const bool pointers = turn++ % 2 == 0 && rows > 8 && n != 256;
    ProductSpec p = problem_of(pointers ? Grouping::Pointers : Grouping::Offsets, DataType::F32, DataType::F32);
    p.b_format = OperandFormat::Mxfp4;
    p.schedule.reset(), p.tile_m = m, p.tile_n = n, p.cluster.reset();
    p.expected_rows = rows;
    p.activation = activation;
    add(p);
  }
  // Gathered rows, whose producers need registers of the consumers.
  const struct {
    bool packed;
    int schedule, m, n;
    Activation activation;
  } gathered[] = {{false, 1, 128, 160, Activation::GeluTanh},  {false, 0, 128, 256, Activation::SwigluOai},
                  {false, 0, 256, 96, Activation::GeluErf},    {false, 1, 64, 256, Activation::SwigluOai},
                  {false, 0, 256, 128, Activation::SwigluOai}, {true, 0, 256, 128, Activation::SwigluOai},
                  {true, 0, 128, 256, Activation::SwigluOai},  {true, 0, 64, 256, Activation::SwigluOai},
                  {true, 0, 32, 256, Activation::SwigluOai}};
  for (const auto& [has_packed, schedule, m, n, activation] : gathered) {
    ProductSpec p = problem_of(Grouping::Offsets, DataType::F32, DataType::F32);
    if (has_packed) p.b_format = OperandFormat::Mxfp4;
    p.gather = true;
    p.schedule = WarpSchedule(schedule), p.tile_m = m, p.tile_n = n, p.cluster.reset();
    p.expected_rows = m < 64 ? 8 : 1000;
    p.activation = activation;
    add(p);
    p.activation = Activation::Situ;
    add(p);
  }
  std::mt19937 random(5);
  const auto pick = [&](auto... values) {
    const int64_t all[] = {values...};
    return all[random() % sizeof...(values)];
  };
  for (int i = 0; i < 300; ++i) {
    ProductSpec p;
    p.grouping = Grouping(i % 6);
    p.groups = p.grouping == Grouping::Dense ? 1 : pick(1, 8, 32, 128);
    p.m = pick(1, 64, 300, 4096), p.n = pick(64, 320, 2880, 5760), p.k = pick(72, 2048, 2880);
    p.activation = Activation(i / 6 % 12);
    p.gate = GateLayout(pick(0, 1, 2));
    p.bias = random() % 2;
    if (random() % 2) p.pre = DataType(random() % 2);
    if (random() % 4 == 0) p.out = DataType::F32;
    if (random() % 2) p.expected_rows = pick(1, 32, 100, 4000);
    add(p);
    p.b_format = OperandFormat::Mxfp4;
    p.k = pick(96, 2048, 2880);
    add(p);
  }
  return kernels;
}

// Those of the operations around the products.
void add_routing(std::vector<Kernel>& kernels, const std::vector<int>& architectures) {
  const auto add = [&](const std::string& source) {
    for (const int arch : architectures) {
      jit::Request request;
      request.source = source, request.arch = arch;
      kernels.push_back({source, request});
    }
  };
  for (int kernel = 0; kernel < jit::kSortKernels; ++kernel) {
    for (const IdType type : {IdType::Int32, IdType::Int64}) {
      for (const bool table : {false, true}) add(jit::sort_source(jit::SortKernel(kernel), type, table));
    }
  }
  add(jit::permute_source());
  for (const DataType type : {kBf16, DataType::F32}) {
    for (const DataType out : {kBf16, DataType::F32}) add(jit::combine_source(type, out));
    for (const RouterScore score : {RouterScore::Softmax, RouterScore::Sigmoid})
      add(jit::route_source(type, score, jit::kRouteSizes - 1));  // the most registers
  }
  add(jit::exchange_source()), add(jit::meet_source());
  for (const RowFormat format : {RowFormat::Fp8, RowFormat::Mxfp8}) {
    add(jit::dispatch_source(IdType::Int64, format)), add(jit::send_few_source(IdType::Int64, format));
    add(jit::gather_rows_source(format));
  }
  for (const DataType out : {kBf16, DataType::F32}) {
    for (const bool meets : {false, true}) add(jit::combine_ranks_source(out, meets));
    for (const ResultFormat results : {ResultFormat::Sums, ResultFormat::Bf16Sums})
      add(jit::combine_sums_source(out, results));
  }
}

// What ptxas reports of the kernel. It says the same of the same text: the report is kept beside compiled kernels.
std::string assembly_report(const jit::Request& request) {
  const jit::Cache cache(jit::Cache::default_folder());
  const std::string key = jit::cache_key(request, jit::Compiler::get().version()) + ".log";
  if (auto kept = cache.load(key)) return *kept;
  std::string log;
  jit::Compiler::get().compile(request, &log);
  cache.store(key, log);
  return log;
}

// All of them take minutes: MOXIE_TEST_ALL=1 (nightly). Otherwise every third of the products' widest kernels, and
// every second of the others for this architecture.
TEST(Code, NothingSpills) {
  std::vector<Kernel> kernels = shipped();
  ASSERT_GT(kernels.size(), 100u);
  if (std::getenv("MOXIE_TEST_ALL")) {
    add_routing(kernels, {90, 100});
  } else {
    constexpr size_t kWidest = 51, kEach = 3;
    for (size_t i = 0; i * kEach < kWidest; ++i) kernels[i] = kernels[i * kEach];
    kernels.resize(kWidest / kEach);
    std::vector<Kernel> routing;
    add_routing(routing, {90});
    for (size_t i = 1; i < routing.size(); i += 2) kernels.push_back(std::move(routing[i]));
  }
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::vector<std::string> problems;
  const auto work = [&] {
    for (size_t i = next++; i < kernels.size(); i = next++) {
      std::string problem;
      try {
        const std::string log = assembly_report(kernels[i].request);
        if (log.find(" 0 bytes spill stores, 0 bytes spill loads") == std::string::npos) problem = log;
        if (log.find("wgmma.mma_async instructions are serialized") != std::string::npos) problem = log;
      } catch (const Error& error) {
        problem = error.what();
      }
      std::lock_guard lock(mutex);
      if (!problem.empty()) problems.push_back(kernels[i].name + "\n" + problem);
    }
  };
  std::thread second(work);
  work();
  second.join();
  for (const std::string& problem : problems) ADD_FAILURE() << problem;
}

}  // namespace
}  // namespace moxie
