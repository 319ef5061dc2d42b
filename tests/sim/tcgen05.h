// SPDX-License-Identifier: Apache-2.0
// A kernel around instructions of tcgen05 (PTX ISA 9.7.16), for their tests: it fills shared and tensor memory, runs
// the instructions and dumps tensor memory. Also operands in shared memory, placed by the canonical layouts of
// 9.7.16.3.3.
#pragma once
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/sim/run_ptx.h"

namespace sim_test {

constexpr int kLanes = 128, kColumns = 512;
using Image = std::vector<uint32_t>;  // [lane][column]

inline std::mt19937& rng() {
  static std::mt19937 generator(20);
  return generator;
}
inline uint32_t below(uint32_t n) { return static_cast<uint32_t>(rng()() % n); }

inline std::string vector_of(const char* prefix, int n) {
  std::string text = "{";
  for (int i = 0; i < n; ++i) text += (i ? ", " : "") + std::string(prefix) + std::to_string(i);
  return text + "}";
}

// A kernel of 4 warps a block: shared memory (from offset 1024) and tensor memory are filled from global memory, lane 0
// of warp 0 of the first block runs `body`, tensor memory is written back. The body may use %t (address of tensor
// memory), %a0 to %a7 (64-bit arguments), %x0 to %x7 (their low words), %w0, %w1..., %p0, and must end with commits to
// [%mbar], one in each block.
inline std::string machine(const std::string& body, int group = 1) {
  const std::string g = ".cta_group::" + std::to_string(group);
  const std::string v = vector_of("%v", 32);
  const std::string sync = group == 1 ? "bar.sync 0;\n" : "barrier.cluster.arrive;\nbarrier.cluster.wait;\n";
  std::string args;
  for (int i = 0; i < 8; ++i) {
    const std::string n = std::to_string(i);
    args +=
        "ld.global.u64 %a" + n + ", [%args+" + std::to_string(8 * i) + "];\ncvt.u32.u64 %x" + n + ", %a" + n + ";\n";
  }
  return R"(
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 p_image, .param .u64 p_in, .param .u64 p_out, .param .u64 p_args, .param .u32 p_bytes) {
  .reg .b32 %v<32>, %w<16>, %x<8>;
  .reg .u32 %t, %me, %warp, %i, %n, %rank, %s, %q, %mbar, %c;
  .reg .u64 %image, %in, %out, %args, %g, %wide, %a<8>;
  .reg .pred %p<8>;
  .reg .b16 %h;
  ld.param.u64 %image, [p_image];
  ld.param.u64 %in, [p_in];
  ld.param.u64 %out, [p_out];
  ld.param.u64 %args, [p_args];
  ld.param.u32 %n, [p_bytes];
  mov.u32 %me, %tid.x;
  shr.u32 %warp, %me, 5;
  mov.u32 %rank, %cluster_ctarank;
  mov.u32 %mbar, smem;
  add.u32 %mbar, %mbar, 8;
  mul.wide.u32 %wide, %rank, %n;
  add.u64 %image, %image, %wide;
  mul.wide.u32 %wide, %rank, 262144;
  add.u64 %in, %in, %wide;
  add.u64 %out, %out, %wide;
  mul.wide.u32 %wide, %me, 2048;
  add.u64 %in, %in, %wide;
  add.u64 %out, %out, %wide;
  shl.b32 %i, %me, 2;
COPY:
  setp.ge.u32 %p1, %i, %n;
  @%p1 bra COPIED;
  cvt.u64.u32 %wide, %i;
  add.u64 %g, %image, %wide;
  ld.global.u32 %w0, [%g];
  mov.u32 %s, smem;
  add.u32 %s, %s, %i;
  st.shared.u32 [%s+1024], %w0;
  add.u32 %i, %i, 512;
  bra COPY;
COPIED:
  setp.ne.u32 %p2, %me, 0;
  @%p2 bra INITIALISED;
  mbarrier.init.shared::cta.b64 [%mbar], 1;
  fence.mbarrier_init.release.cluster;
INITIALISED:
  setp.ne.u32 %p3, %warp, 0;
  @%p3 bra ALLOCATED;
  bar.warp.sync -1;
  mov.u32 %s, smem;
  tcgen05.alloc)" +
         g + R"(.sync.aligned.shared::cta.b32 [%s], 512;
  tcgen05.relinquish_alloc_permit)" +
         g + R"(.sync.aligned;
