// SPDX-License-Identifier: Apache-2.0
// The files of tests/sim/hazards and tests/devices/hazards: a small kernel for each hazard. As it stands a file is
// right and must pass in every order. Broken, it must be reported in every order in the words that its head states:
// then the lines that end with "// missing" are gone and those behind "// broken:" are there. The head:
//   // What is wrong.
//   // report: the first line of the report, * for anything, {text} for the number of the PTX line that holds the text;
//              several such lines: one of them
//   // detail: likewise, a line behind the first; each must be there
//   // launch: 64 threads, cluster of 2, 3 clusters; with "in some orders" at the end it need not be reported in all
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace sim_test {

struct Example {
  std::string name;
  std::string mended, broken;
  std::vector<std::string> reports, details;
  uint32_t threads = 32, cluster = 1, clusters = 1;
  int arch = 90;
  bool in_some_orders = false;
};

inline void PrintTo(const Example& e, std::ostream* out) { *out << e.name; }

inline bool take(std::string& line, const std::string& prefix) {
  if (line.compare(0, prefix.size(), prefix) != 0) return false;
  line.erase(0, prefix.size());
  return true;
}

inline Example read_example(const std::filesystem::path& path) {
  Example e;
  e.name = path.stem().string();
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::string head = line;
    if (take(head, "// report: ")) e.reports.push_back(head);
    if (take(head, "// detail: ")) e.details.push_back(head);
    if (take(head, "// launch: ")) {
      std::sscanf(head.c_str(), "%u threads", &e.threads);
      if (const size_t at = head.find("cluster of "); at != std::string::npos)
        e.cluster = static_cast<uint32_t>(std::stoi(head.substr(at + 11)));
      if (const size_t at = head.find(" clusters"); at != std::string::npos)
        e.clusters = static_cast<uint32_t>(std::stoi(head.substr(head.rfind(' ', at - 1))));
      e.in_some_orders = head.find("in some orders") != std::string::npos;
    }
    if (take(head, ".target sm_")) e.arch = std::stoi(head);
    const size_t missing = line.rfind("// missing"), wrong = line.find("// broken: ");
    e.mended += line + "\n";
    // The lines keep their numbers.
    if (missing != std::string::npos && missing + 10 == line.size())
      e.broken += "\n";
    else if (wrong != std::string::npos)
      e.broken += line.substr(wrong + 11) + "\n";
    else
      e.broken += line + "\n";
  }
  return e;
}

inline std::vector<Example> examples(const char* folder) {
  std::vector<Example> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".ptx") all.push_back(read_example(entry.path()));
  }
  std::sort(all.begin(), all.end(), [](const Example& a, const Example& b) { return a.name < b.name; });
  return all;
}

// The report's pattern as a regular expression.
inline std::regex expression(const std::string& report) {
  std::string text;
  for (size_t i = 0; i < report.size(); ++i) {
    if (report[i] == '*') {
      text += ".*";
    } else if (report[i] == '{') {
      text += "([0-9]+)";
      i = report.find('}', i);
    } else {
      if (std::strchr("\\^$.|?+()[]}", report[i]) != nullptr) text += '\\';
      text += report[i];
    }
  }
  return std::regex(text);
}

// What stands between braces, in order.
inline std::vector<std::string> places(const std::string& report) {
  std::vector<std::string> all;
  for (size_t at = 0; (at = report.find('{', at)) != std::string::npos; ++at)
    all.push_back(report.substr(at + 1, report.find('}', at) - at - 1));
  return all;
}

inline std::string line_of(const std::string& text, const std::string& number) {
  std::istringstream lines(text);
  std::string line;
  for (int i = 0; i < std::stoi(number); ++i) std::getline(lines, line);
  return line;
}

inline bool fits(const std::string& said, const std::string& report, const std::string& kernel) {
  std::smatch match;
  if (!std::regex_match(said, match, expression(report))) return false;
  const std::vector<std::string> wanted = places(report);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (line_of(kernel, match[i + 1]).find(wanted[i]) == std::string::npos) return false;
  }
  return true;
}

inline bool has_line(const std::string& text, const std::string& pattern, const std::string& kernel) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.erase(0, line.find_first_not_of(' '));
    if (fits(line, pattern, kernel)) return true;
  }
  return false;
}

inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace sim_test
