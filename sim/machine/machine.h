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
#include <new>
#include <random>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "sim/memory/byte_set.h"
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
  Next,   // go on with the following instruction
  Jump,   // the handler set the program counters itself (branches)
  Wait,   // cannot proceed: execute the same instruction again once something in the cluster has changed
  Exit,   // the lanes of the mask are done
  Yield,  // as Next, but what was polled has not happened yet (mbarrier.test_wait that gave false): let others run
};

using Execute = Step (*)(Warp&, const Instr&, uint32_t mask);

// A decoded instruction. `reg` holds byte offsets into the warp's register file: destinations first, then
// sources, in PTX order with vectors flattened. Immediates, constant special registers (%tid.x, %laneid, ...)
// and symbol addresses are constant rows of the register file, so every source is an offset.
// A 32-bit (and narrower) register is 32 lanes of 4 bytes, a 64-bit one 32 lanes of 8 bytes, a 128-bit one 32
// lanes of 16 bytes, a predicate one 32-bit lane mask. The file is 64-byte aligned and so is each row.
struct Instr {
  Execute execute = nullptr;
  uint32_t guard = UINT32_MAX;  // offset of the predicate row, or UINT32_MAX
  bool guard_negated = false;
  const uint32_t* reg = nullptr;  // into Kernel::operand_pool
  uint16_t reg_count = 0;
  uint8_t kind = 0;     // free for the handler (comparison, rounding, space, ...)
  uint8_t type = 0;     // free for the handler
  uint8_t width = 0;    // free for the handler
  uint8_t flags = 0;    // free for the handler
  int64_t imm = 0;      // free for the handler (address addend, immediate, table index)
  int32_t target = -1;  // branch target
  const ptx::Instruction* source = nullptr;

  // What the decoder of a family learned from the opcode's modifiers: a small struct of that family. The handler that
  // `execute` names reads it back as the same type.
  template <class Form>
  void set(const Form& form) {
    static_assert(std::is_trivially_copyable_v<Form>, "instructions are copied byte by byte");
    static_assert(sizeof(Form) <= kFormBytes && alignof(Form) <= 8, "the form does not fit into an instruction");
    ::new (static_cast<void*>(form_)) Form(form);
  }
  template <class Form>
  const Form& form() const {
    return *std::launder(reinterpret_cast<const Form*>(form_));
  }

 private:
  static constexpr size_t kFormBytes = 24;
  alignas(8) unsigned char form_[kFormBytes] = {};
};

// Where a form's operand stands in Instr::reg.
struct ValueOperand {
  uint8_t place = 0;
};
// An address operand takes two places: its base, and a constant row with its addend.
struct AddressOperand {
  uint8_t place = 0;
  bool wide = false;  // the base is 64 bits wide
};

constexpr uint32_t kNoReg = UINT32_MAX;  // the sink `_`

