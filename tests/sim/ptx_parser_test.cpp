// SPDX-License-Identifier: Apache-2.0
// The PTX front end: what a module, a function, an instruction and each form of operand become, and how bad text is
// refused: with a line and a column, whatever it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <tuple>
#include <utility>

#include "sim/ptx/ast.h"

namespace {

using namespace sim::ptx;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = Operand::Kind;

const std::string kHeader = ".version 9.0\n.target sm_90a\n.address_size 64\n";

Module module_of(const std::string& text) { return parse(kHeader + text); }

// A function whose body declares some registers and holds the statements.
Function body_of(const std::string& statements, const std::string& before = "") {
  Module m = module_of(
      before + ".visible .entry k(.param .u64 k_param_0)\n{\n.reg .pred %p<4>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n" +
      statements + "\n}\n");
  return m.functions.back();
}
Instruction one(const std::string& statement, const std::string& before = "") {
  return body_of(statement, before).body.at(0);
}
Operand first_operand(const std::string& operand) { return one("op.b32 " + operand + ";").operands.at(0); }

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const ParseError& e) {
    EXPECT_THAT(e.what(), HasSubstr("line " + std::to_string(e.where.line) + ", column " +
                                    std::to_string(e.where.column) + ": "));
    return e.what();
  }
  return "";
}
std::string body_error(const std::string& statement) {
  return error_of(kHeader + ".entry k()\n{\n.reg .pred %p<4>; .reg .b32 %r<4>;\n" + statement + "\n}\n");
}

TEST(Module, HeaderFilesAndDirectives) {
  const Module m = parse(
      "// made by hand\n.version 8.7\n.target sm_100a, debug\n.address_size 64\n\t.file\t1 \"a \\\"b\\\".cu\", 123, "
      "45\n"
      ".pragma \"nounroll\";\n.section .debug_str\n{\n$L__info: .b8 65, 0xff // }\n.b32 .debug_abbrev+4\n}\n");
  EXPECT_EQ(m.version_major, 8);
  EXPECT_EQ(m.version_minor, 7);
  EXPECT_EQ(m.target, "sm_100a");
  EXPECT_EQ(m.files.at(1), "a \"b\".cu");
}

TEST(Module, VariablesAndInitialisers) {
  const Module m = module_of(
      ".global .align 4 .u32 scalar = 7;\n"
      ".const .align 16 .b8 bytes[6] = {1, 0x2, 255};\n"
      ".global .f32 floats[] = {1.0, -2.5, 0f3F800000};\n"
      ".global .f64 wide = 0d3FF0000000000000;\n"
      ".global .s16 matrix[2][3] = {{-1, 2}, {3}};\n"
      ".global .align 8 .u64 pointers[2] = {generic(bytes)+4, scalar};\n"
      ".global .align 8 .b8 record[16] = {1, 0, 0, 0, 0, 0, 0, 0, 0xFF(generic(bytes)+2), 0xFF00(generic(bytes)+2), "
      "0xFF0000(generic(bytes)+2),"
      " 0xFF000000(generic(bytes)+2), 0xFF00000000(generic(bytes)+2), 0xFF0000000000(generic(bytes)+2), "
      "0xFF000000000000(generic(bytes)+2), 0xFF00000000000000(generic(bytes)+2)};\n"
      ".extern .shared .align 1024 .b8 dynamic[];\n.shared .v4 .f32 quads[3];\n.visible .global .align 1 .b8 $str$1[2] "
      "= {72};\n");
  const auto variable = [&](const std::string& name) -> const Variable& {
    for (const Variable& v : m.variables)
      if (v.name == name) return v;
    throw std::out_of_range(name);
  };
  EXPECT_THAT(variable("scalar").init, ElementsAre(7, 0, 0, 0));
  EXPECT_EQ(variable("bytes").align, 16);
  EXPECT_EQ(variable("bytes").space, Space::Const);
  EXPECT_THAT(variable("bytes").init, ElementsAre(1, 2, 255, 0, 0, 0));
  EXPECT_EQ(variable("floats").bytes, 12u);
  EXPECT_THAT(variable("floats").init, ElementsAre(0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0, 0, 0, 0x80, 0x3f));
  EXPECT_EQ(variable("wide").init[7], 0x3f);
  EXPECT_THAT(variable("matrix").init, ElementsAre(0xff, 0xff, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0));
  ASSERT_EQ(variable("pointers").relocations.size(), 2u);
  EXPECT_EQ(variable("pointers").relocations[0].symbol, "bytes");
  EXPECT_EQ(variable("pointers").relocations[0].addend, 4);
  EXPECT_TRUE(variable("pointers").relocations[0].generic);
  EXPECT_EQ(variable("pointers").relocations[1].offset, 8u);
  EXPECT_FALSE(variable("pointers").relocations[1].generic);
  ASSERT_EQ(variable("record").relocations.size(), 1u);  // eight masked bytes are one address
  EXPECT_EQ(variable("record").relocations[0].offset, 8u);
  EXPECT_EQ(variable("record").relocations[0].bytes, 8);
  EXPECT_EQ(variable("record").relocations[0].addend, 2);
  EXPECT_TRUE(variable("dynamic").is_extern);
  EXPECT_EQ(variable("dynamic").bytes, 0u);
  EXPECT_EQ(variable("dynamic").align, 1024);
  EXPECT_EQ(variable("quads").bytes, 48u);
  EXPECT_EQ(variable("quads").align, 16);
}

TEST(Function, HeadersAndDirectives) {
  const Module m = module_of(
      ".extern .func (.param .b32 func_retval0) vprintf(.param .b64 a, .param .b64 b);\n"
      ".func (.reg .b32 result) f(.reg .b32 x, .param .align 8 .b8 y[16]) .noreturn { mov.b32 result, x; ret; }\n"
      ".alias g, f;\n"
      ".visible .entry k(\n.param .align 64 .b8 k_param_0[128],\n.param .u64 .ptr .global .align 16 k_param_1,\n.param "
      ".u32 k_param_2\n)\n"
      ".maxntid 384, 1, 1\n.minnctapersm 1\n.reqntid 128, 2\n.reqnctapercluster 2, 1, "
      "1\n.explicitcluster\n.maxclusterrank 8\n.maxnreg 168\n.pragma \"x\";\n{ ret; }\n");
  ASSERT_EQ(m.functions.size(), 3u);
  EXPECT_TRUE(m.functions[0].is_declaration);
  const Function& f = m.functions[1];
  EXPECT_EQ(f.results[0].space, Space::Reg);
  EXPECT_EQ(f.registers[0].name, "result");
  EXPECT_EQ(f.body[0].operands[1].reg, 1);
  EXPECT_EQ(f.params[1].bytes, 16u);
  EXPECT_EQ(m.aliases.at("g"), "f");
  const Function& k = m.functions[2];
  EXPECT_TRUE(k.is_entry);
  EXPECT_EQ(k.params[0].align, 64);
  EXPECT_EQ(k.params[0].bytes, 128u);
  EXPECT_EQ(k.params[1].align, 8);  // .ptr .align speaks of what is pointed to
  EXPECT_THAT(k.maxntid, ElementsAre(384, 1, 1));
  EXPECT_THAT(k.reqntid, ElementsAre(128, 2, 1));
  EXPECT_THAT(k.reqnctapercluster, ElementsAre(2, 1, 1));
  EXPECT_TRUE(k.explicit_cluster);
  EXPECT_EQ(k.maxclusterrank, 8);
  EXPECT_EQ(k.maxnreg, 168);
  EXPECT_EQ(k.minnctapersm, 1);
}

