// Checks that the ranks of a node make the same call, by the descriptors that they posted at the last synchronisation.
// Every rank compares the same descriptors in the same order. Therefore all ranks throw the same text before any data
// move, and can go on with the next operation. If there are several nodes, a disagreement aborts the other nodes, and
// the communicator is unusable afterwards. Only the thread that owns the NodeGroup calls these functions.
#pragma once

#include <cstdint>
#include <string>

#include "engine/comm/shm/node_group.h"

namespace hvd::comm {

/// Descriptor::op of operations that reduce nothing.
inline constexpr std::uint32_t kNoReduction = UINT32_MAX;

/// Returns text such as "rank 3 (host b)".
std::string rank_name(const NodeGroup& group, int local_rank);

/// Throws mismatch: "all_gather 17: `facts`; all ranks must make the same calls with the same arguments".
[[noreturn]] void throw_disagreement(const NodeGroup& group, const Wait& wait, const std::string& facts);

/// Errors: mismatch unless all local ranks posted the same count, type, operation and block.
void check_same_arguments(const NodeGroup& group, const Wait& wait);

}  // namespace hvd::comm
