// Birth and end of the asynchronous state, agents, and what the instructions of sim/async share: operands,
// shared addresses.
#include "sim/async/state.h"

#include <cstdio>

#include "sim/machine/run.h"

namespace sim {

Agent new_agent(Cluster& cluster, AgentInfo info) {
  const Agent agent = cluster.new_agent();
  std::vector<AgentInfo>& agents = cluster.async->agents;
  if (agents.size() <= agent) agents.resize(agent + 1);
  agents[agent] = info;
  return agent;
}

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

std::string describe_agent(const Cluster& cluster, Agent agent) {
  if (agent >= cluster.async->agents.size()) return "agent " + std::to_string(agent);
  const AgentInfo& info = cluster.async->agents[agent];
  const std::string block =
      cluster.ctas.size() > 1 && info.cta ? " of block rank " + std::to_string(info.cta->rank) : "";
  const std::string number = std::to_string(info.index);
  switch (info.kind) {
    case AgentInfo::Kind::Warp:
    case AgentInfo::Kind::Reads:
      return "warp " + number + block;
    case AgentInfo::Kind::Mbarrier:
      return "the phase of the mbarrier at shared offset " + hex(info.index) + block;
    case AgentInfo::Kind::BulkRead:
      return "a bulk group of warp " + number + block;
    case AgentInfo::Kind::Wgmma:
      return "a wgmma group of warpgroup " + number + block;
    case AgentInfo::Kind::CpAsync:
      return "a cp.async of warp " + number + block;
    case AgentInfo::Kind::TensorPipe:
      return "a tcgen05 operation of warp " + number + block;
    case AgentInfo::Kind::Prerequisites:
      return "the grids before";
    case AgentInfo::Kind::Init:
      return "an mbarrier.init of warp " + number + block;
  }
  return "";
}

void create_async_state(Cluster& cluster) {
  cluster.maps_low = UINT64_MAX;
  cluster.maps_high = 0;
  cluster.async = {new AsyncClusterState, [](AsyncClusterState* s) { delete s; }};
  cluster.prerequisites = new_agent(cluster, {AgentInfo::Kind::Prerequisites});
  for (auto& cta : cluster.ctas) {
    cta->async = {new AsyncCtaState, [](AsyncCtaState* s) { delete s; }};
    const uint32_t warps = static_cast<uint32_t>(cta->warps.size());
    for (uint32_t w = 0; w < warps; ++w) {
      Warp& warp = *cta->warps[w];
      warp.wgmma_pending = false;
      warp.async = {new AsyncWarpState, [](AsyncWarpState* s) { delete s; }};
      warp.self = new_agent(cluster, {AgentInfo::Kind::Warp, cta.get(), w});
      warp.view.seen.raise(warp.self, 1);  // a stamp of 0 means never
      if (cluster.ctas.size() > 1) warp.view.caused.raise(warp.self, 1);
      warp.async->init = new_agent(cluster, {AgentInfo::Kind::Init, cta.get(), w});
    }
    cta->async->warpgroups.resize((warps + 3) / 4);
    for (uint32_t g = 0; g < cta->async->warpgroups.size(); ++g) {
      WarpGroup& group = cta->async->warpgroups[g];
      group.agent = new_agent(cluster, {AgentInfo::Kind::Wgmma, cta.get(), g});
      group.queue = group.agent;
    }
  }
}

namespace {

std::string block_text(const Cta& cta) {
  return "block (" + std::to_string(cta.index.x) + "," + std::to_string(cta.index.y) + "," +
         std::to_string(cta.index.z) + ")";
}

}  // namespace

void finish_async_state(Cluster& cluster) {
  cluster.async->finishing = true;
  // What nobody waited for may still run when the block's shared memory is gone.
  for (auto& cta : cluster.ctas) {
    for (auto& warp : cta->warps) {
      for (auto& [lane, bulk] : warp->async->bulk) {
        if (cluster.launch->rules.drained_exit && bulk.last_used > 0 && warp->view.seen[bulk.read] < bulk.last_used)
          bulk.last.fail(Hazard::DataInFlight,
                         "a block exits while a bulk copy may still read its shared memory, and no "
                         "cp.async.bulk.wait_group covers its last group");
      }
    }
    for (auto& [offset, barrier] : cta->async->mbarriers) {
      if (barrier.last_copy == 0) continue;
      bool waited = false;
      for (auto& other : cluster.ctas) {
        for (auto& warp : other->warps) waited = waited || warp->view.seen[barrier.agent] >= barrier.last_copy;
      }
      if (!waited)
        barrier.copy.fail(Hazard::DataInFlight, block_text(*cta) +
                                                    " exits while a copy may still write its shared memory, and no "
                                                    "thread waited for phase " +
                                                    std::to_string(barrier.last_copy - 1) +
                                                    " of the mbarrier at shared offset " + hex(offset));
    }
  }
  for (auto& cta : cluster.ctas) {
    for (const auto& [agent, remote] : cta->async->remote) {
      bool ordered = false;
      for (auto& warp : cta->warps) ordered = ordered || warp->view.seen[agent] >= remote.epoch;
      if (!ordered)
        remote.by.fail(Hazard::Memory, block_text(*cta) + " may have finished when " + describe_agent(cluster, agent) +
                                           " accesses its shared memory, and no barrier.cluster or the like is "
                                           "between");
    }
  }
  cluster.engine.perform_all(cluster);
  for (auto& cta : cluster.ctas) {
    for (auto& [offset, barrier] : cta->async->mbarriers) {
      if (barrier.tx == 0) continue;
      barrier.expect.fail(
          Hazard::MbarrierMisuse,
          block_text(*cta) + " exits while phase " + std::to_string(barrier.phase) +
              " of the mbarrier at shared offset " + hex(offset) +
              (barrier.tx > 0 ? " still expects " + std::to_string(barrier.tx) + " bytes"
                              : " has received " + std::to_string(-barrier.tx) + " bytes that none expected"));
    }
  }
}

Origin current_origin(Warp& warp, int lane) {
  const std::vector<Instr>& code = warp.cta->cluster->launch->kernel->code;
  return {&warp, code[static_cast<size_t>(warp.pc())].source, lane};
}

std::string Origin::text() const {
  std::string text = source->opcode + " at " + describe_instruction(*warp->cta->cluster->launch->kernel, source) +
                     ", " + block_text(*warp->cta) + ", warp " + std::to_string(warp->index);
  if (lane >= 0) text += ", lane " + std::to_string(lane);
  return text;
}

void Origin::fail(Hazard hazard, const std::string& what) const {
  throw Fault(hazard, std::string(hazard_name(hazard)) + ": " + what + ", by " + text());
}

ptx::Operand immediate_operand(int64_t value) {
  ptx::Operand operand;
  operand.kind = ptx::Operand::Kind::Immediate;
  operand.bits = static_cast<uint64_t>(value);
  return operand;
}

void push_address(DecodeContext& context, Instr& out, const ptx::Operand& operand, int slot) {
  const int width = ptx::bytes_of(context.register_type(operand));
  if (width == 8) out.flags |= 1 << slot;
  int64_t addend = 0;
  context.push(operand, width == 8 ? ptx::Type::U64 : ptx::Type::U32, &addend);
  context.push(immediate_operand(addend), ptx::Type::U64);
}

ValueOperand push_value(DecodeContext& context, const ptx::Operand& operand, ptx::Type type) {
  const ValueOperand value{context.pushed()};
  context.push(operand, type);
  return value;
}

AddressOperand push_address(DecodeContext& context, const ptx::Operand& operand) {
  const bool wide = ptx::bytes_of(context.register_type(operand)) == 8;
  const AddressOperand address{context.pushed(), wide};
  int64_t addend = 0;
  context.push(operand, wide ? ptx::Type::U64 : ptx::Type::U32, &addend);
  context.push(immediate_operand(addend), ptx::Type::U64);
  return address;
}

void push_map_address(DecodeContext& context, Instr& out, const ptx::Operand& operand, int slot) {
  const ptx::Operand& base = operand.elements.at(0);
  if (base.kind == ptx::Operand::Kind::Symbol) {
    const DecodeContext::Place place = context.place(base.name);
    if (place.found && place.space == ptx::Space::Param) {
      out.flags |= 1 << slot;
      context.push(immediate_operand(static_cast<int64_t>(kParamWindow | (place.address + base.addend))),
                   ptx::Type::U64);
      context.push(immediate_operand(operand.addend), ptx::Type::U64);
      return;
    }
  }
  push_address(context, out, operand, slot);
}

bool has_part(const ptx::Instruction& source, const char* part) {
  for (const std::string& p : source.parts) {
    if (p == part) return true;
  }
  return false;
}

void unsupported(const ptx::Instruction& source, const std::string& why) {
  throw Unsupported(source.opcode + ": " + why);
}

int64_t immediate_of(const ptx::Instruction& source, const ptx::Operand& operand) {
  if (operand.kind != ptx::Operand::Kind::Immediate || operand.is_float)
    unsupported(source, "an operand must be an integer constant and is not");
  return static_cast<int64_t>(operand.bits);
}

SharedPlace shared_place(Warp& warp, uint64_t address, bool generic, int lane) {
  if (generic && (address & kWindowMask) != kSharedWindow)
    fault(Hazard::Memory, warp, lane, "generic address " + hex(address) + " is not in shared memory");
  const uint64_t low = generic ? address & ~kWindowMask : address;
  const uint64_t rank = low >> 24;
  Cluster& cluster = *warp.cta->cluster;
  if (rank > cluster.ctas.size())
    fault(Hazard::Memory, warp, lane, "shared address " + hex(address) + " names a block outside the cluster");
  Cta* cta = rank == 0 ? warp.cta : cluster.ctas[rank - 1].get();
  if (cta != warp.cta && cta->finished())
    fault(Hazard::Memory, warp, lane,
          "accesses the shared memory of block rank " + std::to_string(cta->rank) + ", which has finished");
  return {cta, static_cast<uint32_t>(low & 0xffffff)};
}

}  // namespace sim
