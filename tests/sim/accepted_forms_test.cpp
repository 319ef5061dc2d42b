// SPDX-License-Identifier: Apache-2.0
// Which forms of the plain instructions exist: of all combinations of an instruction's modifiers and types exactly
// those that a pattern of plain_forms.h has must be accepted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/plain_forms.h"
#include "tests/sim/run_ptx.h"

namespace {

using namespace sim_test;

// What the simulator says when it is given the instruction; nothing when it accepts it.
std::string refusal(const std::string& instruction, int arch) {
  const std::string text =
      ".visible .entry k() {\n.reg .b16 %h<8>; .reg .b32 %w<8>; .reg .b64 %d<8>; .reg .b128 %q<8>; .reg .pred "
      "%p<8>;\n" +
      instruction + ";\nret;\n}\n";
  try {
    sim_test::prepare_ptx(text, "k", arch);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

class AcceptedForms : public testing::TestWithParam<int> {};

TEST_P(AcceptedForms, AreThoseOfTheSyntaxLines) {
  const int arch = GetParam();
  for (const Family& family : families()) {
    std::set<std::string> exists;
    for (const std::string& pattern : family.sm90)
      for (const std::string& form : expand(pattern)) exists.insert(form);
    if (arch >= 100)
      for (const std::string& pattern : family.sm100)
        for (const std::string& form : expand(pattern)) exists.insert(form);
    size_t found = 0;
    for (const std::string& form : expand(family.tried)) {
      const std::string instruction = family.opcode + form + " " + operands_of(family, form);
      const std::string said = refusal(instruction, arch);
      found += exists.count(form);
      if (exists.count(form) != 0) {
        EXPECT_EQ(said, "") << instruction << " exists on sm_" << arch;
      } else {
        EXPECT_THAT(said, testing::HasSubstr("line 6, column 1: "));
        EXPECT_THAT(said, testing::HasSubstr("'" + family.opcode + form + "'"))
            << instruction << " does not exist on sm_" << arch;
      }
    }
    EXPECT_EQ(found, exists.size()) << family.opcode << ": all that exists must be tried";
  }
}
INSTANTIATE_TEST_SUITE_P(, AcceptedForms, testing::Values(90, 100), testing::PrintToStringParamName());

// What an instruction writes takes the row of a register that is used no more: it does not count as read. Families
// whose first operand is no register write none.
TEST(Destinations, TakeTheRowsOfWhatIsDone) {
  std::map<std::string, std::string> instructions = {
      {"createpolicy", "createpolicy.fractional.L2::evict_last.b64 %d1, 0f3F800000"},
      {"cvta", "cvta.shared.u64 %d1, %d2"},
      {"getctarank", "getctarank.u64 %w1, %d2"},
      {"isspacep", "isspacep.shared %p1, %d2"},
      {"ld", "ld.global.b32 %w1, [%d2]"},
      {"ldmatrix", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%w1}, [%w2]"},
      {"ldu", "ldu.global.b32 %w1, [%d2]"},
      {"mapa", "mapa.u64 %d1, %d2, %w2"},
      {"mbarrier", "mbarrier.test_wait.shared.b64 %p1, [%w2], %d2"},
      {"mma", "mma.sync.aligned.m8n8k16.row.col.satfinite.s32.s8.s8.s32 {%w1, %w3}, {%w2}, {%w2}, {%w2, %w4}"},
      {"mov", "mov.b32 %w1, %w2"},
      {"wmma", "wmma.load.a.sync.aligned.row.m16n16k16.global.bf16 {%w1, %w3, %w4, %w5}, [%d2]"},
  };
  for (const Family& family : families()) {
    const std::vector<std::string>& forms = family.sm90.empty() ? family.sm100 : family.sm90;
    if (forms.empty() || family.operands[0] == 'A' || family.opcode == "bar" || family.opcode == "barrier") continue;
    // The family's name may have modifiers of its own.
    const std::string opcode = family.opcode.substr(0, family.opcode.find('.')), form = expand(forms[0])[0];
    if (opcode == "red" || opcode == "st") continue;
    instructions.emplace(opcode + (family.operands.find('|') < 3 ? "|" : ""),
                         family.opcode + form + " " + operands_of(family, form));
  }
  EXPECT_GT(instructions.size(), 75u);
  for (const auto& [opcode, instruction] : instructions) {
    const auto rows = [&, text = instruction](const std::string& before) {
      const std::string declared =
          ".visible .entry k() {\n.reg .b16 %h<9>; .reg .b32 %w<9>; .reg .b64 %d<9>; .reg .b128 "
          "%q<9>; .reg .pred %p<9>;\n";
      return sim_test::prepare_ptx(declared + before + text + ";\nret;\n}\n", "k", 100)->variable_bytes;
    };
    // As many registers as the instruction writes are used before it, and no more.
    std::string before;
    const std::string operands = instruction.substr(instruction.find(' ') + 1);
    const std::string written = operands.substr(0, operands[0] == '{' ? operands.find('}') : operands.find(','));
    for (size_t at = 0, n = 8; (at = written.find('%', at)) != std::string::npos; ++at, --n) {
      const std::string kind(1, written[at + 1]), name = "%" + kind + std::to_string(n);
      before += kind == "p" ? "setp.ne.u32 " + name + ", 1, 2;\n@" + name + " bra L" + name.substr(1) + ";\nL" +
                                  name.substr(1) + ":\n"
                            : "mov.b" +
                                  std::string(kind == "h"   ? "16 "
                                              : kind == "w" ? "32 "
                                              : kind == "d" ? "64 "
                                                            : "128 ") +
                                  name + (kind == "q" ? ", {%d7, %d7}" : ", 5") + ";\nst.global.b" +
                                  (kind == "h"   ? "16"
                                   : kind == "w" ? "32"
                                   : kind == "d" ? "64"
                                                 : "128") +
                                  " [0], " + name + ";\n";
    }
    EXPECT_EQ(rows(before), rows("")) << instruction << " after\n" << before;
  }
}

}  // namespace
