// Instructions that join the lanes of a warp: shfl.sync, vote.sync, match.sync, redux.sync, elect.sync, activemask,
// bar.warp.sync (PTX ISA 9.7.9.6, 9.7.13.2, 9.7.13.9 to 9.7.13.14), ldmatrix, stmatrix, movmatrix (9.7.14.5.15 to 17).
#include <algorithm>
#include <bit>
#include <cmath>

#include "sim/isa/address.h"
#include "sim/isa/whole_warp.h"

namespace sim {

bool require_all_lanes(Warp& warp, uint32_t mask) {
  if (!converged(warp, mask)) return false;
  if (mask != kFullMask) fault(Hazard::IllegalUse, warp, -1, "some threads of the warp have exited");
  return true;
}

namespace {

using ptx::Operand;
using ptx::Type;

constexpr uint32_t kUndefined = 0xffffffffu;  // what an undefined result holds, as memory that was never written

bool has_part(const ptx::Instruction& source, const char* part) {
  return std::find(source.parts.begin(), source.parts.end(), part) != source.parts.end();
}

template <class Visit>
inline void each_lane(uint32_t mask, Visit visit) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) visit(std::countr_zero(rest));
}

void write_predicate(Warp& warp, uint32_t offset, uint32_t mask, uint32_t value) {
  if (offset == kNoReg) return;
  uint32_t& p = *warp.row<uint32_t>(offset);
  p = (p & ~mask) | (value & mask);
}

void write_row(Warp& warp, uint32_t offset, uint32_t mask, uint32_t value) {
  if (offset == kNoReg) return;
  uint32_t* const row = warp.row<uint32_t>(offset);
  each_lane(mask, [&](int lane) { row[lane] = value; });
}

[[noreturn]] void not_a_member(const Warp& warp, int lane) {
  fault(Hazard::IllegalUse, warp, lane, "the lane is not in its own membermask");
}

// Runs f for each group of lanes that gave one membermask and is complete: every live member is here.
template <class F>
Step rendezvous(Warp& warp, const Instr& in, uint32_t mask, uint32_t members_row, F f) {
  const uint32_t* const members = warp.row<uint32_t>(members_row);
  const uint32_t first = members[std::countr_zero(mask)];
  bool one_group = true;
  each_lane(mask, [&](int lane) { one_group &= members[lane] == first; });
  if (one_group) [[likely]] {
    if ((mask & ~first) != 0) not_a_member(warp, std::countr_zero(mask & ~first));
    if (!gathered(warp, mask, first)) return Step::Wait;
    // Lanes of a larger mask cannot be here: each is a member.
    f(warp, in, mask);
    return Step::Next;
  }
  uint32_t done = 0;
  for (uint32_t rest = mask; rest != 0;) {
    const uint32_t wanted = members[std::countr_zero(rest)];
    uint32_t lanes = 0;
    each_lane(rest, [&](int lane) { lanes |= members[lane] == wanted ? 1u << lane : 0; });
    rest &= ~lanes;
    if ((lanes & ~wanted) != 0) not_a_member(warp, std::countr_zero(lanes & ~wanted));
    if ((wanted & warp.live & ~lanes) != 0) continue;
    warp.reads.order(warp, lanes);
    f(warp, in, lanes);
    done |= lanes;
  }
  if (done == mask) return Step::Next;
  if (done != 0) warp.move_lanes(done, warp.pc() + 1);
  warp.splits[warp.current].apart = true;
  return Step::Wait;
}

// ---- shfl --------------------------------------------------------------------------------------

enum ShflMode : uint8_t { kUp, kDown, kBfly, kIdx };

