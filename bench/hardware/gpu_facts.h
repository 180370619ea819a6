// Facts about the GPUs of all ranks, for a session's provenance: names, settings, and whether the GPUs are alike.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/hardware/gpu_surroundings.h"
#include "bench/hardware/nvml.h"
#include "bench/store/run_record.h"
#include "bench/world/numa_facts.h"
#include "engine/comm/communicator.h"
#include "engine/gpu/device.h"

namespace hvd::bench {

struct GpuOptions;

/// One rank's description of its GPU: provenance key and value.
using GpuDescription = std::map<std::string, std::string>;
/// `driver_version` and `runtime_version` are those of gpu::DeviceList. Pure.
GpuDescription describe_gpu(const gpu::Device& device, const BoardFacts& board, int driver_version,
                            int runtime_version);

/// The host and world of one rank, and what NCCL has logged on this rank.
struct RankPlace {
  int ranks_on_host = 1, nodes = 1, ranks = 1;
  std::vector<int> cpus;  ///< processors that the rank may use
  std::string nccl_log;
  std::filesystem::path sys = "/sys";
};
/// Adds `place` to the rank's description of its GPU.
void describe_place(GpuDescription& gpu, const gpu::Device& device, const BoardFacts& board, const RankPlace& place);

struct GpuFacts {
  Provenance provenance;           ///< the different values of each key, in rank order: "NVIDIA H100; NVIDIA H200"
  std::vector<std::string> notes;  ///< facts that should be equal on all ranks and are not; NCCL's network
  Link link;                       ///< slowest link of a rank to its peers; unknown if one rank's link is unknown
};
/// Merges the descriptions of all ranks, [rank]. Pure.
GpuFacts merge_gpu_facts(const std::vector<GpuDescription>& ranks);

/// Describes this rank's GPU, one of `list`, and its place. Asks NVML. `nccl_log`: log of this process.
GpuDescription describe_rank(const gpu::Device& device, const gpu::DeviceList& list, const comm::Topology& where,
                             const std::string& nccl_log);

/// Collective: `gather` sends this rank's message to rank 0. Rank 0 gets the facts of all ranks; the other ranks get
/// nothing.
GpuFacts gather_gpu_facts(const GpuDescription& mine, const GatherMessages& gather);

/// Adds the options that change the time of a step. `graph`: steps of this run are launched as graphs.
void add_gpu_options(Provenance& provenance, const GpuOptions& options, bool graph);

}  // namespace hvd::bench