ALLOCATED:
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  ld.shared.u32 %t, [smem];
  shl.b32 %q, %warp, 21;
  add.u32 %q, %q, %t;
  mov.u32 %c, 0;
FILL:
  add.u32 %s, %q, %c;
  mul.wide.u32 %wide, %c, 4;
  add.u64 %g, %in, %wide;
)" +
         [] {
           std::string text;
           for (int i = 0; i < 32; ++i)
             text += "  ld.global.u32 %v" + std::to_string(i) + ", [%g+" + std::to_string(4 * i) + "];\n";
           return text;
         }() +
         "  tcgen05.st.sync.aligned.32x32b.x32.b32 [%s], " + v + R"(;
  add.u32 %c, %c, 32;
  setp.lt.u32 %p4, %c, 512;
  @%p4 bra FILL;
  tcgen05.wait::st.sync.aligned;
  fence.proxy.async.shared::cta;
  tcgen05.fence::before_thread_sync;
)" + sync +
         R"(  tcgen05.fence::after_thread_sync;
  or.b32 %i, %me, %rank;
  setp.ne.u32 %p5, %i, 0;
  @%p5 bra WAIT;
)" + args +
         body + R"(
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p6, [%mbar], 0;
  @!%p6 bra WAIT;
  tcgen05.fence::after_thread_sync;
  mov.u32 %c, 0;
DUMP:
  add.u32 %s, %q, %c;
  mul.wide.u32 %wide, %c, 4;
  add.u64 %g, %out, %wide;
  tcgen05.ld.sync.aligned.32x32b.x32.b32 )" +
         v + R"(, [%s];
  tcgen05.wait::ld.sync.aligned;
)" +
         [] {
           std::string text;
           for (int i = 0; i < 32; ++i)
             text += "  st.global.u32 [%g+" + std::to_string(4 * i) + "], %v" + std::to_string(i) + ";\n";
           return text;
         }() +
         R"(
  add.u32 %c, %c, 32;
  setp.lt.u32 %p4, %c, 512;
  @%p4 bra DUMP;
)" + sync +
         R"(
  @%p3 bra DONE;
  tcgen05.dealloc)" +
         g + R"(.sync.aligned.b32 %t, 512;
DONE:
  ret;
})";
}

inline std::string commit(int group = 1) {
  if (group == 1) return "  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%mbar];\n";
  return "  mov.u16 %h, 3;\n"
         "  tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%mbar], %h;\n";
}

// One block's memories.
struct Block {
  std::vector<uint8_t> shared;
  Image tensor = Image(kLanes * kColumns);
  Block() : shared(96 * 1024) {
    for (uint32_t& w : tensor) w = static_cast<uint32_t>(rng()());
  }
  uint32_t& at(int lane, int column) { return tensor[static_cast<size_t>(lane * kColumns + column)]; }
};

inline std::vector<Image> run_machine(const std::string& body, std::vector<Block>& blocks,
                                      const std::vector<uint64_t>& arguments, sim::Order order = {},
                                      sim::Statistics* statistics = nullptr) {
  const int group = static_cast<int>(blocks.size());
  sim::GlobalMemory memory;
  std::vector<uint8_t> shared;
  Image in;
  for (const Block& b : blocks) {
    shared.insert(shared.end(), b.shared.begin(), b.shared.end());
    in.insert(in.end(), b.tensor.begin(), b.tensor.end());
  }
  std::vector<uint64_t> all = arguments;
  all.resize(8);
  Buffer<uint8_t> image(memory, shared);
  Buffer<uint32_t> tensor_in(memory, in), tensor_out(memory, in.size(), 0u);
  Buffer<uint64_t> args(memory, all);
  Params params;
  params.add(image.address()).add(tensor_in.address()).add(tensor_out.address()).add(args.address());
  params.add(static_cast<uint32_t>(blocks[0].shared.size()));
  Shape shape;
  shape.arch = 100;
  shape.block = {128, 1, 1};
  shape.grid = shape.cluster = {static_cast<uint32_t>(group), 1, 1};
  shape.dynamic_shared = static_cast<uint32_t>(1024 + blocks[0].shared.size());
  shape.order = order;
  shape.statistics = statistics;
  run_ptx(machine(body, group), "k", params, memory, shape);
  std::vector<Image> result;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto begin = tensor_out.data() + i * kLanes * kColumns;
    result.emplace_back(begin, begin + kLanes * kColumns);
  }
  return result;
}

