// SPDX-License-Identifier: Apache-2.0
// tests/coverage/verified.txt names tests of this program, and a test that was renamed must be renamed there, too.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

namespace {

// "All/Tiles.Load/u8_1d" is the test Tiles.Load.
std::set<std::string> names_of_tests() {
  std::set<std::string> names;
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int s = 0; s < program.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *program.GetTestSuite(s);
    const std::string suite_name = suite.name();
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const std::string test_name = suite.GetTestInfo(t)->name();
      names.insert(suite_name.substr(suite_name.find('/') + 1) + "." + test_name.substr(0, test_name.find('/')));
    }
  }
  return names;
}

TEST(VerifiedForms, EveryNamedTestExists) {
  const std::set<std::string> names = names_of_tests();
  std::ifstream list(MOXIE_SOURCE_DIR "/tests/coverage/verified.txt");
  ASSERT_TRUE(list);
  int lines = 0;
  for (std::string line; std::getline(list, line);) {
    if (line.empty() || line[0] == '#') continue;
    ++lines;
    EXPECT_TRUE(names.contains(line.substr(0, line.find(": ")))) << line;
  }
  EXPECT_GT(lines, 50);
}

}  // namespace
