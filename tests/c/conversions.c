// SPDX-License-Identifier: Apache-2.0
/* Quantizing, scales, plans as data, devices, names and packs. */
#include <stdbool.h>
#include <unistd.h>

#include "harness.h"

static void round_trip(moxie_data_type format, moxie_scale_layout layout) {
  enum { kRows = 5, kK = 64 };
  moxie_device* const device = open_device();
  float values[kRows * kK], back[kRows * kK], scale = 0;
  /* Powers of two from 1/2 to 4 are elements of every format under every scale of these rows. */
  for (size_t i = 0; i < COUNT(values); ++i) values[i] = (i % 3 == 0 ? -1.0f : 1.0f) * ldexpf(1.0f, (int)(i % 4) - 1);
  moxie_quantization q = {.size = sizeof q};
  q.format = format;
  q.type = MOXIE_DATA_TYPE_F32;
  q.layout = layout;
  q.rows = kRows, q.k = kK;
  q.values = uploaded(device, values, sizeof values);
  size_t bytes = 0;
  EXPECT_OK(moxie_scale_bytes(&q, &bytes));
  const size_t block = format == MOXIE_DATA_TYPE_NVFP4 ? 16 : 32;
  EXPECT(bytes == (layout == MOXIE_SCALE_LAYOUT_BLOCKED ? 512 : kRows * kK / block));
  q.elements = filled(device, kRows * kK, 0);
  q.scales = filled(device, bytes, 0);
  if (format == MOXIE_DATA_TYPE_NVFP4) {
    float* const found = filled(device, 4, 0);
    EXPECT_OK(moxie_find_tensor_scale(device, &q, found));
    EXPECT_OK(moxie_device_download(device, &scale, found, 4, NULL));
    EXPECT(scale == 4.0f / (6 * 448));
    scale = 1; /* which makes the values exact */
    EXPECT_OK(moxie_device_upload(device, found, &scale, 4, NULL));
    q.tensor_scale = found;
  }
  EXPECT_OK(moxie_quantize(device, &q));
  moxie_dequantization d = {.size = sizeof d};
  d.format = format, d.type = q.type, d.layout = layout;
  d.rows = kRows, d.k = kK;
  d.elements = q.elements, d.scales = q.scales, d.tensor_scale = q.tensor_scale;
  d.values = filled(device, sizeof back, 0xff);
  EXPECT_OK(moxie_dequantize(device, &d));
  EXPECT_OK(moxie_device_download(device, back, d.values, sizeof back, NULL));
  for (size_t i = 0; i < COUNT(values); ++i) {
    if (format == MOXIE_DATA_TYPE_NVFP4) {
      EXPECT(fabsf(back[i] - values[i]) <= 0.4f * fabsf(values[i]) && back[i] * values[i] > 0);
    } else {
      EXPECT(back[i] == values[i]);
    }
  }
  moxie_device_release(device);
}

void test_quantize(void) {
  round_trip(MOXIE_DATA_TYPE_MXFP4, MOXIE_SCALE_LAYOUT_BLOCKED);
  round_trip(MOXIE_DATA_TYPE_MXFP8, MOXIE_SCALE_LAYOUT_ROW_MAJOR);
  round_trip(MOXIE_DATA_TYPE_NVFP4, MOXIE_SCALE_LAYOUT_BLOCKED);
}

