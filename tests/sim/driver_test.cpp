// The simulator's libcuda.so.1 as a program sees it: loaded at run time, spoken to through the driver API alone.
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

void* library() {
  static void* handle = dlopen(MOXIE_SIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  return handle;
}

template <class Function>
Function symbol(const char* name) {
  void* address = dlsym(library(), name);
  if (address == nullptr) {
    std::fprintf(stderr, "the library has no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(address);
}

// CU(cuMemAlloc)(...) calls the ABI name that cuda.h maps the function to.
#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#define CU(function) symbol<decltype(&function)>(TEXT_OF(function))
#define OK(expression) ASSERT_EQ(CUDA_SUCCESS, (expression))
#define FAILS(code, expression) EXPECT_EQ(code, (expression))

constexpr char kPtx[] = R"(
.version 8.0
.target sm_90a
.address_size 64

.visible .global .align 4 .u32 counter = 7;
.visible .const .align 4 .u32 scale = 3;
.extern .shared .align 16 .b8 dynamic[];

.visible .entry scale_add(.param .u64 p_data, .param .u32 p_count)
{
  .reg .pred %p<2>;
  .reg .b32 %r<10>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [p_data];
  ld.param.u32 %r1, [p_count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.s32 %r5, %r2, %r3, %r4;
  setp.ge.u32 %p1, %r5, %r1;
  @%p1 bra DONE;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r5, 4;
  add.s64 %rd4, %rd2, %rd3;
  ld.global.u32 %r6, [%rd4];
  ld.const.u32 %r7, [scale];
  mad.lo.u32 %r8, %r6, %r7, %r5;
  st.global.u32 [%rd4], %r8;
DONE:
  ret;
}

.visible .entry reverse(.param .u64 p_data)
{
  .reg .b32 %r<10>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [p_data];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ntid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.s64 %rd3, %rd1, %rd2;
  ld.global.u32 %r3, [%rd3];
  mov.u32 %r4, dynamic;
  shl.b32 %r5, %r1, 2;
  add.s32 %r6, %r4, %r5;
  st.shared.u32 [%r6], %r3;
  bar.sync 0;
  sub.s32 %r7, %r2, %r1;
  shl.b32 %r8, %r7, 2;
  add.s32 %r8, %r8, %r4;
  ld.shared.u32 %r9, [%r8+-4];
  st.global.u32 [%rd3], %r9;
  ret;
}

.visible .entry count(.param .u64 p_out)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p_out];
  ld.global.u32 %r1, [counter];
  st.global.u32 [%rd1], %r1;
  add.s32 %r2, %r1, 1;
  st.global.u32 [counter], %r2;
  ret;
}

.visible .entry store(.param .u64 p_address)
{
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p_address];
  st.global.u32 [%rd1], 1;
  ret;
}

.visible .entry wait_for_nobody()
{
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  mov.u32 %r1, %tid.x;
  setp.ge.u32 %p1, %r1, 32;
  @%p1 exit;
  bar.sync 1, 64;
  ret;
}

.visible .entry bounded() .maxntid 64, 1, 1
{
  ret;
}

.visible .entry in_pairs() .reqnctapercluster 2, 1, 1
{
  ret;
}
)";

