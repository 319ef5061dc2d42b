// See options.h.
#include "cli/options.h"

#include <algorithm>
#include <charconv>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/safetensors.h"

namespace moxie::cli {

template <class T>
T choose(const std::string& option, const std::string& text, const Names<T>& names) {
  std::vector<std::string> all;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    all.push_back(name);
  }
  throw InputError(fmt::format("{}: '{}' is none of {}", option, text, fmt::join(all, ", ")));
}
template Grouping choose(const std::string&, const std::string&, const Names<Grouping>&);
template bool choose(const std::string&, const std::string&, const Names<bool>&);
template DataType choose(const std::string&, const std::string&, const Names<DataType>&);
template OperandFormat choose(const std::string&, const std::string&, const Names<OperandFormat>&);

const Names<Grouping>& grouping_names() {
  static const Names<Grouping> kNames = {{"dense", Grouping::Dense},     {"batched", Grouping::Batched},
                                         {"offsets", Grouping::Offsets}, {"row-groups", Grouping::RowGroups},
                                         {"masked", Grouping::Masked},   {"pointers", Grouping::Pointers},
                                         {"k-groups", Grouping::KGroups}};
  return kNames;
}

const Names<OperandFormat>& format_names() {
  static const Names<OperandFormat> kNames = {
      {"bf16", OperandFormat::Bf16}, {"mxfp4", OperandFormat::Mxfp4}, {"nvfp4", OperandFormat::Nvfp4}};
  return kNames;
}

const Names<Activation>& activation_names() {
  static const Names<Activation> kNames = {{"none", Activation::None},        {"relu", Activation::Relu},
                                           {"relu2", Activation::Relu2},      {"gelu", Activation::GeluTanh},
                                           {"gelu-erf", Activation::GeluErf}, {"silu", Activation::Silu},
                                           {"swiglu", Activation::Swiglu},    {"swiglu-oai", Activation::SwigluOai},
                                           {"geglu", Activation::Geglu},      {"reglu", Activation::Reglu}};
  return kNames;
}

namespace {

const Names<GateLayout> kGates = {{"interleaved", GateLayout::Interleaved},
                                  {"split", GateLayout::Split},
                                  {"split-up-first", GateLayout::SplitUpFirst}};
const Names<DataType> kTypes = {
    {"bf16", DataType::Bf16}, {"f32", DataType::F32}, {"mxfp4", DataType::Mxfp4}, {"mxfp8", DataType::Mxfp8}};
const Names<WarpSchedule> kSchedules = {{"cooperative", WarpSchedule::Cooperative}, {"pingpong", WarpSchedule::PingPong}};
const Names<TileSource> kSchedulings = {{"static", TileSource::Static}, {"launch-control", TileSource::LaunchControl}};
const Names<Multicast> kMulticasts = {
    {"none", Multicast::None}, {"a", Multicast::A}, {"b", Multicast::B}, {"either", Multicast::Either}};
const Names<bool> kSwitches = {{"on", true}, {"off", false}};

template <class T>
std::string find_name(const Names<T>& names, T value) {
  for (const auto& [name, named] : names) {
    if (named == value) return name;
  }
  return "?";
}

// "auto" leaves the choice to the plan.
template <class T>
std::optional<T> choose_or_auto(const std::string& option, const std::string& text, const Names<T>& names) {
  if (text == "auto") return std::nullopt;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
  }
  std::vector<std::string> all = {"auto"};
  for (const auto& [name, value] : names) all.push_back(name);
  throw InputError(fmt::format("{}: '{}' is none of {}", option, text, fmt::join(all, ", ")));
}

// The gated form of a plain activation: silu with --gate is silu(gate) * up.
Activation gated_form(Activation plain, const std::string& name) {
  switch (plain) {
    case Activation::Silu:
      return Activation::Swiglu;
    case Activation::GeluTanh:
      return Activation::Geglu;
    case Activation::Relu:
      return Activation::Reglu;
    default:
      break;
  }
  throw InputError(
      fmt::format("--gate: --activation {} has no gated form; silu, gelu, relu and the gated ones have", name));
}

}  // namespace

std::string name_of(Grouping grouping) { return find_name(grouping_names(), grouping); }

std::string name_of(Activation activation, GateLayout gate) {
  const std::string name = find_name(activation_names(), activation);
  return is_gated(activation) ? name + ", " + find_name(kGates, gate) + " gate" : name;
}

