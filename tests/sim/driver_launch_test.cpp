// SPDX-License-Identifier: Apache-2.0
// Launches: their checks, occupancy, and what becomes of a kernel that fails.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <string>

#include "tests/sim/driver.h"
#include "tests/sim/hazard_files.h"

namespace sim_test {
namespace {

TEST_F(SimDriver, LaunchComputes) {
  CUdeviceptr data = upload(iota(1000));
  OK(scale_add(data, 1000));
  const auto out = download(data, 1000);
  for (uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(out[i], i * 4);
  // A parameter buffer does the same as an array of parameters.
  struct {
    CUdeviceptr data;
    uint32_t count;
  } packed{data, 1000};
  size_t size = 12;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  OK(CU(cuLaunchKernel)(function("scale_add"), 8, 1, 1, 128, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(download(data, 1000)[999], 999u * 4 * 3 + 999);
  size = 8;
  FAILS(CUDA_ERROR_INVALID_VALUE,
        CU(cuLaunchKernel)(function("scale_add"), 8, 1, 1, 128, 1, 1, 0, nullptr, nullptr, extra));
  FAILS(CUDA_ERROR_INVALID_VALUE, launch("scale_add", 1, 32)) << "no parameters";
}

TEST_F(SimDriver, LaunchConfigurationIsChecked) {
  FAILS(CUDA_ERROR_INVALID_VALUE, launch("wait_for_nobody", 0, 32));
  FAILS(CUDA_ERROR_INVALID_VALUE, launch("wait_for_nobody", 1, 1025));
  FAILS(CUDA_ERROR_INVALID_VALUE,
        CU(cuLaunchKernel)(function("bounded"), 1, 65536, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  OK(launch("bounded", 1, 64));
  FAILS(CUDA_ERROR_INVALID_VALUE, launch("bounded", 1, 65)) << "above .maxntid";
  int value = 0;
  OK(CU(cuFuncGetAttribute)(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function("bounded")));
  EXPECT_EQ(value, 64);

  CUfunction f = function("bounded");
  OK(launch("bounded", 1, 32, 48 * 1024));
  FAILS(CUDA_ERROR_INVALID_VALUE, launch("bounded", 1, 32, 48 * 1024 + 1)) << "not opted in";
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232449));
  OK(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448));
  OK(launch("bounded", 1, 32, 232448));
  FAILS(CUDA_ERROR_INVALID_VALUE, launch("bounded", 1, 32, 232449));
  FAILS(CUDA_ERROR_INVALID_HANDLE,
        CU(cuLaunchKernel)(reinterpret_cast<CUfunction>(&value), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
}

TEST_F(SimDriver, SharedMemoryOfALaunch) {
  CUdeviceptr data = upload(iota(256));
  void* params[] = {&data};
  OK(CU(cuLaunchKernel)(function("reverse"), 1, 1, 1, 256, 1, 1, 1024, nullptr, params, nullptr));
  const auto out = download(data, 256);
  for (uint32_t i = 0; i < 256; ++i) ASSERT_EQ(out[i], 255 - i);
}

CUresult launch_cluster(CUfunction f, unsigned grid, unsigned cluster) {
  CUlaunchAttribute attributes[2]{};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[0].value.clusterDim = {cluster, 1, 1};
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[1].value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = grid;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  return CU(cuLaunchKernelEx)(&config, f, nullptr, nullptr);
}

TEST_F(SimDriver, ClustersAreChecked) {
  CUfunction f = function("bounded");
  OK(launch_cluster(f, 8, 2));
  OK(launch_cluster(f, 8, 8));
  FAILS(CUDA_ERROR_INVALID_VALUE, launch_cluster(f, 9, 2));
  FAILS(CUDA_ERROR_INVALID_VALUE, launch_cluster(f, 8, 0));
  FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_cluster(f, 16, 16));
  OK(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
  OK(launch_cluster(f, 16, 16));
  FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_cluster(f, 32, 32));
  FAILS(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch_cluster(function("in_pairs"), 8, 4)) << "the kernel fixes 2";
  OK(launch("in_pairs", 4, 32));
  FAILS(CUDA_ERROR_INVALID_VALUE, launch("in_pairs", 3, 32));
  OK(CU(cuCtxSynchronize)());
}

TEST_F(SimDriver, Occupancy) {
  int blocks = 0;
  CUfunction f = function("scale_add");
  OK(CU(cuFuncSetAttribute)(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 232448));
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, f, 1024, 0));
  EXPECT_EQ(blocks, 2);
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, f, 32, 0));
  EXPECT_EQ(blocks, 32);
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, f, 128, 232448));
  EXPECT_EQ(blocks, 1);
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, f, 128, 100 * 1024));
  EXPECT_EQ(blocks, 2);
  size_t bytes = 0;
  OK(CU(cuOccupancyAvailableDynamicSMemPerBlock)(&bytes, f, 2, 128));
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, f, 128, bytes));
  EXPECT_EQ(blocks, 2);
  OK(CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, f, 128, bytes + 128));
  EXPECT_EQ(blocks, 1);
  int grid = 0, block = 0;
  OK(CU(cuOccupancyMaxPotentialBlockSize)(&grid, &block, f, nullptr, 0, 0));
  EXPECT_EQ(block, 1024);
  EXPECT_EQ(grid, 264);
}

