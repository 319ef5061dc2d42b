// SPDX-License-Identifier: Apache-2.0
/* A whole expert layer, from tokens to the combined result, against sums in double precision. */
#include "harness.h"

enum { kTokens = 7, kReal = 6, kTopK = 2, kPairs = kTokens * kTopK, kHidden = 64, kWidth = 72, kLd = 80 };
/* Of eight experts those from the third on are here. */
enum { kExperts = 5, kFirst = 2, kAll = 8, kLdLogits = 11 };

static double rounded(double value) { return from_bf16(to_bf16((float)value)); }
static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* What the tests share: tokens and weights, on the host and on the device. */
typedef struct {
  moxie_device* device;
  uint16_t x[kTokens * kLd], up[kExperts * 2 * kWidth * kHidden], down[kExperts * kHidden * kWidth];
  uint16_t up_bias[kExperts * 2 * kWidth], down_bias[kExperts * kHidden];
  float residual[kTokens * kLd];
  moxie_expert_layer_tensors tensors; /* of a layer with biases and a residual, without experts */
} World;

static World world;

static void make_world(void) {
  world.device = open_device();
  fill_bf16(world.x, COUNT(world.x), 1);
  fill_bf16(world.up, COUNT(world.up), 2);
  fill_bf16(world.down, COUNT(world.down), 3);
  fill_bf16(world.up_bias, COUNT(world.up_bias), 4);
  fill_bf16(world.down_bias, COUNT(world.down_bias), 5);
  for (int i = 0; i < kTokens * kLd; ++i) world.residual[i] = (float)(i % 97) / 16;
  moxie_expert_layer_tensors* const t = &world.tensors;
  t->size = sizeof *t;
  t->tokens = kTokens;
  t->x.data = uploaded(world.device, world.x, sizeof world.x), t->x.ld = kLd;
  t->up.data = uploaded(world.device, world.up, sizeof world.up);
  t->down.data = uploaded(world.device, world.down, sizeof world.down);
  t->up_bias = uploaded(world.device, world.up_bias, sizeof world.up_bias);
  t->down_bias = uploaded(world.device, world.down_bias, sizeof world.down_bias);
  t->residual.data = uploaded(world.device, world.residual, sizeof world.residual), t->residual.ld = kLd;
  t->out.data = filled(world.device, kTokens * kLd * 4, 0xff), t->out.ld = kLd;
}

/* GPT-OSS's activation with limits of its own, gates before ups, biases, a residual, float32 out. */
static moxie_expert_layer_description description(void) {
  moxie_expert_layer_description d = {.size = sizeof d, .experts = kExperts, .top_k = kTopK, .max_tokens = 20};
  d.hidden = kHidden, d.width = kWidth;
  d.first_expert = kFirst, d.all_experts = kAll;
  d.activation.function = MOXIE_ACTIVATION_SWIGLU_OAI, d.activation.has_parameters = 1;
  d.activation.alpha = 1.5f, d.activation.limit = 3;
  d.gate = MOXIE_GATE_LAYOUT_SPLIT;
  d.up_bias = 1, d.down_bias = 1, d.residual = 1;
  d.out = MOXIE_DATA_TYPE_F32;
  d.has_expected_tokens = 1, d.expected_tokens = kTokens;
  return d;
}

/* The row of one pair: token t for expert e. */
static void row_of(int64_t t, int64_t e, double* row) {
  uint16_t inner[kWidth];
  const uint16_t *const x = world.x + t * kLd, *const up = world.up + e * 2 * kWidth * kHidden;
  for (int64_t i = 0; i < kWidth; ++i) {
    const double gate = dot(x, up, 0, i, kHidden) + from_bf16(world.up_bias[e * 2 * kWidth + i]);
    const double linear = dot(x, up, 0, kWidth + i, kHidden) + from_bf16(world.up_bias[e * 2 * kWidth + kWidth + i]);
    const double g = fmin(gate, 3), u = fmax(fmin(linear, 3), -3);
    inner[i] = to_bf16((float)(g * sigmoid(1.5 * g) * (u + 1)));
  }
  for (int64_t c = 0; c < kHidden; ++c)
    row[c] = rounded(dot(inner, world.down + e * kHidden * kWidth, 0, c, kWidth) +
                     from_bf16(world.down_bias[e * kHidden + c]));
}