void shfl_group(Warp& warp, const Instr& in, uint32_t mask) {
  const uint32_t* const a = warp.row<uint32_t>(in.reg[2]);
  const uint32_t* const b = warp.row<uint32_t>(in.reg[3]);
  const uint32_t* const c = warp.row<uint32_t>(in.reg[4]);
  uint32_t values[kLanes];
  uint32_t in_range = 0;
  each_lane(mask, [&](int lane) {
    const int bval = static_cast<int>(b[lane] & 31), cval = static_cast<int>(c[lane] & 31);
    const int segment = static_cast<int>(c[lane] >> 8 & 31);
    const int highest = (lane & segment) | (cval & ~segment);
    const int lowest = lane & segment;
    int j = 0;
    bool valid = false;
    switch (in.kind) {
      case kUp:
        j = lane - bval;
        valid = j >= highest;
        break;
      case kDown:
        j = lane + bval;
        valid = j <= highest;
        break;
      case kBfly:
        j = lane ^ bval;
        valid = j <= highest;
        break;
      case kIdx:
        j = lowest | (bval & ~segment);
        valid = j <= highest;
        break;
    }
    if (!valid)
      j = lane;
    else
      in_range |= 1u << lane;
    values[lane] = mask >> j & 1 ? a[j] : kUndefined;
  });
  if (in.reg[0] != kNoReg) {
    uint32_t* const d = warp.row<uint32_t>(in.reg[0]);
    each_lane(mask, [&](int lane) { d[lane] = values[lane]; });
  }
  write_predicate(warp, in.reg[1], mask, in_range);
}
Step shfl(Warp& warp, const Instr& in, uint32_t mask) { return rendezvous(warp, in, mask, in.reg[5], shfl_group); }

// Destinations `d|p`: two rows always, the second a sink when it is not written.
size_t push_destinations(const ptx::Instruction& source, DecodeContext& context, Type type) {
  context.push(source.operands.at(0), type);
  if (source.dual_destination) {
    context.push(source.operands.at(1), Type::Pred);
    return 2;
  }
  context.push(Operand{}, Type::Pred);
  return 1;
}

bool decode_shfl(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() != 4 || source.parts[1] != "sync") return false;
  static const char* const kModes[] = {"up", "down", "bfly", "idx"};
  const auto mode = std::find(std::begin(kModes), std::end(kModes), source.parts[2]);
  if (mode == std::end(kModes)) return false;
  out.kind = static_cast<uint8_t>(mode - kModes);
  size_t i = push_destinations(source, context, Type::B32);
  if (source.operands.size() != i + 4) throw Unsupported("a, b, c and a membermask are needed");
  for (; i < source.operands.size(); ++i) context.push(source.operands[i], Type::B32);
  out.execute = shfl;
  return true;
}

// ---- vote, activemask, elect, match ------------------------------------------------------------

enum VoteMode : uint8_t { kAll, kAny, kUni, kBallot };
constexpr uint8_t kNegated = 1;

void vote_group(Warp& warp, const Instr& in, uint32_t mask) {
  uint32_t votes = warp.predicate(in.reg[1]);
  if (in.flags & kNegated) votes = ~votes;
  votes &= mask;
  if (in.kind == kBallot) {
    write_row(warp, in.reg[0], mask, votes);
    return;
  }
  const bool all = votes == mask, none = votes == 0;
  const bool result = in.kind == kAll ? all : in.kind == kAny ? !none : all || none;
  write_predicate(warp, in.reg[0], mask, result ? mask : 0);
}
Step vote(Warp& warp, const Instr& in, uint32_t mask) { return rendezvous(warp, in, mask, in.reg[2], vote_group); }

bool decode_vote(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() < 3 || source.parts[1] != "sync") return false;
  static const char* const kModes[] = {"all", "any", "uni", "ballot"};
  const auto mode = std::find(std::begin(kModes), std::end(kModes), source.parts[2]);
  if (mode == std::end(kModes)) return false;
  out.kind = static_cast<uint8_t>(mode - kModes);
  context.push(source.operands.at(0), out.kind == kBallot ? Type::B32 : Type::Pred);
  context.push(source.operands.at(1), Type::Pred);
  context.push(source.operands.at(2), Type::B32);
  out.flags = source.operands[1].negated ? kNegated : 0;
  out.execute = vote;
  return true;
}

Step activemask(Warp& warp, const Instr& in, uint32_t mask) {
  write_row(warp, in.reg[0], mask, mask);
  return Step::Next;
}
bool decode_activemask(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  context.push(source.operands.at(0), Type::B32);
  out.execute = activemask;
  return true;
}

void elect_group(Warp& warp, const Instr& in, uint32_t mask) {
  const int leader = std::countr_zero(mask);
  write_row(warp, in.reg[0], mask, static_cast<uint32_t>(leader));
  write_predicate(warp, in.reg[1], mask, 1u << leader);
}
Step elect(Warp& warp, const Instr& in, uint32_t mask) { return rendezvous(warp, in, mask, in.reg[2], elect_group); }

