// SPDX-License-Identifier: Apache-2.0
// The version of the library, in this one place: the build reads it from here. Versions follow semver.org; before 1.0 a
// new minor version may break what compiled before.
#pragma once

// Raised when what compiled or linked before no longer does.
#define MOXIE_VERSION_MAJOR 0
// Raised when something is added.
#define MOXIE_VERSION_MINOR 1
// Raised when something is mended.
#define MOXIE_VERSION_PATCH 0

// For MOXIE_VERSION alone.
#define MOXIE_VERSION_TEXT_OF(number) #number
// For MOXIE_VERSION alone.
#define MOXIE_JOIN_VERSION(major, minor, patch) \
  MOXIE_VERSION_TEXT_OF(major) "." MOXIE_VERSION_TEXT_OF(minor) "." MOXIE_VERSION_TEXT_OF(patch)
// All three as text, such as "0.1.0".
#define MOXIE_VERSION MOXIE_JOIN_VERSION(MOXIE_VERSION_MAJOR, MOXIE_VERSION_MINOR, MOXIE_VERSION_PATCH)

#ifdef __cplusplus
namespace moxie {

// The version of the library that is linked, such as "0.1.0". MOXIE_VERSION is that of the headers.
const char* version();

}  // namespace moxie
#endif
