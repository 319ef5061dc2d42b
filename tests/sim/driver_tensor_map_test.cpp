// SPDX-License-Identifier: Apache-2.0
// The checks of cuTensorMapEncodeTiled.
#include <array>
#include <cstring>

#include "tests/sim/driver.h"

namespace sim_test {
namespace {

struct MapArguments {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  cuuint32_t rank = 3;
  uint64_t address = 1 << 20;
  std::array<cuuint64_t, 5> dims{128, 64, 8, 1, 1};
  std::array<cuuint64_t, 4> strides{256, 256 * 64, 256 * 64 * 8, 256 * 64 * 8};
  std::array<cuuint32_t, 5> box{64, 32, 1, 1, 1};
  std::array<cuuint32_t, 5> steps{1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion l2 = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
};

CUresult encode(const MapArguments& a, CUtensorMap* map) {
  return CU(cuTensorMapEncodeTiled)(map, a.type, a.rank, reinterpret_cast<void*>(a.address), a.dims.data(),
                                    a.strides.data(), a.box.data(), a.steps.data(), a.interleave, a.swizzle, a.l2,
                                    a.fill);
}

TEST_F(SimDriver, TensorMapsAreChecked) {
  CUtensorMap map;
  OK(encode({}, &map));
  using Change = void (*)(MapArguments&);
  const std::pair<const char*, Change> wrong[] = {
      {"rank 0", [](MapArguments& a) { a.rank = 0; }},
      {"rank 6", [](MapArguments& a) { a.rank = 6; }},
      {"address not aligned to 16", [](MapArguments& a) { a.address += 8; }},
      {"address 0", [](MapArguments& a) { a.address = 0; }},
      {"dimension 0", [](MapArguments& a) { a.dims[1] = 0; }},
      {"dimension above 2^32", [](MapArguments& a) { a.dims[1] = (cuuint64_t{1} << 32) + 1; }},
      {"stride not a multiple of 16", [](MapArguments& a) { a.strides[0] = 264; }},
      {"stride of 2^40", [](MapArguments& a) { a.strides[1] = cuuint64_t{1} << 40; }},
      {"box of 0", [](MapArguments& a) { a.box[1] = 0; }},
      {"box of 257", [](MapArguments& a) { a.box[1] = 257; }},
      {"inner box of 24 bytes", [](MapArguments& a) { a.box[0] = 12; }},
      {"inner box above the swizzle", [](MapArguments& a) { a.box[0] = 72; }},
      {"inner box above the 32-byte swizzle", [](MapArguments& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B; }},
      {"element stride 0", [](MapArguments& a) { a.steps[1] = 0; }},
      {"element stride 9", [](MapArguments& a) { a.steps[2] = 9; }},
      {"element stride 0 of the first dimension", [](MapArguments& a) { a.steps[0] = 0; }},
      {"box larger than shared memory",
       [](MapArguments& a) {
         a.box[1] = 256;
         a.box[2] = 8;
       }},
      {"NaN fill of integers",
       [](MapArguments& a) {
         a.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
         a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
       }},
      {"interleave of rank 2",
       [](MapArguments& a) {
         a.interleave = CU_TENSOR_MAP_INTERLEAVE_16B;
         a.rank = 2;
       }},
      {"interleave of 32 bytes without its swizzle",
       [](MapArguments& a) { a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; }},
      {"interleave of 32 bytes, address aligned to 16",
       [](MapArguments& a) {
         a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B;
         a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
         a.address += 16;
       }},
      {"unknown type", [](MapArguments& a) { a.type = static_cast<CUtensorMapDataType>(77); }},
      {"unknown swizzle", [](MapArguments& a) { a.swizzle = static_cast<CUtensorMapSwizzle>(77); }},
      {"unknown promotion", [](MapArguments& a) { a.l2 = static_cast<CUtensorMapL2promotion>(9); }},
      {"packed type on sm_90a", [](MapArguments& a) { a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; }},
  };
  for (auto [what, change] : wrong) {
    MapArguments a;
    change(a);
    EXPECT_EQ(encode(a, &map), CUDA_ERROR_INVALID_VALUE) << what;
  }
  MapArguments line;
  FAILS(CUDA_ERROR_INVALID_VALUE,
        CU(cuTensorMapEncodeTiled)(&map, line.type, 1, reinterpret_cast<void*>(line.address), line.dims.data(), nullptr,
                                   line.box.data(), line.steps.data(), line.interleave, line.swizzle, line.l2,
                                   line.fill));
  const std::pair<const char*, Change> right[] = {
      {"no swizzle, wide box",
       [](MapArguments& a) {
         a.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
         a.box[0] = 256;
       }},
      {"rank 1", [](MapArguments& a) { a.rank = 1; }},
      {"dimension of 2^32", [](MapArguments& a) { a.dims[1] = cuuint64_t{1} << 32; }},
      {"interleave of 32 bytes",
       [](MapArguments& a) {
         a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B;
         a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
       }},
  };
  for (auto [what, change] : right) {
    MapArguments a;
    change(a);
    EXPECT_EQ(encode(a, &map), CUDA_SUCCESS) << what;
  }
  OK(encode({}, &map));
  FAILS(CUDA_ERROR_INVALID_VALUE, encode({}, reinterpret_cast<CUtensorMap*>(reinterpret_cast<char*>(&map) + 8)));

  // A replaced address is the only difference.
  CUtensorMap moved = map, direct;
  MapArguments elsewhere;
  elsewhere.address = 3 << 20;
  OK(CU(cuTensorMapReplaceAddress)(&moved, reinterpret_cast<void*>(elsewhere.address)));
  OK(encode(elsewhere, &direct));
  EXPECT_EQ(std::memcmp(&moved, &direct, sizeof map), 0);
  EXPECT_NE(std::memcmp(&moved, &map, sizeof map), 0);
  std::memset(&direct, 0, sizeof direct);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuTensorMapReplaceAddress)(&direct, reinterpret_cast<void*>(elsewhere.address)));
}

}  // namespace
}  // namespace sim_test
