// SPDX-License-Identifier: Apache-2.0
// BenchmarkCase is a product ready to be timed. It has several sets of random operands, so that each launch finds its
// own outside the L2 cache. The groups are given by offsets and have equal rows unless they are skewed. With a gather
// each row of A is named kGatherTop times, in random groups, and a group's rows are in the order of A's, as a sort of
// tokens by expert makes them.
#pragma once
#include <vector>

#include "bench/timing/buffer.h"
#include "bench/timing/gpu_clock.h"
#include "moxie/gemm.h"

namespace moxie::timing {

// How rows are spread over the groups. Skewed: the group of popularity r has rows in proportion to 1 / sqrt(r), as a
// router's experts may; every turn has another order of popularity. Scattered: each row is of a group drawn by itself,
// all groups being as popular. Mixed: equal and skewed by turns.
enum class Popularity { Equal, Skewed, Scattered, Mixed };

// The rows of each group in a turn. Where there are fewer rows than groups, every turn gives them to other groups, so
// that not always the same weights are read. Not for Mixed.
std::vector<int64_t> rows_of_groups(Popularity popularity, int64_t groups, int64_t total, int turn);

constexpr int kGatherTop = 4;

class BenchmarkCase {
 public:
  // With a clock the operands are filled by copies on the device, which is faster. Throws Error(InvalidArgument) when
  // the groups are not given by offsets with a total, or an output is quantized.
  explicit BenchmarkCase(const GroupedGemm& gemm, Popularity popularity = Popularity::Equal,
                         const GpuClock* clock = nullptr);

  void launch(int turn, Stream stream) const;
  // Launches another kernel for the same product with a workspace of its own.
  void launch(const GroupedGemm& variant, const Workspace& workspace, int turn, Stream stream,
              bool programmatic = true) const;
  int turns() const { return static_cast<int>(a.size()); }
  // The row of A from which the first turn computes a row.
  int64_t row_of_a(int64_t row) const { return first_gather_.empty() ? row : first_gather_[size_t(row)] / kGatherTop; }

  const GroupedGemm gemm;
  std::vector<Buffer> a, b, pre, out, ends;  // one for each turn; b may have fewer
  Buffer bias;
  Buffer a_scales, b_scales;  // blocked, shared by the operands of all turns

 private:
  std::vector<Workspace> workspaces_;
  std::vector<Buffer> gathers_;        // of each turn: the pairs of its rows, with a gather
  std::vector<int32_t> first_gather_;  // the first turn's
};

// The groups of a product that can be timed, and the rows of all of them together. They throw as BenchmarkCase does.
Offsets timed_groups(const GemmDescription& description);
int64_t rows_of(const GemmDescription& description);
// Rows of A, fewer where they are gathered.
int64_t rows_of_a(const GemmDescription& description);

// `rows` rows of a group's packed weights from row `first` on, exactly, in bf16. `packed` points to the group.
std::vector<uint16_t> download_packed(const Device& device, const GemmDescription& description, const uint8_t* packed,
                                      int64_t first, int64_t rows);

double flops_of(const GemmDescription& description);
// Bytes that a launch must move at least: all rows, and the weights of the groups that have rows.
double compulsory_bytes(const GemmDescription& description);

}  // namespace moxie::timing
