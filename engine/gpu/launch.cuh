// Launches our own kernels. Tests that compile kernels for the host include a different launch.cuh (tests/gpu/host),
// which runs the threads of a block one after another.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "engine/base/error.h"

namespace hvd::gpu {

inline constexpr int kThreads = 256;  ///< threads per block

/// Enqueues kernel(arguments...) on `blocks` blocks of kThreads. Errors: backend, with `what` and CUDA's message, if
/// CUDA refuses the launch.
template <class... Parameters, class... Arguments>
void launch_blocks(const char* what, void (*kernel)(Parameters...), dim3 blocks, CUstream_st* stream,
                   const Arguments&... arguments) {
  kernel<<<blocks, kThreads, 0, stream>>>(arguments...);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    throw Error(Errc::kBackend, std::string("kernel ") + what + ": " + cudaGetErrorString(status));
  }
}

}  // namespace hvd::gpu
