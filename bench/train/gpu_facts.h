// The GPUs of a session, all ranks', for its provenance: which they are, how they are set, and whether they are alike.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/nvml.h"
#include "bench/options.h"
#include "bench/run_record.h"
#include "bench/train/gpu_surroundings.h"
#include "engine/gpu/device.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// What one rank says of its GPU, by provenance key.
using GpuDescription = std::map<std::string, std::string>;
/// `driver_version` and `runtime_version` as in gpu::DeviceList. Pure.
GpuDescription describe_gpu(const gpu::Device& device, const BoardFacts& board, int driver_version,
                            int runtime_version);

/// Where one rank runs, and what it has heard of its NCCL.
struct RankPlace {
  int ranks_on_host = 1, nodes = 1, ranks = 1;
  std::vector<int> cpus;  ///< that the rank may use
  std::string nccl_log;
  std::filesystem::path sys = "/sys";
};
/// Adds it to what the rank says of its GPU.
void describe_place(GpuDescription& gpu, const gpu::Device& device, const BoardFacts& board, const RankPlace& place);

struct GpuFacts {
  Provenance provenance;           ///< each key's values, in rank order, each value once: "NVIDIA H100; NVIDIA H200"
  std::vector<std::string> notes;  ///< what differs between ranks and should not; the network
  Link link;                       ///< the slowest rank's to its peers; unknown where one rank's is
};
/// `ranks`: [rank]. Pure.
GpuFacts merge_gpu_facts(const std::vector<GpuDescription>& ranks);

/// Collective. Rank 0 gets the facts of all ranks, the others nothing.
GpuFacts gather_gpu_facts(Engine& engine, const GpuDescription& mine);

/// The knobs that change how long a step takes; `graph`: whether steps of this run are launched as graphs.
void add_gpu_options(Provenance& provenance, const GpuOptions& options, bool graph);

}  // namespace hvd::bench
