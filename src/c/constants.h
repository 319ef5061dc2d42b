// SPDX-License-Identifier: Apache-2.0
// Ties the constants of moxie/c.h to the enumerators that they stand for, when the library is compiled.
#pragma once
#include <string_view>

#include "moxie/names.h"

namespace moxie::c {

// A constant of moxie/c.h with its own name.
struct Constant {
  std::string_view name;
  int value;
};
#define MOXIE_CONSTANT(constant) \
  moxie::c::Constant { #constant, constant }

constexpr bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
constexpr char to_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

// Takes the CamelCase `words` in UPPER_CASE off the front of `name`: "RowGroups" takes "ROW_GROUPS".
constexpr bool take_words(std::string_view& name, std::string_view words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0 && is_upper(words[i])) {
      if (name.empty() || name.front() != '_') return false;
      name.remove_prefix(1);
    }
    if (name.empty() || name.front() != to_upper(words[i])) return false;
    name.remove_prefix(1);
  }
  return true;
}

// "MOXIE_GROUPING_ROW_GROUPS" stands for RowGroups of Grouping.
constexpr bool stands_for(std::string_view name, std::string_view type, std::string_view identifier) {
  constexpr std::string_view kPrefix = "MOXIE_";
  if (name.substr(0, kPrefix.size()) != kPrefix) return false;
  name.remove_prefix(kPrefix.size());
  if (!take_words(name, type) || name.empty() || name.front() != '_') return false;
  name.remove_prefix(1);
  return take_words(name, identifier) && name.empty();
}

// Whether these are all enumerators, in order, under their names and with their values plus `shift`.
template <class Enum, size_t count>
consteval bool are_enumerators(const Constant (&constants)[count], std::string_view type = EnumTable<Enum>::kType,
                               int shift = 0) {
  if (count != names<Enum>().size()) return false;
  for (size_t i = 0; i < count; ++i) {
    const EnumName<Enum>& name = names<Enum>()[i];
    if (constants[i].value != static_cast<int>(name.value) + shift) return false;
    if (!stands_for(constants[i].name, type, name.identifier)) return false;
  }
  return true;
}

}  // namespace moxie::c
