// Small whole numbers whose sums are exact in every type, so that a result is right or wrong without a tolerance. Pure.
//
// Element i holds digit(i) + rank. The digits change with each lap through the buffers, so a result left over from the
// lap before is wrong.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bench/peers/collectives.h"

namespace hvd::peers {

/// Where a rank stands: its number, the number of ranks, and the lap through the buffers.
struct Place {
  int rank;
  int size;
  std::uint32_t lap;
};

/// Writes what the rank contributes to the call, into `call.in` or, for a broadcast, into `call.out`.
void fill(const Call& call, const Place& place);
/// Number of elements of `call.out` that are not what the operation defines. 0 for a barrier.
std::int64_t count_wrong(const Call& call, const Place& place);
/// Changes one element of `call.out`; a barrier has none.
void corrupt(const Call& call);

}  // namespace hvd::peers
