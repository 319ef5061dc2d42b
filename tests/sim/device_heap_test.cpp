// SPDX-License-Identifier: Apache-2.0
// The heap of malloc() in kernels.
#include "sim/memory/device_heap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace {

// Each thread of a grid may hold an object: more of them than a process can have mappings.
TEST(DeviceHeap, HoldsManySmallAllocations) {
  constexpr uint64_t kCount = 70000, kLimit = 8 << 20;
  sim::GlobalMemory memory;
  sim::DeviceHeap heap(memory, {});
  std::set<uint64_t> places;
  for (uint64_t i = 0; i < kCount; ++i) {
    const uint64_t place = heap.allocate(5, kLimit);
    ASSERT_NE(place, 0u) << i;
    ASSERT_TRUE(memory.contains(place, 5) && !memory.contains(place, 6));
    places.insert(place);
  }
  EXPECT_EQ(places.size(), kCount);
  EXPECT_EQ(heap.allocate(kLimit, kLimit), 0u);
  for (auto place = places.rbegin(); place != places.rend(); ++place) ASSERT_TRUE(heap.free(*place));
  EXPECT_FALSE(heap.free(*places.begin()));
  EXPECT_THAT(memory.explain(*places.begin(), 4), testing::HasSubstr("was freed"));
  const uint64_t large = heap.allocate(kLimit, kLimit);
  EXPECT_NE(large, 0u);
  EXPECT_EQ(places.count(large), 0u);
}

}  // namespace
