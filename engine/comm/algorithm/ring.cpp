#include "engine/comm/algorithm/ring.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <utility>

#include "engine/comm/chunks.h"

namespace hvd::comm {
namespace {

/// Number of receives posted ahead of the segment that is being reduced. They keep the network busy during the
/// reduction.
constexpr std::size_t kAhead = 4;

/// Number of segments of one share that are in flight at a time, so that the network stays busy.
constexpr std::size_t kGroup = 4;

/// The order in which segments are sent. A group of kGroup segments of every share goes through all steps, then the
/// next group follows. Item i is one segment of one step. All members use the number of segments of the largest share,
/// so that item i means the same on all members. Segments past the end of a shorter share are empty and are not sent.
struct Stream {
  Offsets offsets;
  std::size_t segment;  ///< elements per segment
  std::size_t steps;

  [[nodiscard]] std::size_t shares() const { return offsets.size() - 1; }
  [[nodiscard]] std::size_t items() const {
    std::size_t segments = 0;
    for (std::size_t p = 0; p < shares(); ++p) {
      segments = std::max(segments, chunk_count(offsets[p + 1] - offsets[p], segment));
    }
    return chunk_count(segments, kGroup) * kGroup * steps;
  }
  [[nodiscard]] std::size_t step(std::size_t item) const { return item / kGroup % steps; }
  /// Returns the elements that `item` carries. They belong to share `me - back - step(item)`.
  [[nodiscard]] Range range(std::size_t me, std::size_t back, std::size_t item) const {
    const std::size_t share = (me + 2 * shares() - step(item) - back) % shares();
    const std::size_t index = item / (kGroup * steps) * kGroup + item % kGroup;
    const Range part = chunk_range(offsets[share + 1] - offsets[share], segment, index);
    return {offsets[share] + part.begin, part.count};
  }
};

}  // namespace

// The n members stand in a circle. Each member receives from its left neighbour only and sends to its right neighbour
// only. The message is cut into n pieces, and every piece travels round the circle twice: first it gathers the members'
// values (reduce-scatter), then it brings the sum to everybody (all-gather).
//
//   piece 0 of four members    reduce-scatter                      all-gather
//   step                         0        1        2                0        1        2
//   member                   0 ─────► 1 ─────► 2 ─────► 3       3 ─────► 0 ─────► 1 ─────► 2
//                          sends     adds     adds     adds,  sends    keeps    keeps    keeps
//                                                     divides
//
// Piece 1 takes the same way from member 1 on, piece 2 from member 2 on, and so on. So in every step each member sends
// one piece and receives another, and all links of the circle are busy. An element of piece c is added in the order of
// members c, c + 1, ..., c - 1, and the finished sum is passed on as it is: all members get the same bits.
//
// A member sends 2 (n - 1) pieces of about S / n bytes: less than 2 S, however many members there are. The price is
// 2 (n - 1) steps that wait for one another, so small messages take other algorithms.
//
// If a piece travelled whole, the link would be idle while the member adds, and the processor while the piece travels.
// So a piece is cut into segments: segment s of the next step is sent as soon as segment s of this step is added, while
// later segments of this step are still arriving. Receives are posted kAhead segments ahead.

// The schedule of one all-reduce. Each half (reduce-scatter, all-gather) is a stream of items: item i is segment
// i % segments of step i / segments. All ranks use the number of segments of the largest piece, so that item i means
// the same on all ranks. Segments past the end of a shorter piece are empty. They are not sent, because sender and
// receiver know the sizes.
struct Ring::Schedule {
  const Members& members;
  std::byte* data;
  Reduction reduction;
  std::byte* wire;  ///< the values to send, in the order of `data`; the same address as `data` if nothing is rounded
  DataType wire_type;
  std::size_t segment;   ///< elements per segment
  std::size_t segments;  ///< segments per step

  [[nodiscard]] std::size_t steps() const { return members.size() - 1; }
  [[nodiscard]] std::size_t items() const { return steps() * segments; }
  [[nodiscard]] Range piece(std::size_t index) const {
    return share_of(reduction.count, members.size(), index, kShareAlign);
  }
  [[nodiscard]] Range elements(std::size_t piece_index, std::size_t item) const {
    const Range whole = piece(piece_index % members.size());
    const Range part = chunk_range(whole.count, segment, item % segments);
    return {whole.begin + part.begin, part.count};
  }
  // Reduce-scatter: in step s a rank sends piece me - s and receives piece me - s - 1.
  // All-gather: in step s a rank sends piece me + 1 - s and receives piece me - s.
  [[nodiscard]] std::size_t back(std::size_t by) const { return members.me + 2 * members.size() - by; }
  [[nodiscard]] Range scatter_send(std::size_t i) const { return elements(back(i / segments), i); }
  [[nodiscard]] Range scatter_receive(std::size_t i) const { return elements(back(i / segments + 1), i); }
  [[nodiscard]] Range gather_send(std::size_t i) const { return elements(back(i / segments) + 1, i); }
  [[nodiscard]] Range gather_receive(std::size_t i) const { return elements(back(i / segments), i); }

