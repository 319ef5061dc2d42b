// SPDX-License-Identifier: Apache-2.0
// Forms of loads, stores, atomic operations and the copies of single threads (PTX ISA 9.7.9.8 to .11, 9.7.13.5, .6,
// 9.7.9.25.3).
#include <algorithm>
#include <cstring>

#include "tests/bits/form.h"

namespace bits {
namespace {

constexpr uint32_t kThreads = 256;

int size_of(const std::string& type) {
  const std::string digits = type.substr(type.find_first_of("0123456789"));
  return digits.find('x') != std::string::npos ? 4 : std::stoi(digits) / 8;
}
void random_bytes(Random& random, uint8_t* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(random());
}

// r0.. hold `count` elements; returns {r0, r1} or r0.
std::string vector_of(int count, const std::string& name = "r") {
  std::string list;
  for (int i = 0; i < count; ++i) list += (i ? ", " : "") + name + std::to_string(i);
  return count == 1 ? list : "{" + list + "}";
}

// Loads of every width through every space: what arrives in the (wider) registers.
void add_loads(Forms& forms) {
  const auto add = [&](const std::string& space, const std::string& modifiers, const std::string& type, int count) {
    const int bytes = size_of(type), step = 32, row = bytes == 8 ? 8 : 4;
    const std::string vector = count == 1 ? "" : ".v" + std::to_string(count);
    Form f;
    f.family = "memory";
    f.name = "ld" + modifiers + (space.empty() ? "" : "." + space) + vector + "." + type;
    // The order of modifiers is: semantics, scope, space, cache operator, hints, vector, type.
    if (modifiers == ".nc" || modifiers[0] == '_') {
      const std::string late = modifiers == ".nc" ? ".nc" : modifiers.substr(1);
      f.name = "ld" + (space.empty() ? "" : "." + space) + late + vector + "." + type;
    }
    f.threads = kThreads;
    f.in_bytes = kThreads * step;
    f.out_bytes = kThreads * static_cast<size_t>(row * count);
    f.shared = kThreads * step;
    f.fill = [](Random& random, uint8_t* to) { random_bytes(random, to, kThreads * step); };
    const std::string reg = row == 8 ? ".b64" : ".b32";
    std::string body =
        ".reg .b64 from, to, g;\n .reg " + reg + " r<4>;\n .reg .b32 s, q<4>;\n mad.wide.u32 from, t, 32, in;\n";
    std::string address = "from";
    if (space == "shared" || space == "shared::cta" || space == "shared::cluster" || space == "generic") {
      body +=
          " mov.u32 s, smem;\n mad.lo.u32 s, t, 32, s;\n"
          " ld.global.v4.b32 {q0, q1, q2, q3}, [from];\n st.shared.v4.b32 [s], {q0, q1, q2, q3};\n"
          " ld.global.v4.b32 {q0, q1, q2, q3}, [from+16];\n st.shared.v4.b32 [s+16], {q0, q1, q2, q3};\n";
      address = "s";
    } else if (space == "local") {
      body +=
          " .local .align 16 .b8 own[32];\n mov.u32 s, own;\n"
          " ld.global.v4.b32 {q0, q1, q2, q3}, [from];\n st.local.v4.b32 [s], {q0, q1, q2, q3};\n"
          " ld.global.v4.b32 {q0, q1, q2, q3}, [from+16];\n st.local.v4.b32 [s+16], {q0, q1, q2, q3};\n";
      address = "s";
    }
    if (space == "generic") {
      f.name = "ld" + vector + "." + type + ", generic address of shared";
      body +=
          " cvt.u64.u32 g, s;\n cvta.shared.u64 g, g;\n ld" + vector + "." + type + " " + vector_of(count) + ", [g];\n";
    } else {
      body += " " + f.name + " " + vector_of(count) + ", [" + address + "];\n";
    }
    body += " mad.wide.u32 to, t, " + std::to_string(row * count) + ", out;\n";
    for (int i = 0; i < count; ++i)
      body += " st.global.b" + std::to_string(row * 8) + " [to+" + std::to_string(i * row) + "], r" +
              std::to_string(i) + ";\n";
    f.body = body;
    forms.push_back(f);
  };
  for (const char* space : {"global", "shared", "shared::cta", "shared::cluster", "local", "generic", ""})
    for (const char* type :
         {"u8", "s8", "b8", "u16", "s16", "b16", "u32", "s32", "b32", "f32", "u64", "s64", "b64", "f64"})
      for (int count : {1, 2, 4})
        if (count * size_of(type) <= 16) add(space, "", type, count);
  for (const char* type : {"u8", "s16", "b32", "f64"}) {
    add("global", ".nc", type, 1);
    for (const char* cache :
         {"_.ca", "_.cg", "_.cs", "_.cv", "_.lu", "_.L1::evict_last", "_.L1::no_allocate", "_.L2::128B"})
      add("global", cache, type, 1);
    for (const char* space : {"global", "shared"}) {
      add(space, ".volatile", type, 1);
      for (const char* order : {".relaxed.gpu", ".acquire.gpu", ".relaxed.cta", ".acquire.sys", ".acquire.cluster"})
        add(space, order, type, 1);
    }
  }
  add("global", ".nc", "b32", 4);
  add("global", ".nc", "u8", 4);
}

// Stores of every width: the bytes beside them stay.
void add_stores(Forms& forms) {
  const auto add = [&](const std::string& space, const std::string& modifiers, const std::string& late,
                       const std::string& type, int count) {
    const int bytes = size_of(type), row = bytes == 8 ? 8 : 4;
    const std::string vector = count == 1 ? "" : ".v" + std::to_string(count);
    Form f;
    f.family = "memory";
    f.name = "st" + modifiers + (space.empty() ? "" : "." + space) + late + vector + "." + type;
    f.threads = kThreads;
    f.in_bytes = kThreads * 32;
    f.out_bytes = kThreads * 32;
    f.shared = kThreads * 32;
    f.fill = [](Random& random, uint8_t* to) { random_bytes(random, to, kThreads * 32); };
    std::string body = std::string(".reg .b64 from, to;\n .reg ") + (row == 8 ? ".b64" : ".b32") +
                       " r<4>;\n .reg .b32 s, q<4>;\n mad.wide.u32 from, t, 32, in;\n mad.wide.u32 to, t, 32, out;\n";
    for (int i = 0; i < count; ++i)
      body += " ld.global.b" + std::to_string(row * 8) + " r" + std::to_string(i) + ", [from+" +
              std::to_string(i * row) + "];\n";
    const bool memory = space == "global" || space.empty();
    std::string address = "to", window = space == "local" ? "local" : "shared";
    if (!memory) {
      body += space == "local" ? " .local .align 16 .b8 own[32];\n mov.u32 s, own;\n"
                               : " mov.u32 s, smem;\n mad.lo.u32 s, t, 32, s;\n";
      for (int i = 0; i < 8; ++i) body += " st." + window + ".b32 [s+" + std::to_string(4 * i) + "], 0x5a5a5a5a;\n";
      address = "s";
    }
    body += " " + f.name + " [" + address + "], " + vector_of(count) + ";\n";
    if (!memory)
      for (int i = 0; i < 8; ++i)
        body += " ld." + window + ".b32 q0, [s+" + std::to_string(4 * i) + "];\n st.global.b32 [to+" +
                std::to_string(4 * i) + "], q0;\n";
    f.body = body;
    forms.push_back(f);
  };
  for (const char* space : {"global", "shared", "shared::cta", "shared::cluster", "local", ""})
    for (const char* type :
         {"u8", "s8", "b8", "u16", "s16", "b16", "u32", "s32", "b32", "f32", "u64", "s64", "b64", "f64"})
      for (int count : {1, 2, 4})
        if (count * size_of(type) <= 16) add(space, "", "", type, count);
  for (const char* type : {"u8", "b16", "f32", "s64"}) {
    for (const char* late : {".wb", ".cg", ".cs", ".wt", ".L1::evict_first"}) add("global", "", late, type, 1);
    for (const char* order : {".volatile", ".relaxed.cta", ".release.gpu", ".relaxed.sys", ".release.cluster"})
      for (const char* space : {"global", "shared"}) add(space, order, "", type, 1);
  }
}

Kind kind_of(const std::string& type) {
  if (type == "f16") return Kind::F16;
  if (type == "bf16") return Kind::BF16;
  if (type == "f16x2") return Kind::F16x2;
  if (type == "bf16x2") return Kind::BF16x2;
  if (type == "f32") return Kind::F32;
  if (type == "f64") return Kind::F64;
  return size_of(type) == 2 ? Kind::B16 : size_of(type) == 4 ? Kind::B32 : Kind::B64;
}

// Every thread has its own place of `count` elements: the output is the places, then what atom returned. The input has
// the same layout and behind it the operands b and c.
void add_atomic(Forms& forms, const std::string& space, const std::string& op, const std::string& type, int count = 1) {
  for (const bool returns : {true, false}) {
    if (!returns && (op == "exch" || op == "cas")) continue;
    const bool half = type.find("f16") != std::string::npos;
    const std::string vector = count == 1 ? "" : ".v" + std::to_string(count);
    const std::string where = space == "generic" ? "" : "." + space;
    Form f;
    f.family = "atomics";
    f.name = std::string(returns ? "atom" : "red") + where + "." + op + (half ? ".noftz" : "") + vector + "." + type;
    const Kind kind = kind_of(type);
    const int bytes = size_of(type), each = bytes * count;
    const size_t places = kThreads * static_cast<size_t>(each);
    f.threads = kThreads;
    f.shared = static_cast<uint32_t>(places);
    f.in_bytes = 4 * places;
    f.out_bytes = 2 * places;
    f.output_is_filled = true;
    f.result = kind;
    f.fill = [=](Random& random, uint8_t* to) {
      for (size_t row = 0; row < 4; ++row)
        for (size_t i = 0; i < kThreads * static_cast<size_t>(count); ++i) {
          const uint64_t v = value_of(kind, random, i * 3);
          for (int b = 0; b < bytes; b += 8) std::memcpy(to + b, &v, static_cast<size_t>(std::min(bytes, 8)));
          to += bytes;
        }
      if (op == "cas") {  // half of the comparisons hold
        uint8_t* base = to - 4 * places;
        for (size_t i = 0; i < kThreads; i += 2)
          std::memcpy(base + 2 * places + i * static_cast<size_t>(bytes), base + i * static_cast<size_t>(bytes),
                      static_cast<size_t>(bytes));
      }
    };
    const std::string s = std::to_string(bytes * 8), reg = ".b" + s;
    const auto offset = [&](size_t rows, int i) {
      return std::to_string(rows * places + static_cast<size_t>(i * bytes));
    };
    // b128 moves by halves, for loads of it are newer than its atomics.
    const auto load = [&](const std::string& to, const std::string& from) {
      return bytes == 16 ? " ld.global.v2.b64 {lo, hi}, [" + from + "];\n mov.b128 " + to + ", {lo, hi};\n"
                         : " ld.global" + reg + " " + to + ", [" + from + "];\n";
    };
    const auto store = [&](const std::string& space_name, const std::string& to, const std::string& from) {
      return bytes == 16 ? " mov.b128 {lo, hi}, " + from + ";\n st." + space_name + ".v2.b64 [" + to + "], {lo, hi};\n"
                         : " st." + space_name + reg + " [" + to + "], " + from + ";\n";
    };
    const std::string each_text = std::to_string(each);
    std::string body = ".reg .b64 from, to, g, lo, hi;\n .reg .b32 s;\n .reg " + reg +
                       " b<8>, c<8>, o<8>, m;\n mad.wide.u32 from, t, " + each_text + ", in;\n mad.wide.u32 to, t, " +
                       each_text + ", out;\n";
    for (int i = 0; i < count; ++i) {
      body += load("b" + std::to_string(i), "from+" + offset(2, i));
      body += load("c" + std::to_string(i), "from+" + offset(3, i));
    }
    std::string address = "to";
    const bool shared = space == "shared" || space == "shared::cta" || space == "shared::cluster";
    if (shared) {
      body += " mov.u32 s, smem;\n mad.lo.u32 s, t, " + each_text + ", s;\n";
      for (int i = 0; i < count; ++i)
        body += load("m", "from+" + offset(0, i)) + store("shared", "s+" + offset(0, i), "m");
      address = "s";
    }
    body += " " + f.name + (returns ? " " + vector_of(count, "o") + "," : "") + " [" + address + "], " +
            vector_of(count, "b") + (op == "cas" ? ", c0" : "") + ";\n";
    for (int i = 0; i < count; ++i) {
      if (shared)
        body += (bytes == 16 ? " ld.shared.v2.b64 {lo, hi}, [s+" + offset(0, i) + "];\n mov.b128 m, {lo, hi};\n"
                             : " ld.shared" + reg + " m, [s+" + offset(0, i) + "];\n") +
                store("global", "to+" + offset(0, i), "m");
      if (returns) body += store("global", "to+" + offset(1, i), "o" + std::to_string(i));
    }
    f.body = body;
    forms.push_back(f);
  }
}

void add_atomics(Forms& forms) {
  for (const char* space : {"global", "shared", "generic", "shared::cta", "shared::cluster"}) {
    for (const char* type : {"u32", "s32", "u64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"})
      add_atomic(forms, space, "add", type);
    for (const char* op : {"min", "max"})
      for (const char* type : {"u32", "s32", "u64", "s64"}) add_atomic(forms, space, op, type);
    for (const char* op : {"and", "or", "xor"})
      for (const char* type : {"b32", "b64"}) add_atomic(forms, space, op, type);
    for (const char* op : {"inc", "dec"}) add_atomic(forms, space, op, "u32");
    for (const char* type : {"b32", "b64", "b128"}) add_atomic(forms, space, "exch", type);
    for (const char* type : {"b16", "b32", "b64", "b128"}) add_atomic(forms, space, "cas", type);
  }
  for (int count : {2, 4, 8})
    for (const char* type : {"f16", "bf16", "f16x2", "bf16x2", "f32"})
      for (const char* op : {"add", "min", "max"}) {
        if (size_of(type) * count > 16 || (std::string(type) == "f32" && std::string(op) != "add")) continue;
        add_atomic(forms, "global", op, type, count);
      }
  // Many threads on few places: the results do not depend on the order. inc wraps, so its bound is the same for all
  // threads of a place.
  for (const char* space : {"global", "shared"})
    for (const char* op : {"add.u32", "min.s32", "max.u64", "xor.b32", "or.b64", "and.b32", "add.u64", "inc.u32"}) {
      const std::string type = std::string(op).substr(4);
      const int bytes = size_of(type);
      Form f;
      f.family = "atomics";
      f.name = std::string("red.") + space + "." + op + ", 64 threads a place";
      f.threads = kThreads;
      f.shared = 64;
      f.in_bytes = 64 + kThreads * static_cast<size_t>(bytes);
      f.out_bytes = static_cast<size_t>(4 * bytes);
      f.output_is_filled = true;
      f.fill = [n = f.in_bytes](Random& random, uint8_t* to) { random_bytes(random, to, n); };
      const std::string s = std::to_string(bytes), reg = ".b" + std::to_string(bytes * 8);
      const bool shared = std::string(space) == "shared", wraps = std::string(op) == "inc.u32";
      f.body = ".reg .b64 from, to;\n .reg .b32 s, place;\n .reg " + reg +
               " b, m;\n and.b32 place, t, 3;\n mad.wide.u32 from, " + (wraps ? "place" : "t") + ", " + s +
               ", in;\n ld.global" + reg + " b, [from+64];\n" + (wraps ? " and.b32 b, b, 31;\n" : "") +
               " mad.wide.u32 to, place, " + s + ", out;\n mov.u32 s, smem;\n mad.lo.u32 s, place, " + s +
               ", s;\n .reg .pred first;\n setp.lt.u32 first, t, 4;\n" +
               (shared ? " ld.global" + reg + " m, [to];\n @first st.shared" + reg + " [s], m;\n bar.sync 0;\n" : "") +
               " red." + space + "." + op + " [" + (shared ? "s" : "to") + "], b;\n" +
               (shared ? " bar.sync 0;\n ld.shared" + reg + " m, [s];\n @first st.global" + reg + " [to], m;\n" : "");
      forms.push_back(f);
    }
}

// cp.async: the bytes beyond the source's size are zeros.
void add_thread_copies(Forms& forms) {
  const auto add = [&](const std::string& cache, int bytes, int kept) {
    Form f;
    f.family = "copies";
    const std::string instruction = "cp.async." + cache + ".shared.global";
    f.name = instruction + " of " + std::to_string(bytes) + " bytes" +
             (kept < 0 ? "" : ", source of " + std::to_string(kept));
    f.threads = kThreads;
    f.shared = kThreads * 32;
    f.in_bytes = f.out_bytes = kThreads * 32;
    f.fill = [](Random& random, uint8_t* to) { random_bytes(random, to, kThreads * 32); };
    f.body =
        ".reg .b64 from, to;\n .reg .b32 s, q<4>;\n mad.wide.u32 from, t, 32, in;\n mad.wide.u32 to, t, 32, out;\n"
        " mov.u32 s, smem;\n mad.lo.u32 s, t, 32, s;\n";
    for (int i = 0; i < 8; ++i) f.body += " st.shared.b32 [s+" + std::to_string(4 * i) + "], 0x5a5a5a5a;\n";
    f.body += " " + instruction + " [s+16], [from], " + std::to_string(bytes) +
              (kept < 0 ? "" : ", " + std::to_string(kept)) + ";\n cp.async.commit_group;\n cp.async.wait_group 0;\n";
    for (int i = 0; i < 8; ++i)
      f.body += " ld.shared.b32 q0, [s+" + std::to_string(4 * i) + "];\n st.global.b32 [to+" + std::to_string(4 * i) +
                "], q0;\n";
    forms.push_back(f);
  };
  for (int bytes : {4, 8, 16})
    for (int kept : {-1, 0, 1, 3, 4, 7, 11, 15, 16})
      if (kept <= bytes) add("ca", bytes, kept);
  for (int kept : {-1, 0, 5, 16}) add("cg", 16, kept);
}

}  // namespace

void add_memory_forms(Forms& forms) {
  add_loads(forms);
  add_stores(forms);
  add_atomics(forms);
  add_thread_copies(forms);
}

}  // namespace bits
