// SPDX-License-Identifier: Apache-2.0
// The table of two machines' results: a row for each opcode, then what lies outside of its bounds.
#include "tests/bits/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>

namespace bits {
namespace {

constexpr char kMagic[] = "instruction bits 1\n";

void put(std::ofstream& out, const std::string& text) {
  const uint32_t size = static_cast<uint32_t>(text.size());
  out.write(reinterpret_cast<const char*>(&size), 4);
  out.write(text.data(), size);
}
std::string get(std::ifstream& in) {
  uint32_t size = 0;
  in.read(reinterpret_cast<char*>(&size), 4);
  std::string text(in ? size : 0, 0);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in) throw std::runtime_error("the results file ends early");
  return text;
}

struct Layout {
  int bytes, exponent_bits, mantissa_bits;  // exponent_bits 0: no number
};
Layout layout_of(Kind kind) {
  switch (kind) {
    case Kind::F16:
    case Kind::F16x2:
      return {2, 5, 10};
    case Kind::BF16:
    case Kind::BF16x2:
      return {2, 8, 7};
    case Kind::F32:
    case Kind::Small32:
    case Kind::Angle32:
    case Kind::Wide32:
      return {4, 8, 23};
    case Kind::F64:
      return {8, 11, 52};
    default:
      return {std::min(bytes_of(kind), 8), 0, 0};
  }
}

uint64_t element(const std::vector<uint8_t>& bytes, size_t index, int size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + index * static_cast<size_t>(size), static_cast<size_t>(size));
  return value;
}
bool is_nan(uint64_t code, const Layout& l) {
  const uint64_t magnitude = code & ((uint64_t{1} << (l.exponent_bits + l.mantissa_bits)) - 1);
  return magnitude > ((uint64_t{1} << l.exponent_bits) - 1) << l.mantissa_bits;
}
double number(uint64_t code, const Layout& l) {
  const int64_t exponent = static_cast<int64_t>(code >> l.mantissa_bits & ((uint64_t{1} << l.exponent_bits) - 1));
  const double mantissa = static_cast<double>(code & ((uint64_t{1} << l.mantissa_bits) - 1));
  const double sign = code >> (l.exponent_bits + l.mantissa_bits) & 1 ? -1 : 1;
  const int bias = (1 << (l.exponent_bits - 1)) - 1;
  if (exponent == (1 << l.exponent_bits) - 1) return sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - l.mantissa_bits);
  return sign *
         std::ldexp(mantissa + std::ldexp(1.0, l.mantissa_bits), static_cast<int>(exponent) - bias - l.mantissa_bits);
}
// Codes in the order of their values.
int64_t ordered(uint64_t code, const Layout& l) {
  const uint64_t sign = uint64_t{1} << (l.exponent_bits + l.mantissa_bits);
  return code & sign ? -static_cast<int64_t>(code & (sign - 1)) : static_cast<int64_t>(code & (sign - 1));
}

struct Difference {
  size_t elements = 0, unequal = 0, payloads = 0, outside = 0, first_outside = 0;
  double ulps = 0, absolute = 0, relative = 0;
};

Difference difference_of(const Form& form, const std::vector<uint8_t>& x, const std::vector<uint8_t>& y) {
  Difference d;
  const Layout l = layout_of(form.result);
  d.elements = std::min(x.size(), y.size()) / static_cast<size_t>(l.bytes);
  for (size_t i = 0; i < d.elements; ++i) {
    const uint64_t a = element(x, i, l.bytes), b = element(y, i, l.bytes);
    if (a == b) continue;
    bool fine = false;
    if (l.exponent_bits != 0 && is_nan(a, l) && is_nan(b, l) && !form.agreement.nan_bits) {
      ++d.payloads;
      continue;
    }
    ++d.unequal;
    if (l.exponent_bits != 0 && !is_nan(a, l) && !is_nan(b, l)) {
      const double p = number(a, l), q = number(b, l);
      if (std::isfinite(p) && std::isfinite(q)) {
        const double ulps = std::abs(static_cast<double>(ordered(a, l) - ordered(b, l))), absolute = std::abs(p - q);
        const double relative = absolute / std::max(std::abs(p), std::abs(q));
        d.ulps = std::max(d.ulps, ulps);
        d.absolute = std::max(d.absolute, absolute);
        d.relative = std::max(d.relative, relative);
        fine = !form.agreement.defined && (ulps <= form.agreement.ulps || absolute <= form.agreement.absolute ||
                                           relative <= form.agreement.relative);
      } else if (!form.agreement.defined && form.agreement.ulps > 0) {
        fine = std::abs(static_cast<double>(ordered(a, l) - ordered(b, l))) <= form.agreement.ulps;
      }
    }
    if (!fine && d.outside++ == 0) d.first_outside = i;
  }
  return d;
}

