// SPDX-License-Identifier: Apache-2.0
// The execution of work in stream order, and the report of what goes wrong in it.
#include "sim/driver/execute.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "sim/driver/allocation.h"
#include "sim/driver/event.h"
#include "sim/driver/stream.h"
#include "sim/machine/decode.h"
#include "sim/machine/environment.h"
#include "sim/memory/address_space.h"
#include "sim/run/run.h"

namespace sim::driver {
namespace {

// The caller holds the lock.
void print_report(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  if (const char* path = std::getenv("MOXIE_SIM_REPORT"); path != nullptr && *path != 0) {
    if (std::FILE* file = std::fopen(path, "w")) {
      std::fprintf(file, "%s\n", text.c_str());
      std::fclose(file);
    } else {
      std::fprintf(stderr, "MOXIE_SIM_REPORT: cannot write '%s'\n", path);
    }
  }
}

void report_fault(CUctx_st& context, const Fault& fault) { report_faults({&context}, fault); }

void print_statistics(const Launch& launch, std::chrono::duration<double> time) {
  const Statistics& s = launch.statistics;
  std::fprintf(stderr,
               "statistics: kernel '%s', %llu blocks: %llu lane-instructions, %llu multiply-adds, %llu bytes read and "
               "%llu written, %.3f s\n",
               launch.kernel->name.c_str(), static_cast<unsigned long long>(launch.grid.count()),
               static_cast<unsigned long long>(s.lane_instructions), static_cast<unsigned long long>(s.multiply_adds),
               static_cast<unsigned long long>(s.bytes_read), static_cast<unsigned long long>(s.bytes_written),
               time.count());
}

void copy_bytes(const CopyWork& copy) {
  auto* to = reinterpret_cast<uint8_t*>(copy.destination);
  auto* from = reinterpret_cast<const uint8_t*>(copy.source);
  for (uint64_t z = 0; z < copy.depth; ++z) {
    for (uint64_t y = 0; y < copy.height; ++y) {
      std::memmove(to + z * copy.destination_slice + y * copy.destination_pitch,
                   from + z * copy.source_slice + y * copy.source_pitch, copy.width);
    }
  }
}

// What a copy makes of undefined values. Says what is wrong where the host reads one; empty when nothing is.
std::string copy_undefined(const CopyWork& copy) {
  UndefinedBytes& undefined = state().memory.undefined;
  if (!undefined.any()) return "";
  const Allocation* const to = copy.destination_owned ? find_allocation(copy.destination) : nullptr;
  using Kind = Allocation::Kind;
  const bool to_device = to != nullptr && to->kind != Kind::Host && to->kind != Kind::Registered;
  for (uint64_t z = 0; z < copy.depth; ++z) {
    for (uint64_t y = 0; y < copy.height; ++y) {
      const uint64_t source = copy.source + z * copy.source_slice + y * copy.source_pitch;
      if (to_device) {
        undefined.copy(copy.destination + z * copy.destination_slice + y * copy.destination_pitch, source, copy.width);
        continue;
      }
      const UndefinedBytes::Found found = undefined.find(source, copy.width);
      if (found.address != 0) {
        return "memory: the host reads global memory at " + hex(found.address) + ", where " + found.by +
               " has stored what depends on uninitialised memory";
      }
    }
  }
  return "";
}

void fill(const SetWork& set) {
  for (uint64_t y = 0; y < set.height; ++y) {
    auto* row = reinterpret_cast<uint8_t*>(set.destination + y * set.pitch);
    if (set.element_bytes == 1) {
      std::memset(row, static_cast<int>(set.value), set.width);
      continue;
    }
    for (uint64_t x = 0; x < set.width; ++x) std::memcpy(row + x * set.element_bytes, &set.value, set.element_bytes);
  }
}

struct HostFunctionScope {
  HostFunctionScope() { in_host_function = true; }
  ~HostFunctionScope() { in_host_function = false; }
};

struct Executor {
  Call& c;
  CUctx_st& context;
  // Null for a part of a graph.
  CUstream_st* stream;

  void operator()(const std::monostate&) const {}

