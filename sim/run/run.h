// SPDX-License-Identifier: Apache-2.0
// Running a launch.
#pragma once
#include "sim/machine/launch.h"

namespace sim {

// Runs a launch to its end, or throws Fault. The outcome is the same for any number of host threads.
void run(Launch& launch);

}  // namespace sim
