// SPDX-License-Identifier: Apache-2.0
// Checks of what a caller asks for. Each throws Error(InvalidArgument) whose sentence names the argument.
#pragma once
#include <fmt/format.h>

#include <array>
#include <optional>

#include "moxie/error.h"
#include "moxie/gemm.h"
#include "moxie/names.h"
#include "moxie/plan.h"
#include "plan/plan.h"

namespace moxie::ops {

constexpr int kMaxSinks = 8;
constexpr int kMaxSinkParams = 1024;  // bytes of a custom sink's Params; a kernel's arguments have 4,096 in all

using plan::ProblemShape;

template <typename... T>
[[noreturn]] void reject(fmt::format_string<T...> format, T&&... values) {
  throw Error(ErrorCode::InvalidArgument, fmt::format(format, std::forward<T>(values)...));
}

template <typename Enum>
void check_enum(const char* name, Enum value) {
  if (!is_enumerator(value))
    reject("{} is {}, but only 0 to {} have a meaning", name, int(value), names<Enum>().size() - 1);
}

// One that is absent is as good as the first, which has a meaning.
template <typename Enum>
void check_enum(const char* name, std::optional<Enum> value) {
  check_enum(name, value.value_or(Enum{}));
}

// What a call reads or writes, in bytes.
struct Range {
  const char* name;
  uintptr_t begin, end;
};

// The ranges of a call, of which there are few: a call allocates nothing.
template <size_t kMost>
struct Ranges {
  void push_back(const Range& range) { ranges[count++] = range; }
  const Range* begin() const { return ranges.data(); }
  const Range* end() const { return ranges.data() + count; }
  std::array<Range, kMost> ranges;
  size_t count = 0;
};

void check_pointer(const char* name, const void* pointer, bool needed, size_t alignment);
// `count` elements of `size` bytes, that may be absent where they are not needed.
Range check_array(const char* name, const void* pointer, bool needed, size_t alignment, int64_t count, int64_t size);
// A matrix of elements of `element_bits` bits: pointer, leading dimension and place in memory.
Range check_matrix(const char* name, const char* ld_name, const void* pointer, int64_t ld, int64_t rows, int64_t width,
                   int element_bits, bool needed);
void check_disjoint(const Range& a, const Range& b);

// What a plan is made for. An architecture without plans is Unsupported.
void check_figures(const DeviceFigures& device);

// Everything but the sizes that a call brings.
void check_description(const GemmDescription& description);

// The sizes of one call, after check_description. `total_name` is what messages call the rows that a call brings.
void check_sizes(const ProblemShape& shape);

// The tensors of one call, after check_sizes. `workspace_bytes` is what the call needs.
void check_tensors(const ProblemShape& shape, const GemmDescription& description, const GemmTensors& tensors,
                   WorkspaceView workspace, size_t workspace_bytes);
void check_tensors(const ProblemShape& shape, const GemmDescription& description, const GroupPointers& tensors,
                   WorkspaceView workspace, size_t workspace_bytes);

// Rows that have scales, of all the operations on scales.
void check_scale_rows(int64_t groups, int64_t rows, int64_t k, int64_t block);
// Tiles of 128 rows that they have, or with offsets can have.
int64_t scale_row_tiles(int64_t groups, int64_t rows, bool offsets);

// Bytes of the scales of a product's operands and outputs: moxie/scales.h.
size_t a_scale_bytes(const ProblemShape& shape);
size_t b_scale_bytes(const ProblemShape& shape);
size_t output_scale_bytes(const ProblemShape& shape, bool pre);

// Rows of the outputs (and but for KGroups of A) in memory, all groups together. Not for Pointers.
int64_t total_rows(const ProblemShape& shape);

// Columns of pre or out.
int64_t value_width(const ProblemShape& shape, bool pre);

// No output element exists, so nothing is to be launched.
bool is_empty(const ProblemShape& shape);

}  // namespace moxie::ops
