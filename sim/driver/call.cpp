// SPDX-License-Identifier: Apache-2.0
// The guard of every entry point and the stack of contexts of a thread.
#include "sim/driver/call.h"

namespace sim::driver {

thread_local bool in_host_function = false;

ContextStack& context_stack() {
  static thread_local ContextStack stack{};
  return stack;
}

void ContextStack::push_back(CUcontext context) {
  require(count < kMost, CUDA_ERROR_OUT_OF_MEMORY, "256 contexts are pushed by this thread already");
  contexts[count++] = context;
}

namespace {

// Counts the host threads that use the driver, for those that wait for what another one may still enqueue.
void count_thread() {
  static thread_local bool counted = false;
  if (counted || state().device_count == 1) return;
  counted = true;
  ++state().queue.host_threads;
  struct Leave {
    ~Leave() {
      const std::lock_guard<std::mutex> lock(state().mutex);
      --state().queue.host_threads;
      state().queue.changed.notify_all();
    }
  };
  static thread_local Leave leave;
  (void)leave;
}

}  // namespace

Call::Call(Needs needs) : lock_(state().mutex) {
  if (needs == Needs::Nothing) return;
  count_thread();
  require(!in_host_function, CUDA_ERROR_NOT_PERMITTED, "host functions of a stream may not call the driver");
  require(state().initialized, CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called");
  auto& stack = context_stack();
  context_ = stack.empty() ? nullptr : stack.back();
  if (needs == Needs::Initialized) return;
  require(context_ != nullptr, CUDA_ERROR_INVALID_CONTEXT, "no context is current to the calling thread");
  require(!context_->destroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  if (needs == Needs::HealthyContext && context_->failure_seen) fail(context_->failure, context_->report);
}

}  // namespace sim::driver
