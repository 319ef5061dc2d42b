// Modules, libraries, functions and kernels: from an image to code that can be launched. What an image may be is
// sim/driver/image.cpp's to know.
#include "sim/driver/module.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "sim/driver/call.h"
#include "sim/driver/execute.h"
#include "sim/driver/image.h"
#include "sim/machine/decode.h"
#include "sim/translate/build_kernel.h"

namespace sim::driver {

Image::~Image() {
  if (symbols.empty()) return;
  for (const auto& [name, symbol] : symbols) state().allocations.erase(symbol.address);
  state().memory.free_together(symbols.begin()->second.address);
}

unsigned threads_limit(const Kernel& kernel) {
  const ptx::Function& f = *kernel.function;
  const int* bound = f.reqntid[0] > 0 ? f.reqntid : f.maxntid;
  if (bound[0] <= 0) return kMaxThreadsPerBlock;
  const uint64_t threads = uint64_t{static_cast<uint32_t>(bound[0])} * std::max(1, bound[1]) * std::max(1, bound[2]);
  return static_cast<unsigned>(std::min<uint64_t>(threads, kMaxThreadsPerBlock));
}

namespace {

// The registers of a thread: the estimate, within what the launch bounds and .maxnreg allow.
int registers_of(const Kernel& kernel) {
  const int warps = static_cast<int>((threads_limit(kernel) + kLanes - 1) / kLanes);
  const int room = static_cast<int>(kRegistersPerSm) / (warps * kLanes) / 8 * 8;
  int limit = std::min(255, room);
  if (kernel.function->maxnreg > 0) limit = std::min(limit, kernel.function->maxnreg);
  return std::max(1, std::min(kernel.registers_per_thread, limit));
}

[[noreturn]] void reject_ptx(const std::string& text) { fail(CUDA_ERROR_INVALID_PTX, text); }

void place_variables(Image& image) {
  uint64_t constant = 0;
  std::vector<const ptx::Variable*> variables;
  std::vector<GlobalMemory::Part> parts;
  for (const ptx::Variable& v : image.module->variables) {
    if (v.space != ptx::Space::Global && v.space != ptx::Space::Const) continue;
    if (v.is_extern) reject_ptx("the variable '" + v.name + "' is extern and nothing defines it");
    if (v.space == ptx::Space::Const) constant += v.bytes;
    if (constant > kMaxConstantBytes) reject_ptx(".const variables take more than 64 KB");
    variables.push_back(&v);
    parts.push_back({std::max<uint64_t>(v.bytes, 1), static_cast<uint64_t>(std::max(1, v.align))});
  }
  State& s = state();
  require(s.memory.allocate_together(parts), CUDA_ERROR_OUT_OF_MEMORY,
          std::to_string(parts.size()) + " variables, " + std::to_string(s.memory.limit() - s.memory.used()) +
              " bytes free");
  for (size_t i = 0; i < variables.size(); ++i) {
    const ptx::Variable& v = *variables[i];
    image.symbols[v.name] = {parts[i].address, v.bytes};
    Allocation& allocation = s.allocations[parts[i].address];
    allocation.address = parts[i].address;
    allocation.bytes = parts[i].bytes;
    allocation.id = s.next_id++;
    // New memory is zero.
    if (!v.init.empty())
      std::memcpy(reinterpret_cast<void*>(parts[i].address), v.init.data(), std::min<uint64_t>(v.init.size(), v.bytes));
  }
  for (const ptx::Variable& v : image.module->variables) {
    for (const auto& r : v.relocations) {
      auto to = image.symbols.find(r.symbol);
      auto from = image.symbols.find(v.name);
      const uint64_t function = to == image.symbols.end() ? function_address(*image.module, r.symbol) : 0;
      if ((to == image.symbols.end() && function == 0) || from == image.symbols.end()) {
        reject_ptx("the initializer of '" + v.name + "' refers to '" + r.symbol + "', which has no address in memory");
      }
      require(r.offset + sizeof(uint64_t) <= from->second.bytes, CUDA_ERROR_INVALID_PTX,
              "an address outside of '" + v.name + "'");
      const uint64_t value = (function != 0 ? function : to->second.address) + static_cast<uint64_t>(r.addend);
      std::memcpy(reinterpret_cast<void*>(from->second.address + r.offset), &value, sizeof value);
    }
  }
}

CUmodule make_module(CUctx_st& context, std::shared_ptr<Image> image) {
  auto module = std::make_unique<CUmod_st>();
  module->context = &context;
  module->image = std::move(image);
  CUmodule handle = module.get();
  for (auto& [name, kernel] : module->image->kernels) {
    auto function = std::make_unique<CUfunc_st>();
    function->module = handle;
    function->context = &context;
    function->name = name;
    function->kernel = kernel;
    function->max_dynamic_shared =
        static_cast<int>(kMaxSharedPerBlock) - static_cast<int>(std::min(kernel->static_shared, kMaxSharedPerBlock));
    state().functions[function.get()] = function.get();
    module->functions[name] = std::move(function);
  }
  return state().modules.add(std::move(module));
}

void unload(CUmodule handle) {
  for (auto& [name, function] : handle->functions) state().functions.erase(function.get());
  state().modules.remove(handle);
}

// The options of cuModuleLoadDataEx that say where the logs go. finish() writes the outputs.
class JitOptions {
 public:
  JitOptions(unsigned count, const CUjit_option* options, void** values)
      : count_(count), options_(options), values_(values) {
    require(count == 0 || (options != nullptr && values != nullptr));
    for (unsigned i = 0; i < count; ++i) require(options[i] >= 0 && options[i] < CU_JIT_NUM_OPTIONS);
  }
  void finish(const std::string& error) {
    write(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error);
    write(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "");
    if (void** time = value(CU_JIT_WALL_TIME)) {
      const float none = 0;
      std::memcpy(time, &none, sizeof none);
    }
  }

