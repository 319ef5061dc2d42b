// SPDX-License-Identifier: Apache-2.0
// The one object of the driver's state, and with it the one place that sees every type of handle.
#include "sim/driver/state.h"

#include "sim/driver/capture.h"
#include "sim/driver/context.h"
#include "sim/driver/event.h"
#include "sim/driver/graph.h"
#include "sim/driver/graph_exec.h"
#include "sim/driver/library.h"
#include "sim/driver/module.h"
#include "sim/driver/queue.h"
#include "sim/driver/stream.h"

namespace sim::driver {

State& state() {
  // It is never destroyed: programs call the driver from their own static destructors.
  static auto* s = new State;
  return *s;
}

}  // namespace sim::driver
