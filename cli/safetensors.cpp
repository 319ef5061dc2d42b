// SPDX-License-Identifier: Apache-2.0
// See safetensors.h.
#include "cli/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/output_file.h"

namespace moxie::cli {

using Json = nlohmann::json;

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the format sets this limit
constexpr int kMaxDepth = 4;                  // the header is an object of objects of arrays

// Returns the bytes of an element, 0 for what is no type of the format. Types below a byte are not supported.
int element_bytes(const std::string& dtype) {
  static const std::map<std::string, int> kTypes = {
      {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"U16", 2}, {"I16", 2},
      {"F16", 2},  {"BF16", 2}, {"U32", 4}, {"I32", 4},     {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  const auto found = kTypes.find(dtype);
  return found == kTypes.end() ? 0 : found->second;
}

// Reads all of [offset, offset + bytes) or says why not.
void read_at(int file, const std::string& path, uint64_t offset, void* to, uint64_t bytes) {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = pread(file, at, std::min<uint64_t>(bytes, 1u << 30), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw InputError(got == 0 ? fmt::format("{}: ends before byte {}", path, offset + bytes)
                                : fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
    at += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<uint64_t>(got);
  }
}

std::vector<uint64_t> unsigned_list(const Json& value, const std::string& where) {
  if (!value.is_array()) throw InputError(where + " must be a list of integers from 0 up");
  std::vector<uint64_t> list;
  for (const Json& item : value) {
    if (!item.is_number_unsigned()) throw InputError(where + " must be a list of integers from 0 up");
    list.push_back(item.get<uint64_t>());
  }
  return list;
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  // A pipe or a folder is refused, since the size must be known.
  file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) throw InputError(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  try {
    struct stat status {};
    if (fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
      throw InputError(fmt::format("{}: is not a regular file", path));
    }
    const uint64_t size = size_ = static_cast<uint64_t>(status.st_size);
    if (size < 8) throw InputError(fmt::format("{}: has {} bytes, a safetensors file has at least 8", path, size));
    uint8_t head[8];
    read_at(file_, path, 0, head, 8);
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | head[i];
    if (length > kMaxHeader) {
      throw InputError(
          fmt::format("{}: its header would be {} bytes long, at most {} are allowed", path, length, kMaxHeader));
    }
    if (length > size - 8) {
      throw InputError(fmt::format("{}: its header would be {} bytes long, only {} follow", path, length, size - 8));
    }
    std::string header(length, '\0');
    read_at(file_, path, 8, header.data(), length);
    parse(header, 8 + length, size - 8 - length);
  } catch (...) {
    close(file_);
    throw;
  }
}

SafetensorsReader::~SafetensorsReader() {
  if (mapped_ != nullptr) munmap(mapped_, size_);
  close(file_);
}

void SafetensorsReader::parse(const std::string& header, uint64_t data_start, uint64_t data_bytes) {
  std::vector<std::set<std::string>> keys;
  auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) throw InputError(fmt::format("{}: its header is nested too deeply", path_));
    const auto level = static_cast<size_t>(depth);
    if (event == Json::parse_event_t::object_start) {
      keys.resize(std::max(keys.size(), level + 2));
      keys[level + 1].clear();
    } else if (event == Json::parse_event_t::key && !keys[level].insert(value.get<std::string>()).second) {
      throw InputError(fmt::format("{}: its header names '{}' twice", path_, value.get<std::string>()));
    }
    return true;
  };
  Json root;
  try {
    root = Json::parse(header, watch);
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: its header is not valid JSON in UTF-8 ({})", path_, error.what()));
  }
  if (!root.is_object()) throw InputError(fmt::format("{}: its header must be a JSON object", path_));

  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) throw InputError(fmt::format("{}: __metadata__ must be an object of strings", path_));
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) throw InputError(fmt::format("{}: __metadata__ must be an object of strings", path_));
        metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    const std::string tensor = fmt::format("{}: tensor '{}'", path_, name);
    if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets")) {
      throw InputError(tensor + " must have dtype, shape and data_offsets");
    }
    Entry entry;
    if (!value["dtype"].is_string()) throw InputError(tensor + ": dtype must be a string");
    entry.dtype = value["dtype"].get<std::string>();
    const int width = element_bytes(entry.dtype);
    if (width == 0) throw InputError(fmt::format("{}: dtype '{}' is not known", tensor, entry.dtype));
    uint64_t bytes = static_cast<uint64_t>(width);
    bool overflow = false, empty = false;
    for (const uint64_t extent : unsigned_list(value["shape"], tensor + ": shape")) {
      if (extent > INT64_MAX) throw InputError(fmt::format("{}: shape has an extent of {}", tensor, extent));
      entry.shape.push_back(static_cast<int64_t>(extent));
      empty |= extent == 0;
      overflow |= __builtin_mul_overflow(bytes, extent, &bytes);
    }
    if (empty) bytes = 0;
    if (overflow && !empty) {
      throw InputError(fmt::format("{}: shape {} has more than 2^64 bytes", tensor, shape_text(entry.shape)));
    }
    const auto range = unsigned_list(value["data_offsets"], tensor + ": data_offsets");
    if (range.size() != 2) throw InputError(tensor + ": data_offsets must be two integers");
    if (range[0] > range[1])
      throw InputError(fmt::format("{}: data_offsets {}, {} decrease", tensor, range[0], range[1]));
    if (range[1] > data_bytes) {
      throw InputError(fmt::format("{}: data_offsets end at byte {}, the file holds {} bytes of data", tensor, range[1],
                                   data_bytes));
    }
    if (range[1] - range[0] != bytes) {
      throw InputError(fmt::format("{}: data_offsets span {} bytes, {} of {} takes {}", tensor, range[1] - range[0],
                                   shape_text(entry.shape), entry.dtype, bytes));
    }
    entry.offset = data_start + range[0];
    entry.bytes = bytes;
    entries_[name] = entry;
  }

  std::vector<std::pair<const Entry*, const std::string*>> order;
  for (const auto& [name, entry] : entries_) order.emplace_back(&entry, &name);
  std::sort(order.begin(), order.end(), [](const auto& x, const auto& y) {
    return std::pair(x.first->offset, x.first->bytes) < std::pair(y.first->offset, y.first->bytes);
  });
  uint64_t end = data_start;
  for (const auto& [entry, name] : order) {
    if (entry->offset < end) {
      throw InputError(fmt::format("{}: tensor '{}': data_offsets overlap another tensor's", path_, *name));
    }
    if (entry->offset > end) {
      throw InputError(fmt::format("{}: tensor '{}': data_offsets leave a gap of {} bytes before it", path_, *name,
                                   entry->offset - end));
    }
    end = entry->offset + entry->bytes;
  }
  if (end != data_start + data_bytes) {
    throw InputError(
        fmt::format("{}: {} bytes after the last tensor belong to none", path_, data_start + data_bytes - end));
  }
}

