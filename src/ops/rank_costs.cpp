// SPDX-License-Identifier: Apache-2.0
// The cost model of layers over ranks.
#include <algorithm>
#include <cmath>

#include "moxie/ranks.h"
#include "moxie/window.h"
#include "ops/check.h"
#include "ops/ranks.h"

namespace moxie {
namespace {

using ops::reject;

// Multiprocessors that copies between ranks take from the products beside them.
constexpr int kCopySms = 16;
// Of a network adapter's line rate, what transfers get.
constexpr double kNetworkShare = 0.9;
// Of the memory's rate, what permute and combine get (docs/routing.md).
constexpr double kMemoryShare = 0.9;
// Three launches around the products.
constexpr double kLaunches = 6e-6;
constexpr double kElement = 2;  // bytes of bf16

int64_t domain_of(const RankedLayer& layer, const DeviceFigures& device) {
  return layer.domain.value_or(std::min(layer.ranks, nvlink_domain(device.arch)));
}

void check_layer_over_ranks(const RankedLayer& layer, const DeviceFigures& device, const RankLinks& links) {
  const auto size = [](const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) reject("{} is {}, but must be {} to {}", name, value, least, most);
  };
  size("ranks", layer.ranks, 1, 1024);
  size("experts", layer.experts, layer.ranks, kMaxRoutedExperts * layer.ranks);
  size("top_k", layer.top_k, 1, std::min<int64_t>(kMaxTopK, layer.experts));
  size("tokens", layer.tokens, 1, kMaxRoutedTokens);
  size("domain", domain_of(layer, device), 1, layer.ranks);
  ops::check_enum("format", layer.format);
  if (layer.windows && domain_of(layer, device) < layer.ranks)
    reject("windows is true, but {} ranks are more than the {} of an NVLink domain", layer.ranks,
           domain_of(layer, device));
  for (const double rate :
       {links.token_rate, links.row_rate, links.sum_rate, links.all_to_all_rate, links.network_rate}) {
    if (!(rate > 0)) reject("a rate of links is {}, but must be more than 0", rate);
  }
}

// Ranks other than its own that hold any of a token's top_k experts, on average.
double other_ranks_of_a_token(const RankedLayer& layer) {
  const auto experts = static_cast<double>(layer.experts);
  const double elsewhere = experts - experts / static_cast<double>(layer.ranks);
  double none = 1;  // the probability that a given rank has none of them
  for (int i = 0; i < layer.top_k; ++i) none *= std::max(0.0, elsewhere - i) / std::max(1.0, experts - i);
  return static_cast<double>(layer.ranks - 1) * (1 - none);
}

// Of what goes to other ranks, what leaves the NVLink domain.
double share_of_network(const RankedLayer& layer) {
  if (layer.ranks <= *layer.domain) return 0;
  return static_cast<double>(layer.ranks - *layer.domain) / static_cast<double>(layer.ranks - 1);
}

// layer.domain is there.
double all_to_all(const RankedLayer& layer, const RankLinks& links, double bytes) {
  const double network = bytes * share_of_network(layer);
  const double latency = links.all_to_all_latency + static_cast<double>(layer.ranks - 2) * links.peer_latency;
  if (network == 0) return latency + bytes / links.all_to_all_rate;
  return latency + links.network_latency +
         std::max((bytes - network) / links.all_to_all_rate, network / links.network_rate);
}

// Pairs of the rank that gets most of them, on average: all wait for it. They are binomial, and of `ranks` normal
// numbers the largest is about 0.8 (ln ranks)^0.75 deviations above the mean (within 8% from 2 to 512 ranks).
double most_pairs(double mean, int64_t ranks) {
  const auto count = static_cast<double>(ranks);
  return mean + 0.8 * std::pow(std::log(count), 0.75) * std::sqrt(mean * (1 - 1 / count));
}

double product(GemmDescription d, int64_t experts, double rows, const DeviceFigures& device) {
  // Weights of experts that no row has chosen are not read. There is a row at least, and so an expert.
  const auto count = static_cast<double>(experts);
  const double chosen = count * (1 - std::pow(1 - 1 / count, rows));
  const int64_t groups = std::llround(chosen), total = std::llround(rows);
  d.groups = Offsets{groups, total};
  d.expected_rows = total / groups;
  // Of few rows a plan takes some experts to have none, but those are left out already.
  for (int64_t i = 0; i < groups && total < 4 * groups; ++i)
    d.known_rows.push_back(total * (i + 1) / groups - total * i / groups);
  return plan_gemm(d, device).predicted_seconds;
}

// In one go. layer.domain is there.
RankCosts undivided(const RankedLayer& layer, const DeviceFigures& device, const RankLinks& links) {
  const auto tokens = static_cast<double>(layer.tokens);
  const auto hidden = static_cast<double>(layer.up.k);
  const double pairs = tokens * layer.top_k;
  const double away = static_cast<double>(layer.ranks - 1) / static_cast<double>(layer.ranks);
  RankCosts costs;
  // A token goes once to each rank, by all_to_all with the slots of its experts there; a row comes back for each pair.
  // Scaled elements of one byte travel with four bytes of scales for every 128.
  double token = kElement * hidden + 4.0 * layer.top_k;
  if (layer.windows && layer.format == RowFormat::Bf16) token = kElement * hidden;
  if (layer.windows && layer.format != RowFormat::Bf16)
    token = hidden + 4.0 * static_cast<double>(kernel::row_scales(layer.up.k));
  costs.dispatch_bytes = tokens * other_ranks_of_a_token(layer) * token;

  const int64_t own = (layer.experts + layer.ranks - 1) / layer.ranks;
  GemmDescription down = layer.up;
  down.n = layer.up.k;
  down.k = is_gated(layer.up.activation.function) ? layer.up.n / 2 : layer.up.n;
  down.activation = Activation::None, down.gate = GateLayout::Interleaved;
  const double most = most_pairs(pairs, layer.ranks);
  costs.up = product(layer.up, own, most, device);
  costs.down = product(down, own, most, device);
  // Through windows rows travel while others are computed, or float32 sums come back (RankDescription::results).
  const double rows = layer.top_k * away * kElement, sums = other_ranks_of_a_token(layer) * 2 * kElement;
  const bool brings_sums = layer.windows && ops::sums_wait_less(rows, sums, layer.top_k, down.k);
  costs.combine_bytes = tokens * (brings_sums ? sums : rows) * hidden;
  if (layer.ranks > 1 && layer.windows) {
    costs.dispatch = links.window_latency + costs.dispatch_bytes / links.token_rate;
    const double way = costs.combine_bytes / (brings_sums ? links.sum_rate : links.row_rate);
    costs.combine = links.combine_latency + (brings_sums ? way : std::max(0.0, way - costs.down));
  } else if (layer.ranks > 1) {
    costs.dispatch = all_to_all(layer, links, costs.dispatch_bytes);
    costs.combine = all_to_all(layer, links, costs.combine_bytes);
  }
  // Rows are written and read once more in their sorted order, and read and summed for each token.
  costs.around = kLaunches + (3 * pairs + tokens) * kElement * hidden / (kMemoryShare * device.memory_rate);
  return costs;
}

}  // namespace

