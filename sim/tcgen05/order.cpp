// SPDX-License-Identifier: Apache-2.0
// tcgen05.fence (PTX ISA 9.7.16.11) and tcgen05.commit (9.7.16.12).
#include "sim/tcgen05/state.h"

namespace sim {

namespace {

Step execute_before(Warp& warp, const Instr&, uint32_t) {
  TensorWarp& tensor = tensor_warp(warp);
  Clock& seen = warp.view.seen;
  for (const auto& [lane, pipe] : tensor.pipes) seen.raise(pipe.issued, pipe.count);
  seen.raise(tensor.loads.published, tensor.loads.done);
  seen.raise(tensor.stores.published, tensor.stores.done);
  // Composes with relaxed operations as well (9.7.16.6.4.3).
  Clock& relaxed = warp.fence_view.seen;
  for (const auto& [lane, pipe] : tensor.pipes) relaxed.raise(pipe.issued, pipe.count);
  for (const TensorTransfers* t : {&tensor.loads, &tensor.stores}) {
    relaxed.raise(t->published, t->done);
    relaxed.raise(t->waited, t->done);
  }
  relaxed.raise(tensor.allocated, tensor.allocations);
  // What the warp did through the generic proxy is not released.
  Clock ordered = tensor.ordered;
  ordered.forget(warp.self);
  relaxed.join(ordered);
  warp.has_fenced = true;
  return Step::Next;
}

Step execute_after(Warp& warp, const Instr&, uint32_t) {
  TensorWarp& tensor = tensor_warp(warp);
  tensor.ordered.join(warp.view.seen);
  if (warp.has_read) tensor.ordered.join(warp.read_view.seen);
  return Step::Next;
}

class Commit : public AsyncOp {
 public:
  struct Target {
    Cta* cta;
    uint32_t offset;
    Agent barrier;
  };
  // What the thread had observed when it issued the operations came before their completion, too, and so did its
  // allocations: others may learn it from the arrival, whose scope is the cluster. Not so what the thread itself did
  // through the generic proxy, which this arrival does not release.
  Commit(Origin origin, const TensorPipe& pipe, std::vector<Target> targets)
      : origin_(origin), targets_(std::move(targets)) {
    Warp& warp = *origin.warp;
    warp.publish_weakly(published_);
    warp.publish(published_, Scope::Wide);
    for (Clock* clock : {&published_.seen, &published_.fenced, &published_.wide}) clock->forget(warp.self);
    for (Clock& clock : published_.by_block) clock.forget(warp.self);
    for (Clock* clock : {&published_.seen, &published_.fenced}) warp.reads.forget(*clock);
    published_.seen.raise(pipe.issued, pipe.count);
    published_.seen.raise(pipe.done, pipe.count);
    published_.seen.raise(pipe.commits, pipe.committed);
  }
  void perform(Cluster& cluster) override {
    for (const Target& target : targets_) {
      const auto found = target.cta->async->mbarriers.find(target.offset);
      if (found == target.cta->async->mbarriers.end() || found->second.agent != target.barrier)
        origin_.fail(Hazard::MbarrierMisuse, "a tcgen05.commit arrives at the mbarrier at shared offset " +
                                                 hex(target.offset) + ", which was invalidated");
      if (!cluster.async->finishing && target.cta->finished() && target.cta == origin_.warp->cta)
        origin_.fail(Hazard::DataInFlight, "block rank " + std::to_string(target.cta->rank) +
                                               " exits while tcgen05 operations are in flight: no thread waited for a "
                                               "tcgen05.commit that covers them");
      if (!cluster.async->finishing && target.cta->finished())
        origin_.fail(Hazard::MbarrierMisuse, "a tcgen05.commit arrives at the mbarrier at shared offset " +
                                                 hex(target.offset) + " of block rank " +
                                                 std::to_string(target.cta->rank) + ", which has finished");
      found->second.arriving.join(published_);
      mbarrier_arrive(origin_, found->second, 1);
    }
  }

 private:
  Origin origin_;
  View published_;
  std::vector<Target> targets_;
};

struct CommitForm {
  uint8_t group = 1;       // .cta_group
  bool generic = false;    // the address of the mbarrier
  bool multicast = false;  // to the blocks of a mask
  AddressOperand mbarrier;
  ValueOperand cta_mask;
};

Step execute_commit(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<CommitForm>();
  Cluster& cluster = *warp.cta->cluster;
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const TensorGroup group = tensor_group(warp, form.group, lane);
    const SharedPlace at = shared_place(warp, read_address(warp, instr, form.mbarrier, lane), form.generic, lane);
    TensorPipe& pipe = tensor_pipe(warp, lane);
    ++pipe.committed;
    std::vector<Commit::Target> targets;
    // The arrival comes later than this instruction: a block is not to exit before who waits there has seen it.
    const auto add = [&](Cta& cta) {
      targets.push_back({&cta, at.offset, find_mbarrier(warp, cta, at.offset, lane, true).agent});
      if (&cta != warp.cta) cta.remote[pipe.commits] = {pipe.committed, {&warp, instr.source, lane}};
    };
    if (form.multicast) {
      const uint32_t ranks = read32(warp, instr, form.cta_mask, lane) & 0xffff;
      for (uint32_t rest = ranks; rest != 0; rest &= rest - 1) {
        const auto rank = static_cast<size_t>(first_lane(rest));
        if (rank >= cluster.ctas.size())
          fault(Hazard::IllegalUse, warp, lane,
                "the ctaMask " + hex(ranks) + " of a tcgen05.commit names block rank " + std::to_string(rank) +
                    ", which the cluster does not have");
        add(*cluster.ctas[rank]);
      }
    } else {
      add(*at.cta);
    }
    submit_to_pipe(warp, group, std::make_unique<Commit>(Origin{&warp, instr.source, lane}, pipe, targets));
  }
  return Step::Next;
}

}  // namespace

bool decode_order(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const std::string& op = source.parts[1];
  if (op == "fence::before_thread_sync" || op == "fence::after_thread_sync") {
    out.execute = op == "fence::before_thread_sync" ? execute_before : execute_after;
    return true;
  }
  if (op != "commit") return false;
  if (!has_part(source, "mbarrier::arrive::one") || !has_part(source, "b64"))
    unsupported(source, "the form is not known");
  CommitForm form;
  form.multicast = has_part(source, "multicast::cluster");
  if (source.operands.size() != (form.multicast ? 2u : 1u)) unsupported(source, "wrong number of operands");
  form.group = static_cast<uint8_t>(group_of(source));
  form.generic = !has_part(source, "shared::cluster");
  form.mbarrier = push_address(context, source.operands[0]);
  if (form.multicast) form.cta_mask = push_value(context, source.operands[1], ptx::Type::U16);
  out.set(form);
  out.execute = execute_commit;
  return true;
}

}  // namespace sim
