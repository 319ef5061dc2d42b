// SPDX-License-Identifier: Apache-2.0
// A line on stderr that says what a long command is doing and for how long; on a terminal it runs along.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace moxie::cli {

class Progress {
 public:
  explicit Progress(const std::string& first_step);
  ~Progress();  // wipes the line
  void step(const std::string& text);
  void detail(const std::string& text);  // of the step; on a terminal only

 private:
  void write_line() const;
  void show();  // runs in the thread
  bool terminal_;
  std::string text_;
  std::chrono::steady_clock::time_point since_;
  bool done_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::thread thread_;
};

}  // namespace moxie::cli
