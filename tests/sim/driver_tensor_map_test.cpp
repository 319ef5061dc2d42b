// SPDX-License-Identifier: Apache-2.0
// The checks of cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col and cuTensorMapEncodeIm2colWide.
#include <array>
#include <cstring>
#include <tuple>

#include "sim/memory/tensor_map.h"
#include "tests/sim/own_process.h"
#include "tests/sim/refusals.h"

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

using Change = void (*)(MapArguments&);
struct Refused {
  Change change;
  const char* said;
};
class SimTensorMaps : public SimRefusals {
 protected:
  static void SetUpTestSuite() {
    SimRefusals::SetUpTestSuite();
    if (std::getenv("MOXIE_TEST_BLACKWELL") != nullptr) setenv("MOXIE_SIM_ARCH", "sm_100a", 1);
  }
  void expect_refused(const Refused& row) {
    MapArguments a;
    row.change(a);
    refused(CUDA_ERROR_INVALID_VALUE, row.said, "cuTensorMapEncodeTiled", CU(cuTensorMapEncodeTiled), &map, a.type,
            a.rank, reinterpret_cast<void*>(a.address), a.dims.data(), a.strides.data(), a.box.data(), a.steps.data(),
            a.interleave, a.swizzle, a.l2, a.fill);
  }
  void expect_fields(Change change) {
    MapArguments a;
    change(a);
    ASSERT_EQ(encode(a, &map), CUDA_SUCCESS);
    const auto fields = sim::decode(reinterpret_cast<const uint8_t*>(&map));
    ASSERT_TRUE(fields.has_value());
    EXPECT_EQ(fields->address, a.address);
    EXPECT_EQ(fields->rank, a.rank);
    for (unsigned i = 0; i < 5; ++i) {
      EXPECT_EQ(fields->dims[i], i < a.rank ? a.dims[i] : 1);
      EXPECT_EQ(fields->box[i], i < a.rank ? a.box[i] : 1);
      const bool ignored = i >= a.rank || (i == 0 && a.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE);
      EXPECT_EQ(fields->element_strides[i], ignored ? 1 : a.steps[i]);
      if (i < 4) {
        EXPECT_EQ(fields->strides[i], i + 1 < a.rank ? a.strides[i] : 0);
      }
    }
    EXPECT_EQ(static_cast<int>(fields->interleave), static_cast<int>(a.interleave));
    EXPECT_EQ(static_cast<int>(fields->l2), static_cast<int>(a.l2));
    EXPECT_EQ(static_cast<int>(fields->fill), static_cast<int>(a.fill));
  }
  sim::TensorMapFields fields_of(const MapArguments& a) {
    EXPECT_EQ(encode(a, &map), CUDA_SUCCESS);
    return *sim::decode(reinterpret_cast<const uint8_t*>(&map));
  }

  CUtensorMap map;
};

