// SPDX-License-Identifier: Apache-2.0
// Forms of bulk copies, tensor copies, mbarriers and tensormap.replace (PTX ISA 9.7.9.25.4, .5, 9.7.9.28, 9.7.13.15).
// What they leave in memory is the result.
#include <algorithm>
#include <cstring>

#include "tests/bits/form.h"

namespace bits {
namespace {

std::string number(uint64_t n) { return std::to_string(n); }
uint32_t round_up(uint32_t n, uint32_t unit) { return (n + unit - 1) / unit * unit; }

void random_bytes(Random& random, uint8_t* to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<uint8_t>(random());
}

// ---- pieces of kernels: s is the address of shared memory, bar that of an mbarrier behind the data ----------------

std::string declare(uint32_t data_bytes) {
  return ".reg .b32 s, bar, i, spin, at32, rank, other, q<4>;\n .reg .b64 from, to, state;\n .reg .pred first, more, "
         "done, mine;\n"
         " mov.u32 s, smem;\n add.u32 bar, s, " +
         number(data_bytes) + ";\n setp.eq.u32 first, t, 0;\n";
}
// Rounds of 2048 bytes; `global` is a 64-bit register with the address of the block's first byte.
std::string shared_from(const std::string& label, const std::string& global, uint32_t bytes) {
  return " mad.lo.u32 at32, t, 16, s;\n mad.wide.u32 from, t, 16, " + global + ";\n mul.lo.u32 i, t, 16;\n" + label +
         ":\n setp.lt.u32 more, i, " + number(bytes) +
         ";\n @more ld.global.v4.b32 {q0, q1, q2, q3}, [from];\n @more st.shared.v4.b32 [at32], {q0, q1, q2, q3};\n"
         " add.u32 at32, at32, 2048;\n add.u64 from, from, 2048;\n add.u32 i, i, 2048;\n @more bra " +
         label + ";\n";
}
std::string shared_poisoned(uint32_t bytes) {
  return " mad.lo.u32 at32, t, 16, s;\n mul.lo.u32 i, t, 16;\nPOISON:\n setp.lt.u32 more, i, " + number(bytes) +
         ";\n @more st.shared.v4.b32 [at32], {0x5a5a5a5a, 0x5a5a5a5a, 0x5a5a5a5a, 0x5a5a5a5a};\n"
         " add.u32 at32, at32, 2048;\n add.u32 i, i, 2048;\n @more bra POISON;\n";
}
std::string shared_to(const std::string& global, uint32_t bytes) {
  return " mad.lo.u32 at32, t, 16, s;\n mad.wide.u32 to, t, 16, " + global +
         ";\n mul.lo.u32 i, t, 16;\nSHOW:\n setp.lt.u32 more, i, " + number(bytes) +
         ";\n @more ld.shared.v4.b32 {q0, q1, q2, q3}, [at32];\n @more st.global.v4.b32 [to], {q0, q1, q2, q3};\n"
         " add.u32 at32, at32, 2048;\n add.u64 to, to, 2048;\n add.u32 i, i, 2048;\n @more bra SHOW;\n";
}
const char kBarrier[] =
    " @first mbarrier.init.shared::cta.b64 [bar], 1;\n fence.mbarrier_init.release.cluster;\n"
    " fence.proxy.async.shared::cta;\n bar.sync 0;\n";
// Gives up after a while, so that what does not complete is a difference and no hang.
const char kWait[] =
    " mov.u32 spin, 0;\nWAIT:\n mbarrier.try_wait.parity.shared::cta.b64 done, [bar], 0;\n add.u32 spin, spin, 1;\n"
    " setp.gt.u32 more, spin, 100000;\n or.pred done, done, more;\n @!done bra WAIT;\n";
std::string expect(uint32_t bytes) {
  return " @first mbarrier.arrive.expect_tx.shared::cta.b64 state, [bar], " + number(bytes) + ";\n";
}
// Block 0 of a cluster of two gives the beginning of its shared memory to block 1, where `prepare` left s, which shows
// it. A launch with clusters is needed for such copies, not only for another block's memory.
std::string into_block_1(const std::string& prepare, const std::string& instruction, uint32_t bytes, uint32_t shown) {
  return " mov.u32 t, %tid.x;\n setp.eq.u32 first, t, 0;\n mov.u32 rank, %cluster_ctarank;\n" + prepare + kBarrier +
         " setp.eq.u32 mine, rank, 1;\n and.pred mine, mine, first;\n @mine mbarrier.arrive.expect_tx.shared::cta.b64 "
         "state, [bar], " +
         number(bytes) +
         ";\n barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;\n mapa.shared::cluster.u32 i, s, 1;\n"
         " mapa.shared::cluster.u32 other, bar, 1;\n mov.u32 q0, smem;\n setp.eq.u32 mine, rank, 0;\n"
         " and.pred mine, mine, first;\n @mine " +
         instruction + " [i], [q0], " + number(bytes) + ", [other];\n setp.ne.u32 mine, rank, 1;\n @mine bra LEAVE;\n" +
         kWait + shared_to("out", shown) + "LEAVE:\n barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;\n";
}

Form plain(const std::string& name, uint32_t data_bytes) {
  Form f;
  f.family = "copies";
  f.name = name;
  f.threads = 128;
  f.shared = data_bytes + 64;
  return f;
}

// ---- copies of bytes ---------------------------------------------------------------------------------------------

void add_bulk(Forms& forms) {
  for (uint32_t bytes : {16u, 48u, 1024u, 5008u}) {
    const uint32_t all = round_up(bytes + 32, 2048);
    Form load = plain("cp.async.bulk.shared::cluster.global of " + number(bytes) + " bytes", all);
    load.in_bytes = all;
    load.out_bytes = all;
    load.fill = [all](Random& random, uint8_t* to) { random_bytes(random, to, all); };
    load.body =
        declare(all) + shared_poisoned(all) + kBarrier + expect(bytes) +
        " add.u32 i, s, 16;\n @first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [i], [in], " +
        number(bytes) + ", [bar];\n" + kWait + shared_to("out", all);
    forms.push_back(load);
    Form store = plain("cp.async.bulk.global.shared::cta of " + number(bytes) + " bytes", all);
    store.in_bytes = all;
    store.out_bytes = all;
    store.fill = load.fill;
    store.body = declare(all) + shared_from("FILL", "in", all) +
                 " fence.proxy.async.shared::cta;\n bar.sync 0;\n add.u64 to, out, 16;\n"
                 " @first cp.async.bulk.global.shared::cta.bulk_group [to], [s], " +
                 number(bytes) + ";\n cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;\n";
    forms.push_back(store);
    Form remote = plain("cp.async.bulk.shared::cluster.shared::cta of " + number(bytes) + " bytes", all * 2);
    remote.blocks = remote.cluster = 2;
    remote.in_bytes = all;
    remote.out_bytes = all;
    remote.fill = load.fill;
    remote.body =
        declare(all * 2) +
        into_block_1(shared_from("FILL", "in", all) + " add.u32 s, s, " + number(all) + ";\n" + shared_poisoned(all),
                     "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes", bytes, all);
    forms.push_back(remote);
  }
  for (const char* level : {"", ".read"}) {
    Form f = plain(std::string("cp.async.bulk.wait_group") + level + " 1", 4096);
    f.in_bytes = f.out_bytes = 4096;
    f.fill = [](Random& random, uint8_t* to) { random_bytes(random, to, 4096); };
    f.body = declare(4096) + shared_from("FILL", "in", 4096) +
             " fence.proxy.async.shared::cta;\n bar.sync 0;\n add.u64 to, out, 2048;\n add.u32 i, s, 2048;\n"
             " @first cp.async.bulk.global.shared::cta.bulk_group [out], [s], 2048;\n cp.async.bulk.commit_group;\n"
             " @first cp.async.bulk.global.shared::cta.bulk_group [to], [i], 2048;\n cp.async.bulk.commit_group;\n"
             " cp.async.bulk.wait_group" +
             level + " 1;\n cp.async.bulk.wait_group" + level + " 0;\n";
    forms.push_back(f);
  }
}

struct Reduction {
  const char *op, *type;
  Kind kind;
  bool remote;  // exists in shared::cluster too
};
constexpr Reduction kReductions[] = {
    {"add", "u32", Kind::B32, true},          {"add", "s32", Kind::B32, true},  {"add", "u64", Kind::B64, true},
    {"add", "f32", Kind::F32, false},         {"add", "f64", Kind::F64, false}, {"add.noftz", "f16", Kind::F16, false},
    {"add.noftz", "bf16", Kind::BF16, false}, {"min", "u32", Kind::B32, true},  {"min", "s32", Kind::B32, true},
    {"min", "u64", Kind::B64, false},         {"min", "s64", Kind::B64, false}, {"min", "f16", Kind::F16, false},
    {"min", "bf16", Kind::BF16, false},       {"max", "u32", Kind::B32, true},  {"max", "s32", Kind::B32, true},
    {"max", "u64", Kind::B64, false},         {"max", "s64", Kind::B64, false}, {"max", "f16", Kind::F16, false},
    {"max", "bf16", Kind::BF16, false},       {"inc", "u32", Kind::B32, true},  {"dec", "u32", Kind::B32, true},
    {"and", "b32", Kind::B32, true},          {"or", "b32", Kind::B32, true},   {"xor", "b32", Kind::B32, true},
    {"and", "b64", Kind::B64, false},         {"or", "b64", Kind::B64, false},  {"xor", "b64", Kind::B64, false}};

void fill_values(Kind kind, Random& random, uint8_t* to, size_t bytes) {
  const size_t size = static_cast<size_t>(bytes_of(kind));
  for (size_t i = 0; i < bytes / size; ++i) {
    const uint64_t v = value_of(kind, random, i % 800);  // special values all along
    std::memcpy(to + i * size, &v, size);
  }
}

void add_bulk_reductions(Forms& forms) {
  constexpr uint32_t kBytes = 2048;
  for (const Reduction& r : kReductions) {
    Form f = plain(std::string("cp.reduce.async.bulk.global.shared::cta.bulk_group.") + r.op + "." + r.type, kBytes);
    f.in_bytes = 2 * kBytes;
    f.out_bytes = kBytes;
    f.output_is_filled = true;
    f.result = r.kind;
    f.fill = [kind = r.kind](Random& random, uint8_t* to) { fill_values(kind, random, to, 2 * kBytes); };
    f.body = declare(kBytes) + " .reg .b64 second;\n add.u64 second, in, " + number(kBytes) + ";\n" +
             shared_from("FILL", "second", kBytes) + " fence.proxy.async.shared::cta;\n bar.sync 0;\n @first " +
             f.name + " [out], [s], " + number(kBytes) +
             ";\n cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;\n";
    forms.push_back(f);
    if (!r.remote) continue;
    Form g = plain(std::string("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.") +
                       r.op + "." + r.type,
                   2 * kBytes);
    g.blocks = g.cluster = 2;
    g.in_bytes = 2 * kBytes;
    g.out_bytes = kBytes;
    g.result = r.kind;
    g.fill = f.fill;
    g.body = declare(2 * kBytes) +
             into_block_1(shared_from("FILL", "in", 2 * kBytes) + " add.u32 s, s, " + number(kBytes) + ";\n", g.name,
                          kBytes, kBytes);
    forms.push_back(g);
  }
}

// ---- tensor copies -----------------------------------------------------------------------------------------------

struct TypeInfo {
  CUtensorMapDataType type;
  const char* name;
  int bytes;
  Kind kind;
};
constexpr TypeInfo kTypes[] = {{CU_TENSOR_MAP_DATA_TYPE_UINT8, "u8", 1, Kind::B32},
                               {CU_TENSOR_MAP_DATA_TYPE_UINT16, "u16", 2, Kind::B16},
                               {CU_TENSOR_MAP_DATA_TYPE_UINT32, "u32", 4, Kind::B32},
                               {CU_TENSOR_MAP_DATA_TYPE_INT32, "s32", 4, Kind::B32},
                               {CU_TENSOR_MAP_DATA_TYPE_UINT64, "u64", 8, Kind::B64},
                               {CU_TENSOR_MAP_DATA_TYPE_INT64, "s64", 8, Kind::B64},
                               {CU_TENSOR_MAP_DATA_TYPE_FLOAT16, "f16", 2, Kind::F16},
                               {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, "f32", 4, Kind::F32},
                               {CU_TENSOR_MAP_DATA_TYPE_FLOAT64, "f64", 8, Kind::F64},
                               {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, "bf16", 2, Kind::BF16},
                               {CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ, "f32.ftz", 4, Kind::F32},
                               {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, "tf32", 4, Kind::F32},
                               {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ, "tf32.ftz", 4, Kind::F32}};
constexpr struct {
  CUtensorMapSwizzle swizzle;
  const char* name;
  uint32_t bytes;
} kSwizzles[] = {{CU_TENSOR_MAP_SWIZZLE_NONE, "no swizzle", 64},
                 {CU_TENSOR_MAP_SWIZZLE_32B, "32-byte swizzle", 32},
                 {CU_TENSOR_MAP_SWIZZLE_64B, "64-byte swizzle", 64},
                 {CU_TENSOR_MAP_SWIZZLE_128B, "128-byte swizzle", 128}};

// A tensor of `rank` dimensions and a box of it.
struct Case {
  TypeInfo type = kTypes[0];
  int rank = 2;
  int swizzle = 0;
  std::vector<uint32_t> steps;
  std::vector<int> at;  // coordinates; the first in whole pieces of 16 bytes (5.5.3.1)
  bool nan = false;
  std::string remark;
};

int units_of(const Case& c, int pieces) { return pieces * 16 / c.type.bytes; }

Tensor tensor_of(const Case& c) {
  Tensor t;
  t.type = c.type.type;
  t.swizzle = kSwizzles[c.swizzle].swizzle;
  t.fill = c.nan ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  const uint32_t inner = kSwizzles[c.swizzle].bytes / static_cast<uint32_t>(c.type.bytes);
  // Odd sizes whose rows are padded to 16 bytes.
  static constexpr uint32_t kMore[] = {0, 13, 5, 4, 3}, kBox[] = {0, 9, 2, 2, 1};
  uint64_t stride = 0;
  for (int d = 0; d < c.rank; ++d) {
    const uint32_t dim = d == 0 ? inner + inner / 2 + 1 : kMore[d];
    stride = d == 0 ? round_up(dim * static_cast<uint32_t>(c.type.bytes), 16) : stride * dim + (d == 1 ? 32 : 0);
    t.dims.push_back(dim);
    t.box.push_back(d == 0 ? inner : kBox[d]);
    t.steps.push_back(c.steps.empty() ? 1 : c.steps[static_cast<size_t>(d)]);
    if (d + 1 < c.rank) t.strides.push_back(stride);
  }
  return t;
}
uint32_t extent(const Tensor& t, int element) {
  uint64_t bytes = t.dims[0] * static_cast<uint64_t>(element);
  for (size_t d = 1; d < t.dims.size(); ++d) bytes = std::max(bytes, t.strides[d - 1] * t.dims[d]);
  return round_up(static_cast<uint32_t>(bytes), 16);
}
uint32_t box_bytes(const Tensor& t, int element) {
  uint32_t bytes = static_cast<uint32_t>(element);
  for (size_t d = 0; d < t.box.size(); ++d) bytes *= d == 0 ? t.box[d] : (t.box[d] + t.steps[d] - 1) / t.steps[d];
  return bytes;
}
std::string coordinates(const std::vector<int>& at) {
  std::string list;
  for (int c : at) list += (list.empty() ? "" : ", ") + std::to_string(c);
  return "{" + list + "}";
}
std::string name_of(const std::string& instruction, const Case& c) {
  return instruction + ", " + c.type.name + ", " + kSwizzles[c.swizzle].name + ", at " + coordinates(c.at) + c.remark;
}

void add_tensor_load(Forms& forms, const Case& c) {
  const Tensor t = tensor_of(c);
  const uint32_t bytes = box_bytes(t, c.type.bytes), all = round_up(bytes, 2048);
  const std::string d = std::to_string(c.rank) + "d";
  const std::string instruction =
      "cp.async.bulk.tensor." + d + ".shared::cluster.global.tile.mbarrier::complete_tx::bytes";
  Form f = plain(name_of("cp.async.bulk.tensor." + d + ".shared::cluster.global.tile", c), all);
  f.family = "tensor copies";
  f.tensor = {t};
  f.in_bytes = extent(t, c.type.bytes);
  f.out_bytes = all;
  f.result = c.type.bytes == 1 ? Kind::B32 : c.type.kind;
  f.agreement = exactly_with_nan();
  f.fill = [kind = f.result, n = f.in_bytes](Random& random, uint8_t* to) { fill_values(kind, random, to, n); };
  f.body = declare(all) + shared_poisoned(all) + kBarrier + expect(bytes) + " @first " + instruction + " [s], [map, " +
           coordinates(c.at) + "], [bar];\n" + kWait + shared_to("out", all);
  forms.push_back(f);
}

void add_tensor_store(Forms& forms, const Case& c, const std::string& op = "") {
  Tensor t = tensor_of(c);
  t.of_output = true;
  const uint32_t bytes = box_bytes(t, c.type.bytes), all = round_up(bytes, 2048);
  const std::string d = std::to_string(c.rank) + "d";
  const std::string instruction =
      op.empty() ? "cp.async.bulk.tensor." + d + ".global.shared::cta.tile.bulk_group"
                 : "cp.reduce.async.bulk.tensor." + d + ".global.shared::cta." + op + ".tile.bulk_group";
  Form f = plain(name_of(instruction, c), all);
  f.family = "tensor copies";
  f.tensor = {t};
  f.out_bytes = extent(t, c.type.bytes);
  f.in_bytes = round_up(static_cast<uint32_t>(f.out_bytes), 16) + all;
  f.output_is_filled = true;
  f.result = c.type.bytes == 1 ? Kind::B32 : c.type.kind;
  if (op.empty()) f.agreement = exactly_with_nan();
  f.fill = [kind = f.result, n = f.in_bytes](Random& random, uint8_t* to) { fill_values(kind, random, to, n); };
  f.body = declare(all) + " .reg .b64 second;\n add.u64 second, in, " + number(f.in_bytes - all) + ";\n" +
           shared_from("FILL", "second", all) + " fence.proxy.async.shared::cta;\n bar.sync 0;\n @first " +
           instruction + " [map, " + coordinates(c.at) +
           "], [s];\n cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;\n";
  forms.push_back(f);
}

void add_tensor(Forms& forms) {
  // Every type, rank and swizzle: inside, and over each edge.
  for (const TypeInfo& type : kTypes)
    for (int rank = 1; rank <= 5; ++rank)
      for (int swizzle = 0; swizzle < 4; ++swizzle) {
        Case c;
        c.type = type;
        c.rank = rank;
        c.swizzle = swizzle;
        const int over =
            static_cast<int>(kSwizzles[swizzle].bytes / 32 + 1);  // of the edge: the tensor is 1.5 boxes wide
        const std::vector<int> inside = {units_of(c, 1), 2, 1, 1, 0}, below = {-units_of(c, 1), -3, -1, 0, -1},
                               above = {units_of(c, over), 8, 3, 3, 2}, outside = {0, 13, 0, 0, 0};
        for (const std::vector<int>* at : {&inside, &below, &above, &outside}) {
          if (rank != 2 && rank != 4 && at != &inside && type.bytes != 2 && swizzle != 3) continue;
          c.at = std::vector<int>(at->begin(), at->begin() + rank);
          add_tensor_load(forms, c);
          if (at != &below) add_tensor_store(forms, c);  // a store begins inside (9.7.9.27.1.1)
        }
        if (swizzle != 3 && rank != 3) continue;
        c.at = std::vector<int>(below.begin(), below.begin() + rank);
        if (type.type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16) {
          c.nan = true;
          c.remark = ", NaN outside";
          add_tensor_load(forms, c);
          c.nan = false;
        }
        // Element strides: every second row, every third plane. The first dimension has none without interleave.
        if (rank == 1) continue;
        c.steps = {1, 2, 3, 1, 2};
        c.steps.resize(static_cast<size_t>(rank));
        c.remark = ", strides of 2 and 3 elements";
        add_tensor_load(forms, c);
        c.at = std::vector<int>(inside.begin(), inside.begin() + rank);
        add_tensor_store(forms, c);
      }
  // Reductions of every type that has them (9.7.9.25.5.3).
  for (const TypeInfo& type : kTypes) {
    const std::string y = type.name;
    std::vector<std::string> ops;
    if (y == "u32") ops = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
    if (y == "s32") ops = {"add", "min", "max", "and", "or", "xor"};
    if (y == "u64") ops = {"add", "min", "max", "and", "or", "xor"};
    if (y == "s64") ops = {"min", "max"};
    if (y == "f16" || y == "bf16") ops = {"add", "min", "max"};
    if (y == "f32" || y == "f64" || y == "f32.ftz") ops = {"add"};
    for (const std::string& op : ops)
      for (int rank : {1, 2, 3, 5}) {
        Case c;
        c.type = type;
        c.rank = rank;
        c.swizzle = rank == 1 ? 0 : 3;
        const std::vector<int> at = {units_of(c, 1), 8, 1, 1, 0};
        c.at = std::vector<int>(at.begin(), at.begin() + rank);
        add_tensor_store(forms, c, op);
      }
  }
  // One copy for both blocks of a cluster.
  for (int mask : {1, 2, 3}) {
    Case c;
    c.type = kTypes[2];
    c.swizzle = 3;
    c.at = {4, 2};
    c.remark = ", to the blocks of mask " + std::to_string(mask);
    const Tensor t = tensor_of(c);
    const uint32_t bytes = box_bytes(t, 4), all = round_up(bytes, 2048);
    Form f = plain(name_of("cp.async.bulk.tensor.2d.shared::cluster.global.tile.multicast::cluster", c), all);
    f.family = "tensor copies";
    f.tensor = {t};
    f.blocks = f.cluster = 2;
    f.in_bytes = extent(t, 4);
    f.out_bytes = 2 * all;
    f.fill = [n = f.in_bytes](Random& random, uint8_t* to) { random_bytes(random, to, n); };
    f.body =
        declare(all) + " .reg .b16 blocks;\n mov.b16 blocks, " + std::to_string(mask) +
        ";\n mov.u32 t, %tid.x;\n setp.eq.u32 first, t, 0;\n mov.u32 rank, %cluster_ctarank;\n" + shared_poisoned(all) +
        kBarrier + " shr.u32 i, " + std::to_string(mask) +
        ", rank;\n and.b32 i, i, 1;\n setp.ne.u32 mine, i, 0;\n and.pred done, mine, first;\n"
        " @done mbarrier.arrive.expect_tx.shared::cta.b64 state, [bar], " +
        number(bytes) +
        ";\n barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;\n setp.eq.u32 done, rank, 0;\n and.pred "
        "done, done, first;\n"
        " @done cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
        "[s], [map, " +
        coordinates(c.at) + "], [bar], blocks;\n @!mine bra REST;\n" + kWait + "REST:\n mad.wide.u32 out, rank, " +
        number(all) + ", out;\n" + shared_to("out", all) +
        " barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;\n";
    forms.push_back(f);
  }
}

// ---- tensormap.replace -------------------------------------------------------------------------------------------

// The map is copied to shared memory, changed there, published behind the tensor, and a load shows what it became.
void add_replacements(Forms& forms) {
  struct Change {
    const char *field, *value;  // the operands after the address
    uint32_t bytes;             // of the load
    const char* at;
  };
  Case c;
  c.type = kTypes[2];
  c.swizzle = 3;
  c.at = {4, 2};
  const Tensor t = tensor_of(c);  // u32, box of 32 x 9
  const uint32_t bytes = box_bytes(t, 4), all = 4096;
  const Change changes[] = {{"global_address.shared::cta.b1024.b64", "moved", bytes, "{4, 2}"},
                            {"global_dim.shared::cta.b1024.b32", "0, 20", bytes, "{4, 2}"},
                            {"global_dim.shared::cta.b1024.b32", "1, 4", bytes, "{4, 2}"},
                            {"global_stride.shared::cta.b1024.b64", "0, 160", bytes, "{4, 2}"},
                            {"box_dim.shared::cta.b1024.b32", "0, 16", bytes / 2, "{4, 2}"},
                            {"box_dim.shared::cta.b1024.b32", "1, 4", bytes / 9 * 4, "{4, 2}"},
                            {"element_stride.shared::cta.b1024.b32", "1, 3", bytes / 3, "{4, 2}"},
                            {"swizzle_mode.shared::cta.b1024.b32", "0", bytes, "{4, 2}"},
                            {"rank.shared::cta.b1024.b32", "1", bytes, "{4, 2}"},
                            {"elemtype.shared::cta.b1024.b32", "7", bytes, "{4, -2}"},
                            {"elemtype.shared::cta.b1024.b32", "3", bytes, "{4, -2}"},
                            {"interleave_layout.shared::cta.b1024.b32", "0", bytes, "{4, 2}"}};
  for (const Change& change : changes) {
    const std::string instruction = std::string("tensormap.replace.tile.") + change.field;
    Form f = plain(instruction + " " + change.value, all);
    f.family = "tensor copies";
    f.tensor = {t};
    const uint32_t tensor_bytes = round_up(extent(t, 4), 128);
    f.in_bytes = tensor_bytes + 128 + 4096;
    f.out_bytes = all;
    f.fill = [n = f.in_bytes](Random& random, uint8_t* to) { random_bytes(random, to, n); };
    f.body = declare(all) + " .reg .b64 copy, moved;\n .reg .b32 edited;\n .reg .pred warp;\n add.u64 copy, in, " +
             number(tensor_bytes) +
             ";\n add.u64 moved, in, 64;\n mov.u32 edited, s;\n setp.lt.u32 warp, t, 32;\n mad.wide.u32 from, t, 4, "
             "map;\n mad.lo.u32 at32, t, 4, edited;\n"
             " @warp ld.b32 q0, [from];\n @warp st.shared.b32 [at32], q0;\n bar.sync 0;\n @first " +
             instruction + " [edited], " + change.value +
             ";\n bar.sync 0;\n @!warp bra READY;\n bar.warp.sync 0xffffffff;\n"
             " tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [copy], "
             "[edited], 128;\n"
             " bar.warp.sync 0xffffffff;\nREADY:\n bar.sync 0;\n" +
             shared_poisoned(all) + kBarrier + " fence.proxy.tensormap::generic.acquire.gpu [copy], 128;\n" +
             expect(change.bytes) +
             " @first cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [s], [copy, " +
             change.at + "], [bar];\n" + kWait + shared_to("out", all);
    forms.push_back(f);
  }
}

// ---- mbarriers and asynchronous stores ---------------------------------------------------------------------------

void add_barriers(Forms& forms) {
  const Kind w = Kind::B32, p = Kind::Pred;
  const std::string start =
      ".reg .b32 bar, tid, mine;\n .reg .b64 state, own;\n .reg .pred first;\n mov.u32 bar, smem;\n mov.u32 tid, "
      "%tid.x;\n"
      " setp.eq.u32 first, tid, 0;\n @first mbarrier.init.shared::cta.b64 [bar], COUNT;\n bar.sync 0;\n";
  const auto add = [&](const std::string& name, const std::string& count, const std::string& text,
                       const std::vector<Kind>& results, const std::vector<Kind>& operands) {
    add_scalar(forms, "mbarriers", name, fill_template(start, {{"COUNT", count}}) + text, results, operands, exactly());
    forms.back().shared = 64;
    forms.back().blocks = 1;
    // Threads beyond the block keep the poison.
    forms.back().blocks = kScalarThreads / forms.back().threads;
  };
  const std::string pending = " mbarrier.pending_count.b64 d, state;\n";
  add("mbarrier.pending_count.b64 after mbarrier.arrive of one thread", "77",
      " @first mbarrier.arrive.shared::cta.b64 state, [bar];\n @!first mov.b64 state, 0;\n mov.u32 d, 0;\n @first" +
          pending,
      {w}, {w});
  add("mbarrier.pending_count.b64 after mbarrier.arrive with a count", "77",
      " @first mbarrier.arrive.shared::cta.b64 state, [bar], 5;\n @first mbarrier.arrive.shared::cta.b64 state, [bar], "
      "3;\n mov.u32 d, 0;\n @first" +
          pending,
      {w}, {w});
  add("mbarrier.pending_count.b64 after mbarrier.arrive.noComplete", "77",
      " @first mbarrier.arrive.noComplete.shared::cta.b64 state, [bar], 7;\n @first "
      "mbarrier.arrive.noComplete.shared::cta.b64 state, [bar], 3;\n mov.u32 d, 0;\n @first" +
          pending,
      {w}, {w});
  add("mbarrier.pending_count.b64 after mbarrier.arrive_drop", "77",
      " @first mbarrier.arrive_drop.shared::cta.b64 state, [bar];\n @first mbarrier.arrive.shared::cta.b64 state, "
      "[bar];\n mov.u32 d, 0;\n @first" +
          pending,
      {w}, {w});
  const std::string look =
      " mbarrier.test_wait.parity.shared::cta.b64 d, [bar], 0;\n mbarrier.test_wait.parity.shared::cta.b64 e, [bar], "
      "1;\n";
  add("mbarrier.test_wait.parity of a new barrier", "128", look, {p, p}, {w});
  add("mbarrier.test_wait.parity after 127 of 128 arrivals", "128",
      " @!first mbarrier.arrive.shared::cta.b64 state, [bar];\n bar.sync 0;\n" + look, {p, p}, {w});
  add("mbarrier.test_wait.parity after 128 arrivals", "128",
      " mbarrier.arrive.shared::cta.b64 state, [bar];\n bar.sync 0;\n" + look, {p, p}, {w});
  add("mbarrier.test_wait.parity after two phases", "128",
      " mbarrier.arrive.shared::cta.b64 state, [bar];\n bar.sync 0;\n mbarrier.arrive.shared::cta.b64 state, [bar];\n "
      "bar.sync 0;\n" +
          look,
      {p, p}, {w});
  add("mbarrier.test_wait of the state before and after the phase", "128",
      " mbarrier.arrive.shared::cta.b64 state, [bar];\n bar.sync 0;\n mbarrier.test_wait.shared::cta.b64 d, [bar], "
      "state;\n"
      " @first mbarrier.arrive.shared::cta.b64 own, [bar];\n bar.sync 0;\n mov.pred e, 0;\n @first "
      "mbarrier.test_wait.shared::cta.b64 e, [bar], own;\n",
      {p, p}, {w});
  add("mbarrier.arrive_drop lowers the count of the next phase", "128",
      " mbarrier.arrive_drop.shared::cta.b64 state, [bar];\n bar.sync 0;\n mbarrier.test_wait.parity.shared::cta.b64 "
      "d, [bar], 0;\n mov.pred e, d;\n",
      {p, p}, {w});
  add("mbarrier.expect_tx and complete_tx hold the phase", "128",
      " @first mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 64;\n bar.sync 0;\n "
      "mbarrier.arrive.shared::cta.b64 state, [bar];\n bar.sync 0;\n"
      " mbarrier.test_wait.parity.shared::cta.b64 d, [bar], 0;\n bar.sync 0;\n @first "
      "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 64;\n bar.sync 0;\n"
      " mbarrier.test_wait.parity.shared::cta.b64 e, [bar], 0;\n",
      {p, p}, {w});
  add("mbarrier.arrive.expect_tx holds the phase", "1",
      " @first mbarrier.arrive.expect_tx.shared::cta.b64 state, [bar], 32;\n bar.sync 0;\n "
      "mbarrier.test_wait.parity.shared::cta.b64 d, [bar], 0;\n"
      " bar.sync 0;\n @first mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 32;\n bar.sync 0;\n "
      "mbarrier.test_wait.parity.shared::cta.b64 e, [bar], 0;\n",
      {p, p}, {w});
  add("cp.async.mbarrier.arrive.noinc", "128",
      " add.u32 mine, bar, 16;\n cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bar];\n bar.sync 0;\n mov.u32 mine, "
      "0;\nWAIT:\n"
      " mbarrier.try_wait.parity.shared::cta.b64 d, [bar], 0;\n add.u32 mine, mine, 1;\n setp.gt.u32 e, mine, "
      "100000;\n or.pred d, d, e;\n @!d bra WAIT;\n"
      " setp.gt.u32 e, mine, 100000;\n",
      {p, p}, {w});

  // st.async and red.async into the other block of a cluster.
  struct Store {
    const char* instruction;
    int bytes;
    const char* value;
  };
  for (const Store& x :
       {Store{"st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", 4, "q0"},
        Store{"st.async.shared::cluster.mbarrier::complete_tx::bytes.b64", 8, "l0"},
        Store{"st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32", 8, "{q0, q1}"},
        Store{"st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32", 16, "{q0, q1, q2, q3}"},
        Store{"st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64", 16, "{l0, l1}"},
        Store{"st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32", 16, "{q0, q1, q2, q3}"},
        Store{"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32", 4, "q0"},
        Store{"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.s32", 4, "q0"},
        Store{"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64", 8, "l0"},
        Store{"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.min.s32", 4, "q0"},
        Store{"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.u32", 4, "q0"},
        Store{"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.inc.u32", 4, "q0"},
        Store{"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.dec.u32", 4, "q0"},
        Store{"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.and.b32", 4, "q0"},
        Store{"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.or.b32", 4, "q0"},
        Store{"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.xor.b32", 4, "q0"}}) {
    Form f = plain(x.instruction, 2048);
    f.blocks = f.cluster = 2;
    f.in_bytes = 4096;
    f.out_bytes = 2048;
    f.fill = [](Random& random, uint8_t* to) { random_bytes(random, to, 4096); };
    f.body =
        declare(2048) +
        " .reg .b64 l<2>;\n mov.u32 t, %tid.x;\n setp.eq.u32 first, t, 0;\n mov.u32 rank, %cluster_ctarank;\n" +
        shared_from("FILL", "in", 2048) + kBarrier +
        " setp.eq.u32 mine, rank, 1;\n and.pred done, mine, first;\n"
        " @done mbarrier.arrive.expect_tx.shared::cta.b64 state, [bar], " +
        number(static_cast<uint64_t>(x.bytes) * 128) +
        ";\n barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;\n @mine bra TAKE;\n"
        " mad.wide.u32 from, t, 16, in;\n ld.global.v4.b32 {q0, q1, q2, q3}, [from+2048];\n mov.b64 l0, {q0, q1};\n "
        "mov.b64 l1, {q2, q3};\n"
        " mad.lo.u32 i, t, 16, s;\n mapa.shared::cluster.u32 i, i, 1;\n mapa.shared::cluster.u32 other, bar, 1;\n " +
        x.instruction + " [i], " + x.value + ", [other];\n bra LEAVE;\nTAKE:\n" + kWait + shared_to("out", 2048) +
        "LEAVE:\n barrier.cluster.arrive;\n barrier.cluster.wait;\n";
    forms.push_back(f);
  }
}

}  // namespace

void add_copy_forms(Forms& forms) {
  add_bulk(forms);
  add_bulk_reductions(forms);
  add_tensor(forms);
  add_replacements(forms);
  add_barriers(forms);
}

}  // namespace bits