TEST(Function, ADefinitionReplacesItsDeclaration) {
  const Module m =
      module_of(".func f(.param .b32 a);\n.entry k() { call f, (5); ret; }\n.func f(.param .b32 a) { ret; }\n");
  ASSERT_EQ(m.functions.size(), 2u);
  EXPECT_FALSE(m.functions[0].is_declaration);
}

TEST(Function, LabelsBelongToTheirScopes) {
  const Function f =
      body_of("L: add.u32 %r1, %r1, 1;\n{\nL:\n bra L;\n bra OUT;\n}\n{\nL: bra L;\n}\nbra L;\nOUT: ret;");
  EXPECT_EQ(f.body[1].operands[0].target, 1);
  EXPECT_EQ(f.body[2].operands[0].target, 5);
  EXPECT_EQ(f.body[3].operands[0].target, 3);
  EXPECT_EQ(f.body[4].operands[0].target, 0);
  EXPECT_EQ(f.labels.at("L"), 0);
  EXPECT_EQ(f.labels.at("OUT"), 5);
}

TEST(Function, InnerRegistersHideOuterOnes) {
  const Function f = body_of("{ .reg .b64 %r1; mov.b64 %r1, 0; { mov.b64 %r1, 1; } }\nmov.b32 %r1, 2; mov.b32 %r8, 3;");
  EXPECT_EQ(f.registers[f.body[0].operands[0].reg].type, Type::B64);
  EXPECT_EQ(f.body[1].operands[0].reg, f.body[0].operands[0].reg);
  EXPECT_EQ(f.registers[f.body[2].operands[0].reg].type, Type::B32);
  EXPECT_EQ(f.registers[f.body[3].operands[0].reg].name, "%r8");
}

TEST(Function, LocalVariablesHaveUniqueNames) {
  const Function f = body_of(
      "{ .param .b32 param0; st.param.b32 [param0+0], %r1; }\n{ .param .b64 param0; st.param.b64 [param0], %rd1; }\n"
      ".local .align 16 .b8 __local_depot0[32]; mov.b64 %rd1, __local_depot0; .shared .b32 s<3>; ld.shared.b32 %r1, "
      "[s2];");
  ASSERT_EQ(f.locals.size(), 6u);
  EXPECT_NE(f.locals[0].name, f.locals[1].name);
  EXPECT_EQ(f.body[0].operands[0].elements[0].name, f.locals[0].name);
  EXPECT_EQ(f.body[1].operands[0].elements[0].name, f.locals[1].name);
  EXPECT_EQ(f.locals[2].bytes, 32u);
  EXPECT_EQ(f.body[3].operands[1].elements[0].name, "s2");
}

TEST(Function, BranchTablesAndCalls) {
  const Function f = body_of(
      "A: ret;\nB: ret;\nL0: ret;\nL1: ret;\nts: .branchtargets A, B, L<2>;\nbrx.idx %r1, ts;\n"
      "proto: .callprototype (.param .b32 _) _ (.param .b64 _, .param .b8 _[12]) .noreturn;\n"
      "call.uni (retval0), vprintf, (param0, 5);\ncall vprintf;\ncall (%r1), %rd1, (%rd2, _), proto;\ncall %rd1, "
      "proto;",
      ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n.global .b32 retval0; .global .b32 "
      "param0;\n");
  EXPECT_THAT(f.branch_targets.at(f.body[4].operands[1].name), ElementsAre(0, 1, 2, 3));
  const Instruction& c = f.body[5];
  ASSERT_EQ(c.operands.size(), 3u);
  EXPECT_EQ(c.operands[0].elements.size(), 1u);
  EXPECT_EQ(c.operands[1].name, "vprintf");
  EXPECT_EQ(c.operands[2].elements[1].bits, 5u);
  ASSERT_EQ(f.body[6].operands.size(), 3u);
  EXPECT_TRUE(f.body[6].operands[0].elements.empty());
  ASSERT_EQ(f.body[7].operands.size(), 4u);
  EXPECT_EQ(f.body[7].operands[1].kind, Kind::Register);
  EXPECT_EQ(f.body[7].operands[2].elements[1].kind, Kind::Sink);
  EXPECT_EQ(f.body[7].operands[3].name, "proto");
  ASSERT_EQ(f.body[8].operands.size(), 4u);
}

TEST(Function, LinesOfTheSourceFollowLoc) {
  const Function f = body_of(
      ".loc 1 26 3\nmov.b32 %r1, 0;\n.loc\t2 7 9, function_name $L__info_string0, inlined_at 1 26 3\nmov.b32 %r2, 0;");
  EXPECT_EQ(f.body[0].file, 1);
  EXPECT_EQ(f.body[0].source_line, 26);
  EXPECT_EQ(f.body[1].file, 2);
  EXPECT_EQ(f.body[1].source_line, 7);
  EXPECT_EQ(f.body[0].where.line, 10);
  EXPECT_EQ(f.body[0].where.column, 1);
}

TEST(Instruction, OpcodesSplitAtDots) {
  EXPECT_THAT(one("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%rd1], [%rd2, "
                  "{%r1, %r2}], [%rd3];")
                  .parts,
              ElementsAre("cp", "async", "bulk", "tensor", "2d", "shared::cluster", "global", "tile",
                          "mbarrier::complete_tx::bytes"));
  EXPECT_EQ(one("mad.lo.s32 %r1, %r2, %r3, %r4;").opcode, "mad.lo.s32");
  EXPECT_EQ(one("ret;").operands.size(), 0u);
}

TEST(Instruction, Guards) {
  const Instruction i = one("@!%p2 bra L; L: ret;");
  EXPECT_TRUE(i.guard_negated);
  EXPECT_EQ(i.guard, 2);
  EXPECT_FALSE(one("@ %p1 ret;").guard_negated);
  EXPECT_EQ(one("ret;").guard, -1);
}

