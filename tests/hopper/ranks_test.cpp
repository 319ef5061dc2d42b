// SPDX-License-Identifier: Apache-2.0
// Expert layers over ranks, beside the same layer on one rank: to the last bit. Sizes and data are drawn anew in every
// run. All ranks are on one device here, which takes each step for all of them in turn; ranks with devices of their own
// are in tests/ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <set>

#include "ops/ranks.h"
#include "tests/support/random.h"
#include "tests/support/rank_layers.h"

namespace moxie::test {
namespace {

using ::testing::HasSubstr;

ExpertLayerDescription small_layer(int ranks, int64_t experts = 3, int top_k = 2) {
  ExpertLayerDescription d;
  d.experts = experts, d.top_k = top_k;
  d.hidden = 72, d.width = 40;
  d.activation = Activation::Relu;
  d.max_tokens = 12, d.expected_tokens = 8;
  d.ranks = RankDescription{.ranks = ranks};
  return d;
}

// Each rank's tokens choose by `choose`, which gets the rank.
RankCall call_of(const std::vector<int64_t>& tokens, int top_k, const std::function<int64_t(int)>& choose,
                 uint64_t seed = 1) {
  RankCall call;
  call.tokens = tokens, call.seed = seed;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    std::vector<int64_t>& ids = call.ids.emplace_back();
    for (int64_t i = 0; i < tokens[rank] * top_k; ++i) ids.push_back(choose(int(rank)));
  }
  return call;
}

std::vector<Device> on_one(int ranks) { return std::vector<Device>(size_t(ranks), device()); }

std::vector<uint8_t> window_bytes(const RankLayers& layers, int rank) {
  std::vector<uint8_t> bytes(layers.layer(rank).window_bytes());
  device().download(bytes.data(), layers.window(rank), bytes.size());
  return bytes;
}

std::string refusal(const std::function<void()>& function, ErrorCode code) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "nothing";
}

// How the tokens of ranks choose experts.
enum class Choice { Any, OneRank, OneExpert, Foreign, NotOfTheLast };
constexpr Choice kChoices[] = {Choice::Any, Choice::OneRank, Choice::OneExpert, Choice::Foreign, Choice::NotOfTheLast};

void check_steps(RankLayers& layers, const RankCall& call) {
  layers.bring(call);
  layers.run_in_steps();
  EXPECT_EQ(layers.difference(), "");
  layers.check_all();
}

struct Kind {
  const char* name;
  OperandFormat weights;
  ActivationSpec activation;
  GateLayout gate;
  bool biases, residual;
  DataType out;
  IdType id_type;
  RowFormat format;
  ResultFormat results = ResultFormat::Rows;
};
const Kind kKinds[] = {
    {"Plain", OperandFormat::Bf16, Activation::Relu, GateLayout::Interleaved, false, false, DataType::Bf16,
     IdType::Int32, RowFormat::Bf16},
    {"Gated", OperandFormat::Bf16, Activation::Reglu, GateLayout::Split, true, true, DataType::F32, IdType::Int64,
     RowFormat::Bf16},
    {"Packed", OperandFormat::Mxfp4, Activation::Reglu, GateLayout::Interleaved, true, false, DataType::Bf16,
     IdType::Int32, RowFormat::Bf16},
    {"Fp8", OperandFormat::Bf16, Activation::Relu, GateLayout::Interleaved, false, true, DataType::Bf16, IdType::Int64,
     RowFormat::Fp8},
    {"PackedFp8", OperandFormat::Mxfp4, Activation::Relu, GateLayout::Interleaved, true, true, DataType::F32,
     IdType::Int32, RowFormat::Fp8, ResultFormat::Sums},
    {"Mxfp8", OperandFormat::Bf16, Activation::Reglu, GateLayout::Split, false, true, DataType::F32, IdType::Int32,
     RowFormat::Mxfp8},
    {"PackedMxfp8", OperandFormat::Mxfp4, Activation::Relu, GateLayout::Interleaved, true, false, DataType::Bf16,
     IdType::Int64, RowFormat::Mxfp8, ResultFormat::Sums},
    {"Sums", OperandFormat::Bf16, Activation::Relu, GateLayout::Interleaved, false, true, DataType::Bf16, IdType::Int32,
     RowFormat::Bf16, ResultFormat::Sums},
    {"Bf16Sums", OperandFormat::Bf16, Activation::Reglu, GateLayout::SplitUpFirst, true, true, DataType::F32,
     IdType::Int64, RowFormat::Bf16, ResultFormat::Bf16Sums},
};
void PrintTo(const Kind& kind, std::ostream* stream) { *stream << kind.name; }