class SimDriver : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (const char* name : {"MOXIE_SIM_ARCH", "MOXIE_SIM_SMS", "MOXIE_SIM_REPORT", "CUDA_LOG_FILE"}) unsetenv(name);
  }
  void SetUp() override {
    OK(CU(cuInit)(0));
    OK(CU(cuDevicePrimaryCtxRetain)(&context, 0));
    OK(CU(cuCtxSetCurrent)(context));
  }
  void TearDown() override {
    CU(cuCtxSetCurrent)(nullptr);
    CU(cuDevicePrimaryCtxRelease)(0);
  }

  CUmodule load() {
    CUmodule module = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuModuleLoadData)(&module, kPtx));
    return module;
  }
  CUfunction function(const char* name) {
    if (module_ == nullptr) module_ = load();
    CUfunction f = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuModuleGetFunction)(&f, module_, name));
    return f;
  }
  CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemAlloc)(&address, bytes));
    return address;
  }
  CUdeviceptr upload(const std::vector<uint32_t>& data) {
    CUdeviceptr address = allocate(data.size() * 4);
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemcpyHtoD)(address, data.data(), data.size() * 4));
    return address;
  }
  std::vector<uint32_t> download(CUdeviceptr address, size_t count) {
    std::vector<uint32_t> data(count);
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemcpyDtoH)(data.data(), address, count * 4));
    return data;
  }
  CUresult scale_add(CUdeviceptr data, uint32_t count, CUstream stream = nullptr) {
    void* params[] = {&data, &count};
    return CU(cuLaunchKernel)(function("scale_add"), (count + 127) / 128, 1, 1, 128, 1, 1, 0, stream, params, nullptr);
  }
  CUresult store_at(CUdeviceptr address) {
    void* params[] = {&address};
    return CU(cuLaunchKernel)(function("store"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
  }
  CUresult launch(const char* name, unsigned grid, unsigned block, unsigned shared = 0) {
    return CU(cuLaunchKernel)(function(name), grid, 1, 1, block, 1, 1, shared, nullptr, nullptr, nullptr);
  }

  CUcontext context = nullptr;
  CUmodule module_ = nullptr;
};

std::vector<uint32_t> iota(size_t n) {
  std::vector<uint32_t> v(n);
  std::iota(v.begin(), v.end(), 0u);
  return v;
}

// ---- entry points --------------------------------------------------------------------------------

TEST_F(SimDriver, ProcAddressFollowsNameVersionAndFlags) {
  auto get = CU(cuGetProcAddress);
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  OK(get("cuMemAlloc", &found, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  EXPECT_EQ(found, dlsym(library(), "cuMemAlloc_v2"));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
  OK(get("cuCtxCreate", &found, 11040, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  EXPECT_EQ(found, dlsym(library(), "cuCtxCreate_v3"));
  OK(get("cuCtxCreate", &found, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  EXPECT_EQ(found, dlsym(library(), "cuCtxCreate_v4"));
  OK(get("cuLaunchKernel", &found, 13000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
  EXPECT_EQ(found, dlsym(library(), "cuLaunchKernel"));
  void* per_thread = nullptr;
  OK(get("cuLaunchKernel", &per_thread, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr));
  EXPECT_EQ(per_thread, dlsym(library(), "cuLaunchKernel_ptsz"));
  EXPECT_NE(per_thread, found);

  FAILS(CUDA_ERROR_NOT_FOUND, get("cuLaunchKernelEx", &found, 11000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_EQ(found, nullptr);
  FAILS(CUDA_ERROR_NOT_FOUND, get("cuTexObjectCreate", &found, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  FAILS(CUDA_ERROR_INVALID_VALUE, get(nullptr, &found, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  FAILS(CUDA_ERROR_INVALID_VALUE, get("cuInit", &found, 13000, 64, &status));
}

// The remedy is said once, and only to a program that needs it.
TEST_F(SimDriver, ARuntimeThatNeedsPrivateTablesIsToldTheRemedy) {
  const void* table = &table;
  CUuuid id{};
  testing::internal::CaptureStderr();
  FAILS(CUDA_ERROR_NOT_FOUND, CU(cuGetExportTable)(&table, &id));
  EXPECT_EQ(table, nullptr);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  std::memcpy(id.bytes, "\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9", sizeof id.bytes);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) FAILS(CUDA_ERROR_NOT_FOUND, CU(cuGetExportTable)(&table, &id));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("link it with `nvcc -cudart shared`"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGetExportTable)(nullptr, &id));
}

TEST_F(SimDriver, ExportsTheDriverApiAndNothingElse) {
  std::ifstream file(MOXIE_SIM_LIBRARY, std::ios::binary);
  const std::string image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Elf64_Ehdr header;
  ASSERT_GT(image.size(), sizeof header);
  std::memcpy(&header, image.data(), sizeof header);
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  std::memcpy(sections.data(), image.data() + header.e_shoff, sections.size() * sizeof(Elf64_Shdr));
  int exported = 0;
  for (const Elf64_Shdr& s : sections) {
    if (s.sh_type != SHT_DYNSYM) continue;
    for (size_t at = 0; at < s.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym sym;
      std::memcpy(&sym, image.data() + s.sh_offset + at, sizeof sym);
      if (sym.st_shndx == SHN_UNDEF || ELF64_ST_BIND(sym.st_info) == STB_LOCAL) continue;
      const std::string name = image.c_str() + sections[s.sh_link].sh_offset + sym.st_name;
      EXPECT_EQ(name.rfind("cu", 0), 0u) << name;
      ++exported;
    }
  }
  EXPECT_GT(exported, 300);
}

// ---- device --------------------------------------------------------------------------------------

// Run by device_with() in a process of its own.
TEST(SimDeviceProbe, DISABLED_Describe) {
  if (CUresult result = CU(cuInit)(0); result != CUDA_SUCCESS) {
    std::printf("device: cuInit %d\n", result);
    return;
  }
  char name[64];
  int major = 0, minor = 0, sms = 0;
  OK(CU(cuDeviceGetName)(name, sizeof name, 0));
  OK(CU(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  OK(CU(cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
  OK(CU(cuDeviceGetAttribute)(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  std::printf("device: %s %d.%d %d\n", name, major, minor, sms);
}

// How another process with another environment describes its device, and what it says of its environment.
std::string device_with(const char* name, const char* value) {
  const std::string command =
      std::string(
          "env -u MOXIE_SIM_ARCH -u MOXIE_SIM_SMS -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX "
          "-u GTEST_SHARD_STATUS_FILE -u GTEST_OUTPUT ") +
      name + "='" + value + "' /proc/" + std::to_string(getpid()) +
      "/exe --gtest_also_run_disabled_tests --gtest_filter=SimDeviceProbe.DISABLED_Describe 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string text;
  char buffer[256];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) {
    if (std::strncmp(buffer, "device: ", 8) == 0) text += buffer + 8;
    if (std::strncmp(buffer, "MOXIE", 5) == 0) text += buffer;
  }
  pclose(pipe);
  return text;
}

TEST_F(SimDriver, DeviceFollowsTheEnvironment) {
  EXPECT_EQ(device_with("MOXIE_SIM_ARCH", "sm_90a"), "Moxie simulator (sm_90a) 9.0 132\n");
  EXPECT_EQ(device_with("MOXIE_SIM_ARCH", "sm_100a"), "Moxie simulator (sm_100a) 10.0 148\n");
  EXPECT_EQ(device_with("MOXIE_SIM_SMS", "7"), "Moxie simulator (sm_90a) 9.0 7\n");
  EXPECT_EQ(device_with("MOXIE_SIM_ARCH", "sm_86"),
            "MOXIE_SIM_ARCH is 'sm_86'; allowed are sm_90a and sm_100a\ncuInit 100\n");
  EXPECT_EQ(device_with("MOXIE_SIM_SMS", "many"), "MOXIE_SIM_SMS is 'many'; allowed are 1 to 1024\ncuInit 100\n");
  EXPECT_EQ(device_with("MOXIE_SIM_ORDER", "sometimes"),
            "MOXIE_SIM_ORDER is 'sometimes', but must be eager, lazy or random:SEED\ncuInit 100\n");
  EXPECT_EQ(device_with("MOXIE_SIM_THREADS", "0"),
            "MOXIE_SIM_THREADS is '0', but must be a number from 1 to 1024\ncuInit 100\n");
}

TEST_F(SimDriver, DeviceAttributes) {
  const std::pair<CUdevice_attribute, int> expected[] = {
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
      {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
      {CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0},
  };
  for (auto [attribute, value] : expected) {
    int got = -1;
    OK(CU(cuDeviceGetAttribute)(&got, attribute, 0));
    EXPECT_EQ(got, value) << attribute;
  }
  int version = 0;
  OK(CU(cuDriverGetVersion)(&version));
  EXPECT_EQ(version, 13000);
  CUdevice device = -1;
  FAILS(CUDA_ERROR_INVALID_DEVICE, CU(cuDeviceGet)(&device, 1));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuDeviceGetAttribute)(&version, static_cast<CUdevice_attribute>(100000), 0));
}

TEST_F(SimDriver, ErrorsHaveNamesAndTexts) {
  const char* text = nullptr;
  OK(CU(cuGetErrorName)(CUDA_ERROR_INVALID_VALUE, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_INVALID_VALUE");
  OK(CU(cuGetErrorString)(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "out of memory");
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGetErrorString)(static_cast<CUresult>(12345), &text));
  EXPECT_EQ(text, nullptr);
}

// ---- contexts ------------------------------------------------------------------------------------

TEST_F(SimDriver, ContextsStackAndDie) {
  CUcontext created = nullptr, current = nullptr;
  OK(CU(cuCtxCreate)(&created, nullptr, CU_CTX_SCHED_SPIN, 0));
  OK(CU(cuCtxGetCurrent)(&current));
  EXPECT_EQ(current, created);
  CUdeviceptr memory = allocate(64);
  OK(CU(cuCtxPopCurrent)(&current));
  EXPECT_EQ(current, created);
  OK(CU(cuCtxGetCurrent)(&current));
  EXPECT_EQ(current, context);
  OK(CU(cuCtxPushCurrent)(created));
  OK(CU(cuCtxDestroy)(created));
  OK(CU(cuCtxGetCurrent)(&current));
  EXPECT_EQ(current, context);
  FAILS(CUDA_ERROR_CONTEXT_IS_DESTROYED, CU(cuCtxSetCurrent)(created));
  uint32_t word = 0;
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(&word, memory, 4)) << "freed with its context";
  FAILS(CUDA_ERROR_INVALID_CONTEXT, CU(cuCtxDestroy)(context)) << "the primary context cannot be destroyed";
  OK(CU(cuCtxSetCurrent)(nullptr));
  FAILS(CUDA_ERROR_INVALID_CONTEXT, CU(cuMemAlloc)(&memory, 4));
  OK(CU(cuCtxSetCurrent)(context));
}

TEST_F(SimDriver, PrimaryContextIsCounted) {
  CUcontext again = nullptr;
  OK(CU(cuDevicePrimaryCtxRetain)(&again, 0));
  EXPECT_EQ(again, context);
  OK(CU(cuDevicePrimaryCtxRelease)(0));
  unsigned flags = 1;
  int active = 0;
  OK(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
  EXPECT_EQ(active, 1);
  unsigned version = 0;
  OK(CU(cuCtxGetApiVersion)(context, &version));
  int least = 1, greatest = 1;
  OK(CU(cuCtxGetStreamPriorityRange)(&least, &greatest));
  EXPECT_LT(greatest, least);
}

// ---- memory --------------------------------------------------------------------------------------

TEST_F(SimDriver, CopiesAreCheckedAgainstAllocations) {
  const auto data = iota(64);
  CUdeviceptr a = upload(data), b = allocate(256);
  OK(CU(cuMemcpyDtoD)(b + 16, a, 240));
  const auto back = download(b + 16, 60);
  EXPECT_TRUE(std::equal(back.begin(), back.end(), data.begin()));
  std::vector<uint32_t> host(256);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyHtoD)(a + 4, host.data(), 256));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(host.data(), a + 256, 1));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoD)(a, b + 200, 100));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyHtoD)(0, host.data(), 4));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyHtoD)(reinterpret_cast<CUdeviceptr>(host.data()), data.data(), 4));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(host.data(), a, ~size_t{0}));
  OK(CU(cuMemcpy)(reinterpret_cast<CUdeviceptr>(host.data()), a, 256));
  EXPECT_TRUE(std::equal(data.begin(), data.end(), host.begin()));
  OK(CU(cuMemFree)(a));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(a));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(b + 8));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpyDtoH)(host.data(), a, 4));
  OK(CU(cuMemFree)(0));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemAlloc)(&a, 0));
  FAILS(CUDA_ERROR_OUT_OF_MEMORY, CU(cuMemAlloc)(&a, size_t{1} << 60));
}

TEST_F(SimDriver, FreeMemoryIsCounted) {
  size_t before = 0, after = 0, total = 0, device_total = 0;
  OK(CU(cuMemGetInfo)(&before, &total));
  OK(CU(cuDeviceTotalMem)(&device_total, 0));
  EXPECT_EQ(total, device_total);
  CUdeviceptr a = allocate(1 << 20);
  OK(CU(cuMemGetInfo)(&after, &total));
  EXPECT_EQ(before - after, size_t{1} << 20);
  OK(CU(cuMemFree)(a));
  OK(CU(cuMemGetInfo)(&after, &total));
  EXPECT_EQ(before, after);
}

TEST_F(SimDriver, PitchedCopiesAndFills) {
  CUdeviceptr image = 0;
  size_t pitch = 0;
  OK(CU(cuMemAllocPitch)(&image, &pitch, 20, 6, 4));
  EXPECT_EQ(pitch % 512, 0u);
  OK(CU(cuMemsetD2D32)(image, pitch, 0xabcd1234, 5, 6));
  std::array<uint32_t, 6 * 8> host{};
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = image;
  copy.srcPitch = pitch;
  copy.srcXInBytes = 4;
  copy.srcY = 1;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = host.data();
  copy.dstPitch = 32;
  copy.dstXInBytes = 8;
  copy.dstY = 2;
  copy.WidthInBytes = 16;
  copy.Height = 4;
  OK(CU(cuMemcpy2D)(&copy));
  for (int y = 0; y < 6; ++y) {
    for (int x = 0; x < 8; ++x) {
      EXPECT_EQ(host[static_cast<size_t>(y * 8 + x)], y >= 2 && x >= 2 && x < 6 ? 0xabcd1234 : 0) << y << ' ' << x;
    }
  }
  copy.Height = 6;
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpy2D)(&copy)) << "a seventh row";
  copy.Height = 4;
  copy.srcPitch = 8;
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemcpy2D)(&copy)) << "a pitch below the width";

  CUdeviceptr flat = allocate(64);
  OK(CU(cuMemsetD8)(flat, 0x11, 64));
  OK(CU(cuMemsetD16)(flat + 2, 0x2233, 3));
  OK(CU(cuMemsetD32Async)(flat + 8, 0x44556677, 1, nullptr));
  const auto words = download(flat, 4);
  EXPECT_EQ(words[0], 0x22331111u);
  EXPECT_EQ(words[1], 0x22332233u);
  EXPECT_EQ(words[2], 0x44556677u);
  EXPECT_EQ(words[3], 0x11111111u);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD32)(flat + 2, 0, 1)) << "misaligned";
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD8)(flat, 0, 65));

  // Two planes of 2 x 3 words taken out of a box of 4 x 4 x 2.
  const auto box = iota(32);
  CUdeviceptr volume = upload(box);
  std::array<uint32_t, 12> out{};
  CUDA_MEMCPY3D deep{};
  deep.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  deep.srcDevice = volume;
  deep.srcPitch = 16;
  deep.srcHeight = 4;
  deep.srcXInBytes = 4;
  deep.srcY = 2;
  deep.dstMemoryType = CU_MEMORYTYPE_HOST;
  deep.dstHost = out.data();
  deep.dstPitch = 12;
  deep.dstHeight = 2;
  deep.WidthInBytes = 12;
  deep.Height = 2;
  deep.Depth = 2;
  OK(CU(cuMemcpy3D)(&deep));
  const std::array<uint32_t, 12> expected{9, 10, 11, 13, 14, 15, 25, 26, 27, 29, 30, 31};
  EXPECT_EQ(out, expected);
}

