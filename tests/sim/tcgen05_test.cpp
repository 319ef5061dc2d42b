// SPDX-License-Identifier: Apache-2.0
// tcgen05 (PTX ISA 9.7.16) on random data, each form against a direct computation from the ISA's definition, and its
// hazards with their mended twins.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <random>

#include "run_ptx.h"
#include "sim/arithmetic/row_product.h"

namespace {

using namespace sim_test;
using sim::Hazard;
using sim::Mode;

constexpr int kLanes = 128, kColumns = 512;
using Image = std::vector<uint32_t>;  // [lane][column]

std::mt19937& rng() {
  static std::mt19937 generator(20);
  return generator;
}
uint32_t below(uint32_t n) { return static_cast<uint32_t>(rng()() % n); }

std::string vector_of(const char* prefix, int n) {
  std::string text = "{";
  for (int i = 0; i < n; ++i) text += (i ? ", " : "") + std::string(prefix) + std::to_string(i);
  return text + "}";
}

// A kernel of 4 warps a block: shared memory (from offset 1024) and tensor memory are filled from global memory, lane 0
// of warp 0 of the first block runs `body`, tensor memory is written back. The body may use %t (address of tensor
// memory), %a0 to %a7 (64-bit arguments), %x0 to %x7 (their low words), %w0, %w1..., %p0, and must end with commits to
// [%mbar], one in each block.
std::string machine(const std::string& body, int group = 1) {
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

std::string commit(int group = 1) {
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

std::vector<Image> run_machine(const std::string& body, std::vector<Block>& blocks,
                               const std::vector<uint64_t>& arguments, sim::Order order = {}) {
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
  run_ptx(machine(body, group), "k", params, memory, shape);
  std::vector<Image> result;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto begin = tensor_out.data() + i * kLanes * kColumns;
    result.emplace_back(begin, begin + kLanes * kColumns);
  }
  return result;
}

void expect_images(const std::vector<Image>& got, const std::vector<Block>& want, const std::string& what) {
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
Placement place(uint32_t start, Swizzle swizzle, bool mn_major, uint32_t mn, uint32_t bytes) {
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
    p.lbo = p.sbo * (swizzle == kAtom32 ? 2 : 4);  // K of up to 32 rows
  }
  return p;
}

uint32_t random_bf16() {  // -4 to 4 in steps that keep all bits busy
  const float x = static_cast<float>(static_cast<int>(below(511)) - 255) / 64.0f;
  return std::bit_cast<uint32_t>(x) >> 16;
}
float bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

// idesc of kind f16 with float32 accumulators, table 42.
uint32_t idesc_f16(int m, int n, bool transpose_a = false, bool transpose_b = false) {
  return 1u << 4 | 1u << 7 | 1u << 10 | uint32_t{transpose_a} << 15 | uint32_t{transpose_b} << 16 |
         static_cast<uint32_t>(n / 8) << 17 | static_cast<uint32_t>(m / 16) << 24;
}

// Where row r (of the block's) and column n of D stand (9.7.16.10.5); `columns` of the whole D.
struct DPlace {
  int lane, column;
};
DPlace d_place(int m, int group, bool ws, int r, int n, int columns) {
  if (ws && m == 32) return {r + 32 * (n / (columns / 4)), n % (columns / 4)};           // G
  if (ws && m == 64) return {r + 64 * (n / (columns / 2)), n % (columns / 2)};           // E
  if (group == 2 && m == 128) return {r + 64 * (n / (columns / 2)), n % (columns / 2)};  // B
  if (group == 1 && m == 64) return {r % 16 + r / 16 * 32, n};                           // F
  return {r, n};                                                                         // A, D
}

struct F16Case {
  int m, n, group;
  Swizzle swizzle_a = k128, swizzle_b = k128;
  bool mn_a = false, mn_b = false, accumulate = true, ws = false, a_in_tensor = false;
  int lane = 0;
};

void run_f16(const F16Case& c, sim::Order order) {
  const int k = 16, rows = c.m / c.group, columns = c.n / c.group;
  std::vector<Block> blocks(static_cast<size_t>(c.group));
  for (Block& b : blocks) {
    for (uint32_t& w : b.tensor) w = std::bit_cast<uint32_t>(static_cast<float>(below(1000)) / 16.0f);
  }
  const Placement pa = place(0, c.swizzle_a, c.mn_a, static_cast<uint32_t>(rows), 2);
  const Placement pb = place(48 * 1024, c.swizzle_b, c.mn_b, static_cast<uint32_t>(columns), 2);
  std::vector<float> a(static_cast<size_t>(c.m * k)), b(static_cast<size_t>(c.n * k));
  const auto put = [](Block& block, uint32_t at, uint32_t bits) {
    block.shared[at] = static_cast<uint8_t>(bits);
    block.shared[at + 1] = static_cast<uint8_t>(bits >> 8);
  };
  constexpr int kAColumn = 480;
  for (int i = 0; i < c.m; ++i) {
    for (int j = 0; j < k; ++j) {
      const uint32_t bits = random_bf16();
      a[static_cast<size_t>(i * k + j)] = bf16(bits);
      Block& block = blocks[static_cast<size_t>(i / rows)];
      if (!c.a_in_tensor) {
        put(block, pa.offset(static_cast<uint32_t>(i % rows), static_cast<uint32_t>(j), 2), bits);
        continue;
      }
      for (int n = 0; n < c.n; n += c.n / 4) {  // every part of the lanes has a copy
        const DPlace d = d_place(c.m, c.group, c.ws, i % rows, n, c.n);
        uint32_t& word = block.at(d.lane + c.lane, kAColumn + j / 2);
        word = j % 2 ? (word & 0xffff) | bits << 16 : (word & 0xffff0000) | bits;
      }
    }
  }
  for (int i = 0; i < c.n; ++i) {
    for (int j = 0; j < k; ++j) {
      const uint32_t bits = random_bf16();
      b[static_cast<size_t>(i * k + j)] = bf16(bits);
      put(blocks[static_cast<size_t>(i / columns)],
          pb.offset(static_cast<uint32_t>(i % columns), static_cast<uint32_t>(j), 2), bits);
    }
  }
  const std::string group = ".cta_group::" + std::to_string(c.group);
  const std::string body =
      "  setp.ne.u32 %p0, %x3, 0;\n  add.u32 %w0, %t, %x4;\n  add.u32 %w1, %w0, 480;\n"
      "  tcgen05.mma" +
      std::string(c.ws ? ".ws" : "") + group + ".kind::f16 [%w0], " + (c.a_in_tensor ? "[%w1]" : "%a0") +
      ", %a1, %x2, %p0;\n" + commit(c.group);
  const auto got = run_machine(body, blocks,
                               {pa.descriptor(), pb.descriptor(), idesc_f16(c.m, c.n, c.mn_a, c.mn_b),
                                uint64_t{c.accumulate}, static_cast<uint64_t>(c.lane) << 16},
                               order);
  for (int i = 0; i < c.m; ++i) {
    for (int j = 0; j < c.n; ++j) {
      const DPlace d = d_place(c.m, c.group, c.ws, i % rows, j, c.n);
      uint32_t& word = blocks[static_cast<size_t>(i / rows)].at(d.lane + c.lane, d.column);
      float sum = c.accumulate ? std::bit_cast<float>(word) : 0.0f;
      for (int x = 0; x < k; ++x)
        sum = std::fma(a[static_cast<size_t>(i * k + x)], b[static_cast<size_t>(j * k + x)], sum);
      word = std::bit_cast<uint32_t>(sum);
    }
  }
  expect_images(got, blocks,
                "m " + std::to_string(c.m) + " n " + std::to_string(c.n) + " group " + std::to_string(c.group));
}

TEST(Tcgen05Mma, F16OfEveryLayout) {
  std::vector<F16Case> cases = {
      {128, 256, 1},
      {128, 8, 1},
      {64, 136, 1},
      {64, 16, 1, k128, k128, false, false, true, false, false, 16},
      {256, 256, 2},
      {256, 16, 2},
      {128, 240, 2},
      {128, 32, 2},
      {128, 128, 1, k128, k128, false, false, false},
      {32, 64, 1, k128, k128, false, false, true, true},
      {64, 256, 1, k128, k128, false, false, true, true},
      {128, 128, 1, k128, k128, false, false, true, true},
      {128, 64, 1, k128, k128, false, false, true, false, true},
      {64, 64, 1, k128, k128, false, false, true, false, true, 16},
      {256, 64, 2, k128, k128, false, false, true, false, true},
      {128, 64, 2, k128, k128, false, false, true, false, true},
  };
  for (const F16Case& c : cases) {
    for (const sim::Order order : all_orders()) run_f16(c, order);
  }
}

TEST(Tcgen05Mma, F16OfEverySharedMemoryLayout) {
  for (const Swizzle a : {kNone, k32, k64, k128}) {
    for (const Swizzle b : {kNone, k32, k64, k128}) {
      for (int major = 0; major < 4; ++major) {
        F16Case c{128, 64, 1, a, b, (major & 1) != 0, (major & 2) != 0};
        run_f16(c, {});
        c.group = 2;
        c.m = 256;
        c.n = 128;
        run_f16(c, {});
      }
    }
  }
}

// ---- every element type ---------------------------------------------------------------------------

enum Type { F16, BF16, TF32, E4M3, E5M2, E2M3, E3M2, E2M1, Packed, S8, U8 };
struct Format {
  const char* name;
  int bits;                // of a code
  int exponent, mantissa;  // 0: an integer
  uint32_t code;           // in the instruction descriptor
};
constexpr Format kFormats[] = {{"f16", 16, 5, 10, 0}, {"bf16", 16, 8, 7, 1}, {"tf32", 32, 8, 10, 2},
                               {"e4m3", 8, 4, 3, 0},  {"e5m2", 8, 5, 2, 1},  {"e2m3", 6, 2, 3, 3},
                               {"e3m2", 6, 3, 2, 4},  {"e2m1", 4, 2, 1, 5},  {"packed", 4, 2, 1, 1},
                               {"s8", 8, 0, 0, 1},    {"u8", 8, 0, 0, 0}};

double value_of(Type t, uint32_t code) {
  const Format& f = kFormats[t];
  if (t == S8) return static_cast<int8_t>(code);
  if (t == U8) return code & 0xff;
  if (t == TF32) code >>= 13;
  const int e = static_cast<int>(code >> f.mantissa & ((1u << f.exponent) - 1)),
            m = static_cast<int>(code & ((1u << f.mantissa) - 1));
  const int bias = (1 << (f.exponent - 1)) - 1;
  const double magnitude =
      e == 0 ? std::ldexp(m, 1 - bias - f.mantissa) : std::ldexp((1 << f.mantissa) + m, e - bias - f.mantissa);
  return code >> (f.exponent + f.mantissa) & 1 ? -magnitude : magnitude;
}

// A code of a finite value, of middling size in the wide types.
uint32_t random_code(Type t) {
  const Format& f = kFormats[t];
  if (f.exponent == 8 || t == F16) {
    const uint32_t bias = (1u << (f.exponent - 1)) - 1, e = bias - 3 + below(6);
    const uint32_t code = below(2) << (f.exponent + f.mantissa) | e << f.mantissa | below(1u << f.mantissa);
    return t == TF32 ? code << 13 | below(1u << 13) : code;  // the low bits do not count
  }
  for (;;) {
    const uint32_t code = below(1u << f.bits);
    if (t == E4M3 && (code & 0x7f) == 0x7f) continue;
    if (t == E5M2 && (code & 0x7c) == 0x7c) continue;
    return code;
  }
}

void put_bits(std::vector<uint8_t>& bytes, uint32_t byte, uint32_t bit, uint32_t count, uint32_t code) {
  for (uint32_t i = 0; i < count; ++i) {
    uint8_t& b = bytes[byte + (bit + i) / 8];
    const auto mask = static_cast<uint8_t>(1u << (bit + i) % 8);
    b = static_cast<uint8_t>(code >> i & 1 ? b | mask : b & ~mask);
  }
}

void put_element(Block& block, const Placement& p, Type t, uint32_t mn, uint32_t k, uint32_t code) {
  const auto bits = static_cast<uint32_t>(kFormats[t].bits);
  if (t == Packed)
    put_bits(block.shared, p.offset(mn, k / 2, 1), k % 2 * 4, 4, code);
  else if (bits < 8)  // 16 of them at the start of 16 bytes
    put_bits(block.shared, p.offset(mn, k / 16 * 16, 1), k % 16 * bits, bits, code);
  else
    put_bits(block.shared, p.offset(mn, k, bits / 8), 0, bits, code);
}

// In tensor memory 6-bit codes stand in the low, 4-bit ones in the middle bits of a byte, but for mxf4.
void put_in_tensor(Block& block, Type t, int lane, int column, uint32_t k, uint32_t code) {
  uint32_t bits = static_cast<uint32_t>(kFormats[t].bits);
  if (t != Packed && bits < 8) {
    if (bits == 4) code <<= 2;
    bits = 8;
  }
  const uint32_t at = k * bits;
  uint32_t& word = block.at(lane, column + static_cast<int>(at / 32));
  const uint32_t mask = bits == 32 ? ~0u : ((1u << bits) - 1) << at % 32;
  word = (word & ~mask) | (code << at % 32 & mask);
}

struct KindCase {
  std::string kind;
  Type a, b;
  int m = 128, n = 64, group = 1;
  uint32_t d = 1;  // 0: f16, 1: f32, 2: s32
  bool mn_a = false, mn_b = false;
  uint32_t flags = 0;  // saturate, negate
  bool a_in_tensor = false;
  int scale_d = 0;
  bool masked = false, ashift = false;
  std::string qualifier = {};
  Swizzle swizzle_a = k128, swizzle_b = k128;  // but for transposed tf32, which has one of its own
  bool accumulate = true;
};

float to_half(double x) {  // to nearest even, for values of middling size
  const int e = std::max(std::ilogb(x == 0 ? 1.0 : x), -14);
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(x, 10 - e)), e - 10));
}
uint32_t half_bits(float x) {
  if (std::fabs(x) > 65504) return std::signbit(x) ? 0xfc00 : 0x7c00;
  uint32_t low = 0, high = 0x7bff;  // codes are in the order of their values
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (value_of(F16, middle) < std::fabs(x))
      low = middle + 1;
    else
      high = middle;
  }
  EXPECT_EQ(value_of(F16, low), std::fabs(x));
  return low | (std::signbit(x) ? 0x8000u : 0u);
}

