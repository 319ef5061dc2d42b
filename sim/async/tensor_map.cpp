// Tensor maps: their 128 bytes, tensormap.replace (PTX ISA 9.7.9.28), tensormap.cp_fenceproxy (9.7.13.16),
// prefetch.tensormap (9.7.9.15), and who may use which version of a map that the device rewrites (8.6, 9.7.13.4).
#include "sim/async/tensor_map.h"

#include <cstring>

#include "sim/async/state.h"

namespace sim {

namespace {

// "moxietma"; a map that tensormap.replace has half written is still one.
constexpr uint64_t kMagic = 0x616d746569786f6dull;

struct Encoded {
  uint64_t magic;
  // Programs clear bit 21 of the second word of a small tensor's map, around a mistake of some drivers: nothing of ours
  // stands there.
  uint64_t unused;
  uint64_t address;
  uint64_t strides[4];
  uint32_t dims[5];  // less one: a dimension may have 2^32 elements
  uint16_t box[5];
  uint8_t element_strides[5];
  uint8_t element, rank, interleave, swizzle, l2, fill, atom;
  uint8_t more_unused[30];
};
static_assert(sizeof(Encoded) == kTensorMapBytes);

}  // namespace

void encode(const TensorMapFields& f, uint8_t out[kTensorMapBytes]) {
  Encoded e{};
  e.magic = kMagic;
  e.address = f.address;
  for (int i = 0; i < 4; ++i) e.strides[i] = f.strides[i];
  for (int i = 0; i < 5; ++i) {
    e.dims[i] = static_cast<uint32_t>(f.dims[i] - 1);
    e.box[i] = static_cast<uint16_t>(f.box[i]);
    e.element_strides[i] = static_cast<uint8_t>(f.element_strides[i]);
  }
  e.element = static_cast<uint8_t>(f.element);
  e.rank = static_cast<uint8_t>(f.rank);
  e.interleave = static_cast<uint8_t>(f.interleave);
  e.swizzle = static_cast<uint8_t>(f.swizzle);
  e.l2 = static_cast<uint8_t>(f.l2);
  e.fill = static_cast<uint8_t>(f.fill);
  e.atom = static_cast<uint8_t>(f.atom);
  std::memcpy(out, &e, sizeof e);
}

std::optional<TensorMapFields> decode(const uint8_t in[kTensorMapBytes]) {
  Encoded e;
  std::memcpy(&e, in, sizeof e);
  if (e.magic != kMagic || e.rank < 1 || e.rank > 5 || e.element >= kTensorElements || e.interleave > 2 ||
      e.swizzle > 3 || e.l2 > 3 || e.fill > 1 || e.atom > 3)
    return std::nullopt;
  TensorMapFields f;
  f.address = e.address;
  f.element = static_cast<TensorElement>(e.element);
  f.rank = e.rank;
  for (int i = 0; i < 4; ++i) f.strides[i] = e.strides[i];
  for (int i = 0; i < 5; ++i) {
    f.dims[i] = uint64_t{e.dims[i]} + 1;
    f.box[i] = e.box[i];
    f.element_strides[i] = e.element_strides[i];
  }
  f.interleave = static_cast<TensorInterleave>(e.interleave);
  f.swizzle = static_cast<TensorSwizzle>(e.swizzle);
  f.l2 = static_cast<TensorL2>(e.l2);
  f.fill = static_cast<TensorFill>(e.fill);
  f.atom = static_cast<TensorAtom>(e.atom);
  return f;
}

std::string packed_flaw(const TensorMapFields& f) {
  if (f.interleave != TensorInterleave::None) return "types of 4 and 6 bits cannot be interleaved";
  if (f.fill == TensorFill::Nan) return "types of 4 and 6 bits have no NaN fill";
  if (!is_padded(f.element)) {
    if (f.dims[0] % 2 != 0) return "the inner dimension of a 4-bit type must be a multiple of 2 elements";
    return "";
  }
  if (f.dims[0] % 128 != 0) return "the inner dimension of a padded type must be a multiple of 128 elements";
  if (f.box[0] != 128) return "the inner dimension of the box of a padded type must be 128 elements";
  if (f.address % 32 != 0) return "the address of a padded type must be a multiple of 32";
  for (uint32_t d = 0; d + 1 < f.rank; ++d) {
    if (f.strides[d] % 32 != 0) return "the strides of a padded type must be multiples of 32";
  }
  const bool swizzles =
      f.swizzle == TensorSwizzle::None || (f.swizzle == TensorSwizzle::Bytes128 && f.atom != TensorAtom::Bytes32Flip);
  return swizzles ? "" : "a padded type has no swizzle but that of 128 bytes, without flipped halves";
}

// ---- who may use and who may rewrite a map ------------------------------------------------------

namespace {

bool seen(const Warp& warp, Stamp stamp) { return warp.view.seen[stamp.by] >= stamp.at; }

MapRecord& record_of(Cluster& cluster, uint64_t address) {
  cluster.maps_low = std::min(cluster.maps_low, address);
  cluster.maps_high = std::max(cluster.maps_high, address + kTensorMapBytes);
  return cluster.async->maps[address];
}

// A generic write to the map: nothing may still be reading it, and nobody has acquired what is written.
void rewrite(Warp& warp, MapRecord& record, uint64_t address, int lane) {
  Cluster& cluster = *warp.cta->cluster;
  for (const MapRecord::Use& use : record.uses) {
    if (seen(warp, use.stamp) || (use.map_read.at > 0 && seen(warp, use.map_read))) continue;
    fault(Hazard::TensorMapInFlight, warp, lane,
          "rewrites the tensor map at " + hex(address) +
              " while a copy may still read it: " + describe_agent(cluster, use.stamp.by) + " has not been waited for");
  }
  record.uses.clear();
  record.acquired.clear();
  record.written = true;
  record.released = false;
  record.writer = warp.stamp();
}

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

void use_tensor_map(Warp& warp, uint64_t address, int lane, const std::vector<Stamp>& completions, Stamp map_read) {
  if ((address & kWindowMask) != 0) return;  // parameters: nobody can rewrite them
  Cluster& cluster = *warp.cta->cluster;
  MapRecord& record = record_of(cluster, address);
  if (record.written) {
    bool acquired = false;
    for (const Stamp& stamp : record.acquired) acquired = acquired || seen(warp, stamp);
    if (!acquired) {
      const std::string by = describe_agent(cluster, record.writer.by);
      fault(Hazard::StaleTensorMap, warp, lane,
            "uses the tensor map at " + hex(address) + ", which " + by + " rewrote, " +
                (record.released ? "without fence.proxy.tensormap::generic.acquire after its release"
                                 : "but did not publish with fence.proxy.tensormap::generic.release or "
                                   "tensormap.cp_fenceproxy"));
    }
  }
  if (!record.written && cluster.written.touches(address, kTensorMapBytes)) {
    bool acquired = false;
    for (const Stamp& stamp : record.acquired) acquired = acquired || seen(warp, stamp);
    if (!acquired)
      fault(Hazard::StaleTensorMap, warp, lane,
            "uses the tensor map at " + hex(address) +
                ", which ordinary stores wrote, without "
                "fence.proxy.tensormap::generic.release after them and .acquire before the use");
  }
  for (const Stamp& stamp : completions) {
    bool known = false;
    for (MapRecord::Use& use : record.uses) {
      if (use.stamp.by != stamp.by || use.map_read.by != map_read.by) continue;
      use.stamp.at = std::max(use.stamp.at, stamp.at);
      use.map_read.at = std::max(use.map_read.at, map_read.at);
      known = true;
    }
    if (!known) record.uses.push_back({stamp, map_read});
  }
}

void tensor_map_written(Warp& warp, uint64_t address, uint32_t bytes, int lane) {
  Cluster& cluster = *warp.cta->cluster;
  auto& maps = cluster.async->maps;
  auto at = maps.upper_bound(address);
  if (at != maps.begin()) --at;
  for (; at != maps.end() && at->first < address + bytes; ++at) {
    if (at->first + kTensorMapBytes > address) rewrite(warp, at->second, at->first, lane);
  }
}

void release_tensor_maps(Warp& warp) {
  AsyncClusterState& s = *warp.cta->cluster->async;
  for (auto& [address, record] : s.maps) {
    if (!record.written || record.released || !seen(warp, record.writer)) continue;
    record.released = true;
    record.writer = warp.stamp();
  }
  s.map_releases.push_back(warp.stamp());
}

void acquire_tensor_map(Warp& warp, uint64_t address) {
  Cluster& cluster = *warp.cta->cluster;
  MapRecord& record = record_of(cluster, address);
  bool ordered = record.released && seen(warp, record.writer);
  // A map whose writing was not noticed, since nothing told that it was one.
  for (const Stamp& release : cluster.async->map_releases)
    ordered = ordered || (!record.written && seen(warp, release));
  if (ordered) record.acquired.push_back(warp.stamp());
}

// ---- instructions -------------------------------------------------------------------------------

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
constexpr uint8_t kGenericFlag = 0x80, kSharedFlag = 0x40;

// reg: address (2), new value, ordinal in imm. kind: the field.
Step execute_replace(Warp& warp, const Instr& instr, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    const uint64_t address = read_address(warp, instr, 0, 0, lane);
    const bool generic = instr.flags & kGenericFlag;
    const bool shared = instr.flags & kSharedFlag || (generic && (address & kWindowMask) == kSharedWindow);
    uint8_t* bytes;
    if (shared) {
      const SharedPlace place = shared_place(warp, address, generic, lane);
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
      rewrite(warp, record_of(*warp.cta->cluster, address), address, lane);
    }
    std::optional<TensorMapFields> fields = decode(bytes);
    if (!fields) fault(Hazard::IllegalUse, warp, lane, "the 128 bytes at " + hex(address) + " are no tensor map");
    const Field field = static_cast<Field>(instr.kind);
    const bool wide = field == Field::Address || field == Field::GlobalStride;
    const uint64_t value = wide ? read64(warp, instr, 2, lane) : read32(warp, instr, 2, lane);
    const size_t ordinal = static_cast<size_t>(instr.imm);
    const auto check = [&](bool good, const char* rule) {
      if (!good) fault(Hazard::IllegalUse, warp, lane, instr.source->opcode + " with " + hex(value) + ": " + rule);
    };
    switch (field) {
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
        fields->box[ordinal] = static_cast<uint32_t>(value);
        break;
      case Field::GlobalDim:
        // Zero stands for 2^32 in the descriptor's encoding of a size less one; a kernel that means "no rows" must
        // not ask for a copy at all.
        fields->dims[ordinal] = value == 0 ? uint64_t{1} << 32 : value;
        break;
      case Field::GlobalStride:
        check(value % 16 == 0 && value < uint64_t{1} << 40, "a stride is a multiple of 16 below 2^40");
        fields->strides[ordinal] = value;
        break;
      case Field::ElementStride:
        check(value >= 1 && value <= 8, "an element stride is 1 to 8");
        fields->element_strides[ordinal] = static_cast<uint32_t>(value);
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

Step execute_cp_fenceproxy(Warp& warp, const Instr& instr, uint32_t mask) {
  if (!converged(warp, mask)) return Step::Wait;
  const int lane = first_lane(mask);
  const uint64_t address = read_address(warp, instr, 0, 0, lane);
  const SharedPlace source = shared_place(warp, read_address(warp, instr, 2, 1, lane), false, lane);
  for (uint32_t rest = mask & (mask - 1); rest != 0; rest &= rest - 1) {
    const int other = first_lane(rest);
    if (read_address(warp, instr, 0, 0, other) != address ||
        read_address(warp, instr, 2, 1, other) != read_address(warp, instr, 2, 1, lane))
      fault(Hazard::IllegalUse, warp, other, "tensormap.cp_fenceproxy with addresses that differ between lanes");
  }
  if (address % 128 != 0 || source.offset % 128 != 0)
    fault(Hazard::Memory, warp, lane, "tensormap.cp_fenceproxy with addresses that are not aligned to 128 bytes");
  shared_generic_read(warp, *source.cta, source.offset, kTensorMapBytes, lane);
  shared_lane_read(warp, *source.cta, source.offset, kTensorMapBytes, -1);
  uint8_t* const destination = global_pointer(warp, address, kTensorMapBytes, lane);
  MapRecord& record = record_of(*warp.cta->cluster, address);
  rewrite(warp, record, address, lane);
  std::memcpy(destination, source.cta->shared.bytes + source.offset, kTensorMapBytes);
  record.released = true;
  return Step::Next;
}

Step execute_nothing(Warp&, const Instr&, uint32_t) { return Step::Next; }

// A hint: the map need not be fit for use yet.
Step execute_prefetch(Warp& warp, const Instr& instr, uint32_t mask) {
  for (; mask != 0; mask &= mask - 1) {
    const int lane = first_lane(mask);
    map_bytes(warp, read_address(warp, instr, 0, 0, lane) | static_cast<uint64_t>(instr.imm), lane);
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
    push_address(context, out, operands[0], 0);
    push_address(context, out, operands[1], 1);
    out.execute = execute_cp_fenceproxy;
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
    push_address(context, out, operands[0], 0);
    const ptx::Operand& value = operands.back();
    if (f.values > 0) {
      const int64_t given = immediate_of(source, value);
      if (given < 0 || given >= f.values) unsupported(source, "new value " + std::to_string(given) + " is not known");
      const bool later = (f.field == Field::Element && is_packed(static_cast<TensorElement>(given))) ||
                         (f.field == Field::Atomicity && given > 0);
      if (later && context.arch() < 100)
        unsupported(source, "new value " + std::to_string(given) + " needs sm_100 or later");
    }
    context.push(value, wide ? ptx::Type::U64 : ptx::Type::U32);
    if (f.ordinal) {
      out.imm = immediate_of(source, operands[1]);
      if (out.imm < 0 || out.imm >= (f.field == Field::GlobalStride ? 4 : 5))
        unsupported(source, "ordinal " + std::to_string(out.imm) + " is not a dimension");
    }
    out.kind = static_cast<uint8_t>(f.field);
    if (has_part(source, "shared::cta") || has_part(source, "shared")) {
      out.flags |= kSharedFlag;
    } else if (!has_part(source, "global")) {
      out.flags |= kGenericFlag;
    }
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
  push_map_address(context, out, source.operands.at(0), 0);
  if (has_part(source, "param")) out.imm = static_cast<int64_t>(kParamWindow);
  out.execute = execute_prefetch;
  return true;
}

}  // namespace

void register_tensor_map() {
  register_opcode("tensormap", decode_tensormap);
  register_opcode("prefetch", decode_prefetch);
}

}  // namespace sim
