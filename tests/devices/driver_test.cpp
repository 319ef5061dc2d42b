// SPDX-License-Identifier: Apache-2.0
// What the driver says of several devices and their memory, and what becomes of work that one host thread enqueues on
// them.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "tests/devices/devices.h"

namespace sim_test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

const char kKernels[] = R"(
.visible .entry store(.param .u64 p_at, .param .u64 p_value)
{
  .reg .b64 %at, %value;
  .reg .b32 %v;
  ld.param.u64 %at, [p_at];
  ld.param.u64 %value, [p_value];
  cvt.u32.u64 %v, %value;
  st.global.u32 [%at], %v;
  ret;
}
.visible .entry add_on(.param .u64 p_at, .param .u64 p_value)
{
  .reg .b64 %at, %value;
  .reg .b32 %v;
  ld.param.u64 %at, [p_at];
  ld.param.u64 %value, [p_value];
  cvt.u32.u64 %v, %value;
  red.relaxed.sys.global.add.u32 [%at], %v;
  ret;
}
.visible .entry copy(.param .u64 p_to, .param .u64 p_from)
{
  .reg .b64 %to, %from;
  .reg .b32 %v;
  ld.param.u64 %to, [p_to];
  ld.param.u64 %from, [p_from];
  ld.global.u32 %v, [%from];
  st.global.u32 [%to], %v;
  ret;
}
.visible .entry signal(.param .u64 p_flag, .param .u64 p_unused)
{
  .reg .b64 %flag;
  ld.param.u64 %flag, [p_flag];
  st.release.sys.global.u32 [%flag], 1;
  ret;
}
.visible .entry wait(.param .u64 p_flag, .param .u64 p_unused)
{
  .reg .b64 %flag;
  .reg .b32 %v;
  .reg .pred %p;
  ld.param.u64 %flag, [p_flag];
WAIT:
  ld.acquire.sys.global.u32 %v, [%flag];
  setp.eq.u32 %p, %v, 0;
  @%p bra WAIT;
  ret;
}
.visible .entry signal_late(.param .u64 p_flag, .param .u64 p_steps)
{
  .reg .b64 %flag, %left;
  .reg .pred %p;
  ld.param.u64 %flag, [p_flag];
  ld.param.u64 %left, [p_steps];
COUNT:
  sub.u64 %left, %left, 1;
  setp.ne.u64 %p, %left, 0;
  @%p bra COUNT;
  st.release.sys.global.u32 [%flag], 1;
  ret;
}
// Each block takes the next number.
.visible .entry draw(.param .u64 p_ticket, .param .u64 p_out)
{
  .reg .b64 %ticket, %out;
  .reg .b32 %b, %v;
  ld.param.u64 %ticket, [p_ticket];
  ld.param.u64 %out, [p_out];
  mov.u32 %b, %ctaid.x;
  mad.wide.u32 %out, %b, 4, %out;
  atom.relaxed.gpu.global.add.u32 %v, [%ticket], 1;
  st.global.u32 [%out], %v;
  ret;
}
// Gives up after a second by its own clock, and stores 7.
.visible .entry wait_a_second(.param .u64 p_flag, .param .u64 p_out)
{
  .reg .b64 %flag, %out, %begin, %now;
  .reg .b32 %v;
  .reg .pred %p;
  ld.param.u64 %flag, [p_flag];
  ld.param.u64 %out, [p_out];
  mov.u64 %begin, %globaltimer;
AGAIN:
  ld.acquire.sys.global.u32 %v, [%flag];
  setp.ne.u32 %p, %v, 0;
  @%p ret;
  mov.u64 %now, %globaltimer;
  sub.u64 %now, %now, %begin;
  setp.lt.u64 %p, %now, 1000000000;
  @%p bra AGAIN;
  st.global.u32 [%out], 7;
  ret;
}
)";

class Devices : public SimDevices {
 protected:
  CUresult run(int device, const char* name, uint64_t a, uint64_t b = 0) {
    return launch(device, function(device, kKernels, name), {a, b}, 1, 1);
  }

