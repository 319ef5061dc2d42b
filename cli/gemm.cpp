// moxie gemm: a grouped product of the tensors in a file. Everything the file says is checked before a device is
// opened.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "cli/buffer.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/safetensors.h"
#include "moxie/gemm.h"
#include "moxie/scales.h"

namespace moxie::cli {

namespace {

struct Options : ProblemOptions {
  std::string in, out_file, grouping = "auto", sizes = "device", scales = "row-major", format = "auto";
  float alpha = 1.702f, limit = 7.0f;
};

// The tensors that matter, checked against each other.
struct Input {
  std::vector<uint8_t> a, b, bias;
  std::vector<uint8_t> sfa, sfb;                        // MXFP4, NVFP4
  std::vector<uint8_t> a_tensor_scale, b_tensor_scale;  // NVFP4, where the file has them
  std::vector<int32_t> sizes;                           // offsets, m_indices or masked_m
  std::vector<int64_t> group_start;                     // first row of each group, in rows of a; not for row groups
  std::vector<int64_t> group_rows;
  std::vector<int64_t> a_shape;
};

// The tensor's shape, once its element type and rank are right.
std::vector<int64_t> expect(const SafetensorsReader& file, const std::string& name, const std::string& dtype,
                            std::initializer_list<size_t> ranks, const char* rule) {
  const auto* entry = file.find(name);
  if (entry == nullptr) throw InputError(fmt::format("tensor '{}' is missing", name));
  if (entry->dtype != dtype)
    throw InputError(fmt::format("tensor '{}' is {}, it must be {}", name, entry->dtype, dtype));
  if (std::find(ranks.begin(), ranks.end(), entry->shape.size()) == ranks.end()) {
    throw InputError(fmt::format("tensor '{}' is {}, it must be {}", name, shape_text(entry->shape), rule));
  }
  for (const int64_t extent : entry->shape) {
    if (extent > INT32_MAX) {
      throw InputError(fmt::format("tensor '{}' is {}, no extent may pass 2^31 - 1", name, shape_text(entry->shape)));
    }
  }
  return entry->shape;
}

std::vector<int32_t> read_int32(const SafetensorsReader& file, const std::string& name) {
  const auto bytes = file.read(name);
  std::vector<int32_t> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// The scales of operand `name`: one for 32 or 16 elements of a row, or as many bytes as the blocked layout has.
std::vector<uint8_t> load_scales(const SafetensorsReader& file, const std::string& name, std::vector<int64_t> operand,
                                 OperandFormat format, bool blocked, size_t blocked_bytes) {
  const auto* entry = file.find(name);
  if (entry == nullptr)
    throw InputError(fmt::format("tensor '{}' is missing, which operands of U8 (MXFP4, NVFP4) need", name));
  const char* const dtype = format == OperandFormat::Nvfp4 ? "F8_E4M3" : "U8";
  if (entry->dtype != dtype)
    throw InputError(fmt::format("tensor '{}' is {}, it must be {}", name, entry->dtype, dtype));
  const int block = scale_block(format);
  operand.back() /= block / 2;
  if (!blocked && entry->shape != operand) {
    throw InputError(fmt::format("tensor '{}' is {}, it must be {}: a scale for {} elements along K", name,
                                 shape_text(entry->shape), shape_text(operand), block));
  }
  std::vector<uint8_t> scales = file.read(name);
  if (blocked && scales.size() != blocked_bytes) {
    throw InputError(fmt::format("tensor '{}' has {} bytes, the blocked scales of this product have {}", name,
                                 scales.size(), blocked_bytes));
  }
  return scales;
}

// What the elements of a and b are: `asked`, or what the types of the tensors say.
OperandFormat format_of(const SafetensorsReader& file, const std::string& asked) {
  const Names<OperandFormat> names = {
      {"bf16", OperandFormat::Bf16}, {"mxfp4", OperandFormat::Mxfp4}, {"nvfp4", OperandFormat::Nvfp4}};
  if (asked != "auto") {
    for (const auto& [name, format] : names) {
      if (name == asked) return format;
    }
    throw InputError(fmt::format("--format: '{}' is none of auto, bf16, mxfp4, nvfp4", asked));
  }
  const auto is = [&](const char* name, const char* dtype) {
    return file.find(name) != nullptr && file.find(name)->dtype == dtype;
  };
  if (!is("a", "U8")) return OperandFormat::Bf16;
  return is("sfa", "F8_E4M3") ? OperandFormat::Nvfp4 : OperandFormat::Mxfp4;
}

// The floats of an NVFP4 operand, where the file has them.
std::vector<uint8_t> load_tensor_scale(const SafetensorsReader& file, const std::string& name, int64_t count) {
  if (file.find(name) == nullptr) return {};
  const auto shape = expect(file, name, "F32", {1}, fmt::format("[{}]", count).c_str());
  if (shape[0] != count)
    throw InputError(fmt::format("tensor '{}' is {}, it must be [{}]", name, shape_text(shape), count));
  return file.read(name);
}

// Fills problem's grouping and shape, and reads what the product needs.
Input load(const SafetensorsReader& file, GemmProblem& problem, const std::string& format, bool blocked_scales) {
  Input input;
  problem.format = format_of(file, format);
  const bool fp4 = has_scales(problem.format);
  const char* const dtype = fp4 ? "U8" : "BF16";
  const auto a = expect(file, "a", dtype, {2, 3}, "[M, K] or [G, M, K]");
  const auto b = expect(file, "b", dtype, {2, 3}, "[N, K] or [G, N, K]");
  input.a_shape = a;
  std::string sizes_name;
  for (const char* name : {"offsets", "m_indices", "masked_m", "k_offsets"}) {
    if (file.find(name) == nullptr) continue;
    if (!sizes_name.empty()) {
      throw InputError(fmt::format("tensors '{}' and '{}' are both there, at most one may be", sizes_name, name));
    }
    sizes_name = name;
  }
  auto need_ranks = [&](size_t a_rank, size_t b_rank, const std::string& why) {
    if (a.size() != a_rank) {
      throw InputError(
          fmt::format("tensor 'a' is {}, {} it must be {}", shape_text(a), why, a_rank == 2 ? "[M, K]" : "[G, M, K]"));
    }
    if (b.size() != b_rank) {
      throw InputError(
          fmt::format("tensor 'b' is {}, {} it must be {}", shape_text(b), why, b_rank == 2 ? "[N, K]" : "[G, N, K]"));
    }
  };
  if (sizes_name == "offsets") {
    need_ranks(2, 3, "with 'offsets'");
    problem.grouping = Grouping::Offsets;
  } else if (sizes_name == "m_indices") {
    need_ranks(2, 3, "with 'm_indices'");
    problem.grouping = Grouping::RowGroups;
  } else if (sizes_name == "masked_m") {
    need_ranks(3, 3, "with 'masked_m'");
    problem.grouping = Grouping::Masked;
  } else if (sizes_name == "k_offsets") {
    need_ranks(2, 2, "with 'k_offsets'");
    problem.grouping = Grouping::KGroups;
  } else if (a.size() == 2) {
    need_ranks(2, 2, "with 'a' [M, K] and no group sizes");
    problem.grouping = Grouping::Dense;
  } else {
    need_ranks(3, 3, "with 'a' [G, M, K]");
    problem.grouping = Grouping::Batched;
  }
  problem.groups = b.size() == 3 ? b[0] : 1;
  const bool k_groups = problem.grouping == Grouping::KGroups;
  if (k_groups) problem.groups = expect(file, sizes_name, "I32", {1}, "[G]")[0];
  problem.m = a[a.size() - 2];
  problem.k = fp4 ? 2 * a.back() : a.back();
  problem.n = b[b.size() - 2];
  if (problem.groups < 1)
    throw InputError(k_groups ? "tensor 'k_offsets' is [0], it must have a group at least"
                              : fmt::format("tensor 'b' is {}, it must have a group at least", shape_text(b)));
  if (a.size() == 3 && a[0] != problem.groups) {
    throw InputError(
        fmt::format("tensor 'a' is {} and 'b' {}, the numbers of groups must be equal", shape_text(a), shape_text(b)));
  }
  if (b.back() != a.back()) {
    throw InputError(
        fmt::format("tensor 'a' is {} and 'b' {}, the last extents (K) must be equal", shape_text(a), shape_text(b)));
  }
  if (fp4 && a.back() % 16 != 0) {
    throw InputError(fmt::format(
        "tensor 'a' is {}, its last extent (K / 2 bytes of MXFP4 or NVFP4) must be a multiple of 16: K of 32",
        shape_text(a)));
  }
  if (problem.k % 8 != 0) {
    throw InputError(fmt::format("tensor 'a' is {}, its last extent (K) must be a multiple of 8", shape_text(a)));
  }
  const int64_t multiple = is_gated(problem.activation) ? 16 : 8;
  if (problem.n % multiple != 0 || problem.n == 0) {
    throw InputError(fmt::format("tensor 'b' is {}, its last extent but one (N) must be a multiple of {}{}",
                                 shape_text(b), multiple, multiple == 16 ? " with a gated activation" : ""));
  }
  problem.bias = file.find("bias") != nullptr;
  if (problem.bias) {
    const auto bias = expect(file, "bias", "BF16", {1, 2}, "[N] or [G, N]");
    const std::vector<int64_t> wanted =
        b.size() == 3 || k_groups ? std::vector<int64_t>{problem.groups, problem.n} : std::vector<int64_t>{problem.n};
    if (bias != wanted) {
      throw InputError(fmt::format("tensor 'bias' is {}, with 'b' {} it must be {}", shape_text(bias), shape_text(b),
                                   shape_text(wanted)));
    }
    input.bias = file.read("bias");
  }
  if (!sizes_name.empty()) {
    const auto shape = expect(file, sizes_name, "I32", {1}, sizes_name == "m_indices" ? "[M]" : "[G]");
    const int64_t wanted = sizes_name == "m_indices" ? problem.m : problem.groups;
    if (shape[0] != wanted) {
      throw InputError(fmt::format("tensor '{}' is {}, with 'a' {} and 'b' {} it must be [{}]", sizes_name,
                                   shape_text(shape), shape_text(a), shape_text(b), wanted));
    }
    input.sizes = read_int32(file, sizes_name);
  }
  // Sizes: the file is on the host, so what the kernel would clamp is refused here.
  const auto groups = static_cast<size_t>(problem.groups);
  input.group_start.assign(groups, 0);
  input.group_rows.assign(groups, problem.m);
  if (problem.grouping == Grouping::Offsets) {
    int64_t start = 0;
    for (size_t g = 0; g < groups; ++g) {
      const int64_t end = input.sizes[g];
      if (end < start) {
        throw InputError(
            fmt::format("tensor 'offsets': entry {} is {}, below {} where the group starts; offsets must not decrease",
                        g, end, start));
      }
      if (end > problem.m) {
        throw InputError(fmt::format("tensor 'offsets': entry {} is {}, past the {} rows of 'a'", g, end, problem.m));
      }
      input.group_start[g] = start;
      input.group_rows[g] = end - start;
      start = end;
    }
  } else if (problem.grouping == Grouping::Masked) {
    for (size_t g = 0; g < groups; ++g) {
      if (input.sizes[g] < 0 || input.sizes[g] > problem.m) {
        throw InputError(
            fmt::format("tensor 'masked_m': entry {} is {}, it must be 0 to {} (the rows of each group of 'a')", g,
                        input.sizes[g], problem.m));
      }
      input.group_rows[g] = input.sizes[g];
    }
  } else if (problem.grouping == Grouping::RowGroups) {
    std::fill(input.group_rows.begin(), input.group_rows.end(), 0);
    for (size_t row = 0; row < input.sizes.size(); ++row) {
      const int32_t g = input.sizes[row];
      if (g < -1 || g >= problem.groups) {
        throw InputError(fmt::format("tensor 'm_indices': entry {} is {}, it must be -1 (padding) or 0 to {}", row, g,
                                     problem.groups - 1));
      }
      if (g >= 0) ++input.group_rows[static_cast<size_t>(g)];
    }
  }
  for (size_t g = 0; k_groups && g < groups; ++g) {
    const int64_t end = input.sizes[g], start = g > 0 ? input.sizes[g - 1] : 0;
    const int unit = fp4 ? 32 : 8;
    if (end < start || end > problem.k || end % unit != 0) {
      throw InputError(fmt::format(
          "tensor 'k_offsets': entry {} is {}, it must be {} to {} (the end of the group before and K) and a "
          "multiple of {}",
          g, end, start, problem.k, unit));
    }
  }
  if (problem.grouping == Grouping::Batched || problem.grouping == Grouping::Masked || k_groups) {
    for (size_t g = 0; g < groups; ++g) input.group_start[g] = static_cast<int64_t>(g) * problem.m;
  }
  input.a = file.read("a");
  input.b = file.read("b");
  if (fp4) {
    input.sfa = load_scales(file, "sfa", a, problem.format, blocked_scales, a_scale_bytes(problem));
    input.sfb = load_scales(file, "sfb", b, problem.format, blocked_scales, b_scale_bytes(problem));
  }
  if (problem.format == OperandFormat::Nvfp4) {
    input.a_tensor_scale = load_tensor_scale(file, "a_tensor_scale", 1);
    input.b_tensor_scale = load_tensor_scale(file, "b_tensor_scale", problem.groups);
  }
  return input;
}

void check_row_groups(const std::vector<int32_t>& groups, int64_t alignment) {
  for (size_t row = 0; row < groups.size(); ++row) {
    if (groups[row] >= 0 && row % static_cast<size_t>(alignment) != 0 && groups[row - 1] != groups[row]) {
      throw InputError(
          fmt::format("tensor 'm_indices': group {} starts at row {}, groups must start at multiples of {}",
                      groups[row], row, alignment));
    }
  }
}

// Bytes of a result of `rows` times `width`, which the file's shapes do not bound.
size_t result_bytes(int64_t rows, int64_t width, DataType type) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(rows, width, &bytes) || __builtin_mul_overflow(bytes, bits_of(type), &bytes)) {
    throw InputError(fmt::format("tensors 'a' and 'b': a result of {} x {} elements is too large", rows, width));
  }
  return static_cast<size_t>(bytes / 8);
}

// Scales in device memory as the kernels read them.
Buffer block(const Device& device, const Buffer& row_major, int64_t groups, int64_t rows, const GemmProblem& problem,
             const int32_t* offsets, size_t bytes) {
  Buffer blocked(device, bytes);
  ScaleBlocking blocking;
  blocking.from = row_major.as();
  blocking.to = blocked.as();
  blocking.groups = groups;
  blocking.rows = rows;
  blocking.k = problem.k;
  blocking.block = scale_block(problem.format);
  blocking.offsets = offsets;
  blocking.along_k = problem.grouping == Grouping::KGroups;
  block_scales(device, blocking);
  device.synchronize();
  return blocked;
}

// An output on its way to the file.
struct Result {
  std::string name;
  DataType type;
  int64_t width;
  Buffer buffer;
  size_t scale_bytes;
  Buffer scales;         // of a quantised output, blocked
  Buffer pointers, lds;  // Grouping::Pointers

