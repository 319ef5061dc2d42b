// SPDX-License-Identifier: Apache-2.0
// moxie tune on a machine without a GPU, and the table that MOXIE_TUNED names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace moxie::test {
namespace {

using testing::HasSubstr;

TEST(Tune, TheSimulatorIsRefused) {
  const Folder folder;
  write_file(folder / "list", "8 64 64 --groups 2\n");
  Setting setting;
  setting.environment = {{"MOXIE_DEVICE", "sim"}};
  const Finished finished = run_moxie({"tune", folder / "list", "--out", folder / "table"}, setting);
  EXPECT_EQ(finished.status, 2);
  EXPECT_EQ(finished.lines_on_stderr(), 1) << finished.err;
  EXPECT_THAT(finished.err, HasSubstr("needs a GPU"));
}

// Before anything is timed, and so before a GPU is looked for.
TEST(Tune, AnOutputThatCannotBeWrittenIsRefusedFirst) {
  const Folder folder;
  write_file(folder / "list", "8 64 64 --groups 2\n");
  Setting setting;
  setting.environment = {{"MOXIE_DEVICE", "sim"}};
  for (const char* option : {"--times", "--out"}) {
    for (const std::string& path : {folder / "none/file", folder.path().string()}) {
      const Finished finished = run_moxie({"tune", folder / "list", option, path}, setting);
      EXPECT_EQ(finished.status, 2) << option << ' ' << path;
      EXPECT_EQ(finished.out, "");
      EXPECT_EQ(finished.lines_on_stderr(), 1) << finished.err;
      EXPECT_THAT(finished.err, HasSubstr("moxie: " + path + ": cannot be written: "));
    }
  }
}

TEST(Tune, AFailureLeavesTheFilesAsTheyWere) {
  const Folder folder;
  write_file(folder / "list", "8 64 64 --groups 2\n");
  write_file(folder / "older", "times of yesterday");
  Setting setting;
  setting.environment = {{"MOXIE_DEVICE", "sim"}};
  for (const char* option : {"--times", "--out"}) {
    EXPECT_EQ(run_moxie({"tune", folder / "list", option, folder / "older"}, setting).status, 2);
    EXPECT_EQ(run_moxie({"tune", folder / "list", option, folder / "new"}, setting).status, 2);
    EXPECT_EQ(read_file(folder / "older"), "times of yesterday");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2) << "something was left behind";
  }
}

TEST(Tune, ATableOfTheUsersOverridesTheModel) {
  const Folder folder;
  write_file(folder / "table",
             "# measured\noffsets 512 256 0 50 plain pingpong 64x96 none\noffsets 512 256 51 99 plain cooperative "
             "128x192 none\n");
  Setting setting;
  setting.environment = {{"MOXIE_TUNED", folder / "table"}};
  const auto plan = [&](const std::string& rows) {
    return run_moxie({"plan", "1000", "512", "256", "--groups", "8", "--expected-rows", rows}, setting).out;
  };
  EXPECT_THAT(plan("50"), HasSubstr("chosen by tuned table: ping-pong 64x96x64"));
  EXPECT_THAT(plan("51"), HasSubstr("chosen by tuned table: cooperative 128x192x64"));
  EXPECT_THAT(plan("100"), HasSubstr("chosen by model"));
}

TEST(Tune, AWrongTableIsNamed) {
  const Folder folder;
  write_file(folder / "table", "offsets 512\n");
  Setting setting;
  setting.environment = {{"MOXIE_TUNED", folder / "table"}};
  const Finished finished = run_moxie({"plan", "1000", "512", "256"}, setting);
  EXPECT_EQ(finished.status, 2);
  EXPECT_EQ(finished.lines_on_stderr(), 1) << finished.err;
  EXPECT_THAT(finished.err, testing::AllOf(HasSubstr("MOXIE_TUNED"), HasSubstr("line 1")));
}

}  // namespace
}  // namespace moxie::test
