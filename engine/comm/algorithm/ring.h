// Segmented, pipelined rings over point-to-point messages: all-reduce, and reduce-scatter and all-gather of shares. See
// docs/algorithms.md.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/base/types.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"
#include "engine/comm/transport.h"

namespace hvd::comm {

/// The ranks that take part, in an order that all of them know, and this rank's place in it.
struct Members {
  std::span<const int> ranks;
  std::size_t me = 0;
  [[nodiscard]] std::size_t size() const { return ranks.size(); }
  [[nodiscard]] int right() const { return ranks[(me + 1) % size()]; }
  [[nodiscard]] int left() const { return ranks[(me + size() - 1) % size()]; }
};

class Ring {
 public:
  /// Borrows `transport`. A piece is sent in segments of `segment_bytes`, so that sending and reducing overlap.
  Ring(Transport& transport, std::size_t segment_bytes) : transport_(transport), segment_bytes_(segment_bytes) {}

  /// Works in place, with equal arguments on all members. Piece c is summed in the order of members c, c+1, ..., c-1,
  /// whatever the segment size. Member c-1 applies the divisor.
  /// `wire` is the type in which values are sent: the reduction's own type or, for an fp32 reduction only, fp16 or
  /// bf16. If an fp32 reduction sends 16-bit values, partial sums are rounded at each hop and added in fp32, and all
  /// members get the rounded result. Errors: those of Transport.
  void all_reduce(const Members& members, std::byte* data, const Reduction& reduction, DataType wire, const Wait& wait);

 private:
  struct Schedule;
  void reduce_scatter(const Schedule& schedule, const Wait& wait);
  void all_gather(const Schedule& schedule, const Wait& wait);

  Transport& transport_;
  std::size_t segment_bytes_;
  // The three vectors below are kept after a failed call: a late message may still be written to them.
  std::vector<std::byte> scratch_;  ///< segments that have arrived
  std::vector<std::byte> wire_;     ///< the whole message in the type `wire`, if that is not the reduction's type
  std::vector<float> widened_;      ///< one segment, converted to fp32
};

/// Ring reduce-scatter and all-gather of shares that may differ in size. Both operations need scratch memory for only a
/// few segments, whatever the size of the shares. One object per rank, used by one thread; borrows the transport.
class ShareRing {
 public:
  /// A share is sent in segments of `segment_bytes`, so that sending and reducing overlap.
  ShareRing(Transport& transport, std::size_t segment_bytes) : transport_(transport), segment_bytes_(segment_bytes) {}

  /// Share c is combined in the order of members c, c + 1, ..., c - 1, as Ring::all_reduce combines its piece c.
  /// Shapes: in (offsets.back()), out (share.count). `out` may be this member's share within `in`.
  /// Errors of reduce_scatter() and all_gather(): those of Transport.
  void reduce_scatter(const Members& members, std::byte* out, const std::byte* in, Offsets offsets,
                      const Reduction& share, const Wait& wait);
  /// Shapes: in (this member's share), out (offsets.back()). `in` may be this member's share within `out`.
  void all_gather(const Members& members, std::byte* out, const std::byte* in, Offsets offsets, std::size_t element,
                  const Wait& wait);

 private:
  template <class Source, class Target, class Arrived>
  void travel(const Members& members, std::size_t items, Source source, Target target, Arrived arrived,
              const Wait& wait);

  Transport& transport_;
  std::size_t segment_bytes_;
  std::vector<std::byte> scratch_;  ///< kept after a failed call: a late message may still be written here
};

}  // namespace hvd::comm
