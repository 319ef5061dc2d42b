// SPDX-License-Identifier: Apache-2.0
// A file that a command writes, whole or not at all. It is opened before the command works, so that a path that cannot
// be written is refused at once.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "cli/errors.h"

namespace moxie::cli {

// Throws InputError when `path` can plainly not be written: no such folder, no permission, not a regular file.
void check_writable(const std::string& path);

// Writes beside `path` under another name, which finish() gives it. What is not finished leaves the file at `path` as
// it was, and nothing beside it.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);  // throws as check_writable does, or OutputError
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, size_t bytes);  // throws OutputError
  void write(std::string_view text) { write(text.data(), text.size()); }
  void finish();  // throws OutputError

 private:
  [[noreturn]] void refuse(int reason) const;
  std::string path_, temporary_;
  int file_ = -1;
};

}  // namespace moxie::cli
