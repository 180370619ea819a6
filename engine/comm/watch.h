// A waiting loop uses a Watch to check for other events: an abort of a peer, a roll call, a passed deadline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/deadline.h"
#include "engine/comm/flight_record.h"

namespace hvd::comm {

/// One collective operation, with the facts that an error message needs.
struct Wait {
  std::string_view operation;  ///< "all_reduce"
  std::uint64_t sequence;      ///< number of the operation in this communicator; equal on all ranks
  std::size_t bytes;
  Deadline deadline;
  Clock::time_point start = Clock::now();  ///< may be some milliseconds early
  InFlight in_flight{};

  /// "all_reduce 17 (26214400 bytes)".
  [[nodiscard]] std::string text() const { return collective_text(operation, sequence, bytes, {}); }
};

class Watch {
 public:
  virtual ~Watch() = default;
  /// Returns true if a rank has aborted; check() then throws. Cheap enough for each iteration of a spinning loop.
  [[nodiscard]] virtual bool aborted() const noexcept = 0;
  /// Call this between sleeps while waiting for `awaited` (a rank, or -1 for any). Answers roll calls.
  /// Errors: peer_lost with the peer's reason if a peer has aborted; peer_lost if the process of `awaited` has ended,
  /// or if `awaited` is -1 and the process of any rank of this node has ended.
  virtual void check(const Wait& wait, int awaited) = 0;
  /// Call this when the deadline has passed while waiting for `missing`. Throws peer_lost if one rank is to blame, else
  /// timeout. `direct`: it is known that these ranks did not arrive. If false, these ranks may be waiting for another
  /// rank. give_up() then holds a roll call, and ranks that do not answer are to blame. `detail` is appended.
  [[noreturn]] virtual void give_up(const Wait& wait, std::span<const int> missing, bool direct,
                                    std::string_view detail) = 0;
  /// Makes the waits of the peers fail. For a disagreement, described by `text`, that the peers may not detect.
  virtual void abort_for_mismatch(std::string_view text) noexcept = 0;
};

}  // namespace hvd::comm
