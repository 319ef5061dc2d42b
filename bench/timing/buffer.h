// SPDX-License-Identifier: Apache-2.0
// Device memory that is freed with its Buffer.
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

#include "moxie/device.h"

namespace moxie::timing {

class Buffer {
 public:
  Buffer() = default;
  // It has at least 16 bytes, so that an empty tensor has an address too.
  Buffer(const Device& device, size_t bytes) : device_(&device), bytes_(bytes < 16 ? 16 : bytes) {
    data_ = device.allocate(bytes_);
  }
  template <class T>
  Buffer(const Device& device, const std::vector<T>& host) : Buffer(device, host.size() * sizeof(T)) {
    if (!host.empty()) device.upload(data_, host.data(), host.size() * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) device_->free(data_);
  }

  template <class T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }
  void clear() const { device_->fill(data_, 0, bytes_); }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  const Device* device_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace moxie::timing
