// Moxie behind the interface of peer.h, for bench/peers.py: it works in the primary context, as PyTorch does, so that
// PyTorch's pointers and streams are the library's.
#include <string>

#include "bench/peer.h"
#include "moxie/moxie.h"

namespace {

thread_local std::string last_error;

struct Created {
  moxie::Device device;
  moxie::GemmProblem problem;
  bool serial = false, waits = false;
  int64_t workspace_bytes = 0;
  std::string description;
};

struct Bound {
  const Created* created;
  moxie::GemmArguments arguments;
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

// "cooperative 128x256x64, 4 stages, ..." out of the explanation's line "chosen by ...: <kernel>, ...".
std::string chosen_kernel(const moxie::GemmProblem& problem, const moxie::DeviceInfo& device) {
  const std::string text = moxie::explain_plan(problem, device.arch, device.sm_count);
  const size_t line = text.find("chosen by ");
  if (line == std::string::npos) return text.substr(0, text.find('\n'));
  return text.substr(line + 10, text.find(" bytes of shared", line) - line - 10);
}

moxie::GemmProblem problem_of(const PeerProblem& p) {
  moxie::GemmProblem problem;
  problem.grouping = moxie::Grouping::Offsets;
  problem.groups = p.groups;
  problem.m = p.rows;
  problem.n = p.n;
  problem.k = p.k;
  problem.bias = p.bias != 0;
  problem.activation = static_cast<moxie::Activation>(p.activation);
  if (p.pre != 0) problem.pre = moxie::DataType::Bf16;
  if (p.out == 0) problem.out.reset();
  if (p.expected_rows > 0) problem.expected_rows = p.expected_rows;
  if (p.schedule >= 0) problem.schedule = static_cast<moxie::WarpSchedule>(p.schedule);
  if (p.tile_m > 0) problem.tile_m = p.tile_m;
  if (p.tile_n > 0) problem.tile_n = p.tile_n;
  if (p.multicast >= 0) problem.multicast = static_cast<moxie::Multicast>(p.multicast);
  return problem;
}

}  // namespace

const char* peer_error() { return last_error.c_str(); }

int32_t peer_variants() { return 1; }

void* peer_create(const PeerProblem* p) {
  return guarded(
      [&]() -> void* {
        Created created{moxie::Device::open(), problem_of(*p), p->serial != 0, p->waits != 0, 0, ""};
        moxie::prepare(created.device, created.problem);
        created.workspace_bytes = static_cast<int64_t>(moxie::workspace_bytes(created.device, created.problem));
        created.description = chosen_kernel(created.problem, created.device.info());
        return new Created(std::move(created));
      },
      nullptr);
}

int64_t peer_workspace_bytes(void* created) { return static_cast<Created*>(created)->workspace_bytes; }

const char* peer_describe(void* created) { return static_cast<Created*>(created)->description.c_str(); }

void* peer_bind(void* created, const PeerTensors* t) {
  return guarded(
      [&]() -> void* {
        auto* bound = new Bound{static_cast<Created*>(created), {}};
        moxie::GemmArguments& arguments = bound->arguments;
        arguments.a = t->a;
        arguments.b = t->b;
        arguments.bias = t->bias;
        arguments.sizes = t->ends;
        arguments.pre = t->pre;
        arguments.out = t->out;
        arguments.workspace = t->workspace;
        arguments.workspace_bytes = static_cast<size_t>(bound->created->workspace_bytes);
        arguments.alpha = t->alpha;
        arguments.limit = t->limit;
        arguments.programmatic_launch = !bound->created->serial;
        arguments.weights_ready = !bound->created->waits;  // no contender writes them
        return bound;
      },
      nullptr);
}

int32_t peer_launch(void* bound, void* stream) {
  return guarded(
      [&] {
        auto* b = static_cast<Bound*>(bound);
        b->arguments.stream = static_cast<moxie::Stream>(stream);
        moxie::gemm(b->created->device, b->created->problem, b->arguments);
        return 0;
      },
      1);
}

void peer_unbind(void* bound) { delete static_cast<Bound*>(bound); }

void peer_destroy(void* created) { delete static_cast<Created*>(created); }
