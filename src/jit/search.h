// SPDX-License-Identifier: Apache-2.0
// Where NVRTC may lie. The order is a promise to users: docs/nvrtc.md.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace moxie::jit {

// Folders in which NVRTC is looked for when MOXIE_NVRTC does not name it, best first. They need not exist.
std::vector<std::filesystem::path> nvrtc_folders();

// Files that may be NVRTC, best first: MOXIE_NVRTC's alone when it is set, else those in nvrtc_folders(). Nothing is
// loaded.
std::vector<std::filesystem::path> nvrtc_candidates();

// The names that NVRTC has, newest first. The dynamic linker is asked for them when no candidate can be used.
std::vector<std::string> nvrtc_names();

}  // namespace moxie::jit
