// The machine: device, launch, cluster, block (CTA) and warp, and the loop that runs them.
// An instruction is a decoded record with a function that executes it for a mask of lanes; the
// functions live in sim/isa (synchronous instructions) and sim/async (copies, barriers, wgmma).
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/memory/clock.h"
#include "sim/memory/memory.h"
#include "sim/ptx/ast.h"

namespace sim {

constexpr int kLanes = 32;
constexpr uint32_t kFullMask = 0xffffffffu;

struct Warp;
struct Cta;
struct Cluster;
struct Launch;
struct Instr;

// What the executed instruction did to the warp's program counter.
enum class Step {
  Next,  // go on with the following instruction
  Jump,  // the handler set the program counters itself (branches)
  Wait,  // cannot proceed: execute the same instruction again once something in the cluster has changed
  Exit,  // the lanes of the mask are done
};

using Execute = Step (*)(Warp&, const Instr&, uint32_t mask);

// A decoded instruction. `reg` holds byte offsets into the warp's register file: destinations first, then
// sources, in PTX order with vectors flattened. Immediates, constant special registers (%tid.x, %laneid, ...)
// and symbol addresses are constant rows of the register file, so every source is an offset.
// A 32-bit (and narrower) register is 32 lanes of 4 bytes, a 64-bit one 32 lanes of 8 bytes, a 128-bit one 32
// lanes of 16 bytes, a predicate one 32-bit lane mask. The file is 64-byte aligned and so is each row.
struct Instr {
  Execute execute = nullptr;
  uint32_t guard = UINT32_MAX;   // offset of the predicate row, or UINT32_MAX
  bool guard_negated = false;
  const uint32_t* reg = nullptr; // into Kernel::operand_pool
  uint16_t reg_count = 0;
  uint8_t kind = 0;              // free for the handler (comparison, rounding, space, ...)
  uint8_t type = 0;              // free for the handler
  uint8_t width = 0;             // free for the handler
  uint8_t flags = 0;             // free for the handler
  int64_t imm = 0;               // free for the handler (address addend, immediate, table index)
  int32_t target = -1;           // branch target
  const ptx::Instruction* source = nullptr;
};

constexpr uint32_t kNoReg = UINT32_MAX;  // the sink `_`

// A kernel ready to run.
struct Kernel {
  std::string name;
  std::shared_ptr<const ptx::Module> module;
  const ptx::Function* function = nullptr;
  std::vector<Instr> code;
  std::vector<uint32_t> operand_pool;
  uint32_t register_bytes = 0;       // size of a warp's register file, constant rows included
  uint32_t static_shared = 0;        // bytes
  uint32_t local_bytes = 0;          // per thread
  uint32_t param_bytes = 0;
  std::vector<uint32_t> param_offsets, param_sizes;
  int registers_per_thread = 0;      // estimate, for the register-budget checks
  // initial values of the constant rows: 32-bit, 64-bit immediates and special registers (opaque to handlers)
  struct ConstantRow { uint32_t offset; uint8_t bytes; uint64_t bits; int special; };
  std::vector<ConstantRow> constants;
};

// Decoding: a handler of one opcode family looks at source.parts and fills `out` (execute, kind, ...).
// It uses the context to turn operands into register offsets. Returns false, or throws Unsupported with a
// sentence, when the form is not known.
struct DecodeContext {
  virtual ~DecodeContext() = default;
  // Appends the operand's offsets to out's operand list: one for Register, Special, Immediate, Symbol; one for
  // each element of a Vector; the base of an Address (its addend goes to *addend when given).
  virtual void push(const ptx::Operand& operand, ptx::Type as, int64_t* addend = nullptr) = 0;
  virtual uint32_t offset_of(const ptx::Operand& operand, ptx::Type as) = 0;
  virtual ptx::Type register_type(const ptx::Operand& operand) const = 0;
  virtual const ptx::Function& function() const = 0;
  virtual const ptx::Module& module() const = 0;
};
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
using Decode = bool (*)(const ptx::Instruction& source, DecodeContext& context, Instr& out);
// Opcode families register at start-up by a call from sim/isa/registry.cpp (no static initialisers):
void register_opcode(const char* first_part, Decode decode);
void register_isa();    // sim/isa/registry.cpp calls every family below
// sim/isa (synchronous): integer.cpp float.cpp convert.cpp logic.cpp move.cpp memory.cpp control.cpp warp.cpp atomics.cpp
void register_integer(); void register_float(); void register_convert(); void register_logic(); void register_move();
void register_memory(); void register_control(); void register_warp(); void register_atomics();
// sim/async: mbarrier.cpp copy.cpp tensor_map.cpp fence.cpp wgmma.cpp cluster.cpp (barrier.cluster, mapa, setmaxnreg, griddepcontrol)
void register_mbarrier(); void register_copy(); void register_tensor_map(); void register_fence(); void register_wgmma(); void register_cluster();

// ---- hazards and errors ------------------------------------------------------------------------

enum class Hazard {
  MissingProxyFence, DataInFlight, RegistersInFlight, StaleTensorMap, TensorMapInFlight, MbarrierMisuse, Deadlock,
  Memory, TensorMemory, IllegalUse,
};
const char* hazard_name(Hazard h);  // "missing proxy fence", "data in flight", ...

// Ends the launch. what() is one line first ("missing proxy fence: ... at ptx line 123 (file.cuh:45), block
// (0,0,0), warp 5, lane 3"), details after.
class Fault : public std::runtime_error {
 public:
  Fault(Hazard kind, const std::string& text) : std::runtime_error(text), kind(kind) {}
  Hazard kind;
};
// Adds the location of the instruction that the warp is executing. lane -1: not one lane's doing.
[[noreturn]] void fault(Hazard kind, const Warp& warp, int lane, const std::string& text);
std::string describe_location(const Warp& warp, int lane);

// ---- order of asynchronous work ----------------------------------------------------------------

enum class Mode { Eager, Lazy, Random };
struct Order {
  Mode mode = Mode::Eager;
  uint64_t seed = 0;
};
Order order_from_environment();  // MOXIE_SIM_ORDER=eager|lazy|random:SEED

// One asynchronous operation that was issued and not yet performed.
class AsyncOp {
 public:
  virtual ~AsyncOp() = default;
  virtual void perform(Cluster& cluster) = 0;
  virtual std::string describe() const = 0;
  // Operations of one queue are performed in the order of their submission; 0: unordered.
  uint64_t queue = 0;
};

// Holds what is pending. Eager performs at submission; lazy when no warp can run (latest submitted first among
// those that may go, unless a queue orders them); random at seeded moments.
class AsyncEngine {
 public:
  void submit(Cluster& cluster, std::unique_ptr<AsyncOp> op);
  bool perform_one(Cluster& cluster);        // false when nothing is pending
  void maybe_perform(Cluster& cluster);      // random mode: between quanta
  void perform_all(Cluster& cluster);        // at the end of the cluster
  size_t pending() const { return ops_.size(); }
  std::vector<std::string> describe() const;

