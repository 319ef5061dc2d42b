// SPDX-License-Identifier: Apache-2.0
// moxie quantize: brings tensors of a file to MXFP4, MXFP8 or NVFP4 with their scales, and back, and MXFP4 weights into
// the order of a kernel, and back. It computes on the CPU unless a device is asked for. Both give the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "bench/timing/buffer.h"
#include "bench/timing/data.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output_file.h"
#include "cli/packed_tensor.h"
#include "cli/safetensors.h"
#include "moxie/quantize.h"
#include "moxie/weights.h"
#include "reference/formats.h"
#include "reference/packed_weights.h"

namespace moxie::cli {

namespace {

using timing::Buffer;
using timing::worker_threads;

struct QuantizeOptions {
  std::string in, out_file, format, layout = "rows", gate = "none", scales = "row-major", on = "host", dtype = "bf16";
  std::vector<std::string> tensors;
  bool reverse = false;
};

DataType choose_format(const std::string& text) {
  const std::optional<DataType> format = parse<DataType>(text);
  if (format && is_quantized(*format)) return *format;
  std::vector<std::string_view> words;
  for (const EnumName<DataType>& name : names<DataType>()) {
    if (is_quantized(name.value)) words.push_back(name.text);
  }
  reject_word("--format", text, words);
}

// The names of the tensors that belong to a quantized one. Checkpoints call its elements blocks; this command writes
// them under the tensor's name.
std::string blocks_name(const std::string& name) { return name + "_blocks"; }
std::string scales_name(const std::string& name) { return name + "_scales"; }
std::string tensor_scale_name(const std::string& name) { return name + "_tensor_scale"; }

// What a tensor is in the file, or becomes.
enum class Form { Values, Elements, Packed };

// A tensor [rows, k] or [groups, rows, k] that is converted. All bytes are as in the file.
struct Job {
  std::string name, elements_name;
  Form from = Form::Values, to = Form::Elements;
  QuantizedRows rows;
  bool gated = false;
  GateLayout gate = GateLayout::Interleaved;
  std::vector<int64_t> shape;             // of the values
  std::vector<std::string> takes, makes;  // the names of tensors in the input and in the output
  std::vector<uint8_t> values, elements, scales, packed;
  float tensor_scale = 1;

