// The properties that make two ranks compute equal bits in equal time: processor or GPU, program, libraries.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bench/hardware/gpu_facts.h"
#include "engine/runtime/engine.h"
#include "models/train_step.h"

namespace hvd::bench {

struct RankKind {
  std::string gpu;    ///< UUID of the GPU; empty on a CPU
  std::string lines;  ///< names and values (key_lines.h), the device's name first; equal for ranks of one kind
};

/// Returns the kind of this rank. `gpu` is empty on a CPU.
RankKind kind_of_rank(const models::TrainStep& step, const GpuDescription& gpu);

/// Collective. Rank 0 gets the kinds of all ranks; the other ranks get nothing.
std::vector<RankKind> gather_kinds(Engine& engine, const RankKind& mine);

/// Groups the ranks by kind. Ranks ascend within a group; groups are ordered by their first rank. Pure.
std::vector<std::vector<std::size_t>> groups_of(std::span<const RankKind> kinds);

/// Returns a title for each group: its device and, from the second group on, the first difference from group 0: "Intel
/// Xeon Platinum 8481C", "NVIDIA H100 (gpu.driver is 580.1, not 570.2)". Pure.
std::vector<std::string> group_titles(std::span<const RankKind> kinds,
                                      const std::vector<std::vector<std::size_t>>& groups);

/// Returns a caution that names the first rank of each other kind than rank 0's and its first difference; empty if all
/// ranks are of one kind. `hosts` [rank]. Pure.
std::string unlike_ranks(std::span<const RankKind> kinds, const std::vector<std::string>& hosts);

}  // namespace hvd::bench
