// SPDX-License-Identifier: Apache-2.0
// How GoogleTest prints the library's enumerators: by their names. A struct that is a test's parameter has a PrintTo of
// its own beside it; tests/CMakeLists.txt refuses programs whose tests' parameters are printed as bytes.
#pragma once
#include <ostream>

#include "moxie/names.h"

namespace moxie {

template <class Enum>
requires requires { EnumTable<Enum>::kNames; }
void PrintTo(const Enum& value, std::ostream* out) { *out << to_string(value); }

}  // namespace moxie
