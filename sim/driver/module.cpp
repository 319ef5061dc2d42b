// SPDX-License-Identifier: Apache-2.0
// Modules: from the text of an image to variables in memory and kernels that can be launched.
#include "sim/driver/module.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "sim/driver/call.h"
#include "sim/driver/image.h"
#include "sim/driver/jit_options.h"
#include "sim/driver/queue.h"
#include "sim/machine/decode.h"
#include "sim/translate/build_kernel.h"

namespace sim::driver {

Image::~Image() {
  if (symbols.empty()) return;
  for (const auto& [name, symbol] : symbols) state().allocations.erase(symbol.address);
  state().memory.free_together(symbols.begin()->second.address);
}

namespace {

[[noreturn]] void reject_ptx(const std::string& text) { fail(CUDA_ERROR_INVALID_PTX, text); }

void place_variables(Image& image, int device) {
  uint64_t constant = 0;
  std::vector<const ptx::Variable*> variables;
  std::vector<GlobalMemory::Part> parts;
  for (const ptx::Variable& v : image.module->variables) {
    if (v.space != ptx::Space::Global && v.space != ptx::Space::Const) continue;
    if (v.is_extern) reject_ptx("the variable '" + v.name + "' is extern and nothing defines it");
    if (v.space == ptx::Space::Const) constant += v.bytes;
    if (constant > kMaxConstantBytes) reject_ptx(".const variables take more than 64 KB");
    variables.push_back(&v);
    parts.push_back({std::max<uint64_t>(v.bytes, 1), static_cast<uint64_t>(v.align)});
  }
  State& s = state();
  require(s.memory.allocate_together(parts, residence_of(Allocation::Kind::Device, device, nullptr)),
          CUDA_ERROR_OUT_OF_MEMORY,
          std::to_string(parts.size()) + " variables, " + std::to_string(s.memory.limit() - s.memory.used()) +
              " bytes free");
  for (size_t i = 0; i < variables.size(); ++i) {
    const ptx::Variable& v = *variables[i];
    image.symbols[v.name] = {parts[i].address, v.bytes};
    Allocation& allocation = s.allocations[parts[i].address];
    allocation.address = parts[i].address;
    allocation.bytes = parts[i].bytes;
    allocation.device = device;
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
      const uint64_t value = (function != 0 ? function : to->second.address) + static_cast<uint64_t>(r.addend);
      const uint64_t part = value >> r.shift;  // a mask selects one of its bytes (PTX ISA 5.4.4)
      std::memcpy(reinterpret_cast<void*>(from->second.address + r.offset), &part, static_cast<size_t>(r.bytes));
    }
  }
}

CUresult load_module(const char* name, CUmodule* result, const void* image, unsigned count, CUjit_option* options,
                     void** values, size_t bytes = kLengthUnknown) {
  return call(name, Call::Needs::HealthyContext, [&](Call& c) {
    require(result != nullptr && image != nullptr);
    JitOptions jit(count, options, values);
    with_log(jit, [&] { *result = make_module(c.context(), load_image(ptx_of(image, bytes), c.context().device)); });
  });
}

}  // namespace

std::shared_ptr<Image> load_image(const std::string& text, int device) {
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
    place_variables(*image, device);
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

void get_global(const Image& image, CUdeviceptr* address, size_t* bytes, const char* name) {
  require(name != nullptr && (address != nullptr || bytes != nullptr));
  auto it = image.symbols.find(name);
  require(it != image.symbols.end(), CUDA_ERROR_NOT_FOUND, std::string("no variable '") + name + "'");
  if (address != nullptr) *address = it->second.address;
  if (bytes != nullptr) *bytes = it->second.bytes;
}

}  // namespace sim::driver

using namespace sim::driver;

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
    image = read_image_file(path);
  } catch (...) {
    return answer_for_current_exception(__func__);
  }
  return load_module(__func__, module, image.c_str(), 0, nullptr, nullptr, image.size());
}

CUresult cuModuleUnload(CUmodule module) {
  API(HealthyContext, {
    require(state().modules.get(module).library == nullptr, CUDA_ERROR_NOT_PERMITTED,
            "the module belongs to a library");
    synchronize_context(c, *module->context);
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
