// SPDX-License-Identifier: Apache-2.0
// NVRTC: loading it and calling it.
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <nvrtc.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "jit/jit.h"
#include "jit/search.h"
#include "moxie/error.h"

namespace moxie::jit {
namespace {

namespace fs = std::filesystem;

constexpr int kOldest = 1208;  // major * 100 + minor; the first that knows sm_100a

#define MOXIE_NVRTC_FUNCTIONS(X) \
  X(nvrtcVersion)                \
  X(nvrtcGetErrorString)         \
  X(nvrtcCreateProgram)          \
  X(nvrtcDestroyProgram)         \
  X(nvrtcCompileProgram)         \
  X(nvrtcGetProgramLogSize)      \
  X(nvrtcGetProgramLog)          \
  X(nvrtcGetPTXSize)             \
  X(nvrtcGetPTX)                 \
  X(nvrtcGetCUBINSize)           \
  X(nvrtcGetCUBIN)

// NVRTC opens its builtins by name alone; a library of that name that is loaded already answers it.
void load_builtins(const fs::path& library, int major, int minor) {
  const std::string name = fmt::format("libnvrtc-builtins.so.{}.{}", major, minor);
  std::error_code failed;
  for (const fs::path& file : {library, fs::canonical(library, failed)}) {
    if (dlopen((file.parent_path() / name).c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr) return;
  }
}

std::string first_error(const std::string& log) {
  for (size_t at = 0; at < log.size();) {
    const size_t end = std::min(log.find('\n', at), log.size());
    std::string line = log.substr(at, end - at);
    if (line.find("error") != std::string::npos) return line;
    at = end + 1;
  }
  return "no reason given";
}

}  // namespace

struct Compiler::Impl {
#define MOXIE_DECLARE(name) decltype(&::name) name = nullptr;
  MOXIE_NVRTC_FUNCTIONS(MOXIE_DECLARE)
#undef MOXIE_DECLARE
  std::string path;
  int major = 0, minor = 0;

