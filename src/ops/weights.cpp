// SPDX-License-Identifier: Apache-2.0
// Packing and unpacking MXFP4 weights: checks, kernel, launch.
#include "moxie/weights.h"

#include <fmt/format.h>

#include <array>

#include "device_state.h"
#include "jit/source.h"
#include "moxie/error.h"
#include "moxie/layout.h"
#include "moxie/names.h"
#include "ops/check.h"

namespace moxie {
namespace {

template <typename... T>
[[noreturn]] void refuse(fmt::format_string<T...> format, T&&... values) {
  throw Error(ErrorCode::InvalidArgument, fmt::format(format, std::forward<T>(values)...));
}

void check_weight_shape(const WeightShape& x) {
  constexpr int64_t kMost = int64_t{1} << 30;  // of n and of k: what a kernel counts stays an int32
  if (x.groups < 1 || x.groups > kMaxGroups) refuse("groups is {}, but must be 1 to {}", x.groups, kMaxGroups);
  const int64_t unit = x.gated ? 16 : 8;
  if (x.n < 0 || x.n > kMost || x.n % unit != 0)
    refuse("n is {}, but must be a multiple of {} from 0 to {}{}", x.n, unit, kMost, x.gated ? " with a gate" : "");
  if (x.k < 0 || x.k > kMost || x.k % kScaleBlock != 0)
    refuse("k is {}, but must be a multiple of {} from 0 to {}", x.k, kScaleBlock, kMost);
  if (!is_enumerator(x.gate))
    refuse("gate is {}, but only 0 to {} have a meaning", int(x.gate), names<GateLayout>().size() - 1);
  if (__int128(x.groups) * kernel::packed_group_bytes(x.n, x.k) >= int64_t{1} << 40)
    refuse("the packed weights would take 2^40 bytes or more: {} groups of {} rows of {}", x.groups, x.n, x.k);
}

struct Buffer {
  const char* name;
  const void* pointer;
  uint64_t bytes;
  size_t alignment;
};

void check_buffers(const std::array<Buffer, 4>& buffers) {
  for (const Buffer& x : buffers) {
    const auto begin = reinterpret_cast<uintptr_t>(x.pointer);
    if (!x.pointer && x.bytes > 0) refuse("{} is null, but must point to device memory", x.name);
    if (begin % x.alignment != 0) refuse("{} is {}, but must be aligned to {} bytes", x.name, x.pointer, x.alignment);
    for (const Buffer& y : buffers) {
      const auto other = reinterpret_cast<uintptr_t>(y.pointer);
      if (&x < &y && begin < other + y.bytes && other < begin + x.bytes)
        refuse("{} overlaps {} in memory", x.name, y.name);
    }
  }
}

// `codes` and `scales` are read by one kernel and written by the other; as are the packed weights.
void launch_weights(const Device& device, const WeightShape& x, bool unpack, const void* codes, const void* scales,
                    const void* packed, uint64_t* refused, Stream stream) {
  check_weight_shape(x);
  if (x.n == 0 || x.k == 0) return;
  const auto elements = uint64_t(x.groups) * uint64_t(x.n) * uint64_t(x.k);
  check_buffers({{{"codes", codes, elements / 2, 16},
                  {"scales", scales, elements / kScaleBlock, 16},
                  {"packed", packed, packed_weight_bytes(x), 16},
                  {"refused", refused, refused ? 8u : 0u, 8}}});
  kernel::PackWeightsParams params;
  params.codes = static_cast<uint8_t*>(const_cast<void*>(codes));
  params.scales = static_cast<uint8_t*>(const_cast<void*>(scales));
  params.packed = static_cast<uint8_t*>(const_cast<void*>(packed));
  params.refused = reinterpret_cast<unsigned long long*>(refused);
  params.n = int32_t(x.n), params.k = int32_t(x.k);
  params.gated = x.gated ? 1 : 0, params.gate = x.gate;
  driver::Context::LaunchShape shape;
  shape.grid = unsigned(kernel::packed_rows(x.n) / kernel::kPackUnit);
  shape.grid_y = unsigned(x.groups);
  shape.block = kernel::kPackWeightsThreads;
  void* arguments[] = {&params};
  device.state().context().launch(device.state().pack_weights_kernel(unpack), shape, arguments, stream);
}

}  // namespace

size_t packed_weight_bytes(const WeightShape& x) {
  check_weight_shape(x);
  return size_t(x.groups * kernel::packed_group_bytes(x.n, x.k));
}

void pack_weights(const Device& device, const WeightPacking& x) {
  launch_weights(device, x, false, x.codes, x.scales, x.packed, x.refused, x.stream);
}

void unpack_weights(const Device& device, const WeightUnpacking& x) {
  launch_weights(device, x, true, x.codes, x.scales, x.packed, nullptr, x.stream);
}

}  // namespace moxie
