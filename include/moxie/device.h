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

enum class DeviceKind : int {
  Auto,  // a GPU that the library supports, else the simulator
  Cuda,
  Sim,
};

template <>
struct EnumTable<DeviceKind> {
  static constexpr std::string_view kType = "DeviceKind";
  static constexpr EnumName<DeviceKind> kNames[] = {
      {DeviceKind::Auto, "Auto", "auto"}, {DeviceKind::Cuda, "Cuda", "cuda"}, {DeviceKind::Sim, "Sim", "sim"}};
};

struct DeviceInfo {
  std::string name;  // as the driver gives it
  int arch = 0;      // 90: sm_90a, 100: sm_100a, others: not supported
  int sm_count = 0;
  int shared_bytes = 0;  // most a block may opt in to
  uint64_t memory_bytes = 0;
  uint64_t l2_bytes = 0;
  int driver_version = 0;   // 13000: CUDA 13.0
  bool simulated = false;   // opened through DeviceKind::Sim
  std::string driver_path;  // the libcuda that serves it
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

  const DeviceInfo& info() const;

  // Helpers for programs that have no CUDA runtime at hand. Sizes in bytes. All throw Error.
  // Memory comes 256-byte aligned. Copies and fills are ordered on `stream` and return when done.
  void* allocate(size_t bytes) const;              // OutOfMemory; bytes 0 gives nullptr
  void free(void* device_pointer) const noexcept;  // nullptr: nothing
  void upload(void* to_device, const void* from_host, size_t bytes, Stream stream = nullptr) const;
  void download(void* to_host, const void* from_device, size_t bytes, Stream stream = nullptr) const;
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
  void* data = nullptr;
  size_t bytes = 0;
};

// Device memory that is freed with the object.
class Workspace {
 public:
  Workspace() = default;
  // Throws Error: OutOfMemory, Driver.
  Workspace(const Device& device, size_t bytes) : device_(device), view_{device.allocate(bytes), bytes} {}
  ~Workspace() { release(); }
  Workspace(Workspace&& other) noexcept
      : device_(std::move(other.device_)), view_(std::exchange(other.view_, WorkspaceView{})) {}
  Workspace& operator=(Workspace&& other) noexcept {
    if (this != &other) {
      release();
      device_ = std::move(other.device_);
      view_ = std::exchange(other.view_, WorkspaceView{});
    }
    return *this;
  }

  void* data() const { return view_.data; }
  size_t bytes() const { return view_.bytes; }
  operator WorkspaceView() const { return view_; }

 private:
  void release() noexcept {
    if (device_) device_->free(view_.data);
  }

  std::optional<Device> device_;
  WorkspaceView view_;
};

}  // namespace moxie