/* Compares out, [kTokens, kLd] float32, whose tokens past kReal and columns past kHidden nothing may have touched. An
 * element may be off by two units in the last place of bf16 of what it is summed from. */
static void check_out(const int64_t* ids, const float* weights) {
  static float out[kTokens * kLd];
  EXPECT_OK(moxie_device_download(world.device, out, world.tensors.out.data, sizeof out, NULL));
  for (int64_t t = 0; t < kTokens; ++t) {
    double sums[kHidden] = {0}, most[kHidden] = {0}, row[kHidden];
    for (int64_t c = 0; c < kHidden; ++c) sums[c] = most[c] = world.residual[t * kLd + c];
    for (int64_t pair = t * kTopK; pair < (t + 1) * kTopK; ++pair) {
      const int64_t e = ids[pair] - kFirst;
      if (e < 0 || e >= kExperts) continue;
      row_of(t, e, row);
      for (int64_t c = 0; c < kHidden; ++c) {
        sums[c] += (double)weights[pair] * row[c];
        most[c] += fabs((double)weights[pair] * row[c]);
      }
    }
    for (int64_t c = 0; c < kLd; ++c) {
      uint32_t bits;
      memcpy(&bits, &out[t * kLd + c], sizeof bits);
      if (t >= kReal || c >= kHidden) {
        EXPECT(bits == 0xffffffffu);
      } else {
        EXPECT(fabs((double)out[t * kLd + c] - sums[c]) <= most[c] / 128 + 1e-3);
      }
    }
  }
}

/* Runs with a workspace of exactly as many bytes as the layer asks for. */
static void run(const moxie_expert_layer* layer, const moxie_expert_layer_tensors* tensors,
                const moxie_launch_options* options) {
  size_t bytes = 0;
  EXPECT_OK(moxie_expert_layer_workspace_bytes(layer, tensors->tokens, &bytes));
  void* const workspace = filled(world.device, bytes, 0xff);
  EXPECT_OK(moxie_device_fill(world.device, tensors->out.data, 0xff, kTokens * kLd * 4, NULL));
  EXPECT_REFUSED(moxie_expert_layer_run(layer, tensors, workspace, bytes - 1, options), "but this call needs");
  EXPECT_OK(moxie_expert_layer_run(layer, tensors, workspace, bytes, options));
  EXPECT_OK(moxie_device_synchronize(world.device, NULL));
  EXPECT_OK(moxie_device_free(world.device, workspace));
}

static moxie_expert_layer* made(const moxie_expert_layer_description* d) {
  moxie_expert_layer* layer = NULL;
  EXPECT_OK(moxie_expert_layer_create(world.device, d, &layer));
  return layer;
}

