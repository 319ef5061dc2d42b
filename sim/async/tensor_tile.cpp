// SPDX-License-Identifier: Apache-2.0
#include "sim/async/tensor_tile.h"

#include <algorithm>
#include <string>

#include "sim/hazards/global_access.h"
#include "sim/hazards/global_races.h"
#include "sim/hazards/system_access.h"
#include "sim/machine/fault.h"
#include "sim/machine/launch.h"
#include "sim/memory/address_space.h"

namespace sim {
namespace {

// What im2col::w and im2col::w::128 ask of wHalo and wOffset (9.7.9.27.1.2) and of the swizzle (5.5.5). The halo of
// im2col::w are the pixels in which the column goes on (5.5.5.3).
template <class F>
void add_halo(F illegal, TileMode mode, const std::array<uint32_t, 3>& info, Tile* tile) {
  const bool w128 = mode == TileMode::PixelsW128;
  const uint32_t most = w128 ? 31 : 511;
  if (info[0] > most) illegal("wHalo is " + std::to_string(info[0]) + "; allowed are 0 to " + std::to_string(most));
  if (info[1] > 31) illegal("wOffset is " + std::to_string(info[1]) + "; allowed are 0 to 31");
  // Only a figure of 5.5.5.3 shows where the four halos lie in shared memory.
  if (w128 && info[0] != 0) illegal("im2col::w::128 with a wHalo of " + std::to_string(info[0]) + " is not simulated");
  if (tile->map.swizzle == TensorSwizzle::None || tile->map.atom == TensorAtom::Bytes32Flip)
    illegal("im2col::w and im2col::w::128 need a swizzle, and one without flipped halves");
  tile->rows += info[0];
}

}  // namespace

Tile make_tile(Warp& warp, int lane, const TensorMapFields& map, uint32_t rank, const int32_t* coordinates,
               TileMode mode, const std::array<uint32_t, 3>& info) {
  const auto illegal = [&](const std::string& text) { fault(Hazard::IllegalUse, warp, lane, text); };
  if (map.rank != rank)
    illegal("a " + std::to_string(rank) + "-dimensional copy with a tensor map of rank " + std::to_string(map.rank));
  const bool pixels = mode >= TileMode::Pixels, wide = mode > TileMode::Pixels;
  static constexpr TensorMode kNeeded[] = {TensorMode::Tiled, TensorMode::Tiled, TensorMode::Im2col,
                                           TensorMode::Im2colW, TensorMode::Im2colW128};
  const TensorMode needed = kNeeded[static_cast<int>(mode)];
  static const char* const kModes[] = {"a tiled", "an im2col", "an im2col::w", "an im2col::w::128"};
  if (map.mode != needed)
    illegal(std::string(kModes[static_cast<int>(needed)]) + " copy with " + kModes[static_cast<int>(map.mode)] +
            " tensor map");
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
    const uint32_t box = pixels && d == 0 ? map.im2col.channels : map.box[d];
    if (box < 1 || box > 256 || stride < 1 || stride > 8)
      illegal("the tensor map has a box or element stride out of range in dimension " + std::to_string(d));
    tile.count[d] = (box + stride - 1) / stride;
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
  if (pixels) {
    tile.rows = mode == TileMode::PixelsW128 ? 128 : map.im2col.pixels;
    if (wide) add_halo(illegal, mode, info, &tile);
    // Figures of 5.5.4.1: 16 bits for one dimension, 8 for each of two, 5 for each of three.
    const uint32_t most = rank == 3 ? 65535 : rank == 4 ? 255 : 31;
    for (uint32_t i = 0; i + 2 < rank; ++i) {
      // 5.5.5.1: the box has one place in H and in D, and the first pixel may lie left of it in W.
      if (wide && i > 0) {
        tile.first_pixel[i] = tile.last_pixel[i] = tile.at[i + 1];
        continue;
      }
      tile.first_pixel[i] = map.im2col.lower[i];
      tile.last_pixel[i] = static_cast<int64_t>(map.dims[i + 1]) - 1 + map.im2col.upper[i];
      tile.offset[i] = wide ? info[1] : info[i];
      const std::string dimension = std::string(1, "WHD"[i]);
      if (!wide && info[i] > most)
        illegal("the im2col offset of " + dimension + " is " + std::to_string(info[i]) + "; allowed are 0 to " +
                std::to_string(most));
      if ((!wide && tile.at[i + 1] < tile.first_pixel[i]) || tile.at[i + 1] > tile.last_pixel[i])
        illegal("the filter is at " + std::to_string(tile.at[i + 1]) + " in " + dimension +
                ", outside the tensor map's box of pixels, " + std::to_string(tile.first_pixel[i]) + " to " +
                std::to_string(tile.last_pixel[i]));
    }
  }
  if (mode == TileMode::FourRows) {
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
  // All that is inside the tensor must be allocated, without a gap.
  uint64_t low = UINT64_MAX, high = 0;
  tile.each_row([&](uint32_t, bool inside, uint64_t address) {
    if (!inside) return;
    low = std::min(low, address + tile.inside_first * tile.unit.global_bytes);
    high = std::max(high, address + tile.inside_end * tile.unit.global_bytes);
  });
  const Launch& launch = *warp.cta->cluster->launch;
  if (low < high && !global_range_cached(*launch.global, low, high))
    fault(Hazard::Memory, warp, lane,
          "a tensor copy touches " + std::to_string(high - low) + " bytes at " + hex(low) + ", which " +
              explain_global(launch, low, high - low));
  return tile;
}

void note_rows(Warp& warp, const Tile& tile, bool write, Reach reach, Stamp completion, int lane) {
  const Cluster& cluster = *warp.cta->cluster;
  if (cluster.launch->predecessors.unfinished_writes.empty() && !(write && cluster.logs_writes) &&
      cluster.statistics == nullptr && cluster.global_history == nullptr && cluster.system == nullptr)
    return;
  const uint32_t first = tile.inside_first * tile.unit.global_bytes, end = tile.inside_end * tile.unit.global_bytes;
  tile.each_row([&](uint32_t, bool inside, uint64_t address) {
    if (!inside) return;
    note_global(warp, address + first, end - first, write, lane);
    count_global(cluster, end - first, !write, write);
    if (cluster.system != nullptr)
      system_copy_access(warp, address + first, end - first, write, completion, true, reach, lane);
  });
  if (cluster.global_history == nullptr) return;
  uint64_t from = 0, to = 0;  // rows that follow each other are one
  tile.each_row([&](uint32_t, bool inside, uint64_t address) {
    if (!inside) return;
    if (address + first != to) {
      judge_global_copy(warp, from, to - from, write, reach, completion);
      from = address + first;
    }
    to = address + end;
  });
  judge_global_copy(warp, from, to - from, write, reach, completion);
}

}  // namespace sim
