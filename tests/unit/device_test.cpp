// SPDX-License-Identifier: Apache-2.0
// Devices: which driver is taken, the sentences when there is none, memory, loading and launching kernels.
#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>

#include <atomic>
#include <thread>

#include "device_state.h"
#include "driver/functions.h"
#include "moxie/device.h"
#include "moxie/error.h"
#include "moxie/plan.h"
#include "scratch.h"

namespace moxie {
namespace {

using test::ScopedVariable;
using test::ScratchFolder;
using ::testing::HasSubstr;

std::string error_of(DeviceKind kind, ErrorCode code, int ordinal = 0) {
  try {
    Device::open(kind, ordinal);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(Device, AnUnknownKindIsNamed) {
  const ScopedVariable variable("MOXIE_DEVICE", "gpu");
  EXPECT_EQ(error_of(DeviceKind::Auto, ErrorCode::InvalidArgument),
            "MOXIE_DEVICE is 'gpu'; it may be auto, cuda or sim");
}

TEST(Device, AMissingSimulatorIsNamed) {
  const ScopedVariable variable("MOXIE_SIM_LIBRARY", "/no/such/libcuda.so.1");
  EXPECT_THAT(error_of(DeviceKind::Sim, ErrorCode::Driver),
              HasSubstr("the simulator's library was not found; looked for /no/such/libcuda.so.1"));
  const ScopedVariable kind("MOXIE_DEVICE", "sim");
  EXPECT_THAT(error_of(DeviceKind::Auto, ErrorCode::Driver), HasSubstr("/no/such/libcuda.so.1"));
  // No GPU has this number, wherever the test runs.
  const ScopedVariable any("MOXIE_DEVICE", "auto");
  EXPECT_THAT(error_of(DeviceKind::Auto, ErrorCode::Driver, 1000), HasSubstr(" names another); and no GPU: the"));
}

TEST(Device, AFileThatIsNoDriverIsNamed) {
  const ScratchFolder scratch;
  const std::string file = (scratch.path() / "libcuda.so.1").string();
  test::write_file(file, "not a library");
  const ScopedVariable variable("MOXIE_SIM_LIBRARY", file);
  EXPECT_THAT(error_of(DeviceKind::Sim, ErrorCode::Driver), HasSubstr(file + " cannot be loaded"));
  const ScopedVariable no_driver("MOXIE_SIM_LIBRARY", "/proc/self/exe");
  EXPECT_NE(error_of(DeviceKind::Sim, ErrorCode::Driver), "no error");
}

TEST(Device, ListNeverThrows) {
  const ScopedVariable variable("MOXIE_SIM_LIBRARY", "/no/such/libcuda.so.1");
  for (const DeviceInfo& info : Device::list()) EXPECT_FALSE(info.simulated);
}

class SimTest : public ::testing::Test {
 protected:
  ScopedVariable library_{"MOXIE_SIM_LIBRARY", MOXIE_SIM_LIBRARY};
};

TEST_F(SimTest, OpensAndSaysWhatItIs) {
  const Device device = Device::open(DeviceKind::Sim);
  const DeviceInfo& info = device.info();
  EXPECT_TRUE(info.simulated);
  EXPECT_EQ(info.name, info.arch == 90 ? "Moxie simulator (sm_90a)" : "Moxie simulator (sm_100a)");
  EXPECT_TRUE(info.arch == 90 || info.arch == 100);
  EXPECT_GT(info.sm_count, 0);
  EXPECT_EQ(info.shared_bytes, 232448);
  EXPECT_GT(info.memory_bytes, 0u);
  EXPECT_GT(info.l2_bytes, 0u);
  EXPECT_EQ(figures_of(info), named_device(info.arch == 90 ? "h200" : "b200"));
  EXPECT_EQ(std::filesystem::canonical(info.driver_path), std::filesystem::canonical(MOXIE_SIM_LIBRARY));
  bool listed = false;
  for (const DeviceInfo& other : Device::list()) listed |= other.simulated && other.name == info.name;
  EXPECT_TRUE(listed);
}

// A library loaded under a shared name would answer for the system's driver from then on, also to the CUDA runtime.
TEST_F(SimTest, DoesNotTakeTheSystemDriversName) {
  const Device device = Device::open(DeviceKind::Sim);
  if (void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    link_map* map = nullptr;
    ASSERT_EQ(dlinfo(handle, RTLD_DI_LINKMAP, &map), 0);
    EXPECT_NE(std::string(map->l_name), device.info().driver_path);
  }
}

TEST_F(SimTest, CopiesShareTheirState) {
  const Device device = Device::open(DeviceKind::Sim);
  EXPECT_EQ(&device.state(), &Device::open(DeviceKind::Sim).state());
}

TEST_F(SimTest, AnOrdinalOutOfRangeIsNamed) {
  EXPECT_THAT(error_of(DeviceKind::Sim, ErrorCode::Driver, 1000), HasSubstr("there is no device 1000"));
  EXPECT_THAT(error_of(DeviceKind::Sim, ErrorCode::Driver, -1), HasSubstr("there is no device -1"));
}

// On the device that MOXIE_DEVICE names.
class DeviceTest : public ::testing::Test {
 protected:
  static jit::Request request() {
    jit::Request request;
    request.source = R"(
extern "C" __global__ void triple(const int* in, int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 3 * in[i] + 1;
}
extern "C" __global__ void launch_shape(unsigned* out) {
  unsigned blocks, bytes;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
  if (threadIdx.x == 0) out[blockIdx.x] = blocks, out[gridDim.x + blockIdx.x] = bytes;
}
extern "C" __global__ void reverse(const int* in, int* out) {
  extern __shared__ int staged[];
  for (int i = threadIdx.x; i < 50000; i += blockDim.x) staged[i] = in[i];
  __syncthreads();
  for (int i = threadIdx.x; i < 50000; i += blockDim.x) out[i] = staged[49999 - i];
}
)";
    return request;
  }

  driver::LoadedKernel kernel(const char* entry, int shared = 0) {
    return device_.state().get_kernel(std::string("device_test ") + entry, request(), entry, shared);
  }

  void* device_copy(const std::vector<int>& values) {
    void* memory = device_.allocate(values.size() * sizeof(int));
    device_.upload(memory, values.data(), values.size() * sizeof(int));
    return memory;
  }

  std::vector<int> host_copy(const void* memory, size_t count) {
    std::vector<int> values(count);
    device_.download(values.data(), memory, count * sizeof(int));
    return values;
  }

  template <typename Function>
  Function driver_function(const char* name) {
    void* library = dlopen(device_.info().driver_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    void* address = library == nullptr ? nullptr : dlsym(library, name);
    if (address == nullptr) throw std::runtime_error(std::string(name) + " is missing");
    return reinterpret_cast<Function>(address);
  }

  ScopedVariable library_{"MOXIE_SIM_LIBRARY", MOXIE_SIM_LIBRARY};
  Device device_ = Device::open();
};

TEST_F(DeviceTest, MemoryGoesThereAndBack) {
  std::vector<uint8_t> bytes(1000), back(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31);
  void* memory = device_.allocate(bytes.size());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
  device_.upload(memory, bytes.data(), bytes.size());
  device_.fill(static_cast<uint8_t*>(memory) + 10, 0xa5, 20);
  std::fill_n(bytes.begin() + 10, 20, uint8_t{0xa5});
  device_.download(back.data(), memory, back.size());
  EXPECT_EQ(back, bytes);
  uint8_t byte = 0x5a;
  device_.upload(memory, &byte, 1);
  device_.fill(static_cast<uint8_t*>(memory) + 1, 0x5b, 1);
  for (const uint8_t expected : {0x5a, 0x5b, 62}) {
    device_.download(&byte, memory, 1);
    EXPECT_EQ(byte, expected);
    memory = static_cast<uint8_t*>(memory) + 1;
  }
  memory = static_cast<uint8_t*>(memory) - 3;
  device_.synchronize();
  device_.free(memory);
  device_.free(nullptr);
  EXPECT_EQ(device_.allocate(0), nullptr);
}

TEST_F(DeviceTest, TooMuchMemoryIsOutOfMemory) {
  try {
    device_.allocate(size_t{1} << 60);
    FAIL() << "allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("1152921504606846976 bytes"));
  }
}

TEST_F(DeviceTest, RunsAKernel) {
  std::vector<int> values(1000), expected(1000);
  for (int i = 0; i < 1000; ++i) expected[i] = 3 * (values[i] = 7 * i - 900) + 1;
  void* in = device_copy(values);
  void* out = device_.allocate(4000);
  int n = 1000;
  void* arguments[] = {&in, &out, &n};
  device_.state().context().launch(kernel("triple"), {.grid = 8, .block = 128}, arguments, nullptr);
  EXPECT_EQ(host_copy(out, 1000), expected);
  // A launch that may overlap the one before it in the stream.
  std::swap(in, out);
  device_.state().context().launch(kernel("triple"), {.grid = 8, .block = 128, .programmatic = true}, arguments,
                                   nullptr);
  for (int& value : expected) value = 3 * value + 1;
  EXPECT_EQ(host_copy(out, 1000), expected);
  device_.free(in);
  device_.free(out);
}

TEST_F(DeviceTest, LaunchesClusters) {
  void* out = device_copy(std::vector<int>(16, -1));
  void* arguments[] = {&out};
  for (const unsigned size : {1u, 2u, 4u}) {
    device_.state().context().launch(kernel("launch_shape"), {.grid = 8, .block = 32, .cluster = size}, arguments,
                                     nullptr);
    std::vector<int> expected(8, static_cast<int>(size));
    expected.resize(16, 0);  // bytes of dynamic shared memory, for which nobody asked
    EXPECT_EQ(host_copy(out, 16), expected);
  }
  device_.free(out);
}

TEST_F(DeviceTest, OptsInToLargeSharedMemory) {
  std::vector<int> values(50000);
  for (int i = 0; i < 50000; ++i) values[i] = i ^ 0x5a5a;
  void* in = device_copy(values);
  void* out = device_.allocate(200000);
  void* arguments[] = {&in, &out};
  device_.state().context().launch(kernel("reverse", 200000), {.grid = 1, .block = 256, .shared = 200000}, arguments,
                                   nullptr);
  EXPECT_EQ(host_copy(out, 50000), std::vector<int>(values.rbegin(), values.rend()));
  device_.free(in);
  device_.free(out);
}

TEST_F(DeviceTest, LaunchesAreCapturedAndReplayed) {
  const auto check = [](CUresult result) { ASSERT_EQ(result, CUDA_SUCCESS); };
  CUcontext context = nullptr;
  check(driver_function<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context, 0));
  check(driver_function<decltype(&cuCtxPushCurrent)>("cuCtxPushCurrent_v2")(context));
  CUstream stream = nullptr;
  check(driver_function<decltype(&cuStreamCreate)>("cuStreamCreate")(&stream, CU_STREAM_NON_BLOCKING));

  void* data = device_copy({1, 2, 3, 4});
  int n = 4;
  void* arguments[] = {&data, &data, &n};
  const driver::LoadedKernel triple = kernel("triple");
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  check(driver_function<decltype(&cuStreamBeginCapture)>("cuStreamBeginCapture_v2")(stream,
                                                                                    CU_STREAM_CAPTURE_MODE_GLOBAL));
  device_.state().context().launch(triple, {.grid = 1, .block = 32}, arguments, stream);
  device_.state().context().launch(triple, {.grid = 1, .block = 32, .programmatic = true}, arguments, stream);
  check(driver_function<decltype(&cuStreamEndCapture)>("cuStreamEndCapture")(stream, &graph));
  EXPECT_EQ(host_copy(data, 4), (std::vector<int>{1, 2, 3, 4})) << "a captured launch has run";
  check(driver_function<decltype(&cuGraphInstantiate)>("cuGraphInstantiateWithFlags")(&executable, graph, 0));
  check(driver_function<decltype(&cuGraphLaunch)>("cuGraphLaunch")(executable, stream));
  device_.synchronize(stream);
  EXPECT_EQ(host_copy(data, 4), (std::vector<int>{13, 22, 31, 40}));

  device_.free(data);
  check(driver_function<decltype(&cuGraphExecDestroy)>("cuGraphExecDestroy")(executable));
  check(driver_function<decltype(&cuGraphDestroy)>("cuGraphDestroy")(graph));
  check(driver_function<decltype(&cuStreamDestroy)>("cuStreamDestroy_v2")(stream));
  check(driver_function<decltype(&cuCtxPopCurrent)>("cuCtxPopCurrent_v2")(&context));
  check(driver_function<decltype(&cuDevicePrimaryCtxRelease)>("cuDevicePrimaryCtxRelease_v2")(0));
}

TEST_F(DeviceTest, LeavesTheThreadsContextAsItWas) {
  const auto current = [&] {
    CUcontext context = nullptr;
    driver_function<decltype(&cuCtxGetCurrent)>("cuCtxGetCurrent")(&context);
    return context;
  };
  std::thread([&] {
    EXPECT_EQ(current(), nullptr);
    device_.free(device_.allocate(256));
    kernel("triple");
    EXPECT_EQ(current(), nullptr);
  }).join();
}

TEST_F(DeviceTest, OneKernelIsMadeOnceForAllThreads) {
  std::vector<std::thread> threads;
  std::vector<CUfunction> functions(4);
  for (CUfunction& function : functions) {
    threads.emplace_back(
        [&] { function = device_.state().get_kernel("device_test once", request(), "triple", 0).function; });
  }
  for (std::thread& thread : threads) thread.join();
  // A second module would have another function.
  for (const CUfunction function : functions) EXPECT_EQ(function, functions[0]);
}

TEST_F(DeviceTest, AFailureIsNotRemembered) {
  jit::Request broken;
  broken.source = "this is no kernel";
  const std::string key = "device_test failing";
  for (int i = 0; i < 2; ++i) {
    try {
      device_.state().get_kernel(key, broken, "triple", 0);
      FAIL() << "compiled";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Compile);
    }
  }
  EXPECT_NE(device_.state().get_kernel(key, request(), "triple", 0).function, nullptr);
}

TEST_F(DeviceTest, AnEntryThatIsNotThereIsNamed) {
  try {
    kernel("absent");
    FAIL() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Driver);
    EXPECT_THAT(error.what(), HasSubstr("(absent)"));
    EXPECT_THAT(error.what(), HasSubstr("CUDA_ERROR_NOT_FOUND"));
  }
}

// The driver's log says what is wrong with an image: its sentence stands between the call and the error's name.
TEST_F(DeviceTest, WhatTheDriverSaysOfAnImageIsPassedOn) {
  try {
    device_.state().context().load(".version 8.7\n.target sm_90a\n.address_size 64\nthis is no kernel\n", "k", 0,
                                   nullptr);
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Driver);
    const std::string said = error.what(), call = "cuModuleLoadDataEx (k): ";
    EXPECT_EQ(said.find(call), 0u) << said;
    const size_t name = said.find("CUDA_ERROR_");
    ASSERT_NE(name, std::string::npos) << said;
    EXPECT_GT(name, call.size()) << said;
    EXPECT_NE(said.find(": ", name), std::string::npos) << said << " does not say what the error's name means";
    EXPECT_THAT(said, HasSubstr("line 4")) << "of the image";
  }
}

