// SPDX-License-Identifier: Apache-2.0
// Which expert an id stands for.
#pragma once
#include "moxie/isa.cuh"

namespace moxie::kernel {

// Of `count` experts the one that `id` stands for: its distance from `first`, or what a table has there. `count` where
// it stands for none: an id that is not one of `ids` from `first` on, or an entry of the table that is out of range.
template <typename Id>
MOXIE_DEVICE int32_t place_of(Id id, int64_t first, int32_t ids, const int32_t* places, int32_t count) {
  const auto number = static_cast<uint64_t>(int64_t{id}) - static_cast<uint64_t>(first);
  if (number >= static_cast<uint64_t>(ids)) return count;
  const int32_t place = places == nullptr ? static_cast<int32_t>(number) : places[number];
  return static_cast<uint32_t>(place) < static_cast<uint32_t>(count) ? place : count;
}

}  // namespace moxie::kernel
