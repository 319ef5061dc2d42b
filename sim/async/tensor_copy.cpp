// SPDX-License-Identifier: Apache-2.0
// cp.async.bulk.tensor, cp.reduce.async.bulk.tensor, cp.async.bulk.prefetch.tensor in the modes tile, im2col and
// im2col::w (PTX ISA 9.7.9.27.1).
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/arithmetic/half.h"
#include "sim/async/copy_target.h"
#include "sim/async/families.h"
#include "sim/async/tensor_tile.h"
#include "sim/hazards/tensor_map_order.h"
#include "sim/machine/coverage.h"

namespace sim {
namespace {

constexpr uint32_t kTensorSharedAlign = 128;

// Notes for the coverage list what the tensor map chooses.
void cover_map(const Instr& instr, const TensorMapFields& map) {
  if (!coverage_wanted()) return;
  static const char* const kElements[] = {"u8",       "u16",   "u32",       "s32",      "u64",  "s64",
                                          "f16",      "f32",   "f32.ftz",   "f64",      "bf16", "tf32",
                                          "tf32.ftz", "b4x16", "b4x16_p64", "b6x16_p32"};
  static const char* const kSwizzles[] = {"no swizzle", "32-byte swizzle", "64-byte swizzle", "128-byte swizzle"};
  static const char* const kAtoms[] = {"", " of 32-byte atoms", " of 32-byte atoms with flipped halves",
                                       " of 64-byte atoms"};
  cover(instr, kElements[static_cast<int>(map.element)]);
  cover(instr, std::string(kSwizzles[static_cast<int>(map.swizzle)]) + kAtoms[static_cast<int>(map.atom)]);
  if (map.fill == TensorFill::Nan) cover(instr, "NaN fill");
}

void fill_outside(const Tile& tile, uint8_t* row, uint32_t first_byte, uint32_t end_byte) {
  if (tile.map.fill == TensorFill::Zero) {
    std::memset(row + first_byte, 0, end_byte - first_byte);
    return;
  }
  for (uint32_t i = first_byte; i < end_byte; i += 2) std::memcpy(row + i, &isa::kOutsideNan16, 2);  // in every type
}

// The ISA does not say it, an H200 does it: tf32 keeps 10 bits of the mantissa on the way to shared memory, rounded to
// the nearest, also in tf32.ftz; loads of f32.ftz change nothing.
void round_to_tf32(uint8_t* row, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += 4) {
    uint32_t x;
    std::memcpy(&x, row + i, 4);
    x = (x & 0x7fffffff) > 0x7f800000 ? 0x7fffe000 : (x + 0xfff + (x >> 13 & 1)) & 0xffffe000;
    std::memcpy(row + i, &x, 4);
  }
}

class TensorLoad : public AsyncOp {
 public:
  TensorLoad(Origin origin, std::shared_ptr<const Tile> tile, Target target)
      : origin_(origin), tile_(std::move(tile)), target_(target) {}
  void perform(Cluster& cluster) override {
    const Tile& tile = *tile_;
    uint8_t* const shared = target_.cta->shared.bytes;
    const bool whole = tile.inside_first == 0 && tile.inside_end == tile.count[0];
    const bool rounds = tile.map.element == TensorElement::TF32 || tile.map.element == TensorElement::TF32Ftz;
    const uint32_t first = tile.inside_first * tile.unit.shared_bytes, end = tile.inside_end * tile.unit.shared_bytes;
    uint8_t buffer[256 * 8];
    tile.each_row([&](uint32_t row, bool inside, uint64_t address) {
      const uint8_t* source = reinterpret_cast<const uint8_t*>(address);
      if (is_padded(tile.map.element)) {
        fill_outside(tile, buffer, 0, tile.row_bytes);
        for (uint32_t i = tile.inside_first; inside && i < tile.inside_end; ++i) {
          // The padding is not initialised: nobody may count on zeros there.
          std::memset(buffer + 16 * i, 0xa5, 16);
          std::memcpy(buffer + 16 * i, source + tile.unit.global_bytes * i, tile.unit.global_bytes);
        }
        source = buffer;
      } else if (!inside || !whole || rounds) {
        if (inside) {
          fill_outside(tile, buffer, 0, first);
          std::memcpy(buffer + first, source + first, end - first);
          if (rounds) round_to_tf32(buffer + first, end - first);
          fill_outside(tile, buffer, end, tile.row_bytes);
        } else {
          fill_outside(tile, buffer, 0, tile.row_bytes);
        }
        source = buffer;
      }
      const uint32_t to = target_.offset + row * tile.pitch;
      if (tile.swizzle_mask == 0) {
        std::memcpy(shared + to, source, tile.row_bytes);
      } else {
        tile.put_row(shared, to, source);
      }
    });
    if (cluster.launch->global->undefined.any() && !is_padded(tile.map.element)) [[unlikely]]
      copy_undefined_rows();
    mbarrier_copy_done(cluster, *target_.barrier_cta, target_.barrier, target_.stamp, tile.counted_bytes(), origin_);
  }

