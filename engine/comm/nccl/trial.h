// Checks before training: every rank has its own GPU, all ranks loaded the same NCCL, and a reduction gives the right
// sums. NCCL itself reports a shared GPU late and less clearly, and does not compare versions.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/comm/device_communicator.h"

namespace hvd::comm::nccl {

/// GPU and NCCL version of one rank, sent to rank 0.
struct RankGpu {
  std::string gpu_uuid;
  std::string gpu_label;  ///< "GPU 0 (NVIDIA H200)"
  int visible_gpus = 0;   ///< number of GPUs that this process can see
  std::string version;    ///< NCCL's version
  /// Names the running kernel, so containers of one machine have the same name; empty: unknown, the host's name counts.
  std::string machine = {};

  [[nodiscard]] Bytes to_bytes() const;
  /// Errors: mismatch if to_bytes() did not write `bytes`.
  static RankGpu parse(const Bytes& bytes);
};

/// shared_gpu() and version_difference() return one line that says what is wrong and how to launch instead. The line is
/// empty if nothing is wrong. `gpus` and `hosts` are indexed by rank.
std::string shared_gpu(const std::vector<RankGpu>& gpus, const std::vector<std::string>& hosts);
std::string version_difference(const std::vector<RankGpu>& gpus, const std::vector<std::string>& hosts);

/// Collective. Errors, with the same text on all ranks: invalid_argument with the text of shared_gpu(), unless
/// `share_gpus`; mismatch with the text of version_difference() or of RankGpu::parse().
void check_gpus_and_versions(Communicator& host, const RankGpu& mine, bool share_gpus, Deadline deadline);

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
  /// Leaves the memory allocated until the process ends. Call this if work that uses the memory may never end, because
  /// freeing memory waits for such work.
  void leave_memory() noexcept;

 private:
  gpu::PinnedMemory staging_;
  gpu::DeviceMemory device_;
};

}  // namespace hvd::comm::nccl
