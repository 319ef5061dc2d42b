// SPDX-License-Identifier: Apache-2.0
// The options that several commands share: words become enumerators, and options a GemmDescription.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/errors.h"
#include "moxie/gemm.h"

namespace moxie::cli {

// Returns "a, b or c".
std::string join_words(const std::vector<std::string_view>& words);

// Throws InputError "--option: 'text' is none of a, b, c".
[[noreturn]] void reject_word(const std::string& option, const std::string& text,
                              const std::vector<std::string_view>& words);

// Returns the place of `text` among the words that the option takes. Throws InputError where it is none of them.
size_t choose(const std::string& option, const std::string& text, std::initializer_list<std::string_view> words);

template <class Enum>
std::vector<std::string_view> words_of() {
  std::vector<std::string_view> words;
  for (const EnumName<Enum>& name : names<Enum>()) words.push_back(name.text);
  return words;
}

// Returns the names of the enumerators as help texts list them.
template <class Enum>
std::string list_words() {
  return join_words(words_of<Enum>());
}

// Returns the enumerator that `text` names. Throws InputError where there is none.
template <class Enum>
Enum choose(const std::string& option, const std::string& text) {
  const std::optional<Enum> value = parse<Enum>(text);
  if (!value) reject_word(option, text, words_of<Enum>());
  return *value;
}

// Returns the enumerator that `text` names, and nothing for "auto", which leaves the choice to the plan.
template <class Enum>
std::optional<Enum> choose_or_auto(const std::string& option, const std::string& text) {
  if (text == "auto") return std::nullopt;
  const std::optional<Enum> value = parse<Enum>(text);
  if (value) return value;
  std::vector<std::string_view> words = words_of<Enum>();
  words.insert(words.begin(), "auto");
  reject_word(option, text, words);
}

// Returns "swiglu-oai, interleaved gate", or without a gate the name alone.
std::string describe_activation(Activation activation, GateLayout gate);

// The options that choose a kernel. Some of them name what only one architecture has.
struct KernelChoices {
  std::optional<WarpSchedule> schedule;
  std::optional<int> tile_m, tile_n, cluster;
  std::optional<Multicast> multicast;
  std::optional<TileSource> tile_source;
  std::optional<bool> swap_ab;

  // Writes them into the tuning of `arch` (90 or 100). Throws InputError for a choice that it does not have.
  void apply(GemmDescription& description, int arch) const;
};

// What to compute and how, without sizes.
struct ProductOptions {
  std::string activation = "none", gate, outputs = "out", out_dtype = "bf16", pre_dtype, schedule = "auto", tile;
  std::string multicast = "auto", scheduler = "auto", swap = "auto";
  int cluster = 0;
  void add_to(CLI::App& command);
  // Sets the activation and the outputs. Throws InputError that names the option.
  void apply(GemmDescription& description) const;
  KernelChoices choices() const;  // throws InputError that names the option
};

// Adds the option --gather, which sets `gather`.
void add_gather(CLI::App& command, bool& gather);

// Help of the option --format, and what it chooses: the format of both operands, on sm_90a mxfp4 that of b alone.
std::string format_help();
void set_format(GemmDescription& description, const std::string& text, int arch);

// A whole product without tensors: M, N, K and everything that goes with them.
struct ShapeOptions : ProductOptions {
  int64_t m = 0, n = 0, k = 0, groups = 1, expected = -1;
  std::string grouping, format = "bf16";
  std::vector<int64_t> rows;
  bool bias = false, gather = false;
  void add_to(CLI::App& command);
  GemmDescription description(int arch) const;
  // M for row groups, whose description does not hold it, else nothing.
  std::optional<int64_t> total() const;
};

// The device that kernels are meant for, which need not be there.
struct TargetOptions {
  std::string arch_name, device;
  std::optional<int> sms;
  void add_to(CLI::App& command);
  DeviceFigures figures() const;  // an H200's or a B200's where none is named; throws InputError
};

// Returns 90 or 100 for the name of an architecture. Throws InputError.
int choose_arch(const std::string& option, const std::string& text);

// Reads a text file of products, one a line in the words of `moxie plan`. # begins a comment, whose text goes to
// `names`. Throws InputError that names the line.
std::vector<GemmDescription> read_products(const std::string& path, int arch,
                                           std::vector<std::string>* names = nullptr);

// Returns every activation with its formula, for --help.
std::string activation_help();

}  // namespace moxie::cli
