// SPDX-License-Identifier: Apache-2.0
// The instructions on tensor maps: tensormap.replace (PTX ISA 9.7.9.28), tensormap.cp_fenceproxy (9.7.13.16),
// prefetch.tensormap (9.7.9.15).
#include <cstring>

#include "sim/async/state.h"
#include "sim/hazards/global_access.h"
#include "sim/hazards/shared_access.h"
#include "sim/hazards/tensor_map_order.h"

namespace sim {

namespace {

const uint8_t* map_bytes(Warp& warp, uint64_t address, int lane) {
  if (address % kTensorMapAlign != 0)
    fault(Hazard::Memory, warp, lane, "the tensor map at " + hex(address) + " is not aligned to 64 bytes");
  const Launch& launch = *warp.cta->cluster->launch;
  if ((address & kWindowMask) == kParamWindow) {
    const uint64_t offset = address & ~kWindowMask;
    if (offset > launch.params.size() || launch.params.size() - offset < kTensorMapBytes)
      fault(Hazard::Memory, warp, lane, "the tensor map at " + hex(address) + " passes the end of the parameters");
    return launch.params.data() + offset;
  }
  if ((address & kWindowMask) != 0)
    fault(Hazard::IllegalUse, warp, lane,
          "the tensor map at " + hex(address) + " is in neither parameter, constant nor global memory");
  return global_pointer(warp, address, kTensorMapBytes, lane);
}

}  // namespace

TensorMapFields peek_tensor_map(Warp& warp, uint64_t address, int lane) {
  const std::optional<TensorMapFields> fields = decode(map_bytes(warp, address, lane));
  if (!fields) fault(Hazard::IllegalUse, warp, lane, "the 128 bytes at " + hex(address) + " are no tensor map");
  return *fields;
}

namespace {

enum class Field : uint8_t {
  Address,
  Rank,
  BoxDim,
  GlobalDim,
  GlobalStride,
  ElementStride,
  Element,
  Interleave,
  Swizzle,
  Atomicity,
  Fill,
};

// tensormap.replace (9.7.9.28).
struct ReplaceForm {
  Field field = Field::Address;
  uint8_t ordinal = 0;  // the dimension, of fields that have several
  bool generic = false, shared = false;
  AddressOperand address;
  ValueOperand value;
};
// tensormap.cp_fenceproxy (9.7.13.16).
struct CopyFenceForm {
  AddressOperand destination, source;
};
// prefetch.tensormap (9.7.9.15).
struct PrefetchForm {
  AddressOperand map;
  bool param = false;
};

Step execute_replace(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<ReplaceForm>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t address = read_address(warp, instr, form.address, lane);
    const bool shared = form.shared || (form.generic && (address & kWindowMask) == kSharedWindow);
    uint8_t* bytes;
    if (shared) {
      const SharedPlace place = shared_place(warp, address, form.generic, lane);
      if (place.cta != warp.cta)
        fault(Hazard::IllegalUse, warp, lane, "tensormap.replace in the shared memory of another block");
      if (place.offset % kTensorMapAlign != 0)
        fault(Hazard::Memory, warp, lane,
              "tensormap.replace at " + hex(address) + ", which is not aligned to 64 bytes");
      shared_generic_read(warp, *place.cta, place.offset, kTensorMapBytes, lane);
      shared_lane_read(warp, *place.cta, place.offset, kTensorMapBytes, lane);
      shared_generic_write(warp, *place.cta, place.offset, kTensorMapBytes, lane);
      shared_lane_write(warp, *place.cta, place.offset, kTensorMapBytes, lane);
      bytes = place.cta->shared.bytes + place.offset;
    } else {
      if (address % kTensorMapAlign != 0)
        fault(Hazard::Memory, warp, lane,
              "tensormap.replace at " + hex(address) + ", which is not aligned to 64 bytes");
      bytes = global_pointer(warp, address, kTensorMapBytes, lane);
      rewrite_tensor_map(warp, address, lane);
    }
    std::optional<TensorMapFields> fields = decode(bytes);
    if (!fields) {
      const std::string text = "the 128 bytes at " + hex(address) + " are no tensor map";
      if (std::any_of(bytes, bytes + kTensorMapBytes, [](uint8_t byte) { return byte != 0; }))
        fault(Hazard::IllegalUse, warp, lane, text);
      deviation(Hazard::IllegalUse, warp, lane, [&] { return text + ": all are zero"; });
      fields.emplace();
    }
    const bool wide = form.field == Field::Address || form.field == Field::GlobalStride;
    const uint64_t value = wide ? read64(warp, instr, form.value, lane) : read32(warp, instr, form.value, lane);
    const auto check = [&](bool good, const char* rule) {
      if (!good) fault(Hazard::IllegalUse, warp, lane, instr.source->opcode + " with " + hex(value) + ": " + rule);
    };
    switch (form.field) {
      case Field::Address:
        check(value % 16 == 0, "a tensor's address is a multiple of 16");
        fields->address = value;
        break;
      case Field::Rank:
        check(value < 5, "the rank less one is 0 to 4");
        fields->rank = static_cast<uint32_t>(value) + 1;
        break;
      case Field::BoxDim:
        check(value >= 1 && value <= 256, "a box dimension is 1 to 256");
        fields->box[form.ordinal] = static_cast<uint32_t>(value);
        break;
      case Field::GlobalDim:
        // Zero stands for 2^32 in the descriptor's encoding of a size less one; a kernel that means "no rows" must
        // not ask for a copy at all.
        fields->dims[form.ordinal] = value == 0 ? uint64_t{1} << 32 : value;
        break;
      case Field::GlobalStride:
        check(value % 16 == 0 && value < uint64_t{1} << 40, "a stride is a multiple of 16 below 2^40");
        fields->strides[form.ordinal] = value;
        break;
      case Field::ElementStride:
        check(value >= 1 && value <= 8, "an element stride is 1 to 8");
        fields->element_strides[form.ordinal] = static_cast<uint32_t>(value);
        break;
      case Field::Element:
        fields->element = static_cast<TensorElement>(value);
        break;
      case Field::Interleave:
        fields->interleave = static_cast<TensorInterleave>(value);
        break;
      case Field::Swizzle:
        fields->swizzle = static_cast<TensorSwizzle>(value);
        break;
      case Field::Atomicity:
        fields->atom = static_cast<TensorAtom>(value);
        break;
      case Field::Fill:
        fields->fill = static_cast<TensorFill>(value);
        break;
    }
    encode(*fields, bytes);
  }
  return Step::Next;
}

Step execute_copy_fence(Warp& warp, const Instr& instr, uint32_t mask) {
  if (!complete(warp, instr, mask)) return Step::Wait;
  const auto& form = instr.form<CopyFenceForm>();
  const int lane = first_lane(mask);
  const uint64_t address = read_address(warp, instr, form.destination, lane);
  const uint64_t source_address = read_address(warp, instr, form.source, lane);
  const SharedPlace source = shared_place(warp, source_address, false, lane);
  for (uint32_t rest = mask & (mask - 1); rest != 0; rest &= rest - 1) {
    const int other = first_lane(rest);
    if (read_address(warp, instr, form.destination, other) != address ||
        read_address(warp, instr, form.source, other) != source_address)
      fault(Hazard::IllegalUse, warp, other, "tensormap.cp_fenceproxy with addresses that differ between lanes");
  }
  if (address % 128 != 0 || source.offset % 128 != 0)
    fault(Hazard::Memory, warp, lane, "tensormap.cp_fenceproxy with addresses that are not aligned to 128 bytes");
  shared_generic_read(warp, *source.cta, source.offset, kTensorMapBytes, lane);
  shared_lane_read(warp, *source.cta, source.offset, kTensorMapBytes, -1);
  uint8_t* const destination = global_pointer(warp, address, kTensorMapBytes, lane);
  TensorMapRecord& record = rewrite_tensor_map(warp, address, lane);
  std::memcpy(destination, source.cta->shared.bytes + source.offset, kTensorMapBytes);
  record.released = true;
  return Step::Next;
}

// A hint: the map need not be fit for use yet.
Step execute_prefetch(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<PrefetchForm>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    map_bytes(warp, read_address(warp, instr, form.map, lane) | (form.param ? kParamWindow : 0), lane);
  }
  return Step::Next;
}