bool decode_elect(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() != 2 || source.parts[1] != "sync") return false;
  const size_t i = push_destinations(source, context, Type::B32);
  context.push(source.operands.at(i), Type::B32);
  out.execute = elect;
  return true;
}

template <class T>
void match_any_group(Warp& warp, const Instr& in, uint32_t mask) {
  const T* const a = warp.row<T>(in.reg[2]);
  uint32_t result[kLanes];
  each_lane(mask, [&](int lane) {
    result[lane] = 0;
    each_lane(mask, [&](int other) { result[lane] |= a[other] == a[lane] ? 1u << other : 0; });
  });
  if (in.reg[0] == kNoReg) return;
  uint32_t* const d = warp.row<uint32_t>(in.reg[0]);
  each_lane(mask, [&](int lane) { d[lane] = result[lane]; });
}
template <class T>
void match_all_group(Warp& warp, const Instr& in, uint32_t mask) {
  const T* const a = warp.row<T>(in.reg[2]);
  bool same = true;
  each_lane(mask, [&](int lane) { same &= a[lane] == a[std::countr_zero(mask)]; });
  write_row(warp, in.reg[0], mask, same ? mask : 0);
  write_predicate(warp, in.reg[1], mask, same ? mask : 0);
}
template <class T>
Step match(Warp& warp, const Instr& in, uint32_t mask) {
  return rendezvous(warp, in, mask, in.reg[3], in.kind == kAll ? match_all_group<T> : match_any_group<T>);
}

bool decode_match(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() != 4 || source.parts[2] != "sync") return false;
  if (source.parts[1] != "all" && source.parts[1] != "any") return false;
  out.kind = source.parts[1] == "all" ? kAll : kAny;
  const Type type = ptx::type_from_name(source.parts[3]);
  if (type != Type::B32 && type != Type::B64) return false;
  const size_t i = push_destinations(source, context, Type::B32);
  context.push(source.operands.at(i), type);
  context.push(source.operands.at(i + 1), Type::B32);
  out.execute = type == Type::B64 ? match<uint64_t> : match<uint32_t>;
  return true;
}

// ---- redux -------------------------------------------------------------------------------------

enum ReduxOp : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor };
constexpr uint8_t kAbs = 1, kNan = 2;

template <class T>
void redux_group(Warp& warp, const Instr& in, uint32_t mask) {
  const T* const a = warp.row<T>(in.reg[1]);
  T result = a[std::countr_zero(mask)];
  each_lane(mask & (mask - 1), [&](int lane) {
    const T v = a[lane];
    switch (in.kind) {
      case kAdd:
        result = static_cast<T>(static_cast<uint32_t>(result) + static_cast<uint32_t>(v));
        break;
      case kMin:
        result = std::min(result, v);
        break;
      case kMax:
        result = std::max(result, v);
        break;
      case kAnd:
        result = static_cast<T>(result & v);
        break;
      case kOr:
        result = static_cast<T>(result | v);
        break;
      default:
        result = static_cast<T>(result ^ v);
        break;
    }
  });
  write_row(warp, in.reg[0], mask, static_cast<uint32_t>(result));
}

// Compares as floats with -0 below +0; NaNs lose unless .NaN lets them win.
void redux_float_group(Warp& warp, const Instr& in, uint32_t mask) {
  const float* const a = warp.row<float>(in.reg[1]);
  bool any_nan = false, found = false;
  float result = 0;
  each_lane(mask, [&](int lane) {
    const float v = in.flags & kAbs ? std::fabs(a[lane]) : a[lane];
    if (std::isnan(v)) {
      any_nan = true;
      return;
    }
    const bool less = v < result || (v == result && std::signbit(v) && !std::signbit(result));
    const bool more = v > result || (v == result && !std::signbit(v) && std::signbit(result));
    if (!found || (in.kind == kMin ? less : more)) result = v;
    found = true;
  });
  const bool nan = !found || (any_nan && (in.flags & kNan));
  write_row(warp, in.reg[0], mask, nan ? 0x7fffffffu : std::bit_cast<uint32_t>(result));
}

template <void (*group)(Warp&, const Instr&, uint32_t)>
Step redux(Warp& warp, const Instr& in, uint32_t mask) {
  return rendezvous(warp, in, mask, in.reg[2], group);
}

