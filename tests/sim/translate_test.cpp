// SPDX-License-Identifier: Apache-2.0
// What becomes of a module before anything runs: which kernels a device takes, where registers, parameters and
// variables live, how many registers a thread gets, and what is said of calls that cannot be.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "sim/translate/rows.h"
#include "tests/sim/run_ptx.h"

namespace {

using sim_test::Buffer;
using sim_test::Params;
using sim_test::Shape;

std::string said_of(const std::string& text, int arch = 90, const char* entry = "k") {
  try {
    sim_test::prepare_ptx(text, entry, arch);
  } catch (const sim::ptx::ParseError& error) {
    return error.what();
  }
  return "";
}

// PTX ISA 11.1.2: a plain target runs on any later architecture, one with `a` on its own, one with `f` on later ones of
// its family.
TEST(Translate, TargetsRunWhereTheISASaysTheyDo) {
  struct Row {
    std::string target;
    std::vector<int> runs;
  };
  const std::vector<int> all = {80, 90, 100, 101, 103, 110, 120, 121};
  for (const Row& row :
       {Row{"sm_80", {80, 90, 100, 101, 103, 110, 120, 121}}, Row{"sm_90", {90, 100, 101, 103, 110, 120, 121}},
        Row{"sm_90a", {90}}, Row{"sm_100", {100, 101, 103, 110, 120, 121}}, Row{"sm_100a", {100}},
        Row{"sm_100f", {100, 101, 103}}, Row{"sm_103f", {103}}, Row{"sm_101", {101, 103, 110, 120, 121}},
        Row{"sm_103a", {103}}, Row{"sm_120f", {120, 121}}, Row{"sm_121", {121}}, Row{"sm_121a", {121}}}) {
    for (const int arch : all) {
      const bool runs = std::find(row.runs.begin(), row.runs.end(), arch) != row.runs.end();
      EXPECT_EQ(said_of(".version 9.0\n.target " + row.target + "\n.address_size 64\n.entry kernel() { ret; }\n", arch,
                        "kernel"),
                runs ? ""
                     : "line 1, column 1: module target '" + row.target + "' does not run on sm_" +
                           std::to_string(arch) + " (kernel 'kernel')");
    }
  }
}

// Sums of floats are rounded in the order they are made, and what an atomic operation returns tells who came first.
TEST(Translate, ItIsKnownWhichKernelsDependOnTheOrderOfTheirClusters) {
  for (const auto& [instruction, depends] : std::initializer_list<std::pair<std::string, bool>>{
           {"red.global.add.f32 [%d], %f", true},
           {"red.global.add.f64 [%d], %g", true},
           {"red.global.add.noftz.f16 [%d], %h", true},
           {"red.global.add.noftz.bf16x2 [%d], %r", true},
           {"red.global.add.u32 [%d], %r", false},
           {"red.shared.add.f32 [%r], %f", false},
           {"atom.global.add.u32 %r, [%d], %r", true},
           {"atom.shared.add.u32 %r, [%r], %r", false},
           {"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d], [%r], 16", true},
           {"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f64 [%d], [%r], 16", true},
           {"cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d], [%r], 16", false},
           {"cp.async.bulk.global.shared::cta.bulk_group [%d], [%r], 16", false}}) {
    const std::string text = ".entry k() { .reg .b16 %h; .reg .b32 %r; .reg .b64 %d; .reg .f32 %f; .reg .f64 %g;\n" +
                             instruction + "; ret; }";
    EXPECT_EQ(sim_test::prepare_ptx(text, "k")->uses.order_between_clusters, depends) << instruction;
  }
}

TEST(Translate, SomeInstructionsNeedATargetWithASuffix) {
  for (const auto& [opcode, arch] : {std::pair<std::string, int>{"wgmma.fence.sync.aligned", 90},
                                     {"setmaxnreg.inc.sync.aligned.u32 64", 90},
                                     {"tcgen05.fence::before_thread_sync", 100}}) {
    const std::string name = opcode.substr(0, opcode.find(' '));
    for (const std::string suffix : {"", "a"}) {
      const std::string target = "sm_" + std::to_string(arch) + suffix;
      EXPECT_EQ(
          said_of(".version 8.7\n.target " + target + "\n.address_size 64\n.entry k() {\n " + opcode + "; ret; }\n",
                  arch),
          suffix.empty()
              ? "line 5, column 2: '" + name + "' needs an architecture-specific target, not '" + target + "'"
              : "");
    }
  }
}

TEST(Translate, AKernelMustBeThereAndHaveABody) {
  const std::string text = ".func f() { ret; }\n.entry declared();\n.entry k() { ret; }\n";
  EXPECT_EQ(said_of(text), "");
  for (const char* name : {"f", "declared", "other"})
    EXPECT_EQ(said_of(text, 90, name), std::string("line 1, column 1: the module has no kernel '") + name + "'");
}

// ---- calls --------------------------------------------------------------------------------------

TEST(Translate, CallsAreRefusedInWords) {
  struct Row {
    std::string functions, call, said;
  };
  const std::string proto = "proto: .callprototype (.param .b32 _) _ (.param .b32 _);";
  for (const Row& row : {
           Row{"", "call f;", "'f' is not declared"},
           Row{"", "call variable;", "call of 'variable', which is not declared"},
           Row{".entry f() { ret; }", "call f;", "call of 'f', which is a kernel"},
           Row{"", "call (%w1), %w2, (%w1), proto; " + proto,
               "'call': the function must be a symbol or a 64-bit register"},
           Row{"", "call %d1, ();", "'call': an indirect call needs a list of targets or a prototype"},
           Row{".extern .func f;", "call f;", "'call': function 'f' has no body"},
           Row{".func (.reg .b32 r) f(.reg .b32 a) { ret; }", "call f;",
               "'call': 'f' takes 1 arguments and gives 1 results"},
           Row{".func (.reg .b32 r) f(.reg .b32 a, .reg .b32 b) { ret; }", "call (%w1), f, (%w1);",
               "'call': 'f' takes 2 arguments and gives 1 results"},
           Row{".func f(.reg .b32 a) { ret; }", "call (%w1), f, (%w1);",
               "'call': 'f' takes 1 arguments and gives 0 results"},
           Row{".func f(.reg .b32 a) { ret; }", "call f, (variable);", "'call': 'variable' is not a .param variable"},
           Row{".func f(.reg .b32 a) { ret; }", "call f, (%tid.x);",
               "'call': an argument or result must be a register, a number or a .param variable"},
           Row{".func f(.reg .pred a) { ret; }", "call f, (%w1);",
               "'call': 'a' is a predicate on one side of the call only"},
           Row{".func (.reg .b32 a) f() { ret; }", "call (%p1), f;",
               "'call': 'a' is a predicate on one side of the call only"},
           Row{".func (.reg .b32 a) f() { ret; }", "call (5), f;", "'call': a result cannot be a number"},
           Row{".func (.reg .b32 a) f() { ret; }", "call (_), f;", ""},
           Row{".func (.reg .b32 a) f(.reg .pred b) { ret; }", "call (%w1), f, (%p1);", ""},
           Row{".func (.param .b32 a) f(.param .b32 b) { ret; }",
               "mov.u64 %d1, f; call (%w1), %d1, (%w2), proto; " + proto, ""},
       }) {
    const std::string said =
        said_of(".global .b32 variable;\n" + row.functions +
                "\n.entry k() {\n.reg .b32 %w<3>; .reg .b64 %d<3>; .reg .pred %p<3>;\n" + row.call + "\nret;\n}\n");
    EXPECT_EQ(said, row.said.empty() ? "" : "line 8, column 1: " + row.said) << row.functions << row.call;
  }
}

// A register parameter lives from the function's first instruction to its last one, wherever it is used.
TEST(Translate, RegisterParametersLiveThroughTheFunction) {
  const sim::ptx::Module module = sim::ptx::parse(
      ".version 8.0\n.target sm_90a\n.address_size 64\n"
      ".func (.reg .b32 r) f(.reg .b64 a, .reg .b32 b)\n{\n.reg .b32 %w<9>;\n"
      "mov.u32 %w0, 1;\nmov.u32 %w1, 2;\nmov.u32 %w2, 3;\nadd.u32 %w3, %w0, %w1;\nadd.u32 %w3, %w3, %w2;\n"
      "mov.u32 r, %w3;\nadd.u32 r, r, b;\nret;\n}\n");
  // Both words of a, b, r, and four of the others at the first sum.
  EXPECT_EQ(sim::plan_rows(module.functions.at(0), 0).live_words, 4 + 4);
}

// ---- operands -----------------------------------------------------------------------------------

TEST(Translate, OperandsAreRefusedInWords) {
  struct Row {
    std::string instruction, said;
  };
  for (const Row& row : {
           Row{"ld.global.u32 %w0", "'ld.global.u32' has too few operands"},
           Row{"st.global.u32 [%d0]", "'st.global.u32' has too few operands"},
           Row{"atom.global.add.u32 %w0, [%d0]", "'atom.global.add.u32' has too few operands"},
           Row{"discard.global.L2 [%d0]", "'discard.global.L2' has too few operands"},
           Row{"frobnicate %w0", "instruction 'frobnicate' is not supported"},
           Row{"stackrestore.u64 %d0, %d1",
               "'stackrestore.u64': instruction 'stackrestore.u64' cannot be simulated: it takes 1 operand"},
           Row{"stackrestore.u64 %w0",
               "'stackrestore.u64': instruction 'stackrestore.u64' cannot be simulated: its operand must be a "
               "register of the instruction's type"},
           Row{"alloca.u64 %d0",
               "'alloca.u64': instruction 'alloca.u64' cannot be simulated: it takes 2 or 3 operands"},
           Row{"alloca.u64 _, %d1",
               "'alloca.u64': instruction 'alloca.u64' cannot be simulated: its destination must be a "
               "register"},
           Row{"alloca.u64 %d0, %d1, 8388608", ""},
           Row{"alloca.u64 %d0, %d1, 16777216",
               "'alloca.u64': instruction 'alloca.u64' cannot be simulated: its alignment "
               "must be a power of two up to 2^23"},
           Row{"alloca.u64 %d0, %d1, 24",
               "'alloca.u64': instruction 'alloca.u64' cannot be simulated: its alignment must be "
               "a power of two up to 2^23"},
           Row{"lop3.b32 %w0, %w1, %w2, %w3, 255", ""},
           Row{"lop3.b32 %w0, %w1, %w2, %w3, 256",
               "'lop3.b32': instruction 'lop3.b32' cannot be simulated: its table must "
               "be a constant from 0 to 255"},
           Row{"lop3.b32 %w0, %w1, %w2, %w3, %w4",
               "'lop3.b32': instruction 'lop3.b32' cannot be simulated: its table must "
               "be a constant from 0 to 255"},
           Row{"brx.idx %w0, elsewhere", "'brx.idx': 'elsewhere' is no list of branch targets"},
       }) {
    const std::string said = said_of(".global .b32 elsewhere;\n.entry k() {\n.reg .b32 %w<5>; .reg .b64 %d<3>;\n" +
                                     row.instruction + ";\nret;\n}\n");
    EXPECT_EQ(said, row.said.empty() ? "" : "line 7, column 1: " + row.said) << row.instruction;
  }
}

// ---- variables ----------------------------------------------------------------------------------

TEST(Translate, ParametersStandAtTheirAlignment) {
  const auto kernel = sim_test::prepare_ptx(
      ".entry k(.param .u8 a, .param .u64 b, .param .align 16 .b8 c[3], .param .u16 d, .param .align 32 .b8 e[40]) "
      "{ ret; }",
      "k");
  EXPECT_EQ(kernel->param_offsets, (std::vector<uint32_t>{0, 8, 16, 20, 32}));
  EXPECT_EQ(kernel->param_sizes, (std::vector<uint32_t>{1, 8, 3, 2, 40}));
  EXPECT_EQ(kernel->param_bytes, 72u);
}

// Variables that the kernel does not name take no room; those of its own and of the functions that it calls stand
// behind the module's, and dynamic memory behind all at the largest alignment that a declaration asks for.
TEST(Translate, SharedVariablesStandAtTheirAlignment) {
  const std::string text = R"(
.shared .align 1 .b8 first[5];
.shared .align 64 .b8 unused[640];
.shared .align 32 .b8 second[33];
.extern .shared .align 2048 .b8 dynamic[];
.extern .shared .align 4096 .b8 other_dynamic[];
.func (.reg .b32 r) f() { .shared .align 8 .b8 inner[9]; mov.u32 r, inner; ret; }
.func (.reg .b32 r) never() { .shared .align 8 .b8 inner[900]; mov.u32 r, inner; ret; }
.entry k(.param .u64 p)
{
  .shared .align 16 .b8 own[17];
  .reg .b32 %r<9>; .reg .b64 %d;
  ld.param.u64 %d, [p];
  mov.u32 %r0, first; st.global.u32 [%d], %r0;
  mov.u32 %r1, second+1; st.global.u32 [%d+4], %r1;
  mov.u32 %r2, own; st.global.u32 [%d+8], %r2;
  call (%r3), f; st.global.u32 [%d+12], %r3;
  mov.u32 %r4, dynamic; st.global.u32 [%d+16], %r4;
  ret;
})";
  const auto kernel = sim_test::prepare_ptx(text, "k");
  // first 0 to 5, second 32 to 65, inner 72 to 81, own 96 to 113
  EXPECT_EQ(kernel->static_shared, 113u);
  EXPECT_EQ(kernel->dynamic_shared, 2048u);
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, 5);
  Shape shape;
  shape.block = {1, 1, 1};
  shape.dynamic_shared = 4;
  sim_test::run_kernel(*kernel, Params().add(out.address()), memory, shape);
  const uint32_t base = out[0];  // a shared address has the rank of the block in its cluster
  EXPECT_EQ(out.values(), (std::vector<uint32_t>{base, base + 33, base + 96, base + 72, base + 2048}));

  const auto plain = sim_test::prepare_ptx(".shared .b8 v[5]; .entry k() { .reg .b32 %r; mov.u32 %r, v; ret; }", "k");
  EXPECT_EQ(plain->static_shared, 5u);
  EXPECT_EQ(plain->dynamic_shared, 1024u);
}

