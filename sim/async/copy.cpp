// Asynchronous copies (PTX ISA 9.7.9.25, 9.7.9.27.1): cp.async, cp.async.bulk, cp.reduce.async.bulk, their tensor
// forms in tile mode, and their groups.
#include <algorithm>
#include <array>
#include <cstring>

#include "sim/arithmetic/half.h"
#include "sim/async/reduce.h"
#include "sim/async/state.h"
#include "sim/hazards/global_access.h"
#include "sim/hazards/tensor_map_order.h"
#include "sim/machine/coverage.h"

namespace sim {

namespace {

constexpr uint32_t kBulkAlign = 16, kTensorSharedAlign = 128;

uint8_t* shared_bytes(Cta& cta, uint32_t offset) { return cta.shared.bytes + offset; }

// ---- bulk groups --------------------------------------------------------------------------------

BulkLane& bulk_lane(Warp& warp, int lane) {
  BulkLane& bulk = warp.async->bulk[lane];
  if (bulk.read == 0)
    bulk.read = new_agent(*warp.cta->cluster, {AgentInfo::Kind::BulkRead, warp.cta, static_cast<uint32_t>(warp.index)});
  return bulk;
}

// A copy joins the group that is open; its source is free once that group's clock has passed the stamp.
Stamp join_bulk_group(BulkLane& bulk, const Origin& origin) {
  bulk.last = origin;
  ++bulk.groups.back().reading;
  ++bulk.groups.back().writing;
  bulk.last_used = bulk.committed() + 1;
  return {bulk.read, bulk.committed() + 1};
}

// The second half of a copy to global memory: what was read from shared memory is written.
class GlobalWrite : public AsyncOp {
 public:
  struct Row {
    uint8_t* destination;
    uint32_t bytes;
  };
  GlobalWrite(Origin origin, uint32_t group, Reduction op, TensorElement element)
      : origin_(origin), group_(group), op_(op), element_(element) {}
  void add(uint8_t* destination, const uint8_t* source, uint32_t bytes) {
    rows_.push_back({destination, bytes});
    data_.insert(data_.end(), source, source + bytes);
  }
  void perform(Cluster&) override {
    const uint8_t* source = data_.data();
    for (const Row& row : rows_) {
      reduce_elements(op_, element_, row.destination, source, row.bytes);
      source += row.bytes;
    }
    --bulk_lane(*origin_.warp, origin_.lane).groups[group_].writing;
  }
  std::string describe() const override { return "the write to global memory of " + origin_.text(); }

 private:
  Origin origin_;
  uint32_t group_;
  Reduction op_;
  TensorElement element_;
  std::vector<Row> rows_;
  std::vector<uint8_t> data_;
};

Step execute_bulk_commit(Warp& warp, const Instr&, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) bulk_lane(warp, first_lane(mask)).groups.emplace_back();
  return Step::Next;
}

// kind: .read; imm: N.
Step execute_bulk_wait(Warp& warp, const Instr& instr, uint32_t mask) {
  const bool read_only = instr.kind != 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto found = warp.async->bulk.find(first_lane(rest));
    if (found == warp.async->bulk.end()) continue;
    BulkLane& bulk = found->second;
    const int64_t until = int64_t{bulk.committed()} - instr.imm;
    uint32_t& first = read_only ? bulk.first_reading : bulk.first_writing;
    for (; first < until; ++first) {
      const BulkLane::Group& group = bulk.groups[first];
      if ((read_only ? group.reading : group.writing) == 0) continue;
      return wait_for(
          warp, [&] { return "bulk group " + std::to_string(first) + " of lane " + std::to_string(found->first); });
    }
    if (until > 0) warp.view.seen.raise(bulk.read, static_cast<uint32_t>(until));
  }
  return Step::Next;
}

// ---- operands that all bulk copies have ---------------------------------------------------------

// Where a copy lands: a block, an offset, and the mbarrier there that counts it.
struct Target {
  Cta* cta;
  uint32_t offset;
  uint32_t barrier;
  Stamp stamp;
  Cta* barrier_cta;
};

// The blocks that a copy into shared memory reaches. The barrier of a copy without multicast may be in another
// block only together with the destination; with .cta_group::2 (`pair`) also in its peer, and each destination of a
// multicast signals the block of its pair that has the parity of the barrier's (9.7.9.27.1.2).
std::vector<Target> targets_of(Warp& warp, uint64_t destination, uint64_t barrier, bool own_only, bool multicast,
                               uint32_t cta_mask, int lane, bool pair = false, bool even_barrier = false) {
  const SharedPlace to = shared_place(warp, destination, false, lane);
  SharedPlace bar = shared_place(warp, barrier, false, lane);
  if (even_barrier && barrier >> 24 == 0) bar.cta = warp.cta->cluster->ctas[warp.cta->rank & ~1u].get();
  std::vector<Target> targets;
  const auto add = [&](Cta& cta) {
    Cta* signalled = &cta;
    if (pair) {
      const uint32_t rank = (cta.rank & ~1u) | (bar.cta->rank & 1);
      if ((cta.rank | 1) >= warp.cta->cluster->ctas.size())
        fault(Hazard::IllegalUse, warp, lane,
              ".cta_group::2 in a cluster where block rank " + std::to_string(cta.rank) + " has no peer");
      signalled = warp.cta->cluster->ctas[rank].get();
    }
    Mbarrier& object = find_mbarrier(warp, *signalled, bar.offset, lane, true);
    targets.push_back({&cta, to.offset, bar.offset, mbarrier_stamp(object, current_origin(warp, lane)), signalled});
  };
  if (!multicast) {
    if (own_only && to.cta != warp.cta)
      fault(Hazard::IllegalUse, warp, lane, "the destination in .shared::cta lies in another block");
    if (bar.cta != to.cta && !(pair && bar.cta->rank == (to.cta->rank ^ 1)))
      fault(Hazard::IllegalUse, warp, lane, "the destination and the mbarrier lie in different blocks");
    add(*to.cta);
    return targets;
  }
  Cluster& cluster = *warp.cta->cluster;
  if (cta_mask == 0 || cta_mask >> cluster.ctas.size() != 0)
    fault(Hazard::IllegalUse, warp, lane,
          "multicast mask " + hex(cta_mask) + " in a cluster of " + std::to_string(cluster.ctas.size()) + " blocks");
  for (uint32_t rest = cta_mask; rest != 0; rest &= rest - 1) {
    Cta& cta = *cluster.ctas[first_lane(rest)];
    if (&cta != warp.cta && cta.finished())
      fault(Hazard::Memory, warp, lane,
            "multicasts to block rank " + std::to_string(cta.rank) + ", which has finished");
    add(cta);
  }
  return targets;
}

