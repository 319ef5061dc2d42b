// SPDX-License-Identifier: Apache-2.0
// Which work may run, and how a host thread that waits runs it.
#include "sim/driver/queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "sim/driver/allocation.h"
#include "sim/driver/event.h"
#include "sim/driver/execute.h"
#include "sim/hazards/system_access.h"
#include "sim/machine/environment.h"

namespace sim::driver {

struct Item {
  CUctx_st* context = nullptr;
  // Null for a part of a graph, and when the stream is gone.
  CUstream_st* stream = nullptr;
  Work work;
  Settings settings;
  // What must be done before it.
  std::vector<std::shared_ptr<Item>> after;
  // What a copy from memory of the host that is not page-locked had to copy when it was enqueued.
  std::vector<uint8_t> staged;
  std::vector<std::shared_ptr<uint64_t>> memory;
  std::unique_ptr<KernelRun> kernel;
  std::unique_ptr<RunningGrid> grid;
  // Its place among all works; what has happened before it, and, when it is done, before what follows it.
  Stamp place;
  Knowledge known;
  Knowledge host;  // what the host knew when it was enqueued, for programmatic launches
  bool done = false;

  bool ready() const {
    return std::all_of(after.begin(), after.end(), [](const auto& other) { return other->done; });
  }
};

namespace {

using ItemPtr = std::shared_ptr<Item>;

constexpr std::chrono::milliseconds kGlance{50};
constexpr int kTurns = 256;     // turns of kernels until newly enqueued work is looked at
constexpr int kInARow = 64;     // turns that a kernel may have while others wait
constexpr int kLookAgain = 32;  // rounds of a proof until newly enqueued work is looked at

bool several_devices() { return state().device_count > 1; }

// A line that ends with something that is before the new work, or a new one.
Stamp place_behind(const std::vector<ItemPtr>& after) {
  Queue& queue = state().queue;
  const auto append = [&](uint32_t line) { return Stamp{line, ++queue.lines[line]}; };
  for (const ItemPtr& before : after) {
    if (queue.lines[before->place.by] == before->place.at) return append(before->place.by);
  }
  for (uint32_t line = 0; line < queue.lines.size(); ++line) {
    if (queue.host.works[line] >= queue.lines[line]) return append(line);
  }
  queue.lines.push_back(0);
  return append(static_cast<uint32_t>(queue.lines.size()) - 1);
}

ItemPtr add_item(CUctx_st& context, CUstream_st* stream, Work work, std::vector<ItemPtr> after) {
  auto item = std::make_shared<Item>();
  item->context = &context;
  item->stream = stream;
  if (const auto* wait = std::get_if<EventWaitWork>(&work); wait != nullptr && state().events.contains(wait->event)) {
    if (wait->event->record != nullptr) after.push_back(wait->event->record);
  }
  after.erase(std::remove(after.begin(), after.end(), nullptr), after.end());
  item->place = place_behind(after);
  item->known = state().queue.host;
  const auto ended = std::stable_partition(after.begin(), after.end(), [](const ItemPtr& i) { return !i->done; });
  for (auto it = ended; it != after.end(); ++it) item->known.join((*it)->known);
  after.erase(ended, after.end());
  item->after = std::move(after);
  if (const auto* kernel = std::get_if<KernelWork>(&work)) {
    item->settings = settings_from_environment();
    if (kernel->programmatic) item->host = state().queue.host;
  }
  item->work = std::move(work);
  Queue& queue = state().queue;
  queue.begins = queue.begins || queue.items.empty();
  queue.items.push_back(item);
  ++queue.submissions;
  return item;
}

// The step that follows all others of the graph.
ItemPtr add_graph(CUctx_st& context, CUstream_st* stream, const GraphWork& graph, std::vector<ItemPtr> after) {
  const ItemPtr head = add_item(context, nullptr, Work{}, std::move(after));
  std::vector<ItemPtr> steps;
  std::vector<bool> followed(graph.steps.size(), false);
  for (size_t i = 0; i < graph.steps.size(); ++i) {
    std::vector<ItemPtr> before{head};
    for (size_t d : graph.dependencies[i]) {
      before.push_back(steps[d]);
      followed[d] = true;
    }
    CUctx_st& where = graph.contexts[i] != nullptr ? *graph.contexts[i] : context;
    const Work& work = graph.steps[i];
    if (const auto* child = std::get_if<std::shared_ptr<GraphWork>>(&work)) {
      steps.push_back(add_graph(where, nullptr, **child, std::move(before)));
      continue;
    }
    steps.push_back(add_item(where, nullptr, work, std::move(before)));
    const auto* record = std::get_if<EventRecordWork>(&work);
    if (record != nullptr && state().events.contains(record->event)) record->event->record = steps.back();
  }
  std::vector<ItemPtr> last{head};
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!followed[i]) last.push_back(steps[i]);
  }
  const ItemPtr tail = add_item(context, stream, Work{}, std::move(last));
  tail->memory = graph.memory;
  return tail;
}

