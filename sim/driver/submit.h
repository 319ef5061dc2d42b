// SPDX-License-Identifier: Apache-2.0
// How work enters a stream: it runs at once, or the stream's capture records it.
#pragma once
#include "sim/driver/call.h"
#include "sim/driver/stream.h"
#include "sim/driver/work.h"

namespace sim::driver {

// The result is the node that the work became, or null when it ran.
CUgraphNode submit(Call& c, CUstream_st& stream, Work work, CUgraphNodeType type);

}  // namespace sim::driver
