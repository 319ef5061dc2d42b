// SPDX-License-Identifier: Apache-2.0
/* What every function of moxie/c.h promises: sizes of older and newer callers, null pointers, sentences, threads. */
#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

#include "harness.h"

static moxie_gemm_description small_description(moxie_grouping grouping) {
  moxie_gemm_description d = {.size = sizeof d};
  d.groups.grouping = grouping;
  if (grouping != MOXIE_GROUPING_DENSE) d.groups.count = 2;
  d.n = 64, d.k = 64;
  return d;
}

static moxie_expert_layer_description small_layer(void) {
  moxie_expert_layer_description d = {.size = sizeof d, .experts = 4, .hidden = 64, .width = 64, .top_k = 2};
  d.activation.function = MOXIE_ACTIVATION_SWIGLU;
  return d;
}

/* What the functions that take a structure need besides: products without rows, which launch nothing. */
static struct {
  moxie_device* device;
  moxie_grouped_gemm *dense, *pointers;
  moxie_expert_layer* layer;
  moxie_plan *hopper_plan, *blackwell_plan;
  moxie_tuned_table* table;
  moxie_gemm_description description;
  char folder[32];
} world;

static void make_world(void) {
  world.device = open_device();
  world.description = small_description(MOXIE_GROUPING_DENSE);
  const moxie_gemm_description pointers = small_description(MOXIE_GROUPING_POINTERS);
  EXPECT_OK(moxie_grouped_gemm_create(world.device, &world.description, &world.dense));
  EXPECT_OK(moxie_grouped_gemm_create(world.device, &pointers, &world.pointers));
  const moxie_expert_layer_description layer = small_layer();
  EXPECT_OK(moxie_expert_layer_create(world.device, &layer, &world.layer));
  world.description.groups.m = 64;
  const moxie_device_figures blackwell = {.size = sizeof blackwell, .arch = 100};
  EXPECT_OK(moxie_plan_create(&world.description, NULL, MOXIE_NO_TOTAL, &world.hopper_plan));
  EXPECT_OK(moxie_plan_create(&world.description, &blackwell, MOXIE_NO_TOTAL, &world.blackwell_plan));
  strcpy(world.folder, "/tmp/moxie-c-XXXXXX");
  EXPECT(mkdtemp(world.folder) != NULL);
  char path[64];
  snprintf(path, sizeof path, "%s/tuned", world.folder);
  FILE* const file = fopen(path, "w");
  EXPECT(file != NULL && fputs("offsets 5760 2880 0 24 gated pingpong 64x192 a\n", file) >= 0);
  fclose(file);
  EXPECT_OK(moxie_tuned_table_read(path, &world.table));
}

static void end_world(void) {
  moxie_tuned_table_release(world.table);
  moxie_plan_release(world.hopper_plan);
  moxie_plan_release(world.blackwell_plan);
  moxie_grouped_gemm_release(world.dense);
  moxie_grouped_gemm_release(world.pointers);
  moxie_expert_layer_release(world.layer);
  moxie_device_release(world.device);
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", world.folder);
  EXPECT(system(command) == 0);
}

static moxie_status plan_with(const moxie_gemm_description* d, int32_t arch) {
  const moxie_device_figures figures = {.size = sizeof figures, .arch = arch};
  moxie_plan* plan = NULL;
  const moxie_status status = moxie_plan_create(d, &figures, MOXIE_NO_TOTAL, &plan);
  moxie_plan_release(plan);
  return status;
}

static moxie_status give_hopper(void* s) {
  moxie_gemm_description d = world.description;
  d.hopper = s;
  return plan_with(&d, 90);
}
static moxie_status give_blackwell(void* s) {
  moxie_gemm_description d = world.description;
  d.blackwell = s;
  return plan_with(&d, 100);
}
static moxie_status give_sink(void* s) {
  moxie_gemm_description d = world.description;
  const moxie_custom_sink* const sinks[] = {s};
  d.sinks = sinks, d.sink_count = 1;
  return plan_with(&d, 90);
}
static moxie_status give_description(void* s) { return plan_with(s, 90); }
static moxie_status give_figures(void* s) {
  moxie_plan* plan = NULL;
  const moxie_status status = moxie_plan_create(&world.description, s, MOXIE_NO_TOTAL, &plan);
  moxie_plan_release(plan);
  return status;
}
static moxie_status give_ranked_layer(void* s) {
  moxie_rank_costs costs = {.size = sizeof costs};
  return moxie_rank_costs_of(s, NULL, &costs);
}
static moxie_status give_tensors(void* s) { return moxie_grouped_gemm_run(world.dense, s, NULL, 0, NULL); }
static moxie_status give_pointers(void* s) { return moxie_grouped_gemm_run_pointers(world.pointers, s, NULL, 0, NULL); }
static moxie_status give_options(void* s) {
  const moxie_gemm_tensors tensors = {.size = sizeof tensors};
  return moxie_grouped_gemm_run(world.dense, &tensors, NULL, 0, s);
}
static moxie_status give_blocking(void* s) { return moxie_block_scales(world.device, s); }
static moxie_status give_quantization(void* s) {
  size_t bytes = 0;
  return moxie_scale_bytes(s, &bytes);
}
static moxie_status give_dequantization(void* s) { return moxie_dequantize(world.device, s); }
static moxie_status give_packing(void* s) { return moxie_pack_weights(world.device, s); }
static moxie_status give_unpacking(void* s) { return moxie_unpack_weights(world.device, s); }
static moxie_status give_routing(void* s) { return moxie_route(world.device, s, NULL); }
static moxie_status give_sort(void* s) { return moxie_sort_by_expert(world.device, s, NULL, 0, NULL); }
static moxie_status give_permutation(void* s) { return moxie_permute(world.device, s, NULL); }
static moxie_status give_combination(void* s) { return moxie_combine(world.device, s, NULL); }
static moxie_status give_layer(void* s) {
  moxie_expert_layer* layer = NULL;
  const moxie_status status = moxie_expert_layer_create(world.device, s, &layer);
  moxie_expert_layer_release(layer);
  return status;
}
static moxie_status give_router(void* s) {
  moxie_expert_layer_description d = small_layer();
  d.router = s;
  return give_layer(&d);
}
static moxie_status give_ranks(void* s) {
  moxie_expert_layer_description d = small_layer();
  d.max_tokens = 1;
  d.ranks = s;
  return give_layer(&d);
}
static moxie_status give_layer_tensors(void* s) { return moxie_expert_layer_run(world.layer, s, NULL, 0, NULL); }
static moxie_status give_pack_options(void* s) { return moxie_pack(NULL, 0, world.folder, s, NULL); }
static moxie_status give_row(void* s) {
  size_t length = 0;
  return moxie_tuned_line(s, NULL, 0, &length);
}

