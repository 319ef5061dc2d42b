// Tensor maps made by the driver.
#include <fmt/format.h>

#include <cstring>

#include "driver/driver.h"
#include "driver/functions.h"
#include "moxie/error.h"

namespace moxie::driver {

kernel::TensorMap make_tensor_map(const Context& context, const char* what, const void* address,
                                  const TensorMapShape& shape) {
  static_assert(sizeof(kernel::TensorMap) == sizeof(CUtensorMap));
  CUtensorMap map;
  const CUresult result = context.encode(map, address, shape);
  if (result != CUDA_ERROR_INVALID_VALUE) context.driver().check(result, "cuTensorMapEncodeTiled");
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
