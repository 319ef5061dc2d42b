// SPDX-License-Identifier: Apache-2.0
// See hopper_cost.h.
#include "plan/hopper_cost.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace moxie::plan {

const HopperCosts kHopperCosts = {
#include "plan/hopper_costs.inc"
};

namespace {

using kernel::HopperConfig;

// Instructions per accumulator element, the store included. Those of a gate are shared between gate and up.
double instructions(const Shape& s) {
  double per = 2.5 + (s.bias ? 1 : 0) + (s.pre && s.out ? 1.5 : 0) + 2.0 * double(s.custom_sinks.size());
  switch (s.activation) {
    case Activation::None:
      return per;
    case Activation::Relu:
      return per + 1;
    case Activation::Relu2:
      return per + 2;
    case Activation::GeluTanh:
      return per + 10;
    case Activation::GeluErf:
      return per + 25;
    case Activation::Silu:
      return per + 6;
    case Activation::Swiglu:
      return per + 4;
    case Activation::SwigluOai:
      return per + 6;
    case Activation::Geglu:
      return per + 6;
    case Activation::Reglu:
      return per + 1;
    // Counted in the machine code, as those above are. Neither was among the measurements that fitted the costs.
    case Activation::SwigluClamped:
      return per + 5;
    case Activation::Situ:
      return per + 16;
  }
  return per;
}

// Of times that overlap, one of them above 0: the longer one where `power` is great, the sum where it is 1.
double together(double a, double b, double power) {
  const double most = std::max(a, b), least = std::min(a, b);
  return most * std::pow(1 + std::pow(least / most, power), 1 / power);
}
// The same with a power of 8, which takes no logarithms.
double together8(double a, double b) {
  const double most = std::max(a, b), least = std::min(a, b);
  const double ratio = least / most, square = ratio * ratio, fourth = square * square;
  return most * std::sqrt(std::sqrt(std::sqrt(1 + fourth * fourth)));
}

// Falls from 1 to 0 where x passes 1.
double kept(double x, double steep) { return 1 / (1 + std::pow(x, steep)); }

double tiles_in(double extent, double tile) { return std::ceil(extent / tile); }

int family_of(const HopperConfig& c) {
  if (c.schedule == WarpSchedule::Cooperative) return c.block_m == 128 ? 0 : 1;
  return c.block_m == 64 ? 2 : c.block_m == 128 ? 3 : 4;
}

// Reads of lines that other blocks read as well.
struct Reuse {
  double bytes;
  double readers;  // of a line, at about the same time
};

// What all tiles of a launch do.
struct Traffic {
  double cluster_tiles = 0;
  double paired = 0;       // cluster tiles of two rows by one column, with Multicast::Either
  double loaded = 0;       // bytes from L2
  double rows_loaded = 0;  // of A, over all cluster tiles, of those that load in parts
  double fetched = 0;      // bytes that L2 must read from memory
  double stored = 0;       // bytes
  std::vector<Reuse> reuse;
};

Traffic traffic_of(const Shape& s, const RowEstimate& w, const HopperConfig& c, double slots, int panel, double l2,
                   double steep) {
  const double m = c.block_m, n = c.block_n, k_bytes = double(s.k) * 2;
  const double columns = tiles_in(double(s.n), n), pair_columns = std::ceil(columns / 2);
  const double columns_out = (s.pre ? double(s.n) * bits_of(*s.pre) / 8 : 0) +
                             (s.out ? double(s.n) * bits_of(*s.out) / 8 / (is_gated(s.activation) ? 2 : 1) : 0);
  Traffic t;
  for (const EqualGroups& r : w.rows) {
    if (r.rows <= 0) continue;
    const bool vague = !w.exact && r.rows > m;  // a group ends anywhere in its last tile
    const double rows = vague ? r.rows / m + 0.5 : std::ceil(r.rows / m), whole = std::ceil(r.rows / m);
    double loaded = m;  // rows of A that a tile loads, on average
    const bool in_parts = kernel::loads_in_parts(c);
    if (in_parts || c.gather) {
      const double last = std::ceil((r.rows - (whole - 1) * m) / kernel::kPartRows) * kernel::kPartRows;
      loaded = ((whole - 1) * m + std::min(m, last)) / whole;
    }
    // Cluster tiles, rows of A and of B that they load, and their extents.
    double tiles = rows * columns, of_a = tiles * loaded, of_b = tiles * n, height = m, width = n;
    if (c.multicast == Multicast::A) {
      tiles = rows * pair_columns;
      of_a = tiles * loaded, of_b = tiles * 2 * n, width = 2 * n;
    } else if (c.multicast == Multicast::B) {
      const double pairs = vague ? rows / 2 + 0.25 : std::ceil(rows / 2);
      tiles = pairs * columns;
      of_b = tiles * n, height = 2 * m;
    } else if (c.multicast == Multicast::Either) {
      const double pairs = vague ? std::max(0.0, rows / 2 - 0.25) : std::floor(rows / 2), odd = rows - 2 * pairs;
      tiles = pairs * columns + odd * pair_columns;
      of_a = (2 * pairs * columns + odd * pair_columns * (c.gather ? 2 : 1)) * loaded;
      of_b = pairs * columns * n + odd * pair_columns * 2 * n;
      pairs > 0 ? height = 2 * m : width = 2 * n;
      t.paired += r.groups * pairs * columns;
    }
    t.cluster_tiles += r.groups * tiles;
    t.loaded += r.groups * (of_a + of_b) * k_bytes;
    if (in_parts && loaded < m) t.rows_loaded += r.groups * tiles * loaded;
    t.stored += r.groups * r.rows * columns_out;

    // The group's tiles are walked in panels, each of all rows by some columns.
    const double panel_width = std::min(double(s.n), std::max(1.0, double(panel)) * kernel::cluster_tile_columns(c));
    const double panels = tiles_in(double(s.n), panel_width), per_row = panel_width / width;
    const double tile_rows = tiles_in(r.rows, height);
    const double wave_rows = std::min(tile_rows, std::max(1.0, slots / per_row));  // of a panel, in flight at once
    const double wave_panels = std::clamp(slots / (per_row * tile_rows), 1.0, panels);
    const double a = r.rows * k_bytes, b = double(s.n) * k_bytes;
    const double panel_b = panel_width * k_bytes, wave_a = std::min(a, wave_rows * height * k_bytes);
    // A is read again for every panel, and B for every wave of a panel's rows, where L2 has lost them.
    const double passes_a = std::max(0.0, panels / wave_panels - 1);
    const double passes_b = std::max(0.0, tile_rows / wave_rows - 1);
    const double fetched_a = a * (1 + passes_a * (1 - kept((a + panel_b) / l2, steep)));
    const double fetched_b = b * (1 + passes_b * (1 - kept((panel_b + wave_a) / l2, steep)));
    t.fetched += r.groups * (fetched_a + fetched_b);
    t.reuse.push_back({r.groups * std::max(0.0, of_a * k_bytes - fetched_a), per_row * wave_panels});
    t.reuse.push_back({r.groups * std::max(0.0, of_b * k_bytes - fetched_b), wave_rows});
  }
  return t;
}

// Cycles in which the producer's warps copy the gathered rows of a stage, and those by which a stage of a cooperative
// kernel takes longer, whose warp groups all wait at once until wgmma sees what cp.async has written. With both the
// choice among measured kernels of nine models is best on an H200 (bench/notes/hopper.md).
constexpr double kGatherStep = 350, kGatherWait = 60;

// What a ping-pong kernel of 128 rows and more takes longer because its blocks drift apart, so that L2 serves fewer of
// them at once. It shows on an H100, not on an H200, whose memory has more bytes for a multiprocessor's cycle, and in
// products that take milliseconds (bench/notes/hopper.md). `seconds`: without it.
double drift(const DeviceFigures& d, double seconds) {
  constexpr double kMost = 0.06, kBegin = 1.5e-3, kFull = 4.5e-3;  // a share of the time; seconds
  constexpr double kAmple = 18.4, kScarce = 12.8;                  // bytes a cycle of a multiprocessor: H200, H100
  const double bytes = d.memory_rate / (d.sm_count * d.clock);
  return kMost * std::clamp((kAmple - bytes) / (kAmple - kScarce), 0.0, 1.0) *
         std::clamp(std::log(seconds / kBegin) / std::log(kFull / kBegin), 0.0, 1.0);
}

}  // namespace