static moxie_status fill_device_info(void* s) { return moxie_device_get_info(world.device, s); }
static moxie_status fill_plan_info(void* s) { return moxie_plan_get_info(world.hopper_plan, s); }
static moxie_status fill_candidate(void* s) { return moxie_plan_get_candidate(world.hopper_plan, 0, s); }
static moxie_status fill_hopper(void* s) { return moxie_plan_get_hopper_tuning(world.hopper_plan, MOXIE_CHOSEN, s); }
static moxie_status fill_blackwell(void* s) {
  return moxie_plan_get_blackwell_tuning(world.blackwell_plan, MOXIE_CHOSEN, s);
}
static moxie_status fill_rank_costs(void* s) {
  const moxie_ranked_layer layer = {
      .size = sizeof layer, .up = &world.description, .tokens = 4, .experts = 8, .ranks = 2, .top_k = 2};
  return moxie_rank_costs_of(&layer, NULL, s);
}
static moxie_status fill_pack_result(void* s) { return moxie_pack(NULL, 0, world.folder, NULL, s); }
static moxie_status fill_row(void* s) { return moxie_tuned_table_get(world.table, 0, s); }

/* A caller's structure in a buffer whose other bytes no call may read or write. */
static unsigned char buffer[1024];

static void place(const void* from, size_t bytes, size_t size, int rest) {
  memset(buffer, rest, sizeof buffer);
  memcpy(buffer, from, bytes);
  memcpy(buffer, &size, sizeof size);
}

/* The sizes that are none, of a structure of `known` bytes whose first `required` every version has. `name` is what
 * sentences call it. */
static void expect_wrong_sizes(const char* name, moxie_status (*call)(void*), const void* from, size_t required,
                               size_t known) {
  char begin[64];
  snprintf(begin, sizeof begin, "%s.size is 0, but must be sizeof(moxie_", name);
  place(from, known, 0, 0xff);
  EXPECT_REFUSED(call(buffer), begin);
  EXPECT(strncmp(moxie_last_error(), begin, strlen(begin)) == 0);
  for (size_t size = 1; size < known; ++size) {
    if (size >= required && size % 8 == 0) continue;
    place(from, known, size, 0xff);
    EXPECT_REFUSED(call(buffer), "and a multiple of 8");
  }
  place(from, known, SIZE_MAX, 0xff);
  EXPECT_REFUSED(call(buffer), ".size is 18446744073709551615");
}

/* What the caller fills. Bytes past its size are not 0, so that a call which reads them is refused. */
static void expect_taken(const char* name, moxie_status (*call)(void*), const void* from, size_t required,
                         size_t known) {
  expect_wrong_sizes(name, call, from, required, known);
  for (size_t size = (required + 7) / 8 * 8; size <= known; size += 8) {
    place(from, size, size, 0xff);
    EXPECT_OK(call(buffer));
  }
  /* A newer caller, that asks for nothing new, and one that does. */
  place(from, known, known + 16, 0);
  EXPECT_OK(call(buffer));
  buffer[known + 9] = 1;
  EXPECT_FAILS(call(buffer), MOXIE_ERROR_UNSUPPORTED, "that is not 0, but this version of the library");
  char end[64];
  snprintf(end, sizeof end, ", knows only the first %zu bytes of moxie_", known);
  EXPECT(strstr(moxie_last_error(), end) != NULL);
}

/* What the library fills: as many bytes as the caller has. */
static void expect_filled(const char* name, moxie_status (*call)(void*), size_t known) {
  static const unsigned char kZeros[512];
  expect_wrong_sizes(name, call, kZeros, sizeof(size_t), known);
  place(&known, sizeof known, known, 0xee);
  EXPECT_OK(call(buffer));
  unsigned char whole[512];
  memcpy(whole, buffer, known);
  for (size_t size = 8; size <= known + 16; size += 8) {
    place(&size, sizeof size, size, 0xee);
    EXPECT_OK(call(buffer));
    EXPECT(memcmp(buffer, &size, sizeof size) == 0);
    for (size_t i = 8; i < sizeof buffer; ++i) EXPECT(buffer[i] == (i >= size ? 0xee : i >= known ? 0 : whole[i]));
  }
}

#define END(type, member) (offsetof(type, member) + sizeof(((type*)0)->member))

