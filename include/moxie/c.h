// SPDX-License-Identifier: Apache-2.0
/* All of Moxie's public interface in C11, for C and for what calls C: Python's ctypes, Rust, Julia...
 *
 *   moxie_device* device = NULL;
 *   moxie_grouped_gemm* gemm = NULL;
 *   moxie_gemm_description description = {.size = sizeof description};
 *   description.groups.grouping = MOXIE_GROUPING_OFFSETS;
 *   description.groups.count = experts;
 *   description.n = width;
 *   description.k = hidden;
 *   if (moxie_device_open(MOXIE_DEVICE_KIND_AUTO, 0, &device) != MOXIE_OK ||
 *       moxie_grouped_gemm_create(device, &description, &gemm) != MOXIE_OK)
 *     return fprintf(stderr, "%s\n", moxie_last_error()), 1;
 *   ...
 *   moxie_gemm_tensors tensors = {.size = sizeof tensors};
 *   tensors.a.data = x, tensors.b.data = w, tensors.out.data = y;
 *   tensors.rows.ends = ends, tensors.rows.has_total = 1, tensors.rows.total = tokens;
 *   if (moxie_grouped_gemm_run(gemm, &tensors, workspace, workspace_bytes, NULL) != MOXIE_OK) ...
 *
 * What a product computes, what shapes, strides and alignments it wants and what a plan is stands in the C++ header
 * that each section names. The structures have the C++ ones' members under the same names.
 *
 * Errors. Every function that can fail returns a moxie_status and leaves one sentence for moxie_last_error(). It names
 * the argument, what was given and what is allowed. A call that fails writes none of its results. No C++ exception
 * leaves a function.
 *
 * Structures. All of them are filled with zeros first: 0 is the default of every member. `has_x` 0 says that x is
 * absent, `no_x` 0 that x is wanted. The first member of most is `size`, which the caller sets to sizeof the structure.
 * New versions of the library add members at the end. A caller that was compiled with an older header has a smaller
 * `size`, and the members that it lacks have their defaults. A caller with a newer header is served as long as the
 * members that the library does not know are 0 (else: MOXIE_ERROR_UNSUPPORTED). A size is a multiple of 8 and reaches
 * at least to the last member that the structure's comment calls required. Structures without `size` never change.
 * Structures that a function fills need their `size`, too: the function writes so many bytes, and zeros into members
 * that the library does not know.
 *
 * Ownership. Who gets a handle releases it. Releasing NULL does nothing. What a function is given is copied where it is
 * needed after the call. Text that a function returns belongs to the handle that it came from, or to the library.
 *
 * Threads. All functions may be called by any thread at any time, but a handle may not be released while another call
 * uses it. */
#ifndef MOXIE_C_H
#define MOXIE_C_H

#include <stddef.h>
#include <stdint.h>

#include "moxie/version.h" /* MOXIE_VERSION, the version of the headers */

#ifndef MOXIE_API
/* Marks what the library exports. */
#define MOXIE_API __attribute__((visibility("default"))) /* what libmoxie.so shows */
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that runs, such as "0.1.0". */
MOXIE_API const char* moxie_version(void);

/* ---- Errors: moxie/error.h ---- */

typedef int32_t moxie_status;
enum {
  MOXIE_OK = 0,
  MOXIE_ERROR_INVALID_ARGUMENT = 1, /* an argument breaks a rule; nothing was launched */
  MOXIE_ERROR_UNSUPPORTED = 2,      /* valid, but not on this device or not in this version; nothing was launched */
  MOXIE_ERROR_COMPILE = 3,          /* NVRTC is missing or rejected a kernel */
  MOXIE_ERROR_DRIVER = 4,           /* the CUDA driver is missing or reported an error */
  MOXIE_ERROR_OUT_OF_MEMORY = 5,    /* device or host memory, threads, or disk space */
  MOXIE_ERROR_PEER = 6,             /* another rank is late or different, or what the ranks were given does not fit */
  MOXIE_ERROR_INTERNAL = -1         /* a fault of the library */
};

/* The sentence of this thread's last call that failed; "" before the first one. Valid until the next one. */
MOXIE_API const char* moxie_last_error(void);
/* "InvalidArgument"; "Ok" for MOXIE_OK, "?" for a value that is none of the above. */
MOXIE_API const char* moxie_status_name(moxie_status status);

/* ---- Enumerations: moxie/types.h, with the same values ---- */

typedef int32_t moxie_grouping;
enum {
  MOXIE_GROUPING_DENSE = 0,
  MOXIE_GROUPING_BATCHED = 1,
  MOXIE_GROUPING_OFFSETS = 2,
  MOXIE_GROUPING_ROW_GROUPS = 3,
  MOXIE_GROUPING_MASKED = 4,
  MOXIE_GROUPING_POINTERS = 5,
  MOXIE_GROUPING_K_GROUPS = 6
};

typedef int32_t moxie_activation;
enum {
  MOXIE_ACTIVATION_NONE = 0,
  MOXIE_ACTIVATION_RELU = 1,
  MOXIE_ACTIVATION_RELU2 = 2,
  MOXIE_ACTIVATION_GELU_TANH = 3,
  MOXIE_ACTIVATION_GELU_ERF = 4,
  MOXIE_ACTIVATION_SILU = 5,
  MOXIE_ACTIVATION_SWIGLU = 6, /* this one and those behind it are gated: they halve the width */
  MOXIE_ACTIVATION_SWIGLU_OAI = 7,
  MOXIE_ACTIVATION_GEGLU = 8,
  MOXIE_ACTIVATION_REGLU = 9,
  MOXIE_ACTIVATION_SWIGLU_CLAMPED = 10,
  MOXIE_ACTIVATION_SITU = 11
};

typedef int32_t moxie_gate_layout;
enum { MOXIE_GATE_LAYOUT_INTERLEAVED = 0, MOXIE_GATE_LAYOUT_SPLIT = 1, MOXIE_GATE_LAYOUT_SPLIT_UP_FIRST = 2 };

typedef int32_t moxie_data_type;
enum {
  MOXIE_DATA_TYPE_BF16 = 0,
  MOXIE_DATA_TYPE_F32 = 1,
  MOXIE_DATA_TYPE_MXFP4 = 2,
  MOXIE_DATA_TYPE_MXFP8 = 3,
  MOXIE_DATA_TYPE_NVFP4 = 4
};

typedef int32_t moxie_operand_format;
enum { MOXIE_OPERAND_FORMAT_BF16 = 0, MOXIE_OPERAND_FORMAT_MXFP4 = 1, MOXIE_OPERAND_FORMAT_NVFP4 = 2 };

typedef int32_t moxie_warp_schedule;
enum { MOXIE_WARP_SCHEDULE_COOPERATIVE = 0, MOXIE_WARP_SCHEDULE_PING_PONG = 1 };

