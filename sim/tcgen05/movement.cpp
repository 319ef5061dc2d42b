// SPDX-License-Identifier: Apache-2.0
// tcgen05.cp and tcgen05.shift (PTX ISA 9.7.16.9).
#include <cstring>

#include "sim/hazards/undefined.h"
#include "sim/machine/coverage.h"
#include "sim/machine/packed.h"
#include "sim/tcgen05/descriptor.h"
#include "sim/tcgen05/state.h"

namespace sim {

namespace {

enum class MovementShape : uint8_t { L128x256b, L4x256b, L128x128b, L64x128b, L32x128b };
constexpr int kRows[] = {128, 4, 128, 64, 32};
enum class Multicast : uint8_t { None, Warps0213, Warps0123, Warps4 };

// tcgen05.cp.
struct MovementForm {
  MovementShape shape = MovementShape::L128x256b;
  Multicast multicast = Multicast::None;
  Packing source = Packing::Bytes;
  uint8_t group = 1;  // .cta_group
  AddressOperand address;
  ValueOperand descriptor;
  uint32_t pieces() const {
    return shape == MovementShape::L128x256b || shape == MovementShape::L4x256b ? 2 : 1;
  }  // of 16 bytes a row
};
// tcgen05.shift.
struct ShiftForm {
  uint8_t group = 1;
  AddressOperand address;
};

// Lanes that row r goes to, counted from the address's.
int lanes_of(const MovementForm& f, int r, uint32_t lanes[4]) {
  const auto row = static_cast<uint32_t>(r);
  switch (f.shape) {
    case MovementShape::L4x256b:
      lanes[0] = 32 * row;
      return 1;  // one lane of each quarter
    case MovementShape::L64x128b:
      if (f.multicast == Multicast::Warps0213) {
        lanes[0] = row;
        lanes[1] = row + 64;
      } else {
        lanes[0] = row % 32 + row / 32 * 64;
        lanes[1] = lanes[0] + 32;
      }
      return 2;
    case MovementShape::L32x128b:
      for (uint32_t q = 0; q < 4; ++q) lanes[q] = row + 32 * q;
      return 4;
    default:
      lanes[0] = row;
      return 1;
  }
}

// E2M1 goes to the middle four bits of its byte, the 6-bit types to the lower six (9.7.16.9.1, 9.7.16.10.4.3).
void expand(Packing source, const uint8_t* from, uint8_t* to) {
  widen(source, from, to);
  if (source != Packing::Four) return;
  for (int i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>(to[i] << 2);
}

class Copy : public AsyncOp {
 public:
  Copy(Origin origin, const MovementForm& form, const TensorGroup& group, uint64_t descriptor, TensorAddress at)
      : origin_(origin), form_(form), group_(group), matrix_(descriptor), at_(at) {}
  void check(const TensorMark& mark) {
    Warp& warp = *origin_.warp;
    const TensorAccess access{warp, origin_.lane, mark};
    for (int c = 0; c < group_.count; ++c) {
      Cta& cta = *group_.cta[c];
      if (cta.finished())
        fault(Hazard::IllegalUse, warp, origin_.lane, "a tcgen05.cp of a block pair of which one block has finished");
      SharedAccess shared(warp, cta, SharedAccess::Kind::AsyncRead, {mark.pipe->done, mark.at}, origin_.lane);
      for (int r = 0; r < kRows[static_cast<int>(form_.shape)]; ++r) {
        for (uint32_t piece = 0; piece < form_.pieces(); ++piece)
          shared.touch(matrix_.k_major(static_cast<uint32_t>(r), piece), packed_bytes(form_.source));
      }
      TensorMemory& memory = tensor_memory(cta);
      if (form_.shape == MovementShape::L4x256b) {
        for (uint32_t q = 0; q < 4; ++q)
          memory.touch(access, 2 * q + at_.lane / kCellLanes, 1, at_.column, 4 * form_.pieces(), true);
      } else {
        memory.touch(access, 0, kCellRows, at_.column, 4 * form_.pieces(), true);
      }
    }
    reads_unwritten_ = holds_undefined(warp) && !warp.undefined->met.empty();
  }
  void perform(Cluster& cluster) override {
    perform_operation(cluster, origin_, group_, {{at_.column, 4 * form_.pieces()}}, reads_unwritten_, [&] { move(); });
  }

 private:
  void move() {
    for (int c = 0; c < group_.count; ++c) {
      Cta& cta = *group_.cta[c];
      TensorMemory& memory = tensor_memory(cta);
      for (int r = 0; r < kRows[static_cast<int>(form_.shape)]; ++r) {
        for (uint32_t piece = 0; piece < form_.pieces(); ++piece) {
          uint8_t bytes[16];
          expand(form_.source, cta.shared.bytes + matrix_.k_major(static_cast<uint32_t>(r), piece), bytes);
          uint32_t lanes[4];
          const int count = lanes_of(form_, r, lanes);
          for (int i = 0; i < count; ++i)
            std::memcpy(memory.row(lanes[i] + at_.lane) + at_.column + 4 * piece, bytes, 16);
        }
      }
    }
  }
  bool reads_unwritten_ = false;  // bytes of shared memory that nobody has written
  Origin origin_;
  MovementForm form_;
  TensorGroup group_;
  SharedMatrix matrix_;
  TensorAddress at_;
};

// Rows move one lane down within the 32 lanes of a warp: lane i takes what lane i + 1 had, and the last, which
// tcgen05.cp.4x256b is there to renew, stays (shape 31x256b).
class Shift : public AsyncOp {
 public:
  Shift(Origin origin, const TensorGroup& group, TensorAddress at) : origin_(origin), group_(group), at_(at) {}
  void check(const TensorMark& mark) {
    const TensorAccess access{*origin_.warp, origin_.lane, mark};
    for (int c = 0; c < group_.count; ++c)
      tensor_memory(*group_.cta[c]).touch(access, at_.lane / kCellLanes, 2, at_.column, 8, true);
  }
  void perform(Cluster& cluster) override {
    perform_operation(cluster, origin_, group_, {{at_.column, 8}}, false, [&] {
      for (int c = 0; c < group_.count; ++c) {
        TensorMemory& memory = tensor_memory(*group_.cta[c]);
        for (uint32_t i = 0; i < 31; ++i)
          std::memcpy(memory.row(at_.lane + i) + at_.column, memory.row(at_.lane + i + 1) + at_.column, 32);
      }
    });
  }

 private:
  Origin origin_;
  TensorGroup group_;
  TensorAddress at_;
};

Step execute_copy(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<MovementForm>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const TensorAddress at = tensor_address(read_address(warp, instr, form.address, lane));
    const uint64_t descriptor = read64(warp, instr, form.descriptor, lane);
    if (const std::string why = SharedMatrix::flaw(descriptor); !why.empty())
      fault(Hazard::IllegalUse, warp, lane, why);
    if (at.lane != 0 && !(form.shape == MovementShape::L4x256b && at.lane < 32))
      fault(Hazard::TensorMemory, warp, lane,
            instr.source->opcode + " at lane " + std::to_string(at.lane) +
                " of tensor memory, which its shape does not allow");
    if (coverage_wanted()) {
      static const char* const kSwizzles[] = {"no",     "128-byte of 32-byte atoms", "128-byte", "", "64-byte", "",
                                              "32-byte"};
      cover(instr, std::string(kSwizzles[descriptor >> 61]) + " swizzle");
    }
    const TensorGroup group = tensor_group(warp, form.group, lane);
    auto op = std::make_unique<Copy>(Origin{&warp, instr.source, lane}, form, group, descriptor, at);
    op->check(pipe_mark(warp, lane, *instr.source));
    submit_to_pipe(warp, group, std::move(op));
  }
  return Step::Next;
}

Step execute_shift(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<ShiftForm>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const TensorAddress at = tensor_address(read_address(warp, instr, form.address, lane));
    if (at.lane % 32 != 0)
      fault(Hazard::TensorMemory, warp, lane,
            "tcgen05.shift at lane " + std::to_string(at.lane) + " of tensor memory, which is not a multiple of 32");
    const TensorGroup group = tensor_group(warp, form.group, lane);
    auto op = std::make_unique<Shift>(Origin{&warp, instr.source, lane}, group, at);
    op->check(pipe_mark(warp, lane, *instr.source));
    submit_to_pipe(warp, group, std::move(op));
  }
  return Step::Next;
}

}  // namespace

