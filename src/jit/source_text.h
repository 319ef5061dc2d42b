// SPDX-License-Identifier: Apache-2.0
// What the cache and the build must know of C++ source text without compiling it: its comments, its white space and
// its #include lines. Plain text to text, also linked into the build's embedding tool.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace moxie::jit {

// The text with each comment replaced by one space. Line breaks inside a comment stay, so every line keeps its number.
// String, character and raw string literals are left as they are.
std::string without_comments(std::string_view source);

// The text that decides what is compiled: without comments, blank lines and indentation, and with one space where
// there were several. Two sources with equal results differ in layout alone.
std::string normalized(std::string_view source);

// The names that #include lines ask for, in the order of the text, with neither quotes nor brackets. Lines that a
// condition would skip are listed too. A name that a macro makes is not listed.
std::vector<std::string> includes_of(std::string_view source);

}  // namespace moxie::jit