void test_sizes(void) {
  make_world();
  const moxie_hopper_tuning hopper = {.size = 0};
  const moxie_blackwell_tuning blackwell = {.size = 0};
  const moxie_custom_sink sink = {.type = "Sink", .source = "struct Sink;", .param_bytes = 8};
  const moxie_device_figures figures = {.size = 0};
  const moxie_gemm_tensors tensors = {.size = 0};
  const moxie_group_pointers pointers = {.size = 0};
  const moxie_launch_options options = {.size = 0};
  const moxie_scale_blocking blocking = {.k = 64};
  const moxie_quantization quantization = {.format = MOXIE_DATA_TYPE_MXFP4, .rows = 128, .k = 64};
  const moxie_dequantization dequantization = {.format = MOXIE_DATA_TYPE_MXFP4, .k = 64};
  const moxie_weight_packing packing = {.n = 0, .k = 64};
  const moxie_weight_unpacking unpacking = {.n = 0, .k = 64};
  const moxie_expert_routing routing = {.experts = 8, .top_k = 2};
  const moxie_expert_sort sort = {.experts = 8, .top_k = 2, .ends = filled(world.device, 32, 0)};
  const moxie_expert_permutation permutation = {.width = 8, .top_k = 2};
  const moxie_expert_combination combination = {.width = 8, .top_k = 2};
  const moxie_expert_layer_description layer = small_layer();
  const moxie_router_description router = {.logits_type = MOXIE_DATA_TYPE_F32};
  const moxie_rank_description ranks = {.ranks = 1};
  const moxie_expert_layer_tensors layer_tensors = {.tokens = 0};
  const moxie_ranked_layer ranked = {.up = &world.description, .tokens = 1, .experts = 2, .ranks = 2, .top_k = 1};
  const moxie_pack_options pack = {.size = 0};
  const moxie_tuned_hopper row = {.size = 0};
  expect_taken("hopper", give_hopper, &hopper, 8, sizeof hopper);
  static unsigned char large[65544]; /* more than 64 KiB is a size that was never set */
  size_t size = 65536;
  memcpy(large, &size, sizeof size);
  EXPECT_OK(give_hopper(large));
  size += 8;
  memcpy(large, &size, sizeof size);
  EXPECT_REFUSED(give_hopper(large), "hopper.size is 65544");
  expect_taken("blackwell", give_blackwell, &blackwell, 8, sizeof blackwell);
  expect_taken("sinks[0]", give_sink, &sink, END(moxie_custom_sink, param_bytes), sizeof sink);
  expect_taken("description", give_description, &world.description, END(moxie_gemm_description, k),
               sizeof world.description);
  expect_taken("figures", give_figures, &figures, 8, sizeof figures);
  expect_taken("tensors", give_tensors, &tensors, END(moxie_gemm_tensors, out), sizeof tensors);
  expect_taken("tensors", give_pointers, &pointers, END(moxie_group_pointers, sizes), sizeof pointers);
  expect_taken("options", give_options, &options, END(moxie_launch_options, stream), sizeof options);
  expect_taken("arguments", give_blocking, &blocking, END(moxie_scale_blocking, k), sizeof blocking);
  expect_taken("arguments", give_quantization, &quantization, END(moxie_quantization, k), sizeof quantization);
  expect_taken("arguments", give_dequantization, &dequantization, END(moxie_dequantization, k), sizeof dequantization);
  expect_taken("arguments", give_packing, &packing, END(moxie_weight_packing, k), sizeof packing);
  expect_taken("arguments", give_unpacking, &unpacking, END(moxie_weight_unpacking, k), sizeof unpacking);
  expect_taken("arguments", give_routing, &routing, END(moxie_expert_routing, logits_type), sizeof routing);
  expect_taken("arguments", give_sort, &sort, END(moxie_expert_sort, id_type), sizeof sort);
  expect_taken("arguments", give_permutation, &permutation, END(moxie_expert_permutation, type), sizeof permutation);
  expect_taken("arguments", give_combination, &combination, END(moxie_expert_combination, reserved),
               sizeof combination);
  expect_taken("description", give_layer, &layer, END(moxie_expert_layer_description, top_k), sizeof layer);
  expect_taken("router", give_router, &router, END(moxie_router_description, logits_type), sizeof router);
  expect_taken("ranks", give_ranks, &ranks, END(moxie_rank_description, rank), sizeof ranks);
  expect_taken("tensors", give_layer_tensors, &layer_tensors, END(moxie_expert_layer_tensors, out),
               sizeof layer_tensors);
  expect_taken("layer", give_ranked_layer, &ranked, END(moxie_ranked_layer, top_k), sizeof ranked);
  expect_taken("options", give_pack_options, &pack, 8, sizeof pack);
  expect_taken("row", give_row, &row, 8, sizeof row);
  expect_filled("info", fill_device_info, sizeof(moxie_device_info));
  expect_filled("info", fill_plan_info, sizeof(moxie_plan_info));
  expect_filled("candidate", fill_candidate, sizeof(moxie_plan_candidate));
  expect_filled("tuning", fill_hopper, sizeof(moxie_hopper_tuning));
  expect_filled("tuning", fill_blackwell, sizeof(moxie_blackwell_tuning));
  expect_filled("costs", fill_rank_costs, sizeof(moxie_rank_costs));
  expect_filled("result", fill_pack_result, sizeof(moxie_pack_result));
  expect_filled("row", fill_row, sizeof(moxie_tuned_hopper));
  end_world();
}

