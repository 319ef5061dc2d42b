// SPDX-License-Identifier: Apache-2.0
// Modules: what loading an image yields.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "sim/driver/abi.h"
#include "sim/driver/function.h"
#include "sim/machine/kernel.h"

namespace sim::driver {

struct Symbol {
  uint64_t address = 0, bytes = 0;
};

// The module-scope variables in device memory and the kernels prepared for the device.
struct Image {
  std::shared_ptr<const ptx::Module> module;
  std::map<std::string, Symbol> symbols;
  std::map<std::string, std::shared_ptr<const Kernel>> kernels;
  ~Image();
};

// Parses the text, prepares its kernels and places its variables in the memory of the device. Throws ApiError for an
// image that cannot be run.
std::shared_ptr<Image> load_image(const std::string& text, int device);
// A module of the context over the image, with a function for each kernel.
CUmodule make_module(CUctx_st& context, std::shared_ptr<Image> image);
void unload(CUmodule handle);
void get_global(const Image& image, CUdeviceptr* address, size_t* bytes, const char* name);

}  // namespace sim::driver

struct CUmod_st {
  CUcontext context = nullptr;
  std::shared_ptr<sim::driver::Image> image;
  std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
  CUlibrary library = nullptr;
};
