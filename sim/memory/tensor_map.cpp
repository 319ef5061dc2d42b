// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/tensor_map.h"

#include <cstring>

namespace sim {

namespace {

// "moxietma"; a map that tensormap.replace has half written is still one.
constexpr uint64_t kMagic = 0x616d746569786f6dull;

struct Encoded {
  uint64_t magic;
  // Programs clear bit 21 of the second word of a small tensor's map, around a mistake of some drivers: nothing of ours
  // stands there.
  uint64_t unused;
  uint64_t address;
  uint64_t strides[4];
  uint32_t dims[5];  // less one: a dimension may have 2^32 elements
  uint16_t box[5];
  uint8_t element_strides[5];
  uint8_t element, rank, interleave, swizzle, l2, fill, atom;
  int16_t lower[3], upper[3];
  uint16_t channels, pixels;
  uint8_t mode;
  uint8_t more_unused[13];
};
static_assert(sizeof(Encoded) == kTensorMapBytes);

}  // namespace

void encode(const TensorMapFields& f, uint8_t out[kTensorMapBytes]) {
  Encoded e{};
  e.magic = kMagic;
  e.address = f.address;
  for (int i = 0; i < 4; ++i) e.strides[i] = f.strides[i];
  for (int i = 0; i < 5; ++i) {
    e.dims[i] = static_cast<uint32_t>(f.dims[i] - 1);
    e.box[i] = static_cast<uint16_t>(f.box[i]);
    e.element_strides[i] = static_cast<uint8_t>(f.element_strides[i]);
  }
  e.element = static_cast<uint8_t>(f.element);
  e.rank = static_cast<uint8_t>(f.rank);
  e.interleave = static_cast<uint8_t>(f.interleave);
  e.swizzle = static_cast<uint8_t>(f.swizzle);
  e.l2 = static_cast<uint8_t>(f.l2);
  e.fill = static_cast<uint8_t>(f.fill);
  e.atom = static_cast<uint8_t>(f.atom);
  e.mode = static_cast<uint8_t>(f.mode);
  for (int i = 0; i < 3; ++i) {
    e.lower[i] = static_cast<int16_t>(f.im2col.lower[i]);
    e.upper[i] = static_cast<int16_t>(f.im2col.upper[i]);
  }
  e.channels = static_cast<uint16_t>(f.im2col.channels);
  e.pixels = static_cast<uint16_t>(f.im2col.pixels);
  std::memcpy(out, &e, sizeof e);
}

std::optional<TensorMapFields> decode(const uint8_t in[kTensorMapBytes]) {
  Encoded e;
  std::memcpy(&e, in, sizeof e);
  if (e.magic != kMagic || e.rank < 1 || e.rank > 5 || e.element >= kTensorElements || e.interleave > 2 ||
      e.swizzle > 3 || e.l2 > 3 || e.fill > 1 || e.atom > 3 || e.mode > 3)
    return std::nullopt;
  TensorMapFields f;
  f.address = e.address;
  f.element = static_cast<TensorElement>(e.element);
  f.rank = e.rank;
  for (int i = 0; i < 4; ++i) f.strides[i] = e.strides[i];
  for (int i = 0; i < 5; ++i) {
    f.dims[i] = uint64_t{e.dims[i]} + 1;
    f.box[i] = e.box[i];
    f.element_strides[i] = e.element_strides[i];
  }
  f.interleave = static_cast<TensorInterleave>(e.interleave);
  f.swizzle = static_cast<TensorSwizzle>(e.swizzle);
  f.l2 = static_cast<TensorL2>(e.l2);
  f.fill = static_cast<TensorFill>(e.fill);
  f.atom = static_cast<TensorAtom>(e.atom);
  f.mode = static_cast<TensorMode>(e.mode);
  for (int i = 0; i < 3; ++i) {
    f.im2col.lower[i] = e.lower[i];
    f.im2col.upper[i] = e.upper[i];
  }
  f.im2col.channels = e.channels;
  f.im2col.pixels = e.pixels;
  return f;
}

std::string packed_flaw(const TensorMapFields& f) {
  if (f.interleave != TensorInterleave::None) return "types of 4 and 6 bits cannot be interleaved";
  if (f.fill == TensorFill::Nan) return "types of 4 and 6 bits have no NaN fill";
  if (!is_padded(f.element)) {
    if (f.dims[0] % 2 != 0) return "the inner dimension of a 4-bit type must be a multiple of 2 elements";
    return "";
  }
  if (f.dims[0] % 128 != 0) return "the inner dimension of a padded type must be a multiple of 128 elements";
  if ((f.mode != TensorMode::Tiled ? f.im2col.channels : f.box[0]) != 128)
    return "the inner dimension of the box of a padded type must be 128 elements";
  if (f.address % 32 != 0) return "the address of a padded type must be a multiple of 32";
  for (uint32_t d = 0; d + 1 < f.rank; ++d) {
    if (f.strides[d] % 32 != 0) return "the strides of a padded type must be multiples of 32";
  }
  const bool swizzles =
      f.swizzle == TensorSwizzle::None || (f.swizzle == TensorSwizzle::Bytes128 && f.atom != TensorAtom::Bytes32Flip);
  return swizzles ? "" : "a padded type has no swizzle but that of 128 bytes, without flipped halves";
}

}  // namespace sim