typedef int32_t moxie_tile_source;
enum { MOXIE_TILE_SOURCE_STATIC = 0, MOXIE_TILE_SOURCE_LAUNCH_CONTROL = 1 };

typedef int32_t moxie_multicast;
enum { MOXIE_MULTICAST_NONE = 0, MOXIE_MULTICAST_A = 1, MOXIE_MULTICAST_B = 2, MOXIE_MULTICAST_EITHER = 3 };

typedef int32_t moxie_router_score;
enum { MOXIE_ROUTER_SCORE_SOFTMAX = 0, MOXIE_ROUTER_SCORE_SIGMOID = 1 };

typedef int32_t moxie_id_type; /* moxie/routing.h */
enum { MOXIE_ID_TYPE_INT32 = 0, MOXIE_ID_TYPE_INT64 = 1 };

typedef int32_t moxie_row_format; /* moxie/layer.h */
enum { MOXIE_ROW_FORMAT_BF16 = 0, MOXIE_ROW_FORMAT_FP8 = 1, MOXIE_ROW_FORMAT_MXFP8 = 2 };

typedef int32_t moxie_result_format; /* moxie/layer.h */
enum { MOXIE_RESULT_FORMAT_ROWS = 0, MOXIE_RESULT_FORMAT_SUMS = 1, MOXIE_RESULT_FORMAT_BF16_SUMS = 2 };

typedef int32_t moxie_layer_part; /* moxie/layer.h */
enum { MOXIE_LAYER_PART_ALL = 0, MOXIE_LAYER_PART_SEND = 1, MOXIE_LAYER_PART_MULTIPLY = 2, MOXIE_LAYER_PART_SUM = 3 };

typedef int32_t moxie_scale_layout; /* moxie/scales.h */
enum { MOXIE_SCALE_LAYOUT_BLOCKED = 0, MOXIE_SCALE_LAYOUT_ROW_MAJOR = 1 };

typedef int32_t moxie_device_kind; /* moxie/device.h */
enum {
  MOXIE_DEVICE_KIND_AUTO = 0, /* a GPU that the library supports, else the simulator */
  MOXIE_DEVICE_KIND_CUDA = 1,
  MOXIE_DEVICE_KIND_SIM = 2
};

typedef int32_t moxie_plan_source; /* moxie/plan.h */
enum {
  MOXIE_PLAN_SOURCE_MODEL = 0,       /* the cost model's fastest */
  MOXIE_PLAN_SOURCE_TUNED_TABLE = 1, /* a measured winner */
  MOXIE_PLAN_SOURCE_CALLER = 2       /* the caller's tuning left it */
};

typedef int32_t moxie_rows_source; /* where a plan's rows came from */
enum {
  MOXIE_ROWS_SOURCE_GIVEN = 0,    /* by groups.m or known_rows */
  MOXIE_ROWS_SOURCE_EXPECTED = 1, /* by expected_rows */
  MOXIE_ROWS_SOURCE_ASSUMED = 2   /* only the device knows them */
};

typedef int32_t moxie_pack_image; /* moxie/pack.h */
enum {
  MOXIE_PACK_IMAGE_MACHINE_CODE = 0, /* for GPUs */
  MOXIE_PACK_IMAGE_PTX = 1           /* for drivers that take no machine code, such as the simulator */
};

/* The name of a value as the program `moxie` writes it, such as "row-groups"; "?" for a value that is none. */
MOXIE_API const char* moxie_grouping_name(moxie_grouping value);
MOXIE_API const char* moxie_activation_name(moxie_activation value);
MOXIE_API const char* moxie_gate_layout_name(moxie_gate_layout value);
MOXIE_API const char* moxie_data_type_name(moxie_data_type value);
MOXIE_API const char* moxie_operand_format_name(moxie_operand_format value);
MOXIE_API const char* moxie_warp_schedule_name(moxie_warp_schedule value);
MOXIE_API const char* moxie_tile_source_name(moxie_tile_source value);
MOXIE_API const char* moxie_multicast_name(moxie_multicast value);
MOXIE_API const char* moxie_router_score_name(moxie_router_score value);
MOXIE_API const char* moxie_id_type_name(moxie_id_type value);
MOXIE_API const char* moxie_scale_layout_name(moxie_scale_layout value);
MOXIE_API const char* moxie_row_format_name(moxie_row_format value);
MOXIE_API const char* moxie_result_format_name(moxie_result_format value);
MOXIE_API const char* moxie_layer_part_name(moxie_layer_part value);
MOXIE_API const char* moxie_device_kind_name(moxie_device_kind value);
MOXIE_API const char* moxie_plan_source_name(moxie_plan_source value);

/* The value that has this name. INVALID_ARGUMENT for other text; the sentence lists the names. */
MOXIE_API moxie_status moxie_grouping_parse(const char* text, moxie_grouping* value);
MOXIE_API moxie_status moxie_activation_parse(const char* text, moxie_activation* value);
MOXIE_API moxie_status moxie_gate_layout_parse(const char* text, moxie_gate_layout* value);
MOXIE_API moxie_status moxie_data_type_parse(const char* text, moxie_data_type* value);
MOXIE_API moxie_status moxie_operand_format_parse(const char* text, moxie_operand_format* value);
MOXIE_API moxie_status moxie_warp_schedule_parse(const char* text, moxie_warp_schedule* value);
MOXIE_API moxie_status moxie_tile_source_parse(const char* text, moxie_tile_source* value);
MOXIE_API moxie_status moxie_multicast_parse(const char* text, moxie_multicast* value);
MOXIE_API moxie_status moxie_router_score_parse(const char* text, moxie_router_score* value);
MOXIE_API moxie_status moxie_id_type_parse(const char* text, moxie_id_type* value);
MOXIE_API moxie_status moxie_scale_layout_parse(const char* text, moxie_scale_layout* value);
MOXIE_API moxie_status moxie_row_format_parse(const char* text, moxie_row_format* value);
MOXIE_API moxie_status moxie_result_format_parse(const char* text, moxie_result_format* value);
MOXIE_API moxie_status moxie_layer_part_parse(const char* text, moxie_layer_part* value);
MOXIE_API moxie_status moxie_device_kind_parse(const char* text, moxie_device_kind* value);
MOXIE_API moxie_status moxie_plan_source_parse(const char* text, moxie_plan_source* value);

/* ---- Devices: moxie/device.h ---- */

typedef struct CUstream_st* moxie_stream; /* a cudaStream_t or a CUstream; NULL: the default stream */
typedef struct moxie_device moxie_device; /* a device with the kernels loaded for it */
typedef struct moxie_device_list moxie_device_list;