 private:
  void** value(CUjit_option option) const {
    for (unsigned i = 0; i < count_; ++i) {
      if (options_[i] == option) return &values_[i];
    }
    return nullptr;
  }
  void write(CUjit_option buffer_option, CUjit_option size_option, const std::string& text) {
    void** buffer = value(buffer_option);
    void** size = value(size_option);
    if (size == nullptr) return;
    const uint64_t room = reinterpret_cast<uintptr_t>(*size) & 0xffffffffu;
    uint64_t used = 0;
    if (buffer != nullptr && *buffer != nullptr && room > 0) {
      used = std::min<uint64_t>(text.size(), room - 1);
      std::memcpy(*buffer, text.data(), used);
      static_cast<char*>(*buffer)[used] = 0;
    }
    *size = reinterpret_cast<void*>(static_cast<uintptr_t>(used));
  }
  unsigned count_;
  const CUjit_option* options_;
  void** values_;
};

// Runs the body. The log buffers get the reason for which it refuses an image.
template <class Body>
void with_log(JitOptions& options, Body body) {
  try {
    body();
    options.finish("");
  } catch (const ApiError& e) {
    options.finish(e.detail.empty() ? "" : "error: " + e.detail + "\n");
    throw;
  }
}

CUresult load_module(const char* name, CUmodule* result, const void* image, unsigned count, CUjit_option* options,
                     void** values, size_t bytes = kLengthUnknown) {
  return call(name, Call::Needs::HealthyContext, [&](Call& c) {
    require(result != nullptr && image != nullptr);
    JitOptions jit(count, options, values);
    with_log(jit, [&] { *result = make_module(c.context(), load_image(ptx_of(image, bytes))); });
  });
}

std::string read_file(const char* path) {
  require(path != nullptr);
  const std::string name = std::string("'") + path + "'";
  // A directory cannot be read, and a pipe or a device may never end.
  std::error_code error;
  require(std::filesystem::is_regular_file(path, error), CUDA_ERROR_FILE_NOT_FOUND, name + " is not a file");
  constexpr uint64_t kLargestFile = uint64_t{1} << 31;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  require(!error && bytes <= kLargestFile, CUDA_ERROR_INVALID_IMAGE, name + " is larger than any image");
  std::ifstream file(path, std::ios::binary);
  require(file.good(), CUDA_ERROR_FILE_NOT_FOUND, "cannot read " + name);
  std::string image(bytes, 0);
  file.read(image.data(), static_cast<std::streamsize>(bytes));
  image.resize(static_cast<size_t>(file.gcount()));
  return image;
}

CUresult load_library(const char* name, CUlibrary* result, const void* code, unsigned count, CUjit_option* options,
                      void** values, size_t bytes = kLengthUnknown) {
  return call(name, Call::Needs::Initialized, [&](Call&) {
    require(result != nullptr && code != nullptr);
    JitOptions jit(count, options, values);
    with_log(jit, [&] {
      auto library = std::make_unique<CUlib_st>();
      library->text = ptx_of(code, bytes);
      // This image shows the errors and the names. Each context gets an image of its own.
      auto image = load_image(library->text);
      CUlibrary handle = library.get();
      for (auto& [kernel_name, kernel] : image->kernels) {
        auto k = std::make_unique<CUkern_st>();
        k->library = handle;
        k->name = kernel_name;
        library->kernels[kernel_name] = state().kernels.add(std::move(k));
      }
      *result = state().libraries.add(std::move(library));
    });
  });
}

CUmodule module_of(CUctx_st& context, CUlibrary handle) {
  CUlib_st& library = state().libraries.get(handle);
  CUmodule& module = context.libraries[handle];
  if (module == nullptr) {
    module = make_module(context, load_image(library.text));
    module->library = handle;
  }
  return module;
}

CUfunc_st& function_of(CUctx_st& context, CUkernel handle) {
  CUkern_st& kernel = state().kernels.get(handle);
  return *module_of(context, kernel.library)->functions.at(kernel.name);
}

void set_attribute(CUfunc_st& f, CUfunction_attribute attribute, int value) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      require(value >= 0 && static_cast<uint64_t>(value) + f.kernel->static_shared <= kMaxSharedPerBlockOptIn,
              CUDA_ERROR_INVALID_VALUE,
              std::to_string(value) + " bytes of dynamic beside " + std::to_string(f.kernel->static_shared) +
                  " bytes of static shared memory; a block can have " + std::to_string(kMaxSharedPerBlockOptIn));
      f.max_dynamic_shared = value;
      return;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      require(value >= -1 && value <= 100);
      f.carveout = value;
      return;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      f.non_portable_cluster = value != 0;
      return;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      f.cluster_policy = value;
      return;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: {
      require(value >= 0 && value <= static_cast<int>(kMaxCluster));
      require(f.kernel->function->reqnctapercluster[0] == 0, CUDA_ERROR_NOT_PERMITTED,
              "the kernel fixes its cluster size");
      auto& d = f.required_cluster;
      (attribute == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH    ? d.x
       : attribute == CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT ? d.y
                                                                : d.z) = static_cast<uint32_t>(value);
      return;
    }
    default:
      fail(CUDA_ERROR_INVALID_VALUE, "an attribute that cannot be set");
  }
}

