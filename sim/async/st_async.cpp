// SPDX-License-Identifier: Apache-2.0
// st.async (PTX ISA 9.7.9.12), red.async (9.7.13.7): stores into a block of the cluster that an mbarrier counts; and
// st.bulk (9.7.9.13).
#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "sim/async/copy_target.h"
#include "sim/async/families.h"
#include "sim/hazards/shared_access.h"

namespace sim {
namespace {

class AsyncStore : public AsyncOp {
 public:
  using Value = std::array<uint8_t, 16>;
  // `undefined`: bits of the value.
  AsyncStore(Origin origin, Target target, const Value& value, const Value& undefined, uint32_t bytes, Reduction op,
             TensorElement element)
      : origin_(origin),
        target_(target),
        value_(value),
        undefined_(undefined),
        bytes_(bytes),
        op_(op),
        element_(element) {}
  void perform(Cluster& cluster) override {
    uint8_t* const to = shared_bytes(*target_.cta, target_.offset);
    reduce_elements(op_, element_, to, value_.data(), bytes_);
    if (may_copy_undefined(cluster)) [[unlikely]]
      write_undefined(origin_, to, undefined_.data(), bytes_, op_ != Reduction::None);
    mbarrier_copy_done(cluster, *target_.barrier_cta, target_.barrier, target_.stamp, bytes_, origin_);
  }

 private:
  Origin origin_;
  Target target_;
  Value value_, undefined_;
  uint32_t bytes_;
  Reduction op_;
  TensorElement element_;
};

// st.async (9.7.9.12), red.async (9.7.13.7).
struct AsyncStoreForm {
  Reduction reduction = Reduction::None;
  TensorElement element = TensorElement::U32;
  uint8_t count = 1;  // values of a lane
  bool generic = false;
  AddressOperand destination, mbarrier;
  ValueOperand value;  // the first
  TargetForm target() const {
    TargetForm to;
    to.generic = generic;
    return to;
  }
};

// The values that a lane stores.
AsyncStore::Value read_values(const Warp& warp, const Instr& instr, int lane) {
  const auto& form = instr.form<AsyncStoreForm>();
  const auto width = static_cast<uint32_t>(bytes_of(form.element));
  AsyncStore::Value value{};
  for (uint32_t i = 0; i < form.count; ++i) {
    const ValueOperand at{static_cast<uint8_t>(form.value.place + i)};
    const uint64_t bits = width == 8 ? read64(warp, instr, at, lane) : read32(warp, instr, at, lane);
    std::memcpy(value.data() + i * width, &bits, width);
  }
  return value;
}

Step execute_async_store(Warp& warp, const Instr& instr, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  const auto& form = instr.form<AsyncStoreForm>();
  const auto width = static_cast<uint32_t>(bytes_of(form.element));
  const uint32_t bytes = form.count * width;
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t destination = read_address(warp, instr, form.destination, lane);
    const uint64_t barrier = read_address(warp, instr, form.mbarrier, lane);
    check_alignment(warp, lane, "destination address", destination & kSharedOffset, bytes);
    const AsyncStore::Value value = read_values(warp, instr, lane);
    AsyncStore::Value undefined{};
    if (holds_undefined(warp)) [[unlikely]] {
      const UndefinedRegisters registers(warp);
      undefined = read_values(warp, instr, lane);
    }
    const Target target = targets_of(warp, destination, barrier, form.target(), 0, lane)[0];
    SharedAccess(warp, *target.cta, SharedAccess::Kind::CpAsyncWrite, target.stamp, lane)
        .touch_for_write(target.offset, bytes, form.reduction != Reduction::None);
    cluster.engine.submit(cluster, std::make_unique<AsyncStore>(Origin{&warp, instr.source, lane}, target, value,
                                                                undefined, bytes, form.reduction, form.element));
  }
  return Step::Next;
}

constexpr uint64_t kLargestBulkStore = 1 << 24;

// st.bulk (9.7.9.13): zeros, written as ordinary stores are.
struct BulkStoreForm {
  bool generic = false, wide_size = false;
  AddressOperand destination;
  ValueOperand size;
};

Step execute_bulk_store(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<BulkStoreForm>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t size = form.wide_size ? read64(warp, instr, form.size, lane) : read32(warp, instr, form.size, lane);
    if (size % 8 != 0 || size > kLargestBulkStore)
      fault(Hazard::IllegalUse, warp, lane,
            "st.bulk of " + std::to_string(size) + " bytes, which must be a multiple of 8 up to 16777216");
    if (size == 0) continue;
    const uint64_t address = read_address(warp, instr, form.destination, lane);
    const SharedPlace place = shared_place(warp, address, form.generic, lane);
    if (place.cta != warp.cta) fault(Hazard::IllegalUse, warp, lane, "st.bulk into the shared memory of another block");
    const auto bytes = static_cast<uint32_t>(size);
    shared_generic_write(warp, *place.cta, place.offset, bytes, lane, true);
    shared_lane_write(warp, *place.cta, place.offset, bytes, lane);
    std::memset(shared_bytes(*place.cta, place.offset), 0, bytes);
    shared_stores_done(warp);
  }
  return Step::Next;
}

