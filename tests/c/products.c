// SPDX-License-Identifier: Apache-2.0
/* Products of every kind on the simulator, against sums in double precision. */
#include "harness.h"

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

/* GPT-OSS's gate with its usual parameters. */
static double swiglu_oai(double gate, double up) {
  const double g = fmin(gate, 7.0), u = fmax(fmin(up, 7.0), -7.0);
  return g * sigmoid(1.702 * g) * (u + 1.0);
}

/* A product with its operands and a workspace. */
typedef struct {
  moxie_device* device;
  moxie_grouped_gemm* gemm;
  moxie_gemm_tensors tensors;
  uint16_t *a, *b;
  void* workspace;
  size_t workspace_bytes;
} Product;

static Product make_product(const moxie_gemm_description* d, int64_t rows, int64_t groups) {
  Product p = {.device = open_device(), .tensors = {.size = sizeof p.tensors}};
  EXPECT_OK(moxie_grouped_gemm_create(p.device, d, &p.gemm));
  const size_t a_count = (size_t)(rows * d->k), b_count = (size_t)(groups * d->n * d->k);
  p.a = malloc(a_count * 2 + 1);
  p.b = malloc(b_count * 2);
  fill_bf16(p.a, a_count, 1);
  fill_bf16(p.b, b_count, 2);
  p.tensors.a.data = uploaded(p.device, p.a, a_count * 2);
  p.tensors.b.data = uploaded(p.device, p.b, b_count * 2);
  EXPECT_OK(moxie_grouped_gemm_workspace_bytes(p.gemm, MOXIE_NO_TOTAL, &p.workspace_bytes));
  p.workspace = filled(p.device, p.workspace_bytes + 128, 0);
  return p;
}

static void run_product(const Product* p, const moxie_launch_options* options) {
  EXPECT_OK(moxie_grouped_gemm_run(p->gemm, &p->tensors, p->workspace, p->workspace_bytes, options));
  EXPECT_OK(moxie_device_synchronize(p->device, NULL));
}

static void end_product(Product* p) {
  free(p->a), free(p->b);
  moxie_grouped_gemm_release(p->gemm);
  moxie_device_release(p->device);
}

static void* downloaded(const Product* p, const void* from, size_t bytes) {
  void* const host = malloc(bytes);
  EXPECT(host != NULL);
  EXPECT_OK(moxie_device_download(p->device, host, from, bytes, NULL));
  return host;
}

/* Both outputs, in float32 and in bf16, of which the second one has an activation and a stride. */
void test_dense(void) {
  enum { kM = 40, kN = 64, kK = 96, kLd = 72 };
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.grouping = MOXIE_GROUPING_DENSE;
  d.groups.m = kM;
  d.n = kN, d.k = kK;
  d.activation.function = MOXIE_ACTIVATION_RELU;
  d.has_pre = 1, d.pre = MOXIE_DATA_TYPE_F32;
  Product p = make_product(&d, kM, 1);
  p.tensors.pre.data = filled(p.device, kM * kN * 4, 0xff);
  p.tensors.out.data = filled(p.device, kM * kLd * 2, 0xff);
  p.tensors.out.ld = kLd;
  run_product(&p, NULL);
  float* const pre = downloaded(&p, p.tensors.pre.data, kM * kN * 4);
  uint16_t* const out = downloaded(&p, p.tensors.out.data, kM * kLd * 2);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      const double expected = dot(p.a, p.b, i, j, kK);
      EXPECT(pre[i * kN + j] == expected);
      EXPECT(from_bf16(out[i * kLd + j]) == from_bf16(to_bf16((float)fmax(expected, 0))));
    }
    for (int64_t j = kN; j < kLd; ++j) EXPECT(out[i * kLd + j] == 0xffff);
  }
  free(pre), free(out);
  end_product(&p);
}

