// SPDX-License-Identifier: Apache-2.0
// The generic address space that holds global, shared, local and parameter memory.
#pragma once
#include <cstdint>
#include <string>

namespace sim {

enum class Access : uint8_t { Read, Write, ReadWrite };

// A generic address of global memory is the host address of its byte. The other spaces are windows above user space:
//   shared: kSharedWindow | rank of the block in its cluster << 24 | offset
//   param:  kParamWindow | offset
//   local:  kLocalWindow | offset, of the executing lane
// A 32-bit .shared address is `rank << 24 | offset`, as on a GPU, also in the own block: kernels clear bit 24 of their
// own address to name the even block of a pair.
constexpr uint64_t kSharedWindow = 1ull << 56;
constexpr uint64_t kLocalWindow = 2ull << 56;
constexpr uint64_t kParamWindow = 3ull << 56;
constexpr uint64_t kWindowMask = 0xffull << 56;
constexpr int kRankShift = 24;
constexpr uint32_t kSharedOffset = (1u << kRankShift) - 1;

std::string hex(uint64_t value);  // 0x1f, for the text of a fault

}  // namespace sim
