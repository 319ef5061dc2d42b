// SPDX-License-Identifier: Apache-2.0
// The operations on quantised rows and scales as compiled for sm_90a.
#include "tests/hopper/quantize_tests.h"
