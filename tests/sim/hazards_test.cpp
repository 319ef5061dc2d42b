// SPDX-License-Identifier: Apache-2.0
// Every hazard that the simulator reports, as a small kernel of its own: the files of tests/sim/hazards. Several
// clusters run on one host thread and on four.
// Parameters, by name: p_in and p_out, 16 KB each; p_maps, two tensor maps of 16 rows of 32 words of p_in, with boxes
// of 8 rows; p_padded_maps, one of padded elements of 4 bits and one of 6, 8 rows of 128, in boxes as large, with the
// 128-byte swizzle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <regex>

#include "sim/memory/tensor_map.h"
#include "tests/sim/hazard_files.h"
#include "tests/sim/run_ptx.h"

namespace {

using namespace sim_test;

// The report of a run, empty when there is none.
std::string run(const Example& e, const std::string& text, const sim::Order& order, int threads = 1) {
  sim::GlobalMemory memory;
  std::vector<uint32_t> words(4096);
  std::iota(words.begin(), words.end(), 1u);
  Buffer<uint32_t> in(memory, words), out(memory, 4096, 0u);
  sim::TensorMapFields map;
  map.address = in.address();
  map.element = sim::TensorElement::U32;
  map.rank = 2;
  map.dims = {32, 16, 1, 1, 1};
  map.strides[0] = 128;
  map.box = {32, 8, 1, 1, 1};
  std::vector<uint8_t> bytes(256);
  sim::encode(map, bytes.data());
  sim::encode(map, bytes.data() + 128);
  Buffer<uint8_t> maps(memory, bytes);
  map.dims = {128, 8, 1, 1, 1};
  map.box = {128, 8, 1, 1, 1};
  map.swizzle = sim::TensorSwizzle::Bytes128;
  map.element = sim::TensorElement::B4x16Padded;
  map.strides[0] = 64;
  sim::encode(map, bytes.data());
  map.element = sim::TensorElement::B6x16Padded;
  map.strides[0] = 96;
  sim::encode(map, bytes.data() + 128);
  Buffer<uint8_t> padded_maps(memory, bytes);
  sim_test::Params params;
  const auto module = sim_test::parse_ptx(text);
  const auto& functions = module->functions;
  const auto kernel = std::find_if(functions.begin(), functions.end(), [](const auto& f) { return f.is_entry; });
  for (const auto& parameter : kernel->params) {
    const uint64_t address = parameter.name == "p_in"            ? in.address()
                             : parameter.name == "p_out"         ? out.address()
                             : parameter.name == "p_padded_maps" ? padded_maps.address()
                                                                 : maps.address();
    params.add(address);
  }
  Shape shape;
  shape.block = {e.threads, 1, 1};
  shape.cluster = {e.cluster, 1, 1};
  shape.grid = {e.cluster * e.clusters, 1, 1};
  shape.threads = threads;
  shape.order = order;
  shape.arch = e.arch;
  return sim_test::fault_of(text, "k", params, memory, shape);
}

// The blocks of a broken kernel race on the host's threads, too, which the thread sanitizer would report.
#ifdef __SANITIZE_THREAD__
constexpr bool kBlocksMayRaceOnTheHost = false;
#else
constexpr bool kBlocksMayRaceOnTheHost = true;
#endif

// Each run has memory of its own.
std::string without_addresses(const std::string& text) {
  return std::regex_replace(text, std::regex("0x[0-9a-f]{9,}"), "0x...");
}

std::vector<sim::Order> orders(uint64_t seeds) {
  std::vector<sim::Order> all = {{sim::Mode::Eager, 0}, {sim::Mode::Lazy, 0}};
  for (uint64_t seed = 1; seed <= seeds; ++seed) all.push_back({sim::Mode::Random, seed});
  return all;
}

constexpr char kFolder[] = MOXIE_SOURCE_DIR "/tests/sim/hazards";

class Hazards : public testing::TestWithParam<Example> {};
INSTANTIATE_TEST_SUITE_P(All, Hazards, testing::ValuesIn(examples(kFolder)),
                         [](const auto& info) { return info.param.name; });

TEST_P(Hazards, BrokenIsReported) {
  const Example& e = GetParam();
  ASSERT_FALSE(e.reports.empty());
  ASSERT_NE(e.broken, e.mended);
  size_t reported = 0;
  for (const sim::Order& order : orders(e.in_some_orders ? 40 : 5)) {
    const std::string text = run(e, e.broken, order), said = first_line(text);
    if (said.empty() && e.in_some_orders) continue;
    ++reported;
    EXPECT_TRUE(std::any_of(e.reports.begin(), e.reports.end(),
                            [&](const std::string& report) { return fits(said, report, e.broken); }))
        << "mode " << int(order.mode) << " seed " << order.seed << " said: " << said;
    if (e.clusters > 1 && kBlocksMayRaceOnTheHost) {
      EXPECT_EQ(without_addresses(first_line(run(e, e.broken, order, 4))), without_addresses(said));
    }
    for (const std::string& detail : e.details)
      EXPECT_TRUE(has_line(text, detail, e.broken)) << "no line '" << detail << "' in\n" << text;
  }
  EXPECT_GT(reported, 0u);
}

TEST_P(Hazards, MendedPasses) {
  const Example& e = GetParam();
  for (const sim::Order& order : orders(e.in_some_orders ? 40 : 5)) {
    EXPECT_EQ(run(e, e.mended, order), "") << "mode " << int(order.mode) << " seed " << order.seed;
    if (e.clusters > 1) {
      EXPECT_EQ(run(e, e.mended, order, 4), "") << "mode " << int(order.mode);
    }
  }
}

// Each class of hazard has examples, and each report says where: a line of PTX, a block and a warp.
TEST(HazardExamples, EveryClassIsShown) {
  const std::vector<Example> all = examples(kFolder);
  for (int hazard = 0; hazard <= int(sim::Hazard::IllegalUse); ++hazard) {
    const std::string name = std::string(sim::hazard_name(sim::Hazard(hazard))) + ": ";
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Example& e) {
      return std::any_of(e.reports.begin(), e.reports.end(),
                         [&](const std::string& report) { return report.compare(0, name.size(), name) == 0; });
    })) << name;
  }
  for (const Example& e : all) {
    for (const std::string& report : e.reports) {
      EXPECT_THAT(report, testing::AllOf(testing::HasSubstr("ptx line {"), testing::HasSubstr("block ("),
                                         testing::HasSubstr("warp ")))
          << e.name;
    }
  }
}

}  // namespace
