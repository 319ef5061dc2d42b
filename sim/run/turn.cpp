// SPDX-License-Identifier: Apache-2.0
// The loop that executes a warp's instructions.
#include "sim/run/turn.h"

#include <atomic>
#include <bit>
#include <cstring>

#include "sim/async/state.h"
#include "sim/hazards/undefined.h"
#include "sim/machine/launch.h"
#include "sim/tcgen05/state.h"

namespace sim {
namespace {

// Faults when the instruction touches a register that an asynchronous operation still reads or writes.
void check_registers(Warp& warp, const Instr& in) {
  if (warp.tensor) check_tensor_registers(warp, in);
  check_wgmma_registers(warp, in);
}

// Executes an instruction of a warp that needs attention.
[[gnu::noinline]] Step execute_attentively(Warp& warp, const Instr& in, uint32_t lanes, uint32_t mask) {
  if (warp.attention & Warp::kInFlight) check_registers(warp, in);
  return holds_undefined(warp) ? execute_with_undefined(warp, in, lanes, mask) : in.execute(warp, in, mask);
}

}  // namespace

Turn run_warp(Warp& warp, uint32_t quantum, uint32_t* executed) {
  *executed = 0;
  if (warp.splits.empty()) return Turn::Finished;
  if (!warp.settle()) return Turn::Blocked;
  // Lanes that do nothing but poll must not keep the warp from the lanes they wait for.
  if (warp.rotate && warp.splits.size() > 1) {
    const uint64_t now = warp.cta->cluster->events + 1;
    for (size_t i = 1; i <= warp.splits.size(); ++i) {
      const size_t next = (warp.last_split + i) % warp.splits.size();
      if (warp.splits[next].blocked_at == now) continue;
      warp.select(next);
      break;
    }
  }
  warp.rotate = false;

  const Instr* const code = warp.cta->cluster->launch->kernel->code.data();
  std::vector<uint8_t>& covered = warp.cta->cluster->launch->kernel->covered;
  uint8_t* const cover = covered.empty() ? nullptr : covered.data();
  Statistics* const statistics = warp.cta->cluster->statistics;
  const bool watched = cover != nullptr || statistics != nullptr;
  const uint8_t* const file = warp.registers.get();
  Warp::Split* split = &warp.splits[warp.current];
  uint32_t& left = warp.left;
  left = warp.quantum = quantum;
  Turn turn = Turn::Quantum;
  while (left > 0) {
    --left;
    const Instr& in = code[split->pc];
    uint32_t mask = split->mask;
    if (in.guard != UINT32_MAX) {
      uint32_t allowed;
      std::memcpy(&allowed, file + in.guard, 4);
      mask &= in.guard_negated ? ~allowed : allowed;
      if (in.target >= 0 && holds_undefined(warp) && skip_undefined_branch(warp, in)) [[unlikely]] {
        if (!warp.settle()) {
          turn = Turn::Blocked;
          break;
        }
        split = &warp.splits[warp.current];
        continue;
      }
      if (mask == 0) {
        if (holds_undefined(warp)) [[unlikely]]
          skip_with_undefined(warp, in, split->mask);
        if (++split->pc >= warp.stop_pc) {
          warp.settle();
          split = &warp.splits[warp.current];
        }
        continue;
      }
    }
    if (watched) [[unlikely]] {
      if (cover != nullptr) std::atomic_ref<uint8_t>(cover[split->pc]).store(1, std::memory_order_relaxed);
      if (statistics != nullptr) statistics->lane_instructions += static_cast<uint64_t>(std::popcount(mask));
    }
    Step step;
    if (warp.attention != 0) [[unlikely]]
      step = execute_attentively(warp, in, split->mask, mask);
    else
      step = in.execute(warp, in, mask);
    if (step == Step::Next) [[likely]] {
      if (++split->pc >= warp.stop_pc) {
        warp.settle();
        split = &warp.splits[warp.current];
      }
      continue;
    }
    if (step == Step::Jump) {
      if (warp.splits.size() > 1 && !warp.settle()) {
        turn = Turn::Blocked;
        break;
      }
      split = &warp.splits[warp.current];
      continue;
    }
    if (step == Step::Yield) {
      ++split->pc;
      turn = Turn::Yielded;
      break;
    }
    if (step == Step::Wait) {
      ++left;  // nothing was executed
      if (statistics != nullptr) statistics->lane_instructions -= static_cast<uint64_t>(std::popcount(mask));
      Warp::Split& waiting = warp.splits[warp.current];
      const uint32_t passing = waiting.mask & ~mask;  // lanes whose guard was false need not wait
      waiting.blocked_at = warp.cta->cluster->events + 1;
      if (passing != 0) {
        waiting.mask &= ~passing;
        warp.splits.push_back({waiting.pc + 1, passing, 0, false});
      }
      if (!warp.settle()) {
        turn = Turn::Blocked;
        break;
      }
      split = &warp.splits[warp.current];
      continue;
    }
    warp.exit_lanes(mask);
    if (warp.splits.empty()) {
      turn = Turn::Finished;
      break;
    }
    if (!warp.settle()) {
      turn = Turn::Blocked;
      break;
    }
    split = &warp.splits[warp.current];
  }
  *executed = quantum - left;
  warp.quantum = warp.left = 0;
  warp.last_split = warp.current;
  return turn;
}

}  // namespace sim
