// SPDX-License-Identifier: Apache-2.0
/* A whole expert layer in one call, as expert_layer.cpp computes it, in C. */
#include <math.h>
#include <moxie/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kTokens = 96, kExperts = 8, kTopK = 2, kHidden = 128, kWidth = 192 };

static float x[kTokens * kHidden], up[kExperts * 2 * kWidth * kHidden], down[kExperts * kHidden * kWidth];
static float weights[kTokens * kTopK], y[kTokens * kHidden];
static int32_t ids[kTokens * kTopK];
static moxie_device* device;

static void check(moxie_status status) {
  if (status == MOXIE_OK) return;
  fprintf(stderr, "%s: %s\n", moxie_status_name(status), moxie_last_error());
  exit(1);
}

static void* allocate(size_t bytes) {
  void* memory = NULL;
  check(moxie_device_allocate(device, bytes, &memory));
  return memory;
}

static void* upload(const void* host, size_t bytes) {
  void* const memory = allocate(bytes);
  check(moxie_device_upload(device, memory, host, bytes, NULL));
  return memory;
}

/* Draws random numbers that are exact in bf16, the upper half of their float, and uploads them as such. */
static void* draw(float* values, size_t count, float scale) {
  static uint32_t random = 1;
  uint16_t* const halves = malloc(count * sizeof *halves);
  if (halves == NULL) exit(1);
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    random = random * 1664525u + 1013904223u;
    values[i] = scale * (float)((int)(random >> 16) % 33 - 16);
    memcpy(&bits, &values[i], sizeof bits);
    halves[i] = (uint16_t)(bits >> 16);
  }
  void* const memory = upload(halves, count * sizeof *halves);
  free(halves);
  return memory;
}

int main(void) {
  /* Planned and compiled once. It takes any number of tokens up to max_tokens. */
  moxie_expert_layer_description d = {.size = sizeof d, .experts = kExperts, .top_k = kTopK, .hidden = kHidden};
  d.width = kWidth, d.max_tokens = kTokens;
  d.activation.function = MOXIE_ACTIVATION_SWIGLU, d.gate = MOXIE_GATE_LAYOUT_SPLIT, d.out = MOXIE_DATA_TYPE_F32;
  moxie_expert_layer* layer = NULL;
  size_t workspace_bytes = 0;
  check(moxie_device_open(MOXIE_DEVICE_KIND_AUTO, 0, &device));
  check(moxie_expert_layer_create(device, &d, &layer));
  check(moxie_expert_layer_workspace_bytes(layer, MOXIE_NO_TOTAL, &workspace_bytes));

  /* In a program all of these are on the GPU already. */
  for (int t = 0; t < kTokens; ++t) {
    ids[t * kTopK] = t % kExperts, weights[t * kTopK] = (float)(t % 7 + 1) / 8;
    ids[t * kTopK + 1] = (3 * t + 1) % kExperts, weights[t * kTopK + 1] = 1 - weights[t * kTopK];
  }
  moxie_expert_layer_tensors t = {.size = sizeof t, .tokens = kTokens};
  t.x.data = draw(x, kTokens * kHidden, 1 / 8.0f);
  t.up.data = draw(up, kExperts * 2 * kWidth * kHidden, 1 / 64.0f);
  t.down.data = draw(down, kExperts * kHidden * kWidth, 1 / 64.0f);
  t.topk_ids = upload(ids, sizeof ids), t.topk_weights = upload(weights, sizeof weights);
  t.out.data = allocate(sizeof y);

  /* Asynchronous, without allocation, and fit for a CUDA graph. The GPU alone reads which experts were chosen. */
  check(moxie_expert_layer_run(layer, &t, allocate(workspace_bytes), workspace_bytes, NULL));
  check(moxie_device_download(device, y, t.out.data, sizeof y, NULL));
  moxie_expert_layer_release(layer);

  double expected = 0;
  for (int j = 0; j < kTopK; ++j) {
    for (int i = 0; i < kWidth; ++i) {
      const float* const rows =
          up + (ids[j] * 2 * kWidth + i) * kHidden; /* the gate's; those of `up` are behind them */
      double gate = 0, linear = 0;
      for (int h = 0; h < kHidden; ++h) gate += x[h] * rows[h], linear += x[h] * rows[kWidth * kHidden + h];
      expected += weights[j] * gate / (1 + exp(-gate)) * linear * down[ids[j] * kHidden * kWidth + i];
    }
  }
  printf("y[0][0] = %g, in double precision %g\n", (double)y[0], expected);
  moxie_device_release(device);
  return fabs(y[0] - expected) < 0.02 * fabs(expected) ? 0 : 1;
}