/* Ids of 64 bits, some of experts that are elsewhere or nowhere; then no weights, which stands for 1. */
static void check_given_experts(void) {
  static const int64_t kIds[kPairs] = {2, 6, 3, 3, 5, 0, 7, 1, -1, 4, 6, 99, 2, 3};
  float weights[kPairs], ones[kPairs];
  for (int i = 0; i < kPairs; ++i) weights[i] = (float)(i - 5) / 4, ones[i] = 1;
  const int32_t count = kReal;
  moxie_expert_layer_description d = description();
  d.id_type = MOXIE_ID_TYPE_INT64;
  moxie_expert_layer* const layer = made(&d);
  moxie_expert_layer_tensors t = world.tensors;
  t.token_count = uploaded(world.device, &count, sizeof count);
  t.topk_ids = uploaded(world.device, kIds, sizeof kIds);
  t.topk_weights = uploaded(world.device, weights, sizeof weights);
  const moxie_launch_options options = {.size = sizeof options, .no_programmatic = 1};
  run(layer, &t, &options);
  check_out(kIds, weights);
  t.topk_weights = NULL;
  run(layer, &t, NULL);
  check_out(kIds, ones);
  moxie_expert_layer_release(layer);
  /* The same with rows that a launch of its own puts in order, which the plan's kernel does not gather. */
  d.has_permute = 1, d.permute = 1;
  moxie_expert_layer* const permuting = made(&d);
  run(permuting, &t, NULL);
  check_out(kIds, ones);
  moxie_plan *up = NULL, *down = NULL;
  EXPECT_OK(moxie_expert_layer_plan(permuting, MOXIE_NO_TOTAL, &up, &down));
  moxie_plan_info of_up = {.size = sizeof of_up};
  EXPECT_OK(moxie_plan_get_info(up, &of_up));
  EXPECT(strstr(of_up.kernel, "gathered") == NULL);
  moxie_plan_release(up);
  moxie_plan_release(down);
  moxie_expert_layer_release(permuting);
}

/* DeepSeek-V3's router and one of defaults. What it chose must obey its rules, and the layer what it chose. */
static void check_router(int plain) {
  uint16_t logits[kTokens * kLdLogits];
  float bias[kAll] = {0};
  for (int i = 0; i < kTokens * kLdLogits; ++i) logits[i] = to_bf16((float)(i * 7 % 32 - 16) / 8);
  bias[5] = -2; /* chosen by nobody */
  const int32_t count = kReal;
  moxie_router_description router = {.size = sizeof router, .logits_type = MOXIE_DATA_TYPE_BF16};
  moxie_expert_layer_description d = description();
  d.router = &router;
  moxie_expert_layer_tensors t = world.tensors;
  if (!plain) {
    router.score = MOXIE_ROUTER_SCORE_SIGMOID, router.correction_bias = 1;
    router.expert_groups = 4, router.chosen_groups = 1;
    router.no_renormalize = 1, router.scaling_factor = 2.5f;
    t.correction_bias = uploaded(world.device, bias, sizeof bias);
  }
  moxie_expert_layer* const layer = made(&d);
  memset(&router, 0xff, sizeof router); /* a description is needed by its call alone */
  t.token_count = uploaded(world.device, &count, sizeof count);
  t.logits = uploaded(world.device, logits, sizeof logits), t.ld_logits = kLdLogits;
  t.chosen_ids = filled(world.device, kPairs * 4, 0xff), t.chosen_weights = filled(world.device, kPairs * 4, 0xff);
  run(layer, &t, NULL);
  int32_t chosen[kPairs];
  int64_t ids[kPairs];
  float weights[kPairs];
  EXPECT_OK(moxie_device_download(world.device, chosen, t.chosen_ids, sizeof chosen, NULL));
  EXPECT_OK(moxie_device_download(world.device, weights, t.chosen_weights, sizeof weights, NULL));
  for (int i = 0; i < kPairs; ++i) ids[i] = chosen[i];
  for (int token = 0; token < kReal; ++token) {
    const uint16_t* const of_token = logits + token * kLdLogits;
    const int32_t a = chosen[token * kTopK], b = chosen[token * kTopK + 1];
    EXPECT(a >= 0 && a < kAll && b >= 0 && b < kAll && a != b);
    const double first = from_bf16(of_token[a]), second = from_bf16(of_token[b]);
    if (plain) {
      EXPECT(first >= second);
      for (int e = 0; e < kAll; ++e) EXPECT(e == a || e == b || (double)from_bf16(of_token[e]) <= second);
      EXPECT(is_near(weights[token * kTopK], sigmoid(first - second)));
      EXPECT(is_near(weights[token * kTopK + 1], sigmoid(second - first)));
    } else {
      EXPECT(a / 2 == b / 2 && a / 2 != 2); /* neighbors of one group, but not of that with expert 5 */
      EXPECT(is_near(weights[token * kTopK], 2.5 * sigmoid(first)));
      EXPECT(is_near(weights[token * kTopK + 1], 2.5 * sigmoid(second)));
    }
  }
  check_out(ids, weights);
  moxie_expert_layer_release(layer);
}

