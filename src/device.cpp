// SPDX-License-Identifier: Apache-2.0
// The public class Device: which driver serves it, and the kernels that copies of it share.
#include "moxie/device.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include "device_state.h"
#include "moxie/error.h"

namespace moxie {
namespace {

bool supported(const DeviceInfo& info) { return info.arch == 90 || info.arch == 100; }

DeviceKind kind_from_environment() {
  const char* value = std::getenv("MOXIE_DEVICE");
  const std::string_view text = value == nullptr ? "" : value;
  if (text.empty()) return DeviceKind::Auto;
  if (const auto kind = parse<DeviceKind>(text)) return *kind;
  throw Error(ErrorCode::InvalidArgument, fmt::format("MOXIE_DEVICE is '{}'; it may be auto, cuda or sim", text));
}

// One state per device for as long as somebody holds it: opening a device twice shares its kernels.
std::shared_ptr<detail::DeviceState> state_of(const std::shared_ptr<driver::Driver>& driver, int ordinal,
                                              bool simulated) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, int>, std::weak_ptr<detail::DeviceState>> states;
  const std::lock_guard lock(mutex);
  std::weak_ptr<detail::DeviceState>& known = states[{driver->path() + (simulated ? " sim" : ""), ordinal}];
  std::shared_ptr<detail::DeviceState> state = known.lock();
  if (state == nullptr) known = state = std::make_shared<detail::DeviceState>(driver, ordinal, simulated);
  return state;
}

}  // namespace

Device Device::open(DeviceKind kind, int ordinal) {
  if (kind == DeviceKind::Auto) kind = kind_from_environment();
  std::string why_no_gpu;
  if (kind != DeviceKind::Sim) {
    try {
      const auto driver = driver::Driver::open_cuda();
      if (kind == DeviceKind::Cuda || supported(driver->device_info(ordinal, false))) {
        return Device(state_of(driver, ordinal, false));
      }
    } catch (const Error& error) {
      if (kind == DeviceKind::Cuda) throw;
      why_no_gpu = error.what();
    }
  }
  try {
    return Device(state_of(driver::Driver::open_sim(), ordinal, true));
  } catch (const Error& error) {
    if (why_no_gpu.empty()) throw;
    throw Error(error.code(), fmt::format("{}; and no GPU: {}", error.what(), why_no_gpu));
  }
}

std::vector<DeviceInfo> Device::list() {
  std::vector<DeviceInfo> devices;
  for (const bool simulated : {false, true}) {
    try {
      const auto driver = simulated ? driver::Driver::open_sim() : driver::Driver::open_cuda();
      const int count = driver->device_count();
      for (int i = 0; i < count; ++i) devices.push_back(driver->device_info(i, simulated));
    } catch (const Error&) {  // absent: not in the list
    }
  }
  return devices;
}

const DeviceInfo& Device::info() const { return state_->context().info(); }
void* Device::allocate(size_t bytes) const { return state_->context().allocate(bytes); }
void Device::free(void* device_pointer) const noexcept { state_->context().free(device_pointer); }
void Device::upload(void* to_device, const void* from_host, size_t bytes, Stream stream) const {
  state_->context().upload(to_device, from_host, bytes, stream);
}
void Device::download(void* to_host, const void* from_device, size_t bytes, Stream stream) const {
  state_->context().download(to_host, from_device, bytes, stream);
}
void Device::fill(void* device_pointer, uint8_t value, size_t bytes, Stream stream) const {
  state_->context().fill(device_pointer, value, bytes, stream);
}
void Device::synchronize(Stream stream) const { state_->context().synchronize(stream); }

