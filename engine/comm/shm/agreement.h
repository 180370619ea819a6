// Whether the ranks of a node mean the same operation: compares what they posted at the last synchronisation. Every
// rank compares the same descriptors in the same order, so all of them throw the same text, before any data have moved,
// and the next operation finds them in step. On several nodes the other nodes do not know: they are told, and the
// communicator is of no more use. Called by the thread that owns the NodeGroup.
#pragma once

#include <cstdint>
#include <string>

#include "engine/comm/shm/node_group.h"

namespace hvd::comm {

/// Descriptor::op of operations that reduce nothing.
inline constexpr std::uint32_t kNoReduction = UINT32_MAX;

/// "rank 3 (host b)".
std::string rank_name(const NodeGroup& group, int local_rank);

/// "all_gather 17: `facts`; all ranks must make the same calls with the same arguments".
[[noreturn]] void throw_disagreement(const NodeGroup& group, const Wait& wait, const std::string& facts);

/// Errors: mismatch unless all local ranks posted the same count, type, operation and block.
void check_same_arguments(const NodeGroup& group, const Wait& wait);

}  // namespace hvd::comm
