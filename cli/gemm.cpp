// SPDX-License-Identifier: Apache-2.0
// moxie gemm: a grouped product of the tensors in a file. Everything the file says is checked before a device is
// opened.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "bench/timing/buffer.h"
#include "cli/commands.h"
#include "cli/gemm_input.h"
#include "cli/gemm_output.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "moxie/gemm.h"
#include "moxie/scales.h"
#include "moxie/weights.h"

namespace moxie::cli {

namespace {

using timing::Buffer;

struct GemmOptions : ProductOptions {
  std::string in, out_file, grouping = "auto", sizes = "device", scales = "row-major", format = "auto";
  SwigluOaiParameters swiglu_oai;
  SwigluClampedParameters swiglu_clamped;
  SituParameters situ;
};

// Describes the product as the file has it.
GemmDescription describe(const GemmOptions& options, const GemmInput& input) {
  GemmDescription d;
  options.apply(d);
  d.activation.swiglu_oai = options.swiglu_oai;
  d.activation.swiglu_clamped = options.swiglu_clamped;
  d.activation.situ = options.situ;
  d.groups = input.file_groups();
  d.n = input.n;
  d.k = input.k;
  d.format = input.format;
  if (input.has_packed_b()) d.b_format = input.b_format;
  d.bias = input.has_bias;
  return d;
}

void check_parameters(const GemmOptions& options) {
  const auto check_limit = [](const char* option, float value) {
    if (!(value > 0)) throw InputError(fmt::format("{}: {} is not positive", option, value));
  };
  const auto check_beta = [](const char* option, float value) {
    if (!(value > 0) || !std::isfinite(value))
      throw InputError(fmt::format("{}: {} is not positive and finite", option, value));
  };
  if (!std::isfinite(options.swiglu_oai.alpha)) throw InputError("--alpha: must be a finite number");
  check_limit("--limit", options.swiglu_oai.limit);
  check_limit("--gate-limit", options.swiglu_clamped.gate_limit);
  check_limit("--up-limit", options.swiglu_clamped.up_limit);
  check_beta("--beta", options.situ.beta);
  check_beta("--linear-beta", options.situ.linear_beta);
}

void check_row_groups(const std::vector<int32_t>& groups, int64_t alignment) {
  for (size_t row = 0; row < groups.size(); ++row) {
    if (groups[row] >= 0 && row % static_cast<size_t>(alignment) != 0 && groups[row - 1] != groups[row])
      throw InputError(
          fmt::format("tensor 'm_indices': group {} starts at row {}, groups must start at multiples of {}",
                      groups[row], row, alignment));
  }
}

// Brings an operand's row-major scales to the blocked layout. `ends` are those of the groups along the rows or along K.
Buffer block(const Device& device, const Buffer& row_major, int64_t groups, int64_t rows, const GemmInput& input,
             const int32_t* ends, size_t bytes) {
  Buffer blocked(device, bytes);
  ScaleBlocking blocking;
  blocking.from = row_major.as();
  blocking.to = blocked.as();
  blocking.groups = groups;
  blocking.rows = rows;
  blocking.k = input.k;
  blocking.block = scale_block(input.format);
  blocking.offsets = ends;
  blocking.along_k = input.grouping == Grouping::KGroups;
  block_scales(device, blocking);
  device.synchronize();
  return blocked;
}

// The order in which the kernel reads b.
WeightShape weight_shape(const GemmInput& input, const GemmDescription& d) {
  return {input.groups, input.n, input.k, is_gated(d.activation.function), d.gate};
}

// Packs b, which lies in memory as in the file.
Buffer pack(const Device& device, const Buffer& b, const GemmInput& input, const GemmDescription& d) {
  const Buffer scales(device, input.b_scales), refused(device, std::vector<uint64_t>{~uint64_t{0}});
  const WeightShape shape = weight_shape(input, d);
  Buffer packed(device, packed_weight_bytes(shape));
  pack_weights(device, {shape, b.as(), scales.as(), packed.as(), refused.as<uint64_t>()});
  device.synchronize();
  uint64_t row = 0;
  device.download(&row, refused.as(), sizeof row);
  if (row != ~uint64_t{0}) refuse_row("sfb", row, input.n);
  return packed;
}

// The file's tensors in device memory.
struct Operands {
  Buffer a, b, bias, rows;
  Buffer a_scales, b_scales, a_tensor_scale, b_tensor_scale;
  ConstTensor a_tensor, b_tensor;