int64_t nvlink_domain(int arch) { return arch == 100 ? 72 : 8; }

RankLinks rank_links(int arch, double network) {
  // Measured between two and four H100 and H200 of one host (docs/scale.md): NVLink 4 with 450 GB/s in each direction.
  // NVLink 5 has twice that, and is assumed to reach the same share of it.
  const double generation = arch == 100 ? 2 : 1;
  return {.token_rate = generation * 350e9,
          .row_rate = generation * 295e9,
          .sum_rate = generation * 310e9,
          .window_latency = 11e-6,
          .combine_latency = 6e-6,
          .all_to_all_rate = generation * 278e9,
          .all_to_all_latency = 26e-6,
          .peer_latency = 0.5e-6,
          .network_rate = kNetworkShare * network,
          .network_latency = 10e-6};
}

RankCosts rank_costs(const RankedLayer& given, const DeviceFigures& device, const RankLinks& links) {
  check_layer_over_ranks(given, device, links);
  RankedLayer layer = given;
  layer.domain = domain_of(given, device);
  RankCosts costs = undivided(layer, device, links);
  if (layer.tokens < 2) return costs;
  layer.tokens = (layer.tokens + 1) / 2;
  const RankCosts half = undivided(layer, device, links);
  const double products = half.products() * device.sm_count / std::max(1, device.sm_count - kCopySms);
  costs.in_halves = half.dispatch + std::max(half.dispatch, products) + std::max(products, half.combine) + half.combine;
  return costs;
}

}  // namespace moxie