  void operator()(const KernelWork& work) const {
    KernelRun kernel(context, work, stream, settings_from_environment());
    c.unlocked([&] { kernel.run(); }, true);
    kernel.finish();
  }

  // A graph may be launched after its memory was freed.
  void operator()(const CopyWork& copy) const {
    if (copy.width == 0 || copy.height == 0 || copy.depth == 0) return;
    const uint64_t from = span(copy.width, copy.height, copy.depth, copy.source_pitch, copy.source_slice);
    const uint64_t to = span(copy.width, copy.height, copy.depth, copy.destination_pitch, copy.destination_slice);
    if ((copy.source_owned && !is_live(copy.source, from)) ||
        (copy.destination_owned && !is_live(copy.destination, to))) {
      return report_fault(context, Fault(Hazard::Memory, "memory: a copy of memory that was freed"));
    }
    if (const std::string wrong = copy_undefined(copy); !wrong.empty())
      return report_fault(context, Fault(Hazard::Memory, wrong));
    c.unlocked([&] { copy_bytes(copy); }, true);
  }

  void operator()(const SetWork& set) const {
    if (set.width == 0 || set.height == 0) return;
    if (!is_live(set.destination, span(set.width * set.element_bytes, set.height, 1, set.pitch, 0))) {
      return report_fault(context, Fault(Hazard::Memory, "memory: a fill of memory that was freed"));
    }
    c.unlocked([&] { fill(set); }, true);
    for (uint64_t y = 0; y < set.height; ++y)
      state().memory.undefined.define(set.destination + y * set.pitch, set.width * set.element_bytes);
  }

  void operator()(const HostWork& work) const {
    c.unlocked(
        [&] {
          HostFunctionScope scope;
          work.function(work.data);
        },
        false);
  }

  void operator()(const CallbackWork& work) const {
    const CUresult status = context.failure;
    c.unlocked(
        [&] {
          HostFunctionScope scope;
          work.function(work.stream, status, work.data);
        },
        false);
  }

  void operator()(const EventRecordWork& work) const {
    if (!state().events.contains(work.event)) return;
    work.event->time = std::chrono::steady_clock::now();
    work.event->capture.reset();
    work.event->dependencies.clear();
  }

  // Whatever the event recorded has happened.
  void operator()(const EventWaitWork&) const {}

  void operator()(const MemoryFreeWork& work) const {
    const Allocation* a = find_allocation(work.address);
    // The memory of a graph stays for the next launch of the graph.
    if (a != nullptr && a->address == work.address && a->kind != Allocation::Kind::Graph) release(work.address);
  }