void run_kind(const KindCase& c, sim::Order order = {}) {
  const int k = c.a == TF32 ? 8 : c.a <= BF16 ? 16 : 32, rows = c.m / c.group, columns = c.n / c.group;
  const auto bytes = [](Type t) { return static_cast<uint32_t>(std::max(8, kFormats[t].bits) / 8); };
  const auto swizzle = [&](Swizzle wanted, bool mn) { return c.kind == "tf32" && mn ? kAtom32 : wanted; };
  std::vector<Block> blocks(static_cast<size_t>(c.group));
  for (Block& b : blocks) {
    for (uint32_t& w : b.tensor) {
      const int x = static_cast<int>(below(2001)) - 1000;
      w = c.d == 2   ? (below(4) == 0 ? 0x7fffff00u + below(256) : static_cast<uint32_t>(x))
          : c.d == 1 ? std::bit_cast<uint32_t>(static_cast<float>(x) / 16)
                     : half_bits(static_cast<float>(x) / 64);
    }
  }
  const Placement pa = place(0, swizzle(c.swizzle_a, c.mn_a), c.mn_a, static_cast<uint32_t>(rows), bytes(c.a));
  const Placement pb =
      place(48 * 1024, swizzle(c.swizzle_b, c.mn_b), c.mn_b, static_cast<uint32_t>(columns), bytes(c.b));
  std::vector<float> a(static_cast<size_t>(c.m * k)), b(static_cast<size_t>(c.n * k));
  for (int i = 0; i < c.m; ++i) {
    for (int j = 0; j < k; ++j) {
      const uint32_t code = random_code(c.a);
      a[static_cast<size_t>(i * k + j)] = static_cast<float>(value_of(c.a, code));
      Block& block = blocks[static_cast<size_t>(i / rows)];
      if (c.a_in_tensor) {
        for (int n = 0; n < c.n; n += c.n / 2)  // each part of the lanes has a copy
          put_in_tensor(block, c.a, d_place(c.m, c.group, false, i % rows, n, c.n).lane, 480, static_cast<uint32_t>(j),
                        code);
      } else {
        put_element(block, pa, c.a, static_cast<uint32_t>(i % rows), static_cast<uint32_t>(j), code);
      }
    }
  }
  for (int i = 0; i < c.n; ++i) {
    for (int j = 0; j < k; ++j) {
      const uint32_t code = random_code(c.b);
      b[static_cast<size_t>(i * k + j)] = static_cast<float>(value_of(c.b, code));
      put_element(blocks[static_cast<size_t>(i / columns)], pb, c.b, static_cast<uint32_t>(i % columns),
                  static_cast<uint32_t>(j), code);
    }
  }
  const uint32_t idesc = c.d << 4 | c.flags | kFormats[c.a].code << 7 | kFormats[c.b].code << 10 |
                         uint32_t{c.mn_a} << 15 | uint32_t{c.mn_b} << 16 | static_cast<uint32_t>(c.n / 8) << 17 |
                         static_cast<uint32_t>(c.m / 16) << 24;
  std::vector<uint32_t> mask(8);
  std::string body = "  setp.ne.u32 %p0, %x3, 0;\n  add.u32 %w1, %t, 480;\n", words;
  if (c.masked) {
    for (int i = 0; i < 4 * c.group; ++i) {
      mask[static_cast<size_t>(i)] = static_cast<uint32_t>(rng()());
      body += "  mov.u32 %w" + std::to_string(4 + i) + ", " + std::to_string(mask[static_cast<size_t>(i)]) + ";\n";
      words += (i ? ", %w" : "{%w") + std::to_string(4 + i);
    }
    words += "}, ";
  }
  body += "  tcgen05.mma.cta_group::" + std::to_string(c.group) + ".kind::" + c.kind + (c.ashift ? ".ashift" : "") +
          c.qualifier + " [%t], " + (c.a_in_tensor ? "[%w1]" : "%a0") + ", %a1, %x2, " + words + "%p0" +
          (c.scale_d ? ", " + std::to_string(c.scale_d) : "") + ";\n" + commit(c.group);
  const auto got = run_machine(body, blocks, {pa.descriptor(), pb.descriptor(), idesc, uint64_t{c.accumulate}}, order);
  const float sign = (c.flags >> 13 & 1) != (c.flags >> 14 & 1) ? -1.0f : 1.0f;
  for (int i = 0; i < c.m; ++i) {
    const int from = c.ashift && (i + 1) % 128 != 0 ? i + 1 : i;
    for (int j = 0; j < c.n; ++j) {
      const DPlace p = d_place(c.m, c.group, false, i % rows, j, c.n);
      if (mask[static_cast<size_t>(4 * (i / rows) + p.lane / 32)] >> p.lane % 32 & 1) continue;
      uint32_t& word = blocks[static_cast<size_t>(i / rows)].at(p.lane, p.column);
      const float *x = &a[static_cast<size_t>(from * k)], *y = &b[static_cast<size_t>(j * k)];
      if (c.d == 2) {
        int64_t sum = 0;
        for (int z = 0; z < k; ++z) sum += static_cast<int64_t>(x[z]) * static_cast<int64_t>(y[z]);
        if (c.accumulate) sum += static_cast<int32_t>(word);
        if (c.flags & 8) sum = std::min<int64_t>(std::max<int64_t>(sum, INT32_MIN), INT32_MAX);
        word = static_cast<uint32_t>(sum);
        continue;
      }
      float sum = c.d == 1 ? std::bit_cast<float>(word) : static_cast<float>(value_of(F16, word));
      sum = c.accumulate ? std::ldexp(sum, -c.scale_d) : 0.0f;
      for (int z = 0; z < k; ++z) sum = std::fma(sign * x[z], y[z], sum);
      word = c.d == 1 ? std::bit_cast<uint32_t>(sum) : half_bits(to_half(sum));
    }
  }
  expect_images(got, blocks, c.kind + " " + kFormats[c.a].name + " " + kFormats[c.b].name);
}

TEST(Tcgen05Mma, F8F6F4OfEveryPairOfTypes) {
  for (const Type a : {E4M3, E5M2, E2M3, E3M2, E2M1}) {
    for (const Type b : {E4M3, E5M2, E2M3, E3M2, E2M1}) {
      run_kind({"f8f6f4", a, b, 64, 24});
      run_kind({.kind = "f8f6f4", .a = a, .b = b, .m = 256, .n = 32, .group = 2, .a_in_tensor = true});
    }
  }
  for (const Type a : {E4M3, E5M2}) {
    run_kind({.kind = "f8f6f4", .a = a, .b = E4M3, .mn_a = true, .mn_b = true});
    run_kind({.kind = "f8f6f4", .a = a, .b = E5M2, .m = 128, .n = 64, .group = 2, .mn_b = true});
  }
}

