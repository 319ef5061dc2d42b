// Where the running code lies on disk.
#include "own_folders.h"

#include <dlfcn.h>

#include <algorithm>

namespace moxie {

namespace fs = std::filesystem;

std::vector<fs::path> own_folders() {
  std::vector<fs::path> folders;
  const auto add = [&](const fs::path& file) {
    std::error_code failed;
    fs::path folder = fs::canonical(file, failed).parent_path();
    for (int level = 0; !failed && level < 3; ++level, folder = folder.parent_path()) {
      if (std::find(folders.begin(), folders.end(), folder) == folders.end()) folders.push_back(folder);
    }
  };
  static const char anchor = 0;
  Dl_info info;
  if (dladdr(&anchor, &info) != 0 && info.dli_fname != nullptr) add(info.dli_fname);
  add("/proc/self/exe");
  return folders;
}

}  // namespace moxie
