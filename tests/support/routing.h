// SPDX-License-Identifier: Apache-2.0
// Routing data as no caller means them. By the contract of Rows (moxie/groups.h) and of GroupPointers::sizes
// (moxie/gemm.h) they stand for sizes that are right, so a product given them has the same answer.
#pragma once
#include <cstdint>
#include <vector>

#include "tests/support/product_spec.h"

namespace moxie::test {

// Of the right routing data of a problem (ends, groups of rows, counts, or sizes of groups by pointers) others that
// mean the same, drawn by the seed: ends and sizes that are negative, descend, pass the end by one or by far, or lie
// within a unit of K; groups that do not exist; groups by pointers that are empty for one of several reasons.
std::vector<int32_t> disguise(const ProductSpec& problem, std::vector<int32_t> right, uint64_t seed);

}  // namespace moxie::test