// Every call keeps 1000 bytes and more on the stack.
constexpr char kRecursive[] = R"(
.version 8.0
.target sm_90a
.address_size 64
.func (.param .b32 out) sum(.param .b32 n)
{
  .local .align 8 .b8 kept[1000];
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  ld.param.u32 %r1, [n];
  st.local.u32 [kept+996], %r1;
  mov.u32 %r2, 0;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra DONE;
  sub.u32 %r3, %r1, 1;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r3; call (b), sum, (a); ld.param.b32 %r2, [b]; }
DONE:
  ld.local.u32 %r1, [kept+996];
  add.u32 %r2, %r2, %r1;
  st.param.b32 [out], %r2;
  ret;
}
.visible .entry k(.param .u64 p_out, .param .u32 p_n)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p_out];
  ld.param.u32 %r1, [p_n];
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), sum, (a); ld.param.b32 %r2, [b]; }
  st.global.u32 [%rd1], %r2;
  ret;
}
)";

TEST_F(SimDriver, TheStackIsAsLargeAsTheLimit) {
  size_t limit = 0;
  OK(CU(cuCtxGetLimit)(&limit, CU_LIMIT_STACK_SIZE));
  EXPECT_EQ(limit, 65536u);
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, kRecursive));
  CUfunction f = nullptr;
  OK(CU(cuModuleGetFunction)(&f, module, "k"));
  CUdeviceptr out = allocate(4);
  uint32_t depth = 0;
  void* params[] = {&out, &depth};
  const auto run = [&](size_t bytes, uint32_t calls) {
    EXPECT_EQ(CUDA_SUCCESS, CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, bytes));
    depth = calls;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
  };
  run(65536, 50);
  EXPECT_EQ(download(out, 1)[0], 50u * 51 / 2);
  run(512 * 1024, 450);
  EXPECT_EQ(download(out, 1)[0], 450u * 451 / 2);
  OK(CU(cuCtxGetLimit)(&limit, CU_LIMIT_STACK_SIZE));
  EXPECT_EQ(limit, 512u * 1024);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuCtxSetLimit)(CU_LIMIT_STACK_SIZE, 512 * 1024 + 1));
  testing::internal::CaptureStderr();
  run(2048, 3);
  const std::string report = testing::internal::GetCapturedStderr();
  EXPECT_NE(report.find("stack overflow in a call of 'sum'"), std::string::npos) << report;
  EXPECT_NE(report.find("2048 bytes of stack"), std::string::npos) << report;
  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuCtxSynchronize)());
  OK(CU(cuDevicePrimaryCtxReset)(0));
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The barrier of cooperative groups (grid_group::sync()), twice, in the word that the launch gives the grid for it.
TEST_F(SimDriver, BlocksOfACooperativeLaunchMeet) {
  const std::string meet = R"(
  atom.add.release.gpu.u32 %r4, [%rd1+4], %r3;
MEET#:
  ld.acquire.gpu.u32 %r5, [%rd1+4];
  xor.b32 %r5, %r5, %r4;
  setp.ge.s32 %p1, %r5, 0;
  @%p1 bra MEET#;
)";
  const auto barrier = [&](const char* number) { return std::regex_replace(meet, std::regex("#"), number); };
  const std::string text = R"(.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p_out)
{
  .reg .pred %p<2>;
  .reg .b32 %r<10>;
  .reg .b64 %rd<6>;
  ld.param.u64 %rd2, [p_out];
  mov.u32 %r1, %envreg2;
  mov.u32 %r2, %envreg1;
  mov.b64 %rd1, {%r1, %r2};
  mov.u32 %r6, %ctaid.x;
  mov.u32 %r7, %nctaid.x;
  mul.wide.u32 %rd3, %r6, 4;
  add.u64 %rd3, %rd2, %rd3;
  add.u32 %r8, %r6, 1;
  rem.u32 %r8, %r8, %r7;
  mul.wide.u32 %rd4, %r8, 4;
  add.u64 %rd4, %rd2, %rd4;
  setp.eq.u64 %p1, %rd1, 0;
  mov.u32 %r9, 100;
  @%p1 bra STORE;
  sub.u32 %r3, 0x80000001, %r7;
  setp.ne.u32 %p1, %r6, 0;
  selp.b32 %r3, 1, %r3, %p1;
  st.global.u32 [%rd3], %r6;
)" + barrier("1") + "  ld.global.u32 %r9, [%rd4];\n" +
                           barrier("2") + R"(
