// SPDX-License-Identifier: Apache-2.0
// Device memory that is freed with its Buffer.
#pragma once
#include <cstddef>
#include <vector>

#include "moxie/device.h"

namespace moxie::timing {

class Buffer {
 public:
  Buffer() = default;
  // It has at least 16 bytes, so that an empty tensor has an address too.
  Buffer(const Device& device, size_t bytes) : memory_(device, bytes < 16 ? 16 : bytes) {}
  template <class T>
  Buffer(const Device& device, const std::vector<T>& host) : Buffer(device, host.size() * sizeof(T)) {
    if (!host.empty()) device.upload(memory_.data(), host.data(), host.size() * sizeof(T));
  }

  template <class T = void>
  T* as() const {
    return static_cast<T*>(memory_.data());
  }
  size_t bytes() const { return memory_.bytes(); }
  void clear(const Device& device) const { device.fill(as(), 0, bytes()); }

 private:
  Workspace memory_;
};

}  // namespace moxie::timing
