// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime over the simulator: what nvcc's code does for `twice<<<1, 32, 0, stream>>>(data, 3)`, call by call.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr char kPtx[] = R"(
.version 8.7
.target sm_90a
.address_size 64
.global .align 4 .u32 launches;
.visible .entry twice(.param .u64 p_data, .param .u32 p_factor)
{
  .reg .pred %p<2>;
  .reg .b32 %r<5>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p_data];
  ld.param.u32 %r1, [p_factor];
  mov.u32 %r2, %tid.x;
  mad.wide.u32 %rd2, %r2, 4, %rd1;
  ld.global.u32 %r3, [%rd2];
  mul.lo.u32 %r3, %r3, %r1;
  st.global.u32 [%rd2], %r3;
  setp.ne.u32 %p1, %r2, 0;
  @%p1 ret;
  ld.global.u32 %r4, [launches];
  add.u32 %r4, %r4, 1;
  st.global.u32 [launches], %r4;
  ret;
}
.global .align 4 .b32 words[4] = {1, 2, 3, 4};
.global .attribute(.managed) .align 4 .u32 both = 5;
// What the launch was asked for, as the first thread of the last block sees it.
.visible .entry shape(.param .u64 p_out)
{
  .local .align 4 .b8 room[24];
  .shared .align 4 .b8 fixed[40];
  .reg .pred %p;
  .reg .b32 %r<3>;
  .reg .b64 %rd;
  ld.param.u64 %rd, [p_out];
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; or.b32 %r0, %r0, %r1;
  mov.u32 %r1, %ctaid.z; or.b32 %r0, %r0, %r1;
  setp.ne.u32 %p, %r0, 0; @%p ret;
  mov.u32 %r0, %nctaid.x; st.global.u32 [%rd], %r0;
  mov.u32 %r0, %nctaid.y; st.global.u32 [%rd+4], %r0;
  mov.u32 %r0, %nctaid.z; st.global.u32 [%rd+8], %r0;
  mov.u32 %r0, %ntid.x; st.global.u32 [%rd+12], %r0;
  mov.u32 %r0, %ntid.y; st.global.u32 [%rd+16], %r0;
  mov.u32 %r0, %ntid.z; st.global.u32 [%rd+20], %r0;
  mov.u32 %r0, %dynamic_smem_size; st.global.u32 [%rd+24], %r0;
  mov.u32 %r0, %cluster_nctaid.x; st.global.u32 [%rd+28], %r0;
  mov.u32 %r1, fixed; mov.u32 %r2, room; st.local.u32 [room], %r2;
  ret;
}
.visible .entry bounded() .maxntid 96, 1, 1 { ret; }
)";

template <class F>
F* symbol(const char* name) {
  static void* const library = [] {
    const std::string driver = MOXIE_SIM_LIBRARY;
    return dlopen((driver.substr(0, driver.rfind('/')) + "/libcudart.so.13").c_str(), RTLD_NOW | RTLD_LOCAL);
  }();
  void* const found = library ? dlsym(library, name) : nullptr;
  EXPECT_NE(found, nullptr) << (library ? name : dlerror());
  return reinterpret_cast<F*>(found);
}
#define RT(name) (*symbol<decltype(name)>(#name))