const SafetensorsReader::Entry* SafetensorsReader::find(const std::string& name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

std::vector<uint8_t> SafetensorsReader::read(const std::string& name) const {
  const Entry& entry = entries_.at(name);
  std::vector<uint8_t> data(entry.bytes);
  read_at(file_, path_, entry.offset, data.data(), entry.bytes);
  return data;
}

const uint8_t* SafetensorsReader::map(const std::string& name) {
  const Entry& entry = entries_.at(name);
  if (mapped_ == nullptr) {
    void* const at = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_, 0);
    if (at == MAP_FAILED) throw InputError(fmt::format("{}: cannot be mapped: {}", path_, std::strerror(errno)));
    mapped_ = at;
  }
  return static_cast<const uint8_t*>(mapped_) + entry.offset;
}

void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  OutputFile file(path);
  Json root = Json::object();
  if (!metadata.empty()) root["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const auto& tensor : tensors) {
    root[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, at + tensor.data.size()}}};
    at += tensor.data.size();
  }
  std::string header = root.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string head(8, '\0');
  for (int i = 0; i < 8; ++i) head[i] = static_cast<char>(header.size() >> (8 * i));

  file.write(head);
  file.write(header);
  for (const auto& tensor : tensors) file.write(tensor.data.data(), tensor.data.size());
  file.finish();
}

}  // namespace moxie::cli
