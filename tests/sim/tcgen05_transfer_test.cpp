// SPDX-License-Identifier: Apache-2.0
// tcgen05.ld and tcgen05.st (PTX ISA 9.7.16.8) of every shape and repetition, against the places that the definition
// gives each register.
#include "tests/sim/tcgen05.h"

namespace {

using namespace sim_test;

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

}  // namespace