TEST(Operand, DualDestinationsNegationAndSink) {
  const Instruction i = one("setp.lt.and.s32 %p1|_, %r1, -4, !%p2;");
  EXPECT_TRUE(i.dual_destination);
  ASSERT_EQ(i.operands.size(), 5u);
  EXPECT_EQ(i.operands[1].kind, Kind::Sink);
  EXPECT_EQ(static_cast<int64_t>(i.operands[3].bits), -4);
  EXPECT_TRUE(i.operands[4].negated);
  EXPECT_TRUE(one("elect.sync _|%p1, 0xffffffff;").dual_destination);
}

TEST(Operand, Literals) {
  EXPECT_EQ(first_operand("0x1F").bits, 31u);
  EXPECT_EQ(first_operand("017").bits, 15u);
  EXPECT_EQ(first_operand("0b101").bits, 5u);
  EXPECT_EQ(first_operand("4294967295U").bits, 0xffffffffu);
  EXPECT_EQ(first_operand("18446744073709551615").bits, ~0ull);
  EXPECT_EQ(first_operand("-1").bits, ~0ull);
  EXPECT_EQ(first_operand("WARP_SZ").bits, 32u);
  const Operand single = first_operand("0f3F800000");
  EXPECT_TRUE(single.is_float && !single.is_double);
  EXPECT_EQ(single.bits, 0x3f800000u);
  const Operand wide = first_operand("0dBFF0000000000000");
  EXPECT_TRUE(wide.is_double);
  EXPECT_EQ(std::bit_cast<double>(wide.bits), -1.0);
  EXPECT_EQ(std::bit_cast<double>(first_operand("-1.5e2").bits), -150.0);
  EXPECT_EQ(std::bit_cast<double>(first_operand(".25").bits), 0.25);
  EXPECT_EQ(first_operand("-0f3F800000").bits, 0xbf800000u);
}

TEST(Operand, ConstantExpressions) {
  EXPECT_EQ(first_operand("2+3*4").bits, 14u);
  EXPECT_EQ(first_operand("(1 << 4) | 3").bits, 19u);
  EXPECT_EQ(first_operand("10 - 2 - 3").bits, 5u);
  EXPECT_EQ(first_operand("7 > 3 ? 11 : 22").bits, 11u);
  EXPECT_EQ(first_operand("-8 >> 1").bits, static_cast<uint64_t>(-4));
  EXPECT_EQ(first_operand("~0 & 0xff").bits, 0xffu);
  EXPECT_EQ(first_operand("-7 / 2").bits, static_cast<uint64_t>(-3));
  EXPECT_EQ(first_operand("(.u64) -1 / 2").bits, ~0ull / 2);
  EXPECT_EQ(first_operand("!5 || 1 && 0").bits, 0u);
}

