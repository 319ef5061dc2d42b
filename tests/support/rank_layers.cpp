// SPDX-License-Identifier: Apache-2.0
// See rank_layers.h.
#include "tests/support/rank_layers.h"

#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "reference/formats.h"
#include "reference/packed_weights.h"
#include "tests/support/random.h"

namespace moxie::test {
namespace {

constexpr uint8_t kPoison = 0xa5;
constexpr int64_t kGuard = 16;  // elements before and behind the output

// What a layer keeps, and what a call has.
enum : size_t { kUp, kDown, kUpBias, kDownBias, kPlaces };
enum : size_t { kX, kLogits, kWeights, kIds, kResidual, kCount, kOut };

ExpertLayerDescription of_rank(ExpertLayerDescription d, int rank) {
  d.ranks->rank = rank;
  if (!d.ranks->results) d.ranks->results = ResultFormat::Rows;
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

std::vector<Device> peer_devices(int count) {
  // Never closed, as device().
  static std::vector<Device>& opened = *new std::vector<Device>;
  static std::vector<CUcontext>& contexts = *new std::vector<CUcontext>;
  void* const library = dlopen(device().info().driver_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto ask = [&](auto* function, const char* name, auto... arguments) {
    const auto found = reinterpret_cast<decltype(function)>(dlsym(library, name));
    if (!found || found(arguments...) != CUDA_SUCCESS) throw std::runtime_error(fmt::format("{} failed", name));
  };
  while (int(opened.size()) < count) {
    const auto number = int(opened.size());
    opened.push_back(number == 0 ? device() : Device::open(DeviceKind::Sim, number));
    CUcontext& mine = contexts.emplace_back();
    ask(&cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", &mine, number);
    for (int other = 0; other < number; ++other) {
      for (const auto& [from, to] :
           {std::pair(mine, contexts[size_t(other)]), std::pair(contexts[size_t(other)], mine)}) {
        CUcontext popped = nullptr;
        ask(&cuCtxPushCurrent, "cuCtxPushCurrent_v2", from);
        ask(&cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", to, 0u);
        ask(&cuCtxPopCurrent, "cuCtxPopCurrent_v2", &popped);
      }
    }
  }
  return {opened.begin(), opened.begin() + count};
}

template <typename T>
T* RankLayers::Side::put(std::vector<Workspace>& where, const std::vector<T>& values, size_t at) const {
  const size_t bytes = values.size() * sizeof(T);
  if (where.size() <= at) where.resize(at + 1);
  if (where[at].bytes() != bytes) where[at] = Workspace(layer.device(), bytes);
  if (bytes > 0) layer.device().upload(where[at].data(), values.data(), bytes);
  return static_cast<T*>(where[at].data());
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
    if (!places.empty()) side.tensors.places = side.put(side.weights, places, kPlaces);
  }
  for (Side& side : ranks_) side.tensors.windows = windows_.data();
  single_.workspace = Workspace(devices.front(), single_.layer.workspace_bytes());
  add_weights(single_, 0, layer.experts * ranks());
  if (layer.ranks->results && *layer.ranks->results != ResultFormat::Rows) {
    ExpertLayerDescription sums = of_one(layer);
    sums.out = DataType::F32, sums.residual = false;
    sums_.emplace(devices.front(), sums);
    sums_->workspace = Workspace(devices.front(), sums_->layer.workspace_bytes());
    add_weights(*sums_, 0, layer.experts * ranks());
  }
  prepare();
}

void RankLayers::share_windows(const RankLayers& other) {
  if (other.layer(0).window_bytes() < layer(0).window_bytes()) throw std::logic_error("these windows are too small");
  windows_ = other.windows_;
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
    const size_t at = of_gate ? kUp : kDown;
    if (d.weights == OperandFormat::Bf16) return side.put(side.weights, values, at);
    return side.put(side.weights, packed, at);
  };
  const auto bias = [&](int64_t n, uint64_t salt, size_t at) {
    std::vector<uint16_t> values;
    for (int64_t e = first; e < first + count; ++e) {
      const std::vector<uint16_t> of_expert = small_numbers(seed_ * 977 + salt + uint64_t(e) * 16, n, 9);
      values.insert(values.end(), of_expert.begin(), of_expert.end());
    }
    return side.put(side.weights, values, at);
  };
  side.tensors.up.data = matrix(up_rows, d.hidden, true, 1);
  side.tensors.down.data = matrix(d.hidden, d.width, false, 2);
  if (d.up_bias) side.tensors.up_bias = bias(up_rows, 3, kUpBias);
  if (d.down_bias) side.tensors.down_bias = bias(d.hidden, 4, kDownBias);
}

void RankLayers::bring_rounded(std::vector<uint16_t>& x, uint64_t seed, int64_t tokens, bool rounds) const {
  const int64_t hidden = description_.hidden, ld = hidden + 16;
  const std::vector<uint16_t> numbers = small_numbers(seed, tokens * hidden, 127);
  std::vector<float> row(size_t(hidden), 0);
  std::vector<uint8_t> elements(size_t(hidden), 0), scales(size_t(hidden / kScaleBlock), 0);
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t i = 0; i < hidden; ++i) {
      // Blocks of zeros among those of other scales, and within a block eight columns that are greater than the others.
      const int64_t kind = (token + i / kScaleBlock) % 5;
      const float factor = (kind == 4 ? 0 : float(1 << kind) / 2) / (i / 8 % 4 == token % 4 ? 1 : 4);
      row[size_t(i)] = reference::bf16_to_float(numbers[size_t(token * hidden + i)]) * factor;
    }
    if (rounds) {
      reference::quantize_row(DataType::Mxfp8, row.data(), hidden, 1, elements.data(), scales.data());
      reference::dequantize_row(DataType::Mxfp8, elements.data(), scales.data(), hidden, 1, row.data());
    }
    for (int64_t i = 0; i < hidden; ++i) x[size_t(token * ld + i)] = reference::float_to_bf16(row[size_t(i)]);
  }
}

void RankLayers::add_call(Side& side, const RankCall& call, int rank, const std::vector<int64_t>& ids) const {
  const ExpertLayerDescription& d = description_;
  const int64_t tokens = call.tokens[size_t(rank)];
  const uint64_t seed = call.seed * 31 + uint64_t(rank) * 7919;
  ExpertLayerTensors& t = side.tensors;
  t.tokens = tokens;
  // Numbers that FP8 keeps: the greatest of 128 columns is 7 times a power of two, so that the scale is one, too, and
  // another one than the next block's. In some blocks it is below 1. NaN lies between the rows.
  t.x.ld = d.hidden + 16;
  std::vector<uint16_t> x(size_t(tokens * t.x.ld), 0xffff);
  const std::vector<uint16_t> numbers = small_numbers(seed, tokens * d.hidden, 7);
  const float least = d.ranks->format == RowFormat::Fp8 ? 0.125f : 1;
  for (int64_t i = 0; i < tokens * d.hidden; ++i) {
    const int64_t column = i % d.hidden;
    const float number = column % 128 == 0 ? 7 : reference::bf16_to_float(numbers[size_t(i)]);
    x[size_t(i / d.hidden * t.x.ld + column)] = reference::float_to_bf16(number * least * float(1 << column / 128 % 3));
  }
  if (d.ranks->format == RowFormat::Mxfp8) bring_rounded(x, seed, tokens, !side.layer.description().ranks);
  t.x.data = side.put(side.call, x, kX);
  Random random(seed + 1);
  std::vector<float> weights, residual;
  if (d.router) {
    std::vector<float> logits;
    for (int64_t i = 0; i < tokens * d.ranks->ranks * d.experts; ++i)
      logits.push_back(float(random.between(-64, 64)) / 16);
    t.logits = side.put(side.call, logits, kLogits);
  } else {
    for (int64_t i = 0; i < tokens * d.top_k; ++i) weights.push_back(float(random.between(-40, 40)) / 16);
    t.topk_weights = side.put(side.call, weights, kWeights);
    t.topk_ids = d.id_type == IdType::Int64 ? static_cast<const void*>(side.put(side.call, ids, kIds))
                                            : side.put(side.call, std::vector<int32_t>(ids.begin(), ids.end()), kIds);
  }
  if (side.layer.description().residual) {
    const std::vector<uint16_t> bits = small_numbers(seed + 2, tokens * d.hidden, 30);
    for (const uint16_t x : bits) residual.push_back(reference::bf16_to_float(x));
    t.residual.data = d.out == DataType::F32 ? static_cast<const void*>(side.put(side.call, residual, kResidual))
                                             : side.put(side.call, bits, kResidual);
  }
  t.token_count = nullptr;
  if (!call.counts.empty() && call.counts[size_t(rank)])
    t.token_count = side.put(side.call, std::vector<int32_t>{*call.counts[size_t(rank)]}, kCount);
  const int64_t element = bits_of(side.layer.description().out) / 8;
  const std::vector<uint8_t> poison(size_t((tokens * ld_out() + 2 * kGuard) * element), kPoison);
  t.out.data = side.put(side.call, poison, kOut) + kGuard * element, t.out.ld = ld_out();
}

void RankLayers::bring(const RankCall& call) {
  call_ = call;
  for (int rank = 0; rank < ranks(); ++rank) add_call(ranks_[size_t(rank)], call, rank, call.ids[size_t(rank)]);
}

void RankLayers::run(int rank, const ops::LayerSteps& steps, Stream stream) const {
  const Side& side = ranks_[size_t(rank)];
  ops::run_steps(side.layer, side.tensors, side.workspace, {.stream = stream}, steps);
}

void RankLayers::run_part(int rank, LayerPart part, Stream stream) const {
  const Side& side = ranks_[size_t(rank)];
  ExpertLayerTensors tensors = side.tensors;
  if (part != LayerPart::Sum) tensors.residual = {};
  side.layer.run(tensors, side.workspace, {.stream = stream}, part);
}

void RankLayers::run_in_steps(Stream stream) const {
  for (int step = 0; step < 4; ++step) {
    for (int rank = 0; rank < ranks(); ++rank) run(rank, {step, step}, stream);
  }
  if (stream) return;
  for (const Side& side : ranks_) side.layer.device().synchronize();
}

std::vector<std::pair<void*, size_t>> RankLayers::memory() const {
  std::vector<std::pair<void*, size_t>> all;
  const auto add = [&](const std::vector<Workspace>& of) {
    for (const Workspace& each : of) {
      if (each.data()) all.emplace_back(each.data(), each.bytes());
    }
  };
  for (const Side& side : ranks_) {
    add(side.weights), add(side.call);
    all.emplace_back(side.workspace.data(), side.workspace.bytes());
  }
  add(window_memory_);
  return all;
}

void RankLayers::run_at_once() const {
  for (int rank = 0; rank < ranks(); ++rank) run(rank);
  for (const Side& side : ranks_) side.layer.device().synchronize();
}

void RankLayers::check_all() const {
  for (int rank = 0; rank < ranks(); ++rank) layer(rank).check_ranks(window(rank));
}

std::vector<uint8_t> RankLayers::output(const Side& side) const {
  const int64_t element = bits_of(side.layer.description().out) / 8;
  std::vector<uint8_t> bytes(size_t((side.tensors.tokens * ld_out() + 2 * kGuard) * element));
  side.layer.device().download(bytes.data(), static_cast<const uint8_t*>(side.tensors.out.data) - kGuard * element,
                               bytes.size());
  return bytes;
}

std::vector<uint8_t> RankLayers::output(int rank) const { return output(ranks_[size_t(rank)]); }

std::vector<uint8_t> RankLayers::run_single(Side& side, int rank, const std::vector<int64_t>& ids) const {
  add_call(side, call_, rank, ids);
  side.layer.run(side.tensors, side.workspace);
  side.layer.device().synchronize();
  return output(side);
}

std::vector<uint8_t> RankLayers::from_sums(const RankCall& call, int rank, const std::vector<int64_t>& ids) const {
  const ExpertLayerDescription& d = description_;
  const int64_t tokens = call.tokens[size_t(rank)];
  // Of each rank the float32 sums of its own experts' rows.
  std::vector<std::vector<float>> sums;
  for (int of = 0; of < ranks(); ++of) {
    std::vector<int64_t> theirs = ids;
    for (int64_t& id : theirs) id = id >= 0 && id / d.experts == of ? id : -1;
    const std::vector<uint8_t> bytes = run_single(*sums_, rank, theirs);
    std::memcpy(sums.emplace_back(bytes.size() / 4).data(), bytes.data(), bytes.size());
  }
  // What is not written and the residual: the output of tokens that choose nothing.
  std::vector<uint8_t> wanted = run_single(single_, rank, std::vector<int64_t>(ids.size(), -1));
  const auto count = call.counts.empty() ? std::nullopt : call.counts[size_t(rank)];
  const int64_t real = count ? std::clamp<int64_t>(*count, 0, tokens) : tokens;
  for (int64_t t = 0; t < real; ++t) {
    std::vector<int64_t> order;
    for (int64_t j = 0; j < d.top_k; ++j) {
      const int64_t id = ids[size_t(t * d.top_k + j)];
      if (id >= 0 && std::find(order.begin(), order.end(), id / d.experts) == order.end())
        order.push_back(id / d.experts);
    }
    for (int64_t column = 0; column < d.hidden; ++column) {
      const auto at = size_t(t * ld_out() + column + kGuard);
      float sum;
      uint16_t bits;
      if (d.out == DataType::F32) {
        std::memcpy(&sum, &wanted[at * 4], 4);
      } else {
        std::memcpy(&bits, &wanted[at * 2], 2);
        sum = reference::bf16_to_float(bits);
      }
      for (const int64_t of : order) {
        float part = sums[size_t(of)][at];
        if (*d.ranks->results == ResultFormat::Bf16Sums)
          part = reference::bf16_to_float(reference::float_to_bf16(part));
        sum += part;
      }
      bits = reference::float_to_bf16(sum);
      if (d.out == DataType::F32) std::memcpy(&wanted[at * 4], &sum, 4);
      if (d.out == DataType::Bf16) std::memcpy(&wanted[at * 2], &bits, 2);
    }
  }
  return wanted;
}

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
    const std::vector<uint8_t> got = output(rank);
    const std::vector<uint8_t> wanted = sums_ ? from_sums(call_, rank, ids) : run_single(single_, rank, ids);
    for (size_t i = 0; i < wanted.size(); i += element) {
      if (std::memcmp(&got[i], &wanted[i], element) == 0) continue;
      const int64_t place = int64_t(i / element) - kGuard;
      return fmt::format("rank {}, token {}, column {}", rank, place / ld_out(), place % ld_out());
    }
    const Device& device = layer(rank).device();
    const Workspace& memory = window_memory_[size_t(rank)];
    std::vector<uint8_t> behind(256);
    device.download(behind.data(), static_cast<const uint8_t*>(memory.data()) + memory.bytes() - 256, 256);
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