TEST(Tcgen05Mma, OtherKindsAndModifiers) {
  for (const sim::Order order : all_orders()) {
    run_kind({.kind = "tf32", .a = TF32, .b = TF32}, order);
    run_kind({.kind = "tf32", .a = TF32, .b = TF32, .mn_a = true, .mn_b = true}, order);
    run_kind({.kind = "tf32", .a = TF32, .b = TF32, .m = 64, .n = 40, .mn_b = true, .a_in_tensor = true}, order);
    run_kind({.kind = "f16", .a = F16, .b = F16, .n = 16, .d = 0}, order);
    run_kind({.kind = "f16", .a = F16, .b = F16, .m = 256, .n = 32, .group = 2, .d = 0}, order);
    run_kind({.kind = "f16", .a = F16, .b = F16, .flags = 1u << 13}, order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .flags = 1u << 14, .a_in_tensor = true, .scale_d = 3}, order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .flags = 3u << 13, .scale_d = 15}, order);
    run_kind({.kind = "i8", .a = S8, .b = S8, .d = 2}, order);
    run_kind({.kind = "i8", .a = U8, .b = S8, .m = 64, .n = 24, .d = 2, .flags = 8}, order);
    run_kind(
        {.kind = "i8", .a = S8, .b = U8, .m = 256, .n = 64, .group = 2, .d = 2, .mn_a = true, .mn_b = true, .flags = 8},
        order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .masked = true}, order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .m = 128, .n = 64, .group = 2, .masked = true}, order);
    run_kind({.kind = "i8", .a = U8, .b = U8, .m = 256, .n = 64, .group = 2, .d = 2, .masked = true}, order);
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .a_in_tensor = true, .ashift = true}, order);
    run_kind({.kind = "f16",
              .a = BF16,
              .b = BF16,
              .m = 256,
              .group = 2,
              .a_in_tensor = true,
              .ashift = true,
              .qualifier = ".collector::a::lastuse"},
             order);
  }
  for (const char* op : {"fill", "use", "lastuse", "discard"})
    run_kind({.kind = "f16", .a = BF16, .b = BF16, .qualifier = std::string(".collector::a::") + op});
}

// ---- block scaling (9.7.16.10.7) ------------------------------------------------------------------

struct ScaledCase {
  std::string kind;
  Type a, b;
  int vector;  // scales of a row
  std::string qualifier;
  int m = 128, n = 64, group = 1;
  uint32_t id_a = 0, id_b = 0;
  bool e8m0 = true, a_in_tensor = false;
  uint32_t low = 120, range = 16;  // of the scales' codes
  uint32_t flags = 0;
  Swizzle swizzle_a = k128, swizzle_b = k128;
  bool mn_a = false, mn_b = false, accumulate = true;
};

double scale_value(bool e8m0, uint32_t code) {
  if (e8m0) return code == 255 ? std::nan("") : std::ldexp(1.0, static_cast<int>(code) - 127);
  return (code & 0x7f) == 0x7f ? std::nan("") : value_of(E4M3, code & 0x7f);
}

void run_scaled(const ScaledCase& c, sim::Order order = {}) {
  const int k = c.a == Packed ? 64 : 32, rows = c.m / c.group, columns = c.n / c.group, chunk = k / c.vector;
  std::vector<Block> blocks(static_cast<size_t>(c.group));
  for (Block& b : blocks) {
    for (uint32_t& w : b.tensor) w = std::bit_cast<uint32_t>(static_cast<float>(below(1000)) / 16.0f);
  }
  const Placement pa = place(0, c.swizzle_a, c.mn_a, static_cast<uint32_t>(rows), 1);
  const Placement pb = place(48 * 1024, c.swizzle_b, c.mn_b, static_cast<uint32_t>(columns), 1);
  const auto code = [&] {
    return c.e8m0 && c.range != 0 ? c.low + below(c.range) : c.range == 0 ? below(256) : 40 + below(40);
  };
  std::vector<double> a, b, sa, sb;
  constexpr int kScaleA = 448, kScaleB = 464, kAColumn = 480;
  for (int i = 0; i < c.m; ++i) {
    Block& block = blocks[static_cast<size_t>(i / rows)];
    for (int j = 0; j < k; ++j) {
      const uint32_t bits = random_code(c.a);
      a.push_back(value_of(c.a, bits));
      if (!c.a_in_tensor) {
        put_element(block, pa, c.a, static_cast<uint32_t>(i % rows), static_cast<uint32_t>(j), bits);
        continue;
      }
      put_in_tensor(block, c.a, i % rows, kAColumn, static_cast<uint32_t>(j), bits);
      if (rows == 64) put_in_tensor(block, c.a, i % rows + 64, kAColumn, static_cast<uint32_t>(j), bits);
    }
    for (int j = 0; j < c.vector; ++j) {
      const uint32_t bits = code();
      sa.push_back(scale_value(c.e8m0, bits));
      const int r = i % rows;
      for (int q = 0; q < 4; ++q) {  // every 32 lanes have them
        uint32_t& word = block.at(32 * q + r % 32, kScaleA + r / 32);
        const int shift = 8 * (static_cast<int>(c.id_a) + j);
        word = (word & ~(0xffu << shift)) | bits << shift;
      }
    }
  }
  for (int i = 0; i < c.n; ++i) {
    for (int j = 0; j < k; ++j) {
      const uint32_t bits = random_code(c.b);
      b.push_back(value_of(c.b, bits));
      put_element(blocks[static_cast<size_t>(i / columns)], pb, c.b, static_cast<uint32_t>(i % columns),
                  static_cast<uint32_t>(j), bits);
    }
    for (int j = 0; j < c.vector; ++j) {
      const uint32_t bits = code();
      sb.push_back(scale_value(c.e8m0, bits));
      for (Block& block : blocks) {  // both blocks need all of them
        for (int q = 0; q < 4; ++q) {
          int n = i;
          if (c.group == 2 && c.m == 128) {  // lanes 0 to 63: the first half of the columns
            if (n / (c.n / 2) != q / 2) continue;
            n %= c.n / 2;
          }
          uint32_t& word = block.at(32 * q + n % 32, kScaleB + n / 32);
          const int shift = 8 * (static_cast<int>(c.id_b) + j);
          word = (word & ~(0xffu << shift)) | bits << shift;
        }
      }
    }
  }
  const uint32_t idesc = c.flags | uint32_t{c.mn_a} << 15 | uint32_t{c.mn_b} << 16 | c.id_b << 4 |
                         kFormats[c.a].code << 7 | kFormats[c.b].code << 10 | static_cast<uint32_t>(c.n / 8) << 17 |
                         uint32_t{c.e8m0} << 23 | static_cast<uint32_t>(c.m / 128) << 27 | c.id_a << 29;
  const std::string body =
      "  setp.ne.u32 %p0, %x3, 0;\n  add.u32 %w1, %t, 480;\n  add.u32 %w2, %t, 448;\n"
      "  tcgen05.mma.cta_group::" +
      std::to_string(c.group) + ".kind::" + c.kind + ".block_scale" + c.qualifier + " [%t], " +
      (c.a_in_tensor ? "[%w1]" : "%a0") + ", %a1, %x2, [%w2], [%w2+16], %p0;\n" + commit(c.group);
  const auto got = run_machine(body, blocks, {pa.descriptor(), pb.descriptor(), idesc, uint64_t{c.accumulate}}, order);
  const double sign = (c.flags >> 13 & 1) != (c.flags >> 14 & 1) ? -1 : 1;
  for (int i = 0; i < c.m; ++i) {
    for (int j = 0; j < c.n; ++j) {
      const DPlace p = d_place(c.m, c.group, false, i % rows, j, c.n);
      uint32_t& word = blocks[static_cast<size_t>(i / rows)].at(p.lane, p.column);
      float sum = c.accumulate ? std::bit_cast<float>(word) : 0.0f;
      for (int z = 0; z < k; ++z) {
        const auto x = static_cast<size_t>(i * k + z), y = static_cast<size_t>(j * k + z);
        const double product = sign * a[x] * sa[static_cast<size_t>(i * c.vector + z / chunk)] * b[y] *
                               sb[static_cast<size_t>(j * c.vector + z / chunk)];
        // The product is exact in double; its sum with a float is rounded once: through long double.
        sum = static_cast<float>(static_cast<long double>(product) + static_cast<long double>(sum));
      }
      word = std::isnan(sum) ? 0x7fffffff : std::bit_cast<uint32_t>(sum);
    }
  }
  auto cleaned = got;
  for (size_t b2 = 0; b2 < cleaned.size(); ++b2) {
    for (size_t i = 0; i < cleaned[b2].size(); ++i) {
      uint32_t& w = cleaned[b2][i];
      if (std::isnan(std::bit_cast<float>(w)) && blocks[b2].tensor[i] == 0x7fffffff) w = 0x7fffffff;
    }
  }
  expect_images(cleaned, blocks,
                c.kind + c.qualifier + " m " + std::to_string(c.m) + " n " + std::to_string(c.n) + " group " +
                    std::to_string(c.group));
}

TEST(Tcgen05Mma, BlockScaled) {
  for (uint32_t id = 0; id < 4; ++id) {
    run_scaled({"mxf8f6f4", E4M3, E5M2, 1, "", 128, 136, 1, id, 3 - id});
    run_scaled({"mxf8f6f4", E2M1, E3M2, 1, ".block32", 256, 256, 2, id, 3 - id});
    run_scaled({"mxf8f6f4", E2M3, E2M1, 1, ".scale_vec::1X", 128, 48, 2, 3 - id, id});
    run_scaled({"mxf8f6f4", E2M3, E4M3, 1, ".scale_vec::1X", 128, 48, 2, 3 - id, id, true, true});
  }
  for (const sim::Order order : all_orders()) {
    run_scaled({"mxf4", Packed, Packed, 2, "", 128, 256, 1, 0, 2}, order);
    run_scaled({"mxf4", Packed, Packed, 2, ".block32", 128, 8, 1, 2, 0, true, true}, order);
    run_scaled({"mxf4", Packed, Packed, 2, ".scale_vec::2X", 256, 240, 2, 2, 2}, order);
    run_scaled({"mxf4", Packed, Packed, 2, ".scale_vec::2X", 128, 176, 2, 2, 0}, order);
    run_scaled({"mxf4nvf4", Packed, Packed, 4, ".block16", 128, 128, 1, 0, 0, false}, order);
    run_scaled({"mxf4nvf4", Packed, Packed, 4, ".scale_vec::4X.collector::a::fill", 256, 128, 2, 0, 0, true}, order);
    run_scaled({"mxf4nvf4", Packed, Packed, 2, ".block32", 256, 16, 2, 2, 0, true}, order);
  }
  run_scaled({.kind = "mxf4", .a = Packed, .b = Packed, .vector = 2, .qualifier = "", .flags = 1u << 13});
  run_scaled({.kind = "mxf8f6f4", .a = E4M3, .b = E4M3, .vector = 1, .qualifier = "", .flags = 1u << 14});
}

