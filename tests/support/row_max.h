// SPDX-License-Identifier: Apache-2.0
// A product with a sink of the caller's own: the largest |out| of every 32 columns of a row.
#pragma once
#include "tests/support/grouped_product.h"

namespace moxie::test {

// Runs the job with the sink of row_max_sink.cuh beside its outputs in every order, and compares all that is stored.
// times: how many such sinks the product has, each with memory of its own.
void check_row_max(Job job, int times = 1);

}  // namespace moxie::test
