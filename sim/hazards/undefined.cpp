// SPDX-License-Identifier: Apache-2.0
#include "sim/hazards/undefined.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <unordered_set>

#include "sim/machine/decode.h"
#include "sim/machine/fault.h"
#include "sim/machine/launch.h"
#include "sim/machine/random.h"

namespace sim {

namespace {

const Kernel& kernel_of(const Warp& warp) { return *warp.cta->cluster->launch->kernel; }
size_t row_size(const Warp& warp, uint32_t row) { return size_t{kernel_of(warp).row_lines[row / 64]} * 64; }

// The lanes in which a row is undefined.
uint32_t undefined_lanes(const Warp& warp, uint32_t row) {
  const UndefinedValues& undefined = *warp.undefined;
  if (row == kNoReg || !undefined.has(row)) return 0;
  const size_t size = row_size(warp, row);
  const uint8_t* const bits = undefined.registers.get() + row;
  uint32_t lanes = 0;
  if (size == 64) {  // a predicate
    std::memcpy(&lanes, bits, 4);
    return lanes;
  }
  for (size_t i = 0; i < size; ++i) lanes |= bits[i] != 0 ? 1u << i / (size / kLanes) : 0;
  return lanes;
}

[[noreturn]] void reaches(const Warp& warp, uint32_t lanes, const std::string& what) {
  const ptx::Instruction* const first = warp.cta->cluster->undefined_read;
  fault(Hazard::Memory, warp, std::countr_zero(lanes),
        what + " depends on uninitialised memory" +
            (first == nullptr
                 ? ""
                 : ", which the cluster first read at " + describe_instruction(kernel_of(warp), first) + ","));
}

}  // namespace

// ---- what is undefined --------------------------------------------------------------------------

void hold_undefined(Warp& warp) {
  if (warp.undefined == nullptr) warp.undefined = std::make_unique<UndefinedValues>(kernel_of(warp).register_bytes);
  warp.attention |= Warp::kUndefined;
}

void met_unwritten(Warp& warp, Cta& owner, uint32_t granule, uint32_t bytes) {
  hold_undefined(warp);
  warp.undefined->met.push_back({owner.shared.bytes + size_t{granule} * 16, bytes});
  note_undefined_read(warp);
}

void note_undefined_read(Warp& warp) {
  Cluster& cluster = *warp.cta->cluster;
  if (cluster.undefined_read == nullptr && warp.current < warp.splits.size())
    cluster.undefined_read = current_origin(warp, -1).source;
}

void note_undefined(Warp& warp, uint32_t row) {
  if (row != kNoReg) warp.undefined->note(row, row_size(warp, row));
}

namespace {

void mark_row(Warp& warp, uint32_t row, uint32_t lanes, bool undefined) {
  const size_t size = row_size(warp, row);
  uint8_t* const bits = warp.undefined->registers.get() + row;
  if (size == 64) {  // a predicate
    uint32_t marked;
    std::memcpy(&marked, bits, 4);
    marked = undefined ? marked | lanes : marked & ~lanes;
    std::memcpy(bits, &marked, 4);
  } else {
    const size_t each = size / kLanes;
    each_lane(lanes,
              [&](int lane) { std::memset(bits + static_cast<size_t>(lane) * each, undefined ? 255 : 0, each); });
  }
  note_undefined(warp, row);
}

}  // namespace

void define_row(Warp& warp, uint32_t row, uint32_t lanes) {
  if (row != kNoReg && warp.undefined->has(row)) mark_row(warp, row, lanes, false);
}

void check_defined(const Warp& warp, const Instr& in, uint32_t row, uint32_t lanes, const char* what) {
  lanes &= undefined_lanes(warp, row);
  if (lanes != 0) reaches(warp, lanes, std::string(what) + " of " + in.source->opcode);
}

namespace {

// The block whose shared memory the byte is in; null for other memory.
Cta* block_of(const Cluster& cluster, const uint8_t* at) {
  for (const auto& cta : cluster.ctas) {
    if (at >= cta->shared.bytes && at < cta->shared.bytes + cta->shared.size) return cta.get();
  }
  return nullptr;
}

bool is_local(const Warp& warp, const uint8_t* at) {
  const size_t bytes = size_t{kLanes} * warp.cta->cluster->launch->local_bytes();
  return warp.local != nullptr && at >= warp.local.get() && at < warp.local.get() + bytes;
}

}  // namespace

void load_undefined(const Warp& warp, const uint8_t* at, uint8_t* bits, size_t bytes) {
  const Cluster& cluster = *warp.cta->cluster;
  if (const Cta* const owner = block_of(cluster, at)) {
    const SharedHistory& history = owner->history;
    const auto offset = static_cast<size_t>(at - owner->shared.bytes);
    for (size_t i = 0; i < bytes;) {
      const size_t byte = offset + i;
      const uint32_t written = history.granules[byte / 16].written;
      if (byte % 16 == 0 && bytes - i >= 16 && written == 0xffff) {
        std::memset(bits + i, 0, 16);
        i += 16;
      } else {
        bits[i++] = (written >> byte % 16 & 1) != 0 ? 0 : history.undefined.empty() ? 0xff : history.undefined[byte];
      }
    }
  } else if (is_local(warp, at)) {
    std::memset(bits, 0, bytes);
    if (warp.undefined != nullptr && !warp.undefined->local.empty())
      std::memcpy(bits, warp.undefined->local.data() + (at - warp.local.get()), bytes);
  } else {
    cluster.launch->global->undefined.load(reinterpret_cast<uint64_t>(at), bits, bytes);
  }
}

void store_undefined(Warp& warp, uint8_t* at, const uint8_t* bits, size_t bytes) {
  store_undefined(current_origin(warp, -1), at, bits, bytes);
}

void store_undefined(const Origin& origin, uint8_t* at, const uint8_t* bits, size_t bytes) {
  Warp& warp = *origin.warp;
  Cluster& cluster = *warp.cta->cluster;
  const bool any = std::any_of(bits, bits + bytes, [](uint8_t b) { return b != 0; });
  if (Cta* const owner = block_of(cluster, at)) {
    SharedHistory& history = owner->history;
    const auto offset = static_cast<size_t>(at - owner->shared.bytes);
    if (any && history.undefined.empty()) history.undefined.assign(owner->shared.size, 0xff);
    for (size_t i = 0; i < bytes; ++i) {
      uint16_t& written = history.granules[(offset + i) / 16].written;
      const auto bit = static_cast<uint16_t>(1u << (offset + i) % 16);
      if (bits[i] == 0) {
        written |= bit;
      } else {
        written &= static_cast<uint16_t>(~bit);
        history.undefined[offset + i] = bits[i];
      }
    }
  } else if (is_local(warp, at)) {
    std::vector<uint8_t>& local = warp.undefined->local;
    if (any && local.empty()) local.resize(size_t{kLanes} * cluster.launch->local_bytes());
    if (!local.empty()) std::memcpy(local.data() + (at - warp.local.get()), bits, bytes);
  } else {
    UndefinedBytes& undefined = cluster.launch->global->undefined;
    if (!any) return undefined.define(reinterpret_cast<uint64_t>(at), bytes);
    undefined.store(
        reinterpret_cast<uint64_t>(at), bits, bytes,
        "kernel '" + cluster.launch->kernel->name + "' at " + describe_instruction(kernel_of(warp), origin.source));
  }
}

bool may_copy_undefined(const Cluster& cluster) {
  return cluster.undefined_read != nullptr || cluster.launch->global->undefined.any();
}

void copy_undefined(const Origin& origin, uint8_t* to, const uint8_t* from, size_t bytes, bool reduces) {
  std::vector<uint8_t> bits(bytes);
  load_undefined(*origin.warp, from, bits.data(), bytes);
  write_undefined(origin, to, bits.data(), bytes, reduces);
}

void write_undefined(const Origin& origin, uint8_t* to, const uint8_t* bits, size_t bytes, bool reduces) {
  if (!reduces) return store_undefined(origin, to, bits, bytes);
  for (size_t i = 0; i < bytes; ++i) {
    constexpr uint8_t kAll = 0xff;
    if (bits[i] != 0) store_undefined(origin, to + i, &kAll, 1);
  }
}

std::vector<uint8_t> undefined_shared(const Warp& warp, const Cta& cta) {
  std::vector<uint8_t> bits(cta.shared.size);
  load_undefined(warp, cta.shared.bytes, bits.data(), bits.size());
  return bits;
}

// ---- trials -------------------------------------------------------------------------------------

namespace {

// Calls visit with the offset of each eight bytes of `size`, and how many there are.
template <class Visit>
inline void each_word(size_t size, Visit visit) {
  size_t i = 0;
  for (; size - i >= 8; i += 8) visit(i, std::integral_constant<size_t, 8>());
  if (i < size) visit(i, size - i);
}

// Puts the values of a trial where bytes are undefined. Trial 0 is what they are.
void fill(const Tried& part, size_t number, int trial, const uint8_t* saved, const uint8_t* compared) {
  const uint64_t seed = (number << 40) + (static_cast<uint64_t>(trial) << 32);
  each_word(part.size, [&](size_t i, auto size) {
    uint64_t undefined = 0, before = 0, value = 0;
    std::memcpy(&undefined, part.undefined + i, size);
    if (undefined == 0) return;
    std::memcpy(&before, saved + i, size);
    if (trial == 0) {
      value = before;
    } else if (trial == 2) {
      value = UINT64_MAX;
    } else if ((trial == 3 || trial == 4) && compared != nullptr) {
      std::memcpy(&value, compared + i, size);
      if (trial == 4) value += 0x100000001;  // one more, in each half
    } else if (trial != 1) {
      value = splitmix64(seed + i);
    }
    value = (before & ~undefined) | (value & undefined);
    std::memcpy(part.bytes + i, &value, size);
  });
}

}  // namespace

void try_values(const std::vector<Tried>& parts, int trials, const std::function<bool(int trial)>& execute) {
  // For each part what it was, what it is after the execution that counts, and what differs from that.
  struct Kept {
    uint8_t *before, *after, *differs;
    const uint8_t* compared;
  };
  std::vector<Kept> kept;
  size_t total = 0;
  for (const Tried& part : parts) total += part.size * (part.only_read ? 1 : 3);
  const auto memory = std::make_unique_for_overwrite<uint8_t[]>(total);
  uint8_t* at = memory.get();
  for (const Tried& part : parts) {
    kept.push_back({at, at + part.size, at + 2 * part.size, nullptr});
    at += part.size * (part.only_read ? 1 : 3);
    std::memcpy(kept.back().before, part.bytes, part.size);
  }
  if (!execute(0)) {
    // Some lanes may have met without the others. What these have written is taken for defined.
    for (size_t p = 0; p < parts.size(); ++p) {
      for (size_t i = 0; i < parts[p].size; ++i) {
        if (parts[p].bytes[i] != kept[p].before[i]) parts[p].undefined[i] = 0;
      }
    }
    return;
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    for (size_t other = 0; parts[p].compared != nullptr && other < parts.size(); ++other) {
      if (parts[p].compared == parts[other].bytes) kept[p].compared = kept[other].before;
    }
    if (parts[p].only_read) continue;
    std::memcpy(kept[p].after, parts[p].bytes, parts[p].size);
    std::memset(kept[p].differs, 0, parts[p].size);
  }
  for (int trial = 1; trial < trials; ++trial) {
    for (size_t p = 0; p < parts.size(); ++p) {
      if (!parts[p].only_read) std::memcpy(parts[p].bytes, kept[p].before, parts[p].size);
      fill(parts[p], p, trial, kept[p].before, kept[p].compared);
    }
    execute(trial);
    for (size_t p = 0; p < parts.size(); ++p) {
      if (parts[p].only_read) continue;
      const uint8_t *const now = parts[p].bytes, *const after = kept[p].after;
      uint8_t* const differs = kept[p].differs;
      each_word(parts[p].size, [&](size_t i, auto size) {
        uint64_t one = 0, other = 0, all = 0;
        std::memcpy(&one, now + i, size);
        std::memcpy(&other, after + i, size);
        std::memcpy(&all, differs + i, size);
        all |= one ^ other;
        std::memcpy(differs + i, &all, size);
      });
    }
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    if (parts[p].only_read) {
      fill(parts[p], p, 0, kept[p].before, nullptr);
      continue;
    }
    std::memcpy(parts[p].bytes, kept[p].after, parts[p].size);
    std::memcpy(parts[p].undefined, kept[p].differs, parts[p].size);
  }
}

// ---- instructions -------------------------------------------------------------------------------

namespace {

enum class Kind {
  Computes,  // from registers to registers, lane by lane
  Meets,     // the same by several lanes together
  Moves,     // between registers and memory: its handler looks after undefined values
  Decides,   // anything else: its operands must be defined
};

Kind kind_of(const Instr& in) {
  static const std::unordered_set<std::string_view> kComputes = {
      "abs",   "add",  "addc",  "and",   "bfe",  "bfi",   "bfind", "bmsk", "brev",     "clz", "cnot", "copysign",
      "cos",   "cvt",  "cvta",  "div",   "dp2a", "dp4a",  "ex2",   "fma",  "isspacep", "lg2", "lop3", "mad",
      "mad24", "madc", "max",   "min",   "mov",  "mul",   "mul24", "neg",  "not",      "or",  "popc", "prmt",
      "rcp",   "rem",  "rsqrt", "sad",   "selp", "set",   "setp",  "shf",  "shl",      "shr", "sin",  "slct",
      "sqrt",  "sub",  "subc",  "szext", "tanh", "testp", "xor",   "fns"};
  static const std::unordered_set<std::string_view> kMeets = {"match", "mma", "movmatrix", "redux", "shfl", "vote"};
  static const std::unordered_set<std::string_view> kMoves = {"ld",  "ldu",      "st",       "atom",
                                                              "red", "ldmatrix", "stmatrix", "discard"};
  const std::vector<std::string>& parts = in.source->parts;
  if (parts[0] == "wmma") return parts[1] == "mma" ? Kind::Meets : Kind::Moves;
  if (kComputes.count(parts[0]) != 0) return Kind::Computes;
  if (kMeets.count(parts[0]) != 0) return Kind::Meets;
  const bool async = parts.size() > 1 && (parts[1] == "async" || parts[1] == "bulk");
  if (kMoves.count(parts[0]) != 0 && !async) return Kind::Moves;
  return Kind::Decides;
}

// How many of its first rows an instruction with a destination writes.
size_t destination_rows(const ptx::Instruction& in) {
  size_t rows = 0;
  for (size_t i = 0; i < (in.dual_destination ? 2u : 1u) && i < in.operands.size(); ++i) {
    using Operand = ptx::Operand;
    const Operand& operand = in.operands[i];
    if (operand.kind == Operand::Kind::Vector)
      rows += operand.elements.size();
    else if (operand.kind == Operand::Kind::Register || operand.kind == Operand::Kind::Sink)
      ++rows;
  }
  return rows;
}

// How many of its first rows an instruction that Decides writes.
size_t written_rows(const ptx::Instruction& in) {
  static const std::unordered_set<std::string_view> kWriters = {"activemask",   "alloca",   "clusterlaunchcontrol",
                                                                "createpolicy", "elect",    "getctarank",
                                                                "mapa",         "mbarrier", "stacksave"};
  const bool reduces = (in.parts[0] == "bar" || in.parts[0] == "barrier") && in.parts.size() > 2 &&
                       std::find(in.parts.begin(), in.parts.end(), "red") != in.parts.end();
  return kWriters.count(in.parts[0]) == 0 && !reduces ? 0 : destination_rows(in);
}

// What a branch forward leads to where all instructions before both its sides meet only compute, from registers and
// constants to registers, or branch forward as well. ptxas makes guards or selections of such branches.
struct Sides {
  const Instr* meet = nullptr;          // null: the branch is no such one
  std::vector<const Instr*> computing;  // on either side
};

bool only_computes(const Instr& in) {
  const std::vector<std::string>& parts = in.source->parts;
  const bool carries = parts[0] == "addc" || parts[0] == "subc" || parts[0] == "madc" ||
                       std::find(parts.begin(), parts.end(), "cc") != parts.end();
  const bool constant = parts[0] == "ld" && (parts[1] == "param" || parts[1] == "const");
  return (kind_of(in) == Kind::Computes && !carries) || constant;
}

Sides sides_of(const Warp& warp, const Instr& branch) {
  constexpr ptrdiff_t kMost = 64;
  const Instr* const code = kernel_of(warp).code.data();
  const auto begin = &branch - code + 1;
  ptrdiff_t meet = branch.target;
  if (branch.source->opcode != "bra" || meet < begin || meet - begin > kMost) return {};
  std::array<bool, kMost + 1> reached = {};  // the instructions from `begin` on
  const auto reach = [&](ptrdiff_t pc) { reached[static_cast<size_t>(pc - begin)] = true; };
  reach(begin), reach(meet);
  Sides sides;
  for (ptrdiff_t pc = begin; pc < meet; ++pc) {
    if (!reached[static_cast<size_t>(pc - begin)]) continue;
    const Instr& in = code[pc];
    const bool branches = in.source->parts[0] == "bra";
    if (branches) {
      if (in.target <= pc || in.target - begin > kMost) return {};
      reach(in.target);
      meet = std::max<ptrdiff_t>(meet, in.target);
    } else if (only_computes(in)) {
      sides.computing.push_back(&in);
    } else {
      return {};
    }
    if (!branches || in.guard != UINT32_MAX) reach(pc + 1);
  }
  sides.meet = code + meet;
  return sides;
}

// Whether an operand in the row, at a place in Instr::reg, may be undefined: of wgmma.mma_async all but the descriptors
// and predicates, of tcgen05.st and st.async what they store, of barriers what they reduce.
bool takes_undefined(const ptx::Instruction& in, const Warp& warp, uint32_t row, size_t place) {
  const std::string_view name = in.parts[0];
  if (name == "wgmma") return row_size(warp, row) == 128;
  if (name == "tcgen05") return in.parts.size() > 1 && (in.parts[1] == "ld" || (in.parts[1] == "st" && place > 0));
  if (name == "st" || name == "red") return place > 0;  // the address comes first
  // A hint may have any address.
  if (name == "prefetch" || name == "prefetchu" || name == "nanosleep") return true;
  return (name == "bar" || name == "barrier") && row_size(warp, row) == 64;
}

// Executes for the lanes of the mask what computes from registers to registers.
Step compute(Warp& warp, const Instr& in, uint32_t lanes, uint32_t mask) {
  UndefinedValues& undefined = *warp.undefined;
  std::vector<uint32_t> rows;
  for (uint16_t i = 0; i < in.reg_count; ++i) {
    if (in.reg[i] != kNoReg && std::find(rows.begin(), rows.end(), in.reg[i]) == rows.end()) rows.push_back(in.reg[i]);
  }
  std::vector<Tried> parts;
  for (size_t i = 0; i < rows.size(); ++i) {
    Tried part{warp.registers.get() + rows[i], undefined.registers.get() + rows[i], row_size(warp, rows[i])};
    for (size_t next = 1; next < rows.size() && part.compared == nullptr; ++next) {
      const uint32_t other = rows[(i + next) % rows.size()];
      if (row_size(warp, other) == part.size) part.compared = warp.registers.get() + other;
    }
    parts.push_back(part);
  }
  parts.push_back({reinterpret_cast<uint8_t*>(&warp.carry), reinterpret_cast<uint8_t*>(&undefined.carry), 4});
  // Whether a lane executes it may be undefined as well.
  uint32_t guard = in.guard != UINT32_MAX ? warp.predicate(in.guard) : 0, guard_undefined = 0;
  if (in.guard != UINT32_MAX) {
    guard_undefined = undefined_lanes(warp, in.guard) & lanes;
    parts.push_back({reinterpret_cast<uint8_t*>(&guard), reinterpret_cast<uint8_t*>(&guard_undefined), 4});
  }
  Step step = Step::Next;
  Statistics* const statistics = warp.cta->cluster->statistics;
  try_values(parts, kTrials, [&](int trial) {
    if (trial == 0) {
      step = in.execute(warp, in, mask);
      warp.cta->cluster->statistics = nullptr;
      return step == Step::Next;
    }
    in.execute(warp, in, in.guard == UINT32_MAX ? mask : lanes & (in.guard_negated ? ~guard : guard));
    return true;
  });
  warp.cta->cluster->statistics = statistics;
  for (const uint32_t row : rows) note_undefined(warp, row);
  return step;
}

bool meets_undefined(const Warp& warp, const Instr& in) {
  for (uint16_t i = 0; i < in.reg_count; ++i) {
    if (in.reg[i] != kNoReg && warp.undefined->has(in.reg[i])) return true;
  }
  return false;
}

}  // namespace

Step execute_with_undefined(Warp& warp, const Instr& in, uint32_t lanes, uint32_t mask) {
  UndefinedValues& undefined = *warp.undefined;
  undefined.met.clear();
  const uint32_t guard = in.guard == UINT32_MAX ? 0 : undefined_lanes(warp, in.guard) & lanes;
  Step step;
  if (guard == 0 && undefined.carry == 0 && !meets_undefined(warp, in)) {
    step = in.execute(warp, in, mask);
  } else {
    const Kind kind = kind_of(in);
    const std::string& name = in.source->opcode;
    if (guard != 0 && kind != Kind::Computes) reaches(warp, guard, "whether " + name + " is executed");
    if (kind == Kind::Computes) {
      step = compute(warp, in, lanes, mask);
    } else if (kind == Kind::Meets) {
      static const std::unordered_set<std::string_view> kWithoutMask = {"mma", "movmatrix", "wmma"};
      const bool sparse = has_part(*in.source, "sp") || has_part(*in.source, "sp::ordered_metadata");
      if ((sparse || kWithoutMask.count(in.source->parts[0]) == 0) && in.reg_count > 0)
        check_defined(warp, in, in.reg[in.reg_count - 1], mask, sparse ? "the metadata" : "the membermask");
      step = compute(warp, in, lanes, mask);
    } else if (kind == Kind::Moves) {
      step = in.execute(warp, in, mask);
    } else {
      const size_t written = written_rows(*in.source);
      for (size_t i = written; i < in.reg_count; ++i) {
        if (in.reg[i] != kNoReg && undefined.has(in.reg[i]) && !takes_undefined(*in.source, warp, in.reg[i], i))
          check_defined(warp, in, in.reg[i], mask, "an operand");
      }
      step = in.execute(warp, in, mask);
      if (step == Step::Next) {
        for (size_t i = 0; i < std::min<size_t>(written, in.reg_count); ++i) define_row(warp, in.reg[i], mask);
      }
    }
  }
  // An exited warp keeps its last values.
  if (undefined.none()) warp.attention &= static_cast<uint8_t>(~Warp::kUndefined);
  return step;
}

bool skip_undefined_branch(Warp& warp, const Instr& in) {
  Warp::Split& split = warp.splits[warp.current];
  const uint32_t lanes = undefined_lanes(warp, in.guard) & split.mask;
  if (lanes == 0) return false;
  const Sides sides = sides_of(warp, in);
  if (sides.meet == nullptr) return false;
  for (const Instr* const each : sides.computing) {
    const size_t rows = std::min<size_t>(destination_rows(*each->source), each->reg_count);
    for (size_t i = 0; i < rows; ++i) {
      if (each->reg[i] != kNoReg) mark_row(warp, each->reg[i], lanes, true);
    }
  }
  const auto meet = static_cast<int>(sides.meet - kernel_of(warp).code.data());
  if (split.mask == lanes) {
    split.pc = meet;
  } else {
    split.mask &= ~lanes;
    warp.splits.push_back({meet, lanes, 0, false});
  }
  return true;
}

void skip_with_undefined(Warp& warp, const Instr& in, uint32_t lanes) {
  if ((undefined_lanes(warp, in.guard) & lanes) != 0) execute_with_undefined(warp, in, lanes, 0);
}

}  // namespace sim
