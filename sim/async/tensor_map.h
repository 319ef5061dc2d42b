// The tensor map: its fields, and the simulator's own 128-byte form of a CUtensorMap (the real one is opaque,
// PTX ISA 5.5.8). Written by cuTensorMapEncodeTiled and tensormap.replace, read by tensor copies.
#pragma once
#include <array>
#include <cstdint>
#include <optional>

namespace sim {

// The values are those of tensormap.replace (PTX ISA 9.7.9.28, table 33); the driver API's CUtensorMapDataType
// has another order.
enum class TensorElement : uint8_t { U8, U16, U32, S32, U64, S64, F16, F32, F32Ftz, F64, BF16, TF32, TF32Ftz };
constexpr int kTensorElements = 13;
constexpr int bytes_of(TensorElement e) {
  constexpr int kBytes[kTensorElements] = {1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4};
  return kBytes[static_cast<int>(e)];
}
constexpr bool is_float(TensorElement e) { return e >= TensorElement::F16; }

enum class TensorInterleave : uint8_t { None, Bytes16, Bytes32 };
enum class TensorSwizzle : uint8_t { None, Bytes32, Bytes64, Bytes128 };
enum class TensorL2 : uint8_t { None, Bytes64, Bytes128, Bytes256 };
enum class TensorFill : uint8_t { Zero, Nan };

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
  TensorL2 l2 = TensorL2::None;
  TensorFill fill = TensorFill::Zero;
};

constexpr uint32_t kTensorMapBytes = 128;
constexpr uint32_t kTensorMapAlign = 64;  // of CUtensorMap; tensormap.replace and the copies ask for no more

void encode(const TensorMapFields& fields, uint8_t out[kTensorMapBytes]);
// Nothing when the bytes are not a tensor map.
std::optional<TensorMapFields> decode(const uint8_t in[kTensorMapBytes]);

}  // namespace sim