TEST_F(SimTensorMaps, AreRefusedInWords) {
  const Refused wrong[] = {
      {[](MapArguments& a) { a.rank = 0; }, "tensorRank is 0; allowed are 1 to 5"},
      {[](MapArguments& a) { a.rank = 6; }, "tensorRank is 6; allowed are 1 to 5"},
      {[](MapArguments& a) { a.address += 8; }, "globalAddress must be aligned to 16 bytes"},
      {[](MapArguments& a) { a.address = 0; }, "accepted"},
      {[](MapArguments& a) { a.dims[1] = 0; }, "globalDim[1] is 0; allowed are 1 to 2^32"},
      {[](MapArguments& a) { a.dims[2] = (cuuint64_t{1} << 32) + 1; },
       "globalDim[2] is 4294967297; allowed are 1 to 2^32"},
      {[](MapArguments& a) { a.strides[0] = 264; },
       "globalStrides[0] is 264; it must be a multiple of 16 and less than 2^40"},
      {[](MapArguments& a) { a.strides[1] = cuuint64_t{1} << 40; },
       "globalStrides[1] is 1099511627776; it must be a multiple of 16 and less than 2^40"},
      {[](MapArguments& a) { a.box[1] = 0; }, "boxDim[1] is 0; allowed are 1 to 256"},
      {[](MapArguments& a) { a.box[2] = 257; }, "boxDim[2] is 257; allowed are 1 to 256"},
      {[](MapArguments& a) { a.box[0] = 12; }, "the box is 24 bytes wide; it must be a multiple of 16"},
      {[](MapArguments& a) { a.box[0] = 72; }, "the box is 144 bytes wide; the swizzle allows 128"},
      {[](MapArguments& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; },
       "the box is 128 bytes wide; the swizzle allows 64"},
      {[](MapArguments& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B; },
       "the box is 128 bytes wide; the swizzle allows 32"},
      {[](MapArguments& a) { a.steps[0] = 0; }, "elementStrides[0] is 0; allowed are 1 to 8"},
      {[](MapArguments& a) { a.steps[1] = 0; }, "elementStrides[1] is 0; allowed are 1 to 8"},
      {[](MapArguments& a) { a.steps[2] = 9; }, "elementStrides[2] is 9; allowed are 1 to 8"},
      {[](MapArguments& a) {
         a.box[1] = 228;
         a.box[2] = 8;
       },
       "the box is of 233472 bytes; shared memory holds 233472, and this row is accepted"},
      {[](MapArguments& a) {
         a.box[1] = 229;
         a.box[2] = 8;
       },
       "the box is of 234496 bytes; shared memory holds 233472"},
      {[](MapArguments& a) {
         a.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
         a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
       },
       "a NaN fill needs a floating-point data type"},
      {[](MapArguments& a) {
         a.interleave = CU_TENSOR_MAP_INTERLEAVE_16B;
         a.rank = 2;
       },
       "an interleaved tensor needs a rank of at least 3"},
      {[](MapArguments& a) { a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; },
       "an interleave of 32 bytes needs the 32-byte swizzle"},
      {[](MapArguments& a) {
         a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B;
         a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
         a.address += 16;
       },
       "globalAddress must be aligned to 32 bytes"},
      {[](MapArguments& a) {
         a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B;
         a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
         a.strides[1] += 16;
       },
       "globalStrides[1] is 16400; it must be a multiple of 32 and less than 2^40"},
      {[](MapArguments& a) { a.type = static_cast<CUtensorMapDataType>(77); }, "unknown tensorDataType"},
      {[](MapArguments& a) { a.type = static_cast<CUtensorMapDataType>(-1); }, "unknown tensorDataType"},
      {[](MapArguments& a) { a.swizzle = static_cast<CUtensorMapSwizzle>(77); }, "unknown swizzle"},
      {[](MapArguments& a) { a.interleave = static_cast<CUtensorMapInterleave>(3); }, "unknown interleave"},
      {[](MapArguments& a) { a.interleave = static_cast<CUtensorMapInterleave>(-1); }, "unknown interleave"},
      {[](MapArguments& a) { a.l2 = static_cast<CUtensorMapL2promotion>(4); }, "unknown l2Promotion"},
      {[](MapArguments& a) { a.l2 = static_cast<CUtensorMapL2promotion>(-1); }, "unknown l2Promotion"},
      {[](MapArguments& a) { a.fill = static_cast<CUtensorMapFloatOOBfill>(2); }, "unknown oobFill"},
      {[](MapArguments& a) { a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; },
       "data types of 4 and 6 bits need compute capability 10.0"},
      {[](MapArguments& a) { a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B; },
       "data types of 4 and 6 bits need compute capability 10.0"},
      {[](MapArguments& a) { a.type = CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B; },
       "data types of 4 and 6 bits need compute capability 10.0"},
      {[](MapArguments& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B; },
       "swizzles of 32- and 64-byte atoms need compute capability 10.0"},
      {[](MapArguments& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B; },
       "swizzles of 32- and 64-byte atoms need compute capability 10.0"},
      {[](MapArguments& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B; },
       "swizzles of 32- and 64-byte atoms need compute capability 10.0"},
  };
  for (const Refused& row : wrong) {
    if (std::strstr(row.said, "accepted") != nullptr)
      expect_fields(row.change);
    else
      expect_refused(row);
  }
  const MapArguments a;
  auto* const address = reinterpret_cast<void*>(a.address);
  for (int null = 0; null < 4; ++null) {
    REFUSED(kInvalidValue, "an array of the tensor map is null", cuTensorMapEncodeTiled, &map, a.type, a.rank, address,
            null == 0 ? nullptr : a.dims.data(), null == 1 ? nullptr : a.strides.data(),
            null == 2 ? nullptr : a.box.data(), null == 3 ? nullptr : a.steps.data(), a.interleave, a.swizzle, a.l2,
            a.fill);
  }
  CUtensorMap pair[2];
  auto* const misaligned = reinterpret_cast<CUtensorMap*>(reinterpret_cast<char*>(pair) + 8);
  for (CUtensorMap* at : {misaligned, static_cast<CUtensorMap*>(nullptr)}) {
    REFUSED(kInvalidValue, "tensorMap must be aligned to 64 bytes", cuTensorMapEncodeTiled, at, a.type, a.rank, address,
            a.dims.data(), a.strides.data(), a.box.data(), a.steps.data(), a.interleave, a.swizzle, a.l2, a.fill);
    REFUSED(kInvalidValue, "tensorMap must be aligned to 64 bytes", cuTensorMapReplaceAddress, at, address);
  }
  OK(encode({}, reinterpret_cast<CUtensorMap*>(reinterpret_cast<char*>(pair) + 64)));
}