/* An expert layer's first product; the second group is empty. Its rows of a are its own, or the last ones first. */
static void check_offsets(int gather) {
  enum { kGroups = 3, kRows = 20, kN = 64, kK = 64 };
  static const int32_t kEnds[kGroups] = {7, 7, 20};
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.grouping = MOXIE_GROUPING_OFFSETS;
  d.groups.count = kGroups;
  d.groups.has_total = 1, d.groups.total = kRows;
  d.n = kN, d.k = kK;
  d.gather = gather;
  d.bias = 1;
  d.activation.function = MOXIE_ACTIVATION_SWIGLU_OAI;
  Product p = make_product(&d, kRows, kGroups);
  uint16_t bias[kGroups * kN];
  fill_bf16(bias, COUNT(bias), 3);
  p.tensors.bias = uploaded(p.device, bias, sizeof bias);
  p.tensors.out.data = filled(p.device, kRows * kN / 2 * 2, 0xff);
  p.tensors.rows.ends = uploaded(p.device, kEnds, sizeof kEnds);
  int32_t list[kRows];
  for (int32_t i = 0; i < kRows; ++i) list[i] = (kRows - 1 - i) * 3 + i % 3;
  if (gather) p.tensors.gather = (moxie_gather){uploaded(p.device, list, sizeof list), kRows, 3, 0};
  /* The second round has a total of its own and all options. */
  for (int round = 0; round < 2; ++round) {
    const moxie_launch_options options = {.size = sizeof options, .no_programmatic = 1, .weights_ready = 1};
    const int64_t rows = round == 0 ? kRows : 8;
    p.tensors.rows.has_total = round;
    p.tensors.rows.total = round == 0 ? 0 : rows;
    EXPECT_OK(moxie_device_fill(p.device, p.tensors.out.data, 0xff, kRows * kN / 2 * 2, NULL));
    run_product(&p, round == 0 ? NULL : &options);
    uint16_t* const out = downloaded(&p, p.tensors.out.data, kRows * kN / 2 * 2);
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t group = i < 7 ? 0 : 2;
      for (int64_t j = 0; j < kN / 2; ++j) {
        const uint16_t stored = out[i * (kN / 2) + j];
        if (i >= rows) {
          EXPECT(stored == 0xffff);
          continue;
        }
        const int64_t row = gather ? kRows - 1 - i : i, gate = group * kN + 2 * j;
        const double g = dot(p.a, p.b, row, gate, kK) + from_bf16(bias[gate]);
        const double u = dot(p.a, p.b, row, gate + 1, kK) + from_bf16(bias[gate + 1]);
        EXPECT(is_near(from_bf16(stored), swiglu_oai(g, u)));
      }
    }
    free(out);
  }
  end_product(&p);
}

void test_offsets(void) {
  check_offsets(0);
  check_offsets(1);
}

void test_row_groups(void) {
  enum { kGroups = 2, kN = 64, kK = 64 };
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.grouping = MOXIE_GROUPING_ROW_GROUPS;
  d.groups.count = kGroups;
  d.n = kN, d.k = kK;
  moxie_device* const device = open_device();
  moxie_grouped_gemm* gemm = NULL;
  int64_t alignment = 0;
  EXPECT_OK(moxie_grouped_gemm_create(device, &d, &gemm));
  EXPECT_OK(moxie_grouped_gemm_row_alignment(gemm, &alignment));
  EXPECT(alignment >= 64 && alignment <= 512);
  const int64_t rows = 2 * alignment;
  uint16_t *a = malloc((size_t)(rows * kK) * 2), b[kGroups * kN * kK], *out = malloc((size_t)(rows * kN) * 2);
  int32_t* group_of_row = malloc((size_t)rows * 4);
  fill_bf16(a, (size_t)(rows * kK), 1);
  fill_bf16(b, COUNT(b), 2);
  /* The last rows of each group hold nothing. */
  for (int64_t i = 0; i < rows; ++i) group_of_row[i] = i % alignment < 10 ? (int32_t)(1 - i / alignment) : -1;
  moxie_gemm_tensors t = {.size = sizeof t};
  t.a.data = uploaded(device, a, (size_t)(rows * kK) * 2);
  t.b.data = uploaded(device, b, sizeof b);
  t.out.data = filled(device, (size_t)(rows * kN) * 2, 0);
  t.rows.group_of_row = uploaded(device, group_of_row, (size_t)rows * 4);
  EXPECT_REFUSED(moxie_grouped_gemm_run(gemm, &t, NULL, 0, NULL), "rows.total is absent");
  t.rows.has_total = 1, t.rows.total = rows;
  size_t workspace_bytes = 0;
  EXPECT_OK(moxie_grouped_gemm_workspace_bytes(gemm, rows, &workspace_bytes));
  EXPECT_OK(moxie_grouped_gemm_run(gemm, &t, filled(device, workspace_bytes, 0), workspace_bytes, NULL));
  EXPECT_OK(moxie_device_download(device, out, t.out.data, (size_t)(rows * kN) * 2, NULL));
  for (int64_t i = 0; i < rows; ++i) {
    if (group_of_row[i] < 0) continue;
    for (int64_t j = 0; j < kN; ++j)
      EXPECT(out[i * kN + j] == to_bf16((float)dot(a, b, i, group_of_row[i] * kN + j, kK)));
  }
  free(a), free(out), free(group_of_row);
  moxie_grouped_gemm_release(gemm);
  moxie_device_release(device);
}