bool decode_redux(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() < 4 || source.parts[1] != "sync") return false;
  static const char* const kOps[] = {"add", "min", "max", "and", "or", "xor"};
  const auto op = std::find(std::begin(kOps), std::end(kOps), source.parts[2]);
  if (op == std::end(kOps)) return false;
  out.kind = static_cast<uint8_t>(op - kOps);
  const Type type = ptx::type_from_name(source.parts.back());
  context.push(source.operands.at(0), type);
  context.push(source.operands.at(1), type);
  context.push(source.operands.at(2), Type::B32);
  if (type == Type::F32) {
    if (context.arch() < 100) throw Unsupported("the .f32 form needs sm_100a");
    if (out.kind != kMin && out.kind != kMax) return false;
    out.flags = static_cast<uint8_t>((has_part(source, "abs") ? kAbs : 0) | (has_part(source, "NaN") ? kNan : 0));
    out.execute = redux<redux_float_group>;
    return true;
  }
  if (source.parts.size() != 4) return false;
  const bool bitwise = out.kind >= kAnd;
  if (bitwise != (type == Type::B32)) return false;
  if (!bitwise && type != Type::S32 && type != Type::U32) return false;
  out.execute = type == Type::S32 ? redux<redux_group<int32_t>> : redux<redux_group<uint32_t>>;
  return true;
}

// ---- bar.warp.sync -----------------------------------------------------------------------------

// Members may stand at different bar.warp.sync instructions, as in the two arms of an if.
Step bar_warp(Warp& warp, const Instr& in, uint32_t mask) {
  const uint32_t* const members = warp.row<uint32_t>(in.reg[0]);
  const uint32_t wanted = members[std::countr_zero(mask)];
  release_lanes(warp, mask);
  bool one_group = true;
  each_lane(mask, [&](int lane) { one_group &= members[lane] == wanted; });
  if (!one_group || warp.splits.size() == 1)
    return rendezvous(warp, in, mask, in.reg[0], [](Warp& w, const Instr&, uint32_t) { acquire_lanes(w); });
  if ((mask & ~wanted) != 0) not_a_member(warp, std::countr_zero(mask & ~wanted));
  const Instr* const code = warp.cta->cluster->launch->kernel->code.data();
  uint32_t here = mask;
  const auto stands_at_barrier = [&](const Warp::Split& split) {
    const Instr& other = code[split.pc];
    if (other.execute != bar_warp || other.guard != UINT32_MAX || (split.mask & ~wanted) != 0) return false;
    const uint32_t* const theirs = warp.row<uint32_t>(other.reg[0]);
    bool same = true;
    each_lane(split.mask, [&](int lane) { same &= theirs[lane] == wanted; });
    return same;
  };
  for (size_t i = 0; i < warp.splits.size(); ++i) {
    if (i != warp.current && stands_at_barrier(warp.splits[i])) here |= warp.splits[i].mask;
  }
  if (!gathered(warp, here, wanted)) return Step::Wait;
  for (size_t i = 0; i < warp.splits.size(); ++i) {
    Warp::Split& split = warp.splits[i];
    if (i == warp.current || !stands_at_barrier(split)) continue;
    ++split.pc;
    split.blocked_at = 0;
    split.apart = false;
  }
  acquire_lanes(warp);
  const int next = warp.pc() + 1;
  warp.move_lanes(mask, next);
  Warp::Split& rest = warp.splits[warp.current];
  if (rest.pc != next) rest.pc = next;  // lanes whose guard was false
  return Step::Jump;
}

bool decode_bar_warp(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() != 3 || source.parts[1] != "warp" || source.parts[2] != "sync") return false;
  context.push(source.operands.at(0), Type::B32);
  out.execute = bar_warp;
  return true;
}

// ---- ldmatrix, stmatrix, movmatrix -------------------------------------------------------------

constexpr uint8_t kTranspose = 0x80;

// Thread t of the warp holds, of each 8x8 matrix of 16-bit elements, elements (t / 4, 2 (t % 4)) and the one right of
// it: the warp's words are the rows one after the other. Transposed, (2 (t % 4), t / 4) and the one below. Thread 8 i +
// r gives the address of row r of matrix i.
void transpose(const uint16_t from[8][8], uint16_t to[8][8]) {
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) to[i][j] = from[j][i];
  }
}

uint32_t address_lanes(int matrices) { return matrices == 4 ? kFullMask : (1u << 8 * matrices) - 1; }

