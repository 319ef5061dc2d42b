// SPDX-License-Identifier: Apache-2.0
// What the PTX front end refuses, by sentence and place, and beside each limit what is just within it. A ` in a text
// marks the place that the error names.
#include <gtest/gtest.h>

#include <string>

#include "sim/ptx/ast.h"

namespace {

using namespace sim::ptx;

struct Refusal {
  std::string text, said;
};

// Parses the text without its mark. Gives the error, or nothing.
std::string error_of(std::string text) {
  if (const size_t mark = text.find('`'); mark != std::string::npos) text.erase(mark, 1);
  try {
    parse(text);
  } catch (const ParseError& e) {
    return e.what();
  }
  return "";
}

std::string place_of(const std::string& text) {
  const size_t mark = text.find('`');
  int line = 1;
  size_t begin = 0;
  for (size_t i = 0; i < mark; ++i) {
    if (text[i] == '\n') ++line, begin = i + 1;
  }
  return "line " + std::to_string(line) + ", column " + std::to_string(mark - begin + 1) + ": ";
}

void expect(const std::string& text, const std::string& said) {
  EXPECT_EQ(error_of(text), place_of(text) + said) << text;
}

const std::string kHeader = ".version 9.0\n.target sm_90a\n.address_size 64\n";
std::string repeat(const std::string& s, int n) {
  std::string all;
  while (n-- > 0) all += s;
  return all;
}
std::string in_body(const std::string& statements) {
  return kHeader + ".global .b32 known;\n.entry k()\n{\n.reg .pred %p<4>; .reg .b32 %r<4>; .reg .b64 %rd<4>;\n" +
         statements + "\n}\n";
}

// PTX ISA 11.1: the version and the target come first.
TEST(PtxRefusals, Headers) {
  const Refusal rows[] = {
      {"`", "PTX begins with .version, found the end of the text"},
      {"// text\n`.target sm_90a", "PTX begins with .version, found '.target'"},
      {"`.versions 9.0", "PTX begins with .version, found '.versions'"},
      {".version `", "expected a version like 8.0 after .version"},
      {".version 9\n.target` sm_90a", "expected a version like 8.0 after .version"},
      {".version 9.`;", "expected a version like 8.0 after .version"},
      {".version nine.0`", "expected a version like 8.0 after .version"},
      {".version 9.x`", "expected a version like 8.0 after .version"},
      {".version 12345.0`", "expected a version like 8.0 after .version"},
      {".version 9.00000`", "expected a version like 8.0 after .version"},
      {".version 9.0 `.address_size 64", ".target follows .version, found '.address_size'"},
      {".version 9.0 .target `;", "expected a target, found ';'"},
      {".version 9.0 .target sm_90a, `,", "expected a target, found ','"},
      {".version 9.0 .target sm_90a, `sm_91", "unknown target 'sm_91'"},
      {".version 9.0 .target `xx_90", "unknown target 'xx_90'"},
      {".version 9.0 .target texmode_unified, debug`", ".target names no sm_ architecture"},
      {".version 9.0 .target sm_90a .address_size 65`", "the address size must be an integer from 0 to 64"},
      {".version 9.0 .target sm_90a .address_size 32`", "only 64-bit addresses are supported"},
      {".version 9.0 .target sm_90a .address_size `;", "expected a constant, found ';'"},
  };
  for (const auto& [text, said] : rows) expect(text, said);
  EXPECT_EQ(error_of(".version 9999.1234 .target sm_90a"), "");
}

// The targets of PTX ISA 11.1.2, and the options that may stand beside one.
TEST(PtxRefusals, TargetsAreThoseOfTheIsa) {
  const char* targets[] = {"10",   "11",  "12",   "13",   "20",   "30",   "32",   "35",   "37",   "50",  "52",
                           "53",   "60",  "61",   "62",   "70",   "72",   "75",   "80",   "86",   "87",  "88",
                           "89",   "90",  "90a",  "100",  "100a", "100f", "101",  "101a", "101f", "103", "103a",
                           "103f", "110", "110a", "110f", "120",  "120a", "120f", "121",  "121a", "121f"};
  for (const std::string name : targets) {
    const Module m = parse(".version 9.0 .target sm_" + name);
    EXPECT_EQ(m.target, "sm_" + name);
    const std::string bare = name.substr(0, name.find_first_of("af"));
    for (const char* suffix : {"b", "aa"})
      EXPECT_NE(error_of(".version 9.0 .target sm_" + bare + suffix), "") << name << suffix;
    EXPECT_NE(error_of(".version 9.0 .target xm_" + name), "");
  }
  for (const char* option : {"texmode_unified", "texmode_independent", "debug", "map_f64_to_f32"}) {
    EXPECT_EQ(parse(std::string(".version 9.0 .target sm_90a, ") + option).target, "sm_90a");
    EXPECT_EQ(parse(std::string(".version 9.0 .target ") + option + ", sm_90a").target, "sm_90a");
    EXPECT_NE(error_of(std::string(".version 9.0 .target sm_90a, ") + option + "x"), "");
  }
  const Module m = parse(".version 8.12 .target sm_80");
  EXPECT_EQ(m.version_major, 8);
  EXPECT_EQ(m.version_minor, 12);
}

TEST(PtxRefusals, Modules) {
  const std::string gib = "1073741824";
  const Refusal rows[] = {
      {"`nonsense", "expected a directive, found 'nonsense'"},
      {"`.nonsense", "expected a directive, found '.nonsense'"},
      {"`%x", "expected a directive, found '%x'"},
      {"`" + repeat("x", 60), "expected a directive, found '" + repeat("x", 40) + "'"},
      {"`." + repeat("x", 60), "expected a directive, found '." + repeat("x", 39) + "'"},
      {"`}", "expected a directive, found '}'"},
      {"`\x7f", "expected a directive, found a character with code 127"},
      {"`\x1f", "expected a directive, found a character with code 31"},
      {"`\xe9", "expected a directive, found a character with code 233"},
      {"`~", "expected a directive, found '~'"},
      {".reg` .b32 x;", "a module-scope variable is in .global, .const or .shared"},
      {".param` .b32 x;", "a module-scope variable is in .global, .const or .shared"},
      {".local` .b32 x;", "a module-scope variable is in .global, .const or .shared"},
      {".visible .extern `;", "expected a directive, found ';'"},
      {".file 1073741825` \"a\"", "a file index must be an integer from 0 to " + gib},
      {".file 1 `a", "expected '\"' before a string, found 'a'"},
      {".file 1 \"a`", "this string is never closed"},
      {".file 1 \"a`\nb\"", "this string is never closed"},
      {".file 1 \"a\\`\nb\"", "this string is never closed"},
      {".section .debug_info `;", "expected '{' after a section name, found ';'"},
      {".section .debug_info { .b8 1 `", "this section is never closed"},
      {".section .debug_info { \"a`", "this string is never closed"},
      {".pragma `nounroll;", "expected '\"' before a string, found 'nounroll'"},
      {".pragma \"a\", `;", "expected '\"' before a string, found ';'"},
      {".alias `;", "expected an alias, found ';'"},
      {".alias a `b;", "expected ',' between the names of .alias, found 'b'"},
      {".alias a, `;", "expected a function name, found ';'"},
      {".alias a, b `c;", "expected ';' after .alias, found 'c'"},
      {".alias a,` b;", "'b' is not declared"},
      {".global .u32 x = `nobody;", "'nobody' is not declared"},
      {".global .u64 x = generic(`nobody);", "'nobody' is not declared"},
      {".entry `(", "expected a function name, found '('"},
      {".entry k() .maxntid 1073741825`", "a dimension must be an integer from 0 to " + gib},
      {".entry k() .maxnreg 1073741825`", "a directive's argument must be an integer from 0 to " + gib},
      {".entry k() .maxntid 1, 2, `;", "expected a constant, found ';'"},
      {".entry k() .attribute `.managed", "expected '(' after .attribute, found '.managed'"},
      {".entry k() .attribute(.unified(1, 2)`", "this .attribute is never closed"},
      {".entry k() `ret;", "expected '{' or ';' after a function header, found 'ret'"},
      {".extern .func f() `{ ret; }", "an .extern function has no body"},
      {".global .b32 f; .func `f() { ret; }", "'f' is already a variable"},
      {".func f() { ret; } .func `f() { ret; }", "function 'f' is defined twice"},
      {".func f() { ret; } .global .b32 `f;", "'f' is already a function"},
      {".global .b32 x; .global .b32 `x;", "variable 'x' is defined twice"},
      {".global .b32 a, b, `a;", "variable 'a' is defined twice"},
      {".entry k(`", "a parameter is in .param or .reg, found the end of the text"},
      {".entry k(.local `.b32 a)", "a parameter is in .param or .reg, found '.b32'"},
      {".entry k(`b32 a)", "a parameter is in .param or .reg, found 'b32'"},
      {".entry k(.param .pred `a)", "a predicate parameter is in the .reg state space"},
      {".entry k(.param .b32 `;", "expected a parameter name, found ';'"},
      {".entry k(.param .b32 a[1048577`])", "an array dimension must be an integer from 0 to 1048576"},
      {".entry k(.param .b8 a[2`;)", "expected ']' after an array dimension, found ';'"},
      {".entry k(.param .b32 a[262145]`)", "this parameter is larger than any launch can pass"},
      {".entry k(.param .b32 a, `.param .b32 a)", "parameter 'a' is declared twice"},
      {".func f(.reg .b32 a, `.param .b32 a)", "parameter 'a' is declared twice"},
      {".func (.param .b32 a) f(`.param .b32 a)", "parameter 'a' is declared twice"},
      {".entry k(.param .b32 a `.param", "expected ')' after parameters, found '.param'"},
      {".global `;", "expected a type, found ';'"},
      {".global .pred `x;", "a predicate variable is in the .reg state space"},
      {".global `.f17 x;", "'.f17' is no type of a variable"},
      {".global .b32 `.b32 x;", "'.b32' is no type of a variable"},
      {".global `.v3 .b32 x;", "'.v3' is no type of a variable"},
      {".global `.ptr .b32 x;", "'.ptr' is no type of a variable"},
      {".global .align 3` .b32 x;", "an alignment is a power of two"},
      {".global .align 0` .b32 x;", "an alignment is a power of two"},
      {".global .align 1048577` .b32 x;", "an alignment must be an integer from 0 to 1048576"},
      {".global .b32 `4;", "expected a variable name, found '4'"},
      {".global .b32 x<65537`>;", "a count of names must be an integer from 0 to 65536"},
      {".global .b32 x<5 `;", "expected '>' after a count of names, found ';'"},
      {".global .b8 x<65536>, y<65536>, z<1`>;", "the module makes more than 131072 names by '<N>'"},
      {".global .b8 x[2][]`;", "only the first dimension of an array may be left out"},
      {".global .b8 x[2 `;", "expected ']' after an array dimension, found ';'"},
      {".global .b8 x[1099511627777`];", "an array dimension must be an integer from 0 to 1099511627776"},
      {".global .b16 x[1099511627776]`;", "'x' is larger than any memory"},
      {".global .b8 x[4] `y;", "expected ';' after a variable, found 'y'"},
      {".shared .b32 x =` 1;", "only .global and .const variables have initialisers"},
      {".extern .global .b32 x =` 1;", "an .extern variable has no initialiser"},
      {".global .b32 x<3> =` 1;", "names made by '<N>' have no initialiser"},
      {".global .f16 x =` 1;", "a variable of this type has no initialiser"},
      {".global .f16x2 x =` 1;", "a variable of this type has no initialiser"},
      {".global .bf16 x =` 1;", "a variable of this type has no initialiser"},
      {".global .bf16x2 x =` 1;", "a variable of this type has no initialiser"},
      {".global .b128 x =` 1;", "a variable of this type has no initialiser"},
      {".global .b8 x[67108865] = {1}`;", "the module has more than 64 MiB of initialised variables"},
      {".global .b32 x[2] = `1;", "expected '{' before a list of initial values, found '1'"},
      {".global .b32 x[2] = {1 `2};", "expected '}' after a list of initial values, found '2'"},
      {".global .b32 x[2] = {1, 2,` 3};", "this initialiser has more values than the array has elements"},
      {".global .b32 x[2][2] = {{1, 2}, {3, 4},` {5}};",
       "this initialiser has more values than the array has elements"},
      {".global .b32 x[2][1] = {{1,` 2}};", "this initialiser has more values than the array has elements"},
      {".global .b32 x[2][0] = {{`1}};", "this initialiser has more values than the array has elements"},
      {".global .b32 x[0] = {`1};", "this initialiser has more values than the array has elements"},
      {".global .b32 y; .global .u16 x = `y;", "an address needs a variable of 4 or 8 bytes, or a mask"},
      {".global .b32 y; .global .u64 x = generic(`);", "expected a symbol, found ')'"},
      {".global .b32 y; .global .u64 x = generic(y `;", "expected ')' after generic(symbol, found ';'"},
      {".global .b32 y; .global .u64 x = y+1.5`;", "an offset is an integer"},
      {".global .b32 y; .global .u64 x = y-1.5`;", "an offset is an integer"},
      {".global .b32 y; .global .b8 x = 1.5`(y);", "a mask is an integer"},
      {".global .b32 y; .global .b8 x = 0xf0`(y);", "a mask selects one whole byte, such as 0xff00"},
      {".global .b32 y; .global .b8 x = 0xffff`(y);", "a mask selects one whole byte, such as 0xff00"},
      {".global .b32 y; .global .b8 x = 0x1fe`(y);", "a mask selects one whole byte, such as 0xff00"},
      {".global .b32 y; .global .b8 x = 0xff(y `;", "expected ')' after a masked symbol, found ';'"},
      {".global .b8 x = 0xff(1.5`);", "a masked value is an integer"},
      {".global .b8 x = 0xff(1 `;", "expected ')' after a masked value, found ';'"},
      {".global .u32 x = 1.5`;", "an integer variable needs an integer initial value"},
      {".global .b32 x = 1.5`;", "this floating-point literal does not have the size of the variable"},
      {".global .b64 x = 0f3F800000`;", "this floating-point literal does not have the size of the variable"},
  };
  for (const auto& [text, said] : rows) expect(kHeader + text, said);
  expect(kHeader + "\n  `/* a\n b", "this comment is never closed");
  expect(kHeader + "/* a\n b */ `x", "expected a directive, found 'x'");
  expect(kHeader + "# 1 \"file\"\n@@DWARF\n  `x", "expected a directive, found 'x'");

  // Just within the limits, and what may stand in a module.
  for (const std::string right : {";;",
                                  "/*/ nonsense */",
                                  ".loc 1 2 3\n",
                                  ".file 1073741824 \"a\\\"b\", 1, 2\n",
                                  ".section .debug_info { \"}\" .b8 1 }",
                                  ".section .text sec { }",
                                  ".pragma \"a\", \"b\"",
                                  ".pragma \"a\";",
                                  ".visible .weak .common .global .b32 x;",
                                  ".entry k() .maxntid 1073741824",
                                  ".entry k() .attribute(.unified(1, 2)) { }",
                                  ".entry k() { }",
                                  ".extern .func f();",
                                  ".extern .global .b32 x; .global .b32 x; .extern .global .b32 x;",
                                  ".entry k(.param .b32 a[262144], .param .b8 b[1048576]) { }",
                                  ".func f(.param .b8 a[]) { }",
                                  ".func f(.param .b8 a[0]) { }",
                                  ".func f(.param .b32 _, .param .b32 _) { }",
                                  ".func f(.reg .pred p) { }",
                                  ".global .align 1048576 .b8 x;",
                                  ".global .b8 x<65536>, y<65536>;",
                                  ".global .b8 x[1099511627776];",
                                  ".global .b8 x[0][5];",
                                  ".global .b8 x[0];",
                                  ".global .b16 x[549755813888];",
                                  ".global .b8 x[67108864] = {1};",
                                  ".global .b32 x[0] = {};",
                                  ".global .b32 x[2] = {1, 2}, y = 4;",
                                  ".func f(); .func f(); .func f() { } .func f();",
                                  ".global .attribute(.managed) .b32 x;",
                                  ".global .b32 y; .global .u32 x = y;",
                                  ".shared .b32 x;",
                                  ".global .align 1 .b32 x;",
                                  ".alias a, b; .func b() { }"}) {
    const std::string ended = right.ends_with("1073741824") ? right + " { }" : right;
    EXPECT_EQ(error_of(kHeader + ended), "") << right;
  }
}

TEST(PtxRefusals, Statements) {
  const std::string gib = "1073741824";
  const Refusal rows[] = {
      {"`.nonsense;", "unknown directive '.nonsense'"},
      {".loc 1073741825` 1 1", "a file index must be an integer from 0 to " + gib},
      {".loc 1 1073741825` 1", "a line number must be an integer from 0 to " + gib},
      {".loc 1 1 1073741825`", "a column number must be an integer from 0 to " + gib},
      {".loc 1 1 1, `;", "expected function_name or inlined_at, found ';'"},
      {".loc 1 1 1, nonsense` 1", "expected function_name or inlined_at in .loc"},
      {".loc 1 1 1, function_name `1", "expected a label, found '1'"},
      {".loc 1 1 1, inlined_at 1 1 1073741825`", "a location must be an integer from 0 to " + gib},
      {".reg .v2 .pred `x;", "predicates have no vectors"},
      {".reg .v4 .b64 `x;", "a vector has at most 128 bits"},
      {".reg .v2 .b32 x; mov.b32 x.z`, 0;", "a vector of 2 has no element '.z'"},
      {".reg .b32 `;", "expected a register name, found ';'"},
      {".reg .b32 x, `x;", "'x' is declared twice in this scope"},
      {".reg .b32 x<3>, `x;", "'x' is declared twice in this scope"},
      {".reg .b32 x; .reg .b32 `x<3>;", "'x' is declared twice in this scope"},
      {".local .b32 x; .reg .b32 `x;", "'x' is declared twice in this scope"},
      {".reg .b32 x; .local .b32 `x;", "'x' is declared twice in this scope"},
      {".local .b32 x; .local .b32 `x;", "'x' is declared twice in this scope"},
      {".local .b32 x<3>, `x1;", "'x1' is declared twice in this scope"},
      {".reg .b32 x<1048577`>;", "a count of registers must be an integer from 0 to 1048576"},
      {".reg .b32 x<3 `;", "expected '>' after a count of registers, found ';'"},
      {".reg .b32 x<1048576>`;", "the module declares more than 1048576 registers"},
      {".reg .b32 x `y;", "expected ';' after registers, found 'y'"},
      {".param .pred `x;", "a predicate variable is in the .reg state space"},
      {"@`1 ret;", "expected a predicate register, found '1'"},
      {"@`%r1 ret;", "'%r1' is not a predicate register"},
      {"@!`%q ret;", "'%q' is not a predicate register"},
      {"@%p1 `;", "expected an instruction, found ';'"},
      {"@%p1 L`: ret;", "a guard stands after the label"},
      {"`+;", "expected an instruction, found '+'"},
      {"`+x;", "expected an instruction, found '+'"},
      {"ret %r1 `x;", "expected ';' after an instruction, found 'x'"},
      {"L: `L: ret;", "label 'L' is defined twice in this scope"},
      {"t: .branchtargets `;", "expected a label, found ';'"},
      {"t: .branchtargets `A;", "label 'A' is not defined in this function"},
      {"A: t: .branchtargets A `B;", "expected ';' after .branchtargets, found 'B'"},
      {"t: .branchtargets A<65537`>;", "a count of labels must be an integer from 0 to 65536"},
      {"t: .branchtargets A<2 `;", "expected '>' after a count of labels, found ';'"},
      {"A0: t: .branchtargets `A<2>;", "label 'A1' is not defined in this function"},
      {"t: .calltargets `;", "expected a function name, found ';'"},
      {"t: .calltargets `f;", "'f' is not declared"},
      {"t: .calltargets k `k;", "expected ';' after .calltargets, found 'k'"},
      {"t: .callprototype `;", "expected '_' in .callprototype, found ';'"},
      {"t: .callprototype _ `x;", "expected ';' after .callprototype, found 'x'"},
      {"call (%r1) `f;", "expected ',' after the results of a call, found 'f'"},
      {"`call nobody;", "'nobody' is not declared"},
      {"call k, (%r1 `%r2);", "expected ')' after a list of operands, found '%r2'"},
      {"op.b32 {%r1 `%r2};", "expected '}' after a list of operands, found '%r2'"},
      {"op.b32 %r1, `%rx;", "register '%rx' is not declared"},
      {"op.b32 %r1, `%r4;", "register '%r4' is not declared"},
      {"op.b32 %r1, `%r01;", "register '%r01' is not declared"},
      {"op.b32 %r1, `%r00000001;", "register '%r00000001' is not declared"},
      {"op.b32 `%tid;", "'%tid' needs a component .x, .y or .z"},
      {"op.b32 `%tid.q;", "'%tid' needs a component .x, .y or .z"},
      {"op.b32 `%envreg;", "register '%envreg' is not declared"},
      {"op.b32 `%envregx;", "register '%envregx' is not declared"},
      {"op.b32 `%xenvreg1;", "register '%xenvreg1' is not declared"},
      {"op.b32 `%pm;", "register '%pm' is not declared"},
      {"`op.b32 nobody;", "'nobody' is not declared"},
      {"op.b32 known+1.5`;", "an offset is an integer"},
      {"op.b32 [known-1.5`];", "an offset is an integer"},
      {"op.b32 [%rd1+1.5`];", "an offset is an integer"},
      {"op.b32 [%rd1-`%r1];", "expected a constant, found '%r1'"},
      {"op.b32 [{%rd1}`];", "an address begins with a register, a symbol or a number"},
      {"op.b32 [[%rd1]`];", "an address begins with a register, a symbol or a number"},
      {"op.b32 [_`];", "an address begins with a register, a symbol or a number"},
      {"op.b32 [!%p1`];", "an address begins with a register, a symbol or a number"},
      {"op.b32 [%rd1, %r1 `;", "expected ']' after an address, found ';'"},
      {"op.b32 [4 `8];", "expected ']' after an address, found '8'"},
      {"op.b32 !1.5`;", "'!' needs an integer"},
      {"op.b32 !%r1`;", "'!' needs a predicate register"},
      {"op.b32 !known`;", "'!' needs a predicate register"},
      {"op.b32 !%laneid`;", "'!' needs a predicate register"},
      {"op.b32 %r1|`;", "expected a constant, found ';'"},
      {"op.b32 %r1, %r2 `|%r3;", "expected ';' after an instruction, found '|'"},
      // Numbers (PTX ISA 4.5).
      {"op.b32 `0f3F80000;", "a hexadecimal floating-point literal needs 8 digits"},
      {"op.b32 `0f3F8000000;", "a hexadecimal floating-point literal has 8 digits"},
      {"op.b32 `0F3F8000G0;", "a hexadecimal floating-point literal needs 8 digits"},
      {"op.b32 `0d3FF000000000000;", "a hexadecimal floating-point literal needs 16 digits"},
      {"op.b32 `0D3FF00000000000000;", "a hexadecimal floating-point literal has 16 digits"},
      {"op.b32 `1e999;", "'1e999' is not a floating-point number in range"},
      {"op.b32 `0x;", "expected a number, found '0x'"},
      {"op.b32 `0b;", "expected a number, found '0b'"},
      {"op.b32 `0b2;", "expected a number, found '0b2'"},
      {"op.b32 `0xg;", "expected a number, found '0xg'"},
      {"op.b32 `09;", "expected a number, found '09'"},
      {"op.b32 `12a;", "expected a number, found '12a'"},
      {"op.b32 `12UU;", "expected a number, found '12UU'"},
      {"op.b32 `12u;", "expected a number, found '12u'"},
      {"op.b32 `1e;", "expected a number, found '1e'"},
      {"op.b32 `1e+;", "expected a number, found '1e'"},
      {"op.b32 `18446744073709551616;", "this integer does not fit in 64 bits"},
      {"op.b32 `0x10000000000000000;", "this integer does not fit in 64 bits"},
      {"op.b32 `02000000000000000000000;", "this integer does not fit in 64 bits"},
      // Constant expressions (PTX ISA 4.5.4 and 4.5.5).
      {"op.b32 ~1.5`;", "'~' needs an integer"},
      {"op.b32 1+!1.5`;", "'!' needs an integer"},
      {"op.b32 (.u32`)1;", "a cast in a constant expression is (.s64) or (.u64)"},
      {"op.b32 (.s64 `1;", "expected ')' after a cast, found '1'"},
      {"op.b32 (.s64)1.5`;", "a cast in a constant expression needs an integer"},
      {"op.b32 (1 `;", "expected ')' after an expression, found ';'"},
      {"op.b32 1 + `;", "expected a constant, found ';'"},
      {"op.b32 1 + 0f3F800000`;", "a 0f literal cannot be used in a constant expression"},
      {"op.b32 0f3F800000 + 1.5`;", "a 0f literal cannot be used in a constant expression"},
      {"op.b32 1.5 % 2`;", "'%' needs integers"},
      {"op.b32 1.5 << 2`;", "'<<' needs integers"},
      {"op.b32 1.5 >> 2`;", "'>>' needs integers"},
      {"op.b32 1.5 & 2`;", "'&' needs integers"},
      {"op.b32 1 | 2.5`;", "'|' needs integers"},
      {"op.b32 1 ^ 2.5`;", "'^' needs integers"},
      {"op.b32 1 && 2.5`;", "'&&' needs integers"},
      {"op.b32 1 || 2.5`;", "'||' needs integers"},
      {"op.b32 1/0`;", "a constant expression divides by zero"},
      {"op.b32 1%0`;", "a constant expression divides by zero"},
      {"op.b32 1.5 `? 1 : 2;", "the condition before '?' needs an integer"},
      {"op.b32 1 ? 2 `;", "expected ':' in a conditional expression, found ';'"},
      {"op.b32 1 ? 2 : 2.5`;", "both results of '?:' must be integers or both floating-point"},
      {"op.b32 [-1.5 `;", "expected ']' after an address, found ';'"},
  };
  for (const auto& [text, said] : rows) expect(in_body(text), said);
  // Depths that are followed, and one more.
  EXPECT_EQ(error_of(in_body(repeat("{", 199) + repeat("}", 199))), "");
  EXPECT_NE(error_of(in_body(repeat("{", 200) + repeat("}", 200))).find("scopes are nested too deeply"),
            std::string::npos);
  EXPECT_EQ(error_of(in_body("op " + repeat("{", 8) + "1" + repeat("}", 8) + ";")), "");
  EXPECT_NE(
      error_of(in_body("op " + repeat("{", 9) + "1" + repeat("}", 9) + ";")).find("operands are nested too deeply"),
      std::string::npos);
  for (const char* open : {"(", "-", "~", "+"}) {
    EXPECT_EQ(error_of(in_body("op " + repeat(open, 20) + "1" + (*open == '(' ? repeat(")", 20) : "") + ";")), "");
    const std::string deep = error_of(in_body("op " + repeat(open, 70) + "1;"));
    EXPECT_NE(deep.find("this expression is nested too deeply"), std::string::npos) << open << deep;
  }
  for (const std::string right : {";",
                                  ".loc 1073741824 1073741824 1073741824",
                                  ".loc 1 1 1, function_name $L+4, inlined_at 1 2 1073741824",
                                  ".pragma \"x\";",
                                  ".file 2 \"f\"",
                                  ".section .s { }",
                                  ".maxnreg 5;",
                                  ".shared .b32 x; .global .b32 y; .const .b32 z;",
                                  ".reg .b32 x<0>;",
                                  ".reg .b32 a, b<3>, c;",
                                  "op.b32 %r3;",
                                  "op.b32 %r0;",
                                  "@%p0 ret;",
                                  "@!%p3 ret;",
                                  "t: .branchtargets A<2>; A0: A1: ret;",
                                  "t: .calltargets k, k; call %rd1, t;",
                                  "t: .callprototype _;",
                                  "t: .callprototype _ () .noreturn;",
                                  "t: .callprototype (.param .b32 a) f (.param .b32 b);",
                                  "call (), k, ();",
                                  "op.b32 18446744073709551615;",
                                  "op.b32 01777777777777777777777;",
                                  "op.b32 0xffffffffffffffff;",
                                  "op.b32 {};"})
    EXPECT_EQ(error_of(in_body(right)), "") << right;
}

}  // namespace