// A kernel ready to run.
// The register file of a warp: registers at [0, variable_bytes), then the constant rows. Rows of registers that are
// never live together are shared; those of wgmma and tcgen05 operands have their row for themselves.
struct Kernel {
  std::string name;
  std::shared_ptr<const ptx::Module> module;
  const ptx::Function* function = nullptr;
  std::string refusal;  // why it cannot be launched, when prepare() did not like it (sim/driver/module.cpp)
  std::vector<Instr> code;
  std::vector<uint32_t> operand_pool;
  uint32_t register_bytes = 0;  // size of a warp's register file, constant rows included
  int entry_pc = 0;             // called functions stand before the entry in `code`
  uint32_t variable_bytes = 0;
  uint32_t static_shared = 0;   // bytes
  uint32_t dynamic_shared = 0;  // offset at which dynamic shared memory begins
  uint32_t local_bytes = 0;     // per thread, without the stack
  uint32_t param_bytes = 0;
  std::vector<uint32_t> param_offsets, param_sizes;
  int registers_per_thread = 0;  // estimate, for the register-budget checks
  // initial values of the constant rows: 32-bit, 64-bit immediates and special registers (opaque to handlers)
  struct ConstantRow {
    uint32_t offset;
    uint8_t bytes;
    uint64_t bits;
    int special;
  };
  std::vector<ConstantRow> constants;
  // Tables of brx.idx: code indices. Instr::imm of a brx is an index into this.
  std::vector<std::vector<int>> branch_tables;
  // Calls (sim/isa/call.cpp). Each function has one set of rows, and its .local and .param variables stand at fixed
  // places of the thread's local memory. Functions that may call themselves, at whatever remove, or that use alloca
  // have theirs on the thread's stack instead, which lies behind those places; a call that may come back to its caller
  // saves the caller's rows first.
  // A call copies arguments into the callee's parameters; the instruction it returns to copies the results back.
  struct CallCopy {
    bool from_row = false, to_row = false;  // a register row, else lane-private local memory
    uint32_t from = 0, to = 0, bytes = 0;
    uint32_t from_step = 0, to_step = 0;                    // bytes of a lane in the row; 0: a predicate
    uint32_t from_base = UINT32_MAX, to_base = UINT32_MAX;  // row of the stack frame that `from`, `to` are in
  };
  struct Call {
    std::vector<CallCopy> arguments, results;
    uint32_t return_row = 0;
    int target = -1, return_pc = -1, next_pc = -1;
    int frame = -1;        // of the callee when it has one on the stack
    int saved_frame = -1;  // of the caller when its rows must be saved
    std::string external;  // a function of the run-time system, without a body
  };
  std::vector<Call> calls;                                    // Instr::imm of a direct call is an index into this
  std::vector<std::unordered_map<uint64_t, int>> call_sites;  // and of an indirect one into this: address -> call
  struct StackFrame {
    std::string function;
    uint32_t base_row = 0;  // each lane's offset of the frame in the stack
    uint32_t bytes = 0;
    std::vector<std::pair<uint32_t, uint32_t>> rows;  // offset and bytes of each row of the function
    uint32_t saved_bytes = 0;                         // of a lane in all of them
    struct Symbol {
      uint32_t row, bytes;
      uint64_t offset;
    };
    std::vector<Symbol> symbols;  // rows that hold addresses in the frame
  };
  std::vector<StackFrame> frames;
  uint32_t stack_row = UINT32_MAX;  // each lane's stack pointer, from stack_base; UINT32_MAX: no function needs one
  uint32_t stack_base = 0;
  mutable std::vector<uint8_t> covered;  // by instruction: has been executed (sim/machine/coverage.h); else empty
};
constexpr uint32_t kStackBytes = 64 << 10;  // of a thread, unless the launch says otherwise

// What `mov` gives as the address of a function, and an indirect call takes; 0 when there is none of this name.
uint64_t function_address(const ptx::Module& module, const std::string& name);

