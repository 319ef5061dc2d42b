// SPDX-License-Identifier: Apache-2.0
/* The tests of moxie/c.h as a C program sees it: `c_api NAME` runs one of them. */
#include "harness.h"

static const struct {
  const char* name;
  void (*run)(void);
} kTests[] = {
    {"dense", test_dense},     {"offsets", test_offsets},   {"row_groups", test_row_groups},
    {"masked", test_masked},   {"pointers", test_pointers}, {"sink", test_sink},
    {"mxfp4", test_mxfp4},     {"quantize", test_quantize}, {"scales", test_scales},
    {"plan", test_plan},       {"devices", test_devices},   {"names", test_names},
    {"sizes", test_sizes},     {"nulls", test_nulls},       {"sentences", test_sentences},
    {"threads", test_threads}, {"pack", test_pack},         {"weights", test_weights},
    {"routing", test_routing}, {"layer", test_layer},       {"ranks", test_ranks},
};

int main(int count, char** arguments) {
  for (size_t i = 0; count == 2 && i < COUNT(kTests); ++i) {
    if (strcmp(arguments[1], kTests[i].name) == 0) return kTests[i].run(), 0;
  }
  fprintf(stderr, "usage: c_api TEST; the tests are");
  for (size_t i = 0; i < COUNT(kTests); ++i) fprintf(stderr, " %s", kTests[i].name);
  fprintf(stderr, "\n");
  return 2;
}