// Every operator of PTX ISA 4.5.4, with the operands and results of the table of evaluation rules. C++ has the same
// rules where a type is named, so that the values beside the texts are computed, not written.
TEST(Operand, OperatorsOfConstantExpressions) {
  const uint64_t minus = ~0ull;
  const auto s = [](int64_t value) { return static_cast<uint64_t>(value); };
  const struct {
    const char* text;
    uint64_t bits;
  } rows[] = {
      // Precedence, loosest first, and association to the left.
      {"2 | 2 ^ 2", 2},
      {"1 ^ 1 & 2", 1},
      {"0 == 1 < 2", 0},
      {"1 != 1 < 2", 0},
      {"1 < 1 << 1", 1},
      {"1 <= 1 << 1", 1},
      {"4 >= 1 << 1", 1},
      {"0 && 0 | 1", 0},
      {"16 >> 3 - 1", 4},
      {"0 || 1 && 0", 0},
      {"1 || 0 && 0", 1},
      {"1 && 4 | 2", 1},
      {"4 | 2 ^ 2", 4},
      {"1 ^ 3 & 2", 3},
      {"6 & 2 == 2", 0},
      {"1 == 1 < 2", 1},
      {"2 < 1 << 1", 0},
      {"2 > 1 << 1", 0},
      {"1 << 1 + 1", 4},
      {"16 >> 1 + 1", 4},
      {"7 - 2 * 3", 1},
      {"7 + 6 / 3", 9},
      {"7 - 7 % 4", 4},
      {"20 - 5 - 3", 12},
      {"64 / 4 / 2", 8},
      {"64 >> 2 >> 1", 8},
      {"17 % 10 % 4", 3},
      {"3 > 2 == 1", 1},
      {"1 ? 2 : 0 ? 3 : 4", 2},
      {"0 ? 2 : 0 ? 3 : 4", 4},
      {"0 ? 2 : 1 ? 3 : 4", 3},
      {"-2 + 3", 1},
      {"-(2 + 3)", s(-5)},
      {"- - 5", 5},
      {"+5", 5},
      {"~0", minus},
      {"~5 & 15", 10},
      {"2 * (3 + 4)", 14},
      {"WARP_SZ * 2", 64},
      {"(WARP_SZ - 1)", 31},
      // Logic gives 0 or 1.
      {"5 || 0", 1},
      {"0 || 0", 0},
      {"0 || 7", 1},
      {"5 && 7", 1},
      {"5 && 0", 0},
      {"0 && 5", 0},
      {"!5 + 2", 2},
      {"1 - !0", 0},
      // Comparisons of signed and of unsigned integers.
      {"1 - (-1 < 0)", 0},
      {"2 + (-1U < 0)", 2},
      {"2 + (-1 < 0U)", 2},
      {"2 + (1 < 1)", 2},
      {"2 + (1 <= 1)", 3},
      {"2 + (2 <= 1)", 2},
      {"2 + (1 >= 1)", 3},
      {"2 + (0 >= 1)", 2},
      {"2 + (1 > 1)", 2},
      {"2 + (2 > 1)", 3},
      {"2 + (-1 > 0)", 2},
      {"2 + (-1U > 0)", 3},
      {"2 + (-1 <= 0)", 3},
      {"2 + (-1U <= 0)", 2},
      {"2 + (-1 >= 0)", 2},
      {"2 + (-1U >= 0)", 3},
      {"2 + (5 == 5)", 3},
      {"2 + (5 == 6)", 2},
      {"2 + (5 != 6)", 3},
      {"2 + (5 != 5)", 2},
      {"2 + (1.5 < 2)", 3},
      {"2 + (2.0 < 2)", 2},
      {"2 + (2 <= 2.0)", 3},
      {"2 + (2.5 <= 2)", 2},
      {"2 + (2.5 > 2)", 3},
      {"2 + (2.0 > 2)", 2},
      {"2 + (2.0 >= 2)", 3},
      {"2 + (1.5 >= 2)", 2},
      {"2 + (1.5 == 1.5)", 3},
      {"2 + (1.5 == 1)", 2},
      {"2 + (1.5 != 1)", 3},
      {"2 + (1.5 != 1.5)", 2},
      {"2 + (-1.5 < -1)", 3},
      // Arithmetic: unsigned when one operand is. Its remainder takes both as unsigned, and its result is signed.
      {"-7 / 2", s(-3)},
      {"7 / -2", s(-3)},
      {"-7U / 2", s(-7) / 2},
      {"-7 / 2U", s(-7) / 2},
      {"-8 / -1", 8},
      {"9223372036854775808U / -1", 0},
      {"(-9223372036854775807 - 1) / -1", 1ull << 63},
      {"-8 % 5", s(-8) % 5},
      {"8 % -5", 8},
      {"(-1 % 16) / 2", 7},
      {"-3 * 5", s(-15)},
      {"-3U * 5", s(-15)},
      {"2 - 3", minus},
      {"(2U - 3) / 2", minus / 2},
      {"(2 - 3) / 2", 0},
      {"(1U + 1 - 3) / 2", minus / 2},
      {"(0U * 1 - 1) / 2", minus / 2},
      {"(8U / 4 - 3) / 2", minus / 2},
      {"(8 / 4 - 3) / 2", 0},
      {"(18446744073709551615) / 2", minus / 2},
      {"9223372036854775807 / -1", s(-INT64_MAX)},
      // Shifts keep the type of the first operand, and the second is unsigned.
      {"-16 >> 2", s(-4)},
      {"-16U >> 2", s(-16) >> 2},
      {"-16 >> 2U", s(-4)},
      {"-1 >> 63", minus},
      {"-1 >> 64", minus},
      {"-1 >> -1", minus},
      {"1 >> 64", 0},
      {"-1U >> 63", 1},
      {"-1U >> 64", 0},
      {"1 << 63", 1ull << 63},
      {"1 << 64", 0},
      {"1 << -1", 0},
      {"(-1 << 1) / 2", s(-1)},
      {"(-1U << 1) / 2", (minus << 1) / 2},
      {"(-2 << 2U) / 2", s(-4)},
      {"(-2 >> 1U) / 2", 0},
      {"(-2U >> 0) / 2", s(-2) / 2},
      // Bits: the result is unsigned.
      {"12 | 10", 14},
      {"12 & 10", 8},
      {"12 ^ 10", 6},
      {"(-1 | 0) / 2", minus / 2},
      {"(-1 & -1) / 2", minus / 2},
      {"(-1 ^ 0) / 2", minus / 2},
      {"~0 / 2", minus / 2},
      {"!0 - 2", minus},
      {"(!0 - 2) / 2", 0},
      // Casts and conditions.
      {"(.s64) -1U / 2", 0},
      {"(.u64) -1 / 2", minus / 2},
      {"(.s64) ~0 >> 1", minus},
      {"(1 ? -1 : 1) / 2", 0},
      {"(1 ? -1 : 1U) / 2", minus / 2},
      {"(0 ? -1U : -1) / 2", minus / 2},
      {"(0 ? 1 : -1U) / 2", minus / 2},
      {"(1 == 1) - 2 < 0", 1},
      {"(1.5 < 2) - 2 < 0", 1},
      {"(1 && 1) - 2 < 0", 1},
      {"(0 || 1) - 2 < 0", 1},
      {"(2 > 1) - 2 < 0", 1},
      {"(1 != 2) - 2 < 0", 1},
      {"(1U < 2) - 2 < 0", 1},
  };
  for (const auto& [text, bits] : rows) {
    const Operand o = first_operand(text);
    EXPECT_EQ(o.bits, bits) << text;
    EXPECT_FALSE(o.is_float) << text;
  }
  const std::pair<const char*, double> doubles[] = {{"1.5 + 2", 3.5},
                                                    {"2 + 1.5", 3.5},
                                                    {"1.5 - 2", -0.5},
                                                    {"2 - 1.5", 0.5},
                                                    {"1.5 * 2", 3},
                                                    {"1.5 / 2", 0.75},
                                                    {"3 / 2.0", 1.5},
                                                    {"-(1.5)", -1.5},
                                                    {"+1.5", 1.5},
                                                    {"1 ? 1.5 : 2.5", 1.5},
                                                    {"0 ? 1.5 : 2.5", 2.5},
                                                    {"-1 + 0.5", -0.5},
                                                    {"18446744073709551615 + 0.5", 18446744073709551616.0},
                                                    {"0d4008000000000000 * 2", 6.0},
                                                    {"- -2.5", 2.5},
                                                    {"1.0 - 0.5 - 0.25", 0.25},
                                                    {"8.0 / 2 / 2", 2},
                                                    {"1 + 2 * 1.5", 4}};
  for (const auto& [text, value] : doubles) {
    const Operand o = first_operand(text);
    EXPECT_EQ(std::bit_cast<double>(o.bits), value) << text;
    EXPECT_TRUE(o.is_float && o.is_double) << text;
  }
}

// The forms of PTX ISA 4.5.1 and 4.5.2.
TEST(Operand, NumbersOfEveryForm) {
  const std::pair<const char*, uint64_t> integers[] = {
      {"0", 0},
      {"7", 7},
      {"0U", 0},
      {"10", 10},
      {"00", 0},
      {"07", 7},
      {"010", 8},
      {"0777", 511},
      {"010U", 8},
      {"0x0", 0},
      {"0x1f", 31},
      {"0X1F", 31},
      {"0xabcdefABCDEF", 0xabcdefabcdef},
      {"0x12U", 18},
      {"0b0", 0},
      {"0b101", 5},
      {"0B11", 3},
      {"0b11U", 3},
      {"9223372036854775807", INT64_MAX},
      {"9223372036854775808", 1ull << 63},
      {"0xFFFFFFFFFFFFFFFF", ~0ull},
      {"01777777777777777777777", ~0ull},
      {"18446744073709551615U", ~0ull},
      {"0b1111111111111111111111111111111111111111111111111111111111111111", ~0ull}};
  for (const auto& [text, value] : integers) {
    const Operand o = first_operand(text);
    EXPECT_EQ(o.kind, Kind::Immediate);
    EXPECT_EQ(o.bits, value) << text;
    EXPECT_FALSE(o.is_float || o.is_double) << text;
  }
  // A number above the largest signed one is unsigned, as one with a U is.
  EXPECT_EQ(first_operand("9223372036854775808 / 2").bits, 1ull << 62);
  EXPECT_EQ(first_operand("9223372036854775807 * -1 / 2").bits, static_cast<uint64_t>(-(INT64_MAX / 2)));
  const std::pair<const char*, double> doubles[] = {{"1.5", 1.5},
                                                    {"1.", 1},
                                                    {".5", .5},
                                                    {"0.5", .5},
                                                    {"1e3", 1e3},
                                                    {"1E3", 1e3},
                                                    {"1e+3", 1e3},
                                                    {"1e-3", 1e-3},
                                                    {"1.5e2", 150},
                                                    {".5E-1", .05},
                                                    {"0e5", 0},
                                                    {"00.25", .25},
                                                    {"010.5", 10.5},
                                                    {"0d3FF8000000000000", 1.5},
                                                    {"0D3ff8000000000000", 1.5},
                                                    {"0dC000000000000000", -2},
                                                    {"1.e1", 10},
                                                    {"123456789.25", 123456789.25}};
  for (const auto& [text, value] : doubles) {
    const Operand o = first_operand(text);
    EXPECT_EQ(std::bit_cast<double>(o.bits), value) << text;
    EXPECT_TRUE(o.is_float && o.is_double) << text;
  }
  for (const auto& [text, bits] : {std::pair{"0f3F800000", 0x3f800000u},
                                   {"0F3f8abCDe", 0x3f8abcdeu},
                                   {"-0f3F800000", 0xbf800000u},
                                   {"0fFFFFFFFF", 0xffffffffu},
                                   {"(0f00000001)", 1u}}) {
    const Operand o = first_operand(text);
    EXPECT_EQ(o.bits, bits) << text;
    EXPECT_TRUE(o.is_float && !o.is_double) << text;
  }
  EXPECT_EQ(first_operand("!0").bits, 1u);
  EXPECT_EQ(first_operand("!7").bits, 0u);
  EXPECT_EQ(first_operand("!(1 - 1)").bits, 1u);
  EXPECT_EQ(first_operand("! 0").bits, 1u);
  EXPECT_EQ(first_operand("!WARP_SZ").bits, 0u);
  EXPECT_TRUE(first_operand("! %p1").negated);
  EXPECT_FALSE(first_operand("!0").is_float);
  EXPECT_EQ(first_operand("WARP_SZ").kind, Kind::Immediate);
  EXPECT_EQ(one("mov.b32 %r1, WARP_SZX;", ".global .b32 WARP_SZX;\n").operands[1].name, "WARP_SZX");
}

