// Packs of the kernels that a list of problems needs.
#include "moxie/pack.h"

#include <algorithm>
#include <set>
#include <thread>

#include "jit/pack.h"
#include "ops/gemm.h"

namespace moxie {

PackResult pack(const std::vector<GemmProblem>& problems, const std::string& folder, int arch, int sm_count,
                PackImage image, int threads) {
  plan::DeviceFigures device;
  device.arch = arch;
  device.sm_count = sm_count;
  std::vector<jit::Request> requests;
  std::set<std::string> known;
  for (const GemmProblem& problem : problems) {
    const auto prepared = ops::prepare_gemm(device, problem);
    if (!known.insert(prepared->kernel_key).second) continue;
    requests.push_back(prepared->blackwell ? ops::kernel_request(prepared->blackwell->config, problem)
                                           : ops::kernel_request(prepared->plan.config, problem));
    requests.back().kind = image == PackImage::Ptx ? jit::ImageKind::Ptx : jit::ImageKind::Cubin;
  }
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const jit::PackSummary summary = jit::write_pack(folder, requests, threads);
  return {summary.kernels, summary.compiled, summary.bytes};
}

}  // namespace moxie
