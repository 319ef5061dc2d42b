// SPDX-License-Identifier: Apache-2.0
// Whole kernels (tests/sim/ptx): a pipelined MXFP4 product of one block and of a pair, to the last bit in every order,
// and each of their synchronisations removed in turn.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "run_ptx.h"
#include "sim/memory/tensor_map.h"

namespace {

using namespace sim_test;

constexpr int kTiles = 5, kSteps = 3, kN = 64, kK = kSteps * 128;

struct Map {
  uint8_t bytes[128];
};
Map map_of(uint64_t address, uint64_t width, uint64_t height, uint32_t columns, uint32_t rows,
           sim::TensorSwizzle swizzle) {
  sim::TensorMapFields f;
  f.element = sim::TensorElement::U8;
  f.rank = 2;
  f.address = address;
  f.dims[0] = width;
  f.dims[1] = height;
  f.box[0] = columns;
  f.box[1] = rows;
  f.strides[0] = width;
  f.swizzle = swizzle;
  Map map;
  sim::encode(f, map.bytes);
  return map;
}

float e2m1(int code) {
  static const float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -kValues[code & 7] : kValues[code & 7];
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class Gemm {
 public:
  explicit Gemm(int blocks) : blocks_(blocks), rows_(static_cast<size_t>(kTiles * 128 * blocks)) {
    std::mt19937 rng(9);
    const auto fill = [&](std::vector<uint8_t>& v, size_t n, uint32_t low, uint32_t range) {
      v.resize(n);
      for (uint8_t& x : v) x = static_cast<uint8_t>(low + rng() % range);
    };
    fill(a_, rows_ * kK / 2, 0, 256);
    fill(b_, kN * kK / 2, 0, 256);
    fill(scale_a_, rows_ / 128 * kSteps * 512, 124, 6);
    fill(scale_b_, kSteps * 512, 124, 6);
    want_.resize(rows_ * kN);
    // Sums of such elements are exact in float32, in any order.
    for (size_t i = 0; i < rows_; ++i) {
      for (size_t j = 0; j < kN; ++j) {
        double sum = 0;
        for (size_t k = 0; k < kK; ++k) {
          const auto element = [&](const std::vector<uint8_t>& v, size_t row) {
            return e2m1(v[row * kK / 2 + k / 2] >> k % 2 * 4 & 15);
          };
          const auto scale = [&](const std::vector<uint8_t>& v, size_t row) {
            return v[(row / 128 * kSteps + k / 128) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + k % 128 / 32] - 127;
          };
          sum += std::ldexp(double{element(a_, i)} * element(b_, j), scale(scale_a_, i) + scale(scale_b_, j));
        }
        want_[i * kN + j] = static_cast<float>(sum);
      }
    }
  }
  // "" when all went well.
  std::string run(const sim::Kernel& kernel, sim::Order order) const {
    using Swizzle = sim::TensorSwizzle;
    sim::GlobalMemory memory;
    Buffer<uint8_t> a(memory, a_), b(memory, b_), scale_a(memory, scale_a_), scale_b(memory, scale_b_);
    Buffer<float> out(memory, want_.size(), -1.0f);
    Params params;
    params.add(map_of(a.address(), kK / 2, rows_, 64, 128, Swizzle::Bytes64));
    params.add(map_of(b.address(), kK / 2, kN, 64, static_cast<uint32_t>(kN / blocks_), Swizzle::Bytes64));
    params.add(map_of(scale_a.address(), 256, scale_a_.size() / 256, 256, 2, Swizzle::None));
    params.add(map_of(scale_b.address(), 256, scale_b_.size() / 256, 256, 2, Swizzle::None));
    params.add(out.address());
    Shape shape;
    shape.arch = 100;
    shape.block = {256, 1, 1};
    shape.grid = shape.cluster = {static_cast<uint32_t>(blocks_), 1, 1};
    shape.dynamic_shared = 32 * 1024;
    shape.order = order;
    try {
      run_kernel(kernel, params, memory, shape);
    } catch (const sim::Fault& fault) {
      return fault.what();
    }
    return out.values() == want_ ? "" : "wrong results";
  }

 private:
  int blocks_;
  size_t rows_;
  std::vector<uint8_t> a_, b_, scale_a_, scale_b_;
  std::vector<float> want_;
};

class Tcgen05Gemm : public testing::TestWithParam<int> {
 protected:
  std::string text() const {
    return read_text(MOXIE_SOURCE_DIR "/tests/sim/ptx/mxf4_gemm_" + std::to_string(GetParam()) + ".ptx");
  }
};

TEST_P(Tcgen05Gemm, ExactInEveryOrder) {
  const auto kernel = prepare_ptx(text(), "gemm", 100);
  const Gemm gemm(GetParam());
  std::vector<sim::Order> orders = all_orders();
  for (uint64_t seed = 100; seed < 120; ++seed) orders.push_back({sim::Mode::Random, seed});
  for (const sim::Order order : orders) EXPECT_EQ(gemm.run(*kernel, order), "");
  // Without any tcgen05.fence: its mbarriers release and acquire.
  std::string bare = text();
  for (size_t at = bare.find("tcgen05.fence::"); at != std::string::npos; at = bare.find("tcgen05.fence::"))
    bare.erase(at, bare.find(';', at) + 1 - at);
  const auto unfenced = prepare_ptx(bare, "gemm", 100);
  for (const sim::Order order : orders) EXPECT_EQ(gemm.run(*unfenced, order), "");
}

TEST_P(Tcgen05Gemm, EveryRemovedSynchronisationIsNoticed) {
  std::vector<std::string> lines;
  std::stringstream stream(text());
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  const Gemm gemm(GetParam());
  std::map<std::string, int> survivors;
  setenv("MOXIE_SIM_TCGEN05_FENCES", "strict", 1);
  int mutants = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t begin = lines[i].find_first_not_of(" \t");
    const std::string line = begin == std::string::npos ? "" : lines[i].substr(begin);
    std::string bent;
    if (line.starts_with("mbarrier.try_wait")) {
      const size_t space = line.find_first_of(" \t"), name = line.find_first_not_of(" \t", space);
      bent = "setp.eq.u32 " + line.substr(name, line.find(',') - name) + ", 0, 0;";  // the wait is over at once
    } else {
      const auto is = [&](const char* prefix) { return line.starts_with(prefix); };
      if (!is("tcgen05.fence") && !is("tcgen05.wait") && !is("tcgen05.commit") && !is("tcgen05.alloc") &&
          !is("tcgen05.dealloc") && !is("tcgen05.relinquish") && !is("mbarrier.") && !is("fence.") && !is("bar.") &&
          !is("barrier."))
        continue;
    }
    std::string module;
    for (size_t j = 0; j < lines.size(); ++j) module += (j == i ? bent : lines[j]) + "\n";
    const auto kernel = prepare_ptx(module, "gemm", 100);
    ++mutants;
    bool noticed = false;
    for (const sim::Order order : all_orders()) noticed = noticed || !gemm.run(*kernel, order).empty();
    if (!noticed) ++survivors[line.substr(0, line.find_first_of(" ;\t"))];
  }
  unsetenv("MOXIE_SIM_TCGEN05_FENCES");
  EXPECT_GT(mutants, 25);
  // What may go: lanes of a warp have met in tcgen05.wait::ld and in the branch before the last barrier, so the
  // bar.warp.sync before each adds nothing; a barrier follows the initialisation; and no other block wants columns.
  const std::string group = std::to_string(GetParam());
  const std::map<std::string, int> equivalent = {
      {"bar.warp.sync", 2},
      {"fence.mbarrier_init.release.cluster", 1},
      {"tcgen05.relinquish_alloc_permit.cta_group::" + group + ".sync.aligned", 1}};
  EXPECT_EQ(survivors, equivalent);
}

INSTANTIATE_TEST_SUITE_P(Blocks, Tcgen05Gemm, testing::Values(1, 2));

}  // namespace
