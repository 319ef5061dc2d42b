// SPDX-License-Identifier: Apache-2.0
// A rank's window, the memory that all ranks reach, and the arguments of the kernels that use windows. Compiled by the
// host compiler and by NVRTC. docs/distributed.md describes the protocol.
#pragma once
#include "moxie/arguments.h"

namespace moxie {
namespace kernel {

// Where ranks wait for each other in a call: all have sent the numbers of their rows, their tokens, and their results.
enum class Meeting : int32_t { Counts, Tokens, Results };
constexpr int kMeetings = 3;

// What became of the rank's last call. Failed stays until the window is prepared again.
enum class Outcome : int32_t { Fine, TooManyRows, Failed };

// What went wrong first, for the host.
enum class RankFailure : int32_t { None, TooManyRows, Late, Different };
constexpr int kRankWords = (kMaxRanks + 31) / 32;  // bit r % 32 of word r / 32 stands for rank r
struct RankStatus {
  RankFailure failure = RankFailure::None;
  uint32_t call = 0;
  int32_t rank = 0, rows = 0;         // TooManyRows: who would get so many
  Meeting meeting = Meeting::Counts;  // Late, Different
  uint32_t late[kRankWords] = {}, different[kRankWords] = {};
  uint32_t unused = 0;
};

// The first bytes of a window, all of which is 0 before the first call.
struct WindowHeader {
  RankStatus status;
  uint32_t call;         // counted up by each call of this rank
  Outcome outcome;       // of that call
  int32_t most_tokens;   // of a rank, in that call
  uint32_t sends_early;  // 1, from exchange to the meeting for tokens: dispatch need not wait for the numbers of rows
  uint32_t unused[16];
  // Written by rank r alone: the call in which it was at each meeting last, what it takes the layer for, and how many
  // tokens it has, with what it has sent of them by then.
  uint32_t met[kMeetings][kMaxRanks];
  uint32_t signatures[kMaxRanks];
  int32_t told_tokens[kMaxRanks];
  int32_t tokens[kMaxRanks];  // of each rank in this rank's call, while others are on their way to the next one
};
constexpr int kWindowHeaderBytes = 2048;
// In told_tokens beside the number: the rank has sent what FewPair says of all of its pairs, and its tokens; it wants
// records of tokens rather than the order of its rows.
constexpr int32_t kPairsSent = 1 << 30, kTokensSent = 1 << 29, kWantsRecords = 1 << 28;
constexpr int32_t told_number(int32_t told) { return told & (kWantsRecords - 1); }
static_assert(sizeof(RankStatus) == 48 && sizeof(WindowHeader) <= kWindowHeaderBytes);

// Where sums travel back: the flags of a rank in every window, one for each chunk of tokens and block of columns.
constexpr int kSumFlags = 8192;

// ranks/send_few.cuh sends so many pairs of a rank at most, and tokens of so many elements.
constexpr int kFewPairs = 128;
constexpr int64_t kFewElements = 16384;
// What it says of a pair in the window of each rank: which of the rank's experts the pair is for, times kFewPairs, and
// how many earlier pairs of the sender are for the same one; below 0: the pair is for no expert of the rank.
struct FewPair {
  int32_t expert_and_number;
  float weight;
};

// Columns whose scales take four bytes: a float with RowFormat::Fp8, with Mxfp8 a code for every 32.
constexpr int kRowScaleColumns = 128;

// What lies behind the header, each part at a multiple of 256 bytes.
struct WindowLayout {
  // uint32_t [ranks][kSumFlags]: written by rank r alone, the call in which it sent these sums last. All layers have
  // them here, so that those that share windows find flags of earlier calls at worst.
  int64_t flags = kWindowHeaderBytes;
  // FewPair [ranks][kFewPairs]: written by rank r alone, in front of the first meeting. All layers have them here, too:
  // another rank may still be at the end of a call of another layer.
  int64_t pairs = 0;
  // int32 [ranks][places]: the pairs of each rank's tokens for the expert in each place. With room for the most places,
  // so that what other layers have behind it lies elsewhere.
  int64_t counts = 0;
  int64_t order = 0;   // int32 [rows]: of each row of our experts, in their order, the token: its place in `tokens`;
                       // unless tokens are copied in the order of the rows
  int64_t tokens = 0;  // [ranks][tokens][hidden]: those of each rank's tokens that chose an expert of ours, where they
                       // have their number
  int64_t scales = 0;  // Fp8, Mxfp8: four bytes [ranks][tokens][ceil(hidden / 128)]
  // ResultFormat::Rows: RowPlace [rows], of each row of our experts the rank and the pair that it belongs to, and bf16
  // [tokens][top_k][hidden], what experts made of each pair of our own tokens, which their ranks write.
  int64_t origins = 0, rows = 0;
  // Else: float or bf16 [ranks][tokens][hidden], the weighted sums of the rows that each rank's experts made of our own
  // tokens, which that rank writes.
  int64_t sums = 0;
  // Of each token in `tokens` its record, where sums travel or tokens are copied in the order of the rows.
  int64_t records = 0;
  int64_t bytes = 0;
};
// A record in int32: the call that it is of, and the layer's signature; of each choice the row, or -1; of each choice
// the weight, a float, where sums travel. Layers that share windows find each other's bytes there, none of which looks
// like theirs. It begins at a sector of memory, which has 32 bytes.
constexpr int64_t record_words(int64_t top_k) { return (2 + 2 * top_k + 7) / 8 * 8; }
constexpr int64_t row_scales(int64_t hidden) { return (hidden + kRowScaleColumns - 1) / kRowScaleColumns; }
struct WindowSizes {
  int64_t ranks, experts, tokens, top_k, hidden, rows;
  RowFormat format;
  ResultFormat results;
};
constexpr WindowLayout window_layout(const WindowSizes& of) {
  const auto up = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const bool scaled = of.format != RowFormat::Bf16, sums = of.results != ResultFormat::Rows;
  const int64_t tokens = of.ranks * of.tokens;
  const int64_t sum_bytes = !sums ? 0 : of.results == ResultFormat::Sums ? 4 : 2;
  WindowLayout at;
  at.pairs = at.flags + of.ranks * kSumFlags * 4;
  at.counts = at.pairs + of.ranks * kFewPairs * 8;
  at.order = at.counts + of.ranks * kMaxRoutedExperts * 4;
  at.origins = at.order + up(of.rows * 4);
  at.records = at.origins + (sums ? 0 : up(of.rows * 8));
  at.scales = at.records + up(tokens * record_words(of.top_k) * 4);
  at.tokens = at.scales + (scaled ? up(tokens * row_scales(of.hidden) * 4) : 0);
  at.sums = at.tokens + up(tokens * of.hidden * (scaled ? 1 : 2));
  at.rows = at.sums + up(tokens * of.hidden * sum_bytes);
  at.bytes = at.rows + (sums ? 0 : up(of.tokens * of.top_k * of.hidden * 2));
  return at;
}

// What every kernel of a call knows of the ranks.
struct RankParams {
  uint8_t* windows[kMaxRanks] = {};
  WindowLayout at;
  uint64_t time_limit = 0;  // nanoseconds
  int32_t ranks = 1, rank = 0;
  int32_t experts = 1;   // of a rank; places are ranks times as many
  int32_t tokens = 0;    // the most of a rank
  int32_t max_rows = 0;  // of a rank's experts
  uint32_t signature = 0;
};

// A meeting's halves: telling all ranks that we are there, and waiting until all of them are. Tests that have one
// device for all ranks launch them apart.
constexpr int kTell = 1, kWait = 2;

// Argument of ranks/exchange.cuh: tells all ranks the numbers of our rows, and finds out where rows go.
struct ExchangeParams {
  RankParams ranks;
  const int32_t* place_ends = nullptr;   // [places]: of our pairs, sorted by place
  int32_t* shifts = nullptr;             // [places]: what leads from a sorted pair to its row where the expert is
  int32_t* ends = nullptr;               // [experts]: of the rows of ours, from all ranks
  const int32_t* token_count = nullptr;  // or null
  int32_t tokens = 0, top_k = 1;
  int32_t sums = 0;      // as in DispatchParams
  int32_t permutes = 0;  // 1: this rank copies the tokens in the order of its rows
  int32_t halves = kTell | kWait;
};

// Argument of ranks/meet.cuh.
struct MeetParams {
  RankParams ranks;
  Meeting meeting = Meeting::Tokens;
  int32_t halves = kTell | kWait;
};
constexpr int kMeetThreads = 32;

// Where the row of a pair lies: row r of rank's experts is 2^32 rank + r, and what is below 0 nowhere. In the same way
// 2^32 rank + p is pair p of rank's tokens.
using RowPlace = int64_t;

// Argument of ranks/dispatch.cuh: copies each token to the ranks of its experts.
struct DispatchParams {
  RankParams ranks;
  const void* from = nullptr;            // bf16 [tokens][columns]
  const void* ids = nullptr;             // [tokens][top_k]
  const int32_t* places = nullptr;       // or null
  const int32_t* inverse = nullptr;      // [tokens][top_k]
  const int32_t* shifts = nullptr;       // as exchange wrote them
  const int32_t* token_count = nullptr;  // or null
  const float* weights = nullptr;        // [tokens][top_k], or null for 1; for sums alone
  RowPlace* rows = nullptr;              // [tokens][top_k]
  int64_t ld_from = 0;                   // elements
  int32_t tokens = 0, top_k = 1, columns = 0;
  int32_t ids_here = 1;
  int32_t sums = 0;                // 1: sums travel back, 0: rows
  int32_t halves = kTell | kWait;  // kTell: sends what may leave early; kWait: the rest
};
// A warp of dispatch has 256 columns of a token, eight a thread, or says where the rows of a token are. Blocks whose
// warps have columns come first in the grid.
constexpr int kDispatchWarps = 4, kDispatchThreads = 32 * kDispatchWarps;
constexpr int32_t warps_of_columns(int32_t columns) { return (columns + 255) / 256; }
// Of so many warps.
constexpr int64_t dispatch_blocks(int64_t warps) { return (warps + kDispatchWarps - 1) / kDispatchWarps; }
constexpr int64_t column_blocks(int64_t tokens, int32_t columns) {
  return dispatch_blocks(tokens * warps_of_columns(columns));
}

// Argument of ranks/send_few.cuh, which does for few tokens what sort, exchange, dispatch and the meeting behind it do:
// `send` but for inverse and shifts, and ExchangeParams::ends and permutes.
struct SendFewParams {
  DispatchParams send;
  int32_t* ends = nullptr;  // [experts]
  int32_t permutes = 0;
};
constexpr int kSendFewThreads = 1024;

// Argument of ranks/gather_rows.cuh: copies received tokens in the order of our experts' rows.
struct GatherRowsParams {
  RankParams ranks;
  void* out = nullptr;  // bf16 [rows][columns]
  int32_t columns = 0, top_k = 1;
  int32_t sums = 0;  // as in DispatchParams; 0: origins are written
};
constexpr int kGatherRowsThreads = 128;  // a thread has eight columns of a token

// Argument of ranks/row_sink.cuh, a sink of the second product, and what it needs of the kernel.
struct RowSinkParams {
  RankParams ranks;
  int32_t top_k = 1, columns = 0;
};
// Through staging each of a warp group's four warps brings 16 rows of so many columns together, so many bytes apart
// that rows lie in different banks of shared memory.
constexpr int kRowSinkColumns = 64;
constexpr int kRowSinkStride = kRowSinkColumns * 2 + 16;
constexpr SinkNeeds row_sink_needs(bool staged) {
  return {.staging_bytes = staged ? 4 * 16 * kRowSinkStride : 0, .narrow = true};
}

// Argument of ranks/combine.cuh: `sum` but for rows and inverse. A pair's row lies in our window, where `rows` says
// that it has any.
struct CombineRanksParams {
  CombineParams sum;
  RankParams ranks;
  const RowPlace* rows = nullptr;  // [tokens][top_k]
  int32_t halves = kTell | kWait;  // of the meeting for results, where it is in this launch
};
constexpr int kCombineRanksBlocks = 4;  // of a multiprocessor, where they meet the other ranks: all run at once

// Argument of ranks/combine_sums.cuh: `sum.from` has the rows of our experts, bf16 [max_rows][columns]; the others'
// sums come into the windows.
struct CombineSumsParams {
  CombineParams sum;
  RankParams ranks;
  const RowPlace* rows = nullptr;  // [tokens][top_k]
  int32_t halves = kTell | kWait;  // kTell: sends our sums; kWait: adds those that come
};
constexpr int kCombineSumsThreads = 128;  // a thread has eight columns of a token
// Blocks of a multiprocessor, all of which run at once.
constexpr int kCombineSumsBlocks = 7;
// The most chunks of a rank's tokens, each of which has a flag for each block of columns (slab), and the tokens of one
// where no rank has more than so many.
constexpr int32_t most_chunks(int32_t slabs) { return kSumFlags / slabs; }
constexpr int32_t tokens_of_chunk(int32_t most_tokens, int32_t slabs) {
  const int32_t tokens = (most_tokens + most_chunks(slabs) - 1) / most_chunks(slabs);
  return tokens > 1 ? tokens : 1;
}

}  // namespace kernel
}  // namespace moxie
