// SPDX-License-Identifier: Apache-2.0
// The cost model of Hopper kernels: the time of a launch from the tiles that it computes, the bytes that they move and
// the device's figures.
#pragma once
#include "plan/plan.h"
#include "plan/row_estimate.h"

namespace moxie::plan {

struct HopperTile {
  WarpSchedule schedule;
  int m, n;
};
constexpr HopperTile kHopperTiles[] = {
    {WarpSchedule::Cooperative, 128, 64},  {WarpSchedule::Cooperative, 128, 96},  {WarpSchedule::Cooperative, 128, 128},
    {WarpSchedule::Cooperative, 128, 160}, {WarpSchedule::Cooperative, 128, 192}, {WarpSchedule::Cooperative, 128, 224},
    {WarpSchedule::Cooperative, 128, 256}, {WarpSchedule::Cooperative, 256, 64},  {WarpSchedule::Cooperative, 256, 96},
    {WarpSchedule::Cooperative, 256, 128}, {WarpSchedule::PingPong, 64, 64},      {WarpSchedule::PingPong, 64, 96},
    {WarpSchedule::PingPong, 64, 128},     {WarpSchedule::PingPong, 64, 160},     {WarpSchedule::PingPong, 64, 192},
    {WarpSchedule::PingPong, 64, 224},     {WarpSchedule::PingPong, 64, 256},     {WarpSchedule::PingPong, 128, 64},
    {WarpSchedule::PingPong, 128, 96},     {WarpSchedule::PingPong, 128, 128},    {WarpSchedule::PingPong, 128, 160},
    {WarpSchedule::PingPong, 8, 64},       {WarpSchedule::PingPong, 8, 96},       {WarpSchedule::PingPong, 8, 128},
    {WarpSchedule::PingPong, 8, 160},      {WarpSchedule::PingPong, 8, 192},      {WarpSchedule::PingPong, 8, 224},
    {WarpSchedule::PingPong, 8, 256}};
constexpr int kHopperTileCount = sizeof(kHopperTiles) / sizeof(kHopperTiles[0]);
// Cooperative of 128 and 256 rows, ping-pong of 64, 128 and 8.
constexpr int kHopperFamilies = 5, kMulticasts = 4;

// The model's constants, which bench/fit_plan.py fits to measured times. Cycles are of 0.8 times the device's highest
// clock, about what the power limit leaves.
struct HopperCosts {
  // Multiply-adds a cycle and multiprocessor while the tensor cores are busy.
  double pingpong_rate, cooperative_rate;
  // Bytes a cycle that a multiprocessor gets of its own loads, and of what its peer in the cluster multicasts to it.
  double own_bytes, multicast_bytes;
  // Cycles from issuing a tensor copy to its barrier's completion, under load.
  double load_latency;
  // The least cycles of a step of K, and those of each copy that the producer issues for it.
  double least_step, copy;
  // Shares of the main loop by which blocks wait that share A, B, or one or the other.
  double share_a, share_b, either;
  // A cooperative epilogue, which nothing hides: cycles of an instruction on an accumulator, and a fixed part.
  double epilogue_instruction, epilogue_fixed;
  // Ping-pong: cycles of the hand-over between warp groups, of an instruction of the last tile's epilogue, and of one
  // where epilogues take longer than main loops.
  double turn, last_epilogue, pingpong_epilogue;
  // Bytes a cycle from L2 to all multiprocessors, on a device whose memory moves 3.35e12 bytes a second, and the power
  // with which they follow the memory's rate: part of what L2 is asked for comes from there.
  double l2_rate, l2_scale;
  // Share of L2 that holds an operand until it is read again, and how sharply it is lost beyond.
  double l2_share, l2_steep;
  // Blocks that read the same lines drift apart. Shares of L2 that hold a line for the next reader; for A more by a
  // factor. The share of such reads that always miss.
  double residence, residence_a, first_miss;
  // Share of the memory's rate that is reached, less for tiles wider than 96 columns, for tiles of more than 64 rows,
  // and for cooperative ones.
  double hbm, wide, high, cooperative_memory;
  // How far the last wave leaves memory idle.
  double tail;
  // How far computing overlaps with L2's traffic, and both with memory's: exponents of a norm, where 1 is not at all.
  double overlap_l2, overlap;
  // Microseconds of a launch.
  double launch;
  // What the formulas leave: logarithms of factors for each of kHopperTiles, and for each family of tiles and
  // Multicast, where time goes to computing, to L2 and to memory.
  double tile[kHopperTileCount][3];
  double share[kHopperFamilies][kMulticasts][3];
};

extern const HopperCosts kHopperCosts;

// A launch's time in seconds, and what it is made of.
struct HopperTime {
  double total = 0;
  double compute = 0, l2 = 0, memory = 0;  // each as if it were alone
  double tiles = 0, waves = 0;
  double mainloop = 0, epilogue = 0;  // cycles of a tile
  const char* limit = "launch";
};

HopperTime time_of(const Shape& shape, const DeviceFigures& device, const RowEstimate& rows,
                   const kernel::HopperConfig& config, int panel_columns, const HopperCosts& costs = kHopperCosts);

}  // namespace moxie::plan
