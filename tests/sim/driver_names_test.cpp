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

TEST_F(SimDriver, ErrorsSayWhatTheDriverSays) {
  const std::pair<CUresult, const char*> all[] = {
      {CUDA_SUCCESS, "no error"},
      {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
      {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
      {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
      {CUDA_ERROR_DEINITIALIZED, "driver shutting down"},
      {CUDA_ERROR_PROFILER_DISABLED, "profiler disabled while using external profiling tool"},
      {CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialized"},
      {CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"},
      {CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"},
      {CUDA_ERROR_STUB_LIBRARY, "driver is a stub library"},
      {CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "call requires a newer driver"},
      {CUDA_ERROR_DEVICE_UNAVAILABLE, "device is busy or unavailable"},
      {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
      {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
      {CUDA_ERROR_DEVICE_NOT_LICENSED, "device is not licensed"},
      {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
      {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
      {CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context is already current"},
      {CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"},
      {CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed"},
      {CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"},
      {CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"},
      {CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"},
      {CUDA_ERROR_ALREADY_ACQUIRED, "resource already acquired"},
      {CUDA_ERROR_NOT_MAPPED, "resource not mapped"},
      {CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "resource not mapped as array"},
      {CUDA_ERROR_NOT_MAPPED_AS_POINTER, "resource not mapped as pointer"},
      {CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"},
      {CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"},
      {CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "exclusive-thread device already in use by a different thread"},
      {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"},
      {CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"},
      {CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid OpenGL or DirectX context"},
      {CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution"},
      {CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found"},
      {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain"},
      {CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX JIT compilation was disabled"},
      {CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "the provided execution affinity is not supported"},
      {CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, "the provided PTX contains unsupported device-side synchronization"},
      {CUDA_ERROR_CONTAINED, "contained error"},
      {CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid"},
      {CUDA_ERROR_FILE_NOT_FOUND, "file not found"},
      {CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"},
      {CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object initialization failed"},
      {CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"},
      {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
      {CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"},
      {CUDA_ERROR_LOSSY_QUERY, "attempted introspection would be semantically lossy"},
      {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
      {CUDA_ERROR_NOT_READY, "device not ready"},
      {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
      {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"},
      {CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"},
      {CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "launch uses incompatible texturing mode"},
      {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"},
      {CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"},
      {CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"},
      {CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"},
      {CUDA_ERROR_ASSERT, "device-side assert triggered"},
      {CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"},
      {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"},
      {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"},
      {CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"},
      {CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"},
      {CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"},
      {CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space"},
      {CUDA_ERROR_INVALID_PC, "invalid program counter"},
      {CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"},
      {CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"},
      {CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory not completely freed"},
      {CUDA_ERROR_NOT_PERMITTED, "operation not permitted"},
      {CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
      {CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"},
      {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "unsupported display driver / cuda driver combination"},
      {CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported hardware"},
      {CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect to the MPS control daemon or server"},
      {CUDA_ERROR_MPS_RPC_FAILURE, "the remote procedural call between the MPS server and the MPS client failed"},
      {CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server is not ready to accept new MPS client requests"},
      {CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "the hardware resources for MPS clients are exhausted"},
      {CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "the hardware resources for device connections are exhausted"},
      {CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client has been terminated by the server"},
      {CUDA_ERROR_CDP_NOT_SUPPORTED, "dynamic parallelism is not supported"},
      {CUDA_ERROR_CDP_VERSION_MISMATCH, "unsupported interaction between versions of dynamic parallelism"},
      {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"},
      {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"},
      {CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"},
      {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"},
      {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"},
      {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"},
      {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
       "operation would make the legacy stream depend on a capturing blocking stream"},
      {CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"},
      {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
       "attempt to terminate a thread-local capture sequence from another thread"},
      {CUDA_ERROR_TIMEOUT, "wait operation timed out"},
      {CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
       "the graph update was not performed because it included changes which violated constraints specific to "
       "instantiated graph update"},
      {CUDA_ERROR_EXTERNAL_DEVICE, "an async error has occurred in external entity outside of CUDA"},
      {CUDA_ERROR_INVALID_CLUSTER_SIZE, "a kernel launch error has occurred due to cluster misconfiguration"},
      {CUDA_ERROR_FUNCTION_NOT_LOADED, "the function handle is not loaded"},
      {CUDA_ERROR_INVALID_RESOURCE_TYPE, "one or more resources passed in are not valid resource types"},
      {CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "one or more resources are insufficient or non-applicable"},
      {CUDA_ERROR_KEY_ROTATION, "a key rotation is in progress"},
      {CUDA_ERROR_UNKNOWN, "unknown error"},
  };
  for (const auto& [code, text] : all) {
    const char* says = nullptr;
    OK(CU(cuGetErrorString)(code, &says));
    // The code of the last fault has its report behind it.
    const std::string said = says;
    EXPECT_TRUE(said == text || said.rfind(std::string(text) + ": ", 0) == 0) << said << ", not " << text;
  }
}

}  // namespace
}  // namespace sim_test
