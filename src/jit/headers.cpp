// SPDX-License-Identifier: Apache-2.0
// See headers.h.
#include "jit/headers.h"

#include <algorithm>

#include "jit/source_text.h"

namespace moxie::jit {

const std::map<std::string, std::string>& kernel_headers() {
  static const std::map<std::string, std::string> headers = [] {
    std::map<std::string, std::string> own;
    for (const EmbeddedHeader& header : embedded_headers()) {
      if (header.own) own.emplace(header.name, header.text);
    }
    return own;
  }();
  return headers;
}

std::vector<IncludedHeader> included_headers(std::string_view source, const std::map<std::string, std::string>& given) {
  const std::span<const EmbeddedHeader> table = embedded_headers();
  std::vector<bool> embedded(table.size(), false);
  std::vector<size_t> pending;
  std::map<std::string_view, const std::string*> taken;

  // A given header takes the place of an embedded one of the same name.
  const auto take = [&](const auto& self, std::string_view text) -> void {
    for (const std::string& name : includes_of(text)) {
      if (const auto at = given.find(name); at != given.end()) {
        if (taken.emplace(at->first, &at->second).second) self(self, at->second);
        continue;
      }
      const auto at = std::lower_bound(
          table.begin(), table.end(), name,
          [](const EmbeddedHeader& header, const std::string& wanted) { return header.name < wanted; });
      if (at != table.end() && at->name == name) pending.push_back(static_cast<size_t>(at - table.begin()));
    }
  };
  take(take, source);
  while (!pending.empty()) {
    const size_t index = pending.back();
    pending.pop_back();
    if (embedded[index]) continue;
    if (const auto at = given.find(table[index].name); at != given.end()) {
      if (taken.emplace(at->first, &at->second).second) take(take, at->second);
      continue;
    }
    embedded[index] = true;
    pending.insert(pending.end(), table[index].includes.begin(), table[index].includes.end());
  }

  std::vector<IncludedHeader> headers;
  for (const auto& [name, text] : taken) headers.push_back({name.data(), text->c_str(), nullptr});
  for (size_t i = 0; i < table.size(); ++i) {
    if (embedded[i]) headers.push_back({table[i].name, table[i].text, table[i].digest});
  }
  std::sort(headers.begin(), headers.end(),
            [](const IncludedHeader& a, const IncludedHeader& b) { return std::string_view(a.name) < b.name; });
  return headers;
}

}  // namespace moxie::jit