  // A kernel on each of devices 0 and 1 waits for a flag that nobody sets. Returns what the driver prints.
  std::string report_of_waiting(CUdeviceptr flag_of_0, CUdeviceptr flag_of_1) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(run(0, "wait", flag_of_0), CUDA_SUCCESS);
    EXPECT_EQ(run(1, "wait", flag_of_1), CUDA_SUCCESS);
    EXPECT_EQ(synchronize(0), CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQ(synchronize(1), CUDA_ERROR_LAUNCH_FAILED);
    return testing::internal::GetCapturedStderr();
  }
};
IN_ALL_ORDERS(Devices);

TEST_P(Devices, AreEightAndReachEachOther) {
  int count = 0, can = 0, native = 0;
  OK(CU(cuDeviceGetCount)(&count));
  EXPECT_EQ(count, kDevices);
  OK(CU(cuDeviceCanAccessPeer)(&can, 2, 5));
  EXPECT_EQ(can, 1);
  OK(CU(cuDeviceGetP2PAttribute)(&native, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 2, 5));
  EXPECT_EQ(native, 1);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuDeviceGetP2PAttribute)(&native, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 2, 2));
  CUdevice device = 0;
  FAILS(CUDA_ERROR_INVALID_DEVICE, CU(cuDeviceGet)(&device, kDevices));
  on(3);
  OK(CU(cuCtxGetDevice)(&device));
  EXPECT_EQ(device, 3);
  const CUdeviceptr there = allocate(5, 64);
  int owner = -1;
  OK(CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there));
  EXPECT_EQ(owner, 5);
  on(3);
  OK(CU(cuCtxEnablePeerAccess)(context[5], 0));
  FAILS(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CU(cuCtxEnablePeerAccess)(context[5], 0));
  FAILS(CUDA_ERROR_INVALID_DEVICE, CU(cuCtxEnablePeerAccess)(context[3], 0));
  OK(CU(cuCtxDisablePeerAccess)(context[5]));
  FAILS(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, CU(cuCtxDisablePeerAccess)(context[5]));
}

TEST_P(Devices, AccessThatWasNotEnabledIsAFaultThatNamesBoth) {
  const CUdeviceptr there = allocate(1, 64);
  OK(run(0, "store", there, 1));
  EXPECT_EQ(synchronize(0), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(text_of(CUDA_ERROR_ILLEGAL_ADDRESS),
              AllOf(HasSubstr("memory: "), HasSubstr("belongs to device 1"), HasSubstr("device 0 has no access"),
                    HasSubstr("device 0, block (0,0,0)")));
  EXPECT_EQ(synchronize(1), CUDA_SUCCESS) << "the other device has done nothing wrong";
  EXPECT_EQ(word(1, there), 0u);
}

TEST_P(Devices, AtomicsAndCopiesReachAPeer) {
  enable_peers(3);
  const CUdeviceptr sum = allocate(1, 64), copy = allocate(2, 64);
  for (int device = 0; device < 3; ++device) OK(run(device, "add_on", sum, 10 + device));
  for (int device = 0; device < 3; ++device) OK(synchronize(device));
  EXPECT_EQ(word(1, sum), 33u);
  OK(CU(cuMemcpyPeer)(copy, context[2], sum, context[1], 64));
  EXPECT_EQ(word(2, copy), 33u);
  OK(CU(cuMemcpyPeerAsync)(copy + 32, context[2], sum, context[1], 4, stream[2]));
  OK(synchronize(2));
  EXPECT_EQ(word(0, copy + 32), 33u) << "any context may copy from any device";
}

TEST_P(Devices, EventsOrderWorkOfDevices) {
  enable_peers(2);
  const CUdeviceptr window = allocate(1, 64), out = allocate(1, 64);
  CUevent event = nullptr;
  on(0);
  OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
  OK(run(0, "store", window, 9));
  on(0);
  OK(CU(cuEventRecord)(event, stream[0]));
  OK(CU(cuStreamWaitEvent)(stream[1], event, 0));
  OK(run(1, "copy", out, window));
  OK(synchronize(1));
  EXPECT_EQ(word(1, out), 9u);
}

TEST_P(Devices, WithoutTheEventItIsARace) {
  enable_peers(2);
  const CUdeviceptr window = allocate(1, 64), out = allocate(1, 64);
  OK(run(0, "store", window, 9));
  OK(run(1, "copy", out, window));
  const CUresult first = synchronize(0);
  std::string text = first != CUDA_SUCCESS ? text_of(first) : "";
  const CUresult second = synchronize(1);
  if (second != CUDA_SUCCESS) text = text_of(second);
  EXPECT_THAT(text, AllOf(HasSubstr("race: "), HasSubstr("of device 1, which kernel '"), HasSubstr("an event")));
}

// Memory of these kinds belongs to no device, and what the host does to it is not known.
TEST_P(Devices, AccessesOfPinnedAndManagedMemoryAreNotJudged) {
  on(0);
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 64, CU_MEMHOSTALLOC_PORTABLE));
  CUdeviceptr managed = 0;
  OK(CU(cuMemAllocManaged)(&managed, 64, CU_MEM_ATTACH_GLOBAL));
  for (const CUdeviceptr place : {reinterpret_cast<CUdeviceptr>(pinned), managed}) {
    for (const int device : {0, 1}) OK(run(device, "store", place, 9));
    for (const int device : {0, 1}) OK(synchronize(device));
    EXPECT_EQ(*reinterpret_cast<uint32_t*>(place), 9u);
  }
  OK(CU(cuMemFreeHost)(pinned));
  OK(CU(cuMemFree)(managed));
}

