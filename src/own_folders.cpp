// SPDX-License-Identifier: Apache-2.0
// Where the running code lies on disk.
#include "own_folders.h"

#include <dlfcn.h>

#include <algorithm>

namespace moxie {

namespace fs = std::filesystem;

namespace {

void add_once(std::vector<fs::path>& list, const fs::path& path) {
  if (std::find(list.begin(), list.end(), path) == list.end()) list.push_back(path);
}

}  // namespace

std::vector<fs::path> own_files() {
  std::vector<fs::path> files;
  const auto add = [&](const fs::path& file) {
    std::error_code failed;
    const fs::path real = fs::canonical(file, failed);
    if (!failed) add_once(files, real);
  };
  static const char anchor = 0;
  Dl_info info;
  if (dladdr(&anchor, &info) != 0 && info.dli_fname != nullptr) add(info.dli_fname);
  add("/proc/self/exe");
  return files;
}

std::vector<fs::path> own_folders() {
  std::vector<fs::path> folders;
  for (const fs::path& file : own_files()) {
    add_once(folders, file.parent_path());
    add_once(folders, file.parent_path().parent_path());
  }
  return folders;
}

}  // namespace moxie