void test_scales(void) {
  enum { kRows = 40, kK = 256, kColumns = kK / 32 };
  size_t bytes = 0, index = 0;
  EXPECT_OK(moxie_blocked_scale_bytes(kRows, kK, 32, &bytes));
  EXPECT(bytes == 2 * 512);
  EXPECT_OK(moxie_blocked_scale_bytes(kRows, kK, 16, &bytes));
  EXPECT(bytes == 4 * 512);
  EXPECT_OK(moxie_blocked_scale_bytes(INT32_MAX, 32, 32, &bytes));
  EXPECT(bytes == (size_t)512 << 24);
  EXPECT_OK(moxie_k_group_scale_bytes(kRows, kK, 3, 32, &bytes));
  EXPECT(bytes == (2 + 3) * 512);
  EXPECT_OK(moxie_blocked_scale_index(33, 5, kK, 32, &index));
  EXPECT(index == 512 + 16 + 4 + 1);
  EXPECT_REFUSED(moxie_blocked_scale_index(33, 8, kK, 32, &index), "column is 8, but k = 256");
  EXPECT_REFUSED(moxie_blocked_scale_bytes(-1, kK, 32, &bytes), "rows is -1");
  EXPECT_REFUSED(moxie_blocked_scale_bytes(1LL << 31, kK, 32, &bytes), "but must be 0 to 2147483647");
  EXPECT_REFUSED(moxie_blocked_scale_bytes(1, INT64_MAX, 32, &bytes), "k is 9223372036854775807");
  EXPECT_REFUSED(moxie_k_group_scale_bytes(-1, 32, 1, 32, &bytes), "rows is -1");
  EXPECT_REFUSED(moxie_k_group_scale_bytes(1, -1, 1, 32, &bytes), "k is -1");
  EXPECT_REFUSED(moxie_k_group_scale_bytes(1, 32, 0, 32, &bytes), "groups is 0");
  EXPECT_REFUSED(moxie_k_group_scale_bytes(1, 32, 1, 8, &bytes), "block is 8, but must be 16 or 32");

  moxie_device* const device = open_device();
  uint8_t plain[kRows * kColumns], blocked[2 * 512], again[kRows * kColumns];
  for (size_t i = 0; i < COUNT(plain); ++i) plain[i] = (uint8_t)(i + 1);
  moxie_scale_blocking b = {.size = sizeof b};
  b.rows = kRows, b.k = kK;
  b.from = uploaded(device, plain, sizeof plain);
  b.to = filled(device, sizeof blocked, 0xff);
  EXPECT_OK(moxie_block_scales(device, &b));
  EXPECT_OK(moxie_device_download(device, blocked, b.to, sizeof blocked, NULL));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) {
      EXPECT_OK(moxie_blocked_scale_index(row, column, kK, 32, &index));
      EXPECT(blocked[index] == plain[row * kColumns + column]);
    }
  }
  b.from = b.to;
  b.to = filled(device, sizeof again, 0);
  EXPECT_OK(moxie_unblock_scales(device, &b));
  EXPECT_OK(moxie_device_download(device, again, b.to, sizeof again, NULL));
  EXPECT(memcmp(plain, again, sizeof plain) == 0);
  moxie_device_release(device);
}

static moxie_gemm_description described(void) {
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.grouping = MOXIE_GROUPING_OFFSETS;
  d.groups.count = 32;
  d.n = 5760, d.k = 2880;
  d.activation.function = MOXIE_ACTIVATION_SWIGLU_OAI;
  return d;
}