bool decode_movement(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const std::string& op = source.parts[1];
  if (op != "cp" && op != "shift") return false;
  const auto group = static_cast<uint8_t>(group_of(source));
  const auto& operands = source.operands;
  if (operands.size() != (op == "cp" ? 2u : 1u) || operands[0].kind != ptx::Operand::Kind::Address)
    unsupported(source, "wrong operands");
  const AddressOperand address = push_address(context, operands[0]);
  if (op == "shift") {
    if (!has_part(source, "down")) unsupported(source, "the form is not known");
    out.set(ShiftForm{group, address});
    out.execute = execute_shift;
    return true;
  }
  static const char* const kShapes[] = {"128x256b", "4x256b", "128x128b", "64x128b", "32x128b"};
  static const char* const kMulticasts[] = {"", "warpx2::02_13", "warpx2::01_23", "warpx4"};
  int shape = -1, multicast = 0;
  for (const std::string& part : source.parts) {
    for (int i = 0; i < 5; ++i) {
      if (part == kShapes[i]) shape = i;
    }
    for (int i = 1; i < 4; ++i) {
      if (part == kMulticasts[i]) multicast = i;
    }
  }
  if (shape < 0) unsupported(source, "the shape is not known");
  const bool fits = shape == 3 ? multicast == 1 || multicast == 2 : shape == 4 ? multicast == 3 : multicast == 0;
  if (!fits) unsupported(source, "shape and multicast do not fit");
  MovementForm form;
  if (has_part(source, "b6x16_p32")) form.source = Packing::Six;
  if (has_part(source, "b4x16_p64")) form.source = Packing::Four;
  if ((form.source != Packing::Bytes) != has_part(source, "b8x16"))
    unsupported(source, "source and destination formats do not fit");
  form.shape = static_cast<MovementShape>(shape);
  form.multicast = static_cast<Multicast>(multicast);
  form.group = group;
  form.address = address;
  form.descriptor = push_value(context, operands[1], ptx::Type::U64);
  out.set(form);
  out.execute = execute_copy;
  return true;
}

}  // namespace sim
