// SPDX-License-Identifier: Apache-2.0
// Times the operations of moxie/routing.h over the layers of three models, each beside a copy of as many bytes in the
// same run, and prints JSON. Medians of graph replays; launches go round memory that L2 does not hold, as far as the
// tokens reach. bench_routing [--most TOKENS]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "bench/timing/buffer.h"
#include "bench/timing/data.h"
#include "bench/timing/gpu_clock.h"
#include "moxie/moxie.h"

namespace moxie {
namespace {

using timing::Buffer;
using timing::Contender;
using timing::GpuClock;

struct Model {
  const char* name;
  int64_t experts;
  int top_k;
  int64_t width;
  RouterScore score;
  int expert_groups, chosen_groups;
};
constexpr Model kModels[] = {
    {"GPT-OSS 20B", 32, 4, 2880, RouterScore::Softmax, 1, 1},
    {"Qwen3-30B-A3B", 128, 8, 2048, RouterScore::Softmax, 1, 1},
    {"DeepSeek-V3", 256, 8, 7168, RouterScore::Sigmoid, 8, 4},
};
constexpr int64_t kTokens[] = {1, 16, 64, 1024, 16384, 131072};
constexpr int64_t kPastL2 = 256 << 20;  // bytes
constexpr int kMostTurns = 32;

// A model's tensors for the most tokens. A call with fewer takes those of its turn.
class Layer {
 public:
  Layer(const Device& device, const Model& model, int64_t most)
      : device_(device),
        model_(model),
        most_(most),
        logits_(device, timing::random_bf16(1, most * model.experts, 4)),
        ids_(device, size_t(most * model.top_k) * 4),
        weights_(device, size_t(most * model.top_k) * 4),
        ends_(device, size_t(kMostTurns * model.experts) * 4),
        order_(device, size_t(most * model.top_k) * 4),
        inverse_(device, size_t(most * model.top_k) * 4),
        x_(device, size_t(most * model.width) * 2),
        rows_(device, size_t(most * model.top_k * model.width) * 2),
        out_(device, size_t(most * model.width) * 2),
        workspace_(device, sort_workspace_bytes(most, model.top_k, model.experts)) {
    device.fill(x_.as(), 0x3e, x_.bytes());
    device.fill(rows_.as(), 0x3e, rows_.bytes());
    choose(most, 0, nullptr);
    device.synchronize();
  }

  void choose(int64_t tokens, int turn, Stream stream) const {
    const int64_t first = first_token(tokens, turn);
    route(device_,
          {.tokens = tokens,
           .experts = model_.experts,
           .top_k = model_.top_k,
           .logits_type = DataType::Bf16,
           .logits = logits_.as<uint16_t>() + first * model_.experts,
           .score = model_.score,
           .expert_groups = model_.expert_groups,
           .chosen_groups = model_.chosen_groups,
           .ids = ids_.as<int32_t>() + first * model_.top_k,
           .weights = weights_.as<float>() + first * model_.top_k},
          {.stream = stream});
  }
  void sort(int64_t tokens, int turn, Stream stream) const {
    const int64_t first = first_token(tokens, turn) * model_.top_k;
    sort_by_expert(device_,
                   {.tokens = tokens,
                    .top_k = model_.top_k,
                    .experts = model_.experts,
                    .ids = ids_.as<int32_t>() + first,
                    .ends = ends_.as<int32_t>() + turn % kMostTurns * model_.experts,
                    .order = order_.as<int32_t>() + first,
                    .inverse = inverse_.as<int32_t>() + first},
                   workspace_, {.stream = stream});
  }
  void copy(int64_t tokens, int turn, Stream stream) const {
    const int64_t first = first_token(tokens, turn), pair = first * model_.top_k;
    permute(device_,
            {.tokens = tokens,
             .top_k = model_.top_k,
             .width = model_.width,
             .row_count = tokens * model_.top_k,
             .x = x_.as<uint16_t>() + first * model_.width,
             .inverse = inverse_.as<int32_t>() + pair,
             .out = rows_.as<uint16_t>() + pair * model_.width},
            {.stream = stream});
  }
  void sum(int64_t tokens, int turn, Stream stream) const {
    const int64_t first = first_token(tokens, turn), pair = first * model_.top_k;
    combine(device_,
            {.tokens = tokens,
             .top_k = model_.top_k,
             .width = model_.width,
             .row_count = tokens * model_.top_k,
             .rows = rows_.as<uint16_t>() + pair * model_.width,
             .inverse = inverse_.as<int32_t>() + pair,
             .weights = weights_.as<float>() + pair,
             .out = out_.as<uint16_t>() + first * model_.width},
            {.stream = stream});
  }

