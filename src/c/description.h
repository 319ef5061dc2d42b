// SPDX-License-Identifier: Apache-2.0
// Descriptions of products, of their matrices and of launches, from C to C++.
#pragma once
#include "moxie/c.h"
#include "moxie/gemm.h"
#include "moxie/plan.h"
#include "moxie/tensor.h"

namespace moxie::c {

// `name` stands for the argument in sentences. Refuses what C++ cannot express and leaves all other rules to C++.
GemmDescription description_of(const moxie_gemm_description* given, const char* name = "description");

ActivationSpec activation_of(const moxie_activation_spec& given);

ConstTensor tensor_of(const moxie_const_tensor& given);
Tensor tensor_of(const moxie_tensor& given);

// Null stands for the defaults.
LaunchOptions launch_options_of(const moxie_launch_options* given);

// The figures of a device as moxie_device_figures and moxie_pack_options give them: 0 stands for an H200's.
template <class Given>
DeviceFigures device_figures_of(const Given& given) {
  DeviceFigures figures;
  const auto take = [](auto& figure, auto value) {
    if (value != 0) figure = value;
  };
  take(figures.arch, given.arch);
  take(figures.sm_count, given.sm_count);
  if constexpr (requires { given.shared_bytes; }) take(figures.shared_bytes, given.shared_bytes);
  take(figures.l2_bytes, given.l2_bytes);
  take(figures.memory_rate, given.memory_rate);
  take(figures.clock, given.clock);
  return figures;
}

}  // namespace moxie::c
