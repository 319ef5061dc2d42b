// SPDX-License-Identifier: Apache-2.0
// moxie tune on a machine without a GPU and with the simulator in place of one, and the table that MOXIE_TUNED names.
#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace moxie::test {
namespace {

using testing::HasSubstr;

constexpr const char* kTwoProblems =
    "8 64 64 --groups 2 # small\n40 128 64 --groups 2 --activation swiglu --bias # gated\n";

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

TEST(Tune, ATableOfPackedProductsIsRefused) {
  const Folder folder;
  write_file(folder / "list", "8 64 64 --groups 2\n8 64 64 --groups 2 --format mxfp4\n");
  const Finished finished = run_moxie({"tune", folder / "list", "--out", folder / "table"}, simulator_as_gpu());
  EXPECT_EQ(finished.status, 2);
  EXPECT_EQ(finished.err,
            "moxie: tune makes a table for products of bf16 alone; --times takes those with --format mxfp4, too\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "table"));
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

TEST(Tune, TheTableHasTheKernelsThatArePrinted) {
  const Folder folder;
  write_file(folder / "list", kTwoProblems);
  const Finished finished =
      run_moxie({"tune", folder / "list", "--out", folder / "table", "--top", "4", "--slack", "0", "--include"},
                simulator_as_gpu());
  ASSERT_EQ(finished.status, 0) << finished.err;
  const std::string table = read_file(folder / "table");
  EXPECT_THAT(table, testing::StartsWith("# moxie tune " + folder / "list" + " on Moxie simulator (sm_90a)\n"));
  std::istringstream lines(finished.out);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "Moxie simulator (sm_90a): 2 problems; compiling");
  for (const std::string name : {"small", "gated"}) {
    std::getline(lines, line);
    const std::regex found(name +
                           R"( +(\S+) ms +\S+ TFLOP/s +(\S+) GB/s  (\w+ \d+x\d+)\b.*\(4 tried; the model's first )" +
                           R"((\S+) of it\))");
    std::smatch parts;
    ASSERT_TRUE(std::regex_match(line, parts, found)) << line;
    const double ms = std::stod(parts[1]);
    EXPECT_GT(ms, 0);
    EXPECT_LE(std::stod(parts[2]), 1e5 * 1e-6 / ms + 1) << "operands and results have less than 100,000 bytes";
    EXPECT_GE(std::stod(parts[4]), 1) << "another one is faster than the best";
    EXPECT_TRUE(std::regex_search(table, std::regex("\noffsets " + std::string(name == "small" ? "64 64 " : "128 64 ") +
                                                    ".* " + parts[3].str() + " ")))
        << line << '\n'
        << table;
  }
  for (const char* columns : {"64", "128"}) {
    std::getline(lines, line);
    EXPECT_THAT(line, testing::StartsWith("{Grouping::Offsets, " + std::string(columns) + ", 64, "));
  }
  std::getline(lines, line);
  EXPECT_EQ(line, folder / "table" + ": 2 rows, 2 kernels; used where MOXIE_TUNED names it");
  const Finished plan =
      run_moxie({"plan", "8", "64", "64", "--groups", "2"}, {.environment = {{"MOXIE_TUNED", folder / "table"}}});
  EXPECT_THAT(plan.out, HasSubstr("chosen by tuned table"));
}

// Products that differ in their extents alone share a kernel, those that differ in their outputs do not.
TEST(Tune, KernelsAreCounted) {
  const Folder folder;
  const std::string kernel = " 64 --groups 2 --schedule pingpong --tile 64x64 --cluster 1";
  write_file(folder / "list", "8 64" + kernel + "\n8 128" + kernel + "\n8 64" + kernel + " --out-dtype f32\n");
  const Finished finished = run_moxie({"tune", folder / "list", "--out", folder / "table"}, simulator_as_gpu());
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr(" 2 kernels;"));
}

// Every result is checked before it is timed, so these find their rows.
TEST(Tune, GatheredRowsAreTimedAndMakeNoTable) {
  const Folder folder;
  write_file(folder / "list",
             "70 64 64 --groups 3 --gather\n70 128 64 --groups 3 --gather --activation swiglu --format mxfp4\n");
  const Finished finished =
      run_moxie({"tune", folder / "list", "--times", folder / "times", "--scattered"}, simulator_as_gpu());
  ASSERT_EQ(finished.status, 0) << finished.err;
  const auto found = nlohmann::json::parse(read_file(folder / "times"));
  ASSERT_EQ(found["times"].size(), 6u);
  EXPECT_THAT(found["times"][0]["problem"].get<std::string>(), testing::EndsWith(" --gather"));
  const Finished table = run_moxie({"tune", folder / "list", "--out", folder / "table"}, simulator_as_gpu());
  EXPECT_EQ(table.status, 2);
  write_file(folder / "list", "70 64 64 --groups 3 --gather\n");
  const Finished in_bf16 = run_moxie({"tune", folder / "list", "--out", folder / "table"}, simulator_as_gpu());
  EXPECT_EQ(in_bf16.status, 2);
  EXPECT_THAT(in_bf16.err, HasSubstr("tune makes a table for rows in order alone; --times takes products with "
                                     "--gather, too"));
}

TEST(Tune, TimesAreThoseOfTheKernelsNamed) {
  const Folder folder;
  write_file(folder / "list", kTwoProblems);
  const Finished finished = run_moxie(
      {"tune", folder / "list", "--times", folder / "times", "--top", "3", "--scattered"}, simulator_as_gpu());
  ASSERT_EQ(finished.status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("1 of 2: small\n2 of 2: gated\n"));
  const auto found = nlohmann::json::parse(read_file(folder / "times"));
  EXPECT_EQ(found["sm_count"], 2);
  const auto kernels = found["kernels"].get<std::vector<std::string>>();
  EXPECT_EQ(std::set(kernels.begin(), kernels.end()).size(), kernels.size()) << "a kernel is named twice";
  ASSERT_EQ(found["times"].size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const auto& record = found["times"][i];
    EXPECT_EQ(record["routing"], i % 3 == 0 ? "balanced" : i % 3 == 1 ? "skewed" : "scattered");
    ASSERT_EQ(record["seconds"].size(), kernels.size()) << record;
    EXPECT_EQ(std::count(record["seconds"].begin(), record["seconds"].end(), nullptr),
              std::ptrdiff_t(kernels.size()) - 3)
        << record;
    // The model's kernels stand in its order; the first problem's come first.
    if (i < 3) {
      EXPECT_EQ(record["again"][0], kernels[0]);
    }
    for (const auto& named : {record["plain"][0], record["again"][0], record["again"][2]})
      EXPECT_THAT(kernels, testing::Contains(named.get<std::string>()));
    EXPECT_GT(record["plain"][1], 0);
  }
}

// The kernel that is both the model's choice and the fastest is not timed against itself.
TEST(Tune, AnOnlyKernelHasOneTime) {
  const Folder folder;
  write_file(folder / "list", "1 64 64 --groups 2\n");
  const Finished finished =
      run_moxie({"tune", folder / "list", "--times", folder / "times", "--top", "1"}, simulator_as_gpu());
  ASSERT_EQ(finished.status, 0) << finished.err;
  const auto found = nlohmann::json::parse(read_file(folder / "times"));
  ASSERT_EQ(found["times"].size(), 1u);
  const auto& again = found["times"][0]["again"];
  EXPECT_EQ(again[0], again[2]);
  EXPECT_EQ(again[1], again[3]);
  EXPECT_EQ(again[1], found["times"][0]["seconds"][0]);
}

// Nothing is timed after the limit, so the problems drawn may be large.
TEST(Tune, DrawsProblemsAndKeepsItsLimit) {
  const Folder folder;
  write_file(folder / "list", "8 64 64 --groups 2 # small\n");
  const Finished finished = run_moxie(
      {"tune", folder / "list", "--sample", "2", "--times", folder / "times", "--top", "1", "--limit", "1e-9"},
      simulator_as_gpu());
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_THAT(finished.out,
              HasSubstr(": 3 problems; compiling\n1 of 3: small: not timed, since the limit has passed\n"));
  EXPECT_THAT(finished.out, testing::ContainsRegex("3 of 3: [0-9]+ [0-9]+ [0-9]+ --groups.*: not timed"));
  EXPECT_TRUE(nlohmann::json::parse(read_file(folder / "times"))["times"].empty());
}

// The second problem takes longer than a test may.
TEST(Tune, TellsOfAProblemBeforeTheNextIsTimed) {
  const Folder folder;
  const std::string kernel = " 64 --groups 2 --schedule pingpong --tile 64x64 --cluster 1";
  write_file(folder / "list", "8 64" + kernel + " # small\n400000 1024" + kernel + "\n");
  for (const char* option : {"--times", "--out"}) {
    const std::string log = folder / std::string("log") + option;
    const pid_t process = start_moxie({"tune", folder / "list", option, folder / "result"}, simulator_as_gpu(), log);
    EXPECT_TRUE(kill_when_it_says(process, log, "(^|\n|: )small *[\n ]")) << read_file(log);
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
