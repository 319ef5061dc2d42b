// SPDX-License-Identifier: Apache-2.0
// From a kernel's configuration and its sinks to the text of its translation unit. Equal arguments give equal text.
#pragma once
#include <bit>
#include <string>
#include <vector>

#include "moxie/config.h"
#include "moxie/routing.h"

namespace moxie::jit {

// One output of the epilogue (kernels/moxie/epilogue/sink.cuh).
struct SinkSource {
  std::string type;    // C++ type name; may use kConfig, the kernel's configuration
  std::string header;  // include name of the header that defines it, or "" for a standard sink
};

// The standard sink that stores pre, or else out, as `type`.
SinkSource store_sink(bool pre, DataType type);

// Name of the kernel in the text. Its arguments: GemmParams, for operands with scales ScaleParams, then each sink's
// Params in the order given.
inline constexpr const char* kKernelName = "moxie_kernel";

std::string hopper_source(const kernel::HopperConfig& config, const std::vector<SinkSource>& sinks);
std::string blackwell_source(const kernel::BlackwellConfig& config, const std::vector<SinkSource>& sinks);

// The kernel of block_scales() and unblock_scales(), whose argument is BlockScalesParams.
std::string block_scales_source();

// The kernels of moxie/quantize.h. Their argument is QuantizeParams; TensorScale has an int besides, the step.
enum class QuantizeKernel { Quantize, GatherAndQuantize, Dequantize, TensorScale };
inline constexpr int kQuantizeKernels = 4;
std::string quantize_source(QuantizeKernel kernel, DataType format, DataType type);

// The kernels of moxie/weights.h, whose argument is PackWeightsParams.
std::string pack_weights_source(bool unpack);

// The kernels of sort_by_expert(), in the order in which they run, and with a table those of sort_by_place(). Their
// argument is SortParams.
enum class SortKernel { Count, Place };
inline constexpr int kSortKernels = 2;
std::string sort_source(SortKernel kernel, IdType type, bool table);

// The kernel of route(), whose argument is RouteParams. There is one for every power of two of experts a lane has, and
// `size` is its logarithm.
constexpr int route_size(int experts) { return std::bit_width(unsigned(experts - 1) / 32); }
inline constexpr int kRouteSizes = route_size(kMaxRoutedExperts) + 1;
std::string route_source(DataType logits, RouterScore score, int size);

// The kernel of permute(), whose argument is PermuteParams.
std::string permute_source();

// The kernel of combine(), whose argument is CombineParams.
std::string combine_source(DataType rows, DataType out);

// The kernels of layers over ranks, whose arguments stand in moxie/window.h.
std::string exchange_source();
std::string send_few_source(IdType type, RowFormat format);
std::string meet_source();
std::string dispatch_source(IdType type, RowFormat format);
std::string gather_rows_source(RowFormat format);
std::string combine_ranks_source(DataType out, bool meets);
std::string combine_sums_source(DataType out, ResultFormat results);

}  // namespace moxie::jit
