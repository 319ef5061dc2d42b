// SPDX-License-Identifier: Apache-2.0
// Every special register (PTX ISA 10) in every thread of a grid that has extents of its own in all directions.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "run_ptx.h"

namespace {

using namespace sim_test;

constexpr sim::Dim3 kGrid{4, 6, 2}, kBlock{5, 3, 3}, kCluster{2, 3, 1};
constexpr uint32_t kThreads = 45, kBlocks = 48, kDynamic = 640, kStatic = 1024;

// Where a thread is.
struct Thread {
  uint32_t block[3], thread[3], linear;
  uint32_t lane() const { return linear % 32; }
};

struct Special {
  std::string name, type;
  std::function<uint64_t(const Thread&)> value;
};

std::vector<Special> specials(int arch) {
  const uint64_t multiprocessors = arch == 100 ? 148 : 132;
  const auto is = [](uint64_t value) { return [value](const Thread&) { return value; }; };
  std::vector<Special> all;
  const uint32_t grid[] = {kGrid.x, kGrid.y, kGrid.z}, block[] = {kBlock.x, kBlock.y, kBlock.z},
                 cluster[] = {kCluster.x, kCluster.y, kCluster.z};
  for (size_t d = 0; d < 3; ++d) {
    const std::string letter(1, static_cast<char>('x' + d));
    const uint32_t size = cluster[d];
    all.push_back({"%tid." + letter, "u32", [d](const Thread& t) { return t.thread[d]; }});
    all.push_back({"%ntid." + letter, "u32", is(block[d])});
    all.push_back({"%ctaid." + letter, "u32", [d](const Thread& t) { return t.block[d]; }});
    all.push_back({"%nctaid." + letter, "u32", is(grid[d])});
    all.push_back({"%clusterid." + letter, "u32", [d, size](const Thread& t) { return t.block[d] / size; }});
    all.push_back({"%nclusterid." + letter, "u32", is(grid[d] / size)});
    all.push_back({"%cluster_ctaid." + letter, "u32", [d, size](const Thread& t) { return t.block[d] % size; }});
    all.push_back({"%cluster_nctaid." + letter, "u32", is(size)});
  }
  const std::vector<Special> others = {
      {"%laneid", "u32", [](const Thread& t) { return t.lane(); }},
      {"%warpid", "u32", [](const Thread& t) { return t.linear / 32; }},
      // The most warps that a multiprocessor holds: 2048 threads.
      {"%nwarpid", "u32", is(64)},
      {"%nsmid", "u32", is(multiprocessors)},
      {"%smid", "u32",
       [multiprocessors](const Thread& t) {
         return (t.block[0] + kGrid.x * (t.block[1] + kGrid.y * t.block[2])) % multiprocessors;
       }},
      {"%gridid", "u64", is(1)},
      {"%cluster_ctarank", "u32",
       [](const Thread& t) {
         return t.block[0] % kCluster.x +
                kCluster.x * (t.block[1] % kCluster.y + kCluster.y * (t.block[2] % kCluster.z));
       }},
      {"%cluster_nctarank", "u32", is(6)},
      {"%is_explicit_cluster", "pred", is(1)},
      {"%lanemask_eq", "u32", [](const Thread& t) { return uint64_t{1} << t.lane(); }},
      {"%lanemask_lt", "u32", [](const Thread& t) { return (uint64_t{1} << t.lane()) - 1; }},
      {"%lanemask_le", "u32", [](const Thread& t) { return (uint64_t{2} << t.lane()) - 1; }},
      {"%lanemask_gt", "u32", [](const Thread& t) { return 0xffffffff & ~((uint64_t{2} << t.lane()) - 1); }},
      {"%lanemask_ge", "u32", [](const Thread& t) { return 0xffffffff & ~((uint64_t{1} << t.lane()) - 1); }},
      {"%total_smem_size", "u32", is(kStatic + kDynamic)},
      {"%aggr_smem_size", "u32", is(kStatic + kDynamic)},
      {"%dynamic_smem_size", "u32", is(kDynamic)},
      {"%reserved_smem_offset_begin", "u32", is(kStatic + kDynamic)},
      {"%reserved_smem_offset_end", "u32", is(kStatic + kDynamic + 1024)},
      {"%reserved_smem_offset_cap", "u32", is(1024)},
      {"%reserved_smem_offset_0", "u32", is(kStatic + kDynamic)},
      {"%reserved_smem_offset_1", "u32", is(kStatic + kDynamic + 512)},
      {"%envreg3", "u32", is(0)}};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

std::string program(const Special& special) {
  const std::string read = special.type == "pred"
                               ? ".reg .pred %p; mov.pred %p, " + special.name + "; selp.u64 %v, 1, 0, %p;\n"
                           : special.type == "u64" ? "mov.u64 %v, " + special.name + ";\n"
                                                   : "mov.u32 %w, " + special.name + "; cvt.u64.u32 %v, %w;\n";
  return R"(
.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(.param .u64 p_out) {
  .shared .align 16 .b8 own[1024];
  .reg .b32 %w, %x, %y, %z, %n, %i; .reg .b64 %v, %out;
  ld.param.u64 %out, [p_out];
  mov.u32 %x, %ctaid.x; mov.u32 %y, %ctaid.y; mov.u32 %z, %ctaid.z;
  mad.lo.u32 %i, %z, 6, %y;
  mad.lo.u32 %i, %i, 4, %x;
  mov.u32 %x, %tid.x; mov.u32 %y, %tid.y; mov.u32 %z, %tid.z;
  mad.lo.u32 %n, %z, 3, %y;
  mad.lo.u32 %n, %n, 5, %x;
  mad.lo.u32 %i, %i, 45, %n;
  mad.wide.u32 %out, %i, 8, %out;
)" + read +
         "  st.global.u64 [%out], %v;\n  ret;\n}\n";
}

// cooperative_groups counts there without having set the counters.
TEST(SpecialRegisters, ReservedSharedMemoryIsZeroAtFirst) {
  const auto program = [](const std::string& place) {
    return R"(
.visible .entry k(.param .u64 p_out) {
  .shared .align 4 .b8 own[20];
  .reg .b32 %at, %r; .reg .b64 %out;
  ld.param.u64 %out, [p_out];
  )" + place +
           R"(
  atom.shared.add.u32 %r, [%at], 1;
  mov.u32 %at, %tid.x;
  mad.wide.u32 %out, %at, 4, %out;
  st.global.u32 [%out], %r;
  ret;
})";
  };
  sim::GlobalMemory memory;
  Shape shape;
  shape.block = {32, 1, 1};
  for (const std::string offset : {"mov.u32 %at, %reserved_smem_offset_0;", "mov.u32 %at, %reserved_smem_offset_1;",
                                   "mov.u32 %at, %reserved_smem_offset_end; sub.u32 %at, %at, 4;"}) {
    Buffer<uint32_t> out(memory, 32, ~0u);
    run_ptx(program(offset), "k", Params().add(out.address()), memory, shape);
    for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(out[i], i) << offset;
  }
  Buffer<uint32_t> out(memory, 32, ~0u);
  EXPECT_THAT(
      fault_of(program("mov.u32 %at, %reserved_smem_offset_end;"), "k", Params().add(out.address()), memory, shape),
      testing::HasSubstr("block's 1056 bytes"));
  EXPECT_THAT(fault_of(program("mov.u32 %at, 32;"), "k", Params().add(out.address()), memory, shape),
              testing::HasSubstr("block's 20 bytes"));
}