void test_masked(void) {
  enum { kGroups = 3, kMaxM = 16, kN = 64, kK = 64 };
  static const int32_t kCounts[kGroups] = {5, 0, 16};
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.grouping = MOXIE_GROUPING_MASKED;
  d.groups.count = kGroups;
  d.groups.max_m = kMaxM;
  d.n = kN, d.k = kK;
  d.has_expected_rows = 1, d.expected_rows = 7;
  Product p = make_product(&d, kGroups * kMaxM, kGroups);
  p.tensors.out.data = filled(p.device, kGroups * kMaxM * kN * 2, 0xff);
  p.tensors.rows.counts = uploaded(p.device, kCounts, sizeof kCounts);
  run_product(&p, NULL);
  uint16_t* const out = downloaded(&p, p.tensors.out.data, kGroups * kMaxM * kN * 2);
  for (int64_t i = 0; i < kGroups * kMaxM; ++i) {
    const int64_t group = i / kMaxM;
    for (int64_t j = 0; j < kN; ++j) {
      const uint16_t expected =
          i % kMaxM < kCounts[group] ? to_bf16((float)dot(p.a, p.b, i, group * kN + j, kK)) : 0xffff;
      EXPECT(out[i * kN + j] == expected);
    }
  }
  free(out);
  end_product(&p);
}

/* Two groups of different sizes, whose pointers only the device reads. */
void test_pointers(void) {
  enum { kGroups = 2, kMaxM = 24, kN = 64, kK = 64 };
  static const int32_t kSizes[kGroups][3] = {{24, 64, 32}, {3, 16, 64}};
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.grouping = MOXIE_GROUPING_POINTERS;
  d.groups.count = kGroups;
  d.groups.max_m = kMaxM;
  d.n = kN, d.k = kK;
  d.out = MOXIE_DATA_TYPE_F32;
  moxie_device* const device = open_device();
  moxie_grouped_gemm* gemm = NULL;
  EXPECT_OK(moxie_grouped_gemm_create(device, &d, &gemm));
  uint16_t a[kGroups][kMaxM * kK], b[kGroups][kN * kK];
  const void *a_pointers[kGroups], *b_pointers[kGroups];
  void* out_pointers[kGroups];
  int64_t ld_in[kGroups], ld_out[kGroups];
  for (uint32_t g = 0; g < kGroups; ++g) {
    fill_bf16(a[g], COUNT(a[g]), 10 + g);
    fill_bf16(b[g], COUNT(b[g]), 20 + g);
    a_pointers[g] = uploaded(device, a[g], sizeof a[g]);
    b_pointers[g] = uploaded(device, b[g], sizeof b[g]);
    out_pointers[g] = filled(device, kMaxM * kN * 4, 0xff);
    ld_in[g] = kSizes[g][2];
    ld_out[g] = kSizes[g][1];
  }
  const int64_t* const ld = uploaded(device, ld_in, sizeof ld_in);
  moxie_group_pointers t = {.size = sizeof t};
  t.a.data = uploaded(device, a_pointers, sizeof a_pointers), t.a.ld = ld;
  t.b.data = uploaded(device, b_pointers, sizeof b_pointers), t.b.ld = ld;
  t.out.data = uploaded(device, out_pointers, sizeof out_pointers);
  t.out.ld = uploaded(device, ld_out, sizeof ld_out);
  t.sizes = uploaded(device, kSizes, sizeof kSizes);
  size_t workspace_bytes = 0;
  EXPECT_OK(moxie_grouped_gemm_workspace_bytes(gemm, MOXIE_NO_TOTAL, &workspace_bytes));
  EXPECT(workspace_bytes > 0);
  void* const workspace = filled(device, workspace_bytes, 0);
  EXPECT_REFUSED(moxie_grouped_gemm_run_pointers(gemm, &t, workspace, workspace_bytes - 1, NULL), "workspace has");
  EXPECT_OK(moxie_grouped_gemm_run_pointers(gemm, &t, workspace, workspace_bytes, NULL));
  for (int g = 0; g < kGroups; ++g) {
    const int64_t m = kSizes[g][0], n = kSizes[g][1], k = kSizes[g][2];
    float out[kMaxM * kN];
    EXPECT_OK(moxie_device_download(device, out, out_pointers[g], sizeof out, NULL));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) EXPECT(out[i * n + j] == dot(a[g], b[g], i, j, k));
    }
    EXPECT(m * n == kMaxM * kN || isnan(out[m * n]));
  }
  moxie_grouped_gemm_release(gemm);
  moxie_device_release(device);
}