// Run with the simulator, or the idle driver, in the place of the system's driver.
TEST(DeviceChild, DISABLED_LoadsThreeKernels) {
  const Device device = Device::open(DeviceKind::Cuda);
  EXPECT_THAT(device.info().driver_path, testing::MatchesRegex("/.*/libcuda\\.so\\.1")) << "where it was found";
  EXPECT_NE(device.state().context().number(), 0u) << "the first context of a process";
  for (const char* name : {"one", "two", "three"}) {
    jit::Request request;
    request.source = std::string("extern \"C\" __global__ void ") + name + "() {}\n";
    EXPECT_NE(device.state().get_kernel(name, request, name, 0).function, nullptr);
  }
}

// Run with the simulator in the place of the system's driver: the same library serves as a GPU and as the simulator.
TEST(DeviceChild, DISABLED_OpensAGpuAndTheSimulator) {
  EXPECT_FALSE(Device::open().info().simulated);
  const Device gpu = Device::open(DeviceKind::Cuda), simulator = Device::open(DeviceKind::Sim);
  EXPECT_FALSE(gpu.info().simulated);
  EXPECT_TRUE(simulator.info().simulated);
}

TEST(Device, AGpuThatHasKernelsIsTaken) {
  const ScratchFolder scratch;
  const std::filesystem::path log = scratch.path() / "log";
  const ScopedVariable driver("LD_LIBRARY_PATH",
                              test::library_path(std::filesystem::path(MOXIE_SIM_LIBRARY).parent_path()));
  const ScopedVariable simulator("MOXIE_SIM_LIBRARY", MOXIE_SIM_LIBRARY), any("MOXIE_DEVICE", std::nullopt);
  for (const char* arch : {"sm_90a", "sm_100a"}) {
    const ScopedVariable variable("MOXIE_SIM_ARCH", arch);
    EXPECT_EQ(test::wait_for(test::start_test("DeviceChild.DISABLED_OpensAGpuAndTheSimulator", log)), 0)
        << arch << test::read_file(log);
  }
}

