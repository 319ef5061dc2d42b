// SPDX-License-Identifier: Apache-2.0
// The execution of work. Work is done by the time the call that enqueues it returns. Its failure comes to light later,
// in a call that synchronizes.
#pragma once
#include "sim/driver/call.h"
#include "sim/driver/work.h"

namespace sim::driver {

// Runs the work in the order of the stream, or, without one, as part of a graph or of a call that waits.
void execute(Call& c, CUctx_st& context, const Work& work, CUstream_st* stream = nullptr);
// Waits for what was enqueued, and answers with the context's failure if there is one.
void synchronizing_call(Call& c);
void synchronize_context(Call& c, CUctx_st& context);

}  // namespace sim::driver
