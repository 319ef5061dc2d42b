// SPDX-License-Identifier: Apache-2.0
// Packed weights (moxie/weights.h) as tensors of a file. Tensor NAME is U8 and has the bytes of a group, or of each of
// them in a row of its own. They do not tell what they were, so the file's metadata says it under the key
// "moxie.packed.NAME", in JSON: {"format": "mxfp4", "layout": "hopper", "n": 5760, "k": 2880, "gate": "interleaved"},
// with "none" for weights without a gate.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/safetensors.h"
#include "moxie/weights.h"

namespace moxie::cli {

struct PackedTensor {
  WeightShape weights;
  bool stacked = false;  // has a dimension for the groups

  std::vector<int64_t> shape() const;         // of its bytes
  std::vector<int64_t> weight_shape() const;  // [N, K] or [G, N, K]
  std::string gate() const;                   // "none", or the gate's layout
};

std::string packed_key(const std::string& name);  // of the metadata
std::string packed_text(const PackedTensor& tensor);

// What tensor `name` holds, where the metadata says that it is packed. Throws InputError where that is no sense or not
// the tensor's.
std::optional<PackedTensor> find_packed(const SafetensorsReader& file, const std::string& name);

// Throws the InputError of weights that cannot be packed. `row` is counted over all groups of n.
[[noreturn]] void refuse_row(const std::string& scales, uint64_t row, int64_t n);

}  // namespace moxie::cli