  [[nodiscard]] bool rounds() const { return wire != data; }
  [[nodiscard]] std::byte* values(Range range) const { return data + range.begin * size_of(reduction.dtype); }
  [[nodiscard]] std::span<std::byte> on_wire(Range range) const {
    return {wire + range.begin * size_of(wire_type), range.count * size_of(wire_type)};
  }
  void narrow(Range range) const {
    if (rounds()) convert(on_wire(range).data(), wire_type, values(range), reduction.dtype, range.count);
  }
  void widen(Range range) const {
    if (rounds()) convert(values(range), reduction.dtype, on_wire(range).data(), wire_type, range.count);
  }
};

namespace {

/// A queue of tickets in the order in which they were posted. Completed tickets are removed from the front.
class Tickets {
 public:
  explicit Tickets(Transport& transport) : transport_(transport) {}
  void push(Transport::Ticket ticket) { tickets_.push_back(ticket); }
  void wait_front(const Wait& wait) {
    transport_.wait(tickets_.front(), wait);
    tickets_.pop_front();
  }
  void retire() {
    while (!tickets_.empty() && transport_.test(tickets_.front())) tickets_.pop_front();
  }
  void wait_all(const Wait& wait) {
    while (!tickets_.empty()) wait_front(wait);
  }

 private:
  Transport& transport_;
  std::deque<Transport::Ticket> tickets_;
};

}  // namespace

void Ring::all_reduce(const Members& members, std::byte* data, const Reduction& reduction, DataType wire,
                      const Wait& wait) {
  if (reduction.count == 0) return;
  if (members.size() == 1) return divide(data, reduction.count, reduction.dtype, reduction.divisor);
  Schedule schedule{members, data, reduction, data, wire, std::max<std::size_t>(1, segment_bytes_ / size_of(wire)), 1};
  std::size_t largest = 0;
  for (std::size_t p = 0; p < members.size(); ++p) largest = std::max(largest, schedule.piece(p).count);
  schedule.segments = chunk_count(largest, schedule.segment);
  if (wire != reduction.dtype) {
    if (wire_.size() < reduction.count * size_of(wire)) wire_.resize(reduction.count * size_of(wire));
    if (widened_.size() < schedule.segment) widened_.resize(schedule.segment);
    schedule.wire = wire_.data();
  }
  reduce_scatter(schedule, wait);
  all_gather(schedule, wait);
}

void Ring::reduce_scatter(const Schedule& s, const Wait& wait) {
  const std::size_t slot_bytes = s.segment * size_of(s.wire_type);
  if (scratch_.size() < kAhead * slot_bytes) scratch_.resize(kAhead * slot_bytes);
  const auto slot = [&](std::size_t i) { return scratch_.data() + i % kAhead * slot_bytes; };
  Tickets sends(transport_);
  Tickets receives(transport_);
  const auto post_receive = [&](std::size_t i) {
    if (i >= s.items()) return;
    const std::size_t bytes = s.on_wire(s.scatter_receive(i)).size();
    if (bytes > 0) receives.push(transport_.receive(s.members.left(), {slot(i), bytes}));
  };
  const auto post_send = [&](std::size_t i) {
    if (i >= s.items()) return;
    const Range range = s.scatter_send(i);
    if (range.count == 0) return;
    s.narrow(range);
    sends.push(transport_.send(s.members.right(), s.on_wire(range)));
  };
  // Returns the partial sum that arrived as item i, converted to the reduction's type.
  const auto arrived = [&](std::size_t i, std::size_t count) -> const std::byte* {
    if (!s.rounds()) return slot(i);
    auto* wide = reinterpret_cast<std::byte*>(widened_.data());
    convert(wide, s.reduction.dtype, slot(i), s.wire_type, count);
    return wide;
  };
  for (std::size_t i = 0; i < kAhead; ++i) post_receive(i);
  for (std::size_t i = 0; i < s.segments; ++i) post_send(i);
  for (std::size_t i = 0; i < s.items(); ++i) {
    if (const Range mine = s.scatter_receive(i); mine.count > 0) {
      receives.wait_front(wait);
      std::byte* const sum = s.values(mine);
      reduce_pair(sum, arrived(i, mine.count), sum, mine.count, s.reduction.dtype, s.reduction.op);
      if (i / s.segments == s.steps() - 1) {
        divide(sum, mine.count, s.reduction.dtype, s.reduction.divisor);
        s.narrow(mine);
        s.widen(mine);  // the owner of the piece uses the rounded values, like all other ranks
      }
    }
    post_receive(i + kAhead);
    post_send(i + s.segments);  // the segment just reduced is sent in the next step
    sends.retire();
  }
  sends.wait_all(wait);  // the all-gather overwrites the memory of these sends
}

void Ring::all_gather(const Schedule& s, const Wait& wait) {
  Tickets sends(transport_);
  Tickets receives(transport_);
  const auto post_receive = [&](std::size_t i) {
    if (i >= s.items()) return;
    if (const auto bytes = s.on_wire(s.gather_receive(i)); !bytes.empty()) {
      receives.push(transport_.receive(s.members.left(), bytes));
    }
  };
  const auto post_send = [&](std::size_t i) {
    if (i >= s.items()) return;
    if (const auto bytes = s.on_wire(s.gather_send(i)); !bytes.empty()) {
      sends.push(transport_.send(s.members.right(), bytes));
    }
  };
  for (std::size_t i = 0; i < kAhead; ++i) post_receive(i);
  for (std::size_t i = 0; i < s.segments; ++i) post_send(i);
  for (std::size_t i = 0; i < s.items(); ++i) {
    const Range range = s.gather_receive(i);
    if (range.count > 0) receives.wait_front(wait);
    post_receive(i + kAhead);
    post_send(i + s.segments);
    if (range.count > 0) s.widen(range);
    sends.retire();
  }
  sends.wait_all(wait);
}

// Sends `source(i)` to the right neighbour and receives item i from the left neighbour into `target(i)`. Item i is
// posted after item i - kGroup has been received, combined and sent. Therefore `source(i)` may be the data of item i -
// kGroup.
template <class Source, class Target, class Arrived>
void ShareRing::travel(const Members& members, std::size_t items, Source source, Target target, Arrived arrived,
                       const Wait& wait) {
  using Group = std::array<std::optional<Transport::Ticket>, kGroup>;  // the ticket of item i is at i % kGroup
  Group sends;
  Group receives;
  const auto post = [&](std::size_t i) {
    if (i >= items) return;
    if (const std::span<std::byte> to = target(i); !to.empty()) {
      receives[i % kGroup] = transport_.receive(members.left(), to);
    }
    if (const std::span<const std::byte> from = source(i); !from.empty()) {
      sends[i % kGroup] = transport_.send(members.right(), from);
    }
  };
  const auto finish = [&](Group& tickets, std::size_t i) {
    if (const auto ticket = std::exchange(tickets[i % kGroup], std::nullopt)) transport_.wait(*ticket, wait);
  };
  for (std::size_t i = 0; i < kGroup; ++i) post(i);
  for (std::size_t i = 0; i < items; ++i) {
    finish(receives, i);
    arrived(i);
    finish(sends, i);
    post(i + kGroup);
  }
}

// In step s a member sends its partial sum of share me - s and receives the partial sum of share me - s - 1. In the
// last step it receives its own share from member me - 1, which combined it last.
void ShareRing::reduce_scatter(const Members& members, std::byte* out, const std::byte* in, Offsets offsets,
                               const Reduction& share, const Wait& wait) {
  const std::size_t element = size_of(share.dtype);
  const std::size_t n = members.size();
  const std::size_t segment = std::max<std::size_t>(1, segment_bytes_ / element);
  const Stream stream{offsets, segment, n};
  // The scratch has two halves: one for the items that arrive, one for the previous items, which are being sent on.
  scratch_.resize(std::max(scratch_.size(), 2 * kGroup * segment * element));
  const auto slot = [&](std::size_t i) { return scratch_.data() + i % (2 * kGroup) * segment * element; };
  const auto source = [&](std::size_t i) -> std::span<const std::byte> {
    const Range range = stream.range(members.me, 0, i);
    const std::byte* from = stream.step(i) == 0 ? in + range.begin * element : slot(i + kGroup);
    return {from, range.count * element};
  };
  const auto target = [&](std::size_t i) -> std::span<std::byte> {
    const Range range = stream.range(members.me, 1, i);
    const bool home = stream.step(i) == n - 1;
    return {home ? out + (range.begin - offsets[members.me]) * element : slot(i), range.count * element};
  };
  const auto combine = [&](std::size_t i) {
    const std::size_t step = stream.step(i);
    if (step == n - 1) return;
    const Range range = stream.range(members.me, 1, i);
    reduce_pair(slot(i), slot(i), in + range.begin * element, range.count, share.dtype, share.op);
    if (step == n - 2) divide(slot(i), range.count, share.dtype, share.divisor);
  };
  travel(members, stream.items(), source, target, combine, wait);
}

// In step s a member sends share me - s and receives share me - s - 1.
void ShareRing::all_gather(const Members& members, std::byte* out, const std::byte* in, Offsets offsets,
                           std::size_t element, const Wait& wait) {
  const std::size_t begin = offsets[members.me];
  const std::size_t bytes = (offsets[members.me + 1] - begin) * element;
  if (in != out + begin * element && bytes > 0) std::memcpy(out + begin * element, in, bytes);
  const Stream stream{offsets, std::max<std::size_t>(1, segment_bytes_ / element), members.size() - 1};
  const auto bytes_of = [&](Range range) { return std::span(out + range.begin * element, range.count * element); };
  travel(
      members, stream.items(), [&](std::size_t i) { return bytes_of(stream.range(members.me, 0, i)); },
      [&](std::size_t i) { return bytes_of(stream.range(members.me, 1, i)); }, [](std::size_t /*item*/) {}, wait);
}

}  // namespace hvd::comm
