// SPDX-License-Identifier: Apache-2.0
// Proves the simulator able to fail: takes the PTX of the library's kernels, removes or bends one synchronisation at a
// time, and runs each mutant in several orders. A mutant is killed when the simulator reports a hazard or an output is
// wrong; one that survives must be explained in docs/mutants.md.
#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "cases.h"
#include "device_state.h"
#include "jit/jit.h"
#include "jit/source.h"
#include "mutate.h"
#include "sim/machine/environment.h"
#include "sim/run/run.h"
#include "sim/translate/build_kernel.h"
#include "tests/support/planned.h"

namespace moxie::mutants {
namespace {

using test::Buffer;

// Of processor time. A simulator with a sanitizer's code in it takes some ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSecondsOfMutant = 600;
#else
constexpr int kSecondsOfMutant = 60;
#endif

// Most mutants are killed in the first. Those that leave a gap which only some interleavings of warps fall into need
// luck, and get several draws.
constexpr int kRandomOrders = 8;
constexpr int kOrders = 2 + kRandomOrders;
sim::Order order_of(int index) {
  if (index < 2) return {index == 0 ? sim::Mode::Eager : sim::Mode::Lazy, 0};
  return {sim::Mode::Random, uint64_t(index - 1)};
}
std::string order_name(int index) {
  return index == 0 ? "eager" : index == 1 ? "lazy" : fmt::format("random:{}", index - 1);
}

// ---- the launch ----------------------------------------------------------------------------------

template <class F>
F driver_function(const char* name) {
  static void* const library = dlopen(test::device().info().driver_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  void* const found = library ? dlsym(library, name) : nullptr;
  if (!found) throw std::runtime_error(fmt::format("{} has no {}", test::device().info().driver_path, name));
  return reinterpret_cast<F>(found);
}

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) throw std::runtime_error(fmt::format("{} returned {}", what, int(result)));
}
#define MOXIE_CALL(name, ...) check(driver_function<decltype(&name)>(MOXIE_TEXT(name))(__VA_ARGS__), #name)
#define MOXIE_TEXT(name) MOXIE_TEXT_OF(name)
#define MOXIE_TEXT_OF(name) #name

// The device's context, current while this lives.
class Current {
 public:
  Current() {
    CUcontext context = nullptr;
    MOXIE_CALL(cuDevicePrimaryCtxRetain, &context, 0);
    MOXIE_CALL(cuCtxPushCurrent, context);
  }
  ~Current() {
    CUcontext popped = nullptr;
    driver_function<decltype(&::cuCtxPopCurrent)>("cuCtxPopCurrent_v2")(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

// The launches that the library makes of a call, as a captured graph shows them.
std::vector<CUDA_KERNEL_NODE_PARAMS> capture(const std::function<void(Stream)>& call) {
  const Current current;
  CUstream stream = nullptr;
  MOXIE_CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  MOXIE_CALL(cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  call(stream);
  CUgraph graph = nullptr;  // kept: the parameters lie in it
  MOXIE_CALL(cuStreamEndCapture, stream, &graph);
  size_t count = 0;
  MOXIE_CALL(cuGraphGetNodes, graph, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  MOXIE_CALL(cuGraphGetNodes, graph, nodes.data(), &count);
  std::vector<CUDA_KERNEL_NODE_PARAMS> launches(count);
  for (size_t i = 0; i < count; ++i) MOXIE_CALL(cuGraphKernelNodeGetParams, nodes[i], &launches[i]);
  return launches;
}

// ---- one kernel ----------------------------------------------------------------------------------

struct Outcome {
  enum Kind : int { Survived, Hazard, Wrong, Rejected, Died } kind = Survived;
  int order = 0;
  int hazard = 0;
  char text[600] = {};
};

// What a kernel computes on the device.
class Problem {
 public:
  Problem() = default;
  virtual ~Problem() = default;
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  const CUDA_KERNEL_NODE_PARAMS& node() const { return node_; }

  // The right answer, checked against the reference, and the launch that gives it.
  virtual void learn() = 0;
  // Nothing of an earlier run may help: outputs, what the kernel writes for itself, and inputs are wiped out.
  virtual void poison() const = 0;
  // The grid before this one writes what is in flight. It may do so until griddepcontrol.wait.
  const std::shared_ptr<sim::WrittenBytes>& in_flight() const { return in_flight_; }
  virtual void reveal() const = 0;
  virtual bool is_right() const = 0;

 protected:
  CUDA_KERNEL_NODE_PARAMS node_{};
  std::shared_ptr<sim::WrittenBytes> in_flight_ = std::make_shared<sim::WrittenBytes>();
};

// One product of a case, whatever its operands' format. In flight are the inputs, but for weights said to be ready,
// and, as if a launch of the same problem came before, the outputs and the workspace.
class ProductProblem : public Problem {
 public:
  ProductProblem(const Job& job, std::shared_ptr<Buffer> sink) : product_(job), sink_(std::move(sink)) {
    const ProductTensors& x = product_.arguments();
    const std::vector<const void*> written = product_.written();
    // Everything else that it holds is read by the kernel.
    for (const auto& [address, bytes] : Buffer::live()) {
      const auto holds = [&, begin = static_cast<const uint8_t*>(address), size = bytes](const void* p) {
        return p != nullptr && p >= begin && p < begin + size;
      };
      if (others_.count(address)) continue;
      if (std::any_of(written.begin(), written.end(), holds)) {
        outputs_.push_back({static_cast<uint8_t*>(address), std::vector<uint8_t>(bytes)});
      } else if (address != x.workspace && !(x.weights_ready && (holds(x.b) || holds(x.bias) || holds(x.sizes)))) {
        const auto* const begin = static_cast<const uint8_t*>(address);
        inputs_.emplace_back(address, std::vector<uint8_t>(begin, begin + bytes));
      }
    }
    if (sink_) outputs_.push_back({sink_->get<uint8_t>(), std::vector<uint8_t>(sink_->size())});
    for (const auto& [address, bytes] : inputs_)
      in_flight_->plain.add(reinterpret_cast<uint64_t>(address), bytes.size());
    for (const Output& output : outputs_)
      in_flight_->plain.add(reinterpret_cast<uint64_t>(output.address), output.expected.size());
    in_flight_->plain.add(reinterpret_cast<uint64_t>(x.workspace), x.workspace_bytes);
  }

  const ProductSpec& problem() const { return product_.problem(); }

  void learn() override {
    if (sink_) sink_->fill(0xff);
    product_.check(product_.run());
    for (Output& output : outputs_) std::copy_n(output.address, output.expected.size(), output.expected.begin());
    ProductTensors arguments = product_.arguments();
    const auto launches = capture([&](Stream stream) {
      arguments.stream = stream;
      gemm(test::device(), problem(), arguments);
    });
    if (launches.size() != 1) throw std::runtime_error("the library launches more than one kernel");
    node_ = launches[0];
  }

  void reveal() const override {
    for (const auto& [address, bytes] : inputs_) std::memcpy(address, bytes.data(), bytes.size());
  }

  void poison() const override {
    for (const auto& [address, bytes] : inputs_) std::memset(address, 0xff, bytes.size());
    for (const Output& output : outputs_) std::memset(output.address, 0xff, output.expected.size());
    const ProductTensors& x = product_.arguments();
    if (x.workspace_bytes > 0) std::memset(x.workspace, 0xff, x.workspace_bytes);
  }
  bool is_right() const override {
    return std::all_of(outputs_.begin(), outputs_.end(), [](const Output& output) {
      return std::memcmp(output.address, output.expected.data(), output.expected.size()) == 0;
    });
  }

 private:
  struct Output {
    uint8_t* address;
    std::vector<uint8_t> expected;
  };

  const std::map<void*, size_t> others_ = Buffer::live();  // buffers of other problems
  test::GroupedProduct product_;
  std::shared_ptr<Buffer> sink_;
  std::vector<Output> outputs_;
  std::vector<std::pair<void*, std::vector<uint8_t>>> inputs_;
};

// One launch of a call. All its buffers are in flight but for what is ready, told or quiet: what the launches before
// leave in them is there at griddepcontrol.wait, and afterwards every byte must be what the library's own launch
// leaves.
class CallProblem : public Problem {
 public:
  explicit CallProblem(const std::function<Call()>& make) : call_(make()) {
    std::map<uint8_t*, size_t> kept(call_.quiet.begin(), call_.quiet.end());
    for (uint32_t* const word : call_.told) kept[reinterpret_cast<uint8_t*>(word)] = sizeof *word;
    for (const auto& [address, bytes] : Buffer::live()) {
      if (others_.count(address)) continue;
      if (std::count(call_.ready.begin(), call_.ready.end(), address)) continue;
      State& x = buffers_.emplace_back();
      x.address = static_cast<uint8_t*>(address);
      x.before.resize(bytes);
      size_t begin = 0;
      for (const auto& [at, count] : kept) {
        if (at < x.address || at >= x.address + bytes) continue;
        const auto offset = size_t(at - x.address);
        x.in_flight.emplace_back(begin, offset - begin);
        begin = offset + count;
      }
      x.in_flight.emplace_back(begin, bytes - begin);
      for (const auto& [offset, count] : x.in_flight)
        in_flight_->plain.add(reinterpret_cast<uint64_t>(address) + offset, count);
    }
    for (const uint32_t* word : call_.told) in_flight_->strong.add(reinterpret_cast<uint64_t>(word), sizeof *word);
  }

  void learn() override {
    std::vector<CUDA_KERNEL_NODE_PARAMS> launches = capture(call_.launch);
    if (call_.change) std::for_each(launches.begin(), launches.end(), call_.change);
    size_t mutated = size_t(call_.kernel);
    if (call_.function) {
      const auto same = [&, number = 0](const CUDA_KERNEL_NODE_PARAMS& launch) mutable {
        return launch.func == call_.function && number++ == call_.kernel;
      };
      mutated = size_t(std::find_if(launches.begin(), launches.end(), same) - launches.begin());
    }
    node_ = launches.at(mutated);
    const Current current;
    for (size_t i = 0; i < launches.size(); ++i) {
      const CUDA_KERNEL_NODE_PARAMS& launch = launches[i];
      if (i == mutated) save(&State::before);
      MOXIE_CALL(cuLaunchKernel, launch.func, launch.gridDimX, launch.gridDimY, launch.gridDimZ, launch.blockDimX,
                 launch.blockDimY, launch.blockDimZ, launch.sharedMemBytes, nullptr, launch.kernelParams, nullptr);
      test::device().synchronize();
      if (i == mutated) save(&State::after);
    }
    EXPECT_TRUE(call_.is_right());
  }

  void poison() const override {
    for (const State& x : buffers_) {
      std::memcpy(x.address, x.before.data(), x.before.size());
      for (const auto& [offset, count] : x.in_flight) std::memset(x.address + offset, 0xff, count);
    }
  }
  void reveal() const override {
    for (const State& x : buffers_) {
      for (const auto& [offset, count] : x.in_flight) std::memcpy(x.address + offset, x.before.data() + offset, count);
    }
  }
  bool is_right() const override {
    return std::all_of(buffers_.begin(), buffers_.end(),
                       [](const State& x) { return std::memcmp(x.address, x.after.data(), x.after.size()) == 0; });
  }

 private:
  struct State {
    uint8_t* address = nullptr;
    std::vector<uint8_t> before, after;
    std::vector<std::pair<size_t, size_t>> in_flight;  // offsets and bytes
  };
  void save(std::vector<uint8_t> State::*to) {
    for (State& x : buffers_) x.*to = std::vector<uint8_t>(x.address, x.address + x.before.size());
  }

  const std::map<void*, size_t> others_ = Buffer::live();  // buffers of other problems
  const Call call_;
  std::vector<State> buffers_;
};

// ---- a kernel of layers over ranks ---------------------------------------------------------------

Outcome failed(Outcome::Kind kind, int order, const std::string& text) {
  Outcome outcome;
  outcome.kind = kind, outcome.order = order;
  std::snprintf(outcome.text, sizeof outcome.text, "%s", text.substr(0, text.find('\n')).c_str());
  return outcome;
}

// In a process of its own, which has several devices: computes with the kernel that the folder of the cache has.
Outcome run_over_ranks_here() {
  for (int i = 0; i < kOrders; ++i) {
    try {
      const std::string wrong = run_over_ranks(order_name(i).c_str());
      if (!wrong.empty()) return failed(Outcome::Wrong, i, wrong);
    } catch (const std::exception& error) {
      Outcome outcome = failed(Outcome::Wrong, i, error.what());
      for (int hazard = 0; hazard <= int(sim::Hazard::IllegalUse); ++hazard) {
        const std::string begin = fmt::format("{}: ", sim::hazard_name(sim::Hazard(hazard)));
        if (outcome.kind == Outcome::Hazard || std::strstr(error.what(), begin.c_str()) == nullptr) continue;
        outcome.kind = Outcome::Hazard, outcome.hazard = hazard;
      }
      return outcome;
    }
  }
  return {};
}

// Such a process, and what it says.
Outcome run_over_ranks_in(const char* cache) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("no process");
  if (pid == 0) {
    setenv("MOXIE_CACHE_DIR", cache, 1);
    setenv("MOXIE_SIM_REPORT", "/dev/null", 1);
    dup2(ends[1], STDOUT_FILENO);
    execl("/proc/self/exe", "mutants", "--ranks", nullptr);
    _exit(127);
  }
  close(ends[1]);
  Outcome outcome;
  const bool whole = read(ends[0], &outcome, sizeof outcome) == ssize_t(sizeof outcome);
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  return whole ? outcome : failed(Outcome::Died, 0, "the process of the ranks died");
}

// With a kernel in place of the library's. Its cache is what this one's has, but as a pack whose kernel is `ptx`: a
// pack's entry comes first.
Outcome run_over_ranks_elsewhere(const jit::Request& request, const std::string& ptx) {
  namespace fs = std::filesystem;
  constexpr const char* kVersion = "13 mutant";
  char folder[] = "/tmp/moxie-mutant-XXXXXX";
  if (mkdtemp(folder) == nullptr) throw std::runtime_error("no folder for a mutant's cache");
  for (const auto& entry : fs::directory_iterator(jit::Cache::default_folder())) {
    std::error_code none;
    if (entry.is_regular_file()) fs::copy_file(entry.path(), folder / entry.path().filename(), none);
  }
  jit::Cache(folder).store(jit::cache_key(request, kVersion), ptx);
  std::ofstream(fs::path(folder) / "VERSION") << kVersion;
  const Outcome outcome = run_over_ranks_in(folder);
  fs::remove_all(folder);
  return outcome;
}

class Subject {
 public:
  explicit Subject(const Case& c) : name_(c.name), arch_(test::device().info().arch), over_ranks_(c.over_ranks) {
    jit::Request request = c.calls.empty() && !over_ranks_ ? add_products(c) : add_calls(c);
    request.kind = jit::ImageKind::Ptx;
    request.arch = arch_;
    ptx_ = jit::obtain(request).bytes;
    request_ = request;
    // What their processes launch beside a mutant is compiled here, once.
    if (over_ranks_) run_over_ranks_in(jit::Cache::default_folder().c_str());

    test::set_order("eager");
    for (const auto& problem : problems_) problem->learn();
    for (const auto& [address, bytes] : Buffer::live()) memory_.adopt(reinterpret_cast<uint64_t>(address), bytes);
  }

  const std::string& name() const { return name_; }
  const std::string& kernel() const { return kernel_; }  // what the plan made of it
  const std::string& ptx() const { return ptx_; }
  std::vector<Mutant> mutants() const { return mutants_of(ptx_, sim::ptx::parse(ptx_), jit::kernel_headers()); }

  Outcome run(const std::string& ptx) {
    if (over_ranks_) return run_over_ranks_elsewhere(request_, ptx);
    Outcome outcome;
    std::shared_ptr<sim::Kernel> kernel;
    std::shared_ptr<const sim::ptx::Module> module;
    const auto say = [&](Outcome::Kind kind, const std::string& text) {
      outcome.kind = kind;
      std::snprintf(outcome.text, sizeof outcome.text, "%s", text.substr(0, text.find('\n')).c_str());
      return outcome;
    };
    try {
      module = std::make_shared<const sim::ptx::Module>(sim::ptx::parse(ptx));
      kernel = sim::build_kernel(module, jit::kKernelName, symbols(*module), arch_);
    } catch (const std::exception& error) {
      return say(Outcome::Rejected, error.what());
    }
    for (int i = 0; i < kOrders; ++i) {
      outcome.order = i;
      for (const auto& problem : problems_) {
        problem->poison();
        try {
          launch(*kernel, *problem, order_of(i));
        } catch (const sim::Fault& fault) {
          outcome.hazard = int(fault.kind);
          return say(Outcome::Hazard, fault.what());
        }
        if (!problem->is_right()) return say(Outcome::Wrong, "an output is wrong");
      }
    }
    return outcome;
  }

 private:
  // The problems and their kernel.
  jit::Request add_products(const Case& c) {
    std::vector<ProductSpec> specs;
    for (size_t i = 0; i < c.jobs.size(); ++i) {
      auto problem =
          std::make_unique<ProductProblem>(c.jobs[i], c.sink_outputs.empty() ? nullptr : c.sink_outputs.at(i));
      specs.push_back(problem->problem());
      problems_.push_back(std::move(problem));
    }
    const ProductSpec& first = specs.front();
    const DeviceInfo& info = test::device().info();
    const auto prepared = test::plan_of(figures_of(info), first);
    const bool on_blackwell = std::holds_alternative<plan::BlackwellPlan>(prepared.plan);
    cluster_ = on_blackwell ? prepared.blackwell().config.cluster : prepared.hopper().config.cluster;
    kernel_ =
        on_blackwell
            ? fmt::format("{}, {} store buffer{}", plan::describe(prepared.blackwell().config),
                          prepared.blackwell().config.store_buffers,
                          prepared.blackwell().config.store_buffers == 1 ? "" : "s")
            : fmt::format("{}, an epilogue of {} columns, {} store buffer{}", plan::describe(prepared.hopper().config),
                          kernel::epilogue_columns(prepared.hopper().config), prepared.hopper().config.store_buffers,
                          prepared.hopper().config.store_buffers == 1 ? "" : "s");
    for (const ProductSpec& spec : specs) {
      if (test::plan_of(figures_of(info), spec).key != prepared.key)
        throw std::runtime_error(name_ + ": its problems do not have one kernel");
    }
    return ops::kernel_request(prepared, test::describe(first));
  }
  jit::Request add_calls(const Case& c) {
    for (const auto& make : c.calls) problems_.push_back(std::make_unique<CallProblem>(make));
    kernel_ = "an operation";
    jit::Request request;
    request.source = c.source;
    return request;
  }

  std::unordered_map<std::string, uint64_t> symbols(const sim::ptx::Module& module) {
    std::unordered_map<std::string, uint64_t> addresses;
    for (const sim::ptx::Variable& v : module.variables) {
      if (v.space != sim::ptx::Space::Global && v.space != sim::ptx::Space::Const) continue;
      const uint64_t address = memory_.allocate(std::max<uint64_t>(v.bytes, 1));
      std::copy(v.init.begin(), v.init.end(), reinterpret_cast<uint8_t*>(address));
      addresses[v.name] = address;
    }
    return addresses;
  }

  void launch(const sim::Kernel& kernel, const Problem& problem, sim::Order order) {
    const CUDA_KERNEL_NODE_PARAMS& node = problem.node();
    sim::Launch launch;
    launch.kernel = &kernel;
    launch.grid = {node.gridDimX, node.gridDimY, node.gridDimZ};
    launch.block = {node.blockDimX, node.blockDimY, node.blockDimZ};
    const int fixed = kernel.function->reqnctapercluster[0];
    launch.cluster = {uint32_t(fixed > 0 ? fixed : cluster_), 1, 1};
    launch.dynamic_shared = node.sharedMemBytes;
    launch.params.resize(kernel.param_bytes);
    for (size_t i = 0; i < kernel.param_offsets.size(); ++i)
      std::memcpy(launch.params.data() + kernel.param_offsets[i], node.kernelParams[i], kernel.param_sizes[i]);
    launch.global = &memory_;
    launch.arch = arch_;
    launch.order = order;
    launch.rules = sim::rules_from_environment();
    launch.threads = 1;
    launch.predecessors.unfinished_writes = {problem.in_flight()};
    launch.predecessors.remaining_work = [&] { problem.reveal(); };
    sim::run(launch);
  }

  std::string name_, kernel_;
  std::vector<std::unique_ptr<Problem>> problems_;
  int arch_ = 90, cluster_ = 1;
  std::string ptx_;
  bool over_ranks_;
  jit::Request request_;
  sim::GlobalMemory memory_;
};

// ---- many mutants, each in a process of its own --------------------------------------------------

class Farm {
 public:
  Farm(Subject& subject, int processes) : subject_(subject), processes_(processes) {}

  std::vector<Outcome> run(const std::vector<const Mutant*>& mutants) {
    std::vector<Outcome> outcomes(mutants.size());
    std::map<pid_t, std::pair<size_t, int>> running;  // mutant and pipe
    const auto reap = [&] {
      int status = 0;
      const pid_t pid = wait(&status);
      const auto it = running.find(pid);
      if (it == running.end()) return;
      const auto [index, pipe] = it->second;
      Outcome& outcome = outcomes[index];
      if (read(pipe, &outcome, sizeof outcome) != ssize_t(sizeof outcome)) {
        outcome = {};
        outcome.kind = Outcome::Died;
        std::snprintf(outcome.text, sizeof outcome.text, "%s",
                      WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU ? "the simulator did not come to an end"
                                                                         : "the simulator died");
      }
      close(pipe);
      running.erase(it);
    };
    for (size_t i = 0; i < mutants.size(); ++i) {
      while (int(running.size()) >= processes_) reap();
      int ends[2];
      if (pipe(ends) != 0) throw std::runtime_error("no pipe");
      const pid_t pid = fork();
      if (pid < 0) throw std::runtime_error("no process");
      if (pid == 0) {
        const rlimit limit{kSecondsOfMutant, kSecondsOfMutant + 5};
        setrlimit(RLIMIT_CPU, &limit);
        const rlimit no_core{0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        const Outcome outcome = subject_.run(mutants[i]->apply(subject_.ptx()));
        const bool written = write(ends[1], &outcome, sizeof outcome) == ssize_t(sizeof outcome);
        _exit(written ? 0 : 1);
      }
      close(ends[1]);
      running[pid] = {i, ends[0]};
    }
    while (!running.empty()) reap();
    return outcomes;
  }

 private:
  Subject& subject_;
  int processes_;
};

// ---- explanations --------------------------------------------------------------------------------

// A row of the table under "Survivors" in docs/mutants.md: | `instruction` | change | `part of a source line` | parts
// of the kernel's name, with commas between | proof |. The instruction is a beginning; an empty part fits everything.
struct Explanation {
  std::string instruction, change, place, kernels;
  int used = 0;

  bool is_for(const std::string& name) const {
    std::istringstream parts(kernels);
    for (std::string part; std::getline(parts >> std::ws, part, ',');) {
      if (name.find(part) == std::string::npos) return false;
    }
    return true;
  }

  bool fits(const Mutant& m, const std::string& name) const {
    if (m.instruction.compare(0, instruction.size(), instruction) != 0) return false;
    if (!change.empty() && m.change != change) return false;
    if (!is_for(name)) return false;
    if (place.empty()) return true;
    return std::any_of(m.origin.begin(), m.origin.end(),
                       [&](const std::string& line) { return line.find(place) != std::string::npos; });
  }
};

std::vector<Explanation> read_explanations(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<Explanation> all;
  bool section = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("## ", 0) == 0) section = line == "## Survivors";
    if (!section || line.rfind("| `", 0) != 0) continue;
    std::vector<std::string> cells;
    size_t at = 1;
    while (cells.size() < 4) {
      const size_t bar = line.find(" |", at);
      if (bar == std::string::npos) throw std::runtime_error(path + ": a row of the table lacks a column: " + line);
      std::string cell = line.substr(at, bar - at);
      cell.erase(0, std::min(cell.find_first_not_of(" `"), cell.size()));
      while (!cell.empty() && (cell.back() == ' ' || cell.back() == '`')) cell.pop_back();
      cells.push_back(cell);
      at = bar + 2;
    }
    all.push_back({cells[0], cells[1], cells[2], cells[3]});
  }
  return all;
}

// ---- the program ---------------------------------------------------------------------------------

struct Options {
  bool blackwell = false;   // the kernels of sm_100a, else those of sm_90a
  std::string only;         // kernels whose name has this in it
  std::string instruction;  // mutants of instructions that begin so
  size_t sample = 0;        // mutants a kernel, 0: all
  size_t each = 1;          // one of so many kernels
  int processes = int(std::max(1u, std::thread::hardware_concurrency()));
  bool all = false;  // print every mutant, not only the survivors
  std::string explanations = MOXIE_SOURCE_DIR "/docs/mutants.md";
};

void usage() {
  std::cout
      << "mutants [--arch sm_90a|sm_100a] [--only TEXT] [--instruction TEXT] [--sample N] [--processes N] "
         "[--each N] [--all] [--explanations FILE]\n"
         "  Runs mutants of the library's kernels in the simulator. --sample takes N of each kernel's, --each one "
         "of N kernels.\n";
}

std::string place_text(const Mutant& m) {
  std::string text;
  for (const std::string& line : m.origin) text += "\n        " + line;
  return text;
}

int run(const Options& options) {
  setenv("MOXIE_SIM_SMS", "2", 1);
  setenv("MOXIE_SIM_ARCH", options.blackwell ? "sm_100a" : "sm_90a", 1);
  // The kernels keep to the canonical patterns (PTX ISA 9.7.16.6.4) and drain their stores: all of it must be missed.
  setenv("MOXIE_SIM_EXIT", "drained", 1);
  setenv("MOXIE_SIM_TCGEN05_FENCES", "strict", 1);
  std::vector<Explanation> explanations = read_explanations(options.explanations);
  size_t mutants_total = 0, killed_total = 0, explained_total = 0, open_total = 0;
  std::map<std::string, size_t> killers_total;
  std::vector<Case> all = options.blackwell ? blackwell_cases() : hopper_cases();
  for (Case& c : routing_cases()) all.push_back(std::move(c));
  for (Case& c : rank_cases(options.blackwell)) all.push_back(std::move(c));
  size_t turn = 0;
  for (const Case& c : all) {
    if (c.name.find(options.only) == std::string::npos || turn++ % options.each != 0) continue;
    const auto start = std::chrono::steady_clock::now();
    Subject subject(c);
    if (::testing::Test::HasFailure()) {
      fmt::print("{}: the kernel itself is wrong\n", c.name);
      return 2;
    }
    if (const Outcome self = subject.run(subject.ptx()); self.kind != Outcome::Survived) {
      fmt::print("{}: a false alarm for the kernel itself ({}): {}\n", c.name, order_name(self.order), self.text);
      return 2;
    }
    const std::vector<Mutant> mutants = subject.mutants();
    std::vector<const Mutant*> chosen;
    for (const Mutant& m : mutants) {
      if (m.instruction.compare(0, options.instruction.size(), options.instruction) == 0) chosen.push_back(&m);
    }
    if (options.sample > 0 && options.sample < chosen.size()) {
      // Evenly over the kernel, shifted from kernel to kernel.
      std::vector<const Mutant*> fewer;
      const size_t shift = std::hash<std::string>{}(c.name) % chosen.size();
      for (size_t i = 0; i < options.sample; ++i)
        fewer.push_back(chosen[(shift + i * chosen.size() / options.sample) % chosen.size()]);
      chosen = fewer;
    }
    const std::vector<Outcome> outcomes = Farm(subject, options.processes).run(chosen);

    std::map<std::string, size_t> killers;
    size_t killed = 0, explained = 0, open = 0;
    std::string report;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const Mutant& m = *chosen[i];
      const Outcome& o = outcomes[i];
      const std::string what = fmt::format("{} {} (ptx line {})", m.instruction, m.change, m.line);
      switch (o.kind) {
        case Outcome::Hazard:
          ++killed, ++killers[sim::hazard_name(sim::Hazard(o.hazard))];
          break;
        case Outcome::Wrong:
          ++killed, ++killers["wrong output"];
          break;
        case Outcome::Rejected:
        case Outcome::Died:
          ++open;
          report += fmt::format("  NO VERDICT: {}: {}\n", what, o.text);
          continue;
        case Outcome::Survived: {
          bool known = false;
          for (Explanation& e : explanations) {
            if (!e.fits(m, c.name)) continue;
            known = true, ++e.used;
            break;
          }
          ++(known ? explained : open);
          if (!known || options.all)
            report +=
                fmt::format("  {}: {}: {}{}\n", known ? "explained" : "SURVIVOR", what, m.statement, place_text(m));
          continue;
        }
      }
      if (options.all) report += fmt::format("  killed ({}): {}: {}\n", order_name(o.order), what, o.text);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    fmt::print("{} ({}): {} mutants, {} killed, {} equivalent, {} open ({:.0f} s)\n", c.name, subject.kernel(),
               chosen.size(), killed, explained, open, seconds);
    for (const auto& [hazard, count] : killers)
      fmt::print("  {:4} {}\n", count, hazard), killers_total[hazard] += count;
    fmt::print("{}", report);
    std::fflush(stdout);
    mutants_total += chosen.size(), killed_total += killed, explained_total += explained, open_total += open;
  }
  if (mutants_total == 0) {
    fmt::print("no mutant was asked for\n");
    return 2;
  }
  fmt::print("\nAll kernels of {}: {} mutants, {} killed ({:.2f} %), {} equivalent, {} open\n",
             options.blackwell ? "sm_100a" : "sm_90a", mutants_total, killed_total,
             100.0 * double(killed_total) / double(mutants_total), explained_total, open_total);
  for (const auto& [hazard, count] : killers_total) fmt::print("  {:5} {}\n", count, hazard);
  const bool complete = options.only.empty() && options.instruction.empty() && options.sample == 0 && options.each == 1;
  bool stale = false;
  for (const Explanation& e : explanations) {
    const bool asked = std::any_of(all.begin(), all.end(), [&](const Case& c) { return e.is_for(c.name); });
    if (!complete || !asked || e.used > 0) continue;
    fmt::print("docs/mutants.md explains a survivor that does not exist: {} {} at {}\n", e.instruction, e.change,
               e.place);
    stale = true;
  }
  return open_total > 0 || stale ? 1 : 0;
}

}  // namespace
}  // namespace moxie::mutants

int main(int argc, char** argv) {
  moxie::mutants::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw std::runtime_error(name + " needs a value");
      return argv[++i];
    };
    try {
      if (name == "--arch") {
        const std::string arch = value();
        if (arch != "sm_90a" && arch != "sm_100a") throw std::runtime_error("sm_90a or sm_100a, not " + arch);
        options.blackwell = arch == "sm_100a";
      } else if (name == "--only") {
        options.only = value();
      } else if (name == "--instruction") {
        options.instruction = value();
      } else if (name == "--sample") {
        options.sample = std::stoul(value());
      } else if (name == "--each") {
        options.each = std::max<size_t>(1, std::stoul(value()));
      } else if (name == "--processes") {
        options.processes = std::max(1, std::stoi(value()));
      } else if (name == "--explanations") {
        options.explanations = value();
      } else if (name == "--all") {
        options.all = true;
      } else if (name == "--ranks") {  // of this program alone: run_over_ranks_elsewhere()
        const moxie::mutants::Outcome outcome = moxie::mutants::run_over_ranks_here();
        return write(STDOUT_FILENO, &outcome, sizeof outcome) == ssize_t(sizeof outcome) ? 0 : 1;
      } else {
        moxie::mutants::usage();
        return name == "--help" ? 0 : 2;
      }
    } catch (const std::exception& error) {
      std::cerr << "mutants: " << name << ": " << error.what() << "\n";
      return 2;
    }
  }
  try {
    return moxie::mutants::run(options);
  } catch (const std::exception& error) {
    std::cerr << "mutants: " << error.what() << "\n";
    return 2;
  }
}
