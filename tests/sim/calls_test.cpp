// SPDX-License-Identifier: Apache-2.0
// Calls that need more than one set of registers a function: recursion, direct and mutual, calls through addresses,
// and memory that is taken from the stack.
#include <bit>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/sim/run_ptx.h"

namespace {

using sim_test::Buffer;
using sim_test::Params;
using sim_test::Shape;
using testing::HasSubstr;

class Calls : public testing::TestWithParam<sim::Order> {
 protected:
  // One warp or more, whose threads each leave a number.
  std::vector<uint32_t> results(const std::string& text, uint32_t threads = 32) {
    Buffer<uint32_t> out(memory_, threads);
    Shape shape;
    shape.block = {threads, 1, 1};
    shape.order = GetParam();
    sim_test::run_ptx(text, "k", Params().add(out.address()), memory_, shape);
    return out.values();
  }
  std::string fault(const std::string& text) {
    Buffer<uint32_t> out(memory_, 32);
    Shape shape;
    shape.order = GetParam();
    return sim_test::fault_of(text, "k", Params().add(out.address()), memory_, shape);
  }
  sim::GlobalMemory memory_;
};
INSTANTIATE_TEST_SUITE_P(All, Calls, testing::ValuesIn(sim_test::all_orders()), testing::PrintToStringParamName());

// A kernel that stores what `body` leaves in %r1, which is the thread's number before.
std::string kernel(const std::string& body) {
  return ".visible .entry k(.param .u64 p_out)\n{\n"
         ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<5>;\n"
         "mov.u32 %r1, %tid.x;\nmov.u32 %r2, %r1;\n" +
         body +
         "\nld.param.u64 %rd1, [p_out];\nmul.wide.u32 %rd2, %r2, 4;\nadd.s64 %rd1, %rd1, %rd2;\n"
         "st.global.u32 [%rd1], %r1;\nret;\n}\n";
}

TEST_P(Calls, RecursionKeepsEachCallersRegisters) {
  // Lanes leave at different depths, and half of them at a guard.
  const std::vector<uint32_t> out = results(R"(
.func (.param .b32 r) fib(.param .b32 n)
{
  .reg .b32 %r<6>; .reg .pred %p<3>;
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %r1;
  setp.lt.u32 %p1, %r1, 2;
  @%p1 bra END;
  sub.u32 %r3, %r1, 1;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r3; call (b), fib, (a); ld.param.b32 %r2, [b]; }
  sub.u32 %r3, %r1, 2;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r3; call (b), fib, (a); ld.param.b32 %r4, [b]; }
  add.u32 %r2, %r2, %r4;
END:
  st.param.b32 [r], %r2;
  ret;
}
)" + kernel("rem.u32 %r3, %r1, 11;\n setp.ne.u32 %p1, %r3, 10;\n mov.u32 %r1, 777;\n"
            "{ .param .b32 a; .param .b32 b; st.param.b32 [b], 777; st.param.b32 [a], "
            "%r3; @%p1 call (b), fib, (a); ld.param.b32 %r1, [b]; }"),
                                            64);
  const uint32_t fib[] = {0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 777};
  for (uint32_t t = 0; t < 64; ++t) EXPECT_EQ(out[t], fib[t % 11]) << t;
}

// Lanes count the bits of their numbers, for which they need different numbers of calls.
TEST_P(Calls, RecursionKeepsEachCallersPredicates) {
  const std::vector<uint32_t> out = results(R"(
.func (.param .b32 r) bits(.param .b32 n)
{
  .reg .b32 %r<5>; .reg .pred %p<3>;
  ld.param.u32 %r1, [n];
  mov.u32 %r2, 0;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra END;
  and.b32 %r3, %r1, 1;
  setp.eq.u32 %p2, %r3, 1;
  shr.u32 %r3, %r1, 1;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r3; call (b), bits, (a); ld.param.b32 %r2, [b]; }
  @%p2 add.u32 %r2, %r2, 1;
END:
  st.param.b32 [r], %r2;
  ret;
}
)" + kernel("{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), bits, (a); ld.param.b32 %r1, [b]; }"));
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(out[t], static_cast<uint32_t>(std::popcount(t))) << t;
}