void check_alignment(Warp& warp, int lane, const char* what, uint64_t value, uint32_t align) {
  if (value % align != 0)
    fault(Hazard::Memory, warp, lane,
          std::string(what) + " " + hex(value) + " is not a multiple of " + std::to_string(align));
}

// ---- cp.async.bulk and cp.reduce.async.bulk -----------------------------------------------------

class BulkLoad : public AsyncOp {
 public:
  // The source is global memory, or (source_cta) shared memory of the issuing block.
  BulkLoad(Origin origin, const uint8_t* source, uint32_t bytes, Target target, Reduction op, TensorElement element)
      : origin_(origin), source_(source), bytes_(bytes), target_(target), op_(op), element_(element) {}
  void perform(Cluster& cluster) override {
    reduce_elements(op_, element_, shared_bytes(*target_.cta, target_.offset), source_, bytes_);
    mbarrier_copy_done(cluster, *target_.barrier_cta, target_.barrier, target_.stamp, bytes_, origin_);
  }
  std::string describe() const override { return origin_.text(); }

 private:
  Origin origin_;
  const uint8_t* source_;
  uint32_t bytes_;
  Target target_;
  Reduction op_;
  TensorElement element_;
};

class BulkStore : public AsyncOp {
 public:
  BulkStore(Origin origin, uint32_t offset, uint32_t bytes, uint8_t* destination, uint32_t group, Reduction op,
            TensorElement element)
      : origin_(origin),
        offset_(offset),
        bytes_(bytes),
        destination_(destination),
        group_(group),
        op_(op),
        element_(element) {}
  void perform(Cluster& cluster) override {
    auto write = std::make_unique<GlobalWrite>(origin_, group_, op_, element_);
    write->add(destination_, shared_bytes(*origin_.warp->cta, offset_), bytes_);
    --bulk_lane(*origin_.warp, origin_.lane).groups[group_].reading;
    cluster.engine.submit(cluster, std::move(write));
  }
  std::string describe() const override { return origin_.text(); }

 private:
  Origin origin_;
  uint32_t offset_, bytes_;
  uint8_t* destination_;
  uint32_t group_;
  Reduction op_;
  TensorElement element_;
};

// cp.async.bulk and cp.reduce.async.bulk (9.7.9.25.4.1, 9.7.9.25.4.2).
struct BulkCopy {
  enum class Route : uint8_t { GlobalToShared, SharedToShared, SharedToGlobal };
  Route route = Route::GlobalToShared;
  Reduction reduction = Reduction::None;
  TensorElement element = TensorElement::U8;
  bool multicast = false;  // to the blocks of `cta_mask`
  bool own_only = false;   // the destination is in .shared::cta
  AddressOperand destination, source;
  ValueOperand size;
  AddressOperand mbarrier;  // when the destination is in shared memory
  ValueOperand cta_mask;
};
// cp.async.bulk.prefetch (9.7.9.25.4.3).
struct BulkPrefetch {
  AddressOperand source;
  ValueOperand size;
};

// Instr::width
enum : uint8_t { kMulticast = 1, kOwnOnly = 2, kPrefetch = 4, kPair = 8, kFourRows = 16, kEvenBarrier = 32 };

Step execute_bulk(Warp& warp, const Instr& instr, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  const BulkCopy& copy = instr.form<BulkCopy>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t destination = read_address(warp, instr, copy.destination, lane);
    const uint64_t source = read_address(warp, instr, copy.source, lane);
    const uint32_t bytes = read32(warp, instr, copy.size, lane);
    check_alignment(warp, lane, "destination address", destination, kBulkAlign);
    check_alignment(warp, lane, "source address", source, kBulkAlign);
    check_alignment(warp, lane, "size", bytes, kBulkAlign);
    const Origin origin{&warp, instr.source, lane};
    if (copy.route == BulkCopy::Route::SharedToGlobal) {
      BulkLane& bulk = bulk_lane(warp, lane);
      const SharedPlace from = shared_place(warp, source, false, lane);
      if (from.cta != warp.cta)
        fault(Hazard::IllegalUse, warp, lane, "the source in .shared::cta lies in another block");
      uint8_t* const to = global_pointer(warp, destination, bytes, lane);
      note_global(warp, destination, bytes, true, lane);
      const Stamp stamp = join_bulk_group(bulk, current_origin(warp, lane));
      SharedAccess(warp, *warp.cta, SharedAccess::Kind::AsyncRead, stamp, lane).touch(from.offset, bytes);
      if (cluster.tensor_maps.may_hold(destination, bytes)) tensor_map_written(warp, destination, bytes, lane);
      cluster.engine.submit(cluster, std::make_unique<BulkStore>(origin, from.offset, bytes, to, bulk.committed(),
                                                                 copy.reduction, copy.element));
      continue;
    }
    const uint64_t barrier = read_address(warp, instr, copy.mbarrier, lane);
    const uint32_t cta_mask = copy.multicast ? read32(warp, instr, copy.cta_mask, lane) & 0xffff : 0;
    const std::vector<Target> targets =
        targets_of(warp, destination, barrier, copy.own_only, copy.multicast, cta_mask, lane);
    const uint8_t* from;
    if (copy.route == BulkCopy::Route::SharedToShared) {
      const SharedPlace place = shared_place(warp, source, false, lane);
      if (place.cta != warp.cta)
        fault(Hazard::IllegalUse, warp, lane, "the source in .shared::cta lies in another block");
      if (!warp.cta->cluster->launch->explicit_cluster)  // an illegal instruction on an H200
        fault(Hazard::IllegalUse, warp, lane,
              "a bulk copy between shared memories in a launch without a cluster dimension");
      SharedAccess(warp, *warp.cta, SharedAccess::Kind::AsyncRead, targets[0].stamp, lane).touch(place.offset, bytes);
      from = shared_bytes(*warp.cta, place.offset);
    } else {
      from = global_pointer(warp, source, bytes, lane);
      note_global(warp, source, bytes, false, lane);
    }
    for (const Target& target : targets) {
      SharedAccess(warp, *target.cta, SharedAccess::Kind::AsyncWrite, target.stamp, lane).touch(target.offset, bytes);
      cluster.engine.submit(cluster,
                            std::make_unique<BulkLoad>(origin, from, bytes, target, copy.reduction, copy.element));
    }
  }
  return Step::Next;
}

