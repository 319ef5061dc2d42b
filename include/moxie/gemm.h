// SPDX-License-Identifier: Apache-2.0
// Grouped matrix products with a fused epilogue:
//
//   D[g] = A[g] (M_g x K) * B[g]^T (N x K)    both K-major, accumulated in float32
//   pre  = D + bias[g]
//   out  = activation(pre)                    half as wide for gated activations
//
// A product is described once (GemmDescription), planned and compiled once (GroupedGemm), and run often. Which rows
// belong to which group is read from device memory by the kernel: the host never waits for it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moxie/activation.h"
#include "moxie/device.h"
#include "moxie/error.h"
#include "moxie/groups.h"
#include "moxie/plan.h"
#include "moxie/tensor.h"
#include "moxie/tuning.h"
#include "moxie/types.h"

namespace moxie {

// A caller's own output, computed in the epilogue. `type` is the C++ name of a struct that follows the contract in
// kernels/moxie/epilogue/sink.cuh, `source` the text of the header that defines it. Its constructor runs before the
// kernel waits for the predecessor grid, so it must not touch global memory.
struct CustomSink {
  std::string type;        // C++ name of the struct
  std::string source;      // text of the header that defines it
  size_t param_bytes = 0;  // sizeof its Params structure: 1 to 1,024
  SinkNeeds needs;         // what the struct declares as kNeeds
};

// The bytes of a custom sink's Params structure, in host memory, copied by the call.
struct SinkParams {
  const void* data = nullptr;  // the structure
  size_t bytes = 0;            // CustomSink::param_bytes
};

// What to compute: shapes, types and choices, but no pointers.
struct GemmDescription {
  Groups groups = Dense{};  // how the rows are divided, and the sizes that go with it
  // Columns of the product before a gate halves them: a multiple of 8, of 16 with a gate. Pointers: the most of any
  // group.
  int64_t n = 0;
  // Length of the sums: a multiple of 8 (bf16) or 32 (MXFP4, NVFP4, of either operand), may be 0. Pointers: the most of
  // any group.
  // KGroups: of all groups together.
  int64_t k = 0;
  // Of A and B. MXFP4 and NVFP4 need sm_100a, and n a multiple of 64 with a split gate.
  OperandFormat format = OperandFormat::Bf16;
  // Of B where it is not A's: Mxfp4 beside an A of bf16. b is then packed weights (moxie/weights.h), and k a multiple
  // of 32; b.ld and b.scales are left out. The values of A stay bf16, and a weight is exactly what its code and its
  // scale say. The kernels are Hopper's; they run on sm_100a too, by slower instructions of its tensor cores.
  std::optional<OperandFormat> b_format = {};
  // Whether rows of A are gathered: row r of the product is computed from the row of A that GemmTensors::gather names,
  // so that no permuted copy of A is needed. Offsets, a of bf16.
  bool gather = false;
  bool bias = false;                          // whether GemmTensors::bias is added
  ActivationSpec activation = {};             // applied to pre; a gated one halves the width
  GateLayout gate = GateLayout::Interleaved;  // where gate and up lie in B; read with a gated activation alone
  // Which results are stored, and as what. At least one of the two, or a custom sink. A quantized output is rounded
  // from float32 as moxie/quantize.h says and needs n to be a multiple of 32, of 64 where a gate halves it. `pre` is
  // not quantized with a gate.
  std::optional<DataType> pre = {};
  std::optional<DataType> out = DataType::Bf16;  // absent: not stored
  std::vector<CustomSink> sinks = {};            // at most 8

  // What the caller knows of the rows that runs will have. Neither changes what is computed.
  std::optional<int64_t> expected_rows = {};  // rows of a typical group
  std::vector<int64_t> known_rows = {};       // rows of each group, exactly: the grid then has no block too many

