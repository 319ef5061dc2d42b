// Tensor maps made by the driver.
#include <fmt/format.h>

#include <cstring>

#include "driver/driver.h"
#include "driver/functions.h"
#include "moxie/error.h"

namespace moxie::driver {
namespace {

CUtensorMapSwizzle swizzle_of(int bytes) {
  switch (bytes) {
    case 32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case 64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case 128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    default:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
  }
}

}  // namespace

kernel::TensorMap make_tensor_map(const Context& context, const char* what, const void* address,
                                  const TensorMapShape& shape) {
  static_assert(sizeof(kernel::TensorMap) == sizeof(CUtensorMap));
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  cuuint64_t dims[5];
  cuuint64_t strides[4];
  for (int i = 0; i < 5; ++i) dims[i] = shape.dims[i];
  for (int i = 0; i < 4; ++i) strides[i] = shape.strides[i];
  CUtensorMap map;
  const CUresult result = context.driver().call().cuTensorMapEncodeTiled(
      &map, shape.type, static_cast<cuuint32_t>(shape.rank), const_cast<void*>(address), dims, strides, shape.box,
      element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle_of(shape.swizzle_bytes),
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    std::string extents;
    for (int i = 0; i < shape.rank; ++i) {
      extents += fmt::format("{}{} (box {}", i == 0 ? "" : ", ", shape.dims[i], shape.box[i]);
      extents += i == 0 ? ")" : fmt::format(", stride {} bytes)", shape.strides[i - 1]);
    }
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} cannot be described to the device: address {}, extents {}, swizzle {}: the address and "
                            "strides must be multiples of 16 bytes and extents 1 to 2^32",
                            what, address, extents, shape.swizzle_bytes));
  }
  kernel::TensorMap out;
  std::memcpy(&out, &map, sizeof(out));
  return out;
}

}  // namespace moxie::driver
