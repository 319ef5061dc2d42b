// SPDX-License-Identifier: Apache-2.0
// See gemm_input.h.
#include "cli/gemm_input.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include <fmt/format.h>

#include "cli/options.h"
#include "moxie/scales.h"

namespace moxie::cli {

namespace {

using Shape = std::vector<int64_t>;

// Returns the tensor's shape after checking its element type and rank.
Shape expect(const SafetensorsReader& file, const std::string& name, const std::string& dtype,
             std::initializer_list<size_t> ranks, const std::string& rule) {
  const auto* entry = file.find(name);
  if (entry == nullptr) throw InputError(fmt::format("tensor '{}' is missing", name));
  if (entry->dtype != dtype)
    throw InputError(fmt::format("tensor '{}' is {}, it must be {}", name, entry->dtype, dtype));
  if (std::find(ranks.begin(), ranks.end(), entry->shape.size()) == ranks.end())
    throw InputError(fmt::format("tensor '{}' is {}, it must be {}", name, shape_text(entry->shape), rule));
  for (const int64_t extent : entry->shape) {
    if (extent > INT32_MAX)
      throw InputError(fmt::format("tensor '{}' is {}, no extent may pass 2^31 - 1", name, shape_text(entry->shape)));
  }
  return entry->shape;
}

// Finds what the elements of a and b are: `asked`, or with "auto" what the tensors' types say. MXFP4 weights may stand
// beside activations of bf16.
void choose_formats(const SafetensorsReader& file, const std::string& asked, GemmInput& input) {
  const auto chosen = choose_or_auto<OperandFormat>("--format", asked);
  const auto is = [&](const char* name, const char* dtype) {
    return file.find(name) != nullptr && file.find(name)->dtype == dtype;
  };
  input.packed = find_packed(file, "b");
  if (is("a", "BF16") && is("b", "U8") && chosen.value_or(OperandFormat::Mxfp4) == OperandFormat::Mxfp4) {
    input.b_format = OperandFormat::Mxfp4;
    return;
  }
  if (input.packed) throw InputError("tensor 'b' is packed, beside it 'a' must be BF16 and --format mxfp4 or auto");
  const OperandFormat stored = !is("a", "U8")         ? OperandFormat::Bf16
                               : is("sfa", "F8_E4M3") ? OperandFormat::Nvfp4
                                                      : OperandFormat::Mxfp4;
  input.format = input.b_format = chosen.value_or(stored);
}

// A tensor that tells the groups' sizes, and the ranks that a and b must then have.
struct RowsTensor {
  const char* name;
  Grouping grouping;
  size_t a_rank, b_rank;
};
constexpr RowsTensor kRowsTensors[] = {
    {"offsets", Grouping::Offsets, 2, 3},
    {"m_indices", Grouping::RowGroups, 2, 3},
    {"masked_m", Grouping::Masked, 3, 3},
    {"k_offsets", Grouping::KGroups, 2, 2},
};

const RowsTensor* find_rows_tensor(const SafetensorsReader& file) {
  const RowsTensor* found = nullptr;
  for (const RowsTensor& tensor : kRowsTensors) {
    if (file.find(tensor.name) == nullptr) continue;
    if (found != nullptr)
      throw InputError(
          fmt::format("tensors '{}' and '{}' are both there, at most one may be", found->name, tensor.name));
    found = &tensor;
  }
  return found;
}

void check_ranks(const Shape& a, const Shape& b, size_t a_rank, size_t b_rank, const std::string& why) {
  const auto check = [&](const char* name, const Shape& shape, size_t rank, const char* rows) {
    if (shape.size() != rank)
      throw InputError(fmt::format("tensor '{}' is {}, {} it must be [{}{}, K]", name, shape_text(shape), why,
                                   rank == 2 ? "" : "G, ", rows));
  };
  check("a", a, a_rank, "M");
  check("b", b, b_rank, "N");
}

// Fills the grouping, the number of groups and the extents of a and b.
void read_extents(const SafetensorsReader& file, const RowsTensor* rows, GemmInput& input) {
  const auto dtype = [](OperandFormat format) { return moxie::has_scales(format) ? "U8" : "BF16"; };
  const Shape a = expect(file, "a", dtype(input.format), {2, 3}, "[M, K] or [G, M, K]");
  const Shape b = input.packed ? input.packed->weight_shape()
                               : expect(file, "b", dtype(input.b_format), {2, 3}, "[N, K] or [G, N, K]");
  input.a_shape = a;
  if (rows != nullptr) {
    input.grouping = rows->grouping;
    check_ranks(a, b, rows->a_rank, rows->b_rank, fmt::format("with '{}'", rows->name));
  } else {
    const bool stacked = a.size() == 3;
    input.grouping = stacked ? Grouping::Batched : Grouping::Dense;
    check_ranks(a, b, a.size(), a.size(), stacked ? "with 'a' [G, M, K]" : "with 'a' [M, K] and no group sizes");
  }
  const bool k_groups = input.grouping == Grouping::KGroups;
  input.groups = k_groups ? expect(file, rows->name, "I32", {1}, "[G]")[0] : b.size() == 3 ? b[0] : 1;
  input.m = a[a.size() - 2];
  input.n = b[b.size() - 2];
  input.k = input.has_scales() ? 2 * a.back() : a.back();
  if (input.groups < 1)
    throw InputError(k_groups ? "tensor 'k_offsets' is [0], it must have a group at least"
                              : fmt::format("tensor 'b' is {}, it must have a group at least", shape_text(b)));
  if (a.size() == 3 && a[0] != input.groups)
    throw InputError(
        fmt::format("tensor 'a' is {} and 'b' {}, the numbers of groups must be equal", shape_text(a), shape_text(b)));
  const bool pairs = input.has_packed_b() && !input.packed;  // of elements in a byte
  if (pairs && 2 * b.back() != a.back())
    throw InputError(
        fmt::format("tensor 'a' is {} and 'b' {}, the last extent of 'b' (K / 2 bytes) must be half of a's",
                    shape_text(a), shape_text(b)));
  if (!pairs && b.back() != a.back())
    throw InputError(
        fmt::format("tensor 'a' is {} and 'b' {}, the last extents (K) must be equal", shape_text(a), shape_text(b)));
  if (input.n == 0)
    throw InputError(fmt::format("tensor 'b' is {}, its last extent but one (N) must not be 0", shape_text(b)));
}

void read_bias(const SafetensorsReader& file, GemmInput& input) {
  input.has_bias = file.find("bias") != nullptr;
  if (!input.has_bias) return;
  const Shape bias = expect(file, "bias", "BF16", {1, 2}, "[N] or [G, N]");
  const Shape wanted = input.grouping == Grouping::Dense ? Shape{input.n} : Shape{input.groups, input.n};
  if (bias != wanted)
    throw InputError(
        fmt::format("tensor 'bias' is {}, with this 'b' it must be {}", shape_text(bias), shape_text(wanted)));
  input.bias = file.read("bias");
}

void read_rows(const SafetensorsReader& file, const RowsTensor& tensor, GemmInput& input) {
  const bool of_rows = tensor.grouping == Grouping::RowGroups;
  const Shape shape = expect(file, tensor.name, "I32", {1}, of_rows ? "[M]" : "[G]");
  const int64_t wanted = of_rows ? input.m : input.groups;
  if (shape[0] != wanted)
    throw InputError(fmt::format("tensor '{}' is {}, with these 'a' and 'b' it must be [{}]", tensor.name,
                                 shape_text(shape), wanted));
  const std::vector<uint8_t> bytes = file.read(tensor.name);
  input.rows.resize(bytes.size() / 4);
  std::memcpy(input.rows.data(), bytes.data(), bytes.size());
}

// Every entry must be the end of a group's rows, or with KGroups of its part of K.
void check_ends(const char* name, const GemmInput& input) {
  const bool along_k = input.grouping == Grouping::KGroups;
  const int64_t last = along_k ? input.k : input.m, unit = along_k ? k_unit(input.format) : 1;
  int64_t start = 0;
  for (size_t g = 0; g < input.rows.size(); ++g) {
    const int64_t end = input.rows[g];
    if (end < start)
      throw InputError(
          fmt::format("tensor '{}': entry {} is {}, below {} where the group starts; offsets must not "
                      "decrease",
                      name, g, end, start));
    if (end > last)
      throw InputError(fmt::format("tensor '{}': entry {} is {}, past the {} {} of 'a'", name, g, end, last,
                                   along_k ? "columns (K)" : "rows"));
    if (end % unit != 0)
      throw InputError(fmt::format("tensor '{}': entry {} is {}, it must be a multiple of {}", name, g, end, unit));
    start = end;
  }
}

// Fills group_start and group_rows. The file is on the host, so what the kernel would clamp is refused here.
void place_groups(GemmInput& input) {
  const auto groups = static_cast<size_t>(input.groups);
  input.group_start.assign(groups, 0);
  input.group_rows.assign(groups, input.m);
  switch (input.grouping) {
    case Grouping::Offsets:
      check_ends("offsets", input);
      for (size_t g = 0; g < groups; ++g) {
        input.group_start[g] = g == 0 ? 0 : input.rows[g - 1];
        input.group_rows[g] = input.rows[g] - input.group_start[g];
      }
      return;
    case Grouping::RowGroups:
      std::fill(input.group_rows.begin(), input.group_rows.end(), 0);
      for (size_t row = 0; row < input.rows.size(); ++row) {
        const int32_t g = input.rows[row];
        if (g < -1 || g >= input.groups)
          throw InputError(fmt::format("tensor 'm_indices': entry {} is {}, it must be -1 (padding) or 0 to {}", row, g,
                                       input.groups - 1));
        if (g >= 0) ++input.group_rows[static_cast<size_t>(g)];
      }
      return;
    case Grouping::Masked:
      for (size_t g = 0; g < groups; ++g) {
        if (input.rows[g] < 0 || input.rows[g] > input.m)
          throw InputError(
              fmt::format("tensor 'masked_m': entry {} is {}, it must be 0 to {} (the rows of each group of 'a')", g,
                          input.rows[g], input.m));
        input.group_rows[g] = input.rows[g];
      }
      break;
    case Grouping::KGroups:
      check_ends("k_offsets", input);
      break;
    default:
      break;
  }
  for (size_t g = 0; g < groups; ++g) input.group_start[g] = static_cast<int64_t>(g) * input.m;
}

std::vector<uint8_t> read_operand_scales(const SafetensorsReader& file, const std::string& name, Shape operand,
                                         OperandFormat format, bool blocked, size_t blocked_bytes) {
  const auto* entry = file.find(name);
  if (entry == nullptr)
    throw InputError(fmt::format("tensor '{}' is missing, which operands of U8 (MXFP4, NVFP4) need", name));
  const char* const dtype = format == OperandFormat::Nvfp4 ? "F8_E4M3" : "U8";
  if (entry->dtype != dtype)
    throw InputError(fmt::format("tensor '{}' is {}, it must be {}", name, entry->dtype, dtype));
  const int block = scale_block(format);
  operand.back() /= block / 2;
  if (!blocked && entry->shape != operand)
    throw InputError(fmt::format("tensor '{}' is {}, it must be {}: a scale for {} elements along K", name,
                                 shape_text(entry->shape), shape_text(operand), block));
  std::vector<uint8_t> scales = file.read(name);
  if (blocked && scales.size() != blocked_bytes)
    throw InputError(fmt::format("tensor '{}' has {} bytes, the blocked scales of this product have {}", name,
                                 scales.size(), blocked_bytes));
  return scales;
}

// Reads the floats of an NVFP4 operand. The file need not have them.
std::vector<uint8_t> read_tensor_scale(const SafetensorsReader& file, const std::string& name, int64_t count) {
  if (file.find(name) == nullptr) return {};
  const Shape shape = expect(file, name, "F32", {1}, fmt::format("[{}]", count));
  if (shape[0] != count)
    throw InputError(fmt::format("tensor '{}' is {}, it must be [{}]", name, shape_text(shape), count));
  return file.read(name);
}

}  // namespace

Groups GemmInput::file_groups() const {
  switch (grouping) {
    case Grouping::Batched:
      return Batched{groups, m};
    case Grouping::Offsets:
      return Offsets{groups, m};
    case Grouping::RowGroups:
      return RowGroups{groups};
    case Grouping::Masked:
      return Masked{groups, m};
    case Grouping::KGroups:
      return KGroups{groups, m};
    default:
      return Dense{m};
  }
}

std::optional<int64_t> GemmInput::total() const {
  if (grouping != Grouping::Offsets && grouping != Grouping::RowGroups) return std::nullopt;
  return m;
}

GemmInput read_gemm_input(const SafetensorsReader& file, const std::string& format) {
  GemmInput input;
  choose_formats(file, format, input);
  const RowsTensor* const rows = find_rows_tensor(file);
  read_extents(file, rows, input);
  read_bias(file, input);
  if (rows != nullptr) read_rows(file, *rows, input);
  place_groups(input);
  input.a = file.read("a");
  input.b = file.read("b");
  return input;
}

void read_scales(const SafetensorsReader& file, const GemmDescription& d, bool blocked, GemmInput& input) {
  if (input.packed) {
    const bool gated = is_gated(d.activation.function);
    const std::string wanted = gated ? std::string(to_string(d.gate)) : "none";
    if (input.packed->gate() != wanted)
      throw InputError(fmt::format("tensor 'b' is packed with gate {}, but that of the product is {}",
                                   input.packed->gate(), wanted));
    if (file.find("sfb") != nullptr) throw InputError("tensor 'sfb' is there, but 'b' is packed with its scales");
  } else if (input.has_packed_b()) {
    input.b_scales = read_operand_scales(file, "sfb", file.find("b")->shape, input.b_format, false, 0);
  }
  if (!input.has_scales()) return;
  const size_t a_bytes = a_scale_bytes(d, input.total()), b_bytes = b_scale_bytes(d, input.total());
  input.a_scales = read_operand_scales(file, "sfa", input.a_shape, d.format, blocked, a_bytes);
  input.b_scales = read_operand_scales(file, "sfb", file.find("b")->shape, d.format, blocked, b_bytes);
  if (d.format != OperandFormat::Nvfp4) return;
  input.a_tensor_scale = read_tensor_scale(file, "a_tensor_scale", 1);
  input.b_tensor_scale = read_tensor_scale(file, "b_tensor_scale", input.groups);
}

}  // namespace moxie::cli