  Result(const Device& device, std::string output, DataType output_type, int64_t rows, int64_t output_width,
         size_t bytes_of_scales)
      : name(std::move(output)),
        type(output_type),
        width(output_width),
        buffer(device, result_bytes(rows, output_width, output_type)),
        scale_bytes(bytes_of_scales),
        scales(device, bytes_of_scales) {
    buffer.clear();
    scales.clear();
  }
};

const char* file_type(DataType type) {
  switch (type) {
    case DataType::Bf16:
      return "BF16";
    case DataType::F32:
      return "F32";
    case DataType::Mxfp8:
      return "F8_E4M3";
    default:
      return "U8";  // two elements in a byte
  }
}

std::vector<uint8_t> download(const Device& device, const Buffer& buffer, size_t bytes) {
  std::vector<uint8_t> host(bytes);
  if (bytes > 0) device.download(host.data(), buffer.as(), bytes);
  return host;
}

// Padding rows that share a tile with valid ones may have been written. `clear` is called for each of them.
template <class Clear>
void clear_padding(Grouping grouping, const Input& input, Clear&& clear) {
  for (size_t row = 0; grouping == Grouping::RowGroups && row < input.sizes.size(); ++row) {
    if (input.sizes[row] < 0) clear(row);
  }
}

// NAME_scales as they leave the kernel, or brought to [..., width / 32].
TensorToWrite scales_tensor(const Device& device, const GemmProblem& problem, const Input& input, const Result& result,
                            bool blocked, const int32_t* offsets) {
  const int64_t columns = result.width / kScaleBlock;
  TensorToWrite tensor{result.name + "_scales", "U8", {static_cast<int64_t>(result.scale_bytes)}, {}};
  if (blocked) {
    tensor.data = download(device, result.scales, result.scale_bytes);
    clear_padding(problem.grouping, input, [&](size_t row) {
      for (int64_t c = 0; c < columns; ++c)
        tensor.data[static_cast<size_t>(blocked_scale_index(static_cast<int64_t>(row), c, result.width))] = 0;
    });
    return tensor;
  }
  tensor.shape = input.a_shape;
  tensor.shape.back() = columns;
  if (problem.grouping == Grouping::KGroups) tensor.shape.insert(tensor.shape.begin(), problem.groups);
  const size_t bytes =
      static_cast<size_t>(std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>()));
  const Buffer row_major(device, bytes);
  row_major.clear();
  ScaleBlocking blocking;
  blocking.from = result.scales.as();
  blocking.to = row_major.as();
  blocking.groups = offsets || tensor.shape.size() == 3 ? problem.groups : 1;
  blocking.rows = problem.m;
  blocking.k = result.width;
  blocking.offsets = offsets;
  unblock_scales(device, blocking);
  device.synchronize();
  tensor.data = download(device, row_major, bytes);
  if (problem.grouping == Grouping::Masked) {
    for (int64_t row = 0; row < problem.groups * problem.m; ++row) {
      if (row % problem.m >= input.group_rows[static_cast<size_t>(row / problem.m)])
        std::memset(tensor.data.data() + row * columns, 0, static_cast<size_t>(columns));
    }
  }
  clear_padding(problem.grouping, input,
                [&](size_t row) { std::memset(tensor.data.data() + row * columns, 0, static_cast<size_t>(columns)); });
  return tensor;
}

