// SPDX-License-Identifier: Apache-2.0
// What a layer costs whose experts are divided among ranks: the model of docs/scale.md, which says where its figures
// come from and what it leaves out.
#pragma once
#include <cstdint>

#include "moxie/gemm.h"
#include "moxie/plan.h"

namespace moxie::cli {

// Between ranks. Rates are bytes a second in each direction at once, latencies seconds.
struct Links {
  double store_rate = 0;          // a kernel's stores into peers' windows
  double load_rate = 0;           // its loads from them
  double window_latency = 0;      // of a dispatch or a combine through windows: launch, flags of the peers
  double all_to_all_rate = 0;     // NCCL inside an NVLink domain
  double all_to_all_latency = 0;  // between two ranks
  double peer_latency = 0;        // more for each further rank
  double network_rate = 0;        // of a rank, to other domains
  double network_latency = 0;
};

// Those of an architecture; `network` is the line rate of a rank's network adapter.
Links links_of(int arch, double network);

struct RankedLayer {
  GemmDescription up;   // the first product; its groups are not looked at
  int64_t tokens = 0;   // of a rank
  int64_t experts = 0;  // of all ranks
  int64_t ranks = 0;
  int64_t domain = 0;  // ranks of an NVLink domain
  int top_k = 0;
};

// A step of one rank, where experts are chosen evenly.
struct StepCosts {
  double dispatch_bytes = 0;  // that a rank sends to others
  double combine_bytes = 0;
  double dispatch = 0;  // seconds
  double combine = 0;
  double up = 0;
  double down = 0;
  double around = 0;  // sort, permute and sum on the rank itself
  double products() const { return up + down + around; }
  double sum() const { return dispatch + products() + combine; }
};

// Throws Error as plan_gemm() does. windows: by kernels that reach peers' memory, in one NVLink domain.
StepCosts cost_of(const RankedLayer& layer, const DeviceFigures& device, const Links& links, bool windows);

// Of the layer in two halves, where the second half's tokens travel while the first is multiplied.
double seconds_in_halves(const RankedLayer& layer, const DeviceFigures& device, const Links& links, bool windows);

}  // namespace moxie::cli
