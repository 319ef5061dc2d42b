// SPDX-License-Identifier: Apache-2.0
// Executable graphs: the steps of a graph in an order that respects its edges.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/driver/abi.h"
#include "sim/driver/work.h"

struct CUgraphExec_st {
  CUcontext context = nullptr;
  uint64_t flags = 0;
  std::vector<sim::driver::Work> steps;
  // steps[i] came from sources[i] and follows the steps whose places are in dependencies[i].
  std::vector<CUgraphNode> sources;
  std::vector<std::vector<size_t>> dependencies;
  std::vector<CUcontext> contexts;
  std::vector<bool> enabled;
  std::vector<std::shared_ptr<uint64_t>> memory;
};