TEST_F(SimDriver, HostAndManagedMemoryIsReachedByKernels) {
  void* host = nullptr;
  OK(CU(cuMemHostAlloc)(&host, 400, CU_MEMHOSTALLOC_DEVICEMAP));
  auto* words = static_cast<uint32_t*>(host);
  for (uint32_t i = 0; i < 100; ++i) words[i] = i;
  CUdeviceptr mapped = 0;
  OK(CU(cuMemHostGetDevicePointer)(&mapped, host, 0));
  OK(scale_add(mapped, 100));
  OK(CU(cuCtxSynchronize)());
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(words[i], i * 4);
  unsigned type = 0;
  OK(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, mapped));
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(mapped));
  OK(CU(cuMemFreeHost)(host));

  CUdeviceptr managed = 0;
  OK(CU(cuMemAllocManaged)(&managed, 16, CU_MEM_ATTACH_GLOBAL));
  std::memset(reinterpret_cast<void*>(managed), 0, 16);
  OK(scale_add(managed, 4));
  EXPECT_EQ(reinterpret_cast<uint32_t*>(managed)[3], 3u);
  int is_managed = 0;
  OK(CU(cuPointerGetAttribute)(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
  EXPECT_EQ(is_managed, 1);
  CUdeviceptr base = 0;
  size_t size = 0;
  OK(CU(cuMemGetAddressRange)(&base, &size, managed + 5));
  EXPECT_EQ(base, managed);
  EXPECT_EQ(size, 16u);
  int local = 0;
  FAILS(CUDA_ERROR_INVALID_VALUE,
        CU(cuPointerGetAttribute)(&local, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&local)));
}

TEST_F(SimDriver, StreamOrderedAllocation) {
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUmemoryPool pool = nullptr;
  OK(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
  CUdeviceptr memory = 0;
  OK(CU(cuMemAllocAsync)(&memory, 4096, stream));
  cuuint64_t used = 0;
  OK(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, 4096u);
  OK(CU(cuMemsetD8Async)(memory, 1, 4096, stream));
  OK(CU(cuMemFreeAsync)(memory, stream));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFreeAsync)(memory, stream));
  OK(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  EXPECT_EQ(used, 0u);
}

// ---- modules -------------------------------------------------------------------------------------

struct LoadResult {
  CUresult code = CUDA_SUCCESS;
  std::string log;
};
LoadResult load_with_log(const void* image) {
  std::array<char, 512> log{};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  CUmodule module = nullptr;
  LoadResult result;
  result.code = CU(cuModuleLoadDataEx)(&module, image, 2, options, values);
  EXPECT_EQ(reinterpret_cast<size_t>(values[1]), std::strlen(log.data()));
  result.log = log.data();
  return result;
}

TEST_F(SimDriver, BadPtxIsNamedByLine) {
  const LoadResult syntax =
      load_with_log(".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n  mov.u32 ;\n}\n");
  EXPECT_EQ(syntax.code, CUDA_ERROR_INVALID_PTX);
  EXPECT_NE(syntax.log.find("line 6"), std::string::npos) << syntax.log;
  const LoadResult unknown = load_with_log(
      ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n  .reg .b32 %r<2>;\n  frobnicate.u32 "
      "%r1, 1;\n  ret;\n}\n");
  EXPECT_EQ(unknown.code, CUDA_ERROR_INVALID_PTX);
  EXPECT_NE(unknown.log.find("frobnicate"), std::string::npos) << unknown.log;
  EXPECT_NE(unknown.log.find("line 7"), std::string::npos) << unknown.log;
}