 private:
  void copy_undefined_rows() {
    const Tile& tile = *tile_;
    const uint32_t first = tile.inside_first * tile.unit.shared_bytes, end = tile.inside_end * tile.unit.shared_bytes;
    std::vector<uint8_t> bits = undefined_shared(*origin_.warp, *target_.cta);
    tile.each_row([&](uint32_t row, bool inside, uint64_t address) {
      if (!inside) return;
      uint8_t buffer[256 * 8] = {};
      load_undefined(*origin_.warp, reinterpret_cast<const uint8_t*>(address) + first, buffer + first, end - first);
      const uint32_t to = target_.offset + row * tile.pitch;
      if (tile.swizzle_mask == 0)
        std::memcpy(bits.data() + to, buffer, tile.row_bytes);
      else
        tile.put_row(bits.data(), to, buffer);
    });
    store_undefined(origin_, target_.cta->shared.bytes, bits.data(), bits.size());
  }
  Origin origin_;
  std::shared_ptr<const Tile> tile_;
  Target target_;
};

// b6p2x16: of each byte the low six bits, without gaps (5.5.1.1).
void pack_six_bits(uint8_t* row, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += 4) {
    const uint32_t four =
        (row[i] & 63u) | (row[i + 1] & 63u) << 6 | (row[i + 2] & 63u) << 12 | (row[i + 3] & 63u) << 18;
    for (uint32_t b = 0; b < 3; ++b) row[i / 4 * 3 + b] = static_cast<uint8_t>(four >> 8 * b);
  }
}

class TensorStore : public AsyncOp {
 public:
  TensorStore(Origin origin, const Tile& tile, uint32_t offset, uint32_t group, Reduction op)
      : origin_(origin), tile_(tile), offset_(offset), group_(group), op_(op) {}
  void perform(Cluster& cluster) override {
    auto write = std::make_unique<GlobalWrite>(origin_, group_, op_, tile_.map.element);
    const uint8_t* const shared = origin_.warp->cta->shared.bytes;
    std::vector<uint8_t> undefined;
    if (may_copy_undefined(cluster)) [[unlikely]]
      undefined = undefined_shared(*origin_.warp, *origin_.warp->cta);
    const TensorUnit unit = tile_.unit;
    const uint32_t first = tile_.inside_first * unit.global_bytes, end = tile_.inside_end * unit.global_bytes;
    // An H200 stores whole pieces of 16 bytes, also of those that the tensor's edge divides.
    const bool whole_pieces = op_ == Reduction::None && !is_packed(tile_.map.element);
    const uint32_t whole_end = whole_pieces ? (end + 15) / 16 * 16 : end;
    uint8_t buffer[256 * 8];
    tile_.each_row([&](uint32_t row, bool inside, uint64_t address) {
      if (!inside) return;
      const uint32_t from = offset_ + row * tile_.pitch;
      tile_.take_row(shared, from, buffer);
      if (tile_.map.element == TensorElement::B6x16Padded) pack_six_bits(buffer, tile_.row_bytes);
      const uint32_t last = cluster.launch->global->contains(address + first, whole_end - first) ? whole_end : end;
      write->add(reinterpret_cast<uint8_t*>(address) + first, buffer + first, last - first);
      if (undefined.empty()) return;
      tile_.take_row(undefined.data(), from, buffer);
      if (tile_.map.element == TensorElement::B6x16Padded) pack_six_bits(buffer, tile_.row_bytes);
      write->add_undefined(buffer + first, last - first);
    });
    --bulk_lane(*origin_.warp, origin_.lane).groups[group_].reading;
    cluster.engine.submit(cluster, std::move(write));
  }

 private:
  Origin origin_;
  Tile tile_;
  uint32_t offset_, group_;
  Reduction op_;
};