TEST(Translate, VariablesHaveALimit) {
  const auto entry = [](const std::string& variable) {
    return ".entry k() { " + variable + " .reg .b32 %r; mov.u32 %r, v; ret; }";
  };
  EXPECT_EQ(said_of(entry(".shared .b8 v[16777216];")), "");
  EXPECT_EQ(said_of(entry(".shared .b8 v[16777217];")),
            "line 1, column 1: static shared memory of 16777217 bytes is over the limit");
  EXPECT_EQ(said_of(entry(".local .b8 v[16777216];")), "");
  EXPECT_EQ(said_of(entry(".local .b8 v[16777217];")), "line 1, column 1: local memory of 'k' is over the limit");
}

TEST(Translate, LocalVariablesStandAtTheirAlignment) {
  const auto kernel = sim_test::prepare_ptx(
      ".func f(.param .b32 a, .param .b64 b) { .local .b8 c[3]; ret; }\n"
      ".entry k() { .local .b8 x; .local .align 8 .b8 y[9]; .local .b16 z; call f, (1, 2); ret; }",
      "k");
  // Callees come first: a 0 to 4, b 8 to 16, c 16 to 19; x 19, y 24 to 33, z 34 to 36; the stack begins at 48.
  EXPECT_EQ(kernel->local_bytes, 48u);
  EXPECT_EQ(kernel->stack_base, 48u);
}