bool decode_bulk_store(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() < 2 || source.parts[1] != "bulk") return false;
  if (context.arch() < 100) unsupported(source, "it needs sm_100 or later");
  BulkStoreForm form;
  form.generic = true;
  for (size_t i = 2; i < source.parts.size(); ++i) {
    const std::string& part = source.parts[i];
    if (part == "shared" || part == "shared::cta")
      form.generic = false;
    else if (part != "weak")
      unsupported(source, "the modifier ." + part + " is not known");
  }
  need_operands(source, 3);
  if (immediate_of(source, source.operands[2]) != 0) unsupported(source, "the value that is stored must be 0");
  form.destination = push_address(context, source.operands[0]);
  if (form.generic && !form.destination.wide) unsupported(source, "a generic address has 64 bits");
  const ptx::Type type = context.register_type(source.operands[1]);
  form.wide_size = type == ptx::Type::None || ptx::bytes_of(type) == 8;
  form.size = push_value(context, source.operands[1], form.wide_size ? ptx::Type::U64 : ptx::Type::U32);
  out.set(form);
  out.execute = execute_bulk_store;
  return true;
}

bool decode_async_store(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() < 2 || source.parts[1] != "async") return false;
  const bool reduce = source.parts[0] == "red";
  // These release, and complete with the block (9.7.9.12, 9.7.13.7).
  if (has_part(source, "global") || has_part(source, "release") || has_part(source, "mmio"))
    unsupported(source, context.arch() < 100 ? "asynchronous stores to global memory need sm_100 or later"
                                             : "asynchronous stores to global memory are not simulated");
  const bool elsewhere = has_part(source, "shared") || has_part(source, "shared::cta");
  if (!has_part(source, "mbarrier::complete_tx::bytes") || elsewhere)
    unsupported(source, "only the forms into .shared::cluster that signal an mbarrier are known");
  const std::optional<TensorElement> element = element_from_name(source.parts.back());
  AsyncStoreForm form;
  for (const std::string& part : source.parts) {
    if (reduce && form.reduction == Reduction::None)
      form.reduction = reduction_from_name(part).value_or(Reduction::None);
  }
  if (!element || reduce != (form.reduction != Reduction::None) || !reduction_supports(form.reduction, *element, true))
    unsupported(source, "the operation on that type is not known");
  form.element = *element;
  form.count = has_part(source, "v4") ? 4 : has_part(source, "v2") ? 2 : 1;
  const int width = bytes_of(*element);
  if (width < 4 || form.count * width > 16 || (reduce && form.count != 1)) unsupported(source, "the form is not known");
  need_operands(source, 3);
  const ptx::Operand& value = source.operands[1];
  if ((value.kind == ptx::Operand::Kind::Vector ? value.elements.size() : 1) != form.count)
    unsupported(source, "the vector has the wrong number of elements");
  form.destination = push_address(context, source.operands[0]);
  form.mbarrier = push_address(context, source.operands[2]);
  form.generic = !has_part(source, "shared::cluster");
  if (form.generic && !(form.destination.wide && form.mbarrier.wide))
    unsupported(source, "generic addresses have 64 bits");
  form.value = push_value(context, value, width == 8 ? ptx::Type::B64 : ptx::Type::B32);
  out.set(form);
  out.execute = execute_async_store;
  return true;
}

}  // namespace

void register_st_async() {
  register_opcode("st", decode_async_store);
  register_opcode("st", decode_bulk_store);
  register_opcode("red", decode_async_store);
}

}  // namespace sim