TEST(Tcgen05Mma, ScalesThatAreNanOrExtreme) {
  run_scaled(
      {.kind = "mxf4nvf4", .a = Packed, .b = Packed, .vector = 4, .qualifier = ".block16", .e8m0 = false, .range = 0});
  run_scaled({.kind = "mxf8f6f4", .a = E5M2, .b = E4M3, .vector = 1, .qualifier = "", .low = 254, .range = 2});
  run_scaled({.kind = "mxf8f6f4", .a = E5M2, .b = E4M3, .vector = 1, .qualifier = "", .low = 0, .range = 256});
  run_scaled({.kind = "mxf8f6f4", .a = E5M2, .b = E5M2, .vector = 1, .qualifier = "", .low = 0, .range = 4});
  run_scaled({.kind = "mxf4", .a = Packed, .b = Packed, .vector = 2, .qualifier = "", .low = 0, .range = 256});
}

// ---- every form of every kind: what tests/coverage/required.txt asks for ---------------------------

TEST(Tcgen05Mma, EveryWidth) {
  for (const int m : {64, 128}) {
    for (int n = 8; n <= 256; n += 8) run_f16({m, n, 1}, {});
    for (const int n : {8, 16, 24, 32, 48, 96, 256}) run_kind({.kind = "i8", .a = S8, .b = U8, .m = m, .n = n, .d = 2});
  }
  for (const int m : {128, 256}) {
    for (int n = 16; n <= 256; n += 16) run_f16({m, n, 2}, {});
  }
}

struct Kind {
  const char* name;
  Type type;
  uint32_t d;
};
constexpr Kind kKinds[] = {{"f16", BF16, 1}, {"tf32", TF32, 1}, {"f8f6f4", E5M2, 1}, {"i8", S8, 2}};
constexpr Swizzle kSwizzles[] = {kNone, k32, k64, k128};

TEST(Tcgen05Mma, EveryKindWithEachModifier) {
  for (const Kind& kind : kKinds) {
    KindCase base{.kind = kind.name, .a = kind.type, .b = kind.type, .n = 32, .d = kind.d};
    for (const int group : {1, 2}) {
      base.group = group;
      for (const int m : {64 * group, 128 * group}) {
        base.m = m;
        for (const bool a_in_tensor : {false, true}) {
          KindCase c = base;
          c.a_in_tensor = a_in_tensor;
          run_kind(c);
          c.accumulate = false;
          run_kind(c);
          c.accumulate = true;
          c.masked = true;
          run_kind(c);
        }
      }
    }
    base.group = 1;
    base.m = 128;
    for (const char* op : {"fill", "use", "lastuse", "discard"}) {
      KindCase c = base;
      c.qualifier = std::string(".collector::a::") + op;
      run_kind(c);
    }
    if (kind.d == 2) continue;
    for (uint32_t sign = 1; sign < 4; ++sign) {
      KindCase c = base;
      c.flags = sign << 13;
      run_kind(c);
      c.a_in_tensor = true;
      run_kind(c);
    }
    if (kind.type == E5M2) continue;
    for (int scale = 1; scale < 16; ++scale) {
      KindCase c = base;
      c.scale_d = scale;
      run_kind(c);
    }
  }
  for (const Type a : {S8, U8}) {
    for (const Type b : {S8, U8}) {
      run_kind({.kind = "i8", .a = a, .b = b, .n = 16, .d = 2});
      run_kind({.kind = "i8", .a = a, .b = b, .n = 16, .d = 2, .flags = 8});
    }
  }
  for (const Type a : {E4M3, E5M2, E2M3, E3M2, E2M1}) {
    for (const Type b : {E4M3, E5M2, E2M3, E3M2, E2M1}) run_kind({.kind = "f8f6f4", .a = a, .b = b, .n = 16, .d = 0});
  }
}

TEST(Tcgen05Mma, EverySharedMemoryLayoutOfEveryKind) {
  for (const Kind& kind : kKinds) {
    for (const Swizzle swizzle : kSwizzles) {
      for (int major = 0; major < 4; ++major) {
        const KindCase c{.kind = kind.name,
                         .a = kind.type,
                         .b = kind.type,
                         .n = 48,
                         .d = kind.d,
                         .mn_a = (major & 1) != 0,
                         .mn_b = (major & 2) != 0,
                         .swizzle_a = swizzle,
                         .swizzle_b = swizzle};
        run_kind(c);
      }
    }
  }
  for (const Type type : {E2M3, E3M2, E2M1}) {
    for (const Swizzle swizzle : kSwizzles)
      run_kind({.kind = "f8f6f4", .a = type, .b = type, .n = 24, .swizzle_a = swizzle, .swizzle_b = swizzle});
  }
}

TEST(Tcgen05Mma, BlockScaledInEveryForm) {
  for (const Type a : {E4M3, E5M2, E2M3, E3M2, E2M1}) {
    for (const Type b : {E4M3, E5M2, E2M3, E3M2, E2M1}) run_scaled({"mxf8f6f4", a, b, 1, "", 128, 16});
  }
  for (uint32_t id = 0; id < 16; ++id) run_scaled({"mxf8f6f4", E4M3, E2M3, 1, "", 128, 24, 1, id % 4, id / 4});
  for (uint32_t id = 0; id < 4; ++id) run_scaled({"mxf4", Packed, Packed, 2, "", 128, 24, 1, id % 2 * 2, id / 2 * 2});
  struct Scaled {
    const char* kind;
    Type type;
    int vector;
    std::vector<const char*> qualifiers;
  };
  const std::vector<Scaled> kinds = {{"mxf8f6f4", E4M3, 1, {"", ".block32", ".scale_vec::1X"}},
                                     {"mxf4", Packed, 2, {"", ".block32", ".scale_vec::2X"}},
                                     {"mxf4nvf4", Packed, 2, {".block32", ".scale_vec::2X"}},
                                     {"mxf4nvf4", Packed, 4, {".block16", ".scale_vec::4X"}}};
  for (const Scaled& kind : kinds) {
    for (const char* qualifier : kind.qualifiers) {
      for (const auto& [m, group] : {std::pair(128, 1), std::pair(128, 2), std::pair(256, 2)}) {
        ScaledCase c{kind.kind, kind.type, kind.type, kind.vector, qualifier, m, 32, group};
        run_scaled(c);
        c.a_in_tensor = true;
        run_scaled(c);
        c.accumulate = false;
        run_scaled(c);
      }
    }
    ScaledCase base{kind.kind, kind.type, kind.type, kind.vector, kind.qualifiers.back(), 128, 16};
    for (uint32_t sign = 1; sign < 4; ++sign) {
      ScaledCase c = base;
      c.flags = sign << 13;
      run_scaled(c);
    }
    for (const char* op : {"fill", "use", "lastuse", "discard"}) {
      ScaledCase c = base;
      c.qualifier += std::string(".collector::a::") + op;
      run_scaled(c);
    }
    if (kind.vector == 4) {
      for (const bool e8m0 : {false, true}) {
        ScaledCase c = base;
        c.e8m0 = e8m0;
        run_scaled(c);
      }
    }
    for (const Swizzle swizzle : kSwizzles) {
      for (int major = 0; major < (kind.type == Packed ? 1 : 4); ++major) {
        ScaledCase c = base;
        c.swizzle_a = c.swizzle_b = swizzle;
        c.mn_a = (major & 1) != 0;
        c.mn_b = (major & 2) != 0;
        run_scaled(c);
      }
    }
  }
}

// ---- cp and shift (9.7.16.9) ----------------------------------------------------------------------

struct CopyCase {
  std::string shape, multicast = {};
  int rows = 128, bytes = 32;
  std::function<std::vector<int>(int)> lanes = {};  // of a row
  int lane = 0;
};

TEST(Tcgen05Copy, EveryShapeMulticastAndFormat) {
  const auto same = [](int r) { return std::vector<int>{r}; };
  const std::vector<CopyCase> cases = {
      {"128x256b", "", 128, 32, same},
      {"128x128b", "", 128, 16, same},
      {"4x256b", "", 4, 32, [](int r) { return std::vector<int>{32 * r + 31}; }, 31},
      {"64x128b", ".warpx2::02_13", 64, 16,
       [](int r) {
         return std::vector<int>{r, r + 64};
       }},
      {"64x128b", ".warpx2::01_23", 64, 16,
       [](int r) {
         return r < 32 ? std::vector<int>{r, r + 32} : std::vector<int>{r + 32, r + 64};
       }},
      {"32x128b", ".warpx4", 32, 16,
       [](int r) {
         return std::vector<int>{r, r + 32, r + 64, r + 96};
       }},
  };
  int which = 0;
  for (const CopyCase& c : cases) {
    for (const int format : {8, 6, 4}) {
      for (const int group : {1, 2}) {
        const Swizzle swizzle = std::vector<Swizzle>{kNone, k32, k64, k128}[static_cast<size_t>(which++ % 4)];
        const Placement p = place(1024, swizzle, false, static_cast<uint32_t>(c.rows), 1);
        std::vector<Block> blocks(static_cast<size_t>(group));
        for (Block& b : blocks) {
          for (uint8_t& x : b.shared) x = static_cast<uint8_t>(rng()());
          for (int r = 0; r < c.rows; ++r) {
            for (int i = 0; i < c.bytes; ++i) {
              const auto piece = p.offset(static_cast<uint32_t>(r), static_cast<uint32_t>(i / 16 * 16), 1);
              uint32_t value = 0;
              for (int bit = 0; bit < format; ++bit) {
                const int at = i % 16 * format + bit;
                value |= static_cast<uint32_t>(b.shared[piece + static_cast<uint32_t>(at / 8)] >> at % 8 & 1) << bit;
              }
              if (format == 4) value <<= 2;
              for (const int lane : c.lanes(r)) {
                uint32_t& word = b.at(lane, 64 + i / 4);
                word = (word & ~(0xffu << i % 4 * 8)) | value << i % 4 * 8;
              }
            }
          }
        }
        const std::vector<Block> want = blocks;
        std::vector<Block> start = blocks;
        const Image before = Block().tensor;
        for (Block& b : start) b.tensor = before;
        // What the copy does not touch stays as it was.
        std::vector<Block> mended = want;
        for (Block& b : mended) {
          const Image copied = b.tensor;
          b.tensor = before;
          for (int r = 0; r < c.rows; ++r) {
            for (const int lane : c.lanes(r)) {
              for (int i = 0; i < c.bytes / 4; ++i)
                b.at(lane, 64 + i) = copied[static_cast<size_t>(lane * kColumns + 64 + i)];
            }
          }
        }
        const std::string text = "cp.cta_group::" + std::to_string(group) + "." + c.shape + c.multicast +
                                 (format == 6   ? ".b8x16.b6x16_p32"
                                  : format == 4 ? ".b8x16.b4x16_p64"
                                                : "");
        const std::string body = "  add.u32 %w0, %t, %x1;\n  tcgen05." + text + " [%w0+64], %a0;\n" + commit(group);
        for (const sim::Order order : all_orders())
          expect_images(run_machine(body, start, {p.descriptor(), static_cast<uint64_t>(c.lane) << 16}, order), mended,
                        text);
      }
    }
  }
}

