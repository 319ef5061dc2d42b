// SPDX-License-Identifier: Apache-2.0
// What surrounds the instructions: the environment's options, launches that are refused, where a fault is said to be,
// who is said to wait when nobody can go on, and the notes of what was executed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>
#include <sstream>

#include "sim/machine/random.h"
#include "sim/run/grid.h"
#include "tests/sim/own_process.h"
#include "tests/sim/tcgen05.h"

namespace {

using sim_test::Buffer;
using sim_test::Params;
using sim_test::Shape;

// ---- options ------------------------------------------------------------------------------------

// Sets a variable, or takes it away, and puts back what was there.
class Variable {
 public:
  Variable(const char* name, std::optional<std::string> value) : name_(name) {
    if (const char* was = std::getenv(name)) before_ = was;
    set(value);
  }
  ~Variable() { set(before_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    if (value)
      setenv(name_, value->c_str(), 1);
    else
      unsetenv(name_);
  }
  const char* name_;
  std::optional<std::string> before_;
};

// What `read` gives, in words, or what it throws.
template <class Read>
std::string with(const char* name, std::optional<std::string> value, Read read) {
  const Variable variable(name, std::move(value));
  try {
    return read();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
}

TEST(Environment, Order) {
  const auto order = [](std::optional<std::string> value) {
    return with("MOXIE_SIM_ORDER", std::move(value),
                [] { return testing::PrintToString(sim::order_from_environment()); });
  };
  EXPECT_EQ(order(std::nullopt), "eager0");
  for (const auto& [value, is] : std::initializer_list<std::pair<const char*, const char*>>{
           {"", "eager0"},
           {"eager", "eager0"},
           {"lazy", "lazy0"},
           {"random", "random0"},
           {"random:0", "random0"},
           {"random:7", "random7"},
           {"random:18446744073709551615", "random18446744073709551615"}})
    EXPECT_EQ(order(value), is);
  for (const std::string value : {"Eager", "lazy ", "random:", "random:x", "random:7x", "random7", "randomly"})
    EXPECT_EQ(order(value), "MOXIE_SIM_ORDER is '" + value + "', but must be eager, lazy or random:SEED");
}

TEST(Environment, Threads) {
  const auto threads = [](std::optional<std::string> value) {
    return with("MOXIE_SIM_THREADS", std::move(value), [] { return std::to_string(sim::threads_from_environment()); });
  };
  EXPECT_EQ(threads(std::nullopt), "0");
  EXPECT_EQ(threads(""), "0");
  for (const char* value : {"1", "2", "1024"}) EXPECT_EQ(threads(value), value);
  for (const std::string value : {"0", "-1", "1025", "two", "2x", " "})
    EXPECT_EQ(threads(value), "MOXIE_SIM_THREADS is '" + value + "', but must be a number from 1 to 1024");
}

TEST(Environment, Patience) {
  const auto seconds = [](std::optional<std::string> value) {
    return with("MOXIE_SIM_PATIENCE", std::move(value),
                [] { return std::to_string(sim::patience_from_environment().count()); });
  };
  EXPECT_EQ(seconds(std::nullopt), "20");
  EXPECT_EQ(seconds(""), "20");
  for (const char* value : {"0", "1", "86400"}) EXPECT_EQ(seconds(value), value);
  for (const std::string value : {"-1", "86401", "1.5", "1 s"})
    EXPECT_EQ(seconds(value), "MOXIE_SIM_PATIENCE is '" + value + "', but must be a number from 0 to 86400");
}

TEST(Environment, Rules) {
  struct Rule {
    const char *name, *usual, *other;
    bool sim::Rules::*field;
    bool usually;
  };
  const Rule all[] = {{"MOXIE_SIM_EXIT", "undrained", "drained", &sim::Rules::drained_exit, false},
                      {"MOXIE_SIM_TCGEN05_FENCES", "relaxed", "strict", &sim::Rules::strict_tensor_fences, false}};
  for (const Rule& rule : all) {
    const auto read = [&] { return std::to_string(sim::rules_from_environment().*rule.field); };
    const std::string usual = std::to_string(rule.usually), other = std::to_string(!rule.usually);
    EXPECT_EQ(with(rule.name, std::nullopt, read), usual) << rule.name;
    EXPECT_EQ(with(rule.name, "", read), usual) << rule.name;
    EXPECT_EQ(with(rule.name, rule.usual, read), usual) << rule.name;
    EXPECT_EQ(with(rule.name, rule.other, read), other) << rule.name;
    EXPECT_EQ(with(rule.name, "perhaps", read),
              std::string(rule.name) + " is 'perhaps', but must be " + rule.usual + " or " + rule.other);
    // Each variable has its own rule.
    for (const Rule& another : all) {
      if (another.name == rule.name) continue;
      const Variable variable(another.name, another.other);
      EXPECT_EQ(with(rule.name, std::nullopt, read), usual) << rule.name << " beside " << another.name;
    }
  }
}

TEST(Environment, Strictness) {
  const auto level = [] { return std::to_string(static_cast<int>(sim::rules_from_environment().strictness)); };
  EXPECT_EQ(with("MOXIE_SIM_STRICT", std::nullopt, level), "0");
  EXPECT_EQ(with("MOXIE_SIM_STRICT", "", level), "0");
  EXPECT_EQ(with("MOXIE_SIM_STRICT", "isa", level), "0");
  EXPECT_EQ(with("MOXIE_SIM_STRICT", "portable", level), "1");
  EXPECT_EQ(with("MOXIE_SIM_STRICT", "field", level), "2");
  EXPECT_EQ(with("MOXIE_SIM_STRICT", "lax", level), "MOXIE_SIM_STRICT is 'lax', but must be isa, portable or field");
}

TEST(Environment, Statistics) {
  const auto read = [] { return std::to_string(sim::statistics_from_environment()); };
  EXPECT_EQ(with("MOXIE_SIM_STATISTICS", std::nullopt, read), "0");
  EXPECT_EQ(with("MOXIE_SIM_STATISTICS", "", read), "0");
  EXPECT_EQ(with("MOXIE_SIM_STATISTICS", "0", read), "0");
  EXPECT_EQ(with("MOXIE_SIM_STATISTICS", "1", read), "1");
  EXPECT_EQ(with("MOXIE_SIM_STATISTICS", "yes", read), "MOXIE_SIM_STATISTICS is 'yes', but must be 0 or 1");
}

// ---- launches -----------------------------------------------------------------------------------

std::string fault(const std::string& text, const Shape& shape, const Params& params = {}) {
  sim::GlobalMemory memory;
  return sim_test::fault_of(text, "k", params, memory, shape);
}

TEST(Launch, CountsWhatItDid) {
  // Of 3 blocks of 40 threads: lanes 0 to 4 of each warp go on behind the branch, 5 of 32 and 5 of 8.
  sim::GlobalMemory memory;
  sim_test::Buffer<uint32_t> words(memory, 40, 7u);
  Shape shape;
  shape.grid = {3, 1, 1};
  shape.block = {40, 1, 1};
  const auto count = [&](const std::string& more) {
    sim::Statistics statistics;
    shape.statistics = &statistics;
    sim_test::run_ptx(R"(
.visible .entry k(.param .u64 p)
{
  .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, %laneid;
  setp.ge.u32 %p, %r1, 5;
  )" + more + R"(
  ret;
}
)",
                      "k", Params().add(words.address()), memory, shape);
    return statistics;
  };
  for (const sim::Order& order : sim_test::all_orders()) {
    shape.order = order;
    for (const int threads : {1, 4}) {
      shape.threads = threads;
      const sim::Statistics least = count("");
      EXPECT_EQ(least.bytes_read + least.bytes_written + least.multiply_adds, 0u);
      const auto added = [&](const std::string& more) {
        return count(more).lane_instructions - least.lane_instructions;
      };
      EXPECT_EQ(added("add.u32 %r2, %r1, 1;"), 3u * 40);
      EXPECT_EQ(added("@%p add.u32 %r2, %r1, 1;"), 3u * (27 + 3));
      EXPECT_EQ(added("@%p bra L;\n add.u32 %r2, %r1, 1;\n L:"), 3u * (30 + 10));
      // A wait counts once, however often it is tried.
      EXPECT_EQ(added("bar.sync 0;"), 3u * 40);
      const sim::Statistics memory_words = count(
          "ld.global.u32 %r2, [%rd1];\n @%p ld.global.v2.u32 {%r2, %r3}, [%rd1];\n @%p atom.global.add.u32 %r2, "
          "[%rd1+8], 1;\n @!%p red.global.add.u32 [%rd1+12], 1;");
      EXPECT_EQ(memory_words.bytes_read, 3u * (40 * 4 + 30 * 8 + 30 * 4 + 10 * 4));
      EXPECT_EQ(memory_words.bytes_written, 3u * 40 * 4);
    }
  }
}

TEST(Launch, IsRefusedInWords) {
  const std::string plain = ".entry k() { ret; }",
                    uses =
                        ".entry k() { .shared .b8 v[1000]; .reg .b32 %r; mov.u32 %r, v; "
                        "ret; }",
                    takes = ".entry k(.param .u64 a, .param .u32 b) { ret; }";
  const std::string head = "illegal use: kernel 'k': ";
  const auto shaped = [](sim::Dim3 grid, sim::Dim3 block, sim::Dim3 cluster, uint32_t dynamic = 0) {
    Shape shape;
    shape.grid = grid, shape.block = block, shape.cluster = cluster, shape.dynamic_shared = dynamic;
    return shape;
  };
  const sim::Dim3 one{1, 1, 1};
  EXPECT_EQ(fault(plain, shaped(one, {1024, 1, 1}, one)), "");
  EXPECT_EQ(fault(plain, shaped(one, {0, 1, 1}, one)), head + "a block of 0 threads is not allowed");
  EXPECT_EQ(fault(plain, shaped(one, {1025, 1, 1}, one)), head + "a block of 1025 threads is not allowed");
  EXPECT_EQ(fault(plain, shaped(one, {8, 8, 17}, one)), head + "a block of 1088 threads is not allowed");
  EXPECT_EQ(fault(plain, shaped({4, 6, 2}, one, {2, 3, 1})), "");
  for (const sim::Dim3 grid : {sim::Dim3{3, 6, 4}, {4, 5, 4}, {4, 6, 3}})
    EXPECT_EQ(fault(plain, shaped(grid, one, {2, 3, 2})), head + "the grid is not a whole number of clusters");
  EXPECT_EQ(fault(plain, shaped(one, one, {0, 1, 1})), head + "the grid is not a whole number of clusters");
  EXPECT_EQ(fault(plain, shaped(one, one, one, 232448)), "");
  EXPECT_EQ(fault(plain, shaped(one, one, one, 232449)),
            head + "a block needs 232449 bytes of shared memory, over the limit of 232448");
  EXPECT_EQ(fault(uses, shaped(one, one, one, 231449)),
            head + "a block needs 232449 bytes of shared memory, over the limit of 232448");
  EXPECT_EQ(fault(takes, {}, Params().add(uint64_t{1}).add(2u)), "");
  EXPECT_EQ(fault(takes, {}, Params().add(uint64_t{1})), head + "parameters of 8 bytes given, 12 needed");
}

// A fault names the line of the PTX, that of the source where .loc tells it, the block, the warp and the lane.
TEST(Launch, AFaultSaysWhereItIs) {
  const auto text = [](const std::string& files, const std::string& loc) {
    return files +
           "\n.entry k() {\n.reg .b32 %a<5>; .reg .pred %p;\nmov.u32 %a0, %ctaid.x; mov.u32 %a1, %ctaid.y; "
           "mov.u32 %a2, %ctaid.z; mov.u32 %a3, %tid.x;\nmad.lo.u32 %a0, %a0, 10, %a1; mad.lo.u32 %a0, %a0, 10, "
           "%a2; mad.lo.u32 %a0, %a0, 100, %a3;\nsetp.eq.u32 %p, %a0, 12170;\n" +
           loc + "\n@%p trap;\nret;\n}\n";
  };
  Shape shape;
  shape.grid = {2, 3, 2}, shape.block = {96, 1, 1};
  for (const auto& [files, loc, source] : std::initializer_list<std::array<std::string, 3>>{
           {"", "", ""},
           {".file 1 \"/some/folder/kernel.cu\"", ".loc 1 42 7", " (kernel.cu:42)"},
           {".file 1 \"kernel.cu\" .file 2 \"header.cuh\"", ".loc 2 3 1", " (header.cuh:3)"},
           {"", ".loc 5 42 7", " (file 5:42)"}}) {
    EXPECT_EQ(fault(text(files, loc), shape),
              "illegal use: trap at ptx line 11" + source + ", block (1,2,1), warp 2, lane 6");
  }
}

// It does so whether it reads by strong operations or not, and whatever device the host thread has worked for before.
TEST(Launch, ReachesTheMemoryOfItsOwnDevice) {
  sim::GlobalMemory memory;
  std::vector<uint64_t> words;
  for (const int device : {0, 1}) {
    sim::Residence residence;
    residence.device = device;
    words.push_back(memory.allocate(4, residence));
  }
  for (const int device : {0, 1, 0}) {
    for (const char* load : {"ld.volatile.global.u32", "ld.global.u32"}) {
      const auto kernel = sim_test::prepare_ptx(
          ".entry k(.param .u64 p) { .reg .b32 %r; .reg .b64 %d; "
          "ld.param.u64 %d, [p]; " +
              std::string(load) + " %r, [%d]; ret; }",
          "k");
      for (const int owner : {device, 1 - device}) {
        sim::Launch launch;
        launch.kernel = kernel.get();
        launch.grid = launch.block = {1, 1, 1};
        launch.params = Params().add(words[static_cast<size_t>(owner)]).bytes();
        launch.global = &memory;
        launch.device = device;
        launch.threads = 1;
        std::string said;
        try {
          sim::run(launch);
        } catch (const sim::Fault& fault) {
          said = fault.what();
        }
        const std::string other = "belongs to device " + std::to_string(owner);
        EXPECT_EQ(said.find(other) != std::string::npos, owner != device) << load << ": " << said;
        EXPECT_EQ(said.empty(), owner == device) << load << ": " << said;
      }
    }
  }
}

// The first three numbers of the generator that its authors publish, begun at 0 (Steele, Lea and Flood: Fast
// Splittable Pseudorandom Number Generators, 2014).
TEST(Launch, SeedsAreMixedBySplitmix64) {
  const uint64_t step = 0x9e3779b97f4a7c15;
  EXPECT_EQ(sim::splitmix64(0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(sim::splitmix64(step), 0x6e789e6aa1b965f4u);
  EXPECT_EQ(sim::splitmix64(2 * step), 0x06c45d188009454fu);
}

// ---- deadlocks ----------------------------------------------------------------------------------

TEST(Deadlock, NamesEveryoneWhoWaits) {
  const std::string text = R"(
.shared .align 8 .b64 bar;
.entry k() {
  .reg .b32 %r<5>; .reg .pred %p<5>; .reg .b64 %d;
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, bar;
  setp.eq.u32 %p0, %r0, 0;
  @%p0 mbarrier.init.shared.b64 [%r1], 1;
  bar.sync 0;
  setp.lt.u32 %p1, %r0, 32;
  @%p1 bra FIRST;
  setp.lt.u32 %p1, %r0, 64;
  @%p1 bra SECOND;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  ret;
FIRST:
  bar.sync 1, 64;
  ret;
SECOND:
  and.b32 %r2, %r0, 1;
  setp.eq.u32 %p2, %r2, 0;
  @%p2 bra EVEN;
ODD:
  mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0;
  @!%p3 bra ODD;
  ret;
EVEN:
  bar.warp.sync 0xffffffff;
  ret;
})";
  Shape shape;
  shape.grid = shape.cluster = {2, 1, 1};
  shape.block = {96, 1, 1};
  std::string said = "deadlock: no warp can run, 6 warps wait, the first at ptx line 21, block (0,0,0), warp 0";
  for (const std::string block : {"\n  block (0,0,0) warp ", "\n  block (1,0,0) warp "}) {
    said += block + "0: ptx line 21: bar.sync: named barrier 1: 32 of 64 threads have arrived";
    said += block +
            "1 lanes 0xaaaaaaaa: ptx line 28: mbarrier.try_wait.parity.shared.b64: mbarrier at shared offset "
            "0x0, phase parity 0 (phase 0), 1 of 1 arrivals missing";
    said += block +
            "1 lanes 0x55555555: ptx line 32: bar.warp.sync: lanes 0x55555555 wait for the warp's other lanes "
            "0xaaaaaaaa";
    said += block +
            "2: ptx line 18: barrier.cluster.wait: barrier.cluster, for warp 0 of block rank 0, warp 1 of block "
            "rank 0, warp 0 of block rank 1, warp 1 of block rank 1";
  }
  EXPECT_EQ(fault(text, shape), said + "\n  nothing is pending");
}

// Half of a warp has waited for the other half, and then its wait for a barrier that nobody completes runs out of time.
TEST(Deadlock, IsNoneWhereLanesThatHaveMetOthersRunOutOfTime) {
  const std::string text = R"(
.shared .align 8 .b64 bar;
.shared .align 4 .b32 flag;
.entry k(.param .u64 p_out) {
  .reg .b32 %r<5>; .reg .pred %p<5>; .reg .b64 %d<2>;
  ld.param.u64 %d0, [p_out];
  mov.u32 %r0, %tid.x;
  mad.wide.u32 %d0, %r0, 4, %d0;
  mov.u32 %r1, bar;
  mov.u32 %r2, flag;
  setp.eq.u32 %p0, %r0, 0;
  @%p0 mbarrier.init.shared.b64 [%r1], 1;
  @%p0 st.volatile.shared.u32 [%r2], 0;
  bar.sync 0;
  setp.ge.u32 %p1, %r0, 16;
  @%p1 bra OTHERS;
  barrier.sync 1;
  mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0;
  @!%p3 st.volatile.shared.u32 [%r2], 1;
  @!%p3 st.global.u32 [%d0], 1;
  ret;
OTHERS:
  barrier.sync 1;
SPIN:
  ld.volatile.shared.u32 %r3, [%r2];
  setp.eq.u32 %p2, %r3, 0;
  @%p2 bra SPIN;
  st.global.u32 [%d0], 2;
  ret;
})";
  for (const sim::Order& order : sim_test::all_orders()) {
    sim::GlobalMemory memory;
    Buffer<uint32_t> out(memory, 32);
    Shape shape;
    shape.order = order;
    sim_test::run_ptx(text, "k", Params().add(out.address()), memory, shape);
    for (int t = 0; t < 32; ++t) EXPECT_EQ(out.values()[t], t < 16 ? 1u : 2u) << t;
  }
}

// Lanes that could go on and never get anywhere.
TEST(Deadlock, NamesThoseWhoPoll) {
  const std::string text = R"(
.shared .align 8 .b64 bar;
.entry k() {
  .reg .b32 %r<5>; .reg .pred %p<5>;
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, bar;
  setp.eq.u32 %p0, %r0, 0;
  @%p0 mbarrier.init.shared.b64 [%r1], 1;
  bar.sync 0;
AGAIN:
  mbarrier.test_wait.parity.shared.b64 %p3, [%r1], 0;
  @!%p3 bra AGAIN;
  ret;
})";
  Shape shape;
  shape.block = {32, 1, 1};
  EXPECT_EQ(fault(text, shape),
            "deadlock: every warp that can run polls in vain, 1 warp waits, the first at ptx line 15, block (0,0,0), "
            "warp 0\n  block (0,0,0) warp 0: ptx line 15: bra: polls\n  nothing is pending");
}

// Each warp counts its looks at the word up to a prime of its own, and begins anew. Two seldom do so at the same time.
TEST(Deadlock, IsSeenWhenEachWarpHasComeBackAtATimeOfItsOwn) {
  const auto kernel = sim_test::prepare_ptx(R"(
.entry k(.param .u64 p_word) {
  .reg .b32 %r<4>; .reg .pred %p<3>; .reg .b64 %d;
  ld.param.u64 %d, [p_word];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, 101;
  setp.ge.u32 %p0, %r0, 32;
  @%p0 mov.u32 %r1, 103;
  setp.ge.u32 %p0, %r0, 64;
  @%p0 mov.u32 %r1, 107;
  mov.u32 %r2, 0;
AGAIN:
  ld.relaxed.gpu.global.u32 %r3, [%d];
  setp.ne.u32 %p1, %r3, 0;
  @%p1 ret;
  add.u32 %r2, %r2, 1;
  setp.eq.u32 %p2, %r2, %r1;
  @%p2 mov.u32 %r2, 0;
  not.b32 %r3, %r3;
  bra AGAIN;
})",
                                            "k");
  for (const sim::Order& order : sim_test::all_orders()) {
    sim::GlobalMemory memory;
    Buffer<uint32_t> word(memory, 1);
    sim::Launch launch;
    launch.kernel = kernel.get();
    launch.grid = {1, 1, 1};
    launch.block = {96, 1, 1};
    launch.params = Params().add(word.address()).bytes();
    launch.global = &memory;
    launch.order = order;
    sim::Progress progress;
    sim::RunningGrid grid(launch, progress, false);
    while (grid.turn()) {
    }
    int rounds = 1;
    while (rounds < 1000 && !grid.comes_back(false)) ++rounds;
    EXPECT_LT(rounds, 1000);
    grid.finish();
  }
}