STORE:
  st.global.u32 [%rd3], %r9;
  ret;
}
)";
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  OK(CU(cuModuleLoadData)(&module, text.c_str()));
  OK(CU(cuModuleGetFunction)(&function, module, "k"));
  CUdeviceptr out = upload({0, 0, 0, 0, 0});
  void* params[] = {&out};
  const std::vector<uint32_t> met{1, 2, 3, 4, 0};
  for (int i = 0; i < 2; ++i) {
    OK(CU(cuLaunchCooperativeKernel)(function, 5, 1, 1, 1, 1, 1, 0, nullptr, params));
    EXPECT_EQ(download(out, 5), met);
  }
  OK(CU(cuLaunchKernel)(function, 5, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_EQ(download(out, 5), std::vector<uint32_t>(5, 100));
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  CUlaunchConfig config{};
  config.gridDimX = 5;
  config.gridDimY = config.gridDimZ = config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  OK(CU(cuLaunchKernelEx)(&config, function, params, nullptr));
  EXPECT_EQ(download(out, 5), met);
}

TEST_F(SimDriver, ALaunchPrintsItsStatistics) {
  const CUdeviceptr memory = allocate(16);
  const auto said = [&] {
    testing::internal::CaptureStderr();
    EXPECT_EQ(store_at(memory), CUDA_SUCCESS);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(), "");
  setenv("MOXIE_SIM_STATISTICS", "1", 1);
  const std::string line = said();
  unsetenv("MOXIE_SIM_STATISTICS");
  EXPECT_TRUE(std::regex_match(line, std::regex("statistics: kernel '\\w+', 1 blocks: \\d+ lane-instructions, 0 "
                                                "multiply-adds, 0 bytes read and 4 written, \\d+\\.\\d{3} s\n")))
      << line;
}

TEST_F(SimDriver, AFaultStaysUntilTheContextIsReset) {
  const std::string path = testing::TempDir() + "moxie_sim_report_" + std::to_string(getpid());
  setenv("MOXIE_SIM_REPORT", path.c_str(), 1);
  CUdeviceptr memory = allocate(16);
  testing::internal::CaptureStderr();
  OK(store_at(memory + 16));  // A launch does not fail by what the kernel does.
  const std::string report = testing::internal::GetCapturedStderr();
  unsetenv("MOXIE_SIM_REPORT");
  EXPECT_NE(report.find("memory"), std::string::npos) << report;
  EXPECT_EQ(file_text(path), report);
  std::remove(path.c_str());
  OK(store_at(memory)) << "work behind the fault is accepted and does not run";

  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuCtxSynchronize)());
  uint32_t word = 0;
  CUdeviceptr p = 0;
  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuMemcpyDtoH)(&word, memory, 4));
  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuMemAlloc)(&p, 4));
  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuLaunchKernel)(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuStreamQuery)(nullptr));
  const char* text = nullptr;
  OK(CU(cuGetErrorString)(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
  EXPECT_EQ(std::string(text), "an illegal memory access was encountered: " + report.substr(0, report.find('\n')));

  OK(CU(cuDevicePrimaryCtxReset)(0));
  module_ = nullptr;
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(&word, memory, 4)) << "freed by the reset";
  CUdeviceptr data = upload(iota(8));
  OK(scale_add(data, 8));
  EXPECT_EQ(download(data, 8)[7], 28u);
}

