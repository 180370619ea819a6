#include "engine/comm/algorithm/recursive_doubling.h"

#include "engine/comm/algorithm/folding.h"
#include "engine/comm/reduce.h"

namespace hvd::comm {

// In each round a place exchanges its whole message with one partner, and both combine the two messages. The distance
// between partners doubles from round to round, so what a place holds doubles too: the sum over 2, 4, 8, ... places.
//
//   place            0        1        2        3
//   start            a        b        c        d
//                    └────────┘        └────────┘         distance 1
//                   a+b      a+b      c+d      c+d
//                    └─────────────────┘                  distance 2: 0 with 2,
//                             └─────────────────┘                     1 with 3
//                      (a + b) + (c + d) everywhere
//
// P places are done after log2(P) rounds; a ring needs 2 (P - 1) steps. But a place sends the whole message in every
// round. So this is the algorithm for small messages, whose time depends on the number of rounds.
//
// Both partners compute lower op higher, and not mine op theirs. So they get the same bits, signed zeros and NaN
// included, and after the last round all places have the same bits.
//
// The distances need a power of two. If there are more members, some pairs of members share a place (folding.h): one
// of the pair hands its message over before the first round, and gets the result after the last.
void RecursiveDoubling::all_reduce(const Members& members, std::span<std::byte> data, const Combine& combine,
                                   const Wait& wait) {
  if (members.size() == 1 || data.empty()) return;
  if (scratch_.size() < data.size()) scratch_.resize(data.size());
  const std::span<std::byte> theirs(scratch_.data(), data.size());
  const Folding folding(members);
  folding.fold_in(transport_, data, theirs, combine, wait);
  if (folding.acts()) {
    const Members places = folding.places();
    for (std::size_t distance = 1; distance < places.size(); distance *= 2) {
      const std::size_t other = places.me ^ distance;
      const auto receive = transport_.receive(places.ranks[other], theirs);
      const auto send = transport_.send(places.ranks[other], data);
      transport_.wait(receive, wait);
      transport_.wait(send, wait);
      if (places.me < other) {
        combine(data.data(), data.data(), theirs.data());
      } else {
        combine(data.data(), theirs.data(), data.data());
      }
    }
  }
  folding.fold_out(transport_, data, wait);
}

void RecursiveDoubling::all_reduce(const Members& members, std::byte* data, std::size_t count, DataType dtype,
                                   ReduceOp op, int divisor, const Wait& wait) {
  all_reduce(
      members, {data, count * size_of(dtype)},
      [&](std::byte* into, const std::byte* first, const std::byte* second) {
        reduce_pair(into, first, second, count, dtype, op);
      },
      wait);
  divide(data, count, dtype, divisor);
}

}  // namespace hvd::comm
