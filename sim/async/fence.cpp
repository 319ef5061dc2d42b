// SPDX-License-Identifier: Apache-2.0
// Proxy fences and fence.mbarrier_init (PTX ISA 9.7.13.4). Plain thread fences are in sim/isa/control.cpp.
#include "sim/async/state.h"
#include "sim/hazards/system_access.h"
#include "sim/hazards/tensor_map_order.h"

namespace sim {

namespace {

// What the warp has seen is from here on ordered before accesses through the async proxy, too.
Step execute_shared_async(Warp& warp) {
  warp.view.fenced.join(warp.view.seen);
  warp.reads.fence();
  warp.new_epoch();
  return Step::Next;
}

Step execute_async(Warp& warp, const Instr&, uint32_t) {
  if (warp.cta->cluster->system != nullptr) system_proxy_fence(warp);
  return execute_shared_async(warp);
}
Step execute_shared(Warp& warp, const Instr&, uint32_t) { return execute_shared_async(warp); }
// Global memory is watched for proxies where several devices share it.
Step execute_global_async(Warp& warp, const Instr&, uint32_t) {
  if (warp.cta->cluster->system == nullptr) return Step::Next;
  system_proxy_fence(warp);
  warp.new_epoch();
  return Step::Next;
}

Step execute_map_release(Warp& warp, const Instr&, uint32_t) {
  release_tensor_maps(warp);
  return Step::Next;
}

struct MapAcquire {
  AddressOperand map;
};

Step execute_map_acquire(Warp& warp, const Instr& instr, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t address = read_address(warp, instr, instr.form<MapAcquire>().map, lane);
    if (address & kWindowMask)
      fault(Hazard::IllegalUse, warp, lane,
            instr.source->opcode + " at " + hex(address) + ", which is not in global memory");
    // The fence orders accesses to these bytes and makes none itself: where there is no memory it orders nothing.
    if (warp.cta->cluster->launch->global->contains(address, kTensorMapBytes)) acquire_tensor_map(warp, address);
  }
  return Step::Next;
}

// Relaxed operations that follow publish this warp's initialisations, and nothing else.
Step execute_mbarrier_init(Warp& warp, const Instr&, uint32_t) {
  const Agent init = warp.async->init;
  warp.fence_view.seen.raise(init, warp.view.seen[init]);
  warp.has_fenced = true;
  return Step::Next;
}

bool decode_fence(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (has_part(source, "mbarrier_init")) {
    if (!has_part(source, "release") || !has_part(source, "cluster")) unsupported(source, "the form is not known");
    out.execute = execute_mbarrier_init;
    return true;
  }
  if (!has_part(source, "proxy")) return false;
  if (has_part(source, "alias")) {
    out.execute = execute_nothing;
  } else if (has_part(source, "tensormap::generic")) {
    if (has_part(source, "release")) {
      out.execute = execute_map_release;
    } else if (has_part(source, "acquire") && source.operands.size() == 2 &&
               immediate_of(source, source.operands[1]) == kTensorMapBytes) {
      out.set(MapAcquire{push_address(context, source.operands[0])});
      out.execute = execute_map_acquire;
    } else {
      unsupported(source, "the form is not known");
    }
  } else if (has_part(source, "async") || has_part(source, "async::generic")) {
    const bool shared = has_part(source, "shared::cta") || has_part(source, "shared::cluster");
    out.execute = has_part(source, "global") ? execute_global_async : shared ? execute_shared : execute_async;
  } else {
    unsupported(source, "the form is not known");
  }
  return true;
}

}  // namespace

void register_fence() {
  register_opcode("fence", decode_fence);
  register_opcode("membar", decode_fence);
}

}  // namespace sim
