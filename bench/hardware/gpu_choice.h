// Chooses the GPU of each rank of a host: the nearest to the processors that the rank may use, if the ranks of the host
// see the same GPUs and each can have its own. Otherwise a rank takes the GPU of its local rank.
#pragma once

#include <filesystem>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"
#include "engine/gpu/device.h"

namespace hvd::bench {

/// Returns the index of each rank's GPU, [local rank]. `ranks` [local rank] and `gpus` [index] are lists of processors:
/// those that the rank may use, and those near the GPU (empty: unknown). A rank is near a GPU if the two lists meet. As
/// many ranks as possible get a GPU that is near; a rank keeps the GPU of its local rank unless this would leave
/// another rank far from its GPU. No two ranks get the same GPU, unless there are fewer GPUs than ranks: then rank r
/// takes GPU r modulo the number of GPUs. Pure. Source of the matching: augmenting paths (Kuhn, 1955).
std::vector<int> assign_gpus(const std::vector<std::vector<int>>& ranks, const std::vector<std::vector<int>>& gpus);

/// Collective. Returns the index in `list` of this rank's GPU; `cpus` are the processors that this rank may use. The
/// ranks of a host choose with assign_gpus() if they see the same GPUs in the order of their bus addresses. In another
/// order somebody chose the order (CUDA_VISIBLE_DEVICES), and a launcher may make other GPUs visible to each rank: then
/// the index is the local rank modulo the number of visible GPUs. check_gpus_and_versions() later finds ranks that
/// share a GPU. Errors: those of the control plane.
int choose_gpu(comm::Communicator& host, const gpu::DeviceList& list, const std::vector<int>& cpus, Deadline deadline,
               const std::filesystem::path& sys = "/sys");

}  // namespace hvd::bench
