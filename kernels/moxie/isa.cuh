// SPDX-License-Identifier: Apache-2.0
// Instructions of sm_90a that cuda::ptx does not offer: wgmma, setmaxnreg, elect, stmatrix, named barriers, remote
// mbarrier arrival, programmatic launch, and the few scalar ones that have no intrinsic of the wanted rounding.
// Each function is named after its instruction; the section numbers are those of the PTX ISA 9.1.
#pragma once
// Of cuda/ptx, with its two megabytes, what kernels use: NVRTC reads the rest for as long as it takes it to read and
// compile a kernel. moxie/blackwell/isa.cuh adds what sm_100a has beside it.
#include <cuda/__ptx/instructions/cp_async_bulk.h>
#include <cuda/__ptx/instructions/cp_async_bulk_commit_group.h>
#include <cuda/__ptx/instructions/cp_async_bulk_tensor.h>
#include <cuda/__ptx/instructions/cp_async_bulk_wait_group.h>
#include <cuda/__ptx/instructions/fence.h>
#include <cuda/__ptx/instructions/mbarrier_arrive.h>
#include <cuda/__ptx/instructions/mbarrier_expect_tx.h>
#include <cuda/__ptx/instructions/mbarrier_init.h>
#include <cuda/__ptx/instructions/mbarrier_wait.h>
#include <cuda/__ptx/instructions/tensormap_cp_fenceproxy.h>
#include <cuda/__ptx/instructions/tensormap_replace.h>
#include <cuda/std/__type_traits/is_same.h>
#include <cuda/std/__type_traits/remove_cv.h>
#include <cuda/std/__type_traits/remove_reference.h>

#include "moxie/types.h"

#define MOXIE_DEVICE __device__ __forceinline__

namespace moxie::kernel {

// 9.7.13.14: true in one thread of a converged warp, always the same one.
MOXIE_DEVICE bool elect() {
  uint32_t elected;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p;}" : "=r"(elected));
  return elected != 0;
}

// 9.7.19.5: changes the number of registers of a thread. All warps of a warp group execute the same instruction.
template <int kRegisters>
MOXIE_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
MOXIE_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// 9.7.13.1: named barriers. Barrier 0 is __syncthreads().
MOXIE_DEVICE void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
MOXIE_DEVICE void bar_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// 9.7.13.3: the barrier of a cluster, in the aligned forms.
MOXIE_DEVICE void barrier_cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
MOXIE_DEVICE void barrier_cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
MOXIE_DEVICE void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
MOXIE_DEVICE void barrier_cluster_sync() {
  barrier_cluster_arrive();
  barrier_cluster_wait();
}

// 9.7.9.23 and 9.7.9.8: a word of the shared memory of block `rank` of the cluster, at the place that `word` has in
// this block's.
MOXIE_DEVICE int32_t load_shared_cluster(const int32_t* word, uint32_t rank) {
  int32_t value;
  asm volatile("{.reg .b32 remote; mapa.shared::cluster.u32 remote, %1, %2; ld.shared::cluster.b32 %0, [remote];}"
               : "=r"(value)
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(word))), "r"(rank)
               : "memory");
  return value;
}

// 9.7.9.23 and 9.7.13.15: one arrival at the barrier in block `rank` of the cluster that corresponds to `barrier` in
// this block. It hands back what wgmma has read and publishes no generic access. So it does without the scope .cluster,
// whose release waits for every memory access of the thread.
MOXIE_DEVICE void mbarrier_arrive_at(const uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{.reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;"
      " mbarrier.arrive.shared::cluster.b64 _, [remote];}" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(barrier))),
      "r"(rank)
      : "memory");
}

// 9.7.14.5.17 (movmatrix): transposes an 8 x 8 matrix of float32 across a warp, of which lane l has the elements in row
// l / 4 and columns 2 (l % 4) and 2 (l % 4) + 1.
MOXIE_DEVICE float2 transpose(float left, float right) {
  const uint32_t a = __float_as_uint(left), b = __float_as_uint(right);
  uint32_t low, high;  // halves of the two
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(low) : "r"(__byte_perm(a, b, 0x5410)));
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(high) : "r"(__byte_perm(a, b, 0x7632)));
  return {__uint_as_float(__byte_perm(low, high, 0x5410)), __uint_as_float(__byte_perm(low, high, 0x7632))};
}