  Operands(const Device& device, const GemmInput& input, const GemmDescription& in_file, bool blocked_scales)
      : a(device, input.a), b(device, input.b), bias(device, input.bias), rows(device, input.rows) {
    a_tensor.data = a.as();
    if (input.has_packed_b() && !input.packed) b = pack(device, b, input, in_file);
    b_tensor.data = b.as();
    if (!input.has_scales()) return;
    a_scales = Buffer(device, input.a_scales);
    b_scales = Buffer(device, input.b_scales);
    if (!blocked_scales) {
      const bool k_groups = input.grouping == Grouping::KGroups, offsets = input.grouping == Grouping::Offsets;
      a_scales = block(device, a_scales, input.is_stacked() || offsets || k_groups ? input.groups : 1, input.m, input,
                       offsets || k_groups ? ends() : nullptr, a_scale_bytes(in_file, input.total()));
      b_scales = block(device, b_scales, input.groups, input.n, input, k_groups ? ends() : nullptr,
                       b_scale_bytes(in_file, input.total()));
    }
    a_tensor.scales = a_scales.as();
    b_tensor.scales = b_scales.as();
    a_tensor_scale = Buffer(device, input.a_tensor_scale);
    b_tensor_scale = Buffer(device, input.b_tensor_scale);
    if (!input.a_tensor_scale.empty()) a_tensor.tensor_scale = a_tensor_scale.as<float>();
    if (!input.b_tensor_scale.empty()) b_tensor.tensor_scale = b_tensor_scale.as<float>();
  }
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  const int32_t* ends() const { return rows.as<int32_t>(); }
};

// The file's groups in the form of Groups = Pointers: every group has pointers, leading dimensions and sizes of its
// own.
struct OperandPointers {
  Buffer a, b, a_scales, b_scales, bias, leading_dimensions, sizes;
  GroupPointers tensors;  // without outputs

