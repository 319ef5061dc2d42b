// The options that several commands share: names of the variants, and how they become a GemmProblem.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "moxie/gemm.h"

namespace moxie::cli {

template <class T>
using Names = std::vector<std::pair<std::string, T>>;

// The value that `text` names; InputError "--option: 'text' is none of x, y, z" otherwise.
template <class T>
T choose(const std::string& option, const std::string& text, const Names<T>& names);

const Names<Grouping>& grouping_names();
const Names<Activation>& activation_names();
const Names<OperandFormat>& format_names();
std::string name_of(Grouping grouping);
std::string name_of(Activation activation, GateLayout gate);

// The chosen kernel in one line.
std::string plan_headline(const GemmProblem& problem, const DeviceInfo& device);

// What to compute and how, without shapes.
struct ProblemOptions {
  std::string activation = "none", gate, outputs = "out", out_dtype = "bf16", pre_dtype, schedule = "auto", tile;
  std::string multicast = "auto", scheduler = "auto", swap = "auto";
  int cluster = 0;
  void add_to(CLI::App& command);
  // Throws InputError that names the option.
  void apply(GemmProblem& problem) const;
};

// A whole problem without tensors: M N K and everything that goes with them.
struct ShapeOptions : ProblemOptions {
  int64_t m = 0, n = 0, k = 0, groups = 1, expected = -1;
  std::string grouping, format = "bf16";
  std::vector<int64_t> rows;
  bool bias = false;
  void add_to(CLI::App& command);
  GemmProblem problem() const;
};

// The device that kernels are meant for, which need not be there.
struct TargetOptions {
  std::string arch_name = "sm_90a";
  std::optional<int> sms;
  void add_to(CLI::App& command);
  int arch() const;      // 90 or 100; throws InputError
  int sm_count() const;  // an H200's or a B200's where none is given
};

// The problems of a text file, one a line in the words of `moxie plan`; # begins a comment. Throws InputError with the
// line. names: the text of each line's comment.
std::vector<GemmProblem> read_problems(const std::string& path, std::vector<std::string>* names = nullptr);

// Each activation with its formula, for --help.
std::string activation_help();

}  // namespace moxie::cli