/* Filled by the library; nothing but size is required. */
typedef struct moxie_device_info {
  size_t size;
  const char* name;
  const char* driver_path; /* the libcuda that serves it */
  int32_t arch;            /* 90: sm_90a, 100: sm_100a, others: not supported */
  int32_t sm_count;
  int32_t shared_bytes;   /* the most shared memory that a block may opt in to */
  int32_t driver_version; /* 13000: CUDA 13.0 */
  int32_t simulated;      /* 0 or 1 */
  uint64_t memory_bytes;
  uint64_t l2_bytes;
  double memory_rate; /* bytes a second from device memory, by its clock and the width of its bus */
  double clock;       /* the most that the multiprocessors' clock reaches, cycles a second */
} moxie_device_info;

/* One device's kernels are shared by all handles for it. MOXIE_DEVICE_KIND_AUTO obeys the environment variable
 * MOXIE_DEVICE (auto, cuda or sim). DRIVER: no libcuda, or no such device. */
MOXIE_API moxie_status moxie_device_open(moxie_device_kind kind, int32_t ordinal, moxie_device** device);
/* A handle is released once for open and once for each retain. Products hold what they need of their device. */
MOXIE_API moxie_status moxie_device_retain(moxie_device* device);
MOXIE_API void moxie_device_release(moxie_device* device);
/* The text in `info` is valid until the device is released. */
MOXIE_API moxie_status moxie_device_get_info(const moxie_device* device, moxie_device_info* info);

/* Every device of the driver, supported or not, and the simulator. A missing driver is no error. */
MOXIE_API moxie_status moxie_device_list_create(moxie_device_list** list);
MOXIE_API void moxie_device_list_release(moxie_device_list* list);
MOXIE_API moxie_status moxie_device_list_count(const moxie_device_list* list, size_t* count);
/* The text in `info` is valid until the list is released. */
MOXIE_API moxie_status moxie_device_list_get(const moxie_device_list* list, size_t index, moxie_device_info* info);

/* For programs that have no CUDA runtime at hand. Sizes in bytes. Memory comes aligned to 256 bytes; of 0 bytes it is
 * NULL. Copies and fills are ordered on the stream and return when done. Synchronize waits for all work on the stream
 * and returns DRIVER when a kernel before it went wrong. */
MOXIE_API moxie_status moxie_device_allocate(const moxie_device* device, size_t bytes, void** device_pointer);
MOXIE_API moxie_status moxie_device_free(const moxie_device* device, void* device_pointer);
MOXIE_API moxie_status moxie_device_upload(const moxie_device* device, void* to_device, const void* from_host,
                                           size_t bytes, moxie_stream stream);
MOXIE_API moxie_status moxie_device_download(const moxie_device* device, void* to_host, const void* from_device,
                                             size_t bytes, moxie_stream stream);
MOXIE_API moxie_status moxie_device_fill(const moxie_device* device, void* device_pointer, uint8_t value, size_t bytes,
                                         moxie_stream stream);
MOXIE_API moxie_status moxie_device_synchronize(const moxie_device* device, moxie_stream stream);

/* ---- The description of a product: moxie/gemm.h, moxie/groups.h, moxie/activation.h, moxie/tuning.h ---- */

/* How rows are divided into groups. Members that the grouping does not have are 0. */
typedef struct moxie_groups {
  moxie_grouping grouping;
  int32_t has_total;
  int64_t count; /* groups, 1 to 65,535; DENSE has none */
  int64_t m;     /* DENSE, BATCHED, K_GROUPS: rows of each group */
  int64_t max_m; /* MASKED, POINTERS: the most rows of a group */
  int64_t total; /* OFFSETS: rows of all groups together, when all calls have about as many */
} moxie_groups;

typedef struct moxie_activation_spec {
  moxie_activation function;
  int32_t has_parameters; /* 0 stands for the defaults: the second number of each comment */
  union {
    float alpha;      /* SWIGLU_OAI: finite; 1.702 */
    float gate_limit; /* SWIGLU_CLAMPED: positive, may be infinite; 10 */
    float beta;       /* SITU: positive and finite; 4 */
  };
  union {
    float limit;       /* SWIGLU_OAI: positive, may be infinite; 7 */
    float up_limit;    /* SWIGLU_CLAMPED: positive, may be infinite; 10 */
    float linear_beta; /* SITU: positive and finite; 25 */
  };
} moxie_activation_spec;

/* Choices for sm_90a. A tile_m, tile_n or cluster of 0 leaves it to the plan. Nothing but size is required. */
typedef struct moxie_hopper_tuning {
  size_t size;
  int32_t has_schedule;
  moxie_warp_schedule schedule;
  int32_t tile_m; /* 8, 64, 128 or 256; with packed weights also 16 and 32 */
  int32_t tile_n; /* 64 to 256 in steps of 32; with packed weights 128 or 256 */
  int32_t cluster;
  int32_t has_multicast;
  moxie_multicast multicast;
  int32_t reserved; /* 0 */
} moxie_hopper_tuning;

/* Choices for sm_100a. A tile_m, tile_n or cluster of 0 leaves it to the plan. Nothing but size is required. */
typedef struct moxie_blackwell_tuning {
  size_t size;
  int32_t tile_m;
  int32_t tile_n;
  int32_t cluster;
  int32_t has_tile_source;
  moxie_tile_source tile_source;
  int32_t has_swap_ab;
  int32_t swap_ab;  /* 0 or 1 */
  int32_t reserved; /* 0 */
} moxie_blackwell_tuning;

/* What a custom sink asks of the kernel: moxie/types.h. */
typedef struct moxie_sink_needs {
  int32_t staging_bytes; /* a multiple of 1,024 */
  int32_t tensor_map;    /* 0 or 1 */
  int32_t narrow;        /* 0 or 1 */
  int32_t transposed;    /* 0 or 1 */
} moxie_sink_needs;

/* An output of the caller's own, computed in the epilogue. All up to param_bytes is required. */
typedef struct moxie_custom_sink {
  size_t size;
  const char* type;   /* the C++ name of the sink, which follows kernels/moxie/epilogue/sink.cuh */
  const char* source; /* the text of the header that defines it */
  size_t param_bytes; /* sizeof its Params, 1 to 1,024 */
  moxie_sink_needs needs;
} moxie_custom_sink;

/* What to compute: sizes, types and choices. All up to k is required. */
typedef struct moxie_gemm_description {
  size_t size;
  moxie_groups groups;
  int64_t n; /* columns before a gate halves them: a multiple of 8, of 16 with a gate */
  int64_t k; /* length of the sums: a multiple of 8 (bf16) or 32 (MXFP4, NVFP4) */
  moxie_operand_format format;
  int32_t bias; /* 0 or 1 */
  moxie_activation_spec activation;
  moxie_gate_layout gate;
  int32_t has_pre; /* 1: the values before the activation are stored, too, as `pre` */
  moxie_data_type pre;
  int32_t no_out; /* 1: the values after the activation are not stored */
  moxie_data_type out;
  int32_t has_expected_rows;
  int64_t expected_rows;                 /* a hint: rows of a typical group */
  const int64_t* known_rows;             /* or NULL. A hint: the rows of each group, exactly. In host memory */
  size_t known_row_count;                /* as many as there are groups */
  const moxie_custom_sink* const* sinks; /* or NULL. At most 8 */
  size_t sink_count;
  const moxie_hopper_tuning* hopper;       /* or NULL: the plan decides */
  const moxie_blackwell_tuning* blackwell; /* or NULL: the plan decides */
  int32_t has_b_format;                    /* 1: b differs from a, whose format is `format` */
  moxie_operand_format b_format;           /* MXFP4 beside BF16: b is packed weights, k a multiple of 32 */
  int32_t gather;                          /* 0 or 1: rows of a are found through moxie_gemm_tensors.gather */
  int32_t reserved;                        /* 0 */
} moxie_gemm_description;

