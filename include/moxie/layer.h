// SPDX-License-Identifier: Apache-2.0
// A whole Mixture-of-Experts layer in one call:
//
//   y[t] = residual[t] + sum over the k experts e of token t:
//          weight[t, e] * (act(x[t] up[e]^T + up_bias[e]) down[e]^T + down_bias[e])
//
// from tokens, the experts that a router chose for them and the experts' weights, or from the router's logits. A layer
// is described once (ExpertLayerDescription), planned and compiled once (ExpertLayer), and run often with any number of
// tokens up to the most that it was made for. docs/layer.md shows its kernels and what they move.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "moxie/activation.h"
#include "moxie/device.h"
#include "moxie/gemm.h"
#include "moxie/plan.h"
#include "moxie/routing.h"
#include "moxie/tensor.h"
#include "moxie/types.h"

namespace moxie {

class ExpertLayer;
struct ExpertLayerTensors;
namespace ops {
struct LayerSteps;
// Internal, for tests in which several ranks share a device: takes some steps of a call over ranks.
void run_steps(const ExpertLayer&, const ExpertLayerTensors&, WorkspaceView, const LaunchOptions&, const LayerSteps&);
}  // namespace ops

// How experts are chosen from logits, as ExpertRouting says (moxie/routing.h).
struct RouterDescription {
  DataType logits_type = DataType::F32;      // F32 or Bf16
  RouterScore score = RouterScore::Softmax;  // what the logits become
  bool renormalize = true;                   // weights are divided by their sum
  float scaling_factor = 1;                  // of the weights
  bool correction_bias = false;              // whether ExpertLayerTensors::correction_bias is added to choose by
  int expert_groups = 1;                     // groups of neighboring experts, of which
  int chosen_groups = 1;                     // a token's best are looked at
};

// A layer whose experts are spread over ranks: GPUs of which each reads and writes a window of every other's memory.
// docs/distributed.md describes windows, kernels and failures. All members but `rank` and time_limit are the same on
// all ranks, as are experts, all_experts, top_k, hidden and max_tokens of the layer.
struct RankDescription {
  int ranks = 1;  // R, 1 to 72; R times experts is at most 1,024
  int rank = 0;   // which of them this one is
  // The most rows, one for each pair of a token and an expert, that the experts of one rank may get in a call, from all
  // ranks together. Absent: R * max_tokens * min(top_k, experts), which is never exceeded by tokens that name no expert
  // twice. A call in which a rank would get more is refused on the device, by all ranks alike: its outputs are NaN, and
  // ExpertLayer::check_ranks() says why.
  std::optional<int64_t> max_rows = {};
  RowFormat format = RowFormat::Bf16;  // of tokens on their way to their experts
  // What travels back. Absent: Rows or Sums, whichever keeps many tokens waiting for less time if every expert is as
  // popular. Rows travel while the second product computes others, so that a width of 768 or more makes it Rows but
  // where two or four ranks have tokens with more than eleven choices. Rows are added in the order of a token's
  // choices, as on one rank. Sums are added in the order in which the choices name their ranks.
  std::optional<ResultFormat> results = {};
  // Seconds that a kernel waits for another rank: more than 0, at most 3,600. When they have passed, this and all later
  // calls end without touching another rank, outputs are NaN, and ExpertLayer::check_ranks() says who did not come.
  double time_limit = 30;
};

// What a layer computes: sizes, types and choices, but no pointers.
struct ExpertLayerDescription {
  int64_t experts = 1;  // E, whose weights are here: 1 to 1,024
  // Ids of experts are 0 to all_experts - 1, and those from first_expert on are ours. Pairs with other ids, whatever
  // they are, are skipped: other GPUs compute them.
  int64_t first_expert = 0;
  std::optional<int64_t> all_experts = {};  // of all GPUs; absent: first_expert + experts
  int top_k = 1;                            // k, experts of a token: 1 to 16
  int64_t hidden = 0;                       // H, elements of a token: a positive multiple of 8, with scales of 32
  int64_t width = 0;                        // I, elements between the two products, behind the gate: as H
  // Of up and down. Beside activations of bf16, Mxfp4 stands for packed weights (moxie/weights.h).
  OperandFormat weights = OperandFormat::Bf16;
  // What both products multiply the weights with. Mxfp4 or Nvfp4 (sm_100a), which weights must be then, too: tokens are
  // quantized before the first product, and the rows between the products as they leave it (moxie/quantize.h).
  OperandFormat activations = OperandFormat::Bf16;
  ActivationSpec activation = Activation::Swiglu;  // a gated one makes up twice as high
  GateLayout gate = GateLayout::Interleaved;       // where gate and up lie in the rows of up, with a gated activation
  bool up_bias = false;                            // whether ExpertLayerTensors::up_bias is added
  bool down_bias = false;                          // whether ExpertLayerTensors::down_bias is added
  bool residual = false;                           // whether ExpertLayerTensors::residual is added
  DataType out = DataType::Bf16;                   // of y: Bf16 or F32
  IdType id_type = IdType::Int32;                  // of topk_ids
  std::optional<RouterDescription> router = {};    // absent: calls bring topk_ids and topk_weights
  int64_t max_tokens = 0;                          // the most that a call has: 0 to 1,048,576
  // Tokens of a typical call, where all have about as many: one kernel a product is planned and compiled. Absent: one
  // for every range of tokens up to max_tokens, and each call takes those for its tokens. It changes no result.
  std::optional<int64_t> expected_tokens = {};
  // Whether a launch of its own copies the tokens in the order of the sort, before the first product (permute() in
  // moxie/routing.h), which otherwise gathers them while it loads. Absent: not on Hopper; on Blackwell and over
  // ranks where experts have 32 tokens or more on average, by the number of tokens for which a call's kernels were
  // planned. The copy takes no memory of its own: it lies where the second product's rows come to lie.
  // Tokens that are quantized are always copied, in the launch that quantizes them, and false is refused.
  std::optional<bool> permute = {};
  // Present: the experts of all ranks compute together, `experts` of them on each rank, and first_expert is 0. Expert e
  // is the one in place e: number e % experts of rank e / experts, unless ExpertLayerTensors::places says otherwise.
  // all_experts, absent: ranks * experts. Activations are bf16.
  std::optional<RankDescription> ranks = {};
};

// The tensors of one call, in device memory. What the description has no use for is null. Matrices are row-major and
// aligned to 16 bytes, with leading dimensions in elements that are multiples of 16 bytes, where 0 stands for the
// width; the other arrays are dense and aligned to their elements. What is written overlaps nothing else, but that out
// may be the residual.
struct ExpertLayerTensors {
  int64_t tokens = 0;                    // T, 0 to max_tokens
  const int32_t* token_count = nullptr;  // or null. How many of them there are, brought into 0 to T by the kernels
  ConstTensor x = {};                    // [T, H] bf16