/* The tuning of every candidate leads to its kernel, by way of the description. */
static void plan_of_arch(int32_t arch) {
  moxie_gemm_description d = described();
  const moxie_device_figures figures = {.size = sizeof figures, .arch = arch};
  moxie_plan *plan = NULL, *tuned = NULL;
  moxie_plan_info info = {.size = sizeof info}, tuned_info = {.size = sizeof tuned_info};
  EXPECT_OK(moxie_plan_create(&d, &figures, 16384, &plan));
  EXPECT_OK(moxie_plan_get_info(plan, &info));
  EXPECT(strlen(info.kernel) > 10);
  EXPECT(info.arch == (arch == 0 ? 90 : arch));
  /* 512 rows a group lie in the range that is planned for 1024. */
  EXPECT(info.mean_rows == 1024 && info.flops == 2.0 * 1024 * 32 * 5760 * 2880);
  EXPECT(info.predicted_seconds > 0 && info.clock > 1e9 && info.stages >= 2 && info.shared_bytes > 0);
  EXPECT(info.candidate_count > 2 && info.rows_source == MOXIE_ROWS_SOURCE_ASSUMED);
  moxie_plan_candidate chosen = {.size = sizeof chosen};
  EXPECT_OK(moxie_plan_get_candidate(plan, 0, &chosen));
  EXPECT(strcmp(chosen.kernel, info.kernel) == 0 && chosen.possible == 1);
  EXPECT(chosen.cycles > 0 && strlen(chosen.reason) > 0);
  EXPECT_REFUSED(moxie_plan_get_candidate(plan, info.candidate_count, &chosen), "candidates");
  moxie_hopper_tuning hopper = {.size = sizeof hopper};
  moxie_blackwell_tuning blackwell = {.size = sizeof blackwell};
  if (info.arch == 90) {
    EXPECT_REFUSED(moxie_plan_get_blackwell_tuning(plan, 2, &blackwell), "the plan is for sm_90a");
    EXPECT_REFUSED(moxie_plan_get_hopper_tuning(plan, -2, &hopper), "candidate is -2");
    EXPECT_OK(moxie_plan_get_hopper_tuning(plan, MOXIE_CHOSEN, &hopper));
    EXPECT(hopper.size == sizeof hopper && hopper.has_schedule == 1 && hopper.tile_m > 0);
    d.hopper = &hopper;
  } else {
    EXPECT_REFUSED(moxie_plan_get_hopper_tuning(plan, 2, &hopper), "the plan is for sm_100a");
    EXPECT_OK(moxie_plan_get_blackwell_tuning(plan, MOXIE_CHOSEN, &blackwell));
    EXPECT(blackwell.has_tile_source == 1 && blackwell.has_swap_ab == 1 && blackwell.tile_m > 0);
    d.blackwell = &blackwell;
  }
  for (size_t i = 0; i < info.candidate_count; ++i) {
    moxie_plan_candidate candidate = {.size = sizeof candidate};
    EXPECT_OK(moxie_plan_get_candidate(plan, i, &candidate));
    if (!candidate.possible) continue;
    if (d.hopper) EXPECT_OK(moxie_plan_get_hopper_tuning(plan, (int64_t)i, &hopper));
    if (d.blackwell) EXPECT_OK(moxie_plan_get_blackwell_tuning(plan, (int64_t)i, &blackwell));
    EXPECT_OK(moxie_plan_create(&d, &figures, 16384, &tuned));
    EXPECT_OK(moxie_plan_get_info(tuned, &tuned_info));
    EXPECT(strcmp(tuned_info.kernel, candidate.kernel) == 0);
    EXPECT(tuned_info.source == MOXIE_PLAN_SOURCE_CALLER);
    moxie_plan_release(tuned);
  }
  moxie_plan_release(plan);
}

/* Every grouping brings its sizes along, which the plan's operations show. */
static void plan_of_grouping(moxie_grouping grouping, int64_t count, int64_t m, int64_t max_m, double rows) {
  const moxie_device_figures figures = {.size = sizeof figures, .arch = 100};
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.grouping = grouping;
  d.groups.count = count, d.groups.m = m, d.groups.max_m = max_m;
  d.n = 64, d.k = 128;
  moxie_plan* plan = NULL;
  moxie_plan_info info = {.size = sizeof info};
  EXPECT_OK(moxie_plan_create(&d, &figures, MOXIE_NO_TOTAL, &plan));
  EXPECT_OK(moxie_plan_get_info(plan, &info));
  EXPECT(info.flops == 2 * rows * 64 * 128);
  moxie_plan_release(plan);
}

static double seconds_on(moxie_device_figures figures) {
  const moxie_gemm_description d = described();
  moxie_plan* plan = NULL;
  moxie_plan_info info = {.size = sizeof info};
  figures.size = sizeof figures;
  EXPECT_OK(moxie_plan_create(&d, &figures, MOXIE_NO_TOTAL, &plan));
  EXPECT_OK(moxie_plan_get_info(plan, &info));
  moxie_plan_release(plan);
  return info.predicted_seconds;
}