/* ---- Plans: moxie/plan.h ---- */

typedef struct moxie_plan moxie_plan; /* a plan as data */

/* Stands for the total of a function that the caller leaves to the description. */
#define MOXIE_NO_TOTAL (-1)
/* Stands for the kernel that a plan chose, beside the indices of its candidates. */
#define MOXIE_CHOSEN (-1)

/* A device that need not be here. 0 stands for an H200's figure. Nothing but size is required. */
typedef struct moxie_device_figures {
  size_t size;
  int32_t arch;         /* 0: 90 (sm_90a); 100 (sm_100a) */
  int32_t sm_count;     /* 0: 132 */
  int32_t shared_bytes; /* 0: 232,448 */
  int32_t reserved;     /* 0 */
  int64_t l2_bytes;     /* size of the L2 cache; 0: 62,914,560 */
  double memory_rate;   /* bytes a second from device memory, by its clock and the width of its bus; 0: 4.814304e12 */
  double clock;         /* the most that the multiprocessors' clock reaches, cycles a second; 0: 1.98e9 */
} moxie_device_figures;

/* Filled by the library; nothing but size is required. */
typedef struct moxie_plan_info {
  size_t size;
  const char* kernel; /* such as "cooperative 128x256x64, 4 stages, cluster 2 (B multicast)" */
  moxie_plan_source source;
  int32_t arch;           /* whose tuning the plan has: 90 or 100 */
  int32_t stages;         /* depth of the operand ring */
  int32_t decode_tile;    /* 1: the kernel is of the kind for groups of few rows (sm_90a) */
  int32_t store_buffers;  /* staging buffers of each output */
  int32_t shared_bytes;   /* shared memory of a block */
  int32_t tensor_columns; /* columns of tensor memory (sm_100a) */
  int32_t panel_columns;  /* cluster tiles that are walked together along N */
  int64_t tiles;          /* of a launch when the rows are known, else the most that there can be */
  double mean_rows;       /* of a group, as the plan reckoned */
  double flops;           /* 2 M N K over all groups, for those rows */
  double predicted_seconds;
  double clock; /* cycles a second of moxie_plan_candidate.cycles */
  size_t candidate_count;
  moxie_rows_source rows_source;
  int32_t reserved; /* 0 */
} moxie_plan_info;

/* One kernel that could compute the product. Filled by the library; nothing but size is required. */
typedef struct moxie_plan_candidate {
  size_t size;
  const char* kernel;
  const char* reason; /* what limits it, in a few words */
  double cycles;      /* predicted time of a launch; 0 where it is not possible */
  int32_t possible;   /* 0: it does not fit the device */
  int32_t reserved;   /* 0 */
} moxie_plan_candidate;

/* The plan of a product for a device that need not be here. Compiles nothing. figures: NULL for an H200. total: as
 * moxie_rows.total, or MOXIE_NO_TOTAL. */
MOXIE_API moxie_status moxie_plan_create(const moxie_gemm_description* description, const moxie_device_figures* figures,
                                         int64_t total, moxie_plan** plan);
MOXIE_API void moxie_plan_release(moxie_plan* plan);
/* The text in `info` and `candidate` is valid until the plan is released. Candidates are sorted, the chosen one is at
 * the front. */
MOXIE_API moxie_status moxie_plan_get_info(const moxie_plan* plan, moxie_plan_info* info);
MOXIE_API moxie_status moxie_plan_get_candidate(const moxie_plan* plan, size_t index, moxie_plan_candidate* candidate);
/* The tuning that leads to a candidate, or with MOXIE_CHOSEN to the plan's kernel. INVALID_ARGUMENT when the plan is
 * for the other architecture. */
MOXIE_API moxie_status moxie_plan_get_hopper_tuning(const moxie_plan* plan, int64_t candidate,
                                                    moxie_hopper_tuning* tuning);
MOXIE_API moxie_status moxie_plan_get_blackwell_tuning(const moxie_plan* plan, int64_t candidate,
                                                       moxie_blackwell_tuning* tuning);

/* A layer whose experts are divided among ranks: moxie/ranks.h. All up to top_k is required. */
typedef struct moxie_ranked_layer {
  size_t size;
  const moxie_gemm_description* up; /* the first product; of its groups nothing is looked at but that they are valid */
  int64_t tokens;                   /* of a rank, 1 to 1,048,576 */
  int64_t experts;                  /* of all ranks */
  int64_t ranks;                    /* 1 to 1,024 */
  int32_t top_k;                    /* 1 to 16 */
  int32_t windows;                  /* 1: by kernels that reach peers' memory; 0: by all_to_all */
  int64_t domain;                   /* ranks that NVLink connects; 0 stands for 8, on sm_100a 72, or ranks if fewer */
  double network;                   /* bytes a second of a rank's network adapter; 0 stands for 50e9 */
  moxie_row_format format;          /* with windows: of tokens on their way */
  int32_t reserved;                 /* 0 */
} moxie_ranked_layer;

/* A step of one rank, where experts are chosen evenly. Filled by the library; nothing but size is required. */
typedef struct moxie_rank_costs {
  size_t size;
  double dispatch_bytes; /* that a rank sends to others */
  double combine_bytes;
  double dispatch; /* seconds, as all below */
  double combine;
  double up;
  double down;
  double around;    /* sort, permute and sum on the rank itself */
  double sum;       /* of the five above */
  double in_halves; /* the sum in two halves, one on its way while the other is multiplied; 0: one token has none */
} moxie_rank_costs;

/* What `moxie plan --ranks` prints. figures: NULL for an H200. INVALID_ARGUMENT, UNSUPPORTED. */
MOXIE_API moxie_status moxie_rank_costs_of(const moxie_ranked_layer* layer, const moxie_device_figures* figures,
                                           moxie_rank_costs* costs);

/* ---- Products: moxie/gemm.h, moxie/groups.h, moxie/tensor.h ---- */

typedef struct moxie_grouped_gemm moxie_grouped_gemm; /* a product that is planned and compiled */