/* Every pointer of every function that may not be null. */
void test_nulls(void) {
  make_world();
  moxie_device* device = NULL;
  moxie_grouped_gemm* gemm = NULL;
  moxie_plan *plan = NULL, *down = NULL;
  const moxie_gemm_tensors tensors = {.size = sizeof tensors};
  const moxie_group_pointers pointers = {.size = sizeof pointers};
  const moxie_quantization quantization = {.size = sizeof quantization, .format = MOXIE_DATA_TYPE_MXFP4, .k = 64};
  const moxie_scale_blocking blocking = {.size = sizeof blocking};
  const moxie_dequantization dequantization = {.size = sizeof dequantization, .format = MOXIE_DATA_TYPE_MXFP4};
  moxie_device_info info = {.size = sizeof info};
  moxie_plan_info plan_info = {.size = sizeof plan_info};
  moxie_plan_candidate candidate = {.size = sizeof candidate};
  moxie_hopper_tuning hopper = {.size = sizeof hopper};
  moxie_blackwell_tuning blackwell = {.size = sizeof blackwell};
  moxie_tuned_hopper row = {.size = sizeof row};
  char text[8];
  size_t number = 0;
  int64_t rows = 0;
  int32_t value = 0;
  float* const to = filled(world.device, 4, 0);

  EXPECT_REFUSED(moxie_device_open(MOXIE_DEVICE_KIND_SIM, 0, NULL), "device is null");
  EXPECT_REFUSED(moxie_device_retain(NULL), "device is null");
  EXPECT_REFUSED(moxie_device_get_info(NULL, &info), "device is null");
  EXPECT_REFUSED(moxie_device_get_info(world.device, NULL), "info is null");
  EXPECT_REFUSED(moxie_device_list_create(NULL), "list is null");
  EXPECT_REFUSED(moxie_device_list_count(NULL, &number), "list is null");
  EXPECT_REFUSED(moxie_device_list_get(NULL, 0, &info), "list is null");
  moxie_device_list* list = NULL;
  EXPECT_OK(moxie_device_list_create(&list));
  EXPECT_REFUSED(moxie_device_list_count(list, NULL), "count is null");
  EXPECT_REFUSED(moxie_device_list_get(list, 0, NULL), "info is null");
  moxie_device_list_release(list);
  EXPECT_REFUSED(moxie_device_allocate(NULL, 8, (void**)&device), "device is null");
  EXPECT_REFUSED(moxie_device_allocate(world.device, 8, NULL), "device_pointer is null");
  EXPECT_REFUSED(moxie_device_free(NULL, NULL), "device is null");
  EXPECT_REFUSED(moxie_device_upload(NULL, to, text, 4, NULL), "device is null");
  EXPECT_REFUSED(moxie_device_upload(world.device, NULL, text, 4, NULL), "to_device is null");
  EXPECT_REFUSED(moxie_device_upload(world.device, to, NULL, 4, NULL), "from_host is null");
  EXPECT_REFUSED(moxie_device_download(NULL, text, to, 4, NULL), "device is null");
  EXPECT_REFUSED(moxie_device_download(world.device, NULL, to, 4, NULL), "to_host is null");
  EXPECT_REFUSED(moxie_device_download(world.device, text, NULL, 4, NULL), "from_device is null");
  EXPECT_REFUSED(moxie_device_fill(NULL, to, 0, 4, NULL), "device is null");
  EXPECT_REFUSED(moxie_device_fill(world.device, NULL, 0, 4, NULL), "device_pointer is null");
  EXPECT_REFUSED(moxie_device_synchronize(NULL, NULL), "device is null");

  EXPECT_REFUSED(moxie_grouped_gemm_create(NULL, &world.description, &gemm), "device is null");
  EXPECT_REFUSED(moxie_grouped_gemm_create(world.device, NULL, &gemm), "description is null");
  EXPECT_REFUSED(moxie_grouped_gemm_create(world.device, &world.description, NULL), "gemm is null");
  EXPECT_REFUSED(moxie_grouped_gemm_run(NULL, &tensors, NULL, 0, NULL), "gemm is null");
  EXPECT_REFUSED(moxie_grouped_gemm_run(world.dense, NULL, NULL, 0, NULL), "tensors is null");
  EXPECT_REFUSED(moxie_grouped_gemm_run_pointers(NULL, &pointers, NULL, 0, NULL), "gemm is null");
  EXPECT_REFUSED(moxie_grouped_gemm_run_pointers(world.pointers, NULL, NULL, 0, NULL), "tensors is null");
  EXPECT_REFUSED(moxie_grouped_gemm_workspace_bytes(NULL, 0, &number), "gemm is null");
  EXPECT_REFUSED(moxie_grouped_gemm_workspace_bytes(world.dense, 0, NULL), "bytes is null");
  EXPECT_REFUSED(moxie_grouped_gemm_row_alignment(NULL, &rows), "gemm is null");
  EXPECT_REFUSED(moxie_grouped_gemm_row_alignment(world.dense, NULL), "rows is null");
  EXPECT_REFUSED(moxie_grouped_gemm_plan(NULL, MOXIE_NO_TOTAL, &plan), "gemm is null");
  EXPECT_REFUSED(moxie_grouped_gemm_plan(world.dense, MOXIE_NO_TOTAL, NULL), "plan is null");

  EXPECT_REFUSED(moxie_plan_create(NULL, NULL, MOXIE_NO_TOTAL, &plan), "description is null");
  EXPECT_REFUSED(moxie_plan_create(&world.description, NULL, MOXIE_NO_TOTAL, NULL), "plan is null");
  EXPECT_REFUSED(moxie_plan_get_info(NULL, &plan_info), "plan is null");
  EXPECT_REFUSED(moxie_plan_get_info(world.hopper_plan, NULL), "info is null");
  EXPECT_REFUSED(moxie_plan_get_candidate(NULL, 0, &candidate), "plan is null");
  EXPECT_REFUSED(moxie_plan_get_candidate(world.hopper_plan, 0, NULL), "candidate is null");
  EXPECT_REFUSED(moxie_plan_get_hopper_tuning(NULL, MOXIE_CHOSEN, &hopper), "plan is null");
  EXPECT_REFUSED(moxie_plan_get_hopper_tuning(world.hopper_plan, MOXIE_CHOSEN, NULL), "tuning is null");
  EXPECT_REFUSED(moxie_plan_get_blackwell_tuning(NULL, MOXIE_CHOSEN, &blackwell), "plan is null");
  EXPECT_REFUSED(moxie_plan_get_blackwell_tuning(world.blackwell_plan, MOXIE_CHOSEN, NULL), "tuning is null");
  const moxie_ranked_layer ranked = {.size = sizeof ranked};
  moxie_rank_costs costs = {.size = sizeof costs};
  EXPECT_REFUSED(moxie_rank_costs_of(NULL, NULL, &costs), "layer is null");
  EXPECT_REFUSED(moxie_rank_costs_of(&ranked, NULL, NULL), "costs is null");
  EXPECT_REFUSED(moxie_rank_costs_of(&ranked, NULL, &costs), "layer.up is null");

  moxie_status (*const scale_bytes[])(const moxie_gemm_description*, int64_t, size_t*) = {
      moxie_a_scale_bytes, moxie_b_scale_bytes, moxie_pre_scale_bytes, moxie_out_scale_bytes};
  for (size_t i = 0; i < COUNT(scale_bytes); ++i) {
    EXPECT_REFUSED(scale_bytes[i](NULL, MOXIE_NO_TOTAL, &number), "description is null");
    EXPECT_REFUSED(scale_bytes[i](&world.description, MOXIE_NO_TOTAL, NULL), "bytes is null");
  }
  EXPECT_REFUSED(moxie_blocked_scale_bytes(1, 32, 32, NULL), "bytes is null");
  EXPECT_REFUSED(moxie_blocked_scale_index(0, 0, 32, 32, NULL), "index is null");
  EXPECT_REFUSED(moxie_k_group_scale_bytes(1, 32, 1, 32, NULL), "bytes is null");
  EXPECT_REFUSED(moxie_block_scales(NULL, &blocking), "device is null");
  EXPECT_REFUSED(moxie_block_scales(world.device, NULL), "arguments is null");
  EXPECT_REFUSED(moxie_unblock_scales(NULL, &blocking), "device is null");
  EXPECT_REFUSED(moxie_unblock_scales(world.device, NULL), "arguments is null");
  EXPECT_REFUSED(moxie_scale_bytes(NULL, &number), "arguments is null");
  EXPECT_REFUSED(moxie_scale_bytes(&quantization, NULL), "bytes is null");
  EXPECT_REFUSED(moxie_quantize(NULL, &quantization), "device is null");
  EXPECT_REFUSED(moxie_quantize(world.device, NULL), "arguments is null");
  EXPECT_REFUSED(moxie_dequantize(NULL, &dequantization), "device is null");
  EXPECT_REFUSED(moxie_dequantize(world.device, NULL), "arguments is null");
  EXPECT_REFUSED(moxie_find_tensor_scale(NULL, &quantization, to), "device is null");
  EXPECT_REFUSED(moxie_find_tensor_scale(world.device, NULL, to), "arguments is null");
  EXPECT_REFUSED(moxie_find_tensor_scale(world.device, &quantization, NULL), "to is null");

  const moxie_weight_packing packing = {.size = sizeof packing};
  const moxie_weight_unpacking unpacking = {.size = sizeof unpacking};
  EXPECT_REFUSED(moxie_packed_weight_bytes(1, 8, 32, NULL), "bytes is null");
  EXPECT_REFUSED(moxie_pack_weights(NULL, &packing), "device is null");
  EXPECT_REFUSED(moxie_pack_weights(world.device, NULL), "arguments is null");
  EXPECT_REFUSED(moxie_unpack_weights(NULL, &unpacking), "device is null");
  EXPECT_REFUSED(moxie_unpack_weights(world.device, NULL), "arguments is null");

  const moxie_expert_routing routing = {.size = sizeof routing, .experts = 8, .top_k = 2};
  const moxie_expert_sort sort = {.size = sizeof sort, .experts = 8, .top_k = 2};
  const moxie_expert_permutation permutation = {.size = sizeof permutation, .top_k = 2};
  const moxie_expert_combination combination = {.size = sizeof combination, .top_k = 2};
  EXPECT_REFUSED(moxie_route(NULL, &routing, NULL), "device is null");
  EXPECT_REFUSED(moxie_route(world.device, NULL, NULL), "arguments is null");
  EXPECT_REFUSED(moxie_sort_by_expert(NULL, &sort, NULL, 0, NULL), "device is null");
  EXPECT_REFUSED(moxie_sort_by_expert(world.device, NULL, NULL, 0, NULL), "arguments is null");
  EXPECT_REFUSED(moxie_permute(NULL, &permutation, NULL), "device is null");
  EXPECT_REFUSED(moxie_permute(world.device, NULL, NULL), "arguments is null");
  EXPECT_REFUSED(moxie_combine(NULL, &combination, NULL), "device is null");
  EXPECT_REFUSED(moxie_combine(world.device, NULL, NULL), "arguments is null");
  EXPECT_REFUSED(moxie_sort_workspace_bytes(1, 1, 1, NULL), "bytes is null");

  const moxie_expert_layer_description described = small_layer();
  const moxie_expert_layer_tensors layer_tensors = {.size = sizeof layer_tensors};
  moxie_expert_layer* layer = NULL;
  EXPECT_REFUSED(moxie_expert_layer_create(NULL, &described, &layer), "device is null");
  EXPECT_REFUSED(moxie_expert_layer_create(world.device, NULL, &layer), "description is null");
  EXPECT_REFUSED(moxie_expert_layer_create(world.device, &described, NULL), "layer is null");
  EXPECT_REFUSED(moxie_expert_layer_run(NULL, &layer_tensors, NULL, 0, NULL), "layer is null");
  EXPECT_REFUSED(moxie_expert_layer_run(world.layer, NULL, NULL, 0, NULL), "tensors is null");
  EXPECT_REFUSED(moxie_expert_layer_run_part(NULL, 0, &layer_tensors, NULL, 0, NULL), "layer is null");
  EXPECT_REFUSED(moxie_expert_layer_run_part(world.layer, 0, NULL, NULL, 0, NULL), "tensors is null");
  EXPECT_REFUSED(moxie_expert_layer_run_part(world.layer, 4, &layer_tensors, NULL, 0, NULL),
                 "part is 4, but only 0 to 3 have a meaning");
  EXPECT_REFUSED(moxie_expert_layer_run_part(world.layer, MOXIE_LAYER_PART_SUM, &layer_tensors, NULL, 0, NULL),
                 "part is sum, but the description has no ranks");
  EXPECT_REFUSED(moxie_expert_layer_workspace_bytes(NULL, 0, &number), "layer is null");
  EXPECT_REFUSED(moxie_expert_layer_workspace_bytes(world.layer, 0, NULL), "bytes is null");
  EXPECT_REFUSED(moxie_expert_layer_window_bytes(NULL, &number), "layer is null");
  EXPECT_REFUSED(moxie_expert_layer_window_bytes(world.layer, NULL), "bytes is null");
  EXPECT_REFUSED(moxie_expert_layer_prepare_window(NULL, to, NULL), "layer is null");
  EXPECT_REFUSED(moxie_expert_layer_check_ranks(NULL, to, NULL), "layer is null");
  EXPECT_REFUSED(moxie_expert_layer_plan(NULL, 0, &plan, &down), "layer is null");
  EXPECT_REFUSED(moxie_expert_layer_plan(world.layer, 0, NULL, &down), "up is null");
  EXPECT_REFUSED(moxie_expert_layer_plan(world.layer, 0, &plan, NULL), "down is null");
  EXPECT_REFUSED(moxie_expert_layer_plan(world.layer, 1, &plan, &down), "tokens is 1, but must be 0 to 0");
  EXPECT(layer == NULL && down == NULL);

  EXPECT_REFUSED(moxie_pack(NULL, 1, world.folder, NULL, NULL), "descriptions is null");
  EXPECT_REFUSED(moxie_pack(NULL, 0, NULL, NULL, NULL), "folder is null");
  EXPECT_REFUSED(moxie_tuned_table_read(NULL, &world.table), "path is null");
  EXPECT_REFUSED(moxie_tuned_table_read(world.folder, NULL), "table is null");
  EXPECT_REFUSED(moxie_tuned_table_count(NULL, &number), "table is null");
  EXPECT_REFUSED(moxie_tuned_table_count(world.table, NULL), "count is null");
  EXPECT_REFUSED(moxie_tuned_table_get(NULL, 0, &row), "table is null");
  EXPECT_REFUSED(moxie_tuned_table_get(world.table, 0, NULL), "row is null");
  EXPECT_REFUSED(moxie_tuned_line(NULL, text, sizeof text, &number), "row is null");
  EXPECT_REFUSED(moxie_tuned_line(&row, NULL, sizeof text, &number), "text is null");
  EXPECT_REFUSED(moxie_tuned_line(&row, text, sizeof text, NULL), "length is null");

  moxie_status (*const parsers[])(const char*, int32_t*) = {
      moxie_grouping_parse,       moxie_activation_parse,    moxie_gate_layout_parse,  moxie_data_type_parse,
      moxie_operand_format_parse, moxie_warp_schedule_parse, moxie_tile_source_parse,  moxie_multicast_parse,
      moxie_router_score_parse,   moxie_id_type_parse,       moxie_scale_layout_parse, moxie_row_format_parse,
      moxie_result_format_parse,  moxie_layer_part_parse,    moxie_device_kind_parse,  moxie_plan_source_parse};
  for (size_t i = 0; i < COUNT(parsers); ++i) {
    EXPECT_REFUSED(parsers[i](NULL, &value), "text is null");
    EXPECT_REFUSED(parsers[i]("none", NULL), "value is null");
  }

  moxie_device_release(NULL);
  moxie_device_list_release(NULL);
  moxie_grouped_gemm_release(NULL);
  moxie_expert_layer_release(NULL);
  moxie_plan_release(NULL);
  moxie_tuned_table_release(NULL);
  EXPECT(device == NULL && gemm == NULL && plan == NULL && number == 0 && rows == 0 && value == 0);
  end_world();
}

