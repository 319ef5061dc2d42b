// SPDX-License-Identifier: Apache-2.0
// Packs: kernels compiled beforehand serve a machine without any compiler, and nothing else does.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace moxie::test {
namespace {

using testing::HasSubstr;

class Pack : public testing::Test {
 protected:
  Pack() {
    write_file(folder_ / "in", RawFile().add("a", "BF16", {8, 64}).add("b", "BF16", {64, 64}).bytes());
    write_file(folder_ / "list", "# one product, twice\n8 64 64\n\n8 64 64  # again\n");
    no_compiler_.environment = {
        {"MOXIE_DEVICE", "sim"}, {"MOXIE_NVRTC", folder_ / "nothing"}, {"MOXIE_CACHE_DIR", folder_ / "pack"}};
  }
  Finished pack(const std::string& image = "ptx") {
    return run_moxie({"pack", folder_ / "list", folder_ / "pack", "--image", image});
  }
  Finished multiply(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"gemm", folder_ / "in", folder_ / "out"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_moxie(arguments, no_compiler_);
  }

  Folder folder_;
  Setting no_compiler_;
};

TEST_F(Pack, ServesWithoutACompiler) {
  Finished packed = pack();
  ASSERT_EQ(packed.status, 0) << packed.err;
  EXPECT_THAT(packed.out, HasSubstr("1 kernel, 1 compiled now"));
  EXPECT_EQ(multiply().status, 0) << multiply().err;
  packed = pack();
  EXPECT_THAT(packed.out, HasSubstr("1 kernel, 0 compiled now"));
}

TEST_F(Pack, HoldsOnlyWhatWasListed) {
  ASSERT_EQ(pack().status, 0);
  const Finished finished = multiply({"--activation", "relu"});
  EXPECT_EQ(finished.status, 1);
  EXPECT_EQ(finished.lines_on_stderr(), 1) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr("NVRTC"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(Pack, MachineCodeIsCompiledToo) {
  const Finished packed = pack("code");
  ASSERT_EQ(packed.status, 0) << packed.err;
  int entries = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder_ / "pack"))
    entries += file.path().extension() == ".cubin";
  EXPECT_EQ(entries, 1);
}

TEST_F(Pack, DamagedEntryIsNotUsed) {
  ASSERT_EQ(pack().status, 0);
  for (const auto& file : std::filesystem::directory_iterator(folder_ / "pack")) {
    if (file.path().extension() != ".ptx") continue;
    std::string bytes = read_file(file.path());
    bytes[bytes.size() / 2] ^= 1;
    write_file(file.path(), bytes);
  }
  EXPECT_EQ(multiply().status, 1);
}

TEST_F(Pack, WrongUseIsRefused) {
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& says) {
    const Finished finished = run_moxie(arguments);
    EXPECT_EQ(finished.status, 2) << finished.err;
    EXPECT_EQ(folder_.without_path(finished.err), "moxie: " + says + "\n");
  };
  refused({"pack", folder_ / "list"}, "FOLDER is required (see moxie pack --help)");
  refused({"pack", folder_ / "missing", folder_ / "pack"}, "DIR/missing: cannot be opened");
  write_file(folder_ / "empty", "# nothing\n");
  refused({"pack", folder_ / "empty", folder_ / "pack"}, "DIR/empty: lists no problem");
  write_file(folder_ / "bad", "8 64 64\n8 64\n");
  refused({"pack", folder_ / "bad", folder_ / "pack"}, "DIR/bad: line 2: K is required");
  write_file(folder_ / "odd", "8 64 63\n");
  refused({"pack", folder_ / "odd", folder_ / "pack"}, "k is 63, but must be a multiple of 8 with bf16 operands");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "pack"));
  ASSERT_EQ(pack().status, 0);
  std::string version = read_file(folder_ / "pack/VERSION");
  version.pop_back();
  write_file(folder_ / "pack/VERSION", "1.0\n");
  refused({"pack", folder_ / "list", folder_ / "pack"},
          "DIR/pack holds a pack made by NVRTC 1.0, and this is NVRTC " + version + "; choose another folder");
}

}  // namespace
}  // namespace moxie::test
