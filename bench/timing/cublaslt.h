// SPDX-License-Identifier: Apache-2.0
// Dense products by cuBLASLt, with which the library's times are compared. cuBLASLt is loaded at run time where the
// machine has it. Its few declarations stand in cublaslt.cpp, so that nothing of it is needed to build.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moxie/device.h"

namespace moxie::timing {

class CublasLt {
 public:
  // Looks for libcublasLt.so.13 and .12: first what $MOXIE_CUBLASLT names, then by the system's search rules, then in
  // the CUDA Toolkit's folder. Returns null where there is none, and says why.
  static std::unique_ptr<CublasLt> find(std::string* why);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // D [m, n] = A [m, k] * B [n, k]^T, bf16, dense, float32 sums.
  class Product {
   public:
    ~Product();
    Product(const Product&) = delete;
    Product& operator=(const Product&) = delete;
    int algorithms() const;
    // Throws Error(Driver) when cuBLASLt reports an error.
    void run(int algorithm, const void* a, const void* b, void* d, void* workspace, Stream stream) const;

   private:
    friend class CublasLt;
    Product(const CublasLt& owner, int64_t m, int64_t n, int64_t k);
    struct State;
    std::unique_ptr<State> state_;
  };
  static constexpr size_t kWorkspaceBytes = 64 << 20;
  std::unique_ptr<Product> product(int64_t m, int64_t n, int64_t k) const;

 private:
  CublasLt() = default;
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace moxie::timing