// ---- registers ----------------------------------------------------------------------------------

std::shared_ptr<sim::Kernel> kernel_with(const std::string& directives, int live, const std::string& type = "b32") {
  // `live` registers are written, then all are read.
  std::string text = ".visible .entry k(.param .u64 p) " + directives + " {\n.reg ." + type + " %v<" +
                     std::to_string(live + 1) + ">; .reg .b64 %d;\nld.param.u64 %d, [p];\n";
  for (const char* step : {"ld.global", "st.global"}) {
    for (int i = 0; i < live; ++i) {
      const std::string name = "%v" + std::to_string(i), at = "[%d+" + std::to_string(16 * i) + "]";
      text +=
          std::string(step) + "." + type + (step[0] == 'l' ? " " + name + ", " + at : " " + at + ", " + name) + ";\n";
    }
  }
  return sim_test::prepare_ptx(text + "ret;\n}\n", "k");
}

TEST(Translate, ThreadsGetTheRegistersTheyNeedWithinWhatTheirBlockLeaves) {
  struct Row {
    std::string directives;
    int live, registers;
  };
  // The address is live as well, which is two words; sums are rounded up to a multiple of 8.
  for (const Row& row : {
           Row{"", 1, 16},
           Row{"", 14, 16},
           Row{"", 15, 24},
           Row{"", 22, 24},
           Row{"", 23, 32},
           Row{"", 300, 255},
           Row{".maxntid 1024, 1, 1", 300, 64},
           Row{".maxntid 1000, 1, 1", 300, 64},
           Row{".maxntid 992, 1, 1", 300, 64},
           Row{".maxntid 384, 1, 1", 300, 168},
           Row{".maxntid 16, 24, 1", 300, 168},
           Row{".maxntid 8, 6, 8", 300, 168},
           Row{".maxntid 385, 1, 1", 300, 152},
           Row{".maxntid 128, 1, 1", 300, 255},
           Row{".maxntid 128, 1, 1", 20, 24},
           Row{".reqntid 384, 1, 1", 300, 168},
           Row{".reqntid 16, 24, 1", 300, 168},
           Row{".reqntid 8, 6, 8", 300, 168},
           Row{".reqntid 512, 1, 1", 300, 128},
           Row{".maxntid 512, 1, 1 .minnctapersm 2", 300, 64},
           Row{".maxntid 128, 1, 1 .minnctapersm 3", 300, 168},
           Row{".maxnreg 40", 300, 40},
           Row{".maxnreg 40", 1, 40},
       }) {
    EXPECT_EQ(kernel_with(row.directives, row.live)->registers_per_thread, row.registers)
        << row.directives << " with " << row.live;
  }
  EXPECT_EQ(kernel_with("", 20, "b64")->registers_per_thread, 48);
  EXPECT_EQ(kernel_with("", 20, "b16")->registers_per_thread, 24);
  EXPECT_EQ(kernel_with("", 20, "b128")->registers_per_thread, 88);
}

