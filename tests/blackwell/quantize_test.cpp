// SPDX-License-Identifier: Apache-2.0
// The operations on quantised rows and scales as compiled for sm_100a, which rounds to E2M1 by an instruction.
#include "tests/blackwell/mxfp4.h"
#include "tests/hopper/quantize_tests.h"
