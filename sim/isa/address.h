// SPDX-License-Identifier: Apache-2.0
// Addresses of ld, st, atom and their like: from the lanes' registers to host memory, checked; and what a
// synchronizing access tells other warps.
#pragma once
#include <cstdint>

#include "sim/machine/decode.h"
#include "sim/machine/hierarchy.h"
#include "sim/machine/launch.h"
#include "sim/memory/address_space.h"

namespace sim {

// A value of 128 bits, as ld.b128 and atom.b128 move it.
struct Quad {
  uint64_t low = 0, high = 0;
};

enum class AddressSpace : uint8_t { Generic, Global, SharedCta, SharedCluster, Local, Param };

// The form that memory instructions have in common: their address operand, and what modifiers say of the access.
struct MemoryForm {
  int64_t addend = 0;
  AddressSpace space = AddressSpace::Generic;
  ptx::Type type = ptx::Type::None;
  // The elements of a lane.
  uint8_t vector = 1;
  // The place of the base in Instr::reg.
  ValueOperand base;
  // The base is a row of 64-bit lanes.
  bool wide_base : 1 = false;
  bool acquire : 1 = false;
  bool release : 1 = false;
  // Set by .relaxed, .volatile and all that is stronger.
  bool strong : 1 = false;
  bool cta_scope : 1 = false;
  bool cluster_scope : 1 = false;
  bool system_scope : 1 = false;
  Scope scope() const { return cta_scope ? Scope::Cta : cluster_scope ? Scope::Wide : Scope::Grid; }
  Reach reach() const {
    if (!strong) return Reach::Weak;
    if (system_scope) return Reach::System;
    return cta_scope ? Reach::Cta : cluster_scope ? Reach::Cluster : Reach::Device;
  }
};
// Reads a part of the opcode into the form. False when it is not one of the common modifiers.
bool read_modifier(const std::string& part, MemoryForm* form);
// Pushes the base of an address operand and leaves its place and the addend in the form.
void push_base(const ptx::Operand& operand, DecodeContext& context, MemoryForm* form);

// Host pointers of all lanes of the mask to `size` bytes each, aligned to `alignment`. Faults when one is not inside
// the memory it names, or is in flight.
struct Pointers {
  uint8_t* at[kLanes];
  // Where lane 0's bytes are, when all 32 lanes' follow each other.
  uint8_t* row = nullptr;
};
void resolve(Warp& warp, const Instr& in, const MemoryForm& form, uint32_t mask, uint32_t size, uint32_t alignment,
             Access access, Pointers* out);
// The same for the whole warp, `distance[lane]` bytes behind each lane's address, aligned to the size.
void resolve_behind(Warp& warp, const Instr& in, const MemoryForm& form, const uint64_t* distance, uint32_t size,
                    Access access, Pointers* out);

// Establishes happens-before through memory. It is called before the access of a release and after that of an acquire.
// An access that is not strong establishes nothing.
void synchronize(Warp& warp, const Instr& in, const MemoryForm& form, uint32_t mask, bool reads, bool writes);

}  // namespace sim
