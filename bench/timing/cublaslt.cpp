// SPDX-License-Identifier: Apache-2.0
// See cublaslt.h.
#include "bench/timing/cublaslt.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <fmt/format.h>

#include "moxie/error.h"

namespace moxie::timing {

namespace {

// Values and structures of cublasLt.h. They have been the same since CUDA 11.
constexpr int kCompute32F = 68, kReal32F = 0, kReal16BF = 14, kTransposeA = 3, kTranspose = 1, kPreferenceWorkspace = 1;
constexpr int kMostAlgorithms = 8;
struct Algorithm {
  uint64_t data[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

void check(int status, const char* what) {
  if (status != 0) throw Error(ErrorCode::Driver, fmt::format("{}: cuBLAS status {}", what, status));
}

}  // namespace

struct CublasLt::Library {
  void* handle = nullptr;  // cublasLtHandle_t
  int (*create)(void**);
  int (*destroy)(void*);
  int (*create_desc)(void**, int, int);
  int (*destroy_desc)(void*);
  int (*set_desc)(void*, int, const void*, size_t);
  int (*create_layout)(void**, int, uint64_t, uint64_t, int64_t);
  int (*destroy_layout)(void*);
  int (*create_preference)(void**);
  int (*destroy_preference)(void*);
  int (*set_preference)(void*, int, const void*, size_t);
  int (*heuristics)(void*, void*, void*, void*, void*, void*, void*, int, Algorithm*, int*);
  int (*multiply)(void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
                  void*, void*, const Algorithm*, void*, size_t, Stream);
};

std::unique_ptr<CublasLt> CublasLt::find(std::string* why) {
  std::vector<std::string> names;
  if (const char* given = getenv("MOXIE_CUBLASLT")) names.emplace_back(given);
  for (const char* version : {"13", "12"}) {
    const std::string name = fmt::format("libcublasLt.so.{}", version);
    names.push_back(name);
    if (const char* home = getenv("CUDA_HOME")) names.push_back(fmt::format("{}/lib64/{}", home, name));
    names.push_back("/usr/local/cuda/lib64/" + name);
  }
  void* opened = nullptr;
  for (const std::string& name : names) {
    opened = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened != nullptr) break;
  }
  if (opened == nullptr) {
    *why = "no libcublasLt.so.13 or .12 on this machine (MOXIE_CUBLASLT may name one)";
    return nullptr;
  }
  auto library = std::make_unique<Library>();
  bool complete = true;
  const auto bind = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, name));
    complete = complete && function != nullptr;
  };
  bind(library->create, "cublasLtCreate");
  bind(library->destroy, "cublasLtDestroy");
  bind(library->create_desc, "cublasLtMatmulDescCreate");
  bind(library->destroy_desc, "cublasLtMatmulDescDestroy");
  bind(library->set_desc, "cublasLtMatmulDescSetAttribute");
  bind(library->create_layout, "cublasLtMatrixLayoutCreate");
  bind(library->destroy_layout, "cublasLtMatrixLayoutDestroy");
  bind(library->create_preference, "cublasLtMatmulPreferenceCreate");
  bind(library->destroy_preference, "cublasLtMatmulPreferenceDestroy");
  bind(library->set_preference, "cublasLtMatmulPreferenceSetAttribute");
  bind(library->heuristics, "cublasLtMatmulAlgoGetHeuristic");
  bind(library->multiply, "cublasLtMatmul");
  if (!complete || library->create(&library->handle) != 0) {
    *why = complete ? "cublasLtCreate failed" : "libcublasLt lacks functions";
    return nullptr;
  }
  std::unique_ptr<CublasLt> found(new CublasLt);
  found->library_ = std::move(library);
  return found;
}

CublasLt::~CublasLt() {
  if (library_ != nullptr) library_->destroy(library_->handle);
}

// The matrices of cuBLAS lie column by column. To it the product is D^T = B * A^T, with B marked as transposed.
struct CublasLt::Product::State {
  const Library* library;
  void *desc = nullptr, *a = nullptr, *b = nullptr, *d = nullptr;
  Algorithm found[kMostAlgorithms];
  int count = 0;

  ~State() {
    for (void* layout : {a, b, d}) {
      if (layout != nullptr) library->destroy_layout(layout);
    }
    if (desc != nullptr) library->destroy_desc(desc);
  }
};

CublasLt::Product::Product(const CublasLt& owner, int64_t m, int64_t n, int64_t k) : state_(new State) {
  State& s = *state_;
  const Library& call = *owner.library_;
  s.library = &call;
  check(call.create_desc(&s.desc, kCompute32F, kReal32F), "cublasLtMatmulDescCreate");
  check(call.set_desc(s.desc, kTransposeA, &kTranspose, sizeof(kTranspose)), "cublasLtMatmulDescSetAttribute");
  check(call.create_layout(&s.b, kReal16BF, uint64_t(k), uint64_t(n), k), "cublasLtMatrixLayoutCreate");
  check(call.create_layout(&s.a, kReal16BF, uint64_t(k), uint64_t(m), k), "cublasLtMatrixLayoutCreate");
  check(call.create_layout(&s.d, kReal16BF, uint64_t(n), uint64_t(m), n), "cublasLtMatrixLayoutCreate");
  void* preference = nullptr;
  check(call.create_preference(&preference), "cublasLtMatmulPreferenceCreate");
  call.set_preference(preference, kPreferenceWorkspace, &kWorkspaceBytes, sizeof(kWorkspaceBytes));
  const int status =
      call.heuristics(call.handle, s.desc, s.b, s.a, s.d, s.d, preference, kMostAlgorithms, s.found, &s.count);
  call.destroy_preference(preference);
  check(status, "cublasLtMatmulAlgoGetHeuristic");
}

CublasLt::Product::~Product() = default;

int CublasLt::Product::algorithms() const { return state_->count; }

void CublasLt::Product::run(int algorithm, const void* a, const void* b, void* d, void* workspace,
                            Stream stream) const {
  const State& s = *state_;
  const float alpha = 1, beta = 0;
  check(s.library->multiply(s.library->handle, s.desc, &alpha, b, s.b, a, s.a, &beta, d, s.d, d, s.d,
                            &s.found[algorithm], workspace, kWorkspaceBytes, stream),
        "cublasLtMatmul");
}

std::unique_ptr<CublasLt::Product> CublasLt::product(int64_t m, int64_t n, int64_t k) const {
  return std::unique_ptr<Product>(new Product(*this, m, n, k));
}

}  // namespace moxie::timing