// What comes before the next work of the stream. The legacy stream and the blocking ones wait for each other.
std::vector<ItemPtr> before_next(CUstream_st& stream) {
  std::vector<ItemPtr> after{stream.tail};
  if (stream.legacy) {
    state().streams.each([&](CUstream_st& other) {
      if (other.context == stream.context && other.blocking()) after.push_back(other.tail);
    });
  } else if (stream.blocking() && stream.context->legacy != nullptr) {
    after.push_back(stream.context->legacy->tail);
  }
  return after;
}

void end_of(Item& item) {
  item.done = true;
  item.known.works.raise(item.place.by, item.place.at);
  if (item.kernel != nullptr) item.known.join(item.kernel->system.end);
  state().queue.devices[static_cast<size_t>(item.context->device)].join(item.known);
  item.after.clear();
  item.grid.reset();
  item.kernel.reset();
  item.memory.clear();
  ++state().queue.progress.changes;
}

// What the work knows when it begins. What its device has done before is done.
void learn(Item& item) {
  for (const ItemPtr& before : item.after) item.known.join(before->known);
  if (std::holds_alternative<KernelWork>(item.work))
    item.known.join(state().queue.devices[static_cast<size_t>(item.context->device)]);
}

// What is wrong with the order of a copy or a fill and the accesses of other devices; empty when nothing is.
std::string judge(const Item& item) {
  State& s = state();
  SystemAccess access;
  access.work = item.place;
  access.device = item.context->device;
  std::string wrong;
  const auto row = [&](uint64_t address, uint64_t bytes, bool write) {
    if (wrong.empty()) wrong = system_work_access(s.history, s.memory, access, item.known, address, bytes, write);
  };
  if (const auto* copy = std::get_if<CopyWork>(&item.work)) {
    access.name = s.history.name_of("a copy");
    for (uint64_t z = 0; z < copy->depth; ++z) {
      for (uint64_t y = 0; y < copy->height; ++y) {
        if (copy->source_owned) row(copy->source + z * copy->source_slice + y * copy->source_pitch, copy->width, false);
        if (copy->destination_owned)
          row(copy->destination + z * copy->destination_slice + y * copy->destination_pitch, copy->width, true);
      }
    }
  } else if (const auto* set = std::get_if<SetWork>(&item.work)) {
    access.name = s.history.name_of("a fill");
    for (uint64_t y = 0; y < set->height; ++y)
      row(set->destination + y * set->pitch, set->width * set->element_bytes, true);
  }
  return wrong;
}