static void plan_of_figures(void) {
  const double usual = seconds_on((moxie_device_figures){.arch = 90});
  EXPECT(seconds_on((moxie_device_figures){.sm_count = 78}) != usual);
  EXPECT(seconds_on((moxie_device_figures){.shared_bytes = 120000}) != usual);
  EXPECT(seconds_on((moxie_device_figures){.l2_bytes = 4 << 20}) != usual);
  EXPECT(seconds_on((moxie_device_figures){.memory_rate = 2e12}) != usual);
  EXPECT(seconds_on((moxie_device_figures){.clock = 1e9}) != usual);
}

/* Sums that follow from the members, and every member that is refused. */
static void costs_of_ranks(void) {
  moxie_gemm_description d = {.size = sizeof d, .n = 4096, .k = 7168};
  d.groups.grouping = MOXIE_GROUPING_DENSE, d.activation.function = MOXIE_ACTIVATION_SWIGLU;
  d.gate = MOXIE_GATE_LAYOUT_SPLIT;
  const moxie_ranked_layer layer = {
      .size = sizeof layer, .up = &d, .tokens = 512, .experts = 256, .ranks = 2, .top_k = 8};
  moxie_rank_costs c = {.size = sizeof c}, other = c;
  EXPECT_OK(moxie_rank_costs_of(&layer, NULL, &c));
  EXPECT(c.combine_bytes == 512 * 4 * 2 * 7168 && c.dispatch > c.dispatch_bytes / 278e9);
  EXPECT(c.sum > 0.999999 * (c.dispatch + c.combine + c.up + c.down + c.around) && c.in_halves > c.sum);
  EXPECT(c.sum < 1.000001 * (c.dispatch + c.combine + c.up + c.down + c.around) && c.up > c.down);
  moxie_ranked_layer near = layer;
  near.windows = 1;
  EXPECT_OK(moxie_rank_costs_of(&near, NULL, &other));
  EXPECT(other.dispatch < c.dispatch && other.up == c.up);
  const double bf16 = other.dispatch_bytes;
  for (near.format = MOXIE_ROW_FORMAT_FP8; near.format <= MOXIE_ROW_FORMAT_MXFP8; ++near.format) {
    EXPECT_OK(moxie_rank_costs_of(&near, NULL, &other));
    EXPECT(other.dispatch_bytes < 0.516 * bf16 && other.dispatch_bytes > 0.515 * bf16);
  }
  moxie_ranked_layer far = layer;
  far.domain = 1;
  EXPECT_OK(moxie_rank_costs_of(&far, NULL, &c));
  const double through_network = c.dispatch_bytes / 45e9;
  EXPECT(c.dispatch > 35e-6 + through_network && c.dispatch < 37e-6 + through_network);
  far.network = 25e9;
  EXPECT_OK(moxie_rank_costs_of(&far, NULL, &other));
  const double longer = (other.dispatch - c.dispatch) / through_network;
  EXPECT(longer > 0.999 && longer < 1.001);
  far.tokens = 1;
  EXPECT_OK(moxie_rank_costs_of(&far, NULL, &other));
  EXPECT(other.in_halves == 0);
  const struct {
    moxie_ranked_layer layer;
    const char* words;
  } kWrong[] = {
      {{.ranks = 0}, "ranks is 0, but must be 1 to 1024"},
      {{.ranks = 257}, "experts is 256, but must be 257 to"},
      {{.ranks = 2, .top_k = 17}, "top_k is 17, but must be 1 to 16"},
      {{.ranks = 2, .tokens = -1}, "tokens is -1, but must be 1 to"},
      {{.ranks = 2, .domain = 3}, "domain is 3, but must be 1 to 2"},
      {{.ranks = 2, .format = 3}, "layer.format is 3, but only 0 to 2 have a meaning"},
      {{.ranks = 2, .windows = 2}, "layer.windows is 2"},
      {{.ranks = 2, .domain = 1, .windows = 1}, "windows is true, but 2 ranks are more than the 1 of an NVLink domain"},
      {{.ranks = 2, .network = -1}, "a rate of links is -0.9, but must be more than 0"},
  };
  for (size_t i = 0; i < COUNT(kWrong); ++i) {
    moxie_ranked_layer wrong = kWrong[i].layer;
    wrong.size = sizeof wrong, wrong.up = &d, wrong.experts = 256;
    if (wrong.tokens == 0) wrong.tokens = 512;
    if (wrong.top_k == 0) wrong.top_k = 8;
    EXPECT_REFUSED(moxie_rank_costs_of(&wrong, NULL, &c), kWrong[i].words);
  }
}

