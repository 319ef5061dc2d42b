// SPDX-License-Identifier: Apache-2.0
// Calls with tensors that look as tensors of an earlier call did, without what Python does to find that out.
//
// Python checks the first call of each kind and describes it here: what its tensors look like (shape, strides, type,
// device), which members of the library's structure receive their addresses, and what else the structure holds. Later
// calls are looked up by their options and tensors, which DLPack's exchange interface shows without a Python object
// being made, and go straight to the library.
//
// Nothing here is linked against Python or PyTorch: the few functions of theirs that are needed come as addresses
// (python/moxie/_calls.py), so that one build serves all versions. All of it but the library's call runs with the
// interpreter lock held, and what has been added is not changed any more.

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "moxie/c.h"

#define EXPORT __attribute__((visibility("default")))

// ---- DLPack's exchange interface: https://github.com/dmlc/dlpack/blob/main/include/dlpack/dlpack.h, version 1 ----

typedef struct {
  int32_t type, index;
} dl_device;

typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} dl_type;

typedef struct {
  void* data;
  dl_device device;
  int32_t dimensions;
  dl_type type;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
  uint32_t major, minor;
  void* context;
  void (*release)(struct dl_managed* self);  // NULL: there is nothing to release
  uint64_t flags;
  dl_tensor tensor;
} dl_managed;

typedef void (*dl_report)(void* context, const char* kind, const char* message);

typedef struct {
  uint32_t major, minor;
  void* previous;
  int (*allocate)(dl_tensor* prototype, dl_managed** made, void* context, dl_report report);  // -1: reported
  void* export_tensor;
  void* import_tensor;
  int (*view)(void* object, dl_tensor* tensor);  // -1: a Python exception is set
  int (*stream)(int32_t device_type, int32_t device_index, void** stream);
} dl_exchange;

// ---- Python ----

typedef struct {
  void* (*tuple_item)(void* tuple, intptr_t index);  // PyTuple_GetItem: borrowed
  void* (*call)(void* callable, void* arguments);    // PyObject_CallObject: a new reference, or an exception
  void* (*long_from_long)(long value);               // PyLong_FromLong
  void (*increase)(void* object);                    // Py_IncRef
  void (*decrease)(void* object);                    // Py_DecRef
  void (*clear_error)(void);                         // PyErr_Clear
  void* (*save_thread)(void);                        // PyEval_SaveThread: gives up the interpreter lock
  void (*restore_thread)(void* state);               // PyEval_RestoreThread
  void* (*new_capsule)(void* pointer, const char* name, void* destructor);       // PyCapsule_New
  void* (*capsule_pointer)(void* capsule, const char* name);                     // PyCapsule_GetPointer
  void* (*new_function)(const void* definition, void* self, void* module_name);  // PyCFunction_NewEx
  void* (*type_of)(void* object);                                                // PyObject_Type: a new reference
  int (*compare)(void* one, void* other, int how);  // PyObject_RichCompareBool: 1, 0, or -1 and an exception
  void* none;
  void* types[2];  // of tensors: any other is a subclass that torch treats in its own way
  const dl_exchange* exchange;
} python_functions;

// ---- torch's C interface (torch/csrc/inductor/aoti_torch/c/shim.h), whose functions return 0 when all went well ----

typedef struct {
  int32_t (*current_device)(int32_t* index);  // of this thread
  // Memory of the current device's caching allocator, for work of its current stream.
  int32_t (*allocate)(uint64_t bytes, void** made);
  int32_t (*release)(void* memory);
} gpu_memory;

// ---- Calls ----

enum { MOST_TENSORS = 8, MOST_DIMENSIONS = 4, BUCKETS = 1024, MOST_CALLS = 8192 };

