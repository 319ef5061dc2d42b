// Birth of a cluster, the order in which its warps run, and a launch over host threads.
#include <algorithm>
#include <cstdlib>
#include <exception>
#include <thread>

#include "sim/machine/coverage.h"
#include "sim/machine/machine.h"
#include "sim/machine/run.h"
#include "sim/machine/special.h"

namespace sim {
namespace {

constexpr uint32_t kSharedLimit = 232448;   // bytes a block may have
constexpr int kPatience = 4;                // rounds of nothing but polling before pending work is performed
constexpr int kDespair = 20000;             // the same with nothing pending: nobody will ever see an event
constexpr uint64_t kLivelock = 1ull << 20;  // instructions without event or store, with work pending
constexpr uint64_t kHopeless = 1ull << 29;  // and with none

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

Dim3 unflatten(uint64_t i, const Dim3& shape) {
  return {static_cast<uint32_t>(i % shape.x), static_cast<uint32_t>(i / shape.x % shape.y),
          static_cast<uint32_t>(i / shape.x / shape.y)};
}

bool varies_between_clusters(Special s) {
  switch (s) {
    case Special::CtaidX:
    case Special::CtaidY:
    case Special::CtaidZ:
    case Special::Smid:
    case Special::ClusteridX:
    case Special::ClusteridY:
    case Special::ClusteridZ:
      return true;
    default:
      return false;
  }
}

void reset_warp(Warp& warp, const Launch& launch, bool fresh, uint32_t live) {
  const Kernel& kernel = *launch.kernel;
  const size_t local_bytes = launch.local_bytes();
  warp.live = live;
  warp.splits.assign(1, Warp::Split{kernel.entry_pc, live, 0, false});
  warp.current = warp.last_split = 0;
  warp.rotate = false;
  warp.rest = 0;
  warp.stop_pc = INT32_MAX;
  warp.view = warp.fence_view = warp.read_view = View{};
  warp.has_fenced = warp.has_read = false;
  warp.reads.reset();
  warp.barrier_waits.clear();
  warp.saved_rows.reset();
  warp.max_registers = 0;
  warp.executed = 0;
  // What a register holds before its first write must not depend on the cluster that used this warp before.
  std::memset(warp.registers.get(), 0, kernel.variable_bytes);
  if (local_bytes != 0) std::memset(warp.local.get(), 0, kLanes * local_bytes);
  for (const Kernel::ConstantRow& row : kernel.constants) {
    if (fresh || varies_between_clusters(static_cast<Special>(row.special))) fill_row(warp, row);
  }
}

// Makes `cluster` the launch's cluster number `number`; one object serves many clusters of a launch in turn.
void begin_cluster(Cluster& cluster, Launch& launch, uint64_t number) {
  const Kernel& kernel = *launch.kernel;
  const Dim3 clusters{launch.grid.x / launch.cluster.x, launch.grid.y / launch.cluster.y,
                      launch.grid.z / launch.cluster.z};
  const uint64_t blocks = launch.cluster.count();
  const uint64_t threads = launch.block.count();
  const uint64_t warps = (threads + kLanes - 1) / kLanes;
  const size_t local_bytes = launch.local_bytes();
  const bool fresh = cluster.ctas.empty();
  cluster.launch = &launch;
  cluster.index = unflatten(number, clusters);
  cluster.events = 1;
  cluster.next_agent = 1;
  cluster.order = launch.order;
  cluster.rng.seed(mix(launch.order.seed) ^ mix(number));
  cluster.waits.clear();
  cluster.sync_objects.clear();
  cluster.writers.clear();
  cluster.instructions = cluster.stores = 0;
  cluster.written.clear();
  if (fresh) {
    for (uint64_t rank = 0; rank < blocks; ++rank) {
      auto cta = std::make_unique<Cta>();
      cta->cluster = &cluster;
      cta->rank = static_cast<uint32_t>(rank);
      for (uint64_t w = 0; w < warps; ++w) {
        auto warp = std::make_unique<Warp>();
        warp->cta = cta.get();
        warp->index = static_cast<int>(w);
        warp->registers = {static_cast<uint8_t*>(std::aligned_alloc(64, std::max<size_t>(64, kernel.register_bytes))),
                           std::free};
        if (!warp->registers) throw std::bad_alloc();
        if (local_bytes != 0) warp->local = std::make_unique<uint8_t[]>(kLanes * local_bytes);
        cta->warps.push_back(std::move(warp));
      }
      cluster.ctas.push_back(std::move(cta));
    }
  }
  for (uint64_t rank = 0; rank < blocks; ++rank) {
    Cta& cta = *cluster.ctas[rank];
    const Dim3 inside = unflatten(rank, launch.cluster);
    cta.index = {cluster.index.x * launch.cluster.x + inside.x, cluster.index.y * launch.cluster.y + inside.y,
                 cluster.index.z * launch.cluster.z + inside.z};
    cta.barriers = {};
    cta.waited = cta.triggered_early = false;
    const uint32_t dynamic_end = launch.dynamic_shared == 0 ? 0 : kernel.dynamic_shared + launch.dynamic_shared;
    cta.shared.create(std::max(kernel.static_shared, dynamic_end), blocks > 1);
  }
  for (const auto& cta : cluster.ctas) {
    for (uint64_t w = 0; w < warps; ++w) {
      const uint64_t rest = threads - w * kLanes;
      reset_warp(*cta->warps[w], launch, fresh, rest >= kLanes ? kFullMask : (1u << rest) - 1);
    }
  }
  cluster.cancel_failures.clear();
  reset_tensor_state(cluster);
  create_async_state(cluster);
}

}  // namespace

bool Cta::finished() const {
  return std::all_of(warps.begin(), warps.end(), [](const auto& warp) { return warp->live == 0; });
}

void Cluster::run() {
  std::vector<Warp*> order_of;
  for (const auto& cta : ctas) {
    for (const auto& warp : cta->warps) order_of.push_back(warp.get());
  }
  if (order.mode == Mode::Lazy) std::reverse(order_of.begin(), order_of.end());
  size_t alive = order_of.size();
  size_t first = 0;
  int polling_rounds = 0;
  std::vector<uint32_t> hogged(order_of.size(), 0);
  uint64_t seen_events = events, seen_stores = stores, quiet_since = 0;

  while (alive > 0) {
    const uint64_t events_before = events;
    bool ran = false, worked = false;
    if (order.mode == Mode::Random) std::shuffle(order_of.begin(), order_of.end(), rng);
    for (size_t i = 0; i < order_of.size(); ++i) {
      Warp& warp = *order_of[(first + i) % order_of.size()];
      if (warp.splits.empty()) continue;
      uint32_t quantum = 4096;
      if (order.mode == Mode::Lazy) quantum = 1024;
      if (order.mode == Mode::Random) {
        const uint64_t draw = rng();
        // Now and then the others get far ahead of a warp.
        if (warp.rest == 0 && (draw >> 40) % 64 == 0) warp.rest = static_cast<uint32_t>(draw >> 48) % 64;
        if (warp.rest > 0) {
          --warp.rest;
          ran = worked = true;
          continue;
        }
        quantum = 1 + static_cast<uint32_t>(draw % 256);
        if (warp.splits.size() > 1 && (draw >> 32) % 8 == 0) warp.rotate = true;
      }
      uint32_t executed = 0;
      const Turn turn = run_warp(warp, quantum, &executed);
      instructions += executed;
      if (executed > 0) ran = true;
      if (turn == Turn::Finished) --alive;
      if (turn == Turn::Yielded) warp.rotate = true;
      if (turn == Turn::Quantum && warp.splits.size() > 1 && ++hogged[static_cast<size_t>(warp.index)] % 16 == 0)
        warp.rotate = true;
      if (executed > 0 && turn != Turn::Yielded) worked = true;
      if (order.mode == Mode::Random) engine.maybe_perform(*this);
    }
    if (alive == 0) break;
    if (order.mode == Mode::Lazy) first = (first + 1) % order_of.size();
    if (stop_above != nullptr && stop_above->load(std::memory_order_relaxed) < number) return;

    const bool quiet = events == events_before;
    if (!ran && quiet) {
      if (!engine.perform_one(*this)) report_deadlock(*this, "no warp can run");
      event();
      continue;
    }
    polling_rounds = quiet && !worked ? polling_rounds + 1 : 0;
    if (polling_rounds >= kPatience && engine.perform_one(*this)) {
      event();
      polling_rounds = 0;
    }
    if (polling_rounds >= kDespair) report_deadlock(*this, "every warp that can run polls in vain");

    if (events != seen_events || stores != seen_stores) {
      seen_events = events;
      seen_stores = stores;
      quiet_since = instructions;
    } else if (instructions - quiet_since > kLivelock && engine.pending() > 0) {
      engine.perform_one(*this);
      event();
    } else if (instructions - quiet_since > kHopeless) {
      report_deadlock(*this, "no progress in " + std::to_string(kHopeless) + " instructions");
    }
  }
}

namespace {

// How many clusters start at once. Without clusterlaunchcontrol that makes no difference: all. With it the others are
// pending, and cluster number i has i + n, i + 2 n, ... to itself: they are handed to its try_cancel, and to that of
// whichever of them runs when it has ended, so that the outcome does not depend on host threads. On a GPU n is what
// fits, any number from one up; here it follows the order, so that small grids meet both answers.
uint64_t running_clusters(const Launch& launch, uint64_t clusters) {
  const bool cancels = std::any_of(launch.kernel->code.begin(), launch.kernel->code.end(), [](const Instr& in) {
    return in.source != nullptr && in.source->parts[0] == "clusterlaunchcontrol";
  });
  if (!cancels) return clusters;
  const uint64_t processors = launch.multiprocessors > 0 ? launch.multiprocessors : launch.arch >= 100 ? 148 : 132;
  const uint64_t fitting = std::max<uint64_t>(1, std::min(clusters, processors / launch.cluster.count()));
  if (launch.order.mode == Mode::Lazy) return std::min<uint64_t>(2, fitting);
  if (launch.order.mode == Mode::Random) return 1 + mix(launch.order.seed) % fitting;
  return std::min(fitting, (clusters + 2) / 3);
}

// Whether clusters that run side by side could make the outcome depend on who comes first: what an atomic operation on
// global memory returns, and sums of floats, which are rounded in the order they are made.
bool order_between_clusters_matters(const Kernel& kernel) {
  return std::any_of(kernel.code.begin(), kernel.code.end(), [](const Instr& in) {
    if (in.source == nullptr) return false;
    const auto& parts = in.source->parts;
    const auto has = [&](auto found) { return std::any_of(parts.begin(), parts.end(), found); };
    const bool floats = has(
        [](const std::string& p) { return p.starts_with("f16") || p.starts_with("bf16") || p == "f32" || p == "f64"; });
    if (parts[0] == "cp") return floats && has([](const std::string& p) { return p == "reduce"; });
    if (parts[0] != "atom" && parts[0] != "red") return false;
    if (has([](const std::string& p) { return p.starts_with("shared"); })) return false;
    return parts[0] == "atom" || floats || has([](const std::string& p) { return p == "async"; });
  });
}

}  // namespace

void run(Launch& launch) {
  const Kernel& kernel = *launch.kernel;
  const auto refuse = [&](const std::string& text) {
    throw Fault(Hazard::IllegalUse,
                std::string(hazard_name(Hazard::IllegalUse)) + ": kernel '" + kernel.name + "': " + text);
  };
  const uint64_t threads_per_block = launch.block.count();
  if (threads_per_block == 0 || threads_per_block > 1024)
    refuse("a block of " + std::to_string(threads_per_block) + " threads is not allowed");
  if (launch.cluster.count() == 0 || launch.grid.x % launch.cluster.x != 0 || launch.grid.y % launch.cluster.y != 0 ||
      launch.grid.z % launch.cluster.z != 0) {
    refuse("the grid is not a whole number of clusters");
  }
  if (kernel.static_shared + uint64_t{launch.dynamic_shared} > kSharedLimit) {
    refuse("a block needs " + std::to_string(kernel.static_shared + uint64_t{launch.dynamic_shared}) +
           " bytes of shared memory, over the limit of " + std::to_string(kSharedLimit));
  }
  if (launch.params.size() < kernel.param_bytes) {
    refuse("parameters of " + std::to_string(launch.params.size()) + " bytes given, " +
           std::to_string(kernel.param_bytes) + " needed");
  }
  const uint64_t clusters = launch.grid.count() / launch.cluster.count();
  unsigned host_threads =
      launch.threads > 0 ? static_cast<unsigned>(launch.threads) : std::thread::hardware_concurrency();
  host_threads = static_cast<unsigned>(std::min<uint64_t>(std::max(1u, host_threads), std::max<uint64_t>(1, clusters)));

  const uint64_t running = running_clusters(launch, clusters);
  host_threads = static_cast<unsigned>(std::min<uint64_t>(host_threads, running));
  if (order_between_clusters_matters(kernel)) host_threads = 1;

  // Whether a tensor map in global memory was stored over is asked when a copy uses it.
  const bool copies_tensors = std::any_of(kernel.code.begin(), kernel.code.end(), [](const Instr& in) {
    return in.source != nullptr && in.source->opcode.rfind("cp.async.bulk.tensor", 0) == 0;
  });
  std::atomic<uint64_t> next{0}, failed{UINT64_MAX};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run_one = [&](Cluster& cluster, uint64_t number) {
    try {
      cluster.number = number;
      begin_cluster(cluster, launch, number);
      cluster.run();
      if (failed.load() < number) return false;
      finish_tensor_state(cluster);
      finish_async_state(cluster);
      launch.instructions += cluster.instructions;
      for (const auto& cta : cluster.ctas) {
        if (cta->waited && !cta->triggered_early) launch.waited = true;
      }
      if (launch.written != nullptr) {
        const std::lock_guard<std::mutex> lock(mutex);
        launch.written->add(cluster.written);
      }
      return true;
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (number < failed.load()) {
        failed = number;
        failure = std::current_exception();
      }
      return false;
    }
  };
  const auto work = [&] {
    Cluster cluster;
    cluster.stop_above = &failed;
    cluster.alone = host_threads == 1;
    cluster.logs_writes = launch.written != nullptr || copies_tensors;
    for (;;) {
      const uint64_t first = next.fetch_add(1);
      if (first >= running || failed.load() < first) return;
      // Those of its share that it does not cancel run when it has ended.
      cluster.pending = {first, running, clusters};
      while (cluster.pending.next < clusters) {
        const uint64_t number = cluster.pending.next;
        cluster.pending.next += running;
        if (failed.load() < number) break;
        if (!run_one(cluster, number)) break;
      }
    }
  };
  if (host_threads == 1) {
    work();
  } else {
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < host_threads; ++i) workers.emplace_back(work);
    for (std::thread& worker : workers) worker.join();
  }
  launch.meet_prerequisites();
  record_coverage(kernel);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace sim