void test_plan(void) {
  costs_of_ranks();
  plan_of_arch(0);
  plan_of_figures();
  plan_of_arch(100);
  plan_of_grouping(MOXIE_GROUPING_DENSE, 0, 10, 0, 10);
  plan_of_grouping(MOXIE_GROUPING_BATCHED, 3, 10, 0, 30);
  plan_of_grouping(MOXIE_GROUPING_K_GROUPS, 4, 10, 0, 10);
  plan_of_grouping(MOXIE_GROUPING_MASKED, 3, 0, 16, 48);
  plan_of_grouping(MOXIE_GROUPING_POINTERS, 3, 0, 16, 48);
  moxie_gemm_description d = described();
  moxie_plan* plan = NULL;
  moxie_plan_info info = {.size = sizeof info};
  EXPECT_OK(moxie_plan_create(&d, NULL, MOXIE_NO_TOTAL, &plan));
  EXPECT_OK(moxie_plan_get_info(plan, &info));
  EXPECT(info.arch == 90 && info.mean_rows == 1024);
  moxie_plan_release(plan);
  int64_t known[32] = {100, 28};
  d.known_rows = known, d.known_row_count = 32;
  EXPECT_OK(moxie_plan_create(&d, NULL, MOXIE_NO_TOTAL, &plan));
  EXPECT_OK(moxie_plan_get_info(plan, &info));
  EXPECT(info.rows_source == MOXIE_ROWS_SOURCE_GIVEN && info.flops == 2.0 * 128 * 5760 * 2880);
  moxie_plan_release(plan);

  /* The plan of a product that is compiled. */
  moxie_device* const device = open_device();
  moxie_grouped_gemm* gemm = NULL;
  moxie_gemm_description small = {.size = sizeof small};
  small.groups.m = 16, small.n = 64, small.k = 64;
  EXPECT_OK(moxie_grouped_gemm_create(device, &small, &gemm));
  moxie_device_release(device); /* the product holds what it needs */
  EXPECT_OK(moxie_grouped_gemm_plan(gemm, MOXIE_NO_TOTAL, &plan));
  moxie_grouped_gemm_release(gemm);
  EXPECT_OK(moxie_plan_get_info(plan, &info));
  EXPECT(info.tiles >= 1 && info.mean_rows == 16 && info.flops == 2.0 * 16 * 64 * 64 && strlen(info.kernel) > 10);
  moxie_plan_release(plan);
}

