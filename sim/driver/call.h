// SPDX-License-Identifier: Apache-2.0
// One call of the ABI: the guard that every entry point begins with, and the contexts that are current to a thread.
#pragma once
#include <mutex>

#include "sim/driver/context.h"
#include "sim/driver/error.h"
#include "sim/driver/state.h"

namespace sim::driver {

// The contexts of the calling thread, of which back() is current. The stack has no destructor: programs may call the
// driver from the destructors of their static objects, which run after those of thread-local ones.
struct ContextStack {
  static constexpr int kMost = 256;
  CUcontext contexts[kMost];
  int count;
  bool empty() const { return count == 0; }
  CUcontext back() const { return contexts[count - 1]; }
  void pop_back() { --count; }
  // Throws ApiError when there is no room.
  void push_back(CUcontext context);
};
ContextStack& context_stack();

// Set while the calling thread runs a host function of a stream, which may not call the driver.
extern thread_local bool in_host_function;

// Holds the lock and knows the current context.
class Call {
 public:
  enum class Needs { Nothing, Initialized, Context, HealthyContext };
  explicit Call(Needs needs);
  CUctx_st& context() const { return *context_; }
  bool has_context() const { return context_ != nullptr; }
  // Waits without the lock until it is notified, no longer than the time.
  template <class Condition, class Time>
  void wait(Condition& condition, Time longest) {
    condition.wait_for(lock_, longest);
  }
  // Runs work that may take long without the lock. The work holds the execution lock instead if `device` is set.
  template <class Body>
  void unlocked(Body body, bool device) {
    lock_.unlock();
    struct Relock {
      std::unique_lock<std::mutex>& lock;
      ~Relock() { lock.lock(); }
    } relock{lock_};
    std::unique_lock<std::mutex> execution(state().execution, std::defer_lock);
    if (device) execution.lock();
    body();
  }

 private:
  std::unique_lock<std::mutex> lock_;
  CUctx_st* context_ = nullptr;
};

// The body of an entry point, whose errors become its answer.
template <class Body>
CUresult call(const char* function, Call::Needs needs, Body body) {
  try {
    Call c(needs);
    body(c);
    return CUDA_SUCCESS;
  } catch (...) {
    return answer_for_current_exception(function);
  }
}
#define API(needs, ...)       \
  return ::sim::driver::call( \
      __func__, ::sim::driver::Call::Needs::needs, [&]([[maybe_unused]] ::sim::driver::Call & c) __VA_ARGS__)

}  // namespace sim::driver