// Who moves registers between warps begins with all that the block leaves.
TEST(Translate, AKernelThatReconfiguresBeginsWithAllItMayHave) {
  const auto registers = [](const std::string& directives) {
    return sim_test::prepare_ptx(".entry k() " + directives + " { setmaxnreg.dec.sync.aligned.u32 24; ret; }", "k")
        ->registers_per_thread;
  };
  EXPECT_EQ(registers(".maxntid 384, 1, 1 .minnctapersm 1"), 168);
  EXPECT_EQ(registers(".reqntid 256, 1, 1 .minnctapersm 1"), 255);
  EXPECT_EQ(registers(".reqntid 256, 1, 1"), 16) << "ptxas ignores setmaxnreg";
  EXPECT_EQ(registers(".maxnreg 72"), 72);
}

// ---- rows that registers share ------------------------------------------------------------------

// Programs of nested scopes, branches and loops, whose registers live for one scope. Each is run by the simulator and
// by the few lines of `run` here.
class Program {
 public:
  explicit Program(uint32_t seed) : random_(seed) {
    std::vector<int> visible;
    for (int i = 0; i < kInputs; ++i) visible.push_back(define(i % 3 == 2));
    scope(visible, 0);
  }

  std::string text() const {
    std::string body;
    for (size_t r = 0; r < wide_.size(); ++r)
      body += std::string(wide_[r] ? ".reg .b64 " : ".reg .b32 ") + name(static_cast<int>(r)) + ";\n";
    body += ".reg .b32 %lane; .reg .b64 %at, %step; .reg .pred %q<" + std::to_string(predicates_ + 1) + ">;\n";
    body += "mov.u32 %lane, %tid.x; ld.param.u64 %at, [p]; mul.wide.u32 %step, %lane, " + std::to_string(8 * kInputs) +
            "; add.s64 %at, %at, %step;\n";
    for (int i = 0; i < kInputs; ++i)
      body += std::string(wide_[i] ? "ld.global.b64 " : "ld.global.b32 ") + name(i) + ", [%at+" +
              std::to_string(8 * i) + "];\n";
    for (const Step& s : steps_) body += line(s);
    for (int i = 0; i < kInputs; ++i)
      body += std::string(wide_[i] ? "st.global.b64 [%at+" : "st.global.b32 [%at+") + std::to_string(8 * i) + "], " +
              name(i) + ";\n";
    return ".entry k(.param .u64 p) {\n" + body + "ret;\n}\n";
  }

