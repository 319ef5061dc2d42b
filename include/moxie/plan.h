// SPDX-License-Identifier: Apache-2.0
// Plans as data: which kernel a product gets, why, and what else there was to choose from.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/names.h"
#include "moxie/tuning.h"

namespace moxie {

struct DeviceInfo;
struct GemmDescription;

// What a plan knows of a device. The defaults are an H200's.
struct DeviceFigures {
  int arch = 90;                     // 90: sm_90a, 100: sm_100a
  int sm_count = 132;                // streaming multiprocessors
  int shared_bytes = 232448;         // shared memory that a block may have
  int64_t l2_bytes = 62914560;       // size of the L2 cache
  double memory_rate = 4.814304e12;  // bytes a second from device memory, by its clock and the width of its bus
  double clock = 1.98e9;             // the most that the multiprocessors' clock reaches, cycles a second

  bool operator==(const DeviceFigures&) const = default;
};

// The figures that products on a device are planned with. What its driver does not tell is an H200's.
DeviceFigures figures_of(const DeviceInfo& device);

// The figures of a GPU by its name: "h100-sxm", "h100-pcie", "h200", "h20", "gh200" or "b200". None for other names.
std::optional<DeviceFigures> named_device(std::string_view name);
// Those names.
std::span<const std::string_view> device_names();

// What decided a plan.
enum class PlanSource : int {
  Model,       // the cost model's fastest
  TunedTable,  // a measured winner: built in, or from the file that MOXIE_TUNED names
  Caller,      // the caller's tuning left it
};
template <>
struct EnumTable<PlanSource> {
  static constexpr std::string_view kType = "PlanSource";
  static constexpr EnumName<PlanSource> kNames[] = {
      {PlanSource::Model, "Model", "model"},
      {PlanSource::TunedTable, "TunedTable", "tuned table"},
      {PlanSource::Caller, "Caller", "caller's choice"},
  };
};

// One kernel that could compute the product.
struct PlanCandidate {
  std::string kernel;    // "cooperative 128x256x64, 4 stages, cluster 2 (B multicast)"
  Tuning tuning;         // as GemmDescription::hopper or ::blackwell it leads to this kernel
  bool possible = true;  // false: it does not fit the device; `reason` says why and cycles is 0
  double cycles = 0;     // predicted time of a launch, of a clock of DeviceFigures' architecture: see `clock`
  std::string reason;    // what limits it, in a few words
};

// Where the rows of the groups came from when the plan was made.
enum class RowsSource : int {
  Given,     // by m, or by GemmDescription::known_rows
  Expected,  // by GemmDescription::expected_rows
  Assumed,   // only the device knows them; a plan for a range of rows
};

// The kernel that was chosen, with what it is made of and what it was chosen from.
struct PlanInfo {
  std::string kernel;                     // as PlanCandidate::kernel
  PlanSource source = PlanSource::Model;  // what decided
  Tuning tuning;                          // complete: no choice is absent but those that the kernel does not have
  int stages = 0;                         // depth of the operand ring
  bool decode_tile = false;               // the kernel is of the kind for groups of few rows (sm_90a)
  int store_buffers = 0;                  // staging buffers of each output: 1 or 2
  int shared_bytes = 0;                   // shared memory of a block
  int tensor_columns = 0;                 // columns of tensor memory (sm_100a)
  int panel_columns = 0;                  // cluster tiles that are walked together along N, so that operands stay in L2
  int64_t tiles = 0;     // of a launch when the rows are known, else the most there can be; a tile of each block
  double mean_rows = 0;  // of a group, as the plan reckoned
  RowsSource rows_source = RowsSource::Given;  // where mean_rows came from
  double flops = 0;                            // 2 M N K over all groups, for those rows
  double predicted_seconds = 0;                // of a launch
  double clock = 0;                            // cycles a second of PlanCandidate::cycles
  std::vector<PlanCandidate> candidates;       // best first, the chosen one at the front
};

// The plan of a product for a device that need not be here. Compiles nothing. `total` is the Rows::total of the call
// that is planned for, where absent the description's; Offsets and RowGroups alone take it. Where neither names one,
// Offsets are planned for 512 rows a group, unless the description says more. Throws Error: InvalidArgument (the
// description, the total, or figures out of range), Unsupported (the architecture has no kernel for it).
PlanInfo plan_gemm(const GemmDescription& description, const DeviceFigures& device = {},
                   std::optional<int64_t> total = {});

}  // namespace moxie
