// SPDX-License-Identifier: Apache-2.0
// What sm_100a adds to tensor copies (PTX ISA 9.7.9.27.1.2, 5.5.3.4): .cta_group::2, tile::gather4, tile::scatter4.
#include <gtest/gtest.h>

#include <random>

#include "run_ptx.h"
#include "sim/memory/tensor_map.h"

namespace {

using namespace sim_test;

struct Map {
  uint8_t bytes[128];
};

constexpr uint32_t kWidth = 32, kHeight = 24;  // of 32-bit elements

Map map_of(uint64_t address, uint32_t rows, uint32_t columns = kWidth,
           sim::TensorSwizzle swizzle = sim::TensorSwizzle::None) {
  sim::TensorMapFields f;
  f.element = sim::TensorElement::U32;
  f.rank = 2;
  f.address = address;
  f.dims[0] = kWidth;
  f.dims[1] = kHeight;
  f.box[0] = columns;
  f.box[1] = rows;
  f.strides[0] = kWidth * 4;
  f.swizzle = swizzle;
  Map map;
  sim::encode(f, map.bytes);
  return map;
}

std::vector<uint32_t> random_words(size_t n) {
  static std::mt19937 rng(5);
  std::vector<uint32_t> v(n);
  for (uint32_t& x : v) x = static_cast<uint32_t>(rng());
  return v;
}

// Two blocks; the barrier in block 0 sees the copies of both; each block writes its 4 rows of shared memory out.
std::string pair_kernel(const std::string& copies, const std::string& expected_bytes) {
  return R"(
.extern .shared .align 128 .b8 smem[];
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 p_out) {
  .reg .u32 %rank, %bar, %data, %r<16>, %me;
  .reg .u64 %out, %map, %wide;
  .reg .b16 %h;
  .reg .pred %p<4>;
  ld.param.u64 %out, [p_out];
  mov.u64 %map, map;
  cvta.param.u64 %map, %map;
  mov.u32 %rank, %cluster_ctarank;
  mov.u32 %me, %tid.x;
  mov.u32 %r0, smem;
  add.u32 %data, %r0, 128;
  mapa.shared::cluster.u32 %bar, %r0, 0;
  or.b32 %r1, %rank, %me;
  setp.ne.u32 %p0, %r1, 0;
  setp.ne.u32 %p1, %me, 0;
  @%p0 bra READY;
  mbarrier.init.shared::cta.b64 [%r0], 1;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], )" +
         expected_bytes + R"(;
  fence.mbarrier_init.release.cluster;
READY:
  barrier.cluster.arrive;
  barrier.cluster.wait;
  @%p1 bra ISSUED;
  shl.b32 %r2, %rank, 2;
)" + copies +
         R"(
ISSUED:
  setp.ne.u32 %p2, %rank, 0;
  @%p2 bra WAITED;
WAIT:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r0], 0;
  @!%p3 bra WAIT;
WAITED:
  barrier.cluster.arrive;
  barrier.cluster.wait;
  shl.b32 %r3, %me, 2;
  add.u32 %r4, %data, %r3;
  mad.lo.u32 %r5, %rank, 512, %r3;
  cvt.u64.u32 %wide, %r5;
  add.u64 %out, %out, %wide;
  mov.u32 %r6, 0;
DUMP:
  ld.shared.u32 %r7, [%r4];
  st.global.u32 [%out], %r7;
  add.u32 %r4, %r4, 128;
  add.u64 %out, %out, 128;
  add.u32 %r6, %r6, 1;
  setp.lt.u32 %p3, %r6, 4;
  @%p3 bra DUMP;
  ret;
})";
}

struct Result {
  std::vector<uint32_t> out;
  std::string fault;
};
Result run_pair(const std::string& text, const std::vector<uint32_t>& tensor, sim::Order order) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> in(memory, tensor), out(memory, size_t{256}, 0u);
  Shape shape;
  shape.arch = 100;
  shape.grid = shape.cluster = {2, 1, 1};
  shape.dynamic_shared = 1024;
  shape.order = order;
  Result r;
  r.fault = fault_of(text, "k", Params().add(map_of(in.address(), 4)).add(out.address()), memory, shape);
  r.out = out.values();
  return r;
}

TEST(TensorCopySm100, BarrierInThePeer) {
  const std::string copy =
      "  cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%data], [%map, {0, "
      "%r2}], "
      "[%bar];\n";
  for (const sim::Order order : all_orders()) {
    const auto tensor = random_words(kWidth * kHeight);
    const Result r = run_pair(pair_kernel(copy, "1024"), tensor, order);
    EXPECT_EQ(r.fault, "");
    EXPECT_EQ(r.out, std::vector<uint32_t>(tensor.begin(), tensor.begin() + 256));
    // cta_group::1, the default, must have the barrier beside the data.
    for (const char* group : {".cta_group::1", ""}) {
      std::string other = copy;
      other.replace(other.find(".cta_group::2"), 13, group);
      EXPECT_NE(run_pair(pair_kernel(other, "1024"), tensor, order).fault.find("lie in different blocks"),
                std::string::npos);
    }
  }
}