// Executes what is ready and is no kernel, and begins the kernels that are. True when it has executed anything.
bool start_ready(Call& c) {
  Queue& queue = state().queue;
  bool worked = false;
  for (size_t i = 0; i < queue.items.size(); ++i) {
    const ItemPtr item = queue.items[i];
    if (item->done || item->kernel != nullptr || !item->ready()) continue;
    worked = true;
    learn(*item);
    const auto* work = std::get_if<KernelWork>(&item->work);
    if (work == nullptr || item->context->failure != CUDA_SUCCESS) {
      // An event that was recorded again since has the time of the later record.
      const auto* record = std::get_if<EventRecordWork>(&item->work);
      const bool outdated =
          record != nullptr && state().events.contains(record->event) && record->event->record != item;
      const std::string wrong = item->context->failure == CUDA_SUCCESS ? judge(*item) : "";
      if (!wrong.empty()) report_faults({item->context}, Fault(Hazard::Race, wrong));
      if (!outdated) execute(c, *item->context, item->work, item->stream);
      end_of(*item);
      continue;
    }
    item->kernel = std::make_unique<KernelRun>(*item->context, *work, item->stream, item->settings);
    KernelRun& kernel = *item->kernel;
    kernel.system.history = &state().history;
    kernel.system.work = item->place;
    kernel.system.name = state().history.name_of("kernel '" + work->kernel->name + "'");
    kernel.know(item->known, item->host);
    kernel.launch.system = &kernel.system;
    // Small grids take turns with others, too, so that orders differ.
    constexpr uint64_t kSmall = 4;
    if (may_wait_for_others(*work->kernel) || work->grid.count() <= kSmall) {
      kernel.guarded([&] { item->grid = std::make_unique<RunningGrid>(kernel.launch, queue.progress, true); });
      if (item->grid != nullptr) continue;
    } else {
      c.unlocked([&] { kernel.run(); }, true);
    }
    kernel.finish();
    end_of(*item);
  }
  queue.items.erase(std::remove_if(queue.items.begin(), queue.items.end(), [](const ItemPtr& i) { return i->done; }),
                    queue.items.end());
  return worked;
}

std::vector<ItemPtr> running_kernels() {
  std::vector<ItemPtr> running;
  for (const ItemPtr& item : state().queue.items) {
    if (item->grid != nullptr) running.push_back(item);
  }
  return running;
}

// Kernels take turns for a while, or until one ends. False when all are stuck.
bool take_turns(const std::vector<ItemPtr>& running) {
  Queue& queue = state().queue;
  const Order order = running[0]->settings.order;
  size_t idle = 0;
  int in_a_row = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    if (order.mode == Mode::Random && idle == 0) queue.current = queue.rng();
    queue.current %= running.size();
    Item& item = *running[order.mode == Mode::Lazy ? running.size() - 1 - queue.current : queue.current];
    RunningGrid& grid = *item.grid;
    bool went = false;
    item.kernel->guarded([&] { went = grid.turn(); });
    if (item.kernel->failure || grid.done()) return true;
    if (went) {
      idle = 0;
      if (++in_a_row < kInARow) continue;
    } else if (++idle == running.size()) {
      for (size_t n = 0; n < running.size(); ++n) {
        const size_t i = (queue.current + n) % running.size();
        if (running[order.mode == Mode::Lazy ? running.size() - 1 - i : i]->grid->perform_pending()) return true;
      }
      return false;
    }
    in_a_row = 0;
    ++queue.current;
  }
  return true;
}

// Runs what is queued for a while. False when nothing can go on.
bool run_devices(Call& c) {
  bool worked = start_ready(c);
  const std::vector<ItemPtr> running = running_kernels();
  if (running.empty()) return worked;
  Queue& queue = state().queue;
  if (queue.begins) {
    queue.rng.seed(running[0]->settings.order.seed);
    queue.current = 0;
    queue.begins = false;
  }
  c.unlocked([&] { worked = take_turns(running) || worked; }, true);
  for (const ItemPtr& item : running) {
    if (!item->kernel->failure && !item->grid->done()) continue;
    item->grid->finish();
    item->kernel->finish();
    end_of(*item);
  }
  return worked;
}

