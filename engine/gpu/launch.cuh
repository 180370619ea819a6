// Launching a kernel of our own. Tests that compile kernels for the host find another file of this name first
// (tests/gpu/host), in which the threads of a block take turns.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "engine/base/error.h"

namespace hvd::gpu {

inline constexpr int kThreads = 256;  ///< of a block

/// Enqueues kernel(arguments...) on `blocks` blocks of kThreads. Errors: backend, with `what` and CUDA's words, when
/// the launch is refused.
template <class... Parameters, class... Arguments>
void launch_blocks(const char* what, void (*kernel)(Parameters...), dim3 blocks, CUstream_st* stream,
                   const Arguments&... arguments) {
  kernel<<<blocks, kThreads, 0, stream>>>(arguments...);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    throw Error(Errc::kBackend, std::string("kernel ") + what + ": " + cudaGetErrorString(status));
  }
}

}  // namespace hvd::gpu
