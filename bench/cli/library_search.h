// Where NVIDIA's libraries may lie on this machine, from the environment.
#pragma once

#include "bench/cli/environment.h"
#include "engine/comm/nccl/api.h"

namespace hvd::bench {

/// For NCCL, cuDNN and cuBLASLt alike: see gpu::library_search().
gpu::LibrarySearch library_search(const Environment& environment);

}  // namespace hvd::bench
