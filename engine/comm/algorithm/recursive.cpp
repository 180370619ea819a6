#include "engine/comm/algorithm/recursive.h"

#include <bit>
#include <optional>

namespace hvd::comm {
namespace {

/// Maps n members to m places, for algorithms whose exchanges have distances 1, 2, 4, and so on. The number m is the
/// largest power of two up to n. Each of the first n - m places has two members: place p has members 2p and 2p + 1, and
/// member 2p acts for the pair. Every other place has one member. One operation owns a Folding.
class Folding {
 public:
  explicit Folding(const Members& members) {
    const std::size_t power = std::bit_floor(members.size());
    const std::size_t pairs = members.size() - power;
    const std::size_t me = members.me;
    for (std::size_t p = 0; p < power; ++p) ranks_.push_back(members.ranks[p < pairs ? 2 * p : p + pairs]);
    place_ = me < 2 * pairs ? me / 2 : me - pairs;
    acts_ = me >= 2 * pairs || me % 2 == 0;
    if (me < 2 * pairs) partner_ = members.ranks[me ^ 1U];
  }

  /// Returns the ranks that act, by place, and this member's place. Call only if acts().
  [[nodiscard]] Members places() const { return {ranks_, place_}; }
  [[nodiscard]] bool acts() const { return acts_; }

  /// Combines each pair's data into the even member's `data`: combine(into, first, second). `scratch` is as long as
  /// `data`.
  template <class Combine>
  void fold_in(Transport& transport, std::span<std::byte> data, std::span<std::byte> scratch, Combine&& combine,
               const Wait& wait) const {
    if (partner_ < 0) return;
    if (!acts_) return transport.wait(transport.send(partner_, data), wait);
    transport.wait(transport.receive(partner_, scratch), wait);
    combine(data.data(), data.data(), scratch.data());
  }
  /// Sends the result from the even to the odd member of each pair.
  void fold_out(Transport& transport, std::span<std::byte> data, const Wait& wait) const {
    if (partner_ < 0) return;
    transport.wait(acts_ ? transport.send(partner_, data) : transport.receive(partner_, data), wait);
  }

 private:
  std::vector<int> ranks_;  ///< [place]: the rank that acts for this place
  std::size_t place_ = 0;
  bool acts_ = true;
  int partner_ = -1;  ///< rank of the other member of the pair; -1: this member has no partner
};

}  // namespace

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
// The distances need a power of two. If there are more members, some pairs of members share a place (Folding): one
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
// last (Folding).
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

void tree_broadcast(Transport& transport, const Members& members, std::size_t root, std::span<std::byte> data,
                    const Wait& wait) {
  const std::size_t n = members.size();
  if (n == 1 || data.empty()) return;
  const std::size_t place = (members.me + n - root) % n;  // the root is at place 0
  const auto rank_at = [&](std::size_t p) { return members.ranks[(p + root) % n]; };
  std::size_t reach = 1;  // the lowest set bit of `place` is the distance to its parent
  while (reach < n && (place & reach) == 0) reach *= 2;
  if (place != 0) transport.wait(transport.receive(rank_at(place - reach), data), wait);
  std::vector<Transport::Ticket> sends;
  for (std::size_t distance = reach / 2; distance > 0; distance /= 2) {
    if (place + distance < n) sends.push_back(transport.send(rank_at(place + distance), data));
  }
  for (const Transport::Ticket send : sends) transport.wait(send, wait);
}

}  // namespace hvd::comm