// What one kernel of a module cannot do keeps nobody from the others.
TEST_F(SimDriver, AKernelThatCannotBeSimulatedFailsWhenLaunched) {
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, R"(.version 8.0
.target sm_90a
.address_size 64
.visible .entry bad()
{
  .reg .b32 %r<2>;
  frobnicate.u32 %r1, 1;
  ret;
}
.visible .entry good()
{
  ret;
})"));
  CUfunction good = nullptr, bad = nullptr;
  OK(CU(cuModuleGetFunction)(&good, module, "good"));
  OK(CU(cuModuleGetFunction)(&bad, module, "bad"));
  OK(CU(cuLaunchKernel)(good, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
  testing::internal::CaptureStderr();
  FAILS(CUDA_ERROR_NOT_SUPPORTED, CU(cuLaunchKernel)(bad, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
  const std::string sentence =
      "kernel 'bad' cannot be simulated: line 7, column 3: instruction 'frobnicate.u32' is not supported";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), sentence + "\n");
  const char* text = nullptr;
  OK(CU(cuGetErrorString)(CUDA_ERROR_NOT_SUPPORTED, &text));
  EXPECT_EQ(std::string(text).substr(std::string(text).find("kernel")), sentence);
  OK(CU(cuLaunchKernel)(good, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr)) << "the context is unharmed";
  OK(CU(cuCtxSynchronize)());
}

// A table of functions in global memory, as compilers write virtual ones.
TEST_F(SimDriver, FunctionsAreCalledThroughTablesInMemory) {
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, R"(.version 8.0
.target sm_90a
.address_size 64
.func (.reg .b32 r) twice(.reg .b32 a) { add.u32 r, a, a; ret; }
.func (.reg .b32 r) square(.reg .b32 a) { mul.lo.u32 r, a, a; ret; }
.global .align 8 .u64 table[2] = {twice, square};
.visible .entry k(.param .u64 p_out)
{
  .reg .b32 %r<4>; .reg .b64 %rd<6>;
  mov.u32 %r1, %tid.x;
  and.b32 %r2, %r1, 1;
  mov.u64 %rd1, table;
  mad.wide.u32 %rd1, %r2, 8, %rd1;
  ld.global.u64 %rd2, [%rd1];
  call (%r3), %rd2, (%r1), any;
  any: .callprototype (.reg .b32 _) _ (.reg .b32 _);
  ld.param.u64 %rd3, [p_out];
  mad.wide.u32 %rd3, %r1, 4, %rd3;
  st.global.u32 [%rd3], %r3;
  ret;
})"));
  CUfunction k = nullptr;
  OK(CU(cuModuleGetFunction)(&k, module, "k"));
  CUdeviceptr out = allocate(32 * 4);
  void* params[] = {&out};
  OK(CU(cuLaunchKernel)(k, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
  const std::vector<uint32_t> values = download(out, 32);
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(values[t], t % 2 == 0 ? 2 * t : t * t) << t;
}

TEST_F(SimDriver, ImagesThatAreNotForThisDevice) {
  std::string other = kPtx;
  other.replace(other.find("sm_90a"), 6, "sm_100a");
  EXPECT_EQ(load_with_log(other.c_str()).code, CUDA_ERROR_NO_BINARY_FOR_GPU);
  other.replace(other.find("sm_100a"), 7, "sm_80");
  EXPECT_EQ(load_with_log(other.c_str()).code, CUDA_SUCCESS);
  EXPECT_EQ(load_with_log("\x7f"
                          "ELF....")
                .code,
            CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(load_with_log("").code, CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(load_with_log("\x01\x02").code, CUDA_ERROR_INVALID_IMAGE);
}

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// A fat binary with one entry.
std::string fatbin(uint16_t kind, uint64_t flags, const std::string& payload, uint64_t unpacked) {
  std::string entry;
  put<uint16_t>(entry, kind);
  put<uint16_t>(entry, 0x101);
  put<uint32_t>(entry, 64);
  put<uint64_t>(entry, payload.size());
  put<uint32_t>(entry, static_cast<uint32_t>(unpacked ? payload.size() : 0));
  put<uint32_t>(entry, 0);
  put<uint32_t>(entry, 0);
  put<uint32_t>(entry, 90);
  put<uint64_t>(entry, 0);
  put<uint64_t>(entry, flags);
  put<uint64_t>(entry, 0);
  put<uint64_t>(entry, unpacked);
  std::string bytes;
  put<uint32_t>(bytes, 0xba55ed50);
  put<uint16_t>(bytes, 1);
  put<uint16_t>(bytes, 16);
  put<uint64_t>(bytes, entry.size() + payload.size());
  bytes += entry + payload;
  // The folder MOXIE_TEST_IMAGES, when it is set, gets each: seeds for scripts/fuzz.
  if (const char* folder = std::getenv("MOXIE_TEST_IMAGES"))
    std::ofstream(folder + ("/" + std::to_string(std::hash<std::string>()(bytes)) + ".fatbin")) << bytes;
  return bytes;
}

// What a length adds to its four bits of the token.
void put_length(std::string& out, size_t length) {
  if (length < 15) return;
  for (length -= 15; length >= 255; length -= 255) out.push_back('\xff');
  out.push_back(static_cast<char>(length));
}

// One LZ4 sequence of `text`, a run of spaces as an overlapping match, and the rest as literals.
std::string lz4(const std::string& head, size_t run, const std::string& tail) {
  const std::string literals = head + " ";
  const auto nibble = [](size_t length) { return std::min<size_t>(length, 15); };
  std::string out;
  out.push_back(static_cast<char>(nibble(literals.size()) << 4 | nibble(run - 4)));
  put_length(out, literals.size());
  out += literals;
  put<uint16_t>(out, 1);
  put_length(out, run - 4);
  out.push_back(static_cast<char>(nibble(tail.size()) << 4));
  put_length(out, tail.size());
  return out + tail;
}

// A Zstandard frame of a raw block, a run of spaces as a block of its own kind, and another raw block (RFC 8878).
std::string zstd(const std::string& head, uint32_t run, const std::string& tail) {
  std::string out;
  const auto block = [&](size_t size, uint32_t kind, bool last, const std::string& content) {
    const auto header = static_cast<uint32_t>(size << 3 | kind << 1 | (last ? 1 : 0));
    for (int byte = 0; byte < 3; ++byte) out.push_back(static_cast<char>(header >> (8 * byte)));
    out += content;
  };
  put<uint32_t>(out, 0xfd2fb528);
  out.push_back('\xa0');  // a single segment, the size of the content in four bytes
  put<uint32_t>(out, static_cast<uint32_t>(head.size() + run + tail.size()));
  block(head.size(), 0, false, head);
  block(run, 1, false, " ");
  block(tail.size(), 0, true, tail);
  return out;
}

TEST_F(SimDriver, FatBinariesCarryPtx) {
  const std::string plain = std::string(kPtx) + '\0';
  const std::string whole = fatbin(1, 0x11, plain, 0);
  EXPECT_EQ(load_with_log(whole.data()).code, CUDA_SUCCESS);

  struct {
    uint32_t magic = 0x466243b1, version = 1;
    const void* data = nullptr;
    const void* file = nullptr;
  } wrapper;
  wrapper.data = whole.data();
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadFatBinary)(&module, &wrapper));
  CUfunction f = nullptr;
  OK(CU(cuModuleGetFunction)(&f, module, "scale_add"));

  const std::string head = "// the beginning of the text\n", tail = std::string(kPtx) + '\0';
  const std::string packed = lz4(head, 300, tail);
  const size_t unpacked = head.size() + 1 + 300 + tail.size();
  const LoadResult compressed = load_with_log(fatbin(1, 0x2011, packed, unpacked).data());
  EXPECT_EQ(compressed.code, CUDA_SUCCESS) << compressed.log;
  EXPECT_EQ(load_with_log(fatbin(1, 0x2011, packed.substr(0, 200), unpacked).data()).code, CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(load_with_log(fatbin(1, 0x2011, packed, unpacked - 1).data()).code, CUDA_ERROR_INVALID_IMAGE);
  const std::string frame = zstd(head, 301, tail);
  const LoadResult framed = load_with_log(fatbin(1, 0x8011, frame, unpacked).data());
  const LoadResult damaged = load_with_log(fatbin(1, 0x8011, packed, unpacked).data());
  EXPECT_NE(damaged.log.find("Zstandard"), std::string::npos) << damaged.log;
  if (damaged.code != CUDA_ERROR_NO_BINARY_FOR_GPU) {  // which says that this system has no libzstd.so.1
    EXPECT_EQ(framed.code, CUDA_SUCCESS) << framed.log;
    EXPECT_EQ(damaged.code, CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(load_with_log(fatbin(1, 0x8011, frame, unpacked - 1).data()).code, CUDA_ERROR_INVALID_IMAGE);
  }
  EXPECT_EQ(load_with_log(fatbin(2, 0x11,
                                 "\x7f"
                                 "ELF",
                                 0)
                              .data())
                .code,
            CUDA_ERROR_NO_BINARY_FOR_GPU);
}

// Null pointers, wrappers that lead nowhere or to themselves, and variables larger than any memory.
TEST_F(SimDriver, ImagesThatPointNowhereAreErrors) {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuModuleLoadData)(nullptr, kPtx));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuModuleLoadData)(&module, nullptr));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuModuleLoadDataEx)(&module, kPtx, 1, nullptr, nullptr));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuModuleLoad)(&module, nullptr));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuLibraryLoadData)(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0));
  struct {
    uint32_t magic = 0x466243b1, version = 1;
    const void* data = nullptr;
    const void* file = nullptr;
  } wrapper;
  FAILS(CUDA_ERROR_INVALID_IMAGE, CU(cuModuleLoadFatBinary)(&module, &wrapper));
  wrapper.data = &wrapper;  // itself
  FAILS(CUDA_ERROR_INVALID_IMAGE, CU(cuModuleLoadFatBinary)(&module, &wrapper));
  const std::string header = ".version 8.0\n.target sm_90a\n.address_size 64\n";
  FAILS(CUDA_ERROR_OUT_OF_MEMORY, CU(cuModuleLoadData)(&module, (header + ".global .b8 x[1000000000000];").c_str()));
  FAILS(CUDA_ERROR_INVALID_PTX, CU(cuModuleLoadData)(&module, (header + ".global .b8 x[100000000000000];").c_str()));
  FAILS(CUDA_ERROR_INVALID_PTX, CU(cuModuleLoadData)(&module, (header + ".const .b8 x[100000];").c_str()));
}

