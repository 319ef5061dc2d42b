// Grouped matrix products with a fused epilogue:
//
//   D[g] = A[g] (M_g x K) * B[g]^T (N x K)     bf16, MXFP4 or NVFP4 (sm_100a) operands, both K-major, accumulated in
//   float32 pre  = D + bias[g] out  = activation(pre)                      half as wide for gated activations
//
// Which rows belong to which group is read from device memory by the kernel: the host never waits for it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moxie/arguments.h"
#include "moxie/device.h"
#include "moxie/error.h"

namespace moxie {

// A caller's own sink: one more output computed in the epilogue. `type` is the C++ name of a struct that follows
// the contract in kernels/moxie/epilogue/sink.cuh, `source` the text of the header that defines it, and `params`
// the bytes of its Params structure: 1 to 1,024. A problem may have 8 sinks of this kind. Its constructor runs before
// the kernel waits for the one before it in the stream (GemmArguments::programmatic_launch): it must not touch
// global memory.
struct CustomSink {
  std::string type;
  std::string source;
  std::vector<uint8_t> params;
  SinkNeeds needs;
};

// What to compute: shapes, types and choices, but no pointers. The plan depends on this alone.
struct GemmProblem {
  Grouping grouping = Grouping::Dense;
  int64_t groups = 1;  // 1 to 65,535; 1 for Dense
  // The kernel, and with it the row alignment, depends on m only where the host knows the rows of the groups: Dense,
  // Batched, host_rows, expected_rows.
  // Rows of A: all of them (Dense; Offsets and RowGroups: the T or M of A [T, K]), of each group (Batched),
  // the allocated max_m of each group (Masked), the most that any group has (Pointers), those of A and of each group's
  // result (KGroups). 0 and more.
  int64_t m = 0;
  int64_t n = 0;  // columns of the product before a gate halves them: a multiple of 8, of 16 with a gate. (Pointers:
                  // the most of any group)
  int64_t k = 0;  // a multiple of 8 (bf16) or 32 (MXFP4, NVFP4); 0 is allowed (Pointers: the most of any group;
                  // KGroups: of all groups together)
  // Mxfp4 and Nvfp4 need sm_100a, and n a multiple of 64 with a split gate. Grouping::KGroups needs sm_100a.
  OperandFormat format = OperandFormat::Bf16;
  bool bias = false;
  Activation activation = Activation::None;
  GateLayout gate = GateLayout::Interleaved;
  // Store pre, store out, as this type: Bf16, F32, Mxfp4, Mxfp8 or Nvfp4. At least one of the two, or a custom sink. A
  // quantised output (rounded from float32 as moxie/quantize.h says) needs n to be a multiple of 32, of 64 where a gate
  // halves it; pre is not quantised with a gate.
  std::optional<DataType> pre;
  std::optional<DataType> out = DataType::Bf16;
  std::vector<CustomSink> sinks;

  // Hints and choices; absent: the plan decides.
  std::vector<int64_t> host_rows;        // rows of each group when the host knows them: sizes the grid exactly
  std::optional<int64_t> expected_rows;  // rows of a typical group, when only an estimate is known
  std::optional<WarpSchedule> schedule;
  // sm_90a: tile_m 64, 128 or 256, also 8 (ping-pong, one block, groups of fewer than 256 rows that are not given by
  // pointers, bf16 or float32 outputs, no custom sinks), tile_n 64 to 256 in steps of 32. sm_100a: tile_m 128
  // times the cluster, tile_n 32 to 256 in steps of 32, for MXFP4 on one block without a gate or custom sinks also
  // those between in steps of 16; there is no choice of schedule or multicast.
  std::optional<int> tile_m, tile_n;
  std::optional<int> cluster;          // 1 or 2
  std::optional<Multicast> multicast;  // Either: Offsets and Masked only
  // sm_100a. LaunchControl computes tiles as the device gets to them, which evens out tiles of unequal length and a GPU
  // that other kernels share; Static deals them out beforehand.
  std::optional<TileSource> scheduling;
  // sm_100a: whether B takes the side of the tensor cores that has 128 rows and A the other, which has as few as 16:
  // for groups of few rows. With it tile_m is 16, 32, 64, 128 or 256 (not for row groups), tile_n 128 times the
  // cluster. Absent: the plan decides; off where tile_m or tile_n is given.
  std::optional<bool> swap_ab;
};

// Where the operands and results are: device pointers, aligned to 16 bytes. Leading dimensions in elements,
// multiples of 8 (bf16), 32 (MXFP4, NVFP4), 16 (MXFP8) or 4 (float32), at least the width; 0 stands for the width.
// Outputs may not overlap the operands or each other.
struct GemmArguments {
  const void* a = nullptr;  // [m, k] (Dense, Offsets, RowGroups, KGroups), [groups, m, k] (Batched, Masked)
  int64_t lda = 0;
  const void* b = nullptr;  // [groups, n, k]; KGroups: [n, k]
  int64_t ldb = 0;
  // MXFP4 and NVFP4: scales (E8M0, E4M3) in the blocked layout (moxie/scales.h), a_scale_bytes() and b_scale_bytes() of
  // them.
  const void* sfa = nullptr;
  const void* sfb = nullptr;
  // NVFP4: the floats that A and each group's B are to be multiplied by (the tensor_scale of moxie/quantize.h), in
  // device memory, [1] and [groups]; null stands for 1. The product is multiplied by both before the bias is added.
  const float* a_tensor_scale = nullptr;
  const float* b_tensor_scale = nullptr;
  const void* bias = nullptr;  // bf16 [groups, n], dense; required when problem.bias
  void* pre = nullptr;         // [rows of A, n]; KGroups: [groups, m, n]
  int64_t ld_pre = 0;
  void* out = nullptr;  // [rows of A, n], or [rows of A, n / 2] with a gate
  int64_t ld_out = 0;
  // Scales of a quantised output (E8M0; NVFP4: E4M3) in the blocked layout, pre_scale_bytes() and out_scale_bytes() of
  // them, that a product of the same grouping takes as sfa. Of every tile of 128 rows that a group has, the places
  // without a row or a column become 0; other tiles are untouched. KGroups: a matrix of m rows for each group, one
  // after the other.
  void* pre_scales = nullptr;
  void* out_scales = nullptr;
  // NVFP4 outputs: the float t of moxie/quantize.h, positive, in device memory, that the next product takes as its
  // a_tensor_scale; null stands for 1.
  const float* pre_tensor_scale = nullptr;
  const float* out_tensor_scale = nullptr;
  // int32 in device memory. Offsets: [groups], entry g the end of group g's rows, the first group starts at row 0;
  // rows past the last end are untouched. RowGroups: [m], the group of each row or -1; groups start at multiples of
  // row_alignment(); rows marked -1 that share a tile with valid rows may be overwritten.
  // Masked: [groups] valid rows; rows past them are untouched. KGroups: [groups], entry g the end of group g along K, a
  // multiple of 8 (bf16) or 32: out[g] = A[:, group g] B[:, group g]^T, with 0 for a sum over nothing. Values out of
  // range are clamped by the kernel.
  const int32_t* sizes = nullptr;
  // Pointers: one entry a group, all arrays in device memory. Groups whose pointers are not aligned to 16 bytes, whose
  // leading dimensions are not multiples of 8 elements (float32 outputs: 4; MXFP4 and NVFP4 operands, and K_g: 32), or
  // whose N_g is not a multiple of 8 (16
  // with a gate) are treated as empty, an output whose pointer or leading dimension breaks these rules is not written,
  // and sizes are clamped to problem.m, n and k, since the host does not read them.
  kernel::GroupArrays arrays;
  const void* const* sfa_pointers = nullptr;  // MXFP4, NVFP4: each group's blocked scales, one matrix of M_g, N_g rows
  const void* const* sfb_pointers = nullptr;
  void* const* pre_pointers = nullptr;
  const int64_t* pre_lds = nullptr;
  void* const* out_pointers = nullptr;
  const int64_t* out_lds = nullptr;
  void* const* pre_scale_pointers = nullptr;  // of a quantised output: each group's blocked scales
  void* const* out_scale_pointers = nullptr;