  // Throws where the last sort or sum of turn 0 is wrong: order and inverse undo each other, and the weights of a
  // token, which sum up to 1, leave a constant as it is.
  void check(int64_t tokens) const {
    const auto pairs = size_t(tokens * model_.top_k);
    std::vector<int32_t> order(pairs), inverse(pairs);
    device_.download(order.data(), order_.as(), pairs * 4);
    device_.download(inverse.data(), inverse_.as(), pairs * 4);
    for (size_t pair = 0; pair < pairs; ++pair) {
      const auto row = size_t(inverse[pair]);
      if (row >= pairs || size_t(order[row]) != pair)
        throw Error(ErrorCode::Driver, fmt::format("{}, {} tokens: pair {} is lost", model_.name, tokens, pair));
    }
    std::vector<uint16_t> out(size_t(tokens * model_.width));
    device_.download(out.data(), out_.as(), out.size() * 2);
    for (size_t i = 0; i < out.size(); ++i) {
      if (std::abs(int(out[i]) - 0x3e3e) > 1)
        throw Error(ErrorCode::Driver, fmt::format("{}, {} tokens: out[{}] is wrong", model_.name, tokens, i));
    }
  }

  int turns(int64_t tokens, double bytes) const {
    return int(std::clamp<int64_t>(std::min(int64_t(double(kPastL2) / bytes), most_ / tokens), 1, kMostTurns));
  }

 private:
  int64_t first_token(int64_t tokens, int turn) const { return tokens * (turn % std::max<int64_t>(most_ / tokens, 1)); }

  const Device& device_;
  Model model_;
  int64_t most_;
  Buffer logits_, ids_, weights_, ends_, order_, inverse_, x_, rows_, out_;
  Workspace workspace_;
};

// A copy that reads half of the bytes and writes the other half: the faster of a stream's copies and a graph's.
double copy_seconds(const Device& device, const GpuClock& clock, double bytes, int turns) {
  const auto half = std::max<size_t>(size_t(bytes / 2), 16);
  const Buffer memory(device, 2 * half * size_t(turns));
  const auto copy = [&](int turn, Stream stream) {
    uint8_t* const from = memory.as<uint8_t>() + 2 * half * size_t(turn % turns);
    clock.copy(from + half, from, half, stream);
  };
  const std::vector<double> both = clock.seconds({{copy, false}, {copy, true}}, turns);
  return std::min(both[0], both[1]);
}

void run(int64_t most_tokens) {
  const Device device = Device::open();
  const GpuClock clock(device);
  fmt::print("{{\"device\": \"{}\", \"results\": [", device.info().name);
  const char* separator = "\n";
  for (const Model& model : kModels) {
    int64_t most = 1;
    for (const int64_t tokens : kTokens) most = tokens <= most_tokens ? tokens : most;
    const Layer layer(device, model, most);
    for (const int64_t tokens : kTokens) {
      if (tokens > most) continue;
      const double pairs = double(tokens * model.top_k), width = double(model.width);
      const struct {
        const char* name;
        void (Layer::*launch)(int64_t, int, Stream) const;
        double bytes;
      } operations[] = {{"route", &Layer::choose, double(tokens * model.experts) * 2 + pairs * 8},
                        {"sort", &Layer::sort, pairs * 12 + double(model.experts) * 4},
                        {"permute", &Layer::copy, (pairs + double(tokens)) * width * 2 + pairs * 4},
                        {"combine", &Layer::sum, (pairs + double(tokens)) * width * 2 + pairs * 8}};
      for (const auto& [name, launch, bytes] : operations) {
        const int turns = layer.turns(tokens, bytes);
        const auto once = [&, launch = launch](int turn, Stream stream) {
          (layer.*launch)(tokens, turn % turns, stream);
        };
        const double seconds = clock.seconds({{once}}, turns)[0], copy = copy_seconds(device, clock, bytes, turns);
        fmt::print(
            "{}  {{\"operation\": \"{}\", \"model\": \"{}\", \"tokens\": {}, \"experts\": {}, \"top_k\": {}, "
            "\"width\": {}, \"us\": {:.2f}, \"bytes\": {:.0f}, \"copy_us\": {:.2f}, \"of_copy\": {:.3f}}}",
            separator, name, model.name, tokens, model.experts, model.top_k, model.width, seconds * 1e6, bytes,
            copy * 1e6, copy / seconds);
        separator = ",\n";
        std::fflush(stdout);
      }
      layer.check(tokens);
    }
  }
  fmt::print("\n]}}\n");
}

}  // namespace
}  // namespace moxie

int main(int count, char** arguments) {
  int64_t most = std::numeric_limits<int64_t>::max();
  if (count == 3 && std::strcmp(arguments[1], "--most") == 0) {
    most = std::atoll(arguments[2]);
  } else if (count != 1) {
    fmt::print(stderr, "usage: bench_routing [--most TOKENS]\n");
    return 2;
  }
  try {
    moxie::run(most);
  } catch (const moxie::Error& error) {
    fmt::print(stderr, "bench_routing: {}\n", error.what());
    return 1;
  }
  return 0;
}
