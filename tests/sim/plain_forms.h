// SPDX-License-Identifier: Apache-2.0
// The forms of the plain instructions: the syntax lines of the PTX ISA (9.7.1 to 9.7.9) as patterns. In a pattern,
// alternatives stand in parentheses, and one may be empty.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace sim_test {

// All texts that a pattern describes.
inline std::vector<std::string> expand(const std::string& pattern) {
  const size_t open = pattern.find('(');
  if (open == std::string::npos) return {pattern};
  const size_t close = pattern.find(')', open);
  const std::vector<std::string> tails = expand(pattern.substr(close + 1));
  std::vector<std::string> all;
  for (size_t at = open + 1; at <= close;) {
    const size_t end = std::min(pattern.find('|', at), close);
    for (const std::string& tail : tails) all.push_back(pattern.substr(0, open) + pattern.substr(at, end - at) + tail);
    at = end + 1;
  }
  return all;
}

inline const std::string kInteger = "(.u16|.u32|.u64|.s16|.s32|.s64)", kCarried = "(.u32|.s32|.u64|.s64)",
                         kBits = "(.b16|.b32|.b64)", kRnd = "(.rn|.rz|.rm|.rp)", kMaybeRnd = "(|.rn|.rz|.rm|.rp)",
                         kMove = "(.b16|.b32|.b64|.u16|.u32|.u64|.s16|.s32|.s64|.f32|.f64)";
// Every type name that an instruction could be given.
inline const std::string kIntegers = "(.u8|.u16|.u32|.u64|.s8|.s16|.s32|.s64)",
                         kAnyRound = "(|.rn|.rz|.rm|.rp|.rni|.rzi|.rmi|.rpi|.rna|.rs)",
                         kPackedNumbers = "(.e4m3x2|.e5m2x2|.e2m1x2|.e2m3x2|.e3m2x2)",
                         kPacked = "(.e4m3x2|.e5m2x2|.e2m1x2|.e2m3x2|.e3m2x2|.ue8m0x2)",
                         kBelow32 = "(.u8|.s8|.b8|.u16|.s16|.b16)",
                         kAtomics = "(.and|.or|.xor|.add|.inc|.dec|.min|.max)",
                         kBelow64 = "(.u8|.s8|.b8|.u16|.s16|.b16|.u32|.s32|.b32|.f32)",
                         kStored = "(.u8|.s8|.b8|.u16|.s16|.b16|.u32|.s32|.b32|.f32|.u64|.s64|.b64|.f64)";
inline const std::vector<std::string> kReductions = {"(.and|.or|.xor)(.b32|.b64)",
                                                     ".add(.u32|.s32|.u64|.f32|.f64)",
                                                     "(.min|.max)(.u32|.s32|.u64|.s64)",
                                                     "(.inc|.dec).u32",
                                                     ".add.noftz(.f16|.f16x2|.bf16|.bf16x2)",
                                                     ".add(.v2|.v4).f32",
                                                     "(.add|.min|.max).noftz(.v2|.v4|.v8)(.f16|.bf16)",
                                                     "(.add|.min|.max).noftz(.v2|.v4)(.f16x2|.bf16x2)"};
inline const std::string kAny =
    "(.u8|.u16|.u32|.u64|.s8|.s16|.s32|.s64|.b8|.b16|.b32|.b64|.b128|.f16|.f16x2|.bf16|.bf16x2|.f32|.f64|.pred|.u16x2|"
    ".s16x2|.f32x2)";

inline int bytes_of(const std::string& type) {
  static const std::map<std::string, int> kBytes = {{"f16x2", 4}, {"bf16x2", 4}, {"u16x2", 4}, {"s16x2", 4},
                                                    {"f32x2", 8}, {"bf16", 2},   {"pred", 0},  {"b128", 16}};
  if (const auto at = kBytes.find(type); at != kBytes.end()) return at->second;
  return std::stoi(type.substr(1)) / 8;
}