/* A description with one mistake, and words of the sentence that it gets. */
#define EXPECT_WRONG(words, ...)                                                \
  do {                                                                          \
    moxie_gemm_description d = small_description(MOXIE_GROUPING_OFFSETS);       \
    __VA_ARGS__;                                                                \
    moxie_plan* plan_ = NULL;                                                   \
    EXPECT_REFUSED(moxie_plan_create(&d, NULL, MOXIE_NO_TOTAL, &plan_), words); \
    EXPECT(plan_ == NULL);                                                      \
  } while (0)

void test_sentences(void) {
  EXPECT(strcmp(moxie_last_error(), "") == 0);
  EXPECT_WRONG("groups.grouping is 7, but only 0 to 6 have a meaning", d.groups.grouping = 7);
  EXPECT_WRONG("groups.grouping is -1, but only 0 to 6 have a meaning", d.groups.grouping = -1);
  EXPECT_WRONG("groups.count is 0, but must be 1 to 65535", d.groups.count = 0);
  EXPECT_WRONG("groups.count is 2, but dense groups have none", d.groups.grouping = MOXIE_GROUPING_DENSE);
  EXPECT_WRONG("groups.m is 5, but offsets groups have none", d.groups.m = 5);
  EXPECT_WRONG("groups.max_m is 5, but offsets groups have none", d.groups.max_m = 5);
  EXPECT_WRONG("groups.total is 5, but groups.has_total is 0", d.groups.total = 5);
  EXPECT_WRONG("groups.has_total is 2, but must be 0 or 1", d.groups.has_total = 2);
  EXPECT_WRONG("groups.total is -5", d.groups.has_total = 1, d.groups.total = -5);
  EXPECT_WRONG("groups.total is 9, but masked groups have none", d.groups.grouping = MOXIE_GROUPING_MASKED,
               d.groups.total = 9);
  EXPECT_WRONG("n is 63, but must be a multiple of 8", d.n = 63);
  EXPECT_WRONG("k is -8", d.k = -8);
  EXPECT_WRONG("format is 3, but only 0 to 2 have a meaning", d.format = 3);
  EXPECT_WRONG("bias is 7, but must be 0 or 1", d.bias = 7);
  EXPECT_WRONG("activation.function is 12, but only 0 to 11 have a meaning", d.activation.function = 12);
  EXPECT_WRONG("activation.alpha is 2, but activation.has_parameters is 0", d.activation.alpha = 2);
  EXPECT_WRONG("activation.limit is 0, but must be positive", d.activation.function = MOXIE_ACTIVATION_SWIGLU_OAI,
               d.activation.has_parameters = 1, d.activation.alpha = 1);
  EXPECT_WRONG("activation.up_limit is -2, but must be positive",
               d.activation.function = MOXIE_ACTIVATION_SWIGLU_CLAMPED, d.activation.has_parameters = 1,
               d.activation.gate_limit = 1, d.activation.up_limit = -2);
  EXPECT_WRONG("activation.linear_beta is 0, but must be positive and finite",
               d.activation.function = MOXIE_ACTIVATION_SITU, d.activation.has_parameters = 1, d.activation.beta = 1);
  EXPECT_WRONG("gate is 3, but only 0 to 2 have a meaning", d.gate = 3);
  EXPECT_WRONG("pre is 1, but has_pre is 0", d.pre = MOXIE_DATA_TYPE_F32);
  EXPECT_WRONG("pre is 5, but only 0 to 4 have a meaning", d.has_pre = 1, d.pre = 5);
  EXPECT_WRONG("out is -1, but only 0 to 4 have a meaning", d.out = -1);
  EXPECT_WRONG("out is 1, but no_out is 1", d.no_out = 1, d.out = MOXIE_DATA_TYPE_F32);
  EXPECT_WRONG("pre, out and sinks are all absent", d.no_out = 1);
  EXPECT_WRONG("expected_rows is 5, but has_expected_rows is 0", d.expected_rows = 5);
  EXPECT_WRONG("known_rows is null, but known_row_count is 2", d.known_row_count = 2);
  const int64_t rows[] = {3, -4, 5};
  EXPECT_WRONG("known_rows is given, but known_row_count is 0", d.known_rows = rows);
  EXPECT_WRONG("known_row_count is 3, but there are 2 groups", d.known_rows = rows, d.known_row_count = 3);
  EXPECT_WRONG("known_rows[1] is -4", d.known_rows = rows, d.known_row_count = 2);
  const moxie_custom_sink sink = {.size = sizeof sink, .source = "x", .param_bytes = 4};
  const moxie_custom_sink named = {.size = sizeof sink, .type = "X", .source = "x", .param_bytes = 2000};
  const moxie_custom_sink flags = {
      .size = sizeof sink, .type = "X", .source = "x", .param_bytes = 4, .needs = {0, 2, 0}};
  const moxie_custom_sink* sinks[] = {NULL};
  EXPECT_WRONG("sinks is null, but sink_count is 1", d.sink_count = 1);
  EXPECT_WRONG("sinks[0] is null", d.sinks = sinks, d.sink_count = 1);
  sinks[0] = &sink;
  EXPECT_WRONG("sinks[0].type is null", d.sinks = sinks, d.sink_count = 1);
  sinks[0] = &named;
  EXPECT_WRONG("sinks[0].param_bytes is 2000", d.sinks = sinks, d.sink_count = 1);
  sinks[0] = &flags;
  EXPECT_WRONG("sinks[0].needs.tensor_map is 2, but must be 0 or 1", d.sinks = sinks, d.sink_count = 1);
  moxie_hopper_tuning hopper = {.size = sizeof hopper, .schedule = MOXIE_WARP_SCHEDULE_PING_PONG};
  EXPECT_WRONG("hopper.schedule is 1, but hopper.has_schedule is 0", d.hopper = &hopper);
  hopper.has_schedule = 1, hopper.schedule = 2;
  EXPECT_WRONG("hopper.schedule is 2, but only 0 to 1 have a meaning", d.hopper = &hopper);
  hopper.schedule = 0, hopper.tile_n = 33;
  EXPECT_WRONG("tile_n is 33", d.hopper = &hopper);
  moxie_blackwell_tuning blackwell = {.size = sizeof blackwell, .has_swap_ab = 1, .swap_ab = 3};
  EXPECT_WRONG("blackwell.swap_ab is 3, but must be 0 or 1", d.blackwell = &blackwell);
  moxie_plan* plan = NULL;
  moxie_gemm_description d = small_description(MOXIE_GROUPING_OFFSETS);
  moxie_hopper_tuning reserved = {.size = sizeof reserved, .reserved = 1};
  d.hopper = &reserved;
  EXPECT_FAILS(moxie_plan_create(&d, NULL, MOXIE_NO_TOTAL, &plan), MOXIE_ERROR_UNSUPPORTED, "hopper.reserved is 1");
  d.hopper = NULL;
  const moxie_device_figures old = {.size = sizeof old, .arch = 80};
  EXPECT_FAILS(moxie_plan_create(&d, &old, MOXIE_NO_TOTAL, &plan), MOXIE_ERROR_UNSUPPORTED, "arch is 80");
  EXPECT_REFUSED(moxie_plan_create(&d, NULL, -7, &plan), "-7");

  /* A success leaves the last sentence alone. */
  EXPECT_OK(moxie_plan_create(&d, NULL, 64, &plan));
  EXPECT(strstr(moxie_last_error(), "-7") != NULL);
  moxie_plan_release(plan);

  make_world();
  moxie_gemm_tensors tensors = {.size = sizeof tensors};
  moxie_group_pointers pointers = {.size = sizeof pointers};
  EXPECT_REFUSED(moxie_grouped_gemm_run(world.pointers, &tensors, NULL, 0, NULL), "moxie_grouped_gemm_run_pointers");
  EXPECT_REFUSED(moxie_grouped_gemm_run_pointers(world.dense, &pointers, NULL, 0, NULL), "gemm has dense groups");
  tensors.a.ld = 7;
  EXPECT_REFUSED(moxie_grouped_gemm_run(world.dense, &tensors, NULL, 0, NULL), "a.ld is 7, but must be at least");
  tensors.a.ld = 0, tensors.rows.total = 4;
  EXPECT_REFUSED(moxie_grouped_gemm_run(world.dense, &tensors, NULL, 0, NULL), "rows.total is 4, but rows.has_total");
  tensors.rows.has_total = 1;
  EXPECT_REFUSED(moxie_grouped_gemm_run(world.dense, &tensors, NULL, 0, NULL), "rows.total is given");
  tensors.rows.has_total = 0, tensors.rows.total = 0, tensors.sink_count = 1;
  EXPECT_REFUSED(moxie_grouped_gemm_run(world.dense, &tensors, NULL, 0, NULL), "sink_count is 1");
  tensors.sink_count = 0;
  moxie_launch_options options = {.size = sizeof options, .weights_ready = -1};
  EXPECT_REFUSED(moxie_grouped_gemm_run(world.dense, &tensors, NULL, 0, &options), "options.weights_ready is -1");
  moxie_quantization q = {.size = sizeof q, .rows = 4, .k = 64};
  EXPECT_REFUSED(moxie_quantize(world.device, &q), "format is bf16, but must be mxfp4, mxfp8 or nvfp4");
  q.format = MOXIE_DATA_TYPE_MXFP4, q.layout = 2;
  EXPECT_REFUSED(moxie_quantize(world.device, &q), "layout is 2, but only 0 to 1");
  q.layout = 0;
  EXPECT_REFUSED(moxie_quantize(world.device, &q), "values is null, but must point to device memory");
  q.offsets = (const int32_t*)16;
  EXPECT_REFUSED(moxie_quantize(world.device, &q), "groups is 0, but must be 1 to 65535");
  moxie_scale_blocking b = {.size = sizeof b, .rows = 4, .k = 64, .along_k = 2};
  EXPECT_REFUSED(moxie_block_scales(world.device, &b), "along_k is 2, but must be 0 or 1");
  b.along_k = 0, b.from_floats = -1;
  EXPECT_REFUSED(moxie_block_scales(world.device, &b), "from_floats is -1, but must be 0 or 1");
  const moxie_weight_packing w = {.size = sizeof w, .k = 64, .gate = 3};
  EXPECT_REFUSED(moxie_pack_weights(world.device, &w), "gate is 3, but only 0 to 2 have a meaning");
  moxie_expert_routing r = {.size = sizeof r, .tokens = 1, .experts = 8, .top_k = 9};
  EXPECT_REFUSED(moxie_route(world.device, &r, NULL), "top_k is 9, but there are 8 experts");
  r.top_k = 2, r.score = 2;
  EXPECT_REFUSED(moxie_route(world.device, &r, NULL), "score is 2, but only 0 to 1");
  r.score = 0, r.no_renormalize = 2;
  EXPECT_REFUSED(moxie_route(world.device, &r, NULL), "no_renormalize is 2, but must be 0 or 1");
  r.no_renormalize = 0, r.reserved = 1;
  EXPECT_FAILS(moxie_route(world.device, &r, NULL), MOXIE_ERROR_UNSUPPORTED, "reserved is 1");
  moxie_expert_sort s = {.size = sizeof s, .experts = 8, .top_k = 2, .id_type = -1};
  EXPECT_REFUSED(moxie_sort_by_expert(world.device, &s, NULL, 0, NULL), "id_type is -1, but only 0 to 1");
  s.id_type = 0, s.tokens = 5000;
  s.ids = (const void*)0x10000, s.ends = (int32_t*)0x20000, s.order = (int32_t*)0x30000, s.inverse = (int32_t*)0x40000;
  EXPECT_REFUSED(moxie_sort_by_expert(world.device, &s, NULL, 95, NULL), "workspace has 95 bytes");
  moxie_expert_permutation p = {.size = sizeof p, .top_k = 2, .type = -1};
  EXPECT_REFUSED(moxie_permute(world.device, &p, NULL), "type is -1, but only 0 to 4");
  p.type = MOXIE_DATA_TYPE_MXFP8;
  EXPECT_REFUSED(moxie_permute(world.device, &p, NULL), "type is mxfp8, but must be bf16 or f32");
  moxie_expert_combination c = {.size = sizeof c, .top_k = 2, .rows_type = 7};
  EXPECT_REFUSED(moxie_combine(world.device, &c, NULL), "rows_type is 7, but only 0 to 4");
  c.rows_type = 0, c.out_type = MOXIE_DATA_TYPE_MXFP8;
  EXPECT_REFUSED(moxie_combine(world.device, &c, NULL), "out_type is mxfp8, but must be bf16 or f32");
  c.out_type = 0, c.reserved = -1;
  EXPECT_FAILS(moxie_combine(world.device, &c, NULL), MOXIE_ERROR_UNSUPPORTED, "reserved is -1");
  moxie_device* device = NULL;
  EXPECT_REFUSED(moxie_device_open(9, 0, &device), "kind is 9, but only 0 to 2 have a meaning");
  end_world();
}

