// SPDX-License-Identifier: Apache-2.0
// See packed_tensor.h.
#include "cli/packed_tensor.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "moxie/error.h"

namespace moxie::cli {

std::vector<int64_t> PackedTensor::shape() const {
  const auto bytes = static_cast<int64_t>(packed_weight_bytes(1, weights.n, weights.k));
  return stacked ? std::vector<int64_t>{weights.groups, bytes} : std::vector<int64_t>{bytes};
}

std::vector<int64_t> PackedTensor::weight_shape() const {
  return stacked ? std::vector<int64_t>{weights.groups, weights.n, weights.k}
                 : std::vector<int64_t>{weights.n, weights.k};
}

std::string PackedTensor::gate() const { return weights.gated ? std::string(to_string(weights.gate)) : "none"; }

std::string packed_key(const std::string& name) { return "moxie.packed." + name; }

std::string packed_text(const PackedTensor& tensor) {
  return nlohmann::json{{"format", "mxfp4"},
                        {"layout", "hopper"},
                        {"n", tensor.weights.n},
                        {"k", tensor.weights.k},
                        {"gate", tensor.gate()}}
      .dump();
}

std::optional<PackedTensor> find_packed(const SafetensorsReader& file, const std::string& name) {
  const auto* entry = file.find(name);
  const auto text = file.metadata().find(packed_key(name));
  if (entry == nullptr || text == file.metadata().end()) return std::nullopt;
  const auto value = nlohmann::json::parse(text->second, nullptr, false);
  const auto word = [&](const char* key) {
    return value.is_object() && value.contains(key) && value[key].is_string() ? value[key].get<std::string>() : "";
  };
  const auto size = [&](const char* key) {
    return value.is_object() && value.contains(key) && value[key].is_number_integer() ? value[key].get<int64_t>() : -1;
  };
  PackedTensor tensor;
  tensor.stacked = entry->shape.size() == 2;
  const std::optional<GateLayout> gate = parse<GateLayout>(word("gate"));
  tensor.weights = {tensor.stacked ? entry->shape[0] : 1, size("n"), size("k"), gate.has_value(),
                    gate.value_or(GateLayout::Interleaved)};
  if (word("format") != "mxfp4" || word("layout") != "hopper" || (!gate && word("gate") != "none"))
    throw InputError(fmt::format("metadata '{}' is {}, which is no packing that is known", text->first, text->second));
  try {
    if (entry->dtype == "U8" && entry->shape == tensor.shape()) return tensor;
  } catch (const Error& error) {
    throw InputError(fmt::format("metadata '{}' is {}: {}", text->first, text->second, error.what()));
  }
  throw InputError(fmt::format("tensor '{}' is {} {}, by metadata '{}' it must be U8 {}", name, entry->dtype,
                               shape_text(entry->shape), text->first, shape_text(tensor.shape())));
}

void refuse_row(const std::string& scales, uint64_t row, int64_t n) {
  throw InputError(
      fmt::format("tensor '{}': row {} of group {} has scales above 128 that are more than 133 above its smallest, "
                  "whose weights bf16 cannot hold beside each other",
                  scales, row % static_cast<uint64_t>(n), row / static_cast<uint64_t>(n)));
}

}  // namespace moxie::cli
