// SPDX-License-Identifier: Apache-2.0
// A GPU, or the simulator in its place, with the kernels that were compiled or loaded for it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moxie/names.h"

struct CUstream_st;  // the CUDA stream type: a cudaStream_t and a CUstream are both CUstream_st*

namespace moxie {

using Stream = CUstream_st*;  // nullptr: the default stream

// Which driver serves a device.
enum class DeviceKind : int {
  Auto,  // a GPU that the library supports, else the simulator
  Cuda,  // a GPU
  Sim,   // the simulator
};

template <>
struct EnumTable<DeviceKind> {
  static constexpr std::string_view kType = "DeviceKind";
  static constexpr EnumName<DeviceKind> kNames[] = {
      {DeviceKind::Auto, "Auto", "auto"}, {DeviceKind::Cuda, "Cuda", "cuda"}, {DeviceKind::Sim, "Sim", "sim"}};
};

// What the driver says of a device.
struct DeviceInfo {
  std::string name;           // as the driver gives it
  int arch = 0;               // 90: sm_90a, 100: sm_100a, others: not supported
  int sm_count = 0;           // streaming multiprocessors
  int shared_bytes = 0;       // most a block may opt in to
  uint64_t memory_bytes = 0;  // device memory in all
  uint64_t l2_bytes = 0;      // size of the L2 cache
  double memory_rate = 0;     // bytes a second from device memory, by its clock and the width of its bus
  double clock = 0;           // the most that the multiprocessors' clock reaches, cycles a second
  int driver_version = 0;     // 13000: CUDA 13.0
  bool simulated = false;     // opened through DeviceKind::Sim
  std::string driver_path;    // the libcuda that serves it
};

namespace detail {
class DeviceState;
}

// Cheap to copy; copies share the state. Thread-safe. Uses the device's primary context, as the CUDA runtime and
// PyTorch do, so that their streams and pointers may be given to the library.
class Device {
 public:
  // DeviceKind::Auto obeys the environment variable MOXIE_DEVICE (auto, cuda or sim).
  // Throws Error: Driver (no libcuda, no device `ordinal`), InvalidArgument (MOXIE_DEVICE has another value).
  static Device open(DeviceKind kind = DeviceKind::Auto, int ordinal = 0);

  // Every device of the driver, supported or not, and the simulator; never throws for a missing driver.
  static std::vector<DeviceInfo> list();

  // What the driver said when the device was opened.
  const DeviceInfo& info() const;

  // Helpers for programs that have no CUDA runtime at hand. Sizes in bytes. All throw Error.
  // Memory comes 256-byte aligned. Copies and fills are ordered on `stream` and return when done.
  void* allocate(size_t bytes) const;              // OutOfMemory; bytes 0 gives nullptr
  void free(void* device_pointer) const noexcept;  // nullptr: nothing
  // Copies from host memory.
  void upload(void* to_device, const void* from_host, size_t bytes, Stream stream = nullptr) const;
  // Copies to host memory.
  void download(void* to_host, const void* from_device, size_t bytes, Stream stream = nullptr) const;
  // Sets every byte to `value`.
  void fill(void* device_pointer, uint8_t value, size_t bytes, Stream stream = nullptr) const;
  void synchronize(Stream stream = nullptr) const;  // Driver: also what kernels before it did wrong

  // For the library itself.
  detail::DeviceState& state() const { return *state_; }

 private:
  explicit Device(std::shared_ptr<detail::DeviceState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::DeviceState> state_;
};

// Device memory that a call may use for itself: aligned to 128 bytes, of at least as many bytes as it asks for.
struct WorkspaceView {
  void* data = nullptr;  // aligned to 128 bytes; null where no byte is needed
  size_t bytes = 0;      // how many there are
};

// Device memory that is freed with the object.
class Workspace {
 public:
  // Empty: no memory.
  Workspace() = default;
  // Throws Error: OutOfMemory, Driver.
  Workspace(const Device& device, size_t bytes) : device_(device), view_{device.allocate(bytes), bytes} {}
  ~Workspace() { release(); }
  // Takes the memory over and leaves the other empty.
  Workspace(Workspace&& other) noexcept
      : device_(std::move(other.device_)), view_(std::exchange(other.view_, WorkspaceView{})) {}
  // Frees its memory and takes the other's over.
  Workspace& operator=(Workspace&& other) noexcept {
    if (this != &other) {
      release();
      device_ = std::move(other.device_);
      view_ = std::exchange(other.view_, WorkspaceView{});
    }
    return *this;
  }

  void* data() const { return view_.data; }         // null when empty
  size_t bytes() const { return view_.bytes; }      // as given to the constructor
  operator WorkspaceView() const { return view_; }  // for run()

 private:
  void release() noexcept {
    if (view_.data) device_->free(view_.data);  // what was moved from has neither
  }

  std::optional<Device> device_;
  WorkspaceView view_;
};

}  // namespace moxie
