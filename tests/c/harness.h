// SPDX-License-Identifier: Apache-2.0
/* What the tests of moxie/c.h share: expectations, device memory, bf16. A test that fails says where and ends the
 * program with status 1. */
#ifndef MOXIE_TESTS_C_HARNESS_H
#define MOXIE_TESTS_C_HARNESS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moxie/c.h"

#define EXPECT(condition)                                                     \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

#define EXPECT_OK(call)                                                                             \
  do {                                                                                              \
    const moxie_status status_ = (call);                                                            \
    if (status_ != MOXIE_OK) {                                                                      \
      fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, moxie_status_name(status_), \
              moxie_last_error());                                                                  \
      exit(1);                                                                                      \
    }                                                                                               \
  } while (0)

/* The call fails with this status and a sentence that holds `words`. */
#define EXPECT_FAILS(call, expected, words)                                                          \
  do {                                                                                               \
    const moxie_status status_ = (call);                                                             \
    if (status_ != (expected) || strstr(moxie_last_error(), (words)) == NULL) {                      \
      fprintf(stderr, "%s:%d: %s: %s: \"%s\", but expected %s: \"%s\"\n", __FILE__, __LINE__, #call, \
              moxie_status_name(status_), moxie_last_error(), moxie_status_name(expected), (words)); \
      exit(1);                                                                                       \
    }                                                                                                \
  } while (0)

#define EXPECT_REFUSED(call, words) EXPECT_FAILS(call, MOXIE_ERROR_INVALID_ARGUMENT, words)

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static inline moxie_device* open_device(void) {
  moxie_device* device = NULL;
  EXPECT_OK(moxie_device_open(MOXIE_DEVICE_KIND_SIM, 0, &device));
  return device;
}

/* Device memory that the end of the program frees. */
static inline void* filled(const moxie_device* device, size_t bytes, uint8_t value) {
  void* memory = NULL;
  EXPECT_OK(moxie_device_allocate(device, bytes, &memory));
  EXPECT_OK(moxie_device_fill(device, memory, value, bytes, NULL));
  return memory;
}

static inline void* uploaded(const moxie_device* device, const void* host, size_t bytes) {
  void* memory = NULL;
  EXPECT_OK(moxie_device_allocate(device, bytes, &memory));
  EXPECT_OK(moxie_device_upload(device, memory, host, bytes, NULL));
  return memory;
}

static inline float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* Rounds to nearest even; no NaN comes here. */
static inline uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Small multiples of 1/8, so that sums of a few hundred products are exact in float32. */
static inline void fill_bf16(uint16_t* values, size_t count, uint32_t seed) {
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = to_bf16((float)((int)(seed >> 28) - 8) / 8.0f);
  }
}

/* Row `row` of A by row `column` of B, both of k elements. */
static inline double dot(const uint16_t* a, const uint16_t* b, int64_t row, int64_t column, int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += (double)from_bf16(a[row * k + i]) * (double)from_bf16(b[column * k + i]);
  return sum;
}

static inline int is_near(double value, double expected) {
  return fabs(value - expected) <= 0.01 * fabs(expected) + 1e-3;
}

/* The tests; each is a case of ctest. */
void test_dense(void);
void test_offsets(void);
void test_row_groups(void);
void test_masked(void);
void test_pointers(void);
void test_sink(void);
void test_mxfp4(void);
void test_weights(void);
void test_routing(void);
void test_layer(void);
void test_ranks(void);
void test_quantize(void);
void test_scales(void);
void test_plan(void);
void test_devices(void);
void test_names(void);
void test_sizes(void);
void test_nulls(void);
void test_sentences(void);
void test_threads(void);
void test_pack(void);

#endif
