// SPDX-License-Identifier: Apache-2.0
// Expert layers over ranks that have a device each and run at the same time, in all orders: beside the same layer on
// one rank, to the last bit. tests/hopper/ranks_test.cpp has every kind of layer, step by step.
#include <cuda.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>

#include "moxie/window.h"
#include "tests/sim/driver.h"
#include "tests/support/random.h"
#include "tests/support/rank_layers.h"

namespace moxie::test {
namespace {

using sim_test::symbol;  // for CU

// Before anything asks for a device. A multiprocessor each, so that a block that combines sums has several chunks.
const bool kHasDevices = setenv("MOXIE_SIM_DEVICES", "9", 1) == 0 && setenv("MOXIE_SIM_SMS", "1", 1) == 0;

ExpertLayerDescription small_layer(int ranks, int64_t experts, int top_k) {
  ExpertLayerDescription d;
  d.experts = experts, d.top_k = top_k;
  d.hidden = 136, d.width = 24;
  d.activation = Activation::Relu;
  d.max_tokens = 12, d.expected_tokens = 8;
  d.ranks = RankDescription{.ranks = ranks};
  d.ranks->max_rows = ranks * d.max_tokens * top_k;
  return d;
}

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

std::string refusal(const RankLayers& layers, int rank) {
  try {
    layers.layer(rank).check_ranks(layers.window(rank));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Peer) << error.what();
    return error.what();
  }
  return "nothing";
}

constexpr const char* kOrders[] = {"eager", "lazy", "random:1", "random:2"};

struct Kind {
  const char* name;
  int ranks;
  int64_t experts;
  int top_k;
  RowFormat format;
  ResultFormat results;
  int64_t hidden = 136;
};
// With 2,400 columns send_few sends the tokens of a rank that has six or fewer, with 16 choices those of one that has
// eight or fewer. Dispatch sends those of the others. Nine ranks may have more few pairs than send_few has threads.
const Kind kKinds[] = {
    {"Two", 2, 3, 2, RowFormat::Bf16, ResultFormat::Rows, 2400},
    {"TwoSums", 2, 4, 8, RowFormat::Bf16, ResultFormat::Sums},
    {"Four", 4, 2, 3, RowFormat::Fp8, ResultFormat::Rows},
    {"FourSums", 4, 5, 16, RowFormat::Fp8, ResultFormat::Bf16Sums},
    {"FourMxfp8", 4, 3, 5, RowFormat::Mxfp8, ResultFormat::Sums, 2400},
    {"Nine", 9, 1, 2, RowFormat::Bf16, ResultFormat::Rows},
    {"AllPlaces", 2, kMaxRoutedExperts / 2, 3, RowFormat::Bf16, ResultFormat::Rows},
};
void PrintTo(const Kind& kind, std::ostream* stream) { *stream << kind.name; }

class RanksAtOnce : public ::testing::TestWithParam<Kind> {};

// Calls whose kernels overlap with those of calls before and behind, as far as the ranks let each other.
TEST_P(RanksAtOnce, ComputeWhatOneDoes) {
  const Kind& kind = GetParam();
  const int ranks = kind.ranks;
  ExpertLayerDescription d = small_layer(ranks, kind.experts, kind.top_k);
  d.hidden = kind.hidden;
  d.ranks->format = kind.format, d.ranks->results = kind.results;
  if (kind.results != ResultFormat::Rows) d.id_type = IdType::Int64;
  Random random(run_seed() ^ std::hash<std::string>()(kind.name));
  const int64_t all = ranks * kind.experts;
  std::vector<int32_t> table;
  for (int64_t e = 0; e < all; ++e) table.push_back(int32_t(random.between(-1, all)));
  set_order("eager");
  RankLayers layers(d, peer_devices(ranks), table, random.next() % 1000);
  // Another layer in the same windows, whose tokens and places are others.
  ExpertLayerDescription smaller = d;
  smaller.hidden = kind.format == RowFormat::Mxfp8 ? 32 : 40;
  smaller.residual = true, smaller.permute = kind.format != RowFormat::Bf16;
  RankLayers others(smaller, peer_devices(ranks), {}, 7);
  others.share_windows(layers);
  const std::string drawn = fmt::format("random:{}", random.next() % 1000);
  for (const std::string& order : {std::string("eager"), std::string("lazy"), drawn}) {
    SCOPED_TRACE(fmt::format("{}, MOXIE_TEST_SEED={}", order, run_seed()));
    set_order(order.c_str());
    const auto draw = [&](RankLayers& of, int64_t skew) {
      std::vector<int64_t> tokens;
      for (int rank = 0; rank < ranks; ++rank) tokens.push_back(random.one_in(4) ? 0 : random.between(1, 12));
      RankCall call = call_of(
          tokens, kind.top_k,
          [&](int) -> int64_t {
            if (skew != 0) return random.between(0, kind.experts - 1);
            return random.one_in(8) ? std::numeric_limits<int32_t>::min() : random.between(-1, all);
          },
          random.next() % 1000);
      for (const int64_t most : tokens)
        call.counts.push_back(random.one_in(3) ? std::optional(int32_t(random.between(-1, most + 1))) : std::nullopt);
      of.bring(call);
    };
    draw(layers, 0), draw(others, 1);
    // Behind a call of the same layer tokens may come earlier.
    int call = 0;
    for (const RankLayers* of : {&layers, &others, &others}) {
      // The ranks' hosts are not in step.
      for (int rank = 0; rank < ranks; ++rank) of->run((rank + call) % ranks);
      ++call;
    }
    for (const Device& each : peer_devices(ranks)) each.synchronize();
    set_order("eager");
    EXPECT_EQ(layers.difference(), "");
    EXPECT_EQ(others.difference(), "");
    layers.check_all();
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, RanksAtOnce, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

TEST(Ranks, HaveAHostThreadEach) {
  set_order("eager");
  RankLayers layers(small_layer(3, 2, 2), peer_devices(3));
  layers.bring(call_of({12, 1, 5}, 2, [id = 0](int) mutable { return id++ % 6; }));
  std::vector<std::thread> hosts;
  for (int rank = 0; rank < 3; ++rank) {
    hosts.emplace_back([&, rank] {
      layers.run(rank);
      layers.layer(rank).device().synchronize();
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(layers.difference(), "");
}

// The sums of more columns than the threads of a device's only multiprocessor have at once.
TEST(Ranks, SumsMayBeWide) {
  set_order("eager");
  ExpertLayerDescription d = small_layer(2, 1, 1);
  d.hidden = 7208, d.width = 8;
  d.ranks->results = ResultFormat::Sums;
  RankLayers layers(d, peer_devices(2));
  layers.bring(call_of({1, 2}, 1, [id = 0](int) mutable { return id++ % 2; }));
  for (int rank = 0; rank < 2; ++rank) layers.run(rank);
  for (int rank = 0; rank < 2; ++rank) layers.layer(rank).device().synchronize();
  EXPECT_EQ(layers.difference(), "");
}

// A graph of each rank's call serves every routing.
TEST(Ranks, GraphsAreReplayed) {
  set_order("eager");
  ExpertLayerDescription d = small_layer(2, 3, 4);
  d.ranks->results = ResultFormat::Sums;
  RankLayers layers(d, peer_devices(2));
  Random random(run_seed());
  const auto draw = [&] {
    return call_of(
        {12, 7}, 4, [&](int) { return random.between(-1, 6); }, random.next() % 1000);
  };
  layers.bring(draw());
  std::vector<CUgraphExec> graphs(2);
  std::vector<CUcontext> contexts(2);
  std::vector<CUstream> streams(2);
  for (int rank = 0; rank < 2; ++rank) {
    const auto i = size_t(rank);
    ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&contexts[i], rank), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSetCurrent)(contexts[i]), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamCreate)(&streams[i], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamBeginCapture)(streams[i], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    layers.run(rank, {}, streams[i]);
    CUgraph graph = nullptr;
    ASSERT_EQ(CU(cuStreamEndCapture)(streams[i], &graph), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuGraphInstantiate)(&graphs[i], graph, 0), CUDA_SUCCESS);
  }
  for (const char* order : kOrders) {
    SCOPED_TRACE(order);
    layers.bring(draw());
    set_order(order);
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(CU(cuCtxSetCurrent)(contexts[size_t(rank)]), CUDA_SUCCESS);
      ASSERT_EQ(CU(cuGraphLaunch)(graphs[size_t(rank)], streams[size_t(rank)]), CUDA_SUCCESS);
    }
    for (int rank = 0; rank < 2; ++rank) layers.layer(rank).device().synchronize(streams[size_t(rank)]);
    set_order("eager");
    EXPECT_EQ(layers.difference(), "");
  }
  layers.check_all();
  ASSERT_EQ(CU(cuCtxSetCurrent)(nullptr), CUDA_SUCCESS);
}

// The residual of each rank is written by another stream while its tokens are on their way, as shared experts would.
// Launched and from a graph.
void make_residuals_meanwhile(int64_t hidden) {
  constexpr int kRanks = 2;
  constexpr LayerPart kParts[] = {LayerPart::Send, LayerPart::Multiply, LayerPart::Sum};
  set_order("eager");
  ExpertLayerDescription d = small_layer(kRanks, 3, 4);
  d.hidden = hidden, d.residual = true;
  RankLayers layers(d, peer_devices(kRanks));
  Random random(run_seed());
  const size_t bytes = size_t(d.max_tokens * d.hidden) * 2;
  struct Rank {
    CUcontext context = nullptr;
    CUstream stream = nullptr, side = nullptr;
    CUevent fork = nullptr, join = nullptr;
    CUgraphExec graph = nullptr;
    Workspace residual;
  };
  std::vector<Rank> ranks(kRanks);
  const auto launch = [&](int rank) {
    const Rank& r = ranks[size_t(rank)];
    ASSERT_EQ(CU(cuEventRecord)(r.fork, r.stream), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamWaitEvent)(r.side, r.fork, 0), CUDA_SUCCESS);
    for (const LayerPart part : kParts) {
      if (part == LayerPart::Sum) {
        ASSERT_EQ(CU(cuStreamWaitEvent)(r.stream, r.join, 0), CUDA_SUCCESS);
      }
      layers.run_part(rank, part, r.stream);
      if (part != LayerPart::Send) continue;
      const auto to = reinterpret_cast<CUdeviceptr>(layers.tensors(rank).residual.data);
      ASSERT_EQ(CU(cuMemcpyDtoDAsync)(to, reinterpret_cast<CUdeviceptr>(r.residual.data()), bytes, r.side),
                CUDA_SUCCESS);
      ASSERT_EQ(CU(cuEventRecord)(r.join, r.side), CUDA_SUCCESS);
    }
  };
  // Each token with a residual, since those of a rank have one size.
  const auto bring = [&] {
    layers.bring(call_of(
        std::vector<int64_t>(kRanks, d.max_tokens), 4, [&](int) { return random.between(-1, 6); },
        random.next() % 1000));
    std::vector<uint8_t> residual(bytes);
    for (int rank = 0; rank < kRanks; ++rank) {
      const Device& device = layers.layer(rank).device();
      auto* const data = const_cast<void*>(layers.tensors(rank).residual.data);
      device.download(residual.data(), data, bytes);
      Workspace& kept = ranks[size_t(rank)].residual;
      if (!kept.data()) kept = Workspace(device, bytes);
      device.upload(kept.data(), residual.data(), bytes);
      device.fill(data, 0xff, bytes);
    }
  };
  bring();
  for (int rank = 0; rank < kRanks; ++rank) {
    Rank& r = ranks[size_t(rank)];
    ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&r.context, rank), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuCtxSetCurrent)(r.context), CUDA_SUCCESS);
    for (CUstream* stream : {&r.stream, &r.side})
      ASSERT_EQ(CU(cuStreamCreate)(stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    for (CUevent* event : {&r.fork, &r.join})
      ASSERT_EQ(CU(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuStreamBeginCapture)(r.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
    launch(rank);
    CUgraph graph = nullptr;
    ASSERT_EQ(CU(cuStreamEndCapture)(r.stream, &graph), CUDA_SUCCESS);
    ASSERT_EQ(CU(cuGraphInstantiate)(&r.graph, graph, 0), CUDA_SUCCESS);
  }
  for (const char* order : kOrders) {
    for (const bool replays : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, replays {}, MOXIE_TEST_SEED={}", order, replays, run_seed()));
      bring();
      set_order(order);
      for (int rank = 0; rank < kRanks; ++rank) {
        const Rank& r = ranks[size_t(rank)];
        ASSERT_EQ(CU(cuCtxSetCurrent)(r.context), CUDA_SUCCESS);
        if (replays) {
          ASSERT_EQ(CU(cuGraphLaunch)(r.graph, r.stream), CUDA_SUCCESS);
        } else {
          launch(rank);
        }
      }
      for (int rank = 0; rank < kRanks; ++rank) layers.layer(rank).device().synchronize(ranks[size_t(rank)].stream);
      set_order("eager");
      EXPECT_EQ(layers.difference(), "");
    }
  }
  layers.check_all();
  ASSERT_EQ(CU(cuCtxSetCurrent)(nullptr), CUDA_SUCCESS);
}

TEST(Ranks, ResidualsAreMadeMeanwhile) { make_residuals_meanwhile(136); }
TEST(Ranks, ResidualsOfManyTokensAreMadeMeanwhile) { make_residuals_meanwhile(1400); }

kernel::WindowHeader header_of(const RankLayers& layers, int rank) {
  kernel::WindowHeader header;
  layers.layer(rank).device().download(&header, layers.window(rank), sizeof header);
  return header;
}

// Two layers of two ranks in the same windows.
struct WideAndNarrow {
  static ExpertLayerDescription layer(int64_t hidden) {
    ExpertLayerDescription d = small_layer(2, 3, 2);
    d.hidden = hidden;
    return d;
  }
  RankLayers wide{layer(2400), peer_devices(2)}, narrow{layer(40), peer_devices(2)};
  WideAndNarrow() { narrow.share_windows(wide); }
};

// Rank 0 is at the next call, of another layer, while rank 1 has not yet added the rows that came to its window. Where
// these lie the next layer has tokens.
TEST(Ranks, TokensComeEarlyBehindTheSameLayerAlone) {
  set_order("eager");
  WideAndNarrow both;
  RankLayers &wide = both.wide, &narrow = both.narrow;
  const auto tokens_to = [](int64_t first) {
    return call_of({6, 5}, 2, [first, id = int64_t{0}](int) mutable { return first + id++ % 3; });
  };
  wide.bring(tokens_to(3)), narrow.bring(tokens_to(0));
  narrow.run(1, {0, 2});
  narrow.run(0), wide.run(0);
  // Until nothing can go on.
  CUcontext context = nullptr;
  ASSERT_EQ(CU(cuDevicePrimaryCtxRetain)(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuCtxSetCurrent)(context), CUDA_SUCCESS);
  ASSERT_EQ(CU(cuStreamQuery)(nullptr), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(CU(cuCtxSetCurrent)(nullptr), CUDA_SUCCESS);
  // A copy would be in a race with rank 0. Memory of the simulator is memory of this process.
  const auto& header = *static_cast<const kernel::WindowHeader*>(wide.window(1));
  ASSERT_EQ(header.met[size_t(kernel::Meeting::Counts)][0], 2u);
  narrow.run(1, {3, 3}), wide.run(1);
  for (const Device& each : peer_devices(2)) each.synchronize();
  EXPECT_EQ(narrow.difference(), "");
  EXPECT_EQ(wide.difference(), "");
  wide.check_all();
}

// The same with more tokens than send few takes: dispatch sends them while exchange waits for the other rank.
TEST(Ranks, ManyTokensComeEarlyBehindTheSameLayerAlone) {
  set_order("eager");
  WideAndNarrow both;
  RankLayers &wide = both.wide, &narrow = both.narrow;
  const auto tokens_to = [](int64_t first, uint64_t seed) {
    return call_of(
        {8, 7}, 2, [first, id = int64_t{0}](int) mutable { return first + id++ % 3; }, seed);
  };
  const ExpertLayerDescription d = WideAndNarrow::layer(2400);
  const kernel::WindowLayout at = kernel::window_layout(
      {2, d.experts, d.max_tokens, d.top_k, d.hidden, *d.ranks->max_rows, RowFormat::Bf16, ResultFormat::Rows});
  // Those of rank 0 go to rank 1 alone. Memory of the simulator is memory of this process.
  const auto tokens_that_came = [&] {
    peer_devices(2)[0].synchronize();
    const auto& x = wide.tensors(0).x;
    int came = 0;
    for (int64_t token = 0; token < 8; ++token)
      came += std::memcmp(static_cast<const uint8_t*>(wide.window(1)) + at.tokens + token * d.hidden * 2,
                          static_cast<const uint8_t*>(x.data) + token * (x.ld ? x.ld : d.hidden) * 2,
                          size_t(d.hidden) * 2) == 0;
    return came;
  };
  narrow.bring(tokens_to(0, 1));
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    wide.bring(tokens_to(3, seed));
    narrow.run(1, {0, 2}), narrow.run(0);
    wide.run(0, {0, 0});
    EXPECT_EQ(tokens_that_came(), 0);
    EXPECT_EQ(header_of(wide, 0).sends_early, 0u);
    narrow.run(1, {3, 3}), wide.run(1), wide.run(0, {1, 3});
    for (const Device& each : peer_devices(2)) each.synchronize();
    EXPECT_EQ(narrow.difference(), "");
    EXPECT_EQ(wide.difference(), "");

    wide.bring(tokens_to(3, seed + 10));
    EXPECT_EQ(tokens_that_came(), 0);
    wide.run(0, {0, 0});
    EXPECT_EQ(tokens_that_came(), 8);
    EXPECT_EQ(header_of(wide, 0).sends_early, 1u);
    wide.run(1), wide.run(0, {1, 3});
    for (const Device& each : peer_devices(2)) each.synchronize();
    EXPECT_EQ(wide.difference(), "");
    EXPECT_EQ(header_of(wide, 0).sends_early, 0u);
  }
  wide.check_all();
}

// Behind a call of the same layer few tokens come with the numbers, and nobody meets for them.
TEST(Ranks, FewTokensMeetOnce) {
  for (const ResultFormat results : {ResultFormat::Rows, ResultFormat::Sums}) {
    set_order("eager");
    ExpertLayerDescription d = small_layer(3, 2, 2);
    d.ranks->results = results;
    RankLayers layers(d, peer_devices(3));
    RankCall few = call_of({3, 0, 12}, 2, [id = 0](int) mutable { return id++ % 6; });
    few.counts = {2, std::nullopt, 13};
    layers.bring(few);
    for (int call = 1; call <= 3; ++call) {
      layers.run_at_once();
      EXPECT_EQ(layers.difference(), "");
      for (int rank = 0; rank < 3; ++rank) {
        const kernel::WindowHeader header = header_of(layers, rank);
        EXPECT_EQ(header.call, uint32_t(call));
        for (int other = 0; other < 3; ++other) EXPECT_EQ(header.met[size_t(kernel::Meeting::Tokens)][other], 1u);
      }
    }
  }
}

// No rank may be at the next call before all others have read what it has told in this one, which a meeting tells it
// where no results do.
TEST(Ranks, FewTokensThatDoNotFitAreMetFor) {
  set_order("eager");
  ExpertLayerDescription d = small_layer(2, 3, 2);
  d.ranks->max_rows = 8, d.ranks->results = ResultFormat::Sums;
  RankLayers layers(d, peer_devices(2));
  layers.bring(call_of({3, 2}, 2, [](int) { return 1; }));
  for (uint32_t call = 1; call <= 3; ++call) {
    layers.run_at_once();
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(layers.is_nan(rank));
      const kernel::WindowHeader header = header_of(layers, rank);
      EXPECT_EQ(header.outcome, kernel::Outcome::TooManyRows);
      for (int other = 0; other < 2; ++other) EXPECT_EQ(header.met[size_t(kernel::Meeting::Tokens)][other], call);
    }
  }
}

// A rank that ends in the middle of a call, wherever it has come to, is named by all others, which end.
TEST(Ranks, WhoEndsIsNamedByAllOthers) {
  constexpr const char* kSent[] = {"numbers of rows", "tokens", "results"};
  for (const ResultFormat results : {ResultFormat::Rows, ResultFormat::Sums}) {
    set_order("eager");
    ExpertLayerDescription d = small_layer(4, 2, 2);
    d.ranks->time_limit = 1, d.ranks->results = results;
    RankLayers layers(d, peer_devices(4));
    for (int step = -1; step < 2; ++step) {
      SCOPED_TRACE(fmt::format("{}, step {}", to_string(results), step));
      set_order(kOrders[step + 1]);
      layers.bring(call_of({3, 0, 12, 5}, 2, [id = 0](int) mutable { return id++ % 8; }));
      for (const int rank : {0, 1, 2}) layers.run(rank);
      if (step >= 0) layers.run(3, {0, step});
      for (const Device& each : peer_devices(4)) each.synchronize();
      for (const int rank : {0, 1, 2}) {
        EXPECT_EQ(refusal(layers, rank),
                  fmt::format("rank 3 sent no {} in call 1 within 1 seconds of rank {}'s wait", kSent[step + 1], rank));
        EXPECT_TRUE(layers.is_nan(rank));
      }
      layers.prepare();
      layers.run_at_once();
      EXPECT_EQ(layers.difference(), "");
      layers.check_all();
      layers.prepare();
    }
  }
  set_order("eager");
}

}  // namespace
}  // namespace moxie::test