// Decoding: a handler of one opcode family looks at source.parts and fills `out` (execute, kind, ...).
// It uses the context to turn operands into register offsets. Returns false, or throws Unsupported with a
// sentence, when the form is not known.
struct DecodeContext {
  virtual ~DecodeContext() = default;
  // Appends the operand's offsets to out's operand list: one for Register, Special, Immediate, Symbol; one for
  // each element of a Vector (kNoReg for `_`); the base of an Address (its addend goes to *addend when given, what
  // follows the first comma inside the brackets is pushed by the handler: operand.elements[1...]).
  // `as` gives width and meaning of immediates and specials. The base of an Address is a row of its register's width,
  // or a 64-bit row when it is a symbol or a number: register_type(address) says which.
  virtual void push(const ptx::Operand& operand, ptx::Type as, int64_t* addend = nullptr) = 0;
  virtual uint32_t offset_of(const ptx::Operand& operand, ptx::Type as) = 0;
  // How many offsets have been pushed, which is the place that the next one gets in Instr::reg.
  virtual uint8_t pushed() const = 0;
  // Declared type of a Register, of the first element of a Vector, of the base of an Address (U64 when that is no
  // register); None for anything else.
  virtual ptx::Type register_type(const ptx::Operand& operand) const = 0;
  virtual const ptx::Function& function() const = 0;
  virtual const ptx::Module& module() const = 0;
  virtual int arch() const = 0;
  // Where a variable lives. A kernel parameter is Param; a parameter of a .func, or a .param variable of a body, is
  // Local.
  struct Place {
    bool found = false;
    ptx::Space space = ptx::Space::None;
    uint64_t address = 0;
  };
  virtual Place place(const std::string& symbol) const = 0;
  // For brx.idx: index into Kernel::branch_tables, -1 when there is no such table. For a direct call: index into
  // Kernel::calls; for an indirect one: into Kernel::call_sites.
  virtual int branch_table(const std::string& name) = 0;
  virtual int call(const ptx::Instruction& source) = 0;
  // The row that holds the return pc of each lane in the function being decoded, and its frame on the stack or -1.
  virtual uint32_t return_row() const = 0;
  virtual int stack_frame() const = 0;
  // The row of the stack pointer, for alloca and its like.
  virtual uint32_t stack_row() const = 0;
};
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Several families may share a first part (`barrier`, `fence`, `st`): they are asked in turn until one says true.
// One that says false must leave `out` and the context as they were. Label operands need no push: prepare() sets
// `target`. The guard is set by prepare() too. A negated source predicate (`!%p`) is the handler's to apply.
using Decode = bool (*)(const ptx::Instruction& source, DecodeContext& context, Instr& out);
// Opcode families register at start-up by a call from sim/isa/registry.cpp (no static initialisers):
// Several families may register one first part ("barrier": bar.sync's and barrier.cluster's); the decoders are
// tried in the order of their registration until one returns true.
void register_opcode(const char* first_part, Decode decode);
std::vector<std::string> registered_opcodes();
void register_isa();  // sim/isa/registry.cpp calls every family below
// sim/isa (synchronous): integer.cpp float.cpp convert.cpp logic.cpp move.cpp memory.cpp control.cpp call.cpp
// warp.cpp atomics.cpp
void register_integer();
void register_float();
void register_convert();
void register_logic();
void register_move();
void register_memory();
void register_control();
void register_call();
void register_warp();
void register_atomics();
// sim/async: mbarrier.cpp copy.cpp tensor_map.cpp fence.cpp wgmma.cpp cluster.cpp (barrier.cluster, mapa, setmaxnreg,
// griddepcontrol)
void register_mbarrier();
void register_copy();
void register_tensor_map();
void register_fence();
void register_wgmma();
void register_cluster();
// sim/tcgen05
void register_tcgen05();
void register_launch_control();

// ---- hazards and errors ------------------------------------------------------------------------

enum class Hazard {
  MissingProxyFence,
  DataInFlight,
  RegistersInFlight,
  StaleTensorMap,
  TensorMapInFlight,
  MbarrierMisuse,
  Deadlock,
  Memory,
  TensorMemory,
  IllegalUse,
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
int threads_from_environment();  // MOXIE_SIM_THREADS: Launch::threads

// Where programs in use, or the ISA itself, leave room for two readings. docs/simulator.md gives the reasons.
struct Rules {
  // MOXIE_SIM_EXIT=drained: a block must not end while a bulk copy still reads its shared memory.
  bool drained_exit = false;
  // MOXIE_SIM_READS=unfenced: a copy may land where the generic proxy has read without a fence.proxy.async between.
  bool fenced_reads = true;
  // MOXIE_SIM_TCGEN05_FENCES=strict: tcgen05.fence also around synchronisation that releases and acquires.
  bool strict_tensor_fences = false;
};
Rules rules_from_environment();

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
  bool perform_one(Cluster& cluster);    // false when nothing is pending
  void maybe_perform(Cluster& cluster);  // random mode: between quanta
  void perform_all(Cluster& cluster);    // at the end of the cluster
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
// State of sim/tcgen05 per block and warp, created at the first tcgen05 instruction: sim/tcgen05/state.h.
struct TensorMemory;
struct TensorWarp;

struct Warp {
  Cta* cta = nullptr;
  int index = 0;      // within the block
  uint32_t live = 0;  // lanes that exist and have not exited
  std::unique_ptr<uint8_t[], void (*)(void*)> registers{nullptr, nullptr};
  std::unique_ptr<uint8_t[]> local;  // kLanes * local_bytes, lane-major
  // Rows of callers that may be called again before they go on (sim/isa/call.cpp), a stack for each lane.
  std::unique_ptr<std::array<std::vector<uint8_t>, kLanes>> saved_rows;

