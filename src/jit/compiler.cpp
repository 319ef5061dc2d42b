// NVRTC: finding it and the CUDA headers that belong to it, and calling it.
#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <nvrtc.h>

#include <cstdlib>
#include <mutex>

#include "jit/jit.h"
#include "moxie/error.h"
#include "own_folders.h"

namespace moxie::jit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr int kOldest = 1203;  // major * 100 + minor; the first whose sm_90a is complete

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

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Roots of CUDA Toolkits, or of wheels laid out like one, in the order of preference.
std::vector<fs::path> toolkit_roots() {
  std::vector<fs::path> roots;
#ifdef MOXIE_CUDA_ROOT
  roots.emplace_back(MOXIE_CUDA_ROOT);
#endif
  for (const fs::path& folder : own_folders()) roots.push_back(folder / ".deps/cuda/nvidia/cu13");
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string root = variable(name); !root.empty()) roots.emplace_back(root);
  }
  roots.emplace_back("/usr/local/cuda");
  roots.emplace_back("/usr/local/cuda-13");
  return roots;
}

// Folders in which to look for the library.
std::vector<fs::path> library_folders() {
  std::vector<fs::path> folders;
  const auto add_root = [&](const fs::path& root) {
    folders.push_back(root / "lib64");
    folders.push_back(root / "lib");
  };
  const std::vector<fs::path> roots = toolkit_roots();
  size_t own = own_folders().size();
#ifdef MOXIE_CUDA_ROOT
  ++own;
#endif
  for (size_t i = 0; i < own; ++i) add_root(roots[i]);
  const std::string search = variable("LD_LIBRARY_PATH");
  for (size_t at = 0; at < search.size();) {
    const size_t end = std::min(search.find(':', at), search.size());
    if (end > at) folders.emplace_back(search.substr(at, end - at));
    at = end + 1;
  }
  for (size_t i = own; i < roots.size(); ++i) add_root(roots[i]);
  return folders;
}

// Include folders for the CUDA headers and for CCCL that fit the library at `library`.
std::vector<std::string> include_folders(const fs::path& library) {
  std::vector<fs::path> bases;
  std::error_code failed;
  const fs::path real = fs::canonical(library, failed);
  for (const fs::path& file : {library, failed ? library : real}) {
    const fs::path root = file.parent_path().parent_path();
    bases.push_back(root / "include");                             // toolkit, CUDA 13 wheels
    bases.push_back(root.parent_path() / "include");               // lib/<architecture>
    bases.push_back(root.parent_path() / "cuda_runtime/include");  // CUDA 12 wheels
    bases.push_back(root.parent_path() / "cuda_cccl/include");
  }
  for (const fs::path& root : toolkit_roots()) bases.push_back(root / "include");

  std::vector<std::string> folders;
  for (const char* marker : {"cuda_bf16.h", "cuda/std/cstdint"}) {
    for (const fs::path& base : bases) {
      fs::path found;
      if (fs::exists(base / marker, failed)) found = base;
      if (fs::exists(base / "cccl" / marker, failed)) found = base / "cccl";
      if (found.empty()) continue;
      if (folders.empty() || folders.front() != found.string()) folders.push_back(found.lexically_normal().string());
      break;
    }
  }
  return folders;
}

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
  std::vector<std::string> includes;

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
    path = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0' ? map->l_name : name;
    load_builtins(path, major, minor);
    includes = include_folders(path);
    return "";
  }
};

std::vector<fs::path> Compiler::candidates() {
  std::vector<fs::path> files;
  std::error_code failed;
  const auto add_folder = [&](const fs::path& folder) {
    for (const char* name : kNames) {
      if (fs::exists(folder / name, failed)) {
        files.push_back(folder / name);
        return;
      }
    }
  };
  if (const std::string named = variable("MOXIE_NVRTC"); !named.empty()) {
    if (fs::is_directory(named, failed)) {
      add_folder(named);
    } else if (fs::exists(named, failed)) {
      files.push_back(fs::absolute(named, failed));  // a path without a slash would be searched for
    }
    return files;
  }
  for (const fs::path& folder : library_folders()) add_folder(folder);
  return files;
}

// The one compiler of the process, looked for once; `why` receives the reason when there is none.
const Compiler* Compiler::find(std::string* why) {
  struct Found {
    Compiler compiler;
    std::string reasons;
  };
  static const Found* found = [] {
    auto* result = new Found;
    std::vector<std::string> names;
    for (const fs::path& file : candidates()) names.push_back(file.string());
    const std::string named = variable("MOXIE_NVRTC");
    if (named.empty()) names.insert(names.end(), std::begin(kNames), std::end(kNames));
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
    std::string looked;
    for (const fs::path& folder : library_folders()) looked += (looked.empty() ? "" : ", ") + folder.string();
    result->reasons += "; looked in " + looked + " and the dynamic linker's search path (MOXIE_NVRTC names another)";
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
  if (request.arch >= 100 && 100 * call.major + call.minor < 1208) {
    throw Error(ErrorCode::Compile, fmt::format("NVRTC {} at {} knows no sm_{}a; 12.8 or newer is needed", version(),
                                                call.path, request.arch));
  }
  std::vector<const char*> texts, names;
  for (const auto* headers : {&kernel_headers(), &request.headers}) {
    for (const auto& [name, text] : *headers) {
      names.push_back(name.c_str());
      texts.push_back(text.c_str());
    }
  }
  const bool cubin = request.kind == ImageKind::Cubin;
  std::vector<std::string> options = compile_options(request);
  for (const std::string& folder : call.includes) options.push_back("-I" + folder);
  // Since 13.0 NVRTC has a cache of its own, for which it opens libcuda; Cache does that work here.
  if (call.major >= 13) options.push_back("--no-cache");
  std::vector<const char*> option_list;
  option_list.reserve(options.size());
  for (const std::string& option : options) option_list.push_back(option.c_str());

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
  text.resize(bytes == 0 ? 0 : bytes - 1);  // its closing zero
  if (log != nullptr) *log = text;
  if (result != NVRTC_SUCCESS) {
    std::string folders;
    for (const std::string& folder : call.includes) folders += " " + folder;
    throw Error(ErrorCode::Compile, fmt::format("NVRTC {} ({}) rejects a kernel: {}\n{}\ninclude folders:{}", version(),
                                                call.nvrtcGetErrorString(result), first_error(text), text,
                                                folders.empty() ? " none found beside " + call.path : folders));
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