// A function that calls itself has the arguments of what it prints on the stack.
TEST_P(Calls, RecursionPrintsItsOwnArguments) {
  Buffer<char> format(memory_, std::vector<char>{'%', 'd', '\n', 0});
  Shape shape;
  shape.block = {1, 1, 1};
  shape.order = GetParam();
  testing::internal::CaptureStdout();
  sim_test::run_ptx(R"(
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.func down(.param .b32 n, .param .b64 format)
{
  .local .align 8 .b8 number[8];
  .reg .b32 %r<5>; .reg .b64 %rd<5>; .reg .pred %p;
  ld.param.u32 %r1, [n];
  ld.param.u64 %rd1, [format];
  mov.u64 %rd2, number;
  cvta.local.u64 %rd3, %rd2;
  st.local.u32 [%rd2], %r1;
  { .param .b64 f; .param .b64 a; .param .b32 r;
    st.param.b64 [f], %rd1; st.param.b64 [a], %rd3; call (r), vprintf, (f, a); ld.param.b32 %r2, [r]; }
  setp.eq.u32 %p, %r1, 0;
  @%p ret;
  sub.u32 %r2, %r1, 1;
  { .param .b32 a; .param .b64 b; st.param.b32 [a], %r2; st.param.b64 [b], %rd1; call down, (a, b); }
  ret;
}
.visible .entry k(.param .u64 p)
{
  .reg .b64 %rd1;
  ld.param.u64 %rd1, [p];
  call down, (3, %rd1);
  ret;
}
)",
                    "k", Params().add(format.address()), memory_, shape);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "3\n2\n1\n0\n");
}

// Register parameters, a predicate among them; two functions that call each other.
TEST_P(Calls, MutualRecursionThroughRegisterParameters) {
  const std::vector<uint32_t> out = results(R"(
.func (.reg .b32 r) odd(.reg .b32 n, .reg .pred flip);
.func (.reg .b32 r) even(.reg .b32 n, .reg .pred flip)
{
  .reg .pred %p<3>; .reg .b32 %m, %one;
  mov.u32 %one, 1;
  selp.u32 r, 0, %one, flip;
  setp.eq.u32 %p1, n, 0;
  @%p1 ret;
  sub.u32 %m, n, 1;
  call (r), odd, (%m, flip);
  mad.lo.u32 r, n, 16, r;
  ret;
}
.func (.reg .b32 r) odd(.reg .b32 n, .reg .pred flip)
{
  .reg .pred %p<3>; .reg .b32 %m;
  selp.u32 r, 1, 0, flip;
  setp.eq.u32 %p1, n, 0;
  @%p1 ret;
  sub.u32 %m, n, 1;
  call (r), even, (%m, flip);
  mad.lo.u32 r, n, 256, r;
  ret;
}
)" + kernel("and.b32 %r3, %r1, 1;\n setp.eq.u32 %p1, %r3, 1;\n shr.u32 %r4, %r1, 1;\n call (%r1), even, (%r4, %p1);"));
  for (uint32_t t = 0; t < 32; ++t) {
    uint32_t expected = 0;
    for (uint32_t n = t / 2, at_even = 1; n > 0; --n, at_even ^= 1) expected += n * (at_even ? 16 : 256);
    expected += (t / 2 % 2 == 0) != (t % 2 == 1) ? 1 : 0;  // 1 when even ends without flip or odd with it
    EXPECT_EQ(out[t], expected) << t;
  }
}