  // Lanes that stand at different places. The split with the lowest pc runs first; splits at one pc merge.
  struct Split {
    int pc = 0;
    uint32_t mask = 0;
    uint64_t blocked_at = 0;  // cluster.events when it last answered Wait, +1; 0: runnable
    bool apart = false;       // it waits for other lanes of its own warp (converged() said no)
  };
  std::vector<Split> splits;
  size_t current = 0;       // the split being executed
  int stop_pc = INT32_MAX;  // where the current split meets or passes another one
  size_t last_split = 0;    // that ran when the last turn ended
  bool rotate = false;      // begin the next turn with another split than that one
  uint32_t rest = 0;        // random order: turns that it leaves to the others
  int pc() const { return splits[current].pc; }

  View view;       // what this warp has observed
  Agent self = 0;  // program order of this warp
  // Tells an object what this warp knows, or what its last fence lets a relaxed operation tell.
  void publish(View& object, Scope scope, bool relaxed = false) const;
  // Takes it over: at once, or for a relaxed operation at the next fence.
  void observe(const View& object, Scope scope, bool relaxed = false);
  void fence(Scope scope);
  void new_epoch();  // raises view.seen[self] by one
  Stamp stamp() const { return {self, view.seen[self]}; }
  LaneReads reads;

  std::unique_ptr<AsyncWarpState, void (*)(AsyncWarpState*)> async{nullptr, nullptr};
  std::unique_ptr<TensorWarp, void (*)(TensorWarp*)> tensor{nullptr, nullptr};
  // sim/isa/control.cpp: lanes that have arrived at a named barrier and not yet gone on.
  struct BarrierWait {
    int barrier = 0;
    uint32_t lanes = 0;
    bool counted = false, released = false;  // all lanes of the warp are here; the barrier completed
    uint32_t popc = 0;                       // what the reduction gave
    bool all = false, any = false;
  };
  std::vector<BarrierWait> barrier_waits;
  // Release and acquire patterns through a fence and a relaxed access (PTX ISA 8.8): what the last fence may publish,
  // and what relaxed reads since the last fence may bring. sim/isa/address.h.
  View fence_view, read_view;
  bool has_fenced = false, has_read = false;
  uint32_t carry = 0;     // CC.CF of each lane (sim/isa/integer.cpp)
  int max_registers = 0;  // setmaxnreg, 0 before any
  // True while accumulators or A fragments of wgmma may be in flight, or unfenced accesses matter
  // (sim/async/wgmma.cpp): the machine's loop then calls check_registers_in_flight before each instruction it executes.
  // One test otherwise.
  bool wgmma_pending = false;
  uint64_t executed = 0;  // warp instructions

  template <class T>
  T* row(uint32_t offset) {
    return reinterpret_cast<T*>(registers.get() + offset);
  }
  template <class T>
  const T* row(uint32_t offset) const {
    return reinterpret_cast<const T*>(registers.get() + offset);
  }
  uint32_t predicate(uint32_t offset) const { return *row<uint32_t>(offset); }
  bool all_live_in(uint32_t mask) const { return (live & ~mask) == 0; }

