#include "engine/comm/algorithm/recursive_halving.h"

#include <optional>

#include "engine/comm/algorithm/folding.h"

namespace hvd::comm {

std::span<std::byte> RecursiveHalving::scratch(std::size_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return {scratch_.data(), bytes};
}

void RecursiveHalving::exchange(int partner, std::span<const std::byte> mine, std::span<std::byte> theirs,
                                const Wait& wait) {
  std::optional<Transport::Ticket> receive;
  std::optional<Transport::Ticket> send;
  if (!theirs.empty()) receive = transport_.receive(partner, theirs);
  if (!mine.empty()) send = transport_.send(partner, mine);
  if (receive) transport_.wait(*receive, wait);
  if (send) transport_.wait(*send, wait);
}

// Recursive doubling sends the whole message in every round. Here each place becomes responsible for a part of the
// message, and the part halves from round to round: of two partners each sends the half that it gives up, and combines
// the half that it keeps. Then the finished shares are gathered on the way back. S: bytes of the message, P: places.
//
//                     place 0      place 1      place 2      place 3
//   start            [0 1 2 3]    [0 1 2 3]    [0 1 2 3]    [0 1 2 3]     [shares that a place combines]
//   distance 2       [0 1    ]    [0 1    ]    [    2 3]    [    2 3]     0 with 2, 1 with 3: S / 2 bytes
//   distance 1       [0      ]    [  1    ]    [    2  ]    [      3]     0 with 1, 2 with 3: S / 4 bytes
//                     ──────── every share is finished on one place ────────
//   distance 1       [0 1    ]    [0 1    ]    [    2 3]    [    2 3]     0 with 1, 2 with 3: S / 4 bytes
//   distance 2       [0 1 2 3]    [0 1 2 3]    [0 1 2 3]    [0 1 2 3]     0 with 2, 1 with 3: S / 2 bytes
//
// Both ways together, a place sends 2 S (P - 1) / P bytes: as few as in a ring, in 2 log2(P) steps instead of
// 2 (P - 1). An element is finished on one place and then copied, so all places have the same bits. If there are more
// members than places, the members of a pair exchange the whole message once before the first round and once after the
// last (folding.h).
void RecursiveHalving::reduce_scatter(const Members& members, std::byte* data, Offsets offsets, const Reduction& whole,
                                      const Wait& wait) {
  const std::size_t element = size_of(whole.dtype);
  const auto shares = [&](std::size_t from, std::size_t to) {
    return std::span(data + offsets[from] * element, (offsets[to] - offsets[from]) * element);
  };
  std::size_t begin = 0;  // this member still combines shares [begin, begin + 2 * distance)
  for (std::size_t distance = members.size() / 2; distance > 0; distance /= 2) {
    const std::size_t middle = begin + distance;
    const bool low = members.me < middle;
    const auto lower = shares(begin, middle);
    const auto upper = shares(middle, middle + distance);
    const auto keep = low ? lower : upper;
    const auto theirs = scratch(keep.size());
    exchange(members.ranks[members.me ^ distance], low ? upper : lower, theirs, wait);
    const std::byte* first = low ? keep.data() : theirs.data();
    const std::byte* second = low ? theirs.data() : keep.data();
    reduce_pair(keep.data(), first, second, keep.size() / element, whole.dtype, whole.op);
    if (!low) begin = middle;
  }
  const auto own = shares(members.me, members.me + 1);
  divide(own.data(), own.size() / element, whole.dtype, whole.divisor);
}

void RecursiveHalving::all_gather(const Members& members, std::byte* data, Offsets offsets, std::size_t element,
                                  const Wait& wait) {
  const auto window = [&](std::size_t begin, std::size_t shares) {
    return std::span(data + offsets[begin] * element, (offsets[begin + shares] - offsets[begin]) * element);
  };
  for (std::size_t distance = 1; distance < members.size(); distance *= 2) {
    const std::size_t mine = members.me / distance * distance;
    exchange(members.ranks[members.me ^ distance], window(mine, distance), window(mine ^ distance, distance), wait);
  }
}

void RecursiveHalving::all_reduce(const Members& members, std::byte* data, const Reduction& whole, const Wait& wait) {
  if (whole.count == 0) return;
  const std::span<std::byte> all(data, whole.count * size_of(whole.dtype));
  const Folding folding(members);
  const Members places = folding.places();
  folding.fold_in(
      transport_, all, scratch(places.size() < members.size() ? all.size() : 0),
      [&](std::byte* into, const std::byte* first, const std::byte* second) {
        reduce_pair(into, first, second, whole.count, whole.dtype, whole.op);
      },
      wait);
  if (folding.acts()) {
    std::vector<std::size_t> offsets;
    for (std::size_t p = 0; p < places.size(); ++p) {
      offsets.push_back(share_of(whole.count, places.size(), p, kShareAlign).begin);
    }
    offsets.push_back(whole.count);
    reduce_scatter(places, data, offsets, whole, wait);
    all_gather(places, data, offsets, size_of(whole.dtype), wait);
  }
  folding.fold_out(transport_, all, wait);
}

}  // namespace hvd::comm
