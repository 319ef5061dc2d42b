// SPDX-License-Identifier: Apache-2.0
// Modules from forms, the driver calls that run them, and the processes these are made in.
#include "tests/bits/machine.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace bits {

std::string module_of(const Forms& forms, size_t first, size_t last) {
  std::string text = ".version 8.7\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 smem[];\n";
  for (size_t i = first; i < last; ++i) {
    const Form& form = forms[i];
    text += "// " + form.name + "\n.visible .entry k" + std::to_string(i) + "(.param .u64 p_in, .param .u64 p_out" +
            (form.tensor.empty() ? "" : ", .param .align 64 .b8 p_map[128]") + ")\n";
    text += ".maxntid " + std::to_string(form.threads) + ", 1, 1\n";
    if (form.cluster > 1) text += ".explicitcluster\n.reqnctapercluster " + std::to_string(form.cluster) + ", 1, 1\n";
    text +=
        "{\n .reg .b64 in, out;\n .reg .b32 t, t_block, t_size;\n ld.param.u64 in, [p_in];\n ld.param.u64 out, "
        "[p_out];\n"
        " mov.u32 t_block, %ctaid.x;\n mov.u32 t_size, %ntid.x;\n mov.u32 t, %tid.x;\n"
        " mad.lo.u32 t, t_block, t_size, t;\n";
    if (!form.tensor.empty()) text += " .reg .b64 map;\n mov.b64 map, p_map;\n cvta.param.u64 map, map;\n";
    text += " " + form.body + " ret;\n}\n";
  }
  return text;
}

std::vector<uint8_t> input_of(const Form& form) {
  std::vector<uint8_t> bytes(form.in_bytes);
  Random random(seed_of(form.name));
  if (form.fill) form.fill(random, bytes.data());
  return bytes;
}

#define FUNCTIONS(X)          \
  X(cuInit)                   \
  X(cuDeviceGet)              \
  X(cuDeviceGetName)          \
  X(cuDriverGetVersion)       \
  X(cuDevicePrimaryCtxRetain) \
  X(cuDevicePrimaryCtxReset)  \
  X(cuCtxSetCurrent)          \
  X(cuCtxSynchronize)         \
  X(cuModuleLoadData)         \
  X(cuModuleLoadDataEx)       \
  X(cuModuleUnload)           \
  X(cuModuleGetFunction)      \
  X(cuFuncSetAttribute)       \
  X(cuMemAlloc)               \
  X(cuMemFree)                \
  X(cuMemcpyHtoD)             \
  X(cuMemcpyDtoH)             \
  X(cuMemsetD8)               \
  X(cuTensorMapEncodeTiled)   \
  X(cuLaunchKernel)           \
  X(cuGetErrorString)
#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)

struct Machine::Driver {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
#define DECLARE(name) decltype(&::name) p_##name = nullptr;
  FUNCTIONS(DECLARE)
#undef DECLARE
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUdeviceptr in = 0, out = 0;
  size_t in_size = 0, out_size = 0;

