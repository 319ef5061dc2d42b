// SPDX-License-Identifier: Apache-2.0
// Kernels of several devices run at the same time, whoever launches them and in whichever order.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "tests/devices/devices.h"

namespace sim_test {
namespace {

// Stores a number and sets a flag, of itself or of a peer; and waits for a flag, then doubles the number into `out`.
const char kPair[] = R"(
.visible .entry set(.param .u64 p_data, .param .u64 p_flag, .param .u64 p_value)
{
  .reg .b64 %data, %flag, %value;
  .reg .b32 %v, %one, %thread;
  .reg .pred %p;
  ld.param.u64 %data, [p_data];
  ld.param.u64 %flag, [p_flag];
  ld.param.u64 %value, [p_value];
  mov.u32 %thread, %tid.x;
  setp.ne.u32 %p, %thread, 0;
  @%p ret;
  cvt.u32.u64 %v, %value;
  st.global.u32 [%data], %v;
  mov.u32 %one, 1;
  st.release.sys.global.u32 [%flag], %one;
  ret;
}
.visible .entry take(.param .u64 p_data, .param .u64 p_flag, .param .u64 p_out)
{
  .reg .b64 %data, %flag, %out;
  .reg .b32 %v, %thread;
  .reg .pred %p;
  ld.param.u64 %data, [p_data];
  ld.param.u64 %flag, [p_flag];
  ld.param.u64 %out, [p_out];
  mov.u32 %thread, %tid.x;
  setp.ne.u32 %p, %thread, 0;
  @%p ret;
WAIT:
  ld.acquire.sys.global.u32 %v, [%flag];
  setp.eq.u32 %p, %v, 0;
  @%p bra WAIT;
  ld.global.u32 %v, [%data];
  add.u32 %v, %v, %v;
  st.global.u32 [%out], %v;
  ret;
}
// A barrier of all devices: each block of each device tells its own block number to every peer, and waits for all.
.visible .entry barrier(.param .u64 p_flags, .param .u64 p_rank, .param .u64 p_ranks, .param .u64 p_blocks,
                        .param .u64 p_round)
{
  .reg .b64 %table, %at, %rank, %ranks, %blocks, %i, %round, %block;
  .reg .b32 %v, %want, %thread, %b;
  .reg .pred %p;
  ld.param.u64 %table, [p_flags];
  ld.param.u64 %rank, [p_rank];
  ld.param.u64 %ranks, [p_ranks];
  ld.param.u64 %blocks, [p_blocks];
  ld.param.u64 %round, [p_round];
  cvt.u32.u64 %want, %round;
  mov.u32 %b, %ctaid.x;
  cvt.u64.u32 %block, %b;
  mov.u32 %thread, %tid.x;
  setp.ne.u32 %p, %thread, 0;
  @%p ret;
  mov.u64 %i, 0;
TELL:
  mad.lo.u64 %at, %i, 8, %table;
  ld.global.u64 %at, [%at];
  mad.lo.u64 %at, %rank, 4096, %at;
  mad.lo.u64 %at, %block, 4, %at;
  st.release.sys.global.u32 [%at], %want;
  add.u64 %i, %i, 1;
  setp.lt.u64 %p, %i, %ranks;
  @%p bra TELL;
  mad.lo.u64 %at, %rank, 8, %table;
  ld.global.u64 %table, [%at];
  mov.u64 %i, 0;
OUTER:
  mov.u64 %block, 0;
INNER:
  mad.lo.u64 %at, %i, 4096, %table;
  mad.lo.u64 %at, %block, 4, %at;
SPIN:
  ld.acquire.sys.global.u32 %v, [%at];
  setp.lt.u32 %p, %v, %want;
  @%p bra SPIN;
  add.u64 %block, %block, 1;
  setp.lt.u64 %p, %block, %blocks;
  @%p bra INNER;
  add.u64 %i, %i, 1;
  setp.lt.u64 %p, %i, %ranks;
  @%p bra OUTER;
  ret;
}
)";

using Concurrent = SimDevices;

TEST_P(Concurrent, AKernelThatWaitsForAnothersFlagMayBeLaunchedFirst) {
  enable_peers(2);
  const CUdeviceptr window = allocate(1, 256), out = allocate(1, 4);
  OK(launch(1, function(1, kPair, "take"), {window, window + 128, out}));
  OK(launch(0, function(0, kPair, "set"), {window, window + 128, 21}));
  OK(synchronize(1));
  OK(synchronize(0));
  EXPECT_EQ(word(1, out), 42u);
}

TEST_P(Concurrent, AFlagThatIsReadFromThePeersMemoryEndsTheWait) {
  enable_peers(2);
  const CUdeviceptr window = allocate(0, 256), out = allocate(1, 4);
  OK(launch(1, function(1, kPair, "take"), {window, window + 128, out}));
  OK(launch(0, function(0, kPair, "set"), {window, window + 128, 4}));
  on(1);
  OK(CU(cuCtxSynchronize)());
  EXPECT_EQ(word(1, out), 8u);
  OK(synchronize(0));
}

TEST_P(Concurrent, HostThreadsThatWaitForTheirOwnDevicesEnd) {
  enable_peers(2);
  const CUdeviceptr window = allocate(1, 256), out = allocate(1, 4);
  const CUfunction take = function(1, kPair, "take"), set = function(0, kPair, "set");
  CUresult results[2];
  std::thread first([&] {
    results[1] = launch(1, take, {window, window + 128, out});
    if (results[1] == CUDA_SUCCESS) results[1] = synchronize(1);
  });
  std::thread second([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    results[0] = launch(0, set, {window, window + 128, 5});
    if (results[0] == CUDA_SUCCESS) results[0] = synchronize(0);
  });
  first.join();
  second.join();
  EXPECT_EQ(results[0], CUDA_SUCCESS);
  EXPECT_EQ(results[1], CUDA_SUCCESS);
  EXPECT_EQ(word(1, out), 10u);
}

TEST_P(Concurrent, EveryBlockOfEightDevicesWaitsForEveryOther) {
  enable_peers(kDevices);
  constexpr uint64_t kBlocks = 6;
  std::array<CUdeviceptr, kDevices> windows{};
  for (int i = 0; i < kDevices; ++i) windows[i] = allocate(i, 4096 * kDevices);
  std::array<CUdeviceptr, kDevices> tables{};
  std::array<CUfunction, kDevices> barrier{};
  for (int i = 0; i < kDevices; ++i) {
    tables[i] = allocate(i, sizeof windows);
    OK(CU(cuMemcpyHtoD)(tables[i], windows.data(), sizeof windows));
    barrier[i] = function(i, kPair, "barrier");
  }
  for (uint64_t round = 1; round <= 3; ++round) {
    for (int i = 0; i < kDevices; ++i)
      OK(launch(i, barrier[i], {tables[i], static_cast<uint64_t>(i), kDevices, kBlocks, round}, kBlocks));
  }
  for (int i = 0; i < kDevices; ++i) OK(synchronize(i));
  for (int i = 0; i < kDevices; ++i) EXPECT_EQ(word(i, windows[i] + 4096 * 3 + 4 * 5), 3u);
}

IN_ALL_ORDERS(Concurrent);

// Tests that take long, in one order.
class HostThreads : public SimDevicesBase {
 protected:
  void SetUp() override { begin(); }
  void TearDown() override { end(); }
};

// Answers each of eight numbers, when it comes, by the same number.
const char kAnswer[] = R"(
.visible .entry answer(.param .u64 p_asked, .param .u64 p_answer)
{
  .reg .b64 %asked, %answer;
  .reg .b32 %v, %i;
  .reg .pred %p;
  ld.param.u64 %asked, [p_asked];
  ld.param.u64 %answer, [p_answer];
  mov.u32 %i, 1;
WAIT:
  ld.acquire.sys.global.u32 %v, [%asked];
  setp.lt.u32 %p, %v, %i;
  @%p bra WAIT;
  st.release.sys.global.u32 [%answer], %i;
  add.u32 %i, %i, 1;
  setp.le.u32 %p, %i, 8;
  @%p bra WAIT;
  ret;
}
)";

