// SPDX-License-Identifier: Apache-2.0
// Runs a kernel of fast.cu (https://github.com/pranjalssh/fast.cu), whose own main() compares with cuBLAS on matrices
// of 8,192 rows: here with sums in double precision, on matrices of the size asked for.
// usage: fast_cu NUMBER SIZE
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cuda/barrier>
#include <random>
#include <vector>

#include "device_memory.cuh"

// What the kernels expect of the file that includes them.
typedef __nv_bfloat16 bf16;
#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))
inline void cudaCheck(cudaError_t error) { check(error); }

#include "examples/matmul/matmul_1.cuh"
#include "examples/matmul/matmul_2.cuh"
#include "examples/matmul/matmul_3.cuh"
#include "examples/matmul/matmul_4.cuh"
#include "examples/matmul/matmul_5.cuh"
#include "examples/matmul/matmul_6.cuh"
#include "examples/matmul/matmul_7.cuh"
#include "examples/matmul/matmul_8.cuh"
#include "examples/matmul/matmul_9.cuh"

// These use names of the others.
#include "examples/matmul/matmul_10.cuh"
#include "examples/matmul/matmul_11.cuh"
#include "examples/matmul/matmul_12.cuh"

int main(int argc, char** argv) {
  const int number = argc > 1 ? std::atoi(argv[1]) : 0, size = argc > 2 ? std::atoi(argv[2]) : 0;
  void (*const kernels[])(int, int, int, bf16*, bf16*, bf16*, int*) = {runKernel3,  runKernel4, runKernel5, runKernel6,
                                                                       runKernel7,  runKernel8, runKernel9, runKernel10,
                                                                       runKernel11, runKernel12};
  if (number < 1 || number > 12 || size < 1) return std::puts("usage: fast_cu NUMBER SIZE"), 2;

  const auto count = static_cast<size_t>(size) * size;
  std::vector<bf16> a(count), b(count), c(count);
  std::mt19937 random(1);
  std::uniform_int_distribution<int> small(-4, 4);  // whose sums are exact
  for (bf16& value : a) value = __float2bfloat16(static_cast<float>(small(random)));
  for (bf16& value : b) value = __float2bfloat16(static_cast<float>(small(random)));
  bf16 *at_a = on_device(a), *at_b = on_device(b), *at_c = on_device(c);
  int* const times = on_device(std::vector<int>(static_cast<size_t>(size) * 128, -1));
  if (number == 1) {
    runKernel1(size, size, size, at_a, at_b, at_c);
  } else if (number == 2) {
    runKernel2(size, size, size, at_a, at_b, at_c);
  } else {
    kernels[number - 3](size, size, size, at_a, at_b, at_c, times);
  }
  cudaCheck(cudaGetLastError());
  cudaCheck(cudaDeviceSynchronize());
  cudaCheck(cudaMemcpy(c.data(), at_c, count * sizeof(bf16), cudaMemcpyDeviceToHost));

  // C by columns is A by rows times B by columns.
  size_t wrong = 0;
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < size; ++j) {
      double sum = 0;
      for (int k = 0; k < size; ++k)
        sum += static_cast<double>(__bfloat162float(a[size_t(i) * size + k])) *
               static_cast<double>(__bfloat162float(b[size_t(j) * size + k]));
      const float expected = __bfloat162float(__float2bfloat16(static_cast<float>(sum)));
      wrong += __bfloat162float(c[size_t(j) * size + i]) != expected;
    }
  }
  std::printf("%zu of %zu elements are wrong: %s\n", wrong, count, wrong == 0 ? "Passed" : "Failed");
  return wrong == 0 ? 0 : 1;
}