TEST(Tcgen05Copy, SwizzleOfLargerAtoms) {
  const Placement p = place(1024, kAtom32, false, 128, 1);
  std::vector<Block> blocks(1);
  for (uint8_t& x : blocks[0].shared) x = static_cast<uint8_t>(rng()());
  std::vector<Block> want = blocks;
  for (int r = 0; r < 128; ++r) {
    for (uint32_t i = 0; i < 32; ++i) {
      uint32_t& word = want[0].at(r, static_cast<int>(i / 4));
      const uint32_t byte = blocks[0].shared[p.offset(static_cast<uint32_t>(r), i, 1)];
      word = (word & ~(0xffu << i % 4 * 8)) | byte << i % 4 * 8;
    }
  }
  const std::string body = "  tcgen05.cp.cta_group::1.128x256b [%t], %a0;\n" + commit();
  for (const sim::Order order : all_orders())
    expect_images(run_machine(body, blocks, {p.descriptor()}, order), want, "cp of 32-byte atoms");
}

TEST(Tcgen05Shift, MovesRowsOfOneWarpDown) {
  for (const int group : {1, 2}) {
    std::vector<Block> blocks(static_cast<size_t>(group)), want = blocks;
    for (size_t b = 0; b < blocks.size(); ++b) {
      want[b].tensor = blocks[b].tensor;
      for (int i = 64; i < 95; ++i) {
        for (int j = 0; j < 8; ++j) want[b].at(i, 16 + j) = blocks[b].at(i + 1, 16 + j);
      }
    }
    const std::string body = "  add.u32 %w0, %t, " + std::to_string(64 << 16 | 16) +
                             ";\n  tcgen05.shift.cta_group::" + std::to_string(group) + ".down [%w0];\n" +
                             commit(group);
    for (const sim::Order order : all_orders()) expect_images(run_machine(body, blocks, {}, order), want, "shift");
  }
}

// ---- ld and st (9.7.16.8) -------------------------------------------------------------------------

// Each register of each thread has a random number of its own; the kernel stores it with one shape, and loads with
// another.
constexpr uint32_t kScatter = 0x9e3779b1;  // an odd factor: no two products are equal
std::string transfer_kernel(const std::string& store, const std::string& load, int stored, int loaded,
                            const std::string& lane) {
  std::string text = R"(
.extern .shared .align 16 .b8 smem[];
.visible .entry k(.param .u64 p_out) {
  .reg .b32 %s<128>, %l<128>;
  .reg .u32 %t, %me, %warp, %x, %q;
  .reg .u64 %out, %wide;
  .reg .pred %p;
  ld.param.u64 %out, [p_out];
  mov.u32 %me, %tid.x;
  shr.u32 %warp, %me, 5;
  setp.ne.u32 %p, %warp, 0;
  @%p bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem], 512;
ALLOCATED:
  bar.sync 0;
  ld.shared.u32 %t, [smem];
  shl.b32 %q, %warp, 21;
  add.u32 %q, %q, %t;
  add.u32 %q, %q, )" +
                     lane + ";\n  shl.b32 %x, %me, 8;\n";
  for (int i = 0; i < stored; ++i)
    text += "  add.u32 %s" + std::to_string(i) + ", %x, " + std::to_string(i) + ";\n  mul.lo.u32 %s" +
            std::to_string(i) + ", %s" + std::to_string(i) + ", " + std::to_string(kScatter) + ";\n";
  const auto vector = [](const char* prefix, int n) {
    return n == 1 ? std::string(prefix) + "0" : vector_of(prefix, n);
  };
  const std::string half = ", 256";
  text += "  tcgen05.st.sync.aligned." + store + ".b32 [%q]" + (store.starts_with("16x32bx2") ? half : "") + ", " +
          vector("%s", stored) + ";\n  tcgen05.wait::st.sync.aligned;\n";
  text += "  tcgen05.ld.sync.aligned." + load + ".b32 " + vector("%l", loaded) + ", [%q]" +
          (load.starts_with("16x32bx2") ? half : "") + ";\n  tcgen05.wait::ld.sync.aligned;\n";
  text += "  mul.wide.u32 %wide, %me, " + std::to_string(4 * loaded) + ";\n  add.u64 %out, %out, %wide;\n";
  for (int i = 0; i < loaded; ++i)
    text += "  st.global.u32 [%out+" + std::to_string(4 * i) + "], %l" + std::to_string(i) + ";\n";
  return text + R"(  bar.sync 0;
  @%p bra DONE;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 512;
DONE:
  ret;
})";
}

struct TransferShape {
  const char* name;
  int registers;  // of .x1
  // lane and column of register i of thread t, figures 183 to 187 (as CUTLASS's copy traits have them)
  std::function<std::pair<int, int>(int i, int t)> at;
};
const std::vector<TransferShape>& transfer_shapes() {
  static const std::vector<TransferShape> shapes = {
      {"32x32b", 1,
       [](int i, int t) {
         return std::pair{t, i};
       }},
      {"16x64b", 1,
       [](int i, int t) {
         return std::pair{t / 4 + (t % 2) * 8, 2 * i + t / 2 % 2};
       }},
      {"16x128b", 2,
       [](int i, int t) {
         return std::pair{t / 4 + i % 2 * 8, i / 2 * 4 + t % 4};
       }},
      {"16x256b", 4,
       [](int i, int t) {
         return std::pair{t / 4 + i / 2 % 2 * 8, i / 4 * 8 + t % 4 * 2 + i % 2};
       }},
      {"16x32bx2", 1,
       [](int i, int t) {
         return std::pair{t % 16, i + t / 16 * 256};
       }},
  };
  return shapes;
}

TEST(Tcgen05Transfer, EveryShapeAndRepetition) {
  for (const TransferShape& shape : transfer_shapes()) {
    const bool half = std::string(shape.name) != "32x32b";
    for (int times = 1; times * shape.registers <= 128; times *= 2) {
      for (int packed = 0; packed < 4; ++packed) {  // bit 0: unpack in the store, bit 1: pack in the load
        for (const int lane : {0, 16}) {
          if (lane != 0 && !half) continue;
          const int registers = times * shape.registers;
          const std::string repeat = std::string(shape.name) + ".x" + std::to_string(times);
          sim::GlobalMemory memory;
          Buffer<uint32_t> out(memory, static_cast<size_t>(128 * registers), 0u);
          Params params;
          params.add(out.address());
          Shape launch;
          launch.arch = 100;
          launch.block = {128, 1, 1};
          launch.dynamic_shared = 16;
          launch.order = all_orders()[below(4)];
          run_ptx(
              transfer_kernel(repeat + (packed & 1 ? ".unpack::16b" : ""), repeat + (packed & 2 ? ".pack::16b" : ""),
                              registers, registers, std::to_string(lane << 16)),
              "k", params, memory, launch);
          // Tensor memory as the definition says it is after the store.
          std::map<std::pair<int, int>, uint32_t> cells;
          int wrong = 0;
          for (int t = 0; t < 128; ++t) {
            for (int i = 0; i < registers; ++i) {
              const uint32_t value = (static_cast<uint32_t>(i) + (static_cast<uint32_t>(t) << 8)) * kScatter;
              const auto [row, column] = shape.at(i, t % 32);
              const int base = column >= 256 ? 256 : 0, c = column - base;
              if (packed & 1) {
                cells[{t / 32 * 32 + row, base + 2 * c}] = value & 0xffff;
                cells[{t / 32 * 32 + row, base + 2 * c + 1}] = value >> 16;
              } else {
                cells[{t / 32 * 32 + row, column}] = value;
              }
            }
          }
          const auto cell = [&](int row, int column) {
            const auto found = cells.find({row, column});
            return found == cells.end() ? ~0u : found->second;  // nobody wrote it
          };
          for (int t = 0; t < 128; ++t) {
            for (int i = 0; i < registers; ++i) {
              const auto [row, column] = shape.at(i, t % 32);
              const int base = column >= 256 ? 256 : 0, c = column - base;
              const int r = t / 32 * 32 + row;
              const uint32_t want =
                  packed & 2 ? (cell(r, base + 2 * c) & 0xffff) | cell(r, base + 2 * c + 1) << 16 : cell(r, column);
              wrong += out[static_cast<size_t>(t * registers + i)] != want;
            }
          }
          EXPECT_EQ(wrong, 0) << repeat << " packed " << packed;
        }
      }
    }
  }
}

// A store of each shape is read back lane by lane.
TEST(Tcgen05Transfer, ShapesLieWhereTheyShould) {
  for (const TransferShape& shape : transfer_shapes()) {
    const std::string store = std::string(shape.name) + ".x4";
    const int registers = 4 * shape.registers;
    sim::GlobalMemory memory;
    Buffer<uint32_t> out(memory, size_t{128 * 128}, 0u);
    Params params;
    params.add(out.address());
    Shape launch;
    launch.arch = 100;
    launch.block = {128, 1, 1};
    launch.dynamic_shared = 16;
    std::string text = transfer_kernel(store, "32x32b.x128", registers, 128, "0");
    if (std::string(shape.name) == "16x32bx2") {
      for (size_t at = text.find(", 256,"); at != std::string::npos; at = text.find(", 256,", at + 1))
        text.replace(at, 6, ", 64,");
    }
    run_ptx(text, "k", params, memory, launch);
    std::vector<uint32_t> want(128 * 128, ~0u);
    for (int t = 0; t < 128; ++t) {
      for (int i = 0; i < registers; ++i) {
        auto [row, column] = shape.at(i, t % 32);
        if (column >= 256) column -= 192;
        want[static_cast<size_t>((t / 32 * 32 + row) * 128 + column)] =
            (static_cast<uint32_t>(i) + (static_cast<uint32_t>(t) << 8)) * kScatter;
      }
    }
    EXPECT_EQ(out.values(), want) << shape.name;
  }
}