// 9.7.13.13: programmatic dependent launch. The wait returns when the predecessor grids are complete and their writes
// are visible. After launch_dependents of all blocks the dependent grid may start.
MOXIE_DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
MOXIE_DEVICE void griddepcontrol_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// 9.7.9.8 and 9.7.9.12: a word by which threads hand memory over to each other, those of one GPU (.gpu) or of all
// (.sys).
MOXIE_DEVICE uint32_t ld_acquire_gpu(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
MOXIE_DEVICE void st_release_gpu(uint32_t* to, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
MOXIE_DEVICE uint32_t ld_acquire_sys(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
MOXIE_DEVICE void st_release_sys(uint32_t* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// 10.27: nanoseconds.
MOXIE_DEVICE uint64_t globaltimer() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// 9.7.9.15: fetches a tensor map that lies in a kernel parameter.
MOXIE_DEVICE void prefetch_tensormap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// 9.7.9.18: policies for what L2 does with the lines that an access brings.
MOXIE_DEVICE uint64_t evict_first_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}
MOXIE_DEVICE uint64_t evict_normal_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(policy));
  return policy;
}

// 9.7.9.27.1.2: cp.async.bulk.tensor from global memory to this block's shared memory, with a policy of createpolicy.
template <int kRank>
MOXIE_DEVICE void copy_tensor_hinted(void* to, const void* map, const int32_t (&at)[kRank], uint64_t* barrier,
                                     uint64_t policy) {
  static_assert(kRank >= 2 && kRank <= 5);
  const auto shared = [](const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); };
#define MOXIE_COPY(rank, coordinates, barrier_operand, policy_operand, ...)                                         \
  asm volatile("cp.async.bulk.tensor." #rank                                                                        \
               "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {" coordinates \
               "}], [" barrier_operand "], " policy_operand ";" ::"r"(shared(to)),                                  \
               "l"(map), __VA_ARGS__, "r"(shared(barrier)), "l"(policy)                                             \
               : "memory")
  if constexpr (kRank == 2) {
    MOXIE_COPY(2, "%2, %3", "%4", "%5", "r"(at[0]), "r"(at[1]));
  } else if constexpr (kRank == 3) {
    MOXIE_COPY(3, "%2, %3, %4", "%5", "%6", "r"(at[0]), "r"(at[1]), "r"(at[2]));
  } else if constexpr (kRank == 4) {
    MOXIE_COPY(4, "%2, %3, %4, %5", "%6", "%7", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]));
  } else {
    MOXIE_COPY(5, "%2, %3, %4, %5, %6", "%7", "%8", "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]));
  }
#undef MOXIE_COPY
}

// 9.7.14.5: stmatrix. Lane 8 i + r gives the address of row r of the i-th 8 x 8 matrix.
MOXIE_DEVICE void stmatrix_x4(void* row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(row))),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// The same with .trans: what lanes hold as row i of a matrix is stored as its column i.
MOXIE_DEVICE void stmatrix_x4_trans(void* row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(row))),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// 9.7.9.22: cvt of two float32 to bf16, to nearest even, with `low` in the low half.
MOXIE_DEVICE uint32_t cvt_bf16x2(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
MOXIE_DEVICE float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
MOXIE_DEVICE float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// 9.7.3.21 and 9.7.3.13: ex2 is at most 2 ulp, rcp at most 1 ulp away from the rounded result.
MOXIE_DEVICE float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
MOXIE_DEVICE float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 9.7.3: min and max that return a NaN argument, which fminf and fmaxf drop.
MOXIE_DEVICE float min_nan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
MOXIE_DEVICE float max_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// 9.7.4.3: the products of two pairs of bf16, to nearest even. Subnormals are kept.
MOXIE_DEVICE uint32_t mul_bf16x2(uint32_t x, uint32_t y) {
  uint32_t z;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

// 9.7.9.25.4.1: cp.async.bulk from global memory to this block's shared memory, with a policy of createpolicy.
MOXIE_DEVICE void copy_bulk_hinted(void* to, const void* from, uint32_t bytes, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(bytes), "r"(static_cast<uint32_t>(__cvta_generic_to_shared(barrier))), "l"(policy)
      : "memory");
}

// 9.7.1.4: a * b + c. Stays where it stands.
MOXIE_DEVICE uint64_t multiply_add_wide(uint32_t a, uint32_t b, uint64_t c) {
  uint64_t d;
  asm volatile("mad.wide.u32 %0, %1, %2, %3;" : "=l"(d) : "r"(a), "r"(b), "l"(c));
  return d;
}
// 9.7.9.25.3.1: cp.async of 16 bytes from global to shared memory, past L1. Both are addresses of their space. Without
// `exists` it writes zeros and does not read `from`.
MOXIE_DEVICE void cp_async_16_or_zeros(uint32_t to, uint64_t from, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0)
               : "memory");
}
// cp_async_16_or_zeros() of bytes that exist.
MOXIE_DEVICE void cp_async_16(uint32_t to, uint64_t from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// 9.7.13.15.16: an arrival, which the barrier's count already has, once this thread's copies so far have landed.
MOXIE_DEVICE void cp_async_arrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(barrier)))
               : "memory");
}

