// SPDX-License-Identifier: Apache-2.0
// The tensor map: its fields, and the simulator's own 128-byte form of a CUtensorMap (the real one is opaque,
// PTX ISA 5.5.8). Written by cuTensorMapEncode* and tensormap.replace, read by tensor copies.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace sim {

// The values are those of tensormap.replace (PTX ISA 9.7.9.28, table 33); the driver API's CUtensorMapDataType
// has another order.
enum class TensorElement : uint8_t {
  U8,
  U16,
  U32,
  S32,
  U64,
  S64,
  F16,
  F32,
  F32Ftz,
  F64,
  BF16,
  TF32,
  TF32Ftz,
  B4x16,
  B4x16Padded,  // b4x16_p64
  B6x16Padded,  // loads: b6x16_p32; stores: b6p2x16
};
constexpr int kTensorElements = 16;
// A copy moves one element as a unit, or several elements of 4 or 6 bits (5.5.1.1).
struct TensorUnit {
  uint32_t elements, global_bytes, shared_bytes;
};
constexpr TensorUnit unit_of(TensorElement e) {
  constexpr TensorUnit kUnits[kTensorElements] = {{1, 1, 1}, {1, 2, 2}, {1, 4, 4},   {1, 4, 4},   {1, 8, 8}, {1, 8, 8},
                                                  {1, 2, 2}, {1, 4, 4}, {1, 4, 4},   {1, 8, 8},   {1, 2, 2}, {1, 4, 4},
                                                  {1, 4, 4}, {2, 1, 1}, {16, 8, 16}, {16, 12, 16}};
  return kUnits[static_cast<int>(e)];
}
constexpr int bytes_of(TensorElement e) { return static_cast<int>(unit_of(e).shared_bytes); }
constexpr bool is_packed(TensorElement e) { return e >= TensorElement::B4x16; }
constexpr bool is_padded(TensorElement e) { return e > TensorElement::B4x16; }
constexpr bool is_float(TensorElement e) { return e >= TensorElement::F16 && !is_packed(e); }

enum class TensorInterleave : uint8_t { None, Bytes16, Bytes32 };
enum class TensorSwizzle : uint8_t { None, Bytes32, Bytes64, Bytes128 };
// What stays together in the 128-byte swizzle (5.5.7); in Bytes32Flip the 8-byte halves change places in every other
// line.
enum class TensorAtom : uint8_t { Bytes16, Bytes32, Bytes32Flip, Bytes64 };
enum class TensorL2 : uint8_t { None, Bytes64, Bytes128, Bytes256 };
enum class TensorFill : uint8_t { Zero, Nan };
enum class TensorMode : uint8_t { Tiled, Im2col, Im2colW, Im2colW128 };

// What an im2col map has in place of a box (5.5.4.1, 5.5.5.1).
struct PixelBox {
  // Of W, H and D: the first pixel is at `lower`, and the last at the dimension's last plus `upper`. A map for
  // im2col::w has those of W alone.
  std::array<int32_t, 3> lower{}, upper{};
  uint32_t channels = 1, pixels = 1;  // of a copy; im2col::w::128 has 128 pixels whatever stands here
};

struct TensorMapFields {
  uint64_t address = 0;
  TensorElement element = TensorElement::U8;
  uint32_t rank = 1;                            // 1 to 5
  std::array<uint64_t, 5> dims{1, 1, 1, 1, 1};  // elements, innermost first; up to 2^32
  std::array<uint64_t, 4> strides{};            // bytes, of dimensions 1 to 4
  std::array<uint32_t, 5> box{1, 1, 1, 1, 1};   // elements
  std::array<uint32_t, 5> element_strides{1, 1, 1, 1, 1};
  TensorInterleave interleave = TensorInterleave::None;
  TensorSwizzle swizzle = TensorSwizzle::None;
  TensorAtom atom = TensorAtom::Bytes16;
  TensorL2 l2 = TensorL2::None;
  TensorFill fill = TensorFill::Zero;
  TensorMode mode = TensorMode::Tiled;
  PixelBox im2col;
};

constexpr uint32_t kTensorMapBytes = 128;
constexpr uint32_t kTensorMapAlign = 64;  // of CUtensorMap; tensormap.replace and the copies ask for no more

// Returns why the fields of a packed type do not fit together (9.7.9.27.1.1), or nothing when they do.
std::string packed_flaw(const TensorMapFields& fields);

void encode(const TensorMapFields& fields, uint8_t out[kTensorMapBytes]);
// Returns nothing when the bytes are not a tensor map.
std::optional<TensorMapFields> decode(const uint8_t in[kTensorMapBytes]);

}  // namespace sim
