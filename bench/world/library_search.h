// Finds out from the environment where NVIDIA's libraries may lie on this machine.
#pragma once

#include "bench/store/process_start.h"
#include "engine/comm/nccl/api.h"

namespace hvd::bench {

/// Used for NCCL, cuDNN and cuBLASLt: see gpu::library_search().
gpu::LibrarySearch library_search(const Environment& environment);

}  // namespace hvd::bench
