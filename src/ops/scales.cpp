// The scales of MXFP4 operands: sizes, and the conversion to the blocked layout.
#include "moxie/scales.h"

#include <fmt/format.h>

#include "device_state.h"
#include "jit/source.h"
#include "ops/check.h"

namespace moxie {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 30;

void check(const ScaleBlocking& x) {
  const auto reject = [](const std::string& sentence) { throw Error(ErrorCode::InvalidArgument, sentence); };
  if (x.groups < 1 || x.groups > ops::kMaxGroups)
    reject(fmt::format("groups is {}, but must be 1 to {}", x.groups, ops::kMaxGroups));
  if (x.rows < 0 || x.rows > kMaxRows / x.groups)
    reject(fmt::format("rows is {}, but must be 0 to {}", x.rows, kMaxRows / x.groups));
  if (x.k < 0 || x.k > kMaxRows || x.k % kScaleBlock != 0)
    reject(fmt::format("k is {}, but must be a multiple of {} from 0 to {}", x.k, kScaleBlock, kMaxRows));
  if (x.rows == 0 || x.k == 0) return;
  if (!x.from) reject("from is null, but must point to device memory");
  if (!x.to) reject("to is null, but must point to device memory");
  if (reinterpret_cast<uintptr_t>(x.to) % 16 != 0)
    reject(fmt::format("to is {}, but must be aligned to 16 bytes", x.to));
  if (reinterpret_cast<uintptr_t>(x.offsets) % 4 != 0)
    reject(fmt::format("offsets is {}, but must be aligned to 4 bytes", static_cast<const void*>(x.offsets)));
}

}  // namespace

size_t a_scale_bytes(const GemmProblem& p) {
  ops::check_problem(p);
  if (p.format != OperandFormat::Mxfp4) return 0;
  if (p.grouping == Grouping::Offsets) {
    const int64_t tiles = p.m / kScaleTileRows + p.groups;
    return size_t(blocked_scale_bytes(tiles * kScaleTileRows, p.k));
  }
  const bool stacked = p.grouping == Grouping::Batched || p.grouping == Grouping::Masked;
  return size_t((stacked ? p.groups : 1) * blocked_scale_bytes(p.m, p.k));
}

size_t b_scale_bytes(const GemmProblem& p) {
  ops::check_problem(p);
  return p.format == OperandFormat::Mxfp4 ? size_t(p.groups * blocked_scale_bytes(p.n, p.k)) : 0;
}

void block_scales(const Device& device, const ScaleBlocking& x) {
  check(x);
  if (x.rows == 0 || x.k == 0) return;
  kernel::BlockScalesParams params;
  params.from = static_cast<const uint8_t*>(x.from);
  params.to = static_cast<uint8_t*>(x.to);
  params.offsets = x.offsets;
  params.groups = int32_t(x.groups);
  params.rows = int32_t(x.rows);
  params.columns = int32_t(x.k / kScaleBlock);
  const auto request = [] {
    jit::Request r;
    r.source = jit::block_scales_source();
    return r;
  };
  driver::Context::LaunchShape shape;
  shape.grid = unsigned(x.offsets ? x.rows / kScaleTileRows + x.groups
                                  : x.groups * ((x.rows + kScaleTileRows - 1) / kScaleTileRows));
  shape.block = kernel::kBlockScalesThreads;
  void* arguments[] = {&params};
  device.state().context().launch(device.state().get_kernel("block_scales", request, jit::kKernelName, 0), shape,
                                  arguments, x.stream);
}

}  // namespace moxie