TEST_F(SimDriver, ADeadlockIsALaunchFailure) {
  testing::internal::CaptureStderr();
  OK(launch("wait_for_nobody", 1, 64));
  const std::string report = testing::internal::GetCapturedStderr();
  const int line = 1 + static_cast<int>(std::count(kPtx, std::strstr(kPtx, "bar.sync 1, 64"), '\n'));
  const std::string at = "ptx line " + std::to_string(line),
                    first = "deadlock: no warp can run, 1 warp waits, the first at " + at + ", block (0,0,0), warp 0";
  EXPECT_EQ(report, first + "\n  block (0,0,0) warp 0: " + at +
                        ": bar.sync: named barrier 1: 32 of 64 threads have arrived\n  nothing is pending\n");
  FAILS(CUDA_ERROR_LAUNCH_FAILED, CU(cuStreamSynchronize)(nullptr));
  const char* text = nullptr;
  OK(CU(cuGetErrorString)(CUDA_ERROR_LAUNCH_FAILED, &text));
  EXPECT_EQ(text, "unspecified launch failure: " + first);
  // Another context does not share the failure.
  CUcontext second = nullptr;
  OK(CU(cuCtxCreate)(&second, nullptr, 0, 0));
  EXPECT_NE(allocate(16), 0u);
  OK(CU(cuCtxDestroy)(second));
  OK(CU(cuDevicePrimaryCtxReset)(0));
  OK(CU(cuCtxSynchronize)());
}

TEST_F(SimDriver, AnAssertionHasAnErrorOfItsOwn) {
  const std::string text = read_example(MOXIE_SOURCE_DIR "/tests/sim/hazards/assertion_that_fails.ptx").broken;
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, text.c_str()));
  CUfunction function = nullptr;
  OK(CU(cuModuleGetFunction)(&function, module, "k"));
  CUdeviceptr strings = allocate(64 * 32);
  void* params[] = {&strings};
  testing::internal::CaptureStderr();
  OK(CU(cuLaunchKernel)(function, 1, 1, 1, 64, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::StartsWith("assertion: 'i < n' of rows.cu:7 does not hold, in rows() at ptx line"));
  FAILS(CUDA_ERROR_ASSERT, CU(cuStreamSynchronize)(nullptr));
  OK(CU(cuDevicePrimaryCtxReset)(0));
}

// A list that one kernel makes on the heap, which another reads and frees.
TEST_F(SimDriver, KernelsTakeMemoryFromAHeap) {
  const std::string text = R"(
.version 8.0
.target sm_90a
.address_size 64
.extern .func (.param .b64 result) malloc(.param .b64 bytes);
.extern .func free(.param .b64 address);
.visible .entry make(.param .u64 p_places, .param .u64 p_bytes)
{
  .reg .pred %none;
  .reg .b32 %thread;
  .reg .b64 %place, %bytes, %made;
  ld.param.u64 %place, [p_places];
  ld.param.u64 %bytes, [p_bytes];
  mov.u32 %thread, %tid.x;
  mad.wide.u32 %place, %thread, 8, %place;
  {
    .param .b64 a;
    .param .b64 r;
    st.param.b64 [a], %bytes;
    call.uni (r), malloc, (a);
    ld.param.b64 %made, [r];
  }
  st.global.u64 [%place], %made;
  setp.eq.u64 %none, %made, 0;
  @!%none st.u32 [%made], %thread;
  ret;
}
.visible .entry take(.param .u64 p_places, .param .u32 p_twice)
{
  .reg .pred %twice;
  .reg .b32 %thread, %value;
  .reg .b64 %place, %made;
  ld.param.u64 %place, [p_places];
  ld.param.u32 %value, [p_twice];
  setp.ne.u32 %twice, %value, 0;
  mov.u32 %thread, %tid.x;
  mad.wide.u32 %place, %thread, 8, %place;
  ld.global.u64 %made, [%place];
  ld.u32 %value, [%made];
  st.global.u32 [%place], %value;
AGAIN:
  {
    .param .b64 a;
    st.param.b64 [a], %made;
    call.uni free, (a);
  }
  @!%twice ret;
  setp.ne.u32 %twice, %value, %value;
  bra AGAIN;
}
)";
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, text.c_str()));
  CUfunction make = nullptr, take = nullptr;
  OK(CU(cuModuleGetFunction)(&make, module, "make"));
  OK(CU(cuModuleGetFunction)(&take, module, "take"));
  CUdeviceptr places = upload(std::vector<uint32_t>(128, 0));
  const auto run = [&](CUfunction function, uint64_t second) {
    void* params[] = {&places, &second};
    OK(CU(cuLaunchKernel)(function, 1, 1, 1, 64, 1, 1, 0, nullptr, params, nullptr));
  };
  for (int turn = 0; turn < 3; ++turn) {
    run(make, 1000);
    run(take, 0);
    const auto values = download(places, 128);
    for (uint32_t i = 0; i < 64; ++i) ASSERT_EQ(values[2 * i], i);
  }
  // Of a megabyte each there are eight, and others get none.
  run(make, 1 << 20);
  const auto given = download(places, 128);
  EXPECT_EQ(std::count_if(given.begin(), given.end(), [](uint32_t word) { return word != 0; }), 2 * 8);
  OK(CU(cuDevicePrimaryCtxReset)(0));
  places = upload(std::vector<uint32_t>(128, 0));
  OK(CU(cuModuleLoadData)(&module, text.c_str()));
  OK(CU(cuModuleGetFunction)(&make, module, "make"));
  OK(CU(cuModuleGetFunction)(&take, module, "take"));
  run(make, 16);
  testing::internal::CaptureStderr();
  run(take, 1);
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      testing::ContainsRegex("^memory: free\\(\\) of 0x[0-9a-f]+, which malloc\\(\\) has not given or is free"));
  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuCtxSynchronize)());
  OK(CU(cuDevicePrimaryCtxReset)(0));
  module_ = nullptr;
}

