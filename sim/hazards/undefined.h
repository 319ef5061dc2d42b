// SPDX-License-Identifier: Apache-2.0
// Values that depend on memory that nobody has written. They may be loaded, computed with and stored; they must not be
// an address, decide what is executed, or be read by the host. Where reading such memory is no fault by itself
// (Rules::strictness), a warp that has read some is executed by execute_with_undefined() as long as it holds any.
//
// What becomes of undefined bits is found by trial: the instruction is executed once more for each of several values of
// them, and what differs between the results is undefined. So a product with an integer zero, a conjunction with false
// or the side of a selection that is not taken are known to be defined, for all instructions in one way.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/machine/hierarchy.h"

namespace sim {

// From now on the warp is executed by execute_with_undefined(), until it holds no undefined value.
void hold_undefined(Warp& warp);
inline bool holds_undefined(const Warp& warp) { return (warp.attention & Warp::kUndefined) != 0; }
// A warp has read bytes of shared memory, 16 at most, that nobody has written.
void met_unwritten(Warp& warp, Cta& owner, uint32_t granule, uint32_t bytes);
// It executes what reads memory that nobody has written. Faults name the first such instruction of the cluster.
void note_undefined_read(Warp& warp);

// Executes an instruction for the lanes of the mask. `lanes` are those that its guard has chosen among.
Step execute_with_undefined(Warp& warp, const Instr& in, uint32_t lanes, uint32_t mask);
// For an instruction whose guard no lane passes.
void skip_with_undefined(Warp& warp, const Instr& in, uint32_t lanes);
// For a branch: lanes whose guard is undefined go where its sides meet, if all before only computes. What either side
// computes is undefined in them from now on. False when there are none; else the warp goes on with what is left of its
// current lanes, or there.
bool skip_undefined_branch(Warp& warp, const Instr& in);

// Faults when the row of an operand is undefined in one of the lanes. `what`: "the address".
void check_defined(const Warp& warp, const Instr& in, uint32_t row, uint32_t lanes, const char* what);

// The undefined bits of bytes of shared memory of the cluster, of the warp's local memory, or of global memory.
void load_undefined(const Warp& warp, const uint8_t* at, uint8_t* bits, size_t bytes);
void store_undefined(Warp& warp, uint8_t* at, const uint8_t* bits, size_t bytes);
void store_undefined(const Origin& origin, uint8_t* at, const uint8_t* bits, size_t bytes);
// Whether a copy by the cluster may meet any.
bool may_copy_undefined(const Cluster& cluster);
// A copy of shared or global memory into shared or global memory, or a reduction, whose bytes depend on those it takes.
void copy_undefined(const Origin& origin, uint8_t* to, const uint8_t* from, size_t bytes, bool reduces = false);
// Where a copy has the bits of its source already.
void write_undefined(const Origin& origin, uint8_t* to, const uint8_t* bits, size_t bytes, bool reduces = false);
// Those of all shared memory of a block.
std::vector<uint8_t> undefined_shared(const Warp& warp, const Cta& cta);

// The undefined bits take the place of the registers, so that what moves registers moves these.
class UndefinedRegisters {
 public:
  explicit UndefinedRegisters(Warp& warp) : warp_(warp) { std::swap(warp.registers, warp.undefined->registers); }
  ~UndefinedRegisters() { std::swap(warp_.registers, warp_.undefined->registers); }
  UndefinedRegisters(const UndefinedRegisters&) = delete;
  UndefinedRegisters& operator=(const UndefinedRegisters&) = delete;

 private:
  Warp& warp_;
};
// Looks at the bits of a row again.
void note_undefined(Warp& warp, uint32_t row);
// The row's bits are defined in the lanes.
void define_row(Warp& warp, uint32_t row, uint32_t lanes);

// What a trial executes with, and what it changes: bytes, and which of their bits are undefined. What differs between
// the trials becomes undefined.
struct Tried {
  uint8_t* bytes;
  uint8_t* undefined;
  size_t size;
  bool only_read = false;             // execution changes nothing of it
  const uint8_t* compared = nullptr;  // another operand, which it may be compared with
};
// So many executions tell apart what single bits depend on, and these for products, where a NaN reaches all that does.
constexpr int kTrials = 9, kProductTrials = 5;
// Calls execute with the number of each trial. Number 0 is the execution that counts, with the bytes as they are; when
// it answers false the instruction was not executed, or for some of its lanes alone, and there are no others.
void try_values(const std::vector<Tried>& parts, int trials, const std::function<bool(int trial)>& execute);

}  // namespace sim