// What cuModuleLoad answers for the file; cuLibraryLoadFromFile must answer the same.
CUresult load_path(const std::string& path) {
  CUmodule module = nullptr;
  const CUresult code = CU(cuModuleLoad)(&module, path.c_str());
  CUlibrary library = nullptr;
  EXPECT_EQ(code, CU(cuLibraryLoadFromFile)(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  EXPECT_EQ(module != nullptr, code == CUDA_SUCCESS);
  EXPECT_EQ(library != nullptr, code == CUDA_SUCCESS);
  if (module != nullptr) CU(cuModuleUnload)(module);
  if (library != nullptr) CU(cuLibraryUnload)(library);
  return code;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : path(testing::TempDir() + "moxie_sim_" + name + "_" + std::to_string(getpid())) {}
  ~TemporaryFile() { std::remove(path.c_str()); }
  CUresult load(const std::string& content) const {
    std::ofstream(path, std::ios::binary) << content;
    return load_path(path);
  }
  const std::string path;
};

constexpr char kSmallPtx[] =
    ".version 8.0\n.target sm_90a\n.address_size 64\n"
    ".visible .global .align 4 .u32 x[2] = {1, 2};\n"
    ".visible .entry k(.param .u64 p)\n"
    "{\n.reg .b64 %rd<2>;\nld.param.u64 %rd1, [p];\nst.global.u32 [%rd1+4], 3;\nret;\n}";

TEST_F(SimDriver, FilesCutOffAnywhereAreErrors) {
  const TemporaryFile file("cut");
  const std::string text = kSmallPtx;
  // Text that ends between two declarations is a whole module.
  const size_t target = text.find("sm_90a") + 6, variable = text.find(';') + 1, entry = text.find(".visible .entry");
  for (size_t n = 0; n <= text.size(); ++n) {
    const CUresult code = file.load(text.substr(0, n));
    const std::string at = "the first " + std::to_string(n) + " bytes";
    if (n == 0) {
      EXPECT_EQ(code, CUDA_ERROR_INVALID_IMAGE);
    } else if (n == text.size() || (n >= variable && n <= entry)) {
      EXPECT_EQ(code, CUDA_SUCCESS) << at;
    } else if (n + 1 < target || n > entry) {
      EXPECT_NE(code, CUDA_SUCCESS) << at;
    }
  }

  const std::string head = "// text\n", tail = text + '\0';
  const size_t unpacked = head.size() + 1 + 300 + tail.size();
  for (const std::string& image : {fatbin(1, 0x11, tail, 0), fatbin(1, 0x2011, lz4(head, 300, tail), unpacked)}) {
    for (size_t n = 0; n < image.size(); ++n) {
      const CUresult code = file.load(image.substr(0, n));
      // The magic number that is cut off is text.
      EXPECT_TRUE(code == CUDA_ERROR_INVALID_IMAGE || (n < 4 && code == CUDA_ERROR_INVALID_PTX))
          << code << " for the first " << n << " bytes";
    }
    EXPECT_EQ(file.load(image), CUDA_SUCCESS);
  }
  const std::string elf = std::string("\x7f") + "ELF" + std::string(60, '\0');
  for (size_t n = 1; n <= elf.size(); ++n) {
    EXPECT_EQ(file.load(elf.substr(0, n)), n < 4 ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_NO_BINARY_FOR_GPU) << n;
  }
}

// Every size in the headers of a fat binary is far too large once.
TEST_F(SimDriver, FilesWithHugeSizesAreErrors) {
  const TemporaryFile file("huge");
  const std::string packed = lz4("// text\n", 300, kSmallPtx);
  const std::string whole = fatbin(1, 0x2011, packed, std::strlen("// text\n") + 1 + 300 + std::strlen(kSmallPtx));
  ASSERT_EQ(file.load(whole), CUDA_SUCCESS);
  struct Field {
    size_t offset, bytes;
  };
  for (const auto& [offset, bytes] :
       {Field{6, 2}, Field{8, 8}, Field{20, 4}, Field{24, 8}, Field{32, 4}, Field{72, 8}}) {
    for (int unit = 0; unit < 2; ++unit) {  // all ones, and the largest that is not negative
      std::string damaged = whole;
      for (size_t i = 0; i < bytes; ++i) damaged[offset + i] = '\xff';
      if (unit == 1) damaged[offset + bytes - 1] = '\x7f';
      EXPECT_EQ(file.load(damaged), CUDA_ERROR_INVALID_IMAGE) << "the field at " << offset;
    }
  }
  // A little text that asks for very many variables or labels.
  std::string names;
  for (int i = 0; i < 1000; ++i) names += (i > 0 ? ", n" : "n") + std::to_string(i) + "_<65536>";
  const std::string header = ".version 8.0\n.target sm_90a\n.address_size 64\n";
  EXPECT_EQ(file.load(header + ".global .b8 " + names + ";"), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(file.load(header + ".entry k() {\nt: .branchtargets " + names + ";\nret;\n}"), CUDA_ERROR_INVALID_PTX);
}

TEST_F(SimDriver, WhatIsNotAFileIsNotFound) {
  const TemporaryFile pipe("pipe");
  ASSERT_EQ(mkfifo(pipe.path.c_str(), 0600), 0);
  for (const std::string& path : {pipe.path, testing::TempDir(), pipe.path + "_missing", std::string("/dev/zero")})
    EXPECT_EQ(load_path(path), CUDA_ERROR_FILE_NOT_FOUND) << path;
  const TemporaryFile sparse("sparse");
  EXPECT_EQ(sparse.load(""), CUDA_ERROR_INVALID_IMAGE);
  if (truncate(sparse.path.c_str(), off_t{1} << 40) == 0) {  // not every file system has such files
    EXPECT_EQ(load_path(sparse.path), CUDA_ERROR_INVALID_IMAGE);
  }
}

TEST_F(SimDriver, ModulesHaveFunctionsAndVariables) {
  CUmodule module = load();
  CUfunction f = nullptr;
  FAILS(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetFunction)(&f, module, "absent"));
  unsigned count = 0;
  OK(CU(cuModuleGetFunctionCount)(&count, module));
  EXPECT_EQ(count, 7u);
  OK(CU(cuModuleGetFunction)(&f, module, "count"));
  CUdeviceptr counter = 0;
  size_t bytes = 0;
  OK(CU(cuModuleGetGlobal)(&counter, &bytes, module, "counter"));
  EXPECT_EQ(bytes, 4u);
  FAILS(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetGlobal)(&counter, &bytes, module, "absent"));
  EXPECT_EQ(download(counter, 1)[0], 7u);
  CUdeviceptr out = allocate(4);
  void* params[] = {&out};
  for (uint32_t expected : {7u, 8u}) {
    OK(CU(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
    EXPECT_EQ(download(out, 1)[0], expected);
  }
  const uint32_t forty = 40;
  OK(CU(cuMemcpyHtoD)(counter, &forty, 4));
  OK(CU(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_EQ(download(out, 1)[0], 40u);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(counter));
  const char* name = nullptr;
  OK(CU(cuFuncGetName)(&name, f));
  EXPECT_STREQ(name, "count");
  size_t offset = 1, size = 0;
  OK(CU(cuModuleGetFunction)(&f, module, "scale_add"));
  OK(CU(cuFuncGetParamInfo)(f, 1, &offset, &size));
  EXPECT_EQ(offset, 8u);
  EXPECT_EQ(size, 4u);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuFuncGetParamInfo)(f, 2, &offset, &size));
  OK(CU(cuModuleUnload)(module));
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuModuleUnload)(module));
}