TEST(Operand, AddressesAndVectors) {
  const Operand a = first_operand("[%rd1+-8]");
  EXPECT_EQ(a.kind, Kind::Address);
  EXPECT_EQ(a.elements[0].kind, Kind::Register);
  EXPECT_EQ(a.addend, -8);
  EXPECT_EQ(first_operand("[%rd1 + 2 - 5]").addend, -3);
  EXPECT_EQ(first_operand("[k_param_0+4]").elements[0].name, "k_param_0");
  EXPECT_EQ(first_operand("[k_param_0+4]").addend, 4);
  EXPECT_EQ(first_operand("[64+8]").elements[0].bits, 72u);
  const Operand tensor = first_operand("[%rd1, {%r1, 5, _}]");
  ASSERT_EQ(tensor.elements.size(), 2u);
  ASSERT_EQ(tensor.elements[1].elements.size(), 3u);
  EXPECT_EQ(tensor.elements[1].elements[1].bits, 5u);
  EXPECT_EQ(first_operand("{%r1, %r2, %r3, %r4}").elements.size(), 4u);
  EXPECT_EQ(first_operand("{%r1, %r2, %r3, %r4}").kind, Kind::Vector);
  EXPECT_EQ(tensor.elements[1].kind, Kind::Vector);
  EXPECT_EQ(first_operand("[%rd1 + 2 + -5 - -3]").addend, 0);
  EXPECT_EQ(first_operand("[k_param_0 - 8 + 2 * 3]").addend, -2);
  const Operand symbol = one("mov.u64 %rd1, table+16;", ".global .b32 table[9];\n").operands[1];
  EXPECT_EQ(symbol.kind, Kind::Symbol);
  EXPECT_EQ(symbol.addend, 16);
}

// All of PTX ISA 10 that a kernel of these architectures can read.
TEST(Operand, SpecialRegisters) {
  std::vector<std::string> names = {"%laneid",
                                    "%warpid",
                                    "%nwarpid",
                                    "%smid",
                                    "%nsmid",
                                    "%gridid",
                                    "%is_explicit_cluster",
                                    "%cluster_ctarank",
                                    "%cluster_nctarank",
                                    "%clock",
                                    "%clock_hi",
                                    "%clock64",
                                    "%globaltimer",
                                    "%globaltimer_lo",
                                    "%globaltimer_hi",
                                    "%total_smem_size",
                                    "%aggr_smem_size",
                                    "%dynamic_smem_size",
                                    "%current_graph_exec",
                                    "%envreg0",
                                    "%envreg31",
                                    "%pm0",
                                    "%pm7",
                                    "%pm7_64"};
  for (const char* mask : {"eq", "le", "lt", "ge", "gt"}) names.push_back(std::string("%lanemask_") + mask);
  for (const char* what : {"begin", "end", "cap", "0", "1"})
    names.push_back(std::string("%reserved_smem_offset_") + what);
  for (const char* vector :
       {"%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"})
    for (const char* component : {".x", ".y", ".z", ".w"}) names.push_back(std::string(vector) + component);
  for (const std::string& name : names) {
    EXPECT_EQ(first_operand(name).kind, Kind::Special) << name;
    EXPECT_EQ(first_operand(name).name, name);
  }
  for (const std::string& name : names) {
    if (name.starts_with("%envreg") || name.starts_with("%pm")) continue;
    EXPECT_NE(body_error("mov.b32 %r1, " + name.substr(0, name.find('.')) + "q;"), "") << name;
  }
}

TEST(Module, TypesHaveTheirSizes) {
  const std::tuple<const char*, Type, int> types[] = {
      {"b8", Type::B8, 1},         {"b16", Type::B16, 2}, {"b32", Type::B32, 4},     {"b64", Type::B64, 8},
      {"b128", Type::B128, 16},    {"u8", Type::U8, 1},   {"u16", Type::U16, 2},     {"u32", Type::U32, 4},
      {"u64", Type::U64, 8},       {"s8", Type::S8, 1},   {"s16", Type::S16, 2},     {"s32", Type::S32, 4},
      {"s64", Type::S64, 8},       {"f16", Type::F16, 2}, {"f16x2", Type::F16x2, 4}, {"bf16", Type::BF16, 2},
      {"bf16x2", Type::BF16x2, 4}, {"f32", Type::F32, 4}, {"f64", Type::F64, 8}};
  for (const auto& [name, type, bytes] : types) {
    EXPECT_EQ(type_from_name(name), type) << name;
    EXPECT_EQ(bytes_of(type), bytes) << name;
    const Module m =
        module_of(std::string(".global .") + name + " x; .global .v4 ." + name + " y[3]; .shared .align 64 ." + name +
                  " z[2][5]; .func f(.param .v2 ." + name + " p, .param .align 32 ." + name + " q[3]) { ret; }");
    const auto size = static_cast<uint64_t>(bytes);
    EXPECT_EQ(m.variables[0].bytes, size) << name;
    EXPECT_EQ(m.variables[0].align, bytes) << name;
    EXPECT_EQ(m.variables[1].bytes, 12 * size) << name;
    EXPECT_EQ(m.variables[1].align, 4 * bytes) << name;
    EXPECT_EQ(m.variables[2].bytes, 10 * size) << name;
    EXPECT_EQ(m.variables[2].align, 64) << name;
    EXPECT_EQ(m.functions[0].params[0].bytes, 2 * size) << name;
    EXPECT_EQ(m.functions[0].params[0].align, 2 * bytes) << name;
    EXPECT_EQ(m.functions[0].params[1].bytes, 3 * size) << name;
    EXPECT_EQ(m.functions[0].params[1].align, 32) << name;
  }
  EXPECT_EQ(type_from_name("pred"), Type::Pred);
  EXPECT_EQ(type_from_name("b7"), Type::Other);
  EXPECT_EQ(bytes_of(Type::Pred), 0);
  EXPECT_EQ(bytes_of(Type::None), 0);
  EXPECT_EQ(module_of(".func f(.reg .pred p) { ret; }").functions[0].params[0].align, 1);
}