  void run(uint64_t* data) const {
    std::vector<uint64_t> v(wide_.size());
    std::vector<char> p(predicates_ + 1);
    std::copy(data, data + kInputs, v.begin());
    for (size_t at = 0; at < steps_.size(); ++at) {
      const Step& s = steps_[at];
      if (s.guard >= 0 && p[s.guard] == s.negated) continue;
      const auto mask = [&](int r) { return wide_[r] ? ~0ull : 0xffffffffull; };
      switch (s.kind) {
        case 'l':
          break;
        case 'b':
          at = static_cast<size_t>(label_[s.d]) - 1;
          break;
        case '<':
          p[s.d] = v[s.a] < v[s.b];
          break;
        case '=':
          v[s.d] = static_cast<uint64_t>(s.a) & mask(s.d);
          break;
        case 'c':
          v[s.d] = v[s.a] & mask(s.d);
          break;
        case '?':
          v[s.d] = p[s.p] ? v[s.a] : v[s.b];
          break;
        case '+':
          v[s.d] = (v[s.a] + v[s.b]) & mask(s.d);
          break;
        case '^':
          v[s.d] = v[s.a] ^ v[s.b];
          break;
        default:
          v[s.d] = (v[s.a] * v[s.b] + v[s.d]) & mask(s.d);
          break;
      }
    }
    for (int i = 0; i < kInputs; ++i) data[i] = v[i];
  }

