// SPDX-License-Identifier: Apache-2.0
// The hazards of tcgen05 (PTX ISA 9.7.16) with their mended twins: allocation, pipelines, commits, descriptors.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>

#include "tests/sim/tcgen05.h"

namespace {

using namespace sim_test;
using sim::Hazard;
using sim::Mode;

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

// tests/golden/tcgen05_faults.txt has a line for each fault of these tests, as the eager order reports it but for the
// number of the line of PTX. MOXIE_WRITE_FAULTS=1 with --gtest_filter='Tcgen05*' writes it anew.
class Golden {
 public:
  static void compare(std::string report) {
    static Golden golden;
    for (size_t at = 0; (at = report.find("ptx line ", at)) != std::string::npos;) {
      at += 9;
      report.replace(at, report.find_first_not_of("0123456789", at) - at, "N");
    }
    std::replace(report.begin(), report.end(), '\n', ';');
    const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
    const std::string name = std::string(test.test_suite_name()) + "." + test.name();
    if (golden.begun_ != test.result()->start_timestamp() || golden.name_ != name) golden.count_ = 0;
    golden.begun_ = test.result()->start_timestamp();
    golden.name_ = name;
    const std::string key = name + " " + std::to_string(++golden.count_);
    if (golden.written_.is_open())
      golden.written_ << key << ": " << report << "\n";
    else
      EXPECT_EQ(golden.lines_[key], report) << key;
  }

 private:
  Golden() {
    const std::string path = MOXIE_SOURCE_DIR "/tests/golden/tcgen05_faults.txt";
    if (std::getenv("MOXIE_WRITE_FAULTS") != nullptr) {
      written_.open(path);
      return;
    }
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      const size_t colon = line.find(": ");
      lines_[line.substr(0, colon)] = line.substr(std::min(colon, line.size() - 2) + 2);
    }
  }
  // The test that is running, and how many faults it has reported.
  std::string name_;
  testing::TimeInMillis begun_ = 0;
  int count_ = 0;
  std::map<std::string, std::string> lines_;
  std::ofstream written_;
};