  // Loads the library; otherwise says why not. It is never closed.
  std::string open(const std::string& name) {
    void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* reason = dlerror();
      return fmt::format("{} cannot be loaded ({})", name, reason == nullptr ? "unknown" : reason);
    }
#define MOXIE_FIND(function)                                                 \
  function = reinterpret_cast<decltype(function)>(dlsym(handle, #function)); \
  if (function == nullptr) return fmt::format("{} is no NVRTC: it has no {}", name, #function);
    MOXIE_NVRTC_FUNCTIONS(MOXIE_FIND)
#undef MOXIE_FIND
    nvrtcVersion(&major, &minor);
    if (100 * major + minor < kOldest) {
      return fmt::format("{} is NVRTC {}.{}, {}.{} or newer is needed", name, major, minor, kOldest / 100,
                         kOldest % 100);
    }
    link_map* map = nullptr;
    path = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : name;
    load_builtins(path, major, minor);
    return "";
  }
};

// The one compiler of the process, looked for once; `why` receives the reason when there is none.
const Compiler* Compiler::find(std::string* why) {
  struct Found {
    Compiler compiler;
    std::string reasons;
  };
  static const Found* found = [] {
    auto* result = new Found;
    std::vector<std::string> names;
    for (const fs::path& file : nvrtc_candidates()) names.push_back(file.string());
    const char* value = std::getenv("MOXIE_NVRTC");
    const std::string named = value == nullptr ? "" : value;
    if (named.empty()) {
      for (std::string& name : nvrtc_names()) names.push_back(std::move(name));
    }
    for (const std::string& name : names) {
      auto impl = std::make_shared<Impl>();
      const std::string reason = impl->open(name);
      if (reason.empty()) {
        result->compiler.impl_ = std::move(impl);
        return result;
      }
      result->reasons += (result->reasons.empty() ? "" : "; ") + reason;
    }
    if (names.empty()) result->reasons = fmt::format("MOXIE_NVRTC names {}, where there is none", named);
    if (!named.empty()) return result;
    result->reasons +=
        "; looked beside the library, in the Python environment, in CUDA_HOME, CUDA_PATH, LD_LIBRARY_PATH, "
        "/usr/local/cuda "
        "and the dynamic linker's search path (MOXIE_NVRTC names another; `pip install nvidia-cuda-nvrtc` brings one)";
    return result;
  }();
  if (found->compiler.impl_ == nullptr) {
    if (why != nullptr) *why = found->reasons;
    return nullptr;
  }
  return &found->compiler;
}

const Compiler* Compiler::find() noexcept {
  try {
    return find(nullptr);
  } catch (...) {
    return nullptr;
  }
}

const Compiler& Compiler::get() {
  std::string why;
  const Compiler* compiler = find(&why);
  if (compiler == nullptr) throw Error(ErrorCode::Compile, "NVRTC, the CUDA run-time compiler, was not found: " + why);
  return *compiler;
}

std::string Compiler::version() const { return fmt::format("{}.{}", impl_->major, impl_->minor); }
std::string Compiler::path() const { return impl_->path; }

std::string Compiler::compile(const Request& request, std::string* log) const {
  const Impl& call = *impl_;
  std::vector<const char*> texts, names;
  for (const IncludedHeader& header : headers_of(request, call.major)) {
    names.push_back(header.name);
    texts.push_back(header.text);
  }
  const bool cubin = request.kind == ImageKind::Cubin;
  std::vector<std::string> options = compile_options(request);
  if (const char* prelude = prelude_header(call.major)) options.push_back(std::string("--pre-include=") + prelude);
  // Since 13.0 NVRTC has a cache of its own, for which it opens libcuda; Cache does that work here.
  if (call.major >= 13) options.push_back("--no-cache");
  std::vector<const char*> option_list(options.size());
  std::transform(options.begin(), options.end(), option_list.begin(),
                 [](const std::string& option) { return option.c_str(); });

  nvrtcProgram program = nullptr;
  const auto check = [&](nvrtcResult result, const char* what) {
    if (result != NVRTC_SUCCESS) {
      throw Error(ErrorCode::Compile, fmt::format("NVRTC: {}: {}", what, call.nvrtcGetErrorString(result)));
    }
  };
  check(call.nvrtcCreateProgram(&program, request.source.c_str(), "kernel.cu", static_cast<int>(names.size()),
                                texts.data(), names.data()),
        "nvrtcCreateProgram");
  const std::shared_ptr<void> guard(nullptr, [&](void*) { call.nvrtcDestroyProgram(&program); });

  const nvrtcResult result =
      call.nvrtcCompileProgram(program, static_cast<int>(option_list.size()), option_list.data());
  size_t bytes = 0;
  std::string text;
  check(call.nvrtcGetProgramLogSize(program, &bytes), "nvrtcGetProgramLogSize");
  text.resize(bytes);
  check(call.nvrtcGetProgramLog(program, text.data()), "nvrtcGetProgramLog");
  text.resize(std::strlen(text.c_str()));  // without its closing zero
  if (log != nullptr) *log = text;
  if (result != NVRTC_SUCCESS) {
    std::string sentence = fmt::format("NVRTC {} ({}) rejects a kernel: {}\n{}", version(),
                                       call.nvrtcGetErrorString(result), first_error(text), text);
    if (text.find("open source file") != std::string::npos) {
      sentence +=
          "Kernels may include Moxie's headers, those given with their sinks, and those of the CUDA Toolkit that ";
      sentence += "the library carries (docs/nvrtc.md)\n";
    }
    throw Error(ErrorCode::Compile, sentence);
  }
  std::string image;
  if (cubin) {
    check(call.nvrtcGetCUBINSize(program, &bytes), "nvrtcGetCUBINSize");
    image.resize(bytes);
    check(call.nvrtcGetCUBIN(program, image.data()), "nvrtcGetCUBIN");
  } else {
    check(call.nvrtcGetPTXSize(program, &bytes), "nvrtcGetPTXSize");
    image.resize(bytes);
    check(call.nvrtcGetPTX(program, image.data()), "nvrtcGetPTX");
    image.resize(bytes - 1);  // its closing zero
  }
  return image;
}

}  // namespace moxie::jit
