// A rank's GPU and its NCCL communicators, one for each variant of a session of collectives.
//
// Threads: only the rank's.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "bench/coll/options.h"
#include "bench/coll/rank.h"
#include "bench/train/gpu_backend.h"
#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"
#include "engine/gpu/runtime.h"

namespace hvd::bench::coll {

/// The communicators use the GPU, so they are declared after it and destroyed first.
struct GpuRank {
  std::unique_ptr<gpu::GpuRuntime> gpu;  ///< null if the session is on CPUs
  std::vector<std::unique_ptr<comm::Communicator>> variants;
};

/// Collective. Takes over `hosts`. On GPUs each becomes the control plane of an NCCL communicator; on CPUs they are the
/// variants themselves. `gpus` may be null on CPUs. Errors: invalid_argument, on all ranks, if a rank has no GPU or
/// shares one; those of GpuRuntime and make_nccl(), which are also sent to the peers.
GpuRank connect(const CollOptions& options, std::vector<std::unique_ptr<comm::Communicator>>& hosts, GpuBackend* gpus,
                Patience patience);

/// Call after a fault. Ends the peers' waits with `reason` and this rank's work on the GPU, so that its memory
/// can be freed. Calls `at_rest` when no work is left; `at_rest` must destroy the graphs that hold operations and must
/// not throw. Then waits up to kLetGo for NCCL.
void abort_all(Variants variants, std::string_view reason, const std::function<void()>& at_rest = {}) noexcept;

}  // namespace hvd::bench::coll