// In all orders the same hazard, in words that hold `text`: one of several, with '|' between them, where either side of
// a race may come first.
void expect_fault(const std::string& body, Hazard kind, const std::string& text, uint32_t blocks = 1,
                  uint32_t threads = 128) {
  for (const sim::Order order : all_orders()) {
    Hazard got{};
    const std::string what = fault_in(body, order, &got, blocks, threads);
    if (order.mode == Mode::Eager) Golden::compare(what);
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
  // A copy is in flight as well, until the wait.
  const char* const copy = "  mov.b32 %w6, %w4;\n";
  std::string use = kUse;
  use.replace(use.find("%w4"), 3, "%w6");
  const std::string loaded = join({kAlloc, kMma, kWaitMma, kAfter, kLoad, copy});
  expect_clean(loaded + kWaitLoad + use + kFree);
  expect_fault(loaded + use + kWaitLoad + kFree, Hazard::RegistersInFlight, "no tcgen05.wait::ld has waited for");
}

TEST(Tcgen05Hazards, StoreThenLoadInOneWarp) {
  expect_clean(join({kAlloc, kStore, kWaitStore, kLoad, kWaitLoad, kUse, kStore, kWaitStore, kFree}));
  expect_fault(join({kAlloc, kStore, kLoad, kWaitLoad, kUse, kFree}), Hazard::DataInFlight,
               "no tcgen05.wait::st has waited");
  expect_fault(join({kAlloc, kStore, kWaitStore, kLoad, kStore, kWaitStore, kWaitLoad, kFree}), Hazard::DataInFlight,
               "no tcgen05.wait::ld has waited");
  expect_fault(join({kAlloc, kStore, kFree}), Hazard::DataInFlight, "no tcgen05.wait::st has waited");
}

// So many operations that what is known of old ones is thrown away. The new ones are still told apart.
TEST(Tcgen05Hazards, ThousandsOfStoresAndLoads) {
  const std::string text = join({kAlloc, "  mov.u32 %w20, 0;\nMANY:\n", kStore, kWaitStore, kLoad, kWaitLoad,
                                 "  add.u32 %w20, %w20, 1;\n  setp.lt.u32 %p2, %w20, 3000;\n  @%p2 bra MANY;\n"});
  expect_clean(text + kUse + kFree);
  expect_clean(text + kUse + kStore + kWaitStore + kFree);
  expect_fault(text + kUse + kStore + kLoad + kWaitLoad + kFree, Hazard::DataInFlight,
               "no tcgen05.wait::st has waited");
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

TEST(Tcgen05Hazards, StoresBeforeTheNextMma) {
  const char* const sync = "  bar.sync 0;\n";
  const auto text = [&](std::initializer_list<const char*> middle) {
    return join({kAlloc, kStore}) + join(middle) + kMma + kWaitMma + kAfter + kFree;
  };
  expect_clean(text({kWaitStore, kBefore, sync, kAfter}));
  expect_fault(text({kBefore, sync, kAfter}), Hazard::DataInFlight, "no tcgen05.wait::st has waited for it");
  const Strict strict;
  expect_clean(text({kWaitStore, kBefore, sync, kAfter}));
  expect_fault(text({kWaitStore, sync, kAfter}), Hazard::DataInFlight, "no tcgen05.fence::before_thread_sync");
}

// Each shape of a copy writes its lanes until a thread has waited for its commit.
TEST(Tcgen05Hazards, LoadsBehindACopy) {
  const std::string wait = join({kWaitMma, kAfter});
  for (const std::string shape : {"128x256b", "4x256b", "128x128b"}) {
    const auto text = [&](const std::string& behind) {
      return kAlloc +
             ("  @%pe0 bra COPIED;\n  tcgen05.cp.cta_group::1." + shape +
              " [%t], %sa;\n  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar0];\n"
              "COPIED:\n  bar.sync 0;\n") +
             behind + kLoad + kWaitLoad + kUse + (behind.empty() ? wait : "") + kFree;
    };
    expect_clean(text(wait));
    expect_fault(text(""), Hazard::DataInFlight, "no tcgen05.commit that covers it has been waited for");
  }
}

// Of each 32 lanes a copy of 4 rows writes one. The 16 lanes around it count as written, and the other 16 lanes do not.
TEST(Tcgen05Hazards, LoadsOfLanesThatACopyDoesNotWrite) {
  const auto text = [](const std::string& shape, int copied, int loaded) {
    return kAlloc +
           ("  @%pe0 bra COPIED;\n  add.u32 %w8, %t, " + std::to_string(copied << 16) +
            ";\n  tcgen05.cp.cta_group::1." + shape +
            " [%w8], %sa;\n  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar0];\n"
            "COPIED:\n  bar.sync 0;\n  add.u32 %w9, %q, " +
            std::to_string(loaded << 16) + ";\n  tcgen05.ld.sync.aligned.16x64b.x1.b32 {%w4}, [%w9];\n") +
           kWaitLoad + kWaitMma + kAfter + kFree;
  };
  const char* const missing = "no tcgen05.commit that covers it has been waited for";
  expect_clean(text("4x256b", 0, 16));
  expect_clean(text("4x256b", 31, 0));
  expect_fault(text("4x256b", 0, 0), Hazard::DataInFlight, missing);
  expect_fault(text("4x256b", 31, 16), Hazard::DataInFlight, missing);
  expect_fault(text("128x256b", 0, 0), Hazard::DataInFlight, missing);
  expect_fault(text("128x256b", 0, 16), Hazard::DataInFlight, missing);
}

// Warps other than the one that allocates need a fence behind the barrier where the fences are asked for.
TEST(Tcgen05Hazards, StoresBehindAnAllocation) {
  std::string unfenced = kAlloc;
  unfenced.erase(unfenced.find(kAfter), std::string(kAfter).size());
  expect_clean(unfenced + kStore + kWaitStore + kFree);
  const Strict strict;
  expect_clean(kAlloc + std::string(kStore) + kWaitStore + kFree);
  expect_fault(unfenced + kStore + kWaitStore + kFree, Hazard::TensorMemory,
               "tcgen05.st.sync.aligned.32x32b.x1.b32 touches column 0 of tensor memory, and no "
               "tcgen05.fence::after_thread_sync stands between the synchronisation with its tcgen05.alloc and this "
               "access");
}

// With .ws the columns of D are divided among the lanes, and each part has to find the same row of A in its own lanes.
TEST(Tcgen05Hazards, PartsOfATensorMemoryMatrixMustAgree) {
  const auto text = [](const std::string& row) {
    return kAlloc +
           ("  and.b32 %w20, " + row +
            ", 3;\n  add.u32 %w20, %w20, 0x3f803f80;\n"
            "  tcgen05.st.sync.aligned.32x32b.x8.b32 [%q+64], {%w20, %w20, %w20, %w20, %w20, %w20, %w20, %w20};\n") +
           kWaitStore + kBefore + "  bar.sync 0;\n" + kAfter +
           "  @%pe0 bra MULTIPLIED;\n  setp.ne.u32 %p0, %me, %me;\n  mov.u64 %wide, 0;\n  mov.u32 %w8, " +
           std::to_string(idesc_f16(32, 64)) +
           ";\n  tcgen05.mma.ws.cta_group::1.kind::f16 [%t], [%t+64], %sb, %w8, %p0, %wide;\n"
           "  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar0];\n"
           "MULTIPLIED:\n  bar.sync 0;\n" +
           kWaitMma + kAfter + kFree;
  };
  expect_clean(text("%lane"));
  expect_fault(text("%warp"), Hazard::TensorMemory,
               "matrix A in tensor memory differs between lanes 0 and 32, which must hold the same row");
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
  const char* const write = "  st.shared.u32 [%bar0+1008], 7;\n";
  expect_clean(join({kAlloc, kMma, kWaitMma, write, kFree}));
  expect_fault(join({kAlloc, kMma, write, kWaitMma, kFree}), Hazard::DataInFlight,
               "still being read|without being ordered after its write");
  const char* const before = "  @%pe0 bra W;\n  st.shared.u32 [%bar0+1008], 7;\nW:\n  bar.sync 0;\n";
  const char* const mended =
      "  @%pe0 bra W;\n  st.shared.u32 [%bar0+1008], 7;\n  fence.proxy.async.shared::cta;\nW:\n  bar.sync 0;\n";
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
  // The same warps do it once more.
  std::string again = alloc + free;
  again.insert(again.find("  tcgen05.relinquish"),
               free +
                   "  barrier.cluster.arrive;\n  barrier.cluster.wait;\n"
                   "  tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [smem], 128;\n"
                   "  ld.shared.u32 %t, [smem];\n");
  expect_clean(again + "END:\n", 2, 32);
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
  EXPECT_NE(one_warp.find(": tcgen05.dealloc.cta_group::2 of the peer block"), std::string::npos) << one_warp;
  EXPECT_EQ(fault_in(hang, {Mode::Eager, 0}, nullptr, 2, 32), "");
}

// Both warps perform one allocation, so that what orders the other block's behind is order for the columns here.
TEST(Tcgen05Alloc, OfAPairOrderedByTheOtherBlock) {
  const auto with = [](const std::string& order) {
    return R"(
  mov.u32 %t, 0;
  shl.b32 %q, %warp, 21;
  @%pw0 bra ALLOCATED;
  tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [smem], 64;
ALLOCATED:
  mov.u32 %idesc, )" +
           std::to_string(idesc_f16(256, 64)) + R"(;
  mov.b16 %h, 3;
  or.b32 %w8, %me, %rank;
  setp.ne.u32 %p2, %w8, 0;
  setp.ne.u32 %p3, %me, %me;
  @%p2 bra MULTIPLIED;
  tcgen05.mma.cta_group::2.kind::f16 [%t], %sa, %sb, %idesc, %p3;
  tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%bar0], %h;
MULTIPLIED:
)" + order +
           kAfter + kLoad + kWaitLoad + R"(
  barrier.cluster.arrive;
  barrier.cluster.wait;
  @%pw0 bra FREED;
  tcgen05.dealloc.cta_group::2.sync.aligned.b32 %t, 64;
FREED:
)";
  };
  const std::string begin = "  barrier.cluster.arrive;\n  barrier.cluster.wait;\n";
  expect_clean(begin + with(kWaitMma), 2);
  expect_fault(begin + with(""), Hazard::TensorMemory, "", 2);
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

