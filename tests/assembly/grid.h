// SPDX-License-Identifier: Apache-2.0
// Problems whose plans for sm_100a are assembled: a grid over everything that a plan can be asked for, and the shapes
// that others have published figures of.
#pragma once
#include <string>
#include <vector>

#include "tests/support/planned.h"

namespace moxie::assembly {

DeviceFigures b200();

// Always the same ones, more than 500 with different extents: each grouping, format and epilogue, with operands
// swapped, not swapped and as the plan likes, and each scheduler.
std::vector<ProductSpec> grid();

struct Published {
  std::string name;
  ProductSpec problem;
  double tflops;
};
// MXFP4 on a B200 with float32 output, by DeepGEMM's pull request 348.
std::vector<Published> published();

std::string describe(const ProductSpec& problem);

}  // namespace moxie::assembly
