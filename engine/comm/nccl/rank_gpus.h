// Checks before the first call of NCCL that every rank has its own GPU and that all ranks loaded the same NCCL. NCCL
// itself reports a shared GPU late and less clearly, and does not compare versions.
#pragma once

#include <string>
#include <vector>

#include "engine/comm/communicator.h"

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

}  // namespace hvd::comm::nccl