void param_info(const Kernel& kernel, size_t index, size_t* offset, size_t* size) {
  require(offset != nullptr);
  require(index < kernel.param_offsets.size(), CUDA_ERROR_INVALID_VALUE, "there is no such parameter");
  *offset = kernel.param_offsets[index];
  if (size != nullptr) *size = kernel.param_sizes[index];
}

void get_global(const Image& image, CUdeviceptr* address, size_t* bytes, const char* name) {
  require(name != nullptr && (address != nullptr || bytes != nullptr));
  auto it = image.symbols.find(name);
  require(it != image.symbols.end(), CUDA_ERROR_NOT_FOUND, std::string("no variable '") + name + "'");
  if (address != nullptr) *address = it->second.address;
  if (bytes != nullptr) *bytes = it->second.bytes;
}

}  // namespace

std::shared_ptr<Image> load_image(const std::string& text) {
  auto image = std::make_shared<Image>();
  try {
    auto module = std::make_shared<ptx::Module>(ptx::parse(text));
    require(module->version_major < 10, CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
            "PTX version " + std::to_string(module->version_major) + "." + std::to_string(module->version_minor));
    require(target_fits(module->target, state().device.arch), CUDA_ERROR_NO_BINARY_FOR_GPU,
            "the image is for " + module->target + ", the device is " + state().device.target);
    image->module = module;
    for (const ptx::Function& f : module->functions) {
      for (const ptx::Instruction& i : f.body)
        state().has_dependent_grids = state().has_dependent_grids || i.parts[0] == "griddepcontrol";
    }
    place_variables(*image);
    std::unordered_map<std::string, uint64_t> addresses;
    for (auto& [name, symbol] : image->symbols) addresses[name] = symbol.address;
    // One kernel that cannot be simulated does not keep a program from the others of its module: launching it is the
    // error. A module of which no kernel can run is refused at once.
    std::string first_error;
    bool any = false;
    for (const ptx::Function& f : module->functions) {
      if (!f.is_entry || f.is_declaration) continue;
      try {
        image->kernels[f.name] = build_kernel(module, f.name, addresses, state().device.arch);
        any = true;
      } catch (const ptx::ParseError& e) {
        if (first_error.empty()) first_error = e.what();
        auto refused = std::make_shared<Kernel>();
        refused->name = f.name;
        refused->module = module;
        refused->function = &f;
        refused->refusal = e.what();
        image->kernels[f.name] = std::move(refused);
      }
    }
    if (!any && !first_error.empty()) reject_ptx(first_error);
  } catch (const ptx::ParseError& e) {
    reject_ptx(e.what());
  } catch (const Unsupported& e) {
    reject_ptx(e.what());
  }
  return image;
}

