// SPDX-License-Identifier: Apache-2.0
// Packed weights in C.
#include "moxie/weights.h"

#include "c/handles.h"
#include "c/structs.h"

namespace moxie::c {
namespace {

template <class Given>
void take_shape(WeightShape& shape, const Given& given) {
  shape.groups = given.groups == 0 ? 1 : given.groups;
  shape.n = given.n;
  shape.k = given.k;
  shape.gated = flag("gated", given.gated);
  shape.gate = enum_of<GateLayout>("gate", given.gate);
}

WeightPacking to_cpp(const moxie_weight_packing* arguments) {
  const moxie_weight_packing w = read(arguments, "arguments");
  WeightPacking packing;
  take_shape(packing, w);
  packing.codes = w.codes;
  packing.scales = w.scales;
  packing.packed = w.packed;
  packing.refused = w.refused;
  packing.stream = w.stream;
  return packing;
}

WeightUnpacking to_cpp(const moxie_weight_unpacking* arguments) {
  const moxie_weight_unpacking w = read(arguments, "arguments");
  WeightUnpacking unpacking;
  take_shape(unpacking, w);
  unpacking.packed = w.packed;
  unpacking.codes = w.codes;
  unpacking.scales = w.scales;
  unpacking.stream = w.stream;
  return unpacking;
}

}  // namespace
}  // namespace moxie::c

extern "C" {

moxie_status moxie_packed_weight_bytes(int64_t groups, int64_t n, int64_t k, size_t* bytes) {
  return moxie::c::guarded([&] {
    moxie::c::not_null(bytes, "bytes");
    *bytes = moxie::packed_weight_bytes(groups, n, k);
  });
}

moxie_status moxie_pack_weights(const moxie_device* device, const moxie_weight_packing* arguments) {
  return moxie::c::guarded(
      [&] { moxie::pack_weights(moxie::c::not_null(device, "device").device, moxie::c::to_cpp(arguments)); });
}

moxie_status moxie_unpack_weights(const moxie_device* device, const moxie_weight_unpacking* arguments) {
  return moxie::c::guarded(
      [&] { moxie::unpack_weights(moxie::c::not_null(device, "device").device, moxie::c::to_cpp(arguments)); });
}

}  // extern "C"