// As in pytorch/pytorch 196546 and NVIDIA/nvshmem 98: a rank clears its own flag when peers may set it already.
TEST_P(Devices, AFillThatNothingOrdersWithAPeersSignalIsARace) {
  enable_peers(2);
  const CUdeviceptr flag = allocate(1, 64);
  OK(run(0, "signal", flag));
  on(1);
  OK(CU(cuMemsetD32Async)(flag, 0, 16, stream[1]));
  OK(run(1, "wait", flag));
  std::string text;
  for (int device = 0; device < 2; ++device) {
    const CUresult result = synchronize(device);
    if (result != CUDA_SUCCESS && text.find("race") == std::string::npos) text = text_of(result);
  }
  // Whichever of the two has its turn later is reported, and names the other.
  EXPECT_THAT(text, AllOf(HasSubstr("race: "), HasSubstr("fill of device 1"),
                          AnyOf(HasSubstr("kernel 'signal' of device 0"), HasSubstr("device 0, block (0,0,0)"))));
}

// The fill comes after a kernel that waits until nothing else can go on, so that it is the fill which is reported.
TEST_P(Devices, AFillOfWhatAPeerHasWrittenIsARace) {
  enable_peers(2);
  const CUdeviceptr window = allocate(1, 64), flag = allocate(1, 64), out = allocate(1, 64);
  OK(run(0, "store", window, 9));
  OK(run(1, "wait_a_second", flag, out));
  on(1);
  OK(CU(cuMemsetD32Async)(window, 0, 16, stream[1]));
  const CUresult result = synchronize(1);
  ASSERT_NE(result, CUDA_SUCCESS);
  EXPECT_THAT(text_of(result),
              AllOf(HasSubstr("race: a fill of device 1 writes to global memory at "),
                    HasSubstr("of device 1, which kernel 'store' of device 0 wrote"), HasSubstr("an event")));
  OK(synchronize(0));
}

TEST_P(Devices, AFillThatAnEventOrdersIsNone) {
  enable_peers(2);
  const CUdeviceptr flag = allocate(1, 64);
  CUevent cleared = nullptr;
  on(1);
  OK(CU(cuEventCreate)(&cleared, CU_EVENT_DISABLE_TIMING));
  OK(CU(cuMemsetD32Async)(flag, 0, 16, stream[1]));
  OK(CU(cuEventRecord)(cleared, stream[1]));
  OK(run(1, "wait", flag));
  OK(CU(cuStreamWaitEvent)(stream[0], cleared, 0));
  OK(run(0, "signal", flag));
  OK(synchronize(0));
  OK(synchronize(1));
}

