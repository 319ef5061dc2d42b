// SPDX-License-Identifier: Apache-2.0
// Packing and unpacking MXFP4 weights: checks, kernel, launch.
#include "moxie/weights.h"

#include <iterator>

#include "device_state.h"
#include "jit/source.h"
#include "moxie/layout.h"
#include "ops/check.h"

namespace moxie {
namespace {

using ops::reject;

void check_weight_shape(const WeightShape& x) {
  constexpr int64_t kMost = int64_t{1} << 30;  // of n and of k: what a kernel counts stays an int32
  if (x.groups < 1 || x.groups > kMaxGroups) reject("groups is {}, but must be 1 to {}", x.groups, kMaxGroups);
  const int64_t unit = x.gated ? 16 : 8;
  if (x.n < 0 || x.n > kMost || x.n % unit != 0)
    reject("n is {}, but must be a multiple of {} from 0 to {}{}", x.n, unit, kMost, x.gated ? " with a gate" : "");
  if (x.k < 0 || x.k > kMost || x.k % kScaleBlock != 0)
    reject("k is {}, but must be a multiple of {} from 0 to {}", x.k, kScaleBlock, kMost);
  ops::check_enum("gate", x.gate);
  if (__int128(x.groups) * kernel::packed_group_bytes(x.n, x.k) >= int64_t{1} << 40)
    reject("the packed weights would take 2^40 bytes or more: {} groups of {} rows of {}", x.groups, x.n, x.k);
}

// `codes` and `scales` are read by one kernel and written by the other; as are the packed weights.
void launch_weights(const Device& device, const WeightShape& x, bool unpack, const void* codes, const void* scales,
                    const void* packed, uint64_t* refused, Stream stream) {
  check_weight_shape(x);
  if (x.n == 0 || x.k == 0) return;
  const int64_t elements = x.groups * x.n * x.k;
  const ops::Range ranges[] = {
      ops::check_array("codes", codes, true, 16, elements / 2, 1),
      ops::check_array("scales", scales, true, 16, elements / kScaleBlock, 1),
      ops::check_array("packed", packed, true, 16, int64_t(packed_weight_bytes(x)), 1),
      ops::check_array("refused", refused, false, 8, 1, 8),
  };
  for (const ops::Range& range : ranges) {
    for (const ops::Range* other = &range + 1; other != std::end(ranges); ++other) ops::check_disjoint(range, *other);
  }
  kernel::PackWeightsParams params;
  params.codes = static_cast<uint8_t*>(const_cast<void*>(codes));
  params.scales = static_cast<uint8_t*>(const_cast<void*>(scales));
  params.packed = static_cast<uint8_t*>(const_cast<void*>(packed));
  params.refused = reinterpret_cast<unsigned long long*>(refused);
  params.n = int32_t(x.n), params.k = int32_t(x.k);
  params.gated = int32_t(x.gated), params.gate = x.gate;
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
