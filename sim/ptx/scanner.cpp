// SPDX-License-Identifier: Apache-2.0
// Scanner: text to identifiers, literals and constant expressions (PTX ISA 4.1 to 4.5).
#include "sim/ptx/scanner.h"

#include <charconv>
#include <cstring>

namespace sim::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }
bool is_follow(char c) { return is_word(c) || c == '$'; }  // 4.4
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f' || c == '\v'; }

std::string quoted(std::string_view text) {
  std::string s(1, '\'');
  s.append(text);
  s += '\'';
  return s;
}

int digit_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

using Kind = Constant::Kind;
Constant make_signed(int64_t v) { return {Kind::Signed, static_cast<uint64_t>(v)}; }
Constant make_unsigned(uint64_t v) { return {Kind::Unsigned, v}; }
Constant make_double(double v) {
  Constant c{Kind::Double, 0};
  std::memcpy(&c.bits, &v, 8);
  return c;
}

struct BinaryOperator {
  const char* text;
  int precedence;
};
// Longer spellings first. 4.5.4, table 4.
constexpr BinaryOperator kOperators[] = {{"||", 1}, {"&&", 2}, {"==", 6}, {"!=", 6}, {"<=", 7}, {">=", 7},
                                         {"<<", 8}, {">>", 8}, {"|", 3},  {"^", 4},  {"&", 5},  {"<", 7},
                                         {">", 7},  {"+", 9},  {"-", 9},  {"*", 10}, {"/", 10}, {"%", 10}};

}  // namespace

double Constant::as_double() const {
  switch (kind) {
    case Kind::Signed:
      return static_cast<double>(static_cast<int64_t>(bits));
    case Kind::Unsigned:
      return static_cast<double>(bits);
    case Kind::Double: {
      double d;
      std::memcpy(&d, &bits, 8);
      return d;
    }
    case Kind::Single:
      break;
  }
  float f;
  const uint32_t word = static_cast<uint32_t>(bits);
  std::memcpy(&f, &word, 4);
  return f;
}

void Scanner::skip_line() {
  while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
}

void Scanner::skip_space() {
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    if (c == '\n') {
      ++pos_;
      ++line_;
      line_start_ = pos_;
      if (peek_raw() == '#' || (peek_raw() == '@' && peek_raw(1) == '@')) skip_line();  // cpp lines, @@DWARF lines
    } else if (is_space(c)) {
      ++pos_;
    } else if (c == '/' && peek_raw(1) == '/') {
      skip_line();
    } else if (c == '/' && peek_raw(1) == '*') {
      const Location start = where();
      pos_ += 2;
      while (!(peek_raw() == '*' && peek_raw(1) == '/')) {
        if (pos_ >= text_.size()) throw ParseError(start, "this comment is never closed");
        if (text_[pos_] == '\n') {
          ++line_;
          line_start_ = pos_ + 1;
        }
        ++pos_;
      }
      pos_ += 2;
    } else {
      return;
    }
  }
}

bool Scanner::at_end() {
  skip_space();
  return pos_ >= text_.size();
}

char Scanner::peek() {
  skip_space();
  return peek_raw();
}

bool Scanner::accept(char c) {
  if (at_end() || text_[pos_] != c) return false;
  ++pos_;
  return true;
}

std::string Scanner::next_for_message() {
  if (at_end()) return "the end of the text";
  size_t n = 0;
  while (n < 40 && is_follow(peek_raw(n))) ++n;
  if (n == 0 && (peek_raw() == '.' || peek_raw() == '%'))
    for (n = 1; n < 40 && is_follow(peek_raw(n));) ++n;
  if (n == 0) n = 1;
  if (n == 1 && (peek_raw() < 32 || peek_raw() > 126))
    return "a character with code " + std::to_string(static_cast<unsigned char>(peek_raw()));
  return quoted(text_.substr(pos_, n));
}

