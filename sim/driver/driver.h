// The state behind the driver ABI: device, contexts, modules, streams, events, graphs and allocations, and the guard
// that every entry point begins with. The handles of cuda.h are pointers to the structs defined here.
#pragma once
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL  // makes cuda.h declare every ABI name, versioned and per-thread ones too
#endif
#pragma GCC visibility push(default)
#include <cuda.h>
extern "C" {  // of cudaProfiler.h, which not every distribution of the headers carries
CUresult CUDAAPI cuProfilerStart();
CUresult CUDAAPI cuProfilerStop();
}
#pragma GCC visibility pop

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "sim/machine/machine.h"
#include "sim/memory/memory.h"

namespace sim::driver {

constexpr int kDriverVersion = 13000;
constexpr unsigned kMaxThreadsPerBlock = 1024;
constexpr unsigned kMaxSharedPerBlock = 48 * 1024;  // without opting in
constexpr unsigned kMaxSharedPerBlockOptIn = 232448;
constexpr unsigned kSharedPerSm = 233472;
constexpr unsigned kReservedSharedPerBlock = 1024;
constexpr unsigned kRegistersPerSm = 65536;
constexpr unsigned kMaxThreadsPerSm = 2048;
constexpr unsigned kMaxBlocksPerSm = 32;
constexpr unsigned kMaxPortableCluster = 8;
constexpr unsigned kMaxCluster = 16;
constexpr unsigned kMaxConstantBytes = 65536;

// What an entry point answers with. The detail is for people: it goes to CUDA_LOG_FILE.
struct ApiError {
  CUresult code;
  std::string detail;
};
[[noreturn]] void fail(CUresult code, const std::string& detail = {});
inline void require(bool condition, CUresult code = CUDA_ERROR_INVALID_VALUE, const std::string& detail = {}) {
  if (!condition) fail(code, detail);
}

struct Device {
  int arch = 90;
  std::string target = "sm_90a";
  int sm_count = 132;
  std::string name;
};

struct Allocation {
  enum class Kind { Device, Host, Registered, Managed, Pool, Graph };
  uint64_t address = 0;
  uint64_t bytes = 0;
  Kind kind = Kind::Device;
  CUcontext context = nullptr;  // null: module variables of no context, registered memory
  CUmemoryPool pool = nullptr;
  unsigned flags = 0;
  uint64_t id = 0;
};

// ---- work: what a stream runs and a graph records ------------------------------------------------

struct KernelWork {
  CUfunction function = nullptr;  // a key for queries; execution needs the kernel alone
  std::shared_ptr<const Kernel> kernel;
  Dim3 grid, block, cluster{1, 1, 1};
  bool explicit_cluster = false;
  unsigned dynamic_shared = 0;
  std::vector<uint8_t> params;
  bool programmatic = false;  // may start before the kernel before it in the stream has ended
};

// The last kernel of a stream, for the one behind it.
struct Grid {
  std::shared_ptr<ByteSet> written;
  std::vector<std::shared_ptr<const ByteSet>> unfinished;  // what it may have left unfinished: it did not wait
};

// A box of bytes from one pitched place to another. Both sides are checked when the work is submitted.
struct CopyWork {
  uint64_t source = 0, destination = 0;
  uint64_t source_pitch = 0, destination_pitch = 0;      // from row to row
  uint64_t source_slice = 0, destination_slice = 0;      // from plane to plane
  uint64_t width = 0, height = 1, depth = 1;             // bytes, rows, planes
  bool source_owned = false, destination_owned = false;  // lies in an allocation, and must still when the copy runs
};

struct SetWork {
  uint64_t destination = 0, pitch = 0;
  uint32_t value = 0, element_bytes = 1;
  uint64_t width = 0, height = 1;  // elements, rows
};

struct HostWork {
  CUhostFn function = nullptr;
  void* data = nullptr;
};

struct CallbackWork {
  CUstreamCallback function = nullptr;
  CUstream stream = nullptr;
  void* data = nullptr;
};

struct EventRecordWork {
  CUevent event = nullptr;
};
struct EventWaitWork {
  CUevent event = nullptr;
};
struct MemoryFreeWork {
  uint64_t address = 0;
};
struct GraphWork;  // a child graph
using Work = std::variant<std::monostate, KernelWork, CopyWork, SetWork, HostWork, CallbackWork, EventRecordWork,
                          EventWaitWork, MemoryFreeWork, std::shared_ptr<GraphWork>>;
struct GraphWork {
  std::vector<Work> steps;  // in an order that respects the edges
};

// ---- handles -------------------------------------------------------------------------------------

// Owns the objects behind one type of handle and knows which are alive.
template <class T>
class Handles {
 public:
  T* add(std::unique_ptr<T> object) {
    T* raw = object.get();
    live_.emplace(raw, std::move(object));
    return raw;
  }
  bool contains(T* handle) const { return live_.count(handle) != 0; }
  T& get(T* handle) const {
    require(contains(handle), CUDA_ERROR_INVALID_HANDLE);
    return *handle;
  }
  void remove(T* handle) { live_.erase(handle); }
  template <class Predicate>
  void remove_if(Predicate predicate) {
    for (auto it = live_.begin(); it != live_.end();) it = predicate(*it->second) ? live_.erase(it) : std::next(it);
  }
  template <class Visit>
  void each(Visit visit) const {
    for (auto& [raw, object] : live_) visit(*object);
  }

