// SPDX-License-Identifier: Apache-2.0
#include "sim/history/clock.h"

namespace sim {

// Here, not in the header, so that it is compiled with the options that vectorise it.
void Clock::join(const Clock& other) {
  if (other.t_.size() > t_.size()) t_.resize(other.t_.size(), 0);
  for (size_t i = 0; i < other.t_.size(); ++i) t_[i] = std::max(t_[i], other.t_[i]);
}

}  // namespace sim