// Where a copy's box begins: one coordinate for each dimension, or with four rows (tile::gather4, tile::scatter4) the
// column and four rows.
struct TileForm {
  uint8_t dimensions = 0;
  TileMode mode = TileMode::Box;
  uint8_t infos = 0;         // values of im2colInfo
  ValueOperand first, info;  // each list stands one after the other
  int count() const { return mode == TileMode::FourRows ? 5 : dimensions; }
  int32_t read(const Warp& warp, const Instr& instr, int coordinate, int lane) const {
    return static_cast<int32_t>(
        read32(warp, instr, ValueOperand{static_cast<uint8_t>(first.place + coordinate)}, lane));
  }
  std::array<uint32_t, 3> read_info(const Warp& warp, const Instr& instr, int lane) const {
    std::array<uint32_t, 3> values{};
    for (int i = 0; i < infos; ++i)
      values[static_cast<size_t>(i)] =
          read32(warp, instr, ValueOperand{static_cast<uint8_t>(info.place + i)}, lane) & 0xffff;
    return values;
  }
};

// cp.async.bulk.tensor (9.7.9.27.1.2) into shared memory.
struct TensorLoadForm {
  TileForm tile;
  TargetForm target;
  AddressOperand destination, map, mbarrier;
  ValueOperand cta_mask;  // with .multicast
};
// cp.async.bulk.tensor and cp.reduce.async.bulk.tensor (9.7.9.27.1.3) into global memory.
struct TensorStoreForm {
  TileForm tile;
  Reduction reduction = Reduction::None;
  AddressOperand map, source;
};
// cp.async.bulk.prefetch.tensor (9.7.9.27.1.4).
struct TensorPrefetchForm {
  TileForm tile;
  AddressOperand map;
};

Step execute_tensor_load(Warp& warp, const Instr& instr, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  const auto& form = instr.form<TensorLoadForm>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t destination = read_address(warp, instr, form.destination, lane);
    const uint64_t map_address = read_address(warp, instr, form.map, lane);
    const uint64_t barrier = read_address(warp, instr, form.mbarrier, lane);
    const uint32_t cta_mask = form.target.multicast ? read32(warp, instr, form.cta_mask, lane) & 0xffff : 0;
    int32_t coordinates[5] = {};
    for (int d = 0; d < form.tile.count(); ++d) coordinates[d] = form.tile.read(warp, instr, d, lane);
    check_alignment(warp, lane, "destination address", destination & kSharedOffset, kTensorSharedAlign);
    const std::vector<Target> targets = targets_of(warp, destination, barrier, form.target, cta_mask, lane);
    std::vector<Stamp> stamps;
    for (const Target& target : targets) stamps.push_back(target.stamp);
    // The bulk group of a load completes when the map has been read (9.7.9.27.1.2, the table of mechanisms).
    BulkLane& bulk = bulk_lane(warp, lane);
    use_tensor_map(warp, map_address, lane, stamps, {bulk.read, bulk.committed() + 1});
    const auto tile = std::make_shared<const Tile>(make_tile(warp, lane, peek_tensor_map(warp, map_address, lane),
                                                             form.tile.dimensions, coordinates, form.tile.mode,
                                                             form.tile.read_info(warp, instr, lane)));
    note_rows(warp, *tile, false, Reach::Weak, completion_of(targets), lane);
    cover_map(instr, tile->map);
    const Origin origin{&warp, instr.source, lane};
    for (const Target& target : targets) {
      // A swizzle permutes 16-byte pieces inside lines of 128 bytes; the box may end inside one.
      SharedAccess access(warp, *target.cta, SharedAccess::Kind::AsyncWrite, target.stamp, lane);
      if (tile->swizzle_mask == 0 || (tile->pitch == tile->row_bytes && tile->bytes() % 128 == 0)) {
        access.touch(target.offset, tile->bytes());
      } else {
        for (uint32_t row = 0; row < tile->rows; ++row)
          for (uint32_t i = 0; i < tile->row_bytes; i += 16)
            access.touch(tile->swizzled(target.offset + row * tile->pitch + i), 16);
      }
    }
    for (const Target& target : targets)
      cluster.engine.submit(cluster, std::make_unique<TensorLoad>(origin, tile, target));
  }
  return Step::Next;
}