// A prefetch is a hint: only its addresses are checked.
Step execute_bulk_prefetch(Warp& warp, const Instr& instr, uint32_t mask) {
  const BulkPrefetch& prefetch = instr.form<BulkPrefetch>();
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t source = read_address(warp, instr, prefetch.source, lane);
    const uint32_t bytes = read32(warp, instr, prefetch.size, lane);
    check_alignment(warp, lane, "source address", source, kBulkAlign);
    check_alignment(warp, lane, "size", bytes, kBulkAlign);
    global_pointer(warp, source, bytes, lane);
  }
  return Step::Next;
}

// ---- tensor copies ------------------------------------------------------------------------------

// A bounding box at its place in the tensor (5.5.3), as rows along dimension 0.
struct Tile {
  TensorMapFields map;
  std::array<int64_t, 5> at{};       // coordinates
  std::array<uint32_t, 5> count{};   // rows visited along each dimension; units along dimension 0
  TensorUnit unit{1, 1, 1};          // coordinates of dimension 0 count these
  uint32_t row_bytes = 0, rows = 0;  // in shared memory
  uint32_t pitch = 0;                // from row to row there; under a swizzle its span, as on an H200
  // Of address bits 7 to 9, XORed to the bits from `swizzle_shift` (5.5.7); `flip`: bit 7 is XORed to bit 3 too.
  uint32_t swizzle_mask = 0, swizzle_shift = 4;
  bool flip = false;
  uint32_t inside_first = 0, inside_end = 0;  // units of a row inside the tensor along dimension 0
  std::array<int32_t, 4> four{};              // tile::gather4 and scatter4 (5.5.3.4): rows along dimension 1
  bool has_four = false;

  uint32_t bytes() const { return rows * row_bytes; }
  // Of a piece of 16 bytes.
  uint32_t swizzled(uint32_t address) const { return address ^ (address >> 7 & swizzle_mask) << swizzle_shift; }
  // Between a row and its place in shared memory.
  void put_row(uint8_t* shared, uint32_t to, const uint8_t* row) const {
    for (uint32_t i = 0; i < row_bytes; i += 16) {
      uint8_t* const piece = shared + swizzled(to + i);
      const uint32_t half = flip && (to + i) >> 7 & 1 ? 8 : 0;
      std::memcpy(piece + half, row + i, 8);
      std::memcpy(piece + (half ^ 8), row + i + 8, 8);
    }
  }
  void take_row(const uint8_t* shared, uint32_t from, uint8_t* row) const {
    for (uint32_t i = 0; i < row_bytes; i += 16) {
      const uint8_t* const piece = shared + swizzled(from + i);
      const uint32_t half = flip && (from + i) >> 7 & 1 ? 8 : 0;
      std::memcpy(row + i, piece + half, 8);
      std::memcpy(row + i + 8, piece + (half ^ 8), 8);
    }
  }

  // f(row, inside, address of the row's first element: meaningful inside only)
  template <class F>
  void each_row(F f) const {
    std::array<uint32_t, 5> i{};
    for (uint32_t row = 0; row < rows; ++row) {
      bool inside = inside_first < inside_end;
      int64_t address = static_cast<int64_t>(map.address) + at[0] * static_cast<int64_t>(unit.global_bytes);
      for (uint32_t d = 1; d < map.rank; ++d) {
        const int64_t c = has_four ? four[row] : at[d] + static_cast<int64_t>(i[d]) * map.element_strides[d];
        inside = inside && c >= 0 && static_cast<uint64_t>(c) < map.dims[d];
        address += c * static_cast<int64_t>(map.strides[d - 1]);
      }
      f(row, inside, static_cast<uint64_t>(address));
      for (uint32_t d = 1; d < map.rank && ++i[d] == count[d]; ++d) i[d] = 0;
    }
  }
};

