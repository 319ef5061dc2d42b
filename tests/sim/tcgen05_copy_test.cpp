// SPDX-License-Identifier: Apache-2.0
// tcgen05.cp and tcgen05.shift (PTX ISA 9.7.16.9), each form against a direct computation from the definition.
#include <functional>

#include "tests/sim/tcgen05.h"

namespace {

using namespace sim_test;

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

}  // namespace
