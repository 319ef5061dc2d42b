// SPDX-License-Identifier: Apache-2.0
// The one function of fmt that the library calls, compiled from fmt's headers into the library, so that programs that
// link libmoxie.a need no fmt.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

namespace moxie {

// In this mode the function is inline. The compiler would leave it out if nothing asked for its address.
extern std::string (*const format_implementation)(fmt::string_view, fmt::format_args);
std::string (*const format_implementation)(fmt::string_view, fmt::format_args) = &fmt::vformat;

}  // namespace moxie