// Checks what the driver and the ISA ask of a map that is used for a copy.
Tile make_tile(Warp& warp, int lane, const TensorMapFields& map, uint32_t rank, const int32_t* coordinates,
               bool four = false) {
  const auto illegal = [&](const std::string& text) { fault(Hazard::IllegalUse, warp, lane, text); };
  if (map.rank != rank)
    illegal("a " + std::to_string(rank) + "-dimensional copy with a tensor map of rank " + std::to_string(map.rank));
  if (map.interleave != TensorInterleave::None) illegal("tensor maps with an interleaved layout are not simulated");
  Tile tile;
  tile.map = map;
  tile.unit = unit_of(map.element);
  if (is_packed(map.element)) {
    if (const std::string why = packed_flaw(map); !why.empty()) illegal("the tensor map is not valid: " + why);
    const int32_t multiple = is_padded(map.element) ? 128 : static_cast<int32_t>(tile.unit.elements);
    if (coordinates[0] % multiple != 0)
      illegal("the first coordinate, " + std::to_string(coordinates[0]) + ", must be a multiple of " +
              std::to_string(multiple) + " for a type of 4 or 6 bits");
  }
  tile.rows = 1;
  for (uint32_t d = 0; d < rank; ++d) {
    tile.at[d] = coordinates[d];
    const uint32_t stride = d == 0 ? 1 : map.element_strides[d];
    if (map.box[d] < 1 || map.box[d] > 256 || stride < 1 || stride > 8)
      illegal("the tensor map has a box or element stride out of range in dimension " + std::to_string(d));
    tile.count[d] = (map.box[d] + stride - 1) / stride;
    if (d > 0) {
      tile.rows *= tile.count[d];
      if (map.strides[d - 1] % 16 != 0)
        illegal("the tensor map's stride of dimension " + std::to_string(d) + " is not a multiple of 16");
    }
  }
  const auto units = static_cast<int32_t>(tile.unit.elements);
  tile.count[0] /= tile.unit.elements;
  tile.at[0] /= units;
  tile.row_bytes = tile.pitch = tile.count[0] * tile.unit.shared_bytes;
  if (tile.row_bytes % 16 != 0) illegal("the inner dimension of the box is not a multiple of 16 bytes");
  if (map.address % 16 != 0) illegal("the tensor's address is not a multiple of 16");
  // 5.5.3.1; an illegal instruction on an H200.
  const int64_t begin = tile.at[0] * tile.unit.global_bytes;
  if (begin % 16 != 0)
    illegal("the box begins " + std::to_string(begin) + " bytes into a row; it must be a multiple of 16");
  if (map.fill == TensorFill::Nan && !is_float(map.element)) illegal("NaN fill with an integer type");
  if (map.swizzle != TensorSwizzle::None) {
    const uint32_t span = 16u << static_cast<int>(map.swizzle);
    tile.swizzle_mask = span / 16 - 1;
    tile.pitch = span;
    if (tile.row_bytes > span)
      illegal("the inner dimension of the box, " + std::to_string(tile.row_bytes) +
              " bytes, is wider than the swizzle of " + std::to_string(span));
  }
  if (map.atom != TensorAtom::Bytes16) {
    if (map.swizzle != TensorSwizzle::Bytes128) illegal("swizzle atoms of 32 and 64 bytes need the 128-byte swizzle");
    tile.swizzle_shift = map.atom == TensorAtom::Bytes64 ? 6 : 5;
    tile.swizzle_mask = map.atom == TensorAtom::Bytes64 ? 1 : 3;
    tile.flip = map.atom == TensorAtom::Bytes32Flip;
  }
  if (four) {
    if (tile.count[1] != 1) illegal("a tensor map for four rows must have a box of one row");
    tile.has_four = true;
    tile.rows = 4;
    std::copy_n(coordinates + 1, 4, tile.four.begin());
  }
  const int64_t first = std::max<int64_t>(0, -tile.at[0]);
  const int64_t end = std::min<int64_t>(tile.count[0], static_cast<int64_t>(map.dims[0]) / units - tile.at[0]);
  if (first < end) {
    tile.inside_first = static_cast<uint32_t>(first);
    tile.inside_end = static_cast<uint32_t>(end);
  }
  // All that is inside the tensor must be inside one allocation.
  uint64_t low = UINT64_MAX, high = 0;
  tile.each_row([&](uint32_t, bool inside, uint64_t address) {
    if (!inside) return;
    low = std::min(low, address + tile.inside_first * tile.unit.global_bytes);
    high = std::max(high, address + tile.inside_end * tile.unit.global_bytes);
  });
  if (low < high && !warp.cta->cluster->launch->global->contains(low, high - low))
    fault(Hazard::Memory, warp, lane,
          "a tensor copy touches " + std::to_string(high - low) + " bytes at " + hex(low) + ", which " +
              warp.cta->cluster->launch->global->explain(low, high - low));
  return tile;
}

// What a copy of the tile touches in global memory.
void note_rows(Warp& warp, const Tile& tile, bool write, int lane) {
  const Cluster& cluster = *warp.cta->cluster;
  if (cluster.launch->unfinished.empty() && !(write && cluster.logs_writes)) return;
  const uint32_t first = tile.inside_first * tile.unit.global_bytes, end = tile.inside_end * tile.unit.global_bytes;
  tile.each_row([&](uint32_t, bool inside, uint64_t address) {
    if (inside) note_global(warp, address + first, end - first, write, lane);
  });
}

// For the coverage list: what the tensor map chooses.
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
    mbarrier_copy_done(cluster, *target_.barrier_cta, target_.barrier, target_.stamp, tile.bytes(), origin_);
  }
  std::string describe() const override { return origin_.text(); }

 private:
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
  TensorStore(Origin origin, Tile tile, uint32_t offset, uint32_t group, Reduction op)
      : origin_(origin), tile_(std::move(tile)), offset_(offset), group_(group), op_(op) {}
  void perform(Cluster& cluster) override {
    auto write = std::make_unique<GlobalWrite>(origin_, group_, op_, tile_.map.element);
    const uint8_t* const shared = origin_.warp->cta->shared.bytes;
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
    });
    --bulk_lane(*origin_.warp, origin_.lane).groups[group_].reading;
    cluster.engine.submit(cluster, std::move(write));
  }
  std::string describe() const override { return origin_.text(); }

 private:
  Origin origin_;
  Tile tile_;
  uint32_t offset_, group_;
  Reduction op_;
};

