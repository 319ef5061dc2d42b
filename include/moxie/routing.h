// SPDX-License-Identifier: Apache-2.0
// What stands around the two products of a Mixture-of-Experts layer, on the device: the sort of its pairs by expert. A
// pair is a token t and one of its k choices j, and its index is t k + j. docs/routing.md describes the kernels.
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

// ---- Sort ----------------------------------------------------------------------------------------------------------

// The arguments of sort_by_expert(). Pointers are device pointers, aligned to the size of their elements; arrays are
// dense and overlap none that is written.
struct ExpertSort {
  int64_t tokens = 0;  // T, 0 to 1,048,576
  int top_k = 1;       // k, 1 to 16
  // The experts that are ours: first_expert to first_expert + experts - 1. A pair with any other id, negative or too
  // large, is another rank's and is skipped.
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

// Bytes of workspace that sort_by_expert() needs: 0 up to 8,192 pairs, else 4 E (ceil(T k / 8192) + 1). Throws Error:
// InvalidArgument.
size_t sort_workspace_bytes(int64_t tokens, int top_k, int64_t experts);

// Sorts pairs by expert. The result depends on the ids alone. One launch up to 8,192 pairs, else three. Calls that may
// run at the same time need a workspace each. Throws Error: InvalidArgument, Compile, Driver.
void sort_by_expert(const Device& device, const ExpertSort& arguments, WorkspaceView workspace = {},
                    const LaunchOptions& options = {});

}  // namespace moxie
