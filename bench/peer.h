// SPDX-License-Identifier: Apache-2.0
// The C interface of a contender in bench/peers.py: a shared library that exports these functions can be named there
// with --peer NAME=PATH. Nothing here knows CUDA or Moxie, so that a peer may be built by any compiler.
//
//   D[g] = A[g] * B[g]^T, pre = D + bias[g], out = activation(pre); both operands K-major, A bf16, float32 sums.
//   The rows of A are sorted by group; ends[g] is the end of group g's.
//   B is bf16 or MXFP4: codes E2M1, the first of two in the low nibble, and for every 32 of them a scale E8M0.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum PeerActivation { PEER_NONE = 0, PEER_SWIGLU = 6, PEER_SWIGLU_OAI = 7 };  // numbered as moxie::Activation
enum PeerWeights { PEER_BF16 = 0, PEER_MXFP4 = 1 };

struct PeerProblem {
  int64_t groups, rows, n, k;  // rows: of all groups; n: before a gate, interleaved (columns 2i, 2i + 1), halves it
  int64_t expected_rows;       // of a typical group; 0: not known
  int32_t activation;          // PeerActivation
  int32_t bias;                // 0 or 1
  int32_t pre, out;            // which results are stored: 0 or 1
  // Choices of a kernel, where the peer has any; -1 and 0: its own choice.
  int32_t schedule;  // 0 cooperative, 1 ping-pong
  int32_t tile_m, tile_n;
  int32_t multicast;  // 0 none, 1 A, 2 B, 3 either
  int32_t serial;     // 1: no programmatic dependent launch
  int32_t variant;    // 0 to peer_variants() - 1
  int32_t waits;      // 1: nothing is read before the preceding kernel has ended
  int32_t weights;    // PeerWeights
};

// Device pointers, except host_ends. pre [rows, n], out [rows, n] or [rows, n / 2], bias [groups, n]: bf16.
struct PeerTensors {
  const void* a;             // [rows, k]
  const void* b;             // [groups, n, k]; MXFP4: what peer_prepare_weights() wrote
  const void* bias;          // or null
  const int32_t* ends;       // [groups]
  const int32_t* host_ends;  // the same, for peers that must know the sizes on the host
  void* pre;                 // or null
  void* out;                 // or null
  void* workspace;
  float alpha, limit;  // PEER_SWIGLU_OAI
};

#define PEER_EXPORT __attribute__((visibility("default")))

// What went wrong in the last call of this thread that failed.
PEER_EXPORT const char* peer_error(void);
// How many kernels are worth trying, at least 1. peers.py takes the fastest.
PEER_EXPORT int32_t peer_variants(void);
// Compiles and loads the kernel for a problem. Returns null where it is refused, and the caller may go on with others.
PEER_EXPORT void* peer_create(const struct PeerProblem* problem);
PEER_EXPORT int64_t peer_workspace_bytes(void* created);
// MXFP4: bytes of the weights as the kernel reads them, and what makes them of codes [groups, n, k / 2] and scales
// [groups, n, k / 32], once and not timed; it has ended when the call returns. Returns 0 when done.
PEER_EXPORT int64_t peer_weight_bytes(void* created);
PEER_EXPORT int32_t peer_prepare_weights(void* created, const void* codes, const void* scales, void* prepared);
PEER_EXPORT const char* peer_describe(void* created);  // the kernel, in a few words
// Ties a kernel to tensors. Whatever can be prepared once is prepared here and not timed. Returns null where refused.
PEER_EXPORT void* peer_bind(void* created, const struct PeerTensors* tensors);
// Launches asynchronously on the stream (a cudaStream_t), also while it is captured into a graph. Returns 0 when done.
PEER_EXPORT int32_t peer_launch(void* bound, void* stream);
PEER_EXPORT void peer_unbind(void* bound);
PEER_EXPORT void peer_destroy(void* created);

#ifdef __cplusplus
}
#endif
