// SPDX-License-Identifier: Apache-2.0
// The simulator of this program is an sm_100a. That is settled before the first test opens the device.
#include <cstdlib>

namespace {
[[maybe_unused]] const int simulated_arch = setenv("MOXIE_SIM_ARCH", "sm_100a", 0);
}
