// SPDX-License-Identifier: Apache-2.0
// Launches of the kernels around the products, and what layers over ranks ask of them.
#pragma once
#include "device_state.h"
#include "moxie/layer.h"
#include "moxie/routing.h"

namespace moxie::ops {

struct Blocks {
  int64_t grid = 1, grid_y = 1, threads = 1;
  int shared = 0;  // dynamic bytes
};

// A token a block, as many blocks as its threads ask for, and no more threads in each than these need.
inline Blocks blocks_of(int64_t tokens, int64_t threads, int64_t most) {
  const int64_t pieces = (threads + most - 1) / most;
  return {.grid = tokens, .grid_y = pieces, .threads = (threads + pieces * 32 - 1) / (pieces * 32) * 32};
}

template <class Params>
void launch(const Device& device, const driver::LoadedKernel& kernel, const Blocks& blocks, const Params& params,
            const LaunchOptions& options) {
  driver::Context::LaunchShape shape;
  shape.grid = unsigned(blocks.grid), shape.grid_y = unsigned(blocks.grid_y), shape.block = unsigned(blocks.threads);
  shape.shared = unsigned(blocks.shared);
  shape.programmatic = options.programmatic;
  void* arguments[] = {const_cast<Params*>(&params)};
  device.state().context().launch(kernel, shape, arguments, options.stream);
}

// Refuses a choice of `top_k` of `experts` that no call of route() could make. Sentences name the router's members with
// `prefix` in front.
void check_router(const char* prefix, int64_t experts, int top_k, const RouterDescription& router);

// sort_by_expert() of `ids` experts, 0 to ids - 1, of which expert e lies in place places[e], or e where there is no
// table. ExpertSort::experts is the number of places, and first_expert 0. An expert in no place is skipped.
void sort_by_place(const Device& device, const ExpertSort& arguments, int64_t ids, const int32_t* places,
                   WorkspaceView workspace, const LaunchOptions& options);

}  // namespace moxie::ops