CUfunc_st& live_function(Call& c, CUfunction handle) {
  auto it = state().functions.find(handle);
  if (it != state().functions.end()) return *it->second;
  const auto kernel = reinterpret_cast<CUkernel>(handle);
  require(state().kernels.contains(kernel), CUDA_ERROR_INVALID_HANDLE, "not a live function");
  return function_of(c.context(), kernel);
}

int function_attribute(const CUfunc_st& f, CUfunction_attribute attribute) {
  const Kernel& k = *f.kernel;
  const auto& cluster = k.function->reqnctapercluster;
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return static_cast<int>(threads_limit(k));
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      return static_cast<int>(k.static_shared);
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: {
      uint64_t bytes = 0;
      for (const ptx::Variable& v : k.module->variables) bytes += v.space == ptx::Space::Const ? v.bytes : 0;
      return static_cast<int>(bytes);
    }
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      return static_cast<int>(k.local_bytes);
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return registers_of(k);
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return state().device.arch;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA:
      return 0;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return f.max_dynamic_shared;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return f.carveout;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
      return k.function->explicit_cluster;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
      return cluster[0] > 0 ? cluster[0] : static_cast<int>(f.required_cluster.x);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
      return cluster[0] > 0 ? cluster[1] : static_cast<int>(f.required_cluster.y);
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
      return cluster[0] > 0 ? cluster[2] : static_cast<int>(f.required_cluster.z);
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return f.non_portable_cluster;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return f.cluster_policy;
    default:
      fail(CUDA_ERROR_INVALID_VALUE, "unknown function attribute");
  }
}

}  // namespace sim::driver

using namespace sim::driver;

// ---- modules -------------------------------------------------------------------------------------

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return load_module(__func__, module, image, 0, nullptr, nullptr);
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count, CUjit_option* options,
                            void** values) {
  return load_module(__func__, module, image, count, options, values);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return load_module(__func__, module, image, 0, nullptr, nullptr);
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  std::string image;
  try {
    image = read_file(path);
  } catch (...) {
    return answer_for_current_exception(__func__);
  }
  return load_module(__func__, module, image.c_str(), 0, nullptr, nullptr, image.size());
}

CUresult cuModuleUnload(CUmodule module) {
  API(HealthyContext, {
    require(state().modules.get(module).library == nullptr, CUDA_ERROR_NOT_PERMITTED,
            "the module belongs to a library");
    synchronizing_call(c);
    unload(module);
  });
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  API(Initialized, {
    require(mode != nullptr);
    *mode = CU_MODULE_EAGER_LOADING;
  });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  API(HealthyContext, {
    require(function != nullptr && name != nullptr);
    auto& functions = state().modules.get(module).functions;
    auto it = functions.find(name);
    require(it != functions.end(), CUDA_ERROR_NOT_FOUND, std::string("no kernel '") + name + "'");
    *function = it->second.get();
  });
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule module) {
  API(HealthyContext, {
    require(count != nullptr);
    *count = static_cast<unsigned>(state().modules.get(module).functions.size());
  });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int room, CUmodule module) {
  API(HealthyContext, {
    require(functions != nullptr);
    unsigned i = 0;
    for (auto& [name, function] : state().modules.get(module).functions) {
      if (i < room) functions[i++] = function.get();
    }
  });
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  API(HealthyContext, { get_global(*state().modules.get(module).image, address, bytes, name); });
}
PLAIN_NAME(cuModuleGetGlobal, cuModuleGetGlobal_v2);