  Driver() {
    if (library == nullptr) throw std::runtime_error(std::string("no driver: ") + dlerror());
      // cuda.h maps a function to the newest version's name by a macro, which must be expanded first.
#define LOAD(name)                                                                \
  p_##name = reinterpret_cast<decltype(p_##name)>(dlsym(library, TEXT_OF(name))); \
  if (p_##name == nullptr) throw std::runtime_error("the driver has no " #name);
    FUNCTIONS(LOAD)
#undef LOAD
    check(p_cuInit(0));
    check(p_cuDeviceGet(&device, 0));
    begin();
  }
  ~Driver() {
    if (context != nullptr) p_cuDevicePrimaryCtxReset(device);
  }

  void check(CUresult result) const {
    if (result == CUDA_SUCCESS) return;
    const char* text = nullptr;
    p_cuGetErrorString(result, &text);
    throw std::runtime_error(text == nullptr ? "error " + std::to_string(result) : text);
  }

  void begin() {
    check(p_cuDevicePrimaryCtxRetain(&context, device));
    check(p_cuCtxSetCurrent(context));
  }
  void load(const std::string& text) {
    unload();
    char log[4096] = {};
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
    const CUresult result = p_cuModuleLoadDataEx(&module, text.c_str(), 2, options, values);
    if (result == CUDA_SUCCESS) return;
    module = nullptr;
    if (log[0] != 0) throw std::runtime_error(log);
    check(result);
  }
  void unload() {
    if (module != nullptr) p_cuModuleUnload(module);
    module = nullptr;
  }

  static void grow(Driver& d, CUdeviceptr& buffer, size_t& size, size_t wanted) {
    if (size >= wanted) return;
    if (buffer != 0) d.p_cuMemFree(buffer);
    buffer = 0;
    size = std::max<size_t>(wanted, 1 << 20);
    d.check(d.p_cuMemAlloc(&buffer, size));
  }

  void launch(const Form& form, const std::string& entry, std::vector<uint8_t>& result) {
    const std::vector<uint8_t> input = input_of(form);
    grow(*this, in, in_size, input.size());
    grow(*this, out, out_size, form.out_bytes);
    if (!input.empty()) check(p_cuMemcpyHtoD(in, input.data(), input.size()));
    check(p_cuMemsetD8(out, 0xcd, form.out_bytes));
    if (form.output_is_filled) check(p_cuMemcpyHtoD(out, input.data(), std::min(input.size(), form.out_bytes)));
    CUtensorMap map;
    if (!form.tensor.empty()) {
      const Tensor& t = form.tensor[0];
      cuuint64_t strides[4] = {};  // the driver refuses a null pointer for rank 1, too
      std::copy(t.strides.begin(), t.strides.end(), strides);
      check(p_cuTensorMapEncodeTiled(&map, t.type, static_cast<cuuint32_t>(t.dims.size()),
                                     reinterpret_cast<void*>((t.of_output ? out : in) + t.offset), t.dims.data(),
                                     strides, t.box.data(), t.steps.data(), t.interleave, t.swizzle,
                                     CU_TENSOR_MAP_L2_PROMOTION_NONE, t.fill));
    }
    CUfunction function;
    check(p_cuModuleGetFunction(&function, module, entry.c_str()));
    if (form.shared > 48 * 1024)
      check(p_cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                 static_cast<int>(form.shared)));
    void* arguments[] = {&in, &out, &map};
    check(p_cuLaunchKernel(function, form.blocks, 1, 1, form.threads, 1, 1, form.shared, nullptr, arguments, nullptr));
    check(p_cuCtxSynchronize());
    result.resize(form.out_bytes);
    check(p_cuMemcpyDtoH(result.data(), out, result.size()));
  }
};

Machine::Machine() : driver_(std::make_unique<Driver>()) {}
Machine::~Machine() = default;