// Its accesses are forgotten, where there have been any.
TEST_P(Devices, MemoryIsFreedWhetherAPeerHasUsedItOrNot) {
  enable_peers(2);
  for (const bool used : {false, true}) {
    const CUdeviceptr there = allocate(1, 64), others = allocate(1, 64);
    if (used) {
      OK(run(0, "store", there, 3));
    }
    OK(synchronize(0));
    on(1);
    OK(CU(cuMemFree)(there));
    OK(run(0, "store", others, 4));
    OK(synchronize(0));
    EXPECT_EQ(word(1, others), 4u);
    on(1);
    OK(CU(cuMemFree)(others));
  }
}

TEST_P(Devices, ADeadlockNamesAllDevicesThatWait) {
  enable_peers(2);
  const CUdeviceptr here = allocate(0, 64), there = allocate(1, 64);
  const std::string report = report_of_waiting(there, here);
  EXPECT_THAT(report,
              AllOf(HasSubstr("deadlock: no warp can go on, 2 warps wait"), HasSubstr("kernel 'wait' of device 0:"),
                    HasSubstr("kernel 'wait' of device 1:"), HasSubstr("of device 0, which nobody changes"),
                    HasSubstr("of device 1, which nobody changes")));
}

// No device reaches the other's memory. One host thread looks at the waiting kernels of both, one after the other.
TEST_P(Devices, ADeadlockOfDevicesThatReachNoOther) {
  const std::string report = report_of_waiting(allocate(0, 64), allocate(1, 64));
  EXPECT_THAT(report, HasSubstr("deadlock: no warp can go on, 2 warps wait"));
}

// A kernel that faults ends no other kernel of its context. When another one is stuck later, the context still answers
// with the fault.
TEST_P(Devices, ADeadlockBehindAFaultIsNotAnswered) {
  const CUdeviceptr flag = allocate(0, 64), there = allocate(1, 64);
  CUstream other = nullptr;
  on(0);
  OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
  testing::internal::CaptureStderr();
  OK(run(0, "wait", flag));
  const CUstream own = std::exchange(stream[0], other);
  OK(run(0, "store", flag + 64));
  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, synchronize(0));
  stream[0] = own;
  OK(run(1, "wait", there));
  FAILS(CUDA_ERROR_LAUNCH_FAILED, synchronize(1));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("memory: "), HasSubstr("deadlock: no warp can go on, 2 warps wait")));
  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, synchronize(0));
}

