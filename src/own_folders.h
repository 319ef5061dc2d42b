// Where the running code lies on disk: files that are shipped with it are found relative to it.
#pragma once
#include <filesystem>
#include <vector>

namespace moxie {

// The folder of the file that holds the library (the program itself, or a shared library) and the program's,
// each followed by the two folders above it; no folder twice.
std::vector<std::filesystem::path> own_folders();

}  // namespace moxie