// Each of three functions in a circle calls the next one, and adds what it has kept meanwhile.
TEST_P(Calls, RecursionThroughThreeFunctions) {
  const auto function = [](const std::string& name, const std::string& next, int own) {
    return ".func (.param .b32 r) " + name +
           "(.param .b32 n)\n{\n.reg .b32 %r<5>; .reg .pred %p;\n"
           "ld.param.u32 %r1, [n];\nmul.lo.u32 %r2, %r1, " +
           std::to_string(own) +
           ";\nmov.u32 %r3, 0;\n"
           "setp.eq.u32 %p, %r1, 0;\n@%p bra END;\nsub.u32 %r4, %r1, 1;\n"
           "{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r4; call (b), " +
           next + ", (a); ld.param.b32 %r3, [b]; }\nEND:\nadd.u32 %r3, %r3, %r2;\nst.param.b32 [r], %r3;\nret;\n}\n";
  };
  const std::vector<uint32_t> out = results(
      ".func (.param .b32 r) second(.param .b32 n);\n.func (.param .b32 r) third(.param .b32 n);\n" +
      function("first", "second", 1) + function("second", "third", 100) + function("third", "first", 10000) +
      kernel("{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), first, (a); ld.param.b32 %r1, [b]; }"));
  for (uint32_t t = 0; t < 32; ++t) {
    const uint32_t own[] = {1, 100, 10000};
    uint32_t expected = 0;
    for (uint32_t depth = 0; depth <= t; ++depth) expected += (t - depth) * own[depth % 3];
    EXPECT_EQ(out[t], expected) << t;
  }
}

// The address of an array of the caller goes down through calls of the same function, each with an array of its own.
// PTX ISA 9.7.12.5: an input argument is a register, a constant or a .param variable.
TEST_P(Calls, AnArgumentMayBeANumber) {
  const std::vector<uint32_t> out = results(R"(
.func (.reg .b32 r) sum(.reg .b32 a, .reg .b64 b, .param .b32 c)
{
  .reg .b32 %x<3>;
  cvt.u32.u64 %x0, b;
  shr.u64 b, b, 32;
  cvt.u32.u64 %x1, b;
  mad.lo.u32 %x0, %x1, 1000, %x0;
  ld.param.u32 %x1, [c];
  add.u32 %x0, %x0, %x1;
  add.u32 r, %x0, a;
  ret;
}
)" + kernel("call (%r1), sum, (5, 0x300000007, 900000);"));
  for (const uint32_t value : out) EXPECT_EQ(value, 5u + 7u + 3000u + 900000u);
}

TEST_P(Calls, EachCallHasItsOwnVariables) {
  const std::vector<uint32_t> out = results(R"(
.func down(.param .b32 n, .param .b64 above)
{
  .local .align 8 .b8 own[16];
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;
  ld.param.u32 %r1, [n];
  ld.param.u64 %rd1, [above];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 ret;
  mul.lo.u32 %r2, %r1, 10;
  st.local.u32 [own], %r2;
  st.local.u32 [own+4], %r1;
  mov.u64 %rd2, own;
  cvta.local.u64 %rd3, %rd2;
  sub.u32 %r3, %r1, 1;
  { .param .b32 a; .param .b64 b; st.param.b32 [a], %r3; st.param.b64 [b], %rd3; call down, (a, b); }
  ld.local.u32 %r4, [%rd2];
  ld.local.u32 %r5, [own+4];
  ld.u32 %r6, [%rd1];
  add.u32 %r6, %r6, %r4;
  mad.lo.u32 %r6, %r5, 1000, %r6;
  st.u32 [%rd1], %r6;
  ret;
}
)" + kernel(R"(
  { .local .align 8 .b8 buffer[16];
    mov.u64 %rd4, buffer; cvta.local.u64 %rd5, %rd4; mov.u32 %r4, 0; st.u32 [%rd5], %r4; and.b32 %r3, %r1, 7;
    { .param .b32 a; .param .b64 b; st.param.b32 [a], %r3; st.param.b64 [b], %rd5; call down, (a, b); }
    ld.local.u32 %r1, [buffer]; })"));
  for (uint32_t t = 0; t < 32; ++t) {
    uint32_t below = 0;
    for (uint32_t n = 1; n <= t % 8; ++n) below = n * 10 + below + n * 1000;
    // Each level adds its own word, which the level below has added to.
    EXPECT_EQ(out[t], below) << t;
  }
}

