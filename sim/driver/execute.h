// SPDX-License-Identifier: Apache-2.0
// The execution of work. Where a program has one device work is done by the time the call that enqueues it returns. Its
// failure comes to light later, in a call that synchronizes.
#pragma once
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/driver/call.h"
#include "sim/driver/stream.h"
#include "sim/driver/work.h"
#include "sim/machine/fault.h"

namespace sim::driver {

// What the environment says of launches when one is submitted.
struct Settings {
  Order order;
  int threads = 0;
  Rules rules;
  bool counts = false;
};
Settings settings_from_environment();

// A kernel from its beginning to its end. The lock is held except where something runs.
class KernelRun {
 public:
  // Without a stream it is part of a graph.
  KernelRun(CUctx_st& context, const KernelWork& work, CUstream_st* stream, const Settings& settings);
  ~KernelRun();
  // Runs it to its end over as many host threads as it may have.
  void run();
  // Keeps the fault that the body throws as the failure of the kernel.
  void guarded(const std::function<void()>& body);
  // Where there are several devices: `begin` has happened before it, and was known to who launched it as far as `host`.
  void know(const Knowledge& begin, const Knowledge& host);
  // Says what came of it.
  void finish();
  CUctx_st& context() const { return context_; }
  void stream_is_gone() { stream_ = nullptr; }

  Launch launch;
  SystemLaunch system;  // where there are several devices
  std::optional<Fault> failure;

 private:
  CUctx_st& context_;
  std::shared_ptr<const Kernel> kernel_;
  struct alignas(256) Workspace {
    std::array<uint32_t, 64> words{};
  };
  std::unique_ptr<Workspace> workspace_;  // Launch::grid_workspace
  CUstream_st* stream_;
  Grid grid_;
  std::optional<Knowledge> early_;  // what the predecessor grid knew
  std::chrono::steady_clock::time_point begin_;
};

// Runs the work in the order of the stream, or, without one, as part of a graph or of a call that waits.
void execute(Call& c, CUctx_st& context, const Work& work, CUstream_st* stream = nullptr);
// Reports the fault as that of the contexts. The caller holds the lock.
void report_faults(const std::vector<CUctx_st*>& contexts, const Fault& fault);
// Once everything that was enqueued is done, no later grid can meet an unfinished one.
void forget_grids(CUctx_st& context);

}  // namespace sim::driver
