// SPDX-License-Identifier: Apache-2.0
// See source_text.h. The scanner follows the C++ grammar's early phases as far as comments and literals need it.
#include "jit/source_text.h"

#include <algorithm>
#include <cctype>

namespace moxie::jit {
namespace {

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

enum class Piece { Code, Literal, Comment };

// Reads a source from its beginning to its end in pieces: literals, comments, and single characters of code.
class Scanner {
 public:
  explicit Scanner(std::string_view source) : source_(source) {}

  bool at_end() const { return at_ == source_.size(); }

  // The next piece, whose text is `text`.
  Piece next(std::string_view& text) {
    const size_t begin = at_;
    const Piece piece = advance();
    text = source_.substr(begin, at_ - begin);
    if (!is_name(text[0])) name_ = at_;  // no literal and no comment begins as a name does
    return piece;
  }

 private:
  Piece advance() {
    const std::string_view rest = source_.substr(at_);
    if (rest.starts_with("//")) {
      // A backslash before the line break carries the comment on to the next line.
      do {
        at_ = std::min(source_.find('\n', at_ + 1), source_.size());
      } while (at_ < source_.size() && continues());
      return Piece::Comment;
    }
    if (rest.starts_with("/*")) {
      const size_t end = source_.find("*/", at_ + 2);
      at_ = end == std::string_view::npos ? source_.size() : end + 2;
      return Piece::Comment;
    }
    if (rest[0] == '"') {
      if (ends_raw_prefix()) {
        raw_literal();
      } else {
        literal('"');
      }
      return Piece::Literal;
    }
    // Between digits an apostrophe is a separator.
    if (rest[0] == '\'' && !in_number()) {
      literal('\'');
      return Piece::Literal;
    }
    ++at_;
    return Piece::Code;
  }

  // At the end of a line of a comment, behind its two slashes at least.
  bool continues() const { return source_[at_ - 1] == '\\' || (source_[at_ - 1] == '\r' && source_[at_ - 2] == '\\'); }
  std::string_view word() const { return source_.substr(name_, at_ - name_); }
  bool ends_raw_prefix() const {
    const std::string_view prefix = word();
    return prefix == "R" || prefix == "u8R" || prefix == "uR" || prefix == "UR" || prefix == "LR";
  }
  bool in_number() const { return !word().empty() && std::isdigit(static_cast<unsigned char>(word()[0])) != 0; }

  // A line break ends a literal that was never closed, such as the apostrophe of an #error line.
  void literal(char quote) {
    for (++at_; at_ < source_.size() && source_[at_] != quote && source_[at_] != '\n'; ++at_) {
      if (source_[at_] == '\\' && at_ + 1 < source_.size()) ++at_;
    }
    if (at_ < source_.size() && source_[at_] == quote) ++at_;
  }
  void raw_literal() {
    const size_t open = source_.find('(', at_);
    const std::string close =
        open == std::string_view::npos ? "" : ")" + std::string(source_.substr(at_ + 1, open - at_ - 1)) + "\"";
    const size_t end = close.empty() ? open : source_.find(close, open);
    at_ = end == std::string_view::npos ? source_.size() : end + close.size();
  }

  std::string_view source_;
  size_t at_ = 0;
  size_t name_ = 0;  // where the name or number that ends here begins
};

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

}  // namespace

std::string without_comments(std::string_view source) {
  std::string text;
  Scanner scanner(source);
  for (std::string_view piece; !scanner.at_end();) {
    if (scanner.next(piece) == Piece::Comment) {
      text += ' ';
      text.append(static_cast<size_t>(std::count(piece.begin(), piece.end(), '\n')), '\n');
    } else {
      text += piece;
    }
  }
  return text;
}

std::string normalized(std::string_view source) {
  std::string text;
  bool blank = false;
  Scanner scanner(source);
  for (std::string_view piece; !scanner.at_end();) {
    const Piece kind = scanner.next(piece);
    if (kind == Piece::Comment || (kind == Piece::Code && is_blank(piece[0]))) {
      blank = true;
      continue;
    }
    const bool line_end = piece == "\n";
    const bool line_begin = text.empty() || text.back() == '\n';
    if (line_end && line_begin) continue;
    if (blank && !line_end && !line_begin) text += ' ';
    blank = false;
    text += piece;
  }
  if (!text.empty() && text.back() != '\n') text += '\n';
  return text;
}

std::vector<std::string> includes_of(std::string_view source) {
  std::vector<std::string> names;
  const std::string text = normalized(source);
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    const auto skip = [&line](std::string_view word) {
      if (!line.starts_with(word)) return false;
      line.remove_prefix(word.size());
      while (line.starts_with(' ')) line.remove_prefix(1);
      return true;
    };
    if (!skip("#") || !skip("include") || line.empty()) continue;
    const char close = line[0] == '<' ? '>' : '"';
    const size_t last = line.find(close, 1);
    if ((line[0] == '<' || line[0] == '"') && last != std::string_view::npos)
      names.emplace_back(line.substr(1, last - 1));
  }
  return names;
}

}  // namespace moxie::jit