  void operator()(const std::shared_ptr<GraphWork>& graph) const {
    for (const Work& step : graph->steps) execute(c, context, step, nullptr);
  }
};

// What a GPU's driver answers.
CUresult code_of(Hazard kind) {
  if (kind == Hazard::Memory) return CUDA_ERROR_ILLEGAL_ADDRESS;
  return kind == Hazard::Assertion ? CUDA_ERROR_ASSERT : CUDA_ERROR_LAUNCH_FAILED;
}

}  // namespace

void forget_grids(CUctx_st& context) {
  state().streams.each([&](CUstream_st& s) {
    if (s.context == &context) s.last.reset();
  });
}

void report_faults(const std::vector<CUctx_st*>& contexts, const Fault& fault) {
  const std::string text = fault.what();
  State& s = state();
  s.report = text.substr(0, text.find('\n'));
  s.report_code = code_of(fault.kind);
  for (CUctx_st* const context : contexts) {
    if (context->failure != CUDA_SUCCESS) continue;
    context->failure = s.report_code;
    context->report = s.report;
  }
  print_report(text);
}

Settings settings_from_environment() {
  try {
    return {order_from_environment(), threads_from_environment(), rules_from_environment(),
            statistics_from_environment()};
  } catch (const std::invalid_argument& e) {
    fail(CUDA_ERROR_INVALID_VALUE, e.what());
  }
}

KernelRun::KernelRun(CUctx_st& context, const KernelWork& work, CUstream_st* stream, const Settings& settings)
    : context_(context), kernel_(work.kernel), stream_(stream), begin_(std::chrono::steady_clock::now()) {
  State& s = state();
  launch.kernel = work.kernel.get();
  launch.grid = work.grid;
  launch.block = work.block;
  launch.cluster = work.cluster;
  launch.explicit_cluster = work.explicit_cluster;
  launch.dynamic_shared = work.dynamic_shared;
  launch.params = work.params;
  launch.global = &s.memory;
  if (context.heap == nullptr)
    context.heap =
        std::make_unique<DeviceHeap>(s.memory, residence_of(Allocation::Kind::Device, context.device, nullptr));
  launch.heap = context.heap.get();
  launch.heap_bytes = context.limits[CU_LIMIT_MALLOC_HEAP_SIZE];
  launch.arch = s.device.arch;
  if (s.device_count > 1) launch.device = context.device;
  launch.multiprocessors = static_cast<uint32_t>(s.device.sm_count);
  launch.blocks_per_multiprocessor = work.blocks_per_multiprocessor;
  launch.stack_bytes = static_cast<uint32_t>(context.limits[CU_LIMIT_STACK_SIZE]);
  launch.order = settings.order;
  launch.threads = settings.threads;
  launch.rules = settings.rules;
  launch.counts = settings.counts;
  if (work.cooperative) {
    workspace_ = std::make_unique<Workspace>();
    launch.grid_workspace = reinterpret_cast<uint64_t>(workspace_.get());
    s.memory.map(launch.grid_workspace, sizeof(Workspace),
                 residence_of(Allocation::Kind::Device, context.device, nullptr));
  }
  if (stream == nullptr || !s.has_dependent_grids) return;
  if (work.programmatic && stream->last) {
    launch.predecessors.unfinished_writes = stream->last->unfinished;
    launch.predecessors.unfinished_writes.push_back(stream->last->written);
    early_ = stream->last->before;
  }
  grid_.written = std::make_shared<WrittenBytes>();
  launch.written = grid_.written.get();
}

KernelRun::~KernelRun() {
  if (workspace_ == nullptr) return;
  State& s = state();
  s.memory.unmap(launch.grid_workspace);
  if (s.device_count == 1) return;
  const std::lock_guard<std::mutex> lock(s.history.mutex);
  s.history.forget(launch.grid_workspace);
}

void KernelRun::guarded(const std::function<void()>& body) {
  try {
    body();
  } catch (const Fault& f) {
    failure = f;
  } catch (const Unsupported& e) {
    failure = Fault(Hazard::IllegalUse, e.what());
  }
}

void KernelRun::run() {
  guarded([&] { sim::run(launch); });
}

void KernelRun::know(const Knowledge& begin, const Knowledge& host) {
  system.begin = system.early = begin;
  if (!early_) return;
  system.early = *early_;
  system.early.join(host);
}

void KernelRun::finish() {
  if (launch.counts) print_statistics(launch, std::chrono::steady_clock::now() - begin_);
  for (const std::string& line : launch.deviations.lines()) std::fprintf(stderr, "%s\n", line.c_str());
  if (failure) report_fault(context_, *failure);
  if (grid_.written == nullptr) return;
  // A dependent grid of one that did not wait may start before the earlier grids have ended.
  if (!launch.predecessors.waited_for) grid_.unfinished = launch.predecessors.unfinished_writes;
  grid_.before = launch.predecessors.waited_for ? system.begin : system.early;
  if (state().streams.contains(stream_)) stream_->last = std::move(grid_);
}

void execute(Call& c, CUctx_st& context, const Work& work, CUstream_st* stream) {
  if (context.failure != CUDA_SUCCESS) {
    // Work behind failed work never runs. Only callbacks learn of the failure.
    if (const auto* callback = std::get_if<CallbackWork>(&work)) Executor{c, context, stream}(*callback);
    return;
  }
  if (stream == nullptr) {
    forget_grids(context);
  } else if (!std::holds_alternative<KernelWork>(work)) {
    stream->last.reset();
  }
  std::visit(Executor{c, context, stream}, work);
}

}  // namespace sim::driver
