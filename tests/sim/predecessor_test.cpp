// SPDX-License-Identifier: Apache-2.0
// What a grid may not touch while the grid before may still be writing it, and what it leaves for the grid after: every
// instruction that reaches global memory, to the byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/memory/tensor_map.h"
#include "tests/sim/run_ptx.h"

namespace {

using namespace sim_test;

struct Access {
  const char* name;
  bool writes;
  uint32_t bytes;  // of global memory, from byte 256 of p_data on
  std::string text;
  uint32_t threads = 1;
  bool strong = false;  // with a scope that holds other grids
};
void PrintTo(const Access& access, std::ostream* out) { *out << access.name; }

// One thread, or a warp whose lanes are %t. %at the address, %buffer 1,024 bytes of shared memory that hold zeros, %bar
// an mbarrier for one arrival, %map a tensor map of rows of 32 words from p_data on, in boxes of 8 rows.
std::string kernel(const std::string& access, bool waits) {
  return R"(
.visible .entry k(.param .u64 p_data, .param .u64 p_map)
{
  .shared .align 1024 .b8 buffer[1024];
  .shared .align 8 .b64 bar;
  .reg .pred %p, %done;
  .reg .b32 %r<8>, %buffer, %bar, %i, %t;
  .reg .b64 %at, %map, %place;
  ld.param.u64 %at, [p_data];
  ld.param.u64 %map, [p_map];
  add.s64 %at, %at, 256;
  mov.u32 %buffer, buffer;
  mov.u32 %bar, bar;
  mov.u32 %t, %tid.x;
  setp.eq.u32 %p, %t, 0;
  @%p mbarrier.init.shared::cta.b64 [%bar], 1;
  mov.u32 %r0, 0;
  mov.u32 %r2, 2;
  mov.u32 %i, %buffer;
CLEAR:
  st.shared.v4.u32 [%i], {%r0, %r0, %r0, %r0};
  add.u32 %i, %i, 16;
  add.u32 %r1, %buffer, 1024;
  setp.lt.u32 %p, %i, %r1;
  @%p bra CLEAR;
  fence.proxy.async;
)" + std::string(waits ? "  griddepcontrol.wait;\n" : "") +
         access + "  ret;\n}\n";
}

std::string loaded(int bytes, const std::string& copy) {
  return "  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], " + std::to_string(bytes) + ";\n  " + copy +
         "\nW: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;\n  @!%done bra W;\n";
}
std::string stored(const std::string& copy) {
  return "  " + copy + "\n  cp.async.bulk.commit_group;\n  cp.async.bulk.wait_group 0;\n";
}

std::vector<Access> accesses() {
  return {
      {"ld", false, 4, "  ld.global.u32 %r3, [%at];\n"},
      {"ld_u8", false, 1, "  ld.global.u8 %r3, [%at];\n"},
      {"ld_v4", false, 16, "  ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%at];\n"},
      {"ld_generic", false, 4, "  ld.u32 %r3, [%at];\n"},
      {"st", true, 4, "  st.global.u32 [%at], 7;\n"},
      {"st_v4", true, 16, "  st.global.v4.u32 [%at], {%r0, %r0, %r0, %r0};\n"},
      {"st_generic", true, 4, "  st.u32 [%at], 7;\n"},
      {"ld_of_a_warp", false, 128, "  mad.wide.u32 %place, %t, 4, %at;\n  ld.global.u32 %r3, [%place];\n", 32},
      {"st_of_a_warp", true, 128, "  mad.wide.u32 %place, %t, 4, %at;\n  st.global.u32 [%place], 7;\n", 32},
      {"st_u16_of_a_warp", true, 64, "  mad.wide.u32 %place, %t, 2, %at;\n  st.global.u16 [%place], 7;\n", 32},
      {"st_v4_of_a_warp", true, 512,
       "  mad.wide.u32 %place, %t, 16, %at;\n  st.global.v4.u32 [%place], {%r0, %r0, %r0, %r0};\n", 32},
      {"atom_of_a_warp", true, 256,
       "  mad.wide.u32 %place, %t, 8, %at;\n  mov.u64 %map, 1;\n  red.global.add.u64 [%place], %map;\n", 32, true},
      {"atom", true, 4, "  atom.global.add.u32 %r3, [%at], %r2;\n", 1, true},
      {"red", true, 4, "  red.global.add.u32 [%at], %r2;\n", 1, true},
      {"atom_cta", true, 4, "  atom.relaxed.cta.global.add.u32 %r3, [%at], %r2;\n"},
      {"ld_acquire", false, 4, "  ld.acquire.gpu.global.u32 %r3, [%at];\n", 1, true},
      {"ld_acquire_cluster", false, 4, "  ld.acquire.cluster.global.u32 %r3, [%at];\n"},
      {"ld_volatile", false, 4, "  ld.volatile.global.u32 %r3, [%at];\n", 1, true},
      {"st_release", true, 4, "  st.release.sys.global.u32 [%at], 7;\n", 1, true},
      {"st_relaxed_of_a_warp", true, 128,
       "  mad.wide.u32 %place, %t, 4, %at;\n  st.relaxed.gpu.global.u32 [%place], 7;\n", 32, true},
      {"st_relaxed_cta_of_a_warp", true, 128,
       "  mad.wide.u32 %place, %t, 4, %at;\n  st.relaxed.cta.global.u32 [%place], 7;\n", 32},
      {"cp_async", false, 16,
       "  cp.async.cg.shared.global [%buffer], [%at], 16;\n  cp.async.commit_group;\n  cp.async.wait_group 0;\n"},
      {"bulk_load", false, 128,
       loaded(128, "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%buffer], [%at], 128, [%bar];")},
      {"bulk_store", true, 128, stored("cp.async.bulk.global.shared::cta.bulk_group [%at], [%buffer], 128;")},
      {"bulk_reduce", true, 128,
       stored("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%at], [%buffer], 128;")},
      {"tensor_load", false, 1024,
       loaded(1024,
              "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%buffer], "
              "[%map, {%r0, %r2}], [%bar];")},
      {"tensor_store", true, 1024,
       stored("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {%r0, %r2}], [%buffer];")},
      {"tensor_reduce", true, 1024,
       stored("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%map, {%r0, %r2}], [%buffer];")},
  };
}

class Predecessor : public testing::TestWithParam<Access> {
 protected:
  Predecessor() {
    sim::TensorMapFields fields;
    fields.address = data_.address();
    fields.element = sim::TensorElement::U32;
    fields.rank = 2;
    fields.dims = {32, 32, 1, 1, 1};
    fields.strides[0] = 128;
    fields.box = {32, 8, 1, 1, 1};
    sim::encode(fields, map_.data());
  }
  // The report, while the grid before may still be writing `bytes` bytes from the `first` of the access on.
  std::string run(bool waits, int first, uint64_t bytes, const sim::Order& order, sim::WrittenBytes* written = nullptr,
                  bool strongly = false) {
    const auto compiled = prepare_ptx(kernel(GetParam().text, waits), "k");
    const Params params = Params().add(data_.address()).add(map_.address());
    const auto unfinished = std::make_shared<sim::WrittenBytes>();
    (strongly ? unfinished->strong : unfinished->plain).add(begin() + uint64_t(int64_t{first}), bytes);
    sim::Launch launch;
    launch.kernel = compiled.get();
    launch.block = {GetParam().threads, 1, 1};
    launch.params = params.bytes();
    launch.global = &memory_;
    launch.order = order;
    launch.written = written;
    if (bytes > 0) launch.predecessors.unfinished_writes = {unfinished};
    try {
      sim::run(launch);
    } catch (const sim::Fault& fault) {
      EXPECT_EQ(fault.kind, sim::Hazard::DataInFlight);
      return fault.what();
    }
    return "";
  }
  uint64_t begin() const { return data_.address() + 256; }

