// SPDX-License-Identifier: Apache-2.0
// Tensor maps that change from group to group. A map is edited in shared memory, published to a slot in global memory
// that belongs to this block alone, and acquired by the thread that issues copies through it (PTX ISA 9.7.9.28,
// 9.7.13.16, 9.7.13.4).
#pragma once
#include "moxie/arguments.h"
#include "moxie/isa.cuh"
#include "moxie/layout.h"

namespace moxie::kernel {

static_assert(sizeof(TensorMap) == kMapBytes);

// Whole warp: copies a template from the kernel's parameters to shared memory. The caller's __syncwarp() follows.
MOXIE_DEVICE void copy_map_template(uint8_t* shared, const TensorMap& map, int lane) {
  if (lane < kMapBytes / 8) reinterpret_cast<uint64_t*>(shared)[lane] = map.opaque[lane];
}

// Replaces fields of a map in shared memory; used by one thread. A dimension of 0 is not representable and becomes 1.
// Nothing may be copied through such a map.
struct MapEditor {
  uint8_t* map;

  MOXIE_DEVICE void address(const void* value) const {
    cuda::ptx::tensormap_replace_global_address(cuda::ptx::space_shared, map, reinterpret_cast<uint64_t>(value));
  }
  template <int kDimension>
  MOXIE_DEVICE void size(int32_t elements) const {
    cuda::ptx::tensormap_replace_global_dim(cuda::ptx::space_shared, map, cuda::ptx::n32_t<kDimension>{},
                                            elements > 1 ? elements : 1);
  }
  // Sets the stride of dimension kDimension. Dimension 0 has none.
  template <int kDimension>
  MOXIE_DEVICE void stride(int64_t bytes) const {
    static_assert(kDimension >= 1);
    cuda::ptx::tensormap_replace_global_stride(cuda::ptx::space_shared, map, cuda::ptx::n32_t<kDimension - 1>{}, bytes);
  }
};

// A stride field holds a positive multiple of 16 bytes below 2^40, an address field one that is aligned to 16 bytes.
MOXIE_DEVICE bool valid_map_stride(int64_t bytes) { return bytes > 0 && bytes < (int64_t{1} << 40) && bytes % 16 == 0; }
MOXIE_DEVICE bool valid_map_address(const void* address) {
  return address != nullptr && reinterpret_cast<uint64_t>(address) % 16 == 0;
}

// Whole warp, after the __syncwarp() that follows the editing: copies the map to its slot and publishes it.
MOXIE_DEVICE void publish_map(uint8_t* slot, const uint8_t* shared) {
  cuda::ptx::tensormap_cp_fenceproxy(cuda::ptx::sem_release, cuda::ptx::scope_gpu, slot, shared,
                                     cuda::ptx::n32_t<kMapBytes>{});
}
// Called by the thread that will issue copies through the slot.
MOXIE_DEVICE void acquire_map(const uint8_t* slot) {
  cuda::ptx::fence_proxy_tensormap_generic(cuda::ptx::sem_acquire, cuda::ptx::scope_gpu, slot,
                                           cuda::ptx::n32_t<kMapBytes>{});
}

}  // namespace moxie::kernel