HopperTime time_of(const Shape& s, const DeviceFigures& d, const RowEstimate& w, const HopperConfig& c, int panel,
                   const HopperCosts& costs) {
  const double m = c.block_m, n = c.block_n, clock = 0.8 * d.clock;
  const int slots = d.sm_count / c.cluster;
  const bool pingpong = c.schedule == WarpSchedule::PingPong;
  const Traffic t = traffic_of(s, w, c, slots, panel, double(d.l2_bytes) * costs.l2_share, costs.l2_steep);
  HopperTime time;
  time.total = costs.launch * 1e-6;
  if (t.cluster_tiles <= 0) return time;

  // A step of K: bytes that this block loads itself, and all that arrive.
  const double step_bytes = c.block_k * 2.0, k_tiles = std::max(1.0, tiles_in(double(s.k), c.block_k));
  const double pairs = c.multicast == Multicast::Either ? t.paired / t.cluster_tiles
                       : c.multicast == Multicast::B    ? 1
                                                        : 0;
  const double a_shared = kernel::may_share_a(c) ? 1 - pairs : 0;
  const double lines = t.loaded / (t.cluster_tiles * c.cluster * std::max<double>(double(s.k), 1) * 2);
  const double own = lines * step_bytes, all = (std::max(8.0, std::min(m, lines)) + n) * step_bytes;
  const double products = std::max(m, 64.0) * n * c.block_k / (pingpong ? costs.pingpong_rate : costs.cooperative_rate);
  const double loads = own / costs.own_bytes + std::max(0.0, all - own) / costs.multicast_bytes;
  const double parts = std::max(0.0, t.rows_loaded / t.cluster_tiles / kernel::kPartRows - 1) * (1 - a_shared / 2);
  const double copies = 2 + parts + (c.multicast == Multicast::Either ? 1 : 0);
  const double least = costs.least_step + costs.copy * copies, latency = costs.load_latency / (c.stages - 1);
  double step = together8(together8(products, loads), together8(least, latency));
  if (c.gather) step = together8(step, kGatherStep) + (pingpong ? 0 : kGatherWait);
  if (c.cluster > 1)
    step *=
        1 + pairs * costs.share_b + a_shared * costs.share_a + (c.multicast == Multicast::Either ? costs.either : 0);

  // A tile, and the tiles of the block that has most.
  const double work = m * n * instructions(s);
  double end = 0, tile = 0;
  time.mainloop = k_tiles * step;
  if (pingpong) {
    time.epilogue = work * costs.pingpong_epilogue;
    tile = std::max(time.mainloop + costs.turn, (time.mainloop + time.epilogue) / 2 + costs.turn);
    end = work * costs.last_epilogue;
  } else {
    time.epilogue = work * costs.epilogue_instruction + costs.epilogue_fixed;
    tile = time.mainloop + time.epilogue;
  }
  const double share = t.cluster_tiles / slots;
  time.tiles = t.cluster_tiles * c.cluster;
  time.waves = w.exact ? std::ceil(share) : std::max(1.0, share + 0.5);
  time.compute = (time.waves * tile + end) / clock;
  time.l2 = t.loaded / (costs.l2_rate * clock * std::pow(d.memory_rate / 3.35e12, costs.l2_scale));

  // Memory. The blocks that read the same lines are spread over the time of a tile, in which memory fills L2 anew: the
  // longer that time, the likelier a line is gone when its next reader comes.
  const double reached = costs.hbm / (1 + costs.wide * std::max(0.0, n / 96 - 1) + (m > 64 ? costs.high : 0) +
                                      (pingpong ? 0 : costs.cooperative_memory));
  const double rate = reached * d.memory_rate;
  const double busy = together(time.compute, time.l2, costs.overlap_l2);
  double total = busy;
  for (int i = 0; i < 3; ++i) {
    const double filled = rate * total / std::max(1.0, share) / (costs.residence * double(d.l2_bytes));
    double bytes = t.fetched + t.stored;
    for (size_t j = 0; j < t.reuse.size(); ++j) {
      const double readers = t.reuse[j].readers * (j % 2 == 0 ? costs.residence_a : 1);
      bytes += t.reuse[j].bytes * (costs.first_miss + (1 - costs.first_miss) * std::exp(-readers / filled));
    }
    time.memory = bytes / rate * (1 + costs.tail * (time.waves / share - 1));
    total = together(busy, time.memory, costs.overlap);
  }

  // What the formulas leave, by where the time goes.
  const double parts_of_time[3] = {time.compute, time.l2, time.memory};
  double cubes = 0, left = 0;
  for (const double part : parts_of_time) cubes += part * part * part;
  const auto* at = std::find_if(std::begin(kHopperTiles), std::end(kHopperTiles), [&](const HopperTile& x) {
    return x.schedule == c.schedule && x.m == c.block_m && x.n == c.block_n;
  });
  for (int i = 0; i < 3; ++i) {
    const double weight = parts_of_time[i] * parts_of_time[i] * parts_of_time[i] / cubes;
    left += weight * (costs.tile[at - kHopperTiles][i] + costs.share[family_of(c)][static_cast<int>(c.multicast)][i]);
  }
  // The tables are fitted to products that take longer than a launch. They say nothing of shorter ones.
  left *= std::min(1.0, total / time.total);
  time.total = (time.total + total) * std::exp(left);
  if (pingpong && c.block_m >= 128) time.total *= 1 + drift(d, time.total);
  if (time.memory > busy) {
    time.limit = "HBM";
  } else if (time.l2 > time.compute) {
    time.limit = "L2";
  } else if (time.epilogue > time.mainloop) {
    time.limit = "epilogue";
  } else {
    const double most = std::max({products, loads, least, latency});
    time.limit = most == products  ? "tensor cores"
                 : most == loads   ? "loads"
                 : most == latency ? "load latency"
                                   : "copies";
  }
  return time;
}

}  // namespace moxie::plan