TEST(Module, InitialValuesOfEveryKind) {
  const auto init = [](const std::string& text) { return module_of(text).variables.back(); };
  const auto bytes = [&](const std::string& text) { return init(text).init; };
  using Bytes = std::vector<uint8_t>;
  EXPECT_EQ(bytes(".global .f32 x = 1;"), (Bytes{0, 0, 0x80, 0x3f}));
  EXPECT_EQ(bytes(".global .f32 x = 1.5;"), (Bytes{0, 0, 0xc0, 0x3f}));
  EXPECT_EQ(bytes(".global .f32 x = 0f7F800001;"), (Bytes{1, 0, 0x80, 0x7f}));
  EXPECT_EQ(bytes(".global .f32 x = 0d3FF0000000000000;"), (Bytes{0, 0, 0x80, 0x3f}));
  EXPECT_EQ(bytes(".global .f32 x = 18446744073709551615;"), (Bytes{0, 0, 0x80, 0x5f}));
  EXPECT_EQ(bytes(".global .f32 x = -1;"), (Bytes{0, 0, 0x80, 0xbf}));
  EXPECT_EQ(bytes(".global .f64 x = 0f3F800000;"), (Bytes{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}));
  EXPECT_EQ(bytes(".global .f64 x = -2;"), (Bytes{0, 0, 0, 0, 0, 0, 0, 0xc0}));
  EXPECT_EQ(bytes(".global .b32 x = 0f3F800000;"), (Bytes{0, 0, 0x80, 0x3f}));
  EXPECT_EQ(bytes(".global .b64 x = 1.5;"), (Bytes{0, 0, 0, 0, 0, 0, 0xf8, 0x3f}));
  EXPECT_EQ(bytes(".const .s8 x = -2;"), (Bytes{0xfe}));
  EXPECT_EQ(bytes(".global .b16 x[2] = {0xff00(0x1234), 0xff(0x1234)};"), (Bytes{0x12, 0, 0x34, 0}));
  EXPECT_EQ(bytes(".global .u8 x = WARP_SZ;"), (Bytes{32}));
  EXPECT_EQ(bytes(".global .v2 .u8 x[2] = {{1, 2}, {3}};"), (Bytes{1, 2, 3, 0}));
  EXPECT_EQ(bytes(".global .v4 .u8 x = {1, 2, 3};"), (Bytes{1, 2, 3, 0}));
  EXPECT_EQ(bytes(".global .u8 x[2][2][2] = {{{1}, {2, 3}}, {{4}}};"), (Bytes{1, 0, 2, 3, 4, 0, 0, 0}));
  EXPECT_EQ(bytes(".global .u8 x[][2] = {{1}, {2}, {}};"), (Bytes{1, 0, 2, 0, 0, 0}));
  EXPECT_EQ(init(".global .u16 x[][3] = {{1}, {2}};").bytes, 12u);
  EXPECT_EQ(bytes(".global .u8 x[4] = {};"), (Bytes{0, 0, 0, 0}));
  EXPECT_EQ(init(".extern .shared .u16 x[][3];").bytes, 0u);
  EXPECT_TRUE(init(".global .u8 x[4];").init.empty());
  // The definition stands for its declaration, in either order.
  for (const char* text :
       {".extern .global .u8 x[]; .global .u8 x[2] = {7};", ".global .u8 x[2] = {7}; .extern .global .u8 x[];"}) {
    const Module m = module_of(text);
    ASSERT_EQ(m.variables.size(), 1u);
    EXPECT_FALSE(m.variables[0].is_extern);
    EXPECT_EQ(m.variables[0].init, (Bytes{7, 0}));
  }
  EXPECT_TRUE(module_of(".extern .global .u8 x[]; .extern .global .u8 x[];").variables[0].is_extern);

  // Addresses, whole and in masked bytes.
  const std::string head = ".global .u8 a[9]; .global .u8 b[9]; ";
  Variable v = init(head + ".global .u64 x[3] = {a, generic(b)-3+1, b + 2};");
  ASSERT_EQ(v.relocations.size(), 3u);
  const struct {
    uint64_t offset;
    const char* symbol;
    int64_t addend;
    bool generic;
  } places[] = {{0, "a", 0, false}, {8, "b", -2, true}, {16, "b", 2, false}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(v.relocations[i].offset, places[i].offset);
    EXPECT_EQ(v.relocations[i].symbol, places[i].symbol);
    EXPECT_EQ(v.relocations[i].addend, places[i].addend);
    EXPECT_EQ(v.relocations[i].generic, places[i].generic);
    EXPECT_EQ(v.relocations[i].bytes, 8);
    EXPECT_EQ(v.relocations[i].shift, 0);
  }
  EXPECT_EQ(init(head + ".global .u32 x = a;").relocations[0].bytes, 4);
  const auto masked = [](int byte, const std::string& of) {
    return "0xFF" + std::string(static_cast<size_t>(2 * byte), '0') + "(" + of + ")";
  };
  // Eight bytes of one address in order are that address; with anything else among them each stays alone.
  for (int odd = -1; odd < 8; ++odd) {
    for (const std::string of : {"b", "a+1", "generic(a)", "wrong byte"}) {
      std::string text = head + ".global .b8 x[10] = {5";
      for (int i = 0; i < 8; ++i) {
        const bool is_odd = i == odd;
        text += ", " + masked(is_odd && of == "wrong byte" ? (i + 1) % 8 : i, is_odd && of != "wrong byte" ? of : "a");
      }
      v = init(text + ", 6};");
      if (odd < 0) {
        ASSERT_EQ(v.relocations.size(), 1u);
        EXPECT_EQ(v.relocations[0].bytes, 8);
        EXPECT_EQ(v.relocations[0].offset, 1u);
      } else {
        ASSERT_EQ(v.relocations.size(), 8u) << text;
        for (int i = 0; i < 8; ++i) {
          const auto& r = v.relocations[static_cast<size_t>(i)];
          EXPECT_EQ(r.bytes, 1);
          EXPECT_EQ(r.offset, static_cast<uint64_t>(i + 1));
          EXPECT_EQ(r.shift, 8 * (i == odd && of == "wrong byte" ? (i + 1) % 8 : i));
        }
      }
    }
  }
  // A gap between the bytes, too few of them, and two addresses in a row.
  std::string gap = head + ".global .b8 x[9] = {", few = head + ".global .b8 x[9] = {",
              two = head + ".global .b8 x[16] = {";
  for (int i = 0; i < 8; ++i) gap += (i == 4 ? "0, " : "") + masked(i, "a") + (i < 7 ? ", " : "};");
  for (int i = 0; i < 7; ++i) few += masked(i, "a") + (i < 6 ? ", " : "};");
  for (int i = 0; i < 16; ++i) two += masked(i % 8, i < 8 ? "a" : "b") + (i < 15 ? ", " : "};");
  EXPECT_EQ(init(gap).relocations.size(), 8u);
  EXPECT_EQ(init(few).relocations.size(), 7u);
  v = init(two);
  ASSERT_EQ(v.relocations.size(), 2u);
  EXPECT_EQ(v.relocations[1].symbol, "b");
  EXPECT_EQ(v.relocations[1].offset, 8u);
}