constexpr char kOperators[] = R"(
.func (.param .b32 r) plus(.param .b32 a, .param .b32 b)
{ .reg .b32 x, y; ld.param.u32 x, [a]; ld.param.u32 y, [b]; add.u32 x, x, y; st.param.b32 [r], x; ret; }
.func (.param .b32 r) times(.param .b32 a, .param .b32 b)
{ .reg .b32 x, y; ld.param.u32 x, [a]; ld.param.u32 y, [b]; mul.lo.u32 x, x, y; st.param.b32 [r], x; ret; }
.func (.param .b32 r) choose(.param .b32 a, .param .b32 b)
{ .reg .b32 x, y; .reg .b64 f; .reg .pred p; ld.param.u32 x, [a]; ld.param.u32 y, [b];
  mov.u64 f, plus; setp.lt.u32 p, x, 16; @p mov.u64 f, times;
  { .param .b32 u; .param .b32 v; .param .b32 w; st.param.b32 [u], x; st.param.b32 [v], y;
    call (w), f, (u, v), kind; kind: .calltargets plus, times; ld.param.b32 x, [w]; }
  st.param.b32 [r], x; ret; }
)";

// Lanes of one call go to different functions; a guard keeps some from calling; one of the functions calls another.
TEST_P(Calls, IndirectCallsPartTheWarp) {
  const std::vector<uint32_t> out = results(std::string(kOperators) + kernel(R"(
  mov.u64 %rd3, plus; rem.u32 %r3, %r1, 3; setp.eq.u32 %p1, %r3, 1; setp.eq.u32 %p2, %r3, 2;
  @%p1 mov.u64 %rd3, times; @%p2 mov.u64 %rd3, choose; setp.ne.u32 %p3, %r1, 9;
  { .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a], %r1; st.param.b32 [b], 7; st.param.b32 [c], 5;
    proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
    @%p3 call (c), %rd3, (a, b), proto;
    ld.param.b32 %r1, [c]; })"));
  for (uint32_t t = 0; t < 32; ++t) {
    const bool product = t % 3 == 1 || (t % 3 == 2 && t < 16);
    EXPECT_EQ(out[t], t == 9 ? 5 : product ? t * 7 : t + 7) << t;
  }
}

TEST_P(Calls, AnAddressThatIsNoFunctionIsNamed) {
  EXPECT_THAT(fault(std::string(kOperators) + kernel(R"(
  mov.u64 %rd3, 4096;
  { .param .b32 a; .param .b32 c; st.param.b32 [a], %r1; call (c), %rd3, (a, a), proto;
    proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _); })")),
              HasSubstr("an indirect call takes what is no function that it may call at ptx line"));
}

// Addresses of functions are multiples of 16, so that the low bits of a pointer to a member say what they say in C++.
TEST(FunctionAddresses, AreApartAndAligned) {
  const auto module = sim_test::parse_ptx(".func a() { ret; }\n.func b() { ret; }\n.func c() { ret; }\n" + kernel(""));
  std::set<uint64_t> all = {0};
  for (const char* name : {"a", "b", "c"}) {
    const uint64_t address = sim::function_address(*module, name);
    EXPECT_TRUE(all.insert(address).second) << name;
    EXPECT_EQ(address % 16, 0u) << name;
  }
  for (const char* name : {"k", "d"}) EXPECT_EQ(sim::function_address(*module, name), 0u) << name;
}

TEST_P(Calls, EndlessRecursionOverflowsTheStack) {
  EXPECT_THAT(fault(R"(
.func again(.reg .b32 n)
{ call again, (n); ret; }
)" + kernel("call again, (%r1);")),
              HasSubstr("stack overflow in a call of 'again'"));
}

