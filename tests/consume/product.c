// SPDX-License-Identifier: Apache-2.0
/* The program of a small project in C: a product with two groups of integers, exact in float32, on the simulator. */
#include <moxie/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRows = 24, kColumns = 64, kLength = 64, kFirstEnd = 9 };

static int a_value(int row, int k) { return (3 * row + k) % 7 - 3; }
static int b_value(int group, int column, int k) { return (5 * group + 2 * column + k) % 5 - 2; }

/* Small integers are the upper half of their float. */
static uint16_t bf16(int value) {
  const float number = (float)value;
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return (uint16_t)(bits >> 16);
}

static void check(moxie_status status) {
  if (status == MOXIE_OK) return;
  printf("%s: %s\n", moxie_status_name(status), moxie_last_error());
  exit(1);
}

static void* to_device(const moxie_device* device, const void* data, size_t bytes) {
  void* memory = NULL;
  check(moxie_device_allocate(device, bytes, &memory));
  if (data != NULL) check(moxie_device_upload(device, memory, data, bytes, NULL));
  return memory;
}

int main(void) {
  static uint16_t a[kRows * kLength], b[2 * kColumns * kLength];
  static float result[kRows * kColumns];
  const int32_t ends[] = {kFirstEnd, kRows};
  for (int i = 0; i < kRows * kLength; ++i) a[i] = bf16(a_value(i / kLength, i % kLength));
  for (int i = 0; i < 2 * kColumns * kLength; ++i) {
    b[i] = bf16(b_value(i / kLength / kColumns, i / kLength % kColumns, i % kLength));
  }

  moxie_device* device = NULL;
  check(moxie_device_open(MOXIE_DEVICE_KIND_SIM, 0, &device));
  moxie_gemm_description description = {.size = sizeof description};
  description.groups.grouping = MOXIE_GROUPING_OFFSETS;
  description.groups.count = 2;
  description.groups.has_total = 1;
  description.groups.total = kRows;
  description.n = kColumns;
  description.k = kLength;
  description.out = MOXIE_DATA_TYPE_F32;
  moxie_grouped_gemm* gemm = NULL;
  check(moxie_grouped_gemm_create(device, &description, &gemm));
  size_t workspace_bytes = 0;
  check(moxie_grouped_gemm_workspace_bytes(gemm, MOXIE_NO_TOTAL, &workspace_bytes));

  void* const workspace = to_device(device, NULL, workspace_bytes);
  moxie_gemm_tensors tensors = {.size = sizeof tensors};
  tensors.a.data = to_device(device, a, sizeof a);
  tensors.b.data = to_device(device, b, sizeof b);
  tensors.out.data = to_device(device, NULL, sizeof result);
  tensors.rows.ends = to_device(device, ends, sizeof ends);
  check(moxie_grouped_gemm_run(gemm, &tensors, workspace, workspace_bytes, NULL));
  check(moxie_device_download(device, result, tensors.out.data, sizeof result, NULL));

  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      int expected = 0;
      for (int k = 0; k < kLength; ++k) expected += a_value(row, k) * b_value(row >= kFirstEnd, column, k);
      if (result[row * kColumns + column] != (float)expected) {
        printf("row %d, column %d: %g instead of %d\n", row, column, (double)result[row * kColumns + column], expected);
        return 1;
      }
    }
  }
  moxie_grouped_gemm_release(gemm);
  moxie_device_release(device);
  printf("moxie %s: the product is right\n", moxie_version());
  return strcmp(moxie_version(), MOXIE_VERSION) == 0 ? 0 : 1;
}