  float alpha = 1.702f;       // SwigluOai
  float limit = 7.0f;         // SwigluOai; positive, infinity allowed
  void* workspace = nullptr;  // workspace_bytes() bytes, 128-byte aligned; launches that may run at once, those of
                              // several streams, need one each
  size_t workspace_bytes = 0;
  Stream stream = nullptr;
  // Programmatic dependent launch: the kernel may start while the one before it in the stream ends. Only its beginning
  // overlaps, barriers and the fetching of tensor maps; before any thread touches global memory it waits (but see
  // weights_ready) until that kernel, whatever it is, has ended and all it wrote is there. False: the launch begins
  // when all before it has ended. Needed behind a kernel of yours that is launched programmatically itself and ends
  // without having waited (griddepcontrol.wait, cudaGridDependencySynchronize): nothing else waits for what came before
  // that one; and where a captured graph is looked at through interfaces without edge data, which fail
  // (CUDA_ERROR_LOSSY_QUERY). Drivers before CUDA 12.3, whose graphs have no programmatic edges, get plain launches
  // always.
  bool programmatic_launch = true;
  // The caller's word that b, bias and sizes are written by no kernel that may still run when this one starts: not by
  // the one before it in the stream, nor by others that it follows directly (cuStreamWaitEvent, edges of a graph); and
  // where such a kernel lets dependents start before it has itself waited, not by those before that one either. This
  // library's kernels wait first; a call with m or n of 0 launches nothing and is no kernel before. Then b and sizes
  // are read while the kernel before ends; a, outputs and the workspace are touched after it, as ever. Set it for
  // weights that nothing changes where sizes are older than the kernel before, as for the second product of an expert
  // layer behind the first; not straight behind the kernel that writes sizes. On an H200 a product of one token takes 1
  // to 17% less time, of 32 tokens up to 1%. If the word is broken, results may be wrong or the kernel may never end;
  // the simulator reports b and sizes that a kernel before may be writing, but not in graphs. Without effect on
  // launches that are not programmatic, with Pointers, and on sm_100a.
  bool weights_ready = false;
};

// Bytes of workspace that gemm() needs; 0 when no tensor map changes from group to group.
// Throws Error as gemm() does for the problem.
size_t workspace_bytes(const Device& device, const GemmProblem& problem);

// Rows to which RowGroups groups must be aligned.
int64_t row_alignment(const Device& device, const GemmProblem& problem);

// Compiles the kernel for `problem`, or takes it from the cache; gemm() does this itself when it was not done before.
void prepare(const Device& device, const GemmProblem& problem);

// Computes. Asynchronous on arguments.stream; allocates nothing and reads nothing back once the kernel is prepared,
// and may be captured into a CUDA graph then. Everything is checked before anything is launched: after an Error no
// output has been touched. Throws Error: InvalidArgument, Unsupported (the device has no kernel for the problem),
// Compile, Driver.
void gemm(const Device& device, const GemmProblem& problem, const GemmArguments& arguments);

// The plan as text: the candidates with their scores and the reason for the choice. Needs no device. arch: 90 or 100.
std::string explain_plan(const GemmProblem& problem, int arch = 90, int sm_count = 132);

}  // namespace moxie
