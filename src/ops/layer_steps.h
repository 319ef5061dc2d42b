// SPDX-License-Identifier: Apache-2.0
// A layer over ranks in steps, of which none waits for another rank when all ranks have taken the step before.
// Internal: tests that have one device for all ranks take each step for all of them in turn.
#pragma once
#include "moxie/layer.h"
#include "moxie/window.h"

namespace moxie::ops {

// Steps `first` to `last` of a call. At the end of each but the last a rank tells the others that it has come so far,
// and at the beginning of the next it waits until all have.
//   0  choose experts, sort
//   1  dispatch
//   2  both products
//   3  combine
struct LayerSteps {
  int first = 0, last = 3;
  bool joins = false;  // the caller may have had the stream wait for an event before: the first launch is a plain one
  bool has(int step) const { return step >= first && step <= last; }
  // Whether steps 0 and 1 are taken together, or have been by the part before. Few tokens are then sent in one launch,
  // which waits for those of the other ranks, too.
  bool send_at_once() const { return has(0) ? has(1) : joins; }
  // Of the meeting between `step` and the next.
  int halves(int step) const { return (has(step) ? kernel::kTell : 0) | (has(step + 1) ? kernel::kWait : 0); }
};

// ExpertLayer::run() of some steps.
void run_steps(const ExpertLayer& layer, const ExpertLayerTensors& tensors, WorkspaceView workspace,
               const LaunchOptions& options, const LayerSteps& steps);

}  // namespace moxie::ops