  static constexpr int kInputs = 4;

 private:
  struct Step {
    char kind;
    int d = 0, a = 0, b = 0, p = 0, guard = -1;
    bool negated = false;
  };
  static std::string name(int r) { return "%v" + std::to_string(r); }
  int pick(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  int define(bool wide) {
    wide_.push_back(wide);
    return static_cast<int>(wide_.size()) - 1;
  }
  int one_of(const std::vector<int>& visible, bool wide) {
    std::vector<int> fit;
    for (const int r : visible)
      if (wide_[r] == wide) fit.push_back(r);
    return fit[pick(static_cast<int>(fit.size()))];
  }
  int label() {
    label_.push_back(-1);
    return static_cast<int>(label_.size()) - 1;
  }
  void place(int l) {
    label_[l] = static_cast<int>(steps_.size());
    steps_.push_back({'l', l});
  }
  int compare(const std::vector<int>& visible) {
    steps_.push_back({'<', predicates_, one_of(visible, false), one_of(visible, false)});
    return predicates_++;
  }

  void scope(std::vector<int> visible, int depth) {
    const size_t outer = visible.size();
    for (int count = 2 + pick(6); count > 0; --count) {
      const int choice = pick(depth < 3 ? 9 : 6);
      if (choice < 2) {  // a register of this scope
        const int r = define(pick(3) == 0), from = visible[pick(static_cast<int>(visible.size()))];
        steps_.push_back({'c', r, from});
        visible.push_back(r);
      } else if (choice < 6) {
        const int d = visible[pick(static_cast<int>(visible.size()))];
        Step s{"+^*?"[pick(4)], d, one_of(visible, wide_[d]), one_of(visible, wide_[d])};
        if (s.kind == '?') s.p = compare(visible);
        if (pick(3) == 0) {
          s.guard = compare(visible);
          s.negated = pick(2) == 0;
        }
        steps_.push_back(s);
      } else if (choice < 8) {  // if and else
        const int other = label(), end = label(), p = compare(visible);
        steps_.push_back({'b', other, 0, 0, 0, p, pick(2) == 0});
        scope(visible, depth + 1);
        steps_.push_back({'b', end});
        place(other);
        scope(visible, depth + 1);
        place(end);
      } else {  // a loop of three rounds
        const int again = label(), counter = define(false), one = define(false), last = define(false);
        steps_.push_back({'=', counter, 0});
        place(again);
        scope(visible, depth + 1);
        steps_.push_back({'=', one, 1});
        steps_.push_back({'+', counter, counter, one});
        steps_.push_back({'=', last, 3});
        steps_.push_back({'<', predicates_, counter, last});
        steps_.push_back({'b', again, 0, 0, 0, predicates_++});
      }
    }
    // What the scope computed is noticed outside.
    for (size_t i = outer; i < visible.size(); ++i) {
      const int d = one_of({visible.begin(), visible.begin() + static_cast<std::ptrdiff_t>(outer)}, wide_[visible[i]]);
      steps_.push_back({'^', d, d, visible[i]});
    }
  }

  std::string line(const Step& s) const {
    const bool wide = s.kind != 'b' && s.kind != 'l' && s.kind != '<' && wide_[s.d];
    const std::string type = wide ? "64 " : "32 ", d = name(s.d), a = name(s.a), b = name(s.b),
                      guard =
                          s.guard < 0 ? "" : std::string(s.negated ? "@!%q" : "@%q") + std::to_string(s.guard) + " ";
    switch (s.kind) {
      case 'l':
        return "L" + std::to_string(s.d) + ":\n";
      case 'b':
        return guard + "bra L" + std::to_string(s.d) + ";\n";
      case '<':
        return "setp.lt.u32 %q" + std::to_string(s.d) + ", " + a + ", " + b + ";\n";
      case '=':
        return guard + "mov.u" + type + d + ", " + std::to_string(s.a) + ";\n";
      case 'c':
        return guard + "cvt.u" + (wide ? "64" : "32") + (wide_[s.a] ? ".u64 " : ".u32 ") + d + ", " + a + ";\n";
      case '?':
        return guard + "selp.b" + type + d + ", " + a + ", " + b + ", %q" + std::to_string(s.p) + ";\n";
      case '+':
        return guard + "add.u" + type + d + ", " + a + ", " + b + ";\n";
      case '^':
        return guard + "xor.b" + type + d + ", " + a + ", " + b + ";\n";
      default:
        return guard + "mad.lo.u" + type + d + ", " + a + ", " + b + ", " + d + ";\n";
    }
  }

  std::mt19937 random_;
  std::vector<bool> wide_;
  std::vector<Step> steps_;
  std::vector<int> label_;
  int predicates_ = 0;
};

TEST(Translate, SharingRowsChangesNoProgram) {
  constexpr int kLanes = 32, kWords = kLanes * Program::kInputs;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const Program program(seed);
    std::mt19937_64 random(seed);
    std::vector<uint64_t> data(kWords);
    for (int i = 0; i < kWords; ++i) data[i] = i % 4 == 2 ? random() : random() & 0xffffffff;
    sim::GlobalMemory memory;
    Buffer<uint64_t> out(memory, data);
    sim_test::run_ptx(program.text(), "k", Params().add(out.address()), memory, {});
    for (int lane = 0; lane < kLanes; ++lane) program.run(&data[lane * Program::kInputs]);
    ASSERT_EQ(out.values(), data) << "seed " << seed << "\n" << program.text();
  }
}

}  // namespace