TEST_P(Devices, ADeadlockShowsSixteenClustersOfAKernel) {
  enable_peers(2);
  const CUdeviceptr there = allocate(1, 64);
  testing::internal::CaptureStderr();
  OK(launch(0, function(0, kKernels, "wait"), {there, 0}, 18, 1));
  EXPECT_EQ(synchronize(0), CUDA_ERROR_LAUNCH_FAILED);
  const std::string report = testing::internal::GetCapturedStderr();
  size_t lines = 0;
  for (size_t at = 0; (at = report.find("\n  device 0, block (", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 16u) << report;
  EXPECT_THAT(report, HasSubstr("\n  and 2 more clusters of this kernel"));
}

// It neither stores nor waits for longer than a wait is looked at.
TEST_P(Devices, AKernelThatComputesForLongIsNoDeadlock) {
  enable_peers(2);
  const CUdeviceptr flag = allocate(1, 64);
  OK(run(0, "wait", flag));
  OK(run(1, "signal_late", flag, 2'000'000));
  OK(synchronize(0));
  OK(synchronize(1));
}

// Blocks that wait for nobody come in the order of their numbers, or the other way round.
TEST_P(Devices, BlocksTakeTurnsInOrder) {
  const CUdeviceptr ticket = allocate(0, 64), out = allocate(0, 64);
  constexpr uint32_t kBlocks = 4;
  OK(launch(0, function(0, kKernels, "draw"), {ticket, out}, kBlocks, 1));
  OK(synchronize(0));
  std::vector<uint32_t> drawn;
  for (uint32_t i = 0; i < kBlocks; ++i) drawn.push_back(word(0, out + 4 * i));
  const std::string order = GetParam();
  if (order == "lazy") std::reverse(drawn.begin(), drawn.end());
  if (order.starts_with("random")) std::sort(drawn.begin(), drawn.end());
  EXPECT_EQ(drawn, (std::vector<uint32_t>{0, 1, 2, 3}));
}

TEST_P(Devices, AKernelThatLooksAtAClockGivesUpByItself) {
  enable_peers(2);
  const CUdeviceptr flag = allocate(1, 64), out = allocate(0, 64);
  OK(run(0, "wait_a_second", flag, out));
  OK(synchronize(0));
  EXPECT_EQ(word(0, out), 7u);
}

TEST_P(Devices, AQueryAnswersThatAKernelStillWaits) {
  enable_peers(2);
  const CUdeviceptr flag = allocate(1, 64);
  OK(run(1, "wait", flag));
  on(1);
  FAILS(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(stream[1]));
  OK(run(0, "signal", flag));
  on(1);
  OK(CU(cuStreamQuery)(stream[1]));
  OK(synchronize(0));
}

// The host has written to memory that the kernel polls.
TEST_P(Devices, AQueryAnswersThatAKernelHasSeenWhatTheHostWrote) {
  on(0);
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 64, 0));
  std::atomic_ref<uint32_t> flag(*static_cast<uint32_t*>(pinned));
  flag = 0;
  OK(run(0, "wait", reinterpret_cast<uint64_t>(pinned)));
  FAILS(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(stream[0]));
  flag = 1;
  OK(CU(cuStreamQuery)(stream[0]));
  OK(CU(cuMemFreeHost)(pinned));
}

TEST_P(Devices, TheLegacyStreamAndAStreamThatBlocksWaitForEachOther) {
  enable_peers(2);
  const CUdeviceptr flag = allocate(1, 64), data = allocate(0, 64);
  on(0);
  CUstream blocking = nullptr;
  OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
  for (const auto& [first, second] : {std::pair<CUstream, CUstream>{nullptr, blocking}, {blocking, nullptr}}) {
    const CUstream own = std::exchange(stream[0], first);
    OK(run(0, "wait", flag));
    stream[0] = own;
    // The host waits for both, and the second stream's work comes after the first one's.
    FAILS(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(nullptr));
    OK(CU(cuMemsetD32Async)(data, 1, 16, second));
    FAILS(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(second));
    OK(CU(cuStreamQuery)(own)) << "a stream that does not block waits for neither";
    OK(run(1, "signal", flag));
    on(0);
    OK(CU(cuStreamQuery)(second));
    OK(CU(cuStreamQuery)(first));
    OK(synchronize(1));
    on(1);
    OK(CU(cuMemsetD32)(flag, 0, 16));
    OK(CU(cuCtxSynchronize)());
    on(0);
  }
  OK(CU(cuStreamDestroy)(blocking));
}

// The legacy stream has work behind that of the stream which is asked.
TEST_P(Devices, AStreamThatBlocksIsAskedForItsOwnWorkAlone) {
  enable_peers(2);
  const CUdeviceptr flag = allocate(1, 64), data = allocate(0, 64);
  on(0);
  CUstream blocking = nullptr;
  OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
  OK(CU(cuMemsetD32Async)(data, 1, 16, blocking));
  const CUstream own = std::exchange(stream[0], nullptr);
  OK(run(0, "wait", flag));
  stream[0] = own;
  OK(CU(cuStreamQuery)(blocking));
  OK(CU(cuStreamSynchronize)(blocking));
  FAILS(CUDA_ERROR_NOT_READY, CU(cuStreamQuery)(nullptr));
  OK(run(1, "signal", flag));
  on(0);
  OK(CU(cuStreamSynchronize)(nullptr));
  OK(CU(cuStreamDestroy)(blocking));
}

