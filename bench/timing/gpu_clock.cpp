// SPDX-License-Identifier: Apache-2.0
// See gpu_clock.h.
#include "bench/timing/gpu_clock.h"

#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>

#include <fmt/format.h>

#include "bench/timing/host_clock.h"
#include "moxie/error.h"

namespace moxie::timing {

namespace {

#define MOXIE_TIMING_FUNCTIONS(X) \
  X(cuGetErrorName)               \
  X(cuDevicePrimaryCtxRetain)     \
  X(cuDevicePrimaryCtxRelease)    \
  X(cuCtxPushCurrent)             \
  X(cuCtxPopCurrent)              \
  X(cuStreamCreate)               \
  X(cuStreamDestroy)              \
  X(cuStreamBeginCapture)         \
  X(cuStreamEndCapture)           \
  X(cuGraphInstantiateWithFlags)  \
  X(cuGraphLaunch)                \
  X(cuGraphDestroy)               \
  X(cuGraphExecDestroy)           \
  X(cuEventCreate)                \
  X(cuEventDestroy)               \
  X(cuEventRecord)                \
  X(cuEventSynchronize)           \
  X(cuEventElapsedTime)           \
  X(cuMemcpyDtoDAsync)

template <class Function>
void bind(Function& function, void* library, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw Error(ErrorCode::Driver, fmt::format("the CUDA driver lacks {}", name));
}

}  // namespace

// Functions of the driver that serves the device. The library gives its path.
struct GpuClock::Driver {
#define MOXIE_DECLARE(name) decltype(&::name) name = nullptr;
  MOXIE_TIMING_FUNCTIONS(MOXIE_DECLARE)
#undef MOXIE_DECLARE

  explicit Driver(const std::string& path) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // the library has it open for good
    if (library == nullptr) throw Error(ErrorCode::Driver, fmt::format("the CUDA driver {} cannot be loaded", path));
      // cuda.h renames functions by macros, cuEventDestroy to cuEventDestroy_v2 for instance. The text is made of the
      // expanded name, which is the symbol's.
#define MOXIE_TEXT(name) #name
#define MOXIE_BIND(name) bind(name, library, MOXIE_TEXT(name));
    MOXIE_TIMING_FUNCTIONS(MOXIE_BIND)
#undef MOXIE_BIND
#undef MOXIE_TEXT
  }

  void check(CUresult result, const char* what) const {
    if (result == CUDA_SUCCESS) return;
    const char* name = nullptr;
    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
    throw Error(ErrorCode::Driver, fmt::format("{} failed: {}", what, name));
  }
};

