// What copies of a Device share: its context and the kernels loaded into it.
#pragma once
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <unordered_map>

#include "driver/driver.h"
#include "jit/jit.h"

namespace moxie::detail {

class DeviceState {
 public:
  DeviceState(std::shared_ptr<driver::Driver> driver, int ordinal, bool simulated)
      : context_(std::move(driver), ordinal, simulated) {}

  const driver::Context& context() const { return context_; }

  // The kernel that `key` names: from memory, else from the cache on disk, else compiled. `key` stands for all of the
  // request and for `entry`; make_request is called only when the kernel is not in memory, and its `kind` and `arch`
  // are set here. Thread-safe: different kernels compile at the same time, one kernel compiles once; a failure is
  // thrown to everyone who waits for it and is not remembered.
  driver::LoadedKernel get_kernel(const std::string& key, const std::function<jit::Request()>& make_request,
                                  const char* entry, int dynamic_shared_bytes);

  // True when get_kernel would answer from memory.
  bool has_kernel(const std::string& key) const;

 private:
  driver::LoadedKernel load_kernel(jit::Request request, const char* entry, int dynamic_shared_bytes);

  driver::Context context_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_future<driver::LoadedKernel>> kernels_;
};

}  // namespace moxie::detail
