// SPDX-License-Identifier: Apache-2.0
// Forms of integer, floating-point, logic, comparison and move instructions (PTX ISA 9.7.1 to 9.7.9, 9.7.18.2).
#include "tests/bits/form.h"

namespace bits {
namespace {

using Names = std::vector<std::string>;

Kind integer_kind(const std::string& type) {
  const std::string bits = type.substr(1);
  return bits == "8" ? Kind::B8 : bits == "16" ? Kind::B16 : bits == "64" ? Kind::B64 : Kind::B32;
}
Kind float_kind(const std::string& type) {
  if (type == "f16") return Kind::F16;
  if (type == "bf16") return Kind::BF16;
  if (type == "f16x2") return Kind::F16x2;
  if (type == "bf16x2") return Kind::BF16x2;
  return type == "f64" ? Kind::F64 : Kind::F32;
}
Kind wide_kind(Kind kind) { return kind == Kind::B16 ? Kind::B32 : Kind::B64; }
Kind non_zero(Kind kind) {
  return kind == Kind::B16 ? Kind::NonZero16 : kind == Kind::B64 ? Kind::NonZero64 : Kind::NonZero32;
}

const Names kIntegers = {"u16", "u32", "u64", "s16", "s32", "s64"};

struct Table {
  Forms& forms;
  std::string family;
  void exact(const std::string& name, Kind result, const std::vector<Kind>& operands) {
    add_scalar(forms, family, name, "", {result}, operands, exactly());
  }
  void text(const std::string& name, const std::string& text, const std::vector<Kind>& results,
            const std::vector<Kind>& operands) {
    add_scalar(forms, family, name, text, results, operands, exactly());
  }
  void near(const std::string& name, Kind result, const std::vector<Kind>& operands, const Agreement& agreement) {
    add_scalar(forms, family, name, "", {result}, operands, agreement);
  }
};

void add_integer(Table t) {
  for (const std::string& type : kIntegers) {
    const Kind k = integer_kind(type);
    for (const char* op : {"add.", "sub.", "min.", "max."}) t.exact(op + type, k, {k, k});
    for (const char* op : {"div.", "rem."}) t.exact(op + type, k, {k, non_zero(k)});
    t.exact("sad." + type, k, {k, k, k});
    for (const char* half : {"lo.", "hi."}) {
      t.exact("mul." + (half + type), k, {k, k});
      t.exact("mad." + (half + type), k, {k, k, k});
    }
    if (k == Kind::B64) continue;
    t.exact("mul.wide." + type, wide_kind(k), {k, k});
    t.exact("mad.wide." + type, wide_kind(k), {k, k, wide_kind(k)});
  }
  const Kind w = Kind::B32, l = Kind::B64, n = Kind::Count;
  t.exact("add.sat.s32", w, {w, w});
  t.exact("sub.sat.s32", w, {w, w});
  t.exact("mad.hi.sat.s32", w, {w, w, w});
  for (const char* type : {"u16x2", "s16x2"})
    for (const char* op : {"add.", "min.", "max."}) t.exact(std::string(op) + type, w, {w, w});
  for (const char* op : {"min.relu.s32", "max.relu.s32", "min.relu.s16x2", "max.relu.s16x2"}) t.exact(op, w, {w, w});
  for (const char* type : {"u32", "s32"}) {
    for (const char* half : {"lo.", "hi."}) {
      t.exact("mul24." + std::string(half) + type, w, {w, w});
      t.exact("mad24." + std::string(half) + type, w, {w, w, w});
    }
    t.exact("bfe." + std::string(type), w, {w, n, n});
    for (const char* mode : {"clamp.", "wrap."}) t.exact("szext." + std::string(mode) + type, w, {w, n});
  }
  t.exact("mad24.hi.sat.s32", w, {w, w, w});
  t.exact("bfe.u64", l, {l, n, n});
  t.exact("bfe.s64", l, {l, n, n});
  t.exact("bfi.b32", w, {w, w, n, n});
  t.exact("bfi.b64", l, {l, l, n, n});
  t.exact("bmsk.clamp.b32", w, {n, n});
  t.exact("bmsk.wrap.b32", w, {n, n});
  for (const char* type : {"s16", "s32", "s64"}) {
    const Kind k = integer_kind(type);
    t.exact(std::string("abs.") + type, k, {k});
    t.exact(std::string("neg.") + type, k, {k});
  }
  for (const char* op : {"popc.", "clz."}) {
    t.exact(std::string(op) + "b32", w, {w});
    t.exact(std::string(op) + "b64", w, {l});
  }
  for (const char* type : {"u32", "s32", "u64", "s64"})
    for (const char* mode : {"", "shiftamt."}) t.exact("bfind." + (std::string(mode) + type), w, {integer_kind(type)});
  t.exact("brev.b32", w, {w});
  t.exact("brev.b64", l, {l});
  // 9.7.1.17: the base is a position, 0 to 31; the offset counts from it.
  t.text("fns.b32", "and.b32 b, b, 31;\n rem.s32 c, c, 40;\n fns.b32 d, a, b, c;", {w}, {w, w, w});
  for (const char* a : {"u32", "s32"})
    for (const char* b : {"u32", "s32"}) {
      const std::string types = std::string(a) + "." + b;
      t.exact("dp4a." + types, w, {w, w, w});
      t.exact("dp2a.lo." + types, w, {w, w, w});
      t.exact("dp2a.hi." + types, w, {w, w, w});
    }
  // 9.7.2: two words at a time; the second result shows the carry.
  for (const char* type : {"u32", "s32", "u64", "s64"}) {
    const Kind k = integer_kind(type);
    const std::string y = type;
    t.text("add.cc." + y + ", addc.cc." + y + ", addc." + y,
           "add.cc." + y + " d, a, b;\n addc.cc." + y + " e, b, c;\n addc." + y + " f, a, c;", {k, k, k}, {k, k, k});
    t.text("sub.cc." + y + ", subc.cc." + y + ", subc." + y,
           "sub.cc." + y + " d, a, b;\n subc.cc." + y + " e, b, c;\n subc." + y + " f, a, c;", {k, k, k}, {k, k, k});
    t.text("mad.lo.cc." + y + ", madc.hi.cc." + y + ", madc.lo." + y,
           "mad.lo.cc." + y + " d, a, b, c;\n madc.hi.cc." + y + " e, a, b, c;\n madc.lo." + y + " f, b, c, a;",
           {k, k, k}, {k, k, k});
    t.text("mad.hi.cc." + y + ", madc.lo.cc." + y + ", madc.hi." + y,
           "mad.hi.cc." + y + " d, a, b, c;\n madc.lo.cc." + y + " e, a, b, c;\n madc.hi." + y + " f, b, c, a;",
           {k, k, k}, {k, k, k});
  }
}

// vabsdiff2 and vabsdiff4 (9.7.18.2) of random parts, then of parts that are the least and greatest of their types.
void add_differences(Table t) {
  struct Parts {
    const char *count, *lowest_bits, *highest_bits, *greatest;
  };
  constexpr Parts kParts[] = {{"2", "0x00010001", "0x80008000", "0x7fff"}, {"4", "0x01010101", "0x80808080", "0x7f"}};
  const Kind w = Kind::B32;
  for (const Parts& parts : kParts)
    for (const char* d : {"u32", "s32"})
      for (const char* a : {"u32", "s32"})
        for (const char* b : {"u32", "s32"})
          for (const char* modifier : {"", ".sat", ".add"}) {
            const std::string name =
                fill_template("vabsdiff#.D.A.B", {{"#", parts.count}, {"D", d}, {"A", a}, {"B", b}}) + modifier;
            t.exact(name, w, {w, w, w});
            t.text(name + ", parts at their ends",
                   fill_template(".reg .b32 low;\n"
                                 " and.b32 low, a, LOWEST;\n mul.lo.u32 low, low, GREATEST;\n"
                                 " and.b32 a, a, HIGHEST;\n or.b32 a, a, low;\n"
                                 " and.b32 low, b, LOWEST;\n mul.lo.u32 low, low, GREATEST;\n"
                                 " and.b32 b, b, HIGHEST;\n or.b32 b, b, low;\n NAME d, a, b, c;",
                                 {{"LOWEST", parts.lowest_bits},
                                  {"HIGHEST", parts.highest_bits},
                                  {"GREATEST", parts.greatest},
                                  {"NAME", name}}),
                   {w}, {w, w, w});
          }
}

void add_logic(Table t) {
  const Kind w = Kind::B32, l = Kind::B64, n = Kind::Count, p = Kind::Pred;
  for (const char* type : {"b16", "b32", "b64", "pred"}) {
    const std::string y = type;
    const Kind k = y == "pred" ? p : integer_kind(y);
    for (const char* op : {"and.", "or.", "xor."}) t.exact(op + y, k, {k, k});
    t.exact("not." + y, k, {k});
    if (k == p) continue;
    t.exact("cnot." + y, k, {k});
    t.exact("shl." + y, k, {k, n});
    t.exact("shr." + y, k, {k, n});
  }
  for (const std::string& type : kIntegers) t.exact("shr." + type, integer_kind(type), {integer_kind(type), n});
  for (const char* form : {"l.clamp", "l.wrap", "r.clamp", "r.wrap"})
    t.exact(std::string("shf.") + form + ".b32", w, {w, w, n});
  std::string tables;
  for (int lut = 0; lut < 256; ++lut)
    tables += " lop3.b32 e, a, b, c, " + std::to_string(lut) + ";\n mad.lo.u32 d, d, 31, e;\n";
  t.text("lop3.b32, all 256 tables", "mov.b32 d, 0;\n" + tables, {w, w}, {w, w, w});
  t.text("lop3.or.b32", "lop3.or.b32 e|d, a, b, c, 0x96, h;", {p, w}, {w, w, w, p});
  t.text("lop3.and.b32", "lop3.and.b32 e|d, a, b, c, 0x80, h;", {p, w}, {w, w, w, p});
  t.exact("prmt.b32", w, {w, w, w});
  for (const char* mode : {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"})
    t.exact(std::string("prmt.b32.") + mode, w, {w, w, n});
  t.text("mov.b32 from {b16, b16}", "mov.b32 d, {a, b};", {w}, {Kind::B16, Kind::B16});
  t.text("mov.b32 to {b16, b16}", "mov.b32 {d, e}, a;", {Kind::B16, Kind::B16}, {w});
  t.text("mov.b64 from {b32, b32}", "mov.b64 d, {a, b};", {l}, {w, w});
  t.text("mov.b64 to {b32, b32}", "mov.b64 {d, e}, a;", {w, w}, {l});
  t.text("mov.b64 from {b16 x 4}", "mov.b64 d, {a, b, c, h};", {l}, {Kind::B16, Kind::B16, Kind::B16, Kind::B16});
  t.text("mov.b64 to {b16 x 4}", "mov.b64 {d, e, f, g}, a;", {Kind::B16, Kind::B16, Kind::B16, Kind::B16}, {l});
  t.text("mov.b128 from and to {b64, b64}", ".reg .b128 q;\n mov.b128 q, {a, b};\n mov.b128 {e, d}, q;", {l, l},
         {l, l});
  for (const char* type : {"b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"})
    t.exact(std::string("selp.") + type, integer_kind(type), {integer_kind(type), integer_kind(type), p});
  t.exact("selp.f32", w, {w, w, p});
  t.exact("selp.f64", l, {l, l, p});
  for (const char* type : {"b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64"}) {
    const Kind k = integer_kind(type);
    t.exact(std::string("slct.") + type + ".s32", k, {k, k, w});
    t.exact(std::string("slct.") + type + ".f32", k, {k, k, Kind::F32});
    t.exact(std::string("slct.ftz.") + type + ".f32", k, {k, k, Kind::F32});
  }
  t.exact("slct.f32.s32", w, {w, w, w});
  t.exact("slct.f64.f32", l, {l, l, Kind::F32});
}

void add_comparisons(Table t) {
  const Kind p = Kind::Pred;
  const Names signed_ops = {"eq", "ne", "lt", "le", "gt", "ge"};
  const Names unsigned_ops = {"lo", "ls", "hi", "hs"};
  const Names float_ops = {"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
  const auto both = [&](const std::string& op, const std::string& modifier, const std::string& type, Kind k) {
    t.text("setp." + op + modifier + "." + type, "setp." + op + modifier + "." + type + " d|e, a, b;", {p, p}, {k, k});
    for (const char* boolean : {"and", "or", "xor"})
      if (op == "lt" || op == "ne" || op == "nan") {
        const std::string name = "setp." + op + "." + boolean + modifier + "." + type;
        t.text(name, name + " d|e, a, b, c;", {p, p}, {k, k, p});
        t.text(name + ", !c", name + " d, a, b, !c;", {p}, {k, k, p});
      }
    for (const char* to : {"u32", "s32", "f32"}) {
      t.exact("set." + op + modifier + "." + to + "." + type, Kind::B32, {k, k});
      if (op == "lt" || op == "ne")
        t.exact("set." + op + ".xor" + modifier + "." + to + "." + type, Kind::B32, {k, k, p});
    }
  };
  for (const std::string& type : kIntegers)
    for (const std::string& op : signed_ops) both(op, "", type, integer_kind(type));
  for (const char* type : {"u16", "u32", "u64"})
    for (const std::string& op : unsigned_ops) both(op, "", type, integer_kind(type));
  for (const char* type : {"b16", "b32", "b64"})
    for (const char* op : {"eq", "ne"}) both(op, "", type, integer_kind(type));
  for (const std::string& op : float_ops) {
    both(op, "", "f32", Kind::F32);
    both(op, ".ftz", "f32", Kind::F32);
    both(op, "", "f64", Kind::F64);
  }
  for (const char* type : {"f16", "bf16", "f16x2", "bf16x2"}) {
    const std::string y = type;
    const bool packed = y.back() == '2', half = y[0] == 'f';
    const Kind k = float_kind(y);
    for (const std::string& op : float_ops) {
      for (const char* ftz : {"", ".ftz"}) {
        if (*ftz != 0 && !half) continue;
        const std::string name = "setp." + op + ftz + "." + y, joined = "setp." + op + ".and" + ftz + "." + y;
        if (packed) {
          t.text(name, name + " d|e, a, b;", {p, p}, {k, k});
          t.text(joined, joined + " d|e, a, b, c;", {p, p}, {k, k, p});
        } else {
          t.exact(name, p, {k, k});
          t.exact(joined, p, {k, k, p});
        }
        t.exact("set." + op + ftz + "." + y + "." + y, packed ? Kind::B32 : Kind::B16, {k, k});
        if (packed) continue;
        for (const char* to : {"u16", "s16", "u32", "s32"})
          t.exact("set." + op + ftz + "." + to + "." + y, integer_kind(to), {k, k});
      }
    }
  }
}

void add_float(Table t) {
  const Kind s = Kind::F32, d = Kind::F64;
  for (const char* rounding : {"", ".rn", ".rz", ".rm", ".rp"}) {
    const std::string r = rounding;
    for (const char* ftz : {"", ".ftz"})
      for (const char* sat : {"", ".sat"}) {
        const std::string y = r + ftz + sat + ".f32";
        for (const char* op : {"add", "sub", "mul"}) t.exact(op + y, s, {s, s});
        if (!r.empty()) t.exact("fma" + y, s, {s, s, s});
        if (!r.empty()) t.exact("mad" + y, s, {s, s, s});
      }
    for (const char* op : {"add", "sub", "mul"}) t.exact(op + r + ".f64", d, {d, d});
    if (r.empty()) continue;
    t.exact("fma" + r + ".f64", d, {d, d, d});
    t.exact("mad" + r + ".f64", d, {d, d, d});
    t.exact("div" + r + ".f64", d, {d, d});
    t.exact("rcp" + r + ".f64", d, {d});
    t.exact("sqrt" + r + ".f64", d, {d});
    // Products about the least normal number: whether .ftz looks at them before or after the rounding.
    const std::string about =
        "and.b32 a, a, 0x8000007f;\n or.b32 a, a, 0x3f7fff00;\n and.b32 b, b, 0x8000003f;\n or.b32 b, b, 0x00800000;\n"
        " and.b32 c, c, 0x80000000;\n ";
    const std::string mul = "mul" + r + ".ftz.f32", fma = "fma" + r + ".ftz.f32", near = ", near 2^-126";
    t.text(mul + near, about + mul + " d, a, b;", {s}, {s, s, s});
    t.text(fma + near, about + fma + " d, a, b, c;", {s}, {s, s, s});
    for (const char* ftz : {"", ".ftz"}) {
      t.exact("div" + r + ftz + ".f32", s, {s, s});
      t.exact("rcp" + r + ftz + ".f32", s, {s});
      t.exact("sqrt" + r + ftz + ".f32", s, {s});
    }
  }
  for (const char* type : {"f16", "f16x2", "bf16", "bf16x2"}) {
    const std::string y = std::string(".") + type;
    const Kind k = float_kind(type);
    const bool half = *type == 'f';
    for (const char* rounding : {"", ".rn"}) {
      const std::string r = rounding;
      for (const char* op : {"add", "sub", "mul"})
        for (const char* modifiers : {"", ".ftz", ".sat", ".ftz.sat"})
          if (half || *modifiers == 0) t.exact(op + r + modifiers + y, k, {k, k});
    }
    for (const char* modifiers : {"", ".ftz", ".sat", ".ftz.sat", ".relu", ".ftz.relu", ".oob", ".oob.relu"})
      if (half || !std::string_view(modifiers).starts_with(".f")) {
        if (!half && std::string(modifiers) == ".sat") continue;
        t.exact(std::string("fma.rn") + modifiers + y, k, {k, k, k});
      }
    // Every NaN in each place: .oob acts on one of them alone.
    const bool pair = y.back() == '2';
    for (const char* place : {"a", "b", "c"}) {
      const std::string q = place, reg = pair ? "b32" : "b16";
      t.text("fma.rn.oob" + y + ", every NaN as " + q,
             ".reg .b32 code;\n .reg .b16 nan;\n rem.u32 code, t, " + std::string(half ? "1023" : "127") +
                 ";\n add.u32 code, code, " + (half ? "0x7c01" : "0x7f81") + ";\n cvt.u16.u32 nan, code;\n and." + reg +
                 " " + q + ", " + q + ", " + (pair ? "0x80008000" : "0x8000") + ";\n" +
                 (pair ? " mov.b32 code, {nan, nan};\n or.b32 " + q + ", " + q + ", code;\n"
                       : " or.b16 " + q + ", " + q + ", nan;\n") +
                 " fma.rn.oob" + y + " d, a, b, c;",
             {k}, {k, k, k});
    }
    for (const char* ftz : {"", ".ftz"}) {
      if (*ftz != 0 && !half) continue;
      t.exact(std::string("abs") + ftz + y, k, {k});
      t.exact(std::string("neg") + ftz + y, k, {k});
      for (const char* op : {"min", "max"})
        for (const char* modifiers : {"", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"})
          t.exact(std::string(op) + ftz + modifiers + y, k, {k, k});
    }
  }
  for (const char* ftz : {"", ".ftz"}) {
    const std::string y = std::string(ftz) + ".f32";
    t.exact("abs" + y, s, {s});
    t.exact("neg" + y, s, {s});
    for (const char* op : {"min", "max"})
      for (const char* modifiers : {"", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"})
        t.exact(std::string(op) + ftz + modifiers + ".f32", s, {s, s});
    const Kind angle = Kind::Angle32, wide = Kind::Wide32;
    t.near("div.full" + y, s, {s, s}, within_ulps(3, "at most 2 ulp (9.7.3.8)"));
    t.near("div.approx" + y, s, {s, s}, within_ulps(3, "at most 2 ulp for a divisor of 2^-126 to 2^126 (9.7.3.8)"));
    t.near("rcp.approx" + y, s, {s}, within_ulps(2, "at most 1 ulp (9.7.3.13)"));
    t.near("sqrt.approx" + y, s, {s}, within_ulps(3, "relative error of 2^-23 (9.7.3.15)"));
    t.near("rsqrt.approx" + y, s, {s}, within_ulps(3, "relative error of 2^-22.9 (9.7.3.16)"));
    for (const char* op : {"sin", "cos"}) {
      t.near(op + std::string(".approx") + y, s, {angle}, within(0x1p-20, 0, "2^-20.5 within two pi (9.7.3.18, .19)"));
      add_scalar(t.forms, t.family, op + std::string(".approx") + y + ", to 100 pi",
                 op + std::string(".approx") + y + " d, a;", {s}, {wide},
                 within(0x1p-14, 0, "2^-14.7 within 100 pi (9.7.3.18, .19)"));
    }
    t.near("lg2.approx" + y, s, {s}, within(0x1p-21, 0x1p-21, "2^-22, absolute near one, else relative (9.7.3.20)"));
    t.near("ex2.approx" + y, s, {s}, within_ulps(3, "at most 2 ulp (9.7.3.21)"));
  }
  t.exact("abs.f64", d, {d});
  t.exact("neg.f64", d, {d});
  t.exact("min.f64", d, {d, d});
  t.exact("max.f64", d, {d, d});
  t.exact("copysign.f32", s, {s, s});
  t.exact("copysign.f64", d, {d, d});
  for (const char* property : {"finite", "infinite", "number", "notanumber", "normal", "subnormal"}) {
    t.exact(std::string("testp.") + property + ".f32", Kind::Pred, {s});
    t.exact(std::string("testp.") + property + ".f64", Kind::Pred, {d});
  }
  t.near("rcp.approx.ftz.f64", d, {d}, within(0, 0x1p-19, "a gross approximation of 20 bits (9.7.3.14)"));
  t.near("rsqrt.approx.ftz.f64", d, {d}, within(0, 0x1p-19, "a gross approximation of 20 bits (9.7.3.17)"));
  t.near("rsqrt.approx.f64", d, {d}, within(0, 0x1p-19, "emulated, close to full precision (9.7.3.16)"));
  t.near("tanh.approx.f32", s, {s}, within(0, 0x1.1p-11, "relative error of 2^-11 (9.7.3.22)"));
  t.near("tanh.approx.f16", Kind::F16, {Kind::F16}, within(0x1.3p-10, 0, "absolute error of 2^-10.987 (9.7.4.9)"));
  t.near("tanh.approx.f16x2", Kind::F16x2, {Kind::F16x2},
         within(0x1.3p-10, 0, "absolute error of 2^-10.987 (9.7.4.9)"));
  t.near("tanh.approx.bf16", Kind::BF16, {Kind::BF16}, within(0x1.8p-8, 0, "absolute error of 2^-8 (9.7.4.9)"));
  t.near("tanh.approx.bf16x2", Kind::BF16x2, {Kind::BF16x2}, within(0x1.8p-8, 0, "absolute error of 2^-8 (9.7.4.9)"));
  t.near("ex2.approx.f16", Kind::F16, {Kind::F16}, within_ulps(2, "relative error of 2^-9.9 (9.7.4.10)"));
  t.near("ex2.approx.f16x2", Kind::F16x2, {Kind::F16x2}, within_ulps(2, "relative error of 2^-9.9 (9.7.4.10)"));
  t.near("ex2.approx.ftz.bf16", Kind::BF16, {Kind::BF16}, within_ulps(2, "relative error of 2^-7 (9.7.4.10)"));
  t.near("ex2.approx.ftz.bf16x2", Kind::BF16x2, {Kind::BF16x2}, within_ulps(2, "relative error of 2^-7 (9.7.4.10)"));
}

void add_conversions(Table t) {
  const Names integers = {"u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64"};
  const Names floats = {"f16", "bf16", "f32", "f64"};
  for (const std::string& to : integers)
    for (const std::string& from : integers)
      for (const char* sat : {"", ".sat"}) {
        // .sat: where the destination's range does not hold the source's (9.7.9.21).
        const int to_bits = std::stoi(to.substr(1)), from_bits = std::stoi(from.substr(1));
        if (*sat != 0 && (to[0] == from[0] ? to_bits >= from_bits : to[0] == 's' && to_bits > from_bits)) continue;
        t.exact("cvt" + std::string(sat) + "." + to + "." + from, integer_kind(to), {integer_kind(from)});
      }
  for (const std::string& i : integers)
    for (const std::string& f : floats) {
      const Kind k = integer_kind(i);
      if (k == Kind::B8 && f == "bf16") continue;  // ptxas has no such form
      for (const char* r : {"rn", "rz", "rm", "rp"}) {
        t.exact("cvt." + std::string(r) + "." + f + "." + i, float_kind(f), {k});
        if (f != "bf16") t.exact("cvt." + std::string(r) + ".sat." + f + "." + i, float_kind(f), {k});
      }
      for (const char* r : {"rni", "rzi", "rmi", "rpi"})
        for (const char* modifiers : {"", ".ftz", ".sat", ".ftz.sat"}) {
          const bool ftz = modifiers[0] != 0 && modifiers[1] == 'f';
          if (ftz && f != "f32") continue;
          if (f == "bf16" && *modifiers != 0) continue;
          t.exact("cvt." + std::string(r) + modifiers + "." + i + "." + f, k, {float_kind(f)});
        }
    }
  const std::vector<std::pair<std::string, std::string>> narrowing = {{"f16", "f32"},  {"f16", "f64"}, {"bf16", "f32"},
                                                                      {"bf16", "f64"}, {"f32", "f64"}, {"bf16", "f16"},
                                                                      {"f16", "bf16"}};
  for (const auto& [to, from] : narrowing)
    for (const char* r : {"rn", "rz", "rm", "rp"})
      for (const char* modifiers : {"", ".ftz", ".sat", ".ftz.sat"}) {
        const bool ftz = modifiers[0] != 0 && modifiers[1] == 'f',
                   sat = *modifiers != 0 && std::string(modifiers) != ".ftz";
        if (ftz && (from != "f32" && to != "f32")) continue;
        if (sat && (to == "bf16" || from == "bf16")) continue;
        if (ftz && to == "bf16") continue;
        t.exact("cvt." + std::string(r) + modifiers + "." + to + "." + from, float_kind(to), {float_kind(from)});
      }
  const std::vector<std::pair<std::string, std::string>> widening = {
      {"f32", "f16"}, {"f64", "f16"}, {"f64", "f32"}, {"f32", "bf16"}, {"f64", "bf16"}};
  for (const auto& [to, from] : widening)
    for (const char* modifiers : {"", ".ftz", ".sat", ".ftz.sat"}) {
      const bool ftz = modifiers[0] != 0 && modifiers[1] == 'f',
                 sat = *modifiers != 0 && std::string(modifiers) != ".ftz";
      if (ftz && (from == "bf16" || (from != "f32" && to != "f32"))) continue;
      if (sat && from == "bf16") continue;
      t.exact("cvt" + std::string(modifiers) + "." + to + "." + from, float_kind(to), {float_kind(from)});
    }
  for (const std::string& f : floats)
    for (const char* r : {"rni", "rzi", "rmi", "rpi"})
      for (const char* modifiers : {"", ".ftz", ".sat", ".ftz.sat"}) {
        const bool ftz = modifiers[0] != 0 && modifiers[1] == 'f';
        if ((ftz && f != "f32") || (f == "bf16" && *modifiers != 0)) continue;
        t.exact("cvt." + std::string(r) + modifiers + "." + f + "." + f, float_kind(f), {float_kind(f)});
      }
  const Kind s = Kind::F32, small = Kind::Small32;
  for (const char* r : {"rn", "rz"})
    for (const char* relu : {"", ".relu"})
      for (const char* finite : {"", ".satfinite"}) {
        const std::string m = std::string("cvt.") + r + relu + finite + ".";
        t.exact(m + "f16.f32", Kind::F16, {s});
        t.exact(m + "bf16.f32", Kind::BF16, {s});
        t.exact(m + "f16x2.f32", Kind::F16x2, {s, s});
        t.exact(m + "bf16x2.f32", Kind::BF16x2, {s, s});
      }
  for (const char* r : {"rn", "rz"})
    for (const char* relu : {"", ".relu"}) t.exact(std::string("cvt.") + r + relu + ".tf32.f32", Kind::F32, {s});
  t.exact("cvt.rna.tf32.f32", Kind::F32, {s});
  t.exact("cvt.rna.satfinite.tf32.f32", Kind::F32, {s});
  for (const char* f8 : {"e4m3x2", "e5m2x2"})
    for (const char* relu : {"", ".relu"}) {
      const std::string m = std::string("cvt.rn.satfinite") + relu + "." + f8 + ".";
      t.exact(m + "f32", Kind::B16, {small, small});
      t.exact(m + "f16x2", Kind::B16, {Kind::F16x2});
      t.exact(std::string("cvt.rn") + relu + ".f16x2." + f8, Kind::F16x2, {Kind::B16});
    }
  const Kind w = Kind::B32;
  for (const char* type : {"u16", "s16"}) t.exact(std::string("cvt.pack.sat.") + type + ".s32", w, {w, w});
  for (const char* type : {"u2", "s2", "u4", "s4", "u8", "s8"})
    t.exact(std::string("cvt.pack.sat.") + type + ".s32.b32", w, {w, w, w});
}

}  // namespace

void add_scalar_forms(Forms& forms) {
  add_integer({forms, "integer"});
  add_differences({forms, "integer"});
  add_logic({forms, "logic and moves"});
  add_comparisons({forms, "comparison"});
  add_float({forms, "floating point"});
}
void add_conversion_forms(Forms& forms) { add_conversions({forms, "conversion"}); }

}  // namespace bits