std::string Machine::describe() const {
  char name[256] = {};
  int version = 0;
  driver_->check(driver_->p_cuDeviceGetName(name, sizeof name, driver_->device));
  driver_->check(driver_->p_cuDriverGetVersion(&version));
  return std::string(name) + ", driver " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void Machine::run(const Forms& forms, size_t first, size_t end, size_t forms_a_module,
                  const std::function<void(const Result&)>& done) {
  Driver& d = *driver_;
  while (first < end) {
    const size_t last = std::min(end, first + forms_a_module);
    bool whole = true;
    try {
      d.load(module_of(forms, first, last));
    } catch (const std::runtime_error&) {
      whole = false;
    }
    for (; first < last; ++first) {
      Result result{forms[first].name, "", {}};
      try {
        if (!whole) d.load(module_of(forms, first, first + 1));
      } catch (const std::runtime_error& error) {
        result.error = error.what();
        done(result);
        continue;
      }
      try {
        d.launch(forms[first], "k" + std::to_string(first), result.bytes);
      } catch (const std::runtime_error& error) {
        result.error = error.what();
        result.bytes.clear();
        done(result);
        return;
      }
      done(result);
    }
  }
}

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(60);  // without a word of a child: a module's compilation, or one form

void put_text(FILE* out, const std::string& text) {
  const uint64_t size = text.size();
  std::fwrite(&size, sizeof size, 1, out);
  std::fwrite(text.data(), 1, text.size(), out);
}

[[noreturn]] void run_child(const Forms& forms, size_t first, size_t last, size_t forms_a_module, FILE* out) {
  try {
    Machine machine;
    put_text(out, machine.describe());
    machine.run(forms, first, last, forms_a_module, [&](const Result& result) {
      put_text(out, result.error);
      put_text(out, std::string(result.bytes.begin(), result.bytes.end()));
      std::fflush(out);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "instruction_bits: %s\n", error.what());
  }
  std::fflush(stderr);
  std::fflush(out);
  _exit(0);
}

// A process that runs the forms [next, last) and tells each result.
struct Child {
  size_t next = 0, last = 0;
  pid_t process = 0;
  int pipe = -1;
  std::string heard;  // not a whole text yet
  bool described = false, failed = false;
  Clock::time_point word{};

  void start(const Forms& forms, size_t forms_a_module) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    std::fflush(stdout);
    process = fork();
    if (process < 0) throw std::runtime_error("no process");
    if (process == 0) {
      close(ends[0]);
      run_child(forms, next, last, forms_a_module, fdopen(ends[1], "wb"));
    }
    close(ends[1]);
    pipe = ends[0];
    heard.clear();
    described = failed = false;
    word = Clock::now();
  }

  bool take(size_t& at, std::string& text) const {
    uint64_t size = 0;
    if (heard.size() < at + sizeof size) return false;
    std::memcpy(&size, heard.data() + at, sizeof size);
    if (heard.size() < at + sizeof size + size) return false;
    text = heard.substr(at + sizeof size, size);
    at += sizeof size + size;
    return true;
  }

  // False at the end of what it says.
  bool listen(std::string& machine, std::vector<Result>& results) {
    char bytes[1 << 16];
    const ssize_t count = read(pipe, bytes, sizeof bytes);
    if (count <= 0) return false;
    heard.append(bytes, static_cast<size_t>(count));
    word = Clock::now();
    std::string error, result;
    size_t used = 0;
    for (size_t at = 0;; used = at) {
      if (!described) {
        if (!take(at, machine)) break;
        described = true;
        continue;
      }
      if (next == last || !take(at, error) || !take(at, result)) break;
      results[next].error = error;
      results[next].bytes.assign(result.begin(), result.end());
      failed = !error.empty();
      ++next;
    }
    heard.erase(0, used);
    return true;
  }

  // How it ended, in words.
  std::string end() {
    close(pipe);
    pipe = -1;
    int status = 0;
    waitpid(process, &status, 0);
    return WIFSIGNALED(status) ? "the process was ended by signal " + std::to_string(WTERMSIG(status))
                               : "the process ended";
  }
};

}  // namespace

std::string run_isolated(const Forms& forms, const Isolation& how, std::vector<Result>& results) {
  const Clock::time_point end = Clock::now() + std::chrono::seconds(how.seconds);
  results.clear();
  for (const Form& form : forms) results.push_back({form.name, "not reached in the time given", {}});
  std::vector<Child> children;
  for (size_t i = 0; i < how.processes; ++i) {
    const size_t first = forms.size() * i / how.processes, last = forms.size() * (i + 1) / how.processes;
    if (first == last) continue;
    Child& child = children.emplace_back();
    child.next = first;
    child.last = last;
    child.start(forms, how.forms_a_module);
  }
  std::string machine;
  while (!children.empty()) {
    std::vector<pollfd> pipes;
    for (const Child& child : children) pipes.push_back({child.pipe, POLLIN, 0});
    poll(pipes.data(), pipes.size(), 100);
    const Clock::time_point now = Clock::now();
    for (size_t i = children.size(); i-- > 0;) {
      Child& child = children[i];
      if (pipes[i].revents != 0 && child.listen(machine, results)) continue;
      const bool late = now > child.word + kPatience, out_of_time = how.seconds != 0 && now > end;
      if (pipes[i].revents == 0 && !late && !out_of_time) continue;
      if (late || out_of_time) kill(child.process, SIGKILL);
      const std::string words = child.end();
      if (!child.described && !late && !out_of_time) {
        for (Child& other : children)
          if (other.pipe >= 0) kill(other.process, SIGKILL), other.end();
        throw std::runtime_error("the machine cannot be used");
      }
      // A child that ended without a word about its last form.
      if (child.next < child.last && !child.failed && !out_of_time)
        results[child.next++].error = late ? "nothing for " + std::to_string(kPatience.count()) + " seconds" : words;
      if (child.next == child.last || out_of_time)
        children.erase(children.begin() + static_cast<std::ptrdiff_t>(i));
      else
        child.start(forms, how.forms_a_module);
    }
  }
  if (machine.empty()) throw std::runtime_error("the machine cannot be used");
  return machine;
}

}  // namespace bits
