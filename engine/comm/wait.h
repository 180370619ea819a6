// Describes a wait for a peer, for the errors of Faults and the transports. A plain value; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
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
  Clock::time_point start = Clock::now();  ///< up to 10 ms early if it was read with coarse_now()
  InFlight in_flight{};

  /// "all_reduce 17 (26214400 bytes)".
  [[nodiscard]] std::string text() const { return collective_text(operation, sequence, bytes, {}); }
};

}  // namespace hvd::comm