// What a tensor looks like. Absent ones, and what lies past the dimensions, are zeros.
typedef struct {
  dl_device device;
  dl_type type;
  int32_t dimensions;  // 1 and more; 0: no tensor
  int64_t shape[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
} signature;

typedef moxie_status (*library_call)(const void* handle, const void* tensors, void* workspace, size_t workspace_bytes,
                                     const moxie_launch_options* options);

typedef struct known_call {
  struct known_call* next;  // with the same bucket
  signature signatures[MOST_TENSORS];
  library_call run;
  const void* handle;
  void* make_out;   // what makes the result, called without arguments
  void* make_here;  // what makes it faster on the current device, called with the tuple `here`; or NULL
  void* here;
  size_t workspace_bytes;
  int32_t words[MOST_TENSORS];  // of the structure that receive the tensors' addresses
  int32_t out_word;
  int32_t aligned;  // bit i: tensor i must lie at a multiple of 16 bytes
  union {
    moxie_expert_layer_tensors layer;
    moxie_gemm_tensors product;
    uintptr_t words[1];
  } tensors;
} known_call;

// Calls that differ in their tensors alone.
typedef struct {
  python_functions python;
  gpu_memory gpu;   // all NULL: torch has no such functions
  int32_t tensors;  // of a call
  int32_t count;    // of calls
  known_call* buckets[BUCKETS];
} call_table;

static bool read_tensor(const python_functions* python, void* object, signature* seen, uintptr_t* address) {
  *seen = (signature){0}, *address = 0;
  if (object == python->none) return true;
  if (object == NULL) return false;
  void* type = python->type_of(object);
  python->decrease(type);  // the object keeps it
  if (type != python->types[0] && type != python->types[1]) return false;
  dl_tensor tensor;
  if (python->exchange->view(object, &tensor) != 0) {
    python->clear_error();
    return false;
  }
  if (tensor.dimensions < 1 || tensor.dimensions > MOST_DIMENSIONS || tensor.strides == NULL) return false;
  seen->device = tensor.device, seen->type = tensor.type, seen->dimensions = tensor.dimensions;
  const size_t bytes = (size_t)tensor.dimensions * sizeof(int64_t);
  memcpy(seen->shape, tensor.shape, bytes);
  memcpy(seen->strides, tensor.strides, bytes);
  *address = (uintptr_t)tensor.data + tensor.byte_offset;
  return true;
}

static bool read_all(const call_table* table, void* const* objects, signature* seen, uintptr_t* addresses) {
  for (int i = 0; i < table->tensors; ++i) {
    if (!read_tensor(&table->python, objects[i], &seen[i], &addresses[i])) return false;
  }
  return true;
}

static void report_nothing(void* context, const char* kind, const char* message) {
  (void)context, (void)kind, (void)message;
}

// Whether a device is the GPU that torch allocates on where nothing else is said, and can allocate on by its functions.
static bool is_here(const call_table* table, dl_device device) {
  enum { CUDA = 2 };
  int32_t index = -1;
  return device.type == CUDA && table->gpu.allocate != NULL && table->gpu.current_device(&index) == 0 &&
         index == device.index;
}

// Memory of torch's allocator, without a Python object.
typedef struct {
  void* data;           // NULL: there is none
  dl_managed* managed;  // which owns it; NULL: it is released by its address
} memory;

static memory allocate(const call_table* table, dl_device device, bool here, size_t bytes) {
  memory given = {0};
  if (here) {
    if (table->gpu.allocate(bytes, &given.data) != 0) given.data = NULL;
    return given;
  }
  int64_t shape = (int64_t)bytes, stride = 1;
  dl_tensor prototype = {.device = device, .dimensions = 1, .type = {.code = 1, .bits = 8, .lanes = 1}};
  prototype.shape = &shape, prototype.strides = &stride;
  if (table->python.exchange->allocate(&prototype, &given.managed, NULL, report_nothing) == 0 && given.managed != NULL)
    given.data = (char*)given.managed->tensor.data + given.managed->tensor.byte_offset;
  return given;
}

static void release(const call_table* table, memory given) {
  if (given.managed == NULL) {
    if (given.data != NULL) table->gpu.release(given.data);
  } else if (given.managed->release != NULL) {
    given.managed->release(given.managed);
  }
}

// FNV-1a of what most calls differ in.
static uint32_t bucket_of(const call_table* table, const signature* seen) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int i = 0; i < table->tensors; ++i) {
    for (int d = 0; d < seen[i].dimensions; ++d) {
      hash = (hash ^ (uint64_t)seen[i].shape[d]) * 0x100000001b3u;
      hash = (hash ^ (uint64_t)seen[i].strides[d]) * 0x100000001b3u;
    }
  }
  return (uint32_t)(hash ^ hash >> 32) % BUCKETS;
}

static const known_call* find(const call_table* table, const signature* seen) {
  const known_call* call = table->buckets[bucket_of(table, seen)];
  while (call != NULL && memcmp(call->signatures, seen, (size_t)table->tensors * sizeof(signature)) != 0)
    call = call->next;
  return call;
}

// A table of calls with so many tensors each, or NULL. It is never freed: calls of other threads may be in it.
EXPORT void* moxie_calls_create(const python_functions* python, const gpu_memory* gpu, int32_t tensors) {
  const dl_exchange* exchange = python->exchange;
  if (tensors < 1 || tensors > MOST_TENSORS || exchange->major != 1 || exchange->view == NULL ||
      exchange->allocate == NULL) {
    return NULL;
  }
  call_table* table = calloc(1, sizeof *table);
  if (table != NULL) table->python = *python, table->gpu = *gpu, table->tensors = tensors;
  return table;
}

