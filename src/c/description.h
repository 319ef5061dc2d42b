// SPDX-License-Identifier: Apache-2.0
// Descriptions of products, from C to C++.
#pragma once
#include "moxie/c.h"
#include "moxie/gemm.h"

namespace moxie::c {

// `name` stands for the argument in sentences. Refuses what C++ cannot express and leaves all other rules to C++.
GemmDescription description_of(const moxie_gemm_description* given, const char* name = "description");

}  // namespace moxie::c