// ---- allocation and hazards -----------------------------------------------------------------------

// A kernel of 4 warps (or more) in which every warp runs `body`. Registers: %t tensor memory (once read), %q the warp's
// quarter of it, %warp, %me, %lane, %bar0 and %bar1 (mbarriers for one arrival), %sa and %sb (descriptors of 8 KB each
// of ones in shared memory), %idesc (128x64 f16), %w<8>, %d<8>, %p<8>. %pw0: not warp 0; %pe0: not lane 0 of warp 0.
std::string kernel(const std::string& body) {
  return R"(
.extern .shared .align 1024 .b8 smem[];
.visible .entry k(.param .u64 p_out) {
  .reg .b32 %w<64>, %v<64>;
  .reg .u32 %t, %q, %me, %warp, %lane, %bar0, %bar1, %idesc, %s, %rank, %parity;
  .reg .u64 %sa, %sb, %out, %wide;
  .reg .pred %p<8>, %pw0, %pw1, %pe0, %pe1;
  .reg .b16 %h;
  ld.param.u64 %out, [p_out];
  mov.u32 %me, %tid.x;
  shr.u32 %warp, %me, 5;
  and.b32 %lane, %me, 31;
  mov.u32 %rank, %cluster_ctarank;
  mov.u32 %s, smem;
  add.u32 %bar0, %s, 16;
  add.u32 %bar1, %s, 24;
  setp.ne.u32 %pw0, %warp, 0;
  setp.ne.u32 %pw1, %warp, 1;
  setp.ne.u32 %pe0, %me, 0;
  setp.ne.u32 %pe1, %me, 32;
  mov.u32 %idesc, )" +
         std::to_string(idesc_f16(128, 64)) + R"(;
  mov.u64 %sa, 0x4000404000000040;
  mov.u64 %sb, 0x4000404000000240;
  mov.u32 %w0, %me;
ONES:
  shl.b32 %w1, %w0, 2;
  add.u32 %w1, %w1, %s;
  mov.u32 %w2, 0x3f803f80;
  st.shared.u32 [%w1+1024], %w2;
  add.u32 %w0, %w0, %ntid.x;
  setp.lt.u32 %p0, %w0, 4096;
  @%p0 bra ONES;
  @%pe0 bra READY;
  mbarrier.init.shared::cta.b64 [%bar0], 1;
  mbarrier.init.shared::cta.b64 [%bar1], 1;
READY:
  fence.proxy.async.shared::cta;
  bar.sync 0;
)" + body +
         "\n  ret;\n}\n";
}

const char* const kAlloc = R"(
  @%pw0 bra ALLOCATED;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem], 128;
ALLOCATED:
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  ld.shared.u32 %t, [smem];
  shl.b32 %q, %warp, 21;
  add.u32 %q, %q, %t;
)";
const char* const kFree = R"(
  bar.sync 0;
  @%pw0 bra FREED;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 128;
FREED:
)";
const char* const kMma = R"(
  @%pe0 bra MULTIPLIED;
  setp.ne.u32 %p0, %me, %me;
  tcgen05.mma.cta_group::1.kind::f16 [%t], %sa, %sb, %idesc, %p0;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar0];
MULTIPLIED:
  bar.sync 0;
)";
const char* const kWaitMma = R"(
WAIT0:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%bar0], 0;
  @!%p1 bra WAIT0;
)";
const char* const kWaitMma2 = R"(
WAIT2:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%bar0], 0;
  @!%p1 bra WAIT2;
)";
const char* const kAfter = "  tcgen05.fence::after_thread_sync;\n";
const char* const kBefore = "  tcgen05.fence::before_thread_sync;\n";
const char* const kLoad = "  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%w4}, [%q];\n";
const char* const kStore = "  tcgen05.st.sync.aligned.32x32b.x1.b32 [%q], {%w5};\n";
const char* const kWaitLoad = "  tcgen05.wait::ld.sync.aligned;\n";
const char* const kWaitStore = "  tcgen05.wait::st.sync.aligned;\n";
const char* const kUse =
    "  mul.wide.u32 %wide, %me, 4;\n  add.u64 %wide, %out, %wide;\n  st.global.u32 [%wide], %w4;\n";

std::string fault_in(const std::string& body, sim::Order order, Hazard* kind, uint32_t blocks = 1,
                     uint32_t threads = 128) {
  sim::GlobalMemory memory;
  Buffer<uint32_t> out(memory, size_t{1024}, 0u);
  Params params;
  params.add(out.address());
  Shape shape;
  shape.arch = 100;
  shape.block = {threads, 1, 1};
  shape.grid = shape.cluster = {blocks, 1, 1};
  shape.dynamic_shared = 1024 + 48 * 1024;
  shape.order = order;
  return fault_of(kernel(body), "k", params, memory, shape, kind);
}

// In all orders the same hazard, in words that hold `text`: one of several, with '|' between them, where either side of
// a race may come first.
void expect_fault(const std::string& body, Hazard kind, const std::string& text, uint32_t blocks = 1,
                  uint32_t threads = 128) {
  for (const sim::Order order : all_orders()) {
    Hazard got{};
    const std::string what = fault_in(body, order, &got, blocks, threads);
    bool found = false;
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find('|', at), text.size());
      found = found || what.find(text.substr(at, end - at)) != std::string::npos;
      at = end + 1;
    }
    EXPECT_TRUE(found && got == kind) << "order " << static_cast<int>(order.mode) << ": '" << what << "', not " << text;
  }
}
void expect_clean(const std::string& body, uint32_t blocks = 1, uint32_t threads = 128) {
  for (const sim::Order order : all_orders()) EXPECT_EQ(fault_in(body, order, nullptr, blocks, threads), "");
}

// The fences of 9.7.16.11 are asked for beside synchronisations that release and acquire, too.
struct Strict {
  Strict() { setenv("MOXIE_SIM_TCGEN05_FENCES", "strict", 1); }
  ~Strict() { unsetenv("MOXIE_SIM_TCGEN05_FENCES"); }
};

// Pieces of a kernel, some left out.
std::string join(std::initializer_list<const char*> pieces) {
  std::string text;
  for (const char* piece : pieces) text += piece;
  return text;
}

TEST(Tcgen05Hazards, AccumulatorInFlight) {
  expect_clean(join({kAlloc, kMma, kWaitMma, kAfter, kLoad, kWaitLoad, kUse, kFree}));
  expect_fault(join({kAlloc, kMma, kAfter, kLoad, kWaitLoad, kUse, kFree}), Hazard::DataInFlight,
               "no tcgen05.commit that covers it has been waited for|may still read it");
  std::string relaxed = kWaitMma;
  relaxed.replace(relaxed.find(".shared::cta"), 12, ".relaxed.cluster.shared::cta");
  const char* const relaxed_wait = relaxed.c_str();
  expect_clean(join({kAlloc, kMma, relaxed_wait, kAfter, kLoad, kWaitLoad, kUse, kWaitMma2, kFree}));
  expect_fault(join({kAlloc, kMma, relaxed_wait, kLoad, kWaitLoad, kUse, kWaitMma2, kFree}), Hazard::DataInFlight,
               "no tcgen05.fence::after_thread_sync");
  const std::string acquired = join({kAlloc, kMma, kWaitMma, kLoad, kWaitLoad, kUse, kFree});
  expect_clean(acquired);
  const Strict strict;
  expect_fault(acquired, Hazard::DataInFlight, "no tcgen05.fence::after_thread_sync");
  expect_fault(join({kAlloc, kMma, kFree}), Hazard::DataInFlight, "no tcgen05.commit that covers it");
}

TEST(Tcgen05Hazards, CommitOfAnotherThread) {
  const std::string body = join({kAlloc, kMma, kWaitMma, kAfter, kLoad, kWaitLoad, kUse, kFree});
  std::string bent = body;
  const std::string commit_text = "  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar0];\n";
  bent.erase(bent.find(commit_text), commit_text.size());
  bent.insert(bent.find("WAIT0"), "  @%pe1 bra OTHER;\n" + commit_text + "OTHER:\n");
  expect_fault(bent, Hazard::DataInFlight, "no tcgen05.commit that covers it has been waited for|may still read it");
}

TEST(Tcgen05Hazards, RegistersInFlight) {
  expect_fault(join({kAlloc, kMma, kWaitMma, kAfter, kLoad, kUse, kWaitLoad, kFree}), Hazard::RegistersInFlight,
               "no tcgen05.wait::ld has waited for");
}

TEST(Tcgen05Hazards, StoreThenLoadInOneWarp) {
  expect_clean(join({kAlloc, kStore, kWaitStore, kLoad, kWaitLoad, kUse, kStore, kWaitStore, kFree}));
  expect_fault(join({kAlloc, kStore, kLoad, kWaitLoad, kUse, kFree}), Hazard::DataInFlight,
               "no tcgen05.wait::st has waited");
  expect_fault(join({kAlloc, kStore, kWaitStore, kLoad, kStore, kWaitStore, kWaitLoad, kFree}), Hazard::DataInFlight,
               "no tcgen05.wait::ld has waited");
  expect_fault(join({kAlloc, kStore, kFree}), Hazard::DataInFlight, "no tcgen05.wait::st has waited");
}

TEST(Tcgen05Hazards, LoadsBeforeTheNextMma) {
  const char* const sync = "  bar.sync 0;\n";
  const auto text = [&](std::initializer_list<const char*> middle) {
    std::string second = kMma;
    second.replace(second.find("[%bar0]"), 7, "[%bar1]");
    for (size_t at = second.find("MULTIPLIED"); at != std::string::npos; at = second.find("MULTIPLIED", at + 12))
      second.replace(at, 10, "MULTIPLIED2");
    std::string wait = kWaitMma;
    for (size_t at = wait.find("WAIT0"); at != std::string::npos; at = wait.find("WAIT0", at + 5))
      wait.replace(at, 5, "WAIT1");
    wait.replace(wait.find("[%bar0]"), 7, "[%bar1]");
    return join({kAlloc, kMma, kWaitMma, kAfter, kLoad}) + join(middle) + second + wait + kAfter + kFree;
  };
  expect_clean(text({kWaitLoad, kUse, kBefore, sync, kAfter}));
  expect_fault(text({kBefore, sync, kAfter}), Hazard::DataInFlight, "no tcgen05.wait::ld has waited for it");
  expect_clean(text({kWaitLoad, kUse, sync}));
  const Strict strict;
  expect_clean(text({kWaitLoad, kUse, kBefore, sync, kAfter}));
  expect_fault(text({kWaitLoad, kUse, sync, kAfter}), Hazard::DataInFlight, "no tcgen05.fence::before_thread_sync");
  expect_fault(text({kWaitLoad, kUse, kBefore, sync}), Hazard::DataInFlight, "no tcgen05.fence::after_thread_sync");
}