// reg: destination (2), map (2), mbarrier (2), [mask], coordinates. kind: dimensions. imm: place of the coordinates.
Step execute_tensor_load(Warp& warp, const Instr& instr, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t destination = read_address(warp, instr, 0, 0, lane);
    const uint64_t map_address = read_address(warp, instr, 2, 1, lane);
    const uint64_t barrier = read_address(warp, instr, 4, 2, lane);
    const uint32_t cta_mask = instr.width & kMulticast ? read32(warp, instr, 6, lane) & 0xffff : 0;
    int32_t coordinates[5] = {};
    const bool four = instr.width & kFourRows;
    for (int d = 0; d < (four ? 5 : instr.kind); ++d)
      coordinates[d] = static_cast<int32_t>(read32(warp, instr, static_cast<int>(instr.imm) + d, lane));
    check_alignment(warp, lane, "destination address", destination & 0xffffff, kTensorSharedAlign);
    const std::vector<Target> targets =
        targets_of(warp, destination, barrier, instr.width & kOwnOnly, instr.width & kMulticast, cta_mask, lane,
                   instr.width & kPair, instr.width & kEvenBarrier);
    std::vector<Stamp> stamps;
    for (const Target& target : targets) stamps.push_back(target.stamp);
    // The bulk group of a load completes when the map has been read (9.7.9.27.1.2, the table of mechanisms).
    BulkLane& bulk = bulk_lane(warp, lane);
    use_tensor_map(warp, map_address, lane, stamps, {bulk.read, bulk.committed() + 1});
    const auto tile = std::make_shared<const Tile>(
        make_tile(warp, lane, peek_tensor_map(warp, map_address, lane), instr.kind, coordinates, four));
    note_rows(warp, *tile, false, lane);
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

// reg: map (2), source (2), coordinates. kind: dimensions. imm: reduction.
Step execute_tensor_store(Warp& warp, const Instr& instr, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  const Reduction op = static_cast<Reduction>(instr.imm);
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t map_address = read_address(warp, instr, 0, 0, lane);
    const SharedPlace from = shared_place(warp, read_address(warp, instr, 2, 1, lane), false, lane);
    if (from.cta != warp.cta) fault(Hazard::IllegalUse, warp, lane, "the source in .shared::cta lies in another block");
    check_alignment(warp, lane, "source address", from.offset, kTensorSharedAlign);
    int32_t coordinates[5] = {};
    const bool four = instr.width & kFourRows;
    for (int d = 0; d < (four ? 5 : instr.kind); ++d) {
      coordinates[d] = static_cast<int32_t>(read32(warp, instr, 4 + d, lane));
      // 9.7.9.27.1.1
      if (coordinates[d] < 0)
        fault(Hazard::IllegalUse, warp, lane,
              "a tensor store at the negative coordinate " + std::to_string(coordinates[d]));
    }
    BulkLane& bulk = bulk_lane(warp, lane);
    const uint32_t group = bulk.committed();
    const Stamp stamp = join_bulk_group(bulk, current_origin(warp, lane));
    use_tensor_map(warp, map_address, lane, {stamp});
    Tile tile = make_tile(warp, lane, peek_tensor_map(warp, map_address, lane), instr.kind, coordinates, four);
    cover_map(instr, tile.map);
    if (tile.map.element == TensorElement::B4x16Padded)
      fault(Hazard::IllegalUse, warp, lane,
            "a tensor store with a tensor map of type b4x16_p64, which only loads have");
    if (!reduction_supports(op, tile.map.element, false))
      fault(Hazard::IllegalUse, warp, lane, instr.source->opcode + " has no such operation on the tensor map's type");
    note_rows(warp, tile, true, lane);
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
    cluster.engine.submit(cluster, std::make_unique<TensorStore>(origin, std::move(tile), from.offset, group, op));
  }
  return Step::Next;
}

// reg: map (2), coordinates.
Step execute_tensor_prefetch(Warp& warp, const Instr& instr, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t map_address = read_address(warp, instr, 0, 0, lane);
    use_tensor_map(warp, map_address, lane, {});
    int32_t coordinates[5] = {};
    for (int d = 0; d < instr.kind; ++d) coordinates[d] = static_cast<int32_t>(read32(warp, instr, 2 + d, lane));
    make_tile(warp, lane, peek_tensor_map(warp, map_address, lane), instr.kind, coordinates);
  }
  return Step::Next;
}

// ---- cp.async -----------------------------------------------------------------------------------

Agent copy_agent(Warp& warp) {
  if (warp.async->copy == 0)
    warp.async->copy =
        new_agent(*warp.cta->cluster, {AgentInfo::Kind::CpAsync, warp.cta, static_cast<uint32_t>(warp.index)});
  return warp.async->copy;
}

class CpAsync : public AsyncOp {
 public:
  struct Piece {
    int lane;
    uint32_t group;
    const uint8_t* source;
    Cta* cta;
    uint32_t offset, bytes;
  };
  CpAsync(Origin origin, uint32_t size) : origin_(origin), size_(size) { queue = copy_agent(*origin.warp); }
  std::vector<Piece> pieces;
  void perform(Cluster&) override {
    for (const Piece& p : pieces) {
      uint8_t* const to = shared_bytes(*p.cta, p.offset);
      if (p.bytes > 0) std::memcpy(to, p.source, p.bytes);
      std::memset(to + p.bytes, 0, size_ - p.bytes);
      --origin_.warp->async->copy_lanes[p.lane].groups[p.group].pending;
    }
  }
  std::string describe() const override { return origin_.text(); }

 private:
  Origin origin_;
  uint32_t size_;
};

// reg: destination (2), source (2), [source size or predicate]. width: bytes. kind: 0 none, 1 size, 2 ignore-src.
Step execute_cp_async(Warp& warp, const Instr& instr, uint32_t mask) {
  if (mask == 0) return Step::Next;
  Cluster& cluster = *warp.cta->cluster;
  const Origin origin{&warp, instr.source, -1};
  auto op = std::make_unique<CpAsync>(origin, instr.width);
  const uint32_t number = ++warp.async->copy_count;
  const Stamp stamp{copy_agent(warp), number};
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const SharedPlace to = shared_place(warp, read_address(warp, instr, 0, 0, lane), false, lane);
    const uint64_t source = read_address(warp, instr, 2, 1, lane);
    check_alignment(warp, lane, "destination address", to.offset, instr.width);
    check_alignment(warp, lane, "source address", source, instr.width);
    if (to.cta != warp.cta) fault(Hazard::IllegalUse, warp, lane, "cp.async into the shared memory of another block");
    uint32_t bytes = instr.width;
    if (instr.kind == 1) bytes = read32(warp, instr, 4, lane);
    if (instr.kind == 2 && warp.predicate(instr.reg[4]) >> lane & 1) bytes = 0;
    if (bytes > instr.width)
      fault(Hazard::IllegalUse, warp, lane, "cp.async with a source size of " + std::to_string(bytes));
    const uint8_t* from = bytes > 0 ? global_pointer(warp, source, bytes, lane) : nullptr;
    note_global(warp, source, bytes, false, lane);
    SharedAccess(warp, *to.cta, SharedAccess::Kind::CpAsyncWrite, stamp, lane).touch(to.offset, instr.width);
    CopyLane& copies = warp.async->copy_lanes[lane];
    ++copies.groups.back().pending;
    copies.groups.back().last = number;
    op->pieces.push_back({lane, copies.committed(), from, to.cta, to.offset, bytes});
  }
  cluster.engine.submit(cluster, std::move(op));
  return Step::Next;
}