void Scanner::expect(char c, const char* where_text) {
  if (!accept(c)) fail(std::string("expected '") + c + "' " + where_text + ", found " + next_for_message());
}

bool Scanner::accept_directive(std::string_view name) {
  skip_space();
  if (text_.substr(pos_, name.size()) != name || is_follow(peek_raw(name.size()))) return false;
  pos_ += name.size();
  return true;
}

bool Scanner::at_identifier() {
  const char c = peek();
  return is_letter(c) || ((c == '_' || c == '$' || c == '%') && is_follow(peek_raw(1)));
}

bool Scanner::at_number() {
  const char c = peek();
  return is_digit(c) || (c == '.' && is_digit(peek_raw(1)));
}

bool Scanner::at_negated_name() {
  Scanner ahead = *this;
  return ahead.accept('!') && ahead.at_identifier() && !ahead.at_warp_size();
}

bool Scanner::at_warp_size() const { return text_.substr(pos_, 7) == "WARP_SZ" && !is_follow(peek_raw(7)); }

std::string_view Scanner::identifier(const char* what) {
  if (!at_identifier()) fail(std::string("expected ") + what + ", found " + next_for_message());
  const size_t start = pos_++;
  while (is_follow(peek_raw())) ++pos_;
  return text_.substr(start, pos_ - start);
}

std::string_view Scanner::word() {
  const size_t start = pos_;
  while (is_word(peek_raw())) ++pos_;
  return text_.substr(start, pos_ - start);
}

bool Scanner::at_modifier() {
  skip_space();
  return peek_raw() == '.' && is_word(peek_raw(1)) && !(peek_raw(1) >= '0' && peek_raw(1) <= '9');
}

std::string_view Scanner::opcode_rest() {
  const size_t start = pos_;
  for (;;) {
    if (peek_raw() == '.' && is_word(peek_raw(1))) {
      pos_ += 1;
    } else if (peek_raw() == ':' && peek_raw(1) == ':' && is_word(peek_raw(2))) {
      pos_ += 2;
    } else {
      break;
    }
    while (is_word(peek_raw())) ++pos_;
  }
  return text_.substr(start, pos_ - start);
}

std::string Scanner::string_literal() {
  expect('"', "before a string");
  std::string s;
  while (peek_raw() != '"') {
    if (pos_ >= text_.size() || text_[pos_] == '\n') fail("this string is never closed");
    if (text_[pos_] == '\\' && pos_ + 1 < text_.size() && text_[pos_ + 1] != '\n') ++pos_;  // the escaped character
    s += text_[pos_++];
  }
  ++pos_;
  return s;
}