void show(const Form& form, const Difference& d, const Results& first, const Results& second, const Result& a,
          const Result& b) {
  const Layout l = layout_of(form.result);
  std::printf("\n%s: %zu of %zu elements differ, %zu outside of the bounds\n", form.name.c_str(), d.unequal, d.elements,
              d.outside);
  const std::vector<uint8_t> input = input_of(form);
  int shown = 0;
  for (size_t i = d.first_outside; i < d.elements && shown < 6; ++i) {
    const uint64_t p = element(a.bytes, i, l.bytes), q = element(b.bytes, i, l.bytes);
    if (p == q || (l.exponent_bits != 0 && is_nan(p, l) && is_nan(q, l) && !form.agreement.nan_bits)) continue;
    ++shown;
    std::printf("  element %zu: %0*llx (%s), %0*llx (%s)", i, l.bytes * 2, static_cast<unsigned long long>(p),
                first.machine.c_str(), l.bytes * 2, static_cast<unsigned long long>(q), second.machine.c_str());
    size_t at = 0;
    if (!form.operands.empty()) std::printf("; operands");
    const size_t thread =
        i * static_cast<size_t>(l.bytes) / static_cast<size_t>(bytes_of(form.result)) % kScalarThreads;
    for (Kind kind : form.operands) {
      uint64_t value = 0;
      const size_t bytes = static_cast<size_t>(bytes_of(kind));
      std::memcpy(&value, input.data() + at + thread * bytes, bytes);
      std::printf(" %0*llx", static_cast<int>(bytes) * 2, static_cast<unsigned long long>(value));
      at += bytes * kScalarThreads;
    }
    std::printf("\n");
  }
}

std::string opcode_of(const std::string& name) { return name.substr(0, name.find_first_of(". ,")); }

struct Row {
  size_t forms = 0, equal = 0, payload_only = 0, bounded = 0, outside = 0, refused = 0;
  std::string note;
};

}  // namespace

void write(const Results& results, const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  out.write(kMagic, sizeof kMagic - 1);
  put(out, results.machine);
  for (const Result& r : results.forms) {
    put(out, r.name);
    put(out, r.error);
    put(out, std::string(r.bytes.begin(), r.bytes.end()));
  }
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

Results read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  char magic[sizeof kMagic] = {};
  in.read(magic, sizeof kMagic - 1);
  if (!in || std::strcmp(magic, kMagic) != 0) throw std::runtime_error(path + " is no results file");
  Results results;
  results.machine = get(in);
  while (in.peek() != EOF) {
    Result r;
    r.name = get(in);
    r.error = get(in);
    const std::string bytes = get(in);
    r.bytes.assign(bytes.begin(), bytes.end());
    results.forms.push_back(std::move(r));
  }
  return results;
}

