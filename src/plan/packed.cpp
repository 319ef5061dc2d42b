// SPDX-License-Identifier: Apache-2.0
// See packed.h.
#include "plan/packed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "moxie/error.h"

namespace moxie::plan {
namespace {

using kernel::HopperConfig;

[[noreturn]] void reject(const std::string& sentence) { throw Error(ErrorCode::InvalidArgument, sentence); }

// Cycles of a warp to unpack 64 rows by 64 columns of K: its 16 rows are some 75 instructions, and the four warps of a
// warp group run side by side.
constexpr double kUnpackCycles = 90;
// The least cycles of a step: waiting for the stage, reading it and handing it back.
constexpr double kLeastStep = 260;
// Cycles to bring 64 x 64 accumulators through shared memory to the sinks.
constexpr double kChunkCycles = 420;

}  // namespace

void check_packed_choices(const Shape& s, const DeviceFigures& d) {
  const HopperTuning& t = s.hopper;
  const auto among = [](std::optional<int> value, std::initializer_list<int> possible) {
    return !value || std::find(possible.begin(), possible.end(), *value) != possible.end();
  };
  if (!among(t.tile_m, {8, 16, 32, 64, 128, 256}))
    reject(
        fmt::format("tile_m is {}, but with packed weights only 8, 16, 32, 64, 128 and 256 are possible", *t.tile_m));
  if (!among(t.tile_n, {64, 128, 256}))
    reject(fmt::format("tile_n is {}, but with packed weights only 64, 128 and 256 are possible", *t.tile_n));
  if (!among(t.cluster, {1, 2})) reject(fmt::format("cluster is {}, but only 1 and 2 are possible", *t.cluster));
  if (t.multicast && *t.multicast != Multicast::None && *t.multicast != Multicast::A)
    reject("multicast shares b, but with packed weights only a is shared");
  if (t.multicast == Multicast::A && t.cluster == 1)
    reject("multicast of an operand needs cluster 2, but cluster is 1");
  if (t.multicast == Multicast::None && t.cluster == 2)
    reject("cluster 2 shares an operand by multicast, but multicast is None");
  if ((t.cluster == 2 || t.multicast == Multicast::A) && d.sm_count < 2)
    reject(fmt::format("cluster 2 needs two SMs, but the device has {}", d.sm_count));
}

HopperTime packed_time_of(const Shape& s, const DeviceFigures& d, const RowEstimate& w, const HopperConfig& c) {
  const HopperCosts& costs = kHopperCosts;
  const double clock = 0.8 * d.clock, slots = std::max(1, d.sm_count / c.cluster), blocks = double(c.block_n) / 64;
  const double m = c.block_m, n = c.block_n, steps = std::max(1.0, std::ceil(double(s.k) / c.block_k));
  const bool pingpong = c.schedule == WarpSchedule::PingPong;
  HopperTime time;
  double bytes = 0, cluster_tiles = 0, rows = 0, groups = 0;
  for (const EqualGroups& r : w.rows) {
    if (r.rows <= 0) continue;
    const double tile_rows = w.exact || r.rows <= m ? std::ceil(r.rows / m) : r.rows / m + 0.5;
    cluster_tiles += r.groups * tile_rows * std::ceil(double(s.n) / kernel::cluster_tile_columns(c));
    rows += r.groups * r.rows, groups += r.groups;
  }
  time.total = costs.launch * 1e-6;
  if (cluster_tiles <= 0) return time;

  // A step of K in a block, and a tile.
  const double products = blocks * 4 * std::max(m / 2, 16.0), unpack = blocks * kUnpackCycles;
  const double weights = n * double(kernel::packed_row_bytes(c.block_k));
  const double own = (m * kernel::kStageRowBytes / c.cluster + weights) / costs.own_bytes;
  const double latency = costs.load_latency / (c.stages - 1);
  const double step = std::max({products * 1.08, unpack, own, latency, kLeastStep});
  time.mainloop = steps * step;
  time.epilogue = blocks * std::ceil(m / 64) * kChunkCycles;
  const double tile = pingpong ? std::max(time.mainloop + costs.turn, (time.mainloop + time.epilogue) / 2 + costs.turn)
                               : time.mainloop + time.epilogue;
  const double share = cluster_tiles / slots;
  time.tiles = cluster_tiles * c.cluster;
  time.waves = w.exact ? std::ceil(share) : std::max(1.0, share + 0.5);
  time.compute = (time.waves * tile + (pingpong ? time.epilogue : 0)) / clock;
  const double loaded = time.tiles * steps * (m * kernel::kStageRowBytes / c.cluster + weights);
  time.l2 = loaded / (costs.l2_rate * clock * std::pow(d.memory_rate / 3.35e12, costs.l2_scale));

  const double columns_out = (s.pre ? double(s.n) * bits_of(*s.pre) / 8 : 0) +
                             (s.out ? double(s.n) * bits_of(*s.out) / 8 / (is_gated(s.activation) ? 2 : 1) : 0);
  bytes = groups * double(kernel::packed_group_bytes(s.n, s.k)) + rows * (double(s.k) * 2 + columns_out);
  time.memory = bytes / (costs.hbm * d.memory_rate);
  // Computing, L2 and memory overlap.
  double cubes = 0;
  for (const double part : {time.compute, time.l2, time.memory}) cubes += part * part * part;
  time.total += std::cbrt(cubes);
  time.limit = time.memory > time.compute && time.memory > time.l2 ? "HBM"
               : time.l2 > time.compute                            ? "L2"
               : time.epilogue > time.mainloop                     ? "epilogue"
               : step == products * 1.08                           ? "tensor cores"
               : step == unpack                                    ? "unpacking"
               : step == own                                       ? "loads"
               : step == latency                                   ? "load latency"
                                                                   : "steps";
  return time;
}

}  // namespace moxie::plan