/* A matrix in device memory that a call reads. */
typedef struct moxie_const_tensor {
  const void* data;          /* aligned to 16 bytes */
  int64_t ld;                /* elements from row to row, a multiple of 16 bytes; 0 stands for the width */
  const void* scales;        /* MXFP4, NVFP4: blocked, aligned to 16 bytes; else NULL */
  const float* tensor_scale; /* NVFP4: in device memory, NULL stands for 1; else NULL */
} moxie_const_tensor;

/* A matrix that a call writes. Its tensor_scale is read. */
typedef struct moxie_tensor {
  void* data;
  int64_t ld;
  void* scales;
  const float* tensor_scale;
} moxie_tensor;

/* What a call says of its rows: one of the three arrays, int32 in device memory, or none (DENSE, BATCHED, POINTERS). */
typedef struct moxie_rows {
  const int32_t* ends;         /* OFFSETS, K_GROUPS: [G], the end of each group */
  const int32_t* group_of_row; /* ROW_GROUPS: [T], the group of each row, or -1 */
  const int32_t* counts;       /* MASKED: [G], the valid rows of each group */
  int64_t total;     /* OFFSETS, ROW_GROUPS: T, rows of all groups together. K_GROUPS: K of all groups together */
  int32_t has_total; /* 0: the total is the description's */
} moxie_rows;

/* The bytes of a custom sink's Params, in host memory, copied by the call. */
typedef struct moxie_sink_params {
  const void* data;
  size_t bytes;
} moxie_sink_params;

/* Which row of a each row of a product is computed from: row r from row rows[r] / divisor; one that a does not have
 * stands for zeros. */
typedef struct moxie_gather {
  const int32_t* rows; /* [T] int32 in device memory */
  int64_t count;       /* rows of a */
  int32_t divisor;     /* 0 stands for 1 */
  int32_t reserved;    /* 0 */
} moxie_gather;

/* The tensors of one call. All up to out is required. */
typedef struct moxie_gemm_tensors {
  size_t size;
  moxie_const_tensor a;
  moxie_const_tensor b;
  const void* bias; /* bf16 [G, N], aligned to 16 bytes; NULL without a bias */
  moxie_tensor pre; /* NULLs where it is not stored; its ld is then not read */
  moxie_tensor out; /* NULLs where it is not stored; its ld is then not read */
  moxie_rows rows;
  const moxie_sink_params* sinks; /* one for each custom sink, in the description's order */
  size_t sink_count;
  moxie_gather gather; /* with moxie_gemm_description.gather; zeros without */
} moxie_gemm_tensors;

/* An operand of MOXIE_GROUPING_POINTERS: arrays in device memory, one entry a group. The host reads none of them. */
typedef struct moxie_const_tensor_array {
  const void* const* data;
  const int64_t* ld;
  const void* const* scales;
  const float* tensor_scale;
} moxie_const_tensor_array;
typedef struct moxie_tensor_array {
  void* const* data;
  const int64_t* ld;
  void* const* scales;
  const float* tensor_scale;
} moxie_tensor_array;

/* The tensors of one call with MOXIE_GROUPING_POINTERS. All up to sizes is required. */
typedef struct moxie_group_pointers {
  size_t size;
  moxie_const_tensor_array a;
  moxie_const_tensor_array b;
  const void* const* bias; /* bf16 [N_g] of each group */
  moxie_tensor_array pre;
  moxie_tensor_array out;
  const int32_t* sizes; /* [G][3]: M_g, N_g, K_g */
  const moxie_sink_params* sinks;
  size_t sink_count;
} moxie_group_pointers;

/* How a call is launched. All up to stream is required. */
typedef struct moxie_launch_options {
  size_t size;
  moxie_stream stream;
  int32_t no_programmatic; /* 1: the grid begins when all work before it has ended */
  int32_t weights_ready;   /* 1: the caller's promise of LaunchOptions::weights_ready in moxie/gemm.h */
} moxie_launch_options;

/* Checks, plans and compiles. INVALID_ARGUMENT: the description breaks a rule; UNSUPPORTED: the device has no kernel
 * for it; COMPILE; DRIVER. */
MOXIE_API moxie_status moxie_grouped_gemm_create(const moxie_device* device, const moxie_gemm_description* description,
                                                 moxie_grouped_gemm** gemm);
MOXIE_API void moxie_grouped_gemm_release(moxie_grouped_gemm* gemm);

/* Computes. Asynchronous on the stream, allocates nothing, may be captured into a CUDA graph. Everything is checked
 * before anything is launched. workspace: device memory aligned to 128 bytes; launches that may run at the same time
 * need one each. options: NULL for the defaults. INVALID_ARGUMENT, DRIVER. */
MOXIE_API moxie_status moxie_grouped_gemm_run(const moxie_grouped_gemm* gemm, const moxie_gemm_tensors* tensors,
                                              void* workspace, size_t workspace_bytes,
                                              const moxie_launch_options* options);
/* The same for MOXIE_GROUPING_POINTERS, which the other function refuses. */
MOXIE_API moxie_status moxie_grouped_gemm_run_pointers(const moxie_grouped_gemm* gemm,
                                                       const moxie_group_pointers* tensors, void* workspace,
                                                       size_t workspace_bytes, const moxie_launch_options* options);

/* Bytes of workspace for calls of `total` rows or fewer. total: as moxie_rows.total, or MOXIE_NO_TOTAL. */
MOXIE_API moxie_status moxie_grouped_gemm_workspace_bytes(const moxie_grouped_gemm* gemm, int64_t total, size_t* bytes);
/* ROW_GROUPS: the multiple at which every group must begin. 1 for others. */
MOXIE_API moxie_status moxie_grouped_gemm_row_alignment(const moxie_grouped_gemm* gemm, int64_t* rows);
/* The plan that a call of `total` rows follows. The caller releases it. */
MOXIE_API moxie_status moxie_grouped_gemm_plan(const moxie_grouped_gemm* gemm, int64_t total, moxie_plan** plan);

/* ---- Scales: moxie/scales.h ---- */

/* Bytes that the scales of a call's operands and outputs must have; 0 where there are none. total: as moxie_rows.total,
 * or MOXIE_NO_TOTAL. */
MOXIE_API moxie_status moxie_a_scale_bytes(const moxie_gemm_description* description, int64_t total, size_t* bytes);
MOXIE_API moxie_status moxie_b_scale_bytes(const moxie_gemm_description* description, int64_t total, size_t* bytes);
MOXIE_API moxie_status moxie_pre_scale_bytes(const moxie_gemm_description* description, int64_t total, size_t* bytes);
MOXIE_API moxie_status moxie_out_scale_bytes(const moxie_gemm_description* description, int64_t total, size_t* bytes);

/* Bytes of one blocked matrix of scales; where in it the scale of a row and of elements block * column to block *
 * (column + 1) - 1 stands; bytes of the blocked scales of one operand of K_GROUPS. block: elements of a scale, 32 or
 * 16. Sizes are 0 or more and below 2^31, rows and columns inside the matrix. */
