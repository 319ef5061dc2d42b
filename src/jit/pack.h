// SPDX-License-Identifier: Apache-2.0
// Packs: caches that are made beforehand and shipped, so that the machine that uses them needs no compiler.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "jit/jit.h"

namespace moxie::jit {

struct PackSummary {
  int kernels = 0;     // in the pack now that were asked for
  int compiled = 0;    // the others were there already
  uint64_t bytes = 0;  // of all of them
};

// Compiles every request with `threads` threads into `folder`, which becomes a pack (jit.h, Cache) readable by all;
// what it holds already is kept. VERSION is written first, so that a pack that was cut short is usable as far as it
// goes and is completed by packing again. Throws Error: InvalidArgument (the folder holds a pack of another compiler),
// Compile, OutOfMemory (the folder cannot be written; the sentence says why).
PackSummary write_pack(const std::filesystem::path& folder, const std::vector<Request>& requests, int threads);

}  // namespace moxie::jit
