// SPDX-License-Identifier: Apache-2.0
// All of Moxie's public interface.
#pragma once
#include "moxie/activation.h"
#include "moxie/device.h"
#include "moxie/error.h"
#include "moxie/gemm.h"
#include "moxie/groups.h"
#include "moxie/names.h"
#include "moxie/pack.h"
#include "moxie/plan.h"
#include "moxie/quantize.h"
#include "moxie/scales.h"
#include "moxie/tensor.h"
#include "moxie/tuned.h"
#include "moxie/tuning.h"
#include "moxie/types.h"
#include "moxie/version.h"
#include "moxie/weights.h"
