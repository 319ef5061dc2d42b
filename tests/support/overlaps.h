// SPDX-License-Identifier: Apache-2.0
// Whether a call refuses memory that it would write and also reads, or would write twice, to the last byte.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "moxie/error.h"

namespace moxie::test {

// An array of a call: how many bytes of it the call touches, and how it is put at an address.
struct CallArray {
  std::string name;  // as the library's sentences have it
  int64_t bytes = 0;
  int64_t alignment = 16;
  bool written = false;
  std::function<void(uintptr_t)> place;
};

// Puts each array right before each other one: `call` accepts that. One step of the alignment further on the two share
// bytes, and where one of them is written `call` throws a sentence that names both.
inline void expect_no_overlaps(const std::vector<CallArray>& arrays, const std::function<void()>& call) {
  const auto home = [](size_t i) { return uintptr_t(i + 1) << 36; };
  for (size_t i = 0; i < arrays.size(); ++i) arrays[i].place(home(i));
  for (size_t i = 0; i < arrays.size(); ++i) {
    for (size_t j = 0; j < arrays.size(); ++j) {
      const CallArray &first = arrays[i], &second = arrays[j];
      if (i == j || !(first.written || second.written)) continue;
      SCOPED_TRACE(first.name + " before " + second.name);
      const auto step = uintptr_t(first.alignment);
      const uintptr_t before = (home(j) - uintptr_t(first.bytes)) / step * step;
      first.place(before);
      EXPECT_NO_THROW(call());
      first.place(before + step);
      try {
        call();
        ADD_FAILURE() << "was accepted";
      } catch (const Error& error) {
        const std::string said = error.what();
        EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << said;
        EXPECT_TRUE(said == first.name + " overlaps " + second.name + " in memory" ||
                    said == second.name + " overlaps " + first.name + " in memory")
            << said;
      }
      first.place(home(i));
      if (::testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace moxie::test
