// Direct exchanges: every rank sends its data straight to every other rank, in n - 1 messages per rank. The number of
// messages that a rank sends at a time is bounded. See docs/algorithms.md.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/comm/algorithm/ring.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"

namespace hvd::comm {

/// Sends block p of `in` to member p, and receives block p of `out` from member p. Shapes, in elements of `element`
/// bytes: in (from.back()), out (to.back()).
void pairwise_all_to_all(Transport& transport, const Members& members, std::byte* out, Offsets to, const std::byte* in,
                         Offsets from, std::size_t element, const Wait& wait);

/// Gathers the shares of all members into `out`, in the order of members.
/// Shapes: in (this member's share), out (offsets.back()). `in` may be this member's share within `out`.
void pairwise_all_gather(Transport& transport, const Members& members, std::byte* out, const std::byte* in,
                         Offsets offsets, std::size_t element, const Wait& wait);

/// Reduces all members' inputs; each member gets its own share of the result. The inputs are combined in the order of
/// members 0, 1, ..., n - 1. Shapes: in (offsets.back()), out (share.count). `out` may be this member's share within
/// `in`. `scratch` grows to one share per member. Keep `scratch` after an error: MPI may still write to it.
void pairwise_reduce_scatter(Transport& transport, const Members& members, std::byte* out, const std::byte* in,
                             Offsets offsets, const Reduction& share, std::vector<std::byte>& scratch,
                             const Wait& wait);

}  // namespace hvd::comm