MOXIE_API moxie_status moxie_blocked_scale_bytes(int64_t rows, int64_t k, int64_t block, size_t* bytes);
MOXIE_API moxie_status moxie_blocked_scale_index(int64_t row, int64_t column, int64_t k, int64_t block, size_t* index);
MOXIE_API moxie_status moxie_k_group_scale_bytes(int64_t rows, int64_t k, int64_t groups, int64_t block, size_t* bytes);

/* Between row-major and blocked scales. All up to k is required. */
typedef struct moxie_scale_blocking {
  size_t size;
  const void* from;       /* block: uint8 [groups, rows, k / block], with offsets [rows, k / block]; unblock: blocked */
  void* to;               /* the other layout; blocked scales are aligned to 16 bytes */
  int64_t rows;           /* of each group; with offsets of all together */
  int64_t k;              /* elements, a multiple of block */
  int64_t groups;         /* 1 to 65,535; without offsets 0 stands for 1 */
  int64_t block;          /* elements of a scale: 32 or 16; 0 stands for 32 */
  const int32_t* offsets; /* or NULL: the ends of the groups, int32 [groups] in device memory */
  int32_t along_k;        /* 1: the offsets are the ends of groups along k */
  int32_t from_floats;    /* 1, block alone: `from` holds float32 powers of two */
  moxie_stream stream;
} moxie_scale_blocking;

/* Asynchronous on the stream. INVALID_ARGUMENT, COMPILE, DRIVER. */
MOXIE_API moxie_status moxie_block_scales(const moxie_device* device, const moxie_scale_blocking* arguments);
MOXIE_API moxie_status moxie_unblock_scales(const moxie_device* device, const moxie_scale_blocking* arguments);

/* ---- Quantizing: moxie/quantize.h ---- */

/* Rows of bf16 or float32 to MXFP4, MXFP8 or NVFP4. All up to k is required. */
typedef struct moxie_quantization {
  size_t size;
  moxie_data_type format; /* MXFP4, MXFP8 or NVFP4; there is no default */
  moxie_data_type type;   /* of the values: BF16 or F32 */
  int64_t rows;           /* of each group; with offsets of all together */
  int64_t k;              /* elements of a row, a multiple of 32 (NVFP4: 16) */
  int64_t groups;         /* 1 to 65,535; without offsets 0 stands for 1 */
  const int32_t* offsets; /* or NULL: the ends of the groups, int32 [groups] in device memory */
  const void* values;     /* device pointers to values and elements are aligned to 16 bytes */
  int64_t ld_values;      /* elements, a multiple of 16 bytes; 0 stands for k */
  void* elements;
  int64_t ld_elements;
  void* scales;              /* blocked: aligned to 16 bytes */
  const float* tensor_scale; /* NVFP4: positive, in device memory; else NULL */
  moxie_stream stream;
  moxie_scale_layout layout;
  int32_t reserved; /* 0 */
} moxie_quantization;

/* The way back. All up to k is required. */
typedef struct moxie_dequantization {
  size_t size;
  moxie_data_type format;
  moxie_data_type type;
  int64_t rows;
  int64_t k;
  int64_t groups;
  const int32_t* offsets;
  const void* elements;
  int64_t ld_elements;
  const void* scales;
  const float* tensor_scale;
  void* values;
  int64_t ld_values;
  moxie_stream stream;
  moxie_scale_layout layout;
  int32_t reserved; /* 0 */
} moxie_dequantization;

/* Bytes of the scales that quantizing writes. Pointers are not looked at, but that offsets is NULL or not. */
MOXIE_API moxie_status moxie_scale_bytes(const moxie_quantization* arguments, size_t* bytes);
/* Asynchronous on the stream. INVALID_ARGUMENT, COMPILE, DRIVER. */
MOXIE_API moxie_status moxie_quantize(const moxie_device* device, const moxie_quantization* arguments);
MOXIE_API moxie_status moxie_dequantize(const moxie_device* device, const moxie_dequantization* arguments);
/* Writes the tensor scale of NVFP4 that uses the range of both formats. It needs neither elements nor scales nor
 * tensor_scale. `to`: float32 in device memory. */
MOXIE_API moxie_status moxie_find_tensor_scale(const moxie_device* device, const moxie_quantization* arguments,
                                               float* to);

/* ---- Packed weights: moxie/weights.h ---- */

/* MXFP4 weights from a checkpoint's order to that of the kernels. Device pointers, aligned to 16 bytes. All up to
 * k is required. Groups lie one after the other, packed_weight_bytes of one group each, and a call may pack any of
 * them. Weights of bf16 or float32 become codes and scales by moxie_quantize with MOXIE_SCALE_LAYOUT_ROW_MAJOR
 * before. */
typedef struct moxie_weight_packing {
  size_t size;
  int64_t n;          /* rows of each group: a multiple of 8, of 16 with a gate */
  int64_t k;          /* columns, a multiple of 32 */
  int64_t groups;     /* 1 to 65,535; 0 stands for 1 */
  const void* codes;  /* [groups][n][k / 2] E2M1, two in a byte, the first in the low nibble */
  const void* scales; /* [groups][n][k / 32] E8M0 */
  void* packed;       /* moxie_packed_weight_bytes */
  /* uint64 in device memory, or NULL: lowered to the first row, counted over all groups, whose scales lie too far apart
   * to be exact. Its products are NaN. The caller writes 2^64 - 1 before. */
  uint64_t* refused;
  moxie_stream stream;
  int32_t gated;          /* 1: for a gated activation */
  moxie_gate_layout gate; /* read where gated is 1 */
} moxie_weight_packing;

/* The way back. All up to k is required. */
typedef struct moxie_weight_unpacking {
  size_t size;
  int64_t n;
  int64_t k;
  int64_t groups;
  const void* packed;
  void* codes;
  void* scales;
  moxie_stream stream;
  int32_t gated;
  moxie_gate_layout gate;
} moxie_weight_unpacking;

/* INVALID_ARGUMENT. */
MOXIE_API moxie_status moxie_packed_weight_bytes(int64_t groups, int64_t n, int64_t k, size_t* bytes);
/* Asynchronous on the stream. INVALID_ARGUMENT, COMPILE, DRIVER. */
MOXIE_API moxie_status moxie_pack_weights(const moxie_device* device, const moxie_weight_packing* arguments);
MOXIE_API moxie_status moxie_unpack_weights(const moxie_device* device, const moxie_weight_unpacking* arguments);

/* ---- Around the products: moxie/routing.h, which says what the members mean ---- */

