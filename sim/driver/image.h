// SPDX-License-Identifier: Apache-2.0
// What an image of a module may be, and the PTX text inside it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace sim::driver {

// The PTX text inside any kind of image that the device can run. Text in memory ends with a zero and a fat binary says
// how long it is. The length of what was read from a file is known, and a zero follows its `bytes`.
constexpr size_t kLengthUnknown = SIZE_MAX;
std::string ptx_of(const void* image, size_t bytes = kLengthUnknown);
// The bytes of a file, which is refused when it cannot be an image.
std::string read_image_file(const char* path);
bool target_fits(const std::string& target, int arch);

}  // namespace sim::driver