Step ldmatrix(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  const int matrices = in.width;
  Pointers p;
  warp.reads.read_together(true);
  resolve(warp, in, static_cast<AddressSpace>(in.kind), matrices, address_lanes(matrices), 16, 16, Access::Read, &p);
  warp.reads.read_together(false);
  for (int m = 0; m < matrices; ++m) {
    uint16_t element[8][8], turned[8][8];
    for (int row = 0; row < 8; ++row) std::memcpy(element[row], p.at[8 * m + row], 16);
    const bool turn = in.flags & kTranspose;
    if (turn) transpose(element, turned);
    std::memcpy(warp.row<uint32_t>(in.reg[m]), turn ? turned : element, sizeof element);
  }
  return Step::Next;
}

Step stmatrix(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  const int matrices = in.width;
  Pointers p;
  resolve(warp, in, static_cast<AddressSpace>(in.kind), 0, address_lanes(matrices), 16, 16, Access::Write, &p);
  for (int m = 0; m < matrices; ++m) {
    uint16_t element[8][8], turned[8][8];
    std::memcpy(element, warp.row<uint32_t>(in.reg[1 + m]), sizeof element);
    const bool turn = in.flags & kTranspose;
    if (turn) transpose(element, turned);
    for (int row = 0; row < 8; ++row) std::memcpy(p.at[8 * m + row], (turn ? turned : element)[row], 16);
  }
  return Step::Next;
}

// ld/stmatrix.sync.aligned.m8n8.num{.trans}{.shared{::cta}}.b16
bool read_matrix_form(const ptx::Instruction& source, Instr& out) {
  if (!has_part(source, "sync") || !has_part(source, "aligned") || !has_part(source, "m8n8") ||
      source.parts.back() != "b16")
    return false;
  MemoryForm form;
  out.width = has_part(source, "x4") ? 4 : has_part(source, "x2") ? 2 : 1;
  for (const std::string& part : source.parts) {
    if (part.starts_with("shared")) read_modifier(part, &form);
  }
  out.kind = static_cast<uint8_t>(form.space);
  if (has_part(source, "trans")) out.flags |= kTranspose;
  return true;
}

void push_fragment(const Operand& operand, DecodeContext& context, int matrices) {
  const size_t n = operand.kind == Operand::Kind::Vector ? operand.elements.size() : 1;
  if (n != static_cast<size_t>(matrices)) throw Unsupported("the vector has the wrong number of registers");
  context.push(operand, Type::B32);
}

bool decode_ldmatrix(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (!read_matrix_form(source, out)) return false;
  push_fragment(source.operands.at(0), context, out.width);
  push_base(source.operands.at(1), context, out);
  out.execute = ldmatrix;
  return true;
}
bool decode_stmatrix(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (!read_matrix_form(source, out)) return false;
  push_base(source.operands.at(0), context, out);
  push_fragment(source.operands.at(1), context, out.width);
  out.execute = stmatrix;
  return true;
}

Step movmatrix(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  uint32_t a[kLanes];
  std::memcpy(a, warp.row<uint32_t>(in.reg[1]), sizeof a);
  const auto element = [&](int i, int j) { return a[i * 4 + j / 2] >> (j % 2 * 16) & 0xffff; };
  uint32_t* const d = warp.row<uint32_t>(in.reg[0]);
  for (int t = 0; t < kLanes; ++t) {
    const int i = t / 4, j = 2 * (t % 4);
    d[t] = element(j, i) | element(j + 1, i) << 16;
  }
  return Step::Next;
}
bool decode_movmatrix(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.opcode != "movmatrix.sync.aligned.m8n8.trans.b16") return false;
  context.push(source.operands.at(0), Type::B32);
  context.push(source.operands.at(1), Type::B32);
  out.execute = movmatrix;
  return true;
}

}  // namespace

void register_warp() {
  register_opcode("shfl", decode_shfl);
  register_opcode("vote", decode_vote);
  register_opcode("activemask", decode_activemask);
  register_opcode("elect", decode_elect);
  register_opcode("match", decode_match);
  register_opcode("redux", decode_redux);
  register_opcode("bar", decode_bar_warp);
  register_opcode("ldmatrix", decode_ldmatrix);
  register_opcode("stmatrix", decode_stmatrix);
  register_opcode("movmatrix", decode_movmatrix);
}

}  // namespace sim
