// See gpu_clock.h.
#include "cli/gpu_clock.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "cli/timing.h"
#include "device_state.h"
#include "driver/functions.h"

namespace moxie::cli {

// The launches of one contender, and the events around a replay.
class GpuClock::Replay {
 public:
  Replay(const driver::Driver& driver, Stream stream, const Contender& contender, int launches)
      : driver_(driver), stream_(stream), contender_(contender), launches_(launches) {
    const driver::Functions& call = driver_.call();
    driver_.check(call.cuEventCreate(&start_, CU_EVENT_DEFAULT), "cuEventCreate");
    driver_.check(call.cuEventCreate(&end_, CU_EVENT_DEFAULT), "cuEventCreate");
    if (!contender.graph) return;
    driver_.check(call.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    CUgraph graph = nullptr;
    try {
      for (int i = 0; i < launches; ++i) contender.launch(i, stream);
    } catch (...) {
      call.cuStreamEndCapture(stream, &graph);
      if (graph != nullptr) call.cuGraphDestroy(graph);
      throw;
    }
    driver_.check(call.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
    const CUresult result = call.cuGraphInstantiateWithFlags(&executable_, graph, 0);
    call.cuGraphDestroy(graph);
    driver_.check(result, "cuGraphInstantiateWithFlags");
  }
  ~Replay() {
    const driver::Functions& call = driver_.call();
    if (executable_ != nullptr) call.cuGraphExecDestroy(executable_);
    if (start_ != nullptr) call.cuEventDestroy(start_);
    if (end_ != nullptr) call.cuEventDestroy(end_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void run() const {
    const driver::Functions& call = driver_.call();
    driver_.check(call.cuEventRecord(start_, stream_), "cuEventRecord");
    if (contender_.graph) {
      driver_.check(call.cuGraphLaunch(executable_, stream_), "cuGraphLaunch");
    } else {
      for (int i = 0; i < launches_; ++i) contender_.launch(i, stream_);
    }
    driver_.check(call.cuEventRecord(end_, stream_), "cuEventRecord");
  }
  double seconds() const {
    float milliseconds = 0;
    driver_.check(driver_.call().cuEventSynchronize(end_), "cuEventSynchronize");
    driver_.check(driver_.call().cuEventElapsedTime(&milliseconds, start_, end_), "cuEventElapsedTime");
    return milliseconds * 1e-3 / launches_;
  }

 private:
  const driver::Driver& driver_;
  Stream stream_;
  const Contender& contender_;
  int launches_;
  CUgraphExec executable_ = nullptr;
  CUevent start_ = nullptr, end_ = nullptr;
};

GpuClock::GpuClock(const Device& device) : device_(device), driver_(device.state().context().driver()) {
  const driver::Functions& call = driver_.call();
  CUcontext context = nullptr;
  driver_.check(call.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  driver_.check(call.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  driver_.check(call.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
}

GpuClock::~GpuClock() {
  const driver::Functions& call = driver_.call();
  if (stream_ != nullptr) call.cuStreamDestroy(stream_);
  CUcontext popped = nullptr;
  call.cuCtxPopCurrent(&popped);
  call.cuDevicePrimaryCtxRelease(0);
}

std::vector<double> GpuClock::seconds(const std::vector<Contender>& contenders, int turns, int rounds,
                                      double graph_seconds) const {
  std::vector<std::unique_ptr<Replay>> replays;
  for (const Contender& contender : contenders) {
    for (int i = 0; i < 3; ++i) contender.launch(i, stream_);
    device_.synchronize(stream_);
    const Replay rough(driver_, stream_, contender, turns);
    rough.run();
    const double once = std::max(rough.seconds(), 1e-7);
    const int repeats = static_cast<int>(std::clamp(std::round(graph_seconds / once / turns), 1.0, 50.0));
    replays.push_back(std::make_unique<Replay>(driver_, stream_, contender, repeats * turns));
    replays.back()->run();
    device_.synchronize(stream_);
  }
  std::vector<std::vector<double>> times(contenders.size());
  for (size_t round = 0; round < static_cast<size_t>(rounds); ++round) {
    for (size_t i = 0; i < replays.size(); ++i) replays[(i + round) % replays.size()]->run();
    for (size_t i = 0; i < replays.size(); ++i) times[i].push_back(replays[i]->seconds());
  }
  std::vector<double> medians;
  for (std::vector<double>& all : times) medians.push_back(median(std::move(all)));
  return medians;
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
  driver_.check(driver_.call().cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                                                 bytes, stream),
                "cuMemcpyDtoDAsync");
}

}  // namespace moxie::cli
