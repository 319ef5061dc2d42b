// SPDX-License-Identifier: Apache-2.0
// Tensor maps made by the driver.
#include <fmt/format.h>

#include <cstring>
#include <iterator>
#include <memory>
#include <type_traits>

#include "driver/driver.h"
#include "driver/functions.h"
#include "moxie/error.h"

namespace moxie::driver {
namespace {

struct Key {
  uint64_t context;
  const void* address;
  TensorMapShape shape;
};
static_assert(std::has_unique_object_representations_v<Key>);

// The maps that a thread made last: sets of four, in which the oldest gives way. A model's weights fit in.
class Recent {
 public:
  struct Set {
    // Null: unknown, then add() it.
    const kernel::TensorMap* find(const Key& key) const {
      for (const Entry& entry : entries) {
        if (std::memcmp(&entry.key, &key, sizeof(key)) == 0) return &entry.map;
      }
      return nullptr;
    }
    const kernel::TensorMap& add(const Key& key, const CUtensorMap& map) {
      Entry& entry = entries[oldest++ % std::size(entries)];
      entry.key = key;
      static_assert(sizeof(entry.map) == sizeof(map));
      std::memcpy(&entry.map, &map, sizeof(map));
      return entry.map;
    }
    struct Entry {
      Key key{};  // of no context
      kernel::TensorMap map;
    };
    Entry entries[4];
    uint32_t oldest = 0;
  };

  Set& set_of(const Key& key) {
    // What tells the maps of a call, and those of other calls, apart.
    const uint64_t parts[] = {reinterpret_cast<uintptr_t>(key.address), key.shape.dims[1], key.shape.strides[0],
                              key.shape.box[1]};
    uint64_t hash = key.context;
    for (const uint64_t part : parts) {
      hash ^= part ^ hash >> 32;
      hash *= 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
    }
    return sets_[hash >> (64 - kSetBits)];
  }

 private:
  static constexpr int kSetBits = 7;
  Set sets_[1 << kSetBits];
};

}  // namespace

kernel::TensorMap make_tensor_map(const Context& context, const char* what, const void* address,
                                  const TensorMapShape& shape) {
  thread_local const auto recent = std::make_unique<Recent>();
  const Key key{context.number(), address, shape};
  Recent::Set& set = recent->set_of(key);
  if (const kernel::TensorMap* known = set.find(key)) return *known;
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
  return set.add(key, map);
}

}  // namespace moxie::driver