/* Experts of each token. All up to logits_type is required. */
typedef struct moxie_expert_routing {
  size_t size;
  int64_t tokens;              /* T, 0 to 1,048,576 */
  int64_t experts;             /* E, 1 to 1,024 */
  const void* logits;          /* [T, E] */
  int32_t* ids;                /* [T, k] */
  float* weights;              /* [T, k] */
  int32_t top_k;               /* k, 1 to 16 */
  moxie_data_type logits_type; /* BF16 or F32; there is no default */
  int64_t ld_logits;           /* elements; 0 stands for E */
  const float* correction_bias;
  const int32_t* token_count; /* in device memory, or NULL */
  moxie_router_score score;
  int32_t no_renormalize; /* 1: the weights are not divided by their sum */
  float scaling_factor;   /* 0 stands for 1 */
  int32_t expert_groups;  /* this and the next: 0 stands for 1 */
  int32_t chosen_groups;
  int32_t reserved; /* 0 */
} moxie_expert_routing;

/* Pairs by expert. All up to id_type is required. */
typedef struct moxie_expert_sort {
  size_t size;
  int64_t tokens;
  int64_t experts;
  const void* ids;  /* [T, k] */
  int32_t* ends;    /* [E] */
  int32_t* order;   /* [T k] */
  int32_t* inverse; /* [T k] */
  int32_t top_k;
  moxie_id_type id_type;
  int64_t first_expert;
  const int32_t* token_count;
} moxie_expert_sort;

/* Tokens copied to the sorted rows of their pairs. All up to type is required. */
typedef struct moxie_expert_permutation {
  size_t size;
  int64_t tokens;
  int64_t width;          /* H, a multiple of 8 */
  int64_t row_count;      /* R */
  const void* x;          /* [T, H] */
  const int32_t* inverse; /* [T, k] */
  void* out;              /* [R, H] */
  int32_t top_k;
  moxie_data_type type; /* of x and out: BF16 or F32 */
  int64_t ld_x;         /* elements; 0 stands for H */
  int64_t ld_out;
  const int32_t* token_count;
} moxie_expert_permutation;

/* Sums of each token's rows. All up to reserved is required. */
typedef struct moxie_expert_combination {
  size_t size;
  int64_t tokens;
  int64_t width;          /* H, a multiple of 8 */
  int64_t row_count;      /* R */
  const void* rows;       /* [R, H] */
  const int32_t* inverse; /* [T, k] */
  void* out;              /* [T, H] */
  int32_t top_k;
  moxie_data_type rows_type; /* this and the next: BF16 or F32 */
  moxie_data_type out_type;  /* of out and residual */
  int32_t reserved;          /* 0 */
  int64_t ld_rows;           /* elements; 0 stands for H */
  const float* weights;      /* [T, k], or NULL: 1 */
  const void* residual;      /* [T, H], or NULL: 0 */
  int64_t ld_residual;
  int64_t ld_out;
  const int32_t* token_count;
} moxie_expert_combination;

/* Asynchronous on the stream of options, which may be NULL. INVALID_ARGUMENT, COMPILE, DRIVER. */
MOXIE_API moxie_status moxie_route(const moxie_device* device, const moxie_expert_routing* arguments,
                                   const moxie_launch_options* options);
MOXIE_API moxie_status moxie_sort_by_expert(const moxie_device* device, const moxie_expert_sort* arguments,
                                            void* workspace, size_t workspace_bytes,
                                            const moxie_launch_options* options);
MOXIE_API moxie_status moxie_permute(const moxie_device* device, const moxie_expert_permutation* arguments,
                                     const moxie_launch_options* options);
MOXIE_API moxie_status moxie_combine(const moxie_device* device, const moxie_expert_combination* arguments,
                                     const moxie_launch_options* options);
/* INVALID_ARGUMENT. */
MOXIE_API moxie_status moxie_sort_workspace_bytes(int64_t tokens, int32_t top_k, int64_t experts, size_t* bytes);

/* ---- A whole layer: moxie/layer.h, which says what the members mean ---- */

typedef struct moxie_expert_layer moxie_expert_layer; /* a layer that is planned and compiled */

/* How experts are chosen from logits. All up to logits_type is required. */
typedef struct moxie_router_description {
  size_t size;
  moxie_data_type logits_type; /* BF16 or F32; there is no default */
  moxie_router_score score;
  int32_t no_renormalize;  /* 1: the weights are not divided by their sum */
  float scaling_factor;    /* 0 stands for 1 */
  int32_t correction_bias; /* 0 or 1 */
  int32_t expert_groups;   /* this and the next: 0 stands for 1 */
  int32_t chosen_groups;
  int32_t reserved; /* 0 */
} moxie_router_description;

/* Experts spread over GPUs that reach each other's memory. All up to rank is required. */
typedef struct moxie_rank_description {
  size_t size;
  int32_t ranks;           /* R, 1 to 72 */
  int32_t rank;            /* this one */
  int64_t max_rows;        /* that a rank's experts get in a call; 0 stands for R max_tokens min(top_k, experts) */
  double time_limit;       /* seconds that a kernel waits for another rank, up to 3,600; 0 stands for 30 */
  moxie_row_format format; /* of tokens on their way */
  int32_t has_results;     /* 0: the shape decides */
  moxie_result_format results;
  int32_t reserved; /* 0 */
} moxie_rank_description;

/* What a layer computes: sizes, types and choices. All up to top_k is required. */
typedef struct moxie_expert_layer_description {
  size_t size;
  int64_t experts;                  /* E, 1 to 1,024 */
  int64_t hidden;                   /* H, a multiple of 8, with scales of 32 */
  int64_t width;                    /* I, behind the gate: as H */
  int64_t max_tokens;               /* 0 to 1,048,576 */
  moxie_activation_spec activation; /* there is no default */
  int32_t top_k;                    /* k, 1 to 16 */
  moxie_operand_format weights;     /* BF16, or MXFP4 for packed weights; or as activations */
  int64_t first_expert;
  int64_t all_experts; /* 0 stands for first_expert + experts */
  moxie_gate_layout gate;
  int32_t up_bias; /* this and the next two: 0 or 1 */
  int32_t down_bias;
  int32_t residual;
  moxie_data_type out; /* BF16 or F32 */
  moxie_id_type id_type;
  const moxie_router_description* router; /* or NULL: calls bring topk_ids and topk_weights */
  int32_t has_expected_tokens;
  moxie_operand_format activations; /* BF16; or MXFP4 or NVFP4 with weights of the same format (sm_100a) */
  int64_t expected_tokens;
  int32_t has_permute;                 /* 0: the tokens of a call decide */
  int32_t permute;                     /* 0 or 1 */
  const moxie_rank_description* ranks; /* or NULL: all experts that a call computes are here */
} moxie_expert_layer_description;