struct Family {
  std::string opcode;
  // A letter for each operand: t has the size of the last type, u that of the one before it, W twice the size of t; h,
  // w, d and p are registers of 16, 32 and 64 bits and predicates; | joins two destinations; numbers stand for
  // themselves.
  std::string operands;
  // All that is tried, behind the opcode; and of it what sm_90 has and what sm_100 has besides.
  std::string tried;
  std::vector<std::string> sm90, sm100;
};

inline const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      // 9.7.1, 9.7.2, 9.7.3, 9.7.4
      {"add",
       "ttt",
       kMaybeRnd + "(|.ftz)(|.sat)(|.cc)(|.oob)(|.relu)" + kAny,
       {kInteger, "(.u16x2|.s16x2)", ".sat.s32", ".cc" + kCarried, kMaybeRnd + "(|.ftz)(|.sat).f32", kMaybeRnd + ".f64",
        "(|.rn)(|.ftz)(|.sat)(.f16|.f16x2)", "(|.rn)(.bf16|.bf16x2)"},
       {kMaybeRnd + "(|.ftz).f32x2"}},
      {"sub",
       "ttt",
       kMaybeRnd + "(|.ftz)(|.sat)(|.cc)" + kAny,
       {kInteger, ".sat.s32", ".cc" + kCarried, kMaybeRnd + "(|.ftz)(|.sat).f32", kMaybeRnd + ".f64",
        "(|.rn)(|.ftz)(|.sat)(.f16|.f16x2)", "(|.rn)(.bf16|.bf16x2)"},
       {kMaybeRnd + "(|.ftz).f32x2"}},
      {"addc", "ttt", "(|.cc)(|.sat)" + kAny, {"(|.cc)" + kCarried}, {}},
      {"subc", "ttt", "(|.cc)(|.sat)" + kAny, {"(|.cc)" + kCarried}, {}},
      {"mul",
       "ttt",
       "(|.lo|.hi)" + kMaybeRnd + "(|.ftz)(|.sat)(|.relu)" + kAny,
       {"(.lo|.hi)" + kInteger, kMaybeRnd + "(|.ftz)(|.sat).f32", kMaybeRnd + ".f64",
        "(|.rn)(|.ftz)(|.sat)(.f16|.f16x2)", "(|.rn)(.bf16|.bf16x2)"},
       {kMaybeRnd + "(|.ftz).f32x2"}},
      {"mul", "Wtt", ".wide(|.sat)(|.rn)" + kAny, {".wide(.u16|.u32|.s16|.s32)"}, {}},
      {"mad",
       "tttt",
       "(|.lo|.hi)(|.cc)" + kMaybeRnd + "(|.ftz)(|.sat)" + kAny,
       {"(.lo|.hi)" + kInteger, ".hi.sat.s32", "(.lo|.hi).cc" + kCarried, kRnd + "(|.ftz)(|.sat).f32", kRnd + ".f64"},
       {}},
      {"mad", "WttW", ".wide(|.sat)(|.cc)" + kAny, {".wide(.u16|.u32|.s16|.s32)"}, {}},
      {"madc", "tttt", "(|.lo|.hi)(|.cc)(|.sat)" + kAny, {"(.lo|.hi)(|.cc)" + kCarried}, {}},
      {"mul24", "ttt", "(|.lo|.hi)(|.sat)" + kAny, {"(.lo|.hi)(.u32|.s32)"}, {}},
      {"mad24", "tttt", "(|.lo|.hi)(|.sat)" + kAny, {"(.lo|.hi)(.u32|.s32)", ".hi.sat.s32"}, {}},
      {"sad", "tttt", "(|.sat)" + kAny, {kInteger}, {}},
      {"div",
       "ttt",
       "(|.approx|.full|.rn|.rz|.rm|.rp)(|.ftz)(|.sat)" + kAny,
       {kInteger, "(.approx|.full|.rn|.rz|.rm|.rp)(|.ftz).f32", kRnd + ".f64"},
       {}},
      {"rem", "ttt", "(|.sat)" + kAny, {kInteger}, {}},
      {"abs", "tt", "(|.ftz)" + kAny, {"(.s16|.s32|.s64)", "(|.ftz)(.f32|.f16|.f16x2)", "(.f64|.bf16|.bf16x2)"}, {}},
      {"neg", "tt", "(|.ftz)" + kAny, {"(.s16|.s32|.s64)", "(|.ftz)(.f32|.f16|.f16x2)", "(.f64|.bf16|.bf16x2)"}, {}},
      {"min",
       "ttt",
       "(|.ftz)(|.NaN)(|.xorsign)(|.abs)(|.relu)" + kAny,
       {kInteger, "(.u16x2|.s16x2)", ".relu(.s16x2|.s32)", "(|.ftz)(|.NaN)(|.xorsign.abs).f32", ".f64",
        "(|.ftz)(|.NaN)(|.xorsign.abs)(.f16|.f16x2)", "(|.NaN)(|.xorsign.abs)(.bf16|.bf16x2)"},
       {}},
      {"max",
       "ttt",
       "(|.ftz)(|.NaN)(|.xorsign)(|.abs)(|.relu)" + kAny,
       {kInteger, "(.u16x2|.s16x2)", ".relu(.s16x2|.s32)", "(|.ftz)(|.NaN)(|.xorsign.abs).f32", ".f64",
        "(|.ftz)(|.NaN)(|.xorsign.abs)(.f16|.f16x2)", "(|.NaN)(|.xorsign.abs)(.bf16|.bf16x2)"},
       {}},
      {"min", "tttt", "(|.ftz)(|.NaN)(|.xorsign)(|.abs)" + kAny, {}, {"(|.ftz)(|.NaN)(|.abs).f32"}},
      {"max", "tttt", "(|.ftz)(|.NaN)(|.xorsign)(|.abs)" + kAny, {}, {"(|.ftz)(|.NaN)(|.abs).f32"}},
      {"popc", "wt", kAny, {"(.b32|.b64)"}, {}},
      {"clz", "wt", kAny, {"(.b32|.b64)"}, {}},
      {"bfind", "wt", "(|.shiftamt)" + kAny, {"(|.shiftamt)" + kCarried}, {}},
      {"fns", "wwww", kAny, {".b32"}, {}},
      {"brev", "tt", kAny, {"(.b32|.b64)"}, {}},
      {"bfe", "ttww", kAny, {kCarried}, {}},
      {"bfi", "tttww", kAny, {"(.b32|.b64)"}, {}},
      {"szext", "ttw", "(|.clamp|.wrap)" + kAny, {"(.clamp|.wrap)(.u32|.s32)"}, {}},
      {"bmsk", "www", "(|.clamp|.wrap)" + kAny, {"(.clamp|.wrap).b32"}, {}},
      {"vabsdiff2",
       "wwww",
       "(.u32|.s32|.b32|.u16)(.u32|.s32)(.u32|.s32)(|.sat|.add|.sat.add)",
       {"(.u32|.s32)(.u32|.s32)(.u32|.s32)(|.sat|.add)"},
       {}},
      {"vabsdiff4",
       "wwww",
       "(.u32|.s32)(.u32|.s32)(.u32|.s32|.b32|.u8)(|.sat|.add|.sat.add)",
       {"(.u32|.s32)(.u32|.s32)(.u32|.s32)(|.sat|.add)"},
       {}},
      {"dp4a", "wwww", "(.u32|.s32|.b32|.u16)(.u32|.s32|.b32|.u16)", {"(.u32|.s32)(.u32|.s32)"}, {}},
      {"dp2a", "wwww", "(|.lo|.hi)(.u32|.s32|.b32|.u16)(.u32|.s32|.b32|.u16)", {"(.lo|.hi)(.u32|.s32)(.u32|.s32)"}, {}},
      {"fma",
       "tttt",
       kMaybeRnd + "(|.ftz)(|.sat)(|.oob)(|.relu)" + kAny,
       {kRnd + "(|.ftz)(|.sat).f32", kRnd + ".f64", ".rn(|.ftz)(|.sat)(.f16|.f16x2)", ".rn(|.ftz).relu(.f16|.f16x2)",
        ".rn(|.relu)(.bf16|.bf16x2)", ".rn.oob(|.relu)(.f16|.f16x2|.bf16|.bf16x2)"},
       {kRnd + "(|.ftz).f32x2"}},
      {"copysign", "ttt", "(|.ftz)" + kAny, {"(.f32|.f64)"}, {}},
      {"testp",
       "pt",
       "(|.finite|.infinite|.number|.notanumber|.normal|.subnormal)" + kAny,
       {"(.finite|.infinite|.number|.notanumber|.normal|.subnormal)(.f32|.f64)"},
       {}},
      {"rcp",
       "tt",
       "(|.approx|.rn|.rz|.rm|.rp)(|.ftz)" + kAny,
       {"(.approx|.rn|.rz|.rm|.rp)(|.ftz).f32", kRnd + ".f64", ".approx.ftz.f64"},
       {}},
      {"sqrt",
       "tt",
       "(|.approx|.rn|.rz|.rm|.rp)(|.ftz)" + kAny,
       {"(.approx|.rn|.rz|.rm|.rp)(|.ftz).f32", kRnd + ".f64"},
       {}},
      {"rsqrt", "tt", "(|.approx|.rn)(|.ftz)" + kAny, {".approx(|.ftz)(.f32|.f64)"}, {}},
      {"sin", "tt", "(|.approx|.rn)(|.ftz)" + kAny, {".approx(|.ftz).f32"}, {}},
      {"cos", "tt", "(|.approx|.rn)(|.ftz)" + kAny, {".approx(|.ftz).f32"}, {}},
      {"lg2", "tt", "(|.approx|.rn)(|.ftz)" + kAny, {".approx(|.ftz).f32"}, {}},
      {"ex2",
       "tt",
       "(|.approx|.rn)(|.ftz)" + kAny,
       {".approx(|.ftz).f32", ".approx(.f16|.f16x2)", ".approx.ftz(.bf16|.bf16x2)"},
       {}},
      {"tanh", "tt", "(|.approx|.rn)(|.ftz)" + kAny, {".approx(.f32|.f16|.f16x2|.bf16|.bf16x2)"}, {}},
      // 9.7.5
      {"add",
       "wtw",
       "(|.rn|.rz|.rm|.rp)(|.ftz)(|.sat)(.f32|.f64)(.f16|.bf16|.f32)",
       {},
       {kMaybeRnd + "(|.sat).f32(.f16|.bf16)"}},
      // 9.7.6, 9.7.7
      {"setp",
       "ptt",
       "(|.eq|.ne|.lt|.le|.gt|.ge|.lo|.ls|.hi|.hs|.equ|.neu|.ltu|.leu|.gtu|.geu|.num|.nan)(|.ftz)" + kAny,
       {"(.eq|.ne)(.b16|.b32|.b64)", "(.eq|.ne|.lt|.le|.gt|.ge)" + kInteger, "(.lo|.ls|.hi|.hs)(.u16|.u32|.u64)",
        "(.eq|.ne|.lt|.le|.gt|.ge|.equ|.neu|.ltu|.leu|.gtu|.geu|.num|.nan)(|.ftz)(.f32|.f16)",
        "(.eq|.ne|.lt|.le|.gt|.ge|.equ|.neu|.ltu|.leu|.gtu|.geu|.num|.nan)(.f64|.bf16)"},
       {}},
      {"setp",
       "p|ptt",
       "(.eq|.lt|.nan)(|.ftz)" + kAny,
       {"(.eq)(.b16|.b32|.b64)", "(.eq|.lt)" + kInteger, "(.eq|.lt|.nan)(|.ftz)(.f32|.f16x2)",
        "(.eq|.lt|.nan)(.f64|.bf16x2)"},
       {}},
      {"setp", "pttp", "(.eq|.lt)(|.and|.or|.xor)(.u32|.f32)", {"(.eq|.lt)(.and|.or|.xor)(.u32|.f32)"}, {}},
      {"set",
       "utt",
       "(.eq|.lo|.gtu)(|.ftz)(.u16|.s16|.b16|.u32|.s32|.b32|.u64|.f16|.bf16|.f32|.f64|.f16x2|.bf16x2)" + kAny,
       {".eq(.u32|.s32|.f32|.f16|.bf16)" + kBits, ".eq(.u32|.s32|.f32|.f16|.bf16)" + kInteger,
        ".lo(.u32|.s32|.f32|.f16|.bf16)(.u16|.u32|.u64)", "(.eq|.gtu)(.u32|.s32|.f32|.f16|.bf16).f64",
        "(.eq|.gtu)(|.ftz)(.u32|.s32|.f32|.f16).f32", "(.eq|.gtu).bf16.f32",
        "(.eq|.gtu)(|.ftz)(.u16|.s16|.u32|.s32|.f16).f16", "(.eq|.gtu).bf16.f16",
        "(.eq|.gtu)(.u16|.s16|.u32|.s32|.bf16).bf16", "(.eq|.gtu)(|.ftz)(.f16x2|.u32|.s32).f16x2",
        "(.eq|.gtu)(.bf16x2|.u32|.s32).bf16x2"},
       {}},
      {"selp", "tttp", kAny, {kMove}, {}},
      {"slct", "uuuw", "(|.ftz)" + kMove + "(.s32|.f32|.u32)", {kMove + ".s32", "(|.ftz)" + kMove + ".f32"}, {}},
      {"slct", "uuuw", "(.u8|.s8|.b8|.b128|.f16|.f16x2|.pred).s32", {}, {}},
      // 9.7.8
      {"and", "ttt", kAny, {kBits, ".pred"}, {}},
      {"or", "ttt", kAny, {kBits, ".pred"}, {}},
      {"xor", "ttt", kAny, {kBits, ".pred"}, {}},
      {"not", "tt", kAny, {kBits, ".pred"}, {}},
      {"cnot", "tt", kAny, {kBits}, {}},
      {"lop3", "tttt5", kAny, {".b32"}, {}},
      {"lop3", "t|pttt5p", "(|.and|.or|.xor)" + kAny, {"(.and|.or).b32"}, {}},
      {"shl", "ttw", kAny, {kBits}, {}},
      {"shr", "ttw", kAny, {kBits, kInteger}, {}},
      {"shf", "tttw", "(|.l|.r)(|.clamp|.wrap)" + kAny, {"(.l|.r)(.clamp|.wrap).b32"}, {}},
      // 9.7.9
      {"mov", "tt", kAny, {kMove, ".pred", ".b128"}, {}},
      {"prmt", "tttt", kAny + "(|.f4e|.b4e|.rc8|.ecl|.ecr|.rc16)", {".b32(|.f4e|.b4e|.rc8|.ecl|.ecr|.rc16)"}, {}},
      {"cvta",
       "dd",
       "(|.to)(|.global|.const|.shared|.shared::cta|.shared::cluster|.local|.param|.param::entry|.generic)(.u32|.u64|"
       ".b64)",
       {"(|.to)(.global|.const|.shared|.shared::cta|.shared::cluster|.local|.param|.param::entry).u64"},
       {}},
      {"isspacep",
       "pd",
       "(|.global|.const|.shared|.shared::cta|.shared::cluster|.local|.param|.param::entry|.generic)",
       {"(.global|.shared|.shared::cta|.shared::cluster|.local|.param|.param::entry)"},
       {}},  // .const is not simulated.
      // 9.7.9.21. Integers that cannot be out of range take no .sat: of those of one width only the unsigned ones of a
      // signed result and the reverse do, and all of what is narrower than its source.
      {"cvt",
       "ut",
       "(|.rn|.rni|.rzi)(|.sat|.ftz|.relu|.satfinite)" + kIntegers + kIntegers,
       {kIntegers + kIntegers, ".sat(.u8|.s8)(.u16|.u32|.u64|.s16|.s32|.s64)", ".sat(.u16|.s16)(.u32|.u64|.s32|.s64)",
        ".sat(.u32|.s32)(.u64|.s64)", ".sat(.u8|.u16|.u32|.u64)(.s8)", ".sat(.u16|.u32|.u64)(.s16)",
        ".sat(.u32|.u64)(.s32)", ".sat(.u64)(.s64)", ".sat(.s8)(.u8)", ".sat(.s16)(.u16)", ".sat(.s32)(.u32)",
        ".sat(.s64)(.u64)"},
       {}},
      {"cvt",
       "ut",
       kAnyRound + "(|.ftz|.sat|.relu|.satfinite|.ftz.sat)" + kIntegers + "(.f16|.bf16|.f32|.f64)",
       {"(.rni|.rzi|.rmi|.rpi)" + kIntegers + "(.f16|.bf16|.f32|.f64)",
        "(.rni|.rzi|.rmi|.rpi).sat" + kIntegers + "(.f16|.f32|.f64)",
        "(.rni|.rzi|.rmi|.rpi)(.ftz|.ftz.sat)" + kIntegers + ".f32"},
       {}},
      {"cvt",
       "ut",
       kAnyRound + "(|.ftz|.sat|.relu|.satfinite|.ftz.sat)(.f16|.bf16|.f32|.f64)" + kIntegers,
       {kRnd + "(.f16|.bf16|.f32|.f64)" + kIntegers, kRnd + ".sat(.f16|.f32|.f64)" + kIntegers,
        kRnd + "(.ftz|.ftz.sat).f32" + kIntegers},
       {}},
      {"cvt",
       "ut",
       kAnyRound + "(|.ftz|.sat|.relu|.satfinite|.ftz.sat|.relu.satfinite)(.f16|.f32|.f64)(.f16|.f32|.f64)",
       {// Exact, perhaps to a whole number.
        "(|.rni|.rzi|.rmi|.rpi)(|.sat)(.f16.f16|.f32.f32|.f64.f64)", "(|.rni|.rzi|.rmi|.rpi)(.ftz|.ftz.sat).f32.f32",
        "(|.sat)(.f32.f16|.f64.f16|.f64.f32)", "(.ftz|.ftz.sat)(.f32.f16|.f64.f32)",
        // Rounded.
        kRnd + "(|.sat)(.f16.f32|.f16.f64|.f32.f64)", kRnd + "(.ftz|.ftz.sat)(.f16.f32|.f32.f64)",
        "(.rn|.rz)(.relu|.satfinite|.relu.satfinite).f16.f32"},
       {}},
      {"cvt",
       "ut",
       kAnyRound + "(|.ftz|.relu|.satfinite|.relu.satfinite).bf16(.f16|.bf16|.f32|.f64)",
       {kMaybeRnd + ".bf16.f16", "(|.rni|.rzi|.rmi|.rpi).bf16.bf16", kRnd + "(.bf16.f32|.bf16.f64|.ftz.bf16.f32)",
        "(.rn|.rz)(.relu|.satfinite|.relu.satfinite).bf16.f32"},
       {}},
      {"cvt",
       "ut",
       kAnyRound + "(|.ftz|.relu|.satfinite)(.f16|.f32|.f64).bf16",
       {kMaybeRnd + "(.f16|.f32|.f64|.ftz.f32).bf16"},
       {}},
      {"cvt",
       "ww",
       "(|.rn|.rz|.rm|.rna|.rni|.rs)(|.ftz|.sat)(|.satfinite)(|.relu).tf32(.f32|.f64|.f16)",
       {"(.rn|.rz)(|.relu).tf32.f32", ".rna(|.satfinite).tf32.f32"},
       {"(.rn|.rz).satfinite(|.relu).tf32.f32"}},
      {"cvt",
       "wwww",
       "(|.rn|.rz|.rm|.rs)(|.ftz|.sat|.rni)(|.relu)(|.satfinite)(.f16x2|.bf16x2|.tf32)(.f32|.f64|.f16x2)",
       {},
       {".rs(|.relu)(|.satfinite)(.f16x2|.bf16x2).f32"}},
      {"cvt",
       "www",
       "(|.rn|.rz|.rm|.rs)(|.ftz|.sat|.rni)(|.relu)(|.satfinite)(.f16x2|.bf16x2|.tf32)(.f32|.f64|.f16x2)",
       {"(.rn|.rz)(|.relu)(|.satfinite)(.f16x2|.bf16x2).f32"},
       {}},
      {"cvt",
       "hww",
       "(|.rn|.rz|.rp)(|.satfinite)(|.relu)" + kPacked + "(.f32|.f64)",
       {".rn.satfinite(|.relu)(.e4m3x2|.e5m2x2).f32"},
       {".rn.satfinite(|.relu)(.e2m1x2|.e2m3x2|.e3m2x2).f32", "(.rz|.rp)(|.satfinite).ue8m0x2.f32"}},
      {"cvt",
       "hw",
       "(|.rn|.rz|.rp)(|.satfinite)(|.relu)" + kPacked + "(.f16x2|.bf16x2)",
       {".rn.satfinite(|.relu)(.e4m3x2|.e5m2x2).f16x2"},
       {"(.rz|.rp)(|.satfinite).ue8m0x2.bf16x2", ".rn.satfinite(|.relu)" + kPackedNumbers + "(.f16x2|.bf16x2)"}},
      {"cvt",
       "wh",
       "(|.rn|.rz|.rp)(|.satfinite)(|.relu)(.f16x2|.bf16x2|.f32)" + kPacked,
       {".rn(|.relu).f16x2(.e4m3x2|.e5m2x2)"},
       {".rn(|.relu).f16x2(.e2m1x2|.e2m3x2|.e3m2x2)", ".rn.bf16x2.ue8m0x2"}},
      // 9.7.9.22
      {"cvt.pack", "www", "(|.sat)(.u16|.s16|.u8|.s8|.u4|.s4|.u2|.s2|.u32)(.s32|.u32)", {".sat(.u16|.s16).s32"}, {}},
      {"cvt.pack",
       "wwww",
       "(|.sat)(.u16|.s16|.u8|.s8|.u4|.s4|.u2|.s2|.u32)(.s32|.u32)(.b32|.u32)",
       {".sat(.u8|.s8|.u4|.s4|.u2|.s2).s32.b32"},
       {}},
      // 9.7.9.8, 9.7.9.12
      {"ld.global",
       "VA",
       "(|.v2|.v4|.v8)" + kAny,
       {kStored, ".b128", ".v2" + kStored, ".v4" + kBelow64, ".v8" + kBelow32},
       {".v4(.u64|.s64|.b64|.f64)", ".v8(.u32|.s32|.b32|.f32)"}},
      {"st.global",
       "AV",
       "(|.v2|.v4|.v8)" + kAny,
       {kStored, ".b128", ".v2" + kStored, ".v4" + kBelow64, ".v8" + kBelow32},
       {".v4(.u64|.s64|.b64|.f64)", ".v8(.u32|.s32|.b32|.f32)"}},
      {"ld.shared", "VA", "(|.v2|.v4|.v8)(.b16|.b32|.b64)", {"(|.v2|.v4)(.b16|.b32)", "(|.v2).b64", ".v8.b16"}, {}},
      // 9.7.13.5, 9.7.13.6
      {"atom.global", "VAV", kAtomics + "(|.noftz)(|.v2|.v4|.v8)" + kAny, kReductions, {}},
      {"atom.global", "VAV", ".exch(|.noftz)(|.v2|.v4|.v8)" + kAny, {".exch(.b32|.b64|.b128)"}, {}},
      {"atom.global", "VAVV", ".cas(|.v2)" + kAny, {".cas(.b16|.b32|.b64|.b128)"}, {}},
      {"red.global",
       "AV",
       "(.exch|.and|.or|.xor|.add|.inc|.dec|.min|.max)(|.noftz)(|.v2|.v4|.v8)" + kAny,
       kReductions,
       {}},
      {"red.global", "AVV", ".cas" + kAny, {}, {}},
      // 9.7.9.6, 9.7.13.9 to 9.7.13.14
      {"shfl", "wwwww", "(|.sync)(|.up|.down|.bfly|.idx)" + kAny, {".sync(.up|.down|.bfly|.idx).b32"}, {}},
      {"shfl", "w|pwwww", "(|.sync)(|.up|.down|.bfly|.idx)" + kAny, {".sync(.up|.down|.bfly|.idx).b32"}, {}},
      {"vote", "ppw", "(|.sync)(|.all|.any|.uni|.ballot).pred", {".sync(.all|.any|.uni).pred"}, {}},
      {"vote", "wpw", "(|.sync)(|.all|.any|.uni|.ballot).b32", {".sync.ballot.b32"}, {}},
      {"match", "wtw", "(.all|.any)(|.sync)" + kAny, {"(.all|.any).sync(.b32|.b64)"}, {}},
      {"match", "w|ptw", "(.all|.any)(|.sync)" + kAny, {".all.sync(.b32|.b64)"}, {}},
      {"redux",
       "ttw",
       "(|.sync)(.add|.min|.max|.and|.or|.xor|.inc)(|.abs)(|.NaN)" + kAny,
       {".sync(.add|.min|.max)(.u32|.s32)", ".sync(.and|.or|.xor).b32"},
       {".sync(.min|.max)(|.abs)(|.NaN).f32"}},
      {"elect", "w|pw", "(|.sync)(|.b32)", {".sync"}, {}},
      {"activemask", "w", "(|.b32|.u32)", {".b32"}, {}},
      {"bar", "w", "(|.warp)(|.sync)(|.b32)", {".sync", ".warp.sync"}, {}},
      {"barrier", "w", "(|.cta)(|.sync|.arrive|.red)(|.aligned)", {"(|.cta).sync(|.aligned)"}, {}},
      {"barrier", "ww", "(|.cta)(|.sync|.arrive|.red)(|.aligned)", {"(|.cta)(.sync|.arrive)(|.aligned)"}, {}},
      {"barrier",
       "pwp",
       "(|.cta)(|.sync|.red)(|.and|.or|.popc)(|.aligned)(.pred|.u32)",
       {"(|.cta).red(.and|.or)(|.aligned).pred"},
       {}},
      {"barrier",
       "wwwp",
       "(|.cta)(|.sync|.red)(|.and|.or|.popc)(|.aligned)(.pred|.u32)",
       {"(|.cta).red.popc(|.aligned).u32"},
       {}},
      {"movmatrix", "ww", "(|.sync)(|.aligned)(.m8n8|.m8n16)(|.trans)(.b16|.b8)", {".sync.aligned.m8n8.trans.b16"}, {}},
  };
  return all;
}

