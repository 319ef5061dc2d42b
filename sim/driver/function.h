// SPDX-License-Identifier: Apache-2.0
// Functions: a kernel in a context, with the attributes that a program gave it.
#pragma once
#include <memory>
#include <string>

#include "sim/driver/abi.h"
#include "sim/machine/dim3.h"
#include "sim/machine/kernel.h"

namespace sim::driver {

class Call;

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
