// SPDX-License-Identifier: Apache-2.0
// See moxie/version.h.
#include "moxie/version.h"

namespace moxie {

const char* version() { return MOXIE_VERSION; }

}  // namespace moxie