// A driver that takes no machine code is offered it once: later kernels are compiled to PTX at once. One that is known
// to be the simulator is never offered it, and one that takes it, as the idle driver does, gets nothing else.
TEST(Device, MachineCodeIsOfferedOnce) {
  const auto compiled = [](const std::filesystem::path& folder, const char* extension) {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      count += entry.path().extension() == extension;
    return count;
  };
  const ScratchFolder scratch;
  const ScopedVariable simulator("LD_LIBRARY_PATH",
                                 test::library_path(std::filesystem::path(MOXIE_SIM_LIBRARY).parent_path()));
  const ScopedVariable cache("MOXIE_CACHE_DIR", (scratch.path() / "cache").string());
  const std::filesystem::path log = scratch.path() / "log";
  ASSERT_EQ(test::wait_for(test::start_test("DeviceChild.DISABLED_LoadsThreeKernels", log)), 0) << test::read_file(log);
  EXPECT_EQ(compiled(scratch.path() / "cache", ".cubin"), 1u);
  EXPECT_EQ(compiled(scratch.path() / "cache", ".ptx"), 3u);

  std::filesystem::create_symlink(std::filesystem::canonical(std::filesystem::path(MOXIE_SIM_LIBRARY).parent_path() /
                                                             "../../libmoxie_idle_driver.so"),
                                  scratch.path() / "libcuda.so.1");
  const ScopedVariable idle("LD_LIBRARY_PATH", test::library_path(scratch.path()));
  const ScopedVariable other("MOXIE_CACHE_DIR", (scratch.path() / "other").string());
  ASSERT_EQ(test::wait_for(test::start_test("DeviceChild.DISABLED_LoadsThreeKernels", log)), 0) << test::read_file(log);
  EXPECT_EQ(compiled(scratch.path() / "other", ".cubin"), 3u);
  EXPECT_EQ(compiled(scratch.path() / "other", ".ptx"), 0u);

  const ScopedVariable named("MOXIE_SIM_LIBRARY", MOXIE_SIM_LIBRARY);
  const ScopedVariable fresh("MOXIE_CACHE_DIR", (scratch.path() / "fresh").string());
  jit::Request request;
  request.source = "extern \"C\" __global__ void one() {}\n";
  Device::open(DeviceKind::Sim).state().get_kernel("device_test machine code", request, "one", 0);
  EXPECT_EQ(compiled(scratch.path() / "fresh", ".cubin"), 0u);
  EXPECT_EQ(compiled(scratch.path() / "fresh", ".ptx"), 1u);
}