 private:
  std::unordered_map<T*, std::unique_ptr<T>> live_;
};

struct Symbol {
  uint64_t address = 0, bytes = 0;
};

// Module-scope variables in device memory and kernels prepared for the device: what loading an image yields.
struct Image {
  std::shared_ptr<const ptx::Module> module;
  std::map<std::string, Symbol> symbols;
  std::map<std::string, std::shared_ptr<const Kernel>> kernels;
  ~Image();
};

// A sequence of captured work and the streams that take part in it.
struct Capture {
  uint64_t id = 0;
  CUgraph graph = nullptr;
  bool owns_graph = true;  // false: captured into a graph that the caller gave
  CUstream origin = nullptr;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::thread::id thread;
  bool invalidated = false;
};

}  // namespace sim::driver

struct CUctx_st {
  bool primary = false, destroyed = false;
  unsigned flags = 0;
  uint64_t id = 0;
  CUstream legacy = nullptr;
  std::map<std::thread::id, CUstream> per_thread;
  std::map<CUlibrary, CUmodule> libraries;
  std::array<size_t, CU_LIMIT_MAX> limits{};
  // Set by a failed launch, reported by the first call that synchronises, then by every call.
  CUresult failure = CUDA_SUCCESS;
  bool failure_seen = false;
};

struct CUfunc_st {
  CUmodule module = nullptr;
  CUcontext context = nullptr;
  std::string name;
  std::shared_ptr<const sim::Kernel> kernel;
  int max_dynamic_shared = 0;
  bool non_portable_cluster = false;
  int carveout = -1;
  int cluster_policy = 0;
  sim::Dim3 required_cluster{0, 0, 0};  // 0: none
};

struct CUmod_st {
  CUcontext context = nullptr;
  std::shared_ptr<sim::driver::Image> image;
  std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
  CUlibrary library = nullptr;
};

struct CUlib_st {
  std::string text;  // PTX
  std::map<std::string, CUkernel> kernels;
};

struct CUkern_st {
  CUlibrary library = nullptr;
  std::string name;
};

struct CUstream_st {
  CUcontext context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  uint64_t id = 0;
  bool legacy = false;
  std::map<int, CUlaunchAttributeValue> attributes;
  std::shared_ptr<sim::driver::Capture> capture;
  std::vector<CUgraphNode> dependencies;  // of the next captured node
  std::optional<sim::driver::Grid> last;  // when nothing but this kernel came last
  bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
};

struct CUevent_st {
  CUcontext context = nullptr;
  unsigned flags = 0;
  std::optional<std::chrono::steady_clock::time_point> time;
  std::shared_ptr<sim::driver::Capture> capture;  // of its last record, when that was captured
  std::vector<CUgraphNode> dependencies;
};