  int64_t all_rows() const { return rows.groups * rows.rows; }
  int64_t scale_columns() const { return rows.k / scale_block(rows.format); }
  size_t element_bytes() const { return static_cast<size_t>(all_rows() * rows.k * bits_of(rows.format) / 8); }
  size_t value_bytes() const { return static_cast<size_t>(all_rows() * rows.k * size_of(rows.type)); }
  PackedTensor packing() const { return {{rows.groups, rows.rows, rows.k, gated, gate}, shape.size() == 3}; }
};

// Calls work(first, last) for ranges that make up 0 to `count`, on all cores.
template <class Work>
void for_ranges(int64_t count, Work&& work) {
  const int64_t share = count / worker_threads() + 1;
  std::vector<std::thread> threads;
  for (int64_t from = 0; from < count; from += share)
    threads.emplace_back([&work, from, to = std::min(from + share, count)] { work(from, to); });
  for (auto& thread : threads) thread.join();
}

// Returns the place of a scale of a row.
int64_t scale_index(const Job& job, int64_t row, int64_t column) {
  if (job.rows.layout == ScaleLayout::RowMajor) return row * job.scale_columns() + column;
  const int64_t block = scale_block(job.rows.format), group = row / job.rows.rows;
  return group * blocked_scale_bytes(job.rows.rows, job.rows.k, block) +
         blocked_scale_index(row % job.rows.rows, column, job.rows.k, block);
}

void read_row(const Job& job, int64_t row, std::vector<float>& values) {
  const size_t k = static_cast<size_t>(job.rows.k);
  const uint8_t* const from = job.values.data() + static_cast<size_t>(row) * k * size_of(job.rows.type);
  for (size_t i = 0; i < k; ++i) {
    if (job.rows.type == DataType::F32) {
      std::memcpy(&values[i], from + 4 * i, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, from + 2 * i, 2);
      values[i] = reference::bf16_to_float(bits);
    }
  }
}

void quantize_on_host(Job& job) {
  const int64_t k = job.rows.k;
  if (job.rows.format == DataType::Nvfp4) {
    float amax = 0;
    std::vector<float> values(static_cast<size_t>(k));
    for (int64_t row = 0; row < job.all_rows(); ++row) {
      read_row(job, row, values);
      for (const float x : values) amax = std::isfinite(x) ? std::max(amax, std::fabs(x)) : amax;
    }
    job.tensor_scale = reference::tensor_scale_of(amax);
  }
  const size_t row_bytes = static_cast<size_t>(k * bits_of(job.rows.format) / 8);
  for_ranges(job.all_rows(), [&](int64_t from, int64_t to) {
    std::vector<float> values(static_cast<size_t>(k));
    std::vector<uint8_t> scales(static_cast<size_t>(job.scale_columns()));
    for (int64_t row = from; row < to; ++row) {
      read_row(job, row, values);
      reference::quantize_row(job.rows.format, values.data(), k, job.tensor_scale,
                              job.elements.data() + static_cast<size_t>(row) * row_bytes, scales.data());
      for (int64_t c = 0; c < job.scale_columns(); ++c)
        job.scales[static_cast<size_t>(scale_index(job, row, c))] = scales[static_cast<size_t>(c)];
    }
  });
}

void dequantize_on_host(Job& job) {
  const size_t k = static_cast<size_t>(job.rows.k), row_bytes = k * static_cast<size_t>(bits_of(job.rows.format)) / 8;
  for_ranges(job.all_rows(), [&](int64_t from, int64_t to) {
    std::vector<float> values(k);
    std::vector<uint8_t> scales(static_cast<size_t>(job.scale_columns()));
    for (int64_t row = from; row < to; ++row) {
      for (int64_t c = 0; c < job.scale_columns(); ++c)
        scales[static_cast<size_t>(c)] = job.scales[static_cast<size_t>(scale_index(job, row, c))];
      reference::dequantize_row(job.rows.format, job.elements.data() + static_cast<size_t>(row) * row_bytes,
                                scales.data(), job.rows.k, job.tensor_scale, values.data());
      uint8_t* const to_row = job.values.data() + static_cast<size_t>(row) * k * size_of(job.rows.type);
      for (size_t i = 0; i < k; ++i) {
        const uint16_t rounded = reference::float_to_bf16(values[i]);
        if (job.rows.type == DataType::F32) {
          std::memcpy(to_row + 4 * i, &values[i], 4);
        } else {
          std::memcpy(to_row + 2 * i, &rounded, 2);
        }
      }
    }
  });
}

template <class T>
void download(const Device& device, std::vector<T>& host, const Buffer& buffer) {
  if (!host.empty()) device.download(host.data(), buffer.as(), host.size() * sizeof(T));
}

void quantize_on_device(const Device& device, Job& job) {
  const Buffer values(device, job.values), elements(device, job.elements.size()), scales(device, job.scales.size());
  const Buffer tensor_scale(device, 4);
  Quantization x;
  static_cast<QuantizedRows&>(x) = job.rows;
  x.values = values.as(), x.elements = elements.as(), x.scales = scales.as();
  if (job.rows.format == DataType::Nvfp4) {
    find_tensor_scale(device, x, tensor_scale.as<float>());
    x.tensor_scale = tensor_scale.as<float>();
    device.download(&job.tensor_scale, tensor_scale.as(), 4);
  }
  quantize(device, x);
  device.synchronize();
  download(device, job.elements, elements);
  download(device, job.scales, scales);
}

void dequantize_on_device(const Device& device, Job& job) {
  const Buffer elements(device, job.elements), scales(device, job.scales), values(device, job.values.size());
  const Buffer tensor_scale(device, std::vector<float>{job.tensor_scale});
  Dequantization x;
  static_cast<QuantizedRows&>(x) = job.rows;
  x.values = values.as(), x.elements = elements.as(), x.scales = scales.as();
  if (job.rows.format == DataType::Nvfp4) x.tensor_scale = tensor_scale.as<float>();
  dequantize(device, x);
  device.synchronize();
  download(device, job.values, values);
}

// Calls work(group, codes, scales, packed) for the places of each group, on all cores.
template <class Work>
void for_groups(Job& job, Work&& work) {
  const auto part = [&](std::vector<uint8_t>& bytes, int64_t group) {
    return bytes.data() + static_cast<int64_t>(bytes.size()) / job.rows.groups * group;
  };
  for_ranges(job.rows.groups, [&](int64_t from, int64_t to) {
    for (int64_t g = from; g < to; ++g) work(part(job.elements, g), part(job.scales, g), part(job.packed, g));
  });
}

void pack_on_host(Job& job) {
  const int64_t n = job.rows.rows, k = job.rows.k;
  if (const auto row = reference::first_unpackable_row(job.scales.data(), job.all_rows(), k))
    refuse_row(scales_name(job.name), static_cast<uint64_t>(*row), n);
  const auto gate = job.gated ? std::optional(job.gate) : std::nullopt;
  for_groups(job, [&](const uint8_t* codes, const uint8_t* scales, uint8_t* packed) {
    const std::vector<uint8_t> group = reference::pack_weights(codes, scales, n, k, gate);
    std::copy(group.begin(), group.end(), packed);
  });
}

void unpack_on_host(Job& job) {
  const auto gate = job.gated ? std::optional(job.gate) : std::nullopt;
  for_groups(job, [&](uint8_t* codes, uint8_t* scales, const uint8_t* packed) {
    reference::unpack_weights(packed, job.rows.rows, job.rows.k, gate, codes, scales);
  });
}

void pack_on_device(const Device& device, Job& job) {
  const Buffer codes(device, job.elements), scales(device, job.scales), packed(device, job.packed.size());
  const Buffer refused(device, std::vector<uint64_t>{~uint64_t{0}});
  pack_weights(device, {job.packing().weights, codes.as(), scales.as(), packed.as(), refused.as<uint64_t>()});
  device.synchronize();
  uint64_t row = 0;
  device.download(&row, refused.as(), sizeof row);
  if (row != ~uint64_t{0}) refuse_row(scales_name(job.name), row, job.rows.rows);
  download(device, job.packed, packed);
}

void unpack_on_device(const Device& device, Job& job) {
  const Buffer packed(device, job.packed), codes(device, job.elements.size()), scales(device, job.scales.size());
  unpack_weights(device, {job.packing().weights, packed.as(), codes.as(), scales.as()});
  device.synchronize();
  download(device, job.elements, codes);
  download(device, job.scales, scales);
}

// What tensor `name` is in the file, and under which name its elements lie there.
void find_form(const SafetensorsReader& file, const QuantizeOptions& options, Job& job) {
  const std::string &name = job.name, blocks = blocks_name(name);
  const bool packs = options.layout == "hopper", mxfp4 = job.rows.format == DataType::Mxfp4;
  const auto* entry = file.find(name);
  job.elements_name = name;
  if (options.reverse && packs) {
    job.from = Form::Packed, job.to = Form::Elements;
    job.elements_name = blocks;
    if (entry != nullptr && file.metadata().count(packed_key(name)) == 0)
      throw InputError(fmt::format("tensor '{}' is not packed, the metadata lack '{}'", name, packed_key(name)));
    return;
  }
  job.to = options.reverse ? Form::Values : packs ? Form::Packed : Form::Elements;
  if (entry != nullptr && file.metadata().count(packed_key(name)) != 0)
    throw InputError(fmt::format("tensor '{}' is packed, --reverse --layout hopper unpacks it", name));
  if (!options.reverse && !packs) return;
  const bool of_checkpoint = entry == nullptr && mxfp4 && file.find(blocks) != nullptr;
  if (of_checkpoint) job.elements_name = blocks;
  if (options.reverse || of_checkpoint || (entry != nullptr && entry->dtype == "U8")) job.from = Form::Elements;
}

// The shape of a tensor's values, whose type is checked.
std::vector<int64_t> value_shape(const SafetensorsReader& file, Job& job) {
  const std::string& name = job.from == Form::Elements ? job.elements_name : job.name;
  const auto* entry = file.find(name);
  if (entry == nullptr) throw InputError(fmt::format("tensor '{}' is missing", name));
  std::vector<int64_t> shape = entry->shape;
  if (job.from == Form::Packed) {
    const PackedTensor packed = *find_packed(file, name);
    job.gated = packed.weights.gated, job.gate = packed.weights.gate;
    return packed.weight_shape();
  }
  if (job.from == Form::Values) {
    if (entry->dtype != "BF16" && entry->dtype != "F32")
      throw InputError(fmt::format("tensor '{}' is {}, to be quantized it must be BF16 or F32", name, entry->dtype));
    job.rows.type = entry->dtype == "F32" ? DataType::F32 : DataType::Bf16;
    return shape;
  }
  const bool mxfp8 = job.rows.format == DataType::Mxfp8;
  const char* const wanted = mxfp8 ? "F8_E4M3" : "U8";
  if (entry->dtype != wanted)
    throw InputError(fmt::format("tensor '{}' is {}, to be {} it must be {}", name, entry->dtype,
                                 job.to == Form::Packed ? "packed" : "dequantized", wanted));
  // A checkpoint's blocks of 16 bytes may have a dimension of their own.
  const auto* scales = file.find(scales_name(job.name));
  if (job.elements_name != job.name && scales != nullptr && shape.size() == scales->shape.size() + 1 &&
      shape.back() == 16) {
    shape.pop_back();
    shape.back() *= 16;
  }
  if (!mxfp8 && !shape.empty()) shape.back() *= 2;
  return shape;
}

// Checks a tensor and returns its job without the bytes.
Job plan_job(const SafetensorsReader& file, const std::string& name, const QuantizedRows& common,
             const QuantizeOptions& options) {
  Job job;
  job.name = name;
  job.rows = common;
  if (options.gate != "none") job.gated = true, job.gate = *parse<GateLayout>(options.gate);
  find_form(file, options, job);
  job.shape = value_shape(file, job);
  if (job.shape.size() != 2 && job.shape.size() != 3) {
    const std::string& given = job.from == Form::Elements ? job.elements_name : name;
    throw InputError(fmt::format("tensor '{}' is {}, it must be [rows, K] or [groups, rows, K]", given,
                                 shape_text(file.find(given)->shape)));
  }
  const int64_t block = scale_block(common.format);
  if (job.shape.back() % block != 0) {
    throw InputError(fmt::format("tensor '{}' is {}, its last extent (K) must be a multiple of {}", name,
                                 shape_text(job.shape), block));
  }
  job.rows.k = job.shape.back();
  job.rows.rows = job.shape[job.shape.size() - 2];
  job.rows.groups = job.shape.size() == 3 ? job.shape[0] : 1;
  if (job.to == Form::Packed) {
    if (std::count(job.shape.begin(), job.shape.end(), 0) > 0)
      throw InputError(fmt::format("tensor '{}' is {}, to be packed no extent may be 0", name, shape_text(job.shape)));
    try {
      packed_weight_bytes(job.packing().weights);
    } catch (const Error& error) {
      throw InputError(fmt::format("tensor '{}' is {}: {}", name, shape_text(job.shape), error.what()));
    }
  }
  if (job.rows.groups == 0) job.rows.groups = 1, job.rows.rows = 0;
  const auto names = [&](Form form) {
    if (form != Form::Elements) return std::vector{name};
    std::vector<std::string> all = {job.elements_name, scales_name(name)};
    if (common.format == DataType::Nvfp4) all.push_back(tensor_scale_name(name));
    return all;
  };
  job.takes = names(job.from), job.makes = names(job.to);
  return job;
}

void load_quantized(const SafetensorsReader& file, Job& job) {
  const std::string scales = scales_name(job.name), tensor = tensor_scale_name(job.name);
  const auto* entry = file.find(scales);
  if (entry == nullptr) throw InputError(fmt::format("tensor '{}' is missing", scales));
  if (entry->dtype != "U8") throw InputError(fmt::format("tensor '{}' is {}, it must be U8", scales, entry->dtype));
  const size_t wanted = scale_bytes(job.rows);
  if (entry->bytes != wanted) {
    throw InputError(fmt::format("tensor '{}' has {} bytes, with '{}' it must have {}", scales, entry->bytes,
                                 job.elements_name, wanted));
  }
  if (job.rows.format == DataType::Nvfp4) {
    const auto* scale = file.find(tensor);
    if (scale == nullptr) throw InputError(fmt::format("tensor '{}' is missing, which NVFP4 needs", tensor));
    if (scale->dtype != "F32" || scale->bytes != 4)
      throw InputError(
          fmt::format("tensor '{}' is {} {}, it must be one F32", tensor, scale->dtype, shape_text(scale->shape)));
    std::memcpy(&job.tensor_scale, file.read(tensor).data(), 4);
  }
  job.elements = file.read(job.elements_name);
  job.scales = file.read(scales);
}

// Appends the tensors of elements and scales.
void add_quantized(std::vector<TensorToWrite>& tensors, Job& job) {
  const bool pairs = job.rows.format != DataType::Mxfp8, blocked = job.rows.layout == ScaleLayout::Blocked;
  std::vector<int64_t> elements = job.shape, scales = job.shape;
  if (pairs) elements.back() /= 2;
  scales.back() = job.scale_columns();
  if (job.elements_name != job.name) elements.back() /= 16, elements.push_back(16);
  if (blocked) scales = {static_cast<int64_t>(job.scales.size())};
  tensors.push_back({job.elements_name, pairs ? "U8" : "F8_E4M3", elements, std::move(job.elements)});
  tensors.push_back({scales_name(job.name), "U8", scales, std::move(job.scales)});
  if (job.rows.format == DataType::Nvfp4) {
    std::vector<uint8_t> bytes(4);
    std::memcpy(bytes.data(), &job.tensor_scale, 4);
    tensors.push_back({tensor_scale_name(job.name), "F32", {1}, bytes});
  }
}

// Converts a tensor and appends what it becomes. `device` is null for the CPU. `job` is a copy, whose buffers
// are freed at the end.
void convert(const SafetensorsReader& file, const Device* device, Job job, std::vector<TensorToWrite>& tensors) {
  const auto make_elements = [&] {
    job.elements.resize(job.element_bytes());
    job.scales.resize(scale_bytes(job.rows));
  };
  switch (job.from) {
    case Form::Values:
      job.values = file.read(job.name);
      make_elements();
      device ? quantize_on_device(*device, job) : quantize_on_host(job);
      job.values = {};
      break;
    case Form::Elements:
      load_quantized(file, job);
      break;
    case Form::Packed:
      job.packed = file.read(job.name);
      make_elements();
      device ? unpack_on_device(*device, job) : unpack_on_host(job);
      job.packed = {};
      break;
  }
  switch (job.to) {
    case Form::Values:
      job.values.resize(job.value_bytes());
      device ? dequantize_on_device(*device, job) : dequantize_on_host(job);
      tensors.push_back({job.name, job.rows.type == DataType::F32 ? "F32" : "BF16", job.shape, std::move(job.values)});
      break;
    case Form::Elements:
      add_quantized(tensors, job);
      break;
    case Form::Packed:
      job.packed.resize(packed_weight_bytes(job.packing().weights));
      device ? pack_on_device(*device, job) : pack_on_host(job);
      tensors.push_back({job.name, "U8", job.packing().shape(), std::move(job.packed)});
      break;
  }
}

// No two jobs may have a name in common, and none may make what is there already.
void check_names(const SafetensorsReader& file, const std::vector<Job>& jobs) {
  std::map<std::string, const Job*> owners;
  for (const Job& job : jobs) {
    for (const std::vector<std::string>* names : {&job.takes, &job.makes}) {
      for (const std::string& name : *names) {
        if (owners.emplace(name, &job).first->second != &job)
          throw InputError(fmt::format("--tensors: two of them would become '{}'", name));
      }
    }
  }
  for (const Job& job : jobs) {
    for (const std::string& name : job.makes) {
      if (file.find(name) != nullptr && std::count(job.takes.begin(), job.takes.end(), name) == 0)
        throw InputError(
            fmt::format("tensor '{}' is there already, '{}' would become one of that name", name, job.name));
    }
  }
}

int run_quantize(const QuantizeOptions& options) {
  QuantizedRows common;
  common.format = choose_format(options.format);
  common.layout = choose<ScaleLayout>("--scales", options.scales);
  common.type = choose("--dtype", options.dtype, {"bf16", "f32"}) == 1 ? DataType::F32 : DataType::Bf16;
  const bool on_device = choose("--on", options.on, {"host", "device"}) == 1;
  const bool packs = choose("--layout", options.layout, {"rows", "hopper"}) == 1;
  choose("--gate", options.gate, {"none", "interleaved", "split", "split-up-first"});
  if (packs && common.format != DataType::Mxfp4)
    throw InputError(fmt::format("--layout: hopper is for mxfp4, not for {}", options.format));
  if (packs && common.layout != ScaleLayout::RowMajor)
    throw InputError("--scales: packed weights hold their scales, none can be blocked");
  if (options.gate != "none" && (!packs || options.reverse))
    throw InputError(fmt::format("--gate: {}", packs ? "of packed weights the file says it"
                                                     : "only --layout hopper brings gate and up together"));
  std::error_code ignored;
  if (std::filesystem::equivalent(options.in, options.out_file, ignored))
    throw InputError(fmt::format("OUT: {} is the input file", options.out_file));
  check_writable(options.out_file);

  const SafetensorsReader file(options.in);
  std::vector<Job> jobs;
  for (const std::string& name : options.tensors) {
    if (std::any_of(jobs.begin(), jobs.end(), [&](const Job& job) { return job.name == name; }))
      throw InputError(fmt::format("--tensors: '{}' is named twice", name));
    jobs.push_back(plan_job(file, name, common, options));
  }
  check_names(file, jobs);

  std::optional<Device> device;
  if (on_device) device = Device::open();
  std::vector<TensorToWrite> tensors;
  std::map<std::string, std::string> metadata = file.metadata();
  std::vector<std::string> taken;
  for (const Job& job : jobs) {
    convert(file, on_device ? &*device : nullptr, job, tensors);
    if (job.from == Form::Packed) metadata.erase(packed_key(job.name));
    if (job.to == Form::Packed) metadata[packed_key(job.name)] = packed_text(job.packing());
    taken.insert(taken.end(), job.takes.begin(), job.takes.end());
  }
  // All other tensors are copied.
  for (const auto& [name, entry] : file.entries()) {
    if (std::count(taken.begin(), taken.end(), name) == 0)
      tensors.push_back({name, entry.dtype, entry.shape, file.read(name)});
  }
  write_safetensors(options.out_file, tensors, metadata);
  return 0;
}

}  // namespace

Run add_quantize(CLI::App& command) {
  auto options = std::make_shared<QuantizeOptions>();
  command.add_option("IN", options->in, "safetensors file")->required();
  command
      .add_option(
          "OUT", options->out_file,
          "safetensors file to write: of each tensor NAME its elements under that name (U8, two in a byte; "
          "mxfp8: F8_E4M3), NAME_scales (U8) and, of nvfp4, NAME_tensor_scale, or with --layout hopper NAME alone "
          "(U8, with its shape in the metadata); all other tensors as they are")
      ->required();
  command.add_option("--format", options->format, "mxfp4, mxfp8 (32 elements share an E8M0 scale) or nvfp4 (16, E4M3)")
      ->required();
  command
      .add_option(
          "--tensors", options->tensors,
          "Which tensors, bf16 or f32 [rows, K] or [groups, rows, K]: names, with commas between them. --layout "
          "hopper and --reverse also take elements of mxfp4 as checkpoints hold them: NAME_blocks [..., K/32, "
          "16] or [..., K/2] and NAME_scales")
      ->delimiter(',')
      ->required();
  command
      .add_option("--layout", options->layout,
                  "How elements lie: rows, or hopper (mxfp4 weights with their scales, packed for products of bf16 on "
                  "sm_90a)")
      ->capture_default_str();
  command
      .add_option(
          "--gate", options->gate,
          "With --layout hopper, where gate and up lie along the rows of weights for a gated activation: none, " +
              list_words<GateLayout>())
      ->capture_default_str();
  command
      .add_option("--scales", options->scales,
                  "How the scales lie: row-major [..., K/32 or K/16], or blocked (what gemm reads)")
      ->capture_default_str();
  command.add_option("--on", options->on, "Where to compute: host (the CPU) or device; the bits are the same")
      ->capture_default_str();
  command.add_flag("--reverse", options->reverse,
                   "Dequantize: NAME and NAME_scales become NAME. With --layout hopper, "
                   "unpack: NAME becomes NAME_blocks and NAME_scales");
  command.add_option("--dtype", options->dtype, "With --reverse, elements of the result: bf16 or f32")
      ->capture_default_str();
  return [options] { return run_quantize(*options); };
}

}  // namespace moxie::cli