Constant Scanner::literal() {
  skip_space();
  const char second = peek_raw(1);
  if (peek_raw() == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
    const bool single = second == 'f' || second == 'F';
    const int digits = single ? 8 : 16;  // 4.5.2
    uint64_t bits = 0;
    for (int i = 0; i < digits; ++i) {
      const int v = digit_value(peek_raw(2 + i));
      if (v > 15) fail("a hexadecimal floating-point literal needs " + std::to_string(digits) + " digits");
      bits = bits << 4 | static_cast<uint64_t>(v);
    }
    if (is_follow(peek_raw(2 + digits)))
      fail("a hexadecimal floating-point literal has " + std::to_string(digits) + " digits");
    advance(2 + digits);
    return {single ? Kind::Single : Kind::Double, bits};
  }
  // A decimal point or an exponent makes it a double.
  size_t n = 0;
  while (is_digit(peek_raw(n))) ++n;
  const bool hex = n == 1 && peek_raw() == '0' && (second == 'x' || second == 'X');
  const bool binary_digits = n == 1 && peek_raw() == '0' && (second == 'b' || second == 'B');
  if (!hex && !binary_digits) {
    size_t end = n;
    if (peek_raw(end) == '.')
      for (++end; is_digit(peek_raw(end));) ++end;
    if (peek_raw(end) == 'e' || peek_raw(end) == 'E') {
      size_t exponent = end + 1;
      if (peek_raw(exponent) == '+' || peek_raw(exponent) == '-') ++exponent;
      if (is_digit(peek_raw(exponent)))
        for (end = exponent; is_digit(peek_raw(end));) ++end;
    }
    if (end > n) {
      double v = 0;
      const auto r = std::from_chars(text_.data() + pos_, text_.data() + pos_ + end, v);
      if (r.ec != std::errc() || r.ptr != text_.data() + pos_ + end)
        fail("'" + std::string(text_.substr(pos_, end)) + "' is not a floating-point number in range");
      advance(end);
      return make_double(v);
    }
  }
  const uint64_t base = hex ? 16 : binary_digits ? 2 : (peek_raw() == '0' && n > 1) ? 8 : 10;
  size_t i = hex || binary_digits ? 2 : 0;
  const size_t first = i;
  uint64_t value = 0;
  for (;; ++i) {
    const uint64_t v = static_cast<uint64_t>(digit_value(peek_raw(i)));
    if (v >= base) break;
    if (value > (UINT64_MAX - v) / base) fail("this integer does not fit in 64 bits");
    value = value * base + v;
  }
  if (i == first) fail("expected a number, found " + next_for_message());
  const bool is_unsigned = peek_raw(i) == 'U';
  if (is_unsigned) ++i;
  if (is_follow(peek_raw(i))) fail("expected a number, found " + next_for_message());
  advance(i);
  return is_unsigned || value > INT64_MAX ? make_unsigned(value) : make_signed(static_cast<int64_t>(value));
}

Constant Scanner::unary(int depth) {
  if (depth > kMaxDepth) fail("this expression is nested too deeply");
  const char c = peek();
  if (c == '+') {
    accept('+');
    return unary(depth + 1);
  }
  if (c == '-') {
    accept('-');
    Constant v = unary(depth + 1);
    if (v.kind == Kind::Double)
      v.bits ^= 1ull << 63;
    else if (v.kind == Kind::Single)
      v.bits ^= 1ull << 31;
    else
      v.bits = 0 - v.bits;
    return v;
  }
  if (c == '!' || c == '~') {
    accept(c);
    const Constant v = unary(depth + 1);
    if (!v.is_integer()) fail(std::string("'") + c + "' needs an integer");
    return c == '!' ? make_signed(v.bits == 0) : make_unsigned(~v.bits);
  }
  if (c == '(') {
    accept('(');
    if (peek() == '.') {  // 4.5.5: casts to .s64 and .u64
      accept('.');
      const std::string_view type = word();
      if (type != "s64" && type != "u64") fail("a cast in a constant expression is (.s64) or (.u64)");
      expect(')', "after a cast");
      Constant v = unary(depth + 1);
      if (!v.is_integer()) fail("a cast in a constant expression needs an integer");
      v.kind = type == "s64" ? Kind::Signed : Kind::Unsigned;
      return v;
    }
    const Constant v = ternary(depth + 1);
    expect(')', "after an expression");
    return v;
  }
  if (at_number()) return literal();
  if (at_warp_size()) {
    advance(7);
    return make_signed(32);
  }
  fail("expected a constant, found " + next_for_message());
}