 private:
  size_t pick(Cluster& cluster);
  std::vector<std::unique_ptr<AsyncOp>> ops_;
};

// ---- the hierarchy -----------------------------------------------------------------------------

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

// State of sim/async per cluster, block and warp: defined in sim/async/state.h, owned here.
struct AsyncClusterState;
struct AsyncCtaState;
struct AsyncWarpState;

struct Warp {
  Cta* cta = nullptr;
  int index = 0;                      // within the block
  uint32_t live = 0;                  // lanes that exist and have not exited
  std::unique_ptr<uint8_t[], void (*)(void*)> registers{nullptr, nullptr};
  std::unique_ptr<uint8_t[]> local;   // kLanes * local_bytes, lane-major

  // Lanes that stand at different places. The split with the lowest pc runs first; splits at one pc merge.
  struct Split {
    int pc = 0;
    uint32_t mask = 0;
    uint64_t blocked_at = 0;          // cluster.events when it last answered Wait, +1; 0: runnable
  };
  std::vector<Split> splits;
  size_t current = 0;                 // the split being executed
  int pc() const { return splits[current].pc; }

  View view;                          // what this warp has observed
  Agent self = 0;                     // program order of this warp
  // Publishes: returns the view to join into a synchronisation object, then starts a new epoch.
  void release_into(View& object);
  void acquire_from(const View& object) { view.join(object); }
  void new_epoch();                   // raises view.seen[self] by one
  Stamp stamp() const { return {self, view.seen[self]}; }