TEST(SpecialRegisters, HaveTheirValuesInEveryThread) {
  for (const int arch : {90, 100}) {
    for (const Special& special : specials(arch)) {
      sim::GlobalMemory memory;
      Buffer<uint64_t> out(memory, size_t{kThreads * kBlocks}, ~uint64_t{0});
      Shape shape;
      shape.arch = arch;
      shape.grid = kGrid;
      shape.block = kBlock;
      shape.cluster = kCluster;
      shape.dynamic_shared = kDynamic;
      run_ptx(program(special), "k", Params().add(out.address()), memory, shape);
      for (uint32_t b = 0; b < kBlocks; ++b) {
        for (uint32_t n = 0; n < kThreads; ++n) {
          const Thread t{{b % kGrid.x, b / kGrid.x % kGrid.y, b / kGrid.x / kGrid.y},
                         {n % kBlock.x, n / kBlock.x % kBlock.y, n / kBlock.x / kBlock.y},
                         n};
          ASSERT_EQ(out[b * kThreads + n], special.value(t)) << special.name << " block " << b << " thread " << n;
        }
      }
    }
  }
}

// 10.26 to 10.29: they grow, and their halves are halves of the same.
TEST(SpecialRegisters, ClocksGrow) {
  sim::GlobalMemory memory;
  for (const std::string name : {"%clock64", "%globaltimer"}) {
    const std::string low = name == "%clock64" ? "%clock" : "%globaltimer_lo",
                      high = name == "%clock64" ? "%clock_hi" : "%globaltimer_hi";
    Buffer<uint64_t> out(memory, 4, uint64_t{77});
    run_ptx(R"(
.visible .entry k(.param .u64 p_out) {
  .reg .b32 %lo, %hi; .reg .b64 %out, %a, %b, %c, %d;
  ld.param.u64 %out, [p_out];
  mov.u64 %a, )" +
                name + ";\n  mov.u64 %b, " + name + ";\n  mov.u32 %lo, " + low + ";\n  mov.u32 %hi, " + high + R"(;
  mov.b64 %c, {%lo, %hi};
  mov.u64 %d, )" +
                name + R"(;
  st.global.v2.u64 [%out], {%a, %b};
  st.global.v2.u64 [%out+16], {%c, %d};
  ret;
})",
            "k", Params().add(out.address()), memory, {});
    EXPECT_LT(out[0], out[1]) << name;
    EXPECT_LT(out[1], out[2]) << name;
    EXPECT_LT(out[2], out[3]) << name;
    EXPECT_LT(out[3], uint64_t{1} << 32) << name << ": a kernel of a few instructions";
  }
}

// Without clusters in the launch a block is a cluster of its own.
TEST(SpecialRegisters, WithoutAClusterABlockIsOne) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 3 * 4, 77u);
  Shape shape;
  shape.grid = {3, 1, 1};
  shape.block = {1, 1, 1};
  run_ptx(R"(
.visible .entry k(.param .u64 p_out) {
  .reg .b32 %a, %b, %c, %d, %i; .reg .b64 %out; .reg .pred %p;
  ld.param.u64 %out, [p_out];
  mov.u32 %i, %ctaid.x;
  mad.wide.u32 %out, %i, 16, %out;
  mov.pred %p, %is_explicit_cluster;
  selp.u32 %a, 1, 0, %p;
  mov.u32 %b, %cluster_ctarank;
  mov.u32 %c, %cluster_nctarank;
  mov.u32 %d, %clusterid.x;
  st.global.v4.u32 [%out], {%a, %b, %c, %d};
  ret;
})",
          "k", Params().add(out.address()), memory, shape);
  EXPECT_EQ(out.values(), (std::vector<uint32_t>{0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 1, 2}));
}

}  // namespace