// Turns the file's groups into one pointer, leading dimension and size a group, in device memory.
struct PointerArrays {
  Buffer a, b, sfa, sfb, bias, lda, ldb, sizes;

  // grouping: that of the file.
  PointerArrays(const Device& device, const GemmProblem& problem, Grouping grouping, const Input& input,
                const GemmArguments& arguments) {
    std::vector<const void*> as, bs, sfas, sfbs, biases;
    const auto place = [](const void* base, int64_t bytes) { return static_cast<const char*>(base) + bytes; };
    const int block = scale_block(problem.format);
    int64_t scales = 0;  // of a, before the group
    std::vector<int32_t> extents;
    for (size_t g = 0; g < input.group_rows.size(); ++g) {
      const auto group = static_cast<int64_t>(g);
      as.push_back(place(arguments.a, input.group_start[g] * problem.k * bits_of(problem.format) / 8));
      bs.push_back(place(arguments.b, group * problem.n * problem.k * bits_of(problem.format) / 8));
      if (has_scales(problem.format)) {
        sfas.push_back(place(arguments.sfa, scales));
        sfbs.push_back(place(arguments.sfb, group * blocked_scale_bytes(problem.n, problem.k, block)));
        const int64_t rows =
            grouping == Grouping::Offsets ? input.group_rows[g] : input.a_shape[input.a_shape.size() - 2];
        scales += blocked_scale_bytes(rows, problem.k, block);
      }
      if (problem.bias) biases.push_back(static_cast<const uint16_t*>(arguments.bias) + group * problem.n);
      for (const int64_t extent : {input.group_rows[g], problem.n, problem.k})
        extents.push_back(static_cast<int32_t>(extent));
    }
    // A leading dimension is at least 16 bytes, also where K is 0.
    const std::vector<int64_t> leading(input.group_rows.size(), std::max<int64_t>(problem.k, 32));
    a = Buffer(device, as);
    b = Buffer(device, bs);
    sfa = Buffer(device, sfas);
    sfb = Buffer(device, sfbs);
    bias = Buffer(device, biases);
    lda = Buffer(device, leading);
    ldb = Buffer(device, leading);
    sizes = Buffer(device, extents);
  }

