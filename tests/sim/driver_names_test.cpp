// SPDX-License-Identifier: Apache-2.0
// The names of the driver against the headers of the CUDA Toolkit: which function cuGetProcAddress finds for a version,
// the plain names beside the versioned ones, and the names of errors.
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/driver.h"

namespace sim_test {
namespace {

std::string header(const std::string& name) {
  std::ifstream file(std::string(MOXIE_CUDA_HEADERS "/") + name);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The versions of CUDA in which a function came or changed, by its name and the suffix of its per-thread form.
std::map<std::string, std::set<int>> versions_in_the_header() {
  std::map<std::string, std::set<int>> versions;
  const std::string text = header("cudaTypedefs.h");
  const std::regex type(R"(\*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\))");
  for (std::sregex_iterator it(text.begin(), text.end(), type), end; it != end; ++it)
    versions[(*it)[1].str() + (*it)[3].str()].insert(std::stoi((*it)[2]));
  return versions;
}

// A function changes its address only in the versions that cudaTypedefs.h names, and the newest is the one that cuda.h
// gives to a program. An older form than the simulator serves is not found.
TEST_F(SimDriver, EntryPointsChangeWithTheVersionsOfTheHeader) {
  auto versions = versions_in_the_header();
  if (versions.empty()) GTEST_SKIP() << "there is no cudaTypedefs.h in " MOXIE_CUDA_HEADERS;
  versions["cuGraphInstantiate"].insert(12000);  // cuda.h has made it cuGraphInstantiateWithFlags since then.
  std::set<int> moments;
  for (const auto& [name, all] : versions) {
    for (int version : all) {
      if (version <= 13000) moments.insert({version - 1, version, version + 1});
    }
  }
  int served = 0, per_thread = 0;
  for (const auto& [name, all] : versions) {
    const size_t suffix_at = std::min(name.find("_ptds"), name.find("_ptsz"));
    const std::string plain = name.substr(0, suffix_at);
    const std::string suffix = suffix_at == std::string::npos ? "" : name.substr(suffix_at);
    const auto flags = suffix.empty() ? CU_GET_PROC_ADDRESS_DEFAULT : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    std::set<void*> exported;
    for (const char* form : {"", "_v2", "_v3", "_v4"})
      exported.insert(dlsym(library(), (plain + form + suffix).c_str()));
    if (plain == "cuGraphInstantiate") exported.insert(dlsym(library(), TEXT_OF(cuGraphInstantiate)));
    exported.erase(nullptr);
    void* before = nullptr;
    for (int version : moments) {
      if (version < 2000) continue;
      void *found = nullptr, *of_all_threads = nullptr;
      CU(cuGetProcAddress)(plain.c_str(), &found, version, flags, nullptr);
      CU(cuGetProcAddress)(plain.c_str(), &of_all_threads, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, nullptr);
      if (!suffix.empty() && found == of_all_threads) found = nullptr;  // There was no per-thread form yet.
      if (found != before) {
        EXPECT_TRUE(all.contains(version)) << name << ' ' << version;
        EXPECT_TRUE(exported.contains(found)) << name << ' ' << version;
      }
      before = found;
    }
    if (before == nullptr) continue;
    ++(suffix.empty() ? served : per_thread);
  }
  EXPECT_GT(served, 200);
  EXPECT_GT(per_thread, 50);
}

TEST_F(SimDriver, ProcAddressRefusesWhatItsDocumentationDoes) {
  const auto get = CU(cuGetProcAddress);
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  FAILS(CUDA_ERROR_INVALID_VALUE, get("cuInit", nullptr, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  FAILS(CUDA_ERROR_INVALID_VALUE, get("cuInit", &found, 1999, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  OK(get("cuInit", &found, 2000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  OK(get("cuInit", &found, 2000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
  void* legacy = nullptr;
  OK(get("cuMemcpy", &legacy, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
  EXPECT_EQ(legacy, dlsym(library(), "cuMemcpy"));
  FAILS(CUDA_ERROR_INVALID_VALUE, get("cuInit", &found, 13000, 4, &status));
  // The form of CUDA 11 tells no status.
  const auto first = symbol<CUresult (*)(const char*, void**, int, cuuint64_t)>("cuGetProcAddress");
  OK(first("cuLaunchKernel", &found, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
  EXPECT_EQ(found, dlsym(library(), "cuLaunchKernel_ptsz"));
  FAILS(CUDA_ERROR_NOT_FOUND, first("cuTexObjectCreate", &found, 13000, CU_GET_PROC_ADDRESS_DEFAULT));
  EXPECT_EQ(found, nullptr);
}

// Programs that look functions up by their plain names get the forms that cuda.h has had since CUDA 4.
TEST_F(SimDriver, PlainNamesAreTheVersionedOnes) {
#define NAMES(function) \
  { #function, TEXT_OF(function) }
  const std::pair<const char*, const char*> names[] = {
      NAMES(cuCtxDestroy),
      NAMES(cuCtxPopCurrent),
      NAMES(cuCtxPushCurrent),
      NAMES(cuDevicePrimaryCtxRelease),
      NAMES(cuDevicePrimaryCtxReset),
      NAMES(cuDevicePrimaryCtxSetFlags),
      NAMES(cuDeviceTotalMem),
      NAMES(cuEventDestroy),
      NAMES(cuMemAlloc),
      NAMES(cuMemAllocHost),
      NAMES(cuMemAllocPitch),
      NAMES(cuMemFree),
      NAMES(cuMemGetAddressRange),
      NAMES(cuMemGetInfo),
      NAMES(cuMemHostGetDevicePointer),
      NAMES(cuMemHostRegister),
      NAMES(cuMemcpy2D),
      NAMES(cuMemcpy2DAsync),
      NAMES(cuMemcpy2DUnaligned),
      NAMES(cuMemcpy3D),
      NAMES(cuMemcpy3DAsync),
      NAMES(cuMemcpyDtoD),
      NAMES(cuMemcpyDtoDAsync),
      NAMES(cuMemcpyDtoH),
      NAMES(cuMemcpyDtoHAsync),
      NAMES(cuMemcpyHtoD),
      NAMES(cuMemcpyHtoDAsync),
      NAMES(cuMemsetD16),
      NAMES(cuMemsetD2D16),
      NAMES(cuMemsetD2D32),
      NAMES(cuMemsetD2D8),
      NAMES(cuMemsetD32),
      NAMES(cuMemsetD8),
      NAMES(cuModuleGetGlobal),
      NAMES(cuStreamDestroy),
      {"cuDeviceGetUuid", "cuDeviceGetUuid_v2"},
  };
#undef NAMES
  for (const auto& [plain, versioned] : names) {
    EXPECT_NE(dlsym(library(), plain), nullptr) << plain;
    EXPECT_EQ(dlsym(library(), plain), dlsym(library(), versioned)) << plain;
    EXPECT_STRNE(plain, versioned);
  }
}

// Every code of cuda.h has the name that it has there, and a text of its own.
TEST_F(SimDriver, ErrorsAreThoseOfTheHeader) {
  const std::string text = header("cuda.h");
  if (text.empty()) GTEST_SKIP() << "there is no cuda.h in " MOXIE_CUDA_HEADERS;
  const std::regex code(R"(\n\s*(CUDA_SUCCESS|CUDA_ERROR_\w+)\s*=\s*(\d+))");
  int count = 0;
  std::map<std::string, std::string> texts;
  for (std::sregex_iterator it(text.begin(), text.end(), code), end; it != end; ++it) {
    const std::string name = (*it)[1];
    const auto error = static_cast<CUresult>(std::stoi((*it)[2]));
    const char *got = nullptr, *says = nullptr;
    EXPECT_EQ(CU(cuGetErrorName)(error, &got), CUDA_SUCCESS) << name;
    EXPECT_STREQ(got, name.c_str());
    ASSERT_EQ(CU(cuGetErrorString)(error, &says), CUDA_SUCCESS) << name;
    EXPECT_STRNE(says, "") << name;
    const auto [other, fresh] = texts.emplace(says, name);
    // The driver has one text for both.
    EXPECT_TRUE(fresh || name == "CUDA_ERROR_INVALID_SOURCE") << name << " and " << other->second;
    ++count;
  }
  EXPECT_GT(count, 90);
  const char* none = "";
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGetErrorName)(static_cast<CUresult>(12345), &none));
  EXPECT_EQ(none, nullptr);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGetErrorName)(CUDA_SUCCESS, nullptr));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuGetErrorString)(CUDA_SUCCESS, nullptr));
}

}  // namespace
}  // namespace sim_test
