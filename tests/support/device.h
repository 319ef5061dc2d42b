// SPDX-License-Identifier: Apache-2.0
// The device that the tests of a program share, the orders it runs them in, and memory on it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "moxie/device.h"

namespace moxie::test {

// The simulator, unless MOXIE_DEVICE says otherwise. It gets few SMs, so that every block walks over several tiles and
// groups.
const Device& device();

// The simulator reads its order at every launch; a GPU has one of its own.
void set_order(const char* order);
std::vector<const char*> orders();

// Memory of exactly as many bytes as were asked for: none for 0.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) : memory_(device(), bytes) {
    if (memory_.data()) live()[memory_.data()] = bytes;
  }
  template <typename T>
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size() * sizeof(T)) {
    device().upload(memory_.data(), values.data(), memory_.bytes());
  }
  Buffer(Buffer&& other) noexcept { std::swap(memory_, other.memory_); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~Buffer() { live().erase(memory_.data()); }

  // Every buffer there is: its address and bytes.
  static std::map<void*, size_t>& live();

  template <typename T = void>
  T* get() const {
    return static_cast<T*>(memory_.data());
  }
  size_t size() const { return memory_.bytes(); }
  void fill(uint8_t value) const { device().fill(get(), value, size()); }
  std::vector<uint8_t> download() const;

 private:
  Workspace memory_;
};

}  // namespace moxie::test