void test_devices(void) {
  moxie_device* const device = open_device();
  moxie_device_info info = {.size = sizeof info}, listed = {.size = sizeof listed};
  EXPECT_OK(moxie_device_get_info(device, &info));
  EXPECT(info.simulated == 1 && info.sm_count > 0 && info.memory_bytes > 0 && strlen(info.name) > 0);
  EXPECT(info.shared_bytes == 232448 && info.driver_version >= 12000);
  EXPECT(info.l2_bytes > 1e7 && info.memory_rate > 1e12 && info.clock > 1e9);
  EXPECT(strstr(info.driver_path, "libcuda.so.1") != NULL);
  moxie_device_list* list = NULL;
  size_t count = 0;
  bool found = false;
  EXPECT_OK(moxie_device_list_create(&list));
  EXPECT_OK(moxie_device_list_count(list, &count));
  for (size_t i = 0; i < count; ++i) {
    EXPECT_OK(moxie_device_list_get(list, i, &listed));
    found = found || (listed.simulated == 1 && strcmp(listed.name, info.name) == 0);
  }
  EXPECT(found);
  EXPECT_REFUSED(moxie_device_list_get(list, count, &listed), "index is");
  moxie_device_list_release(list);

  /* A handle lives as long as somebody holds it. */
  EXPECT_OK(moxie_device_retain(device));
  moxie_device_release(device);
  void* memory = (void*)1;
  EXPECT_OK(moxie_device_allocate(device, 0, &memory));
  EXPECT(memory == NULL);
  EXPECT_OK(moxie_device_free(device, NULL));
  EXPECT_FAILS(moxie_device_allocate(device, SIZE_MAX / 2, &memory), MOXIE_ERROR_OUT_OF_MEMORY, "");
  EXPECT_OK(moxie_device_allocate(device, 1000, &memory));
  EXPECT((uintptr_t)memory % 256 == 0);
  char text[1000] = "hello";
  EXPECT_OK(moxie_device_upload(device, memory, text, sizeof text, NULL));
  EXPECT_OK(moxie_device_fill(device, (char*)memory + 1, 'x', 2, NULL));
  EXPECT_OK(moxie_device_download(device, text, memory, sizeof text, NULL));
  EXPECT(strcmp(text, "hxxlo") == 0);
  EXPECT_OK(moxie_device_synchronize(device, NULL));
  moxie_device_release(device);
  /* With the last holder goes what was allocated. */
  moxie_device* const again = open_device();
  EXPECT_FAILS(moxie_device_download(again, text, memory, sizeof text, NULL), MOXIE_ERROR_DRIVER, "");
  moxie_device_release(again);

  moxie_device* none = NULL;
  EXPECT_FAILS(moxie_device_open(MOXIE_DEVICE_KIND_SIM, 99, &none), MOXIE_ERROR_DRIVER, "99");
  EXPECT(none == NULL);
}

