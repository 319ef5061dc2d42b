// SPDX-License-Identifier: Apache-2.0
// The driver ABI that the simulator implements: cuda.h with every name it exports. The handles that cuda.h declares are
// pointers to structs that the rooms of this folder define.
#pragma once
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL  // makes cuda.h declare every ABI name, versioned and per-thread ones too
#endif
#pragma GCC visibility push(default)
#include <cuda.h>
extern "C" {
// Not every distribution of the headers carries cudaProfiler.h, which declares these two.
CUresult CUDAAPI cuProfilerStart();
CUresult CUDAAPI cuProfilerStop();
// CUDA 13 has these.
CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type);
CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type);
CUresult CUDAAPI cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool);
}
#pragma GCC visibility pop

// Exports `plain` as another name of the function that the same file defines under its versioned name.
#define PLAIN_NAME(plain, versioned) \
  asm(".globl " #plain "\n.set " #plain ", " #versioned "\n.type " #plain ", @function")
