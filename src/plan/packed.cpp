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

// Fitted to the choice among measured kernels of 96 products with balanced, scattered and skewed groups on an H200, and
// held near constants that were fitted to times of 26 products on an H100 and an H200 (bench/notes/hopper.md).
// In cycles of 0.8 times the device's highest clock, of one multiprocessor.
struct PackedCosts {
  double tensor = 0.852;  // of the tensor cores: times the cycles that wgmma has at its highest rate
  // To unpack 64 rows by 64 columns: by two warp groups; by four, and besides for each row of the tile; and a factor
  // where two of the four share the columns, or where each of two has two strips of them and 64 rows.
  double unpack_two = 256, unpack_four = 97, unpack_row = 1.3, unpack_shared = 1.2, unpack_strips = 0.75;
  double stage = 9;     // to wait for a stage and hand it back
  double chunk = 1189;  // for the end of 64 x 64 accumulators, when all went through shared memory; fewer rows: half
  double tile = 2819;   // besides, of a tile
  double shared_a = 1.108;              // a factor of blocks that share A
  double last_wave = 0.324;             // waves that tiles of unknown number need more than their share
  double last_row = 0.391;              // rows of tiles that a group of unknown rows needs more than its share
  double launch = 2.23e-6, hbm = 0.97;  // seconds; the part of the memory's rate that is reached
};
constexpr PackedCosts kCosts;

}  // namespace

void check_packed_choices(const Shape& s, const DeviceFigures& d) {
  const HopperTuning& t = s.hopper;
  const auto among = [](std::optional<int> value, std::initializer_list<int> possible) {
    return !value || std::find(possible.begin(), possible.end(), *value) != possible.end();
  };
  if (!among(t.tile_m, {8, 16, 32, 64, 128, 256}))
    reject(
        fmt::format("tile_m is {}, but with packed weights only 8, 16, 32, 64, 128 and 256 are possible", *t.tile_m));
  if (!among(t.tile_n, {128, 256}))
    reject(fmt::format("tile_n is {}, but with packed weights only 128 and 256 are possible", *t.tile_n));
  if (t.schedule == WarpSchedule::PingPong)
    reject("schedule is PingPong, but with packed weights only Cooperative is possible");
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
  const double clock = 0.8 * d.clock, m = c.block_m;
  const int slots = d.sm_count / c.cluster;
  HopperTime time;
  double cluster_tiles = 0, half_tiles = 0, rows = 0, groups = 0;
  for (const EqualGroups& r : w.rows) {
    if (r.rows <= 0) continue;
    const double columns = r.groups * std::ceil(double(s.n) / kernel::cluster_tile_columns(c));
    const bool known = w.exact || r.rows <= m;
    const double left = std::fmod(r.rows, m);
    cluster_tiles += columns * (known ? std::ceil(r.rows / m) : r.rows / m + kCosts.last_row);
    if (kernel::halves_rows(c)) half_tiles += columns * (!known ? 0.5 : left > 0 && left <= m / 2 ? 1 : 0);
    rows += r.groups * r.rows, groups += r.groups;
  }
  time.total = kCosts.launch;
  if (cluster_tiles <= 0) return time;

  // A tile's strips of 64 columns, and slabs of 64 of K.
  const double strips = double(c.block_n) / kernel::kPackRows;
  const double slabs = std::max(1.0, std::ceil(double(s.k) / kernel::kPackColumns));
  const double tensor = strips * 4 * std::max(m / 2, 16.0) * kCosts.tensor;
  const double shared = kernel::k_parts(c) > 1 ? kCosts.unpack_shared : 1;
  const double wide = m == 64 && strips > 2 ? kCosts.unpack_strips : 1;
  const double unpack =
      strips * (kernel::consumer_warp_groups(c) == 2 ? kCosts.unpack_two * wide
                                                     : (kCosts.unpack_four + kCosts.unpack_row * m) * shared);
  const double stages = std::ceil(slabs * kernel::kPackColumns / c.block_k);
  // The tensor cores and unpacking overlap, and are seldom both at their limit.
  const double factor = c.cluster > 1 ? kCosts.shared_a : 1;
  const auto mainloop = [&](double rows_multiplied) {
    const double products = tensor * rows_multiplied;
    return (slabs * std::pow(std::pow(products, 4) + std::pow(unpack, 4), 0.25) + stages * kCosts.stage + kCosts.tile) *
           factor;
  };
  const double half = half_tiles / cluster_tiles;
  time.mainloop = half * mainloop(0.5) + (1 - half) * mainloop(1);
  time.epilogue = strips * std::ceil(m / 64) * kCosts.chunk * (m < 64 ? 0.5 : 1) * factor;
  const double share = cluster_tiles / slots;
  time.tiles = cluster_tiles * c.cluster;
  time.waves = w.exact ? std::ceil(share) : std::max(1.0, share + kCosts.last_wave);
  time.compute = time.waves * (time.mainloop + time.epilogue) / clock;

  const double columns_out = (s.pre ? double(s.n) * bits_of(*s.pre) / 8 : 0) +
                             (s.out ? double(s.n) * bits_of(*s.out) / 8 / (is_gated(s.activation) ? 2 : 1) : 0);
  const double bytes = groups * double(kernel::packed_group_bytes(s.n, s.k)) + rows * (double(s.k) * 2 + columns_out);
  time.memory = bytes / (kCosts.hbm * d.memory_rate);
  // Computing and memory overlap.
  time.total += std::cbrt(std::pow(time.compute, 3) + std::pow(time.memory, 3));
  time.limit = time.memory > time.compute      ? "HBM"
               : time.epilogue > time.mainloop ? "epilogue"
               : tensor > unpack               ? "tensor cores"
                                               : "unpacking";
  return time;
}

}  // namespace moxie::plan