TEST_F(DeviceTest, ATensorMapThatCannotBeIsNamed) {
  driver::TensorMapShape shape;
  shape.rank = 3;
  shape.dims[0] = 64, shape.dims[1] = 16, shape.dims[2] = 2;
  shape.strides[0] = 128, shape.strides[1] = 2048;
  shape.box[0] = 64, shape.box[1] = 8, shape.box[2] = 1;
  char* memory = static_cast<char*>(device_.allocate(4096));
  const kernel::TensorMap map = make_tensor_map(device_.state().context(), "a", memory, shape);
  EXPECT_NE(map.opaque[0], 0u);
  try {
    make_tensor_map(device_.state().context(), "a", memory + 2, shape);
    ADD_FAILURE() << "accepted a misaligned address";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_EQ(
        error.what(),
        fmt::format("a cannot be described to the device: address {}, extents 64 (box 64), 16 (box 8, stride 128 "
                    "bytes), 2 (box 1, stride 2048 bytes), swizzle 128: the address and strides must be multiples "
                    "of 16 bytes and extents 1 to 2^32",
                    static_cast<const void*>(memory + 2)));
  }
  shape.strides[0] = 120;
  EXPECT_THROW(make_tensor_map(device_.state().context(), "a", memory, shape), Error);
  device_.free(memory);
}

}  // namespace
}  // namespace moxie