Step execute_cp_commit(Warp& warp, const Instr&, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) warp.async->copy_lanes[first_lane(mask)].groups.emplace_back();
  return Step::Next;
}

// kind 1: wait_all, which commits first. imm: N.
Step execute_cp_wait(Warp& warp, const Instr& instr, uint32_t mask) {
  uint32_t seen = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto found = warp.async->copy_lanes.find(first_lane(rest));
    if (found == warp.async->copy_lanes.end()) continue;
    CopyLane& copies = found->second;
    const int64_t until = instr.kind == 1 ? static_cast<int64_t>(copies.groups.size()) : copies.committed() - instr.imm;
    for (int64_t i = 0; i < until; ++i) {
      const CopyLane::Group& group = copies.groups[static_cast<size_t>(i)];
      if (group.pending > 0) {
        return wait_for(
            warp, [&] { return "cp.async group " + std::to_string(i) + " of lane " + std::to_string(found->first); });
      }
      seen = std::max(seen, group.last);
    }
  }
  if (seen > 0) warp.view.seen.raise(warp.async->copy, seen);
  if (instr.kind == 1) return execute_cp_commit(warp, instr, mask);
  return Step::Next;
}

// cp.async.mbarrier.arrive (9.7.13.15.15): an arrival behind the thread's copies.
class CpAsyncArrive : public AsyncOp {
 public:
  CpAsyncArrive(Origin origin, uint32_t offset, Stamp copies) : origin_(origin), offset_(offset), copies_(copies) {
    queue = copy_agent(*origin.warp);
  }
  void perform(Cluster&) override {
    auto& live = origin_.warp->cta->async->mbarriers;
    const auto found = live.find(offset_);
    if (found == live.end())
      origin_.fail(Hazard::MbarrierMisuse,
                   "cp.async arrives at the mbarrier at shared offset " + hex(offset_) + ", which was invalidated");
    if (copies_.at > 0) found->second.arriving.seen.raise(copies_.by, copies_.at);
    mbarrier_arrive(origin_, found->second, 1);
  }
  std::string describe() const override { return origin_.text(); }

 private:
  Origin origin_;
  uint32_t offset_;
  Stamp copies_;
};

// reg: mbarrier (2). kind 1: .noinc. type 1: generic.
Step execute_cp_arrive(Warp& warp, const Instr& instr, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const SharedPlace at = shared_place(warp, read_address(warp, instr, 0, 0, lane), instr.type == 1, lane);
    if (at.cta != warp.cta)
      fault(Hazard::MbarrierMisuse, warp, lane, "cp.async.mbarrier.arrive at an object of another block");
    Mbarrier& barrier = find_mbarrier(warp, *at.cta, at.offset, lane);
    if (instr.kind == 0) {
      if (++barrier.pending > kMbarrierLimit)
        fault(Hazard::MbarrierMisuse, warp, lane, "cp.async.mbarrier.arrive raises the pending count over 1048575");
    }
    const Origin origin{&warp, instr.source, lane};
    cluster.engine.submit(
        cluster, std::make_unique<CpAsyncArrive>(origin, at.offset, Stamp{copy_agent(warp), warp.async->copy_count}));
  }
  return Step::Next;
}

// ---- st.async, red.async: 9.7.9.12, 9.7.13.7 -----------------------------------------------------

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

// reg: destination (2), mbarrier (2), values. kind: values of a lane, width: bytes of each. imm: reduction.
Step execute_async_store(Warp& warp, const Instr& instr, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  const uint32_t bytes = uint32_t{instr.kind} * instr.width;
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t destination = read_address(warp, instr, 0, 0, lane);
    const uint64_t barrier = read_address(warp, instr, 2, 1, lane);
    check_alignment(warp, lane, "destination address", destination & 0xffffff, bytes);
    std::array<uint8_t, 16> value{};
    for (uint32_t i = 0; i < instr.kind; ++i) {
      const uint64_t bits = instr.width == 8 ? read64(warp, instr, static_cast<int>(4 + i), lane)
                                             : read32(warp, instr, static_cast<int>(4 + i), lane);
      std::memcpy(value.data() + i * instr.width, &bits, instr.width);
    }
    const Target target = targets_of(warp, destination, barrier, false, false, 0, lane)[0];
    SharedAccess(warp, *target.cta, SharedAccess::Kind::CpAsyncWrite, target.stamp, lane).touch(target.offset, bytes);
    cluster.engine.submit(cluster, std::make_unique<AsyncStore>(Origin{&warp, instr.source, lane}, target, value, bytes,
                                                                static_cast<Reduction>(instr.imm),
                                                                static_cast<TensorElement>(instr.type)));
  }
  return Step::Next;
}

// ---- decoding -----------------------------------------------------------------------------------

std::optional<TensorElement> element_from_name(const std::string& name) {
  static constexpr struct {
    const char* name;
    TensorElement element;
  } kNames[] = {{"b32", TensorElement::U32}, {"u32", TensorElement::U32},   {"s32", TensorElement::S32},
                {"b64", TensorElement::U64}, {"u64", TensorElement::U64},   {"s64", TensorElement::S64},
                {"f16", TensorElement::F16}, {"bf16", TensorElement::BF16}, {"f32", TensorElement::F32},
                {"f64", TensorElement::F64}};
  for (const auto& n : kNames) {
    if (name == n.name) return n.element;
  }
  return std::nullopt;
}