bool decode_tensormap(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() < 2) return false;
  const auto& operands = source.operands;
  if (source.parts[1] == "cp_fenceproxy") {
    if (operands.size() != 3 || immediate_of(source, operands[2]) != 128) unsupported(source, "the size must be 128");
    if (!has_part(source, "tensormap::generic") || !has_part(source, "release") || !has_part(source, "global") ||
        !has_part(source, "shared::cta") || !has_part(source, "sync") || !has_part(source, "aligned"))
      unsupported(source, "the form is not known");
    CopyFenceForm form;
    form.destination = push_address(context, operands[0]);
    form.source = push_address(context, operands[1]);
    out.set(form);
    out.execute = execute_copy_fence;
    return true;
  }
  if (source.parts[1] != "replace" || source.parts.size() < 5 || !has_part(source, "tile") ||
      !has_part(source, "b1024"))
    unsupported(source, "the form is not known");
  static constexpr struct {
    const char* name;
    Field field;
    bool ordinal;
    int values;  // of an immediate new_val, 0: any register
  } kFields[] = {
      {"global_address", Field::Address, false, 0},
      {"rank", Field::Rank, false, 0},
      {"box_dim", Field::BoxDim, true, 0},
      {"global_dim", Field::GlobalDim, true, 0},
      {"global_stride", Field::GlobalStride, true, 0},
      {"element_stride", Field::ElementStride, true, 0},
      {"elemtype", Field::Element, false, 16},
      {"interleave_layout", Field::Interleave, false, 3},
      {"swizzle_mode", Field::Swizzle, false, 4},
      {"swizzle_atomicity", Field::Atomicity, false, 4},
      {"fill_mode", Field::Fill, false, 2},
  };
  for (const auto& f : kFields) {
    if (source.parts[3] != f.name) continue;
    if (operands.size() != (f.ordinal ? 3u : 2u)) unsupported(source, "wrong number of operands");
    const bool wide = f.field == Field::Address || f.field == Field::GlobalStride;
    if (!has_part(source, wide ? "b64" : "b32")) unsupported(source, "the type does not fit the field");
    ReplaceForm form;
    form.field = f.field;
    form.address = push_address(context, operands[0]);
    const ptx::Operand& value = operands.back();
    if (f.values > 0) {
      const int64_t given = immediate_of(source, value);
      if (given < 0 || given >= f.values) unsupported(source, "new value " + std::to_string(given) + " is not known");
      const bool later = (f.field == Field::Element && is_packed(static_cast<TensorElement>(given))) ||
                         (f.field == Field::Atomicity && given > 0);
      if (later && context.arch() < 100)
        unsupported(source, "new value " + std::to_string(given) + " needs sm_100 or later");
    }
    form.value = push_value(context, value, wide ? ptx::Type::U64 : ptx::Type::U32);
    if (f.ordinal) {
      const int64_t ordinal = immediate_of(source, operands[1]);
      if (ordinal < 0 || ordinal >= (f.field == Field::GlobalStride ? 4 : 5))
        unsupported(source, "ordinal " + std::to_string(ordinal) + " is not a dimension");
      form.ordinal = static_cast<uint8_t>(ordinal);
    }
    form.shared = has_part(source, "shared::cta") || has_part(source, "shared");
    form.generic = !form.shared && !has_part(source, "global");
    out.set(form);
    out.execute = execute_replace;
    return true;
  }
  unsupported(source, "field ." + source.parts[3] + " is not known");
}

// prefetch.tensormap; other prefetches are hints without effect (9.7.9.15).
bool decode_prefetch(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (!has_part(source, "tensormap")) {
    out.execute = execute_nothing;
    return true;
  }
  PrefetchForm form;
  form.map = push_map_address(context, source.operands.at(0));
  form.param = has_part(source, "param");
  out.set(form);
  out.execute = execute_prefetch;
  return true;
}

}  // namespace

void register_tensor_map() {
  register_opcode("tensormap", decode_tensormap);
  register_opcode("prefetch", decode_prefetch);
}

}  // namespace sim
