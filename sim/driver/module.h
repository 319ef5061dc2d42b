// Modules, libraries, functions and kernels: what loading an image yields.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "sim/driver/abi.h"
#include "sim/machine/dim3.h"
#include "sim/machine/kernel.h"

namespace sim::driver {

class Call;

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

// Parses the text, prepares its kernels and places its variables. Throws ApiError for an image that cannot be run.
std::shared_ptr<Image> load_image(const std::string& text);
// The function behind a handle, which may be a CUkernel in disguise.
CUfunc_st& live_function(Call& c, CUfunction handle);
int function_attribute(const CUfunc_st& function, CUfunction_attribute attribute);
unsigned threads_limit(const Kernel& kernel);

}  // namespace sim::driver

struct CUfunc_st {
  CUmodule module = nullptr;
  CUcontext context = nullptr;
  std::string name;
  std::shared_ptr<const sim::Kernel> kernel;
  int max_dynamic_shared = 0;
  bool non_portable_cluster = false;
  int carveout = -1;
  int cluster_policy = 0;
  // All zero: the function requires no cluster size.
  sim::Dim3 required_cluster{0, 0, 0};
};

struct CUmod_st {
  CUcontext context = nullptr;
  std::shared_ptr<sim::driver::Image> image;
  std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
  CUlibrary library = nullptr;
};

struct CUlib_st {
  // The PTX text.
  std::string text;
  std::map<std::string, CUkernel> kernels;
};

struct CUkern_st {
  CUlibrary library = nullptr;
  std::string name;
};