namespace detail {

driver::LoadedKernel DeviceState::get_kernel(const std::string& key, const jit::Request& request, const char* entry,
                                             int dynamic_shared_bytes) {
  std::unique_lock lock(mutex_);
  if (const auto found = kernels_.find(key); found != kernels_.end()) {
    const std::shared_future<driver::LoadedKernel> kernel = found->second;
    lock.unlock();
    return kernel.get();
  }
  std::promise<driver::LoadedKernel> promise;
  kernels_.emplace(key, promise.get_future().share());
  lock.unlock();
  try {
    driver::LoadedKernel kernel = load_kernel(request, entry, dynamic_shared_bytes);
    promise.set_value(kernel);
    return kernel;
  } catch (...) {
    {
      const std::lock_guard again(mutex_);
      kernels_.erase(key);
    }
    promise.set_exception(std::current_exception());
    throw;
  }
}

const driver::LoadedKernel& DeviceState::keep(Kept& kept, const std::function<std::string()>& source,
                                              int dynamic_shared_bytes) {
  std::call_once(kept.once, [&] {
    jit::Request request;
    request.source = source();
    kept.kernel = get_kernel(request.source, request, jit::kKernelName, dynamic_shared_bytes);
  });
  return kept.kernel;
}

const driver::LoadedKernel& DeviceState::quantize_kernel(jit::QuantizeKernel kernel, DataType format, DataType type) {
  return keep(quantize_[size_t(kernel)][size_t(format)][size_t(type)],
              [=] { return jit::quantize_source(kernel, format, type); });
}

const driver::LoadedKernel& DeviceState::block_scales_kernel() { return keep(block_scales_, jit::block_scales_source); }

const driver::LoadedKernel& DeviceState::pack_weights_kernel(bool unpack) {
  return keep(pack_weights_[unpack], [=] { return jit::pack_weights_source(unpack); });
}

const driver::LoadedKernel& DeviceState::sort_kernel(jit::SortKernel kernel, IdType type, bool table) {
  constexpr int kMostShared =
      kernel::place_layout(kernel::kSortThreads / 32, kernel::kSortRows, kMaxRoutedExperts).bytes;
  return keep(
      sort_[size_t(kernel)][size_t(type)][table], [=] { return jit::sort_source(kernel, type, table); },
      kernel == jit::SortKernel::Place ? kMostShared : 0);
}

const driver::LoadedKernel& DeviceState::route_kernel(DataType logits, RouterScore score, int size) {
  return keep(route_[size_t(logits)][size_t(score)][size_t(size)],
              [=] { return jit::route_source(logits, score, size); });
}

const driver::LoadedKernel& DeviceState::permute_kernel() { return keep(permute_, jit::permute_source); }

const driver::LoadedKernel& DeviceState::combine_kernel(DataType rows, DataType out) {
  return keep(combine_[size_t(rows)][size_t(out)], [=] { return jit::combine_source(rows, out); });
}

const driver::LoadedKernel& DeviceState::exchange_kernel() { return keep(exchange_, jit::exchange_source); }

const driver::LoadedKernel& DeviceState::meet_kernel() { return keep(meet_, jit::meet_source); }

const driver::LoadedKernel& DeviceState::dispatch_kernel(IdType type, RowFormat format) {
  return keep(dispatch_[size_t(type)][size_t(format)], [=] { return jit::dispatch_source(type, format); });
}

const driver::LoadedKernel& DeviceState::send_few_kernel(IdType type, RowFormat format) {
  return keep(send_few_[size_t(type)][size_t(format)], [=] { return jit::send_few_source(type, format); });
}

const driver::LoadedKernel& DeviceState::gather_rows_kernel(RowFormat format) {
  return keep(gather_rows_[size_t(format)], [=] { return jit::gather_rows_source(format); });
}

const driver::LoadedKernel& DeviceState::combine_ranks_kernel(DataType out, bool meets) {
  return keep(combine_ranks_[size_t(out)][meets], [=] { return jit::combine_ranks_source(out, meets); });
}

const driver::LoadedKernel& DeviceState::combine_sums_kernel(DataType out, ResultFormat results) {
  return keep(combine_sums_[size_t(out)][size_t(results)], [=] { return jit::combine_sums_source(out, results); });
}

driver::LoadedKernel DeviceState::load_kernel(jit::Request request, const char* entry, int dynamic_shared_bytes) {
  request.arch = context_.info().arch;
  if (!context_.wants_ptx()) {
    request.kind = jit::ImageKind::Cubin;
    bool no_binary = false;
    driver::LoadedKernel kernel = context_.load(jit::obtain(request).bytes, entry, dynamic_shared_bytes, &no_binary);
    if (!no_binary) return kernel;
    context_.set_wants_ptx();
  }
  request.kind = jit::ImageKind::Ptx;
  return context_.load(jit::obtain(request).bytes, entry, dynamic_shared_bytes, nullptr);
}

}  // namespace detail
}  // namespace moxie
