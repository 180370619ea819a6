// Maps n members to m places, for algorithms whose exchanges have distances 1, 2, 4, and so on. The number m is the
// largest power of two up to n. Each of the first n - m places has two members: place p has members 2p and 2p + 1, and
// member 2p acts for the pair. Every other place has one member. One operation owns a Folding.
#pragma once

#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include "engine/comm/algorithm/ring.h"

namespace hvd::comm {

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

}  // namespace hvd::comm
