// SPDX-License-Identifier: Apache-2.0
// Libraries and their kernels, which become modules and functions in each context that uses them.
#pragma once
#include <map>
#include <string>

#include "sim/driver/abi.h"
#include "sim/driver/module.h"

namespace sim::driver {

// The module of the library in the context, loaded when it is first asked for.
CUmodule module_of(CUctx_st& context, CUlibrary handle);
CUfunc_st& function_of(CUctx_st& context, CUkernel handle);

}  // namespace sim::driver

struct CUlib_st {
  // The PTX text.
  std::string text;
  std::map<std::string, CUkernel> kernels;
};

struct CUkern_st {
  CUlibrary library = nullptr;
  std::string name;
};
