// Checks of what a caller asks for. Each throws Error(InvalidArgument) whose sentence names the argument.
#pragma once
#include "moxie/gemm.h"

namespace moxie::ops {

constexpr int64_t kMaxGroups = 65535;
constexpr int kMaxSinks = 8;
constexpr int kMaxSinkParams = 1024;  // bytes of a CustomSink's params; a kernel's arguments have 4,096 in all

void check_problem(const GemmProblem& problem);

// After check_problem. `workspace` is what workspace_bytes() says.
void check_arguments(const GemmProblem& problem, const GemmArguments& arguments, size_t workspace);

// Rows that have scales, of all the operations on scales.
void check_scale_rows(int64_t groups, int64_t rows, int64_t k, int64_t block);
// Tiles of 128 rows that they have, or with offsets can have.
int64_t scale_row_tiles(int64_t groups, int64_t rows, bool offsets);

// As messages say it.
const char* format_name(OperandFormat format);

// Rows of the outputs (and but for KGroups of A) in memory, all groups together. Not for Pointers.
int64_t total_rows(const GemmProblem& problem);

// Columns of pre or out.
int64_t value_width(const GemmProblem& problem, bool pre);
// An output is quantised.
bool is_scaled_output(const GemmProblem& problem);

// No output element exists, so nothing is to be launched.
bool is_empty(const GemmProblem& problem);

}  // namespace moxie::ops
