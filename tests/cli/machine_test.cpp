// SPDX-License-Identifier: Apache-2.0
// The machine around the program: no driver, no compiler, a cache that is damaged, foreign, shared or torn.
#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace moxie::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// One small product with a cache of its own.
class Machine : public testing::Test {
 protected:
  Machine() {
    write_file(folder_ / "in", RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {64, 64}).bytes());
    setting_.environment["MOXIE_CACHE_DIR"] = cache();
  }
  std::string cache() const { return folder_ / "cache"; }
  std::vector<std::string> arguments(const std::string& out = "out") const {
    return {"gemm", folder_ / "in", folder_ / out};
  }
  Finished run() { return run_moxie(arguments(), setting_); }

  void expect_refused(int status, const std::vector<std::string>& words) {
    const Finished finished = run();
    EXPECT_EQ(finished.status, status) << finished.err;
    EXPECT_EQ(finished.lines_on_stderr(), 1) << finished.err;
    for (const auto& word : words) EXPECT_THAT(finished.err, HasSubstr(word));
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  }

  // Entries are whole: a header line that states the size of what follows.
  void expect_whole_entries(bool temporaries_allowed) {
    int entries = 0;
    for (const auto& file : fs::directory_iterator(cache())) {
      const std::string name = file.path().filename();
      if (name.starts_with(".")) {
        EXPECT_TRUE(temporaries_allowed) << name << " was left behind";
        continue;
      }
      ++entries;
      const std::string bytes = read_file(file.path());
      const size_t line = bytes.find('\n');
      ASSERT_NE(line, std::string::npos) << name;
      EXPECT_THAT(bytes.substr(0, line), HasSubstr(" " + std::to_string(bytes.size() - line - 1) + " ")) << name;
      EXPECT_EQ(fs::status(file.path()).permissions() & fs::perms(077), fs::perms::none) << name;
    }
    EXPECT_GT(entries, 0);
    EXPECT_EQ(fs::status(cache()).permissions() & fs::perms(077), fs::perms::none);
  }

  Folder folder_;
  Setting setting_;
};

TEST_F(Machine, UnknownDeviceKind) {
  setting_.environment["MOXIE_DEVICE"] = "tpu";
  expect_refused(2, {"MOXIE_DEVICE", "tpu", "auto, cuda or sim"});
}

TEST_F(Machine, NoCudaDriver) {
  if (void* driver = dlopen("libcuda.so.1", RTLD_LAZY)) {
    dlclose(driver);
    GTEST_SKIP() << "this machine has a CUDA driver";
  }
  setting_.environment["MOXIE_DEVICE"] = "cuda";
  expect_refused(1, {"libcuda.so.1"});
}

TEST_F(Machine, NoSimulator) {
  setting_.environment["MOXIE_DEVICE"] = "sim";
  setting_.environment["MOXIE_SIM_LIBRARY"] = folder_ / "absent.so";
  expect_refused(1, {"absent.so"});
}

TEST_F(Machine, SimulatorIsNoLibrary) {
  write_file(folder_ / "text.so", "not a library");
  setting_.environment["MOXIE_DEVICE"] = "sim";
  setting_.environment["MOXIE_SIM_LIBRARY"] = folder_ / "text.so";
  expect_refused(1, {"text.so"});
}

TEST_F(Machine, NoCompiler) {
  setting_.environment["MOXIE_NVRTC"] = folder_ / "absent-nvrtc.so";
  expect_refused(1, {"absent-nvrtc.so"});
}

TEST_F(Machine, CacheIsAFile) {
  write_file(cache(), "");
  expect_refused(2, {"cache", "not a directory"});
}

TEST_F(Machine, CacheOfAnotherUser) {
  if (geteuid() == 0) {
    fs::create_directory(cache());
    ASSERT_EQ(chown(cache().c_str(), 12345, 12345), 0);
  } else {
    setting_.environment["MOXIE_CACHE_DIR"] = "/usr";
  }
  expect_refused(2, {"cache", "another user"});
}

TEST_F(Machine, CacheThatCannotBeWrittenIsNotNeeded) {
  setting_.environment["MOXIE_CACHE_DIR"] = "/proc/moxie-cache";
  const Finished finished = run();
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_TRUE(fs::exists(folder_ / "out"));
}

TEST_F(Machine, DamagedEntriesAreReplaced) {
  ASSERT_EQ(run().status, 0);
  const std::string expected = read_file(folder_ / "out");
  for (const char* damage : {"flip", "cut", "empty"}) {
    for (const auto& file : fs::directory_iterator(cache())) {
      std::string bytes = read_file(file.path());
      if (damage == std::string("flip")) bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
      if (damage == std::string("cut")) bytes.resize(bytes.size() / 2);
      if (damage == std::string("empty")) bytes.clear();
      write_file(file.path(), bytes);
    }
    fs::remove(folder_ / "out");
    const Finished finished = run();
    EXPECT_EQ(finished.status, 0) << damage << ": " << finished.err;
    EXPECT_EQ(read_file(folder_ / "out"), expected) << damage;
    expect_whole_entries(false);
  }
}

TEST_F(Machine, EightProcessesShareAnEmptyCache) {
  std::vector<pid_t> processes;
  for (int i = 0; i < 8; ++i) {
    const std::string number = std::to_string(i);
    processes.push_back(start_moxie(arguments("out" + number), setting_, folder_ / ("log" + number)));
  }
  for (size_t i = 0; i < processes.size(); ++i) {
    const std::string number = std::to_string(i);
    EXPECT_EQ(wait_for(processes[i]), 0) << read_file(folder_ / ("log" + number));
    EXPECT_EQ(read_file(folder_ / ("out" + number)), read_file(folder_ / "out0"));
  }
  expect_whole_entries(false);
}

TEST_F(Machine, KilledWhileCompilingLeavesAUsableCache) {
  // From the start of the process to the end of its work, whatever it is doing then.
  for (const int milliseconds : {5, 50, 200, 400, 800, 1200}) {
    const pid_t process = start_moxie(arguments(), setting_, folder_ / "log");
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    kill(process, SIGKILL);
    wait_for(process);
  }
  fs::remove(folder_ / "out");
  const Finished finished = run();
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_TRUE(fs::exists(folder_ / "out"));
  expect_whole_entries(true);
}

TEST_F(Machine, DevicesListsTheSimulator) {
  const Finished finished = run_moxie({"devices"});
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("(simulated)"));
}

}  // namespace
}  // namespace moxie::test
