// What a waiting loop has to look at besides the thing it waits for: has a peer aborted, does a peer call
// the roll, has the deadline passed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/deadline.h"
#include "engine/comm/flight_record.h"

namespace hvd::comm {

/// One collective operation, as far as an error message needs it.
struct Wait {
  std::string_view operation;  ///< "all_reduce"
  std::uint64_t sequence;      ///< counts the operations of this communicator, equal on all ranks
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
  /// Cheap enough for every turn of a spinning loop. True: call check(), it will throw.
  [[nodiscard]] virtual bool aborted() const noexcept = 0;
  /// To be called between naps while waiting for `awaited` (a rank, or -1). Answers roll calls.
  /// Errors: peer_lost with the peer's reason, if one has aborted; peer_lost if the process of `awaited`, or of any
  /// rank of this node where that is -1, has ended.
  virtual void check(const Wait& wait, int awaited) = 0;
  /// The deadline has passed while waiting for `missing`. Throws peer_lost if one rank is to blame, else
  /// timeout. `direct`: these ranks are known not to have come. Otherwise they may be waiting themselves, for
  /// yet another; then the roll is called, and who does not answer is to blame. `detail` is appended.
  [[noreturn]] virtual void give_up(const Wait& wait, std::span<const int> missing, bool direct,
                                    std::string_view detail) = 0;
  /// This rank has found that ranks disagree, as `text` says, and its peers may not find it: makes their waits fail.
  virtual void tell_mismatch(std::string_view text) noexcept = 0;
};

}  // namespace hvd::comm
