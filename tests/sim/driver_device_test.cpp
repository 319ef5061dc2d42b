// SPDX-License-Identifier: Apache-2.0
// The entry points, the device, errors and contexts, as a program sees them.
#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/sim/driver.h"
#include "tests/sim/own_process.h"

namespace sim_test {
namespace {

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
  EXPECT_EQ(said,
            "moxie simulator: this program brings NVIDIA's own CUDA runtime, which needs private functions of NVIDIA's "
            "driver; link it with `nvcc -cudart shared`, and the simulator's libcudart.so.13 serves it\n");
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

// Run by device_with() in a process of its own.
TEST(SimDeviceProbe, DISABLED_Describe) {
  if (CUresult result = CU(cuInit)(0); result != CUDA_SUCCESS) {
    std::printf("device: cuInit %d\n", result);
    return;
  }
  char name[64];
  int major = 0, minor = 0, sms = 0, devices = 0;
  OK(CU(cuDeviceGetCount)(&devices));
  OK(CU(cuDeviceGetName)(name, sizeof name, 0));
  OK(CU(cuDeviceGetAttribute)(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  OK(CU(cuDeviceGetAttribute)(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
  OK(CU(cuDeviceGetAttribute)(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  std::printf("device: %s %d.%d %d %d\n", name, major, minor, sms, devices);
}

// Gives how another process with another environment describes its device, and what it says of its environment.
std::string device_with(const std::string& name, const std::string& value) {
  const Ended ended =
      run_in_own_process("-u MOXIE_SIM_ARCH -u MOXIE_SIM_SMS -u MOXIE_SIM_DEVICES " + name + "='" + value + "'",
                         "SimDeviceProbe.DISABLED_Describe");
  std::istringstream said(ended.said);
  std::string text;
  for (std::string line; std::getline(said, line);) {
    if (line.rfind("device: ", 0) == 0) text += line.substr(8) + "\n";
    if (line.rfind("MOXIE", 0) == 0) text += line + "\n";
  }
  return text;
}

TEST_F(SimDriver, DeviceFollowsTheEnvironment) {
  EXPECT_EQ(device_with("MOXIE_SIM_ARCH", "sm_90a"), "Moxie simulator (sm_90a) 9.0 132 1\n");
  EXPECT_EQ(device_with("MOXIE_SIM_ARCH", "sm_100a"), "Moxie simulator (sm_100a) 10.0 148 1\n");
  for (const std::string sms : {"1", "7", "1024"})
    EXPECT_EQ(device_with("MOXIE_SIM_SMS", sms), "Moxie simulator (sm_90a) 9.0 " + sms + " 1\n");
  for (const std::string devices : {"1", "2", "64"})
    EXPECT_EQ(device_with("MOXIE_SIM_DEVICES", devices), "Moxie simulator (sm_90a) 9.0 132 " + devices + "\n");
  EXPECT_EQ(device_with("MOXIE_SIM_ARCH", "sm_86"),
            "MOXIE_SIM_ARCH is 'sm_86'; allowed are sm_90a and sm_100a\ncuInit 100\n");
  for (const std::string sms : {"many", "0", "1025", "7 "})
    EXPECT_EQ(device_with("MOXIE_SIM_SMS", sms), "MOXIE_SIM_SMS is '" + sms + "'; allowed are 1 to 1024\ncuInit 100\n");
  for (const std::string devices : {"many", "0", "65", "2 "})
    EXPECT_EQ(device_with("MOXIE_SIM_DEVICES", devices),
              "MOXIE_SIM_DEVICES is '" + devices + "'; allowed are 1 to 64\ncuInit 100\n");
  EXPECT_EQ(device_with("MOXIE_SIM_ORDER", "sometimes"),
            "MOXIE_SIM_ORDER is 'sometimes', but must be eager, lazy or random:SEED\ncuInit 100\n");
  EXPECT_EQ(device_with("MOXIE_SIM_THREADS", "0"),
            "MOXIE_SIM_THREADS is '0', but must be a number from 1 to 1024\ncuInit 100\n");
  EXPECT_EQ(device_with("MOXIE_SIM_PATIENCE", "long"),
            "MOXIE_SIM_PATIENCE is 'long', but must be a number from 0 to 86400\ncuInit 100\n");
}

TEST_F(SimDriver, DeviceAttributes) {
  const std::pair<CUdevice_attribute, int> expected[] = {
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
      {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6016},
      {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
      {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
      {CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
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

}  // namespace
}  // namespace sim_test