// Memory of alloca lives until its function returns, or until the stack is restored.
TEST_P(Calls, AllocaTakesFromTheStackOfEachThread) {
  const std::vector<uint32_t> out = results(R"(
.func (.param .b32 r) sum(.param .b32 n)
{
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;
  ld.param.u32 %r1, [n];
  mul.wide.u32 %rd1, %r1, 4;
  alloca.u64 %rd2, %rd1, 64;
  and.b64 %rd3, %rd2, 63;
  cvt.u32.u64 %r5, %rd3;
  mov.u32 %r2, 0;
FILL:
  mul.wide.u32 %rd3, %r2, 4; add.s64 %rd3, %rd2, %rd3; mad.lo.u32 %r3, %r2, %r2, 3; st.local.u32 [%rd3], %r3;
  add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r1; @%p1 bra FILL;
  mov.u32 %r4, %r5;
ADD:
  sub.u32 %r2, %r2, 1; mul.wide.u32 %rd3, %r2, 4; add.s64 %rd3, %rd2, %rd3; ld.local.u32 %r3, [%rd3];
  add.u32 %r4, %r4, %r3; setp.gt.u32 %p1, %r2, 0; @%p1 bra ADD;
  st.param.b32 [r], %r4;
  ret;
}
)" + kernel(R"(
  mov.u32 %r4, 0; mov.u32 %r5, 0; add.u32 %r3, %r1, 1;
LOOP: // 400 rounds of up to 128 bytes and more would not fit side by side
  { .param .b32 a; .param .b32 c; st.param.b32 [a], %r3; call (c), sum, (a); ld.param.b32 %r6, [c]; }
  add.u32 %r4, %r4, %r6;
  stacksave.u64 %rd4; mov.u64 %rd6, 160; alloca.u64 %rd5, %rd6; st.local.u32 [%rd5+156], %r6;
  ld.local.u32 %r6, [%rd5+156]; add.u32 %r4, %r4, %r6; stackrestore.u64 %rd4;
  add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 400; @%p1 bra LOOP;
  mov.u32 %r1, %r4;)"));
  for (uint32_t t = 0; t < 32; ++t) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i <= t; ++i) sum += i * i + 3;
    EXPECT_EQ(out[t], 800 * sum) << t;
  }
}

TEST_P(Calls, AllocaBeyondTheStackIsAFault) {
  EXPECT_THAT(fault(kernel("mov.u64 %rd3, 1000000; alloca.u64 %rd4, %rd3;")), HasSubstr("stack overflow in alloca"));
  // The whole stack, behind which no byte is left.
  const std::string all = "mov.u64 %rd3, " + std::to_string(sim::kStackBytes) + "; alloca.u64 %rd4, %rd3, 1;\n";
  EXPECT_EQ(fault(kernel(all + "mov.u64 %rd3, 0; alloca.u64 %rd4, %rd3, 1;")), "");
  EXPECT_THAT(fault(kernel(all + "mov.u64 %rd3, 1; alloca.u64 %rd4, %rd3, 1;")), HasSubstr("stack overflow in alloca"));
  EXPECT_THAT(fault(kernel("mov.u64 %rd3, 12; stackrestore.u64 %rd3;")), HasSubstr("that no stacksave gave"));
}

std::string refusal(const std::string& text) {
  try {
    sim_test::prepare_ptx(text, "k");
  } catch (const sim::ptx::ParseError& e) {
    return e.what();
  }
  return "";
}

TEST(CallForms, WhatCannotBeCalledIsRefusedByLine) {
  EXPECT_THAT(refusal(".entry other() { ret; }\n" + kernel("call other;")),
              HasSubstr("line 10, column 1: call of 'other', which is a kernel"));
  EXPECT_THAT(refusal(".extern .func elsewhere;\n" + kernel("call elsewhere;")), HasSubstr("'elsewhere' has no body"));
  EXPECT_THAT(refusal(kernel("call %rd1, ();")), HasSubstr("needs a list of targets or a prototype"));
  EXPECT_THAT(refusal(".func f(.reg .b32 a) { ret; }\n" + kernel("call f;")), HasSubstr("'f' takes 1 arguments"));
  EXPECT_THAT(refusal(".func f(.reg .pred a) { ret; }\n" + kernel("call f, (%r1);")),
              HasSubstr("a predicate on one side"));
  EXPECT_THAT(refusal(".shared .b32 g;\n.func f(.reg .b32 a) { ret; }\n" + kernel("call f, (g);")),
              HasSubstr("'g' is not a .param variable"));
}

}  // namespace
