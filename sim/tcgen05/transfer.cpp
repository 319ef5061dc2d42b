// SPDX-License-Identifier: Apache-2.0
// tcgen05.ld, tcgen05.st and tcgen05.wait (PTX ISA 9.7.16.8): between tensor memory and registers. They move their data
// when they are issued: whoever could tell the difference breaks a rule that is checked here or in state.cpp.
#include <cstdio>

#include "sim/hazards/undefined.h"
#include "sim/tcgen05/state.h"

namespace sim {

namespace {

enum class TransferShape : uint8_t { L32x32b, L16x64b, L16x128b, L16x256b, L16x32bx2 };
constexpr int kWords[] = {1, 1, 2, 4, 1};    // registers of a thread for .x1 (table 49)
constexpr int kColumns[] = {1, 2, 4, 8, 1};  // columns of .x1

// Where register i of lane t stands (9.7.16.2.3.1): a lane, and a column in units of registers of a lane.
struct Place {
  uint32_t lane, column;
};
Place place_of(TransferShape shape, uint32_t i, uint32_t t) {
  switch (shape) {
    case TransferShape::L32x32b:
      return {t, i};
    case TransferShape::L16x64b:
      return {t / 4 + 8 * (t & 1), 2 * i + (t >> 1 & 1)};
    case TransferShape::L16x128b:
      return {t / 4 + 8 * (i & 1), 4 * (i / 2) + t % 4};
    case TransferShape::L16x256b:
      return {t / 4 + 8 * (i >> 1 & 1), 8 * (i / 4) + 2 * (t % 4) + (i & 1)};
    case TransferShape::L16x32bx2:
      return {t % 16, i};
  }
  return {};
}

// tcgen05.ld, tcgen05.st.
struct TransferForm {
  TransferShape shape = TransferShape::L32x32b;
  bool packed = false, store = false;
  uint16_t registers = 0, columns = 0;  // of one access
  uint32_t split = 0;                   // 16x32bx2: columns to the second access
  AddressOperand address;
  ValueOperand data;  // the first register
};
// tcgen05.wait.
struct WaitForm {
  bool stores = false;  // else loads
};

// Moves words between registers and tensor memory, of which `lane` gives the row of a lane.
template <class Row>
void transfer(Warp& warp, const Instr& instr, const TensorAddress& at, const Row& lane) {
  const auto& f = instr.form<TransferForm>();
  const bool two = f.shape == TransferShape::L16x32bx2;
  const uint32_t* const registers = instr.reg + f.data.place;
  for (uint32_t i = 0; i < f.registers; ++i) {
    if (registers[i] == kNoReg) continue;
    uint32_t* const row = warp.row<uint32_t>(registers[i]);
    for (uint32_t t = 0; t < kLanes; ++t) {
      const Place place = place_of(f.shape, i, t);
      uint32_t* const words = lane(at.lane + place.lane) + at.column + (two && t >= 16 ? f.split : 0);
      if (!f.packed) {
        if (f.store)
          words[place.column] = row[t];
        else
          row[t] = words[place.column];
      } else if (f.store) {  // 9.7.16.8.2
        words[2 * place.column] = row[t] & 0xffff;
        words[2 * place.column + 1] = row[t] >> 16;
      } else {
        row[t] = (words[2 * place.column] & 0xffff) | words[2 * place.column + 1] << 16;
      }
    }
  }
}

// The same of their undefined bits. What was never written is undefined altogether.
void transfer_undefined(Warp& warp, const Instr& instr, const TensorAddress& at, TensorMemory& memory, bool written) {
  const auto& f = instr.form<TransferForm>();
  hold_undefined(warp);
  if (!written) note_undefined_read(warp);
  {
    const UndefinedRegisters registers(warp);
    std::vector<uint32_t> all(written ? 0 : kTensorColumns, UINT32_MAX);
    transfer(warp, instr, at, [&](uint32_t lane) { return written ? memory.undefined_row(lane) : all.data(); });
  }
  for (uint32_t i = 0; !f.store && i < f.registers; ++i) note_undefined(warp, instr.reg[f.data.place + i]);
}

Step execute_transfer(Warp& warp, const Instr& instr, uint32_t mask) {
  if (!converged(warp, mask)) return Step::Wait;
  const auto& f = instr.form<TransferForm>();
  const std::string& opcode = instr.source->opcode;
  if (mask != kFullMask) fault(Hazard::IllegalUse, warp, -1, opcode + " in a warp with exited threads");
  const uint64_t bits = read_address(warp, instr, f.address, 0);
  for (int lane = 1; lane < kLanes; ++lane) {
    if (read_address(warp, instr, f.address, lane) != bits)
      fault(Hazard::IllegalUse, warp, lane, "the lanes of a warp give " + opcode + " different addresses");
  }
  TensorAddress at = tensor_address(bits);
  const uint32_t quarter = static_cast<uint32_t>(warp.index) % 4 * 32;
  const bool half = f.shape != TransferShape::L32x32b;
  const auto text = [&] {
    return opcode + " at lane " + std::to_string(at.lane) + ": warp " + std::to_string(warp.index) + " has lanes " +
           std::to_string(quarter) + " to " + std::to_string(quarter + 31);
  };
  if (at.lane % 32 + (half ? 16 : 32) > 32) fault(Hazard::TensorMemory, warp, -1, text());
  if (at.lane / 32 * 32 != quarter) {
    deviation(Hazard::TensorMemory, warp, -1, text);
    at.lane = quarter + at.lane % 32;
  }
  if (at.lane % kCellLanes != 0)
    fault(Hazard::TensorMemory, warp, -1, opcode + " at lane " + std::to_string(at.lane) + ", which is not aligned");
  TensorMemory& memory = tensor_memory(*warp.cta);
  TensorWarp& tensor = tensor_warp(warp);
  TensorTransfers& transfers = f.store ? tensor.stores : tensor.loads;
  const TensorAccess access{
      warp,
      -1,
      {f.store ? TensorMark::By::Store : TensorMark::By::Load, &warp, nullptr, ++transfers.count, instr.source}};
  const uint32_t cells = half ? 1 : 2;
  memory.touch(access, at.lane / kCellLanes, cells, at.column, f.columns, f.store);
  const bool written = f.store || memory.expect_written(access, at.column, f.columns);
  if (f.shape == TransferShape::L16x32bx2)
    memory.touch(access, at.lane / kCellLanes, cells, at.column + f.split, f.columns, f.store);
  if (holds_undefined(warp) || !memory.undefined.empty() || !written) [[unlikely]]
    transfer_undefined(warp, instr, at, memory, written);
  transfer(warp, instr, at, [&](uint32_t lane) { return memory.row(lane); });
  for (uint32_t i = 0; !f.store && i < f.registers; ++i) {
    const uint32_t row = instr.reg[f.data.place + i];
    if (row == kNoReg) continue;
    tensor.in_flight[row / 64] = TensorWarp::kLoaded;
    tensor.load_of[row / 64] = transfers.count;
    tensor.in_flight_rows.push_back(row / 64);
  }
  if (!f.store) warp.attention |= Warp::kInFlight;
  return Step::Next;
}

Step execute_wait(Warp& warp, const Instr& instr, uint32_t mask) {
  if (!complete(warp, instr, mask)) return Step::Wait;
  TensorWarp& tensor = tensor_warp(warp);
  const bool stores = instr.form<WaitForm>().stores;
  TensorTransfers& transfers = stores ? tensor.stores : tensor.loads;
  transfers.done = transfers.count;
  warp.view.seen.raise(transfers.waited, transfers.done);
  if (!stores) {
    for (const uint32_t row : tensor.in_flight_rows) tensor.in_flight[row] = 0;
    tensor.in_flight_rows.clear();
    warp.attention &= static_cast<uint8_t>(~Warp::kInFlight);
  }
  return Step::Next;
}

}  // namespace

bool decode_transfer(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const std::string& op = source.parts[1];
  if (op == "wait::ld" || op == "wait::st") {
    if (!has_part(source, "sync") || !has_part(source, "aligned")) unsupported(source, ".sync.aligned is missing");
    out.set(WaitForm{op == "wait::st"});
    out.execute = execute_wait;
    return true;
  }
  if (op != "ld" && op != "st") return false;
  const bool store = op == "st";
  TransferForm form;
  if (has_part(source, "red"))
    unsupported(source, "sm_100a lacks it, it needs sm_101a (now sm_110a) or sm_103f (9.7.16.8.3)");
  if (!has_part(source, "sync") || !has_part(source, "aligned") || !has_part(source, "b32"))
    unsupported(source, "the form is not known");
  static const char* const kShapes[] = {"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"};
  int shape = -1, times = 0;
  for (const std::string& part : source.parts) {
    for (int i = 0; i < 5; ++i) {
      if (part == kShapes[i]) shape = i;
    }
    if (part.size() > 1 && part[0] == 'x') std::sscanf(part.c_str(), "x%d", &times);
    if (part == (store ? "unpack::16b" : "pack::16b")) form.packed = true;
  }
  if (shape < 0 || times < 1 || times > 128 || (times & (times - 1)) != 0) unsupported(source, "the form is not known");
  const int registers = times * kWords[shape];
  if (registers > 128) unsupported(source, "the shape has no such repetition (table 49)");
  form.shape = static_cast<TransferShape>(shape);
  form.store = store;
  form.registers = static_cast<uint16_t>(registers);
  form.columns = static_cast<uint16_t>(times * kColumns[shape] * (form.packed ? 2 : 1));
  const bool two = shape == static_cast<int>(TransferShape::L16x32bx2);
  if (source.operands.size() != (two ? 3u : 2u)) unsupported(source, "wrong number of operands");
  const ptx::Operand& address = source.operands[store ? 0 : 1];
  const ptx::Operand& data = source.operands[store ? (two ? 2 : 1) : 0];
  if (two) form.split = static_cast<uint32_t>(immediate_of(source, source.operands[store ? 1 : 2]));
  if (address.kind != ptx::Operand::Kind::Address) unsupported(source, "the address must stand in brackets");
  const size_t given = data.kind == ptx::Operand::Kind::Vector ? data.elements.size() : 1;
  if (given != static_cast<size_t>(registers))
    unsupported(source, "needs a vector of " + std::to_string(registers) + " registers");
  form.address = push_address(context, address);
  form.data = push_value(context, data, ptx::Type::B32);
  out.set(form);
  out.execute = execute_transfer;
  return true;
}

}  // namespace sim