/* The tensors of one call. All up to out is required. What the description has no use for is NULL. */
typedef struct moxie_expert_layer_tensors {
  size_t size;
  int64_t tokens;            /* T, 0 to max_tokens */
  moxie_const_tensor x;      /* [T, H] bf16; tensor_scale: with activations in NVFP4, or NULL for 1 */
  moxie_const_tensor up;     /* [E, 2 I, H] with a gate, else [E, I, H] */
  moxie_const_tensor down;   /* [E, H, I] */
  moxie_tensor out;          /* [T, H] */
  const void* topk_ids;      /* [T, k], without a router */
  const float* topk_weights; /* [T, k], without a router; NULL: every weight is 1 */
  const void* up_bias;       /* bf16 [E, 2 I or I] */
  const void* down_bias;     /* bf16 [E, H] */
  moxie_const_tensor residual;
  const int32_t* token_count;      /* in device memory, or NULL */
  const void* logits;              /* [T, all_experts], with a router */
  int64_t ld_logits;               /* elements; 0 stands for all_experts */
  const float* correction_bias;    /* [all_experts], where the router has one */
  int32_t* chosen_ids;             /* with a router: [T, k], or NULL */
  float* chosen_weights;           /* with a router: [T, k], or NULL */
  const float* inner_tensor_scale; /* with activations in NVFP4: of the rows between the products, or NULL for 1 */
  void* const* windows;            /* with ranks: the address of each rank's window, [R] in host memory */
  const int32_t* places;           /* with ranks: int32 [all_experts] in device memory, or NULL: expert e in place e */
} moxie_expert_layer_tensors;

/* Checks, plans and compiles. INVALID_ARGUMENT: the description breaks a rule; UNSUPPORTED: the device has no kernel
 * for it; COMPILE; DRIVER. */
MOXIE_API moxie_status moxie_expert_layer_create(const moxie_device* device,
                                                 const moxie_expert_layer_description* description,
                                                 moxie_expert_layer** layer);
MOXIE_API void moxie_expert_layer_release(moxie_expert_layer* layer);
/* Computes. Asynchronous on the stream, allocates nothing, may be captured into a CUDA graph. Everything is checked
 * before anything is launched. workspace: device memory aligned to 256 bytes; calls that may run at the same time need
 * one each. options: NULL for the defaults; weights_ready has no effect. INVALID_ARGUMENT, DRIVER. */
MOXIE_API moxie_status moxie_expert_layer_run(const moxie_expert_layer* layer,
                                              const moxie_expert_layer_tensors* tensors, void* workspace,
                                              size_t workspace_bytes, const moxie_launch_options* options);
/* With ranks: a part of a call. SEND, MULTIPLY and SUM are launched on one stream with the same tensors and workspace.
 * The residual is read by SUM alone and may be NULL before. INVALID_ARGUMENT, DRIVER. */
MOXIE_API moxie_status moxie_expert_layer_run_part(const moxie_expert_layer* layer, moxie_layer_part part,
                                                   const moxie_expert_layer_tensors* tensors, void* workspace,
                                                   size_t workspace_bytes, const moxie_launch_options* options);
/* tokens: of the calls, or fewer; MOXIE_NO_TOTAL for max_tokens. INVALID_ARGUMENT. */
MOXIE_API moxie_status moxie_expert_layer_workspace_bytes(const moxie_expert_layer* layer, int64_t tokens,
                                                          size_t* bytes);
/* With ranks: bytes of a window, the same on all ranks; else 0. */
MOXIE_API moxie_status moxie_expert_layer_window_bytes(const moxie_expert_layer* layer, size_t* bytes);
/* Prepares this rank's own window. All ranks do so, and then wait for each other, before any of them calls run, and
 * again after a failure. INVALID_ARGUMENT, DRIVER. */
MOXIE_API moxie_status moxie_expert_layer_prepare_window(const moxie_expert_layer* layer, void* window,
                                                         moxie_stream stream);
/* Waits for the stream. PEER with a sentence that names the ranks: what went wrong between ranks in the calls so far.
 * INVALID_ARGUMENT, DRIVER. */
MOXIE_API moxie_status moxie_expert_layer_check_ranks(const moxie_expert_layer* layer, void* window,
                                                      moxie_stream stream);
/* The plans of both products for calls of so many tokens; MOXIE_NO_TOTAL for max_tokens. Each is released by
 * moxie_plan_release. INVALID_ARGUMENT. */
MOXIE_API moxie_status moxie_expert_layer_plan(const moxie_expert_layer* layer, int64_t tokens, moxie_plan** up,
                                               moxie_plan** down);

/* ---- Kernels compiled beforehand: moxie/pack.h ---- */

/* Nothing but size is required. */
typedef struct moxie_pack_options {
  size_t size;
  int32_t arch;     /* 0: 90 (sm_90a); 100 (sm_100a) */
  int32_t sm_count; /* 0: 132 */
  moxie_pack_image image;
  int32_t threads;  /* 0: as many as there are cores */
  int64_t l2_bytes; /* this and the next two as in moxie_device_figures */
  double memory_rate;
  double clock;
} moxie_pack_options;

/* Filled by the library; nothing but size is required. */
typedef struct moxie_pack_result {
  size_t size;
  uint64_t bytes;   /* of all kernels */
  int32_t kernels;  /* distinct ones that the descriptions need */
  int32_t compiled; /* of these; the others were in the folder already */
} moxie_pack_result;

/* Compiles the kernels that products need into `folder`, to be named by MOXIE_CACHE_DIR. options and result may be
 * NULL. As moxie_plan_create for a description; COMPILE; INVALID_ARGUMENT: the folder holds a pack of another compiler;
 * OUT_OF_MEMORY: it cannot be written. */
MOXIE_API moxie_status moxie_pack(const moxie_gemm_description* const* descriptions, size_t description_count,
                                  const char* folder, const moxie_pack_options* options, moxie_pack_result* result);

/* ---- Tables of measured kernels: moxie/tuned.h ---- */

typedef struct moxie_tuned_table moxie_tuned_table;

/* One measured winner for sm_90a. Nothing but size is required. */
typedef struct moxie_tuned_hopper {
  size_t size;
  int64_t n;
  int64_t k;
  int64_t rows_from; /* mean rows of a group, the last one included */
  int64_t rows_to;
  moxie_grouping grouping;
  int32_t gated; /* 0 or 1 */
  moxie_warp_schedule schedule;
  int32_t tile_m;
  int32_t tile_n;
  moxie_multicast multicast;
} moxie_tuned_hopper;

/* The rows of a file that MOXIE_TUNED may name. INVALID_ARGUMENT with the line that is wrong. */
MOXIE_API moxie_status moxie_tuned_table_read(const char* path, moxie_tuned_table** table);
MOXIE_API void moxie_tuned_table_release(moxie_tuned_table* table);
MOXIE_API moxie_status moxie_tuned_table_count(const moxie_tuned_table* table, size_t* count);
MOXIE_API moxie_status moxie_tuned_table_get(const moxie_tuned_table* table, size_t index, moxie_tuned_hopper* row);
/* The row as a line of such a file with its final 0, cut off at `capacity` bytes. length: bytes of the whole line
 * without the 0. text may be NULL with capacity 0. */
MOXIE_API moxie_status moxie_tuned_line(const moxie_tuned_hopper* row, char* text, size_t capacity, size_t* length);

#ifdef __cplusplus
}
#endif

#endif