// Whether the GPU has wgmma, which sm_90a alone has.
constexpr bool kWgmma = __CUDA_ARCH__ == 900;

// 9.7.15.7: order and completion of wgmma.
MOXIE_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
MOXIE_DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
MOXIE_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// 9.7.15.5.1.2: matrix descriptor of a K-major tile of 128-byte rows under the 128-byte swizzle, aligned to 1024 bytes.
// `stride` is the bytes between groups of eight rows; with 0 one group stands for all. Adding bytes >> 4 moves along K
// or to another group of rows.
MOXIE_DEVICE uint64_t wgmma_descriptor(const void* tile, uint64_t stride = 1024) {
  const uint64_t address = (__cvta_generic_to_shared(tile) & 0x3ffff) >> 4;
  return address | (uint64_t{1} << 16) | (stride >> 4 << 32) | (uint64_t{1} << 62);
}

// 9.7.15.5: d (64 x N float32) = a (64 x 16) * b (N x 16)^T + (accumulate ? d : 0).
template <int kN>
struct Wgmma;

#define MOXIE_D16(i)                                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]), "+f"(d[i + 12]),      \
      "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define MOXIE_D32 MOXIE_D16(0), MOXIE_D16(16)
#define MOXIE_D48 MOXIE_D32, MOXIE_D16(32)
#define MOXIE_D64 MOXIE_D48, MOXIE_D16(48)
#define MOXIE_D80 MOXIE_D64, MOXIE_D16(64)
#define MOXIE_D96 MOXIE_D80, MOXIE_D16(80)
#define MOXIE_D112 MOXIE_D96, MOXIE_D16(96)
#define MOXIE_D128 MOXIE_D112, MOXIE_D16(112)
#define MOXIE_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define MOXIE_R32 MOXIE_R16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define MOXIE_R48 MOXIE_R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define MOXIE_R64 MOXIE_R48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define MOXIE_R80 MOXIE_R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define MOXIE_R96 MOXIE_R80 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define MOXIE_R112 MOXIE_R96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define MOXIE_R128 MOXIE_R112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#define MOXIE_WGMMA(n, registers, operands, a_operand, b_operand, flag)                               \
  template <>                                                                                         \
  struct Wgmma<n> {                                                                                   \
    static MOXIE_DEVICE void multiply(float (&d)[n / 2], uint64_t a, uint64_t b, bool accumulate) {   \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " flag ", 0; wgmma.mma_async.sync.aligned.m64n" #n  \
                   "k16.f32.bf16.bf16 {" registers "}, " a_operand ", " b_operand ", p, 1, 1, 0, 0;}" \
                   : operands                                                                         \
                   : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)));                          \
    }                                                                                                 \
  }
MOXIE_WGMMA(32, MOXIE_R16, MOXIE_D16(0), "%16", "%17", "%18");
MOXIE_WGMMA(64, MOXIE_R32, MOXIE_D32, "%32", "%33", "%34");
MOXIE_WGMMA(96, MOXIE_R48, MOXIE_D48, "%48", "%49", "%50");
MOXIE_WGMMA(128, MOXIE_R64, MOXIE_D64, "%64", "%65", "%66");
MOXIE_WGMMA(160, MOXIE_R80, MOXIE_D80, "%80", "%81", "%82");
MOXIE_WGMMA(192, MOXIE_R96, MOXIE_D96, "%96", "%97", "%98");
MOXIE_WGMMA(224, MOXIE_R112, MOXIE_D112, "%112", "%113", "%114");
MOXIE_WGMMA(256, MOXIE_R128, MOXIE_D128, "%128", "%129", "%130");
#undef MOXIE_WGMMA

// 9.7.15.5, with the fragment of a in registers: lane l has of rows r = l / 4 and r + 8 of its warp's 16 the pairs of
// columns 2 (l % 4) and 2 (l % 4) + 8, as a[0] (r, first), a[1] (r + 8, first), a[2] (r, second), a[3] (r + 8, second)
// (figure of 9.7.15.5.1.1). The registers may change only after wgmma.wait_group.
template <int kN>
struct WgmmaFromRegisters;

#define MOXIE_D4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define MOXIE_D8 MOXIE_D4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define MOXIE_R4 "%0,%1,%2,%3"
#define MOXIE_R8 MOXIE_R4 ",%4,%5,%6,%7"
#define MOXIE_WGMMA(n, registers, operands, a_operands, b_operand, flag)                                         \
  template <>                                                                                                    \
  struct WgmmaFromRegisters<n> {                                                                                 \
    static MOXIE_DEVICE void multiply(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate) {  \
      asm volatile("{.reg .pred p; setp.ne.b32 p, " flag ", 0; wgmma.mma_async.sync.aligned.m64n" #n             \
                   "k16.f32.bf16.bf16 {" registers "}, {" a_operands "}, " b_operand ", p, 1, 1, 0;}"            \
                   : operands                                                                                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate))); \
    }                                                                                                            \
  }
