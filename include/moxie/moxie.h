// All of Moxie's public interface.
#pragma once
#include "moxie/device.h"
#include "moxie/error.h"
#include "moxie/gemm.h"
#include "moxie/pack.h"
#include "moxie/quantize.h"
#include "moxie/scales.h"
#include "moxie/version.h"