TEST(Tcgen05Hazards, SparsityMetadata) {
  // The metadata is what the warps store before, in columns 64 and 65.
  const auto with = [](const std::string& metadata, const std::string& change, uint32_t flip,
                       const std::string& form = "tcgen05.mma.sp", const std::string& mask = "") {
    std::string mma = kMma;
    const std::string dense = "tcgen05.mma.cta_group::1.kind::f16 [%t], %sa, %sb, %idesc, %p0;";
    mma.replace(mma.find(dense), dense.size(),
                "mov.u32 %w8, %t;\n  add.u32 %w9, %t, 64;\n  xor.b32 %idesc, %idesc, " + std::to_string(flip) +
                    ";\n  " + change + "  " + form + ".cta_group::1.kind::f16 [%w8], %sa, %sb, [%w9], %idesc, %p0" +
                    mask + ";");
    return kAlloc +
           ("  mov.u32 %w4, " + metadata +
            ";\n  add.u32 %w6, %q, 64;\n  tcgen05.st.sync.aligned.32x32b.x2.b32 [%w6], {%w4, %w4};\n"
            "  tcgen05.wait::st.sync.aligned;\n") +
           kBefore + "  bar.sync 0;\n" + kAfter + mma + kWaitMma + kFree;
  };
  expect_clean(with("0x4e96d8c4", "", 4));
  expect_clean(with("0x4e96d8c4", "", 5));
  expect_fault(with("0x4e96d5c4", "", 4), Hazard::TensorMemory, "the sparsity metadata 0x5 of chunk 2 of row 0");
  expect_fault(with("0x4e96d8c4", "", 6), Hazard::IllegalUse, "sparsity selector 2 is not valid for .kind::f16");
  expect_fault(with("0x4e96d8c4", "", 0), Hazard::IllegalUse, "the instruction descriptor says dense");
  constexpr uint32_t kM32 = 10u << 24, kM64 = 12u << 24;
  const std::string lane16 = "add.u32 %w9, %w9, 0x100000;\n";
  expect_clean(with("0x4e96d8c4", "", 4 ^ kM64));
  expect_clean(with("0x4e96d8c4", lane16 + "  add.u32 %w8, %w8, 0x100000;\n", 4 ^ kM64));
  for (const uint32_t m : {0u, kM64}) {
    expect_fault(with("0x4e96d8c4", lane16, 4 ^ m), Hazard::TensorMemory,
                 "sparsity metadata at lane 16 of tensor memory must begin at lane 0, as matrix D does");
  }
  expect_fault(with("0x4e96d8c4", "add.u32 %w8, %w8, 0x100000;\n", 4 ^ kM64), Hazard::TensorMemory,
               "sparsity metadata at lane 0 of tensor memory must begin at lane 16, as matrix D does");
  expect_fault(with("0x4e96d5c4", lane16 + "  add.u32 %w8, %w8, 0x100000;\n", 4 ^ kM64), Hazard::TensorMemory,
               "the sparsity metadata 0x5 of chunk 2 of row 0, at bit 8 of tensor memory at lane 16, column 64");
  // Of .ws each 32 or 64 lanes have all of them.
  const std::string ws = "tcgen05.mma.ws.sp", of_warp_2 =
                                                  "0x4e96d8c4;\n  setp.eq.u32 %p1, %warp, 2;\n"
                                                  "  @%p1 mov.u32 %w4, 0x4e96d4c4";
  for (const uint32_t m : {0u, kM32, kM64}) expect_clean(with("0x4e96d8c4", "", 4 ^ m, ws));
  expect_clean(with(of_warp_2, "", 4, ws));
  expect_fault(with(of_warp_2, "", 4 ^ kM32, ws), Hazard::TensorMemory,
               "the sparsity metadata at tensor memory at lane 0, column 64 and at lane 64 differ: they must stand in "
               "every 32 lanes");
  expect_fault(with(of_warp_2, "", 5 ^ kM64, ws), Hazard::TensorMemory,
               "the sparsity metadata at tensor memory at lane 0, column 65 and at lane 64 differ: they must stand in "
               "every 64 lanes");
  expect_fault(with("0x4e96d5c4", "", 4 ^ kM32, ws), Hazard::TensorMemory, "the sparsity metadata 0x5 of chunk 2");
  expect_fault(with("0x4e96d8c4", "", 4 ^ kM64 ^ 40u << 17, ws), Hazard::IllegalUse,
               "shape 64x256x32 is not valid for .kind::f16 with .cta_group::1.ws and a sparse matrix A");
  expect_clean(with("0x4e96d8c4", "  mov.u64 %wide, 0;\n", 4 ^ kM64, ws, ", %wide"));
  expect_fault(with("0x4e96d8c4", "  mov.u64 %wide, 0x8000000000;\n", 4 ^ kM64, ws, ", %wide"), Hazard::IllegalUse,
               "zero-column masks are not supported");
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
  EXPECT_NE(why("  tcgen05.mma.sp.cta_group::1.kind::f16 [%t], %sa, %sb, %idesc, %p0;\n").find("sparsity metadata"),
            std::string::npos);
  EXPECT_NE(why("  tcgen05.mma.ws.sp.cta_group::1.kind::f16 [%t], %sa, %sb, %idesc, %p0;\n").find("sparsity metadata"),
            std::string::npos);
  EXPECT_NE(why("  tcgen05.ld.red.sync.aligned.32x32b.x2.max.u32 {%w0, %w1}, %w2, [%t];\n").find("sm_100a lacks it"),
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

// Which lanes an mma writes and reads, half a quarter at a time: a store there must wait for it, and no other.
TEST(Tcgen05Hazards, LanesOfAnMma) {
  struct Row {
    const char* name;
    std::string instruction;
    uint32_t idesc;
    std::function<bool(int)> touched;  // by the half, 0 to 7
    int column = 0;
  };
  const std::string plain = "tcgen05.mma.cta_group::1.kind::f16 [%w10], %sa, %sb, %w8, 0",
                    with_a = "tcgen05.mma.cta_group::1.kind::f16 [%w10], [%w10+64], %sb, %w8, 0",
                    ws = "tcgen05.mma.ws.cta_group::1.kind::f16 [%w10], %sa, %sb, %w8, 0",
                    scaled =
                        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%w10], %sa, %sb, %w8, [%w9], [%w9+8], 0";
  const auto all = [](int) { return true; };
  const auto none = [](int) { return false; };
  const auto even = [](int half) { return half % 2 == 0; };
  const auto odd = [](int half) { return half % 2 == 1; };
  const uint32_t mx = 8u << 17 | 1u << 23 | 1u << 27;
  for (const Row& row : {
           Row{"M 128", plain, idesc_f16(128, 64), all},
           Row{"M 128, last column", plain, idesc_f16(128, 64), all, 63},
           Row{"M 128, behind it", plain, idesc_f16(128, 64), none, 64},
           Row{"M 64", plain, idesc_f16(64, 64), even},
           Row{"M 64 at lane 16", "add.u32 %w10, %w10, 0x100000;\n  " + plain, idesc_f16(64, 64), odd},
           Row{"M 64 of .ws", ws, idesc_f16(64, 64), all, 31},
           Row{"M 64 of .ws, behind it", ws, idesc_f16(64, 64), none, 32},
           Row{"M 32 of .ws", ws, idesc_f16(32, 64), all, 15},
           Row{"M 32 of .ws, behind it", ws, idesc_f16(32, 64), none, 16},
           Row{"A of M 128", with_a, idesc_f16(128, 64), all, 71},
           Row{"A of M 128, behind it", with_a, idesc_f16(128, 64), none, 72},
           Row{"A of M 64", with_a, idesc_f16(64, 64), even, 64},
           Row{"scales of A", scaled, mx, all, 67},
           Row{"between the scales", scaled, mx, none, 68},
           Row{"scales of B", scaled, mx, all, 73},
           Row{"behind the scales of B", scaled, mx, none, 74},
       }) {
    for (int half = 0; half < 8; ++half) {
      // All of tensor memory is written first, for operands must be.
      std::string body =
          kAlloc +
          std::string(
              "  mov.u32 %w4, 0;\n  mov.u32 %w5, 0;\nZERO:\n  add.u32 %w6, %q, %w5;\n"
              "  tcgen05.st.sync.aligned.32x32b.x32.b32 [%w6], ZEROS;\n  add.u32 %w5, %w5, 32;\n"
              "  setp.lt.u32 %p3, %w5, 128;\n  @%p3 bra ZERO;\n  tcgen05.wait::st.sync.aligned;\n") +
          kBefore + "  bar.sync 0;\n" + kAfter + "  @%pe0 bra MULTIPLIED;\n  mov.u32 %w8, " +
          std::to_string(row.idesc) + ";\n  add.u32 %w9, %t, 64;\n  mov.u32 %w10, %t;\n  " + row.instruction +
          ";\n  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar0];\nMULTIPLIED:\n"
          "  bar.sync 0;\n  setp.ne.u32 %p4, %warp, " +
          std::to_string(half / 2) + ";\n  @%p4 bra STORED;\n  add.u32 %w6, %q, " +
          std::to_string((half % 2 * 16 << 16) + row.column) +
          ";\n  tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%w6], 0, {%w4};\n  tcgen05.wait::st.sync.aligned;\nSTORED:\n" +
          kWaitMma + kFree;
      body.replace(body.find("ZEROS"), 5, vector_of("%v", 32));
      Hazard kind{};
      const std::string said = fault_in(body, {}, &kind);
      const std::string expected =
          row.touched(half) ? "data in flight: tcgen05.st.sync.aligned.16x32bx2.x1.b32 writes tensor memory at lane " +
                                  std::to_string(16 * half) + ", column " + std::to_string(row.column) + " while "
                            : "";
      EXPECT_EQ(said.substr(0, expected.empty() ? said.size() : expected.size()), expected)
          << row.name << ", half " << half;
    }
  }
}

// What the operands of an instruction must be beside their order.
TEST(Tcgen05Faults, OfOperands) {
  // `%w8` is an instruction descriptor, `%d8` and `%d9` are descriptors of matrices.
  const auto mma = [](const std::string& before, const std::string& instruction) {
    return kAlloc +
           std::string(
               "  @%pe0 bra MULTIPLIED;\n  .reg .b64 %d<10>;\n  mov.u64 %d8, %sa;\n  mov.u64 %d9, %sb;\n"
               "  mov.u32 %w8, %idesc;\n  setp.ne.u32 %p0, %me, %me;\n") +
           before + "  " + instruction +
           ";\n  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar0];\nMULTIPLIED:\n  "
           "bar.sync "
           "0;\n" +
           kWaitMma + kFree;
  };
  const std::string plain = "tcgen05.mma.cta_group::1.kind::f16 [%t], %d8, %d9, %w8, %p0",
                    in_tensor = "tcgen05.mma.cta_group::1.kind::f16 [%t], [%t+64], %d9, %w8, %p0";
  const auto number = [](uint32_t value) { return std::to_string(value); };
  const auto set = [&](uint32_t idesc) { return "  mov.u32 %w8, " + number(idesc) + ";\n"; };
  const std::string atoms = "  xor.b64 %d8, %d8, 0x6000000000000000;\n  xor.b64 %d9, %d9, 0x6000000000000000;\n";
  expect_clean(mma("", plain));
  expect_clean(mma(atoms, plain));
  expect_fault(mma(atoms + set(idesc_f16(128, 64, true)), plain), Hazard::IllegalUse,
               "a transposed matrix of .kind::f16 cannot have 128-byte swizzling of 32-byte atoms");
  expect_fault(mma(atoms + set(idesc_f16(128, 64, false, true)), plain), Hazard::IllegalUse,
               "a transposed matrix of .kind::f16 cannot have 128-byte swizzling of 32-byte atoms");
  const uint32_t tf32 = 1u << 4 | 2u << 7 | 2u << 10 | 8u << 17 | 8u << 24;
  const std::string of_tf32 = "tcgen05.mma.cta_group::1.kind::tf32 [%t], %d8, %d9, %w8, %p0";
  expect_clean(mma(set(tf32), of_tf32));
  expect_fault(mma(set(tf32 | 1u << 15), of_tf32), Hazard::IllegalUse,
               "a transposed matrix of .kind::tf32 needs 128-byte swizzling of 32-byte atoms");
  expect_fault(mma(set(tf32 | 1u << 16), of_tf32), Hazard::IllegalUse,
               "a transposed matrix of .kind::tf32 needs 128-byte swizzling of 32-byte atoms");
  expect_fault(mma(set(idesc_f16(128, 64, true)), in_tensor), Hazard::IllegalUse,
               "matrix A in tensor memory cannot be transposed");
  expect_fault(mma(set(idesc_f16(64, 64)), "tcgen05.mma.cta_group::1.kind::f16.ashift [%t], [%t+64], %d9, %w8, %p0"),
               Hazard::IllegalUse, ".ashift needs M = 128 or 256");
  expect_fault(mma(set(idesc_f16(64, 64)) + "  add.u32 %w9, %t, 0x100000;\n",
                   "tcgen05.mma.cta_group::1.kind::f16 [%w9], [%t+64], %d9, %w8, %p0"),
               Hazard::TensorMemory, "matrices A and D must have the same lane alignment in tensor memory");
  for (const int m : {64, 128}) {
    expect_fault(mma(set(idesc_f16(m, 64)) + "  add.u32 %w9, %t, 0x080000;\n",
                     "tcgen05.mma.cta_group::1.kind::f16 [%w9], %d8, %d9, %w8, %p0"),
                 Hazard::TensorMemory, "the layout must begin at lane 0");
  }
  const std::string ws = "tcgen05.mma.ws.cta_group::1.kind::f16 [%t], %d8, %d9, %w8, %p0, %wide";
  expect_clean(mma("  mov.u64 %wide, 0;\n", ws));
  for (const int bit : {39, 56, 61}) {
    expect_fault(mma("  mov.u64 %wide, " + std::to_string(uint64_t{1} << bit) + ";\n", ws), Hazard::IllegalUse,
                 "zero-column masks are not supported");
  }
  const uint32_t scaled = 8u << 17 | 1u << 23 | 1u << 27;
  for (const int wrong : {0, 1}) {
    expect_fault(mma(set(scaled) + "  add.u32 %w9, %t, 64;\n  add.u32 %w10, %t, 0x100050;\n",
                     std::string("tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%t], %d8, %d9, %w8, ") +
                         (wrong == 0 ? "[%w10], [%w9]" : "[%w9], [%w10]") + ", %p0"),
                 Hazard::TensorMemory, "a scale factor matrix must begin at lane 0");
  }

  const std::string copy = "tcgen05.cp.cta_group::1.", at = " [%w9], %d8";
  const std::string lane1 = "  add.u32 %w9, %t, 0x010000;\n", lane32 = "  add.u32 %w9, %t, 0x200000;\n";
  expect_fault(mma(lane1, copy + "128x256b" + at), Hazard::TensorMemory, "which its shape does not allow");
  expect_fault(mma(lane32, copy + "4x256b" + at), Hazard::TensorMemory, "which its shape does not allow");
  expect_fault(mma("  xor.b64 %d8, %d8, 0x400000000000;\n", copy + "128x256b [%t], %d8"), Hazard::IllegalUse,
               "must be 0b001");
  expect_fault(mma(lane1, "tcgen05.shift.cta_group::1.down [%w9]"), Hazard::TensorMemory, "is not a multiple of 32");
}

// Whether D is read is a predicate or a number, here with D at a column of an odd number.
TEST(Tcgen05Mma, ANumberMaySayWhetherDIsRead) {
  const auto text = [](const char* enable) {
    std::string mma = kMma;
    mma.replace(mma.find("[%t], %sa, %sb, %idesc, %p0"), 27, std::string("[%w8], %sa, %sb, %idesc, ") + enable);
    mma.insert(mma.find("  tcgen05.mma"), "  add.u32 %w8, %t, 1;\n");
    return kAlloc + mma + kWaitMma + kFree;
  };
  const char* const unwritten = "reads columns 1 to 64 of tensor memory, in which nothing was written";
  for (const char* no : {"0", "%p0"}) expect_clean(text(no));
  for (const char* yes : {"1", "!%p0"}) expect_fault(text(yes), Hazard::TensorMemory, unwritten);
}

// Nothing behind a matrix is read, in none of the orders: that of a matrix that is not transposed would lead past the
// end of a transposed one.
TEST(Tcgen05Mma, MatricesMayEndWithSharedMemory) {
  for (const bool transposed : {false, true}) {
    for (const Swizzle swizzle : {kNone, k128}) {
      for (const bool of_a : {false, true}) {
        const uint32_t columns = of_a ? 128 : 64;
        Placement last = place(0, swizzle, transposed, columns, 2);
        if (transposed) last.lbo = swizzle == kNone ? columns / 8 * 128 : 2048;
        uint32_t end = 0;
        for (uint32_t i = 0; i < columns * 16; ++i) end = std::max(end, last.offset(i / 16, i % 16, 2) + 2);
        std::vector<Block> blocks(1);
        ASSERT_EQ(end % 1024, 0u);
        last.start = static_cast<uint32_t>(blocks[0].shared.size()) - end;
        const Placement first = place(0, swizzle, transposed, of_a ? 64 : 128, 2);
        EXPECT_NO_THROW(
            run_machine("  mov.u32 %w0, 0;\n  setp.ne.u32 %p0, %w0, 0;\n"
                        "  tcgen05.mma.cta_group::1.kind::f16 [%t], %a0, %a1, %x2, %p0;\n" +
                            commit(),
                        blocks,
                        {of_a ? last.descriptor() : first.descriptor(), of_a ? first.descriptor() : last.descriptor(),
                         idesc_f16(128, 64, transposed, transposed)}))
            << swizzle << of_a << transposed;
      }
    }
  }
}

// Every way along which operands are read ends at the end of shared memory.
TEST(Tcgen05Faults, OfMatricesThatLeaveSharedMemory) {
  struct Row {
    const char* kind;
    uint32_t types;
    bool transposed;
    Swizzle swizzle;
    uint32_t bytes;  // of an element
    int k;
  };
  for (const Row& row :
       {Row{"f16", 1u << 7 | 1u << 10, false, k128, 2, 16}, Row{"f16", 1u << 7 | 1u << 10, false, kNone, 2, 16},
        Row{"f16", 1u << 7 | 1u << 10, true, k128, 2, 16}, Row{"f16", 1u << 7 | 1u << 10, true, kNone, 2, 16},
        Row{"f8f6f4", 5u << 7 | 5u << 10, false, k128, 1, 32}, Row{"f8f6f4", 3u << 7 | 3u << 10, false, k64, 1, 32}}) {
    for (const bool of_a : {false, true}) {
      const uint32_t rows = of_a ? 128 : 64, piece = 16 / row.bytes, size = 64 * 1024;
      const Placement good = place(0, row.swizzle, row.transposed, 128, row.bytes);
      Placement placement = place(size - 1024, row.swizzle, row.transposed, rows, row.bytes);
      // In the order of the instruction: row by row, or for a transposed matrix k by k.
      const uint32_t read = std::string(row.kind) == "f16" ? 16 : row.types == (5u << 7 | 5u << 10) ? 8 : 12;
      uint32_t first = 0;
      const uint32_t outer = row.transposed ? static_cast<uint32_t>(row.k) : rows,
                     inner = row.transposed ? rows / piece : static_cast<uint32_t>(row.k) / piece;
      for (uint32_t i = 0; i < outer * inner && first == 0; ++i) {
        const uint32_t x = i / inner, y = i % inner * piece;
        const uint32_t offset =
            1024 + (row.transposed ? placement.offset(y, x, row.bytes) : placement.offset(x, y, row.bytes));
        if (offset + read > 1024 + size) first = offset;
      }
      ASSERT_NE(first, 0u);
      std::vector<Block> blocks(1);
      blocks[0].shared.assign(size, 0);
      const uint32_t idesc = 1u << 4 | row.types | (row.transposed ? 3u << 15 : 0u) | 8u << 17 | 8u << 24;
      std::string said;
      try {
        run_machine("  mov.u32 %w0, 0;\n  setp.ne.u32 %p0, %w0, 0;\n  tcgen05.mma.cta_group::1.kind::" +
                        std::string(row.kind) + " [%t], %a0, %a1, %x2, %p0;\n" + commit(),
                    blocks,
                    {of_a ? placement.descriptor() : good.descriptor(),
                     of_a ? good.descriptor() : placement.descriptor(), idesc});
      } catch (const sim::Fault& fault) {
        said = fault.what();
      }
      char hex[16];
      std::snprintf(hex, sizeof hex, "0x%x", first);
      EXPECT_EQ(said.substr(0, said.find(" at ptx line")), "memory: a matrix descriptor leads to shared offset " +
                                                               std::string(hex) + ", past the end of the block's " +
                                                               std::to_string(1024 + size) + " bytes")
          << row.kind << (row.transposed ? " transposed" : "") << " swizzle " << row.swizzle;
    }
  }
}

TEST(Tcgen05Faults, OfWholeWarps) {
  const std::string alloc = "  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem], %w9;\n";
  const std::string one = "  @%pw0 bra END;\n", end = "END:\n";
  expect_fault(one + "  mov.u32 %w9, 32;\n  setp.eq.u32 %p0, %lane, 5;\n  @%p0 mov.u32 %w9, 64;\n" + alloc + end,
               Hazard::IllegalUse, "the lanes of a warp give different values of nCols");
  const std::string held =
      one + "  mov.u32 %w9, 32;\n" + alloc + "  ld.shared.u32 %t, [smem];\n  setp.eq.u32 %p0, %lane, 5;\n";
  const std::string free = "  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t, %w9;\n";
  expect_clean(held + free + end);
  expect_fault(held + "  @%p0 mov.u32 %w9, 64;\n" + free + end, Hazard::IllegalUse, "different values of nCols");
  expect_fault(held + "  @%p0 mov.u32 %t, 32;\n" + free + end, Hazard::IllegalUse, "different values of taddr");
  expect_fault(held + "  @%p0 exit;\n" + free + end, Hazard::IllegalUse, "in a warp with exited threads");
  expect_fault(one + "  mov.u32 %w9, 32;\n  setp.eq.u32 %p0, %lane, 5;\n  @%p0 exit;\n" + alloc + end,
               Hazard::IllegalUse, "in a warp with exited threads");
  const std::string give_up = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned";
  expect_fault(held + "  @%p0 exit;\n  " + give_up + ";\n" + end, Hazard::IllegalUse,
               give_up + " by 31 of the warp's 32 threads: the others have exited|in a warp with exited threads");
  expect_fault(one + "  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [smem+2], 32;\n" + end, Hazard::Memory,
               "writes to a misaligned address: 0x2");
  expect_fault(one +
                   "  mapa.shared::cluster.u32 %w9, %s, 1;\n  setp.eq.u32 %p0, %rank, 1;\n  @%p0 bra END;\n"
                   "  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%w9], 32;\n" +
                   end + "  barrier.cluster.arrive;\n  barrier.cluster.wait;\n",
               Hazard::Memory, "writes to the shared memory of another block", 2, 32);
  const std::string load = "  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%w4}, [%q];\n";
  expect_fault(kAlloc + std::string("  setp.eq.u32 %p0, %lane, 5;\n  @%p0 exit;\n") + load + kWaitLoad,
               Hazard::IllegalUse, "in a warp with exited threads");
  expect_fault(
      kAlloc + std::string("  setp.eq.u32 %p0, %lane, 5;\n  @%p0 add.u32 %q, %q, 1;\n") + load + kWaitLoad + kFree,
      Hazard::IllegalUse, "the lanes of a warp give tcgen05.ld.sync.aligned.32x32b.x1.b32 different addresses");
  expect_fault(kAlloc +
                   std::string("  add.u32 %q, %q, 0x080000;\n  tcgen05.ld.sync.aligned.16x64b.x1.b32 {%w4}, [%q];\n") +
                   kWaitLoad + kFree,
               Hazard::TensorMemory, "which is not aligned");
}

TEST(Tcgen05Faults, OfPairs) {
  const std::string alloc = "  tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [smem], ",
                    one = "  @%pw0 bra END;\n", end = "END:\n";
  expect_fault(
      one + "  mov.u32 %w9, 32;\n  setp.eq.u32 %p0, %rank, 1;\n  @%p0 mov.u32 %w9, 64;\n" + alloc + "%w9;\n" + end,
      Hazard::TensorMemory, "columns, the peer block's of ", 2, 32);
  // Two warps of one block ask, and none of the other.
  expect_fault("  setp.eq.u32 %p0, %rank, 1;\n  @%p0 bra END;\n" + alloc + "32;\n" + end +
                   "  barrier.cluster.arrive;\n  barrier.cluster.wait;\n",
               Hazard::Deadlock, "tcgen05.alloc behind that of another warp", 2, 64);
  std::string body = R"(
  @%pw0 bra ALLOCATED;
  tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [smem], 64;
  ld.shared.u32 %t, [smem];
ALLOCATED:
  barrier.cluster.arrive;
  barrier.cluster.wait;
  setp.eq.u32 %p0, %rank, 1;
  @%p0 bra END;
  @%pe0 bra END;
  mov.u32 %w7, 0;
LONG:
  ld.shared.u32 %t, [smem];
  add.u32 %w7, %w7, 1;
  setp.lt.u32 %p1, %w7, 20000;
  @%p1 bra LONG;
  mov.u32 %idesc, )" +
                     std::to_string(idesc_f16(128, 64)) + R"(;
  tcgen05.mma.cta_group::2.kind::f16 [%t], %sa, %sb, %idesc, 0;
END:
)";
  expect_fault(body, Hazard::IllegalUse, "a tcgen05.mma of a block pair of which one block has finished", 2);
}

TEST(Tcgen05Faults, OfCommitsThatFindNoBarrier) {
  std::string mma = kMma, wait = kWaitMma;
  mma.insert(mma.find("MULTIPLIED:"), "  mbarrier.inval.shared::cta.b64 [%bar0];\n");
  wait.replace(wait.find("%bar0"), 5, "%bar1");  // where nothing arrives
  // The lazy order performs it when nothing else can go on.
  Hazard kind{};
  const std::string said = fault_in(kAlloc + mma + wait + kFree, {Mode::Lazy, 0}, &kind);
  EXPECT_EQ(kind, Hazard::MbarrierMisuse);
  EXPECT_NE(said.find("a tcgen05.commit arrives at the mbarrier at shared offset 0x10, which was invalidated, by "
                      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 at ptx line"),
            std::string::npos)
      << said;
}

}  // namespace