std::string plan_headline(const GemmProblem& problem, const DeviceInfo& device) {
  // The line "chosen by ...: <kernel>, <n> store buffers, ..." of the explanation.
  const std::string text = explain_plan(problem, device.arch, device.sm_count);
  const size_t line = text.find("chosen by ");
  if (line == std::string::npos) return text.substr(0, text.find('\n'));
  const size_t start = text.find(": ", line) + 2;
  const size_t end = text.rfind(", ", text.find(" store buffer", start));
  return text.substr(start, end - start);
}

void ProblemOptions::add_to(CLI::App& command) {
  command
      .add_option("--activation", activation,
                  "none, relu, relu2, gelu, gelu-erf, silu, swiglu, swiglu-oai, geglu or reglu; formulas below")
      ->capture_default_str();
  command.add_option(
      "--gate", gate,
      "Where gate and up lie along N: interleaved (the default of gated activations), split or split-up-first");
  command.add_option("--outputs", outputs, "pre, out or pre,out")->capture_default_str();
  command.add_option("--out-dtype", out_dtype, "Elements of out: bf16, f32, mxfp4 or mxfp8")->capture_default_str();
  command.add_option("--pre-dtype", pre_dtype, "Elements of pre, as --out-dtype by default");
  command.add_option("--schedule", schedule, "auto, cooperative or pingpong")->capture_default_str();
  command.add_option("--tile", tile, "Rows and columns of a tile, such as 128x256; by default the plan chooses");
  command.add_option("--cluster", cluster, "Blocks of a cluster, 1 or 2; by default the plan chooses");
  command.add_option("--multicast", multicast, "Which operand a cluster loads together: auto, none, a, b or either")
      ->capture_default_str();
  command
      .add_option("--scheduler", scheduler,
                  "Who gives the blocks their tiles (sm_100a): static (dealt out beforehand), launch-control (the "
                  "device, as blocks are done) or auto")
      ->capture_default_str();
  command.add_option("--swap", swap, "auto, on or off: whether B's rows take the tensor cores' side of 128 (sm_100a)")
      ->capture_default_str();
  command.footer(activation_help());
}

void ProblemOptions::apply(GemmProblem& problem) const {
  problem.activation = choose("--activation", activation, activation_names());
  problem.gate = GateLayout::Interleaved;
  if (!gate.empty()) {
    problem.gate = choose("--gate", gate, kGates);
    if (!is_gated(problem.activation)) problem.activation = gated_form(problem.activation, activation);
  }
  const DataType out_type = choose("--out-dtype", out_dtype, kTypes);
  const DataType pre_type = pre_dtype.empty() ? out_type : choose("--pre-dtype", pre_dtype, kTypes);
  problem.out.reset();
  problem.pre.reset();
  for (const std::string& output : CLI::detail::split(outputs, ',')) {
    if (output == "out" && !problem.out) {
      problem.out = out_type;
    } else if (output == "pre" && !problem.pre) {
      problem.pre = pre_type;
    } else {
      throw InputError(fmt::format("--outputs: '{}' is none of pre, out, pre,out", outputs));
    }
  }
  problem.schedule = choose_or_auto("--schedule", schedule, kSchedules);
  problem.multicast = choose_or_auto("--multicast", multicast, kMulticasts);
  problem.scheduling = choose_or_auto("--scheduler", scheduler, kSchedulings);
  problem.swap_ab = choose_or_auto("--swap", swap, kSwitches);
  if (!tile.empty()) {
    int rows = 0, columns = 0;
    const char* end = tile.data() + tile.size();
    const auto first = std::from_chars(tile.data(), end, rows);
    const auto second = first.ptr < end && *first.ptr == 'x' ? std::from_chars(first.ptr + 1, end, columns) : first;
    if (first.ec != std::errc() || second.ec != std::errc() || second.ptr != end || rows <= 0 || columns <= 0) {
      throw InputError(fmt::format("--tile: '{}' is not ROWSxCOLUMNS, such as 128x256", tile));
    }
    problem.tile_m = rows;
    problem.tile_n = columns;
  }
  if (cluster != 0) {
    if (cluster != 1 && cluster != 2) throw InputError(fmt::format("--cluster: {} is neither 1 nor 2", cluster));
    problem.cluster = cluster;
  }
}