  std::unique_ptr<AsyncWarpState, void (*)(AsyncWarpState*)> async{nullptr, nullptr};
  uint32_t barrier_waiting = 0;       // sim/isa/control.cpp: lanes already counted at a bar.sync
  int max_registers = 0;              // setmaxnreg, 0 before any
  uint64_t executed = 0;              // warp instructions

  template <class T> T* row(uint32_t offset) { return reinterpret_cast<T*>(registers.get() + offset); }
  template <class T> const T* row(uint32_t offset) const { return reinterpret_cast<const T*>(registers.get() + offset); }
  uint32_t predicate(uint32_t offset) const { return *row<uint32_t>(offset); }
  bool all_live_in(uint32_t mask) const { return (live & ~mask) == 0; }
};

// Why an .aligned instruction or a barrier cannot go on yet; for the deadlock report.
struct WaitReason {
  std::string text;
};

struct Cta {
  Cluster* cluster = nullptr;
  uint32_t rank = 0;                  // in the cluster
  Dim3 index;                         // %ctaid
  SharedMemory shared;                // sim/memory/memory.h
  std::vector<std::unique_ptr<Warp>> warps;
  // Named barriers (sim/isa/control.cpp).
  struct NamedBarrier {
    uint32_t expected = 0, arrived = 0;
    uint64_t generation = 0;
    View arriving, released;
    uint32_t reduction_and = kFullMask, reduction_or = 0, reduction_popc = 0, result = 0;
  };
  std::array<NamedBarrier, 16> barriers;
  std::unique_ptr<AsyncCtaState, void (*)(AsyncCtaState*)> async{nullptr, nullptr};
  bool finished() const;
};

struct Cluster {
  Launch* launch = nullptr;
  Dim3 index;                         // %clusterid
  std::vector<std::unique_ptr<Cta>> ctas;
  AsyncEngine engine;
  std::unique_ptr<AsyncClusterState, void (*)(AsyncClusterState*)> async{nullptr, nullptr};
  uint64_t events = 1;                // raised whenever something happens that a waiting warp may be waiting for
  void event() { ++events; }
  Agent new_agent() { return next_agent++; }
  Agent next_agent = 1;
  std::mt19937_64 rng;                // seeded from the order's seed and the cluster index
  Order order;
  std::unordered_map<const void*, WaitReason> waits;  // Warp* -> reason, for the deadlock report

  void run();                         // sim/machine/cluster.cpp: to completion, or throws Fault
};

// What sim/async needs at birth and end of things (sim/async/state.cpp).
void create_async_state(Cluster& cluster);   // also allocates each warp's agents
void finish_async_state(Cluster& cluster);   // after the last warp left: performs what is pending, checks leftovers

struct Launch {
  const Kernel* kernel = nullptr;
  Dim3 grid, block, cluster{1, 1, 1};
  uint32_t dynamic_shared = 0;
  std::vector<uint8_t> params;        // kernel->param_bytes
  GlobalMemory* global = nullptr;     // sim/memory/memory.h
  int arch = 90;                      // 90 or 100
  Order order;
  int threads = 0;                    // host threads, 0: as many as there are cores
  std::atomic<uint64_t> instructions{0};
};

// Runs a launch to its end; throws Fault. Deterministic for any number of host threads.
void run(Launch& launch);

// Builds a kernel from a parsed module. `symbols` gives the device addresses of module-scope variables.
// Throws ptx::ParseError for what is not understood, naming the instruction and line.
std::shared_ptr<Kernel> prepare(std::shared_ptr<const ptx::Module> module, const std::string& entry,
                                const std::unordered_map<std::string, uint64_t>& symbols, int arch);

}  // namespace sim
