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

namespace {

// What the variable says, or `usual` where it is not set.
int number(const char* name, int usual, int least, int most) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == 0) return usual;
  char* end = nullptr;
  const long said = std::strtol(value, &end, 10);
  if (*end == 0 && said >= least && said <= most) return static_cast<int>(said);
  throw std::invalid_argument(std::string(name) + " is '" + value + "', but must be a number from " +
                              std::to_string(least) + " to " + std::to_string(most));
}

// True when the variable is `other`, false when it is `usual` or not set.
bool chosen(const char* name, const char* usual, const char* other) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == 0 || std::string(value) == usual) return false;
  if (std::string(value) == other) return true;
  throw std::invalid_argument(std::string(name) + " is '" + value + "', but must be " + usual + " or " + other);
}

}  // namespace

int threads_from_environment() { return number("MOXIE_SIM_THREADS", 0, 1, 1024); }
std::chrono::seconds patience_from_environment() {
  return std::chrono::seconds(number("MOXIE_SIM_PATIENCE", 20, 0, 86400));
}
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
