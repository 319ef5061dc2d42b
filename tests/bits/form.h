// SPDX-License-Identifier: Apache-2.0
// One instruction form: the kernel that executes it, its input, and how exactly two machines must agree on its result.
#pragma once
#include <cuda.h>

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace bits {

using Random = std::mt19937_64;

// What an operand or a result holds: decides its register, its random values, and how differences are counted.
enum class Kind {
  B8,  // in a 32-bit register, whose upper bits are random too
  B16,
  B32,
  B64,
  B128,
  NonZero16,
  NonZero32,
  NonZero64,
  Count,  // 32 bits, mostly up to 70: shift counts, positions, lengths
  Carry,  // 32 bits, 0 or 1
  F16,
  BF16,
  F16x2,
  BF16x2,
  F32,
  F64,
  Small32,  // f32 within the range of the 8-bit formats
  Angle32,  // f32 within [-2 pi, 2 pi]
  Wide32,   // f32 within [-100 pi, 100 pi]
  Pred,     // in memory: 32 bits, 0 or 1
};
int bytes_of(Kind kind);
// Value `index` of a row of operands: special values first, then random bits, then values of like magnitude.
uint64_t value_of(Kind kind, Random& random, size_t index);

// How exact the result is defined. A NaN is equal to any NaN of its kind unless `nan_bits`.
struct Agreement {
  bool defined = true;  // else at least one of the bounds holds for every element
  double ulps = 0;      // units in the last place of the larger one
  double absolute = 0;
  double relative = 0;
  std::string note;  // the ISA's words on what it leaves open
  bool nan_bits = false;
};
Agreement exactly();
Agreement exactly_with_nan();
Agreement within_ulps(double ulps, const std::string& note);
Agreement within(double absolute, double relative, const std::string& note);

// A tiled tensor map over the form's input or output, given to the kernel as its third parameter.
struct Tensor {
  bool of_output = false;
  size_t offset = 0;  // bytes into that buffer
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  std::vector<cuuint64_t> dims, strides;  // strides: bytes, of the second dimension and beyond
  std::vector<cuuint32_t> box, steps;
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
};

struct Form {
  std::string family;
  std::string name;  // the instruction with its modifiers, and what else tells the form from others
  // Statements; `in` and `out` are 64-bit registers with the buffers' addresses, `t` the thread's number in the grid,
  // `map` names the tensor map. Names it declares are its own.
  std::string body;
  uint32_t blocks = 1, threads = 128, cluster = 1, shared = 0;  // shared: dynamic, named `smem`
  size_t in_bytes = 0, out_bytes = 0;
  std::function<void(Random&, uint8_t*)> fill;  // the input
  bool output_is_filled = false;                // the output starts with the bytes of the input instead of poison
  std::vector<Tensor> tensor;                   // none or one
  Kind result = Kind::B32;
  Agreement agreement;
  std::vector<Kind> operands;  // of a scalar form: what the report shows beside a difference
};

using Forms = std::vector<Form>;
void add_scalar_forms(Forms& forms);
void add_conversion_forms(Forms& forms);
void add_warp_forms(Forms& forms);
void add_memory_forms(Forms& forms);
void add_matrix_forms(Forms& forms);
void add_copy_forms(Forms& forms);
Forms all_forms();

// A form of threads that each read one value of each operand and write each result: `text` uses the registers
// d (e, ...) for results, a, b, c, ... for operands. Empty text: "name d, a, b, ...;".
constexpr uint32_t kScalarThreads = 1024;
void add_scalar(Forms& forms, const std::string& family, const std::string& name, const std::string& text,
                const std::vector<Kind>& results, const std::vector<Kind>& operands, const Agreement& agreement);
uint64_t seed_of(const std::string& name);
std::string fill_template(std::string text, const std::vector<std::pair<std::string, std::string>>& values);

}  // namespace bits