// So many instructions may go by without a store, and no more than a turn behind them this kernel stores and ends.
TEST(Deadlock, IsNoneWhereAWarpComputesFor2To29Instructions) {
  std::string nothing;
  for (int i = 0; i < 253; ++i) nothing += "  @%p0 not.b32 %r1, %r1;\n";  // Quickly done, for no lane does it.
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 1);
  Shape shape;
  shape.block = {1, 1, 1};
  const uint32_t rounds = (1u << 29) / 256;
  const uint64_t instructions = sim_test::run_ptx(R"(
.entry k(.param .u64 p_out) {
  .reg .b32 %r<2>; .reg .pred %p<2>; .reg .b64 %d;
  ld.param.u64 %d, [p_out];
  mov.u32 %r0, 0;
  mov.u32 %r1, 0;
  setp.ne.u32 %p0, %r0, 0;
AGAIN:
)" + nothing + R"(  add.u32 %r0, %r0, 1;
  setp.ne.u32 %p1, %r0, )" + std::to_string(rounds) +
                                                      R"(;
  @%p1 bra AGAIN;
  st.global.u32 [%d], %r0;
  ret;
})",
                                                  "k", Params().add(out.address()), memory, shape);
  EXPECT_EQ(instructions, uint64_t{rounds} * 256 + 6);
  EXPECT_EQ(out[0], rounds);
}

