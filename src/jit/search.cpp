// SPDX-License-Identifier: Apache-2.0
// See search.h.
#include "jit/search.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "own_folders.h"

namespace moxie::jit {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The folders in `parent` whose names are `prefix` and a version, such as python3.12 or cuda-13.1, newest first.
std::vector<fs::path> versions_in(const fs::path& parent, const std::string& prefix) {
  std::vector<std::pair<std::pair<int, int>, fs::path>> found;
  std::error_code failed;
  for (fs::directory_iterator at(parent, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    char* dot = nullptr;
    const long major = std::strtol(name.c_str() + prefix.size(), &dot, 10);
    const long minor = *dot == '.' ? std::strtol(dot + 1, nullptr, 10) : 0;
    found.push_back({{static_cast<int>(major), static_cast<int>(minor)}, at->path()});
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<fs::path> folders;
  for (auto& [version, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

// NVIDIA's wheels unpack below site-packages: those of CUDA 13 into nvidia/cu13, those of CUDA 12 each into a folder of
// its own.
void add_wheels(std::vector<fs::path>& folders, const fs::path& site_packages) {
  folders.push_back(site_packages / "nvidia/cu13/lib");
  folders.push_back(site_packages / "nvidia/cu13/lib64");  // a link to a toolkit, as build folders have it
  folders.push_back(site_packages / "nvidia/cuda_nvrtc/lib");
}

void add_toolkit(std::vector<fs::path>& folders, const fs::path& root) {
  folders.push_back(root / "lib64");
  folders.push_back(root / "lib");
  folders.push_back(root / "targets/x86_64-linux/lib");
}

// A virtual or Conda environment, or the installation of Python itself.
void add_python(std::vector<fs::path>& folders, const fs::path& prefix) {
  for (const fs::path& library : versions_in(prefix / "lib", "python3.")) {
    add_wheels(folders, library / "site-packages");
    add_wheels(folders, library / "dist-packages");
  }
}

}  // namespace

std::vector<fs::path> nvrtc_folders() {
  std::vector<fs::path> folders;
  for (const fs::path& folder : own_folders()) {
    folders.push_back(folder);
    folders.push_back(folder / "lib");
    add_wheels(folders, folder);
  }
  for (const fs::path& file : own_files()) {
    for (fs::path folder = file.parent_path(); folder != folder.root_path(); folder = folder.parent_path()) {
      const std::string name = folder.filename().string();
      if (name == "site-packages" || name == "dist-packages") add_wheels(folders, folder);
    }
  }
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = variable(name);
    if (prefix.empty()) continue;
    add_python(folders, prefix);
    add_toolkit(folders, prefix);  // Conda's packages of the toolkit
  }
  const fs::path program = own_files().empty() ? fs::path() : own_files().back();
  if (program.filename().string().starts_with("python")) add_python(folders, program.parent_path().parent_path());
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string root = variable(name); !root.empty()) add_toolkit(folders, root);
  }
  const std::string search = variable("LD_LIBRARY_PATH");
  for (size_t at = 0; at < search.size();) {
    const size_t end = std::min(search.find(':', at), search.size());
    if (end > at) folders.emplace_back(search.substr(at, end - at));
    at = end + 1;
  }
  add_toolkit(folders, "/usr/local/cuda");
  for (const fs::path& root : versions_in("/usr/local", "cuda-")) add_toolkit(folders, root);
  for (const char* system : {"/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"}) {
    folders.emplace_back(system);
  }
  std::vector<fs::path> once;
  for (const fs::path& folder : folders) {
    if (std::find(once.begin(), once.end(), folder) == once.end()) once.push_back(folder);
  }
  return once;
}

std::vector<std::string> nvrtc_names() { return {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}; }

std::vector<fs::path> nvrtc_candidates() {
  std::vector<fs::path> files;
  std::error_code failed;
  const auto add_folder = [&](const fs::path& folder) {
    for (const std::string& name : nvrtc_names()) {
      if (fs::exists(folder / name, failed)) {
        files.push_back(folder / name);
        return;
      }
    }
  };
  if (const std::string named = variable("MOXIE_NVRTC"); !named.empty()) {
    if (fs::is_directory(named, failed)) {
      add_folder(named);
    } else if (fs::exists(named, failed)) {
      files.push_back(fs::absolute(named, failed));  // a path without a slash would be searched for
    }
    return files;
  }
  for (const fs::path& folder : nvrtc_folders()) add_folder(folder);
  return files;
}

}  // namespace moxie::jit
