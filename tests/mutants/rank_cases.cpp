// SPDX-License-Identifier: Apache-2.0
// The kernels of layers over ranks, and what is computed with them: three layers, of which one sends rows back, one
// sums, and one rows of tokens that it copies first, take turns in the windows of three ranks that run at the same
// time.
#include <cstdlib>

#include "cases.h"
#include "device_state.h"
#include "jit/source.h"
#include "moxie/window.h"
#include "tests/support/random.h"
#include "tests/support/rank_layers.h"

namespace moxie::mutants {
namespace {

constexpr int kRanks = 3, kSenders = 2;  // kSenders have tokens

ExpertLayerDescription layer_of(ResultFormat results, bool permutes = true) {
  ExpertLayerDescription d;
  d.experts = 17, d.top_k = 15;                                        // places for more than a warp
  d.hidden = results == ResultFormat::Rows ? 264 : 328, d.width = 16;  // two warps of columns where sums travel
  d.activation = Activation::Relu;
  d.residual = true, d.permute = permutes;
  d.max_tokens = 9, d.expected_tokens = 4;
  d.ranks = RankDescription{.ranks = kRanks, .max_rows = kRanks * 9 * 15, .results = results, .time_limit = 1};
  return d;
}

// The first rank has few tokens, up to eight, or not (send_few.cuh).
test::RankCall draw(uint64_t seed, int64_t tokens_of_first = 9) {
  const ExpertLayerDescription d = layer_of(ResultFormat::Rows);
  test::Random random(seed);
  test::RankCall call;
  call.seed = seed;
  call.tokens = {tokens_of_first, 0, 4};
  for (const int64_t tokens : call.tokens) {
    std::vector<int64_t>& ids = call.ids.emplace_back();
    for (int64_t i = 0; i < tokens * d.top_k; ++i) ids.push_back(random.between(-1, kRanks * d.experts));
  }
  return call;
}

Case over_ranks(const char* name, std::string source) {
  Case c;
  c.name = name;
  c.source = std::move(source);
  c.over_ranks = true;
  return c;
}

// Ranks on one device that take turns, and the first rank's launch of a kernel that waits for no other rank: its first,
// second and so on. `loaded` returns what the library launches of this source.
enum class Turn { First, Second, Third };
template <class Loaded>
Case in_steps(const char* name, std::string source, Loaded loaded, Turn turn, ResultFormat results,
              RowFormat format = RowFormat::Bf16, bool permutes = true) {
  Case c;
  c.name = name;
  c.source = std::move(source);
  c.calls.push_back([=] {
    ExpertLayerDescription d = layer_of(results, permutes);
    d.ranks->format = format;
    // Products without clusters, which a launch by the harness has not.
    d.expected_tokens = 1, d.hidden = format == RowFormat::Mxfp8 ? 160 : 136;
    const std::vector<Device> devices(size_t(kRanks), test::device());
    // Its memory is live no longer than it: what a later case gets there is that case's.
    const auto forget = [](test::RankLayers* layers) {
      for (const auto& [address, bytes] : layers->memory()) test::Buffer::live().erase(address);
      delete layers;
    };
    const std::shared_ptr<test::RankLayers> layers(new test::RankLayers(d, devices), forget);
    layers->bring(draw(1));
    for (const auto& [address, bytes] : layers->memory()) test::Buffer::live()[address] = bytes;
    // Dispatch is launched twice in a call, and the third time behind a call of the same layer.
    const auto calls = [layers, turn](Stream stream) {
      for (int call = 0; call <= int(turn) / 2; ++call) layers->run_in_steps(stream);
    };
    Call call{calls, [layers] { return layers->difference().empty(); }, int(turn) * kSenders,
              loaded(test::device().state()).function};
    const ExpertLayerTensors& t = layers->tensors(0);
    if (turn == Turn::Third) {
      call.ready = {t.x.data, t.topk_ids};
      const kernel::WindowLayout at = kernel::window_layout(
          {kRanks, d.experts, d.max_tokens, d.top_k, d.hidden, *d.ranks->max_rows, format, results});
      for (int rank = 0; rank < kRanks; ++rank)
        call.quiet.emplace_back(static_cast<uint8_t*>(layers->window(rank)) + at.tokens,
                                size_t(kRanks * d.max_tokens * d.hidden * 2));
    }
    if (turn != Turn::First) call.told = {&static_cast<kernel::WindowHeader*>(layers->window(0))->sends_early};
    return call;
  });
  return c;
}

}  // namespace

std::vector<Case> rank_cases(bool on_blackwell) {
  constexpr auto kBf16 = DataType::Bf16;
  using detail::DeviceState;
  const Case few = over_ranks("ranks, send few", jit::send_few_source(IdType::Int32, RowFormat::Bf16));
  const Case rows = over_ranks("ranks, combine rows and meet", jit::combine_ranks_source(kBf16, true));
  const auto dispatch = [](Turn turn, ResultFormat results, bool permutes) {
    return in_steps(
        "ranks, dispatch", jit::dispatch_source(IdType::Int32, RowFormat::Bf16),
        [](DeviceState& s) { return s.dispatch_kernel(IdType::Int32, RowFormat::Bf16); }, turn, results,
        RowFormat::Bf16, permutes);
  };
  Case dispatches = dispatch(Turn::Second, ResultFormat::Sums, true);
  for (const bool permutes : {false, true})
    dispatches.calls.push_back(dispatch(Turn::Second, ResultFormat::Rows, permutes).calls.front());
  dispatches.calls.push_back(dispatch(Turn::Third, ResultFormat::Rows, true).calls.front());
  const auto gather = [](ResultFormat results) {
    return in_steps(
        "ranks, gather", jit::gather_rows_source(RowFormat::Bf16),
        [](DeviceState& s) { return s.gather_rows_kernel(RowFormat::Bf16); }, Turn::First, results);
  };
  Case gathers = gather(ResultFormat::Rows);
  gathers.calls.push_back(gather(ResultFormat::Sums).calls.front());
  const Case sums = over_ranks("ranks, combine sums", jit::combine_sums_source(kBf16, ResultFormat::Sums));
  if (on_blackwell)
    return {over_ranks("ranks, exchange", jit::exchange_source()), over_ranks("ranks, meet", jit::meet_source()), few,
            rows, sums};
  return {
      over_ranks("ranks, exchange", jit::exchange_source()),
      over_ranks("ranks, meet", jit::meet_source()),
      few,
      rows,
      sums,
      dispatches,
      in_steps(
          "ranks, dispatch FP8", jit::dispatch_source(IdType::Int32, RowFormat::Fp8),
          [](DeviceState& s) { return s.dispatch_kernel(IdType::Int32, RowFormat::Fp8); }, Turn::Second,
          ResultFormat::Rows, RowFormat::Fp8),
      in_steps(
          "ranks, dispatch MXFP8", jit::dispatch_source(IdType::Int32, RowFormat::Mxfp8),
          [](DeviceState& s) { return s.dispatch_kernel(IdType::Int32, RowFormat::Mxfp8); }, Turn::Second,
          ResultFormat::Rows, RowFormat::Mxfp8),
      gathers,
      over_ranks("ranks, combine rows", jit::combine_ranks_source(kBf16, false)),
  };
}

std::string run_over_ranks(const char* order) {
  struct Layers {
    std::unique_ptr<test::RankLayers> rows, sums, copied, crowded;
  };
  static Layers& layers = *new Layers;
  if (!layers.rows) {
    // A multiprocessor each, so that blocks that combine sums have several chunks of tokens.
    setenv("MOXIE_SIM_DEVICES", "3", 1), setenv("MOXIE_SIM_SMS", "1", 1);
    test::set_order("eager");
    layers.rows = std::make_unique<test::RankLayers>(layer_of(ResultFormat::Rows, false), test::peer_devices(kRanks));
    layers.copied = std::make_unique<test::RankLayers>(layer_of(ResultFormat::Rows), test::peer_devices(kRanks));
    layers.copied->share_windows(*layers.rows);
    layers.sums = std::make_unique<test::RankLayers>(layer_of(ResultFormat::Sums), test::peer_devices(kRanks));
    ExpertLayerDescription crowded = layer_of(ResultFormat::Rows);
    crowded.ranks->max_rows = 12;
    layers.crowded = std::make_unique<test::RankLayers>(crowded, test::peer_devices(kRanks));
    layers.sums->share_windows(*layers.rows), layers.crowded->share_windows(*layers.rows);
  }
  const uint64_t seed = std::hash<std::string>()(order) % 1000;
  // In all orders but one all ranks have few tokens, of which the device says that the last rank has none.
  const bool all_few = std::string(order) != "eager";
  test::RankCall rows = draw(seed, all_few ? 8 : 9);
  if (all_few) rows.counts = {std::nullopt, std::nullopt, 0};
  layers.rows->bring(rows), layers.sums->bring(draw(seed + 1, 8)), layers.copied->bring(draw(seed + 2));
  test::set_order(order);
  // Each behind a call of the same layer and behind one of the other.
  int call = 0;
  for (const test::RankLayers* of : {layers.rows.get(), layers.rows.get(), layers.sums.get(), layers.sums.get(),
                                     layers.copied.get(), layers.rows.get()}) {
    for (int rank = 0; rank < kRanks; ++rank) of->run((rank + call / 2) % kRanks);
    ++call;
  }
  for (const Device& device : test::peer_devices(kRanks)) device.synchronize();
  test::set_order("eager");
  for (const test::RankLayers* of : {layers.rows.get(), layers.sums.get(), layers.copied.get()}) {
    of->check_all();
    if (const std::string difference = of->difference(); !difference.empty()) return difference;
  }
  // All tokens want experts of the last rank, which has room for few.
  test::RankCall many = draw(seed);
  for (std::vector<int64_t>& ids : many.ids) {
    for (int64_t& id : ids) id = 50 - (id & 1);
  }
  layers.crowded->bring(many);
  test::set_order(order);
  layers.crowded->run_at_once();
  test::set_order("eager");
  for (int rank = 0; rank < kRanks; ++rank) {
    if (!layers.crowded->is_nan(rank)) return "a call whose rows do not fit has results";
    try {
      layers.crowded->layer(rank).check_ranks(layers.crowded->window(rank));
      return "a call whose rows do not fit is no failure";
    } catch (const Error& error) {
      if (std::string(error.what()).find("the experts of rank 2 would get 195 rows") != 0) throw;
    }
  }
  return "";
}

}  // namespace moxie::mutants
