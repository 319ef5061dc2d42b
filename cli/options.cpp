// SPDX-License-Identifier: Apache-2.0
// See options.h.
#include "cli/options.h"

#include <algorithm>
#include <charconv>
#include <fstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace moxie::cli {

std::string join_words(const std::vector<std::string_view>& words) {
  if (words.size() < 2) return fmt::format("{}", fmt::join(words, ""));
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

void reject_word(const std::string& option, const std::string& text, const std::vector<std::string_view>& words) {
  throw InputError(fmt::format("{}: '{}' is none of {}", option, text, fmt::join(words, ", ")));
}

size_t choose(const std::string& option, const std::string& text, std::initializer_list<std::string_view> words) {
  const auto found = std::find(words.begin(), words.end(), text);
  if (found == words.end()) reject_word(option, text, words);
  return static_cast<size_t>(found - words.begin());
}

namespace {

// The gated form of a plain activation: silu with --gate is silu(gate) * up.
Activation gated_form(Activation plain) {
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
  throw InputError(fmt::format("--gate: --activation {} has no gated form; silu, gelu, relu and the gated ones have",
                               to_string(plain)));
}

Groups groups_of(Grouping grouping, int64_t count, int64_t m) {
  switch (grouping) {
    case Grouping::Dense:
      if (count != 1) throw InputError(fmt::format("--groups: {}, but a dense product has 1", count));
      return Dense{m};
    case Grouping::Batched:
      return Batched{count, m};
    case Grouping::Offsets:
      return Offsets{count, m};
    case Grouping::RowGroups:
      return RowGroups{count};
    case Grouping::Masked:
      return Masked{count, m};
    case Grouping::Pointers:
      return Pointers{count, m};
    case Grouping::KGroups:
      return KGroups{count, m};
  }
  throw InputError("--grouping: unknown");
}

}  // namespace

std::string describe_activation(Activation activation, GateLayout gate) {
  if (!is_gated(activation)) return std::string(to_string(activation));
  return fmt::format("{}, {} gate", to_string(activation), to_string(gate));
}

void KernelChoices::apply(GemmDescription& d, int arch) const {
  if (arch == 100 && !d.b_format) {
    if (schedule) throw InputError("--schedule: the kernels of sm_100a have only one schedule");
    if (multicast) throw InputError("--multicast: the kernels of sm_100a have no multicast");
    d.blackwell = BlackwellTuning{tile_m, tile_n, cluster, tile_source, swap_ab};
  } else {
    const std::string kernels = d.b_format ? "of packed weights" : "of sm_90a";
    if (tile_source == TileSource::LaunchControl)
      throw InputError("--scheduler: launch-control is for sm_100a, the kernels " + kernels +
                       " have static scheduling");
    if (swap_ab == true) throw InputError("--swap: the kernels " + kernels + " do not swap their operands");
    d.hopper = HopperTuning{schedule, tile_m, tile_n, cluster, multicast};
  }
}

void ProductOptions::add_to(CLI::App& command) {
  command.add_option("--activation", activation, list_words<Activation>() + "; formulas below")->capture_default_str();
  command.add_option("--gate", gate,
                     fmt::format("Where gate and up lie along N, with a gated activation: {}; {} by default",
                                 list_words<GateLayout>(), to_string(GateLayout::Interleaved)));
  command.add_option("--outputs", outputs, "pre, out or pre,out")->capture_default_str();
  command.add_option("--out-dtype", out_dtype, "Elements of out: " + list_words<DataType>())->capture_default_str();
  command.add_option("--pre-dtype", pre_dtype, "Elements of pre, as --out-dtype by default");
  command.add_option("--schedule", schedule, "auto, " + list_words<WarpSchedule>() + " (sm_90a)")
      ->capture_default_str();
  command.add_option("--tile", tile, "Rows and columns of a tile, such as 128x256; by default the plan chooses");
  command.add_option("--cluster", cluster, "Blocks of a cluster, 1 or 2; by default the plan chooses");
  command
      .add_option("--multicast", multicast,
                  "Which operand a cluster loads together (sm_90a): auto, " + list_words<Multicast>())
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

void ProductOptions::apply(GemmDescription& d) const {
  d.activation.function = choose<Activation>("--activation", activation);
  d.gate = GateLayout::Interleaved;
  if (!gate.empty()) {
    d.gate = choose<GateLayout>("--gate", gate);
    if (!is_gated(d.activation.function)) d.activation.function = gated_form(d.activation.function);
  }
  const DataType out_type = choose<DataType>("--out-dtype", out_dtype);
  const DataType pre_type = pre_dtype.empty() ? out_type : choose<DataType>("--pre-dtype", pre_dtype);
  d.out.reset();
  d.pre.reset();
  for (const std::string& output : CLI::detail::split(outputs, ',')) {
    if (output == "out" && !d.out) {
      d.out = out_type;
    } else if (output == "pre" && !d.pre) {
      d.pre = pre_type;
    } else {
      throw InputError(fmt::format("--outputs: '{}' is none of pre, out, pre,out", outputs));
    }
  }
}

KernelChoices ProductOptions::choices() const {
  KernelChoices choices;
  choices.schedule = choose_or_auto<WarpSchedule>("--schedule", schedule);
  choices.multicast = choose_or_auto<Multicast>("--multicast", multicast);
  choices.tile_source = choose_or_auto<TileSource>("--scheduler", scheduler);
  const size_t swapped = choose("--swap", swap, {"auto", "on", "off"});
  if (swapped > 0) choices.swap_ab = swapped == 1;
  if (!tile.empty()) {
    int rows = 0, columns = 0;
    const char* end = tile.data() + tile.size();
    const auto first = std::from_chars(tile.data(), end, rows);
    const auto second = *first.ptr == 'x' ? std::from_chars(first.ptr + 1, end, columns) : first;
    if (first.ec != std::errc() || second.ec != std::errc() || second.ptr != end || rows <= 0 || columns <= 0)
      throw InputError(fmt::format("--tile: '{}' is not ROWSxCOLUMNS, such as 128x256", tile));
    choices.tile_m = rows;
    choices.tile_n = columns;
  }
  if (cluster != 0) {
    if (cluster != 1 && cluster != 2) throw InputError(fmt::format("--cluster: {} is neither 1 nor 2", cluster));
    choices.cluster = cluster;
  }
  return choices;
}

void add_gather(CLI::App& command, bool& gather) {
  command.add_flag("--gather", gather, "Rows of A are found through a list; groups by offsets alone");
}

std::string format_help() {
  return "Elements of a and b: " + list_words<OperandFormat>() +
         "; all but bf16: sm_100a. On sm_90a mxfp4 is the format of b alone, beside bf16";
}

void set_format(GemmDescription& d, const std::string& text, int arch) {
  const auto format = choose<OperandFormat>("--format", text);
  if (arch == 90 && format == OperandFormat::Mxfp4) {
    d.b_format = format;
  } else {
    d.format = format;
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
  command.add_option("--grouping", grouping,
                     list_words<Grouping>() + " (sm_100a); dense for one group, offsets for more");
  command.add_option("--format", format, format_help())->capture_default_str();
  command.add_option("--rows", rows, "Rows of each group, when the host knows them")->delimiter(',');
  command.add_option("--expected-rows", expected, "Rows of a typical group, when only that is known");
  command.add_flag("--bias", bias, "With a bias");
  add_gather(command, gather);
  ProductOptions::add_to(command);
}

GemmDescription ShapeOptions::description(int arch) const {
  GemmDescription d;
  apply(d);
  choices().apply(d, arch);
  d.groups = groups_of(!grouping.empty() ? choose<Grouping>("--grouping", grouping)
                       : groups > 1      ? Grouping::Offsets
                                         : Grouping::Dense,
                       groups, m);
  set_format(d, format, arch);
  d.n = n;
  d.k = k;
  d.bias = bias;
  d.gather = gather;
  d.known_rows = rows;
  if (expected >= 0) d.expected_rows = expected;
  return d;
}

std::optional<int64_t> ShapeOptions::total() const {
  if (parse<Grouping>(grouping) != Grouping::RowGroups) return std::nullopt;
  return m;
}

void TargetOptions::add_to(CLI::App& command) {
  command.add_option("--device", device,
                     "The GPU: " + join_words({device_names().begin(), device_names().end()}) + "; h200 by default");
  command.add_option("--arch", arch_name, "sm_90a or sm_100a; where no device is named, an H200 or a B200");
  command.add_option("--sms", sms, "Streaming multiprocessors, where they are not the device's");
}

DeviceFigures TargetOptions::figures() const {
  const int arch = arch_name.empty() ? 0 : choose_arch("--arch", arch_name);
  const std::string name = !device.empty() ? device : arch == 100 ? "b200" : "h200";
  const std::optional<DeviceFigures> found = named_device(name);
  if (!found) reject_word("--device", name, {device_names().begin(), device_names().end()});
  if (arch != 0 && arch != found->arch)
    throw InputError(fmt::format("--arch: {}, but --device {} is sm_{}a", arch_name, name, found->arch));
  DeviceFigures figures = *found;
  if (sms) figures.sm_count = *sms;
  return figures;
}

int choose_arch(const std::string& option, const std::string& text) {
  return choose(option, text, {"sm_90a", "sm_100a", "90", "100"}) % 2 == 0 ? 90 : 100;
}

namespace {

GemmDescription product_of(const std::string& line, int arch) {
  CLI::App words;
  ShapeOptions shape;
  shape.add_to(words);
  words.parse(line);
  return shape.description(arch);
}

}  // namespace

std::vector<GemmDescription> read_products(const std::string& path, int arch, std::vector<std::string>* names) {
  std::ifstream file(path);
  if (!file) throw InputError(fmt::format("{}: cannot be opened", path));
  std::vector<GemmDescription> products;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const size_t comment = std::min(line.find('#'), line.size());
    const size_t name = std::min(line.find_first_not_of("# \t\r", comment), line.size());
    const std::string words = line.substr(0, comment);
    if (words.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      products.push_back(product_of(words, arch));
    } catch (const CLI::Error& error) {
      throw InputError(fmt::format("{}: line {}: {}", path, number, error.what()));
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: line {}: {}", path, number, error.what()));
    }
    if (names != nullptr) names->push_back(line.substr(name));
  }
  if (products.empty()) throw InputError(fmt::format("{}: lists no problem", path));
  return products;
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
         "  swiglu-clamped  silu(min(g, gate-limit)) * clamp(u, -up-limit, up-limit)\n"
         "  situ        beta * tanh(g / beta) * sigmoid(g) * linear-beta * tanh(u / linear-beta)\n"
         "Gate layouts: interleaved (columns 2i, 2i + 1 are g, u), split (g in the first half of N, u in the second),\n"
         "split-up-first (the other way round).\n";
}

}  // namespace moxie::cli
