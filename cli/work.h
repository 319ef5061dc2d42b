// A product ready to be timed: random operands, several sets of them so that each launch finds its own outside the L2
// cache, for groups by offsets, of equal rows if nothing else is said.
#pragma once
#include <vector>

#include "cli/buffer.h"
#include "moxie/gemm.h"

namespace moxie::cli {

double flops_of(const GemmProblem& problem);

struct Work {
  // skewed: in every other turn the group of popularity r has rows in proportion to 1 / sqrt(r), as a router's experts
  // may. Throws InputError when the groups are not given by offsets.
  Work(const Device& device, const GemmProblem& problem, bool skewed = false);

  void launch(int turn, Stream stream) const;
  // With the caller's choices in place of the plan's, its workspace included: what `moxie tune` tries.
  void launch(const GemmProblem& variant, const Buffer& space, int turn, Stream stream) const;
  int turns() const { return static_cast<int>(a.size()); }
  // Each operand and result once: the weights of groups that have rows, and every row.
  static double compulsory_bytes(const GemmProblem& problem);

  const Device& device;
  GemmProblem problem;
  std::vector<Buffer> a, b, pre, out, ends, workspace;  // of every turn; b may have fewer
  Buffer bias;
  Buffer sfa, sfb;  // blocked scales, of every turn's operands
};

}  // namespace moxie::cli
