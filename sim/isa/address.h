// Addresses of ld, st, atom and their like: from the lanes' registers to host memory, checked; and what a
// synchronising access tells other warps.
#pragma once
#include <cstdint>

#include "sim/machine/machine.h"

namespace sim {

enum class AddressSpace : uint8_t { Generic, Global, SharedCta, SharedCluster, Local, Param };

// The modifiers that ld, st, atom, red and others have in common.
struct MemoryForm {
  AddressSpace space = AddressSpace::Generic;
  ptx::Type type = ptx::Type::None;
  int vector = 1;
  bool acquire = false, release = false;  // by modifier
  bool strong = false;                    // .relaxed, .volatile or more
  bool cta_scope = false, system_scope = false;
};
// Reads part number `i` of the opcode into the form; false when it is not one of the common modifiers.
bool read_modifier(const std::string& part, MemoryForm* form);

// Pushes the base and leaves the addend in out.imm; kWideBase in out.flags when the base is a 64-bit row.
constexpr uint8_t kWideBase = 1, kAcquire = 2, kRelease = 4, kStrong = 8, kCtaScope = 16, kSystemScope = 32;
void push_base(const ptx::Operand& operand, DecodeContext& context, Instr& out);
uint8_t sync_flags(const MemoryForm& form);

// Host pointers of all lanes of the mask to `size` bytes each, aligned to `alignment`. Faults when one is not inside
// the memory it names, or is in flight. `base` is the index of the base in in.reg.
struct Pointers {
  uint8_t* at[kLanes];
  uint8_t* row = nullptr;  // where lane 0's bytes are, when all 32 lanes' follow each other
};
void resolve(Warp& warp, const Instr& in, AddressSpace space, int base, uint32_t mask, uint32_t size,
             uint32_t alignment, Access access, Pointers* out);

// Happens-before through memory. Before the access of a release, after that of an acquire; for flags without
// kStrong nothing.
void synchronise(Warp& warp, const Instr& in, AddressSpace space, int base, uint32_t mask, bool reads, bool writes);

}  // namespace sim