// Loads of warp 1, then a relaxed arrival, a relaxed wait and an mma of warp 0.
TEST(Tcgen05Hazards, LoadsBeforeAnMmaWithRelaxedSynchronisation) {
  const auto text = [&](const char* before, const char* after) {
    std::string mma = kMma;
    mma.insert(mma.find("  setp"), std::string(R"(
WAIT1:
  mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p1, [%bar1], 0;
  @!%p1 bra WAIT1;
)") + after);
    return std::string(kAlloc) + "  @%pw1 bra LOADED;\n" + kStore + kWaitStore + kLoad + kWaitLoad + kUse + before + R"(
  bar.warp.sync -1;
  @%pe1 bra LOADED;
  mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%bar1];
LOADED:
)" + mma + kWaitMma +
           kAfter + kFree;
  };
  expect_clean(text(kBefore, kAfter));
  expect_fault(text("", kAfter), Hazard::DataInFlight, "no tcgen05.fence::before_thread_sync");
  expect_fault(text(kBefore, ""), Hazard::DataInFlight, "no tcgen05.fence::after_thread_sync");
}

TEST(Tcgen05Hazards, PipeOfTwoWarps) {
  const char* const first = R"(
  @%pe0 bra COPIED;
  tcgen05.cp.cta_group::1.128x256b [%t], %sa;
)";
  const char* const label = "COPIED:\n";
  const char* const sync = "  bar.sync 0;\n";
  const char* const second = R"(
  @%pe1 bra SHIFTED;
  tcgen05.shift.cta_group::1.down [%t];
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar0];
SHIFTED:
)";
  const char* const commit_first = R"(
  @%pe0 bra COMMITTED;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar1];
COMMITTED:
WAIT1:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%bar1], 0;
  @!%p1 bra WAIT1;
)";
  expect_clean(join({kAlloc, first, kBefore, label, sync, kAfter, second, commit_first, kWaitMma, kFree}));
  expect_fault(join({kAlloc, first, label, sync, kAfter, second, commit_first, kWaitMma, kFree}), Hazard::DataInFlight,
               "no tcgen05.fence::before_thread_sync");
  expect_fault(join({kAlloc, first, kBefore, label, sync, second, commit_first, kWaitMma, kFree}), Hazard::DataInFlight,
               "no tcgen05.fence::after_thread_sync");
}

TEST(Tcgen05Hazards, SharedMemoryOfAnMma) {
  const char* const write = "  st.shared.u32 [%bar0+1008], %me;\n";
  expect_clean(join({kAlloc, kMma, kWaitMma, write, kFree}));
  expect_fault(join({kAlloc, kMma, write, kWaitMma, kFree}), Hazard::DataInFlight,
               "still being read|without being ordered after its write");
  const char* const before = "  @%pe0 bra W;\n  st.shared.u32 [%bar0+1008], %me;\nW:\n  bar.sync 0;\n";
  const char* const mended =
      "  @%pe0 bra W;\n  st.shared.u32 [%bar0+1008], %me;\n  fence.proxy.async.shared::cta;\nW:\n  bar.sync 0;\n";
  expect_clean(join({kAlloc, mended, kMma, kWaitMma, kFree}));
  expect_fault(join({kAlloc, before, kMma, kWaitMma, kFree}), Hazard::MissingProxyFence, "no fence.proxy.async");
}

TEST(Tcgen05Hazards, NobodyWaits) {
  std::string body = join({kAlloc, kMma});
  expect_fault(body, Hazard::DataInFlight, "no thread waited for a tcgen05.commit");
  expect_fault(body + kWaitMma, Hazard::TensorMemory, "exits without tcgen05.dealloc of the 128 columns at column 0");
}

TEST(Tcgen05Hazards, Addresses) {
  const auto load_at = [](uint32_t offset) {
    return "  add.u32 %w0, %q, " + std::to_string(offset) +
           ";\n  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%w4}, [%w0];\n";
  };
  expect_fault(kAlloc + load_at(128) + kWaitLoad + kFree, Hazard::TensorMemory,
               "column 128 of tensor memory, which is not allocated");
  expect_fault(kAlloc + load_at(600) + kWaitLoad + kFree, Hazard::TensorMemory, "column 600");
  expect_fault(kAlloc + load_at(32 << 16) + kWaitLoad + kFree, Hazard::TensorMemory,
               "at lane 32: warp 0 has lanes 0 to 31|has lanes");
  expect_fault(kAlloc + load_at(8 << 16) + kWaitLoad + kFree, Hazard::TensorMemory, "at lane 8|has lanes");
  expect_fault(std::string("  mov.u32 %q, 0;\n") + kLoad, Hazard::TensorMemory, "not allocated|has lanes");
  std::string mma = kMma;
  mma.replace(mma.find("[%t]"), 4, "[%t+96]");
  expect_fault(kAlloc + mma + kWaitMma + kFree, Hazard::TensorMemory, "column 128");
  mma.replace(mma.find("[%t+96]"), 7, "[%t+1048576]");
  expect_fault(kAlloc + mma + kWaitMma + kFree, Hazard::TensorMemory, "must begin at lane 0");
  // Without the barrier a warp may run ahead of the allocation that it has not seen.
  std::string early = kAlloc;
  early.erase(early.find("  bar.sync 0;\n"), 14);
  early.replace(early.find("  ld.shared.u32 %t, [smem];"), 27, "  mov.u32 %t, 0;");
  expect_fault(early + kStore + kWaitStore + kFree, Hazard::TensorMemory, "column 0 of tensor memory");
}

TEST(Tcgen05Alloc, SizesAndOrder) {
  const auto alloc = [](int columns, int slot = 0) {
    return "  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem+" + std::to_string(4 * slot) + "], " +
           std::to_string(columns) + ";\n";
  };
  const auto free = [](int columns, int column) {
    return "  mov.u32 %t, " + std::to_string(column) + ";\n  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, " +
           std::to_string(columns) + ";\n";
  };
  const std::string one = "  @%pw0 bra END;\n", end = "END:\n";
  const std::string give_up = "  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n";
  expect_clean(one + alloc(256) + alloc(128, 1) + alloc(32, 2) + free(128, 256) + free(256, 0) + alloc(32, 1) +
               free(32, 0) + free(32, 384) + give_up + end);
  for (const int columns : {0, 16, 48, 96, 513, 1024})
    expect_fault(one + alloc(columns) + end, Hazard::TensorMemory, "must be a power of two from 32 to 512");
  expect_fault(one + alloc(32) + alloc(64) + end, Hazard::TensorMemory, "must not increase");
  expect_fault(one + give_up + alloc(32) + end, Hazard::TensorMemory, "after tcgen05.relinquish_alloc_permit");
  expect_fault(one + alloc(64) + free(32, 0) + end, Hazard::TensorMemory, "which is no such allocation");
  expect_fault(one + alloc(64) + free(64, 32) + end, Hazard::TensorMemory, "which is no such allocation");
  expect_fault(one + alloc(64) + free(64, 0) + free(64, 0) + end, Hazard::TensorMemory, "which is no such allocation");
  expect_fault(one + alloc(64) + alloc(32, 1) + free(64, 0) + end, Hazard::TensorMemory,
               "without tcgen05.dealloc of the 32 columns at column 64");
  expect_fault(one + alloc(512) + alloc(512) + end, Hazard::Deadlock,
               "tcgen05.alloc of 512 columns, which are not free");
  expect_fault(one + alloc(32) + "  tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\n" + end,
               Hazard::IllegalUse, "both .cta_group::1 and .cta_group::2");
}

// A second warp's allocation waits until the first gives its columns back.
TEST(Tcgen05Alloc, BlocksUntilColumnsAreFree) {
  expect_clean(R"(
  @%pw0 bra OTHER;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem], 512;
  bar.sync 1, 64;
  ld.shared.u32 %t, [smem];
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%t], {%w4};
  tcgen05.wait::st.sync.aligned;
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 512;
OTHER:
  @%pw1 bra END;
  bar.sync 1, 64;
  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem+4], 256;
  ld.shared.u32 %t, [smem+4];
  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, 256;
END:
)");
}

TEST(Tcgen05Alloc, PairsOfBlocks) {
  const std::string alloc = R"(
  @%pw0 bra END;
  tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [smem], 128;
  ld.shared.u32 %t, [smem];
  tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
)";
  const std::string free = "  tcgen05.dealloc.cta_group::2.sync.aligned.b32 %t, 128;\n";
  expect_clean(alloc + free + "END:\n", 2);
  expect_fault(alloc + "END:\n", Hazard::TensorMemory, "without tcgen05.dealloc", 2);
  expect_fault(alloc + free + "END:\n", Hazard::IllegalUse, "has no peer", 1);
  // Table 48: whether a dealloc blocks is not said, so this may hang.
  const std::string hang = alloc + R"(
  setp.eq.u32 %p0, %rank, 0;
  @%p0 barrier.cluster.arrive;
  @%p0 barrier.cluster.wait;
)" + free + R"(
  @!%p0 barrier.cluster.arrive;
  @!%p0 barrier.cluster.wait;
END:
)";
  Hazard kind{};
  const std::string one_warp = fault_in(hang, {Mode::Lazy, 0}, &kind, 2, 32);
  EXPECT_EQ(kind, Hazard::Deadlock) << one_warp;
  EXPECT_EQ(fault_in(hang, {Mode::Eager, 0}, nullptr, 2, 32), "");
}

