// A rank's GPU and its communicators over NCCL, one communicator for each variant of a session of collectives.
//
// Threads: only the rank's own thread.
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

/// The communicators use the GPU, so the GPU is declared before them and destroyed after them.
struct GpuRank {
  std::unique_ptr<gpu::GpuRuntime> gpu;  ///< null if the session is on CPUs
  std::vector<std::unique_ptr<comm::Communicator>> variants;
};

/// Collective. Takes over `hosts`, one per variant. On GPUs each host communicator becomes the control plane of an NCCL
/// communicator. On CPUs the variants are `hosts` themselves, and `gpus` may be null. Errors: invalid_argument, on all
/// ranks, if a rank has no GPU or shares its GPU; those of GpuRuntime and make_nccl(), which peers receive too.
GpuRank connect(const CollOptions& options, std::vector<std::unique_ptr<comm::Communicator>>& hosts, GpuBackend* gpus,
                Patience patience);

/// Call after a fault. Ends the peers' waits with `reason`, and ends this rank's work on the GPU so that GPU memory can
/// be freed. Calls `at_rest` when no work is left; `at_rest` must destroy the graphs that hold operations and must not
/// throw. Finally waits up to kLetGo for NCCL's aborts.
void abort_all(Variants variants, std::string_view reason, const std::function<void()>& at_rest = {}) noexcept;

}  // namespace hvd::bench::coll
