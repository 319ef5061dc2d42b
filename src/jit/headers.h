// SPDX-License-Identifier: Apache-2.0
// The headers inside the library, kernel sources and the CUDA headers that they need, and which of them a source uses.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moxie::jit {

// One entry of the table that the build writes (cmake/embed_headers.cpp).
struct EmbeddedHeader {
  const char* name;                    // as #include lines say it, such as moxie/scheduler.cuh or cuda/ptx
  const char* text;                    // a CUDA header's has lost its comments but the first, and no line
  const char* digest;                  // SHA-256 of its normalized() text
  std::span<const uint16_t> includes;  // indices of the embedded headers that it names
  bool own;                            // one of Moxie's, not the CUDA Toolkit's
};

// All of them, sorted by name.
std::span<const EmbeddedHeader> embedded_headers();

// Moxie's own, include name -> text.
const std::map<std::string, std::string>& kernel_headers();

struct IncludedHeader {
  const char* name;
  const char* text;
  const char* digest;  // nullptr for one of those given, which is hashed when it is asked for
};

// What `source` includes, directly and through others, sorted by name: from `given` or else from the embedded ones.
// Includes are followed whether or not a condition would skip them. Names found nowhere are left out. The result points
// into `given`.
std::vector<IncludedHeader> included_headers(std::string_view source, const std::map<std::string, std::string>& given);

}  // namespace moxie::jit