struct CUgraphNode_st {
  CUgraph graph = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  sim::driver::Work work;
  std::vector<CUgraphNode> dependencies;
  uint64_t id = 0;
  std::shared_ptr<uint64_t> memory;  // of a memory allocation node: freed with the last graph that needs it
  uint64_t memory_bytes = 0;
  // What cuGraphKernelNodeGetParams points into.
  std::vector<void*> param_pointers;
};

struct CUgraph_st {
  uint64_t id = 0;
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

struct CUgraphExec_st {
  CUcontext context = nullptr;
  uint64_t flags = 0;
  std::vector<sim::driver::Work> steps;
  std::vector<CUgraphNode> sources;  // steps[i] came from sources[i]
  std::vector<bool> enabled;
  std::vector<std::shared_ptr<uint64_t>> memory;
};

struct CUmemPoolHandle_st {
  bool is_default = false;
  uint64_t used = 0, used_high = 0, release_threshold = 0;
  std::array<int, 4> reuse{0, 1, 1, 1};
};

namespace sim::driver {

struct State {
  std::mutex mutex;      // guards everything here; never held while a kernel or a host function runs
  std::mutex execution;  // held while device work runs; taken after `mutex` or alone, never before it
  bool initialised = false;
  Device device;
  GlobalMemory memory;
  std::map<uint64_t, Allocation> allocations;       // by address
  std::vector<std::unique_ptr<CUctx_st>> contexts;  // destroyed ones stay, so that a stale handle is known as such
  CUcontext primary = nullptr;
  unsigned primary_count = 0;
  unsigned primary_flags = 0;
  Handles<CUmod_st> modules;
  Handles<CUlib_st> libraries;
  Handles<CUkern_st> kernels;
  Handles<CUstream_st> streams;
  Handles<CUevent_st> events;
  Handles<CUgraph_st> graphs;
  Handles<CUgraphExec_st> graph_execs;
  Handles<CUmemPoolHandle_st> pools;
  std::unordered_map<CUfunction, CUfunc_st*> functions;
  std::unordered_map<CUgraphNode, CUgraph> nodes;
  CUmemoryPool default_pool = nullptr, current_pool = nullptr;
  std::vector<std::weak_ptr<Capture>> captures;
  uint64_t next_id = 1;
  bool has_dependent_grids = false;  // a loaded module has griddepcontrol: what kernels write is remembered
  std::string report;                // first line of the latest fault, and the code that it led to
  CUresult report_code = CUDA_SUCCESS;
};
State& state();

// One call of the ABI: holds the lock, knows the current context.
class Call {
 public:
  enum class Needs { Nothing, Initialised, Context, HealthyContext };
  explicit Call(Needs needs);
  CUctx_st& context() const { return *context_; }
  bool has_context() const { return context_ != nullptr; }
  // Runs work that may take long without the lock. The work holds the execution lock instead if `device` is set.
  template <class Body>
  void unlocked(Body body, bool device) {
    lock_.unlock();
    struct Relock {
      std::unique_lock<std::mutex>& lock;
      ~Relock() { lock.lock(); }
    } relock{lock_};
    std::unique_lock<std::mutex> execution(state().execution, std::defer_lock);
    if (device) execution.lock();
    body();
  }