/* examples/new_activation.cuh: a sink that stores softplus of the values, the only output. */
void test_sink(void) {
  enum { kM = 20, kN = 64, kK = 64 };
  static char source[65536];
  FILE* const file = fopen(MOXIE_SOURCE_DIR "/examples/new_activation.cuh", "rb");
  EXPECT(file != NULL);
  source[fread(source, 1, sizeof source - 1, file)] = '\0';
  fclose(file);
  struct {
    void* out;
    int64_t ld;
  } params;
  const moxie_custom_sink sink = {
      .size = sizeof sink, .type = "example::Apply<example::Softplus>", .source = source, .param_bytes = sizeof params};
  const moxie_custom_sink* const sinks[] = {&sink};
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.m = kM;
  d.n = kN, d.k = kK;
  d.no_out = 1;
  d.sinks = sinks, d.sink_count = 1;
  Product p = make_product(&d, kM, 1);
  params.out = filled(p.device, kM * kN * 2, 0xff);
  params.ld = kN;
  const moxie_sink_params sink_params[] = {{&params, sizeof params}};
  p.tensors.sinks = sink_params;
  EXPECT_REFUSED(moxie_grouped_gemm_run(p.gemm, &p.tensors, p.workspace, p.workspace_bytes, NULL), "sink_count is 0");
  p.tensors.sink_count = 1, p.tensors.sinks = NULL;
  EXPECT_REFUSED(moxie_grouped_gemm_run(p.gemm, &p.tensors, p.workspace, p.workspace_bytes, NULL), "sinks is null");
  p.tensors.sinks = sink_params;
  run_product(&p, NULL);
  uint16_t* const out = downloaded(&p, params.out, kM * kN * 2);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) EXPECT(is_near(from_bf16(out[i * kN + j]), log1p(exp(dot(p.a, p.b, i, j, kK)))));
  }
  free(out);
  end_product(&p);
}