#define EXPECT_NAMES(prefix, count)                          \
  do {                                                       \
    for (int32_t i_ = 0; i_ < (count); ++i_) {               \
      int32_t value_ = -1;                                   \
      EXPECT_OK(prefix##_parse(prefix##_name(i_), &value_)); \
      EXPECT(value_ == i_);                                  \
    }                                                        \
    EXPECT(strcmp(prefix##_name(count), "?") == 0);          \
    EXPECT(strcmp(prefix##_name(-1), "?") == 0);             \
  } while (0)

void test_names(void) {
  EXPECT(strcmp(moxie_version(), MOXIE_VERSION) == 0);
  EXPECT_NAMES(moxie_grouping, 7);
  EXPECT_NAMES(moxie_activation, 12);
  EXPECT_NAMES(moxie_gate_layout, 3);
  EXPECT_NAMES(moxie_data_type, 5);
  EXPECT_NAMES(moxie_operand_format, 3);
  EXPECT_NAMES(moxie_warp_schedule, 2);
  EXPECT_NAMES(moxie_tile_source, 2);
  EXPECT_NAMES(moxie_multicast, 4);
  EXPECT_NAMES(moxie_router_score, 2);
  EXPECT_NAMES(moxie_id_type, 2);
  EXPECT_NAMES(moxie_scale_layout, 2);
  EXPECT_NAMES(moxie_row_format, 3);
  EXPECT_NAMES(moxie_result_format, 3);
  EXPECT_NAMES(moxie_layer_part, 4);
  EXPECT_NAMES(moxie_device_kind, 3);
  EXPECT_NAMES(moxie_plan_source, 3);
  EXPECT(strcmp(moxie_grouping_name(MOXIE_GROUPING_ROW_GROUPS), "row-groups") == 0);
  EXPECT(strcmp(moxie_activation_name(MOXIE_ACTIVATION_SWIGLU_OAI), "swiglu-oai") == 0);
  moxie_data_type type = 77;
  EXPECT_REFUSED(moxie_data_type_parse("int8", &type), "'int8', but must be one of: bf16, f32, mxfp4, mxfp8, nvfp4");
  EXPECT(type == 77);
  EXPECT(strcmp(moxie_status_name(MOXIE_OK), "Ok") == 0);
  EXPECT(strcmp(moxie_status_name(MOXIE_ERROR_INVALID_ARGUMENT), "InvalidArgument") == 0);
  EXPECT(strcmp(moxie_status_name(MOXIE_ERROR_OUT_OF_MEMORY), "OutOfMemory") == 0);
  EXPECT(strcmp(moxie_status_name(MOXIE_ERROR_PEER), "Peer") == 0);
  EXPECT(strcmp(moxie_status_name(MOXIE_ERROR_INTERNAL), "Internal") == 0);
  EXPECT(strcmp(moxie_status_name(7), "?") == 0 && strcmp(moxie_status_name(INT32_MIN), "?") == 0);
}

/* A pack of one kernel, and the table of measured kernels. */
void test_pack(void) {
  char folder[] = "/tmp/moxie-c-XXXXXX", path[64], command[64];
  EXPECT(mkdtemp(folder) != NULL);
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.m = 64, d.n = 64, d.k = 64;
  const moxie_gemm_description* const twice[] = {&d, &d};
  const moxie_pack_options options = {.size = sizeof options, .image = MOXIE_PACK_IMAGE_PTX, .threads = 1};
  moxie_pack_result result = {.size = sizeof result};
  EXPECT_OK(moxie_pack(twice, 2, folder, &options, &result));
  EXPECT(result.kernels == 1 && result.compiled == 1 && result.bytes > 0);
  EXPECT_OK(moxie_pack(twice, 1, folder, &options, &result));
  EXPECT(result.kernels == 1 && result.compiled == 0);
  const moxie_gemm_description* const none[] = {&d, NULL};
  EXPECT_REFUSED(moxie_pack(none, 2, folder, &options, &result), "descriptions[1] is null");

  static const char kLine[] = "offsets 5760 2880 0 24 gated pingpong 64x192 a";
  snprintf(path, sizeof path, "%s/tuned", folder);
  FILE* const file = fopen(path, "w");
  EXPECT(file != NULL && fprintf(file, "# measured\n%s\n", kLine) > 0);
  fclose(file);
  moxie_tuned_table* table = NULL;
  size_t count = 0, length = 0;
  moxie_tuned_hopper row = {.size = sizeof row};
  char text[64];
  EXPECT_OK(moxie_tuned_table_read(path, &table));
  EXPECT_OK(moxie_tuned_table_count(table, &count));
  EXPECT(count == 1);
  EXPECT_OK(moxie_tuned_table_get(table, 0, &row));
  EXPECT_REFUSED(moxie_tuned_table_get(table, 1, &row), "index is 1");
  moxie_tuned_table_release(table);
  EXPECT(row.n == 5760 && row.rows_to == 24 && row.gated == 1 && row.multicast == MOXIE_MULTICAST_A);
  EXPECT_OK(moxie_tuned_line(&row, text, sizeof text, &length));
  EXPECT(strcmp(text, kLine) == 0 && length == strlen(kLine));
  EXPECT_OK(moxie_tuned_line(&row, text, 8, &length));
  EXPECT(strcmp(text, "offsets") == 0 && length == strlen(kLine));
  EXPECT_OK(moxie_tuned_line(&row, NULL, 0, &length));
  moxie_tuned_hopper wrong = row;
  wrong.grouping = 7;
  EXPECT_REFUSED(moxie_tuned_line(&wrong, NULL, 0, &length), "row.grouping is 7, but only 0 to 6 have a meaning");
  wrong = row, wrong.gated = 2;
  EXPECT_REFUSED(moxie_tuned_line(&wrong, NULL, 0, &length), "row.gated is 2, but must be 0 or 1");
  wrong = row, wrong.schedule = 2;
  EXPECT_REFUSED(moxie_tuned_line(&wrong, NULL, 0, &length), "row.schedule is 2, but only 0 to 1 have a meaning");
  wrong = row, wrong.multicast = -1;
  EXPECT_REFUSED(moxie_tuned_line(&wrong, NULL, 0, &length), "row.multicast is -1, but only 0 to 3 have a meaning");
  EXPECT_REFUSED(moxie_tuned_table_read("/no/such/file", &table), "/no/such/file");
  snprintf(command, sizeof command, "rm -r %s", folder);
  EXPECT(system(command) == 0);
}