struct PixelArguments : MapArguments {
  std::array<int, 3> lower{-1, 2, 0}, upper{-3, 4, 0};
  cuuint32_t channels = 64, pixels = 1024;
};

TEST_F(SimTensorMaps, OfPixelsAreRefusedInWords) {
  using A = PixelArguments;
  const struct {
    void (*change)(A&);
    const char* said;
  } rows[] = {
      {[](A& a) { a.rank = 2; }, "tensorRank is 2; allowed are 3 to 5"},
      {[](A& a) { a.rank = 6; }, "tensorRank is 6; allowed are 3 to 5"},
      {[](A& a) { a.address += 8; }, "globalAddress must be aligned to 16 bytes"},
      {[](A& a) { a.dims[1] = 0; }, "globalDim[1] is 0; allowed are 1 to 2^32"},
      {[](A& a) { a.strides[1] += 8; }, "globalStrides[1] is 16392; it must be a multiple of 16 and less than 2^40"},
      {[](A& a) { a.steps[2] = 9; }, "elementStrides[2] is 9; allowed are 1 to 8"},
      {[](A& a) { a.channels = 0; }, "channelsPerPixel is 0; allowed are 1 to 256"},
      {[](A& a) { a.channels = 257; }, "channelsPerPixel is 257; allowed are 1 to 256"},
      {[](A& a) { a.pixels = 0; }, "pixelsPerColumn is 0; allowed are 1 to 1024"},
      {[](A& a) { a.pixels = 1025; }, "pixelsPerColumn is 1025; allowed are 1 to 1024"},
      {[](A& a) { a.channels = 72; }, "the box is 144 bytes wide; the swizzle allows 128"},
      {[](A& a) { a.channels = 60; }, "the box is 120 bytes wide; it must be a multiple of 16"},
      {[](A& a) { a.lower[0] = -32769; }, "pixelBoxLowerCorner[0] is -32769; allowed are -32768 to 32767"},
      {[](A& a) { a.upper[0] = 32768; }, "pixelBoxUpperCorner[0] is 32768; allowed are -32768 to 32767"},
      {[](A& a) { a.upper[0] = -65; }, "the pixel box has no place in dimension 1"},
      {[](A& a) {
         a.rank = 4;
         a.lower[1] = 128;
       },
       "pixelBoxLowerCorner[1] is 128; allowed are -128 to 127"},
      {[](A& a) {
         a.rank = 5;
         a.upper[2] = -17;
       },
       "pixelBoxUpperCorner[2] is -17; allowed are -16 to 15"},
  };
  for (const auto& row : rows) {
    A a;
    row.change(a);
    refused(CUDA_ERROR_INVALID_VALUE, row.said, "cuTensorMapEncodeIm2col", CU(cuTensorMapEncodeIm2col), &map, a.type,
            a.rank, reinterpret_cast<void*>(a.address), a.dims.data(), a.strides.data(), a.lower.data(), a.upper.data(),
            a.channels, a.pixels, a.steps.data(), a.interleave, a.swizzle, a.l2, a.fill);
  }
  A a;
  for (const int null : {0, 1}) {
    refused(CUDA_ERROR_INVALID_VALUE, "an array of the tensor map is null", "cuTensorMapEncodeIm2col",
            CU(cuTensorMapEncodeIm2col), &map, a.type, a.rank, reinterpret_cast<void*>(a.address), a.dims.data(),
            a.strides.data(), null == 0 ? nullptr : a.lower.data(), null == 1 ? nullptr : a.upper.data(), a.channels,
            a.pixels, a.steps.data(), a.interleave, a.swizzle, a.l2, a.fill);
  }
  // The smallest box of pixels has one place, and so has the smallest column; the smallest pixel has 16 bytes here.
  a.upper[0] = -64;
  a.rank = 5;
  a.lower = {-1, -16, 15};
  a.upper = {-16, 15, -16};
  a.dims = {128, 64, 8, 32, 6};
  // The largest has 256 channels, which is more than a swizzle allows.
  for (const auto& [channels, pixels] : {std::pair{64u, 1024u}, {8u, 1024u}, {64u, 1u}, {256u, 1u}}) {
    const auto swizzle = channels == 256 ? CU_TENSOR_MAP_SWIZZLE_NONE : a.swizzle;
    OK(CU(cuTensorMapEncodeIm2col)(&map, a.type, a.rank, reinterpret_cast<void*>(a.address), a.dims.data(),
                                   a.strides.data(), a.lower.data(), a.upper.data(), channels, pixels, a.steps.data(),
                                   a.interleave, swizzle, a.l2, a.fill));
    const auto fields = sim::decode(reinterpret_cast<const uint8_t*>(&map));
    ASSERT_TRUE(fields.has_value());
    EXPECT_EQ(fields->mode, sim::TensorMode::Im2col);
    EXPECT_EQ(fields->im2col.lower, (std::array<int32_t, 3>{-1, -16, 15}));
    EXPECT_EQ(fields->im2col.upper, (std::array<int32_t, 3>{-16, 15, -16}));
    EXPECT_EQ(fields->im2col.channels, channels);
    EXPECT_EQ(fields->im2col.pixels, pixels);
    EXPECT_EQ(fields->dims[3], 32u);
  }
}