// A dependent grid may begin before its predecessor has ended. Before its griddepcontrol.wait it must not touch what
// the predecessor writes, and may touch everything else.
class Dependent : public SimDriver, public ::testing::WithParamInterface<bool> {};
TEST_P(Dependent, AGridMustWait) {
  const std::string text = R"(
.version 8.7
.target sm_90a
.address_size 64
.visible .entry first(.param .u64 p_out)
{
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p_out];
  griddepcontrol.launch_dependents;
  st.global.u32 [%rd1+16], 7;
  ret;
}
.visible .entry passes_on(.param .u32 p_first)
{
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  ld.param.u32 %r1, [p_first];
  setp.ne.u32 %p1, %r1, 0;
  @%p1 griddepcontrol.wait;
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;
  ret;
}
.visible .entry second(.param .u64 p_in, .param .u32 p_wait)
{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p_in];
  ld.param.u32 %r1, [p_wait];
  ld.global.u32 %r2, [%rd1+20];  // the word beside the one that the first grid writes
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra READ;
  griddepcontrol.wait;
READ:
  ld.global.u32 %r3, [%rd1+16];
  add.u32 %r3, %r3, %r2;
  st.global.u32 [%rd1+16], %r3;
  ret;
}
)";
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, text.c_str()));
  CUfunction first = nullptr, second = nullptr, passes_on = nullptr;
  OK(CU(cuModuleGetFunction)(&first, module, "first"));
  OK(CU(cuModuleGetFunction)(&passes_on, module, "passes_on"));
  OK(CU(cuModuleGetFunction)(&second, module, "second"));
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr memory = upload({0, 0, 0, 0, 0, 5});
  const auto launch = [&](CUfunction function, bool programmatic, void** params) {
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = programmatic;
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    OK(CU(cuLaunchKernelEx)(&config, function, params, nullptr));
  };
  const auto launch_second = [&](bool programmatic, uint32_t waits) {
    void* params[] = {&memory, &waits};
    launch(second, programmatic, params);
  };
  const auto launch_between = [&](uint32_t waits_first) {
    void* params[] = {&waits_first};
    launch(passes_on, true, params);
  };
  void* params[] = {&memory};
  const auto launch_first = [&] { OK(CU(cuLaunchKernel)(first, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr)); };
  launch_first(), launch_second(true, 1);   // The second grid waits.
  launch_first(), launch_second(false, 0);  // The second grid begins when the first has ended.
  launch_first();
  OK(CU(cuStreamSynchronize)(stream));  // The host has waited.
  launch_second(true, 0);
  OK(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(download(memory, 6)[4], 12u);
  launch_first(), launch_between(1),
      launch_second(true, 0);  // The grid between starts the second when the first has ended.
  OK(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(download(memory, 6)[4], 12u);

  testing::internal::CaptureStderr();
  launch_first();
  if (GetParam()) launch_between(0);  // The grid between starts the second at once.
  launch_second(true, 0);
  const std::string report = testing::internal::GetCapturedStderr();
  EXPECT_EQ(report.rfind("data in flight: reads global memory at ", 0), 0u) << report;
  EXPECT_NE(report.find("which the grid before may still be writing, and no griddepcontrol.wait stands before it"),
            std::string::npos)
      << report;
  FAILS(CUDA_ERROR_LAUNCH_FAILED, CU(cuStreamSynchronize)(stream));
  OK(CU(cuDevicePrimaryCtxReset)(0));
}

INSTANTIATE_TEST_SUITE_P(Grids, Dependent, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "WithOneBetween" : "OneAfterTheOther"; });

}  // namespace
}  // namespace sim_test
