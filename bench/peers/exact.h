// Test data: small whole numbers whose sums are exact in fp32, so that results need no tolerance. Pure.
//
// Element i of a rank's input is digit(i) + rank. The digits change with each lap through the buffers, so that a result
// left over from the previous lap is wrong.
#pragma once

#include <cstdint>

#include "bench/peers/collectives.h"

namespace hvd::peers {

/// Position of a rank: its number, the number of ranks, and the lap through the buffers.
struct Place {
  std::uint32_t rank;
  std::uint32_t size;
  std::uint32_t lap;
};

/// Returns 0..15, the high bits of Knuth's multiplicative hash. Neighbouring elements get different digits, and one
/// element gets different digits in successive laps.
inline std::uint32_t digit(std::size_t element, std::uint32_t lap) {
  return ((static_cast<std::uint32_t>(element) + lap * 977U) * 2654435761U) >> 28U;
}

/// Writes the rank's input into `call.in`.
inline void fill(const Call& call, const Place& place) {
  if (call.operation == Collective::kBarrier) return;
  const bool gathered = call.operation == Collective::kAllGather;
  const std::size_t begin = gathered ? place.rank * call.share : 0;
  const std::size_t count = gathered ? call.share : call.count;
  for (std::size_t i = 0; i < count; ++i) call.in[i] = static_cast<float>(digit(begin + i, place.lap) + place.rank);
}

/// Returns the value that element i of `call.out` must have.
inline float expected(const Call& call, const Place& place, std::size_t i) {
  const std::uint32_t ranks = place.size * (place.size - 1) / 2;  // sum of all rank numbers
  const std::size_t mine = place.rank * call.share;
  const auto sender = [&] { return static_cast<std::uint32_t>(i / call.share); };
  switch (call.operation) {
    case Collective::kAllReduce: return static_cast<float>(place.size * digit(i, place.lap) + ranks);
    case Collective::kReduceScatter: return static_cast<float>(place.size * digit(mine + i, place.lap) + ranks);
    case Collective::kAllGather: return static_cast<float>(digit(i, place.lap) + sender());
    case Collective::kAllToAll: return static_cast<float>(digit(mine + i % call.share, place.lap) + sender());
    case Collective::kBroadcast: return static_cast<float>(digit(i, place.lap));
    case Collective::kBarrier: break;
  }
  return 0;
}

/// Returns the number of wrong elements of `call.out`; 0 for a barrier.
inline std::int64_t count_wrong(const Call& call, const Place& place) {
  const bool scattered = call.operation == Collective::kReduceScatter;
  const std::size_t count = call.operation == Collective::kBarrier ? 0 : scattered ? call.share : call.count;
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += call.out[i] != expected(call, place, i);
  return wrong;
}

}  // namespace hvd::peers
