// A rank's GPU, and its communicators over NCCL: one for each variant of a session of collectives.
//
// Threads: one, the rank's.
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

/// Members go in the reverse order: communicators use the GPU.
struct GpuRank {
  std::unique_ptr<gpu::Runtime> gpu;  ///< null where the session is on CPUs
  std::vector<std::unique_ptr<comm::Communicator>> variants;
};

/// Collective. Takes `hosts`: each becomes the control plane of a communicator over NCCL; on CPUs they are the
/// variants. `gpus` may be null on CPUs. Errors: invalid_argument on all ranks alike where a rank has no GPU, or shares
/// one; those of Runtime and make_nccl(), of which the peers are told.
GpuRank connect(const CollOptions& options, std::vector<std::unique_ptr<comm::Communicator>>& hosts, GpuBackend* gpus,
                Patience patience);

/// Call after a fault. Ends the peers' waits with `reason`, and the work that this rank's GPU waits for, so that its
/// memory can be freed. `at_rest` is called when no work is left, and drops the graphs that hold operations; it must
/// not throw. Waits some seconds at most for NCCL.
void abort_all(Variants variants, std::string_view reason, const std::function<void()>& at_rest = {}) noexcept;

}  // namespace hvd::bench::coll