size_t free_memory() {
  size_t bytes = 0, total = 0;
  EXPECT_EQ(CUDA_SUCCESS, CU(cuMemGetInfo)(&bytes, &total));
  return bytes;
}

TEST_F(SimDriver, VariablesHaveTheirAlignmentAndLeaveWithTheirModule) {
  const size_t before = free_memory();
  const std::string header = ".version 8.0\n.target sm_90a\n.address_size 64\n";
  // Many small ones too: a process can have no mapping for each.
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, (header +
                                    ".visible .global .align 1048576 .b8 x[12];\n"
                                    ".visible .global .align 4096 .u32 y = 5;\n"
                                    ".global .b8 n<65536>; .global .b8 m<65535>;\n" +
                                    std::string(".entry k() { ret; }"))
                                       .c_str()));
  CUdeviceptr x = 0, y = 0, n = 0;
  size_t bytes = 0;
  OK(CU(cuModuleGetGlobal)(&x, &bytes, module, "x"));
  EXPECT_EQ(x % 1048576, 0u);
  EXPECT_EQ(bytes, 12u);
  OK(CU(cuModuleGetGlobal)(&y, nullptr, module, "y"));
  EXPECT_EQ(y % 4096, 0u);
  EXPECT_EQ(download(y, 1)[0], 5u);
  OK(CU(cuModuleGetGlobal)(&n, nullptr, module, "n65535"));
  EXPECT_EQ(free_memory(), before - 12 - 4 - 65536 - 65535);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD8)(x, 1, 13));  // it is an allocation of its own
  OK(CU(cuModuleUnload)(module));
  EXPECT_EQ(free_memory(), before);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD8)(y, 1, 4));
  // A module that is refused leaves nothing either.
  FAILS(CUDA_ERROR_INVALID_PTX, CU(cuModuleLoadData)(&module, (header + ".global .b64 a[4];\n"
                                                                        ".global .b64 b = nowhere;")
                                                                  .c_str()));
  FAILS(CUDA_ERROR_INVALID_PTX,
        CU(cuModuleLoadData)(&module, (header + ".global .b64 a[4];\n.entry k() { cp.async.banana; ret; }").c_str()));
  EXPECT_EQ(free_memory(), before);
}

TEST_F(SimDriver, LibrariesServeEveryContext) {
  CUlibrary lib = nullptr;
  OK(CU(cuLibraryLoadData)(&lib, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  OK(CU(cuLibraryGetKernel)(&kernel, lib, "scale_add"));
  FAILS(CUDA_ERROR_NOT_FOUND, CU(cuLibraryGetKernel)(&kernel, lib, "absent"));
  OK(CU(cuLibraryGetKernel)(&kernel, lib, "scale_add"));
  CUfunction f = nullptr;
  OK(CU(cuKernelGetFunction)(&f, kernel));
  CUdeviceptr data = upload(iota(10));
  uint32_t n = 10;
  void* params[] = {&data, &n};
  OK(CU(cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
  // A kernel of a library may stand where a function is asked for.
  OK(CU(cuLaunchKernel)(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_EQ(download(data, 10)[9], (9u * 3 + 9) * 3 + 9);
  int threads = 0;
  OK(CU(cuKernelGetAttribute)(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
  EXPECT_EQ(threads, 1024);
  CUmodule module = nullptr;
  OK(CU(cuLibraryGetModule)(&module, lib));
  OK(CU(cuLibraryUnload)(lib));
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
}

// ---- launches ------------------------------------------------------------------------------------

TEST_F(SimDriver, LaunchComputes) {
  CUdeviceptr data = upload(iota(1000));
  OK(scale_add(data, 1000));
  const auto out = download(data, 1000);
  for (uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(out[i], i * 4);
  // The same through a parameter buffer.
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

// ---- streams and events --------------------------------------------------------------------------

TEST_F(SimDriver, StreamsRunHostFunctionsInOrder) {
  CUstream stream = nullptr;
  OK(CU(cuStreamCreateWithPriority)(&stream, CU_STREAM_NON_BLOCKING, -100));
  int priority = 1;
  OK(CU(cuStreamGetPriority)(stream, &priority));
  EXPECT_EQ(priority, -5);
  CUdeviceptr data = upload(iota(4));
  static std::vector<int> order;
  static CUresult inside;
  order.clear();
  OK(scale_add(data, 4, stream));
  OK(CU(cuLaunchHostFunc)(
      stream,
      [](void*) {
        order.push_back(1);
        CUdeviceptr p = 0;
        inside = CU(cuMemAlloc)(&p, 4);
      },
      nullptr));
  OK(CU(cuStreamAddCallback)(
      stream, [](CUstream, CUresult status, void*) { order.push_back(status == CUDA_SUCCESS ? 2 : -2); }, nullptr, 0));
  OK(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(inside, CUDA_ERROR_NOT_PERMITTED);
  OK(CU(cuStreamQuery)(stream));
  CUcontext owner = nullptr;
  OK(CU(cuStreamGetCtx)(stream, &owner));
  EXPECT_EQ(owner, context);
  OK(CU(cuStreamDestroy)(stream));
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuStreamQuery)(stream));
  OK(CU(cuStreamSynchronize)(CU_STREAM_LEGACY));
  OK(CU(cuStreamSynchronize)(CU_STREAM_PER_THREAD));
}

TEST_F(SimDriver, EventsMeasureAndOrder) {
  CUevent start = nullptr, end = nullptr, silent = nullptr;
  OK(CU(cuEventCreate)(&start, CU_EVENT_DEFAULT));
  OK(CU(cuEventCreate)(&end, CU_EVENT_DEFAULT));
  OK(CU(cuEventCreate)(&silent, CU_EVENT_DISABLE_TIMING));
  float ms = -1;
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuEventElapsedTime)(&ms, start, end)) << "not recorded";
  OK(CU(cuEventRecord)(start, nullptr));
  OK(CU(cuEventRecord)(end, nullptr));
  OK(CU(cuEventRecord)(silent, nullptr));
  OK(CU(cuEventQuery)(end));
  OK(CU(cuEventSynchronize)(end));
  OK(CU(cuEventElapsedTime)(&ms, start, end));
  EXPECT_GE(ms, 0.0f);
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuEventElapsedTime)(&ms, start, silent));
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  OK(CU(cuStreamWaitEvent)(stream, end, 0));
  OK(CU(cuEventDestroy)(end));
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuEventRecord)(end, nullptr));
}

TEST_F(SimDriver, ThreadsHaveTheirOwnStreams) {
  CUfunction f = function("scale_add");
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, this] {
      if (CU(cuCtxSetCurrent)(context) != CUDA_SUCCESS) ++wrong;
      CUdeviceptr data = 0;
      uint32_t n = 64;
      auto values = iota(n);
      if (CU(cuMemAlloc)(&data, n * 4) != CUDA_SUCCESS) ++wrong;
      for (int round = 0; round < 5; ++round) {
        void* params[] = {&data, &n};
        if (CU(cuMemcpyHtoDAsync)(data, values.data(), n * 4, CU_STREAM_PER_THREAD) != CUDA_SUCCESS) ++wrong;
        if (CU(cuLaunchKernel)(f, 1, 1, 1, 64, 1, 1, 0, CU_STREAM_PER_THREAD, params, nullptr) != CUDA_SUCCESS) ++wrong;
        if (CU(cuMemcpyDtoHAsync)(values.data(), data, n * 4, CU_STREAM_PER_THREAD) != CUDA_SUCCESS) ++wrong;
        if (CU(cuStreamSynchronize)(CU_STREAM_PER_THREAD) != CUDA_SUCCESS) ++wrong;
      }
      for (uint32_t i = 0; i < n; ++i) {
        uint32_t expected = i;
        for (int round = 0; round < 5; ++round) expected = expected * 3 + i;
        if (values[i] != expected) ++wrong;
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

// ---- graphs --------------------------------------------------------------------------------------

class SimCapture : public SimDriver {
 protected:
  void SetUp() override {
    SimDriver::SetUp();
    OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    OK(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
    OK(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    data = upload(iota(100));
    function("scale_add");
  }
  CUresult begin(CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    return CU(cuStreamBeginCapture)(stream, mode);
  }
  CUresult end() {
    graph = nullptr;
    return CU(cuStreamEndCapture)(stream, &graph);
  }
  size_t nodes() {
    size_t count = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphGetNodes)(graph, nullptr, &count));
    return count;
  }
  CUstream stream = nullptr, other = nullptr;
  CUevent event = nullptr;
  CUgraph graph = nullptr;
  CUdeviceptr data = 0;
};

TEST_F(SimCapture, RecordsAndReplays) {
  static int calls;
  calls = 0;
  CUdeviceptr copy = allocate(400);
  OK(begin());
  CUstreamCaptureStatus status{};
  OK(CU(cuStreamIsCapturing)(stream, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(CU(cuMemsetD8Async)(copy, 0, 400, stream));
  OK(scale_add(data, 100, stream));  // its parameters are gone when the graph runs
  OK(CU(cuMemcpyDtoDAsync)(copy, data, 400, stream));
  OK(CU(cuLaunchHostFunc)(
      stream, [](void*) { ++calls; }, nullptr));
  cuuint64_t id = 0;
  CUgraph live = nullptr;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
  OK(CU(cuStreamGetCaptureInfo)(stream, &status, &id, &live, &dependencies, nullptr, &count));
  EXPECT_EQ(count, 1u);
  EXPECT_NE(live, nullptr);
  OK(end());
  EXPECT_EQ(nodes(), 4u);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(download(data, 100), iota(100)) << "nothing ran while capturing";
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  OK(CU(cuGraphDestroy)(graph));
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuGraphLaunch)(exec, stream));
  OK(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(download(copy, 100)[99], 99u * 4 * 3 + 99);
  OK(CU(cuGraphExecDestroy)(exec));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphLaunch)(exec, stream));
}

TEST_F(SimCapture, FollowsEventsIntoOtherStreams) {
  OK(begin());
  OK(scale_add(data, 100, stream));
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuStreamWaitEvent)(other, event, 0));
  OK(scale_add(data, 50, other));
  OK(CU(cuEventRecord)(event, other));
  FAILS(CUDA_ERROR_CAPTURED_EVENT, CU(cuEventQuery)(event));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());

  OK(begin());
  OK(scale_add(data, 100, stream));
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuStreamWaitEvent)(other, event, 0));
  OK(scale_add(data, 50, other));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, end());

  OK(begin());
  OK(scale_add(data, 100, stream));
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuStreamWaitEvent)(other, event, 0));
  OK(scale_add(data, 50, other));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CU(cuStreamEndCapture)(other, &graph));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());

  OK(begin());
  OK(scale_add(data, 100, stream));
  OK(CU(cuEventRecord)(event, stream));
  OK(CU(cuStreamWaitEvent)(other, event, 0));
  OK(scale_add(data, 50, other));
  CUevent join = nullptr;
  OK(CU(cuEventCreate)(&join, CU_EVENT_DISABLE_TIMING));
  OK(CU(cuEventRecord)(join, other));
  OK(CU(cuStreamWaitEvent)(stream, join, 0));
  OK(scale_add(data, 10, stream));
  OK(end());
  EXPECT_EQ(nodes(), 3u);
  size_t edges = 0;
  OK(CU(cuGraphGetEdges)(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 3u);  // the last kernel follows both others
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  OK(CU(cuGraphLaunch)(exec, stream));
  const auto out = download(data, 100);
  EXPECT_EQ(out[99], 99u * 4);
  EXPECT_EQ(out[49], 49u * 4 * 3 + 49);
  EXPECT_EQ(out[9], (9u * 4 * 3 + 9) * 3 + 9);
}

