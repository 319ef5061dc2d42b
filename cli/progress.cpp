// SPDX-License-Identifier: Apache-2.0
// See progress.h.
#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>

#include <fmt/format.h>

namespace moxie::cli {

namespace {
constexpr const char* kWipe = "\r\033[K";
}

Progress::Progress(const std::string& first_step) : terminal_(isatty(STDERR_FILENO) != 0) {
  step(first_step);
  if (terminal_) thread_ = std::thread([this] { show(); });
}

Progress::~Progress() {
  if (!terminal_) return;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
  fmt::print(stderr, "{}", kWipe);
}

void Progress::step(const std::string& text) {
  if (!terminal_) {
    fmt::print(stderr, "{} ...\n", text);
    return;
  }
  const std::lock_guard lock(mutex_);
  text_ = text;
  since_ = std::chrono::steady_clock::now();
  write_line();
}

void Progress::detail(const std::string& text) {
  if (terminal_) step(text);
}

void Progress::write_line() const {
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - since_;
  fmt::print(stderr, "{}{} ... {:.0f} s", kWipe, text_, taken.count());
}

void Progress::show() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::milliseconds(200), [this] { return done_; })) write_line();
}

}  // namespace moxie::cli
