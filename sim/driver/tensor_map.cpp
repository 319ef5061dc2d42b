// SPDX-License-Identifier: Apache-2.0
// Tensor maps: the checks of cuTensorMapEncodeTiled and the simulator's form of the result.
#include <optional>

#include "sim/driver/call.h"
#include "sim/memory/tensor_map.h"

namespace sim::driver {
namespace {

// The sub-byte types and the swizzles of other atoms came with compute capability 10.0.
std::optional<TensorElement> element_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return TensorElement::U8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
      return TensorElement::U16;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
      return TensorElement::U32;
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
      return TensorElement::S32;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
      return TensorElement::U64;
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
      return TensorElement::S64;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      return TensorElement::F16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return TensorElement::F32;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return TensorElement::F64;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return TensorElement::BF16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
      return TensorElement::F32Ftz;
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
      return TensorElement::TF32;
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
      return TensorElement::TF32Ftz;
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B:
      return TensorElement::B4x16;
    case CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B:
      return TensorElement::B4x16Padded;
    case CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B:
      return TensorElement::B6x16Padded;
    default:
      return std::nullopt;
  }
}

void needs_sm_100(const std::string& what) {
  require(state().device.arch >= 100, CUDA_ERROR_INVALID_VALUE, what + " need compute capability 10.0");
}

TensorSwizzle swizzle_of(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE:
      return TensorSwizzle::None;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return TensorSwizzle::Bytes32;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return TensorSwizzle::Bytes64;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return TensorSwizzle::Bytes128;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B:
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B:
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B:
      needs_sm_100("swizzles of 32- and 64-byte atoms");
      return TensorSwizzle::Bytes128;
  }
  fail(CUDA_ERROR_INVALID_VALUE, "unknown swizzle");
}

TensorAtom atom_of(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B:
      return TensorAtom::Bytes32;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B:
      return TensorAtom::Bytes32Flip;
    case CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B:
      return TensorAtom::Bytes64;
    default:
      return TensorAtom::Bytes16;
  }
}

void check(bool condition, const std::string& what) { require(condition, CUDA_ERROR_INVALID_VALUE, what); }