void need_operands(const ptx::Instruction& source, size_t count) {
  if (source.operands.size() != count)
    unsupported(source, "has " + std::to_string(source.operands.size()) + " operands where " + std::to_string(count) +
                            " are expected");
}

// [map, {c0, c1, ...}]
void push_coordinates(DecodeContext& context, Instr& out, const ptx::Instruction& source, const ptx::Operand& operand) {
  std::vector<const ptx::Operand*> list;
  for (size_t i = 1; i < operand.elements.size(); ++i) {
    const ptx::Operand& element = operand.elements[i];
    if (element.kind == ptx::Operand::Kind::Vector) {
      for (const ptx::Operand& coordinate : element.elements) list.push_back(&coordinate);
    } else {
      list.push_back(&element);
    }
  }
  if (list.size() != (out.width & kFourRows ? 5u : out.kind))
    unsupported(source, "the number of coordinates is not the number of dimensions");
  for (const ptx::Operand* coordinate : list) context.push(*coordinate, ptx::Type::S32);
}

// On a GPU the address of a block's own shared memory has its rank from bit 24 on, and kernels clear that bit of an
// mbarrier's address to name the even block of the pair. Here own addresses have no rank: a program that has this mask
// anywhere means the even block by them.
bool masks_rank_parity(const ptx::Function& function) {
  for (const ptx::Instruction& instruction : function.body) {
    if (instruction.parts[0] != "and") continue;
    for (const ptx::Operand& operand : instruction.operands) {
      if (operand.kind == ptx::Operand::Kind::Immediate && static_cast<uint32_t>(operand.bits) == 0xfeffffff)
        return true;
    }
  }
  return false;
}

bool decode_tensor(const ptx::Instruction& source, DecodeContext& context, Instr& out, bool reduce) {
  const auto& operands = source.operands;
  for (const char* mode : {"im2col", "im2col::w", "im2col::w::128", "im2col_no_offs", "im2col_at"}) {
    if (has_part(source, mode)) unsupported(source, "only the tile mode is simulated");
  }
  for (const char* group : {"cta_group::1", "cta_group::2"}) {
    if (has_part(source, group) && context.arch() < 100)
      unsupported(source, "cta_group is not available on this target");
  }
  for (int d = 1; d <= 5; ++d) {
    if (has_part(source, (std::to_string(d) + "d").c_str())) out.kind = static_cast<uint8_t>(d);
  }
  if (out.kind == 0) unsupported(source, "the number of dimensions is missing");
  const bool gather = has_part(source, "tile::gather4"), scatter = has_part(source, "tile::scatter4");
  if (gather || scatter) {
    if (context.arch() < 100) unsupported(source, "tile::gather4 and tile::scatter4 are not available on this target");
    if (out.kind != 2 || reduce || has_part(source, "prefetch")) unsupported(source, "the form is not known");
    out.width |= kFourRows;
  }
  const size_t policy = has_part(source, "L2::cache_hint") ? 1 : 0;
  if (has_part(source, "prefetch")) {
    need_operands(source, 1 + policy);
    push_map_address(context, out, operands[0], 0);
    push_coordinates(context, out, source, operands[0]);
    out.execute = execute_tensor_prefetch;
    return true;
  }
  const bool to_cluster = has_part(source, "shared::cluster");
  if (has_part(source, "bulk_group")) {
    if (!has_part(source, "global") || !has_part(source, "shared::cta") || gather)
      unsupported(source, "the form is not known");
    need_operands(source, 2 + policy);
    push_map_address(context, out, operands[0], 0);
    push_address(context, out, operands[1], 1);
    push_coordinates(context, out, source, operands[0]);
    if (reduce) {
      std::optional<Reduction> op;
      for (const std::string& part : source.parts) {
        if (!op) op = reduction_from_name(part);
      }
      if (!op) unsupported(source, "the operation is not known");
      out.imm = static_cast<int64_t>(*op);
    }
    out.execute = execute_tensor_store;
    return true;
  }
  if (reduce || scatter || !has_part(source, "mbarrier::complete_tx::bytes") || !has_part(source, "global"))
    unsupported(source, "the form is not known");
  const bool multicast = has_part(source, "multicast::cluster");
  need_operands(source, 3 + (multicast ? 1 : 0) + policy);
  push_address(context, out, operands[0], 0);
  push_map_address(context, out, operands[1], 1);
  push_address(context, out, operands[2], 2);
  if (multicast) context.push(operands[3], ptx::Type::U16);
  out.width |= static_cast<uint8_t>((multicast ? kMulticast : 0) | (to_cluster ? 0 : kOwnOnly) |
                                    (has_part(source, "cta_group::2") ? kPair : 0));
  if (out.width & kPair && masks_rank_parity(context.function())) out.width |= kEvenBarrier;
  out.imm = multicast ? 7 : 6;
  push_coordinates(context, out, source, operands[1]);
  out.execute = execute_tensor_load;
  return true;
}

bool decode_async_store(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (source.parts.size() < 2 || source.parts[1] != "async") return false;
  const bool reduce = source.parts[0] == "red";
  if (!has_part(source, "mbarrier::complete_tx::bytes") || !has_part(source, "shared::cluster"))
    unsupported(source, "only the forms into .shared::cluster that signal an mbarrier are known");
  const std::optional<TensorElement> element = element_from_name(source.parts.back());
  Reduction op = Reduction::None;
  for (const std::string& part : source.parts) {
    if (reduce && op == Reduction::None) op = reduction_from_name(part).value_or(Reduction::None);
  }
  if (!element || reduce != (op != Reduction::None) || !reduction_supports(op, *element, true))
    unsupported(source, "the operation on that type is not known");
  out.kind = has_part(source, "v4") ? 4 : has_part(source, "v2") ? 2 : 1;
  out.width = static_cast<uint8_t>(bytes_of(*element));
  if (out.width < 4 || out.kind * out.width > 16 || (reduce && out.kind != 1))
    unsupported(source, "the form is not known");
  need_operands(source, 3);
  const ptx::Operand& value = source.operands[1];
  if ((value.kind == ptx::Operand::Kind::Vector ? value.elements.size() : 1) != out.kind)
    unsupported(source, "the vector has the wrong number of elements");
  push_address(context, out, source.operands[0], 0);
  push_address(context, out, source.operands[2], 1);
  context.push(value, out.width == 8 ? ptx::Type::B64 : ptx::Type::B32);
  out.imm = static_cast<int64_t>(op);
  out.type = static_cast<uint8_t>(*element);
  out.execute = execute_async_store;
  return true;
}