// ---- libraries -----------------------------------------------------------------------------------

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values,
                           unsigned int count, CUlibraryOption*, void**, unsigned int) {
  return load_library(__func__, library, code, count, options, values);
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options, void** values,
                               unsigned int count, CUlibraryOption*, void**, unsigned int) {
  std::string image;
  try {
    image = read_file(path);
  } catch (...) {
    return answer_for_current_exception(__func__);
  }
  return load_library(__func__, library, image.c_str(), count, options, values, image.size());
}

CUresult cuLibraryUnload(CUlibrary handle) {
  API(Initialized, {
    State& s = state();
    CUlib_st& library = s.libraries.get(handle);
    c.unlocked([] {}, true);
    for (auto& context : s.contexts) {
      auto it = context->libraries.find(handle);
      if (it == context->libraries.end()) continue;
      unload(it->second);
      context->libraries.erase(it);
    }
    for (auto& [name, kernel] : library.kernels) s.kernels.remove(kernel);
    s.libraries.remove(handle);
  });
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  API(Initialized, {
    require(kernel != nullptr && name != nullptr);
    auto& kernels = state().libraries.get(library).kernels;
    auto it = kernels.find(name);
    require(it != kernels.end(), CUDA_ERROR_NOT_FOUND, std::string("no kernel '") + name + "'");
    *kernel = it->second;
  });
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary library) {
  API(Initialized, {
    require(count != nullptr);
    *count = static_cast<unsigned>(state().libraries.get(library).kernels.size());
  });
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int room, CUlibrary library) {
  API(Initialized, {
    require(kernels != nullptr);
    unsigned i = 0;
    for (auto& [name, kernel] : state().libraries.get(library).kernels) {
      if (i < room) kernels[i++] = kernel;
    }
  });
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  API(HealthyContext, {
    require(module != nullptr);
    *module = module_of(c.context(), library);
  });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  API(HealthyContext, { get_global(*module_of(c.context(), library)->image, address, bytes, name); });
}

CUresult cuLibraryGetManaged(CUdeviceptr*, size_t*, CUlibrary library, const char* name) {
  API(Initialized, {
    state().libraries.get(library);
    require(name != nullptr);
    fail(CUDA_ERROR_NOT_FOUND, "PTX variables with .attribute(.managed) are not simulated");
  });
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  API(HealthyContext, {
    require(function != nullptr);
    *function = &function_of(c.context(), kernel);
  });
}

CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  API(Initialized, {
    require(library != nullptr);
    *library = state().kernels.get(kernel).library;
  });
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  API(Initialized, {
    require(name != nullptr);
    *name = state().kernels.get(kernel).name.c_str();
  });
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  API(HealthyContext, {
    require(value != nullptr);
    check_device(device);
    *value = function_attribute(function_of(c.context(), kernel), attribute);
  });
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  API(HealthyContext, {
    check_device(device);
    set_attribute(function_of(c.context(), kernel), attribute, value);
  });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice device) {
  API(Initialized, {
    check_device(device);
    state().kernels.get(kernel);
  });
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  API(HealthyContext, { param_info(*function_of(c.context(), kernel).kernel, index, offset, size); });
}

// ---- functions -----------------------------------------------------------------------------------

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  API(HealthyContext, {
    require(value != nullptr);
    *value = function_attribute(live_function(c, function), attribute);
  });
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  API(HealthyContext, { set_attribute(live_function(c, function), attribute, value); });
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  API(HealthyContext, {
    live_function(c, function);
    require(config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL);
  });
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
  API(HealthyContext, {
    require(module != nullptr);
    *module = live_function(c, function).module;
  });
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  API(HealthyContext, {
    require(name != nullptr);
    *name = live_function(c, function).name.c_str();
  });
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  API(HealthyContext, { param_info(*live_function(c, function).kernel, index, offset, size); });
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* loaded, CUfunction function) {
  API(HealthyContext, {
    require(loaded != nullptr);
    live_function(c, function);
    *loaded = CU_FUNCTION_LOADING_STATE_LOADED;
  });
}

CUresult cuFuncLoad(CUfunction function) {
  API(HealthyContext, { live_function(c, function); });
}
