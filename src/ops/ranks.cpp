// SPDX-License-Identifier: Apache-2.0
// Layers over ranks: checks, windows, launches.
#include "ops/ranks.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>

namespace moxie::ops {
namespace {

constexpr size_t kWindowAlignment = 256;

int64_t all_experts_of(const ExpertLayerDescription& d) { return d.all_experts.value_or(d.ranks->ranks * d.experts); }

int64_t most_rows(const ExpertLayerDescription& d) {
  return d.ranks->ranks * d.max_tokens * std::min<int64_t>(d.top_k, d.experts);
}

// Of what ranks must agree on, so that each finds what it looks for in the others' windows (FNV-1a).
uint32_t signature_of(const ExpertLayerDescription& d, const kernel::RankParams& p) {
  uint32_t hash = 2166136261u;
  for (const int64_t value : {int64_t{p.ranks}, d.experts, all_experts_of(d), int64_t{d.top_k}, d.hidden, d.max_tokens,
                              int64_t{p.max_rows}, int64_t(d.ranks->format), int64_t(results_of(d))}) {
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (uint64_t(value) >> 8 * byte & 255)) * 16777619u;
  }
  return std::max(hash, 1u);  // a window that was prepared has zeros
}

}  // namespace

// Fitted to two H200 with 4,096 tokens of 2,048 and 4,096 columns and a second product of 256 to 768 (docs/scale.md).
// In the time of a byte of tokens on its way one of sums or rows takes a quarter longer, the rows of a token are added
// for a quarter byte each, and the second product makes 1 / 0.0014 multiply-adds. On sm_100a links and products are
// both about twice as fast.
bool sums_wait_less(double rows, double sums, int top_k, int64_t width) {
  if (rows == 0) return false;  // one rank alone
  const double hidden = 0.0014 * top_k * double(width);
  return 1.25 * sums < std::max(0.0, 1.25 * rows - hidden) + 0.25 * top_k;
}

// If every expert is as popular.
ResultFormat results_of(const ExpertLayerDescription& d) {
  if (d.ranks->results) return *d.ranks->results;
  const double others = d.ranks->ranks - 1, ranks = d.ranks->ranks;
  const double rows = 2 * d.top_k * others / ranks, sums = 4 * others * (1 - std::pow(others / ranks, d.top_k));
  return sums_wait_less(rows, sums, d.top_k, d.width) ? ResultFormat::Sums : ResultFormat::Rows;
}

CustomSink row_sink(bool staged) {
  return {fmt::format("moxie::kernel::RowsToRanks<{}>", staged), "#include \"moxie/ranks/row_sink.cuh\"\n",
          sizeof(kernel::RowSinkParams), kernel::row_sink_needs(staged)};
}

void check_ranks(const ExpertLayerDescription& d) {
  const RankDescription& r = *d.ranks;
  if (r.ranks < 1 || r.ranks > kMaxRanks) reject("ranks.ranks is {}, but must be 1 to {}", r.ranks, kMaxRanks);
  if (r.rank < 0 || r.rank >= r.ranks) reject("ranks.rank is {}, but must be 0 to {}", r.rank, r.ranks - 1);
  check_enum("ranks.format", r.format);
  if (r.results) check_enum("ranks.results", *r.results);
  const int64_t places = r.ranks * d.experts;
  if (places > kMaxRoutedExperts)
    reject("experts is {} on each of {} ranks, but all of them together may have {} at most", d.experts, r.ranks,
           kMaxRoutedExperts);
  if (d.first_expert != 0) reject("first_expert is {}, but with ranks must be 0", d.first_expert);
  if (d.all_experts && (*d.all_experts < 1 || *d.all_experts > places))
    reject("all_experts is {}, but must be 1 to {}, what the ranks have together", *d.all_experts, places);
  if (d.max_tokens < 1) reject("max_tokens is {}, but with ranks must be at least 1", d.max_tokens);
  if (has_scales(d.activations)) reject("activations is {}, but with ranks must be bf16", to_string(d.activations));
  if (r.format != RowFormat::Bf16 && d.permute == false)
    reject("permute is false, but tokens that travel in {} are copied in the order of the sort", to_string(r.format));
  if (r.format == RowFormat::Mxfp8 && d.hidden % kScaleBlock != 0)
    reject("hidden is {}, but must be a multiple of {} where tokens travel in mxfp8", d.hidden, kScaleBlock);
  const int64_t most = r.ranks * d.max_tokens * d.top_k;
  if (r.max_rows && (*r.max_rows < 1 || *r.max_rows > most))
    reject("ranks.max_rows is {}, but must be 1 to {}, all pairs of all ranks", *r.max_rows, most);
  if (!(r.time_limit > 0) || r.time_limit > 3600)
    reject("ranks.time_limit is {}, but must be above 0 and at most 3600 seconds", r.time_limit);
}