// A warp whose lanes wait for each other alone has taken an instruction for the whole warp apart.
TEST(Deadlock, OfOneWarpIsADivergentInstruction) {
  const std::string text = R"(
.entry k() {
  .reg .b32 %r; .reg .pred %p;
  mov.u32 %r, %tid.x;
  setp.lt.u32 %p, %r, 16;
  @%p bra OTHER;
  bar.sync 0;
  ret;
OTHER:
  bar.sync 1;
  ret;
})";
  EXPECT_EQ(
      fault(text, {}),
      "illegal use: divergent .aligned instruction at ptx line 10, block (0,0,0), warp 0\n"
      "  block (0,0,0) warp 0 lanes 0xffff0000: ptx line 10: bar.sync: lanes 0xffff0000 wait for the warp's other "
      "lanes 0x0000ffff\n"
      "  block (0,0,0) warp 0 lanes 0x0000ffff: ptx line 13: bar.sync: lanes 0x0000ffff wait for the warp's other "
      "lanes 0xffff0000\n  nothing is pending");
}

// ---- notes of what was executed -----------------------------------------------------------------

// Run by the test below in a process of its own, for the file's name is read once.
TEST(CoverageNotes, DISABLED_OfAKernel) {
  EXPECT_EQ(fault(R"(
.file 1 "/some/folder/kernel.cu"
.entry k() {
  .reg .b32 %r; .reg .pred %p;
  .loc 1 10 3
  mov.u32 %r, %tid.x;
  setp.gt.u32 %p, %r, 99;
  .loc 1 11 3
  @%p bra NEVER;
  .loc 7 12 3
  bra DONE;
NEVER:
  .loc 1 13 3
  add.u32 %r, %r, 1;
DONE:
  .loc 1 14 3
  ret;
})",
                  {}),
            "");
  // Without a test's name the notes have the kernel's, and each note stands once.
  unsetenv("MOXIE_SIM_COVERAGE_TEST");
  for (int time = 0; time < 2; ++time)
    EXPECT_EQ(fault(".entry k() { .reg .b32 %r; mov.u32 %r, 1; not.b32 %r, %r; ret; }", {}), "");
}

