// SPDX-License-Identifier: Apache-2.0
// Where the running code lies on disk: files that are shipped with it are found relative to it.
#pragma once
#include <filesystem>
#include <vector>

namespace moxie {

// The file that holds the library's code (a shared library, or the program itself) and the program's file, without
// symbolic links; no file twice.
std::vector<std::filesystem::path> own_files();

// The folder of each own file, followed by the folder above it; no folder twice.
std::vector<std::filesystem::path> own_folders();

}  // namespace moxie