  kernel::GroupArrays arrays(bool with_bias) const {
    kernel::GroupArrays all;
    all.a = a.as<const void*>();
    all.b = b.as<const void*>();
    all.bias = with_bias ? bias.as<const void*>() : nullptr;
    all.lda = lda.as<int64_t>();
    all.ldb = ldb.as<int64_t>();
    all.sizes = sizes.as<int32_t>();
    return all;
  }

  static void point(const Device& device, const Input& input, Result& result) {
    std::vector<void*> pointers;
    for (const int64_t start : input.group_start) {
      pointers.push_back(result.buffer.as<char>() + start * result.width * size_of(result.type));
    }
    result.pointers = Buffer(device, pointers);
    result.lds = Buffer(device, std::vector<int64_t>(pointers.size(), result.width));
  }
};

int run(const Options& options) {
  GemmProblem problem;
  options.apply(problem);
  const bool as_pointers = choose("--grouping", options.grouping, Names<bool>{{"auto", false}, {"pointers", true}});
  const bool blocked_scales = choose("--scales", options.scales, Names<bool>{{"row-major", false}, {"blocked", true}});
  const bool host_sizes = choose("--sizes", options.sizes, Names<bool>{{"device", false}, {"host", true}});
  if (!std::isfinite(options.alpha)) throw InputError("--alpha: must be a finite number");
  if (!(options.limit > 0)) throw InputError(fmt::format("--limit: {} is not positive", options.limit));
  std::error_code ignored;
  if (std::filesystem::equivalent(options.in, options.out_file, ignored)) {
    throw InputError(fmt::format("OUT: {} is the input file", options.out_file));
  }
  check_writable(options.out_file);

  const SafetensorsReader file(options.in);
  const Input input = load(file, problem, options.format, blocked_scales);
  const Grouping grouping = problem.grouping;
  const bool k_groups = grouping == Grouping::KGroups;
  const int64_t rows = problem.m * (input.a_shape.size() == 3 || k_groups ? problem.groups : 1);
  const GemmProblem in_file = problem;
  const int64_t out_width = is_gated(problem.activation) ? problem.n / 2 : problem.n;
  if (as_pointers) {
    if (grouping == Grouping::RowGroups || k_groups) {
      throw InputError(
          fmt::format("--grouping: tensor '{}' cannot become pointers; offsets, masked_m and equal groups can",
                      k_groups ? "k_offsets" : "m_indices"));
    }
    problem.grouping = Grouping::Pointers;
    if (host_sizes) problem.m = *std::max_element(input.group_rows.begin(), input.group_rows.end());
  }
  if (host_sizes && grouping != Grouping::Dense && grouping != Grouping::Batched && !k_groups)
    problem.host_rows = input.group_rows;
  if (host_sizes && as_pointers) problem.host_rows = input.group_rows;

  const Device device = Device::open();
  if (grouping == Grouping::RowGroups) check_row_groups(input.sizes, row_alignment(device, problem));

  const Buffer a(device, input.a), b(device, input.b), bias(device, input.bias), sizes(device, input.sizes);
  GemmArguments arguments;
  arguments.a = a.as();
  arguments.b = b.as();
  arguments.bias = problem.bias ? bias.as() : nullptr;
  arguments.alpha = options.alpha;
  arguments.limit = options.limit;
  if (!input.sizes.empty()) arguments.sizes = sizes.as<int32_t>();
  Buffer sfa, sfb;
  const Buffer a_tensor_scale(device, input.a_tensor_scale), b_tensor_scale(device, input.b_tensor_scale);
  if (!input.a_tensor_scale.empty()) arguments.a_tensor_scale = a_tensor_scale.as<float>();
  if (!input.b_tensor_scale.empty()) arguments.b_tensor_scale = b_tensor_scale.as<float>();
  if (has_scales(problem.format)) {
    sfa = Buffer(device, input.sfa), sfb = Buffer(device, input.sfb);
    if (!blocked_scales) {
      const bool stacked = input.a_shape.size() == 3, offsets = grouping == Grouping::Offsets || k_groups;
      sfa = block(device, sfa, stacked || offsets ? in_file.groups : 1, in_file.m, in_file,
                  offsets ? arguments.sizes : nullptr, a_scale_bytes(in_file));
      sfb = block(device, sfb, in_file.groups, in_file.n, in_file, k_groups ? arguments.sizes : nullptr,
                  b_scale_bytes(in_file));
    }
    arguments.sfa = sfa.as();
    arguments.sfb = sfb.as();
  }

  std::optional<PointerArrays> arrays;
  if (as_pointers) {
    arrays.emplace(device, problem, grouping, input, arguments);
    if (has_scales(problem.format)) {
      arguments.sfa_pointers = arrays->sfa.as<const void*>();
      arguments.sfb_pointers = arrays->sfb.as<const void*>();
      arguments.sfa = arguments.sfb = nullptr;
    }
    arguments.arrays = arrays->arrays(problem.bias);
    arguments.a = arguments.b = arguments.bias = nullptr;
    arguments.sizes = nullptr;
  }
  std::vector<Result> results;
  results.reserve(2);
  auto add_result = [&](const char* name, std::optional<DataType> type, int64_t width, size_t scale_bytes,
                        void*& address, void*& scales, void* const*& pointers, const int64_t*& lds) {
    if (!type) return;
    Result& result = results.emplace_back(device, name, *type, rows, width, scale_bytes);
    if (scale_bytes > 0) scales = result.scales.as();
    if (as_pointers) {
      PointerArrays::point(device, input, result);
      pointers = result.pointers.as<void*>();
      lds = result.lds.as<int64_t>();
    } else {
      address = result.buffer.as();
    }
  };
  add_result("pre", problem.pre, problem.n, pre_scale_bytes(problem), arguments.pre, arguments.pre_scales,
             arguments.pre_pointers, arguments.pre_lds);
  add_result("out", problem.out, out_width, out_scale_bytes(problem), arguments.out, arguments.out_scales,
             arguments.out_pointers, arguments.out_lds);
  const size_t workspace = workspace_bytes(device, problem);
  const Buffer workspace_buffer(device, workspace);
  arguments.workspace = workspace_buffer.as();
  arguments.workspace_bytes = workspace;
  gemm(device, problem, arguments);
  device.synchronize();

  std::vector<TensorToWrite> tensors;
  for (const Result& result : results) {
    TensorToWrite tensor{result.name, file_type(result.type), input.a_shape, {}};
    const size_t row_bytes = static_cast<size_t>(result.width) * static_cast<size_t>(bits_of(result.type)) / 8;
    tensor.shape.back() = result.type == DataType::Mxfp4 ? result.width / 2 : result.width;
    if (k_groups) tensor.shape.insert(tensor.shape.begin(), problem.groups);
    tensor.data = download(device, result.buffer, static_cast<size_t>(rows) * row_bytes);
    clear_padding(grouping, input,
                  [&](size_t row) { std::memset(tensor.data.data() + row * row_bytes, 0, row_bytes); });
    tensors.push_back(std::move(tensor));
    if (is_quantized(result.type)) {
      tensors.push_back(scales_tensor(device, problem, input, result, blocked_scales,
                                      grouping == Grouping::Offsets ? arguments.sizes : nullptr));
    }
  }
  write_safetensors(options.out_file, tensors);
  return 0;
}

}  // namespace

