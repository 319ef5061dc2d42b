// SPDX-License-Identifier: Apache-2.0
// The build's tool that puts headers into the library: it writes the table behind moxie::jit::embedded_headers().
//
//   embed_headers OUT.cpp OUT.d --own=FOLDER... --cuda=FOLDER... --root=NAME...
//
// Embedded are every header below FOLDER/moxie of the first --own folder, the named roots, and all that these include,
// directly and through others, as far as it lies in one of the folders. Conditions are not evaluated, so the result
// covers every compiler. OUT.d names the files read, for the build system.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <stdexcept>

#include "jit/sha256.h"
#include "jit/source_text.h"

namespace {

namespace fs = std::filesystem;
using namespace moxie::jit;

struct Header {
  fs::path file;
  bool own;
  std::string text;
  std::string digest;
  std::vector<std::string> includes;
};

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error(file.string() + " cannot be read");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The text without comments and needless blanks, every line in its place. The comment a file begins with holds its
// license, which goes wherever the file goes.
std::string compact(const std::string& source) {
  size_t license = source.find_first_not_of(" \t\r\n");
  if (license == std::string::npos) license = source.size();
  if (source.compare(license, 2, "/*") == 0) {
    license = std::min(source.find("*/", license), source.size() - 2) + 2;
  } else {
    while (source.compare(license, 2, "//") == 0) license = std::min(source.find('\n', license), source.size() - 1) + 1;
  }
  std::string text = source.substr(0, license);
  const std::string code = without_comments(std::string_view(source).substr(license));
  for (size_t at = 0; at < code.size();) {
    const size_t end = std::min(code.find('\n', at), code.size());
    const size_t first = std::min(code.find_first_not_of(" \t\r", at), end);
    size_t last = end;
    while (last > first && (code[last - 1] == ' ' || code[last - 1] == '\t' || code[last - 1] == '\r')) --last;
    text.append(code, first, last - first);
    text += '\n';
    at = end + 1;
  }
  return text;
}

class Table {
 public:
  std::vector<fs::path> own, cuda;

  void add(const std::string& name, bool wanted) {
    if (headers_.contains(name)) return;
    const auto [file, is_own] = find(name);
    if (file.empty()) {
      if (wanted) throw std::runtime_error("the CUDA Toolkit has no header " + name);
      return;  // a host header, which a condition skips on the device
    }
    const std::string source = read(file);
    Header header{file, is_own, is_own ? source : compact(source), sha256_hex(normalized(source)), includes_of(source)};
    if (header.text.find(")moxie_text\"") != std::string::npos || header.text.find('\0') != std::string::npos) {
      throw std::runtime_error(file.string() + " holds text that cannot be embedded");
    }
    const std::vector<std::string> includes = header.includes;
    headers_.emplace(name, std::move(header));
    for (const std::string& next : includes) add(next, is_own && next.starts_with("moxie/"));
  }

  void write(const fs::path& file) const {
    std::map<std::string, size_t> index;
    for (const auto& [name, header] : headers_) index.emplace(name, index.size());
    if (index.size() > 65535) throw std::runtime_error("too many headers to embed");
    std::string includes, entries;
    size_t count = 0;
    for (const auto& [name, header] : headers_) {
      const size_t begin = count;
      for (const std::string& include : header.includes) {
        const auto at = index.find(include);
        if (at == index.end()) continue;
        includes += std::to_string(at->second) + ",";
        ++count;
      }
      entries += "    {\"" + name + "\",\n     R\"moxie_text(" + header.text + ")moxie_text\",\n     \"" +
                 header.digest + "\", {kIncludes + " + std::to_string(begin) + ", " + std::to_string(count - begin) +
                 "}, " + (header.own ? "true" : "false") + "},\n";
    }
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out << "// Written by the build (cmake/embed_headers.cpp).\n#include \"jit/headers.h\"\n\nnamespace moxie::jit {\n"
        << "namespace {\n\nconstexpr uint16_t kIncludes[] = {" << includes << "0};\n\n"
        << "constexpr EmbeddedHeader kHeaders[] = {\n"
        << entries << "};\n\n}  // namespace\n\n"
        << "std::span<const EmbeddedHeader> embedded_headers() { return kHeaders; }\n\n}  // namespace moxie::jit\n";
    if (!out.flush()) throw std::runtime_error(file.string() + " cannot be written");
  }

  void write_dependencies(const fs::path& file, const fs::path& target) const {
    std::ofstream out(file, std::ios::trunc);
    out << target.string() << ":";
    for (const auto& [name, header] : headers_) out << " \\\n  " << header.file.string();
    out << "\n";
    if (!out.flush()) throw std::runtime_error(file.string() + " cannot be written");
  }

 private:
  std::pair<fs::path, bool> find(const std::string& name) const {
    for (const bool is_own : {true, false}) {
      for (const fs::path& folder : is_own ? own : cuda) {
        if (fs::is_regular_file(folder / name)) return {folder / name, is_own};
      }
    }
    return {};
  }

  std::map<std::string, Header> headers_;
};

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 3) {
    throw std::runtime_error("usage: embed_headers OUT.cpp OUT.d --own=FOLDER... --cuda=FOLDER... --root=NAME...");
  }
  Table table;
  std::vector<std::string> roots;
  for (size_t i = 2; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    const std::string option = arguments[i].substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : arguments[i].substr(equals + 1);
    if (option == "--own") {
      table.own.emplace_back(value);
    } else if (option == "--cuda") {
      table.cuda.emplace_back(value);
    } else if (option == "--root") {
      roots.push_back(value);
    } else {
      throw std::runtime_error("unknown argument " + arguments[i]);
    }
  }
  if (table.own.empty()) throw std::runtime_error("no --own folder");
  for (const auto& entry : fs::recursive_directory_iterator(table.own[0] / "moxie")) {
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || (extension != ".cuh" && extension != ".h")) continue;
    table.add(entry.path().lexically_relative(table.own[0]).generic_string(), true);
  }
  for (const std::string& name : roots) table.add(name, true);
  table.write(arguments[0]);
  table.write_dependencies(arguments[1], arguments[0]);
}

}  // namespace

int main(int count, char** values) {
  try {
    run({values + 1, values + count});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "embed_headers: " << error.what() << "\n";
    return 1;
  }
}
