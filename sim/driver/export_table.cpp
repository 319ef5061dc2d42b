// The driver's private tables, of which the simulator has none (docs/simulator.md says what that means for NVIDIA's own
// runtime). NVRTC asks any libcuda.so.1 that is already loaded for one, and crashes where the function itself is
// absent.
#include "sim/driver/driver.h"

CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid*) {
  if (table == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}
