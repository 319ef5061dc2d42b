// SPDX-License-Identifier: Apache-2.0
// The expert layers of models: what config.json says of them, and where their weights lie in a checkpoint.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/timing/buffer.h"
#include "cli/checkpoint.h"
#include "cli/progress.h"
#include "moxie/layer.h"

namespace moxie::cli {

// One product's weights, [experts, n, k] in pieces one after the other, where the checkpoint's files are mapped.
struct StoredWeights {
  struct Piece {
    const uint8_t* data;    // bf16 [rows, k], or codes [rows, k / 2]
    const uint8_t* scales;  // E8M0 [rows, k / 32] beside codes
    int64_t rows;
  };
  OperandFormat format = OperandFormat::Bf16;  // Bf16 or Mxfp4
  bool transposed = false;                     // bf16 pieces are [k, rows]
  bool gated = false;                          // interleaved, where they are packed
  int64_t experts = 0, n = 0, k = 0;
  std::vector<Piece> pieces;  // of Mxfp4 one for each expert
  std::string scales_name;
};

// What a checkpoint says of a layer. The description lacks tokens, `out` and the type of logits.
struct StoredLayer {
  ExpertLayerDescription description;  // weights as stored
  StoredWeights up, down;
  const uint8_t* up_bias = nullptr;      // bf16 [experts, n of up], or none
  const uint8_t* down_bias = nullptr;    // bf16 [experts, hidden], or none
  const uint8_t* router = nullptr;       // bf16 [experts, hidden]
  const uint8_t* router_bias = nullptr;  // bf16 [experts], or none
  std::vector<float> correction_bias;    // of the choice, or none
};

// Finds and checks all of it. The bytes are there as long as the checkpoint is. Throws InputError that names the key or
// the tensor.
StoredLayer find_layer(Checkpoint& checkpoint, int64_t layer);

// Brings weights to the device as `to` has them: Mxfp4, packed, or bf16. Throws InputError for weights that cannot be
// packed.
timing::Buffer load_weights(const Device& device, const StoredWeights& weights, OperandFormat to, Progress& progress);

}  // namespace moxie::cli
