// SPDX-License-Identifier: Apache-2.0
// Files in the safetensors format: 8 bytes of header length (little-endian), a JSON header, the data. Reading believes
// nothing that the file says. Writing leaves either the whole file or none.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/errors.h"

namespace moxie::cli {

std::string shape_text(const std::vector<int64_t>& shape);  // "[4, 320]"

class SafetensorsReader {
 public:
  struct Entry {
    std::string dtype;  // "BF16", "I32", ...
    std::vector<int64_t> shape;
    uint64_t offset = 0, bytes = 0;  // in the file
  };

  // Reads and checks the header: its length against the file's, JSON, known element types, data ranges that cover
  // the data once without gaps and agree with the shapes. Throws InputError.
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const Entry* find(const std::string& name) const;  // nullptr when absent
  std::vector<uint8_t> read(const std::string& name) const;
  // The tensor's bytes where the file is mapped, aligned to nothing. They are there as long as the reader is; a file
  // that somebody cuts off meanwhile ends the program. Throws InputError where the file cannot be mapped.
  const uint8_t* map(const std::string& name);
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  void parse(const std::string& header, uint64_t data_start, uint64_t data_bytes);
  std::string path_;
  int file_ = -1;
  uint64_t size_ = 0;
  void* mapped_ = nullptr;  // the whole file
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

struct TensorToWrite {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<uint8_t> data;
};

// Writes the whole file or, after an error, nothing. Throws as OutputFile does.
void write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace moxie::cli