 private:
  std::unique_lock<std::mutex> lock_;
  CUctx_st* context_ = nullptr;
};

CUresult answer_for_current_exception(const char* function);

// The body of an entry point: errors become its answer.
template <class Body>
CUresult call(const char* function, Call::Needs needs, Body body) {
  try {
    Call c(needs);
    body(c);
    return CUDA_SUCCESS;
  } catch (...) {
    return answer_for_current_exception(function);
  }
}
#define API(needs, ...)       \
  return ::sim::driver::call( \
      __func__, ::sim::driver::Call::Needs::needs, [&]([[maybe_unused]] ::sim::driver::Call & c) __VA_ARGS__)

// device.cpp
void initialise(State& s);  // from the environment; throws ApiError
void check_device(CUdevice device);

// context.cpp
// The contexts of the calling thread; back() is current. Without a destructor: programs may call the driver from the
// destructors of their static objects, which run after those of thread-local ones.
struct ContextStack {
  static constexpr int kMost = 256;
  CUcontext contexts[kMost];
  int count;
  bool empty() const { return count == 0; }
  CUcontext back() const { return contexts[count - 1]; }
  void pop_back() { --count; }
  void push_back(CUcontext context);  // throws ApiError when there is no room
};
ContextStack& context_stack();
CUctx_st& live_context(CUcontext handle);
void clear_context(CUctx_st& context);  // destroys what it owns and forgets its failure

// error.cpp
void report_fault(CUctx_st& context, const Fault& fault);  // with the lock held
void log_error(const char* function, CUresult code, const std::string& detail);

// image.cpp
// The PTX text inside any kind of image that the device can run. Text in memory ends with a zero and a fat binary says
// how long it is; of what was read from a file the length is known, and `bytes` are followed by a zero.
constexpr size_t kLengthUnknown = SIZE_MAX;
std::string ptx_of(const void* image, size_t bytes = kLengthUnknown);
bool target_fits(const std::string& target, int arch);

// module.cpp
std::shared_ptr<Image> load_image(const std::string& text);
CUfunc_st& live_function(Call& c, CUfunction handle);  // a CUkernel in disguise is also taken
int function_attribute(const CUfunc_st& function, CUfunction_attribute attribute);
unsigned threads_limit(const Kernel& kernel);

// stream.cpp
CUstream_st& live_stream(Call& c, CUstream handle);
extern thread_local bool null_stream_is_per_thread;
extern thread_local bool in_host_function;
// Runs the work now, or records it when the stream is capturing. The node, when one was made.
CUgraphNode submit(Call& c, CUstream_st& stream, Work work, CUgraphNodeType type);
void execute(Call& c, CUctx_st& context, const Work& work, CUstream_st* stream = nullptr);
void synchronising_call(Call& c);  // the context's failure comes to light
void forbid_unsafe_in_capture();   // calls that a capture prohibits
void forbid_synchronisation_in_capture(CUctx_st& context);
void legacy_stream_used(CUctx_st& context);  // what joins the legacy stream while a blocking stream captures
void invalidate(Capture& capture);

// graph.cpp
CUgraphNode add_node(CUgraph_st& graph, CUgraphNodeType type, Work work, std::vector<CUgraphNode> dependencies);
std::vector<CUgraphNode> in_order(const CUgraph_st& graph);  // dependencies first
CUgraph new_graph();
void destroy_graph(CUgraph graph);

// launch.cpp
struct LaunchRequest {
  Dim3 grid, block, cluster{0, 0, 0};
  unsigned dynamic_shared = 0;
  bool cooperative = false;
  bool programmatic = false;
};
KernelWork make_launch(CUfunc_st& function, const LaunchRequest& request, void** params, void** extra);

// occupancy.cpp
int blocks_per_sm(const CUfunc_st& function, unsigned threads, uint64_t dynamic_shared);

// memory.cpp
Allocation* find_allocation(uint64_t address);
uint64_t allocate(CUcontext context, uint64_t bytes, Allocation::Kind kind, unsigned flags = 0,
                  CUmemoryPool pool = nullptr);
void release(uint64_t address);
enum class Side { Host, Device, Unified };
void check_range(uint64_t address, uint64_t bytes, Side side);
CopyWork copy_of(const CUDA_MEMCPY3D& description);
bool is_live(uint64_t address, uint64_t bytes);  // all inside one allocation
uint64_t span(uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice);
SetWork set_of(uint64_t destination, uint64_t pitch, uint32_t value, uint32_t element_bytes, uint64_t width,
               uint64_t height);

// Exports plain as another name of the function defined in the same file under its versioned name.
#define PLAIN_NAME(plain, versioned) \
  asm(".globl " #plain "\n.set " #plain ", " #versioned "\n.type " #plain ", @function")

}  // namespace sim::driver