// The launches of one contender, and the events around a replay.
class GpuClock::Replay {
 public:
  Replay(const Driver& driver, Stream stream, const Contender& contender, int launches)
      : driver_(driver), stream_(stream), contender_(contender), launches_(launches) {
    driver_.check(driver_.cuEventCreate(&start_, CU_EVENT_DEFAULT), "cuEventCreate");
    driver_.check(driver_.cuEventCreate(&end_, CU_EVENT_DEFAULT), "cuEventCreate");
    if (!contender.graph) return;
    driver_.check(driver_.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    CUgraph graph = nullptr;
    try {
      for (int i = 0; i < launches; ++i) contender.launch(i, stream);
    } catch (...) {
      driver_.cuStreamEndCapture(stream, &graph);
      if (graph != nullptr) driver_.cuGraphDestroy(graph);
      throw;
    }
    driver_.check(driver_.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    const CUresult result = driver_.cuGraphInstantiateWithFlags(&executable_, graph, 0);
    driver_.cuGraphDestroy(graph);
    driver_.check(result, "cuGraphInstantiateWithFlags");
  }
  ~Replay() {
    if (executable_ != nullptr) driver_.cuGraphExecDestroy(executable_);
    if (start_ != nullptr) driver_.cuEventDestroy(start_);
    if (end_ != nullptr) driver_.cuEventDestroy(end_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void run() const {
    driver_.check(driver_.cuEventRecord(start_, stream_), "cuEventRecord");
    if (contender_.graph) {
      driver_.check(driver_.cuGraphLaunch(executable_, stream_), "cuGraphLaunch");
    } else {
      for (int i = 0; i < launches_; ++i) contender_.launch(i, stream_);
    }
    driver_.check(driver_.cuEventRecord(end_, stream_), "cuEventRecord");
  }
  double seconds() const {
    float milliseconds = 0;
    driver_.check(driver_.cuEventSynchronize(end_), "cuEventSynchronize");
    driver_.check(driver_.cuEventElapsedTime(&milliseconds, start_, end_), "cuEventElapsedTime");
    return milliseconds * 1e-3 / launches_;
  }

 private:
  const Driver& driver_;
  Stream stream_;
  const Contender& contender_;
  int launches_;
  CUgraphExec executable_ = nullptr;
  CUevent start_ = nullptr, end_ = nullptr;
};

GpuClock::GpuClock(const Device& device)
    : device_(device), driver_(std::make_unique<const Driver>(device.info().driver_path)) {
  CUcontext context = nullptr;
  driver_->check(driver_->cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  driver_->check(driver_->cuCtxPushCurrent(context), "cuCtxPushCurrent");
  driver_->check(driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

GpuClock::~GpuClock() {
  if (stream_ != nullptr) driver_->cuStreamDestroy(stream_);
  CUcontext popped = nullptr;
  driver_->cuCtxPopCurrent(&popped);
  driver_->cuDevicePrimaryCtxRelease(0);
}

std::vector<double> GpuClock::seconds(const std::vector<Contender>& contenders, int turns, int rounds,
                                      double graph_seconds) const {
  std::vector<std::unique_ptr<Replay>> replays;
  for (const Contender& contender : contenders) {
    const int own_turns = contender.turns > 0 ? contender.turns : turns;
    double once = contender.rough_seconds;
    if (once <= 0) {
      for (int i = 0; i < 3; ++i) contender.launch(i, stream_);
      device_.synchronize(stream_);
      const Replay rough(*driver_, stream_, contender, own_turns);
      rough.run();
      once = std::max(rough.seconds(), 1e-7);
    }
    const int repeats = static_cast<int>(std::clamp(std::round(graph_seconds / once / own_turns), 1.0, 50.0));
    replays.push_back(std::make_unique<Replay>(*driver_, stream_, contender, repeats * own_turns));
    replays.back()->run();
    device_.synchronize(stream_);
  }
  std::vector<std::vector<double>> times(contenders.size());
  // What ran before matters, by the power that it left: a shuffled order gives nobody the same predecessor each time.
  std::vector<size_t> order(replays.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(1);
  for (int round = 0; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) replays[i]->run();
    for (size_t i = 0; i < replays.size(); ++i) times[i].push_back(replays[i]->seconds());
  }
  std::vector<double> medians;
  for (std::vector<double>& all : times) medians.push_back(median(std::move(all)));
  return medians;
}

double GpuClock::rough_seconds(const Launch& launch, int turns) const {
  constexpr double kLong = 3e-3, kEnough = 3e-4;  // seconds
  const Contender contender{launch, /*graph=*/false};
  const auto timed = [&](int launches) {
    const Replay replay(*driver_, stream_, contender, launches);
    replay.run();
    return std::max(replay.seconds(), 1e-7);
  };
  const double first = timed(1);
  if (first > kLong) return first;
  return timed(static_cast<int>(std::clamp(std::ceil(kEnough / first), 1.0, 20.0)) * turns);
}

double GpuClock::host_seconds(const Launch& launch, int turns) const {
  constexpr int kBatches = 20, kLaunches = 100;
  double least = 1;
  for (int batch = 0; batch < kBatches; ++batch) {
    device_.synchronize(stream_);
    least = std::min(least, seconds_of([&] {
                              for (int i = 0; i < kLaunches; ++i) launch(i % turns, stream_);
                            }) / kLaunches);
  }
  device_.synchronize(stream_);
  return least;
}

void GpuClock::copy(void* to, const void* from, size_t bytes, Stream stream) const {
  driver_->check(
      driver_->cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), bytes, stream),
      "cuMemcpyDtoDAsync");
}

}  // namespace moxie::timing
