// Replaces engine/gpu/launch.cuh when tests compile the kernel sources for the host.
#pragma once

#include "tests/gpu/host_grid.h"

#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __syncthreads() hvd::test::synchronize_threads(__LINE__)

struct CUstream_st;

namespace hvd {

using test::blockDim;
using test::blockIdx;
using test::dim3;
using test::gridDim;
using test::threadIdx;

namespace gpu {

inline constexpr int kThreads = 256;

template <class... Parameters, class... Arguments>
void launch_blocks(const char* what, void (*kernel)(Parameters...), dim3 blocks, CUstream_st* /*stream*/,
                   const Arguments&... arguments) {
  test::run_grid(what, blocks, kThreads, [&] { kernel(arguments...); });
}

}  // namespace gpu
}  // namespace hvd
