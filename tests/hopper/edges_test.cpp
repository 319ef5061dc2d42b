// SPDX-License-Identifier: Apache-2.0
// The edges: groups that are empty or hold everything, K of 0, single rows, a block that changes group at every tile,
// a sink of the caller's own, launches that follow each other, graphs.
#include <cuda.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>

#include <random>

#include "device_state.h"
#include "reference/comparison.h"
#include "tests/support/row_max.h"

namespace moxie::test {
namespace {

constexpr auto kBf16 = DataType::Bf16, kF32 = DataType::F32;

// Few kernels serve all edges: two schedules, both outputs, a cluster for one of them.
ProductSpec problem_of(WarpSchedule schedule, Grouping grouping) {
  ProductSpec p;
  p.schedule = schedule;
  p.grouping = grouping;
  p.tile_m = schedule == WarpSchedule::Cooperative ? 128 : 64;
  p.tile_n = 64;
  p.multicast = schedule == WarpSchedule::Cooperative ? Multicast::None
                : grouping == Grouping::Masked        ? Multicast::Either
                                                      : Multicast::A;
  p.bias = true;
  p.activation = Activation::SwigluOai;
  p.pre = kBf16, p.out = kF32;
  return p;
}

struct Kind {
  WarpSchedule schedule;
  Grouping grouping;
  const char* name;
  bool tiny = false;  // tiles of 8 rows
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
constexpr Kind kKinds[] = {
    {WarpSchedule::Cooperative, Grouping::Offsets, "CooperativeOffsets"},
    {WarpSchedule::PingPong, Grouping::Offsets, "PingPongOffsets"},
    {WarpSchedule::Cooperative, Grouping::RowGroups, "CooperativeRowGroups"},
    {WarpSchedule::PingPong, Grouping::RowGroups, "PingPongRowGroups"},
    {WarpSchedule::Cooperative, Grouping::Masked, "CooperativeMasked"},
    {WarpSchedule::PingPong, Grouping::Masked, "PingPongMasked"},
    {WarpSchedule::Cooperative, Grouping::Pointers, "CooperativePointers"},
    {WarpSchedule::PingPong, Grouping::Pointers, "PingPongPointers"},
    {WarpSchedule::PingPong, Grouping::Offsets, "TinyOffsets", true},
    {WarpSchedule::PingPong, Grouping::Masked, "TinyMasked", true},
};

class Edges : public ::testing::TestWithParam<Kind> {
 protected:
  Job job(std::vector<int64_t> rows, int64_t n = 48, int64_t k = 40) const {
    Job j;
    j.problem = problem_of(GetParam().schedule, GetParam().grouping);
    if (GetParam().tiny) j.problem.tile_m = 8, j.problem.multicast = Multicast::None, j.problem.expected_rows = 1;
    j.rows = std::move(rows);
    j.n = n, j.k = k;
    j.seed = 77;
    return j;
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, Edges, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Edges, AllGroupsAreEmpty) { run_in_all_orders(job({0, 0, 0, 0, 0})); }

TEST_P(Edges, OneRow) {
  run_in_all_orders(job({1}));
  run_in_all_orders(job({0, 0, 1, 0}, 16, 8));
}

TEST_P(Edges, OnePastATile) { run_in_all_orders(job({129, 65, 64, 128}, 144, 72)); }

TEST_P(Edges, NoKIsAProductOfZero) { run_in_all_orders(job({3, 0, 70}, 80, 0)); }

TEST_P(Edges, AllRowsInOneGroupOfMany) {
  Job j = job(std::vector<int64_t>(40, 0), 16, 24);
  j.rows[37] = 140;
  run_in_all_orders(j);
}

TEST_P(Edges, TwoHundredAndFiftySixGroups) {
  Job j = job({}, 16, 8);
  std::mt19937 random(9);
  for (int g = 0; g < 256; ++g) j.rows.push_back(random() % 4 == 0 ? 0 : 1 + random() % 3);
  if (j.problem.grouping == Grouping::RowGroups) j.rows.resize(40);  // each takes a tile of its own
  run_in_all_orders(j);
}

// One tile a group: a block's maps change at every tile, so both slots of each are rewritten again and again.
TEST_P(Edges, ABlockChangesGroupAtEveryTile) {
  Job j = job({}, 64, 136);
  for (int g = 0; g < 24; ++g) j.rows.push_back(1 + (g * 29) % 60);
  j.host_sizes = true;
  run_in_all_orders(j);
}

driver::LoadedKernel kernel_beside(const char* entry) {
  const auto request = [] {
    jit::Request request;
    request.source = R"(
// Lets the next kernel start, takes its time and only then writes.
extern "C" __global__ void late_copy(const unsigned* from, unsigned* to, int count) {
  asm volatile("griddepcontrol.launch_dependents;");
  for (int i = 0; i < 10; ++i) asm volatile("nanosleep.u32 20000;");
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}
extern "C" __global__ void write_line(int* line, int value) { line[threadIdx.x] = value; }
extern "C" __global__ void pass_on() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
extern "C" __global__ void read_line(const int* line, int value, int* stale) {
  if (line[threadIdx.x % 32] != value) atomicAdd(stale, 1);
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
)";
    return request;
  };
  return device().state().get_kernel(std::string("edges_test ") + entry, request(), entry, 0);
}

// Sizes that are ready are read by plain loads before griddepcontrol.wait: no line of L1 may be older than the grid.
TEST(Kernels, AGridStartsWithoutStaleLines) {
  const bool simulated = device().info().simulated;
  const unsigned grid = simulated ? 4 : 528;
  set_order("eager");
  const driver::Context& context = device().state().context();
  const Buffer line(128), stale(sizeof(int));
  stale.fill(0);
  int* lines = line.get<int>();
  int* count = stale.get<int>();
  for (int value = 1; value <= (simulated ? 3 : 2000); ++value) {
    void* written[] = {&lines, &value};
    void* read[] = {&lines, &value, &count};
    context.launch(kernel_beside("write_line"), {.grid = 1, .block = 32}, written, nullptr);
    context.launch(kernel_beside("pass_on"), {.grid = 1, .block = 32, .programmatic = true}, nullptr, nullptr);
    context.launch(kernel_beside("read_line"), {.grid = grid, .block = 256, .programmatic = true}, read, nullptr);
  }
  device().synchronize();
  EXPECT_EQ(stale.download(), std::vector<uint8_t>(sizeof(int), 0));
}

// A comes from the kernel before; the third launch writes the same outputs and workspace as the second.
TEST_P(Edges, WithReadyWeightsTheKernelBeforeIsWaitedForAllTheSame) {
  const bool own = GetParam().grouping == Grouping::Pointers;
  for (int64_t k : {1704, 200, 0}) {  // more than any ring holds, less, nothing
    SCOPED_TRACE(k);
    Job j = job({70, 3, 0, 61}, 80, k);
    GroupedProduct product(j);
    ProductTensors& x = product.arguments();
    const auto* const a = static_cast<const uint8_t*>(x.a);
    const uint8_t* begin = nullptr;
    size_t bytes = 0;
    for (const auto& [address, size] : Buffer::live()) {
      const auto* const from = static_cast<const uint8_t*>(address);
      if (!own && a >= from && a < from + size) begin = from, bytes = size;
    }
    ASSERT_TRUE(own || begin);
    const Results expected = product.run();
    product.check(expected);
    const Buffer late(bytes);
    if (!own) x.a = late.get<uint8_t>() + (a - begin);
    x.weights_ready = true;
    for (const char* order : orders()) {
      SCOPED_TRACE(order);
      set_order(order);
      late.fill(0xff);
      product.poison();
      const void* from = begin;
      void* to = late.get();
      int count = int(bytes / 4);
      void* parameters[] = {&from, &to, &count};
      device().state().context().launch(kernel_beside("late_copy"), {.grid = 1, .block = 256}, parameters, nullptr);
      product.launch(), product.launch();
      device().synchronize();
      EXPECT_TRUE(product.results() == expected);
    }
  }
}

// The kernel before writes B late, and between the two stands a product of which some block, or every one, has no tile.
// It promises nothing broken: a product waits before it lets the next one start, whatever its blocks have to do.
TEST_P(Edges, WithReadyWeightsABlockWithoutATileWaitsToo) {
  if (GetParam().grouping == Grouping::Pointers) GTEST_SKIP() << "B's maps are rewritten first";
  GroupedProduct product(job({70, 3, 0, 61}, 80, 200));
  ProductTensors& x = product.arguments();
  const auto* const b = static_cast<const uint8_t*>(x.b);
  const auto found = std::find_if(Buffer::live().begin(), Buffer::live().end(), [&](const auto& buffer) {
    const auto* const from = static_cast<const uint8_t*>(buffer.first);
    return b >= from && b < from + buffer.second;
  });
  ASSERT_NE(found, Buffer::live().end());
  const auto* const begin = static_cast<const uint8_t*>(found->first);
  const Results expected = product.run();
  product.check(expected);
  const Buffer late(found->second);
  x.b = late.get<uint8_t>() + (b - begin);
  x.weights_ready = true;
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{0, 0, 0, 0}, std::vector<int64_t>{0, 0, 1, 0}}) {
    GroupedProduct between(job(rows, 80, 200));
    between.arguments().weights_ready = true;
    for (const char* order : orders()) {
      SCOPED_TRACE(order);
      set_order(order);
      late.fill(0xff);
      product.poison();
      const void* from = begin;
      void* to = late.get();
      int count = int(late.size() / 4);
      void* parameters[] = {&from, &to, &count};
      device().state().context().launch(kernel_beside("late_copy"), {.grid = 1, .block = 256}, parameters, nullptr);
      between.launch(), product.launch();
      device().synchronize();
      EXPECT_TRUE(product.results() == expected);
    }
  }
}

TEST_P(Edges, TheSameWorkspaceAgainAndAgain) {
  Job j = job({70, 3, 0, 61}, 80, 72);
  GroupedProduct product(j);
  set_order("lazy");
  product.poison();
  for (int i = 0; i < 3; ++i) product.launch();
  device().synchronize();
  product.check(product.results());
}

// ---- The comparison itself -----------------------------------------------------------------------------------------

TEST(Layer, NoticesEveryKindOfWrongByte) {
  Job j;
  j.problem = problem_of(WarpSchedule::Cooperative, Grouping::Masked);
  j.rows = {20, 0, 7};
  j.n = 48, j.k = 40;
  static GroupedProduct* product;
  static Results results;
  GroupedProduct own(j);
  product = &own;
  set_order("eager");
  const Results good = own.run();
  own.check(good);
  const auto wrong = [&](std::vector<uint8_t> Results::*which, int64_t byte) {
    results = good;
    (results.*which)[size_t(byte)] ^= 0x40;
  };
  // Where row `row` of group `g` begins.
  const auto pre = [&](size_t g, int64_t row) { return own.pre().bytes(own.pre().first[g] + row * own.pre().ld[g]); };
  const auto out = [&](size_t g, int64_t row) { return own.out().bytes(own.out().first[g] + row * own.out().ld[g]); };
  wrong(&Results::pre, pre(0, 3) + 7);  // an element of the first group
  EXPECT_NONFATAL_FAILURE(product->check(results), "pre");
  wrong(&Results::out, out(2, 6) + 23 * 4 + 3);  // the last element of the last group
  EXPECT_NONFATAL_FAILURE(product->check(results), "out");
  wrong(&Results::pre, pre(0, 20));  // a row past the group's last
  EXPECT_NONFATAL_FAILURE(product->check(results), "must not be written");
  wrong(&Results::out, out(0, 3) + 24 * 4);  // a column past the last
  EXPECT_NONFATAL_FAILURE(product->check(results), "must not be written");
  wrong(&Results::out, out(0, 0) - 1);  // before the matrix
  EXPECT_NONFATAL_FAILURE(product->check(results), "must not be written");
  wrong(&Results::pre, int64_t(good.pre.size()) - 1);  // behind it
  EXPECT_NONFATAL_FAILURE(product->check(results), "must not be written");
  results = good;  // never written
  std::fill_n(results.out.begin() + out(0, 0), 24 * 4, 0xff);
  EXPECT_NONFATAL_FAILURE(product->check(results), "out");
}

// ---- Single cases --------------------------------------------------------------------------------------------------

TEST(Kernels, KOfZeroInSomeGroups) {
  for (WarpSchedule schedule : {WarpSchedule::Cooperative, WarpSchedule::PingPong}) {
    Job j;
    j.problem = problem_of(schedule, Grouping::Pointers);
    j.rows = {5, 70, 3, 0, 129, 20};
    j.group_n = {48, 80, 16, 16, 48, 32};
    j.group_k = {0, 40, 0, 8, 0, 136};
    run_in_all_orders(j);
  }
}

// A group that no tensor map can describe counts as empty, the others do not suffer.
TEST(Kernels, UnusableGroupsCountAsEmpty) {
  Job j;
  j.problem = problem_of(WarpSchedule::Cooperative, Grouping::Pointers);
  j.rows = {20, 20, 20, 20, 20, 20};
  j.n = 48, j.k = 40;
  for (int broken = 0; broken < 13; ++broken) {
    SCOPED_TRACE(broken);
    GroupedProduct product(j);
    ProductTensors& a = product.arguments();
    const size_t group = 2;
    const auto patch = [&](const auto* array, auto change) {
      std::remove_cvref_t<decltype(*array)> value;
      device().download(&value, array + group, sizeof(value));
      change(value);
      device().upload(const_cast<std::remove_cvref_t<decltype(*array)>*>(array + group), &value, sizeof(value));
    };
    const auto shift = [](auto& pointer) { reinterpret_cast<uintptr_t&>(pointer) += 8; };
    bool pre_stays = true, out_stays = true;
    switch (broken) {
      case 0:
        patch(a.pointers.a.data, shift);
        break;
      case 1:
        patch(a.pointers.b.data, shift);
        break;
      case 2:
        patch(a.pointers.a.ld, [](int64_t& ld) { ld += 4; });
        break;
      case 3:
        patch(a.pointers.b.ld, [](int64_t& ld) { ld = -ld; });
        break;
      case 4:
        patch(a.pointers.sizes + group * 2 + 1, [](int32_t& n) { n = 40; });
        break;  // [group][1]
      case 5:
        patch(a.pointers.pre.data, shift), out_stays = false;
        break;
      case 6:
        patch(a.pointers.out.ld, [](int64_t& ld) { ld += 1; }), pre_stays = false;
        break;
      case 7:
        patch(a.pointers.bias, shift);
        break;
      case 8:
        patch(a.pointers.a.ld, [](int64_t& ld) { ld = int64_t{1} << 34; });
        break;
      case 9:
        patch(a.pointers.b.ld, [](int64_t& ld) { ld = int64_t{1} << 35; });
        break;
      case 10:
        patch(a.pointers.b.ld, [](int64_t& ld) { ld = int64_t{1} << 34; });
        break;
      case 11:
        patch(a.pointers.pre.ld, [](int64_t& ld) { ld = 40; }), out_stays = false;
        break;
      case 12:
        patch(a.pointers.out.ld, [](int64_t& ld) { ld = 20; }), pre_stays = false;
        break;
    }
    set_order("random:3");
    const Results results = product.run();
    // The group's own rows as they were, the others as they should be.
    const auto rows = [&](const std::vector<uint8_t>& bytes, const auto* pointers, const int64_t* lds, size_t g,
                          int64_t width, int element, const void* base) {
      const void* pointer;
      int64_t ld;
      device().download(&pointer, pointers + g, sizeof(pointer));
      device().download(&ld, lds + g, sizeof(ld));
      std::vector<uint8_t> all;
      const auto first = uintptr_t(pointer) / 16 * 16 - uintptr_t(base);
      for (int64_t i = 0; i < 20; ++i) {
        const auto at = bytes.begin() + long(first) + i * (ld / 8 * 8) * element;
        all.insert(all.end(), at, at + width * element);
      }
      return all;
    };
    const void* pre_base = product.pre().elements.get();
    const void* out_base = product.out().elements.get();
    for (size_t g = 0; g < j.rows.size(); ++g) {
      const auto pre = rows(results.pre, a.pointers.pre.data, a.pointers.pre.ld, g, 48, 2, pre_base);
      const auto out = rows(results.out, a.pointers.out.data, a.pointers.out.ld, g, 24, 4, out_base);
      const bool pre_written = g != group || !pre_stays, out_written = g != group || !out_stays;
      if (pre_written) {
        reference::Comparison c;
        c.add(product.expected_pre(g), pre.data(), kBf16, 20, 48, 48);
        EXPECT_EQ(c.failure(), "") << g;
      } else {
        EXPECT_EQ(pre, std::vector<uint8_t>(pre.size(), 0xff));
      }
      if (out_written) {
        reference::Comparison c(reference::kF32Bound);
        c.add(product.expected_out(g), out.data(), kF32, 20, 24, 24);
        EXPECT_EQ(c.failure(), "") << g;
      } else {
        EXPECT_EQ(out, std::vector<uint8_t>(out.size(), 0xff));
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
}

// Wrong known_rows change the size of the grid alone: the blocks that are there compute all rows that the device has.
TEST(Kernels, WrongHostRowsCostTimeAlone) {
  for (WarpSchedule schedule : {WarpSchedule::Cooperative, WarpSchedule::PingPong}) {
    Job j;
    j.problem = problem_of(schedule, Grouping::Offsets);
    j.problem.host_rows = {0, 1, 0};
    j.rows = {150, 0, 70};
    j.n = 144, j.k = 72;
    run_in_all_orders(j);
  }
}

TEST(Kernels, ParametersOfActivationsAreTheCallers) {
  Job j;
  j.problem = problem_of(WarpSchedule::Cooperative, Grouping::Dense);
  j.rows = {40};
  j.n = 64, j.k = 64;
  for (const auto& [alpha, limit] :
       {std::pair{1.0f, 0.5f}, {-2.0f, 3.0f}, {1.702f, std::numeric_limits<float>::infinity()}}) {
    j.problem.alpha = alpha, j.problem.limit = limit;
    j.scale = 4;
    run_in_all_orders(j);
  }
  j.problem.activation = Activation::SwigluClamped;
  for (const auto& [gate_limit, up_limit] : {std::pair{0.5f, 3.0f}, {std::numeric_limits<float>::infinity(), 0.25f}}) {
    j.problem.swiglu_clamped = {gate_limit, up_limit};
    run_in_all_orders(j);
  }
  j.problem.activation = Activation::Situ;
  for (const auto& [beta, linear_beta] : {std::pair{0.5f, 3.0f}, {7.0f, 0.25f}}) {
    j.problem.situ = {beta, linear_beta};
    run_in_all_orders(j);
  }
}

TEST(Kernels, EmptyProductsLaunchNothing) {
  ProductSpec p = problem_of(WarpSchedule::Cooperative, Grouping::Dense);
  p.sinks = {{"no_such_type", "#error this would not compile", {1}, {}}};
  p.n = 64, p.k = 64;
  EXPECT_NO_THROW(gemm(device(), p, {}));
  p.m = 64, p.n = 0;
  EXPECT_NO_THROW(gemm(device(), p, {}));
}

TEST(Kernels, AfterAnErrorNothingWasTouched) {
  Job j;
  j.problem = problem_of(WarpSchedule::Cooperative, Grouping::Offsets);
  j.rows = {20, 30};
  GroupedProduct product(j);
  product.poison();
  const Results before = product.results();
  product.arguments().ld_out += 2;  // 8 bytes
  EXPECT_THROW(product.launch(), Error);
  product.arguments().ld_out -= 2;
  product.arguments().workspace_bytes -= 1;
  EXPECT_THROW(product.launch(), Error);
  device().synchronize();
  EXPECT_TRUE(product.results() == before);
  product.arguments().workspace_bytes += 1;
  product.launch();
  device().synchronize();
  product.check(product.results());
}

// The second product reads what the first one writes, and may start while that one finishes.
TEST(Kernels, ADependentLaunchSeesTheResultsBefore) {
  Job first;
  first.problem = problem_of(WarpSchedule::PingPong, Grouping::Dense);
  first.problem.activation = Activation::Relu;
  first.problem.pre.reset(), first.problem.out = kBf16;
  first.rows = {100};
  first.n = 64, first.k = 72;
  Job second = first;
  second.k = 64;
  for (const char* order : orders()) {
    SCOPED_TRACE(order);
    set_order(order);
    GroupedProduct one(first), two(second);
    two.arguments().a = one.arguments().out;
    two.arguments().lda = one.arguments().ld_out;
    one.poison(), two.poison();
    one.launch(), two.launch();
    device().synchronize();
    const auto middle = one.results();
    one.check(middle);
    // The second's answer from the bf16 values that the first one stored.
    two.expect_a(one.out_values(middle));
    two.check(two.results());
  }
}

// What is said to be ready is read early: the simulator sees that the kernel before writes it.
class BrokenWord : public ::testing::TestWithParam<const char*> {};

TEST_P(BrokenWord, IsReported) {
  if (!device().info().simulated) GTEST_SKIP() << "the simulator reports it";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Job before;
  before.problem = problem_of(WarpSchedule::PingPong, Grouping::Dense);
  before.problem.activation = Activation::Relu;
  before.problem.pre.reset(), before.problem.out = kBf16;
  before.rows = {64};
  Job job = before;
  const std::string what = GetParam();
  if (what != "Weights") {
    job.problem.grouping = Grouping::Offsets;
    job.problem.expected_rows = what == "SizesOfFewRows" ? 16 : 1024;
    job.rows = {30, 34};
  }
  const auto run = [&](bool ready) {
    GroupedProduct one(before), two(job);
    ProductTensors& x = two.arguments();
    if (what != "Weights") {
      x.sizes = static_cast<const int32_t*>(one.arguments().out);
    } else {
      x.b = one.arguments().out, x.ldb = one.arguments().ld_out;
    }
    x.weights_ready = ready;
    one.launch(), two.launch();
    device().synchronize();
  };
  run(false);
  const auto broken = [&] {
    try {
      run(true);
    } catch (const Error&) {
      std::_Exit(3);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(broken(), ::testing::ExitedWithCode(3), "data in flight: reads global memory at .*griddepcontrol.wait");
}

INSTANTIATE_TEST_SUITE_P(Kernels, BrokenWord, ::testing::Values("Weights", "SizesOfFewRows", "SizesOfManyRows"),
                         [](const auto& info) { return std::string(info.param); });

TEST(Kernels, ALaunchNeedNotBeProgrammatic) {
  Job job;
  job.problem = problem_of(WarpSchedule::Cooperative, Grouping::Offsets);
  job.rows = {20, 30};
  GroupedProduct product(job);
  product.arguments().programmatic_launch = false;
  product.poison();
  product.launch();
  device().synchronize();
  product.check(product.results());
}

// ---- The third sink ------------------------------------------------------------------------------------------------

void check_row_max_of(const ProductSpec& problem, std::vector<int64_t> rows, int64_t n, bool alone, int times = 1) {
  Job j;
  j.problem = problem;
  if (alone) j.problem.pre.reset(), j.problem.out.reset();
  j.rows = std::move(rows);
  j.n = n, j.k = 72;
  check_row_max(std::move(j), times);
}

TEST(Kernels, ASinkOfTheCallersOwn) {
  // Beside two others; gated chunks of 32 columns.
  check_row_max_of(problem_of(WarpSchedule::Cooperative, Grouping::Offsets), {70, 0, 130, 3}, 112, false);
  // Without other sinks: no staging, no maps.
  ProductSpec masked = problem_of(WarpSchedule::PingPong, Grouping::Masked);
  masked.tile_n = 128;
  check_row_max_of(masked, {70, 0, 5}, 240, true);
  ProductSpec plain = problem_of(WarpSchedule::Cooperative, Grouping::Dense);
  plain.activation = Activation::Relu2, plain.tile_m = 256;
  check_row_max_of(plain, {150}, 72, true);
  // Two of them, each with its own parameters.
  check_row_max_of(plain, {70}, 72, true, 2);
}

// ---- Graphs --------------------------------------------------------------------------------------------------------

// The functions of the driver in use that the library itself does not need.
struct GraphDriver {
  void* library = dlopen(device().info().driver_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    ASSERT_NE(function, nullptr) << name;
  }
  decltype(&::cuDevicePrimaryCtxRetain) retain;
  decltype(&::cuDevicePrimaryCtxRelease) release;
  decltype(&::cuCtxSetCurrent) set_current;
  decltype(&::cuStreamCreate) stream_create;
  decltype(&::cuStreamDestroy) stream_destroy;
  decltype(&::cuStreamBeginCapture) begin;
  decltype(&::cuStreamEndCapture) end;
  decltype(&::cuGraphInstantiate) instantiate;
  decltype(&::cuGraphLaunch) launch;
  decltype(&::cuGraphExecDestroy) exec_destroy;
  decltype(&::cuGraphDestroy) destroy;
  decltype(&::cuGraphGetNodes) nodes;
  void find_all() {
    ASSERT_NE(library, nullptr) << dlerror();
    find(retain, "cuDevicePrimaryCtxRetain");
    find(release, "cuDevicePrimaryCtxRelease_v2");
    find(set_current, "cuCtxSetCurrent");
    find(stream_create, "cuStreamCreate");
    find(stream_destroy, "cuStreamDestroy_v2");
    find(begin, "cuStreamBeginCapture_v2");
    find(end, "cuStreamEndCapture");
    find(instantiate, "cuGraphInstantiateWithFlags");
    find(launch, "cuGraphLaunch");
    find(exec_destroy, "cuGraphExecDestroy");
    find(destroy, "cuGraphDestroy");
    find(nodes, "cuGraphGetNodes");
  }
};

// A captured launch, replayed with other rows in the same device array: the host knows of neither.
TEST(Kernels, ACapturedLaunchFollowsTheSizesOnTheDevice) {
  Job j;
  j.problem = problem_of(WarpSchedule::Cooperative, Grouping::Offsets);
  j.rows = {50, 0, 20, 30};
  j.n = 48, j.k = 72;
  GroupedProduct product(j);
  Job other = j;
  other.rows = {0, 99, 1, 0};
  const GroupedProduct answer(other);
  set_order("lazy");
  prepare(device(), product.problem());

  GraphDriver driver;
  driver.find_all();
  if (HasFatalFailure()) return;
  CUcontext context;
  ASSERT_EQ(driver.retain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(driver.set_current(context), CUDA_SUCCESS);
  CUstream stream;
  ASSERT_EQ(driver.stream_create(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  product.arguments().stream = stream;
  product.poison();
  const Results untouched = product.results();
  ASSERT_EQ(driver.begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  ASSERT_NO_THROW(product.launch());
  CUgraph graph;
  ASSERT_EQ(driver.end(stream, &graph), CUDA_SUCCESS);
  size_t count = 0;
  ASSERT_EQ(driver.nodes(graph, nullptr, &count), CUDA_SUCCESS);
  EXPECT_EQ(count, 1u);
  CUgraphExec exec;
  ASSERT_EQ(driver.instantiate(&exec, graph, 0), CUDA_SUCCESS);
  device().synchronize(stream);
  EXPECT_TRUE(product.results() == untouched) << "the capture ran the kernel";

  ASSERT_EQ(driver.launch(exec, stream), CUDA_SUCCESS);
  device().synchronize(stream);
  product.check(product.results());

  // The same rows of A in other groups.
  std::vector<int32_t> ends = {0, 99, 100, 100};
  device().upload(const_cast<int32_t*>(product.arguments().sizes), ends.data(), ends.size() * 4);
  device().synchronize();
  product.poison();
  ASSERT_EQ(driver.launch(exec, stream), CUDA_SUCCESS);
  device().synchronize(stream);
  answer.check(product.results());

  driver.exec_destroy(exec), driver.destroy(graph), driver.stream_destroy(stream);
  driver.set_current(nullptr), driver.release(0);
}

}  // namespace
}  // namespace moxie::test