struct WideArguments : MapArguments {
  int lower = -1, upper = -3;
  cuuint32_t channels = 64, pixels = 1024;
  CUtensorMapIm2ColWideMode mode = CU_TENSOR_MAP_IM2COL_WIDE_MODE_W;
};

CUresult encode_wide(const WideArguments& a, CUtensorMap* map) {
  return CU(cuTensorMapEncodeIm2colWide)(map, a.type, a.rank, reinterpret_cast<void*>(a.address), a.dims.data(),
                                         a.strides.data(), a.lower, a.upper, a.channels, a.pixels, a.steps.data(),
                                         a.interleave, a.mode, a.swizzle, a.l2, a.fill);
}

TEST_F(SimTensorMaps, OfPixelsAlongWNeedBlackwell) {
  const WideArguments a;
  REFUSED(kInvalidValue, "im2col::w tensor maps need compute capability 10.0", cuTensorMapEncodeIm2colWide, &map,
          a.type, a.rank, reinterpret_cast<void*>(a.address), a.dims.data(), a.strides.data(), a.lower, a.upper,
          a.channels, a.pixels, a.steps.data(), a.interleave, a.mode, a.swizzle, a.l2, a.fill);
}

// In a process of its own, whose device is an sm_100a.
TEST_F(SimTensorMaps, DISABLED_OfPixelsAlongW) {
  using A = WideArguments;
  const struct {
    void (*change)(A&);
    const char* said;
  } rows[] = {
      {[](A& a) { a.type = static_cast<CUtensorMapDataType>(77); }, "unknown tensorDataType"},
      {[](A& a) { a.rank = 2; }, "tensorRank is 2; allowed are 3 to 5"},
      {[](A& a) { a.rank = 6; }, "tensorRank is 6; allowed are 3 to 5"},
      {[](A& a) { a.address += 8; }, "globalAddress must be aligned to 16 bytes"},
      {[](A& a) { a.dims[1] = 0; }, "globalDim[1] is 0; allowed are 1 to 2^32"},
      {[](A& a) { a.dims[2] = (cuuint64_t{1} << 32) + 1; }, "globalDim[2] is 4294967297; allowed are 1 to 2^32"},
      {[](A& a) { a.strides[1] += 8; }, "globalStrides[1] is 16392; it must be a multiple of 16 and less than 2^40"},
      {[](A& a) { a.strides[0] = cuuint64_t{1} << 40; },
       "globalStrides[0] is 1099511627776; it must be a multiple of 16 and less than 2^40"},
      {[](A& a) { a.steps[1] = 0; }, "elementStrides[1] is 0; allowed are 1 to 8"},
      {[](A& a) { a.steps[2] = 9; }, "elementStrides[2] is 9; allowed are 1 to 8"},
      {[](A& a) { a.lower = -32769; }, "pixelBoxLowerCornerWidth is -32769; allowed are -32768 to 32767"},
      {[](A& a) { a.lower = 32768; }, "pixelBoxLowerCornerWidth is 32768; allowed are -32768 to 32767"},
      {[](A& a) { a.upper = -32769; }, "pixelBoxUpperCornerWidth is -32769; allowed are -32768 to 32767"},
      {[](A& a) { a.upper = 32768; }, "pixelBoxUpperCornerWidth is 32768; allowed are -32768 to 32767"},
      {[](A& a) { a.upper = -65; }, "the pixel box has no place in dimension 1"},
      {[](A& a) { a.channels = 0; }, "channelsPerPixel is 0; allowed are 1 to 256"},
      {[](A& a) { a.channels = 257; }, "channelsPerPixel is 257; allowed are 1 to 256"},
      {[](A& a) { a.channels = 60; }, "the box is 120 bytes wide; it must be a multiple of 16"},
      {[](A& a) { a.channels = 72; }, "the box is 144 bytes wide; the swizzle allows 128"},
      {[](A& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; }, "the box is 128 bytes wide; the swizzle allows 64"},
      {[](A& a) { a.pixels = 0; }, "pixelsPerColumn is 0; allowed are 1 to 1024"},
      {[](A& a) { a.pixels = 1025; }, "pixelsPerColumn is 1025; allowed are 1 to 1024"},
      {[](A& a) { a.interleave = CU_TENSOR_MAP_INTERLEAVE_16B; }, "an im2col::w tensor map has no interleaved layout"},
      {[](A& a) { a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; }, "an im2col::w tensor map has no interleaved layout"},
      {[](A& a) { a.mode = static_cast<CUtensorMapIm2ColWideMode>(2); }, "unknown mode"},
      {[](A& a) { a.mode = static_cast<CUtensorMapIm2ColWideMode>(-1); }, "unknown mode"},
      {[](A& a) { a.l2 = static_cast<CUtensorMapL2promotion>(4); }, "unknown l2Promotion"},
      {[](A& a) { a.fill = static_cast<CUtensorMapFloatOOBfill>(2); }, "unknown oobFill"},
      {[](A& a) {
         a.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
         a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
       },
       "a NaN fill needs a floating-point data type"},
      {[](A& a) { a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B; },
       "the inner dimension of the box of a padded type must be 128 elements"},
      {[](A& a) {
         a.type = CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
         a.channels = 128;
         a.address += 16;
       },
       "the address of a padded type must be a multiple of 32"},
      {[](A& a) {
         a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B;
         a.dims[0] = 127;
       },
       "the inner dimension of a 4-bit type must be a multiple of 2 elements"},
  };
  const auto expect_wide_refused = [&](const A& a, const char* said) {
    REFUSED(kInvalidValue, said, cuTensorMapEncodeIm2colWide, &map, a.type, a.rank, reinterpret_cast<void*>(a.address),
            a.dims.data(), a.strides.data(), a.lower, a.upper, a.channels, a.pixels, a.steps.data(), a.interleave,
            a.mode, a.swizzle, a.l2, a.fill);
  };
  for (const auto& row : rows) {
    A a;
    row.change(a);
    expect_wide_refused(a, row.said);
  }
  for (const auto swizzle :
       {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B, CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B,
        CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B, static_cast<CUtensorMapSwizzle>(77)}) {
    A a;
    a.swizzle = swizzle;
    expect_wide_refused(a, "an im2col::w tensor map has the swizzle 64B, 128B or 128B_ATOM_32B");
  }
  const A a;
  for (int null = 0; null < 3; ++null) {
    REFUSED(kInvalidValue, "an array of the tensor map is null", cuTensorMapEncodeIm2colWide, &map, a.type, a.rank,
            reinterpret_cast<void*>(a.address), null == 0 ? nullptr : a.dims.data(),
            null == 1 ? nullptr : a.strides.data(), a.lower, a.upper, a.channels, a.pixels,
            null == 2 ? nullptr : a.steps.data(), a.interleave, a.mode, a.swizzle, a.l2, a.fill);
  }
  CUtensorMap pair[2];
  for (CUtensorMap* at :
       {reinterpret_cast<CUtensorMap*>(reinterpret_cast<char*>(pair) + 8), static_cast<CUtensorMap*>(nullptr)})
    REFUSED(kInvalidValue, "tensorMap must be aligned to 64 bytes", cuTensorMapEncodeIm2colWide, at, a.type, a.rank,
            reinterpret_cast<void*>(a.address), a.dims.data(), a.strides.data(), a.lower, a.upper, a.channels, a.pixels,
            a.steps.data(), a.interleave, a.mode, a.swizzle, a.l2, a.fill);

  const auto fields_of_wide = [&](const A& given) {
    EXPECT_EQ(encode_wide(given, &map), CUDA_SUCCESS);
    return *sim::decode(reinterpret_cast<const uint8_t*>(&map));
  };
  for (const auto& [rank, lower, upper, channels, pixels] :
       {std::array<int, 5>{3, -32768, 32767, 64, 1024}, {4, 32767, 32767, 8, 1}, {5, -64, -64, 64, 7}}) {
    A given;
    given.rank = static_cast<cuuint32_t>(rank);
    given.lower = lower;
    given.upper = upper;
    given.channels = static_cast<cuuint32_t>(channels);
    given.pixels = static_cast<cuuint32_t>(pixels);
    given.dims = {128, 64, 8, 7, 6};
    given.steps = {1, 2, 3, 4, 5};
    const sim::TensorMapFields fields = fields_of_wide(given);
    EXPECT_EQ(fields.mode, sim::TensorMode::Im2colW);
    EXPECT_EQ(fields.rank, given.rank);
    EXPECT_EQ(fields.address, given.address);
    EXPECT_EQ(fields.im2col.lower, (std::array<int32_t, 3>{lower, 0, 0}));
    EXPECT_EQ(fields.im2col.upper, (std::array<int32_t, 3>{upper, 0, 0}));
    EXPECT_EQ(fields.im2col.channels, given.channels);
    EXPECT_EQ(fields.im2col.pixels, given.pixels);
    for (size_t i = 0; i < given.rank; ++i) {
      EXPECT_EQ(fields.dims[i], given.dims[i]);
      EXPECT_EQ(fields.element_strides[i], given.steps[i]);
      if (i + 1 < given.rank) {
        EXPECT_EQ(fields.strides[i], given.strides[i]);
      }
    }
  }
  const std::tuple<CUtensorMapSwizzle, sim::TensorSwizzle, sim::TensorAtom> swizzles[] = {
      {CU_TENSOR_MAP_SWIZZLE_64B, sim::TensorSwizzle::Bytes64, sim::TensorAtom::Bytes16},
      {CU_TENSOR_MAP_SWIZZLE_128B, sim::TensorSwizzle::Bytes128, sim::TensorAtom::Bytes16},
      {CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B, sim::TensorSwizzle::Bytes128, sim::TensorAtom::Bytes32}};
  for (const auto& [given, swizzle, atom] : swizzles) {
    A b;
    b.swizzle = given;
    b.channels = 32;
    // The mode of 128 pixels ignores their number.
    b.mode = CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128;
    for (const cuuint32_t pixels : {0u, 5000u}) {
      b.pixels = pixels;
      const sim::TensorMapFields fields = fields_of_wide(b);
      EXPECT_EQ(fields.mode, sim::TensorMode::Im2colW128);
      EXPECT_EQ(fields.swizzle, swizzle);
      EXPECT_EQ(fields.atom, atom);
    }
  }
  A padded;
  padded.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B;
  padded.channels = 128;
  EXPECT_EQ(fields_of_wide(padded).element, sim::TensorElement::B4x16Padded);
}
TEST(SimTensorMapsOfPixelsAlongW, AreCheckedByADeviceThatHasThem) {
  const Ended ended = run_in_own_process("MOXIE_TEST_BLACKWELL=1", "SimTensorMaps.DISABLED_OfPixelsAlongW");
  EXPECT_EQ(ended.status, 0) << ended.said;
  EXPECT_NE(ended.said.find("[  PASSED  ] 1 test."), std::string::npos) << ended.said;
}