MOXIE_WGMMA(8, MOXIE_R4, MOXIE_D4, "%4,%5,%6,%7", "%8", "%9");
MOXIE_WGMMA(16, MOXIE_R8, MOXIE_D8, "%8,%9,%10,%11", "%12", "%13");
MOXIE_WGMMA(32, MOXIE_R16, MOXIE_D16(0), "%16,%17,%18,%19", "%20", "%21");
MOXIE_WGMMA(64, MOXIE_R32, MOXIE_D32, "%32,%33,%34,%35", "%36", "%37");
MOXIE_WGMMA(128, MOXIE_R64, MOXIE_D64, "%64,%65,%66,%67", "%68", "%69");
MOXIE_WGMMA(256, MOXIE_R128, MOXIE_D128, "%128,%129,%130,%131", "%132", "%133");
#undef MOXIE_WGMMA
#undef MOXIE_R4
#undef MOXIE_R8
#undef MOXIE_D4
#undef MOXIE_D8
#undef MOXIE_D16
#undef MOXIE_D32
#undef MOXIE_D48
#undef MOXIE_D64
#undef MOXIE_D80
#undef MOXIE_D96
#undef MOXIE_D112
#undef MOXIE_D128
#undef MOXIE_R16
#undef MOXIE_R32
#undef MOXIE_R48
#undef MOXIE_R64
#undef MOXIE_R80
#undef MOXIE_R96
#undef MOXIE_R112
#undef MOXIE_R128

// 9.7.14.4.8 (m16n8k16) and 9.7.14.5.15: d (16 x N float32) += a (16 x 16) * b (N x 16)^T by one warp, for a GPU that
// has no wgmma. Fragments of a and d and the descriptor of b are those of WgmmaFromRegisters, of which a warp has 16 of
// the 64 rows. It has read a and b when it returns. A descriptor holds an offset in the block's shared memory, and
// addresses there carry the block's rank in the cluster above it: `own` is any address of the block's own.
template <int kN>
MOXIE_DEVICE void multiply_in_warp(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, uint32_t own) {
  static_assert(kN == 8 || kN % 16 == 0);
  // Rows have 128 bytes, eight chunks of 16, of which row r keeps chunk c at c ^ (r % 8). Lanes 0 to 7 give the rows of
  // the first 8 x 8 matrix, which has the first chunk of k, the next eight lanes those of its second chunk.
  const uint32_t first = (own & ~0xffffffu) | (static_cast<uint32_t>(b) & 0x3fff) << 4, lane = threadIdx.x % 32;
  const uint32_t tile = first & ~127u, chunk = ((first >> 4 & 7) + lane / 8 % 2) ^ lane % 8;
  const uint32_t row = tile + (lane / 16 * 8 + lane % 8) * 128 + chunk * 16;
  const auto multiply = [&](int at, uint32_t low, uint32_t high) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[at]), "+f"(d[at + 1]), "+f"(d[at + 2]), "+f"(d[at + 3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
  };
  if constexpr (kN == 8) {
    uint32_t low, high;
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(low), "=r"(high)
                 : "r"(row)
                 : "memory");
    multiply(0, low, high);
  } else {
#pragma unroll
    for (int n = 0; n < kN; n += 16) {
      uint32_t v[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                   : "r"(row + n * 128)
                   : "memory");
      multiply(n / 2, v[0], v[1]);
      multiply(n / 2 + 4, v[2], v[3]);
    }
  }
}

}  // namespace moxie::kernel
