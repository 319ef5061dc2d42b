// SPDX-License-Identifier: Apache-2.0
// A folder of a test's own, environment variables that are put back, and child processes that run one test.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace moxie::test {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "moxie-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no scratch folder");
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~ScopedVariable() { set(old_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    if (value) {
      ::setenv(name_, value->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  const char* name_;
  std::optional<std::string> old_;
};

// A value for LD_LIBRARY_PATH: `folders` and then what it names now, for this program may need that.
inline std::string library_path(const std::filesystem::path& folders) {
  const char* others = std::getenv("LD_LIBRARY_PATH");
  return folders.string() + (others != nullptr ? ":" + std::string(others) : "");
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// Starts this program, or a copy of it, for the one (disabled) test, in the present environment. Its output goes to
// `log`.
inline pid_t start_test(const std::string& name, const std::filesystem::path& log,
                        const std::filesystem::path& program = "/proc/self/exe") {
  const std::string filter = "--gtest_filter=" + name;
  const pid_t child = ::fork();
  if (child == 0) {
    if (std::freopen(log.c_str(), "a", stdout) == nullptr) ::_exit(99);
    ::dup2(1, 2);
    for (const char* name : {"GTEST_OUTPUT", "GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"}) ::unsetenv(name);
    ::execl(program.c_str(), "test", filter.c_str(), "--gtest_also_run_disabled_tests", nullptr);
    ::_exit(98);
  }
  return child;
}

inline int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace moxie::test
