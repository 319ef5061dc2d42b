// SPDX-License-Identifier: Apache-2.0
// The generic address space that holds global, shared, local and parameter memory.
#pragma once
#include <cstdint>
#include <string>

namespace sim {

enum class Access : uint8_t { Read, Write, ReadWrite };

// A generic address of global memory is the host address of its byte. The other spaces are windows above user space:
//   shared: kSharedWindow | (block rank + 1) << 24 | offset
//   param:  kParamWindow | offset
//   local:  kLocalWindow | offset, of the executing lane
// cvta.shared of an address without a rank names the own block's rank. A 32-bit .shared address is `offset` in the own
// block, or (rank + 1) << 24 | offset as mapa gives it.
constexpr uint64_t kSharedWindow = 1ull << 56;
constexpr uint64_t kLocalWindow = 2ull << 56;
constexpr uint64_t kParamWindow = 3ull << 56;
constexpr uint64_t kWindowMask = 0xffull << 56;

std::string hex(uint64_t value);  // 0x1f, for the text of a fault

}  // namespace sim