Run add_gemm(CLI::App& command) {
  auto options = std::make_shared<Options>();
  command
      .add_option(
          "IN", options->in,
          "safetensors file: a [M, K] or [G, M, K] bf16, b [N, K] or [G, N, K] bf16, optional bias [N] or [G, "
          "N] bf16, at most one of offsets [G], m_indices [M], masked_m [G], k_offsets [G] int32. MXFP4 (sm_100a): a "
          "and b U8, "
          "two elements in a byte, and their scales sfa and sfb U8, one for 32 elements. NVFP4 (sm_100a): the same "
          "with sfa and sfb F8_E4M3, one for 16 elements, and optional a_tensor_scale [1], b_tensor_scale [G] float32")
      ->required();
  command
      .add_option(
          "OUT", options->out_file,
          "safetensors file to write: pre and out, as chosen, of a quantised one also pre_scales, out_scales; rows "
          "of no group are zero")
      ->required();
  command.add_option("--alpha", options->alpha, "Of swiglu-oai")->capture_default_str();
  command.add_option("--limit", options->limit, "Of swiglu-oai; inf for none")->capture_default_str();
  command
      .add_option("--grouping", options->grouping,
                  "auto (what the tensors say), or pointers (each group by its own pointers and sizes)")
      ->capture_default_str();
  command
      .add_option("--sizes", options->sizes,
                  "Who knows the groups' sizes: device (the kernel reads them) or host (the plan does, too)")
      ->capture_default_str();
  command
      .add_option("--format", options->format, "Elements of a and b: auto (what the tensors say), bf16, mxfp4, nvfp4")
      ->capture_default_str();
  command
      .add_option("--scales", options->scales,
                  "How sfa, sfb and the scales of quantised outputs lie: row-major [..., K/32 or K/16], or blocked "
                  "(128 x 4 tiles)")
      ->capture_default_str();
  options->add_to(command);
  return [options] { return run(*options); };
}

}  // namespace moxie::cli
