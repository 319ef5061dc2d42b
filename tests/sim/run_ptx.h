// SPDX-License-Identifier: Apache-2.0
// Runs hand-written PTX through the simulator's own door, sim::prepare and sim::run, without a driver.
#pragma once
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/machine/environment.h"
#include "sim/ptx/ast.h"
#include "sim/run/run.h"
#include "sim/translate/build_kernel.h"

namespace sim {

// "eager0", "random77".
inline void PrintTo(const Order& order, std::ostream* out) {
  *out << (order.mode == Mode::Eager ? "eager" : order.mode == Mode::Lazy ? "lazy" : "random") << order.seed;
}

}  // namespace sim

namespace sim_test {

// A device buffer of T that lives in `memory`.
template <class T>
class Buffer {
 public:
  Buffer(sim::GlobalMemory& memory, const std::vector<T>& values)
      : memory_(memory), size_(values.size()), address_(memory.allocate(values.size() * sizeof(T))) {
    std::memcpy(data(), values.data(), size_ * sizeof(T));
  }
  Buffer(sim::GlobalMemory& memory, size_t n, T value = T{}) : Buffer(memory, std::vector<T>(n, value)) {}
  ~Buffer() { memory_.free(address_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() { return reinterpret_cast<T*>(address_); }
  T& operator[](size_t i) { return data()[i]; }
  size_t size() const { return size_; }
  uint64_t address() const { return address_; }
  std::vector<T> values() { return {data(), data() + size_}; }

 private:
  sim::GlobalMemory& memory_;
  size_t size_;
  uint64_t address_;
};

// Parameters in the order of the kernel, each aligned to its own size.
class Params {
 public:
  template <class T>
  Params& add(T value) {
    bytes_.resize((bytes_.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T));
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

struct Shape {
  sim::Dim3 grid{1, 1, 1}, block{32, 1, 1}, cluster{1, 1, 1};
  uint32_t dynamic_shared = 0;
  sim::Order order{};
  int arch = 90;
  int threads = 1;
  sim::Statistics* statistics = nullptr;  // where they are wanted
  // As the environment has them, but blocks must not end with copies in flight.
  sim::Rules rules = [] {
    sim::Rules all = sim::rules_from_environment();
    all.drained_exit = true;
    return all;
  }();
};

// The folder MOXIE_TEST_PTX, when it is set, gets each module once: seeds for scripts/fuzz.
inline void keep_ptx(const std::string& text) {
  if (const char* folder = std::getenv("MOXIE_TEST_PTX"))
    std::ofstream(folder + ("/" + std::to_string(std::hash<std::string>()(text)) + ".ptx")) << text;
}

// Adds the module's header unless the text has one.
inline std::shared_ptr<const sim::ptx::Module> parse_ptx(const std::string& text, int arch = 90) {
  const std::string header = text.find(".version") != std::string::npos
                                 ? ""
                                 : ".version 8.7\n.target sm_" + std::to_string(arch) + "a\n.address_size 64\n";
  keep_ptx(header + text);
  return std::make_shared<const sim::ptx::Module>(sim::ptx::parse(header + text));
}

inline std::shared_ptr<sim::Kernel> prepare_ptx(const std::string& text, const std::string& entry, int arch = 90,
                                                const std::unordered_map<std::string, uint64_t>& symbols = {}) {
  return sim::build_kernel(parse_ptx(text, arch), entry, symbols, arch);
}

// Returns the number of warp instructions executed.
inline uint64_t run_kernel(const sim::Kernel& kernel, const Params& params, sim::GlobalMemory& memory,
                           const Shape& shape) {
  sim::Launch launch;
  launch.kernel = &kernel;
  launch.grid = shape.grid;
  launch.block = shape.block;
  launch.cluster = shape.cluster;
  launch.explicit_cluster = shape.cluster.count() > 1 || kernel.function->explicit_cluster;
  launch.dynamic_shared = shape.dynamic_shared;
  launch.params = params.bytes();
  launch.global = &memory;
  launch.arch = shape.arch;
  launch.order = shape.order;
  launch.rules = shape.rules;
  launch.threads = shape.threads;
  launch.counts = shape.statistics != nullptr;
  sim::run(launch);
  if (shape.statistics != nullptr) *shape.statistics = launch.statistics;
  return launch.instructions;
}

inline uint64_t run_ptx(const std::string& text, const std::string& entry, const Params& params,
                        sim::GlobalMemory& memory, const Shape& shape) {
  return run_kernel(*prepare_ptx(text, entry, shape.arch), params, memory, shape);
}

// The sentence of the fault that the launch ends with; empty when it ends well.
inline std::string fault_of(const std::string& text, const std::string& entry, const Params& params,
                            sim::GlobalMemory& memory, const Shape& shape, sim::Hazard* kind = nullptr) {
  try {
    run_ptx(text, entry, params, memory, shape);
  } catch (const sim::Fault& fault) {
    if (kind != nullptr) *kind = fault.kind;
    return fault.what();
  }
  return "";
}

inline const std::vector<sim::Order>& all_orders() {
  static const std::vector<sim::Order> orders = {
      {sim::Mode::Eager, 0}, {sim::Mode::Lazy, 0}, {sim::Mode::Random, 1}, {sim::Mode::Random, 77}};
  return orders;
}

}  // namespace sim_test