bool decode_bulk(const ptx::Instruction& source, DecodeContext& context, Instr& out, bool reduce) {
  const auto& operands = source.operands;
  const size_t policy = has_part(source, "L2::cache_hint") ? 1 : 0;
  if (has_part(source, "cp_mask")) unsupported(source, ".cp_mask is not available on this target");
  if (has_part(source, "prefetch")) {
    need_operands(source, 2 + policy);
    BulkPrefetch prefetch;
    prefetch.source = push_address(context, operands[0]);
    prefetch.size = push_value(context, operands[1], ptx::Type::U32);
    out.set(prefetch);
    out.execute = execute_bulk_prefetch;
    return true;
  }
  BulkCopy copy;
  std::vector<std::string> spaces;  // .dst, then .src
  std::optional<TensorElement> element;
  for (const std::string& part : source.parts) {
    if (part == "global" || part == "shared::cta" || part == "shared::cluster") spaces.push_back(part);
    if (reduce && copy.reduction == Reduction::None)
      copy.reduction = reduction_from_name(part).value_or(Reduction::None);
    if (reduce && !element) element = element_from_name(part);
  }
  if (spaces.size() != 2) unsupported(source, "the form is not known");
  using Route = BulkCopy::Route;
  if (spaces[0] == "global" && spaces[1] == "shared::cta") {
    copy.route = Route::SharedToGlobal;
  } else if (spaces[0] == "shared::cluster" && spaces[1] == "shared::cta") {
    copy.route = Route::SharedToShared;
  } else if (spaces[0] != "global" && spaces[1] == "global" && !reduce) {
    copy.route = Route::GlobalToShared;
  } else {
    unsupported(source, "the form is not known");
  }
  if (reduce) {
    if (copy.reduction == Reduction::None || !element ||
        !reduction_supports(copy.reduction, *element, copy.route == Route::SharedToShared))
      unsupported(source, "the operation on that type is not known");
    copy.element = *element;
  }
  copy.multicast = has_part(source, "multicast::cluster");
  copy.own_only = spaces[0] == "shared::cta";
  const bool barrier = copy.route != Route::SharedToGlobal;
  if (barrier != has_part(source, "mbarrier::complete_tx::bytes") || barrier == has_part(source, "bulk_group"))
    unsupported(source, "the completion mechanism does not fit the direction");
  need_operands(source, 3 + (barrier ? 1 : 0) + (copy.multicast ? 1 : 0) + policy);
  copy.destination = push_address(context, operands[0]);
  copy.source = push_address(context, operands[1]);
  copy.size = push_value(context, operands[2], ptx::Type::U32);
  if (barrier) copy.mbarrier = push_address(context, operands[3]);
  if (copy.multicast) copy.cta_mask = push_value(context, operands[4], ptx::Type::U16);
  out.set(copy);
  out.execute = execute_bulk;
  return true;
}

bool decode_cp(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  const auto& parts = source.parts;
  const auto& operands = source.operands;
  if (parts.size() < 3) return false;
  const bool reduce = parts[1] == "reduce";
  if (!has_part(source, "async")) return false;
  if (has_part(source, "bulk")) {
    if (has_part(source, "tensor")) return decode_tensor(source, context, out, reduce);
    if (has_part(source, "commit_group")) {
      out.execute = execute_bulk_commit;
      return true;
    }
    if (has_part(source, "wait_group")) {
      need_operands(source, 1);
      out.imm = immediate_of(source, operands[0]);
      out.kind = has_part(source, "read");
      out.execute = execute_bulk_wait;
      return true;
    }
    return decode_bulk(source, context, out, reduce);
  }
  if (parts[2] == "commit_group") {
    out.execute = execute_cp_commit;
    return true;
  }
  if (parts[2] == "wait_group" || parts[2] == "wait_all") {
    out.kind = parts[2] == "wait_all";
    if (out.kind == 0) {
      need_operands(source, 1);
      out.imm = immediate_of(source, operands[0]);
    }
    out.execute = execute_cp_wait;
    return true;
  }
  if (parts[2] == "mbarrier") {
    need_operands(source, 1);
    push_address(context, out, operands[0], 0);
    out.kind = has_part(source, "noinc");
    out.type = !has_part(source, "shared") && !has_part(source, "shared::cta");
    out.execute = execute_cp_arrive;
    return true;
  }
  if (parts[2] != "ca" && parts[2] != "cg") unsupported(source, "the form is not known");
  const size_t policy = has_part(source, "L2::cache_hint") ? 1 : 0;
  if (operands.size() < 3 + policy || operands.size() > 4 + policy) unsupported(source, "wrong number of operands");
  const int64_t size = immediate_of(source, operands[2]);
  if (!(size == 16 || (parts[2] == "ca" && (size == 4 || size == 8))))
    unsupported(source, "a size of " + std::to_string(size) + " is not allowed");
  out.width = static_cast<uint8_t>(size);
  push_address(context, out, operands[0], 0);
  push_address(context, out, operands[1], 1);
  if (operands.size() == 4 + policy) {
    const bool predicate = context.register_type(operands[3]) == ptx::Type::Pred;
    out.kind = predicate ? 2 : 1;
    context.push(operands[3], predicate ? ptx::Type::Pred : ptx::Type::U32);
  }
  out.execute = execute_cp_async;
  return true;
}

}  // namespace

void register_copy() {
  register_opcode("cp", decode_cp);
  register_opcode("st", decode_async_store);
  register_opcode("red", decode_async_store);
}

}  // namespace sim
