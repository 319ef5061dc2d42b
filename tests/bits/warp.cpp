// SPDX-License-Identifier: Apache-2.0
// Forms of instructions in which the lanes of a warp or the warps of a block meet: shuffles, votes, matches,
// reductions, barriers that reduce, and the matrix loads and stores (PTX ISA 9.7.9.6, 9.7.13, 9.7.14.5).
#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/bits/form.h"

namespace bits {
namespace {

const Kind w = Kind::B32, p = Kind::Pred, n = Kind::Count;

// The instruction for all lanes, then for the lanes of `lanes` alone.
void both_masks(Forms& forms, const std::string& name, const std::string& instruction, const std::vector<Kind>& results,
                const std::vector<Kind>& operands, const std::string& before = "",
                const std::string& lanes = "0x0f3c5a69", const std::string& before_some = "") {
  const auto with = [&](const std::string& mask, const std::string& guard) {
    return before + fill_template(instruction, {{"MASK", mask}, {"GUARD", guard}});
  };
  add_scalar(forms, "warp", name, with("0xffffffff", ""), results, operands, exactly());
  std::string clear;
  static const char* kResults[] = {"d", "e"};
  for (size_t i = 0; i < results.size(); ++i)
    clear += results[i] == p ? std::string(" setp.ne.u32 ") + kResults[i] + ", 0, 0;\n"
                             : std::string(" mov.b32 ") + kResults[i] + ", 0;\n";
  add_scalar(forms, "warp", name + ", some lanes",
             clear + " .reg .b32 lane, mine;\n .reg .pred some;\n and.b32 lane, t, 31;\n shr.u32 mine, " + lanes +
                 ", lane;\n and.b32 mine, mine, 1;\n setp.ne.u32 some, mine, 0;\n" + before_some +
                 with(lanes, "@some "),
             results, operands, exactly());
}

void add_lane_forms(Forms& forms) {
  for (const char* mode : {"up", "down", "bfly", "idx"}) {
    const std::string name = std::string("shfl.sync.") + mode + ".b32";
    // 9.7.9.6: the source must be a lane of the mask. So the mask is of whole quads and c keeps within the quad; only
    // .bfly has no lower bound.
    const bool butterfly = std::string(mode) == "bfly";
    both_masks(forms, name, " GUARD" + name + " d|e, a, b, c, MASK;", {w, p}, {w, n, w}, "", "0xf0f00ff0",
               std::string(" and.b32 c, c, 3;\n or.b32 c, c, 0x1c00;\n") + (butterfly ? " and.b32 b, b, 3;\n" : ""));
  }
  // A warp in four votes all true, one all false.
  const std::string uneven =
      " .reg .b32 which;\n .reg .pred yes, no;\n shr.u32 which, t, 5;\n and.b32 which, which, 3;\n"
      " setp.eq.u32 yes, which, 0;\n setp.ne.u32 no, which, 1;\n or.pred a, a, yes;\n and.pred a, a, no;\n";
  for (const char* mode : {"all", "any", "uni"})
    both_masks(forms, std::string("vote.sync.") + mode + ".pred",
               std::string(" GUARDvote.sync.") + mode + ".pred d, a, MASK;", {p}, {p}, uneven);
  both_masks(forms, "vote.sync.ballot.b32", " GUARDvote.sync.ballot.b32 d, a, MASK;", {w}, {p}, uneven);
  both_masks(forms, "vote.sync.ballot.b32, !a", " GUARDvote.sync.ballot.b32 d, !a, MASK;", {w}, {p}, uneven);
  both_masks(forms, "match.any.sync.b32", " GUARDmatch.any.sync.b32 d, a, MASK;", {w}, {w}, " and.b32 a, a, 3;\n");
  both_masks(forms, "match.any.sync.b64", " GUARDmatch.any.sync.b64 d, a, MASK;", {w}, {Kind::B64},
             " and.b64 a, a, 0x300000001;\n");
  const std::string same =
      " .reg .b32 which;\n .reg .pred yes;\n shr.u32 which, t, 5;\n and.b32 which, which, 1;\n setp.eq.u32 yes, which, "
      "0;\n";
  both_masks(forms, "match.all.sync.b32", " GUARDmatch.all.sync.b32 d|e, a, MASK;", {w, p}, {w},
             same + " @yes mov.b32 a, 77;\n");
  both_masks(forms, "match.all.sync.b64", " GUARDmatch.all.sync.b64 d|e, a, MASK;", {w, p}, {Kind::B64},
             same + " @yes mov.b64 a, 77;\n");
  for (const char* op :
       {"add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"})
    both_masks(forms, std::string("redux.sync.") + op, std::string(" GUARDredux.sync.") + op + " d, a, MASK;", {w},
               {w});
  both_masks(forms, "elect.sync", " GUARDelect.sync d|e, MASK;", {w, p}, {w});
  add_scalar(forms, "warp", "activemask.b32", "activemask.b32 d;", {w}, {w}, exactly());
  add_scalar(forms, "warp", "bar.warp.sync", "bar.warp.sync 0xffffffff;\n mov.b32 d, a;", {w}, {w}, exactly());
  for (const char* bar : {"bar", "barrier", "barrier.cta"}) {
    const std::string b = bar;
    add_scalar(forms, "warp", b + ".red.popc.u32", b + ".red.popc.u32 d, 3, a;", {w}, {p}, exactly());
    add_scalar(forms, "warp", b + ".red.and.pred", uneven + b + ".red.and.pred d, 2, 128, a;", {p}, {p}, exactly());
    add_scalar(forms, "warp", b + ".red.or.pred", uneven + b + ".red.or.pred d, 1, !a;", {p}, {p}, exactly());
  }
  add_scalar(forms, "warp", "movmatrix.sync.aligned.m8n8.trans.b16", "", {w}, {w}, exactly());
}

// 4096 bytes of the input go to shared memory, a row of a matrix (16 bytes) is chosen by each lane at random.
void add_matrix_moves(Forms& forms) {
  for (int count : {1, 2, 4})
    for (const char* trans : {"", ".trans"}) {
      Form f;
      f.family = "warp";
      const std::string tail = ".sync.aligned.m8n8.x" + std::to_string(count) + trans + ".shared.b16";
      const std::string list = count == 1 ? "{r0}" : count == 2 ? "{r0, r1}" : "{r0, r1, r2, r3}";
      f.threads = 128;
      f.shared = 4096;
      f.in_bytes = 4096 + 128 * 4 + 128 * 16;
      const std::string prologue =
          ".reg .b32 r<4>, row, base, at32, i;\n .reg .b64 at, from;\n mov.u32 base, smem;\n"
          " mad.wide.u32 from, t, 32, in;\n mad.lo.u32 at32, t, 32, base;\n"
          " ld.global.v4.b32 {r0, r1, r2, r3}, [from];\n st.shared.v4.b32 [at32], {r0, r1, r2, r3};\n"
          " ld.global.v4.b32 {r0, r1, r2, r3}, [from+16];\n st.shared.v4.b32 [at32+16], {r0, r1, r2, r3};\n"
          " bar.sync 0;\n mad.wide.u32 at, t, 4, in;\n ld.global.b32 row, [at+4096];\n mad.lo.u32 row, row, 16, "
          "base;\n";
      Form load = f;
      load.name = "ldmatrix" + tail;
      load.out_bytes = 128 * 16;
      load.body = prologue + " mov.b32 r0, 0;\n mov.b32 r1, 0;\n mov.b32 r2, 0;\n mov.b32 r3, 0;\n ldmatrix" + tail +
                  " " + list + ", [row];\n mad.wide.u32 at, t, 16, out;\n st.global.v4.b32 [at], {r0, r1, r2, r3};\n";
      load.fill = [](Random& random, uint8_t* to) {
        for (size_t i = 0; i < 4096 + 512 + 2048; ++i) to[i] = static_cast<uint8_t>(random());
        for (size_t i = 0; i < 128; ++i) {
          const uint32_t row = static_cast<uint32_t>(random() % 256);
          std::memcpy(to + 4096 + 4 * i, &row, 4);
        }
      };
      forms.push_back(load);
      Form store = f;
      store.name = "stmatrix" + tail;
      store.out_bytes = 4096;
      store.body = prologue +
                   " mad.wide.u32 at, t, 16, in;\n ld.global.v4.b32 {r0, r1, r2, r3}, [at+4608];\n stmatrix" + tail +
                   " [row], " + list +
                   ";\n bar.sync 0;\n mad.wide.u32 at, t, 32, out;\n"
                   " ld.shared.v4.b32 {r0, r1, r2, r3}, [at32];\n st.global.v4.b32 [at], {r0, r1, r2, r3};\n"
                   " ld.shared.v4.b32 {r0, r1, r2, r3}, [at32+16];\n st.global.v4.b32 [at+16], {r0, r1, r2, r3};\n";
      store.fill = [](Random& random, uint8_t* to) {
        for (size_t i = 0; i < 4096 + 512 + 2048; ++i) to[i] = static_cast<uint8_t>(random());
        std::vector<uint32_t> rows(256);  // no row twice: who wins is not defined
        std::iota(rows.begin(), rows.end(), 0u);
        std::shuffle(rows.begin(), rows.end(), random);
        std::memcpy(to + 4096, rows.data(), 512);
      };
      forms.push_back(store);
    }
}

}  // namespace

void add_warp_forms(Forms& forms) {
  add_lane_forms(forms);
  add_matrix_moves(forms);
}

}  // namespace bits
