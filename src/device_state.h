// SPDX-License-Identifier: Apache-2.0
// What copies of a Device share: its context and the kernels loaded into it.
#pragma once
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <unordered_map>

#include "driver/driver.h"
#include "jit/jit.h"
#include "jit/source.h"

namespace moxie::detail {

class DeviceState {
 public:
  DeviceState(std::shared_ptr<driver::Driver> driver, int ordinal, bool simulated)
      : context_(std::move(driver), ordinal, simulated) {}

  const driver::Context& context() const { return context_; }

  // The kernel that `key` names: from memory, else from the cache on disk, else compiled. `key` stands for all of the
  // request and for `entry`; `kind` and `arch` of the request are set here. Thread-safe: different kernels compile at
  // the same time, one kernel compiles once; a failure is thrown to everyone who waits for it and is not remembered.
  driver::LoadedKernel get_kernel(const std::string& key, const jit::Request& request, const char* entry,
                                  int dynamic_shared_bytes);

  // The kernels of moxie/quantize.h, moxie/scales.h, moxie/weights.h and moxie/routing.h, which need no plan. The first
  // call of each gets it as get_kernel does; later ones take no lock.
  const driver::LoadedKernel& quantize_kernel(jit::QuantizeKernel kernel, DataType format, DataType type);
  const driver::LoadedKernel& block_scales_kernel();
  const driver::LoadedKernel& pack_weights_kernel(bool unpack);
  const driver::LoadedKernel& sort_kernel(jit::SortKernel kernel, IdType type, bool table);
  const driver::LoadedKernel& route_kernel(DataType logits, RouterScore score, int size);
  const driver::LoadedKernel& permute_kernel();
  const driver::LoadedKernel& combine_kernel(DataType rows, DataType out);
  // Of layers over ranks.
  const driver::LoadedKernel& exchange_kernel();
  const driver::LoadedKernel& meet_kernel();
  const driver::LoadedKernel& dispatch_kernel(IdType type, RowFormat format);
  const driver::LoadedKernel& send_few_kernel(IdType type, RowFormat format);
  const driver::LoadedKernel& gather_rows_kernel(RowFormat format);
  const driver::LoadedKernel& combine_ranks_kernel(DataType out, bool meets);
  const driver::LoadedKernel& combine_sums_kernel(DataType out, ResultFormat results);

 private:
  // A kernel that stays for good once it is there.
  struct Kept {
    std::once_flag once;
    driver::LoadedKernel kernel;
  };
  const driver::LoadedKernel& keep(Kept& kept, const std::function<std::string()>& source,
                                   int dynamic_shared_bytes = 0);
  driver::LoadedKernel load_kernel(jit::Request request, const char* entry, int dynamic_shared_bytes);

  driver::Context context_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::shared_future<driver::LoadedKernel>> kernels_;
  Kept quantize_[jit::kQuantizeKernels][names<DataType>().size()][names<DataType>().size()];
  Kept block_scales_;
  Kept pack_weights_[2];
  Kept sort_[jit::kSortKernels][names<IdType>().size()][2];
  Kept route_[names<DataType>().size()][names<RouterScore>().size()][jit::kRouteSizes];
  Kept permute_;
  Kept combine_[names<DataType>().size()][names<DataType>().size()];
  Kept exchange_, meet_;
  Kept dispatch_[names<IdType>().size()][names<RowFormat>().size()];
  Kept send_few_[names<IdType>().size()][names<RowFormat>().size()];
  Kept gather_rows_[names<RowFormat>().size()];
  Kept combine_ranks_[names<DataType>().size()][2];
  Kept combine_sums_[names<DataType>().size()][names<ResultFormat>().size()];
};

}  // namespace moxie::detail
