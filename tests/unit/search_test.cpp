// SPDX-License-Identifier: Apache-2.0
// Where NVRTC is looked for: the order that docs/nvrtc.md promises.
#include "jit/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "scratch.h"

namespace moxie::jit {
namespace {

namespace fs = std::filesystem;
using test::ScopedVariable;
using test::ScratchFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string child(const fs::path& folder, const char* name) { return (folder / name).string(); }

TEST(Search, FoldersComeInThePromisedOrder) {
  const ScratchFolder scratch;
  const fs::path root = scratch.path();
  for (const char* name : {"venv/lib/python3.9", "venv/lib/python3.12", "venv/lib/python", "venv/lib/ruby3.13"})
    fs::create_directories(root / name);
  const ScopedVariable environment("VIRTUAL_ENV", child(root, "venv"));
  const ScopedVariable conda("CONDA_PREFIX", child(root, "conda"));
  const ScopedVariable home("CUDA_HOME", child(root, "home")), path("CUDA_PATH", child(root, "path"));
  const ScopedVariable search("LD_LIBRARY_PATH", child(root, "one") + "::" + child(root, "two"));
  const std::vector<fs::path> folders = nvrtc_folders();

  const std::vector<fs::path> promised = {
      root / "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
      root / "venv/lib/python3.12/site-packages/nvidia/cu13/lib64",
      root / "venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib",
      root / "venv/lib/python3.12/dist-packages/nvidia/cu13/lib",
      root / "venv/lib/python3.12/dist-packages/nvidia/cu13/lib64",
      root / "venv/lib/python3.12/dist-packages/nvidia/cuda_nvrtc/lib",
      root / "venv/lib/python3.9/site-packages/nvidia/cu13/lib",
      root / "venv/lib/python3.9/site-packages/nvidia/cu13/lib64",
      root / "venv/lib/python3.9/site-packages/nvidia/cuda_nvrtc/lib",
      root / "venv/lib/python3.9/dist-packages/nvidia/cu13/lib",
      root / "venv/lib/python3.9/dist-packages/nvidia/cu13/lib64",
      root / "venv/lib/python3.9/dist-packages/nvidia/cuda_nvrtc/lib",
      root / "venv/lib64",
      root / "venv/lib",
      root / "venv/targets/x86_64-linux/lib",
      root / "conda/lib64",
      root / "conda/lib",
      root / "conda/targets/x86_64-linux/lib",
      root / "home/lib64",
      root / "home/lib",
      root / "home/targets/x86_64-linux/lib",
      root / "path/lib64",
      root / "path/lib",
      root / "path/targets/x86_64-linux/lib",
      root / "one",
      root / "two",
      "/usr/local/cuda/lib64",
      "/usr/local/cuda/lib",
      "/usr/local/cuda/targets/x86_64-linux/lib",
  };
  // In front of them stands what lies beside the program, behind them the system's.
  const auto begin = std::find(folders.begin(), folders.end(), promised.front());
  ASSERT_GE(folders.end() - begin, std::ptrdiff_t(promised.size()));
  EXPECT_EQ(std::vector<fs::path>(begin, begin + std::ptrdiff_t(promised.size())), promised);
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& beside : {program, program / "lib", program / "nvidia/cu13/lib", program.parent_path(),
                                 program.parent_path() / "nvidia/cuda_nvrtc/lib"})
    EXPECT_LT(std::find(folders.begin(), folders.end(), beside), begin) << beside;
  const std::vector<fs::path> last(folders.end() - 4, folders.end());
  EXPECT_THAT(last, ElementsAre("/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"));
  EXPECT_EQ(std::set<fs::path>(folders.begin(), folders.end()).size(), folders.size()) << "a folder stands there twice";
}

TEST(Search, VersionsAreComparedAsNumbers) {
  const ScratchFolder scratch;
  const fs::path libraries = scratch.path() / "lib";
  std::vector<fs::path> promised, found;
  for (const char* version : {"10", "9.10", "9.2", "9.0", "9"}) {
    promised.push_back(libraries / (std::string("python3.") + version) / "site-packages/nvidia/cu13/lib");
    fs::create_directories(promised.back());
  }
  const ScopedVariable environment("VIRTUAL_ENV", scratch.path().string());
  for (const fs::path& folder : nvrtc_folders()) {
    if (std::find(promised.begin(), promised.end(), folder) != promised.end()) found.push_back(folder);
  }
  EXPECT_EQ(found, promised);
}

// Variables that are not set add nothing, neither the root folder nor the current one.
TEST(Search, VariablesThatAreEmptyAddNothing) {
  const ScopedVariable environment("VIRTUAL_ENV", ""), conda("CONDA_PREFIX", ""), home("CUDA_HOME", "");
  const ScopedVariable path("CUDA_PATH", ""), search("LD_LIBRARY_PATH", ":");
  for (const fs::path& folder : nvrtc_folders()) {
    EXPECT_TRUE(folder.is_absolute()) << folder;
    EXPECT_NE(folder, "/lib64");
  }
}

// What a copy of this program at another place prints.
TEST(SearchChild, DISABLED_PrintsItsFolders) {
  for (const fs::path& folder : nvrtc_folders()) std::printf("%s\n", folder.c_str());
}

// A program among Python's packages, and Python itself, find the compiler among them.
TEST(Search, PackagesAboveTheProgramAreLookedThrough) {
  const ScratchFolder scratch;
  const fs::path root = fs::canonical(scratch.path()), log = root / "log";
  fs::create_directories(root / "lib/python3.12");
  const std::string site = "lib/python3.12/site-packages", dist = "lib/python3.12/dist-packages";
  struct Case {
    const char* program;
    std::vector<std::string> packages;
  };
  for (const Case& c : {Case{"site-packages/moxie/bin/test", {"site-packages"}},
                        Case{"dist-packages/moxie/bin/test", {"dist-packages"}},
                        Case{"some-packages/moxie/bin/test", {}}, Case{"bin/python3", {site, dist}}}) {
    const fs::path program = root / c.program;
    fs::create_directories(program.parent_path());
    fs::copy_file("/proc/self/exe", program);
    test::write_file(log, "");
    ASSERT_EQ(test::wait_for(test::start_test("SearchChild.DISABLED_PrintsItsFolders", log, program)), 0);
    std::vector<std::string> found;
    for (const std::string& of :
         {std::string("site-packages"), std::string("dist-packages"), std::string("some-packages"), site, dist}) {
      const std::string line = "\n" + child(root / of, "nvidia/cu13/lib") + "\n";
      if (test::read_file(log).find(line) != std::string::npos) found.push_back(of);
    }
    EXPECT_EQ(found, c.packages) << c.program;
  }
}

TEST(Search, AFileOrFolderThatIsNamedIsTheOnlyOne) {
  const ScratchFolder scratch;
  const fs::path root = scratch.path();
  fs::create_directories(root / "both");
  fs::create_directories(root / "none");
  for (const char* name : {"both/libnvrtc.so", "both/libnvrtc.so.12", "mine.so"}) std::ofstream(root / name) << "x";
  const auto found = [](const fs::path& named) {
    const ScopedVariable variable("MOXIE_NVRTC", named.string());
    return nvrtc_candidates();
  };
  EXPECT_THAT(found(root / "mine.so"), ElementsAre(root / "mine.so"));
  EXPECT_THAT(found(root / "both"), ElementsAre(root / "both/libnvrtc.so.12")) << "the newest name of a folder";
  EXPECT_THAT(found(root / "none"), IsEmpty());
  EXPECT_THAT(found(root / "absent.so"), IsEmpty());

  const ScopedVariable none("MOXIE_NVRTC", ""), home("CUDA_HOME", (root / "home").string());
  fs::create_directories(root / "home/lib64");
  std::ofstream(root / "home/lib64/libnvrtc.so.13") << "x";
  const std::vector<fs::path> files = nvrtc_candidates();
  EXPECT_EQ(std::count(files.begin(), files.end(), root / "home/lib64/libnvrtc.so.13"), 1);
}

}  // namespace
}  // namespace moxie::jit
