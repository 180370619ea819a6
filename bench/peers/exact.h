// Test data: small whole numbers whose sums are exact in every type, so that results need no tolerance. Pure.
//
// Element i of a rank's input is digit(i) + rank. The digits change with each lap through the buffers, so that a result
// left over from the previous lap is wrong.
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
/// Returns the number of wrong elements of `call.out`; 0 for a barrier.
std::int64_t count_wrong(const Call& call, const Place& place);
/// Changes one element of `call.out`; does nothing for a barrier.
void corrupt(const Call& call);

}  // namespace hvd::peers