Constant Scanner::binary(int min_precedence, int depth) {
  if (depth > kMaxDepth) fail("this expression is nested too deeply");
  Constant a = unary(depth + 1);
  for (;;) {
    skip_space();
    const BinaryOperator* op = nullptr;
    for (const BinaryOperator& candidate : kOperators) {
      if (text_.substr(pos_, std::strlen(candidate.text)) == candidate.text) {
        op = &candidate;
        break;
      }
    }
    // `%` before a name starts a register, not a remainder; the parser then reports what is missing.
    if (op == nullptr || op->precedence < min_precedence) return a;
    advance(std::strlen(op->text));
    const Constant b = binary(op->precedence + 1, depth + 1);
    const std::string_view o = op->text;
    const bool compares = op->precedence == 6 || op->precedence == 7;
    if (!a.is_integer() || !b.is_integer()) {
      if (a.kind == Kind::Single || b.kind == Kind::Single)
        fail("a 0f literal cannot be used in a constant expression");
      const double x = a.as_double(), y = b.as_double();
      if (o == "+")
        a = make_double(x + y);
      else if (o == "-")
        a = make_double(x - y);
      else if (o == "*")
        a = make_double(x * y);
      else if (o == "/")
        a = make_double(x / y);
      else if (o == "==")
        a = make_signed(x == y);
      else if (o == "!=")
        a = make_signed(x != y);
      else if (o == "<")
        a = make_signed(x < y);
      else if (o == "<=")
        a = make_signed(x <= y);
      else if (o == ">")
        a = make_signed(x > y);
      else if (o == ">=")
        a = make_signed(x >= y);
      else
        fail(quoted(o) + " needs integers");
      continue;
    }
    // The types of results are those of 4.5.6, table 5.
    const uint64_t x = a.bits, y = b.bits;
    const int64_t sx = static_cast<int64_t>(x), sy = static_cast<int64_t>(y);
    const bool is_unsigned = a.kind == Kind::Unsigned || b.kind == Kind::Unsigned;
    const Kind converted = is_unsigned ? Kind::Unsigned : Kind::Signed;
    if (o == "||")
      a = make_signed(x || y);
    else if (o == "&&")
      a = make_signed(x && y);
    else if (o == "|")
      a = make_unsigned(x | y);
    else if (o == "^")
      a = make_unsigned(x ^ y);
    else if (o == "&")
      a = make_unsigned(x & y);
    else if (o == "==")
      a = make_signed(x == y);
    else if (o == "!=")
      a = make_signed(x != y);
    else if (compares) {
      const bool less = is_unsigned ? x < y : sx < sy;
      a = make_signed(o == "<" ? less : o == ">=" ? !less : o == "<=" ? less || x == y : !(less || x == y));
    } else if (o == "<<")
      a.bits = y > 63 ? 0 : x << y;
    else if (o == ">>") {
      if (a.kind == Kind::Signed)
        a.bits = static_cast<uint64_t>(sx >> (y > 63 ? 63 : y));
      else
        a.bits = y > 63 ? 0 : x >> y;
    } else if (o == "+")
      a = {converted, x + y};
    else if (o == "-")
      a = {converted, x - y};
    else if (o == "*")
      a = {converted, x * y};
    else {
      if (y == 0) fail("a constant expression divides by zero");
      if (o == "%")
        a = make_signed(static_cast<int64_t>(x % y));
      else if (is_unsigned)
        a = make_unsigned(x / y);
      else
        a = sy == -1 ? make_signed(static_cast<int64_t>(0 - x)) : make_signed(sx / sy);
    }
  }
}

Constant Scanner::ternary(int depth) {
  const Constant condition = binary(1, depth + 1);
  if (peek() != '?') return condition;
  if (!condition.is_integer()) fail("the condition before '?' needs an integer");
  accept('?');
  Constant yes = ternary(depth + 1);
  expect(':', "in a conditional expression");
  Constant no = ternary(depth + 1);
  if (yes.is_integer() != no.is_integer()) fail("both results of '?:' must be integers or both floating-point");
  if (yes.kind == Kind::Unsigned || no.kind == Kind::Unsigned) yes.kind = no.kind = Kind::Unsigned;
  return condition.bits != 0 ? yes : no;
}

uint64_t Scanner::checked(const Constant& c, const char* what, uint64_t limit) const {
  if (!c.is_integer() || (c.kind == Kind::Signed && static_cast<int64_t>(c.bits) < 0) || c.bits > limit)
    fail(std::string(what) + " must be an integer from 0 to " + std::to_string(limit));
  return c.bits;
}

}  // namespace sim::ptx