// Nobody will enqueue what the kernels wait for. They end in a report, unless one of them goes on after all.
void give_up(Call& c) {
  Queue& queue = state().queue;
  const std::vector<ItemPtr> running = running_kernels();
  const uint64_t changes = queue.progress.changes, submissions = queue.submissions;
  std::vector<RunningGrid*> grids;
  std::vector<CUctx_st*> contexts;
  for (const ItemPtr& item : running) {
    grids.push_back(item->grid.get());
    contexts.push_back(item->context);
  }
  bool for_ever = false, time_passes = false;
  while (!for_ever && queue.progress.changes == changes && queue.submissions == submissions) {
    c.unlocked(
        [&] {
          for (int round = 0; round < kLookAgain && !for_ever && queue.progress.changes == changes; ++round) {
            for_ever = true;
            for (const ItemPtr& item : running) {
              item->kernel->guarded([&] { for_ever = item->grid->comes_back(time_passes) && for_ever; });
              if (item->kernel->failure) ++queue.progress.changes;
            }
            for_ever = for_ever && queue.progress.changes == changes;
            // What waits for a clock has its time when nothing else can go on.
            if (for_ever && !time_passes) time_passes = true, for_ever = false;
          }
        },
        true);
  }
  if (!for_ever) return;
  std::string more;
  for (const auto& context : state().contexts) {
    if (context->failure == CUDA_SUCCESS) continue;
    more += "\n  device " + std::to_string(context->device) + " does nothing more since: " + context->report;
  }
  if (more.empty()) more = "\n  nothing is pending";
  try {
    report_deadlock(grids, more);
  } catch (const Fault& fault) {
    report_faults(contexts, fault);
  }
  for (const ItemPtr& item : running) {
    item->grid->finish();
    item->kernel->finish();
    end_of(*item);
  }
}

// The host may have written to memory that a kernel reads.
void glance() {
  ++state().queue.progress.changes;
  ++state().queue.glances;
}

// Grows with whatever is enqueued, and with whatever kernels and copies change.
uint64_t achieved() {
  const Queue& queue = state().queue;
  return queue.submissions + queue.progress.changes - queue.glances;
}

// Runs the devices until `done` says so. Where the caller does not wait it returns false when nothing can go on before.
template <class Done>
bool drive(Call& c, Done done, bool waits) {
  Queue& queue = state().queue;
  struct Waiting {
    Queue& queue;
    int count;
    ~Waiting() { queue.waiting -= count; }
  } waiting{queue, waits ? 1 : 0};
  queue.waiting += waiting.count;
  queue.changed.notify_all();
  glance();
  const std::chrono::seconds patience = patience_from_environment();
  uint64_t seen = 0;  // of what was achieved, which is never 0
  std::chrono::steady_clock::time_point idle_since{};
  while (!done()) {
    if (queue.driving) {
      c.wait(queue.changed, kGlance);
      continue;
    }
    queue.driving = true;
    const bool worked = run_devices(c);
    queue.driving = false;
    queue.changed.notify_all();
    const auto now = std::chrono::steady_clock::now();
    const bool more = achieved() != seen;
    if (more) seen = achieved(), idle_since = now;
    if (worked || more) continue;
    if (!waits) return done();
    if (queue.host_threads > queue.waiting && now - idle_since < patience) {
      c.wait(queue.changed, kGlance);
      glance();
      continue;
    }
    queue.driving = true;
    give_up(c);
    queue.driving = false;
    queue.changed.notify_all();
  }
  return true;
}

// Once the host knows of everything that was done, whatever follows does.
void forget_history() {
  State& s = state();
  if (!s.queue.items.empty()) return;
  for (uint32_t line = 0; line < s.queue.lines.size(); ++line) {
    if (s.queue.host.works[line] < s.queue.lines[line]) return;
  }
  const std::lock_guard<std::mutex> lock(s.history.mutex);
  s.history.forget_all();
}

// Whether the works are done, where the caller waits in the end. The host knows of them then.
bool finish(Call& c, const std::vector<ItemPtr>& works, bool waits) {
  const auto all_done = [&] {
    return std::all_of(works.begin(), works.end(), [](const ItemPtr& i) { return i == nullptr || i->done; });
  };
  if (!drive(c, all_done, waits)) return false;
  for (const ItemPtr& item : works) {
    if (item != nullptr) state().queue.host.join(item->known);
  }
  forget_history();
  return true;
}