void ShapeOptions::add_to(CLI::App& command) {
  command
      .add_option("M", m,
                  "Rows: of A in all (dense, offsets, row-groups), of a group (batched), the most of a group (masked, "
                  "pointers)")
      ->required();
  command.add_option("N", n, "Columns, before a gate halves them")->required();
  command.add_option("K", k, "Length of the sums")->required();
  command.add_option("--groups", groups, "Groups")->capture_default_str();
  command.add_option(
      "--grouping", grouping,
      "dense, batched, offsets, row-groups, masked, pointers or k-groups (sm_100a); dense for one group, offsets for "
      "more");
  command.add_option("--format", format, "Elements of a and b: bf16, or mxfp4 or nvfp4 (sm_100a)")
      ->capture_default_str();
  command.add_option("--rows", rows, "Rows of each group, when the host knows them")->delimiter(',');
  command.add_option("--expected-rows", expected, "Rows of a typical group, when only that is known");
  command.add_flag("--bias", bias, "With a bias");
  ProblemOptions::add_to(command);
}

GemmProblem ShapeOptions::problem() const {
  GemmProblem problem;
  apply(problem);
  problem.grouping = !grouping.empty() ? choose("--grouping", grouping, grouping_names())
                     : groups > 1      ? Grouping::Offsets
                                       : Grouping::Dense;
  problem.format = choose("--format", format, format_names());
  problem.groups = groups;
  problem.m = m;
  problem.n = n;
  problem.k = k;
  problem.bias = bias;
  problem.host_rows = rows;
  if (expected >= 0) problem.expected_rows = expected;
  return problem;
}

void TargetOptions::add_to(CLI::App& command) {
  command.add_option("--arch", arch_name, "sm_90a or sm_100a")->capture_default_str();
  command.add_option("--sms", sms, "Streaming multiprocessors of the device; by default an H200's 132, a B200's 148");
}

int TargetOptions::arch() const {
  return choose("--arch", arch_name, Names<int>{{"sm_90a", 90}, {"sm_100a", 100}, {"90", 90}, {"100", 100}});
}

int TargetOptions::sm_count() const { return sms.value_or(arch() == 100 ? 148 : 132); }

namespace {

GemmProblem problem_of(const std::string& line) {
  CLI::App words;
  ShapeOptions shape;
  shape.add_to(words);
  words.parse(line);
  return shape.problem();
}

}  // namespace

std::vector<GemmProblem> read_problems(const std::string& path, std::vector<std::string>* names) {
  std::ifstream file(path);
  if (!file) throw InputError(fmt::format("{}: cannot be opened", path));
  std::vector<GemmProblem> problems;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const size_t comment = std::min(line.find('#'), line.size());
    const size_t name = std::min(line.find_first_not_of("# \t\r", comment), line.size());
    const std::string words = line.substr(0, comment);
    if (words.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      problems.push_back(problem_of(words));
    } catch (const CLI::Error& error) {
      throw InputError(fmt::format("{}: line {}: {}", path, number, error.what()));
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: line {}: {}", path, number, error.what()));
    }
    if (names != nullptr) names->push_back(line.substr(name));
  }
  if (problems.empty()) throw InputError(fmt::format("{}: lists no problem", path));
  return problems;
}

std::string activation_help() {
  return "Activations of x = A B^T + bias:\n"
         "  none        x\n"
         "  relu        max(x, 0)\n"
         "  relu2       max(x, 0)^2\n"
         "  gelu        x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))\n"
         "  gelu-erf    x / 2 * (1 + erf(x / sqrt(2)))\n"
         "  silu        x * sigmoid(x)\n"
         "Gated, out is half as wide; g and u are the gate and up columns of x:\n"
         "  swiglu      silu(g) * u                                     (also: --activation silu --gate ...)\n"
         "  swiglu-oai  c * sigmoid(alpha * c) * (clamp(u, -limit, limit) + 1), c = min(g, limit)\n"
         "  geglu       gelu(g) * u                                     (also: --activation gelu --gate ...)\n"
         "  reglu       relu(g) * u                                     (also: --activation relu --gate ...)\n"
         "Gate layouts: interleaved (columns 2i, 2i + 1 are g, u), split (g in the first half of N, u in the second),\n"
         "split-up-first (the other way round).\n";
}

}  // namespace moxie::cli