Step execute_tensor_store(Warp& warp, const Instr& instr, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  const auto& form = instr.form<TensorStoreForm>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t map_address = read_address(warp, instr, form.map, lane);
    const SharedPlace from = shared_place(warp, read_address(warp, instr, form.source, lane), false, lane);
    if (from.cta != warp.cta) fault(Hazard::IllegalUse, warp, lane, "the source in .shared::cta lies in another block");
    check_alignment(warp, lane, "source address", from.offset, kTensorSharedAlign);
    int32_t coordinates[5] = {};
    for (int d = 0; d < form.tile.count(); ++d) {
      coordinates[d] = form.tile.read(warp, instr, d, lane);
      // 9.7.9.27.1.1
      if (coordinates[d] < 0)
        fault(Hazard::IllegalUse, warp, lane,
              "a tensor store at the negative coordinate " + std::to_string(coordinates[d]));
    }
    BulkLane& bulk = bulk_lane(warp, lane);
    const uint32_t group = bulk.committed();
    const Stamp written = written_by(bulk);
    const Stamp stamp = join_bulk_group(bulk, current_origin(warp, lane));
    use_tensor_map(warp, map_address, lane, {stamp});
    Tile tile = make_tile(warp, lane, peek_tensor_map(warp, map_address, lane), form.tile.dimensions, coordinates,
                          form.tile.mode);
    cover_map(instr, tile.map);
    for (int i = 0; form.tile.mode == TileMode::Pixels && i < 3; ++i) {
      // 9.7.9.27.1.1: the box must stay inside the tensor.
      if (tile.map.im2col.lower[static_cast<size_t>(i)] < 0 || tile.map.im2col.upper[static_cast<size_t>(i)] > 0)
        fault(Hazard::IllegalUse, warp, lane, "a tensor store with a box of pixels that leaves the tensor");
    }
    if (tile.map.element == TensorElement::B4x16Padded)
      fault(Hazard::IllegalUse, warp, lane,
            "a tensor store with a tensor map of type b4x16_p64, which only loads have");
    if (!reduction_supports(form.reduction, tile.map.element, false))
      fault(Hazard::IllegalUse, warp, lane, instr.source->opcode + " has no such operation on the tensor map's type");
    note_rows(warp, tile, true, reach_of(form.reduction), written, lane);
    // Only what is stored must have been written; all of the box may be read.
    SharedAccess access(warp, *warp.cta, SharedAccess::Kind::AsyncRead, stamp, lane);
    const uint32_t first = tile.inside_first * tile.unit.shared_bytes / 16 * 16;
    const uint32_t end = (tile.inside_end * tile.unit.shared_bytes + 15) / 16 * 16;
    tile.each_row([&](uint32_t row, bool inside, uint64_t) {
      if (!inside) return;
      const uint32_t offset = from.offset + row * tile.pitch;
      if (tile.swizzle_mask == 0 || (tile.row_bytes == 128 && first == 0 && end == 128)) {
        access.touch(offset + first, end - first);
      } else {
        for (uint32_t i = first; i < end; i += 16) access.touch(tile.swizzled(offset + i), 16);
      }
    });
    const Origin origin{&warp, instr.source, lane};
    cluster.engine.submit(cluster, std::make_unique<TensorStore>(origin, tile, from.offset, group, form.reduction));
  }
  return Step::Next;
}

Step execute_tensor_prefetch(Warp& warp, const Instr& instr, uint32_t mask) {
  const auto& form = instr.form<TensorPrefetchForm>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t map_address = read_address(warp, instr, form.map, lane);
    use_tensor_map(warp, map_address, lane, {});
    int32_t coordinates[5] = {};
    for (int d = 0; d < form.tile.count(); ++d) coordinates[d] = form.tile.read(warp, instr, d, lane);
    make_tile(warp, lane, peek_tensor_map(warp, map_address, lane), form.tile.dimensions, coordinates, form.tile.mode,
              form.tile.read_info(warp, instr, lane));
  }
  return Step::Next;
}

// [map, {c0, c1, ...}]
void push_coordinates(DecodeContext& context, const ptx::Instruction& source, const ptx::Operand& operand,
                      TileForm& tile) {
  std::vector<const ptx::Operand*> list;
  for (size_t i = 1; i < operand.elements.size(); ++i) {
    const ptx::Operand& element = operand.elements[i];
    if (element.kind == ptx::Operand::Kind::Vector) {
      for (const ptx::Operand& coordinate : element.elements) list.push_back(&coordinate);
    } else {
      list.push_back(&element);
    }
  }
  if (list.size() != static_cast<size_t>(tile.count()))
    unsupported(source, "the number of coordinates is not the number of dimensions");
  tile.first = {context.pushed()};
  for (const ptx::Operand* coordinate : list) context.push(*coordinate, ptx::Type::S32);
}

// im2colInfo: {i2cOffW, i2cOffH, i2cOffD}, or {wHalo, wOffset} of im2col::w and im2col::w::128
void push_info(DecodeContext& context, const ptx::Instruction& source, const ptx::Operand& operand, TileForm& tile) {
  const std::vector<ptx::Operand> alone = {operand};
  const auto& list = operand.kind == ptx::Operand::Kind::Vector ? operand.elements : alone;
  if (tile.mode == TileMode::Pixels && list.size() + 2 != tile.dimensions)
    unsupported(source, "im2col offsets are two less than the number of dimensions");
  if (tile.mode != TileMode::Pixels && list.size() != 2)
    unsupported(source, "im2col::w and im2col::w::128 take a vector of two values, wHalo and wOffset");
  tile.infos = static_cast<uint8_t>(list.size());
  tile.info = {context.pushed()};
  for (const ptx::Operand& value : list) push_value(context, value, ptx::Type::U16);
}