std::string at(const char* name, unsigned index, uint64_t value, const char* rule) {
  return std::string(name) + "[" + std::to_string(index) + "] is " + std::to_string(value) + "; " + rule;
}

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  // The driver on an H200 refuses without a current context too.
  API(Context, {
    using namespace sim;
    check(map != nullptr && reinterpret_cast<uintptr_t>(map) % kTensorMapAlign == 0,
          "tensorMap must be aligned to 64 bytes");
    check(type >= CU_TENSOR_MAP_DATA_TYPE_UINT8 && type <= CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B,
          "unknown tensorDataType");
    const auto element = element_of(type);
    check(element.has_value(), "unknown tensorDataType");
    if (is_packed(*element)) needs_sm_100("data types of 4 and 6 bits");
    check(interleave >= CU_TENSOR_MAP_INTERLEAVE_NONE && interleave <= CU_TENSOR_MAP_INTERLEAVE_32B,
          "unknown interleave");
    check(l2 >= CU_TENSOR_MAP_L2_PROMOTION_NONE && l2 <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B, "unknown l2Promotion");
    check(fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
          "unknown oobFill");
    const bool plain = interleave == CU_TENSOR_MAP_INTERLEAVE_NONE;
    check(rank >= 1 && rank <= 5, "tensorRank is " + std::to_string(rank) + "; allowed are 1 to 5");
    check(plain || rank >= 3, "an interleaved tensor needs a rank of at least 3");
    check(dims != nullptr && box != nullptr && element_strides != nullptr && strides != nullptr,
          "an array of the tensor map is null");
    const uint64_t unit = interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
    // An H100 takes a null address, too: programs fill it in on the device.
    check(reinterpret_cast<uintptr_t>(address) % unit == 0,
          "globalAddress must be aligned to " + std::to_string(unit) + " bytes");
    check(fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || is_float(*element),
          "a NaN fill needs a floating-point data type");

    TensorMapFields fields;
    fields.address = reinterpret_cast<uintptr_t>(address);
    fields.element = *element;
    fields.rank = rank;
    fields.swizzle = swizzle_of(swizzle);
    fields.atom = atom_of(swizzle);
    check(interleave != CU_TENSOR_MAP_INTERLEAVE_32B || fields.swizzle == TensorSwizzle::Bytes32,
          "an interleave of 32 bytes needs the 32-byte swizzle");
    for (unsigned i = 0; i < rank; ++i) {
      check(dims[i] >= 1 && dims[i] <= (uint64_t{1} << 32), at("globalDim", i, dims[i], "allowed are 1 to 2^32"));
      check(box[i] >= 1 && box[i] <= 256, at("boxDim", i, box[i], "allowed are 1 to 256"));
      check(element_strides[i] >= 1 && element_strides[i] <= 8,
            at("elementStrides", i, element_strides[i], "allowed are 1 to 8"));
      fields.dims[i] = dims[i];
      fields.box[i] = box[i];
      // A tensor without interleave ignores the innermost element stride.
      fields.element_strides[i] = plain && i == 0 ? 1 : element_strides[i];
    }
    for (unsigned i = 0; i + 1 < rank; ++i) {
      check(strides[i] % unit == 0 && strides[i] < (uint64_t{1} << 40),
            at("globalStrides", i, strides[i],
               unit == 16 ? "it must be a multiple of 16 and less than 2^40"
                          : "it must be a multiple of 32 and less than 2^40"));
      fields.strides[i] = strides[i];
    }
    const TensorUnit unit_bytes = unit_of(*element);
    const uint64_t inner = uint64_t{box[0]} / unit_bytes.elements * unit_bytes.shared_bytes;
    uint64_t whole = inner;
    for (unsigned i = 1; i < rank; ++i) whole *= (box[i] + element_strides[i] - 1) / element_strides[i];
    // The driver on an H200 has the same limit.
    check(whole <= kSharedPerSm, "the box is of " + std::to_string(whole) + " bytes; shared memory holds 233472");
    if (plain) {
      check(inner % 16 == 0, "the box is " + std::to_string(inner) + " bytes wide; it must be a multiple of 16");
      const uint64_t span = uint64_t{16} << static_cast<int>(fields.swizzle);  // 32, 64 or 128 bytes
      check(fields.swizzle == TensorSwizzle::None || inner <= span,
            "the box is " + std::to_string(inner) + " bytes wide; the swizzle allows " + std::to_string(span));
    }
    fields.interleave = static_cast<TensorInterleave>(interleave);
    fields.l2 = static_cast<TensorL2>(l2);
    fields.fill = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ? TensorFill::Zero : TensorFill::Nan;
    if (is_packed(*element)) {
      const std::string why = packed_flaw(fields);
      check(why.empty(), why);
    }
    encode(fields, reinterpret_cast<uint8_t*>(map));
  });
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  API(Initialized, {
    using namespace sim;
    check(map != nullptr && reinterpret_cast<uintptr_t>(map) % kTensorMapAlign == 0,
          "tensorMap must be aligned to 64 bytes");
    auto fields = decode(reinterpret_cast<const uint8_t*>(map));
    check(fields.has_value(), "not a tensor map");
    const uint64_t unit = fields->interleave == TensorInterleave::Bytes32 ? 32 : 16;
    check(address != nullptr && reinterpret_cast<uintptr_t>(address) % unit == 0,
          "globalAddress must be aligned to " + std::to_string(unit) + " bytes");
    fields->address = reinterpret_cast<uintptr_t>(address);
    encode(*fields, reinterpret_cast<uint8_t*>(map));
  });
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const int*, const int*, cuuint32_t, cuuint32_t, const cuuint32_t*,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill) {
  API(Initialized, { fail(CUDA_ERROR_NOT_SUPPORTED, "im2col tensor maps are not simulated"); });
}
