// SPDX-License-Identifier: Apache-2.0
// What the environment says about how launches are executed. A value that is not allowed throws std::invalid_argument.
#pragma once
#include <chrono>

#include "sim/machine/engine.h"
#include "sim/machine/rules.h"

namespace sim {

Order order_from_environment();      // MOXIE_SIM_ORDER=eager|lazy|random:SEED
bool statistics_from_environment();  // MOXIE_SIM_STATISTICS: Launch::counts
int threads_from_environment();      // MOXIE_SIM_THREADS: Launch::threads
// MOXIE_SIM_PATIENCE: how long a host thread may do other things before it enqueues what a kernel waits for.
std::chrono::seconds patience_from_environment();
Rules rules_from_environment();  // the variables that sim/machine/rules.h names

}  // namespace sim