// Adds the call of a tuple of tensors, None for those that are absent. structure: the library's, with everything but
// the addresses. words, out_word: its 64-bit words that receive those. make_out, make_here: callables, and here the
// arguments of the latter, which the caller keeps; make_here may be NULL. Returns 1 when it was added.
EXPORT int moxie_calls_add(void* to, void* tuple, library_call run, const void* handle, const void* structure,
                           size_t structure_bytes, const int32_t* words, int32_t out_word, int32_t aligned,
                           void* make_out, void* make_here, void* here, size_t workspace_bytes) {
  call_table* table = to;
  signature seen[MOST_TENSORS];
  uintptr_t addresses[MOST_TENSORS];
  void* objects[MOST_TENSORS];
  memset(seen, 0, sizeof seen);
  for (int i = 0; i < table->tensors; ++i) objects[i] = table->python.tuple_item(tuple, i);
  if (table->count >= MOST_CALLS || !read_all(table, objects, seen, addresses) || find(table, seen)) return 0;
  known_call* call = calloc(1, sizeof *call);
  if (call == NULL || structure_bytes > sizeof call->tensors) return free(call), 0;
  memcpy(call->signatures, seen, sizeof seen);
  call->run = run, call->handle = handle;
  call->make_out = make_out, call->make_here = make_here, call->here = here;
  call->workspace_bytes = workspace_bytes;
  memcpy(call->words, words, (size_t)table->tensors * sizeof *words);
  call->out_word = out_word, call->aligned = aligned;
  memcpy(&call->tensors, structure, structure_bytes);
  known_call** bucket = &table->buckets[bucket_of(table, seen)];
  call->next = *bucket;
  *bucket = call;
  ++table->count;
  return 1;
}

// Makes the call of some tensors: a new reference to its result. None: no such call is known, or a tensor does not lie
// as it must; nothing has happened then. An int: the library's status, and its moxie_last_error() is of this thread.
// NULL: a Python exception is set.
static void* run(const call_table* table, void* const* objects) {
  const python_functions* python = &table->python;
  signature seen[MOST_TENSORS];
  uintptr_t addresses[MOST_TENSORS];
  const known_call* call = read_all(table, objects, seen, addresses) ? find(table, seen) : NULL;
  uintptr_t misaligned = 0;
  for (int i = 0; call != NULL && i < table->tensors; ++i) {
    if (call->aligned >> i & 1) misaligned |= addresses[i] & 15;
  }
  if (call == NULL || misaligned != 0) return python->increase(python->none), python->none;

  const dl_device device = seen[0].device;
  const bool here = is_here(table, device);
  void* out =
      here && call->make_here != NULL ? python->call(call->make_here, call->here) : python->call(call->make_out, NULL);
  if (out == NULL) return NULL;
  memory workspace = {0};
  if (call->workspace_bytes != 0) workspace = allocate(table, device, here, call->workspace_bytes);
  signature made;
  uintptr_t out_address = 0;
  void* stream = NULL;
  void* result = NULL;
  if ((workspace.data == NULL) != (call->workspace_bytes == 0) || !read_tensor(python, out, &made, &out_address) ||
      python->exchange->stream(device.type, device.index, &stream) != 0) {
    // Python's own way says what is wrong.
    python->clear_error();
    result = python->none;
    python->increase(result);
  } else {
    __typeof__(call->tensors) tensors = call->tensors;
    uintptr_t* words = (uintptr_t*)&tensors;
    for (int i = 0; i < table->tensors; ++i) {
      if (seen[i].dimensions != 0) words[call->words[i]] = addresses[i];
    }
    words[call->out_word] = out_address;
    const moxie_launch_options options = {.size = sizeof options, .stream = stream};
    void* thread = python->save_thread();
    const moxie_status status = call->run(call->handle, &tensors, workspace.data, call->workspace_bytes, &options);
    python->restore_thread(thread);
    if (status == MOXIE_OK)
      result = out, out = NULL;
    else
      result = python->long_from_long(status);
  }
  // torch's allocator gives the memory to later work of the same stream alone.
  release(table, workspace);
  if (out != NULL) python->decrease(out);
  return result;
}

// ---- Calls that differ in their options, too ----

enum { MOST_OPTIONS = 8, MOST_CHECKS = 5, MOST_TABLES = 32 };

