// SPDX-License-Identifier: Apache-2.0
// The kernels of moxie/routing.h, and the one that quantizes a layer's tokens, for sm_90a and sm_100a.
#include <cmath>
#include <optional>

#include "cases.h"
#include "jit/source.h"
#include "moxie/scales.h"
#include "ops/quantize.h"
#include "reference/formats.h"
#include "tests/support/expert_routing.h"
#include "tests/support/random.h"

namespace moxie::mutants {
namespace {

using jit::SortKernel;

// Divides the pairs otherwise than sort_shape() does, which takes many rounds and rows for more pairs than the
// simulator sorts soon. There must be no more slices than there were.
void divide(CUDA_KERNEL_NODE_PARAMS& launch, const kernel::SortShape& shape) {
  auto& params = *static_cast<kernel::SortParams*>(launch.kernelParams[0]);
  params.slices = shape.slices, params.rounds = shape.rounds, params.rows = shape.rows;
  params.clusters = params.before + shape.slices * params.experts;
  if (launch.sharedMemBytes == 0) {  // it counts
    launch.gridDimX = unsigned(kernel::sort_clusters(shape.slices) * kernel::kSortCluster);
  } else {
    launch.gridDimX = unsigned(shape.slices);
    launch.sharedMemBytes = unsigned(kernel::place_layout(kernel::kSortThreads / 32, shape.rows, params.experts).bytes);
  }
}

// Ids of which some are foreign, or all of one expert.
std::function<Call()> sorted(int64_t tokens, int top_k, int64_t experts, int kernel, bool all_to_one = false,
                             std::optional<kernel::SortShape> shape = {}) {
  return [=] {
    test::SortJob job;
    job.tokens = tokens, job.top_k = top_k, job.experts = experts;
    test::Random random{uint64_t(tokens)};
    for (int64_t i = 0; i < tokens * top_k; ++i)
      job.ids.push_back(all_to_one ? experts - 1 : random.between(-1, experts));
    const auto call = std::make_shared<test::SortCall>(job);
    call->poison();
    Call made{[call](Stream stream) { call->run({.stream = stream}); },
              [call, wanted = test::reference_sort(job)] { return call->results() == wanted; }, kernel};
    if (kernel > 0) made.ready = {call->ids()};
    if (shape) made.change = [shape](CUDA_KERNEL_NODE_PARAMS& launch) { divide(launch, *shape); };
    return made;
  };
}

std::function<Call()> permuted(int64_t tokens, int top_k, int64_t width) {
  return [=] {
    test::Random random(3);
    test::PermuteJob job;
    job.tokens = tokens, job.top_k = top_k, job.width = width, job.row_count = tokens * top_k;
    for (int64_t i = 0; i < tokens * width; ++i) job.x.push_back(float(random.between(-8, 8)) / 4);
    for (int64_t i = 0; i < tokens * top_k; ++i) job.inverse.push_back(int32_t(tokens * top_k - i));
    const auto call = std::make_shared<test::PermuteCall>(job);
    call->poison();
    return Call{[call](Stream stream) { call->run({.stream = stream}); },
                [call, wanted = test::reference_permute(job)] { return call->results() == wanted; }};
  };
}

// Tokens in the order of a sort, of which one group fills more than a tile and one is empty.
std::function<Call()> quantized() {
  return [] {
    constexpr int64_t kTokens = 90, kWidth = 160, kBytes = kWidth / 2, kScales = kWidth / 32, kTop = 2;
    const std::vector<int32_t> ends = {140, 140, 149};
    const int64_t rows = ends.back(), tile_bytes = blocked_scale_bytes(128, kWidth);
    test::Random random(9);
    std::vector<float> values;
    std::vector<uint16_t> x;
    for (int64_t i = 0; i < kTokens * kWidth; ++i) {
      values.push_back(float(random.between(-64, 64)) / 8);
      x.push_back(reference::float_to_bf16(values.back()));
    }
    std::vector<int32_t> order;
    for (int64_t r = 0; r < rows; ++r) order.push_back(int32_t(random.between(0, kTokens * kTop - 1)));
    std::vector<uint8_t> elements(size_t(rows * kBytes)), scales(size_t(4 * tile_bytes), 0xff);
    std::fill_n(scales.begin(), 3 * tile_bytes, uint8_t{0});
    for (int64_t r = 0; r < rows; ++r) {
      uint8_t of_row[kScales];
      reference::quantize_row(DataType::Mxfp4, values.data() + order[size_t(r)] / kTop * kWidth, kWidth, 1,
                              elements.data() + r * kBytes, of_row);
      const int64_t place = r < ends[0] ? r : r - ends[0] + 256;  // the third group begins with the third tile
      for (int64_t c = 0; c < kScales; ++c) scales[size_t(blocked_scale_index(place, c, kWidth))] = of_row[c];
    }
    struct Memory {
      test::Buffer x, order, ends, elements, scales;
    };
    const std::shared_ptr<Memory> on(new Memory{test::Buffer(x), test::Buffer(order), test::Buffer(ends),
                                                test::Buffer(elements.size()), test::Buffer(scales.size())});
    on->elements.fill(0xff), on->scales.fill(0xff);
    const auto run = [=](Stream stream) {
      Quantization q;
      q.groups = int64_t(ends.size()), q.rows = rows, q.k = kWidth, q.offsets = on->ends.get<int32_t>();
      q.stream = stream;
      q.values = on->x.get(), q.ld_values = kWidth, q.elements = on->elements.get(), q.ld_elements = kWidth;
      q.scales = on->scales.get();
      ops::gather_and_quantize(test::device(), q, {on->order.get<int32_t>(), kTop, kTokens, 0}, true);
    };
    return Call{run, [=] { return on->elements.download() == elements && on->scales.download() == scales; }};
  };
}

constexpr int64_t kManyTokens =
    2 * 132 * kernel::kCombineBlocks + 1;  // two a block of 132 multiprocessors, one in the last

std::function<Call()> combined(int64_t tokens, int top_k, int64_t width) {
  return [=] {
    test::Random random(5);
    test::CombineJob job;
    job.tokens = tokens, job.top_k = top_k, job.width = width, job.row_count = 30;
    job.residual = true;
    for (int64_t i = 0; i < job.row_count * width; ++i) job.rows.push_back(float(random.between(-8, 8)) / 4);
    for (int64_t i = 0; i < tokens * width; ++i) job.residuals.push_back(float(random.between(-8, 8)) / 4);
    for (int64_t i = 0; i < tokens * top_k; ++i) {
      job.inverse.push_back(int32_t(random.between(-1, job.row_count)));
      job.weights.push_back(float(random.between(-8, 8)) / 8);
    }
    const auto call = std::make_shared<test::CombineCall>(job);
    call->poison();
    return Call{[call](Stream stream) { call->run({.stream = stream}); },
                [call, wanted = test::reference_combine(job)] { return call->results() == wanted; }};
  };
}

std::function<Call()> routed(RouterScore score) {
  return [=] {
    test::Random random(7);
    test::RouteJob job;
    job.tokens = 21, job.experts = 48, job.top_k = 6;
    job.score = score;
    if (score == RouterScore::Sigmoid) {
      job.groups = 6, job.chosen_groups = 3;
      for (int e = 0; e < 48; ++e) job.correction_bias.push_back(float(random.between(-16, 16)) / 64);
    }
    for (int64_t i = 0; i < job.tokens * job.experts; ++i) job.logits.push_back(float(random.between(-32, 32)) / 8);
    const auto call = std::make_shared<test::RouteCall>(job);
    call->poison();
    const auto is_right = [call, job] {
      const test::Routed got = call->results();
      for (int64_t t = 0; t < job.tokens; ++t) {
        const test::RoutedToken wanted = test::reference_route(job, job.logits.data() + t * job.experts);
        for (int j = 0; j < job.top_k; ++j) {
          const auto at = test::kGuard + size_t(t * job.top_k + j);
          if (got.ids[at] != wanted.ids[size_t(j)]) return false;
          if (std::fabs(double(got.weights[at]) - wanted.weights[size_t(j)]) > 1e-5) return false;
        }
      }
      return true;
    };
    return Call{[call](Stream stream) { call->run({.stream = stream}); }, is_right};
  };
}

Case make_case(const char* name, std::string source, std::vector<std::function<Call()>> calls) {
  Case c;
  c.name = name;
  c.source = std::move(source), c.calls = std::move(calls);
  return c;
}

}  // namespace

std::vector<Case> routing_cases() {
  constexpr auto kInt32 = IdType::Int32;
  constexpr auto kF32 = DataType::F32;
  return {
      make_case("sort, count", jit::sort_source(SortKernel::Count, kInt32, false), {sorted(2100, 8, 600, 0)}),
      // One slice and many, few warps and many, fewer warps than the experts ask for.
      make_case("sort, place", jit::sort_source(SortKernel::Place, kInt32, false),
                {sorted(300, 4, 40, 0), sorted(2, 3, 200, 0), sorted(900, 2, 33, 0, true), sorted(2100, 8, 70, 1),
                 sorted(2200, 8, 70, 1, false, kernel::SortShape{2, 2, 8})}),
      make_case("permute", jit::permute_source(), {permuted(7, 6, 264)}),
      make_case("quantize tokens",
                jit::quantize_source(jit::QuantizeKernel::GatherAndQuantize, DataType::Mxfp4, DataType::Bf16),
                {quantized()}),
      make_case("combine", jit::combine_source(DataType::Bf16, DataType::Bf16),
                {combined(7, 6, 264), combined(kManyTokens, 3, 8)}),
      make_case("route, softmax", jit::route_source(kF32, RouterScore::Softmax, 1), {routed(RouterScore::Softmax)}),
      make_case("route, sigmoid, groups", jit::route_source(kF32, RouterScore::Sigmoid, 1),
                {routed(RouterScore::Sigmoid)}),
  };
}

}  // namespace moxie::mutants
