// SPDX-License-Identifier: Apache-2.0
// What a layer over ranks has beside the layer: the checks of its description, its windows and the launches of its
// kernels.
#pragma once
#include "moxie/layer.h"
#include "moxie/window.h"
#include "ops/check.h"
#include "ops/routing.h"

namespace moxie::ops {

// Description::ranks, which is present, and what of the layer depends on it.
void check_ranks(const ExpertLayerDescription& description);

// What travels back in such a layer.
ResultFormat results_of(const ExpertLayerDescription& description);

// Whether sums keep a step waiting for less time than rows do, which travel while the second product, of `width`
// columns, computes others. `rows` and `sums` are the bytes of a token that travel, over those of one row's columns.
bool sums_wait_less(double rows, double sums, int top_k, int64_t width);

// The sink of the second product where rows travel back. staged: for experts that have many rows.
CustomSink row_sink(bool staged);

class Ranks {
 public:
  // The description is one that check_ranks() has let pass. Compiles the kernels of all calls, those of the sort and
  // the router too.
  Ranks(const Device& device, const ExpertLayerDescription& description);

  // Without windows and with those of a call.
  const kernel::RankParams& params() const { return params_; }
  bool sums() const { return results_ != ResultFormat::Rows; }  // travel back
  kernel::RankParams params(void* const* windows) const;

  Range check_windows(void* const* windows) const;  // returns our own
  void prepare_window(void* window, Stream stream) const;
  void check(void* window, Stream stream) const;

  struct Exchanged {
    const int32_t* place_ends;
    int32_t *shifts, *ends;
    const int32_t* token_count;
    int64_t tokens;
    int top_k;
    bool permutes;
  };
  // Where halves is 0 these launch nothing.
  void exchange(const kernel::RankParams& params, const Exchanged& of, int halves, const LaunchOptions& options) const;
  void meet(const kernel::RankParams& params, kernel::Meeting meeting, int halves, const LaunchOptions& options) const;
  void dispatch(const kernel::DispatchParams& params, const LaunchOptions& options) const;
  // Whether send_few() may do what sort, exchange, dispatch and the meeting behind it do.
  static bool are_few(const kernel::DispatchParams& params);
  void send_few(const kernel::SendFewParams& params, const LaunchOptions& options) const;
  void gather_rows(const kernel::GatherRowsParams& params, const LaunchOptions& options) const;
  // Whether combine() may meet the other ranks itself: all its blocks run at once. Without tokens there are none.
  bool may_combine_and_meet(int64_t tokens, int64_t columns) const;
  void combine(const kernel::CombineRanksParams& params, bool meets, const LaunchOptions& options) const;
  void combine_sums(const kernel::CombineSumsParams& params, const LaunchOptions& options) const;

 private:
  Blocks filling_blocks(int64_t rows, int64_t threads, int64_t most) const;

  Device device_;
  double seconds_;
  RowFormat format_;
  ResultFormat results_;
  IdType id_type_;
  DataType out_;
  kernel::RankParams params_;
};

}  // namespace moxie::ops
