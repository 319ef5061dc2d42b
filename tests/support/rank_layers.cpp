// SPDX-License-Identifier: Apache-2.0
// See rank_layers.h.
#include "tests/support/rank_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference/formats.h"
#include "reference/packed_weights.h"
#include "tests/support/random.h"

namespace moxie::test {
namespace {

constexpr uint8_t kPoison = 0xa5;
constexpr int64_t kGuard = 16;  // elements before and behind the output

ExpertLayerDescription of_rank(ExpertLayerDescription d, int rank) {
  d.ranks->rank = rank;
  return d;
}
// All places on one rank.
ExpertLayerDescription of_one(ExpertLayerDescription d) {
  d.experts *= d.ranks->ranks;
  d.all_experts.reset(), d.ranks.reset(), d.permute.reset();
  return d;
}

std::vector<uint16_t> small_numbers(uint64_t seed, int64_t count, int64_t most) {
  std::vector<uint16_t> values;
  Random random(seed);
  for (int64_t i = 0; i < count; ++i) values.push_back(reference::float_to_bf16(float(random.between(-most, most))));
  return values;
}

}  // namespace

template <typename T>
T* RankLayers::Side::put(std::vector<Workspace>& where, const std::vector<T>& values) const {
  where.emplace_back(layer.device(), values.size() * sizeof(T));
  if (!values.empty()) layer.device().upload(where.back().data(), values.data(), where.back().bytes());
  return static_cast<T*>(where.back().data());
}

RankLayers::RankLayers(const ExpertLayerDescription& layer, const std::vector<Device>& devices,
                       const std::vector<int32_t>& places, uint64_t seed)
    : description_(layer), places_(places), seed_(seed), single_(devices.front(), of_one(layer)) {
  for (int rank = 0; rank < int(devices.size()); ++rank) {
    Side& side = ranks_.emplace_back(devices[size_t(rank)], of_rank(layer, rank));
    window_memory_.emplace_back(side.layer.device(), side.layer.window_bytes() + 256);
    windows_.push_back(window_memory_.back().data());
    side.layer.device().fill(windows_.back(), kPoison, window_memory_.back().bytes());
    side.workspace = Workspace(side.layer.device(), side.layer.workspace_bytes());
    side.layer.device().fill(side.workspace.data(), 0xff, side.workspace.bytes());
    add_weights(side, rank * layer.experts, layer.experts);
    if (!places.empty()) side.tensors.places = side.put(side.weights, places);
  }
  for (Side& side : ranks_) side.tensors.windows = windows_.data();
  single_.workspace = Workspace(devices.front(), single_.layer.workspace_bytes());
  add_weights(single_, 0, layer.experts * ranks());
  prepare();
}

void RankLayers::prepare() const {
  for (int rank = 0; rank < ranks(); ++rank) layer(rank).prepare_window(window(rank));
}

void RankLayers::add_weights(Side& side, int64_t first, int64_t count) const {
  const ExpertLayerDescription& d = description_;
  const bool gated = is_gated(d.activation.function);
  const int64_t up_rows = gated ? 2 * d.width : d.width;
  const auto matrix = [&](int64_t n, int64_t k, bool of_gate, uint64_t salt) -> const void* {
    std::vector<uint16_t> values;
    std::vector<uint8_t> packed;
    for (int64_t e = first; e < first + count; ++e) {
      const uint64_t seed = seed_ * 977 + salt + uint64_t(e) * 16;
      if (d.weights == OperandFormat::Bf16) {
        const std::vector<uint16_t> of_expert = small_numbers(seed, n * k, 1);
        values.insert(values.end(), of_expert.begin(), of_expert.end());
        continue;
      }
      Random random(seed);
      std::vector<uint8_t> codes, scales(size_t(n * k / 32), 127);
      // 0, 0.5 and 1 with either sign.
      for (int64_t i = 0; i < n * k / 2; ++i)
        codes.push_back(uint8_t(random.between(0, 2) | random.between(0, 1) << 3 | random.between(0, 2) << 4 |
                                random.between(0, 1) << 7));
      const std::vector<uint8_t> of_expert = reference::pack_weights(
          codes.data(), scales.data(), n, k, of_gate && gated ? std::optional(d.gate) : std::nullopt);
      packed.insert(packed.end(), of_expert.begin(), of_expert.end());
    }
    if (d.weights == OperandFormat::Bf16) return side.put(side.weights, values);
    return side.put(side.weights, packed);
  };
  const auto bias = [&](int64_t n, uint64_t salt) {
    std::vector<uint16_t> values;
    for (int64_t e = first; e < first + count; ++e) {
      const std::vector<uint16_t> of_expert = small_numbers(seed_ * 977 + salt + uint64_t(e) * 16, n, 9);
      values.insert(values.end(), of_expert.begin(), of_expert.end());
    }
    return side.put(side.weights, values);
  };
  side.tensors.up.data = matrix(up_rows, d.hidden, true, 1);
  side.tensors.down.data = matrix(d.hidden, d.width, false, 2);
  if (d.up_bias) side.tensors.up_bias = bias(up_rows, 3);
  if (d.down_bias) side.tensors.down_bias = bias(d.hidden, 4);
}

void RankLayers::add_call(Side& side, const RankCall& call, int rank, const std::vector<int64_t>& ids) const {
  const ExpertLayerDescription& d = description_;
  const int64_t tokens = call.tokens[size_t(rank)];
  const uint64_t seed = call.seed * 31 + uint64_t(rank) * 7919;
  side.call.clear();
  ExpertLayerTensors& t = side.tensors;
  t.tokens = tokens;
  // Numbers that FP8 keeps: the greatest of 128 columns is 7, so that the scale is 2^-6. NaN lies between the rows.
  t.x.ld = d.hidden + 16;
  std::vector<uint16_t> x(size_t(tokens * t.x.ld), 0xffff);
  const std::vector<uint16_t> numbers = small_numbers(seed, tokens * d.hidden, 7);
  for (int64_t i = 0; i < tokens * d.hidden; ++i) {
    const int64_t column = i % d.hidden;
    x[size_t(i / d.hidden * t.x.ld + column)] =
        column % 128 == 0 ? reference::float_to_bf16(7) : numbers[size_t(i)];
  }
  t.x.data = side.put(side.call, x);
  Random random(seed + 1);
  std::vector<float> weights, residual;
  if (d.router) {
    std::vector<float> logits;
    for (int64_t i = 0; i < tokens * d.ranks->ranks * d.experts; ++i)
      logits.push_back(float(random.between(-64, 64)) / 16);
    t.logits = side.put(side.call, logits);
  } else {
    for (int64_t i = 0; i < tokens * d.top_k; ++i) weights.push_back(float(random.between(-40, 40)) / 16);
    t.topk_weights = side.put(side.call, weights);
    t.topk_ids = d.id_type == IdType::Int64 ? static_cast<const void*>(side.put(side.call, ids))
                                            : side.put(side.call, std::vector<int32_t>(ids.begin(), ids.end()));
  }
  if (d.residual) {
    const std::vector<uint16_t> bits = small_numbers(seed + 2, tokens * d.hidden, 30);
    for (const uint16_t x : bits) residual.push_back(reference::bf16_to_float(x));
    t.residual.data = d.out == DataType::F32 ? static_cast<const void*>(side.put(side.call, residual))
                                             : side.put(side.call, bits);
  }
  t.token_count = nullptr;
  if (!call.counts.empty() && call.counts[size_t(rank)])
    t.token_count = side.put(side.call, std::vector<int32_t>{*call.counts[size_t(rank)]});
  const int64_t element = bits_of(d.out) / 8;
  const std::vector<uint8_t> poison(size_t((tokens * ld_out() + 2 * kGuard) * element), kPoison);
  t.out.data = side.put(side.call, poison) + kGuard * element, t.out.ld = ld_out();
}

void RankLayers::bring(const RankCall& call) {
  call_ = call;
  for (int rank = 0; rank < ranks(); ++rank) add_call(ranks_[size_t(rank)], call, rank, call.ids[size_t(rank)]);
}

void RankLayers::run(int rank, const ops::LayerSteps& steps, Stream stream) const {
  const Side& side = ranks_[size_t(rank)];
  ops::run_steps(side.layer, side.tensors, side.workspace, {.stream = stream}, steps);
}

void RankLayers::run_in_steps() const {
  for (int step = 0; step < 4; ++step) {
    for (int rank = 0; rank < ranks(); ++rank) run(rank, {step, step});
  }
  for (const Side& side : ranks_) side.layer.device().synchronize();
}

void RankLayers::run_at_once() const {
  for (int rank = 0; rank < ranks(); ++rank) run(rank);
  for (const Side& side : ranks_) side.layer.device().synchronize();
}

void RankLayers::check_all() const {
  for (int rank = 0; rank < ranks(); ++rank) layer(rank).check_ranks(window(rank));
}

std::vector<uint8_t> RankLayers::output(const Side& side) const {
  const int64_t element = bits_of(description_.out) / 8;
  std::vector<uint8_t> bytes(size_t((side.tensors.tokens * ld_out() + 2 * kGuard) * element));
  side.layer.device().download(bytes.data(), static_cast<const uint8_t*>(side.tensors.out.data) - kGuard * element,
                               bytes.size());
  return bytes;
}

std::vector<uint8_t> RankLayers::output(int rank) const { return output(ranks_[size_t(rank)]); }

std::string RankLayers::difference() const {
  const ExpertLayerDescription& d = description_;
  const int64_t experts = d.ranks->ranks * d.experts, all = d.all_experts.value_or(experts);
  const auto element = size_t(bits_of(d.out) / 8);
  for (int rank = 0; rank < ranks(); ++rank) {
    std::vector<int64_t> ids;
    for (int64_t id : call_.ids[size_t(rank)]) {
      if (id < 0 || id >= all) id = -1;
      if (id >= 0 && !places_.empty()) id = places_[size_t(id)];
      ids.push_back(id >= 0 && id < experts ? id : -1);
    }
    Side& single = const_cast<Side&>(single_);
    add_call(single, call_, rank, ids);
    single.layer.run(single.tensors, single.workspace);
    single.layer.device().synchronize();
    const std::vector<uint8_t> wanted = output(single), got = output(rank);
    for (size_t i = 0; i < wanted.size(); i += element) {
      if (std::memcmp(&got[i], &wanted[i], element) == 0) continue;
      const int64_t place = int64_t(i / element) - kGuard;
      return fmt::format("rank {}, token {}, column {}", rank, place / ld_out(), place % ld_out());
    }
    const Device& device = layer(rank).device();
    std::vector<uint8_t> behind(256);
    device.download(behind.data(), static_cast<const uint8_t*>(window(rank)) + layer(rank).window_bytes(), 256);
    if (std::any_of(behind.begin(), behind.end(), [](uint8_t b) { return b != kPoison; }))
      return fmt::format("bytes behind the window of rank {}", rank);
  }
  return "";
}

bool RankLayers::is_nan(int rank) const {
  const std::vector<uint8_t> got = output(rank);
  const auto element = size_t(bits_of(description_.out) / 8);
  const int64_t tokens = call_.tokens[size_t(rank)];
  const auto count = call_.counts.empty() ? std::nullopt : call_.counts[size_t(rank)];
  const int64_t real = count ? std::clamp<int64_t>(*count, 0, tokens) : tokens;
  for (size_t i = 0; i < got.size(); i += element) {
    const int64_t place = int64_t(i / element) - kGuard;
    const bool written = place >= 0 && place < real * ld_out() && place % ld_out() < description_.hidden;
    float value = 0;
    if (description_.out == DataType::F32) std::memcpy(&value, &got[i], 4);
    if (description_.out == DataType::Bf16) value = reference::bf16_to_float(uint16_t(got[i] | got[i + 1] << 8));
    const bool poisoned = std::all_of(&got[i], &got[i] + element, [](uint8_t b) { return b == kPoison; });
    if (written ? !std::isnan(value) : !poisoned) return false;
  }
  return true;
}

}  // namespace moxie::test