TEST(Function, DirectivesOfEveryKind) {
  const Function f =
      module_of(
          ".entry k(.param .u64 .ptr .shared .align 4 a, .param .u64 .ptr b, .param .align 16 .u32 c) .reqntid 4 "
          ".maxntid 5, 6, 7 .reqnctapercluster 3, 2 .minnctapersm 2 .maxnctapersm 9 .abi_preserve 8 "
          ".abi_preserve_control 7 .blocksareclusters .maxclusterrank 4 { .maxnreg 40; ret; }")
          .functions[0];
  EXPECT_THAT(f.reqntid, ElementsAre(4, 1, 1));
  EXPECT_THAT(f.maxntid, ElementsAre(5, 6, 7));
  EXPECT_THAT(f.reqnctapercluster, ElementsAre(3, 2, 1));
  EXPECT_EQ(f.minnctapersm, 2);
  EXPECT_EQ(f.maxclusterrank, 4);
  EXPECT_EQ(f.maxnreg, 40);
  EXPECT_TRUE(f.blocks_are_clusters);
  EXPECT_FALSE(f.explicit_cluster);
  EXPECT_EQ(f.params[0].align, 8);
  EXPECT_EQ(f.params[2].align, 16);
  const Function plain = module_of(".entry k() { ret; }").functions[0];
  EXPECT_THAT(plain.reqntid, ElementsAre(0, 0, 0));
  EXPECT_FALSE(plain.blocks_are_clusters || plain.explicit_cluster || plain.is_declaration);
  EXPECT_FALSE(module_of(".entry k() .explicitcluster { ret; }").functions[0].blocks_are_clusters);
  EXPECT_TRUE(plain.is_entry);
  EXPECT_FALSE(module_of(".func k() { ret; }").functions[0].is_entry);
}

// The same names in scopes that follow or hold one another.
TEST(Function, NamesOfScopes) {
  Function f = body_of(
      "{ .reg .b32 x; mov.b32 x, 1; .shared .b32 v; st.shared.b32 [v], x; { .local .b32 x; st.local.b32 [x], 1; } "
      "mov.b32 x, 2; }\n"
      "{ .shared .b32 v; st.shared.b32 [v], 1; .reg .b32 y<12>; .reg .b32 y1<3>; mov.b32 y11, y12; mov.b32 y10, y1; }\n"
      ".const .b32 c = 5; ld.const.b32 %r1, [c];");
  const auto& b = f.body;
  EXPECT_EQ(b[0].operands[0].kind, Kind::Register);
  EXPECT_EQ(b[1].operands[1].reg, b[0].operands[0].reg);
  EXPECT_EQ(b[2].operands[0].elements[0].kind, Kind::Symbol) << "a variable of an inner scope hides the register";
  EXPECT_EQ(b[3].operands[0].reg, b[0].operands[0].reg);
  EXPECT_NE(b[1].operands[0].elements[0].name, b[4].operands[0].elements[0].name);
  // y11 is y<12>'s twelfth or y1<3>'s second: the shorter name is asked first.
  const auto name_of = [&](const Operand& o) { return f.registers[static_cast<size_t>(o.reg)].name; };
  EXPECT_EQ(name_of(b[5].operands[0]), "y11");
  EXPECT_EQ(name_of(b[5].operands[1]), "y12");
  EXPECT_NE(b[5].operands[0].reg, b[5].operands[1].reg);
  EXPECT_EQ(name_of(b[6].operands[1]), "y1");
  const Module m = module_of(
      ".entry a() { .const .b32 c = 5; .reg .b32 r; ld.const.b32 r, [c]; } .entry b() { .const .b32 c = 6; }");
  ASSERT_EQ(m.variables.size(), 2u);
  EXPECT_NE(m.variables[0].name, m.variables[1].name);
  EXPECT_EQ(m.functions[0].body[0].operands[1].elements[0].name, m.variables[0].name);
  // Tables of scopes keep apart as well.
  f = body_of(
      "A: ret;\nB: ret;\n{ t: .branchtargets A; brx.idx %r1, t; }\n{ t: .branchtargets B, A; brx.idx %r1, t; }\n"
      "{ c: .calltargets k; call %rd1, c; }\n{ c: .callprototype _ (.param .b32 _); call %rd1, (%r1), c; }");
  EXPECT_THAT(f.branch_targets.at(f.body[2].operands[1].name), ElementsAre(0));
  EXPECT_THAT(f.branch_targets.at(f.body[3].operands[1].name), ElementsAre(1, 0));
  const CallTable& list = f.call_tables.at(f.body[4].operands[3].name);
  EXPECT_FALSE(list.is_prototype);
  EXPECT_THAT(list.targets, ElementsAre("k"));
  const CallTable& prototype = f.call_tables.at(f.body[5].operands[3].name);
  EXPECT_TRUE(prototype.is_prototype);
  ASSERT_EQ(prototype.params.size(), 1u);
  EXPECT_EQ(prototype.params[0].bytes, 4u);
  EXPECT_TRUE(prototype.results.empty());
  // Labels of two scopes have two names in the function.
  f = body_of("{ L: bra L; }\n{ L: ret; bra L; }");
  EXPECT_EQ(f.labels.at("L"), 0);
  EXPECT_EQ(f.labels.at("L@2"), 1);
  EXPECT_EQ(f.body[2].operands[0].target, 1);
}