Ranks::Ranks(const Device& device, const ExpertLayerDescription& d)
    : device_(device),
      seconds_(d.ranks->time_limit),
      format_(d.ranks->format),
      results_(results_of(d)),
      id_type_(d.id_type),
      out_(d.out) {
  const RankDescription& r = *d.ranks;
  params_.ranks = r.ranks, params_.rank = r.rank;
  params_.experts = int32_t(d.experts), params_.tokens = int32_t(d.max_tokens);
  params_.max_rows = int32_t(r.max_rows.value_or(most_rows(d)));
  params_.time_limit = uint64_t(r.time_limit * 1e9);
  params_.at = kernel::window_layout(
      {r.ranks, d.experts, d.max_tokens, d.top_k, d.hidden, params_.max_rows, r.format, results_});
  params_.signature = signature_of(d, params_);
  detail::DeviceState& state = device.state();
  for (int kernel = 0; kernel < jit::kSortKernels; ++kernel)
    state.sort_kernel(jit::SortKernel(kernel), d.id_type, true);
  if (d.router) state.route_kernel(d.router->logits_type, d.router->score, jit::route_size(int(all_experts_of(d))));
  state.exchange_kernel(), state.meet_kernel();
  state.dispatch_kernel(d.id_type, r.format), state.send_few_kernel(d.id_type, r.format);
  state.gather_rows_kernel(r.format);
  if (sums())
    state.combine_sums_kernel(d.out, results_);
  else
    state.combine_ranks_kernel(d.out, false), state.combine_ranks_kernel(d.out, true);
}

kernel::RankParams Ranks::params(void* const* windows) const {
  kernel::RankParams params = params_;
  for (int rank = 0; rank < params.ranks; ++rank) params.windows[rank] = static_cast<uint8_t*>(windows[rank]);
  return params;
}

Range Ranks::check_windows(void* const* windows) const {
  if (!windows) reject("windows is null, but must point to {} addresses", params_.ranks);
  const auto window = [&](int rank) {
    static constexpr char kOwn[] = "windows[rank]", kPeer[] = "the window of another rank";
    return check_array(rank == params_.rank ? kOwn : kPeer, windows[rank], true, kWindowAlignment, params_.at.bytes, 1);
  };
  const Range own = window(params_.rank);
  for (int rank = 0; rank < params_.ranks; ++rank) {
    const Range theirs = window(rank);
    if (rank != params_.rank) check_disjoint(own, theirs);
  }
  return own;
}

void Ranks::prepare_window(void* window, Stream stream) const {
  check_array("window", window, true, kWindowAlignment, params_.at.bytes, 1);
  // All of it: no record of an earlier call, of whatever layer, may look like one of a call to come.
  device_.fill(window, 0, size_t(params_.at.bytes), stream);
}

void Ranks::check(void* window, Stream stream) const {
  using kernel::RankFailure;
  check_array("window", window, true, kWindowAlignment, params_.at.bytes, 1);
  kernel::RankStatus status;
  device_.download(&status, window, sizeof status, stream);
  if (status.failure == RankFailure::None) return;
  if (status.failure == RankFailure::TooManyRows) {
    device_.fill(window, 0, sizeof status, stream);
    throw Error(ErrorCode::Peer, fmt::format("the experts of rank {} would get {} rows in call {}, but max_rows is {}",
                                             status.rank, status.rows, status.call, params_.max_rows));
  }
  std::string who;
  int count = 0;
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    const uint32_t(&words)[kernel::kRankWords] = status.failure == RankFailure::Late ? status.late : status.different;
    if ((words[rank / 32] >> rank % 32 & 1) == 0) continue;
    who += fmt::format("{}{}", count++ > 0 ? ", " : "", rank);
  }
  who = (count == 1 ? "rank " : "ranks ") + who;
  if (status.failure == RankFailure::Different)
    throw Error(ErrorCode::Peer,
                fmt::format("{} and rank {} describe different layers: all but rank and time_limit must be the same",
                            who, params_.rank));
  constexpr const char* kSent[kernel::kMeetings] = {"numbers of rows", "tokens", "results"};
  const size_t meeting = std::min(size_t(status.meeting), std::size(kSent) - 1);
  throw Error(ErrorCode::Peer, fmt::format("{} sent no {} in call {} within {} seconds of rank {}'s wait", who,
                                           kSent[meeting], status.call, seconds_, params_.rank));
}