TEST_P(Devices, WhoHasWaitedForAnEventFindsWhatWasDoneBeforeIt) {
  on(0);
  void* pinned = nullptr;
  OK(CU(cuMemHostAlloc)(&pinned, 64, 0));
  std::memset(pinned, 0, 64);
  CUevent event = nullptr;
  OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
  OK(run(0, "store", reinterpret_cast<uint64_t>(pinned), 9));
  OK(CU(cuEventRecord)(event, stream[0]));
  OK(CU(cuEventSynchronize)(event));
  EXPECT_EQ(*static_cast<uint32_t*>(pinned), 9u);
  OK(CU(cuEventDestroy)(event));
  OK(CU(cuMemFreeHost)(pinned));
}

TEST_P(Devices, AGraphOverTwoDevicesRunsBoth) {
  enable_peers(2);
  const CUdeviceptr flag = allocate(1, 64);
  const CUfunction wait = function(1, kKernels, "wait"), signal = function(0, kKernels, "signal");
  CUevent fork = nullptr, join = nullptr;
  on(1);
  OK(CU(cuEventCreate)(&join, CU_EVENT_DISABLE_TIMING));
  on(0);
  OK(CU(cuEventCreate)(&fork, CU_EVENT_DISABLE_TIMING));
  OK(CU(cuStreamBeginCapture)(stream[0], CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(CU(cuEventRecord)(fork, stream[0]));
  OK(CU(cuStreamWaitEvent)(stream[1], fork, 0));
  OK(launch(1, wait, {flag, 0}, 1, 1));
  OK(launch(0, signal, {flag, 0}, 1, 1));
  on(1);
  OK(CU(cuEventRecord)(join, stream[1]));
  on(0);
  OK(CU(cuStreamWaitEvent)(stream[0], join, 0));
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  OK(CU(cuStreamEndCapture)(stream[0], &graph));
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) {
    on(1);
    OK(CU(cuMemsetD32)(flag, 0, 1));
    OK(CU(cuCtxSynchronize)());
    on(0);
    OK(CU(cuGraphLaunch)(exec, stream[0]));
    OK(synchronize(0));
    EXPECT_EQ(word(1, flag), 1u);
  }
  OK(CU(cuGraphExecDestroy)(exec));
  OK(CU(cuGraphDestroy)(graph));
}

// Memory of device 1 at two addresses, of which device 0 has access to the second.
TEST_P(Devices, MemoryIsMappedIntoAPeer) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  size_t granularity = 0;
  OK(CU(cuMemGetAllocationGranularity)(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemGenericAllocationHandle memory = 0;
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemCreate)(&memory, granularity - 1, &properties, 0));
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  FAILS(CUDA_ERROR_NOT_SUPPORTED, CU(cuMemCreate)(&memory, granularity, &properties, 0));
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  OK(CU(cuMemCreate)(&memory, granularity, &properties, 0));
  CUdeviceptr own = 0, peer = 0;
  OK(CU(cuMemAddressReserve)(&own, granularity, 0, 0, 0));
  OK(CU(cuMemAddressReserve)(&peer, granularity, 0, 0, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemMap)(own, 2 * granularity, 0, memory, 0));
  OK(CU(cuMemMap)(own, granularity, 0, memory, 0));
  OK(CU(cuMemMap)(peer, granularity, 0, memory, 0));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemMap)(peer, granularity, 0, memory, 0));
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {1}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(CU(cuMemSetAccess)(own, granularity, &access, 1));
  access.location.id = 0;
  OK(CU(cuMemSetAccess)(peer, granularity, &access, 1));
  const CUdeviceptr out = allocate(1, 64);
  on(1);
  OK(CU(cuMemsetD8)(own, 0, 4096));
  OK(CU(cuCtxSynchronize)());
  OK(run(1, "wait", own + 64));
  OK(run(1, "copy", out, own));
  OK(run(0, "store", peer, 5));
  OK(run(0, "signal", peer + 64));
  OK(synchronize(0));
  OK(synchronize(1));
  EXPECT_EQ(word(1, out), 5u);
  unsigned long long flags = 1;
  OK(CU(cuMemGetAccess)(&flags, &access.location, own));
  EXPECT_EQ(flags, 0u);
  OK(CU(cuMemRelease)(memory));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAddressFree)(peer, granularity));
  OK(CU(cuMemUnmap)(peer, granularity));
  OK(run(0, "store", own, 5));
  EXPECT_EQ(synchronize(0), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(text_of(CUDA_ERROR_ILLEGAL_ADDRESS), HasSubstr("it was not mapped for that device"));
  OK(CU(cuMemUnmap)(own, granularity));
  OK(CU(cuMemAddressFree)(own, granularity));
  OK(CU(cuMemAddressFree)(peer, granularity));
}