TEST(TensorCopySm100, MulticastThatSignalsTheEvenBlock) {
  const std::string copy =
      "  setp.ne.u32 %p2, %rank, 1;\n  @%p2 bra ISSUED;\n  mov.u16 %h, 3;\n"
      "  cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%data], [%map, {0, %r2}], [%bar], %h;\n";
  for (const sim::Order order : all_orders()) {
    const auto tensor = random_words(kWidth * kHeight);
    const Result r = run_pair(pair_kernel(copy, "1024"), tensor, order);
    EXPECT_EQ(r.fault, "");
    for (size_t i = 0; i < 256; ++i) ASSERT_EQ(r.out[i], tensor[4 * kWidth + i % 128]);
  }
}

// As CUTLASS names the barrier of the even block: by clearing bit 24 of the own one's address.
TEST(TensorCopySm100, BarrierByMask) {
  const std::string copy =
      "  and.b32 %r8, %r0, -16777217;\n"
      "  cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%data], [%map, {0, "
      "%r2}], "
      "[%r8];\n";
  for (const sim::Order order : all_orders()) {
    const auto tensor = random_words(kWidth * kHeight);
    const Result r = run_pair(pair_kernel(copy, "1024"), tensor, order);
    EXPECT_EQ(r.fault, "");
    EXPECT_EQ(r.out, std::vector<uint32_t>(tensor.begin(), tensor.begin() + 256));
  }
}

TEST(TensorCopySm100, FourRows) {
  const std::string text = R"(
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128], .param .u64 p_rows) {
  .reg .u32 %bar, %data, %r<16>;
  .reg .u64 %from, %to, %rows;
  .reg .pred %p<4>;
  ld.param.u64 %rows, [p_rows];
  mov.u64 %from, from;
  cvta.param.u64 %from, %from;
  mov.u64 %to, to;
  cvta.param.u64 %to, %to;
  mov.u32 %bar, smem;
  add.u32 %data, %bar, 1024;
  ld.global.u32 %r0, [%rows];
  ld.global.u32 %r1, [%rows+4];
  ld.global.u32 %r2, [%rows+8];
  ld.global.u32 %r3, [%rows+12];
  ld.global.u32 %r4, [%rows+16];
  ld.global.u32 %r5, [%rows+20];
  ld.global.u32 %r6, [%rows+24];
  ld.global.u32 %r7, [%rows+28];
  mbarrier.init.shared::cta.b64 [%bar], 1;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 256;
  cp.async.bulk.tensor.2d.tile::gather4.shared::cta.global.mbarrier::complete_tx::bytes
    [%data], [%from, {8, %r0, %r1, %r2, %r3}], [%bar];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p0, [%bar], 0;
  @!%p0 bra WAIT;
  cp.async.bulk.tensor.2d.tile::scatter4.global.shared::cta.bulk_group [%to, {16, %r4, %r5, %r6, %r7}], [%data];
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
  ret;
})";
  for (const sim::Order order : all_orders()) {
    for (const auto swizzle : {sim::TensorSwizzle::None, sim::TensorSwizzle::Bytes64}) {
      sim::GlobalMemory memory;
      const auto tensor = random_words(kWidth * kHeight), before = random_words(kWidth * kHeight);
      const std::vector<uint32_t> rows = {3, 23, static_cast<uint32_t>(-1), 7, 5, 0, 24, 22};  // some outside
      Buffer<uint32_t> in(memory, tensor), out(memory, before), list(memory, rows);
      Shape shape;
      shape.arch = 100;
      shape.block = {1, 1, 1};
      shape.dynamic_shared = 2048;
      shape.order = order;
      run_ptx(text, "k",
              Params()
                  .add(map_of(in.address(), 1, 16, swizzle))
                  .add(map_of(out.address(), 1, 16, swizzle))
                  .add(list.address()),
              memory, shape);
      auto want = before;
      for (size_t i = 0; i < 4; ++i) {
        const uint32_t from = rows[i], to = rows[4 + i];
        for (size_t c = 0; c < 16 && to < kHeight; ++c)
          want[to * kWidth + 16 + c] = from < kHeight ? tensor[from * kWidth + 8 + c] : 0;
      }
      EXPECT_EQ(out.values(), want);
    }
  }
}

}  // namespace
