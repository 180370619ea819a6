#include "engine/comm/algorithm/share_ring.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

namespace hvd::comm {
namespace {

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
  /// The elements of share `me - step - back` that belong to `item`.
  [[nodiscard]] Range range(std::size_t me, std::size_t back, std::size_t item) const {
    const std::size_t share = (me + 2 * shares() - step(item) - back) % shares();
    const std::size_t index = item / (kGroup * steps) * kGroup + item % kGroup;
    const Range part = chunk_range(offsets[share + 1] - offsets[share], segment, index);
    return {offsets[share] + part.begin, part.count};
  }
};

}  // namespace

// Sends `source(i)` to the right neighbour and receives item i from the left neighbour into `target(i)`. Item i is
// posted after item i - kGroup has been received, combined and sent. Therefore `source(i)` may be the data of item i -
// kGroup.
template <class Source, class Target, class Arrived>
void ShareRing::travel(const Members& members, std::size_t items, Source source, Target target, Arrived arrived,
                       const Wait& wait) {
  using Tickets = std::array<std::optional<Transport::Ticket>, kGroup>;
  Tickets sends;
  Tickets receives;
  const auto post = [&](std::size_t i) {
    if (i >= items) return;
    if (const std::span<std::byte> to = target(i); !to.empty()) {
      receives[i % kGroup] = transport_.receive(members.left(), to);
    }
    if (const std::span<const std::byte> from = source(i); !from.empty()) {
      sends[i % kGroup] = transport_.send(members.right(), from);
    }
  };
  const auto finish = [&](Tickets& tickets, std::size_t i) {
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