TEST_F(SimCapture, ForbidsWhatCannotBeCaptured) {
  FAILS(CUDA_ERROR_ILLEGAL_STATE, end()) << "nothing to end";
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuStreamBeginCapture)(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(begin());
  FAILS(CUDA_ERROR_ILLEGAL_STATE, begin());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuStreamSynchronize)(stream));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, scale_add(data, 100, stream));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  EXPECT_EQ(graph, nullptr);

  CUdeviceptr p = 0;
  OK(begin());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuMemAlloc)(&p, 4));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  OK(begin());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CU(cuCtxSynchronize)());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  OK(begin(CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(CU(cuMemAlloc)(&p, 4)) << "a relaxed capture leaves the rest alone";
  OK(end());

  OK(CU(cuEventRecord)(event, other));
  OK(begin());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CU(cuStreamWaitEvent)(stream, event, 0));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());

  // Two captures must not meet.
  OK(begin());
  OK(CU(cuStreamBeginCapture)(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(CU(cuEventRecord)(event, other));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_MERGE, CU(cuStreamWaitEvent)(stream, event, 0));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, end());
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(other, &graph));

  // The legacy stream waits for blocking streams, so it cannot run while one captures.
  CUstream blocking = nullptr;
  OK(CU(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
  OK(CU(cuStreamBeginCapture)(blocking, CU_STREAM_CAPTURE_MODE_GLOBAL));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, scale_add(data, 100));
  FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CU(cuStreamEndCapture)(blocking, &graph));

  OK(begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUresult elsewhere = CUDA_SUCCESS;
  std::thread([&] {
    CU(cuCtxSetCurrent)(context);
    elsewhere = CU(cuStreamEndCapture)(stream, &graph);
  }).join();
  EXPECT_EQ(elsewhere, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  OK(end());
}

TEST_F(SimCapture, PerThreadFormsTakeTheNullStreamForTheThreads) {
  auto begin_capture = symbol<decltype(&cuStreamBeginCapture)>("cuStreamBeginCapture_v2_ptsz");
  auto end_capture = symbol<decltype(&cuStreamEndCapture)>("cuStreamEndCapture_ptsz");
  auto fill = symbol<decltype(&cuMemsetD8Async)>("cuMemsetD8Async_ptsz");
  OK(begin_capture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(fill(data, 1, 400, nullptr));
  CUstreamCaptureStatus status{};
  OK(CU(cuStreamIsCapturing)(CU_STREAM_PER_THREAD, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(end_capture(nullptr, &graph));
  EXPECT_EQ(nodes(), 1u);
}

TEST_F(SimCapture, GraphsAreBuiltByHandAndUpdated) {
  OK(CU(cuGraphCreate)(&graph, 0));
  uint32_t n = 100;
  void* params[] = {&data, &n};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = function("scale_add");
  kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
  kernel.blockDimX = 128;
  kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.kernelParams = params;
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = data;
  fill.value = 5;
  fill.elementSize = 4;
  fill.width = 100;
  fill.height = 1;
  CUgraphNode first = nullptr, second = nullptr;
  OK(CU(cuGraphAddKernelNode)(&second, graph, nullptr, 0, &kernel));
  OK(CU(cuGraphAddMemsetNode)(&first, graph, nullptr, 0, &fill, context));
  OK(CU(cuGraphAddDependencies)(graph, &first, &second, nullptr, 1));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGraphAddDependencies)(graph, &second, &first, nullptr, 1)) << "a cycle";
  CUgraphExec exec = nullptr;
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  OK(CU(cuGraphLaunch)(exec, nullptr));
  EXPECT_EQ(download(data, 100)[99], 5u * 3 + 99);
  n = 10;
  OK(CU(cuGraphExecKernelNodeSetParams)(exec, second, &kernel));
  OK(CU(cuGraphLaunch)(exec, nullptr));
  EXPECT_EQ(download(data, 100)[99], 5u);
  EXPECT_EQ(download(data, 100)[9], 5u * 3 + 9);
  OK(CU(cuGraphNodeSetEnabled)(exec, second, 0));
  OK(CU(cuGraphLaunch)(exec, nullptr));
  EXPECT_EQ(download(data, 100)[9], 5u);
  CUgraphExecUpdateResultInfo info{};
  CUgraph empty = nullptr;
  OK(CU(cuGraphCreate)(&empty, 0));
  FAILS(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CU(cuGraphExecUpdate)(exec, empty, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  OK(CU(cuGraphExecUpdate)(exec, graph, &info));
}

// ---- faults --------------------------------------------------------------------------------------

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

TEST_F(SimDriver, AFaultStaysUntilTheContextIsReset) {
  const std::string path = testing::TempDir() + "moxie_sim_report_" + std::to_string(getpid());
  setenv("MOXIE_SIM_REPORT", path.c_str(), 1);
  CUdeviceptr memory = allocate(16);
  testing::internal::CaptureStderr();
  OK(store_at(memory + 16));  // a launch does not fail by what the kernel does
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
  EXPECT_NE(report.find("deadlock"), std::string::npos) << report;
  FAILS(CUDA_ERROR_LAUNCH_FAILED, CU(cuStreamSynchronize)(nullptr));
  const char* text = nullptr;
  OK(CU(cuGetErrorString)(CUDA_ERROR_LAUNCH_FAILED, &text));
  EXPECT_EQ(std::string(text).rfind("unspecified launch failure: deadlock", 0), 0u) << text;
  // Another context does not share the failure.
  CUcontext second = nullptr;
  OK(CU(cuCtxCreate)(&second, nullptr, 0, 0));
  EXPECT_NE(allocate(16), 0u);
  OK(CU(cuCtxDestroy)(second));
  OK(CU(cuDevicePrimaryCtxReset)(0));
  OK(CU(cuCtxSynchronize)());
}

// The second kernel of a programmatic dependent launch may begin before the first has ended: it must not touch what
// that one writes before its griddepcontrol.wait, and may touch everything else.
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
  ld.global.u32 %r2, [%rd1+20];  // beside what the first one writes
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
  launch_first(), launch_second(true, 1);   // waits
  launch_first(), launch_second(false, 0);  // begins when the first has ended
  launch_first();
  OK(CU(cuStreamSynchronize)(stream));  // the host has waited
  launch_second(true, 0);
  OK(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(download(memory, 6)[4], 12u);
  launch_first(), launch_between(1), launch_second(true, 0);  // the one between starts it when the first has ended
  OK(CU(cuStreamSynchronize)(stream));
  EXPECT_EQ(download(memory, 6)[4], 12u);

  testing::internal::CaptureStderr();
  launch_first();
  if (GetParam()) launch_between(0);  // which starts it at once
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

TEST_F(SimDriver, AGraphOverFreedMemoryFails) {
  CUstream stream = nullptr;
  OK(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr memory = allocate(64);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  OK(CU(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(CU(cuMemsetD8Async)(memory, 0, 64, stream));
  OK(CU(cuStreamEndCapture)(stream, &graph));
  OK(CU(cuGraphInstantiate)(&exec, graph, 0));
  OK(CU(cuMemFree)(memory));
  testing::internal::CaptureStderr();
  OK(CU(cuGraphLaunch)(exec, stream));
  testing::internal::GetCapturedStderr();
  FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, CU(cuStreamSynchronize)(stream));
  OK(CU(cuDevicePrimaryCtxReset)(0));
}

// ---- tensor maps ---------------------------------------------------------------------------------

struct MapArguments {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  cuuint32_t rank = 3;
  uint64_t address = 1 << 20;
  std::array<cuuint64_t, 5> dims{128, 64, 8, 1, 1};
  std::array<cuuint64_t, 4> strides{256, 256 * 64, 256 * 64 * 8, 256 * 64 * 8};
  std::array<cuuint32_t, 5> box{64, 32, 1, 1, 1};
  std::array<cuuint32_t, 5> steps{1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion l2 = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
};

CUresult encode(const MapArguments& a, CUtensorMap* map) {
  return CU(cuTensorMapEncodeTiled)(map, a.type, a.rank, reinterpret_cast<void*>(a.address), a.dims.data(),
                                    a.strides.data(), a.box.data(), a.steps.data(), a.interleave, a.swizzle, a.l2,
                                    a.fill);
}

TEST_F(SimDriver, TensorMapsAreChecked) {
  CUtensorMap map;
  OK(encode({}, &map));
  using Change = void (*)(MapArguments&);
  const std::pair<const char*, Change> wrong[] = {
      {"rank 0", [](MapArguments& a) { a.rank = 0; }},
      {"rank 6", [](MapArguments& a) { a.rank = 6; }},
      {"address not aligned to 16", [](MapArguments& a) { a.address += 8; }},
      {"address 0", [](MapArguments& a) { a.address = 0; }},
      {"dimension 0", [](MapArguments& a) { a.dims[1] = 0; }},
      {"dimension above 2^32", [](MapArguments& a) { a.dims[1] = (cuuint64_t{1} << 32) + 1; }},
      {"stride not a multiple of 16", [](MapArguments& a) { a.strides[0] = 264; }},
      {"stride of 2^40", [](MapArguments& a) { a.strides[1] = cuuint64_t{1} << 40; }},
      {"box of 0", [](MapArguments& a) { a.box[1] = 0; }},
      {"box of 257", [](MapArguments& a) { a.box[1] = 257; }},
      {"inner box of 24 bytes", [](MapArguments& a) { a.box[0] = 12; }},
      {"inner box above the swizzle", [](MapArguments& a) { a.box[0] = 72; }},
      {"inner box above the 32-byte swizzle", [](MapArguments& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B; }},
      {"element stride 0", [](MapArguments& a) { a.steps[1] = 0; }},
      {"element stride 9", [](MapArguments& a) { a.steps[2] = 9; }},
      {"element stride 0 of the first dimension", [](MapArguments& a) { a.steps[0] = 0; }},
      {"box larger than shared memory",
       [](MapArguments& a) {
         a.box[1] = 256;
         a.box[2] = 8;
       }},
      {"NaN fill of integers",
       [](MapArguments& a) {
         a.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
         a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
       }},
      {"interleave of rank 2",
       [](MapArguments& a) {
         a.interleave = CU_TENSOR_MAP_INTERLEAVE_16B;
         a.rank = 2;
       }},
      {"interleave of 32 bytes without its swizzle",
       [](MapArguments& a) { a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; }},
      {"interleave of 32 bytes, address aligned to 16",
       [](MapArguments& a) {
         a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B;
         a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
         a.address += 16;
       }},
      {"unknown type", [](MapArguments& a) { a.type = static_cast<CUtensorMapDataType>(77); }},
      {"unknown swizzle", [](MapArguments& a) { a.swizzle = static_cast<CUtensorMapSwizzle>(77); }},
      {"unknown promotion", [](MapArguments& a) { a.l2 = static_cast<CUtensorMapL2promotion>(9); }},
      {"packed type on sm_90a", [](MapArguments& a) { a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; }},
  };
  for (auto [what, change] : wrong) {
    MapArguments a;
    change(a);
    EXPECT_EQ(encode(a, &map), CUDA_ERROR_INVALID_VALUE) << what;
  }
  MapArguments line;
  FAILS(CUDA_ERROR_INVALID_VALUE,
        CU(cuTensorMapEncodeTiled)(&map, line.type, 1, reinterpret_cast<void*>(line.address), line.dims.data(), nullptr,
                                   line.box.data(), line.steps.data(), line.interleave, line.swizzle, line.l2,
                                   line.fill));
  const std::pair<const char*, Change> right[] = {
      {"no swizzle, wide box",
       [](MapArguments& a) {
         a.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
         a.box[0] = 256;
       }},
      {"rank 1", [](MapArguments& a) { a.rank = 1; }},
      {"dimension of 2^32", [](MapArguments& a) { a.dims[1] = cuuint64_t{1} << 32; }},
      {"interleave of 32 bytes",
       [](MapArguments& a) {
         a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B;
         a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
       }},
  };
  for (auto [what, change] : right) {
    MapArguments a;
    change(a);
    EXPECT_EQ(encode(a, &map), CUDA_SUCCESS) << what;
  }
  OK(encode({}, &map));
  FAILS(CUDA_ERROR_INVALID_VALUE, encode({}, reinterpret_cast<CUtensorMap*>(reinterpret_cast<char*>(&map) + 8)));

  // A replaced address is the only difference.
  CUtensorMap moved = map, direct;
  MapArguments elsewhere;
  elsewhere.address = 3 << 20;
  OK(CU(cuTensorMapReplaceAddress)(&moved, reinterpret_cast<void*>(elsewhere.address)));
  OK(encode(elsewhere, &direct));
  EXPECT_EQ(std::memcmp(&moved, &direct, sizeof map), 0);
  EXPECT_NE(std::memcmp(&moved, &map, sizeof map), 0);
  std::memset(&direct, 0, sizeof direct);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuTensorMapReplaceAddress)(&direct, reinterpret_cast<void*>(elsewhere.address)));
}

}  // namespace