  // For handlers. `lanes` of the current split go on at `pc`; the others stay where they are. With none left behind
  // the split itself moves.
  void move_lanes(uint32_t lanes, int pc);
  // Merges splits at one place, chooses the lowest that can run; false when none can.
  bool settle();
  void select(size_t split);
  void exit_lanes(uint32_t lanes);
};

// For `.aligned` instructions: true when every live lane of the warp is in the mask. Otherwise answer Step::Wait: the
// lanes are joined by the others as they come, and if they never do it is a Fault (illegal use).
bool converged(Warp& warp, uint32_t mask);
// The same for a membermask (shfl.sync and the like): true when the mask holds all live lanes of `members`.
bool gathered(Warp& warp, uint32_t mask, uint32_t members);

// Why an .aligned instruction or a barrier cannot go on yet; for the deadlock report.
struct WaitReason {
  std::string text;
};
// `return wait_for(warp, [&] { return std::string(...); });` The text is asked for only when a deadlock is being
// reported: the machine then executes each waiting instruction once more with Cluster::explaining set.
template <class Describe>
Step wait_for(Warp& warp, Describe describe);

struct Cta {
  Cluster* cluster = nullptr;
  uint32_t rank = 0;    // in the cluster
  Dim3 index;           // %ctaid
  SharedMemory shared;  // sim/memory/memory.h
  std::vector<std::unique_ptr<Warp>> warps;
  // Named barriers (sim/isa/control.cpp).
  struct NamedBarrier {
    uint32_t expected = 0, arrived = 0;  // threads; expected 0: all of the block
    uint32_t arrived_warps = 0;
    uint64_t generation = 0;
    View arriving;
    bool reduces = false;
    uint32_t reduction_and = kFullMask, reduction_or = 0, reduction_popc = 0;
  };
  std::array<NamedBarrier, 16> barriers;
  // griddepcontrol: a thread has waited; one has let dependent grids start, and no wait came before.
  bool waited = false, triggered_early = false;
  std::unique_ptr<AsyncCtaState, void (*)(AsyncCtaState*)> async{nullptr, nullptr};
  std::unique_ptr<TensorMemory, void (*)(TensorMemory*)> tensor{nullptr, nullptr};
  bool finished() const;
};

struct Cluster {
  Launch* launch = nullptr;
  Dim3 index;           // %clusterid
  uint64_t number = 0;  // in the launch
  std::vector<std::unique_ptr<Cta>> ctas;
  AsyncEngine engine;
  std::unique_ptr<AsyncClusterState, void (*)(AsyncClusterState*)> async{nullptr, nullptr};
  uint64_t events = 1;  // raised whenever something happens that a waiting warp may be waiting for
  void event() { ++events; }
  Agent new_agent() { return next_agent++; }
  Agent next_agent = 1;
  std::mt19937_64 rng;  // seeded from the order's seed and the cluster index
  Order order;
  uint64_t maps_low = UINT64_MAX, maps_high = 0;      // global addresses that hold tensor maps known to this cluster
  std::unordered_map<const void*, WaitReason> waits;  // Warp* -> reason, for the deadlock report
  GlobalWriters writers;                              // in clusters of several blocks
  // What a release of shared or global memory at an address has published (sim/isa/memory.cpp, atomics.cpp).
  std::unordered_map<uint64_t, View> sync_objects;
  bool explaining = false;    // waiting instructions are being asked for their reasons
  uint64_t instructions = 0;  // warp instructions executed
  bool logs_writes = false;   // this cluster's writes to global memory, copies included, are kept in `written`
  ByteSet written;
  Agent prerequisites = 0;  // its clock is 1 for whom a griddepcontrol.wait has come before
  uint64_t stores = 0;      // with `events`, what tells work from a livelock
  // Clusters of the launch that clusterlaunchcontrol.try_cancel may still take: next, next + step, ... below end.
  struct Pending {
    uint64_t next = 0, step = 1, end = 0;
  } pending;
  std::vector<Stamp> cancel_failures;                 // completions of try_cancel that found none
  const std::atomic<uint64_t>* stop_above = nullptr;  // give up when a cluster of lower index has failed
  bool alone = true;                                  // no other cluster runs at the same time

