// SPDX-License-Identifier: Apache-2.0
// See device.h.
#include "tests/support/device.h"

#include <cstdlib>

namespace moxie::test {

const Device& device() {
  // Never closed: at exit the driver may be gone before it.
  static const Device& d = *new Device([] {
    setenv("MOXIE_SIM_SMS", "4", 0);
    if (!std::getenv("MOXIE_DEVICE")) setenv("MOXIE_DEVICE", "sim", 0);
    return Device::open();
  }());
  return d;
}

void set_order(const char* order) { setenv("MOXIE_SIM_ORDER", order, 1); }
std::vector<const char*> orders() {
  if (!device().info().simulated) return {"eager"};
  return {"eager", "lazy", "random:1"};
}

std::map<void*, size_t>& Buffer::live() {
  static std::map<void*, size_t>& all = *new std::map<void*, size_t>;
  return all;
}

std::vector<uint8_t> Buffer::download() const {
  std::vector<uint8_t> bytes(size());
  if (!bytes.empty()) device().download(bytes.data(), get(), bytes.size());
  return bytes;
}

}  // namespace moxie::test