/* Bytes and plans, with and without the number of tokens. */
static void check_questions(void) {
  moxie_expert_layer_description d = description();
  moxie_expert_layer* const layer = made(&d);
  size_t bytes = 0, most = 0, with_router = 0;
  EXPECT_OK(moxie_expert_layer_workspace_bytes(layer, kTokens, &bytes));
  EXPECT_OK(moxie_expert_layer_workspace_bytes(layer, MOXIE_NO_TOTAL, &most));
  /* inner, rows, order and inverse, ends; what remains is a product's own */
  EXPECT(bytes >= kPairs * kWidth * 2 + kPairs * kHidden * 2 + 3 * 256 && most > bytes);
  EXPECT_OK(moxie_expert_layer_workspace_bytes(layer, d.max_tokens, &bytes));
  EXPECT(bytes == most);
  EXPECT_REFUSED(moxie_expert_layer_workspace_bytes(layer, 21, &bytes), "tokens is 21, but must be 0 to 20");
  EXPECT(bytes == most);
  const moxie_router_description router = {.size = sizeof router, .logits_type = MOXIE_DATA_TYPE_F32};
  d.router = &router;
  moxie_expert_layer* const routed = made(&d);
  EXPECT_OK(moxie_expert_layer_workspace_bytes(routed, MOXIE_NO_TOTAL, &with_router));
  EXPECT(with_router == most + 2 * 256); /* 40 ids and 40 weights */
  moxie_expert_layer_release(routed);
  moxie_expert_layer_release(layer);

  /* Plans reckon with 50 rows an expert for 250 pairs, with 4 where only 5 of 80 experts are here, and with the 7 of 16
   * tokens where at most 20 come. */
  for (int round = 0; round < 3; ++round) {
    d = description();
    d.all_experts = round == 1 ? 80 : 0;
    d.first_expert = 0;
    d.has_expected_tokens = round < 2, d.expected_tokens = round < 2 ? 125 : 0;
    moxie_expert_layer* const planned = made(&d);
    moxie_plan *up = NULL, *down = NULL;
    EXPECT_OK(moxie_expert_layer_plan(planned, MOXIE_NO_TOTAL, &up, &down));
    moxie_expert_layer_release(planned);
    moxie_plan_info of_up = {.size = sizeof of_up}, of_down = {.size = sizeof of_down};
    EXPECT_OK(moxie_plan_get_info(up, &of_up));
    EXPECT_OK(moxie_plan_get_info(down, &of_down));
    const double rows = kExperts * (round == 0 ? 50 : round == 1 ? 4 : 7);
    EXPECT(of_up.flops == 2 * rows * 2 * kWidth * kHidden);
    EXPECT(of_down.flops == 2 * rows * kWidth * kHidden);
    moxie_plan_release(up);
    moxie_plan_release(down);
  }
}

/* A description with one mistake, and words of the sentence that it gets. */
#define EXPECT_WRONG(words, ...)                                                 \
  do {                                                                           \
    moxie_router_description r = {.size = sizeof r};                             \
    moxie_expert_layer_description d = description();                            \
    r.logits_type = MOXIE_DATA_TYPE_F32;                                         \
    __VA_ARGS__;                                                                 \
    moxie_expert_layer* layer_ = NULL;                                           \
    EXPECT_REFUSED(moxie_expert_layer_create(world.device, &d, &layer_), words); \
    EXPECT(layer_ == NULL);                                                      \
    (void)r;                                                                     \
  } while (0)