  sim::GlobalMemory memory_;
  Buffer<uint32_t> data_{memory_, 1024, 1u};
  Buffer<uint8_t> map_{memory_, 128};
};
INSTANTIATE_TEST_SUITE_P(Grids, Predecessor, testing::ValuesIn(accesses()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Predecessor, IsWaitedForBeforeItsWritesAreTouched) {
  const auto size = int(GetParam().bytes);
  const std::string says = GetParam().writes ? "writes to global memory at" : "reads global memory at";
  for (const sim::Order& order : all_orders()) {
    for (const int touched : {0, size - 1}) {
      EXPECT_THAT(run(false, touched, 1, order), testing::HasSubstr(says)) << touched;
      EXPECT_EQ(run(true, touched, 1, order), "");
    }
    EXPECT_EQ(run(false, -16, 16, order), "") << "the bytes before it";
    EXPECT_EQ(run(false, size, 16, order), "") << "the bytes behind it";
  }
}

// So may grids that run at the same time tell each other something (PTX ISA 8.7.1).
TEST_P(Predecessor, StrongAccessesMayMeet) {
  const int last = int(GetParam().bytes) - 1;
  for (const sim::Order& order : all_orders()) {
    for (const int touched : {0, last}) {
      EXPECT_EQ(run(false, touched, 1, order, nullptr, true) == "", GetParam().strong) << touched;
      EXPECT_EQ(run(true, touched, 1, order, nullptr, true), "");
    }
  }
}

TEST_P(Predecessor, ItsOwnWritesAreNoted) {
  for (const sim::Order& order : all_orders()) {
    sim::WrittenBytes written;
    EXPECT_EQ(run(true, 0, 0, order, &written), "");
    const uint64_t size = GetParam().bytes;
    EXPECT_EQ(written.touches(begin(), 1), GetParam().writes);
    EXPECT_EQ(written.touches(begin() + size - 1, 1), GetParam().writes);
    EXPECT_FALSE(written.touches(begin() - 16, 16));
    EXPECT_FALSE(written.touches(begin() + size, 16));
    EXPECT_EQ(written.strong.touches(begin(), size), GetParam().writes && GetParam().strong);
  }
}

}  // namespace