std::vector<ItemPtr> works_of(CUstream_st& stream) {
  return stream.legacy ? before_next(stream) : std::vector<ItemPtr>{stream.tail};
}

void answer(CUctx_st& context) {
  if (context.failure == CUDA_SUCCESS) return;
  context.failure_seen = true;
  // cuGetErrorString speaks of the failure that was answered last.
  state().report = context.report;
  state().report_code = context.failure;
  fail(context.failure, context.report);
}

bool is_idle(const CUctx_st& context) {
  const auto& items = state().queue.items;
  return std::all_of(items.begin(), items.end(), [&](const ItemPtr& i) { return i->done || i->context != &context; });
}

}  // namespace

void enqueue(Call& c, CUstream_st& stream, Work work, bool waits) {
  std::vector<ItemPtr> after = before_next(stream);
  if (const auto* graph = std::get_if<std::shared_ptr<GraphWork>>(&work)) {
    stream.tail = add_graph(*stream.context, &stream, **graph, std::move(after));
    state().queue.changed.notify_all();
    return;
  }
  const CopyWork* copy = std::get_if<CopyWork>(&work);
  const bool empty = copy == nullptr || copy->width == 0 || copy->height == 0 || copy->depth == 0;
  const bool from_pageable = !empty && !copy->source_owned, to_pageable = !empty && !copy->destination_owned;
  const ItemPtr item = stream.tail = add_item(*stream.context, &stream, std::move(work), std::move(after));
  if (from_pageable && !waits) {
    auto& pending = std::get<CopyWork>(item->work);
    const auto* from = reinterpret_cast<const uint8_t*>(pending.source);
    item->staged.assign(
        from, from + span(pending.width, pending.height, pending.depth, pending.source_pitch, pending.source_slice));
    pending.source = reinterpret_cast<uint64_t>(item->staged.data());
  }
  state().queue.changed.notify_all();
  if (to_pageable && !waits) finish(c, {item}, true);
}

void run_and_wait(Call& c, const Work& work) {
  CUstream_st& stream = live_stream(c, nullptr);
  CUctx_st& context = c.context();
  enqueue(c, stream, work, true);
  finish(c, {stream.tail}, true);
  answer(context);
}

void drain(Call& c, CUctx_st& context) {
  if (!several_devices()) return c.unlocked([] {}, true);  // Taking the execution lock waits for other threads' work.
  const auto idle = [&] { return is_idle(context); };
  drive(c, idle, true);
  Queue& queue = state().queue;
  queue.host.join(queue.devices[static_cast<size_t>(context.device)]);
  forget_history();
}

void synchronize_context(Call& c, CUctx_st& context) {
  drain(c, context);
  forget_grids(context);
  answer(context);
}

void synchronizing_call(Call& c) { synchronize_context(c, c.context()); }

void synchronize_stream(Call& c, CUstream_st& stream) {
  if (!several_devices()) return synchronize_context(c, *stream.context);
  CUctx_st& context = *stream.context;
  finish(c, works_of(stream), true);
  answer(context);
}

void query_stream(Call& c, CUstream_st& stream) {
  if (!several_devices()) return synchronize_context(c, *stream.context);
  CUctx_st& context = *stream.context;
  const bool done = finish(c, works_of(stream), false);
  answer(context);
  require(done, CUDA_ERROR_NOT_READY);
}

void synchronize_event(Call& c, CUevent_st& event) {
  if (!several_devices()) return synchronizing_call(c);
  CUctx_st& context = *event.context;
  finish(c, {event.record}, true);
  answer(context);
}

void query_event(Call& c, CUevent_st& event) {
  if (!several_devices()) return synchronizing_call(c);
  CUctx_st& context = *event.context;
  const bool done = finish(c, {event.record}, false);
  answer(context);
  require(done, CUDA_ERROR_NOT_READY);
}

void forget_stream(CUstream_st& stream) {
  for (const ItemPtr& item : state().queue.items) {
    if (item->stream != &stream) continue;
    item->stream = nullptr;
    if (item->kernel != nullptr) item->kernel->stream_is_gone();
  }
}

}  // namespace sim::driver
