// Ring reduce-scatter and all-gather of shares that may differ in size. Both operations need scratch memory for only a
// few segments, whatever the size of the shares. See docs/algorithms.md. One object per rank, used by one thread;
// borrows the transport.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/comm/algorithm/ring.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"

namespace hvd::comm {

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
