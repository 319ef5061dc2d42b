// SPDX-License-Identifier: Apache-2.0
// See gemm_output.h.
#include "cli/gemm_output.h"

#include <cstring>

#include "moxie/scales.h"

namespace moxie::cli {

namespace {

const char* file_type(DataType type) {
  switch (type) {
    case DataType::Bf16:
      return "BF16";
    case DataType::F32:
      return "F32";
    case DataType::Mxfp8:
      return "F8_E4M3";
    case DataType::Mxfp4:
    case DataType::Nvfp4:
      break;
  }
  return "U8";  // two elements in a byte
}

const char* file_type_of_scales(DataType type) { return type == DataType::Nvfp4 ? "F8_E4M3" : "U8"; }

// Padding rows that share a tile with valid ones may have been written. `clear` is called for each of them.
template <class Clear>
void clear_padding(const GemmInput& input, Clear&& clear) {
  if (input.grouping != Grouping::RowGroups) return;
  for (size_t row = 0; row < input.rows.size(); ++row) {
    if (input.rows[row] < 0) clear(row);
  }
}

}  // namespace

GemmOutput::GemmOutput(const Device& device, const GemmInput& input, std::string name, DataType type, int64_t width,
                       size_t scale_bytes)
    : device_(device),
      input_(input),
      name_(std::move(name)),
      type_(type),
      width_(width),
      scale_bytes_(scale_bytes),
      values_(device, static_cast<size_t>(rows()) * row_bytes()),
      scales_(device, scale_bytes) {
  values_.clear(device_);
  scales_.clear(device_);
}

int64_t GemmOutput::rows() const {
  const bool stacked = input_.is_stacked() || input_.grouping == Grouping::KGroups;
  return input_.m * (stacked ? input_.groups : 1);
}

std::vector<int64_t> GemmOutput::shape(int64_t columns) const {
  std::vector<int64_t> shape = input_.a_shape;
  shape.back() = columns;
  if (input_.grouping == Grouping::KGroups) shape.insert(shape.begin(), input_.groups);
  return shape;
}

Tensor GemmOutput::tensor() const { return {values_.as(), 0, scale_bytes_ > 0 ? scales_.as() : nullptr, nullptr}; }

TensorArray GemmOutput::pointers() {
  std::vector<void*> values, scales;
  int64_t before = 0;  // bytes of the scales that lie before the group's
  for (size_t g = 0; g < input_.group_start.size(); ++g) {
    values.push_back(values_.as<char>() + static_cast<size_t>(input_.group_start[g]) * row_bytes());
    scales.push_back(scales_.as<char>() + before);
    const int64_t rows = input_.grouping == Grouping::Offsets ? input_.group_rows[g] : input_.m;
    before += blocked_scale_bytes(rows, width_, scale_block(type_));
  }
  pointers_ = timing::Buffer(device_, values);
  lds_ = timing::Buffer(device_, std::vector<int64_t>(values.size(), width_));
  TensorArray array{pointers_.as<void*>(), lds_.as<int64_t>(), nullptr, nullptr};
  if (scale_bytes_ > 0) {
    scale_pointers_ = timing::Buffer(device_, scales);
    array.scales = scale_pointers_.as<void*>();
  }
  return array;
}

std::vector<uint8_t> GemmOutput::download(const timing::Buffer& buffer, size_t bytes) const {
  std::vector<uint8_t> host(bytes);
  if (bytes > 0) device_.download(host.data(), buffer.as(), bytes);
  return host;
}

TensorToWrite GemmOutput::scales_tensor(const int32_t* ends, bool blocked) const {
  const int block = scale_block(type_);
  const int64_t columns = width_ / block;
  TensorToWrite tensor{name_ + "_scales", file_type_of_scales(type_), {static_cast<int64_t>(scale_bytes_)}, {}};
  if (blocked) {
    tensor.data = download(scales_, scale_bytes_);
    clear_padding(input_, [&](size_t row) {
      for (int64_t c = 0; c < columns; ++c)
        tensor.data[static_cast<size_t>(blocked_scale_index(static_cast<int64_t>(row), c, width_, block))] = 0;
    });
    return tensor;
  }
  tensor.shape = shape(columns);
  const auto row_bytes = static_cast<size_t>(columns);
  const size_t bytes = static_cast<size_t>(rows()) * row_bytes;
  const timing::Buffer row_major(device_, bytes);
  row_major.clear(device_);
  ScaleBlocking blocking;
  blocking.from = scales_.as();
  blocking.to = row_major.as();
  blocking.groups = ends != nullptr || tensor.shape.size() == 3 ? input_.groups : 1;
  blocking.rows = input_.m;
  blocking.k = width_;
  blocking.block = block;
  blocking.offsets = ends;
  unblock_scales(device_, blocking);
  device_.synchronize();
  tensor.data = download(row_major, bytes);
  const auto clear = [&](size_t row) { std::memset(tensor.data.data() + row * row_bytes, 0, row_bytes); };
  if (input_.grouping == Grouping::Masked) {
    for (size_t g = 0; g < input_.group_rows.size(); ++g) {
      for (int64_t row = input_.group_rows[g]; row < input_.m; ++row)
        clear(static_cast<size_t>(input_.group_start[g] + row));
    }
  }
  clear_padding(input_, clear);
  return tensor;
}

void GemmOutput::append_to(std::vector<TensorToWrite>& tensors, const int32_t* ends, bool blocked_scales) const {
  const bool pairs = bits_of(type_) == 4;
  TensorToWrite tensor{name_, file_type(type_), shape(pairs ? width_ / 2 : width_), {}};
  tensor.data = download(values_, static_cast<size_t>(rows()) * row_bytes());
  clear_padding(input_, [&](size_t row) { std::memset(tensor.data.data() + row * row_bytes(), 0, row_bytes()); });
  tensors.push_back(std::move(tensor));
  if (scale_bytes_ > 0) tensors.push_back(scales_tensor(ends, blocked_scales));
}

}  // namespace moxie::cli
