// Checks before training: ranks compare GPUs and NCCL versions, and try a reduction.
#pragma once

#include <string>

#include "engine/comm/device_communicator.h"

namespace hvd::comm::nccl {

/// Collective over `host`. Checks that every rank has its own GPU and the same NCCL. A world of one rank needs no NCCL.
/// Errors: invalid_argument if `api` is null in a larger world; those of check_gpus_and_versions().
void check_world(Communicator& host, gpu::GpuRuntime& runtime, const Api* api, const NcclOptions& options,
                 Deadline deadline);

/// Returns element `i` of this rank in the trial reduction. The values are so small that fp32 represents their sums
/// exactly for up to 600,000 ranks. Pure.
float trial_value(int rank, std::size_t i);

/// One reduction whose sum is known. The reduction makes NCCL connect before the first step, and detects wrong
/// connections. Owns the memory of the reduction; after an error keep the object until the stream has no work left.
class Trial {
 public:
  explicit Trial(gpu::GpuRuntime& runtime);
  /// Collective over the ranks of `where`. Errors: check_failed, whose text begins with `here`; those of the plane.
  void run(DevicePlane& plane, const Topology& where, const std::string& here, Deadline deadline);

 private:
  gpu::PinnedMemory staging_;
  gpu::DeviceMemory device_;
};

}  // namespace hvd::comm::nccl
