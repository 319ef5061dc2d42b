// SPDX-License-Identifier: Apache-2.0
// What a layer costs whose experts are divided among ranks: the model of docs/scale.md, which says where its figures
// come from and what it leaves out. No device is needed.
#pragma once
#include <cstdint>
#include <optional>

#include "moxie/gemm.h"
#include "moxie/plan.h"
#include "moxie/types.h"

namespace moxie {

// Between ranks. Rates are bytes a second in each direction at once, latencies seconds.
struct RankLinks {
  double token_rate = 0;          // a kernel's stores into peers' windows: tokens
  double row_rate = 0;            // rows, in pieces of 128 bytes
  double sum_rate = 0;            // sums, the reading of their rows included
  double window_latency = 0;      // of a dispatch through windows: launches, flags of the peers
  double combine_latency = 0;     // of a combine
  double all_to_all_rate = 0;     // NCCL inside an NVLink domain
  double all_to_all_latency = 0;  // between two ranks
  double peer_latency = 0;        // more for each further rank
  double network_rate = 0;        // of a rank, to other domains
  double network_latency = 0;     // to other domains, beside that of all_to_all
};

// Those of an architecture, 90 or 100; network: the line rate of a rank's network adapter.
RankLinks rank_links(int arch, double network = 50e9);

// The ranks of an NVLink domain where nobody built a smaller one: a host of Hopper's, a rack of Blackwell's.
int64_t nvlink_domain(int arch);

// A layer whose experts are divided among ranks.
struct RankedLayer {
  GemmDescription up;                  // the first product; its groups are not looked at
  int64_t tokens = 1;                  // of a rank, 1 to 1,048,576
  int64_t experts = 1;                 // of all ranks: at least ranks, at most 1,024 for each
  int64_t ranks = 1;                   // 1 to 1,024
  int top_k = 1;                       // experts of a token, 1 to 16, and no more than experts
  bool windows = false;                // by kernels that reach peers' memory, within one domain; else by all_to_all
  RowFormat format = RowFormat::Bf16;  // with windows: of tokens on their way
  std::optional<int64_t> domain = {};  // ranks of an NVLink domain; absent: ranks, or fewer by nvlink_domain()
};

// A step, where experts are chosen evenly, in seconds, and the bytes of a rank. Products are those of the rank that
// gets most pairs.
struct RankCosts {
  double dispatch_bytes = 0;  // of tokens that a rank sends to others
  double combine_bytes = 0;   // of results that it sends to others
  double dispatch = 0;        // the way of the tokens
  double combine = 0;         // the way of the results; of rows through windows what `down` does not hide
  double up = 0;              // the first product
  double down = 0;            // the second product
  double around = 0;          // sort, permute and sum on the rank itself
  double products() const { return up + down + around; }          // all that a rank computes
  double sum() const { return dispatch + products() + combine; }  // of the step
  // In two halves, where the second half's tokens travel while the first is multiplied. Absent: one token has none.
  std::optional<double> in_halves = {};
  bool halves_pay() const { return in_halves && *in_halves < sum(); }  // whether they take less
};

// Throws Error: InvalidArgument (a member is out of range), and as plan_gemm() does.
RankCosts rank_costs(const RankedLayer& layer, const DeviceFigures& device, const RankLinks& links);

}  // namespace moxie
