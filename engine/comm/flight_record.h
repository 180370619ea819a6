// Records the collectives that one rank entered last, for messages about lost and hanging peers. A FlightRecord is part
// of the rank's cell in the node's shared segment, so that other ranks of the node can read the record after the rank's
// process has ended. All-zero bytes are an empty record. The rank's own thread writes; any thread of the node may read
// at any time.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/types.h"

namespace hvd::comm {

struct CollectiveInFlight {
  std::uint64_t sequence = 0;  ///< number of the collective in its communicator; equal on all ranks
  std::string operation;
  std::size_t bytes = 0;
  std::optional<DataType> dtype;  ///< none if the collective moves bytes without a type
  Clock::time_point entered;
  std::optional<Clock::time_point> left;  ///< none: the rank is still inside, or an error ended the collective

  /// "all_reduce 17 (26214400 bytes of fp32)".
  [[nodiscard]] std::string text() const;
  /// "entered all_reduce 17 (26214400 bytes of fp32) 2.1 s ago and has not left it".
  [[nodiscard]] std::string story(Clock::time_point now) const;
};

/// Returns the text by which every message names a collective: "all_reduce 17 (26214400 bytes of fp32)".
std::string collective_text(std::string_view operation, std::uint64_t sequence, std::size_t bytes,
                            std::optional<DataType> dtype);

class FlightRecord {
 public:
  static constexpr std::size_t kKept = 64;
  static constexpr std::size_t kNameBytes = 16;

  /// `sequence` counts from 1. Names longer than kNameBytes are cut off.
  void enter(std::string_view operation, std::uint64_t sequence, std::size_t bytes, std::optional<DataType> dtype,
             Clock::time_point now) noexcept;
  void leave(std::uint64_t sequence, Clock::time_point now) noexcept;

  /// Returns up to `most` collectives, the latest collective first. Skips entries that are being overwritten.
  [[nodiscard]] std::vector<CollectiveInFlight> last(std::size_t most) const;

 private:
  /// One cache line. `sequence` is 0 while the writer changes the other fields, so that readers skip the entry.
  struct alignas(64) Entry {
    std::atomic<std::uint64_t> sequence{0};
    std::array<std::atomic<std::uint64_t>, kNameBytes / 8> name{};
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<Clock::rep> entered{0};
    std::atomic<Clock::rep> left{0};      ///< 0: not left yet
    std::atomic<std::uint64_t> dtype{0};  ///< 1 + DataType; 0: no type
  };
  [[nodiscard]] std::optional<CollectiveInFlight> read(std::uint64_t sequence) const;

  std::atomic<std::uint64_t> newest_{0};
  std::array<Entry, kKept> entries_;
};

/// The destructor marks the collective as left, unless it runs while an exception propagates.
class InFlight {
 public:
  InFlight() = default;
  /// Borrows `record`, whose rank has entered collective `sequence`.
  InFlight(FlightRecord& record, std::uint64_t sequence) noexcept : record_(&record), sequence_(sequence) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  ~InFlight();

 private:
  FlightRecord* record_ = nullptr;
  std::uint64_t sequence_ = 0;
};

/// The entries of one rank in a flight table.
struct RankFlights {
  std::string rank;                         ///< "rank 3 (host b)"
  std::vector<CollectiveInFlight> flights;  ///< the latest collective first
  std::string says;                         ///< for a rank of another node: its last answer to a roll call
};

/// Returns one line per rank and collective, each with a newline at its end; empty if no rank has entered a collective.
/// Times are in seconds before `now`.
std::string flight_table(std::span<const RankFlights> ranks, Clock::time_point now);

/// A wait for a peer in one collective operation, with the facts that the errors of Faults and the transports need. A
/// plain value; one thread.
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
