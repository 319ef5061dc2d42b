// SPDX-License-Identifier: Apache-2.0
// st.async (PTX ISA 9.7.9.12), red.async (9.7.13.7): stores into a block of the cluster that an mbarrier counts.
#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "sim/async/copy_target.h"
#include "sim/async/families.h"

namespace sim {
namespace {

class AsyncStore : public AsyncOp {
 public:
  AsyncStore(Origin origin, Target target, const std::array<uint8_t, 16>& value, uint32_t bytes, Reduction op,
             TensorElement element)
      : origin_(origin), target_(target), value_(value), bytes_(bytes), op_(op), element_(element) {}
  void perform(Cluster& cluster) override {
    reduce_elements(op_, element_, shared_bytes(*target_.cta, target_.offset), value_.data(), bytes_);
    mbarrier_copy_done(cluster, *target_.barrier_cta, target_.barrier, target_.stamp, bytes_, origin_);
  }
  std::string describe() const override { return origin_.text(); }

 private:
  Origin origin_;
  Target target_;
  std::array<uint8_t, 16> value_;
  uint32_t bytes_;
  Reduction op_;
  TensorElement element_;
};

// st.async (9.7.9.12), red.async (9.7.13.7).
struct AsyncStoreForm {
  Reduction reduction = Reduction::None;
  TensorElement element = TensorElement::U32;
  uint8_t count = 1;  // values of a lane
  AddressOperand destination, mbarrier;
  ValueOperand value;  // the first
};

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
    std::array<uint8_t, 16> value{};
    for (uint32_t i = 0; i < form.count; ++i) {
      const ValueOperand at{static_cast<uint8_t>(form.value.place + i)};
      const uint64_t bits = width == 8 ? read64(warp, instr, at, lane) : read32(warp, instr, at, lane);
      std::memcpy(value.data() + i * width, &bits, width);
    }
    const Target target = targets_of(warp, destination, barrier, {}, 0, lane)[0];
    SharedAccess(warp, *target.cta, SharedAccess::Kind::CpAsyncWrite, target.stamp, lane).touch(target.offset, bytes);
    cluster.engine.submit(cluster, std::make_unique<AsyncStore>(Origin{&warp, instr.source, lane}, target, value, bytes,
                                                                form.reduction, form.element));
  }
  return Step::Next;
}

bool decode_async_store(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() < 2 || source.parts[1] != "async") return false;
  const bool reduce = source.parts[0] == "red";
  if (!has_part(source, "mbarrier::complete_tx::bytes") || !has_part(source, "shared::cluster"))
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
  form.value = push_value(context, value, width == 8 ? ptx::Type::B64 : ptx::Type::B32);
  out.set(form);
  out.execute = execute_async_store;
  return true;
}

}  // namespace

void register_st_async() {
  register_opcode("st", decode_async_store);
  register_opcode("red", decode_async_store);
}

}  // namespace sim
