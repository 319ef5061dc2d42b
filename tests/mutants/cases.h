// SPDX-License-Identifier: Apache-2.0
// The kernels that are mutated, each with problems that make every role loop at least three times, wrap the ring of
// stages at least twice and take every branch that has a synchronisation in it.
#pragma once
#include <cuda.h>
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/grouped_product.h"

namespace moxie::mutants {

using test::Job;

// A call of an operation of moxie/routing.h, in buffers of its own.
struct Call {
  std::function<void(Stream)> launch;
  std::function<bool()> is_right;  // by the host's answer, after a launch
  // Which of its launches is the one that is mutated, by its number among those of the function, or without it of all.
  int kernel = 0;
  CUfunction function = nullptr;
  // Buffers that hold what they hold before that launch begins, since the one before it has waited for it.
  std::vector<const void*> ready = {};
  // Words that the one before it has written by strong accesses, when that launch begins.
  std::vector<uint32_t*> told = {};
  // Bytes, by address and number, that the one before it does not touch.
  std::vector<std::pair<uint8_t*, size_t>> quiet = {};
  std::function<void(CUDA_KERNEL_NODE_PARAMS&)> change = {};  // of each launch that the library made
};

struct Case {
  std::string name;
  std::vector<Job> jobs;  // of one kernel
  // What each job's own sink writes, where it has one.
  std::vector<std::shared_ptr<test::Buffer>> sink_outputs;
  // In place of jobs: the source of an operation's kernel, and what makes calls that launch it.
  std::string source = {};
  std::vector<std::function<Call()>> calls = {};
  // Or, with `source`, the kernel of a layer over ranks. It is mutated on all of them, which have a device each and run
  // at the same time.
  bool over_ranks = false;
};

// ", pre bf16, out MXFP4"
inline std::string outputs_text(const std::optional<DataType>& pre, const std::optional<DataType>& out) {
  constexpr const char* kTypes[] = {"bf16", "f32", "MXFP4", "MXFP8", "NVFP4"};
  return (pre ? fmt::format(", pre {}", kTypes[int(*pre)]) : "") +
         (out ? fmt::format(", out {}", kTypes[int(*out)]) : "");
}

// The same with gathered rows of A.
inline Case with_gather(Case c) {
  c.name += ", gathered rows";
  for (Job& job : c.jobs) job.problem.gather = true;
  return c;
}

std::vector<Case> hopper_cases();     // hopper_cases.cpp
std::vector<Case> blackwell_cases();  // blackwell_cases.cpp
std::vector<Case> routing_cases();    // routing_cases.cpp, for both architectures
// rank_cases.cpp. On sm_100a those that several devices compute: the others replay the launches of a call without
// clusters, which the products there have.
std::vector<Case> rank_cases(bool on_blackwell);
// Runs layers over ranks in this process, which has asked for no device yet, and returns what is wrong with what they
// compute, or "". Throws what the simulator reports.
std::string run_over_ranks(const char* order);
// Those of packed weights, which run on both; `arch` begins their names.
std::vector<Case> packed_cases(const std::string& arch);

}  // namespace moxie::mutants