static void check_sentences(void) {
  EXPECT_WRONG("experts is 0, but must be 1 to 1024", d.experts = 0);
  EXPECT_WRONG("first_expert is -1, but must be", d.first_expert = -1);
  EXPECT_WRONG("all_experts is 6, but the last one here is 6", d.all_experts = 6);
  EXPECT_WRONG("top_k is 17, but must be 1 to 16", d.top_k = 17);
  EXPECT_WRONG("hidden is 60, but must be a multiple of 8", d.hidden = 60);
  EXPECT_WRONG("width is 72, but must be a multiple of 32 with mxfp4", d.weights = MOXIE_OPERAND_FORMAT_MXFP4);
  EXPECT_WRONG("max_tokens is -1, but must be 0 to 1048576", d.max_tokens = -1);
  EXPECT_WRONG("expected_tokens is 7, but has_expected_tokens is 0", d.has_expected_tokens = 0);
  EXPECT_WRONG("expected_tokens is -2, but must be", d.expected_tokens = -2);
  EXPECT_WRONG("weights is 3, but only 0 to 2", d.weights = 3);
  EXPECT_WRONG("activations is 3, but only 0 to 2", d.activations = 3);
  EXPECT_WRONG("weights is bf16, but must be nvfp4 as activations is", d.activations = MOXIE_OPERAND_FORMAT_NVFP4);
  EXPECT_WRONG("activation.function is 12, but only 0 to 11", d.activation.function = 12);
  EXPECT_WRONG("gate is 3, but only 0 to 2", d.gate = 3);
  EXPECT_WRONG("up_bias is 2, but must be 0 or 1", d.up_bias = 2);
  EXPECT_WRONG("down_bias is -1, but must be 0 or 1", d.down_bias = -1);
  EXPECT_WRONG("residual is 2, but must be 0 or 1", d.residual = 2);
  EXPECT_WRONG("has_permute is 2, but must be 0 or 1", d.has_permute = 2);
  EXPECT_WRONG("permute is 2, but must be 0 or 1", d.has_permute = 1, d.permute = 2);
  EXPECT_WRONG("permute is 1, but has_permute is 0", d.permute = 1);
  EXPECT_WRONG("out is 5, but only 0 to 4", d.out = 5);
  EXPECT_WRONG("out is mxfp8, but must be bf16 or f32", d.out = MOXIE_DATA_TYPE_MXFP8);
  EXPECT_WRONG("id_type is 2, but only 0 to 1", d.id_type = 2);
  EXPECT_WRONG("id_type is int64, but a router's ids are int32", d.router = &r, d.id_type = MOXIE_ID_TYPE_INT64);
  EXPECT_WRONG("router.size is 0", d.router = &r, r.size = 0);
  EXPECT_WRONG("router.logits_type is -1, but only 0 to 4", d.router = &r, r.logits_type = -1);
  EXPECT_WRONG("router.logits_type is mxfp4, but must be", d.router = &r, r.logits_type = MOXIE_DATA_TYPE_MXFP4);
  EXPECT_WRONG("router.score is 2, but only 0 to 1", d.router = &r, r.score = 2);
  EXPECT_WRONG("router.no_renormalize is 2, but must be 0 or 1", d.router = &r, r.no_renormalize = 2);
  EXPECT_WRONG("router.correction_bias is 2, but must be 0 or 1", d.router = &r, r.correction_bias = 2);
  moxie_expert_layer* layer = NULL;
  moxie_router_description router = {.size = sizeof router, .reserved = 1};
  moxie_expert_layer_description d = description();
  d.router = &router;
  EXPECT_FAILS(moxie_expert_layer_create(world.device, &d, &layer), MOXIE_ERROR_UNSUPPORTED, "router.reserved is 1");

  /* Calls: what the description has no use for, and what it wants. */
  d = description();
  layer = made(&d);
  moxie_expert_layer_tensors t = world.tensors;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, (void*)256, 1 << 20, NULL), "topk_ids is null");
  t.tokens = 21;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "tokens is 21, but must be 0 to 20");
  t.tokens = 0, t.logits = t.x.data;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL),
                 "logits is given, but the description has no router");
  t.logits = NULL, t.chosen_ids = t.out.data;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "chosen_ids is given");
  t.chosen_ids = NULL, t.chosen_weights = t.out.data;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "chosen_weights is given");
  t.chosen_weights = NULL, t.correction_bias = t.out.data;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "correction_bias is given");
  t.correction_bias = NULL, t.x.scales = t.x.data;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "scales are given");
  t.x.scales = NULL, t.up.scales = t.x.data;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "up.scales is given");
  t.up.scales = NULL, t.inner_tensor_scale = (const float*)t.x.data;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "inner_tensor_scale is given");
  t.inner_tensor_scale = NULL;
  const moxie_launch_options options = {.size = sizeof options, .no_programmatic = 3};
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, &options), "options.no_programmatic is 3");
  EXPECT_OK(moxie_expert_layer_run(layer, &t, NULL, 0, NULL));
  moxie_expert_layer_release(layer);

  /* A layer that has none of these, and whose output is bf16. */
  d.up_bias = d.down_bias = d.residual = 0, d.out = MOXIE_DATA_TYPE_BF16;
  layer = made(&d);
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "up_bias is given, but the description has none");
  t.up_bias = NULL;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "down_bias is given, but the description has none");
  t.down_bias = NULL;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "residual is given, but the description has none");
  t.residual.data = NULL, t.out.ld = kHidden + 4;
  EXPECT_REFUSED(moxie_expert_layer_run(layer, &t, NULL, 0, NULL), "out.ld is 68, but must be a multiple of 8");
  moxie_expert_layer_release(layer);
}

