// SPDX-License-Identifier: Apache-2.0
// Moxie behind the interface of peer.h, for bench/peers.py. It works in the primary context, as PyTorch does, so that
// PyTorch's pointers and streams are the library's.
#include <string>

#include "bench/peer.h"
#include "moxie/moxie.h"

namespace {

thread_local std::string last_error;

struct Created {
  moxie::GroupedGemm gemm;
  bool serial = false, waits = false;
};

struct Bound {
  moxie::GroupedGemm gemm;
  moxie::GemmTensors tensors;
  moxie::WorkspaceView workspace;
  moxie::LaunchOptions options;
};

template <class F>
auto guarded(F work, decltype(work()) failed) {
  try {
    return work();
  } catch (const std::exception& error) {
    last_error = error.what();
    return failed;
  }
}

moxie::GemmDescription description_of(const PeerProblem& p) {
  moxie::GemmDescription description;
  description.groups = moxie::Offsets{p.groups, p.rows};
  description.n = p.n;
  description.k = p.k;
  description.bias = p.bias != 0;
  description.activation = static_cast<moxie::Activation>(p.activation);
  if (p.weights == PEER_MXFP4) description.b_format = moxie::OperandFormat::Mxfp4;
  if (p.pre != 0) description.pre = moxie::DataType::Bf16;
  if (p.out == 0) description.out.reset();
  if (p.expected_rows > 0) description.expected_rows = p.expected_rows;
  moxie::HopperTuning tuning;
  if (p.schedule >= 0) tuning.schedule = static_cast<moxie::WarpSchedule>(p.schedule);
  if (p.tile_m > 0) tuning.tile_m = p.tile_m;
  if (p.tile_n > 0) tuning.tile_n = p.tile_n;
  if (p.multicast >= 0) tuning.multicast = static_cast<moxie::Multicast>(p.multicast);
  description.hopper = tuning;
  return description;
}

moxie::WeightShape weights_of(const moxie::GemmDescription& d) {
  return {
      .groups = std::get<moxie::Offsets>(d.groups).count, .n = d.n, .k = d.k, .gated = is_gated(d.activation.function)};
}

}  // namespace

const char* peer_error() { return last_error.c_str(); }

int32_t peer_variants() { return 1; }

void* peer_create(const PeerProblem* p) {
  return guarded(
      [&]() -> void* {
        return new Created{moxie::GroupedGemm(moxie::Device::open(), description_of(*p)), p->serial != 0,
                           p->waits != 0};
      },
      nullptr);
}

int64_t peer_workspace_bytes(void* created) {
  return static_cast<int64_t>(static_cast<Created*>(created)->gemm.workspace_bytes());
}

int64_t peer_weight_bytes(void* created) {
  return guarded(
      [&] {
        const auto shape = weights_of(static_cast<Created*>(created)->gemm.description());
        return static_cast<int64_t>(moxie::packed_weight_bytes(shape));
      },
      int64_t{0});
}

int32_t peer_prepare_weights(void* created, const void* codes, const void* scales, void* prepared) {
  return guarded(
      [&] {
        const moxie::GroupedGemm& gemm = static_cast<Created*>(created)->gemm;
        moxie::WeightPacking packing{weights_of(gemm.description())};
        packing.codes = codes;
        packing.scales = scales;
        packing.packed = prepared;
        moxie::pack_weights(gemm.device(), packing);
        gemm.device().synchronize();
        return 0;
      },
      1);
}

const char* peer_describe(void* created) { return static_cast<Created*>(created)->gemm.plan().kernel.c_str(); }

void* peer_bind(void* created, const PeerTensors* t) {
  return guarded(
      [&]() -> void* {
        const Created& c = *static_cast<Created*>(created);
        // The parameters of the activation come with the tensors. They are no part of the kernel, which is there.
        moxie::GemmDescription description = c.gemm.description();
        description.activation.swiglu_oai = {t->alpha, t->limit};
        auto* bound = new Bound{moxie::GroupedGemm(c.gemm.device(), description), {}, {}, {}};
        bound->tensors.a.data = t->a;
        bound->tensors.b.data = t->b;
        bound->tensors.bias = t->bias;
        bound->tensors.pre.data = t->pre;
        bound->tensors.out.data = t->out;
        bound->tensors.rows.ends = t->ends;
        bound->workspace = {t->workspace, bound->gemm.workspace_bytes()};
        bound->options.programmatic = !c.serial;
        bound->options.weights_ready = !c.waits;  // no contender writes them
        return bound;
      },
      nullptr);
}

int32_t peer_launch(void* bound, void* stream) {
  return guarded(
      [&] {
        auto* b = static_cast<Bound*>(bound);
        b->options.stream = static_cast<moxie::Stream>(stream);
        b->gemm.run(b->tensors, b->workspace, b->options);
        return 0;
      },
      1);
}

void peer_unbind(void* bound) { delete static_cast<Bound*>(bound); }

void peer_destroy(void* created) { delete static_cast<Created*>(created); }
