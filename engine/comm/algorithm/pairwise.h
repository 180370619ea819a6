// Direct exchanges: every rank sends every other rank what is meant for it. n - 1 messages per rank, a bounded number
// of them at a time. See docs/algorithms.md.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/comm/algorithm/ring.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"

namespace hvd::comm {

/// Block p of `in` goes to member p. Shapes, in elements of `element` bytes: in (from.back()), out (to.back()).
void pairwise_all_to_all(Transport& transport, const Members& members, std::byte* out, Offsets to, const std::byte* in,
                         Offsets from, std::size_t element, const Wait& wait);

/// Shapes: in (own share), out (offsets.back()). `in` may be the own share of `out`.
void pairwise_all_gather(Transport& transport, const Members& members, std::byte* out, const std::byte* in,
                         Offsets offsets, std::size_t element, const Wait& wait);

/// Element e of a share is combined in the order of members 0, 1, ..., n - 1.
/// Shapes: in (offsets.back()), out (share.count): the own share, of which `out` may be the place in `in`.
/// `scratch` grows to one share per member. The caller keeps it after an error too: MPI may still write to it.
void pairwise_reduce_scatter(Transport& transport, const Members& members, std::byte* out, const std::byte* in,
                             Offsets offsets, const Reduction& share, std::vector<std::byte>& scratch,
                             const Wait& wait);

}  // namespace hvd::comm