  // With activations in Nvfp4: x.tensor_scale is the positive float that tokens are quantized with, and this the one of
  // the rows between the products, each in device memory; null stands for 1.
  const float* inner_tensor_scale = nullptr;

  const void* topk_ids = nullptr;       // [T, k], without a router
  const float* topk_weights = nullptr;  // [T, k], without a router; null: every weight is 1

  const void* logits = nullptr;            // [T, all_experts], with a router
  int64_t ld_logits = 0;                   // elements between tokens; 0 stands for all_experts
  const float* correction_bias = nullptr;  // [all_experts], where the router has one
  int32_t* chosen_ids = nullptr;           // with a router: receives [T, k], or null
  float* chosen_weights = nullptr;         // with a router: receives [T, k], or null

  // [E, 2 I, H] with a gate, else [E, I, H]; bf16, or packed_weight_bytes({E, 2 I or I, H, ...}). Beside activations
  // that are quantized: elements and blocked scales as quantize() writes them of E groups, and with Nvfp4 a tensor
  // scale of each expert, [E], or null for 1.
  ConstTensor up = {};
  const void* up_bias = nullptr;    // bf16 [E, 2 I or I], aligned to 16 bytes
  ConstTensor down = {};            // [E, H, I]; bf16, packed_weight_bytes({E, H, I}), or as up
  const void* down_bias = nullptr;  // bf16 [E, H], aligned to 16 bytes
  ConstTensor residual = {};        // [T, H] of out's type
  Tensor out = {};                  // receives y [T, H]; rows of tokens past *token_count are left untouched