// One thread waits for the kernel, the other writes what the kernel polls and calls nothing.
TEST_F(HostThreads, MayAskAKernelWhileAnotherWaitsForIt) {
  const CUfunction answering = function(0, kAnswer, "answer");
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 256, 0));
  std::memset(pinned, 0, 256);
  std::atomic_ref<uint32_t> asked(static_cast<uint32_t*>(pinned)[0]), answer(static_cast<uint32_t*>(pinned)[32]);
  std::promise<void> uses_the_driver;
  bool answered = true;
  std::thread other([&] {
    on(0);
    uses_the_driver.set_value();
    for (uint32_t i = 1; i <= 8 && answered; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // The kernel looks in vain meanwhile.
      asked = i;
      // The driver looks twenty times a second.
      for (int looks = 0; answer != i && looks < 2000; ++looks)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      answered = answer == i;
    }
    asked = 8;
  });
  uses_the_driver.get_future().wait();
  const auto address = reinterpret_cast<uint64_t>(pinned);
  const CUresult launched = launch(0, answering, {address, address + 128}, 1, 1);
  const CUresult ended = synchronize(0);
  other.join();
  EXPECT_EQ(launched, CUDA_SUCCESS);
  EXPECT_EQ(ended, CUDA_SUCCESS);
  EXPECT_TRUE(answered);
  OK(CU(cuMemFreeHost)(pinned));
}

// With a patience of two seconds the driver believes for as long that the other thread will launch what the kernel
// waits for, and no longer.
TEST_F(HostThreads, ThatEnqueueNothingHideNoDeadlock) {
  setenv("MOXIE_SIM_PATIENCE", "2", 1);
  const CUdeviceptr window = allocate(1, 256), out = allocate(1, 4);
  const CUfunction take = function(1, kPair, "take");
  std::promise<void> uses_the_driver, reported;
  std::future_status status{};
  std::thread other([&] {
    on(0);
    uses_the_driver.set_value();
    status = reported.get_future().wait_for(std::chrono::minutes(1));
  });
  uses_the_driver.get_future().wait();
  const auto begin = std::chrono::steady_clock::now();
  const CUresult launched = launch(1, take, {window, window + 128, out});
  const CUresult ended = synchronize(1);
  const auto end = std::chrono::steady_clock::now();
  reported.set_value();
  other.join();
  unsetenv("MOXIE_SIM_PATIENCE");
  EXPECT_EQ(launched, CUDA_SUCCESS);
  EXPECT_EQ(ended, CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_GE(end - begin, std::chrono::seconds(2));
  EXPECT_THAT(text_of(ended), testing::HasSubstr("deadlock: no warp can go on, 1 warp waits"));
  EXPECT_TRUE(status == std::future_status::ready) << "the report came only when the other thread had ended";
}

}  // namespace
}  // namespace sim_test
