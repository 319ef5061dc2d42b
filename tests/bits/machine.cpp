// Modules from forms, the driver calls that run them, and the processes these are made in.
#include "tests/bits/machine.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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
      check(p_cuTensorMapEncodeTiled(&map, t.type, static_cast<cuuint32_t>(t.dims.size()),
                                     reinterpret_cast<void*>((t.of_output ? out : in) + t.offset), t.dims.data(),
                                     t.strides.data(), t.box.data(), t.steps.data(), t.interleave, t.swizzle,
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

void Machine::run(const Forms& forms, size_t first, size_t forms_a_module,
                  const std::function<void(const Result&)>& done) {
  Driver& d = *driver_;
  while (first < forms.size()) {
    const size_t last = std::min(forms.size(), first + forms_a_module);
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

constexpr unsigned kSecondsAModule = 300;  // to compile one and run its forms

void put_text(FILE* out, const std::string& text) {
  const uint64_t size = text.size();
  std::fwrite(&size, sizeof size, 1, out);
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
}
bool get_text(FILE* in, std::string& text) {
  uint64_t size = 0;
  if (std::fread(&size, sizeof size, 1, in) != 1) return false;
  text.resize(size);
  return std::fread(text.data(), 1, text.size(), in) == text.size();
}

[[noreturn]] void run_child(const Forms& forms, size_t first, size_t forms_a_module, FILE* out) {
  try {
    Machine machine;
    put_text(out, machine.describe());
    alarm(kSecondsAModule);
    machine.run(forms, first, forms_a_module, [&](const Result& result) {
      alarm(kSecondsAModule);
      put_text(out, result.error);
      put_text(out, std::string(result.bytes.begin(), result.bytes.end()));
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "instruction_bits: %s\n", error.what());
  }
  std::fflush(stderr);
  _exit(0);
}

}  // namespace

std::string run_isolated(const Forms& forms, size_t forms_a_module, std::vector<Result>& results) {
  std::string machine;
  while (results.size() < forms.size()) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("no process");
    if (child == 0) {
      close(ends[0]);
      run_child(forms, results.size(), forms_a_module, fdopen(ends[1], "wb"));
    }
    close(ends[1]);
    FILE* const in = fdopen(ends[0], "rb");
    bool failed = false;
    if (get_text(in, machine)) {
      for (std::string error, bytes; results.size() < forms.size() && get_text(in, error) && get_text(in, bytes);) {
        results.push_back({forms[results.size()].name, error, {bytes.begin(), bytes.end()}});
        failed = !error.empty();
      }
    }
    std::fclose(in);
    int status = 0;
    waitpid(child, &status, 0);
    if (machine.empty()) throw std::runtime_error("the machine cannot be used");
    // A child that ended without a word about its last form.
    if (results.size() < forms.size() && !failed)
      results.push_back({forms[results.size()].name,
                         WIFSIGNALED(status) ? "the process was ended by signal " + std::to_string(WTERMSIG(status))
                                             : "the process ended",
                         {}});
  }
  return machine;
}

}  // namespace bits