  // With ranks: where this device reaches the window of each rank, [R] addresses in host memory, read by run(). Ours is
  // windows[rank]. Each is window_bytes() of device memory, aligned to 256 bytes.
  void* const* windows = nullptr;
  // With ranks, or null: the place of each expert, rank * experts + number, int32 [all_experts] in device memory, the
  // same on all ranks. An expert whose place is none of theirs is skipped.
  const int32_t* places = nullptr;
};

// The kernels of a layer's two products.
struct ExpertLayerPlan {
  PlanInfo up;    // the first; its kernel says whether it gathers rows
  PlanInfo down;  // the second
};

// A layer that is planned and compiled. Cheap to copy; copies share everything. Thread-safe.
class ExpertLayer {
 public:
  // Checks, plans and compiles. Throws Error: InvalidArgument (the description breaks a rule), Unsupported (the device
  // has no kernel for it), Compile, Driver.
  ExpertLayer(const Device& device, const ExpertLayerDescription& description);

  // Computes. Asynchronous on options.stream. Allocates nothing, reads no device memory on the host, takes no lock, and
  // may be captured into a CUDA graph. Everything is checked before anything is launched. Calls that may run at the
  // same time need a workspace each. options.weights_ready has no effect: a layer's second product reads its weights
  // early in any case. Throws Error: InvalidArgument, Driver.
  //
  // The result is the same bits in every run. Rows of the two products are rounded to bf16 or quantized between them,
  // rounded to bf16 behind the second, and summed in float32 in the order of a token's choices (combine() in
  // moxie/routing.h). NaN reaches the tokens alone that it is multiplied for.
  //
  // part, with ranks: a call may be launched in three parts, Send, Multiply and Sum in this order on one stream, with
  // the same tensors and the same workspace, which nobody else uses meanwhile. What the caller launches between Send
  // and Multiply runs while tokens are on their way. The residual is read by Sum alone and may be null before, so that
  // another stream may compute it while the parts before run; the caller has this one wait for it before Sum.
  void run(const ExpertLayerTensors& tensors, WorkspaceView workspace, const LaunchOptions& options = {},
           LayerPart part = LayerPart::All) const;

  // Bytes of workspace that run() needs for so many tokens or fewer; absent: for max_tokens. The workspace is aligned
  // to 256 bytes. With P = T k pairs they are, each rounded up to 256,
  //   2 P I and 2 P H        the rows between the products and behind the second
  //   P I / 2, S(I) and      instead with quantized activations, where the second product's rows come to lie over the
  //   max(2 P H, U(P H / 2) + S(H))  first one's operand. U rounds up to 256, and S(K) are the bytes of blocked scales,
  //                          512 (floor(P / 128) + E) ceil(K / 128), with Nvfp4 ceil(K / 64)
  //   4 P twice, 4 E         order, inverse and ends
  //   4 P twice              ids and weights, with a router
  //   and the most that sort_by_expert() or a product needs for itself.
  // Throws Error: InvalidArgument.
  size_t workspace_bytes(std::optional<int64_t> tokens = {}) const;

  // With ranks: bytes of a window, the same on all ranks; else 0.
  size_t window_bytes() const;

  // Prepares this rank's own window for the first call, and again after a failure. Ordered on `stream`, and done when
  // it returns. All ranks do so, and then wait for each other, before any of them calls run(). Layers whose windows
  // have the same bytes may share them, if all ranks call them in the same order on one stream. Throws Error:
  // InvalidArgument, Driver.
  void prepare_window(void* window, Stream stream = nullptr) const;

  // Waits for `stream` and throws what went wrong between ranks in the calls so far: Error Peer, whose sentence names
  // the ranks. After a call that would have brought a rank too many rows, the next call is none the worse, and the
  // failure is said once. After any other no call computes anything until all ranks have prepared their windows again.
  void check_ranks(void* window, Stream stream = nullptr) const;

  // What was planned for calls of so many tokens; absent: of max_tokens.
  ExpertLayerPlan plan(std::optional<int64_t> tokens = {}) const;

  const ExpertLayerDescription& description() const;  // as given to the constructor
  const Device& device() const;                       // where it runs

 private:
  friend void ops::run_steps(const ExpertLayer&, const ExpertLayerTensors&, WorkspaceView, const LaunchOptions&,
                             const ops::LayerSteps&);
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

}  // namespace moxie
