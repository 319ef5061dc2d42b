// SPDX-License-Identifier: Apache-2.0
// Reads PTX text: white space and comments, identifiers, literals and constant expressions, and where they stand.
// PTX ISA section 4. The grammar of statements is in parser.cpp.
#pragma once
#include <string>
#include <string_view>

#include "sim/ptx/ast.h"

namespace sim::ptx {

// The value of a constant expression (4.5.4): a 64-bit integer, a double, or one exact single.
struct Constant {
  enum class Kind : uint8_t { Signed, Unsigned, Double, Single };
  Kind kind = Kind::Signed;
  uint64_t bits = 0;
  bool is_integer() const { return kind == Kind::Signed || kind == Kind::Unsigned; }
  double as_double() const;
};

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  void skip_space();  // white space, comments, preprocessor lines
  bool at_end();      // after white space
  char peek();        // next character after white space, 0 at the end
  char peek_raw(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\0'; }
  bool accept(char c);                           // skips white space, then takes c if it comes next
  void expect(char c, const char* where);        // "expected ';' after an instruction, found ..."
  bool accept_directive(std::string_view name);  // ".reg" and the like, a whole word

  bool at_identifier();
  bool at_number();
  bool at_negated_name();     // `!` and an identifier
  bool at_warp_size() const;  // at an identifier: the constant WARP_SZ
  std::string_view identifier(const char* what);
  std::string_view word();         // letters, digits and underscores, as in ".b32"; may be empty
  bool at_modifier();              // `.` and a letter
  std::string_view opcode_rest();  // what follows an opcode's first word: ".lo.s32", "::" kept
  std::string string_literal();
  void skip_line();

  Constant constant() { return ternary(0); }
  Constant term() { return binary(kTermPrecedence, 0); }  // for "+ addend" behind a symbol or register
  // A literal or parenthesised expression: what stands in "%r<2>" or between the numbers of .loc.
  uint64_t unsigned_integer(const char* what, uint64_t limit) { return checked(unary(0), what, limit); }
  uint64_t unsigned_expression(const char* what, uint64_t limit) { return checked(constant(), what, limit); }

  Location where() const { return {line_, static_cast<int>(pos_ - line_start_) + 1}; }
  [[noreturn]] void fail(const std::string& text) const { throw ParseError(where(), text); }
  std::string next_for_message();  // "'x'" or "the end of the text"
  size_t position() const { return pos_; }

 private:
  static constexpr int kTermPrecedence = 10;
  static constexpr int kMaxDepth = 64;
  void advance(size_t n) { pos_ += n; }
  uint64_t checked(const Constant& c, const char* what, uint64_t limit) const;
  Constant literal();
  Constant unary(int depth);
  Constant binary(int min_precedence, int depth);
  Constant ternary(int depth);

  std::string_view text_;
  size_t pos_ = 0;
  int line_ = 1;
  size_t line_start_ = 0;
};

}  // namespace sim::ptx
