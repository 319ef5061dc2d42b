// SPDX-License-Identifier: Apache-2.0
// A checkpoint in the form of Hugging Face's transformers: a folder with config.json and model.safetensors, or with
// model.safetensors.index.json and the files that it names. Reading believes nothing that the files say.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/safetensors.h"

namespace moxie::cli {

// A model's configuration. Each function throws InputError that names the key where it is missing and has no fallback,
// or is of another type or out of range.
class ModelConfig {
 public:
  explicit ModelConfig(const std::string& path);

  int64_t integer(const char* key, int64_t least, int64_t most, std::optional<int64_t> fallback = {}) const;
  double number(const char* key, std::optional<double> fallback = {}) const;  // finite
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  std::vector<int64_t> integers(const char* key) const;  // empty where it is missing or null
  std::string first_text(const char* key) const;         // of a list of texts; "" where there is none

  // Throws InputError "PATH: KEY RULE".
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const nlohmann::json* find(const char* key) const;  // nullptr where it is missing or null
  std::string path_;
  nlohmann::json root_;
};

class Checkpoint {
 public:
  // Opens config.json and model.safetensors or the index. Throws InputError.
  explicit Checkpoint(const std::string& folder);

  const ModelConfig& config() const { return config_; }
  bool has(const std::string& name) const;  // whether a file or the index names the tensor
  // Whether `path` is a file of the checkpoint.
  bool holds(const std::string& path) const;
  // The bytes of a tensor, mapped. It must be of one of the shapes. Throws InputError that names the tensor where it is
  // missing, or of another type or shape.
  const uint8_t* tensor(const std::string& name, const std::string& dtype,
                        const std::vector<std::vector<int64_t>>& shapes);
  const std::string& dtype(const std::string& name);  // throws as tensor() does where it is missing

 private:
  SafetensorsReader& file_of(const std::string& name);
  std::string folder_;
  ModelConfig config_;
  std::map<std::string, std::string> file_names_;                    // of every tensor; empty where there is one file
  std::map<std::string, std::unique_ptr<SafetensorsReader>> files_;  // those that were opened
};

}  // namespace moxie::cli
