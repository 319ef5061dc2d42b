// SPDX-License-Identifier: Apache-2.0
// tcgen05.alloc, tcgen05.dealloc, tcgen05.relinquish_alloc_permit (PTX ISA 9.7.16.7).
#include <bit>
#include <cstring>

#include "sim/tcgen05/state.h"

namespace sim {

namespace {

struct AllocateForm {
  uint8_t group = 1;     // .cta_group
  bool generic = false;  // the address
  AddressOperand destination;
  ValueOperand columns;
};
struct DeallocateForm {
  uint8_t group = 1;
  ValueOperand address, columns;
};
struct RelinquishForm {
  uint8_t group = 1;
};

// The value that all lanes must give alike.
uint32_t uniform(Warp& warp, const Instr& instr, ValueOperand operand, uint32_t mask, const char* what) {
  const uint32_t value = read32(warp, instr, operand, first_lane(mask));
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    if (read32(warp, instr, operand, first_lane(rest)) != value)
      fault(Hazard::IllegalUse, warp, first_lane(rest),
            std::string("the lanes of a warp give different values of ") + what);
  }
  return value;
}

void check_size(Warp& warp, const Instr& instr, uint32_t columns) {
  if (columns < kAllocationUnit || columns > kTensorColumns || !std::has_single_bit(columns))
    fault(Hazard::TensorMemory, warp, -1,
          instr.source->opcode + " of " + std::to_string(columns) +
              " columns: the number must be a power of two from 32 to 512");
}

void check_whole_warp(Warp& warp, const Instr& instr, uint32_t mask) {
  if (mask != kFullMask) fault(Hazard::IllegalUse, warp, -1, instr.source->opcode + " in a warp with exited threads");
}

void write_address(Warp& warp, const Instr& instr, uint32_t mask, uint32_t column) {
  const int lane = first_lane(mask);
  const auto& form = instr.form<AllocateForm>();
  const SharedPlace at = shared_place(warp, read_address(warp, instr, form.destination, lane), form.generic, lane);
  if (at.cta != warp.cta)
    fault(Hazard::Memory, warp, lane, instr.source->opcode + " writes to the shared memory of another block");
  if (at.offset % 4 != 0)
    fault(Hazard::Memory, warp, lane, instr.source->opcode + " writes to a misaligned address: " + hex(at.offset));
  shared_generic_write(warp, *at.cta, at.offset, 4, lane);
  std::memcpy(at.cta->shared.bytes + at.offset, &column, 4);
}

Step execute_alloc(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<AllocateForm>();
  if (!converged(warp, mask)) return Step::Wait;
  check_whole_warp(warp, instr, mask);
  const TensorGroup group = tensor_group(warp, form.group, -1);
  TensorMemory& memory = tensor_memory(*warp.cta);
  const uint32_t columns = uniform(warp, instr, form.columns, mask, "nCols");
  Cluster& cluster = *warp.cta->cluster;
  if (!(memory.request.granted && memory.request.warp == &warp)) {
    check_size(warp, instr, columns);
    if (memory.relinquished)
      fault(Hazard::TensorMemory, warp, -1, "tcgen05.alloc after tcgen05.relinquish_alloc_permit");
    if (columns > memory.smallest)
      fault(Hazard::TensorMemory, warp, -1,
            "tcgen05.alloc of " + std::to_string(columns) + " columns after one of " + std::to_string(memory.smallest) +
                ": the number must not increase");
  }
  const auto no_space = [&] { return "tcgen05.alloc of " + std::to_string(columns) + " columns, which are not free"; };
  if (group.count == 1) {
    const uint32_t column = memory.find_free(columns, nullptr);
    if (column == kTensorColumns) return wait_for(warp, no_space);
    memory.allocate(column, columns, 1, current_origin(warp, -1));
    write_address(warp, instr, mask, column);
    return Step::Next;
  }
  TensorMemory& peer = tensor_memory(*group.cta[1 - group.own]);
  TensorMemory::Request& request = memory.request;
  if (request.warp != nullptr && request.warp != &warp)
    return wait_for(warp, [] { return std::string("tcgen05.alloc behind that of another warp"); });
  if (!request.granted) {
    if (request.warp == nullptr) cluster.event();
    request.warp = &warp;
    request.columns = columns;
    if (peer.request.warp == nullptr || peer.request.granted)
      return wait_for(warp, [] { return std::string("tcgen05.alloc.cta_group::2 of the peer block"); });
    if (peer.request.columns != columns)
      fault(Hazard::TensorMemory, warp, -1,
            "tcgen05.alloc.cta_group::2 of " + std::to_string(columns) + " columns, the peer block's of " +
                std::to_string(peer.request.columns));
    const uint32_t column = memory.find_free(columns, &peer);
    if (column == kTensorColumns) return wait_for(warp, no_space);
    memory.allocate(column, columns, 2, current_origin(warp, -1));
    peer.allocate(column, columns, 2, current_origin(*peer.request.warp, -1));
    request.column = peer.request.column = column;
    request.granted = peer.request.granted = true;
    cluster.event();
  }
  // The two warps perform one operation (9.7.16.5, table 46): behind either's both blocks have their columns.
  if (const TensorMemory::Allocation* theirs = peer.find(request.column); theirs != nullptr)
    warp.view.seen.raise(theirs->stamp.by, theirs->stamp.at);
  write_address(warp, instr, mask, request.column);
  request = {};
  cluster.event();
  return Step::Next;
}

// A dealloc of a pair may block until the peer has done it too (9.7.16.5, table 48): it does in the lazy order.
Step execute_dealloc(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<DeallocateForm>();
  if (!converged(warp, mask)) return Step::Wait;
  check_whole_warp(warp, instr, mask);
  const TensorGroup group = tensor_group(warp, form.group, -1);
  TensorMemory& memory = tensor_memory(*warp.cta);
  const uint32_t address = uniform(warp, instr, form.address, mask, "taddr");
  const uint32_t columns = uniform(warp, instr, form.columns, mask, "nCols");
  check_size(warp, instr, columns);
  const TensorAddress at = tensor_address(address);
  Cluster& cluster = *warp.cta->cluster;
  TensorMemory::Allocation* own = at.column < kTensorColumns ? memory.find(at.column) : nullptr;
  const auto blocked = [] { return std::string("tcgen05.dealloc.cta_group::2 of the peer block"); };
  if (group.count == 2 && memory.departure.warp == &warp) {
    if (!memory.departure.done) return wait_for(warp, blocked);
    memory.departure = {};
    return Step::Next;
  }
  if (own == nullptr || own->column != at.column || at.lane != 0 || own->columns != columns || own->leaving)
    fault(Hazard::TensorMemory, warp, -1,
          "tcgen05.dealloc of " + std::to_string(columns) + " columns at " + tensor_text(at.lane, at.column) +
              ", which is no such allocation");
  const TensorAccess access{warp, -1, {TensorMark::By::Dealloc, &warp, nullptr, 0, instr.source}};
  tensor_warp(warp);
  memory.touch(access, 0, kCellRows, own->column, own->columns, true);
  if (group.count == 1) {
    memory.release(at.column);
    cluster.event();
    return Step::Next;
  }
  TensorMemory& peer = tensor_memory(*group.cta[1 - group.own]);
  TensorMemory::Allocation* theirs = peer.find(at.column);
  own->leaving = true;
  if (theirs != nullptr && theirs->leaving) {
    memory.release(at.column);
    peer.release(at.column);
    peer.departure.done = true;
    cluster.event();
    return Step::Next;
  }
  if (cluster.order.mode != Mode::Lazy) return Step::Next;
  memory.departure = {&warp, false};
  return wait_for(warp, blocked);
}

Step execute_relinquish(Warp& warp, const Instr& instr, uint32_t mask) {
  if (!complete(warp, instr, mask)) return Step::Wait;
  tensor_group(warp, instr.form<RelinquishForm>().group, -1);
  tensor_memory(*warp.cta).relinquished = true;
  return Step::Next;
}

}  // namespace

bool decode_allocation(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const std::string& op = source.parts[1];
  if (op != "alloc" && op != "dealloc" && op != "relinquish_alloc_permit") return false;
  if (!has_part(source, "sync") || !has_part(source, "aligned")) unsupported(source, ".sync.aligned is missing");
  const auto group = static_cast<uint8_t>(group_of(source));
  if (op == "alloc") {
    if (source.operands.size() != 2) unsupported(source, "wrong number of operands");
    AllocateForm form;
    form.group = group;
    form.generic = !has_part(source, "shared::cta");
    form.destination = push_address(context, source.operands[0]);
    form.columns = push_value(context, source.operands[1], ptx::Type::U32);
    out.set(form);
    out.execute = execute_alloc;
  } else if (op == "dealloc") {
    if (source.operands.size() != 2) unsupported(source, "wrong number of operands");
    DeallocateForm form;
    form.group = group;
    form.address = push_value(context, source.operands[0], ptx::Type::U32);
    form.columns = push_value(context, source.operands[1], ptx::Type::U32);
    out.set(form);
    out.execute = execute_dealloc;
  } else {
    out.set(RelinquishForm{group});
    out.execute = execute_relinquish;
  }
  return true;
}

}  // namespace sim