TEST_F(SimTensorMaps, HaveTheFieldsTheyWereGiven) {
  for (const Change change : std::initializer_list<Change>{
           [](MapArguments&) {},
           [](MapArguments& a) {
             a.swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
             a.box[0] = 256;
           },
           [](MapArguments& a) { a.rank = 1; }, [](MapArguments& a) { a.rank = 2; },
           [](MapArguments& a) {
             a.rank = 5;
             a.dims = {128, 64, 8, 7, 6};
             a.box = {64, 2, 3, 4, 5};
             a.steps = {8, 1, 2, 3, 4};
           },
           [](MapArguments& a) {
             a.dims = {cuuint64_t{1} << 32, cuuint64_t{1} << 32, 1, 1, 1};
           },
           [](MapArguments& a) {
             a.strides = {(cuuint64_t{1} << 40) - 16, 0, 0, 0};
           },
           [](MapArguments& a) { a.l2 = CU_TENSOR_MAP_L2_PROMOTION_NONE; },
           [](MapArguments& a) { a.l2 = CU_TENSOR_MAP_L2_PROMOTION_L2_64B; },
           [](MapArguments& a) { a.l2 = CU_TENSOR_MAP_L2_PROMOTION_L2_128B; },
           [](MapArguments& a) { a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA; },
           [](MapArguments& a) {
             a.interleave = CU_TENSOR_MAP_INTERLEAVE_16B;
             a.steps[0] = 2;
             a.box[0] = 7;  // an interleaved box may have any width
           },
           [](MapArguments& a) {
             a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B;
             a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
             a.address += 32;
           }})
    expect_fields(change);
  using E = sim::TensorElement;
  const std::pair<CUtensorMapDataType, E> types[] = {{CU_TENSOR_MAP_DATA_TYPE_UINT8, E::U8},
                                                     {CU_TENSOR_MAP_DATA_TYPE_UINT16, E::U16},
                                                     {CU_TENSOR_MAP_DATA_TYPE_UINT32, E::U32},
                                                     {CU_TENSOR_MAP_DATA_TYPE_INT32, E::S32},
                                                     {CU_TENSOR_MAP_DATA_TYPE_UINT64, E::U64},
                                                     {CU_TENSOR_MAP_DATA_TYPE_INT64, E::S64},
                                                     {CU_TENSOR_MAP_DATA_TYPE_FLOAT16, E::F16},
                                                     {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, E::F32},
                                                     {CU_TENSOR_MAP_DATA_TYPE_FLOAT64, E::F64},
                                                     {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, E::BF16},
                                                     {CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ, E::F32Ftz},
                                                     {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, E::TF32},
                                                     {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ, E::TF32Ftz}};
  for (const auto& [type, element] : types) {
    MapArguments a;
    a.type = type;
    a.box[0] = 16;
    EXPECT_EQ(fields_of(a).element, element);
    a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
    EXPECT_EQ(encode(a, &map), element < E::F16 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
  }
  const std::pair<CUtensorMapSwizzle, sim::TensorSwizzle> swizzles[] = {
      {CU_TENSOR_MAP_SWIZZLE_NONE, sim::TensorSwizzle::None},
      {CU_TENSOR_MAP_SWIZZLE_32B, sim::TensorSwizzle::Bytes32},
      {CU_TENSOR_MAP_SWIZZLE_64B, sim::TensorSwizzle::Bytes64},
      {CU_TENSOR_MAP_SWIZZLE_128B, sim::TensorSwizzle::Bytes128}};
  for (const auto& [swizzle, is] : swizzles) {
    MapArguments a;
    a.swizzle = swizzle;
    a.box[0] = 16;
    EXPECT_EQ(fields_of(a).swizzle, is);
    EXPECT_EQ(fields_of(a).atom, sim::TensorAtom::Bytes16);
  }
}

// A replaced address is the only difference.
TEST_F(SimTensorMaps, MayMove) {
  OK(encode({}, &map));
  CUtensorMap moved = map, direct;
  MapArguments elsewhere;
  elsewhere.address = (3 << 20) + 16;
  auto* const address = reinterpret_cast<void*>(elsewhere.address);
  OK(CU(cuTensorMapReplaceAddress)(&moved, address));
  OK(encode(elsewhere, &direct));
  EXPECT_EQ(std::memcmp(&moved, &direct, sizeof map), 0);
  EXPECT_NE(std::memcmp(&moved, &map, sizeof map), 0);
  for (const uint64_t wrong : {uint64_t{0}, elsewhere.address + 8})
    REFUSED(kInvalidValue, "globalAddress must be aligned to 16 bytes", cuTensorMapReplaceAddress, &moved,
            reinterpret_cast<void*>(wrong));
  MapArguments interleaved;
  interleaved.interleave = CU_TENSOR_MAP_INTERLEAVE_32B;
  interleaved.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
  OK(encode(interleaved, &moved));
  REFUSED(kInvalidValue, "globalAddress must be aligned to 32 bytes", cuTensorMapReplaceAddress, &moved, address);
  std::memset(&direct, 0, sizeof direct);
  REFUSED(kInvalidValue, "not a tensor map", cuTensorMapReplaceAddress, &direct, address);
}

// What compute capability 10.0 has besides; run in a process of its own, whose device is an sm_100a.
TEST_F(SimTensorMaps, DISABLED_OfBlackwell) {
  const auto padded = [](MapArguments& a) {
    a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B;
    a.box[0] = 128;
    a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  };
  using E = sim::TensorElement;
  const std::pair<CUtensorMapDataType, E> types[] = {{CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B, E::B4x16},
                                                     {CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B, E::B4x16Padded},
                                                     {CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B, E::B6x16Padded}};
  for (const auto& [type, element] : types) {
    MapArguments a;
    padded(a);
    a.type = type;
    EXPECT_EQ(fields_of(a).element, element);
  }
  const std::pair<CUtensorMapSwizzle, sim::TensorAtom> atoms[] = {
      {CU_TENSOR_MAP_SWIZZLE_128B, sim::TensorAtom::Bytes16},
      {CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B, sim::TensorAtom::Bytes32},
      {CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B, sim::TensorAtom::Bytes32Flip},
      {CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B, sim::TensorAtom::Bytes64}};
  for (const auto& [swizzle, atom] : atoms) {
    MapArguments a;
    a.swizzle = swizzle;
    EXPECT_EQ(fields_of(a).swizzle, sim::TensorSwizzle::Bytes128);
    EXPECT_EQ(fields_of(a).atom, atom);
    padded(a);
    a.swizzle = swizzle;
    EXPECT_EQ(encode(a, &map), atom == sim::TensorAtom::Bytes32Flip ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
  }
  const Refused wrong[] = {
      {[](MapArguments& a) { a.interleave = CU_TENSOR_MAP_INTERLEAVE_16B; },
       "types of 4 and 6 bits cannot be interleaved"},
      {[](MapArguments& a) { a.dims[0] = 129; },
       "the inner dimension of a padded type must be a multiple of 128 elements"},
      {[](MapArguments& a) { a.dims[0] = 192; },
       "the inner dimension of a padded type must be a multiple of 128 elements"},
      {[](MapArguments& a) { a.box[0] = 64; }, "the inner dimension of the box of a padded type must be 128 elements"},
      {[](MapArguments& a) { a.address += 16; }, "the address of a padded type must be a multiple of 32"},
      {[](MapArguments& a) { a.strides[0] += 16; }, "the strides of a padded type must be multiples of 32"},
      {[](MapArguments& a) { a.strides[1] += 16; }, "the strides of a padded type must be multiples of 32"},
      {[](MapArguments& a) { a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B; },
       "a padded type has no swizzle but that of 128 bytes, without flipped halves"},
      {[](MapArguments& a) {
         a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B;
         a.dims[0] = 127;
       },
       "the inner dimension of a 4-bit type must be a multiple of 2 elements"},
      {[](MapArguments& a) { a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA; },
       "a NaN fill needs a floating-point data type"},
  };
  static Change own;
  for (const Refused& row : wrong) {
    own = row.change;
    expect_refused({[](MapArguments& a) {
                      a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B;
                      a.box[0] = 128;
                      own(a);
                    },
                    row.said});
  }
}
TEST(SimTensorMapsOfBlackwell, AreCheckedByADeviceThatHasThem) {
  const Ended ended = run_in_own_process("MOXIE_TEST_BLACKWELL=1", "SimTensorMaps.DISABLED_OfBlackwell");
  EXPECT_EQ(ended.status, 0) << ended.said;
  EXPECT_NE(ended.said.find("[  PASSED  ] 1 test."), std::string::npos) << ended.said;
}

}  // namespace
}  // namespace sim_test
