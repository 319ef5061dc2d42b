// SPDX-License-Identifier: Apache-2.0
// Instructions that join the lanes of a warp: shfl.sync, vote.sync, match.sync, redux.sync, elect.sync, activemask,
// bar.warp.sync (PTX ISA 9.7.9.6, 9.7.13.2, 9.7.13.9 to 9.7.13.14), ldmatrix, stmatrix, movmatrix (9.7.14.5.15 to 17).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "sim/hazards/shared_access.h"
#include "sim/hazards/undefined.h"
#include "sim/isa/address.h"
#include "sim/isa/warp_wide.h"
#include "sim/machine/packed.h"

namespace sim {

bool require_all_lanes(Warp& warp, uint32_t mask) {
  if (!converged(warp, mask)) return false;
  if (mask != kFullMask) fault(Hazard::IllegalUse, warp, -1, "some threads of the warp have exited");
  return true;
}

namespace {

using ptx::Operand;
using ptx::Type;

// What an undefined result holds, as memory does that was never written.
constexpr uint32_t kUndefined = 0xffffffffu;

// Which one of each group the modifiers are; they stand in any order, as ptxas takes them. A group that begins with ""
// may be missing. Empty when the modifiers are others.
std::vector<size_t> read_modifiers(const ptx::Instruction& source,
                                   std::initializer_list<std::initializer_list<std::string_view>> groups) {
  std::vector<size_t> chosen;
  size_t known = 1;
  for (const auto& group : groups) {
    const auto at = std::find_if(group.begin(), group.end(), [&](std::string_view modifier) {
      return std::find(source.parts.begin() + 1, source.parts.end(), modifier) != source.parts.end();
    });
    if (at == group.end() && !group.begin()->empty()) return {};
    chosen.push_back(at == group.end() ? 0 : static_cast<size_t>(at - group.begin()));
    known += at != group.end();
  }
  return known == source.parts.size() ? chosen : std::vector<size_t>{};
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

// Runs f for each group of lanes that gave one membermask and is complete, which means that every live member is here.
template <class F>
Step rendezvous(Warp& warp, const Instr& in, uint32_t mask, uint32_t members_row, F f) {
  const uint32_t* const members = warp.row<uint32_t>(members_row);
  const uint32_t first = members[std::countr_zero(mask)];
  bool one_group = true;
  each_lane(mask, [&](int lane) { one_group &= members[lane] == first; });
  if (one_group) [[likely]] {
    if ((mask & ~first) != 0) not_a_member(warp, std::countr_zero(mask & ~first));
    if (!gathered(warp, mask, first)) return Step::Wait;
    // Every lane here is a member, so the group holds nobody else.
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
    warp.order_reads(lanes);
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
struct ShflForm {
  ShflMode mode;
  ValueOperand d, p, a, b, c, membermask;
};

void shfl_group(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& form = in.form<ShflForm>();
  const uint32_t* const a = warp.row<uint32_t>(in.reg[form.a.place]);
  const uint32_t* const b = warp.row<uint32_t>(in.reg[form.b.place]);
  const uint32_t* const c = warp.row<uint32_t>(in.reg[form.c.place]);
  uint32_t values[kLanes];
  uint32_t in_range = 0;
  each_lane(mask, [&](int lane) {
    const int bval = static_cast<int>(b[lane] & 31), cval = static_cast<int>(c[lane] & 31);
    const int segment = static_cast<int>(c[lane] >> 8 & 31);
    const int highest = (lane & segment) | (cval & ~segment);
    const int lowest = lane & segment;
    int j = 0;
    bool valid = false;
    switch (form.mode) {
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
  if (in.reg[form.d.place] != kNoReg) {
    uint32_t* const d = warp.row<uint32_t>(in.reg[form.d.place]);
    each_lane(mask, [&](int lane) { d[lane] = values[lane]; });
  }
  write_predicate(warp, in.reg[form.p.place], mask, in_range);
}
Step shfl(Warp& warp, const Instr& in, uint32_t mask) {
  return rendezvous(warp, in, mask, in.reg[in.form<ShflForm>().membermask.place], shfl_group);
}

// Appends the destinations `d|p`, of which p is a sink when it is not written. Gives the number of operands that they
// are.
template <class Form>
size_t push_destinations(const ptx::Instruction& source, DecodeContext& context, Form* form) {
  form->d = push_value(context, source.operands.at(0), Type::B32);
  form->p = push_value(context, source.dual_destination ? source.operands.at(1) : Operand{}, Type::Pred);
  return source.dual_destination ? 2 : 1;
}

bool decode_shfl(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const auto modifiers = read_modifiers(source, {{"sync"}, {"up", "down", "bfly", "idx"}, {"b32"}});
  if (modifiers.empty()) return false;
  ShflForm form;
  form.mode = static_cast<ShflMode>(modifiers[1]);
  size_t i = push_destinations(source, context, &form);
  if (source.operands.size() != i + 4) throw Unsupported("a, b, c and a membermask are needed");
  for (ValueOperand* operand : {&form.a, &form.b, &form.c, &form.membermask})
    *operand = push_value(context, source.operands[i++], Type::B32);
  out.set(form);
  out.execute = shfl;
  return true;
}

// ---- vote, activemask, elect, match ------------------------------------------------------------

enum VoteMode : uint8_t { kAll, kAny, kUni, kBallot };
struct VoteForm {
  VoteMode mode;
  bool negated;
  ValueOperand d, a, membermask;
};

void vote_group(Warp& warp, const Instr& in, uint32_t mask) {
  const auto form = in.form<VoteForm>();
  uint32_t votes = warp.predicate(in.reg[form.a.place]);
  if (form.negated) votes = ~votes;
  votes &= mask;
  if (form.mode == kBallot) {
    write_row(warp, in.reg[form.d.place], mask, votes);
    return;
  }
  const bool all = votes == mask, none = votes == 0;
  const bool result = form.mode == kAll ? all : form.mode == kAny ? !none : all || none;
  write_predicate(warp, in.reg[form.d.place], mask, result ? mask : 0);
}
Step vote(Warp& warp, const Instr& in, uint32_t mask) {
  return rendezvous(warp, in, mask, in.reg[in.form<VoteForm>().membermask.place], vote_group);
}

bool decode_vote(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const auto modifiers = read_modifiers(source, {{"sync"}, {"all", "any", "uni", "ballot"}, {"pred", "b32"}});
  if (modifiers.empty()) return false;
  VoteForm form;
  form.mode = static_cast<VoteMode>(modifiers[1]);
  if ((modifiers[2] == 1) != (form.mode == kBallot)) return false;
  form.d = push_value(context, source.operands.at(0), form.mode == kBallot ? Type::B32 : Type::Pred);
  form.a = push_value(context, source.operands.at(1), Type::Pred);
  form.membermask = push_value(context, source.operands.at(2), Type::B32);
  form.negated = source.operands[1].negated;
  out.set(form);
  out.execute = vote;
  return true;
}

struct ActivemaskForm {
  ValueOperand d;
};
Step activemask(Warp& warp, const Instr& in, uint32_t mask) {
  write_row(warp, in.reg[in.form<ActivemaskForm>().d.place], mask, mask);
  return Step::Next;
}
bool decode_activemask(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.opcode != "activemask.b32") return false;
  out.set(ActivemaskForm{push_value(context, source.operands.at(0), Type::B32)});
  out.execute = activemask;
  return true;
}

struct ElectForm {
  ValueOperand d, p, membermask;
};
void elect_group(Warp& warp, const Instr& in, uint32_t mask) {
  const auto form = in.form<ElectForm>();
  const int leader = std::countr_zero(mask);
  write_row(warp, in.reg[form.d.place], mask, static_cast<uint32_t>(leader));
  write_predicate(warp, in.reg[form.p.place], mask, 1u << leader);
}
Step elect(Warp& warp, const Instr& in, uint32_t mask) {
  return rendezvous(warp, in, mask, in.reg[in.form<ElectForm>().membermask.place], elect_group);
}

bool decode_elect(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() != 2 || source.parts[1] != "sync") return false;
  ElectForm form;
  const size_t i = push_destinations(source, context, &form);
  form.membermask = push_value(context, source.operands.at(i), Type::B32);
  out.set(form);
  out.execute = elect;
  return true;
}

struct MatchForm {
  bool all;
  ValueOperand d, p, a, membermask;
};
template <class T>
void match_any_group(Warp& warp, const Instr& in, uint32_t mask) {
  const auto form = in.form<MatchForm>();
  const T* const a = warp.row<T>(in.reg[form.a.place]);
  uint32_t result[kLanes];
  each_lane(mask, [&](int lane) {
    result[lane] = 0;
    each_lane(mask, [&](int other) { result[lane] |= a[other] == a[lane] ? 1u << other : 0; });
  });
  if (in.reg[form.d.place] == kNoReg) return;
  uint32_t* const d = warp.row<uint32_t>(in.reg[form.d.place]);
  each_lane(mask, [&](int lane) { d[lane] = result[lane]; });
}
template <class T>
void match_all_group(Warp& warp, const Instr& in, uint32_t mask) {
  const auto form = in.form<MatchForm>();
  const T* const a = warp.row<T>(in.reg[form.a.place]);
  bool same = true;
  each_lane(mask, [&](int lane) { same &= a[lane] == a[std::countr_zero(mask)]; });
  write_row(warp, in.reg[form.d.place], mask, same ? mask : 0);
  write_predicate(warp, in.reg[form.p.place], mask, same ? mask : 0);
}
template <class T>
Step match(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& form = in.form<MatchForm>();
  return rendezvous(warp, in, mask, in.reg[form.membermask.place], form.all ? match_all_group<T> : match_any_group<T>);
}

bool decode_match(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const auto modifiers = read_modifiers(source, {{"any", "all"}, {"sync"}, {"b32", "b64"}});
  if (modifiers.empty()) return false;
  const Type type = modifiers[2] == 1 ? Type::B64 : Type::B32;
  MatchForm form;
  form.all = modifiers[0] == 1;
  if (!form.all && source.dual_destination) throw Unsupported("match.any has one destination");
  const size_t i = push_destinations(source, context, &form);
  form.a = push_value(context, source.operands.at(i), type);
  form.membermask = push_value(context, source.operands.at(i + 1), Type::B32);
  out.set(form);
  out.execute = type == Type::B64 ? match<uint64_t> : match<uint32_t>;
  return true;
}

// ---- redux -------------------------------------------------------------------------------------

enum ReduxOp : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor };
struct ReduxForm {
  ReduxOp op;
  bool abs, nan;
  ValueOperand d, a, membermask;
};

template <class T>
void redux_group(Warp& warp, const Instr& in, uint32_t mask) {
  const auto form = in.form<ReduxForm>();
  const T* const a = warp.row<T>(in.reg[form.a.place]);
  T result = a[std::countr_zero(mask)];
  each_lane(mask & (mask - 1), [&](int lane) {
    const T v = a[lane];
    switch (form.op) {
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
  write_row(warp, in.reg[form.d.place], mask, static_cast<uint32_t>(result));
}

// Compares as floats with -0 below +0. A NaN loses unless .NaN lets it win.
void redux_float_group(Warp& warp, const Instr& in, uint32_t mask) {
  const auto form = in.form<ReduxForm>();
  const float* const a = warp.row<float>(in.reg[form.a.place]);
  bool any_nan = false, found = false;
  float result = 0;
  each_lane(mask, [&](int lane) {
    const float v = form.abs ? std::fabs(a[lane]) : a[lane];
    if (std::isnan(v)) {
      any_nan = true;
      return;
    }
    const bool less = v < result || (v == result && std::signbit(v) && !std::signbit(result));
    const bool more = v > result || (v == result && !std::signbit(v) && std::signbit(result));
    if (!found || (form.op == kMin ? less : more)) result = v;
    found = true;
  });
  const bool nan = !found || (any_nan && form.nan);
  write_row(warp, in.reg[form.d.place], mask, nan ? 0x7fffffffu : std::bit_cast<uint32_t>(result));
}

template <void (*group)(Warp&, const Instr&, uint32_t)>
Step redux(Warp& warp, const Instr& in, uint32_t mask) {
  return rendezvous(warp, in, mask, in.reg[in.form<ReduxForm>().membermask.place], group);
}

bool decode_redux(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  constexpr Type kTypes[] = {Type::B32, Type::S32, Type::U32, Type::F32};
  const auto modifiers = read_modifiers(
      source,
      {{"sync"}, {"add", "min", "max", "and", "or", "xor"}, {"", "abs"}, {"", "NaN"}, {"b32", "s32", "u32", "f32"}});
  if (modifiers.empty()) return false;
  ReduxForm form;
  form.op = static_cast<ReduxOp>(modifiers[1]);
  form.abs = modifiers[2] == 1;
  form.nan = modifiers[3] == 1;
  const Type type = kTypes[modifiers[4]];
  form.d = push_value(context, source.operands.at(0), type);
  form.a = push_value(context, source.operands.at(1), type);
  form.membermask = push_value(context, source.operands.at(2), Type::B32);
  out.set(form);
  if (type == Type::F32) {
    if (context.arch() < 100) throw Unsupported("the .f32 form needs sm_100a");
    if (form.op != kMin && form.op != kMax) return false;
    out.execute = redux<redux_float_group>;
    return true;
  }
  if (source.parts.size() != 4) return false;
  const bool bitwise = form.op >= kAnd;
  if (bitwise != (type == Type::B32)) return false;
  if (!bitwise && type != Type::S32 && type != Type::U32) return false;
  out.execute = type == Type::S32 ? redux<redux_group<int32_t>> : redux<redux_group<uint32_t>>;
  return true;
}

// ---- bar.warp.sync -----------------------------------------------------------------------------

struct BarWarpForm {
  ValueOperand membermask;
};
uint32_t membermask_row(const Instr& in) { return in.reg[in.form<BarWarpForm>().membermask.place]; }

// Members may stand at different bar.warp.sync instructions, as in the two arms of an if.
Step bar_warp(Warp& warp, const Instr& in, uint32_t mask) {
  const uint32_t* const members = warp.row<uint32_t>(membermask_row(in));
  const uint32_t wanted = members[std::countr_zero(mask)];
  release_lanes(warp, mask);
  bool one_group = true;
  each_lane(mask, [&](int lane) { one_group &= members[lane] == wanted; });
  if (!one_group || warp.splits.size() == 1)
    return rendezvous(warp, in, mask, membermask_row(in), [](Warp& w, const Instr&, uint32_t) { acquire_lanes(w); });
  if ((mask & ~wanted) != 0) not_a_member(warp, std::countr_zero(mask & ~wanted));
  const Instr* const code = warp.cta->cluster->launch->kernel->code.data();
  uint32_t here = mask;
  const auto stands_at_barrier = [&](const Warp::Split& split) {
    const Instr& other = code[split.pc];
    if (other.execute != bar_warp || other.guard != UINT32_MAX || (split.mask & ~wanted) != 0) return false;
    const uint32_t* const theirs = warp.row<uint32_t>(membermask_row(other));
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
  }
  acquire_lanes(warp);
  const int next = warp.pc() + 1;
  warp.move_lanes(mask, next);
  Warp::Split& rest = warp.splits[warp.current];
  if (rest.pc != next) rest.pc = next;  // These are lanes whose guard was false.
  return Step::Jump;
}

bool decode_bar_warp(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() != 3 || source.parts[1] != "warp" || source.parts[2] != "sync") return false;
  out.set(BarWarpForm{push_value(context, source.operands.at(0), Type::B32)});
  out.execute = bar_warp;
  return true;
}

// ---- ldmatrix, stmatrix, movmatrix -------------------------------------------------------------

struct MatrixForm {
  MemoryForm rows;
  uint8_t matrices;
  bool transposed;
  // 8x8 elements of 16 bits. Otherwise bytes, packed in shared memory or not: 16x8 of stmatrix, 16x16 or 8x16.
  bool halves;
  Packing packing;
  // Of a matrix.
  uint8_t addresses, registers;
  // The first register of the fragments.
  ValueOperand fragment;
  int address_count() const { return addresses * matrices; }
};

// Thread t of the warp holds, of each 8x8 matrix of 16-bit elements, element (t / 4, 2 (t % 4)) and the one to its
// right, so that the warp's words are the rows one after the other. When transposed it holds element (2 (t % 4), t / 4)
// and the one below. Thread 8 i + r gives the address of row r of matrix i.
void transpose(const uint16_t from[8][8], uint16_t to[8][8]) {
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) to[i][j] = from[j][i];
  }
}

uint32_t address_lanes(const MatrixForm& form) {
  return form.address_count() == kLanes ? kFullMask : (1u << form.address_count()) - 1;
}

// Of a matrix of 8x16 bytes thread t holds elements (t / 4, 4 (t % 4)) and the three to its right, so that the warp's
// words are the rows one after the other. A matrix of 16x16 is transposed and then is two of those, one below the
// other. The ISA's tables of addresses count eight a matrix; one of 16x16 has a row for each of 16 threads, as CUTLASS
// gives them (cute/atom/copy_traits_sm100.hpp).
void load_bytes(Warp& warp, const Instr& in, const MatrixForm& form, const uint8_t* const* rows,
                ValueOperand fragment) {
  uint8_t element[16][16], turned[16][16];
  for (int row = 0; row < form.addresses; ++row) widen(form.packing, rows[row], element[row]);
  for (int i = 0; form.transposed && i < 16; ++i) {
    for (int j = 0; j < 16; ++j) turned[i][j] = element[j][i];
  }
  for (int i = 0; i < form.registers; ++i)
    std::memcpy(warp.row<uint32_t>(in.reg[fragment.place + i]), (form.transposed ? turned : element)[8 * i], 128);
}

void load_matrices(Warp& warp, const Instr& in, uint8_t* const* rows) {
  const auto& form = in.form<MatrixForm>();
  for (int m = 0; m < form.matrices; ++m) {
    const ValueOperand fragment{static_cast<uint8_t>(form.fragment.place + m * form.registers)};
    if (!form.halves) {
      load_bytes(warp, in, form, rows + m * form.addresses, fragment);
      continue;
    }
    uint16_t element[8][8], turned[8][8];
    for (int row = 0; row < 8; ++row) std::memcpy(element[row], rows[8 * m + row], 16);
    if (form.transposed) transpose(element, turned);
    std::memcpy(warp.row<uint32_t>(in.reg[fragment.place]), form.transposed ? turned : element, sizeof element);
  }
}

// The undefined bits of the matrices' rows.
struct UndefinedMatrices {
  uint8_t of[kLanes][16] = {};
  uint8_t* rows[kLanes];
  UndefinedMatrices() {
    for (int i = 0; i < kLanes; ++i) rows[i] = of[i];
  }
};
[[gnu::noinline]] void load_undefined_matrices(Warp& warp, const Instr& in, uint8_t* const* rows) {
  const auto& form = in.form<MatrixForm>();
  UndefinedMatrices bits;
  for (int i = 0; i < form.address_count(); ++i) load_undefined(warp, rows[i], bits.of[i], packed_bytes(form.packing));
  {
    const UndefinedRegisters registers(warp);
    load_matrices(warp, in, bits.rows);
  }
  for (int i = 0; i < form.matrices * form.registers; ++i) note_undefined(warp, in.reg[form.fragment.place + i]);
}

Step ldmatrix(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  const auto& form = in.form<MatrixForm>();
  Pointers p;
  warp.reads.read_together(true);
  resolve(warp, in, form.rows, address_lanes(form), packed_bytes(form.packing), 16, Access::Read, &p);
  warp.reads.read_together(false);
  if (holds_undefined(warp)) [[unlikely]]
    load_undefined_matrices(warp, in, p.at);
  load_matrices(warp, in, p.at);
  return Step::Next;
}

// Of a matrix of 16x8 bytes, which is stored column by column, thread t has elements (t / 4, 2 (t % 4)), the one to its
// right, and the two that are 8 rows below.
void store_columns(const uint32_t* fragments, uint8_t* const* columns) {
  for (int t = 0; t < kLanes; ++t) {
    for (int e = 0; e < 4; ++e)
      columns[2 * (t % 4) + e % 2][t / 4 + 8 * (e / 2)] = static_cast<uint8_t>(fragments[t] >> 8 * e);
  }
}

void store_matrices(Warp& warp, const Instr& in, uint8_t* const* rows) {
  const auto& form = in.form<MatrixForm>();
  for (int m = 0; m < form.matrices; ++m) {
    if (!form.halves) {
      store_columns(warp.row<uint32_t>(in.reg[form.fragment.place + m]), rows + size_t{8} * m);
      continue;
    }
    uint16_t element[8][8], turned[8][8];
    std::memcpy(element, warp.row<uint32_t>(in.reg[form.fragment.place + m]), sizeof element);
    if (form.transposed) transpose(element, turned);
    for (int row = 0; row < 8; ++row) std::memcpy(rows[8 * m + row], (form.transposed ? turned : element)[row], 16);
  }
}

[[gnu::noinline]] void store_undefined_matrices(Warp& warp, const Instr& in, uint8_t* const* rows) {
  UndefinedMatrices bits;
  {
    const UndefinedRegisters registers(warp);
    store_matrices(warp, in, bits.rows);
  }
  for (int i = 0; i < in.form<MatrixForm>().address_count(); ++i) store_undefined(warp, rows[i], bits.of[i], 16);
}

Step stmatrix(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  const auto& form = in.form<MatrixForm>();
  Pointers p;
  resolve(warp, in, form.rows, address_lanes(form), 16, 16, Access::Write, &p);
  store_matrices(warp, in, p.at);
  if (holds_undefined(warp)) [[unlikely]]
    store_undefined_matrices(warp, in, p.at);
  shared_stores_done(warp);
  return Step::Next;
}

// ld/stmatrix.sync.aligned.m8n8.num{.trans}{.shared{::cta}}.b16, and of sm_100a stmatrix.m16n8.num.trans{...}.b8,
// ldmatrix.m16n16.num.trans{...}.b8, and ldmatrix.m8n16.num and m16n16.num.trans with .b8x16 and how the elements are
// packed. ptxas takes the modifiers in any order.
bool read_matrix_form(const ptx::Instruction& source, int arch, MatrixForm* form) {
  const bool loads = source.parts[0] == "ldmatrix", tall = has_part(source, "m16n16"), wide = has_part(source, "m8n16");
  const bool narrow = has_part(source, "m16n8");
  form->halves = has_part(source, "m8n8");
  form->packing = has_part(source, "b6x16_p32")   ? Packing::Six
                  : has_part(source, "b4x16_p64") ? Packing::Four
                                                  : Packing::Bytes;
  form->matrices = has_part(source, "x4") ? 4 : has_part(source, "x2") ? 2 : has_part(source, "x1") ? 1 : 0;
  form->transposed = has_part(source, "trans");
  form->addresses = tall ? 16 : 8;
  form->registers = tall ? 2 : 1;
  if (!has_part(source, "sync") || !has_part(source, "aligned") || form->matrices == 0) return false;
  const bool packed = form->packing != Packing::Bytes;
  if (!has_part(source, packed ? "b8x16" : form->halves ? "b16" : "b8")) return false;
  // The opcode, .sync, .aligned, the shape, the number and the type.
  size_t known = 6u + form->transposed + packed;
  for (const std::string& part : source.parts) {
    if (part == "shared" || part == "shared::cta") known += read_modifier(part, &form->rows);
  }
  if (source.parts.size() != known) return false;
  if (form->halves) return !packed;
  if (arch < 100) return false;
  if (tall) return loads && form->transposed && form->matrices < 4;
  if (wide) return loads && !form->transposed && packed;
  return narrow && !loads && form->transposed && !packed;
}

void push_fragment(const Operand& operand, DecodeContext& context, MatrixForm* form) {
  const size_t n = operand.kind == Operand::Kind::Vector ? operand.elements.size() : 1;
  if (n != size_t{form->matrices} * form->registers) throw Unsupported("the vector has the wrong number of registers");
  form->fragment = push_value(context, operand, Type::B32);
}

bool decode_ldmatrix(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  MatrixForm form{};
  if (!read_matrix_form(source, context.arch(), &form)) return false;
  push_fragment(source.operands.at(0), context, &form);
  push_base(source.operands.at(1), context, &form.rows);
  out.set(form);
  out.execute = ldmatrix;
  return true;
}
bool decode_stmatrix(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  MatrixForm form{};
  if (!read_matrix_form(source, context.arch(), &form)) return false;
  push_base(source.operands.at(0), context, &form.rows);
  push_fragment(source.operands.at(1), context, &form);
  out.set(form);
  out.execute = stmatrix;
  return true;
}

struct MovmatrixForm {
  ValueOperand d, a;
};
Step movmatrix(Warp& warp, const Instr& in, uint32_t mask) {
  if (!require_all_lanes(warp, mask)) return Step::Wait;
  uint32_t a[kLanes];
  const auto form = in.form<MovmatrixForm>();
  std::memcpy(a, warp.row<uint32_t>(in.reg[form.a.place]), sizeof a);
  const auto element = [&](int i, int j) { return a[i * 4 + j / 2] >> (j % 2 * 16) & 0xffff; };
  uint32_t* const d = warp.row<uint32_t>(in.reg[form.d.place]);
  for (int t = 0; t < kLanes; ++t) {
    const int i = t / 4, j = 2 * (t % 4);
    d[t] = element(j, i) | element(j + 1, i) << 16;
  }
  return Step::Next;
}
bool decode_movmatrix(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (read_modifiers(source, {{"sync"}, {"aligned"}, {"m8n8"}, {"trans"}, {"b16"}}).empty()) return false;
  MovmatrixForm form;
  form.d = push_value(context, source.operands.at(0), Type::B32);
  form.a = push_value(context, source.operands.at(1), Type::B32);
  out.set(form);
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