TEST(Errors, SayWhatAndWhere) {
  EXPECT_EQ(body_error("  add.s32 %r1, %r2, %rx;"), "line 7, column 21: register '%rx' is not declared");
  EXPECT_THAT(body_error("add.s32 %r1, %r2"),
              HasSubstr("line 8, column 1: expected ';' after an instruction, found '}'"));
  EXPECT_THAT(body_error("bra NOWHERE;"), HasSubstr("'NOWHERE' is not declared"));
  EXPECT_THAT(body_error("L: L: ret;"), HasSubstr("label 'L' is defined twice"));
  EXPECT_THAT(body_error("@%r1 ret;"), HasSubstr("'%r1' is not a predicate register"));
  EXPECT_THAT(body_error("mov.b32 %r1, 0x;"), HasSubstr("expected a number"));
  EXPECT_THAT(body_error("mov.b32 %r1, 0f3F8;"), HasSubstr("8 digits"));
  EXPECT_THAT(body_error("mov.b32 %r1, 1/0;"), HasSubstr("divides by zero"));
  EXPECT_THAT(body_error("mov.b32 %r1, 99999999999999999999;"), HasSubstr("does not fit in 64 bits"));
  EXPECT_THAT(body_error("mov.b32 %r1, %tid;"), HasSubstr("needs a component"));
  EXPECT_THAT(body_error(".reg .b32 %q<99999999>;"), HasSubstr("0 to 1048576"));
  EXPECT_THAT(body_error(".reg .b32 %q; .reg .b32 %q;"), HasSubstr("declared twice"));
  EXPECT_THAT(body_error(".banana 3;"), HasSubstr("unknown directive '.banana'"));
  EXPECT_THAT(body_error("ts: .branchtargets A;"), HasSubstr("label 'A' is not defined"));
  EXPECT_THAT(body_error("/* never closed"), HasSubstr("comment is never closed"));
  EXPECT_THAT(error_of(""), HasSubstr("line 1, column 1: PTX begins with .version"));
  EXPECT_THAT(error_of(".version 9.0\n"), HasSubstr(".target"));
  for (const char* target : {"sm_9", "sm_900", "sm_90f", "sm_80a", "sm_", "sm_9a0", "compute_90", "debug, sm_91"}) {
    const std::string name = std::string(target).substr(std::string(target).rfind(' ') + 1);
    EXPECT_THAT(error_of(std::string(".version 9.0\n.target ") + target),
                HasSubstr("line 2, column " + std::to_string(9 + std::string(target).size() - name.size()) +
                          ": unknown target '" + name + "'"));
  }
  EXPECT_THAT(error_of(".version 9.0 .target debug"), HasSubstr("names no sm_ architecture"));
  EXPECT_THAT(error_of(".version 9.0 .target sm_90 .address_size 32"), HasSubstr("64-bit"));
  EXPECT_THAT(error_of(kHeader + ".global .u32 x = undeclared;"), HasSubstr("'undeclared' is not declared"));
  EXPECT_THAT(error_of(kHeader + ".global .b8 x[2] = {1, 2, 3};"), HasSubstr("more values"));
  EXPECT_THAT(error_of(kHeader + ".global .b8 x[1099511627776][2];"), HasSubstr("larger than any memory"));
  EXPECT_THAT(error_of(kHeader + ".global .b8 x[1099511627776] = {1};"), HasSubstr("64 MiB"));
  EXPECT_THAT(error_of(kHeader + ".global .f17 x;"), HasSubstr("'.f17' is no type"));
  EXPECT_THAT(error_of(kHeader + ".global .align 3 .b32 x;"), HasSubstr("power of two"));
  EXPECT_THAT(error_of(kHeader + ".entry k() {} .entry k() {}"), HasSubstr("defined twice"));
  EXPECT_THAT(error_of(kHeader + ".entry k() {"), HasSubstr("found the end of the text"));
  EXPECT_THAT(error_of(kHeader + std::string("\0", 1)), HasSubstr("character with code 0"));
}

TEST(Errors, DeepNestingIsRefusedNotFollowed) {
  const auto repeat = [](const std::string& s, int n) {
    std::string r;
    while (n-- > 0) r += s;
    return r;
  };
  EXPECT_THAT(body_error(repeat("{", 100000)), HasSubstr("nested too deeply"));
  EXPECT_THAT(body_error("mov.b32 %r1, " + repeat("(", 100000)), HasSubstr("nested too deeply"));
  EXPECT_THAT(body_error("mov.b32 %r1, " + repeat("-", 100000)), HasSubstr("nested too deeply"));
  EXPECT_THAT(body_error("mov.b32 %r1, " + repeat("1 ? ", 100000)), HasSubstr("nested too deeply"));
  EXPECT_THAT(body_error("mov.b32 " + repeat("{", 100000)), HasSubstr("nested too deeply"));
  EXPECT_THAT(body_error("mov.b32 " + repeat("[", 100000)), HasSubstr("nested too deeply"));
  EXPECT_EQ(body_error("mov.b32 %r1, " + repeat("1+", 10000) + "1;"), "");
}

// Every prefix of a module, and many small damages of it, parse or are refused: nothing else happens.
TEST(Errors, DamagedTextParsesOrIsRefused) {
  const std::string text =
      kHeader +
      ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n.global .align 8 .u64 t[2] = "
      "{generic(t)+8, 0xff(t)};\n"
      ".visible .entry k(.param .align 64 .b8 p[128]) .maxntid 128, 1, 1\n{\n.reg .pred %p<3>; .reg .b32 %r<5>; .reg "
      ".b64 %rd<4>; .reg .f32 %f<4>;\n"
      ".loc 1 2 3, function_name $L, inlined_at 1 2 3\n@!%p1 bra $L_1;\n{ .reg .pred q; setp.ne.b32 q|%p2, %r1, 0; "
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1}, %rd1, %rd2, q, 1, 1; }\n"
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2, {%r1, %r2}], "
      "[%r3+8];\n"
      "ts: .branchtargets $L_1, $L_1; brx.idx %r1, ts;\ncall.uni (%r1), vprintf, (%rd1, %rd2);\nmov.f32 %f1, "
      "0f3F800000; mov.b64 %rd3, t+8;\n$L_1:\nret;\n}\n";
  EXPECT_EQ(error_of(text), "");
  for (size_t n = 0; n < text.size(); ++n) error_of(text.substr(0, n));
  std::mt19937_64 rng(1);
  static const std::string kPieces[] = {"{",  "}",   "[", "(",  ")",  ";",  ",", "%", "|",     "!",
                                        "0f", "<9>", ".", "::", "\"", "/*", "@", "-", "1e999", "_"};
  for (int i = 0; i < 4000; ++i) {
    std::string damaged = text;
    for (int n = 0; n < 1 + i % 3; ++n) {
      const size_t at = rng() % damaged.size();
      switch (rng() % 3) {
        case 0:
          damaged[at] = static_cast<char>(rng());
          break;
        case 1:
          damaged.erase(at, rng() % 20);
          break;
        default:
          damaged.insert(at, kPieces[rng() % std::size(kPieces)]);
      }
    }
    error_of(damaged);
  }
}

}  // namespace
