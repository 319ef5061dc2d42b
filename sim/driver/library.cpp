// SPDX-License-Identifier: Apache-2.0
// Libraries: images that each context loads as a module of its own when it first uses them.
#include "sim/driver/library.h"

#include <utility>

#include "sim/driver/call.h"
#include "sim/driver/execute.h"
#include "sim/driver/image.h"
#include "sim/driver/jit_options.h"
#include "sim/driver/queue.h"

namespace sim::driver {

CUmodule module_of(CUctx_st& context, CUlibrary handle) {
  CUlib_st& library = state().libraries.get(handle);
  CUmodule& module = context.libraries[handle];
  if (module == nullptr) {
    module = make_module(context, load_image(library.text, context.device));
    module->library = handle;
  }
  return module;
}

CUfunc_st& function_of(CUctx_st& context, CUkernel handle) {
  CUkern_st& kernel = state().kernels.get(handle);
  return *module_of(context, kernel.library)->functions.at(kernel.name);
}

namespace {

CUresult load_library(const char* name, CUlibrary* result, const void* code, unsigned count, CUjit_option* options,
                      void** values, size_t bytes = kLengthUnknown) {
  return call(name, Call::Needs::Initialized, [&](Call&) {
    require(result != nullptr && code != nullptr);
    JitOptions jit(count, options, values);
    with_log(jit, [&] {
      auto library = std::make_unique<CUlib_st>();
      library->text = ptx_of(code, bytes);
      // This image shows the errors and the names. Each context gets an image of its own.
      auto image = load_image(library->text, 0);
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

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values,
                           unsigned int count, CUlibraryOption*, void**, unsigned int) {
  return load_library(__func__, library, code, count, options, values);
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options, void** values,
                               unsigned int count, CUlibraryOption*, void**, unsigned int) {
  std::string image;
  try {
    image = read_image_file(path);
  } catch (...) {
    return answer_for_current_exception(__func__);
  }
  return load_library(__func__, library, image.c_str(), count, options, values, image.size());
}

CUresult cuLibraryUnload(CUlibrary handle) {
  API(Initialized, {
    State& s = state();
    CUlib_st& library = s.libraries.get(handle);
    for (auto& context : s.contexts) drain(c, *context);
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