bool decode_tensor(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const auto& operands = source.operands;
  if (source.parts.size() < 3 || !has_part(source, "async") || !has_part(source, "bulk") || !has_part(source, "tensor"))
    return false;
  const bool reduce = source.parts[1] == "reduce";
  TileForm tile;
  const bool w128 = has_part(source, "im2col::w::128"), wide = w128 || has_part(source, "im2col::w");
  if (wide && context.arch() < 100)
    unsupported(source, "im2col::w and im2col::w::128 are not available on this target");
  for (const char* group : {"cta_group::1", "cta_group::2"}) {
    if (has_part(source, group) && context.arch() < 100)
      unsupported(source, "cta_group is not available on this target");
  }
  for (int d = 1; d <= 5; ++d) {
    if (has_part(source, (std::to_string(d) + "d").c_str())) tile.dimensions = static_cast<uint8_t>(d);
  }
  if (tile.dimensions == 0) unsupported(source, "the number of dimensions is missing");
  const bool info = wide || has_part(source, "im2col");
  if (info || has_part(source, "im2col_no_offs")) {
    if (tile.dimensions < 3) unsupported(source, "im2col needs 3 dimensions or more");
    if (info == has_part(source, "bulk_group")) unsupported(source, "the form is not known");
    tile.mode = w128 ? TileMode::PixelsW128 : wide ? TileMode::PixelsW : TileMode::Pixels;
  }
  const bool gather = has_part(source, "tile::gather4"), scatter = has_part(source, "tile::scatter4");
  if (gather || scatter) {
    if (context.arch() < 100) unsupported(source, "tile::gather4 and tile::scatter4 are not available on this target");
    if (tile.dimensions != 2 || reduce || (scatter && has_part(source, "prefetch")))
      unsupported(source, "the form is not known");
    tile.mode = TileMode::FourRows;
  }
  const size_t policy = has_part(source, "L2::cache_hint") ? 1 : 0;
  if (has_part(source, "prefetch")) {
    need_operands(source, 1 + (info ? 1 : 0) + policy);
    TensorPrefetchForm form;
    form.map = push_map_address(context, operands[0]);
    push_coordinates(context, source, operands[0], tile);
    if (info) push_info(context, source, operands[1], tile);
    form.tile = tile;
    out.set(form);
    out.execute = execute_tensor_prefetch;
    return true;
  }
  const bool to_cluster = has_part(source, "shared::cluster");
  if (has_part(source, "bulk_group")) {
    if (!has_part(source, "global") || !has_part(source, "shared::cta") || gather)
      unsupported(source, "the form is not known");
    need_operands(source, 2 + policy);
    TensorStoreForm form;
    form.map = push_map_address(context, operands[0]);
    form.source = push_address(context, operands[1]);
    push_coordinates(context, source, operands[0], tile);
    form.tile = tile;
    if (reduce) {
      std::optional<Reduction> op;
      for (const std::string& part : source.parts) {
        if (!op) op = reduction_from_name(part);
      }
      if (!op) unsupported(source, "the operation is not known");
      form.reduction = *op;
    }
    out.set(form);
    out.execute = execute_tensor_store;
    return true;
  }
  if (reduce || scatter || !has_part(source, "mbarrier::complete_tx::bytes") || !has_part(source, "global"))
    unsupported(source, "the form is not known");
  const bool multicast = has_part(source, "multicast::cluster");
  const size_t behind = info ? 4 : 3;
  need_operands(source, behind + (multicast ? 1 : 0) + policy);
  TensorLoadForm form;
  form.destination = push_address(context, operands[0]);
  form.map = push_map_address(context, operands[1]);
  form.mbarrier = push_address(context, operands[2]);
  if (multicast) form.cta_mask = push_value(context, operands[behind], ptx::Type::U16);
  form.target = {!to_cluster, multicast, has_part(source, "cta_group::2")};
  push_coordinates(context, source, operands[1], tile);
  if (info) push_info(context, source, operands[3], tile);
  form.tile = tile;
  out.set(form);
  out.execute = execute_tensor_load;
  return true;
}

}  // namespace

void register_tensor_copy() { register_opcode("cp", decode_tensor); }

}  // namespace sim
