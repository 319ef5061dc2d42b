// SPDX-License-Identifier: Apache-2.0
// moxie quantize: brings tensors of a file to MXFP4, MXFP8 or NVFP4 with their scales, and back. It computes on the CPU
// unless a device is asked for. Both give the same bits.
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
#include "cli/safetensors.h"
#include "moxie/quantize.h"
#include "reference/formats.h"

namespace moxie::cli {

namespace {

using timing::Buffer;
using timing::worker_threads;

struct QuantizeOptions {
  std::string in, out_file, format, scales = "row-major", on = "host", dtype = "bf16";
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

// The names of the tensors that belong to a quantized one.
std::string scales_name(const std::string& name) { return name + "_scales"; }
std::string tensor_scale_name(const std::string& name) { return name + "_tensor_scale"; }

// A tensor [rows, k] or [groups, rows, k] that is converted. All bytes are as in the file.
struct Job {
  std::string name;
  QuantizedRows rows;
  std::vector<int64_t> shape;  // of the values
  std::vector<uint8_t> values, elements, scales;
  float tensor_scale = 1;

  int64_t all_rows() const { return rows.groups * rows.rows; }
  int64_t scale_columns() const { return rows.k / scale_block(rows.format); }
  size_t element_bytes() const { return static_cast<size_t>(all_rows() * rows.k * bits_of(rows.format) / 8); }
  size_t value_bytes() const { return static_cast<size_t>(all_rows() * rows.k * size_of(rows.type)); }
};

// Calls work(first, last) for ranges that make up the job's rows, on all cores.
template <class Work>
void for_rows(const Job& job, Work&& work) {
  const int64_t rows = job.all_rows(), share = rows / worker_threads() + 1;
  std::vector<std::thread> others;
  for (int64_t from = share; from < rows; from += share)
    others.emplace_back([&work, from, to = std::min(from + share, rows)] { work(from, to); });
  work(0, std::min(share, rows));
  for (auto& thread : others) thread.join();
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
  for_rows(job, [&](int64_t from, int64_t to) {
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
  for_rows(job, [&](int64_t from, int64_t to) {
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

// Checks a tensor of values, or in reverse of elements, and returns its job without their bytes.
Job plan_job(const SafetensorsReader& file, const std::string& name, const QuantizedRows& common, bool reverse) {
  const auto* entry = file.find(name);
  if (entry == nullptr) throw InputError(fmt::format("tensor '{}' is missing", name));
  Job job;
  job.name = name;
  job.rows = common;
  job.shape = entry->shape;
  const bool mxfp8 = common.format == DataType::Mxfp8;
  if (reverse) {
    const char* const wanted = mxfp8 ? "F8_E4M3" : "U8";
    if (entry->dtype != wanted)
      throw InputError(fmt::format("tensor '{}' is {}, to be dequantized it must be {}", name, entry->dtype, wanted));
    if (!mxfp8 && !job.shape.empty()) job.shape.back() *= 2;
  } else if (entry->dtype == "BF16" || entry->dtype == "F32") {
    job.rows.type = entry->dtype == "F32" ? DataType::F32 : DataType::Bf16;
  } else {
    throw InputError(fmt::format("tensor '{}' is {}, to be quantized it must be BF16 or F32", name, entry->dtype));
  }
  if (job.shape.size() != 2 && job.shape.size() != 3) {
    throw InputError(
        fmt::format("tensor '{}' is {}, it must be [rows, K] or [groups, rows, K]", name, shape_text(entry->shape)));
  }
  const int64_t block = scale_block(common.format);
  if (job.shape.back() % block != 0) {
    throw InputError(fmt::format("tensor '{}' is {}, its last extent (K) must be a multiple of {}", name,
                                 shape_text(job.shape), block));
  }
  job.rows.k = job.shape.back();
  job.rows.rows = job.shape[job.shape.size() - 2];
  job.rows.groups = job.shape.size() == 3 ? job.shape[0] : 1;
  if (job.rows.groups == 0) job.rows.groups = 1, job.rows.rows = 0;
  return job;
}

void load_quantized(const SafetensorsReader& file, Job& job) {
  const std::string scales = scales_name(job.name), tensor = tensor_scale_name(job.name);
  const auto* entry = file.find(scales);
  if (entry == nullptr) throw InputError(fmt::format("tensor '{}' is missing", scales));
  if (entry->dtype != "U8") throw InputError(fmt::format("tensor '{}' is {}, it must be U8", scales, entry->dtype));
  const size_t wanted = scale_bytes(job.rows);
  if (entry->bytes != wanted) {
    throw InputError(
        fmt::format("tensor '{}' has {} bytes, with '{}' it must have {}", scales, entry->bytes, job.name, wanted));
  }
  if (job.rows.format == DataType::Nvfp4) {
    const auto* scale = file.find(tensor);
    if (scale == nullptr) throw InputError(fmt::format("tensor '{}' is missing, which NVFP4 needs", tensor));
    if (scale->dtype != "F32" || scale->bytes != 4)
      throw InputError(
          fmt::format("tensor '{}' is {} {}, it must be one F32", tensor, scale->dtype, shape_text(scale->shape)));
    std::memcpy(&job.tensor_scale, file.read(tensor).data(), 4);
  }
  job.elements = file.read(job.name);
  job.scales = file.read(scales);
  job.values.resize(job.value_bytes());
}

// Appends the tensors that quantizing makes.
void add_quantized(std::vector<TensorToWrite>& tensors, Job& job) {
  const bool pairs = job.rows.format != DataType::Mxfp8, blocked = job.rows.layout == ScaleLayout::Blocked;
  std::vector<int64_t> elements = job.shape, scales = job.shape;
  if (pairs) elements.back() /= 2;
  scales.back() = job.scale_columns();
  if (blocked) scales = {static_cast<int64_t>(job.scales.size())};
  tensors.push_back({job.name, pairs ? "U8" : "F8_E4M3", elements, std::move(job.elements)});
  tensors.push_back({scales_name(job.name), "U8", scales, std::move(job.scales)});
  if (job.rows.format == DataType::Nvfp4) {
    std::vector<uint8_t> bytes(4);
    std::memcpy(bytes.data(), &job.tensor_scale, 4);
    tensors.push_back({tensor_scale_name(job.name), "F32", {1}, bytes});
  }
}

int run_quantize(const QuantizeOptions& options) {
  QuantizedRows common;
  common.format = choose_format(options.format);
  common.layout = choose<ScaleLayout>("--scales", options.scales);
  common.type = choose("--dtype", options.dtype, {"bf16", "f32"}) == 1 ? DataType::F32 : DataType::Bf16;
  const bool on_device = choose("--on", options.on, {"host", "device"}) == 1;
  std::error_code ignored;
  if (std::filesystem::equivalent(options.in, options.out_file, ignored))
    throw InputError(fmt::format("OUT: {} is the input file", options.out_file));
  check_writable(options.out_file);

  const SafetensorsReader file(options.in);
  std::vector<Job> jobs;
  std::vector<std::string> made;  // names that the output gets beside those it takes over
  for (const std::string& name : options.tensors) {
    if (std::any_of(jobs.begin(), jobs.end(), [&](const Job& job) { return job.name == name; }))
      throw InputError(fmt::format("--tensors: '{}' is named twice", name));
    jobs.push_back(plan_job(file, name, common, options.reverse));
    made.push_back(name);
    made.push_back(scales_name(name));
    if (common.format == DataType::Nvfp4) made.push_back(tensor_scale_name(name));
  }
  for (const std::string& name : made) {
    if (std::count(made.begin(), made.end(), name) > 1)
      throw InputError(fmt::format("--tensors: two of them would become '{}'", name));
    if (options.reverse || file.find(name) == nullptr) continue;
    if (std::none_of(jobs.begin(), jobs.end(), [&](const Job& job) { return job.name == name; }))
      throw InputError(fmt::format("tensor '{}' is there already, the scales of a quantized tensor would be", name));
  }

  std::optional<Device> device;
  if (on_device) device = Device::open();
  std::vector<TensorToWrite> tensors;
  for (Job& job : jobs) {
    if (options.reverse) {
      load_quantized(file, job);
      on_device ? dequantize_on_device(*device, job) : dequantize_on_host(job);
      tensors.push_back({job.name, common.type == DataType::F32 ? "F32" : "BF16", job.shape, std::move(job.values)});
    } else {
      job.values = file.read(job.name);
      job.elements.resize(job.element_bytes());
      job.scales.resize(scale_bytes(job.rows));
      on_device ? quantize_on_device(*device, job) : quantize_on_host(job);
      job.values = {};
      add_quantized(tensors, job);
    }
  }
  // All other tensors are copied.
  for (const auto& [name, entry] : file.entries()) {
    if (std::count(made.begin(), made.end(), name) == 0)
      tensors.push_back({name, entry.dtype, entry.shape, file.read(name)});
  }
  write_safetensors(options.out_file, tensors, file.metadata());
  return 0;
}

}  // namespace

Run add_quantize(CLI::App& command) {
  auto options = std::make_shared<QuantizeOptions>();
  command.add_option("IN", options->in, "safetensors file")->required();
  command
      .add_option("OUT", options->out_file,
                  "safetensors file to write: of each tensor NAME its elements under that name (U8, two in a byte; "
                  "mxfp8: F8_E4M3), NAME_scales (U8) and, of nvfp4, NAME_tensor_scale; all other tensors as they are")
      ->required();
  command.add_option("--format", options->format, "mxfp4, mxfp8 (32 elements share an E8M0 scale) or nvfp4 (16, E4M3)")
      ->required();
  command
      .add_option("--tensors", options->tensors,
                  "Which tensors, bf16 or f32 [rows, K] or [groups, rows, K]: names, with commas between them")
      ->delimiter(',')
      ->required();
  command
      .add_option("--scales", options->scales,
                  "How the scales lie: row-major [..., K/32 or K/16], or blocked (what gemm reads)")
      ->capture_default_str();
  command.add_option("--on", options->on, "Where to compute: host (the CPU) or device; the bits are the same")
      ->capture_default_str();
  command.add_flag("--reverse", options->reverse, "Dequantize: NAME and NAME_scales become NAME");
  command.add_option("--dtype", options->dtype, "With --reverse, elements of the result: bf16 or f32")
      ->capture_default_str();
  return [options] { return run_quantize(*options); };
}

}  // namespace moxie::cli
