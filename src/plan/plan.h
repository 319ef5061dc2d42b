// Planning: a pure function from a problem and a device's figures to a kernel configuration.
// Deterministic, no device calls; it can explain itself.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moxie/layout.h"

namespace moxie::plan {

struct DeviceFigures {
  int arch = 90;
  int sm_count = 132;
  int shared_bytes = 232448;  // most a block may opt in to
};

// What of a problem matters to the choice.
struct Shape {
  Grouping grouping = Grouping::Dense;
  int64_t groups = 1, m = 0, n = 0, k = 0;
  OperandFormat format = OperandFormat::Bf16;
  std::vector<int64_t> host_rows;  // empty when the host does not know
  std::optional<int64_t> expected_rows;
  bool bias = false;
  Activation activation = Activation::None;
  GateLayout gate = GateLayout::Interleaved;
  std::optional<DataType> pre, out;
  std::vector<SinkNeeds> custom_sinks;
  std::optional<WarpSchedule> schedule;
  std::optional<int> tile_m, tile_n, cluster;
  std::optional<Multicast> multicast;
  std::optional<TileSource> scheduling;
  std::optional<bool> swap_ab;
};

struct Candidate {
  kernel::HopperConfig config;
  double cycles = 0;   // predicted time of the launch on the device
  std::string reason;  // what dominates it, in a few words; or why it is not possible
  bool possible = true;
};

struct Plan {
  kernel::HopperConfig config;
  int panel_columns = 8;
  int64_t tiles = 0;                  // of the whole launch when the rows are known, else the most there can be
  std::vector<Candidate> candidates;  // best first
  std::string source;                 // "model", "tuned table", "caller's choice"
};

// The same for sm_100a.
struct BlackwellCandidate {
  kernel::BlackwellConfig config;
  double cycles = 0;
  std::string reason;
  bool possible = true;
};
struct BlackwellPlan {
  kernel::BlackwellConfig config;
  int panel_columns = 8;
  int64_t tiles = 0;  // as of Plan; with launch control the most there can be, whatever the host says
  std::vector<BlackwellCandidate> candidates;
  std::string source;
};

// One measured winner. It stands for shapes with this grouping, n, k and gating whose mean rows a group lie in
// [rows_from, rows_to].
struct TunedHopper {
  Grouping grouping;
  int64_t n, k;
  int64_t rows_from, rows_to;
  bool gated;
  WarpSchedule schedule;
  int tile_m, tile_n;
  Multicast multicast;  // None: no cluster
};

// Mean rows a group up to which plans take tiles of 8 rows.
constexpr int kTinyRows = 2;

// The rows of the file that MOXIE_TUNED names, read once in a process, then src/plan/tuned_hopper.inc: the first that
// fits and names a possible configuration is taken. Throws Error(InvalidArgument) with the file and the line that is
// wrong.
std::span<const TunedHopper> tuned_hopper();
// The file's rows, as `moxie tune` writes them: one a line, # begins a comment.
std::vector<TunedHopper> read_tuned(const std::string& path);
std::string tuned_line(const TunedHopper& row);  // "offsets 5760 2880 0 24 gated pingpong 64x192 a"

// Throws moxie::Error (InvalidArgument) when the caller's choices exclude each other or every configuration.
// The caller's choices go before the table, the table before the model.
// Rows enter the choice only where the host knows them: Dense and Batched, host_rows, expected_rows. Otherwise every
// m gives the same kernel.
Plan make_hopper_plan(const Shape& shape, const DeviceFigures& device, std::span<const TunedHopper> tuned);
inline Plan make_hopper_plan(const Shape& shape, const DeviceFigures& device) {
  return make_hopper_plan(shape, device, tuned_hopper());
}
std::string explain(const Shape& shape, const DeviceFigures& device, const Plan& plan);
std::string describe(
    const kernel::HopperConfig& config);  // "cooperative 128x256x64, 4 stages, cluster 2 (B multicast)"

// Throws as make_hopper_plan does. The caller's choices go before the model.
BlackwellPlan make_blackwell_plan(const Shape& shape, const DeviceFigures& device);
std::string explain(const Shape& shape, const DeviceFigures& device, const BlackwellPlan& plan);
std::string describe(const kernel::BlackwellConfig& config);  // "128x224x256, 4 stages, 2 accumulators"
double predicted_seconds(const BlackwellPlan& plan);          // of the launch, at a B200's clock

}  // namespace moxie::plan