/* sm_100a: rows quantized on the device, multiplied, and the result quantized again for the next product. */
void test_mxfp4(void) {
  enum { kGroups = 2, kRows = 20, kN = 64, kK = 128 };
  static const int32_t kEnds[kGroups] = {13, 20};
  EXPECT(setenv("MOXIE_SIM_ARCH", "sm_100a", 1) == 0);
  moxie_device* const device = open_device();
  moxie_device_info info = {.size = sizeof info};
  EXPECT_OK(moxie_device_get_info(device, &info));
  EXPECT(info.arch == 100);
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.grouping = MOXIE_GROUPING_OFFSETS;
  d.groups.count = kGroups;
  d.groups.has_total = 1, d.groups.total = kRows;
  d.n = kN, d.k = kK;
  d.format = MOXIE_OPERAND_FORMAT_MXFP4;
  d.has_pre = 1, d.pre = MOXIE_DATA_TYPE_F32;
  d.out = MOXIE_DATA_TYPE_MXFP8;
  moxie_grouped_gemm* gemm = NULL;
  EXPECT_OK(moxie_grouped_gemm_create(device, &d, &gemm));

  /* Multiples of 1/2 up to 6 with a six in each block are what E2M1 holds under a scale of 1. */
  static const float kValues[] = {6, -0.5f, 1, -1.5f, 2, 3, -4, 0};
  uint16_t a[kRows * kK], b[kGroups * kN * kK];
  for (size_t i = 0; i < COUNT(a); ++i) a[i] = to_bf16(kValues[i % 32 == 0 ? 0 : (i * 5 + i / kK) % 8]);
  for (size_t i = 0; i < COUNT(b); ++i) b[i] = to_bf16(kValues[i % 32 == 0 ? 0 : (i * 3 + i / kK) % 8]);
  const int32_t* const ends = uploaded(device, kEnds, sizeof kEnds);
  moxie_gemm_tensors t = {.size = sizeof t};
  for (int operand = 0; operand < 2; ++operand) {
    moxie_quantization q = {.size = sizeof q};
    q.format = MOXIE_DATA_TYPE_MXFP4;
    q.rows = operand == 0 ? kRows : kN;
    q.k = kK;
    q.groups = kGroups;
    q.offsets = operand == 0 ? ends : NULL;
    q.values = operand == 0 ? uploaded(device, a, sizeof a) : uploaded(device, b, sizeof b);
    q.elements = filled(device, (operand == 0 ? sizeof a : sizeof b) / 4, 0);
    size_t scale_bytes = 0, wanted = 0;
    EXPECT_OK(moxie_scale_bytes(&q, &scale_bytes));
    EXPECT_OK((operand == 0 ? moxie_a_scale_bytes : moxie_b_scale_bytes)(&d, MOXIE_NO_TOTAL, &wanted));
    EXPECT(scale_bytes == wanted && wanted > 0);
    q.scales = filled(device, scale_bytes, 0);
    EXPECT_OK(moxie_quantize(device, &q));
    moxie_const_tensor* const tensor = operand == 0 ? &t.a : &t.b;
    tensor->data = q.elements;
    tensor->scales = q.scales;
  }
  size_t out_scale_bytes = 0, pre_scale_bytes = 1, workspace_bytes = 0;
  EXPECT_OK(moxie_out_scale_bytes(&d, MOXIE_NO_TOTAL, &out_scale_bytes));
  EXPECT_OK(moxie_pre_scale_bytes(&d, MOXIE_NO_TOTAL, &pre_scale_bytes));
  EXPECT(pre_scale_bytes == 0);
  t.pre.data = filled(device, kRows * kN * 4, 0xff);
  t.out.data = filled(device, kRows * kN, 0xff);
  t.out.scales = filled(device, out_scale_bytes, 0);
  t.rows.ends = ends;
  EXPECT_OK(moxie_grouped_gemm_workspace_bytes(gemm, MOXIE_NO_TOTAL, &workspace_bytes));
  EXPECT_OK(moxie_grouped_gemm_run(gemm, &t, filled(device, workspace_bytes + 128, 0), workspace_bytes, NULL));

  moxie_dequantization back = {.size = sizeof back};
  back.format = MOXIE_DATA_TYPE_MXFP8;
  back.type = MOXIE_DATA_TYPE_F32;
  back.rows = kRows, back.k = kN;
  back.groups = kGroups, back.offsets = ends;
  back.elements = t.out.data, back.scales = t.out.scales;
  back.values = filled(device, kRows * kN * 4, 0xff);
  EXPECT_OK(moxie_dequantize(device, &back));
  float pre[kRows * kN], out[kRows * kN];
  EXPECT_OK(moxie_device_download(device, pre, t.pre.data, sizeof pre, NULL));
  EXPECT_OK(moxie_device_download(device, out, back.values, sizeof out, NULL));
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t group = i < kEnds[0] ? 0 : 1;
    for (int64_t j = 0; j < kN; ++j) {
      const double expected = dot(a, b, i, group * kN + j, kK);
      double largest = 0; /* of the block of 32, whose largest quotients saturate: 448 of up to 512 */
      for (int64_t c = j / 32 * 32; c < j / 32 * 32 + 32; ++c) largest = fmax(largest, fabs(pre[i * kN + c]));
      EXPECT(pre[i * kN + j] == expected);
      EXPECT(fabs(out[i * kN + j] - expected) <= fabs(expected) / 7 + largest / 448);
    }
  }
  moxie_grouped_gemm_release(gemm);
  moxie_device_release(device);
}