// The program's module is registered once, as before main.
class CudaRuntime : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (binary != nullptr) return;
    static struct {
      int magic = 0x466243b1, version = 1;
      const void* image = kPtx;
      void* unused = nullptr;
    } wrapper;
    binary = (*symbol<void**(void*)>("__cudaRegisterFatBinary"))(&wrapper);
    const auto function = symbol<void(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*)>(
        "__cudaRegisterFunction");
    for (auto& [host, name] :
         {std::pair<char*, const char*>{&twice, "twice"}, {&shape, "shape"}, {&bounded, "bounded"}})
      (*function)(binary, host, host, name, -1, nullptr, nullptr, nullptr, nullptr, nullptr);
    const auto variable = symbol<void(void**, char*, char*, const char*, int, size_t, int, int)>("__cudaRegisterVar");
    (*variable)(binary, &launches, &launches, "launches", 0, 4, 0, 0);
    (*variable)(binary, &words, &words, "words", 0, 16, 0, 0);
    const auto managed =
        symbol<void(void**, void**, char*, const char*, int, size_t, int, int)>("__cudaRegisterManagedVar");
    (*managed)(binary, &both, nullptr, "both", 0, 4, 0, 0);
    EXPECT_EQ((*symbol<char(void**)>("__cudaInitModule"))(binary), 1);
  }
  void SetUp() override { RT(cudaGetLastError)(); }

  template <class T>
  std::vector<T> download(const void* from, size_t count) {
    std::vector<T> data(count);
    EXPECT_EQ(RT(cudaMemcpy)(data.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return data;
  }
  void fails(cudaError_t expected, cudaError_t given) {
    EXPECT_EQ(given, expected);
    EXPECT_EQ(RT(cudaPeekAtLastError)(), expected);
    EXPECT_EQ(RT(cudaGetLastError)(), expected);
    EXPECT_EQ(RT(cudaPeekAtLastError)(), cudaSuccess);
  }

  static inline void** binary = nullptr;
  static inline char twice, shape, bounded, launches, words, unknown;  // The host twins.
  static inline void* both;                                            // where a __managed__ variable lies
};
#define RT_OK(call) ASSERT_EQ((call), cudaSuccess)

TEST_F(CudaRuntime, AProgramRuns) {
  std::vector<uint32_t> numbers(32, 14);
  void* data = nullptr;
  ASSERT_EQ(RT(cudaMalloc)(&data, 128), cudaSuccess);
  EXPECT_EQ(RT(cudaMemcpy)(data, numbers.data(), 128, cudaMemcpyHostToDevice), cudaSuccess);
  uint32_t factor = 3;
  void* args[] = {&data, &factor};
  dim3 grid, block;
  size_t shared = 1;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(
      (*symbol<unsigned(dim3, dim3, size_t, void*)>("__cudaPushCallConfiguration"))({1, 1, 1}, {32, 1, 1}, 0, nullptr),
      0u);
  ASSERT_EQ((*symbol<cudaError_t(dim3*, dim3*, size_t*, void*)>("__cudaPopCallConfiguration"))(&grid, &block, &shared,
                                                                                               &stream),
            cudaSuccess);
  EXPECT_EQ(block.x, 32u);
  EXPECT_EQ(RT(cudaLaunchKernel)(&twice, grid, block, args, shared, stream), cudaSuccess);
  EXPECT_EQ(RT(cudaDeviceSynchronize)(), cudaSuccess);
  EXPECT_EQ(RT(cudaMemcpy)(numbers.data(), data, 128, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(numbers, std::vector<uint32_t>(32, 42));
  uint32_t count = 0;
  EXPECT_EQ(RT(cudaMemcpyFromSymbol)(&count, &launches, 4, 0, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(count, 1u);

  size_t before = 0, stack = 0;
  EXPECT_EQ(RT(cudaDeviceGetLimit)(&before, cudaLimitStackSize), cudaSuccess);
  EXPECT_EQ(RT(cudaDeviceSetLimit)(cudaLimitStackSize, 4096), cudaSuccess);
  EXPECT_EQ(RT(cudaDeviceGetLimit)(&stack, cudaLimitStackSize), cudaSuccess);
  EXPECT_EQ(stack, 4096u);
  EXPECT_EQ(RT(cudaDeviceSetLimit)(cudaLimitStackSize, before), cudaSuccess);  // Tests share the context.

  EXPECT_EQ(RT(cudaLaunchKernel)(&numbers, grid, block, args, shared, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(RT(cudaGetLastError)(), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(RT(cudaGetLastError)(), cudaSuccess);
  EXPECT_EQ(RT(cudaFree)(data), cudaSuccess);
}

using Numbers = std::vector<uint32_t>;

TEST_F(CudaRuntime, ConfigurationsAreTakenLastFirst) {
  const auto push = symbol<unsigned(dim3, dim3, size_t, void*)>("__cudaPushCallConfiguration");
  const auto pop = symbol<cudaError_t(dim3*, dim3*, size_t*, void*)>("__cudaPopCallConfiguration");
  char stream = 0;
  EXPECT_EQ((*push)({1, 2, 3}, {4, 5, 6}, 7, &stream), 0u);
  EXPECT_EQ((*push)({8, 9, 10}, {11, 12, 13}, 14, nullptr), 0u);
  for (const Numbers& expected : {Numbers{8, 9, 10, 11, 12, 13, 14}, Numbers{1, 2, 3, 4, 5, 6, 7}}) {
    dim3 grid, block;
    size_t shared = 0;
    void* at = &grid;
    RT_OK((*pop)(&grid, &block, &shared, &at));
    EXPECT_EQ((Numbers{grid.x, grid.y, grid.z, block.x, block.y, block.z, static_cast<uint32_t>(shared)}), expected);
    EXPECT_EQ(at, expected[0] == 1 ? &stream : nullptr);
  }
  dim3 grid, block;
  size_t shared = 0;
  void* at = nullptr;
  fails(cudaErrorMissingConfiguration, (*pop)(&grid, &block, &shared, &at));
}

TEST_F(CudaRuntime, EveryLaunchPassesItsShape) {
  void* out = nullptr;
  RT_OK(RT(cudaMalloc)(&out, 32));
  void* args[] = {&out};
  const dim3 grid(2, 3, 4), block(5, 6, 7);
  const auto expect = [&](const Numbers& expected) {
    RT_OK(RT(cudaDeviceSynchronize)());
    EXPECT_EQ(download<uint32_t>(out, 8), expected);
    RT_OK(RT(cudaMemset)(out, 0, 32));
  };
  RT_OK(RT(cudaLaunchKernel)(&shape, grid, block, args, 16, nullptr));
  expect({2, 3, 4, 5, 6, 7, 16, 1});
  RT_OK(RT(cudaLaunchCooperativeKernel)(&shape, grid, block, args, 32, nullptr));
  expect({2, 3, 4, 5, 6, 7, 32, 1});
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = 48;
  config.attrs = &cluster, config.numAttrs = 1;
  RT_OK(RT(cudaLaunchKernelExC)(&config, &shape, args));
  expect({2, 3, 4, 5, 6, 7, 48, 2});
  cudaKernel_t kernel = nullptr;
  const auto get = symbol<cudaError_t(cudaKernel_t*, const void*)>("__cudaGetKernel");
  RT_OK((*get)(&kernel, &shape));
  RT_OK((*symbol<cudaError_t(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t)>("__cudaLaunchKernel"))(
      kernel, grid, block, args, 64, nullptr));
  expect({2, 3, 4, 5, 6, 7, 64, 1});
  fails(cudaErrorInvalidDeviceFunction, (*get)(&kernel, &unknown));
  fails(cudaErrorInvalidResourceHandle, RT(cudaLaunchKernel)(&unknown, grid, block, args, 0, nullptr));
  fails(cudaErrorInvalidResourceHandle, RT(cudaLaunchKernelExC)(&config, &unknown, args));
  fails(cudaErrorInvalidResourceHandle, RT(cudaLaunchCooperativeKernel)(&unknown, grid, block, args, 0, nullptr));
  RT_OK(RT(cudaFree)(out));
}

TEST_F(CudaRuntime, FunctionsSayWhatTheyNeed) {
  cudaFuncAttributes attributes{};
  RT_OK(RT(cudaFuncGetAttributes)(&attributes, &shape));
  EXPECT_EQ(attributes.sharedSizeBytes, 40u);
  EXPECT_EQ(attributes.constSizeBytes, 0u);
  EXPECT_EQ(attributes.localSizeBytes, 32u);
  EXPECT_EQ(attributes.maxThreadsPerBlock, 1024);
  EXPECT_EQ(attributes.numRegs, 16);
  EXPECT_EQ(attributes.ptxVersion, 90);
  EXPECT_EQ(attributes.binaryVersion, 90);
  EXPECT_EQ(attributes.maxDynamicSharedSizeBytes, 49152 - 40);
  RT_OK(RT(cudaFuncSetAttribute)(&shape, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
  RT_OK(RT(cudaFuncGetAttributes)(&attributes, &shape));
  EXPECT_EQ(attributes.maxDynamicSharedSizeBytes, 100000);
  RT_OK(RT(cudaFuncGetAttributes)(&attributes, &bounded));
  EXPECT_EQ(attributes.maxThreadsPerBlock, 96);
  fails(cudaErrorInvalidResourceHandle, RT(cudaFuncGetAttributes)(&attributes, &unknown));

  int blocks = 0;
  RT_OK(RT(cudaOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, &shape, 1024, 0));
  EXPECT_EQ(blocks, 2);
  RT_OK(RT(cudaOccupancyMaxActiveBlocksPerMultiprocessor)(&blocks, &shape, 128, 60000));
  EXPECT_EQ(blocks, 3);
  RT_OK(RT(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(&blocks, &shape, 512, 0, 0));
  EXPECT_EQ(blocks, 4);
  fails(cudaErrorInvalidValue, RT(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(&blocks, &shape, 512, 0, 8));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2), config.blockDim = dim3(1024), config.dynamicSmemBytes = 100000;
  config.attrs = &cluster, config.numAttrs = 1;
  int clusters = 0;
  RT_OK(RT(cudaOccupancyMaxActiveClusters)(&clusters, &shape, &config));
  EXPECT_EQ(clusters, 132);
}

TEST_F(CudaRuntime, MemoryIsCopiedInEveryDirection) {
  void* a = &a;
  RT_OK(RT(cudaMalloc)(&a, 0));
  EXPECT_EQ(a, nullptr);
  RT_OK(RT(cudaFree)(nullptr));
  RT_OK(RT(cudaFreeHost)(nullptr));
  a = &a;
  fails(cudaErrorMemoryAllocation, RT(cudaMalloc)(&a, size_t{1} << 60));
  EXPECT_EQ(a, nullptr);
  void *b = nullptr, *managed = nullptr, *host = nullptr, *other = nullptr;
  RT_OK(RT(cudaMalloc)(&a, 16));
  RT_OK(RT(cudaMallocAsync)(&b, 16, nullptr));
  RT_OK(RT(cudaMallocManaged)(&managed, 16, cudaMemAttachGlobal));
  RT_OK(RT(cudaMallocHost)(&host, 16));
  RT_OK(RT(cudaHostAlloc)(&other, 16, cudaHostAllocPortable));
  uint32_t value = 0;
  for (const bool async : {false, true}) {
    const auto copy = [&](void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
      const cudaError_t error =
          async ? RT(cudaMemcpyAsync)(to, from, bytes, kind, nullptr) : RT(cudaMemcpy)(to, from, bytes, kind);
      EXPECT_EQ(RT(cudaDeviceSynchronize)(), cudaSuccess);
      return error;
    };
    const Numbers given = {++value, ++value, ++value, ++value};
    Numbers back(4), between(4);
    RT_OK(copy(between.data(), given.data(), 16, cudaMemcpyHostToHost));
    EXPECT_EQ(between, given);
    RT_OK(copy(a, between.data(), 16, cudaMemcpyHostToDevice));
    RT_OK(copy(b, a, 16, cudaMemcpyDeviceToDevice));
    RT_OK(copy(managed, b, 12, cudaMemcpyDefault));
    std::memcpy(host, managed, 16);
    RT_OK(copy(back.data(), managed, 12, cudaMemcpyDeviceToHost));
    EXPECT_EQ(back, (Numbers{given[0], given[1], given[2], 0}));
    RT_OK(copy(other, b, 16, cudaMemcpyDefault));
    EXPECT_EQ(std::memcmp(other, given.data(), 16), 0);
    fails(cudaErrorInvalidValue, copy(a, b, 16, static_cast<cudaMemcpyKind>(5)));
    for (int kind = 0; kind < 6; ++kind) RT_OK(copy(nullptr, nullptr, 0, static_cast<cudaMemcpyKind>(kind)));
    RT_OK(async ? RT(cudaMemsetAsync)(a, 0x1fe, 15, nullptr) : RT(cudaMemset)(a, 0x1ff, 15));
    EXPECT_EQ(download<uint32_t>(a, 4),
              async ? (Numbers{0xfefefefe, 0xfefefefe, 0xfefefefe, 0x00fefefe}) : (Numbers{~0u, ~0u, ~0u, 0x00ffffff}));
    RT_OK(async ? RT(cudaMemsetAsync)(nullptr, 1, 0, nullptr) : RT(cudaMemset)(nullptr, 1, 0));
    fails(cudaErrorInvalidValue, async ? RT(cudaMemsetAsync)(a, 1, 17, nullptr) : RT(cudaMemset)(a, 1, 17));
  }
  size_t free = 0, total = 0;
  RT_OK(RT(cudaMemGetInfo)(&free, &total));
  EXPECT_GT(free, 0u);
  EXPECT_GE(total, free);
  RT_OK(RT(cudaFree)(a));
  fails(cudaErrorInvalidValue, RT(cudaFree)(a));
  RT_OK(RT(cudaFreeAsync)(b, nullptr));
  RT_OK(RT(cudaFree)(managed));
  RT_OK(RT(cudaFreeHost)(host));
  RT_OK(RT(cudaFreeHost)(other));
  fails(cudaErrorInvalidValue, RT(cudaFreeHost)(other));
}

TEST_F(CudaRuntime, VariablesAreReachedByTheirTwins) {
  void* at = nullptr;
  RT_OK(RT(cudaGetSymbolAddress)(&at, &words));
  EXPECT_EQ(download<uint32_t>(at, 4), (Numbers{1, 2, 3, 4}));
  const Numbers given = {20, 30};
  RT_OK(RT(cudaMemcpyToSymbol)(&words, given.data(), 8, 4, cudaMemcpyHostToDevice));
  Numbers back(3);
  RT_OK(RT(cudaMemcpyFromSymbol)(back.data(), &words, 12, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(back, (Numbers{20, 30, 4}));
  const Numbers first = {1, 2, 3, 4};
  RT_OK(RT(cudaMemcpyToSymbol)(&words, first.data(), 16, 0, cudaMemcpyHostToDevice));
  fails(cudaErrorSymbolNotFound, RT(cudaGetSymbolAddress)(&at, &unknown));
  fails(cudaErrorSymbolNotFound, RT(cudaMemcpyToSymbol)(&unknown, given.data(), 4, 0, cudaMemcpyHostToDevice));
  fails(cudaErrorSymbolNotFound, RT(cudaMemcpyFromSymbol)(back.data(), &unknown, 4, 0, cudaMemcpyDeviceToHost));
}

TEST_F(CudaRuntime, ManagedVariablesAreTheHostsToo) {
  ASSERT_NE(both, nullptr);
  auto* const number = static_cast<uint32_t*>(both);
  EXPECT_EQ(*number, 5u);
  *number = 21;
  int factor = 2;
  void* data = number;
  void* args[] = {&data, &factor};
  RT_OK(RT(cudaLaunchKernel)(&twice, 1, 1, args, 0, nullptr));
  RT_OK(RT(cudaDeviceSynchronize)());
  EXPECT_EQ(*number, 42u);
  *number = 5;
}

TEST_F(CudaRuntime, ShapesThatNoGpuLaunchesAreNamed) {
  int factor = 2;
  void* data = both;
  void* args[] = {&data, &factor};
  for (const auto& [grid, block] : std::vector<std::pair<dim3, dim3>>{
           {0, 32}, {1, 0}, {1, 1025}, {1, {32, 33, 1}}, {1, {1, 1, 65}}, {{1, 65536, 1}, 32}, {{1, 1, 65536}, 32}}) {
    fails(cudaErrorInvalidConfiguration, RT(cudaLaunchKernel)(&twice, grid, block, args, 0, nullptr));
    fails(cudaErrorInvalidConfiguration, RT(cudaLaunchCooperativeKernel)(&twice, grid, block, args, 0, nullptr));
    cudaLaunchConfig_t config{};
    config.gridDim = grid, config.blockDim = block;
    fails(cudaErrorInvalidConfiguration, RT(cudaLaunchKernelExC)(&config, &twice, args));
  }
}

TEST_F(CudaRuntime, TheDeviceIsTheDrivers) {
  int count = 0, device = 7, version = 0;
  RT_OK(RT(cudaGetDeviceCount)(&count));
  EXPECT_EQ(count, 1);
  RT_OK(RT(cudaGetDevice)(&device));
  EXPECT_EQ(device, 0);
  RT_OK(RT(cudaSetDevice)(0));
  fails(cudaErrorInvalidDevice, RT(cudaSetDevice)(1));
  RT_OK(RT(cudaDriverGetVersion)(&version));
  EXPECT_GE(version, 13000);
  RT_OK(RT(cudaRuntimeGetVersion)(&version));
  EXPECT_EQ(version, CUDART_VERSION);
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    EXPECT_EQ(RT(cudaDeviceGetAttribute)(&value, which, 0), cudaSuccess);
    return value;
  };
  cudaDeviceProp all{};
  const auto properties = symbol<cudaError_t(cudaDeviceProp*, int)>("cudaGetDeviceProperties");
  RT_OK((*properties)(&all, 0));
  EXPECT_EQ(std::vector<int>(all.maxGridSize, all.maxGridSize + 3), (std::vector<int>{0x7fffffff, 65535, 65535}));
  EXPECT_EQ(std::vector<int>(all.maxThreadsDim, all.maxThreadsDim + 3), (std::vector<int>{1024, 1024, 64}));
  EXPECT_EQ(all.totalConstMem, 65536u);
  EXPECT_EQ(all.maxBlocksPerMultiProcessor, 32);
  EXPECT_EQ(all.reservedSharedMemPerBlock, 1024u);
  EXPECT_EQ(all.concurrentKernels, 1);
  EXPECT_EQ(all.managedMemory, 1);
  EXPECT_EQ(all.clusterLaunch, 1);
  EXPECT_GT(all.memoryBusWidth, 0);
  EXPECT_EQ(std::string(all.name).substr(0, 5), "Moxie");
  size_t free = 0, total = 0;
  RT_OK(RT(cudaMemGetInfo)(&free, &total));
  EXPECT_EQ(all.totalGlobalMem, total);
  EXPECT_EQ(all.major, 9);
  EXPECT_EQ(all.minor, 0);
  EXPECT_EQ(all.multiProcessorCount, 132);
  EXPECT_EQ(all.warpSize, 32);
  EXPECT_EQ(all.maxThreadsPerBlock, 1024);
  EXPECT_EQ(all.maxThreadsPerMultiProcessor, 2048);
  EXPECT_EQ(all.regsPerBlock, 65536);
  EXPECT_EQ(all.regsPerMultiprocessor, 65536);
  EXPECT_EQ(all.sharedMemPerBlock, 49152u);
  EXPECT_EQ(all.sharedMemPerBlockOptin, 232448u);
  EXPECT_EQ(all.sharedMemPerMultiprocessor, 233472u);
  EXPECT_EQ(all.l2CacheSize, attribute(cudaDevAttrL2CacheSize));
  EXPECT_GT(all.l2CacheSize, 0);
  EXPECT_EQ(all.unifiedAddressing, 1);
  EXPECT_EQ(all.cooperativeLaunch, 1);
  fails(cudaErrorInvalidDevice, (*properties)(&all, 1));
}

// LD_LIBRARY_PATH may name the folder of NVIDIA's driver. In this test it names one in which another library has the
// driver's name.
TEST_F(CudaRuntime, ItsDriverIsTheSimulatorBesideItWhateverLdLibraryPathNames) {
  namespace fs = std::filesystem;
  const fs::path others = fs::path(testing::TempDir()) / fmt::format("moxie-cudart-{}", ::getpid());
  fs::create_directories(others);
  const fs::path idle = fs::path(MOXIE_SIM_LIBRARY).parent_path() / "../../libmoxie_idle_driver.so";
  fs::create_symlink(fs::absolute(idle), others / "libcuda.so.1");
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  const std::string command = fmt::format("LD_LIBRARY_PATH='{}' '{}' --gtest_filter=CudaRuntime.TheDeviceIsTheDrivers",
                                          others.string(), program);
  EXPECT_EQ(std::system(command.c_str()), 0);
  fs::remove_all(others);
}

TEST_F(CudaRuntime, EntryPointsOfTheDriver) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  RT_OK(RT(cudaGetDriverEntryPointByVersion)("cuInit", &found, 13000, 0, &result));
  EXPECT_NE(found, nullptr);
  EXPECT_EQ(result, cudaDriverEntryPointSuccess);
  RT_OK(RT(cudaGetDriverEntryPointByVersion)("cuNoSuchThing", &found, 13000, 0, &result));
  EXPECT_EQ(found, nullptr);
  EXPECT_EQ(result, cudaDriverEntryPointSymbolNotFound);
  RT_OK(RT(cudaGetDriverEntryPointByVersion)("cuInit", &found, 13000, 0, nullptr));
  EXPECT_NE(found, nullptr);
  fails(cudaErrorInvalidValue, RT(cudaGetDriverEntryPointByVersion)(nullptr, &found, 13000, 0, &result));
}

TEST_F(CudaRuntime, StreamsAndEvents) {
  cudaStream_t stream = nullptr, plain = nullptr;
  cudaEvent_t first = nullptr, second = nullptr;
  RT_OK(RT(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking));
  RT_OK(RT(cudaStreamCreate)(&plain));
  fails(cudaErrorInvalidValue, RT(cudaStreamCreateWithFlags)(&stream, 8));
  RT_OK(RT(cudaEventCreate)(&first));
  RT_OK(RT(cudaEventCreateWithFlags)(&second, cudaEventDefault));
  fails(cudaErrorInvalidValue, RT(cudaEventCreateWithFlags)(&second, 64));
  RT_OK(RT(cudaEventRecord)(first, stream));
  RT_OK(RT(cudaStreamWaitEvent)(plain, first, 0));
  fails(cudaErrorInvalidValue, RT(cudaStreamWaitEvent)(plain, first, 64));
  RT_OK(RT(cudaEventRecord)(second, plain));
  RT_OK(RT(cudaEventSynchronize)(second));
  RT_OK(RT(cudaStreamSynchronize)(stream));
  float milliseconds = -1;
  RT_OK(RT(cudaEventElapsedTime)(&milliseconds, first, second));
  EXPECT_GE(milliseconds, 0);
  RT_OK(RT(cudaEventDestroy)(first));
  RT_OK(RT(cudaEventDestroy)(second));
  fails(cudaErrorInvalidResourceHandle, RT(cudaEventRecord)(first, stream));
  fails(cudaErrorInvalidResourceHandle, RT(cudaEventSynchronize)(second));
  fails(cudaErrorInvalidResourceHandle, RT(cudaEventElapsedTime)(&milliseconds, first, second));
  fails(cudaErrorInvalidResourceHandle, RT(cudaEventDestroy)(first));
  RT_OK(RT(cudaStreamDestroy)(stream));
  RT_OK(RT(cudaStreamDestroy)(plain));
  fails(cudaErrorInvalidResourceHandle, RT(cudaStreamSynchronize)(stream));
  fails(cudaErrorInvalidResourceHandle, RT(cudaStreamDestroy)(stream));
}

TEST_F(CudaRuntime, ErrorsHaveNamesAndWords) {
  EXPECT_STREQ(RT(cudaGetErrorName)(cudaSuccess), "cudaSuccess");
  EXPECT_STREQ(RT(cudaGetErrorName)(cudaErrorInvalidValue), "cudaErrorInvalidValue");
  EXPECT_STREQ(RT(cudaGetErrorName)(cudaErrorAssert), "cudaErrorAssert");
  EXPECT_STREQ(RT(cudaGetErrorString)(cudaErrorInvalidConfiguration), "invalid configuration argument");
  EXPECT_STREQ(RT(cudaGetErrorString)(cudaErrorInvalidValue), "invalid argument");
  EXPECT_STREQ(RT(cudaGetErrorName)(static_cast<cudaError_t>(12345)), "unrecognized error code");
  EXPECT_STREQ(RT(cudaGetErrorString)(static_cast<cudaError_t>(12345)), "unrecognized error code");
}

TEST_F(CudaRuntime, CopiesBetweenPeers) {
  const Numbers values{7, 8, 9};
  void* from = nullptr;
  void* to = nullptr;
  RT_OK(RT(cudaMalloc)(&from, 12));
  RT_OK(RT(cudaMalloc)(&to, 12));
  RT_OK(RT(cudaMemcpy)(from, values.data(), 12, cudaMemcpyHostToDevice));
  RT_OK(RT(cudaMemcpyPeer)(to, 0, from, 0, 8));
  EXPECT_EQ(download<uint32_t>(to, 2), (Numbers{7, 8}));
  RT_OK(RT(cudaMemcpyPeerAsync)(to, 0, static_cast<char*>(from) + 4, 0, 8, nullptr));
  RT_OK(RT(cudaDeviceSynchronize)());
  EXPECT_EQ(download<uint32_t>(to, 2), (Numbers{8, 9}));
  fails(cudaErrorInvalidDevice, RT(cudaMemcpyPeer)(to, 1, from, 0, 8));
  fails(cudaErrorInvalidDevice, RT(cudaMemcpyPeerAsync)(to, 0, from, 1, 8, nullptr));
  RT_OK(RT(cudaFree)(from));
  RT_OK(RT(cudaFree)(to));
}

// A thread that has made no call works in the primary context as well, and has a last error of its own.
TEST_F(CudaRuntime, EveryThreadHasTheContext) {
  fails(cudaErrorInvalidDevice, RT(cudaSetDevice)(1));
  RT(cudaSetDevice)(1);
  std::thread([&] {
    EXPECT_EQ(RT(cudaPeekAtLastError)(), cudaSuccess);
    void* at = nullptr;
    EXPECT_EQ(RT(cudaMalloc)(&at, 16), cudaSuccess);
    EXPECT_EQ(RT(cudaFree)(at), cudaSuccess);
  }).join();
  EXPECT_EQ(RT(cudaGetLastError)(), cudaErrorInvalidDevice);
}

TEST_F(CudaRuntime, BoxesAreCopiedAndFilled) {
  void* plane = nullptr;
  size_t pitch = 0;
  RT_OK(RT(cudaMallocPitch)(&plane, &pitch, 12, 3));
  EXPECT_GE(pitch, 12u);
  RT_OK(RT(cudaMemset2D)(plane, pitch, 0x11, 12, 3));
  const Numbers rows{1, 2, 3, 4, 5, 6};
  RT_OK(RT(cudaMemcpy2D)(static_cast<char*>(plane) + 4, pitch, rows.data(), 8, 8, 2, cudaMemcpyHostToDevice));
  Numbers back(9, 0);
  RT_OK(RT(cudaMemcpy2DAsync)(back.data(), 12, plane, pitch, 12, 3, cudaMemcpyDefault, nullptr));
  RT_OK(RT(cudaDeviceSynchronize)());
  constexpr uint32_t kFilled = 0x11111111;
  EXPECT_EQ(back, (Numbers{kFilled, 1, 2, kFilled, 3, 4, kFilled, kFilled, kFilled}));
  fails(cudaErrorInvalidValue, RT(cudaMemcpy2D)(plane, 8, rows.data(), 8, 9, 1, cudaMemcpyHostToDevice));
  RT_OK(RT(cudaMemcpy2D)(plane, pitch, nullptr, 12, 0, 3, cudaMemcpyHostToDevice));
  cudaMemcpy3DParms copy{};
  copy.srcPtr = {back.data(), 12, 12, 3};
  copy.srcPos = {4, 0, 0};
  copy.dstPtr = {plane, pitch, 12, 3};
  copy.extent = {8, 2, 1};
  copy.kind = cudaMemcpyHostToDevice;
  RT_OK(RT(cudaMemcpy3D)(&copy));
  EXPECT_EQ(download<uint32_t>(plane, 3), (Numbers{1, 2, 2}));
  copy.srcArray = reinterpret_cast<cudaArray_t>(&copy);
  fails(cudaErrorNotSupported, RT(cudaMemcpy3DAsync)(&copy, nullptr));
  RT_OK(RT(cudaFree)(plane));
  cudaPitchedPtr volume{};
  RT_OK(RT(cudaMalloc3D)(&volume, {12, 3, 2}));
  EXPECT_EQ(volume.xsize, 12u);
  EXPECT_EQ(volume.ysize, 3u);
  RT_OK(RT(cudaMemset2DAsync)(volume.ptr, volume.pitch, 0, 12, 6, nullptr));
  RT_OK(RT(cudaFree)(volume.ptr));
  size_t bytes = 0;
  RT_OK(RT(cudaGetSymbolSize)(&bytes, &words));
  EXPECT_EQ(bytes, 16u);
  uint32_t word = 9;
  RT_OK(RT(cudaMemcpyToSymbolAsync)(&words, &word, 4, 8, cudaMemcpyHostToDevice, nullptr));
  word = 0;
  RT_OK(RT(cudaMemcpyFromSymbolAsync)(&word, &words, 4, 8, cudaMemcpyDeviceToHost, nullptr));
  RT_OK(RT(cudaDeviceSynchronize)());
  EXPECT_EQ(word, 9u);
  word = 3;
  RT_OK(RT(cudaMemcpyToSymbol)(&words, &word, 4, 8, cudaMemcpyHostToDevice));
}

TEST_F(CudaRuntime, PointersAreDescribed) {
  void *device = nullptr, *pinned = nullptr, *managed = nullptr, *seen = nullptr;
  RT_OK(RT(cudaMalloc)(&device, 64));
  RT_OK(RT(cudaHostAlloc)(&pinned, 64, cudaHostAllocMapped));
  RT_OK(RT(cudaMallocManaged)(&managed, 64, cudaMemAttachGlobal));
  std::vector<uint32_t> own(1024);
  const auto type_of = [&](const void* pointer) {
    cudaPointerAttributes attributes{};
    EXPECT_EQ(RT(cudaPointerGetAttributes)(&attributes, pointer), cudaSuccess);
    EXPECT_EQ(attributes.device, attributes.type == cudaMemoryTypeUnregistered ? cudaInvalidDeviceId : 0);
    EXPECT_EQ(attributes.devicePointer != nullptr, attributes.type != cudaMemoryTypeUnregistered);
    return attributes.type;
  };
  EXPECT_EQ(type_of(device), cudaMemoryTypeDevice);
  EXPECT_EQ(type_of(pinned), cudaMemoryTypeHost);
  EXPECT_EQ(type_of(managed), cudaMemoryTypeManaged);
  EXPECT_EQ(type_of(own.data()), cudaMemoryTypeUnregistered);
  RT_OK(RT(cudaHostRegister)(own.data(), 4096, cudaHostRegisterDefault));
  cudaPointerAttributes registered{};
  RT_OK(RT(cudaPointerGetAttributes)(&registered, own.data()));
  EXPECT_EQ(registered.type, cudaMemoryTypeHost);
  EXPECT_EQ(registered.hostPointer, own.data());
  RT_OK(RT(cudaHostUnregister)(own.data()));
  fails(cudaErrorNotSupported, RT(cudaHostRegister)(own.data(), 4096, cudaHostRegisterMapped));
  RT_OK(RT(cudaHostGetDevicePointer)(&seen, pinned, 0));
  EXPECT_EQ(seen, pinned);
  unsigned flags = 0;
  RT_OK(RT(cudaHostGetFlags)(&flags, pinned));
  EXPECT_NE(flags & cudaHostAllocMapped, 0u);
#if CUDART_VERSION >= 13000
  RT_OK(RT(cudaMemPrefetchAsync)(managed, 64, {cudaMemLocationTypeDevice, {0}}, 0, nullptr));
  RT_OK(RT(cudaMemAdvise)(managed, 64, cudaMemAdviseSetReadMostly, {cudaMemLocationTypeDevice, {0}}));
#endif
  cudaMemPool_t pool = nullptr, current = nullptr;
  RT_OK(RT(cudaDeviceGetDefaultMemPool)(&pool, 0));
  RT_OK(RT(cudaDeviceGetMemPool)(&current, 0));
  EXPECT_EQ(pool, current);
  uint64_t keep = 1 << 20, kept = 0;
  RT_OK(RT(cudaMemPoolSetAttribute)(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  RT_OK(RT(cudaMemPoolGetAttribute)(pool, cudaMemPoolAttrReleaseThreshold, &kept));
  EXPECT_EQ(kept, keep);
  void* pooled = nullptr;
  RT_OK(RT(cudaMallocFromPoolAsync)(&pooled, 64, pool, nullptr));
  EXPECT_EQ(type_of(pooled), cudaMemoryTypeDevice);
  RT_OK(RT(cudaFreeAsync)(pooled, nullptr));
  RT_OK(RT(cudaMemPoolTrimTo)(pool, 0));
  RT_OK(RT(cudaFree)(device));
  RT_OK(RT(cudaFree)(managed));
  RT_OK(RT(cudaFreeHost)(pinned));
}

TEST_F(CudaRuntime, StreamsAnswerAndCallBack) {
  int least = 1, greatest = 1, priority = 1, ordinal = 1;
  unsigned flags = 0;
  unsigned long long id = 0;
  RT_OK(RT(cudaDeviceGetStreamPriorityRange)(&least, &greatest));
  cudaStream_t stream = nullptr;
  RT_OK(RT(cudaStreamCreateWithPriority)(&stream, cudaStreamNonBlocking, greatest));
  RT_OK(RT(cudaStreamGetPriority)(stream, &priority));
  EXPECT_EQ(priority, greatest);
  RT_OK(RT(cudaStreamGetFlags)(stream, &flags));
  EXPECT_EQ(flags, unsigned{cudaStreamNonBlocking});
  RT_OK(RT(cudaStreamGetId)(stream, &id));
  EXPECT_NE(id, 0u);
  RT_OK(RT(cudaStreamGetDevice)(stream, &ordinal));
  EXPECT_EQ(ordinal, 0);
  std::vector<int> order;
  const cudaStreamCallback_t callback = [](cudaStream_t, cudaError_t status, void* data) {
    static_cast<std::vector<int>*>(data)->push_back(status == cudaSuccess ? 1 : -1);
  };
  RT_OK(RT(cudaStreamAddCallback)(stream, callback, &order, 0));
  RT_OK(RT(cudaLaunchHostFunc)(
      stream, [](void* data) { static_cast<std::vector<int>*>(data)->push_back(2); }, &order));
  cudaEvent_t event = nullptr;
  RT_OK(RT(cudaEventCreate)(&event));
  RT_OK(RT(cudaEventRecordWithFlags)(event, stream, cudaEventRecordDefault));
  RT_OK(RT(cudaStreamSynchronize)(stream));
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  RT_OK(RT(cudaStreamQuery)(stream));
  RT_OK(RT(cudaEventQuery)(event));
  RT_OK(RT(cudaEventDestroy)(event));
  RT_OK(RT(cudaStreamDestroy)(stream));
  int can = 1;
  char bus[32] = {};
  cudaFuncCache cache{};
  RT_OK(RT(cudaDeviceGetPCIBusId)(bus, sizeof bus, 0));
  EXPECT_NE(bus[0], 0);
  RT_OK(RT(cudaDeviceCanAccessPeer)(&can, 0, 0));
  EXPECT_EQ(can, 0);
  fails(cudaErrorInvalidDevice, RT(cudaDeviceEnablePeerAccess)(0, 0));
  fails(cudaErrorInvalidDevice, RT(cudaDeviceEnablePeerAccess)(1, 0));
  fails(cudaErrorInvalidValue, RT(cudaDeviceEnablePeerAccess)(1, 1));
  fails(cudaErrorPeerAccessNotEnabled, RT(cudaDeviceDisablePeerAccess)(0));
  fails(cudaErrorInvalidDevice, RT(cudaDeviceDisablePeerAccess)(1));
  RT_OK(RT(cudaDeviceSetCacheConfig)(cudaFuncCachePreferShared));
  RT_OK(RT(cudaDeviceGetCacheConfig)(&cache));
  RT_OK(RT(cudaFuncSetCacheConfig)(&twice, cudaFuncCachePreferL1));
  RT_OK(RT(cudaGetDeviceFlags)(&flags));
  RT_OK(RT(cudaInitDevice)(0, 0, 0));
  RT_OK((*symbol<cudaError_t()>("cudaProfilerStart"))());
  RT_OK((*symbol<cudaError_t()>("cudaProfilerStop"))());
  const char* name = nullptr;
  RT_OK(RT(cudaFuncGetName)(&name, &twice));
  EXPECT_STREQ(name, "twice");
  cudaFunction_t function = nullptr;
  RT_OK(RT(cudaGetFuncBySymbol)(&function, &twice));
  EXPECT_NE(function, nullptr);
  size_t bytes = 0;
  RT_OK(RT(cudaOccupancyAvailableDynamicSMemPerBlock)(&bytes, &twice, 1, 32));
  EXPECT_GT(bytes, 48u * 1024);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(8), config.blockDim = dim3(32);
  int size = 0;
  RT_OK(RT(cudaOccupancyMaxPotentialClusterSize)(&size, &twice, &config));
  EXPECT_EQ(size, 8);
}

TEST_F(CudaRuntime, GraphsAreCapturedAndBuilt) {
  void* data = nullptr;
  RT_OK(RT(cudaMalloc)(&data, 128));
  const Numbers sevens(32, 7);
  uint32_t factor = 3;
  void* args[] = {&data, &factor};
  cudaStream_t stream = nullptr;
  RT_OK(RT(cudaStreamCreate)(&stream));
  cudaStreamCaptureStatus status{};
  RT_OK(RT(cudaStreamBeginCapture)(stream, cudaStreamCaptureModeGlobal));
  RT_OK(RT(cudaMemcpyAsync)(data, sevens.data(), 128, cudaMemcpyHostToDevice, stream));
  RT_OK(RT(cudaLaunchKernel)(&twice, dim3(1), dim3(32), args, 0, stream));
  RT_OK(RT(cudaStreamIsCapturing)(stream, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  cudaGraph_t captured = nullptr, built = nullptr, clone = nullptr;
  RT_OK(RT(cudaStreamEndCapture)(stream, &captured));
  size_t count = 0;
  RT_OK(RT(cudaGraphGetNodes)(captured, nullptr, &count));
  EXPECT_EQ(count, 2u);
  RT_OK(RT(cudaGraphGetRootNodes)(captured, nullptr, &count));
  EXPECT_EQ(count, 1u);
  RT_OK(RT(cudaGraphClone)(&clone, captured));
  cudaGraphExec_t exec = nullptr;
  RT_OK(RT(cudaGraphInstantiate)(&exec, clone, 0));
  RT_OK(RT(cudaGraphUpload)(exec, stream));
  for (int i = 0; i < 2; ++i) RT_OK(RT(cudaGraphLaunch)(exec, stream));
  RT_OK(RT(cudaStreamSynchronize)(stream));
  EXPECT_EQ(download<uint32_t>(data, 32), Numbers(32, 21));

  RT_OK(RT(cudaGraphCreate)(&built, 0));
  cudaGraphNode_t filled = nullptr, copied = nullptr, launched = nullptr, called = nullptr, last = nullptr;
  cudaMemsetParams fill{};
  fill.dst = data, fill.value = 5, fill.elementSize = 4, fill.width = 32, fill.height = 1;
  RT_OK(RT(cudaGraphAddMemsetNode)(&filled, built, nullptr, 0, &fill));
  RT_OK(RT(cudaGraphAddMemcpyNode1D)(&copied, built, &filled, 1, data, sevens.data(), 64, cudaMemcpyHostToDevice));
  cudaKernelNodeParams kernel{};
  kernel.func = &twice, kernel.gridDim = dim3(1), kernel.blockDim = dim3(32), kernel.kernelParams = args;
  RT_OK(RT(cudaGraphAddKernelNode)(&launched, built, &copied, 1, &kernel));
  int calls = 0;
  cudaHostNodeParams host{};
  host.fn = [](void* counter) { ++*static_cast<int*>(counter); }, host.userData = &calls;
  RT_OK(RT(cudaGraphAddHostNode)(&called, built, &launched, 1, &host));
  RT_OK(RT(cudaGraphAddEmptyNode)(&last, built, &called, 1));
  cudaGraphNodeType type{};
  RT_OK(RT(cudaGraphNodeGetType)(called, &type));
  EXPECT_EQ(type, cudaGraphNodeTypeHost);
  cudaGraphExec_t second = nullptr;
  RT_OK(RT(cudaGraphInstantiateWithFlags)(&second, built, 0));
  RT_OK(RT(cudaGraphLaunch)(second, stream));
  RT_OK(RT(cudaStreamSynchronize)(stream));
  Numbers expected(32, 15);
  std::fill_n(expected.begin(), 16, 21u);
  EXPECT_EQ(download<uint32_t>(data, 32), expected);
  EXPECT_EQ(calls, 1);
  factor = 2;
  cudaGraph_t again = nullptr;
  RT_OK(RT(cudaStreamBeginCapture)(stream, cudaStreamCaptureModeRelaxed));
  RT_OK(RT(cudaMemcpyAsync)(data, sevens.data(), 128, cudaMemcpyHostToDevice, stream));
  RT_OK(RT(cudaLaunchKernel)(&twice, dim3(1), dim3(32), args, 0, stream));
  RT_OK(RT(cudaStreamEndCapture)(stream, &again));
  cudaGraphExecUpdateResultInfo info{};
  RT_OK(RT(cudaGraphExecUpdate)(exec, again, &info));
  EXPECT_EQ(info.result, cudaGraphExecUpdateSuccess);
  RT_OK(RT(cudaGraphLaunch)(exec, stream));
  RT_OK(RT(cudaStreamSynchronize)(stream));
  EXPECT_EQ(download<uint32_t>(data, 32), Numbers(32, 14));
  EXPECT_EQ(RT(cudaGraphExecUpdate)(exec, built, &info), cudaErrorGraphExecUpdateFailure);
  EXPECT_NE(info.result, cudaGraphExecUpdateSuccess);
  RT(cudaGetLastError)();
  cudaMemcpy3DParms from{};
  from.srcPtr = {data, 128, 128, 1}, from.dstPtr = {data, 128, 128, 1};
  from.extent = {4, 1, 1}, from.kind = cudaMemcpyDeviceToDevice;
  RT_OK(RT(cudaGraphAddMemcpyNode)(&last, built, &last, 1, &from));
  for (const auto graph : {captured, clone, built, again}) RT_OK(RT(cudaGraphDestroy)(graph));
  for (const auto one : {exec, second}) RT_OK(RT(cudaGraphExecDestroy)(one));
  RT_OK(RT(cudaStreamDestroy)(stream));
  RT_OK(RT(cudaFree)(data));
}

TEST_F(CudaRuntime, AResetLeavesNothing) {
  const uint32_t nine = 9;
  RT_OK(RT(cudaMemcpyToSymbol)(&words, &nine, 4, 0, cudaMemcpyHostToDevice));
  void *before = nullptr, *data = nullptr;
  RT_OK(RT(cudaMalloc)(&before, 128));
  RT_OK(RT(cudaDeviceReset)());
  uint32_t word = 0;
  EXPECT_NE(RT(cudaMemcpy)(&word, before, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  RT(cudaGetLastError)();
  RT_OK(RT(cudaMemcpyFromSymbol)(&word, &words, 4, 0, cudaMemcpyDeviceToHost));
  EXPECT_EQ(word, 1u);
  RT_OK(RT(cudaMalloc)(&data, 128));
  RT_OK(RT(cudaMemset)(data, 0, 128));
  uint32_t factor = 3;
  void* args[] = {&data, &factor};
  RT_OK(RT(cudaLaunchKernel)(&twice, dim3(1), dim3(32), args, 0, nullptr));
  std::thread([&] { EXPECT_EQ(RT(cudaFree)(data), cudaSuccess); }).join();
  // A failure ends with its context.
  RT_OK(RT(cudaLaunchKernel)(&twice, dim3(1), dim3(32), args, 0, nullptr));
  fails(cudaErrorIllegalAddress, RT(cudaDeviceSynchronize)());
  RT_OK(RT(cudaDeviceReset)());
  RT_OK(RT(cudaMalloc)(&data, 128));
  RT_OK(RT(cudaFree)(data));
}

}  // namespace
