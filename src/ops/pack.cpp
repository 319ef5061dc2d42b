// SPDX-License-Identifier: Apache-2.0
// Packs of the kernels that a list of problems needs.
#include "moxie/pack.h"

#include <algorithm>
#include <set>
#include <thread>

#include "jit/pack.h"
#include "ops/check.h"
#include "ops/gemm.h"

namespace moxie {

PackResult pack(const std::vector<GemmDescription>& descriptions, const std::string& folder,
                const DeviceFigures& device, PackImage image, int threads) {
  ops::check_figures(device);
  std::vector<jit::Request> requests;
  std::set<std::string> known;
  for (const GemmDescription& description : descriptions) {
    for (const int64_t total : ops::planned_totals(description)) {
      jit::Request request = ops::kernel_request(ops::plan_kernel(device, description, total), description);
      if (!known.insert(ops::request_key(request)).second) continue;
      request.kind = image == PackImage::Ptx ? jit::ImageKind::Ptx : jit::ImageKind::Cubin;
      requests.push_back(std::move(request));
    }
  }
  if (threads <= 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const jit::PackSummary summary = jit::write_pack(folder, requests, threads);
  return {summary.kernels, summary.compiled, summary.bytes};
}

}  // namespace moxie
