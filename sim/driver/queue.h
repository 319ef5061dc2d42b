// SPDX-License-Identifier: Apache-2.0
// Work that waits for its turn. Where a program has several devices the kernels of all of them run at the same time: a
// call that enqueues returns at once, and a call that waits runs what is queued, on whatever device, until what it
// waits for is done. Kernels take turns on one host thread, so that a program with one thread repeats exactly.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "sim/driver/stream.h"
#include "sim/driver/work.h"
#include "sim/history/system_history.h"
#include "sim/run/grid.h"

struct CUevent_st;

namespace sim::driver {

class Call;

struct Queue {
  // What was submitted and is not done, in the order of submission.
  std::vector<std::shared_ptr<Item>> items;
  // A host thread runs the devices. The others wait until something has changed.
  bool driving = false;
  std::condition_variable changed;
  // Host threads that have called the driver and have not ended, and those of them that wait for the devices.
  int host_threads = 0, waiting = 0;
  uint64_t submissions = 0;
  Progress progress;
  // Of the changes in `progress` those that stand for what the host may have written.
  uint64_t glances = 0;
  // Which work each line ends with: who knows that knows all that is before it in the line.
  std::vector<uint32_t> lines;
  // What the host has waited for, and the ends of what each device has done.
  Knowledge host;
  std::vector<Knowledge> devices;
  // Which kernel has the next turn. What is enqueued while nothing is runs in an order of its own.
  bool begins = true;
  std::mt19937_64 rng;
  size_t current = 0;
};

// Appends the work to the stream. The caller says whether it will wait for it at once.
void enqueue(Call& c, CUstream_st& stream, Work work, bool waits = false);
// Enqueues the work in the null stream and waits for it.
void run_and_wait(Call& c, const Work& work);

// Each waits for what was enqueued, and answers with the context's failure if there is one.
void synchronizing_call(Call& c);
void synchronize_context(Call& c, CUctx_st& context);
void synchronize_stream(Call& c, CUstream_st& stream);
void synchronize_event(Call& c, CUevent_st& event);
// The same, but what cannot be done before the caller goes on is CUDA_ERROR_NOT_READY.
void query_stream(Call& c, CUstream_st& stream);
void query_event(Call& c, CUevent_st& event);
// Waits for all that was enqueued in the context, whatever comes of it.
void drain(Call& c, CUctx_st& context);
// The stream is about to be destroyed. Its work goes on.
void forget_stream(CUstream_st& stream);

}  // namespace sim::driver
