// Test data: small whole numbers whose sums are exact in every type, so that results need no tolerance. Pure.
//
// Element i holds digit(i) + rank. The digits change with each lap through the buffers, so a result left over from the
// previous lap counts as wrong.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/peers/collectives.h"

namespace hvd::peers {

/// Position of a rank: its number, the number of ranks, and the lap through the buffers.
struct Place {
  int rank;
  int size;
  std::uint32_t lap;
};

/// Writes the rank's input for the call into `call.in` or, for a broadcast, into `call.out`.
void fill(const Call& call, const Place& place);
/// Returns the number of elements of `call.out` that differ from the operation's definition; 0 for a barrier.
std::int64_t count_wrong(const Call& call, const Place& place);
/// Changes one element of `call.out`; a barrier has none.
void corrupt(const Call& call);

}  // namespace hvd::peers