inline std::string operands_of(const Family& family, const std::string& form) {
  std::vector<std::string> types;
  for (size_t at = 0; (at = form.find('.', at)) != std::string::npos; ++at) {
    const std::string part = form.substr(at + 1, form.find('.', at + 1) - at - 1);
    if (kAny.find("." + part + "|") != std::string::npos || kAny.find("." + part + ")") != std::string::npos)
      types.push_back(part);
  }
  const auto size_of = [&](size_t back) { return types.size() < back ? 4 : bytes_of(types[types.size() - back]); };
  std::string text;
  std::map<char, int> used;
  for (const char c : family.operands) {
    if (c == '|') {
      text += '|';
      continue;
    }
    if (!text.empty() && text.back() != '|') text += ", ";
    if (c >= '0' && c <= '9') {
      text += c;
      continue;
    }
    if (c == 'A') {
      text += "[%d1]";
      continue;
    }
    if (c == 'V') {
      const int bytes = size_of(1);
      const char kind = bytes == 0 ? 'p' : bytes <= 2 ? 'h' : bytes == 4 ? 'w' : bytes == 8 ? 'd' : 'q';
      const int n = form.find(".v2") != std::string::npos   ? 2
                    : form.find(".v4") != std::string::npos ? 4
                    : form.find(".v8") != std::string::npos ? 8
                                                            : 0;
      for (int i = 0; i < n; ++i) text += (i == 0 ? "{%" : ", %") + std::string(1, kind) + std::to_string(i);
      text += n == 0 ? std::string("%") + kind + std::to_string(used[kind]++ + 1) : "}";
      continue;
    }
    const int bytes = c == 't' ? size_of(1) : c == 'u' ? size_of(2) : c == 'W' ? 2 * size_of(1) : 0;
    const char kind = c == 'h' || c == 'w' || c == 'd' || c == 'p' ? c
                      : bytes == 0                                 ? 'p'
                      : bytes == 1                                 ? 'h'
                      : bytes == 2                                 ? 'h'
                      : bytes == 4                                 ? 'w'
                      : bytes == 8                                 ? 'd'
                                                                   : 'q';
    text += std::string("%") + kind + std::to_string(used[kind]++ + 1);
  }
  return text;
}

}  // namespace sim_test