void test_layer(void) {
  make_world();
  check_given_experts();
  check_router(0);
  check_router(1);
  check_questions();
  check_sentences();
  moxie_device_release(world.device);
}

/* A layer over one rank, which needs no second device: it computes what the layer without ranks does. */
void test_ranks(void) {
  make_world();
  moxie_expert_layer_description d = description();
  d.first_expert = 0, d.all_experts = kExperts;
  moxie_expert_layer* const alone = made(&d);
  moxie_rank_description r = {.size = sizeof r, .ranks = 1, .time_limit = 0.5, .max_rows = kPairs};
  r.has_results = 1, r.results = MOXIE_RESULT_FORMAT_ROWS;
  d.ranks = &r;
  moxie_expert_layer* const ranked = made(&d);
  size_t bytes = 1, window_bytes = 0, needed = 0;
  EXPECT_OK(moxie_expert_layer_window_bytes(alone, &bytes));
  EXPECT(bytes == 0);
  EXPECT_OK(moxie_expert_layer_window_bytes(ranked, &window_bytes));
  EXPECT(window_bytes > kPairs * kHidden * 2);
  EXPECT_OK(moxie_expert_layer_workspace_bytes(alone, MOXIE_NO_TOTAL, &needed));
  EXPECT_OK(moxie_expert_layer_workspace_bytes(ranked, MOXIE_NO_TOTAL, &bytes));
  if (bytes > needed) needed = bytes;
  void* const workspace = filled(world.device, needed, 0xff);
  void* const window = filled(world.device, window_bytes, 0xff);
  EXPECT_OK(moxie_expert_layer_prepare_window(ranked, window, NULL));

  /* The expert in each place, and the same choices by the numbers that a table leads to these places. */
  static const int32_t kPlaces[kExperts] = {3, 0, 4, 1, 2};
  int32_t ids[kPairs], places[kPairs];
  float weights[kPairs];
  for (int i = 0; i < kPairs; ++i) {
    ids[i] = i * 5 % (kExperts + 1), weights[i] = (float)(i % 5) / 4;
    places[i] = ids[i] < kExperts ? kPlaces[ids[i]] : -1;
  }
  static float expected[kTokens * kLd], got[kTokens * kLd];
  moxie_expert_layer_tensors t = world.tensors;
  t.topk_weights = uploaded(world.device, weights, sizeof weights);
  t.topk_ids = uploaded(world.device, places, sizeof places);
  EXPECT_OK(moxie_expert_layer_run(alone, &t, workspace, needed, NULL));
  EXPECT_OK(moxie_device_download(world.device, expected, t.out.data, sizeof expected, NULL));
  t.topk_ids = uploaded(world.device, ids, sizeof ids);
  t.windows = &window, t.places = uploaded(world.device, kPlaces, sizeof kPlaces);
  for (int call = 0; call < 2; ++call) {
    EXPECT_OK(moxie_device_fill(world.device, t.out.data, 0xff, sizeof got, NULL));
    if (call == 0) {
      EXPECT_OK(moxie_expert_layer_run(ranked, &t, workspace, needed, NULL));
    } else {
      moxie_expert_layer_tensors early = t;
      early.residual.data = NULL;
      EXPECT_OK(moxie_expert_layer_run_part(ranked, MOXIE_LAYER_PART_SEND, &early, workspace, needed, NULL));
      EXPECT_OK(moxie_expert_layer_run_part(ranked, MOXIE_LAYER_PART_MULTIPLY, &early, workspace, needed, NULL));
      EXPECT_OK(moxie_expert_layer_run_part(ranked, MOXIE_LAYER_PART_SUM, &t, workspace, needed, NULL));
    }
    EXPECT_OK(moxie_expert_layer_check_ranks(ranked, window, NULL));
    EXPECT_OK(moxie_device_download(world.device, got, t.out.data, sizeof got, NULL));
    EXPECT(memcmp(got, expected, sizeof got) == 0);
  }

  /* More rows than there may be. */
  r.max_rows = 3;
  moxie_expert_layer* const small = made(&d);
  EXPECT_OK(moxie_expert_layer_prepare_window(small, window, NULL));
  EXPECT_OK(moxie_expert_layer_run(small, &t, workspace, needed, NULL));
  EXPECT_FAILS(moxie_expert_layer_check_ranks(small, window, NULL), MOXIE_ERROR_PEER,
               "the experts of rank 0 would get 11 rows in call 1, but max_rows is 3");
  EXPECT_OK(moxie_expert_layer_check_ranks(small, window, NULL));

  moxie_expert_layer* none = NULL;
  const struct {
    moxie_rank_description ranks;
    const char* says;
  } kWrong[] = {
      {{.size = 0}, "ranks.size is 0"},
      {{.size = sizeof r}, "ranks.ranks is 0, but must be 1 to 72"},
      {{.size = sizeof r, .ranks = 1, .rank = 1}, "ranks.rank is 1, but must be 0 to 0"},
      {{.size = sizeof r, .ranks = 1, .format = 3}, "ranks.format is 3, but only 0 to 2 have a meaning"},
      {{.size = sizeof r, .ranks = 1, .results = 1}, "ranks.results is 1, but ranks.has_results is 0"},
      {{.size = sizeof r, .ranks = 1, .has_results = 1, .results = 3}, "ranks.results is 3, but only 0 to 2"},
      {{.size = sizeof r, .ranks = 1, .time_limit = -1}, "ranks.time_limit is -1, but must be above 0"},
  };
  for (size_t i = 0; i < COUNT(kWrong); ++i) {
    d.ranks = &kWrong[i].ranks;
    EXPECT_REFUSED(moxie_expert_layer_create(world.device, &d, &none), kWrong[i].says);
  }
  r.reserved = 1, d.ranks = &r;
  EXPECT_FAILS(moxie_expert_layer_create(world.device, &d, &none), MOXIE_ERROR_UNSUPPORTED, "ranks.reserved is 1");
  moxie_expert_layer_release(small);
  moxie_expert_layer_release(ranked);
  moxie_expert_layer_release(alone);
  moxie_device_release(world.device);
}