void Ranks::exchange(const kernel::RankParams& params, const Exchanged& of, int halves,
                     const LaunchOptions& options) const {
  if (halves == 0) return;
  kernel::ExchangeParams exchange;
  exchange.ranks = params;
  exchange.place_ends = of.place_ends, exchange.shifts = of.shifts, exchange.ends = of.ends;
  exchange.token_count = of.token_count, exchange.tokens = int32_t(of.tokens);
  exchange.top_k = of.top_k, exchange.sums = sums(), exchange.permutes = of.permutes;
  exchange.halves = halves;
  const int64_t places = int64_t{params.ranks} * params.experts;
  launch(device_, device_.state().exchange_kernel(), {.threads = (places + 31) / 32 * 32}, exchange, options);
}

void Ranks::meet(const kernel::RankParams& params, kernel::Meeting meeting, int halves,
                 const LaunchOptions& options) const {
  if (halves == 0) return;
  kernel::MeetParams meet;
  meet.ranks = params, meet.meeting = meeting, meet.halves = halves;
  launch(device_, device_.state().meet_kernel(), {.threads = kernel::kMeetThreads}, meet, options);
}

void Ranks::dispatch(const kernel::DispatchParams& params, const LaunchOptions& options) const {
  if (params.halves == 0 || params.tokens == 0) return;
  const int64_t blocks = kernel::column_blocks(params.tokens, params.columns) + kernel::dispatch_blocks(params.tokens);
  launch(device_, device_.state().dispatch_kernel(id_type_, format_),
         {.grid = blocks, .threads = kernel::kDispatchThreads}, params, options);
}

bool Ranks::are_few(const kernel::DispatchParams& params) {
  return int64_t{params.tokens} * params.columns <= kernel::kFewElements &&
         int64_t{params.tokens} * params.top_k <= kernel::kFewPairs;
}

void Ranks::send_few(const kernel::SendFewParams& params, const LaunchOptions& options) const {
  launch(device_, device_.state().send_few_kernel(id_type_, format_), {.threads = kernel::kSendFewThreads}, params,
         options);
}

// As many blocks as the device holds at once, and no more than there may be rows: how many there are, the device alone
// knows.
Blocks Ranks::filling_blocks(int64_t rows, int64_t threads, int64_t most) const {
  constexpr int64_t kThreadsOfProcessor = 2048;
  Blocks blocks = blocks_of(1, threads, most);
  blocks.grid = device_.info().sm_count * kThreadsOfProcessor / (blocks.grid_y * blocks.threads);
  blocks.grid = std::clamp<int64_t>(blocks.grid, 1, rows);
  return blocks;
}

void Ranks::gather_rows(const kernel::GatherRowsParams& params, const LaunchOptions& options) const {
  launch(
      device_, device_.state().gather_rows_kernel(format_),
      filling_blocks(int64_t{params.ranks.ranks} * params.ranks.tokens, params.columns / 8, kernel::kGatherRowsThreads),
      params, options);
}

bool Ranks::may_combine_and_meet(int64_t tokens, int64_t columns) const {
  const Blocks blocks = blocks_of(tokens, columns / 8, kernel::kCombineThreads);
  return tokens > 0 && blocks.grid * blocks.grid_y <= device_.info().sm_count * kernel::kCombineRanksBlocks;
}

void Ranks::combine(const kernel::CombineRanksParams& params, bool meets, const LaunchOptions& options) const {
  launch(device_, device_.state().combine_ranks_kernel(out_, meets),
         blocks_of(params.sum.tokens, params.sum.columns / 8, kernel::kCombineThreads), params, options);
}

// As many blocks as the device holds at once, and no more than there may be chunks. Ranks may have other numbers of
// blocks: the chunks are the same.
void Ranks::combine_sums(const kernel::CombineSumsParams& params, const LaunchOptions& options) const {
  if (params.halves == 0) return;
  Blocks blocks = blocks_of(1, params.sum.columns / 8, kernel::kCombineSumsThreads);
  const int64_t chunks = std::min(params.ranks.tokens, kernel::most_chunks(int32_t(blocks.grid_y)));
  blocks.grid = std::clamp<int64_t>(device_.info().sm_count * kernel::kCombineSumsBlocks / blocks.grid_y, 1, chunks);
  launch(device_, device_.state().combine_sums_kernel(out_, results_), blocks, params, options);
}

}  // namespace moxie::ops