TEST(Tcgen05Mma, BadDescriptors) {
  const auto with = [&](const std::string& change) {
    std::string mma = kMma;
    mma.insert(mma.find("  setp"), change);
    return kAlloc + mma + kWaitMma + kFree;
  };
  const auto idesc = [&](uint32_t flip) { return with("  xor.b32 %idesc, %idesc, " + std::to_string(flip) + ";\n"); };
  const auto shared = [&](uint64_t flip) { return with("  xor.b64 %sb, %sb, " + std::to_string(flip) + ";\n"); };
  expect_clean(with(""));
  expect_fault(idesc(4), Hazard::IllegalUse, "sparse");
  expect_fault(idesc(8), Hazard::IllegalUse, "saturation");
  expect_fault(idesc(0x40), Hazard::IllegalUse, "reserved");
  expect_fault(idesc(1u << 4 | 1u << 5), Hazard::IllegalUse, "matrix D type 2");
  expect_fault(idesc(1u << 8), Hazard::IllegalUse, "matrix A type 3");
  expect_fault(idesc(1u << 10), Hazard::IllegalUse, "one type");
  expect_fault(idesc(1u << 22 | 1u << 17), Hazard::IllegalUse, "shape 128x328x16");
  expect_fault(idesc(1u << 24), Hazard::IllegalUse, "shape 144x64x16");
  expect_fault(idesc(1u << 30), Hazard::IllegalUse, ".ws");
  expect_fault(shared(1ull << 46), Hazard::IllegalUse, "0b001");
  expect_fault(shared(1ull << 52), Hazard::IllegalUse, "sm_103a");
  expect_fault(shared(1ull << 53), Hazard::IllegalUse, "must be 0");
  expect_fault(shared(1ull << 61), Hazard::IllegalUse, "swizzling mode 3");
  expect_fault(shared(0x2000), Hazard::Memory, "past the end of the block's");
}

TEST(Tcgen05Mma, ScaleFactorsMustBeInEveryQuarter) {
  std::string body = kAlloc;
  body += R"(
  mov.u32 %w0, 0x7f7f7f7f;
  mov.u32 %w1, 0;
FILL:
  add.u32 %w2, %q, %w1;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%w2], {%w0};
  add.u32 %w1, %w1, 1;
  setp.lt.u32 %p0, %w1, 128;
  @%p0 bra FILL;
  tcgen05.wait::st.sync.aligned;
CHANGE
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
)";
  std::string mma = kMma;
  mma.replace(mma.find("kind::f16"), 9, "kind::mxf4.block_scale");
  mma.replace(mma.find("%idesc, %p0"), 11, "%idesc, [%t+64], [%t+80], %p0");
  // 128x64, e2m1, ue8m0
  mma.insert(mma.find("  setp"),
             "  mov.u32 %idesc, " + std::to_string(1u << 7 | 1u << 10 | 8u << 17 | 1u << 23 | 1u << 27) + ";\n");
  body += mma + kWaitMma + kAfter + kFree;
  const auto with = [&](const std::string& change) {
    std::string text = body;
    return text.replace(text.find("CHANGE"), 6, change);
  };
  expect_clean(with(""));
  const std::string bend = R"(
  setp.ne.u32 %p1, %warp, 2;
  mov.u32 %w0, 0x7f7e7f7f;
  @%p1 bra SAME;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%q+COLUMN], {%w0};
  tcgen05.wait::st.sync.aligned;
SAME:
)";
  const auto at = [&](int column, const char* value) {
    std::string text = bend;
    text.replace(text.find("COLUMN"), 6, std::to_string(column));
    text.replace(text.find("0x7f7e7f7f"), 10, value);
    return with(text);
  };
  expect_clean(at(64, "0x7f7e7f7f"));  // bytes 2 and 3 are not used with id 0
  expect_fault(at(64, "0x7f7f7e7f"), Hazard::TensorMemory, "the scale factors of matrix A");
  expect_fault(at(67, "0x7f7f7e7f"), Hazard::TensorMemory, "the scale factors of matrix A");
  expect_fault(at(81, "0x7f7f7e7f"), Hazard::TensorMemory, "the scale factors of matrix B");
}

TEST(Tcgen05, FormsThatAreNotSupportedSaySo) {
  const auto why = [](const std::string& instruction) {
    try {
      prepare_ptx(kernel(instruction), "k", 100);
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(why("  tcgen05.mma.sp.cta_group::1.kind::f16 [%t], %sa, %sb, [%t], %idesc, %p0;\n").find("sparse"),
            std::string::npos);
  EXPECT_NE(why("  tcgen05.ld.red.sync.aligned.32x32b.x2.max.u32 {%w0, %w1}, %w2, [%t];\n").find("sm_101a"),
            std::string::npos);
  EXPECT_NE(why("  tcgen05.mma.cta_group::1.kind::f17 [%t], %sa, %sb, %idesc, %p0;\n").find(".kind"),
            std::string::npos);
  EXPECT_NE(why("  tcgen05.cp.cta_group::1.64x128b [%t], %sa;\n").find("do not fit"), std::string::npos);
  EXPECT_NE(why("  tcgen05.ld.sync.aligned.16x256b.x64.b32 {%w0}, [%t];\n").find("table 49"), std::string::npos);
  EXPECT_NE(why("  tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale [%t], %sa, %sb, %idesc, [%t], [%t], %p0;\n")
                .find("scale vector size is missing"),
            std::string::npos);
  EXPECT_EQ(why("  tcgen05.mma.cta_group::1.kind::f16 [%t], %sa, %sb, %idesc, 0;\n"), "");
}

// The product's paths for different hosts give the same bits.
TEST(Tcgen05Product, SameBitsOnEveryPath) {
  for (const int columns : {4, 8, 60, 64, 68, 128, 136, 256}) {
    for (const int rows : {1, 5, 6, 13, 128}) {
      constexpr int kDepth = 24;
      const auto random = [](size_t n) {
        std::vector<float> v(n);
        for (float& x : v) x = static_cast<float>(static_cast<int>(below(20001)) - 10000) / 7.0f;
        return v;
      };
      const auto area = static_cast<size_t>(rows) * static_cast<size_t>(columns);
      const auto a = random(static_cast<size_t>(rows * kDepth)), b = random(static_cast<size_t>(columns * kDepth));
      const auto start = random(area);
      for (const bool fresh : {false, true}) {
        std::vector<float> want = start;
        for (int r = 0; r < rows; ++r) {
          for (int j = 0; j < columns; ++j) {
            float& sum = want[static_cast<size_t>(r * columns + j)];
            if (fresh) sum = 0;
            for (int k = 0; k < kDepth; ++k)
              sum = std::fma(a[static_cast<size_t>(r * kDepth + k)], b[static_cast<size_t>(k * columns + j)], sum);
          }
        }
        for (const auto path : {sim::ProductPath::Portable, sim::ProductPath::Avx2, sim::ProductPath::Avx512}) {
          std::vector<float> got = start;
          std::vector<float*> at;
          for (int r = 0; r < rows; ++r) at.push_back(got.data() + r * columns);
          if (sim::multiply_rows_by(path, at.data(), rows, columns, a.data(), b.data(), columns, kDepth, fresh)) {
            EXPECT_EQ(got, want) << static_cast<int>(path) << " " << rows << "x" << columns;
          }
        }
      }
    }
  }
}

TEST(Tcgen05Commit, Barriers) {
  const auto with = [](const char* instruction) {
    std::string text = kMma;
    const size_t at = text.find("  tcgen05.commit"), end = text.find('\n', at);
    return kAlloc + text.replace(at, end - at, instruction) + kWaitMma + kFree;
  };
  expect_clean(
      with("  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%bar0], 1;"));
  expect_fault(
      with("  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%bar0], 3;"),
      Hazard::IllegalUse, "names block rank 1");
  expect_fault(with("  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar0+16];"),
               Hazard::MbarrierMisuse, "is not initialised");
  expect_fault(with("  tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.b64 [%bar0];"),
               Hazard::IllegalUse, "both .cta_group::1 and .cta_group::2");
  expect_fault(with(""), Hazard::Deadlock, "mbarrier at shared offset 0x10");
  // Generic addresses, and a second arrival that nobody expects.
  expect_clean(
      with("  cvt.u64.u32 %wide, %bar0;\n  cvta.shared.u64 %wide, %wide;\n"
           "  tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%wide];"));
}

// The barrier at the same offset in each block of the mask, and in no other.
TEST(Tcgen05Commit, ReachesTheBlocksOfTheMask) {
  for (const uint32_t mask : {1u, 2u, 3u}) {
    const std::string body = std::string(kAlloc) + R"(
  barrier.cluster.arrive;
  barrier.cluster.wait;
  setp.ne.u32 %p2, %rank, 0;
  @%p2 bra SENT;
  @%pe0 bra SENT;
  setp.ne.u32 %p0, %me, %me;
  tcgen05.mma.cta_group::1.kind::f16 [%t], %sa, %sb, %idesc, %p0;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%bar0], )" +
                             std::to_string(mask) + R"(;
SENT:
  bar.sync 0;
  mov.u32 %w0, )" + std::to_string(mask) +
                             R"(;
  shr.u32 %w0, %w0, %rank;
  and.b32 %w0, %w0, 1;
  setp.eq.u32 %p3, %w0, 0;
  @%p3 bra ARRIVED;
)" + kWaitMma + R"(
ARRIVED:
  barrier.cluster.arrive;
  barrier.cluster.wait;
  mbarrier.test_wait.parity.shared::cta.b64 %p1, [%bar0], 0;
  selp.u32 %w4, 1, 0, %p1;
  mad.lo.u32 %w0, %rank, 128, %me;
  mul.wide.u32 %wide, %w0, 4;
  add.u64 %wide, %out, %wide;
  st.global.u32 [%wide], %w4;
)" + kFree;
    for (const sim::Order order : all_orders()) {
      sim::GlobalMemory memory;
      Buffer<uint32_t> out(memory, size_t{256}, 7u);
      Shape shape;
      shape.arch = 100;
      shape.block = {128, 1, 1};
      shape.grid = shape.cluster = {2, 1, 1};
      shape.dynamic_shared = 1024 + 48 * 1024;
      shape.order = order;
      run_ptx(kernel(body), "k", Params().add(out.address()), memory, shape);
      for (uint32_t i = 0; i < 256; ++i) EXPECT_EQ(out[i], mask >> i / 128 & 1) << "mask " << mask << " thread " << i;
    }
  }
}

// The block of a pair that multiplies may be either; an operation on a pair needs both.
TEST(Tcgen05Hazards, PairOfWhichOneHasLeft) {
  const std::string body = R"(
  @%pw0 bra ALLOCATED;
  tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [smem], 64;
  ld.shared.u32 %t, [smem];
ALLOCATED:
  barrier.cluster.arrive;
  barrier.cluster.wait;
  setp.eq.u32 %p0, %rank, 1;
  @%p0 bra END;
  @%pe0 bra END;
LONG:
  ld.shared.u32 %t, [smem];
  add.u32 %w7, %w7, 1;
  setp.lt.u32 %p1, %w7, 20000;
  @%p1 bra LONG;
  tcgen05.shift.cta_group::2.down [%t];
  tcgen05.cp.cta_group::2.128x128b [%t], %sa;
END:
)";
  std::string zeroed = "  mov.u32 %w7, 0;\n" + body;
  expect_fault(zeroed, Hazard::IllegalUse, "of which one block has finished", 2);
}

}  // namespace
