#include "engine/comm/algorithm/pairwise.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

namespace hvd::comm {
namespace {

/// Number of peers that a rank exchanges messages with at the same time. With 16 peers, the other exchanges go on while
/// one peer is late, and a rank of a large world does not buffer many messages.
constexpr std::size_t kWindow = 16;

/// Sends `source(peer)` to every other member and receives `target(peer)` from that member. Each member starts with its
/// right neighbour, so that the members do not all send to the same member first. Sender and receiver know the size of
/// each message; empty messages are not sent.
template <class Source, class Target>
void exchange(Transport& transport, const Members& members, Source source, Target target, const Wait& wait) {
  using Tickets = std::array<std::optional<Transport::Ticket>, kWindow>;
  const std::size_t n = members.size();
  Tickets sends;
  Tickets receives;
  const auto finish = [&](std::optional<Transport::Ticket>& ticket) {
    if (ticket) transport.wait(*ticket, wait);
    ticket.reset();
  };
  for (std::size_t distance = 1; distance < n + kWindow; ++distance) {
    finish(receives[distance % kWindow]);
    finish(sends[distance % kWindow]);
    if (distance >= n) continue;
    const std::size_t left = (members.me + n - distance) % n;
    const std::size_t right = (members.me + distance) % n;
    if (const std::span<std::byte> to = target(left); !to.empty()) {
      receives[distance % kWindow] = transport.receive(members.ranks[left], to);
    }
    if (const std::span<const std::byte> from = source(right); !from.empty()) {
      sends[distance % kWindow] = transport.send(members.ranks[right], from);
    }
  }
}

}  // namespace

void pairwise_all_to_all(Transport& transport, const Members& members, std::byte* out, Offsets to, const std::byte* in,
                         Offsets from, std::size_t element, const Wait& wait) {
  const auto sent = [&](std::size_t p) { return std::span(in + from[p] * element, (from[p + 1] - from[p]) * element); };
  const auto received = [&](std::size_t p) { return std::span(out + to[p] * element, (to[p + 1] - to[p]) * element); };
  if (const auto own = sent(members.me); !own.empty()) std::memcpy(received(members.me).data(), own.data(), own.size());
  exchange(transport, members, sent, received, wait);
}

void pairwise_all_gather(Transport& transport, const Members& members, std::byte* out, const std::byte* in,
                         Offsets offsets, std::size_t element, const Wait& wait) {
  const auto share = [&](std::size_t p) {
    return std::span(out + offsets[p] * element, (offsets[p + 1] - offsets[p]) * element);
  };
  const auto mine = share(members.me);
  if (in != mine.data() && !mine.empty()) std::memcpy(mine.data(), in, mine.size());
  exchange(
      transport, members, [&](std::size_t /*peer*/) { return mine; }, share, wait);
}

void pairwise_reduce_scatter(Transport& transport, const Members& members, std::byte* out, const std::byte* in,
                             Offsets offsets, const Reduction& share, std::vector<std::byte>& scratch,
                             const Wait& wait) {
  const std::size_t element = size_of(share.dtype);
  const std::size_t bytes = share.count * element;
  // `scratch` has room for one share per member; the room for this member's own input is unused.
  if (scratch.size() < bytes * members.size()) scratch.resize(bytes * members.size());
  exchange(
      transport, members,
      [&](std::size_t p) { return std::span(in + offsets[p] * element, (offsets[p + 1] - offsets[p]) * element); },
      [&](std::size_t p) { return std::span(scratch.data() + p * bytes, bytes); }, wait);
  if (bytes == 0) return;
  std::vector<const std::byte*> inputs(members.size());
  for (std::size_t p = 0; p < inputs.size(); ++p) inputs[p] = scratch.data() + p * bytes;
  inputs[members.me] = in + offsets[members.me] * element;
  reduce_many(inputs, std::span<std::byte* const>(&out, 1), share.count, share.dtype, share.op, share.divisor);
}

}  // namespace hvd::comm
