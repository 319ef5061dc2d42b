// SPDX-License-Identifier: Apache-2.0
// Stands in for PyTorch's header of this name: nothing is bound, and what a module would bind is not instantiated.
#pragma once

#define PYBIND11_MODULE(name, variable) [[maybe_unused]] static void name(auto& variable)