inline void expect_images(const std::vector<Image>& got, const std::vector<Block>& want, const std::string& what) {
  int shown = 0;
  for (size_t b = 0; b < want.size(); ++b) {
    for (size_t i = 0; i < got[b].size() && shown < 4; ++i) {
      if (got[b][i] == want[b].tensor[i]) continue;
      ++shown;
      ADD_FAILURE() << what << ": block " << b << ", lane " << i / kColumns << ", column " << i % kColumns << ": got "
                    << std::hex << got[b][i] << ", want " << want[b].tensor[i];
    }
  }
}

// ---- operands in shared memory, placed by the canonical layouts of 9.7.16.3.3 ---------------------

enum Swizzle { kNone = 0, kAtom32 = 1, k128 = 2, k64 = 4, k32 = 6 };

struct Placement {
  uint32_t start = 0;  // within Block::shared, a multiple of 1024
  Swizzle swizzle = k128;
  bool mn_major = false;
  uint32_t lbo = 0, sbo = 0;
  uint64_t descriptor() const {
    const uint64_t address = start + 1024;
    return address >> 4 | uint64_t{lbo >> 4} << 16 | uint64_t{sbo >> 4} << 32 | 1ull << 46 | uint64_t{swizzle} << 61;
  }
  // Byte offset of an element, from its row and the byte within the row (K-major) or column (MN-major).
  uint32_t offset(uint32_t mn, uint32_t k, uint32_t bytes) const {
    const uint32_t width = swizzle == kNone ? 16 : swizzle == k32 ? 32 : swizzle == k64 ? 64 : 128;
    uint32_t at;
    if (!mn_major) {
      const uint32_t x = k * bytes;
      at = swizzle == kNone ? mn % 8 * 16 + mn / 8 * sbo + x % 16 + x / 16 * lbo : mn % 8 * width + mn / 8 * sbo + x;
    } else {
      const uint32_t x = mn * bytes, rows = swizzle == kAtom32 ? 4 : 8;
      at = swizzle == kNone ? x % 16 + x / 16 * sbo + k % 8 * 16 + k / 8 * lbo
                            : x % width + x / width * lbo + k % rows * width + k / rows * sbo;
    }
    switch (swizzle) {
      case k32:
        at ^= (at >> 7 & 1) << 4;
        break;
      case k64:
        at ^= (at >> 7 & 3) << 4;
        break;
      case k128:
        at ^= (at >> 7 & 7) << 4;
        break;
      case kAtom32:
        at ^= (at >> 7 & 3) << 5;
        break;
      case kNone:
        break;
    }
    return start + at;
  }
};
// Strides that pack `mn` rows of `k` elements without overlap.
inline Placement place(uint32_t start, Swizzle swizzle, bool mn_major, uint32_t mn, uint32_t bytes) {
  Placement p{start, swizzle, mn_major, 0, 0};
  const uint32_t width = swizzle == kNone ? 16 : swizzle == k32 ? 32 : swizzle == k64 ? 64 : 128;
  if (!mn_major) {
    p.sbo = 8 * width;
    p.lbo = swizzle == kNone ? (mn + 7) / 8 * 128 : 0;
  } else if (swizzle == kNone) {
    p.sbo = 128;
    p.lbo = mn * bytes / 16 * 128;
  } else {
    p.sbo = (swizzle == kAtom32 ? 4 : 8) * width;
    p.lbo = p.sbo * (swizzle == kAtom32 ? 4 : 8);  // K of up to 64 rows, with atoms of 32 bytes of 16
  }
  return p;
}

// idesc of kind f16 with float32 accumulators, table 42.
inline uint32_t idesc_f16(int m, int n, bool transpose_a = false, bool transpose_b = false) {
  return 1u << 4 | 1u << 7 | 1u << 10 | uint32_t{transpose_a} << 15 | uint32_t{transpose_b} << 16 |
         static_cast<uint32_t>(n / 8) << 17 | static_cast<uint32_t>(m / 16) << 24;
}

}  // namespace sim_test