  OperandPointers(const Device& device, const GemmInput& input, const Operands& operands) {
    std::vector<const void*> as, bs, as_scales, bs_scales, biases;
    const auto place = [](const Buffer& base, int64_t bytes) { return base.as<const char>() + bytes; };
    const int block = scale_block(input.format), bits = bits_of(input.format);
    int64_t before = 0;  // bytes of a's scales that lie before the group's
    std::vector<int32_t> extents;
    for (size_t g = 0; g < input.group_rows.size(); ++g) {
      const auto group = static_cast<int64_t>(g);
      as.push_back(place(operands.a, input.group_start[g] * input.k * bits / 8));
      bs.push_back(place(operands.b, input.has_packed_b() ? group * int64_t(packed_weight_bytes(1, input.n, input.k))
                                                          : group * input.n * input.k * bits / 8));
      if (input.has_scales()) {
        as_scales.push_back(place(operands.a_scales, before));
        bs_scales.push_back(place(operands.b_scales, group * blocked_scale_bytes(input.n, input.k, block)));
        const int64_t rows = input.grouping == Grouping::Offsets ? input.group_rows[g] : input.m;
        before += blocked_scale_bytes(rows, input.k, block);
      }
      if (input.has_bias) biases.push_back(place(operands.bias, group * input.n * 2));
      for (const int64_t extent : {input.group_rows[g], input.n, input.k})
        extents.push_back(static_cast<int32_t>(extent));
    }
    a = Buffer(device, as);
    b = Buffer(device, bs);
    bias = Buffer(device, biases);
    sizes = Buffer(device, extents);
    // A leading dimension is at least 16 bytes, also where K is 0.
    leading_dimensions = Buffer(device, std::vector<int64_t>(input.group_rows.size(), std::max<int64_t>(input.k, 32)));
    tensors.a = {a.as<const void*>(), leading_dimensions.as<int64_t>(), nullptr, operands.a_tensor.tensor_scale};
    tensors.b = {b.as<const void*>(), input.has_packed_b() ? nullptr : leading_dimensions.as<int64_t>(), nullptr,
                 operands.b_tensor.tensor_scale};
    if (input.has_scales()) {
      a_scales = Buffer(device, as_scales);
      b_scales = Buffer(device, bs_scales);
      tensors.a.scales = a_scales.as<const void*>();
      tensors.b.scales = b_scales.as<const void*>();
    }
    if (input.has_bias) tensors.bias = bias.as<const void*>();
    tensors.sizes = sizes.as<int32_t>();
  }
  OperandPointers(const OperandPointers&) = delete;
  OperandPointers& operator=(const OperandPointers&) = delete;
};

// Puts the file's sizes into the array of Rows that the grouping takes.
Rows rows_of(const GemmInput& input, const Operands& operands) {
  Rows rows;
  rows.total = input.total();
  switch (input.grouping) {
    case Grouping::Offsets:
    case Grouping::KGroups:
      rows.ends = operands.ends();
      break;
    case Grouping::RowGroups:
      rows.group_of_row = operands.ends();
      break;
    case Grouping::Masked:
      rows.counts = operands.ends();
      break;
    default:
      break;
  }
  return rows;
}

// Describes the product that is computed: the file's, with pointers and with rows known to the host where options say
// so.
GemmDescription launched(const GemmDescription& in_file, const GemmInput& input, bool as_pointers, bool host_sizes) {
  GemmDescription d = in_file;
  const bool rows_differ = input.grouping == Grouping::Offsets || input.grouping == Grouping::RowGroups ||
                           input.grouping == Grouping::Masked;
  if (host_sizes && (rows_differ || as_pointers)) d.known_rows = input.group_rows;
  if (as_pointers) {
    const int64_t most = *std::max_element(input.group_rows.begin(), input.group_rows.end());
    d.groups = Pointers{input.groups, host_sizes ? most : input.m};
  }
  return d;
}

int run_gemm(const GemmOptions& options) {
  const KernelChoices choices = options.choices();
  const bool as_pointers = choose("--grouping", options.grouping, {"auto", "pointers"}) == 1;
  const bool blocked_scales = choose("--scales", options.scales, {"row-major", "blocked"}) == 1;
  const bool host_sizes = choose("--sizes", options.sizes, {"device", "host"}) == 1;
  check_parameters(options);
  GemmDescription options_alone;
  options.apply(options_alone);  // a wrong option is named before the file is read
  std::error_code ignored;
  if (std::filesystem::equivalent(options.in, options.out_file, ignored))
    throw InputError(fmt::format("OUT: {} is the input file", options.out_file));
  check_writable(options.out_file);

  const SafetensorsReader file(options.in);
  GemmInput input = read_gemm_input(file, options.format);
  const GemmDescription in_file = describe(options, input);
  // The library checks the description here, before a device is opened.
  const size_t pre_scales = pre_scale_bytes(in_file, input.total());
  const size_t out_scales = out_scale_bytes(in_file, input.total());
  read_scales(file, in_file, blocked_scales, input);
  if (as_pointers && (input.grouping == Grouping::RowGroups || input.grouping == Grouping::KGroups))
    throw InputError(
        fmt::format("--grouping: tensor '{}' cannot become pointers; offsets, masked_m and equal groups can",
                    input.grouping == Grouping::KGroups ? "k_offsets" : "m_indices"));

  const Device device = Device::open();
  GemmDescription description = launched(in_file, input, as_pointers, host_sizes);
  choices.apply(description, device.info().arch);
  const GroupedGemm gemm(device, description);
  if (input.grouping == Grouping::RowGroups) check_row_groups(input.rows, gemm.row_alignment());

  const Operands operands(device, input, in_file, blocked_scales);
  std::optional<GemmOutput> pre, out;
  if (in_file.pre) pre.emplace(device, input, "pre", *in_file.pre, input.n, pre_scales);
  const int64_t out_width = is_gated(in_file.activation.function) ? input.n / 2 : input.n;
  if (in_file.out) out.emplace(device, input, "out", *in_file.out, out_width, out_scales);
  const Workspace workspace(device, gemm.workspace_bytes(as_pointers ? std::nullopt : input.total()));
  if (as_pointers) {
    OperandPointers pointers(device, input, operands);
    if (pre) pointers.tensors.pre = pre->pointers();
    if (out) pointers.tensors.out = out->pointers();
    gemm.run(pointers.tensors, workspace);
    device.synchronize();
  } else {
    GemmTensors tensors;
    tensors.a = operands.a_tensor;
    tensors.b = operands.b_tensor;
    if (input.has_bias) tensors.bias = operands.bias.as();
    if (pre) tensors.pre = pre->tensor();
    if (out) tensors.out = out->tensor();
    tensors.rows = rows_of(input, operands);
    gemm.run(tensors, workspace);
    device.synchronize();
  }

  std::vector<TensorToWrite> tensors;
  for (const std::optional<GemmOutput>* output : {&pre, &out}) {
    if (*output)
      (*output)->append_to(tensors, input.grouping == Grouping::Offsets ? operands.ends() : nullptr, blocked_scales);
  }
  write_safetensors(options.out_file, tensors);
  return 0;
}

}  // namespace

Run add_gemm(CLI::App& command) {
  auto options = std::make_shared<GemmOptions>();
  command
      .add_option(
          "IN", options->in,
          "safetensors file: a [M, K] or [G, M, K] bf16, b [N, K] or [G, N, K] bf16, optional bias [N] or [G, "
          "N] bf16, at most one of offsets [G], m_indices [M], masked_m [G], k_offsets [G] int32. MXFP4 weights beside "
          "bf16: b U8, two elements in a byte, and its scales sfb U8, one for 32, or b as moxie quantize "
          "--layout "
          "hopper packs it. MXFP4 (sm_100a): a "
          "and b U8, "
          "two elements in a byte, and their scales sfa and sfb U8, one for 32 elements. NVFP4 (sm_100a): the same "
          "with sfa and sfb F8_E4M3, one for 16 elements, and optional a_tensor_scale [1], b_tensor_scale [G] float32")
      ->required();
  command
      .add_option(
          "OUT", options->out_file,
          "safetensors file to write: pre and out, as chosen, of a quantized one also pre_scales, out_scales (nvfp4: "
          "F8_E4M3, with a tensor scale of 1); rows of no group are zero")
      ->required();
  command.add_option("--alpha", options->swiglu_oai.alpha, "Of swiglu-oai")->capture_default_str();
  command.add_option("--limit", options->swiglu_oai.limit, "Of swiglu-oai; inf for none")->capture_default_str();
  command.add_option("--gate-limit", options->swiglu_clamped.gate_limit, "Of swiglu-clamped; inf for none")
      ->capture_default_str();
  command.add_option("--up-limit", options->swiglu_clamped.up_limit, "Of swiglu-clamped; inf for none")
      ->capture_default_str();
  command.add_option("--beta", options->situ.beta, "Of situ")->capture_default_str();
  command.add_option("--linear-beta", options->situ.linear_beta, "Of situ; 1e30 for none")->capture_default_str();
  command
      .add_option("--grouping", options->grouping,
                  "auto (what the tensors say), or pointers (each group by its own pointers and sizes)")
      ->capture_default_str();
  command
      .add_option("--sizes", options->sizes,
                  "Who knows the groups' sizes: device (the kernel reads them) or host (the plan does, too)")
      ->capture_default_str();
  command
      .add_option("--format", options->format,
                  "Elements of a and b: auto (what the tensors say), " + list_words<OperandFormat>())
      ->capture_default_str();
  command
      .add_option("--scales", options->scales,
                  "How sfa, sfb and the scales of quantized outputs lie: row-major [..., K/32 or K/16], or blocked "
                  "(128 x 4 tiles)")
      ->capture_default_str();
  options->add_to(command);
  return [options] { return run_gemm(*options); };
}

}  // namespace moxie::cli