// What the descriptors of tensor memory's products choose: an instruction, its descriptors and all that is noted of it.
struct NotedMma {
  std::string kind, operands;  // %a0 and %a1 are the descriptors, %x2 is the instruction's
  sim_test::Placement a, b;
  uint32_t idesc;
  std::vector<std::string> notes;
};
const std::vector<NotedMma>& noted() {
  using namespace sim_test;
  const auto k = [](Swizzle swizzle) { return place(0, swizzle, false, 128, 1); };
  const auto mn = [](Swizzle swizzle, uint32_t bytes) { return place(0, swizzle, true, 128, bytes); };
  constexpr uint32_t k128x64 = 8u << 17 | 8u << 24, kScaled = 8u << 17 | 1u << 27;
  static const std::vector<NotedMma> all = {
      {"f16",
       "[%t], %a0, %a1, %x2, %p0",
       k(k128),
       mn(kNone, 2),
       k128x64 | 1u << 13 | 1u << 16,
       {"M 128 N 64", "f16 x f16 -> f16", "A K-major, 128-byte swizzle", "negated A", "B MN-major, no swizzle",
        "D not read"}},
      {"f16",
       "[%t], [%w1], %a1, %x2, 1, 3",
       k(k128),
       k(k64),
       1u << 4 | 1u << 7 | 1u << 10 | 1u << 14 | 1u << 17 | 4u << 24,
       {"M 64 N 8", "bf16 x bf16 -> f32", "A in tensor memory", "B K-major, 64-byte swizzle", "negated B",
        "scale of D 3", "D read"}},
      {"tf32",
       "[%t], %a0, %a1, %x2, {%w2, %w2, %w2, %w2}, %p0",
       mn(kAtom32, 4),
       k(k32),
       1u << 4 | 2u << 7 | 2u << 10 | 1u << 15 | k128x64,
       {"M 128 N 64", "tf32 x tf32 -> f32", "A MN-major, 128-byte swizzle of 32-byte atoms",
        "B K-major, 32-byte swizzle", "output lanes disabled", "D not read"}},
      {"f8f6f4",
       "[%t], %a0, %a1, %x2, %p0",
       k(kNone),
       k(kNone),
       1u << 4 | 1u << 10 | k128x64,
       {"M 128 N 64", "e4m3 x e5m2 -> f32", "A K-major, no swizzle", "B K-major, no swizzle", "D not read"}},
      {"f8f6f4",
       "[%t], %a0, %a1, %x2, %p0",
       k(k128),
       k(k128),
       3u << 7 | 4u << 10 | k128x64,
       {"M 128 N 64", "e2m3 x e3m2 -> f16", "A K-major, 128-byte swizzle", "B K-major, 128-byte swizzle",
        "D not read"}},
      {"i8",
       "[%t], %a0, %a1, %x2, %p0",
       k(k128),
       k(k128),
       2u << 4 | 1u << 7 | 1u << 3 | k128x64,
       {"M 128 N 64", "s8 x u8 -> s32", "saturated", "A K-major, 128-byte swizzle", "B K-major, 128-byte swizzle",
        "D not read"}},
      {"mxf8f6f4.block_scale",
       "[%t], %a0, %a1, %x2, [%w3], [%w4], %p0",
       k(k128),
       k(k128),
       1u << 23 | 5u << 7 | 5u << 10 | 2u << 4 | 1u << 29 | kScaled,
       {"M 128 N 64", "e2m1 x e2m1 -> f32", "A K-major, 128-byte swizzle", "B K-major, 128-byte swizzle",
        "ue8m0 scales, ids 1 and 2", "D not read"}},
      {"mxf4nvf4.block_scale.scale_vec::4X",
       "[%t], %a0, %a1, %x2, [%w3], [%w4], %p0",
       k(k128),
       k(k128),
       1u << 7 | 1u << 10 | kScaled,
       {"M 128 N 64", "e2m1 packed x e2m1 packed -> f32", "A K-major, 128-byte swizzle", "B K-major, 128-byte swizzle",
        "ue4m3 scales, ids 0 and 0", "D not read"}},
  };
  return all;
}

