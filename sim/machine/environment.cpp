// SPDX-License-Identifier: Apache-2.0
#include "sim/machine/environment.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace sim {

Order order_from_environment() {
  const char* value = std::getenv("MOXIE_SIM_ORDER");
  Order order;
  if (value == nullptr || *value == 0) return order;
  const std::string text = value;
  if (text == "eager") return order;
  if (text == "lazy") {
    order.mode = Mode::Lazy;
    return order;
  }
  if (text == "random" || text.rfind("random:", 0) == 0) {
    order.mode = Mode::Random;
    if (text.size() > 7) {
      char* end = nullptr;
      order.seed = std::strtoull(text.c_str() + 7, &end, 10);
      if (end != nullptr && *end == 0) return order;
    } else if (text == "random") {
      return order;
    }
  }
  throw std::invalid_argument("MOXIE_SIM_ORDER is '" + text + "', but must be eager, lazy or random:SEED");
}

int threads_from_environment() {
  const char* value = std::getenv("MOXIE_SIM_THREADS");
  if (value == nullptr || *value == 0) return 0;
  char* end = nullptr;
  const long threads = std::strtol(value, &end, 10);
  if (*end == 0 && threads >= 1 && threads <= 1024) return static_cast<int>(threads);
  throw std::invalid_argument("MOXIE_SIM_THREADS is '" + std::string(value) + "', but must be a number from 1 to 1024");
}

namespace {

// True when the variable is `other`, false when it is `usual` or not set.
bool chosen(const char* name, const char* usual, const char* other) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == 0 || std::string(value) == usual) return false;
  if (std::string(value) == other) return true;
  throw std::invalid_argument(std::string(name) + " is '" + value + "', but must be " + usual + " or " + other);
}

}  // namespace

bool statistics_from_environment() { return chosen("MOXIE_SIM_STATISTICS", "0", "1"); }

Rules rules_from_environment() {
  Rules rules;
  if (const char* value = std::getenv("MOXIE_SIM_STRICT"); value != nullptr && *value != 0) {
    const std::string text = value;
    if (text == "portable")
      rules.strictness = Strictness::Portable;
    else if (text == "field")
      rules.strictness = Strictness::Field;
    else if (text != "isa")
      throw std::invalid_argument("MOXIE_SIM_STRICT is '" + text + "', but must be isa, portable or field");
  }
  rules.drained_exit = chosen("MOXIE_SIM_EXIT", "undrained", "drained");
  rules.strict_tensor_fences = chosen("MOXIE_SIM_TCGEN05_FENCES", "relaxed", "strict");
  return rules;
}

}  // namespace sim
