// SPDX-License-Identifier: Apache-2.0
// See checkpoint.h.
#include "cli/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>

namespace moxie::cli {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kMostJson = 100'000'000;
constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

Json read_json(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error) throw InputError(fmt::format("{}: cannot be opened: {}", path, error.message()));
  if (!fs::is_regular_file(status)) throw InputError(fmt::format("{}: is not a regular file", path));
  const uint64_t size = fs::file_size(path);
  if (size > kMostJson)
    throw InputError(fmt::format("{}: has {} bytes, at most {} are allowed", path, size, kMostJson));
  std::ifstream file(path, std::ios::binary);
  if (!file) throw InputError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  std::ostringstream text;
  text << file.rdbuf();
  Json root;
  try {
    root = Json::parse(text.str());
  } catch (const Json::exception& problem) {
    throw InputError(fmt::format("{}: is not valid JSON in UTF-8 ({})", path, problem.what()));
  }
  if (!root.is_object()) throw InputError(path + ": must be a JSON object");
  return root;
}

std::string in_folder(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

}  // namespace

ModelConfig::ModelConfig(const std::string& path) : path_(path), root_(read_json(path)) {}

void ModelConfig::refuse(const std::string& what) const { throw InputError(fmt::format("{}: {}", path_, what)); }

const Json* ModelConfig::find(const char* key) const {
  const auto found = root_.find(key);
  return found == root_.end() || found->is_null() ? nullptr : &*found;
}

int64_t ModelConfig::integer(const char* key, int64_t least, int64_t most, std::optional<int64_t> fallback) const {
  const Json* const value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    refuse(fmt::format("{} is missing", key));
  }
  // An unsigned number beyond an int64 would become a negative one.
  const bool fits = value->is_number_integer() && (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX);
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most)
    refuse(fmt::format("{} is {}, but must be an integer from {} to {}", key, value->dump(), least, most));
  return value->get<int64_t>();
}

double ModelConfig::number(const char* key, std::optional<double> fallback) const {
  const Json* const value = find(key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    refuse(fmt::format("{} is missing", key));
  }
  if (!value->is_number() || !std::isfinite(value->get<float>()))
    refuse(fmt::format("{} is {}, but must be a number", key, value->dump()));
  return value->get<double>();
}

bool ModelConfig::flag(const char* key, bool fallback) const {
  const Json* const value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(fmt::format("{} is {}, but must be true or false", key, value->dump()));
  return value->get<bool>();
}

std::string ModelConfig::text(const char* key, const std::string& fallback) const {
  const Json* const value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) refuse(fmt::format("{} is {}, but must be a text", key, value->dump()));
  return value->get<std::string>();
}

std::vector<int64_t> ModelConfig::integers(const char* key) const {
  const Json* const value = find(key);
  if (value == nullptr) return {};
  const bool good = value->is_array() &&
                    std::all_of(value->begin(), value->end(), [](const Json& x) { return x.is_number_integer(); });
  if (!good) refuse(fmt::format("{} is {}, but must be a list of integers", key, value->dump()));
  return value->get<std::vector<int64_t>>();
}

std::string ModelConfig::first_text(const char* key) const {
  const Json* const value = find(key);
  if (value == nullptr || !value->is_array() || value->empty() || !value->front().is_string()) return "";
  return value->front().get<std::string>();
}

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder), config_(in_folder(folder, "config.json")) {
  if (fs::exists(in_folder(folder, kOneFile))) {
    files_[kOneFile] = std::make_unique<SafetensorsReader>(in_folder(folder, kOneFile));
    return;
  }
  const std::string path = in_folder(folder, kIndex);
  if (!fs::exists(path)) throw InputError(fmt::format("{}: has neither {} nor {}", folder, kOneFile, kIndex));
  const Json index = read_json(path);
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) throw InputError(path + ": weight_map must be an object");
  for (const auto& [tensor, value] : map->items()) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    // A file of the folder, and no way out of it.
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos)
      throw InputError(fmt::format("{}: tensor '{}' is in {}, which is no name of a file", path, tensor, value.dump()));
    file_names_[tensor] = name;
  }
  if (file_names_.empty()) throw InputError(path + ": weight_map is empty");
}

bool Checkpoint::has(const std::string& name) const {
  if (!file_names_.empty()) return file_names_.count(name) != 0;
  return files_.begin()->second->find(name) != nullptr;
}

bool Checkpoint::holds(const std::string& path) const {
  std::vector<std::string> names = {"config.json", kIndex, kOneFile};
  for (const auto& [tensor, name] : file_names_) {
    if (names.back() != name) names.push_back(name);
  }
  std::error_code ignored;
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return fs::equivalent(in_folder(folder_, name), path, ignored); });
}

SafetensorsReader& Checkpoint::file_of(const std::string& name) {
  if (!has(name)) throw InputError(fmt::format("{}: tensor '{}' is missing", folder_, name));
  const std::string file = file_names_.empty() ? kOneFile : file_names_.at(name);
  std::unique_ptr<SafetensorsReader>& reader = files_[file];
  if (!reader) reader = std::make_unique<SafetensorsReader>(in_folder(folder_, file));
  if (reader->find(name) == nullptr)
    throw InputError(fmt::format("{}: tensor '{}' is missing, though {} says that it is there",
                                 in_folder(folder_, file), name, kIndex));
  return *reader;
}

const std::string& Checkpoint::dtype(const std::string& name) { return file_of(name).find(name)->dtype; }

const uint8_t* Checkpoint::tensor(const std::string& name, const std::string& dtype,
                                  const std::vector<std::vector<int64_t>>& shapes) {
  SafetensorsReader& file = file_of(name);
  const SafetensorsReader::Entry& entry = *file.find(name);
  if (entry.dtype != dtype || std::find(shapes.begin(), shapes.end(), entry.shape) == shapes.end())
    throw InputError(fmt::format("tensor '{}' is {} {}, it must be {} {}", name, entry.dtype, shape_text(entry.shape),
                                 dtype, shape_text(shapes.front())));
  return file.map(name);
}

}  // namespace moxie::cli
