// A rank's GPU and its communicators over NCCL, one communicator for each variant of a session of collectives.
//
// Threads: only the rank's own thread uses a GpuRank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/coll/options.h"
#include "bench/coll/rank.h"
#include "bench/store/run_record.h"
#include "bench/world/gpu_backend.h"
#include "engine/comm/communicator.h"
#include "engine/gpu/runtime.h"

namespace hvd::bench::coll {

/// The communicators use the GPU, so the GPU is declared before the communicators and destroyed after them.
struct GpuRank {
  std::unique_ptr<gpu::GpuRuntime> gpu;  ///< null if the session is on CPUs
  std::vector<std::unique_ptr<comm::Communicator>> variants;
  Provenance facts = {};  ///< on rank 0: facts of all ranks' GPUs and cautions; empty if the session is on CPUs
};

/// Collective. Takes ownership of `hosts`, one communicator per variant. On GPUs each of these communicators becomes
/// the control plane of an NCCL communicator. `nccl_log` returns NCCL's log of this process; it may be null. On CPUs
/// GpuRank::variants are `hosts` themselves, and `gpus` may be null. Errors: invalid_argument, on all ranks, if a rank
/// has no GPU or shares its GPU with another rank; the errors of GpuRuntime and make_nccl(), which the rank's peers
/// also receive.
GpuRank connect(const CollOptions& options, std::vector<std::unique_ptr<comm::Communicator>>& hosts, GpuBackend* gpus,
                const std::function<std::string()>& nccl_log = {});

/// Call after a fault. Ends the peers' waits with `reason`, and ends this rank's work on the GPU so that GPU memory can
/// be freed. Calls `at_rest` when the GPU has no work left; `at_rest` must destroy the graphs that hold operations and
/// must not throw. Finally waits up to ten seconds until NCCL's aborts have returned.
void abort_all(Variants variants, std::string_view reason, const std::function<void()>& at_rest = {}) noexcept;

}  // namespace hvd::bench::coll
