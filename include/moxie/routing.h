// SPDX-License-Identifier: Apache-2.0
// What stands around the two products of a Mixture-of-Experts layer, on the device: the choice of each token's experts,
// the sort of the pairs by expert, and the sum of each token's rows. A pair is a token t and one of its k choices j,
// and its index is t k + j. docs/routing.md describes the kernels.
//
// Everything is asynchronous on LaunchOptions::stream, allocates nothing and may be captured into a CUDA graph. What
// the device holds, however wrong, never makes a kernel touch memory that it was not given. Kernels are launched
// programmatically unless LaunchOptions says otherwise, and wait for their predecessor before they touch global memory;
// LaunchOptions::weights_ready has no effect.
//
// `tokens` is the most that there can be. `token_count`, where it is not null, points to the number that there are, an
// int32 in device memory that the kernels read and bring into 0 to `tokens`: for batches that are padded so that one
// graph serves them all.
#pragma once
#include <cstddef>
#include <cstdint>

#include "moxie/device.h"
#include "moxie/gemm.h"
#include "moxie/types.h"

namespace moxie {

// What the ids of experts are.
enum class IdType : int { Int32, Int64 };
template <>
struct EnumTable<IdType> {
  static constexpr std::string_view kType = "IdType";
  static constexpr EnumName<IdType> kNames[] = {{IdType::Int32, "Int32", "int32"}, {IdType::Int64, "Int64", "int64"}};
};

// ---- Route ---------------------------------------------------------------------------------------------------------

// The arguments of route(). Pointers are device pointers, aligned to the size of their elements.
//
//   score[e]   softmax(logits)[e] or sigmoid(logits[e])
//   choice[e]  score[e] + correction_bias[e]
//   ids        the k experts with the highest choice, the highest first
//   weights    score[ids], renormalized: over their sum, then times scaling_factor
//
// How models say it, by the names of their configurations in Hugging Face's transformers (modeling_gpt_oss.py,
// modeling_mixtral.py, modeling_qwen3_moe.py, modular_deepseek_v3.py):
//   GPT-OSS (softmax over the chosen)     Softmax
//   Mixtral; Qwen3 with norm_topk_prob    Softmax, which over the chosen is the same as over all, renormalized
//   Qwen3 without norm_topk_prob          Softmax, renormalize = false
//   DeepSeek-V3                           Sigmoid, correction_bias, expert_groups = n_group,
//                                         chosen_groups = topk_group, renormalize = norm_topk_prob,
//                                         scaling_factor = routed_scaling_factor
//
// Everything is computed in float32. Of equal choices the lower id comes first, as torch.topk has it under
// use_deterministic_algorithms; without that its order of equals on CUDA is not specified. Softmax chooses by the
// logits, which tell apart what rounds to one probability. A NaN counts as the highest, as torch.topk has it. Whatever
// the logits are, the ids of a token are distinct and 0 to E - 1.
struct ExpertRouting {
  int64_t tokens = 0;                        // T, 0 to 1,048,576
  int64_t experts = 1;                       // E, 1 to 1,024
  int top_k = 1;                             // k, 1 to 16, at most E
  DataType logits_type = DataType::F32;      // of logits: F32 or Bf16
  const void* logits = nullptr;              // [T, E]
  int64_t ld_logits = 0;                     // elements between tokens, at least E; 0 stands for E
  RouterScore score = RouterScore::Softmax;  // what the logits become
  bool renormalize = true;                   // weights are divided by their sum; of Sigmoid by their sum + 1e-20
  float scaling_factor = 1;                  // finite
  const float* correction_bias = nullptr;    // [E], or null: 0. Sigmoid alone has one
  // Sigmoid alone: the experts lie in groups of neighbors, and a token's are chosen from its best groups alone. A group
  // is as good as the sum of its two highest choices; of equal ones the first is taken.
  int expert_groups = 1;                 // 1 to 32, so that each has two or more experts
  int chosen_groups = 1;                 // which have k experts or more
  const int32_t* token_count = nullptr;  // or null: there are `tokens`
  // Both are dense. What belongs to tokens past *token_count is left untouched.
  int32_t* ids = nullptr;    // [T, k]
  float* weights = nullptr;  // [T, k]
};

// Chooses experts. One launch. Throws Error: InvalidArgument, Compile, Driver.
void route(const Device& device, const ExpertRouting& arguments, const LaunchOptions& options = {});

// ---- Sort ----------------------------------------------------------------------------------------------------------

// The arguments of sort_by_expert(). Pointers are device pointers, aligned to the size of their elements; arrays are
// dense and overlap none that is written.
struct ExpertSort {
  int64_t tokens = 0;  // T, 0 to 1,048,576
  int top_k = 1;       // k, 1 to 16
  // The experts that are ours: first_expert to first_expert + experts - 1. A pair with any other id, negative or too
  // large, belongs to another GPU and is skipped.
  int64_t first_expert = 0;              // 0 to 2^31 - 1 - experts
  int64_t experts = 1;                   // E, 1 to 1,024
  IdType id_type = IdType::Int32;        // of ids
  const void* ids = nullptr;             // [T, k]; a token may name an expert twice
  const int32_t* token_count = nullptr;  // or null: there are `tokens`
  // [E]: where the rows of each expert end, as Rows::ends of an Offsets product. The rows of expert e begin where those
  // of e - 1 end, the first ones at row 0.
  int32_t* ends = nullptr;
  // [T k]: of each sorted row the index of its pair, so that row r is a row of token order[r] / k. The rows of an
  // expert are in the order of their pairs. Places past the last end are left untouched.
  int32_t* order = nullptr;
  // [T k]: of each pair its sorted row; -1 where it was skipped, and for tokens past *token_count.
  int32_t* inverse = nullptr;
};

// Bytes of workspace that sort_by_expert() needs: 0 up to 2,048 pairs, else 4 E (S + ceil(S / 8)) for S slices. There
// is one for every 1,024 pairs, but at most 128. Throws Error: InvalidArgument.
size_t sort_workspace_bytes(int64_t tokens, int top_k, int64_t experts);

// Sorts pairs by expert. The result depends on the ids alone. One launch up to 2,048 pairs, else two. Calls that may
// run at the same time need a workspace each. Throws Error: InvalidArgument, Compile, Driver.
void sort_by_expert(const Device& device, const ExpertSort& arguments, WorkspaceView workspace = {},
                    const LaunchOptions& options = {});

// ---- Permute -------------------------------------------------------------------------------------------------------

// The arguments of permute(). Pointers are device pointers; those to matrices are aligned to 16 bytes, others to 4.
// Leading dimensions count elements, are multiples of 16 bytes and at least the width; 0 stands for the width.
//
//   out[inverse[t, j]] = x[t]
struct ExpertPermutation {
  int64_t tokens = 0;                    // T, 0 to 1,048,576
  int top_k = 1;                         // k, 1 to 16
  int64_t width = 0;                     // H, a multiple of 8 up to 2^20
  int64_t row_count = 0;                 // R, 0 to 2^31 - 1
  DataType type = DataType::Bf16;        // of x and out: Bf16 or F32
  const void* x = nullptr;               // [T, H]
  int64_t ld_x = 0;                      // leading dimension of x
  const int32_t* inverse = nullptr;      // [T, k], as sort_by_expert() wrote it; what is not 0 to R - 1 is skipped
  const int32_t* token_count = nullptr;  // or null: there are `tokens`
  void* out = nullptr;                   // [R, H]; rows that no pair names are left untouched
  int64_t ld_out = 0;                    // leading dimension of out
};

// Copies each token to the sorted rows of its pairs, for products that do not gather (GemmDescription::gather). Tokens
// are read once. Where two pairs name one row, it gets either's token. One launch. Throws Error: InvalidArgument,
// Compile, Driver.
void permute(const Device& device, const ExpertPermutation& arguments, const LaunchOptions& options = {});

// ---- Combine -------------------------------------------------------------------------------------------------------

// The arguments of combine(). Pointers are device pointers; those to matrices are aligned to 16 bytes, others to 4.
// Leading dimensions count elements, are multiples of 16 bytes and at least the width; 0 stands for the width.
//
//   out[t] = residual[t] + sum over j of weights[t, j] * rows[inverse[t, j]]
struct ExpertCombination {
  int64_t tokens = 0;                    // T, 0 to 1,048,576
  int top_k = 1;                         // k, 1 to 16
  int64_t width = 0;                     // H, a multiple of 8 up to 2^20
  int64_t row_count = 0;                 // R, 0 to 2^31 - 1
  DataType rows_type = DataType::Bf16;   // of rows: Bf16 or F32
  const void* rows = nullptr;            // [R, H], as the second product stored them
  int64_t ld_rows = 0;                   // leading dimension of rows
  const int32_t* inverse = nullptr;      // [T, k], as sort_by_expert() wrote it; what is not 0 to R - 1 is skipped
  const float* weights = nullptr;        // [T, k], or null: 1. Those of skipped pairs count for nothing
  const void* residual = nullptr;        // [T, H] of out's type, or null: 0. It may be out itself, with its ld
  int64_t ld_residual = 0;               // leading dimension of residual
  const int32_t* token_count = nullptr;  // or null: there are `tokens`
  DataType out_type = DataType::Bf16;    // of out and residual: Bf16 or F32
  void* out = nullptr;                   // [T, H]; rows of tokens past *token_count are left untouched
  int64_t ld_out = 0;                    // leading dimension of out
};

// Sums the rows of each token in float32: from the residual, or 0, on, one fused multiply-add for each pair in the
// order of j, rounded to out's type at the end. So the result is the same bits in every run, and a NaN reaches its
// token alone. One launch. Throws Error: InvalidArgument, Compile, Driver.
void combine(const Device& device, const ExpertCombination& arguments, const LaunchOptions& options = {});

}  // namespace moxie