typedef struct {
  int64_t n; /* a wrong one, of this thread's own */
  moxie_grouped_gemm* gemm;
  moxie_device* device;
} Work;

/* Runs a product and makes a mistake in turn; the sentence is always this thread's. */
static void* work_in_thread(void* argument) {
  enum { kM = 16, kN = 64, kK = 64 };
  const Work* const work = argument;
  char expected[64];
  snprintf(expected, sizeof expected, "n is %lld, but", (long long)work->n);
  uint16_t a[kM * kK], b[kN * kK], out[kM * kN];
  fill_bf16(a, COUNT(a), (uint32_t)work->n);
  fill_bf16(b, COUNT(b), (uint32_t)work->n + 1);
  moxie_gemm_tensors t = {.size = sizeof t};
  t.a.data = uploaded(work->device, a, sizeof a);
  t.b.data = uploaded(work->device, b, sizeof b);
  t.out.data = filled(work->device, sizeof out, 0);
  EXPECT(strcmp(moxie_last_error(), "") == 0);
  for (int i = 0; i < 20; ++i) {
    moxie_gemm_description d = small_description(MOXIE_GROUPING_DENSE);
    d.n = work->n;
    moxie_plan* plan = NULL;
    EXPECT_REFUSED(moxie_plan_create(&d, NULL, MOXIE_NO_TOTAL, &plan), expected);
    EXPECT_OK(moxie_grouped_gemm_run(work->gemm, &t, NULL, 0, NULL));
    EXPECT_OK(moxie_device_download(work->device, out, t.out.data, sizeof out, NULL));
    EXPECT(out[i] == to_bf16((float)dot(a, b, 0, i, kK)));
    EXPECT(strstr(moxie_last_error(), expected) != NULL);
  }
  return NULL;
}

void test_threads(void) {
  moxie_device* const device = open_device();
  moxie_gemm_description d = small_description(MOXIE_GROUPING_DENSE);
  d.groups.m = 16;
  moxie_grouped_gemm* gemm = NULL;
  EXPECT_OK(moxie_grouped_gemm_create(device, &d, &gemm));
  Work works[2] = {{1001, gemm, device}, {2003, gemm, device}};
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) EXPECT(pthread_create(&threads[i], NULL, work_in_thread, &works[i]) == 0);
  for (int i = 0; i < 2; ++i) EXPECT(pthread_join(threads[i], NULL) == 0);
  EXPECT(strcmp(moxie_last_error(), "") == 0);
  moxie_grouped_gemm_release(gemm);
  moxie_device_release(device);
}
