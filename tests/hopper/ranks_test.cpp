// SPDX-License-Identifier: Apache-2.0
// Expert layers over ranks, beside the same layer on one rank: to the last bit. Sizes and data are drawn anew in every
// run. All ranks are on one device here, which takes each step for all of them in turn; ranks with devices of their own
// are in tests/ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

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

std::string refusal(const std::function<void()>& function, ErrorCode code) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "nothing";
}

TEST(Ranks, TwoComputeWhatOneDoes) {
  RankLayers layers(small_layer(2), on_one(2));
  Random random(run_seed());
  for (const char* order : orders()) {
    SCOPED_TRACE(order);
    set_order(order);
    for (int i = 0; i < 3; ++i) {
      layers.bring(call_of({7, 12}, 2, [&](int) { return random.between(-1, 6); }, random.next() % 1000));
      layers.run_in_steps();
      EXPECT_EQ(layers.difference(), "");
      layers.check_all();
    }
  }
  set_order("eager");
}

}  // namespace
}  // namespace moxie::test
