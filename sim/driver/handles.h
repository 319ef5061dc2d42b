// SPDX-License-Identifier: Apache-2.0
// A table of the live objects behind one type of handle.
#pragma once
#include <memory>
#include <unordered_map>

#include "sim/driver/error.h"

namespace sim::driver {

// Owns the objects and knows which are alive, so that a stale handle is refused instead of followed.
template <class T>
class Handles {
 public:
  T* add(std::unique_ptr<T> object) {
    T* raw = object.get();
    live_.emplace(raw, std::move(object));
    return raw;
  }
  bool contains(T* handle) const { return live_.count(handle) != 0; }
  T& get(T* handle) const {
    require(contains(handle), CUDA_ERROR_INVALID_HANDLE);
    return *handle;
  }
  void remove(T* handle) { live_.erase(handle); }
  template <class Predicate>
  void remove_if(Predicate predicate) {
    for (auto it = live_.begin(); it != live_.end();) it = predicate(*it->second) ? live_.erase(it) : std::next(it);
  }
  template <class Visit>
  void each(Visit visit) const {
    for (auto& [raw, object] : live_) visit(*object);
  }

 private:
  std::unordered_map<T*, std::unique_ptr<T>> live_;
};

}  // namespace sim::driver