class RankMatrix : public ::testing::TestWithParam<Kind> {};

// A layer of each kind, ten with MOXIE_TEST_ALL=1, with several calls through the same windows.
TEST_P(RankMatrix, ComputesWhatOneRankDoes) {
  const Kind& kind = GetParam();
  Random random(run_seed() ^ std::hash<std::string>()(kind.name));
  const int count = std::getenv("MOXIE_TEST_ALL") ? 10 : 1;
  for (int i = 0; i < count; ++i) {
    const bool packed = kind.weights == OperandFormat::Mxfp4;
    const int64_t sizes[] = {8, 24, 72, 136, 264}, packed_sizes[] = {32, 64, 160, 288}, widths[] = {8, 24, 40, 72},
                  packed_widths[] = {32, 64}, experts[] = {1, 2, 3, 8, 20};
    const int ranks[] = {1, 2, 3, 4, 8};
    ExpertLayerDescription d;
    d.ranks = RankDescription{.ranks = i == 0 ? 2 : random.of(ranks), .format = kind.format};
    d.ranks->results = kind.results;
    d.experts = random.of(experts);
    const int64_t places = d.ranks->ranks * d.experts;
    d.all_experts = random.one_in(2) ? std::optional(random.between(1, places)) : std::nullopt;
    const int64_t all = d.all_experts.value_or(places);
    d.top_k = int(random.between(1, random.one_in(3) ? 16 : 4));
    d.hidden = packed || kind.format == RowFormat::Mxfp8 ? random.of(packed_sizes) : random.of(sizes);
    d.width = packed ? random.of(packed_widths) : random.of(widths);
    d.weights = kind.weights, d.activation = kind.activation, d.gate = kind.gate;
    d.up_bias = kind.biases, d.down_bias = kind.biases, d.residual = kind.residual;
    d.out = kind.out, d.id_type = kind.id_type;
    d.max_tokens = random.one_in(3) ? 40 : 9;
    d.expected_tokens = random.one_in(3) ? 2000 : 4;
    if (kind.format == RowFormat::Bf16 && random.one_in(2)) d.permute = random.one_in(2);
    // As many rows as all pairs together, for tokens that name an expert twice.
    d.ranks->max_rows = d.ranks->ranks * d.max_tokens * d.top_k;
    std::vector<int32_t> table;
    if (random.one_in(2)) {
      for (int64_t e = 0; e < all; ++e) table.push_back(int32_t(random.between(-1, places)));
    }
    RankLayers layers(d, on_one(d.ranks->ranks), table, random.next() % 1000);
    for (const Choice choice : kChoices) {
      set_order(random.of(orders()));
      const int64_t favorite = random.between(0, all - 1);
      const int64_t wild[] = {-1, all, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
      std::vector<int64_t> tokens;
      for (int rank = 0; rank < d.ranks->ranks; ++rank)
        tokens.push_back(random.one_in(4) ? 0 : random.one_in(4) ? d.max_tokens : random.between(1, d.max_tokens));
      RankCall call = call_of(
          tokens, d.top_k,
          [&](int rank) -> int64_t {
            if (choice == Choice::OneExpert) return favorite;
            if (choice == Choice::OneRank) return random.between(0, std::min(d.experts, all) - 1);
            if (choice == Choice::Foreign && random.one_in(2)) return random.of(wild);
            if (choice == Choice::NotOfTheLast && rank + 1 == d.ranks->ranks) return -1;
            return random.between(0, all - 1);
          },
          random.next() % 1000);
      if (random.one_in(3)) {
        for (const int64_t most : tokens)
          call.counts.push_back(random.one_in(2) ? std::optional(int32_t(random.between(-1, most + 1))) : std::nullopt);
      }
      SCOPED_TRACE(fmt::format(
          "{} ranks of {} experts, {} in all, top {}, {} x {}, choice {}, table {}, "
          "MOXIE_TEST_SEED={}",
          d.ranks->ranks, d.experts, all, d.top_k, d.hidden, d.width, int(choice), !table.empty(), run_seed()));
      check_steps(layers, call);
      if (HasFailure()) return;
    }
  }
  set_order("eager");
}
INSTANTIATE_TEST_SUITE_P(Kinds, RankMatrix, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

TEST(Ranks, OneTokenInAll) {
  RankLayers layers(small_layer(4, 2, 3), on_one(4));
  check_steps(layers, call_of({0, 0, 1, 0}, 3, [id = 0](int) mutable { return id += 2; }));
}

// Tokens of several blocks of columns and several choices on each rank. 1016 columns need all warps of a block but not
// all of its threads.
TEST(Ranks, SumsTravelBack) {
  for (const auto& [results, hidden] : {std::pair(ResultFormat::Sums, 1016), std::pair(ResultFormat::Bf16Sums, 264)}) {
    ExpertLayerDescription d = small_layer(2, 4, 5);
    d.hidden = hidden, d.residual = true;
    d.ranks->results = results, d.ranks->format = RowFormat::Fp8;
    RankLayers layers(d, on_one(2));
    RankCall call = call_of({12, 7}, 5, [id = 0](int) mutable { return id++ * 3 % 8; });
    check_steps(layers, call);
    call.counts = {9, std::nullopt};
    check_steps(layers, call);
  }
}

// Blocks of columns in several warps and blocks of threads, the last of them incomplete.
TEST(Ranks, TokensTravelInMxfp8) {
  for (const int ranks : {2, 4}) {
    ExpertLayerDescription d = small_layer(ranks, 3, 4);
    d.hidden = 1120, d.residual = true, d.ranks->format = RowFormat::Mxfp8;
    RankLayers layers(d, on_one(ranks));
    std::vector<int64_t> tokens(size_t(ranks), 12);
    tokens[1] = 3;
    check_steps(layers, call_of(tokens, 4, [id = 0, ranks](int) mutable { return id++ * 5 % (3 * ranks); }));
  }
}

TEST(Ranks, NoTokenAtAll) {
  RankLayers layers(small_layer(2), on_one(2));
  check_steps(layers, call_of({0, 0}, 2, [](int) { return 0; }));
}

TEST(Ranks, AsManyAsThereMayBe) {
  ExpertLayerDescription d = small_layer(kMaxRanks, 1, 4);
  d.hidden = 24, d.width = 8, d.max_tokens = 2;
  RankLayers layers(d, on_one(kMaxRanks));
  Random random(run_seed());
  check_steps(layers, call_of(std::vector<int64_t>(kMaxRanks, 2), 4, [&](int) { return random.between(0, 71); }));
}

// The exchange of numbers has a thread for each place: 1,024 at most, and one at least.
TEST(Ranks, AsManyPlacesAsThereMayBeAndOne) {
  ExpertLayerDescription d = small_layer(2, kMaxRoutedExperts / 2, 4);
  d.hidden = 24, d.width = 8;
  RankLayers most(d, on_one(2));
  check_steps(most, call_of({3, 12}, 4, [id = 0](int) mutable { return kMaxRoutedExperts - 1 - id++ % 40; }));
  d.experts = 1, d.top_k = 1;
  d.ranks->ranks = 1;
  RankLayers one(d, on_one(1));
  check_steps(one, call_of({5}, 1, [](int) { return 0; }));
}

TEST(Ranks, OneExpertInAll) {
  ExpertLayerDescription d = small_layer(2, 3, 1);
  d.all_experts = 1;
  RankLayers layers(d, on_one(2));
  check_steps(layers, call_of({4, 2}, 1, [](int) { return 0; }));
}

// Every token of all ranks goes to all experts of the last, which are as many as a token has choices.
TEST(Ranks, AllTokensToOneRankFit) {
  ExpertLayerDescription d = small_layer(4, 3, 3);
  RankLayers layers(d, on_one(4));
  check_steps(layers, call_of({12, 12, 12, 12}, 3, [id = 0](int) mutable { return 9 + id++ % 3; }));
}

// A sort of several slices.
TEST(Ranks, ManyPairs) {
  ExpertLayerDescription d = small_layer(2, 5, 16);
  d.hidden = 16, d.width = 8, d.max_tokens = 600, d.ranks->max_rows = 2 * 600 * 16;
  RankLayers layers(d, on_one(2));
  Random random(run_seed());
  check_steps(layers, call_of({600, 530}, 16, [&](int) { return random.between(0, 9); }));
}

// Kernels for many rows: with two blocks of accumulators one below the other, and with steps of 64 columns.
TEST(Ranks, ManyRows) {
  const bool hopper = device().info().arch == 90;
  for (const auto& [hidden, tile] : {std::pair(264, "128x160"), std::pair(256, "64x256")}) {
    ExpertLayerDescription d = small_layer(2, 1, 1);
    d.hidden = hidden, d.width = 16, d.max_tokens = 150, d.expected_tokens = 200000;
    RankLayers layers(d, on_one(2));
    EXPECT_THAT(layers.layer(0).plan().down.kernel, HasSubstr(hopper ? tile : ""));
    check_steps(layers, call_of({150, 117}, 1, [](int) { return 1; }));
  }
}

// Whatever lies where the rows of experts say where they belong, none is written beside the windows' rows.
TEST(Ranks, RowsThatBelongNowhereAreLeftOut) {
  const int64_t tokens = 12;
  for (const int64_t expected : {4, 2000}) {
    ExpertLayerDescription d = small_layer(2, 2, 2);
    d.expected_tokens = expected, d.ranks->max_rows = 48, d.ranks->results = ResultFormat::Rows;
    RankLayers layers(d, on_one(2));
    layers.bring(call_of({tokens, tokens}, 2, [id = 0](int) mutable { return id++ % 2; }));
    for (const ops::LayerSteps& steps : {ops::LayerSteps{0, 0}, ops::LayerSteps{1, 1}}) {
      for (int rank = 0; rank < 2; ++rank) layers.run(rank, steps);
    }
    const kernel::WindowLayout at =
        kernel::window_layout({2, 2, tokens, 2, d.hidden, 48, RowFormat::Bf16, ResultFormat::Rows});
    ASSERT_EQ(size_t(at.bytes), layers.layer(0).window_bytes());
    std::vector<kernel::RowPlace> nowhere(48, -1);
    for (size_t i = 0; i < nowhere.size(); ++i) {
      const int64_t none[] = {-1, 2LL << 32, 24, 1LL << 32 | 24, 1LL << 32 | 0xffffffff, 1LL << 62};
      nowhere[i] = none[i % std::size(none)];
    }
    device().upload(static_cast<uint8_t*>(layers.window(0)) + at.origins, nowhere.data(), nowhere.size() * 8);
    // Where tokens are copied in the order of the rows, their records say where the rows are.
    std::vector<int32_t> records(size_t(2 * tokens * kernel::record_words(2)));
    device().download(records.data(), static_cast<uint8_t*>(layers.window(0)) + at.records, records.size() * 4);
    for (size_t i = 0; i < size_t(2 * tokens); ++i) {
      const int32_t none[] = {-1, 48, 0x7fffffff, -0x7fffffff - 1};
      for (size_t j = 0; j < 2; ++j) records[i * size_t(kernel::record_words(2)) + 2 + j] = none[(2 * i + j) % 4];
    }
    device().upload(static_cast<uint8_t*>(layers.window(0)) + at.records, records.data(), records.size() * 4);
    const std::vector<uint8_t> before[] = {window_bytes(layers, 0), window_bytes(layers, 1)};
    for (int rank = 0; rank < 2; ++rank) layers.run(rank, {2, 2});
    for (int rank = 0; rank < 2; ++rank) {
      const std::vector<uint8_t> after = window_bytes(layers, rank);
      EXPECT_TRUE(std::equal(after.begin() + at.counts, after.end(), before[rank].begin() + at.counts)) << rank;
    }
  }
}

// So many tokens that chunks of sums have two of them, and every block several chunks, where one rank has few.
TEST(Ranks, ManySums) {
  ExpertLayerDescription d = small_layer(2, 2, 2);
  d.hidden = 8, d.width = 8, d.max_tokens = 8300, d.ranks->results = ResultFormat::Sums;
  RankLayers layers(d, on_one(2));
  Random random(run_seed());
  check_steps(layers, call_of({5, 8209}, 2, [&](int) { return random.between(0, 3); }));
}

// Layers of other sizes take turns in the same windows, where each finds the other's tokens, records and flags.
TEST(Ranks, LayersShareWindows) {
  ExpertLayerDescription d = small_layer(3, 2, 5);
  d.ranks->results = ResultFormat::Sums;
  RankLayers layers(d, on_one(3));
  d.top_k = 2, d.experts = 4, d.hidden = 48, d.ranks->results = ResultFormat::Bf16Sums;
  RankLayers others(d, on_one(3));
  others.share_windows(layers);
  Random random(run_seed());
  for (int i = 0; i < 3; ++i) {
    const auto tokens = [&] { return std::vector<int64_t>{random.between(0, 12), random.between(0, 12), 12}; };
    check_steps(layers, call_of(tokens(), 5, [&](int) { return random.between(-1, 6); }));
    check_steps(others, call_of(tokens(), 2, [&](int) { return random.between(-1, 12); }));
  }
}

TEST(Ranks, ARouterChooses) {
  ExpertLayerDescription d = small_layer(3, 4, 3);
  d.router = RouterDescription{.score = RouterScore::Sigmoid};
  RankLayers layers(d, on_one(3));
  check_steps(layers, call_of({5, 0, 12}, 3, [](int) { return 0; }));
}

TEST(Ranks, MoreRowsThanFitAreRefusedByAllRanks) {
  ExpertLayerDescription d = small_layer(3, 2, 2);
  d.ranks->max_rows = 20;
  RankLayers rows(d, on_one(3));
  d.ranks->results = ResultFormat::Sums;
  RankLayers sums(d, on_one(3));
  // 21 rows for rank 1, of which 20 are rank 0's and one is rank 2's.
  RankCall call = call_of({10, 3, 2}, 2, [](int rank) { return rank == 0 ? 2 : 0; });
  call.ids[2][3] = 3;
  call.counts = {std::nullopt, 2, std::nullopt};
  for (int i = 0; i < 4; ++i) {
    const int round = i / 2;
    RankLayers& layers = i % 2 == 0 ? rows : sums;
    layers.bring(call);
    layers.run_in_steps();
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(layers.is_nan(rank));
      const auto check = [&] { layers.layer(rank).check_ranks(layers.window(rank)); };
      EXPECT_EQ(refusal(check, ErrorCode::Peer),
                fmt::format("the experts of rank 1 would get 21 rows in call {}, but max_rows is 20", 2 * round + 1));
      EXPECT_EQ(refusal(check, ErrorCode::Peer), "nothing") << "said twice";
    }
    RankCall fits = call;
    fits.ids[2][3] = 0;
    check_steps(layers, fits);
  }
}

// Other ranks may write into a window, so that nothing in it may lead the host astray.
TEST(Ranks, AMeetingThatThereIsNotHasAName) {
  RankLayers layers(small_layer(2), on_one(2));
  kernel::RankStatus status;
  status.failure = kernel::RankFailure::Late, status.call = 9, status.late[0] = 2;
  for (const int meeting : {3, 7, -1}) {
    status.meeting = kernel::Meeting(meeting);
    device().upload(layers.window(0), &status, sizeof status);
    EXPECT_EQ(refusal([&] { layers.layer(0).check_ranks(layers.window(0)); }, ErrorCode::Peer),
              "rank 1 sent no results in call 9 within 30 seconds of rank 0's wait");
  }
}

// Of rows and sums what keeps a step waiting for less time: with two ranks sums from four choices on. Where the second
// product is wide, rows travel behind it.
TEST(Ranks, RowsOrSumsTravelByWhatIsLess) {
  int64_t width = 40;
  const auto bytes = [&](int ranks, int top_k, std::optional<ResultFormat> results) {
    ExpertLayerDescription d = small_layer(ranks, 12, top_k);
    d.width = width, d.hidden = 80;  // so that windows for rows and for sums have other sizes
    d.ranks->results = results;
    return ExpertLayer(device(), d).window_bytes();
  };
  constexpr struct { int ranks, most_rows, width = 40; } kCases[] = {{1, 16}, {2, 3}, {4, 5}, {8, 11}, {2, 6, 512}};
  for (const auto& [ranks, most_rows, of] : kCases) {
    width = of;
    for (const int top_k : {1, most_rows, most_rows + 1}) {
      if (top_k > 16) continue;
      SCOPED_TRACE(fmt::format("{} ranks, top {}", ranks, top_k));
      const size_t rows = bytes(ranks, top_k, ResultFormat::Rows), sums = bytes(ranks, top_k, ResultFormat::Sums);
      ASSERT_NE(rows, sums);
      EXPECT_EQ(bytes(ranks, top_k, std::nullopt), top_k <= most_rows ? rows : sums);
    }
  }
}

// Rows that travel lie in the window.
TEST(Ranks, OnlyWhereSumsTravelRowsLieInTheWorkspace) {
  const auto bytes = [](ResultFormat results) {
    ExpertLayerDescription d = small_layer(2);
    d.ranks->results = results;
    return ExpertLayer(device(), d).workspace_bytes();
  };
  // 48 rows of 72 elements of bf16.
  EXPECT_EQ(bytes(ResultFormat::Sums) - bytes(ResultFormat::Rows), (48 * 72 * 2 + 255) / 256 * 256u);
}

// Rank 1 does not come to a meeting, which the others wait for no longer than they were told.
TEST(Ranks, WhoDoesNotComeIsNamed) {
  constexpr const char* kSent[] = {"numbers of rows", "tokens", "results"};
  ExpertLayerDescription d = small_layer(3);
  d.ranks->time_limit = 2e-5;
  for (int i = 0; i < 6; ++i) {
    const int meeting = i / 2;
    d.ranks->results = i % 2 == 0 ? ResultFormat::Rows : ResultFormat::Sums;
    SCOPED_TRACE(fmt::format("{}, meeting {}", to_string(*d.ranks->results), meeting));
    RankLayers layers(d, on_one(3));
    const RankCall call = call_of({4, 5, 6}, 2, [id = 0](int) mutable { return id++ % 9; });
    check_steps(layers, call);
    layers.bring(call);
    for (int step = 0; step < 4; ++step) {
      for (int rank = 0; rank < 3; ++rank) {
        if (rank != 1 || step < meeting) layers.run(rank, {step, step});
      }
    }
    device().synchronize();
    const std::vector<uint8_t> window_of_1 = window_bytes(layers, 1);
    for (const int rank : {0, 2}) {
      const auto check = [&] { layers.layer(rank).check_ranks(layers.window(rank)); };
      const std::string sentence =
          fmt::format("rank 1 sent no {} in call 2 within 2e-05 seconds of rank {}'s wait", kSent[meeting], rank);
      EXPECT_EQ(refusal(check, ErrorCode::Peer), sentence);
      EXPECT_TRUE(layers.is_nan(rank));
      // Later calls end at once, too, and the failure stays.
      layers.run(rank);
      device().synchronize();
      EXPECT_EQ(refusal(check, ErrorCode::Peer), sentence);
      EXPECT_TRUE(layers.is_nan(rank));
    }
    EXPECT_EQ(window_bytes(layers, 1), window_of_1) << "a call after a failure has touched another rank";
    layers.prepare();
    check_steps(layers, call);
  }
}

TEST(Ranks, AllThatDoNotComeAreNamed) {
  ExpertLayerDescription d = small_layer(40, 1, 1);
  d.hidden = 8, d.width = 8, d.ranks->time_limit = 1e-5;
  RankLayers layers(d, on_one(40));
  layers.bring(call_of(std::vector<int64_t>(40, 1), 1, [](int rank) { return rank; }));
  for (int rank = 0; rank < 40; ++rank) {
    if (rank != 3 && rank != 31 && rank != 32 && rank != 39) layers.run(rank, {0, 0});
  }
  layers.run(5, {1, 3});
  EXPECT_EQ(refusal([&] { layers.layer(5).check_ranks(layers.window(5)); }, ErrorCode::Peer),
            "ranks 3, 31, 32, 39 sent no numbers of rows in call 1 within 1e-05 seconds of rank 5's wait");
}

TEST(Ranks, AllWhoseSumsDoNotComeAreNamed) {
  ExpertLayerDescription d = small_layer(40, 1, 1);
  d.hidden = 8, d.width = 8, d.ranks->time_limit = 1e-5, d.ranks->results = ResultFormat::Sums;
  RankLayers layers(d, on_one(40));
  layers.bring(call_of(std::vector<int64_t>(40, 1), 1, [](int rank) { return rank; }));
  for (int step = 0; step < 3; ++step) {
    for (int rank = 0; rank < 40; ++rank) {
      if (step < 2 || (rank != 3 && rank != 31 && rank != 32 && rank != 39)) layers.run(rank, {step, step});
    }
  }
  layers.run(5, {3, 3});
  EXPECT_EQ(refusal([&] { layers.layer(5).check_ranks(layers.window(5)); }, ErrorCode::Peer),
            "ranks 3, 31, 32, 39 sent no results in call 1 within 1e-05 seconds of rank 5's wait");
  EXPECT_TRUE(layers.is_nan(5));
}

// A rank that computes something else is found before its numbers are used.
TEST(Ranks, DifferentLayersAreFound) {
  RankLayers layers(small_layer(2), on_one(2));
  layers.bring(call_of({4, 4}, 2, [id = 0](int) mutable { return id++ % 6; }));
  ExpertLayerDescription d = small_layer(2);
  d.ranks->rank = 1, d.all_experts = 5;
  const ExpertLayer other(device(), d);
  const Workspace workspace(device(), other.workspace_bytes());
  ExpertLayerTensors t = layers.tensors(1);
  ops::run_steps(other, t, workspace, {}, {0, 0});
  layers.run(0);
  EXPECT_EQ(refusal([&] { layers.layer(0).check_ranks(layers.window(0)); }, ErrorCode::Peer),
            "rank 1 and rank 0 describe different layers: all but rank and time_limit must be the same");
  EXPECT_TRUE(layers.is_nan(0));
}

// Small numbers of which one is larger and the other smaller by as much give no equal signatures.
TEST(Ranks, LayersThatDifferHaveOtherSignatures) {
  std::set<uint32_t> signatures;
  ExpertLayerDescription d = small_layer(2);
  d.ranks->max_rows = 4;
  for (d.hidden = 8; d.hidden <= 128; d.hidden += 8) {
    for (d.max_tokens = 2; d.max_tokens <= 17; ++d.max_tokens)
      signatures.insert(ops::Ranks(device(), d).params().signature);
  }
  EXPECT_EQ(signatures.size(), size_t(16 * 16));
  signatures.clear();
  for (const int64_t hidden : {8, 8 + (1 << 8), 8 + (1 << 16)}) {
    d.hidden = hidden;
    signatures.insert(ops::Ranks(device(), d).params().signature);
  }
  EXPECT_EQ(signatures.size(), 3u) << "of numbers that differ in the second or the third byte";
}

struct Wrong {
  const char* name;
  std::function<void(ExpertLayerDescription&)> change;
  const char* says;
};
const Wrong kWrong[] = {
    {"NoRanks", [](auto& d) { d.ranks->ranks = 0; }, "ranks.ranks is 0, but must be 1 to 72"},
    {"ManyRanks", [](auto& d) { d.ranks->ranks = 73; }, "ranks.ranks is 73, but must be 1 to 72"},
    {"NegativeRank", [](auto& d) { d.ranks->rank = -1; }, "ranks.rank is -1, but must be 0 to 1"},
    {"RankAboveAll", [](auto& d) { d.ranks->rank = 2; }, "ranks.rank is 2, but must be 0 to 1"},
    {"Format", [](auto& d) { d.ranks->format = RowFormat(7); }, "ranks.format is 7, but only 0 to 2 have a meaning"},
    {"Results", [](auto& d) { d.ranks->results = ResultFormat(3); },
     "ranks.results is 3, but only 0 to 2 have a meaning"},
    {"ManyExperts", [](auto& d) { d.experts = 513; },
     "experts is 513 on each of 2 ranks, but all of them together may have 1024 at most"},
    {"FirstExpert", [](auto& d) { d.first_expert = 3; }, "first_expert is 3, but with ranks must be 0"},
    {"AllExperts", [](auto& d) { d.all_experts = 7; }, "all_experts is 7, but must be 1 to 6, what the ranks have"},
    {"NoExperts", [](auto& d) { d.all_experts = 0; }, "all_experts is 0, but must be 1 to 6, what the ranks have"},
    {"NoTokens", [](auto& d) { d.max_tokens = 0; }, "max_tokens is 0, but with ranks must be at least 1"},
    {"Activations", [](auto& d) { d.hidden = d.width = 64, d.activations = d.weights = OperandFormat::Mxfp4; },
     "activations is mxfp4, but with ranks must be bf16"},
    {"Permute", [](auto& d) { d.ranks->format = RowFormat::Fp8, d.permute = false; },
     "permute is false, but tokens that travel in fp8 are copied in the order of the sort"},
    {"PermuteMxfp8", [](auto& d) { d.hidden = 64, d.ranks->format = RowFormat::Mxfp8, d.permute = false; },
     "permute is false, but tokens that travel in mxfp8 are copied in the order of the sort"},
    {"HiddenMxfp8", [](auto& d) { d.ranks->format = RowFormat::Mxfp8; },
     "hidden is 72, but must be a multiple of 32 where tokens travel in mxfp8"},
    {"NoRows", [](auto& d) { d.ranks->max_rows = 0; }, "ranks.max_rows is 0, but must be 1 to 48, all pairs"},
    {"ManyRows", [](auto& d) { d.ranks->max_rows = 49; }, "ranks.max_rows is 49, but must be 1 to 48, all pairs"},
    {"NoTime", [](auto& d) { d.ranks->time_limit = 0; }, "ranks.time_limit is 0, but must be above 0 and at most 3600"},
    {"LongTime", [](auto& d) { d.ranks->time_limit = 3601; }, "ranks.time_limit is 3601, but must be above 0"},
    {"TimeIsNoNumber", [](auto& d) { d.ranks->time_limit = std::numeric_limits<double>::quiet_NaN(); },
     "ranks.time_limit is nan, but must be above 0"},
};

TEST(Ranks, WrongDescriptionsAreRefused) {
  for (const Wrong& wrong : kWrong) {
    SCOPED_TRACE(wrong.name);
    ExpertLayerDescription d = small_layer(2);
    wrong.change(d);
    EXPECT_THAT(refusal([&] { ExpertLayer(device(), d); }, ErrorCode::InvalidArgument), HasSubstr(wrong.says));
  }
  ExpertLayerDescription d = small_layer(2);
  d.ranks->time_limit = 3600;
  EXPECT_EQ(refusal([&] { ExpertLayer(device(), d); }, ErrorCode::InvalidArgument), "nothing");
}

TEST(Ranks, WrongCallsAreRefused) {
  RankLayers layers(small_layer(2), on_one(2));
  layers.bring(call_of({4, 0}, 2, [](int) { return 0; }));
  const Workspace workspace(device(), layers.layer(0).workspace_bytes());
  const auto says = [&](int rank, const std::function<void(ExpertLayerTensors&)>& change) {
    ExpertLayerTensors t = layers.tensors(rank);
    change(t);
    return refusal([&] { layers.layer(rank).run(t, workspace); }, ErrorCode::InvalidArgument);
  };
  void* windows[2] = {layers.window(0), layers.window(1)};
  const auto with = [&](void* first, void* second) {
    windows[0] = first, windows[1] = second;
    return [&](ExpertLayerTensors& t) { t.windows = windows; };
  };
  uint8_t* const own = static_cast<uint8_t*>(layers.window(0));
  EXPECT_EQ(says(0, [](auto& t) { t.windows = nullptr; }), "windows is null, but must point to 2 addresses");
  EXPECT_THAT(says(0, with(nullptr, layers.window(1))), HasSubstr("windows[rank] is null"));
  EXPECT_THAT(says(0, with(own, nullptr)), HasSubstr("the window of another rank is null"));
  EXPECT_THAT(says(0, with(own + 16, layers.window(1))), HasSubstr("windows[rank]"));
  EXPECT_THAT(says(0, with(own, own + 256)), HasSubstr("windows[rank] overlaps the window of another rank"));
  EXPECT_THAT(says(0, [&](auto& t) { t.out.data = own + 4096; }), HasSubstr("overlaps"));
  // Overlaps are looked for before a stray residual, which so shows that a call has none.
  constexpr const char* kNone = "residual is given, but the description has none";
  void* const three[] = {own, layers.window(1), own};  // of which two are asked for
  EXPECT_EQ(says(0, [&](auto& t) { t.windows = three, t.residual.data = own; }), kNone);
  const Buffer both(4 * 72 * 2 + 32);  // the output and the places of six experts
  uint8_t* const begin = both.get<uint8_t>();
  const auto place_at = [&](size_t places, size_t out) {
    return says(0, [&](auto& t) {
      t.places = reinterpret_cast<const int32_t*>(begin + places), t.out = {begin + out}, t.residual.data = own;
    });
  };
  EXPECT_EQ(place_at(8, 32), kNone);
  EXPECT_EQ(place_at(12, 32), "out overlaps places in memory");
  // A rank without tokens multiplies what others send.
  EXPECT_THAT(says(1, [](auto& t) { t.up.data = nullptr; }), HasSubstr("up is null"));
  EXPECT_THAT(says(1, [](auto& t) { t.windows = nullptr; }), HasSubstr("windows is null"));
  EXPECT_THAT(refusal([&] { layers.layer(0).prepare_window(nullptr); }, ErrorCode::InvalidArgument),
              HasSubstr("window is null"));
  EXPECT_THAT(refusal([&] { layers.layer(0).check_ranks(nullptr); }, ErrorCode::InvalidArgument),
              HasSubstr("window is null"));

  // Where a rank has no tokens, no logits are read, and they may lie where the window begins.
  ExpertLayerDescription d = small_layer(2);
  d.router = RouterDescription{};
  RankLayers routed(d, on_one(2));
  routed.bring(call_of({4, 0}, 2, [](int) { return 0; }));
  ExpertLayerTensors of_none = routed.tensors(1);
  of_none.logits = routed.window(1), of_none.residual.data = own;
  const Workspace of_routed(device(), routed.layer(1).workspace_bytes());
  EXPECT_EQ(refusal([&] { routed.layer(1).run(of_none, of_routed); }, ErrorCode::InvalidArgument),
            "residual is given, but the description has none");

  d = small_layer(2);
  d.ranks.reset();
  const ExpertLayer alone(device(), d);
  EXPECT_EQ(alone.window_bytes(), 0u);
  ExpertLayerTensors t = layers.tensors(0);
  t.places = nullptr;
  EXPECT_EQ(refusal([&] { alone.run(t, workspace); }, ErrorCode::InvalidArgument),
            "windows is given, but the description has no ranks");
  EXPECT_EQ(refusal([&] { alone.prepare_window(layers.window(0)); }, ErrorCode::InvalidArgument),
            "the description has no ranks, and so the layer no window");
}

}  // namespace
}  // namespace moxie::test