/* bf16 rows by MXFP4 weights of two groups, gate and up in halves, packed and unpacked. */
void test_weights(void) {
  enum { kGroups = 2, kM = 5, kN = 48, kK = 96, kRows = kGroups * kN };
  static const float kMagnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  moxie_device* const device = open_device();
  uint8_t codes[kRows * kK / 2], scales[kRows * kK / 32], codes_back[sizeof codes], scales_back[sizeof scales];
  uint16_t a[kGroups * kM * kK], b[kRows * kK];
  fill_bf16(a, COUNT(a), 1);
  for (size_t i = 0; i < COUNT(codes); ++i) codes[i] = (uint8_t)(i * 37 + i / 11);
  for (size_t i = 0; i < COUNT(scales); ++i) scales[i] = (uint8_t)(126 + i % 3);
  for (size_t i = 0; i < COUNT(b); ++i) {
    const unsigned code = i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15u;
    b[i] = to_bf16((code & 8 ? -1.0f : 1.0f) * ldexpf(kMagnitudes[code & 7], scales[i / 32] - 127));
  }

  size_t bytes = 0;
  EXPECT_OK(moxie_packed_weight_bytes(kGroups, kN, kK, &bytes));
  EXPECT(bytes == kRows * (kK / 2 + kK / 32 + 1));
  const uint64_t none = UINT64_MAX;
  uint64_t refused = 0;
  moxie_weight_packing w = {.size = sizeof w, .n = kN, .k = kK, .groups = kGroups};
  w.gated = 1, w.gate = MOXIE_GATE_LAYOUT_SPLIT;
  w.codes = uploaded(device, codes, sizeof codes);
  w.scales = uploaded(device, scales, sizeof scales);
  w.packed = filled(device, bytes, 0xff);
  w.refused = uploaded(device, &none, sizeof none);
  EXPECT_OK(moxie_pack_weights(device, &w));
  EXPECT_OK(moxie_device_download(device, &refused, w.refused, sizeof refused, NULL));
  EXPECT(refused == none);
  moxie_weight_unpacking u = {.size = sizeof u, .n = kN, .k = kK, .groups = kGroups};
  u.gated = 1, u.gate = MOXIE_GATE_LAYOUT_SPLIT;
  u.packed = w.packed;
  u.codes = filled(device, sizeof codes, 0xff), u.scales = filled(device, sizeof scales, 0xff);
  EXPECT_OK(moxie_unpack_weights(device, &u));
  EXPECT_OK(moxie_device_download(device, codes_back, u.codes, sizeof codes, NULL));
  EXPECT_OK(moxie_device_download(device, scales_back, u.scales, sizeof scales, NULL));
  EXPECT(memcmp(codes, codes_back, sizeof codes) == 0 && memcmp(scales, scales_back, sizeof scales) == 0);

  /* Expert by expert, through memory for the codes and scales of one. */
  uint8_t* const packed = malloc(2 * bytes);
  size_t of_one = 0;
  EXPECT_OK(moxie_packed_weight_bytes(1, kN, kK, &of_one));
  EXPECT(of_one == bytes / kGroups);
  moxie_weight_packing one = w;
  void* const part_codes = filled(device, sizeof codes / kGroups, 0xff);
  void* const part_scales = filled(device, sizeof scales / kGroups, 0xff);
  uint8_t* const all = filled(device, bytes, 0xff);
  one.groups = 1, one.codes = part_codes, one.scales = part_scales;
  for (size_t g = kGroups; g-- > 0;) {
    EXPECT_OK(
        moxie_device_upload(device, part_codes, codes + g * sizeof codes / kGroups, sizeof codes / kGroups, NULL));
    EXPECT_OK(
        moxie_device_upload(device, part_scales, scales + g * sizeof scales / kGroups, sizeof scales / kGroups, NULL));
    one.packed = all + g * of_one;
    EXPECT_OK(moxie_pack_weights(device, &one));
  }
  EXPECT_OK(moxie_device_download(device, packed, w.packed, bytes, NULL));
  EXPECT_OK(moxie_device_download(device, packed + bytes, all, bytes, NULL));
  EXPECT(memcmp(packed, packed + bytes, bytes) == 0);

  /* Every block has a 4 or a 6, so the weights in bf16 are quantized to the same codes and scales. */
  moxie_quantization q = {.size = sizeof q, .format = MOXIE_DATA_TYPE_MXFP4, .rows = kN, .k = kK, .groups = kGroups};
  q.layout = MOXIE_SCALE_LAYOUT_ROW_MAJOR;
  q.values = uploaded(device, b, sizeof b);
  q.elements = filled(device, sizeof codes, 0xff), q.scales = filled(device, sizeof scales, 0xff);
  moxie_weight_packing from_bf16 = w;
  from_bf16.codes = q.elements, from_bf16.scales = q.scales, from_bf16.packed = filled(device, bytes, 0xff);
  EXPECT_OK(moxie_quantize(device, &q));
  EXPECT_OK(moxie_pack_weights(device, &from_bf16));
  EXPECT_OK(moxie_device_download(device, packed + bytes, from_bf16.packed, bytes, NULL));
  EXPECT(memcmp(packed, packed + bytes, bytes) == 0);
  free(packed);

  moxie_gemm_description d = {.size = sizeof d};
  d.groups.grouping = MOXIE_GROUPING_BATCHED;
  d.groups.count = kGroups, d.groups.m = kM;
  d.n = kN, d.k = kK;
  d.has_b_format = 1, d.b_format = MOXIE_OPERAND_FORMAT_MXFP4;
  d.activation.function = MOXIE_ACTIVATION_REGLU;
  d.gate = MOXIE_GATE_LAYOUT_SPLIT;
  d.out = MOXIE_DATA_TYPE_F32;
  moxie_grouped_gemm* gemm = NULL;
  EXPECT_OK(moxie_grouped_gemm_create(device, &d, &gemm));
  float out[kGroups * kM * kN / 2];
  moxie_gemm_tensors t = {.size = sizeof t};
  t.a.data = uploaded(device, a, sizeof a), t.b.data = w.packed;
  t.out.data = filled(device, sizeof out, 0xff);
  EXPECT_OK(moxie_grouped_gemm_run(gemm, &t, NULL, 0, NULL));
  EXPECT_OK(moxie_device_download(device, out, t.out.data, sizeof out, NULL));
  for (int64_t row = 0; row < kGroups * kM; ++row) {
    for (int64_t j = 0; j < kN / 2; ++j) {
      const int64_t gate = row / kM * kN + j;
      const double g = dot(a, b, row, gate, kK), up = dot(a, b, row, gate + kN / 2, kK);
      EXPECT(out[row * (kN / 2) + j] == (float)fmax(g, 0) * (float)up);
    }
  }
  moxie_grouped_gemm_release(gemm);

  /* Row 3 of the second group gets scales that are too far apart. */
  scales[(kN + 3) * kK / 32] = 200, scales[(kN + 3) * kK / 32 + 1] = 20;
  EXPECT_OK(moxie_device_upload(device, (void*)w.scales, scales, sizeof scales, NULL));
  EXPECT_OK(moxie_pack_weights(device, &w));
  EXPECT_OK(moxie_device_download(device, &refused, w.refused, sizeof refused, NULL));
  EXPECT(refused == kN + 3);

  /* Both calls go to the stream that they are given, where there is none. */
  w.stream = u.stream = (moxie_stream)&bytes;
  EXPECT_FAILS(moxie_pack_weights(device, &w), MOXIE_ERROR_DRIVER, "cuLaunchKernelEx");
  EXPECT_FAILS(moxie_unpack_weights(device, &u), MOXIE_ERROR_DRIVER, "cuLaunchKernelEx");
  moxie_device_release(device);

  /* Without has_b_format its value must be 0. */
  d.has_b_format = 0;
  EXPECT_REFUSED(moxie_plan_create(&d, NULL, MOXIE_NO_TOTAL, &(moxie_plan*){NULL}),
                 "b_format is 1, but has_b_format is 0");
  EXPECT_REFUSED(moxie_packed_weight_bytes(1, 12, 32, &bytes), "n is 12, but must be a multiple of 8");
}
