// SPDX-License-Identifier: Apache-2.0
// A disabled test of this program in a process of its own, whose environment is another.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>

namespace sim_test {

struct Ended {
  int status = -1;   // as waitpid() gives it; -1: no process
  std::string said;  // on standard output and standard error
};

/// Runs `test` with the variables of `environment`, which are words NAME=VALUE of a shell's command, or -u NAME.
inline Ended run_in_own_process(const std::string& environment, const std::string& test) {
  // Not /proc/PID/exe: in a namespace of processes whose /proc is the one outside, the number is another process.
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX -u GTEST_SHARD_STATUS_FILE -u GTEST_OUTPUT " + environment +
      " '" + program + "' --gtest_also_run_disabled_tests --gtest_filter=" + test + " 2>&1";
  Ended ended;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return ended;
  char buffer[256];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) ended.said += buffer;
  ended.status = pclose(pipe);
  return ended;
}

}  // namespace sim_test