  // Absent: the plan decides. The one of the device's architecture is read, with packed weights that of sm_90a.
  std::optional<HopperTuning> hopper = {};
  std::optional<BlackwellTuning> blackwell = {};  // for sm_100a
};

// Which row of A each row of a product is computed from, with GemmDescription::gather: row r from row rows[r] /
// divisor. A is then [count, K]. The kernel takes any values: a row that A does not have stands for zeros.
struct Gather {
  const int32_t* rows = nullptr;  // [T] in device memory, of which as many as the last end says are read
  int32_t divisor = 1;            // positive; with the top k of a router, rows may number its pairs of token and expert
  int64_t count = 0;              // rows of A
};

// The tensors of one call; groups.h has their shapes. Outputs may not overlap inputs, the workspace or each other. What
// the description has no use for is null, and is refused otherwise; the leading dimension of an output that is not
// stored is not read. A call without a row or a column requires nothing, and one with a K of 0 neither a nor b.
struct GemmTensors {
  ConstTensor a = {};          // activations
  ConstTensor b = {};          // weights
  const void* bias = nullptr;  // bf16 [G, N], dense, aligned to 16 bytes; required with GemmDescription::bias
  // A quantized output's scales lie as the scales of a product's A of the same grouping. Of every tile of 128 rows that
  // a group has, the places without a row or a column become 0; other tiles are untouched. KGroups: a matrix of m rows
  // for each group, one after the other.
  Tensor pre = {};
  Tensor out = {};                         // activation(pre); where the description stores it
  Rows rows = {};                          // which rows belong to which group
  Gather gather = {};                      // with GemmDescription::gather; a.ld is then below 2^31
  std::span<const SinkParams> sinks = {};  // as many as GemmDescription::sinks, in that order
};

// The operands of Groups = Pointers: arrays in device memory, one entry a group.
struct ConstTensorArray {
  const void* const* data = nullptr;    // matrices, aligned to 16 bytes
  const int64_t* ld = nullptr;          // elements
  const void* const* scales = nullptr;  // MXFP4, NVFP4: blocked, a matrix of the group's own rows
  const float* tensor_scale = nullptr;  // NVFP4: of A one float, of B [G]; null stands for 1
};
// The outputs of Groups = Pointers: arrays in device memory, one entry a group.
struct TensorArray {
  void* const* data = nullptr;          // matrices, aligned to 16 bytes
  const int64_t* ld = nullptr;          // elements
  void* const* scales = nullptr;        // of a quantized output: blocked
  const float* tensor_scale = nullptr;  // NVFP4: one float; null stands for 1
};

// The tensors of one call with Groups = Pointers. The host reads none of these arrays. A group is treated as empty when
// a pointer of its operands is not aligned to 16 bytes, a leading dimension is not a multiple of 8 elements (MXFP4 and
// NVFP4, and K_g: 32), or N_g is not a multiple of 8 (16 with a gate). An output is not written where its pointer or
// leading dimension (float32: multiples of 4) breaks these rules, or the leading dimension is below its width. Sizes
// are clamped to the description's.
struct GroupPointers {
  ConstTensorArray a = {};                 // activations
  ConstTensorArray b = {};                 // weights
  const void* const* bias = nullptr;       // bf16 [N_g]
  TensorArray pre = {};                    // D + bias
  TensorArray out = {};                    // activation(pre)
  const int32_t* sizes = nullptr;          // [G][3]: M_g, N_g, K_g
  std::span<const SinkParams> sinks = {};  // as GemmTensors::sinks
};

// How one call is launched. None of it changes what is computed.
struct LaunchOptions {
  Stream stream = nullptr;  // where the kernel runs; null: the default stream
  // Programmatic dependent launch: the grid may start while its predecessor in the stream ends. Only set-up overlaps:
  // before any thread touches global memory it waits until the predecessor has ended and all it wrote is visible (but
  // see weights_ready). False: the grid begins when all work before it has ended.
  // Set it to false if the predecessor is a kernel of yours that was itself launched programmatically and never
  // executes griddepcontrol.wait: this launch would not wait for anything before it. Set it to false also where a
  // captured graph is inspected through interfaces without edge data, which fail (CUDA_ERROR_LOSSY_QUERY). Drivers
  // before CUDA 12.3, whose graphs have no programmatic edges, always get plain launches.
  bool programmatic = true;
  // The caller's promise that no kernel that may still run when this one starts writes b, bias or the arrays of Rows:
  // neither the predecessor in the stream nor others that this launch follows directly (cuStreamWaitEvent, graph
  // edges), and where such a kernel releases its dependents before it has itself waited, none before it either. Hopper
  // kernels then read b and the rows before they wait; a, the outputs and the workspace are touched after the wait as
  // always. Set it when the weights are constant and the rows were complete before the predecessor started, e.g. for a
  // layer's second product. Never set it on the launch right after the kernel that writes the rows. If the promise is
  // broken, results may be wrong or the kernel may never end; the simulator reports it, except in graphs. A call
  // without rows or columns launches nothing and is no predecessor. No effect on launches that are not programmatic,
  // with Pointers, and on sm_100a.
  bool weights_ready = false;
};

// A product that is planned and compiled. Cheap to copy; copies share everything. Thread-safe. It keeps the device's
// state alive.
class GroupedGemm {
 public:
  // Checks, plans and compiles: each kernel comes from the process, else from the cache on disk, else from NVRTC.
  // Throws Error: InvalidArgument (the description breaks a rule), Unsupported (the device has no kernel for it),
  // Compile, Driver.
  GroupedGemm(const Device& device, GemmDescription description);

  // Computes. Asynchronous on options.stream. Allocates nothing, reads no device memory on the host, takes no lock, and
  // may be captured into a CUDA graph. Everything is checked before anything is launched: after an Error no output has
  // been touched. Launches that may run at the same time (those of several streams) need a workspace each. Throws
  // Error: InvalidArgument, Driver.
  void run(const GemmTensors& tensors, WorkspaceView workspace = {}, const LaunchOptions& options = {}) const;
  // The same for Groups = Pointers, which the other overload refuses.
  void run(const GroupPointers& tensors, WorkspaceView workspace = {}, const LaunchOptions& options = {}) const;

  // Bytes of workspace that run() needs for `total` rows or fewer (see Rows::total; groupings without one ignore it);
  // 0 when no tensor map changes from group to group. Offsets and RowGroups throw InvalidArgument when neither this
  // call nor the description names a total.
  size_t workspace_bytes(std::optional<int64_t> total = {}) const;

  // RowGroups: the multiple at which every group must begin. 1 for others.
  int64_t row_alignment() const;

  // The plan that a call with `total` rows follows (groupings without a total ignore it). Offsets without a total here
  // or in the description: that of 512 rows a group. The reference is valid as long as this object or a copy is. Throws
  // InvalidArgument for a total that run() would refuse.
  const PlanInfo& plan(std::optional<int64_t> total = {}) const;

  const GemmDescription& description() const;  // as given to the constructor
  const Device& device() const;                // as given to the constructor

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace moxie