TEST(CoverageNotes, DISABLED_OfTensorMemory) {
  for (const NotedMma& c : noted()) {
    std::vector<sim_test::Block> blocks(1);
    for (uint32_t& word : blocks[0].tensor) word = 0;
    sim_test::run_machine(
        "  setp.ne.u32 %p0, %t, %t;\n  add.u32 %w1, %t, 256;\n  mov.u32 %w2, 0;\n  add.u32 %w3, %t, 384;\n"
        "  add.u32 %w4, %t, 400;\n  tcgen05.mma.cta_group::1.kind::" +
            c.kind + " " + c.operands + ";\n" + sim_test::commit(),
        blocks, {c.a.descriptor(), c.b.descriptor(), c.idesc});
  }
}

// What another process writes that runs the test with its notes in a file.
std::string notes_of(const std::string& test) {
  const std::string file = testing::TempDir() + "moxie_sim_notes_" + std::to_string(getpid());
  std::remove(file.c_str());
  const sim_test::Ended ended = sim_test::run_in_own_process("MOXIE_SIM_COVERAGE=" + file, test);
  EXPECT_EQ(ended.status, 0) << ended.said;
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::remove(file.c_str());
  return text;
}

TEST(CoverageNotes, SayWhatDescriptorsChoose) {
  std::set<std::string> expected, got;
  for (const NotedMma& c : noted()) {
    const std::string opcode = "tcgen05.mma.cta_group::1.kind::" + c.kind;
    expected.insert(opcode);
    for (const std::string& note : c.notes) expected.insert(opcode + " " + note);
  }
  std::istringstream text(notes_of("CoverageNotes.DISABLED_OfTensorMemory"));
  for (std::string line; std::getline(text, line);) {
    if (line.rfind("tcgen05.mma", 0) == 0) got.insert(line.substr(0, line.find('\t')));
  }
  EXPECT_EQ(got, expected);
}

TEST(CoverageNotes, AreTheFormsAndLinesThatWereExecuted) {
  const std::string text = notes_of("CoverageNotes.DISABLED_OfAKernel");
  std::string expected;
  for (const char* note :
       {"mov.u32", "@/some/folder/kernel.cu:10", "setp.gt.u32", "bra", "ret", "@/some/folder/kernel.cu:14"})
    expected += note + std::string("\tCoverageNotes.DISABLED_OfAKernel\n");
  EXPECT_EQ(text, expected + "mov.u32\tk\nnot.b32\tk\nret\tk\n");
}

}  // namespace
