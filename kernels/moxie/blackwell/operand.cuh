// SPDX-License-Identifier: Apache-2.0
// What differs between the formats of A and B: how many elements a 128-byte row of a stage holds, and the instruction
// that multiplies 32 bytes of each. A new format is a specialization of Operand.
#pragma once
#include "moxie/blackwell/isa.cuh"

namespace moxie::kernel {

template <OperandFormat kFormat>
struct Operand;

// tcgen05.mma.kind::mxf4.block_scale, scale_vec::2X: 64 elements of each row, two scales.
template <>
struct Operand<OperandFormat::Mxfp4> {
  static constexpr int kStepElements = 64;  // elements of K that an instruction multiplies
  static constexpr int kRowUnits = 128;     // elements of the tensor map in a row of a stage: bytes
  static constexpr int kScaleSteps = 2;     // instructions that share a tile of scales
  static constexpr int kColumnStep = 8;     // between the widths that an instruction of 128 rows can have (9.7.16.2)

  // 9.7.16.4.2, the instruction descriptor of kind::mxf4: E2M1 elements, E8M0 scales, dense, float32 result.
  static MOXIE_DEVICE constexpr uint32_t instruction(uint32_t rows, uint32_t columns) {
    return 1u << 7 | 1u << 10 | columns / 8 << 17 | 1u << 23 | rows / 128 << 27;
  }
  // Instruction i of a stage takes scales 2 i and 2 i + 1, modulo 4, of the four in a row of a tile (9.7.16.10.7).
  template <class Group>
  static MOXIE_DEVICE void multiply(Group group, uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, int step,
                                    uint32_t a_scales, uint32_t b_scales, bool accumulate) {
    const uint32_t scale = static_cast<uint32_t>(step % kScaleSteps) * 2;
    cuda::ptx::tcgen05_mma_block_scale_vec_2x(cuda::ptx::kind_mxf4, group, d, a, b,
                                              instruction | scale << 4 | scale << 29, a_scales, b_scales, accumulate);
  }
};

// tcgen05.mma.kind::mxf4nvf4.block_scale, scale_vec::4X: 64 elements of each row, with all four scales of their tile.
template <>
struct Operand<OperandFormat::Nvfp4> {
  static constexpr int kStepElements = 64;
  static constexpr int kRowUnits = 128;
  static constexpr int kScaleSteps = 1;
  static constexpr int kColumnStep = 8;

  // 9.7.16.4.2, the instruction descriptor of kind::mxf4nvf4: E2M1 elements, UE4M3 scales, dense, float32 result.
  static MOXIE_DEVICE constexpr uint32_t instruction(uint32_t rows, uint32_t columns) {
    return 1u << 7 | 1u << 10 | columns / 8 << 17 | rows / 128 << 27;
  }
  template <class Group>
  static MOXIE_DEVICE void multiply(Group group, uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, int,
                                    uint32_t a_scales, uint32_t b_scales, bool accumulate) {
    cuda::ptx::tcgen05_mma_block_scale_vec_4x(cuda::ptx::kind_mxf4nvf4, group, d, a, b, instruction, a_scales, b_scales,
                                              accumulate);
  }
};

// tcgen05.mma.kind::f16: 16 elements of each row, no scales.
template <>
struct Operand<OperandFormat::Bf16> {
  static constexpr int kStepElements = 16;
  static constexpr int kRowUnits = 64;
  static constexpr int kColumnStep = 16;

  // 9.7.16.4.2, the instruction descriptor of kind::f16: bf16 elements, dense, float32 result.
  static MOXIE_DEVICE constexpr uint32_t instruction(uint32_t rows, uint32_t columns) {
    return 1u << 4 | 1u << 7 | 1u << 10 | columns / 8 << 17 | rows / 16 << 24;
  }
  template <class Group>
  static MOXIE_DEVICE void multiply(Group group, uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                    bool accumulate) {
    cuda::ptx::tcgen05_mma(cuda::ptx::kind_f16, group, d, a, b, instruction, accumulate);
  }
};

}  // namespace moxie::kernel
