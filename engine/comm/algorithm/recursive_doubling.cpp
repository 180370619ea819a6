#include "engine/comm/algorithm/recursive_doubling.h"

#include <bit>

#include "engine/comm/reduce.h"

namespace hvd::comm {

void RecursiveDoubling::all_reduce(const Members& members, std::span<std::byte> data, const Combine& combine,
                                   const Wait& wait) {
  const std::size_t n = members.size();
  if (n == 1 || data.empty()) return;
  if (scratch_.size() < data.size()) scratch_.resize(data.size());
  const std::span<std::byte> theirs(scratch_.data(), data.size());
  const std::size_t power = std::bit_floor(n);
  const std::size_t folded = n - power;  // pairs (0,1), (2,3), ... of which the odd one sits out
  const std::size_t me = members.me;
  if (me < 2 * folded) {
    const int partner = members.ranks[me ^ 1U];
    if (me % 2 == 1) {
      transport_.wait(transport_.send(partner, data), wait);
      transport_.wait(transport_.receive(partner, data), wait);
      return;
    }
    transport_.wait(transport_.receive(partner, theirs), wait);
    combine(data.data(), data.data(), theirs.data());
  }
  const std::size_t place = me < 2 * folded ? me / 2 : me - folded;
  for (std::size_t distance = 1; distance < power; distance *= 2) {
    const std::size_t other = place ^ distance;
    const int partner = members.ranks[other < folded ? 2 * other : other + folded];
    const auto receive = transport_.receive(partner, theirs);
    const auto send = transport_.send(partner, data);
    transport_.wait(receive, wait);
    transport_.wait(send, wait);
    if (place < other) {
      combine(data.data(), data.data(), theirs.data());
    } else {
      combine(data.data(), theirs.data(), data.data());
    }
  }
  if (me < 2 * folded) transport_.wait(transport_.send(members.ranks[me ^ 1U], data), wait);
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