int compare(const Forms& forms, const Results& first, const Results& second, bool all) {
  std::map<std::string, const Result*> left, right;
  for (const Result& r : first.forms) left[r.name] = &r;
  for (const Result& r : second.forms) right[r.name] = &r;
  std::map<std::string, Row> rows;
  std::vector<std::string> refusals;
  int outside = 0;
  for (const Form& form : forms) {
    const auto a = left.find(form.name), b = right.find(form.name);
    if (a == left.end() || b == right.end()) continue;
    Row& row = rows[opcode_of(form.name)];
    ++row.forms;
    if (!a->second->error.empty() || !b->second->error.empty()) {
      ++row.refused;
      for (const auto& [result, machine] : {std::pair(a->second, &first), std::pair(b->second, &second)})
        if (!result->error.empty())
          refusals.push_back(form.name + " (" + machine->machine +
                             "): " + result->error.substr(0, result->error.find('\n')));
      continue;
    }
    const Difference d = difference_of(form, a->second->bytes, b->second->bytes);
    if (d.outside != 0) {
      ++row.outside;
      ++outside;
      show(form, d, first, second, *a->second, *b->second);
    } else if (d.unequal != 0) {
      ++row.bounded;
      if (row.note.find(form.agreement.note) == std::string::npos)
        row.note += (row.note.empty() ? "" : "; ") + form.agreement.note;
    } else if (d.payloads != 0) {
      ++row.payload_only;
    } else {
      ++row.equal;
    }
    if (all)
      std::printf("%s\t%zu elements, %zu unequal, %zu NaN payloads, %g ulp, %g absolute, %g relative\n",
                  form.name.c_str(), d.elements, d.unequal, d.payloads, d.ulps, d.absolute, d.relative);
  }
  std::printf("\n%s against %s\n\n", first.machine.c_str(), second.machine.c_str());
  std::printf(
      "| opcode | forms | equal bits | equal but for NaN payloads | within bounds | outside | not run | what the ISA "
      "leaves open |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  Row total;
  for (const auto& [opcode, row] : rows) {
    std::printf("| %s | %zu | %zu | %zu | %zu | %zu | %zu | %s |\n", opcode.c_str(), row.forms, row.equal,
                row.payload_only, row.bounded, row.outside, row.refused, row.note.c_str());
    total.forms += row.forms;
    total.equal += row.equal;
    total.payload_only += row.payload_only;
    total.bounded += row.bounded;
    total.outside += row.outside;
    total.refused += row.refused;
  }
  std::printf("| all | %zu | %zu | %zu | %zu | %zu | %zu | |\n", total.forms, total.equal, total.payload_only,
              total.bounded, total.outside, total.refused);
  if (!refusals.empty()) std::printf("\nnot run:\n");
  for (const std::string& refusal : refusals) std::printf("  %s\n", refusal.c_str());
  return outside;
}

namespace {

uint64_t digest_of(const Form& form, const std::vector<uint8_t>& bytes) {
  const Layout l = layout_of(form.result);
  std::string canonical(bytes.begin(), bytes.end());
  const uint64_t nan = (uint64_t{1} << (l.exponent_bits + l.mantissa_bits)) - 1;
  for (size_t i = 0;
       l.exponent_bits != 0 && !form.agreement.nan_bits && i < bytes.size() / static_cast<size_t>(l.bytes); ++i)
    if (is_nan(element(bytes, i, l.bytes), l))
      std::memcpy(canonical.data() + i * static_cast<size_t>(l.bytes), &nan, static_cast<size_t>(l.bytes));
  return seed_of(canonical);
}

}  // namespace

void write_digest(const Forms& forms, const Results& results, const std::string& path) {
  std::map<std::string, const Result*> by_name;
  for (const Result& r : results.forms) by_name[r.name] = &r;
  FILE* const out = std::fopen(path.c_str(), "w");
  if (out == nullptr) throw std::runtime_error("cannot write " + path);
  std::fprintf(out, "# %s\n", results.machine.c_str());
  for (const Form& form : forms) {
    const auto found = by_name.find(form.name);
    if (!form.agreement.defined || found == by_name.end() || !found->second->error.empty()) continue;
    std::fprintf(out, "%08llx %016llx\n", static_cast<unsigned long long>(seed_of(form.name) & 0xffffffff),
                 static_cast<unsigned long long>(digest_of(form, found->second->bytes)));
  }
  std::fclose(out);
}

int check_digest(const Forms& forms, const Results& results, const std::string& path) {
  std::ifstream in(path);
  if (!in) throw std::runtime_error("cannot read " + path);
  std::map<uint64_t, uint64_t> wanted;
  for (std::string line; std::getline(in, line);) {
    unsigned long long name = 0, digest = 0;
    if (std::sscanf(line.c_str(), "%llx %llx", &name, &digest) == 2) wanted[name] = digest;
  }
  std::map<std::string, const Result*> by_name;
  for (const Result& r : results.forms) by_name[r.name] = &r;
  int different = 0, compared = 0, missing = 0;
  for (const Form& form : forms) {
    const auto want = wanted.find(seed_of(form.name) & 0xffffffff);
    const auto found = by_name.find(form.name);
    if (!form.agreement.defined || found == by_name.end()) continue;
    if (want == wanted.end()) {
      ++missing;
      std::printf("%s: no line in %s\n", form.name.c_str(), path.c_str());
      continue;
    }
    ++compared;
    if (found->second->error.empty() && digest_of(form, found->second->bytes) == want->second) continue;
    ++different;
    std::printf("%s: not the bits of %s\n", form.name.c_str(), path.c_str());
  }
  std::printf("%d of %d forms differ from %s\n", different, compared, path.c_str());
  if (missing != 0)
    std::printf(
        "%d of %d forms have no line in %s: no GPU has said what their bits are, see \"A new form\" in "
        "docs/instruction_bits.md\n",
        missing, missing + compared, path.c_str());
  return compared == 0 ? 1 : different + missing;
}

}  // namespace bits