  void run();  // sim/machine/cluster.cpp: to completion, or throws Fault
};

// A warp touches global memory, itself or by a copy it issues: `written` is kept, and what unfinished grids write is
// left alone. sim/memory/global.cpp.
void check_unfinished(Warp& warp, uint64_t address, uint64_t bytes, bool write, int lane);
inline void note_global(Warp& warp, uint64_t address, uint64_t bytes, bool write, int lane);

// Registers of wgmma operations not yet waited for: faults (registers in flight) when `instr` touches one of them.
// Call it before executing any instruction while warp.wgmma_pending. sim/async/wgmma.cpp.
void check_registers_in_flight(Warp& warp, const Instr& instr);

// A store, atomic or other generic write to global memory that touches [cluster.maps_low, cluster.maps_high) may
// rewrite a tensor map: the store handlers then call this (once a lane). sim/async/tensor_map.cpp.
void tensor_map_written(Warp& warp, uint64_t address, uint32_t bytes, int lane);

// What sim/async needs at birth and end of things (sim/async/state.cpp).
void create_async_state(Cluster& cluster);  // also allocates each warp's agents
void finish_async_state(Cluster& cluster);  // after the last warp left: performs what is pending, checks leftovers

// The same of sim/tcgen05 (sim/tcgen05/state.cpp). finish: before finish_async_state; faults when tensor memory was not
// given back or tcgen05 operations may be in flight.
void reset_tensor_state(Cluster& cluster);
void finish_tensor_state(Cluster& cluster);
// Destinations of tcgen05.ld not yet waited for; called by check_registers_in_flight.
void check_tensor_registers(Warp& warp, const Instr& instr);

struct Launch {
  const Kernel* kernel = nullptr;
  Dim3 grid, block, cluster{1, 1, 1};
  bool explicit_cluster = false;  // launched with a cluster dimension, be it of one block
  uint32_t dynamic_shared = 0;
  std::vector<uint8_t> params;     // kernel->param_bytes
  GlobalMemory* global = nullptr;  // sim/memory/memory.h
  int arch = 90;                   // 90 or 100
  Order order;
  int threads = 0;               // host threads, 0: as many as there are cores
  uint32_t multiprocessors = 0;  // %nsmid; 0: 132 (arch 90) or 148 (arch 100)
  uint32_t stack_bytes = kStackBytes;
  // Of a thread, with the stack behind what stands at fixed places.
  uint32_t local_bytes() const { return kernel->local_bytes + (kernel->stack_row != UINT32_MAX ? stack_bytes : 0); }
  Rules rules;
  std::atomic<uint64_t> instructions{0};
  // Programmatic dependent launch. What the grids before this one may still be writing when it starts: touched before a
  // griddepcontrol.wait it is a hazard. What this one writes, when `written` is given; whether its
  // dependents, which start when every block has let them or has ended, do so only after a wait.
  std::vector<std::shared_ptr<const ByteSet>> unfinished;
  ByteSet* written = nullptr;
  std::atomic<bool> waited{false};
  // What the grids before this one still have to do to memory when it starts: done when the first thread executes
  // griddepcontrol.wait, at the latest when the launch ends.
  std::function<void()> prerequisites;
  std::once_flag prerequisites_met;
  void meet_prerequisites() {
    if (prerequisites) std::call_once(prerequisites_met, prerequisites);
  }
};

inline void note_global(Warp& warp, uint64_t address, uint64_t bytes, bool write, int lane) {
  Cluster& cluster = *warp.cta->cluster;
  if (write && cluster.logs_writes) cluster.written.add(address, bytes);
  if (!cluster.launch->unfinished.empty()) check_unfinished(warp, address, bytes, write, lane);
}

template <class Describe>
Step wait_for(Warp& warp, Describe describe) {
  Cluster& cluster = *warp.cta->cluster;
  if (cluster.explaining) cluster.waits[&warp] = WaitReason{describe()};
  return Step::Wait;
}

// Runs a launch to its end; throws Fault. The same for any number of host threads.
void run(Launch& launch);

// Builds a kernel from a parsed module. `symbols` gives the device addresses of module-scope variables.
// Throws ptx::ParseError for what is not understood, naming the instruction and line.
std::shared_ptr<Kernel> prepare(std::shared_ptr<const ptx::Module> module, const std::string& entry,
                                const std::unordered_map<std::string, uint64_t>& symbols, int arch);

}  // namespace sim
