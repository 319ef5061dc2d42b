// SPDX-License-Identifier: Apache-2.0
// One expert layer over several ranks, each with a device of its own or all on one, beside the same layer on one rank.
// All numbers are such that float32 holds every sum of the products, so both give the same bits. Where tokens travel in
// MXFP8, the one rank gets them as the reference rounds them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moxie/layer.h"
#include "ops/layer_steps.h"
#include "tests/support/device.h"

namespace moxie::test {

// The first `count` simulated devices, each with access to the memory of the others. MOXIE_SIM_DEVICES has said how
// many there are before any was asked for.
std::vector<Device> peer_devices(int count);

// What the ranks bring to a call.
struct RankCall {
  std::vector<int64_t> tokens;                      // of each rank
  std::vector<std::vector<int64_t>> ids;            // [tokens, k] of each rank
  std::vector<std::optional<int32_t>> counts = {};  // token_count of each rank, or empty
  uint64_t seed = 1;                                // of tokens, weights and residuals
};

class RankLayers {
 public:
  // `layer` is that of every rank, whose `ranks` has all but the rank; activations are None, Relu or Reglu. devices: of
  // each rank. The layer on one rank is on the first. places: of each expert, or empty. With a router, which takes
  // float32, tokens bring logits instead of ids, of as many experts as there are places. Results are Rows unless the
  // description says otherwise.
  RankLayers(const ExpertLayerDescription& layer, const std::vector<Device>& devices,
             const std::vector<int32_t>& places = {}, uint64_t seed = 1);

  int ranks() const { return int(ranks_.size()); }
  const ExpertLayer& layer(int rank) const { return ranks_[size_t(rank)].layer; }
  void* window(int rank) const { return windows_[size_t(rank)]; }
  const ExpertLayerTensors& tensors(int rank) const { return ranks_[size_t(rank)].tensors; }  // of the last bring()
  // Uses the windows of other layers, which have as many bytes or more, and must outlive this.
  void share_windows(const RankLayers& other);
  void prepare() const;  // all windows

  // Puts tokens, ids, weights, residuals and poisoned outputs on the devices: to where those of the last call were, if
  // they have the same sizes.
  void bring(const RankCall& call);
  // A call of one rank, or some steps of it.
  void run(int rank, const ops::LayerSteps& steps = {}, Stream stream = nullptr) const;
  // A part of it, which gets the residual where it sums.
  void run_part(int rank, LayerPart part, Stream stream = nullptr) const;
  // All ranks, each step of all after the other. Without a stream it waits for the last.
  void run_in_steps(Stream stream = nullptr) const;
  // All its device memory.
  std::vector<std::pair<void*, size_t>> memory() const;
  void run_at_once() const;  // all ranks, as devices of their own can
  void check_all() const;    // ExpertLayer::check_ranks() of all ranks

  // The first element of the outputs that is not what one rank computes, or "". What nothing may write is held against
  // what it was.
  std::string difference() const;
  // Whether all elements of a rank's tokens are NaN, and all else as it was.
  bool is_nan(int rank) const;
  std::vector<uint8_t> output(int rank) const;  // all its bytes

 private:
  // A layer's weights and the tensors of its call, on its device.
  struct Side {
    Side(const Device& device, const ExpertLayerDescription& description) : layer(device, description) {}
    // Memory number `at` of `where`.
    template <typename T>
    T* put(std::vector<Workspace>& where, const std::vector<T>& values, size_t at) const;
    ExpertLayer layer;
    ExpertLayerTensors tensors = {};
    std::vector<Workspace> weights = {}, call = {};
    Workspace workspace = {};
  };
  void add_weights(Side& side, int64_t first, int64_t count) const;
  // Tokens that MXFP8 does not keep, as they are or `rounds`: as the reference rounds them.
  void bring_rounded(std::vector<uint16_t>& x, uint64_t seed, int64_t tokens, bool rounds) const;
  void add_call(Side& side, const RankCall& call, int rank, const std::vector<int64_t>& ids) const;
  std::vector<uint8_t> run_single(Side& side, int rank, const std::vector<int64_t>& ids) const;
  std::vector<uint8_t> output(const Side& side) const;
  int64_t ld_out() const { return description_.hidden + 8; }

  ExpertLayerDescription description_;
  std::vector<int32_t> places_;
  uint64_t seed_;
  std::vector<Side> ranks_;
  std::vector<void*> windows_;
  std::vector<Workspace> window_memory_;
  // What one rank's output would be whose experts' sums were made and rounded for each rank apart.
  std::vector<uint8_t> from_sums(const RankCall& call, int rank, const std::vector<int64_t>& ids) const;

  mutable Side single_;
  mutable std::optional<Side> sums_;  // the same layer on one rank in float32, without a residual
  RankCall call_;
};

}  // namespace moxie::test
