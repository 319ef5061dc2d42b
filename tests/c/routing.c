// SPDX-License-Identifier: Apache-2.0
/* A layer's routing: experts chosen, pairs sorted, rows summed. */
#include "harness.h"

enum { kTokens = 5, kExperts = 6, kTopK = 2, kPairs = kTokens * kTopK, kWidth = 16 };

/* Rows hold the index of the pair that they come from, so that a token's sum says which rows it took. */
void test_routing(void) {
  moxie_device* const device = open_device();
  float logits[kTokens * kExperts], bias[kExperts] = {0};
  for (int i = 0; i < kTokens * kExperts; ++i) logits[i] = (float)(i * 7 % 11) / 4.0f;
  bias[2] = -2; /* so that nobody chooses its group, experts 2 and 3 */
  moxie_expert_routing r = {.size = sizeof r, .tokens = kTokens, .experts = kExperts, .top_k = kTopK};
  r.logits_type = MOXIE_DATA_TYPE_F32, r.logits = uploaded(device, logits, sizeof logits);
  r.score = MOXIE_ROUTER_SCORE_SIGMOID, r.correction_bias = uploaded(device, bias, sizeof bias);
  r.expert_groups = 3, r.chosen_groups = 2, r.scaling_factor = 2, r.no_renormalize = 1;
  r.ids = filled(device, kPairs * 4, 0xff), r.weights = filled(device, kPairs * 4, 0xff);
  EXPECT_OK(moxie_route(device, &r, NULL));
  int32_t ids[kPairs];
  float weights[kPairs];
  EXPECT_OK(moxie_device_download(device, ids, r.ids, sizeof ids, NULL));
  EXPECT_OK(moxie_device_download(device, weights, r.weights, sizeof weights, NULL));
  for (int pair = 0; pair < kPairs; ++pair) {
    const float* const of_token = logits + pair / kTopK * kExperts;
    EXPECT(ids[pair] >= 0 && ids[pair] < kExperts && ids[pair] / 2 != 1);
    EXPECT(is_near(weights[pair], 2 / (1 + exp(-(double)of_token[ids[pair]]))));
    if (pair % kTopK == 0) continue;
    EXPECT(ids[pair] != ids[pair - 1] && of_token[ids[pair]] <= of_token[ids[pair - 1]]);
    for (int e = 0; e < kExperts; ++e) EXPECT(e / 2 == 1 || e == ids[pair - 1] || of_token[e] <= of_token[ids[pair]]);
  }
  /* Without a factor the weights are the scores. */
  float plain[kPairs];
  r.scaling_factor = 0, r.weights = filled(device, kPairs * 4, 0xff);
  EXPECT_OK(moxie_route(device, &r, NULL));
  EXPECT_OK(moxie_device_download(device, plain, r.weights, sizeof plain, NULL));
  for (int pair = 0; pair < kPairs; ++pair) EXPECT(weights[pair] == 2 * plain[pair]);

  /* Experts 1 to 5 are ours, and the last token is not there. */
  const int32_t count = kTokens - 1;
  size_t bytes = 77;
  EXPECT_OK(moxie_sort_workspace_bytes(kTokens, kTopK, kExperts - 1, &bytes));
  EXPECT(bytes == 0);
  EXPECT_OK(moxie_sort_workspace_bytes(8193, 1, 3, &bytes));
  EXPECT(bytes == 4 * 3 * (9 + 2));
  moxie_expert_sort s = {.size = sizeof s, .tokens = kTokens, .experts = kExperts - 1, .top_k = kTopK};
  s.first_expert = 1, s.ids = r.ids, s.token_count = uploaded(device, &count, sizeof count);
  s.ends = filled(device, (kExperts - 1) * 4, 0xff);
  s.order = filled(device, kPairs * 4, 0xff), s.inverse = filled(device, kPairs * 4, 0xff);
  const moxie_launch_options options = {.size = sizeof options, .no_programmatic = 1};
  EXPECT_OK(moxie_sort_by_expert(device, &s, NULL, 0, &options));
  int32_t ends[kExperts - 1], order[kPairs], inverse[kPairs], row = 0;
  EXPECT_OK(moxie_device_download(device, ends, s.ends, sizeof ends, NULL));
  EXPECT_OK(moxie_device_download(device, order, s.order, sizeof order, NULL));
  EXPECT_OK(moxie_device_download(device, inverse, s.inverse, sizeof inverse, NULL));
  for (int32_t expert = 1; expert < kExperts; ++expert) {
    for (int32_t pair = 0; pair < count * kTopK; ++pair) {
      if (ids[pair] != expert) continue;
      EXPECT(order[row] == pair && inverse[pair] == row);
      ++row;
    }
    EXPECT(ends[expert - 1] == row);
  }
  for (int32_t pair = 0; pair < kPairs; ++pair)
    EXPECT(pair < count * kTopK && ids[pair] > 0 ? inverse[pair] >= 0 : inverse[pair] == -1);

  /* Every token goes to the rows of its pairs; rows that nobody names stay as they are. */
  uint16_t x[kTokens * kWidth], permuted[kPairs * kWidth];
  for (int i = 0; i < kTokens * kWidth; ++i) x[i] = (uint16_t)i;
  moxie_expert_permutation p = {.size = sizeof p, .tokens = kTokens, .width = kWidth, .top_k = kTopK};
  p.row_count = kPairs, p.x = uploaded(device, x, sizeof x), p.inverse = s.inverse;
  p.out = filled(device, sizeof permuted, 0xff);
  EXPECT_OK(moxie_permute(device, &p, NULL));
  EXPECT_OK(moxie_device_download(device, permuted, p.out, sizeof permuted, NULL));
  for (int i = 0; i < kPairs * kWidth; ++i)
    EXPECT(permuted[i] == (i / kWidth < row ? x[order[i / kWidth] / kTopK * kWidth + i % kWidth] : 0xffff));

  float rows[kPairs * kWidth], out[kTokens * kWidth], residual[kTokens * kWidth];
  for (int i = 0; i < kPairs * kWidth; ++i) rows[i] = i / kWidth < row ? (float)(order[i / kWidth] + 1) : 1e9f;
  for (int i = 0; i < kTokens * kWidth; ++i) residual[i] = (float)i;
  moxie_expert_combination c = {.size = sizeof c, .tokens = kTokens, .width = kWidth, .top_k = kTopK};
  c.row_count = kPairs, c.rows = uploaded(device, rows, sizeof rows), c.rows_type = MOXIE_DATA_TYPE_F32;
  c.inverse = s.inverse, c.residual = uploaded(device, residual, sizeof residual);
  c.out = filled(device, sizeof out, 0), c.out_type = MOXIE_DATA_TYPE_F32;
  EXPECT_OK(moxie_combine(device, &c, NULL));
  EXPECT_OK(moxie_device_download(device, out, c.out, sizeof out, NULL));
  for (int i = 0; i < kTokens * kWidth; ++i) {
    float sum = residual[i];
    for (int pair = i / kWidth * kTopK; pair < (i / kWidth + 1) * kTopK; ++pair) {
      if (inverse[pair] >= 0) sum += (float)(pair + 1);
    }
    EXPECT(out[i] == sum);
  }
  moxie_device_release(device);
}