// What a public function asks before all else.
typedef struct {
  python_functions python;
  int32_t options, checks, count;  // of a call; of all calls; of tables
  void* functions[MOST_CHECKS];    // called without arguments, must answer with these very objects
  void* answers[MOST_CHECKS];
  void* values[MOST_TABLES][MOST_OPTIONS];
  const call_table* tables[MOST_TABLES];
} front;

static bool are_passed(const front* all) {
  for (int i = 0; i < all->checks; ++i) {
    void* answer = all->python.call(all->functions[i], NULL);
    if (answer == NULL) return all->python.clear_error(), false;
    all->python.decrease(answer);  // what is compared with it is kept
    if (answer != all->answers[i]) return false;
  }
  return true;
}

static const call_table* table_of(const front* all, void* const* options) {
  enum { EQUAL = 2 };  // Py_EQ
  for (int t = 0; t < all->count; ++t) {
    int i = 0;
    while (i < all->options) {
      const int same = all->python.compare(all->values[t][i], options[i], EQUAL);
      if (same < 0) all->python.clear_error();
      if (same != 1) break;
      ++i;
    }
    if (i == all->options) return all->tables[t];
  }
  return NULL;
}

// A front of calls with so many options, or NULL. It is never freed. functions, answers: of the checks, tuples that the
// caller keeps.
EXPORT void* moxie_front_create(const python_functions* python, int32_t options, void* functions, void* answers,
                                int32_t checks) {
  if (options < 0 || options > MOST_OPTIONS || checks < 0 || checks > MOST_CHECKS) return NULL;
  front* all = calloc(1, sizeof *all);
  if (all == NULL) return NULL;
  all->python = *python, all->options = options, all->checks = checks;
  for (int i = 0; i < checks; ++i) {
    all->functions[i] = python->tuple_item(functions, i);
    all->answers[i] = python->tuple_item(answers, i);
  }
  return all;
}

// Adds the table of calls with a tuple of options, which the caller keeps. Returns 1 when it was added.
EXPORT int moxie_front_add(void* to, void* options, const void* table) {
  front* all = to;
  if (table == NULL || all->count == MOST_TABLES) return 0;
  for (int i = 0; i < all->options; ++i) all->values[all->count][i] = all->python.tuple_item(options, i);
  all->tables[all->count++] = table;
  return 1;
}

EXPORT void moxie_front_clear(void* of) { ((front*)of)->count = 0; }

// ---- The function that Python calls ----

// PyMethodDef, and METH_FASTCALL of its flags: the stable ABI has both.
typedef struct {
  const char* name;
  void* function;
  int flags;
  const char* text;
} method;

enum { METH_FASTCALL = 0x80 };

// What a capsule needs to be opened, which functions have no other way to find.
static void* (*capsule_pointer)(void* capsule, const char* name);

static void* nothing_known(const python_functions* python) { return python->increase(python->none), python->none; }

static void* run_tensors(void* self, void* const* objects, intptr_t count) {
  const call_table* table = capsule_pointer(self, NULL);
  if (table == NULL) return NULL;
  return count == table->tensors ? run(table, objects) : nothing_known(&table->python);
}

static void* run_options(void* self, void* const* objects, intptr_t count) {
  const front* all = capsule_pointer(self, NULL);
  if (all == NULL) return NULL;
  if (all->count == 0 || count < all->options || !are_passed(all)) return nothing_known(&all->python);
  const call_table* table = table_of(all, objects);
  if (table == NULL || count - all->options != table->tensors) return nothing_known(&all->python);
  return run(table, objects + all->options);
}

// A Python function that a capsule of `of` goes with. NULL: an exception is set.
static void* new_function(const python_functions* python, const method* definition, void* of) {
  capsule_pointer = python->capsule_pointer;
  void* self = python->new_capsule(of, NULL, NULL);
  if (self == NULL) return NULL;
  void* function = python->new_function(definition, self, NULL);
  python->decrease(self);
  return function;
}

// A Python function of a table's tensors, None for those that are absent, which returns what run() does.
EXPORT void* moxie_calls_function(void* of) {
  static const method definition = {"run", (void*)run_tensors, METH_FASTCALL, NULL};
  return new_function(&((const call_table*)of)->python, &definition, of);
}

// A Python function of options and behind them tensors. None also where a check is not passed.
EXPORT void* moxie_front_function(void* of) {
  static const method definition = {"run", (void*)run_options, METH_FASTCALL, NULL};
  return new_function(&((const front*)of)->python, &definition, of);
}