// Of two pieces of memory side by side the device may access the first alone: a copy that goes over the boundary says
// so.
TEST_P(Devices, MappedMemorySideBySideNeedsAccessToEachPiece) {
  constexpr char kPrefetch[] = R"(
.version 8.6
.target sm_90a
.address_size 64
.visible .entry prefetch(.param .u64 p_at) {
  .reg .b64 %at;
  ld.param.u64 %at, [p_at];
  cp.async.bulk.prefetch.L2.global [%at], 128;
  ret;
}
)";
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  size_t unit = 0;
  OK(CU(cuMemGetAllocationGranularity)(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUdeviceptr at = 0;
  OK(CU(cuMemAddressReserve)(&at, 2 * unit, 0, 0, 0));
  for (int piece = 0; piece < 2; ++piece) {
    CUmemGenericAllocationHandle memory = 0;
    OK(CU(cuMemCreate)(&memory, unit, &properties, 0));
    const CUdeviceptr place = at + static_cast<size_t>(piece) * unit;
    OK(CU(cuMemMap)(place, unit, 0, memory, 0));
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {piece}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(CU(cuMemSetAccess)(place, unit, &access, 1));
    OK(CU(cuMemRelease)(memory));
  }
  on(0);
  CUdeviceptr from = at + unit - 128;
  void* params[] = {&from};
  const CUfunction prefetch = function(0, kPrefetch, "prefetch");
  OK(CU(cuLaunchKernel)(prefetch, 1, 1, 1, 1, 1, 1, 0, stream[0], params, nullptr));
  OK(synchronize(0));
  from += 64;
  OK(CU(cuLaunchKernel)(prefetch, 1, 1, 1, 1, 1, 1, 0, stream[0], params, nullptr));
  EXPECT_EQ(synchronize(0), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(text_of(CUDA_ERROR_ILLEGAL_ADDRESS), HasSubstr("it was not mapped for that device"));
  OK(CU(cuMemUnmap)(at, 2 * unit));
  OK(CU(cuMemAddressFree)(at, 2 * unit));
}

TEST_P(Devices, CopiesFromOrdinaryMemoryTakeWhatItHoldsWhenTheyAreEnqueued) {
  const CUdeviceptr flag = allocate(0, 64), data = allocate(0, 64);
  OK(run(0, "wait", flag));
  uint32_t value = 11;
  on(0);
  OK(CU(cuMemcpyHtoDAsync)(data, &value, 4, stream[0]));
  value = 12;
  CUstream other = nullptr;
  OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
  const CUfunction signal = function(0, kKernels, "signal");
  uint64_t unused = 0;
  CUdeviceptr at = flag;
  void* params[] = {&at, &unused};
  OK(CU(cuLaunchKernel)(signal, 1, 1, 1, 1, 1, 1, 0, other, params, nullptr));
  OK(synchronize(0));
  EXPECT_EQ(word(0, data), 11u);
}

}  // namespace
}  // namespace sim_test
