// The memory that the ranks of one node share for control: who has arrived, small messages, faults.
// Plain memory for threads, POSIX shared memory for processes; the same code runs on both. All-zero bytes
// are a valid initial state.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/comm/flight_record.h"
#include "engine/comm/shm/shared_text.h"

namespace hvd::comm {

/// Two cache lines: the adjacent-line prefetcher couples pairs.
inline constexpr std::size_t kCacheUnit = 128;

/// The smallest page of the machines that we know. Where pages are larger, neighbours share one.
inline constexpr std::size_t kPageBytes = 4096;

/// A number that only grows and that others may sleep on.
struct alignas(kCacheUnit) Counter {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};

/// What a rank says about its part in an operation. Guarded by arrival: written before, read after.
struct Descriptor {
  /// The synchronisation that this is for; stored last. In the line of what it announces, so that a waiting rank gets
  /// both at once.
  std::atomic<std::uint32_t> sequence{0};
  std::uint64_t operation = 0;  ///< hash of its name, so that ranks out of step are found out
  std::uint64_t count = 0;      ///< elements, or bytes of a message
  std::uint32_t dtype = 0;
  std::uint32_t op = 0;
  std::uint64_t region = 0;  ///< registered memory: its number, from 1; 0 if not registered
  std::uint64_t offset = 0;  ///< bytes from the region's start
  std::uint64_t notes = 0;   ///< hash of the notes since the last synchronisation
  std::uint64_t block = 0;   ///< bytes at a time, of a staging block or of a claimed chunk; 0: the message is one piece
};

inline constexpr std::size_t kSlotBytes = std::size_t{32} << 10;

struct alignas(kCacheUnit) Slot {
  Descriptor descriptor;
  alignas(kCacheUnit / 2) std::array<std::byte, kSlotBytes> payload;  ///< in the unit of the descriptor
};

inline constexpr std::size_t kNoteBytes = std::size_t{2} << 10;
/// Notes between two synchronisations.
inline constexpr std::size_t kNotes = 8;

/// A small broadcast; only its readers wait. Each rank records size and sender in its own cell; the sender adds the
/// payload.
struct alignas(kCacheUnit) Note {
  std::atomic<std::uint64_t> number{0};  ///< from 1, of this note; stored last
  std::uint64_t sequence = 0;            ///< of the operation
  std::uint64_t bytes = 0;
  std::uint64_t sender = 0;  ///< local rank
  std::array<std::byte, kNoteBytes> payload;
};

/// One rank's cell. It begins at a page, so that its memory can lie on the NUMA node of its rank.
struct alignas(kPageBytes) Cell {
  Counter arrived;                         ///< synchronisations reached
  Counter told;                            ///< notes sent
  Counter filled;                          ///< staging blocks copied in
  Counter reduced;                         ///< staging blocks whose share is reduced
  std::atomic<std::uint32_t> working{0};   ///< chunk index + 1 while reducing a claimed chunk
  std::atomic<std::uint32_t> answered{0};  ///< last roll call answered
  SharedText status;
  std::atomic<std::uint32_t> process{0};  ///< process id; 0: a thread, or in another pid namespace
  std::atomic<std::uint64_t> pid_namespace{0};
  FlightRecord flights;
  std::array<Slot, 2> slots;                      ///< alternate: one is read while the next is written
  std::array<std::array<Note, kNotes>, 2> notes;  ///< alternate with every synchronisation
};

/// Work of one large all-reduce, claimed in chunks by whoever runs.
struct Work {
  alignas(kCacheUnit) std::atomic<std::uint32_t> next{0};
  Counter done;
};

struct alignas(kPageBytes) Header {
  std::atomic<std::uint32_t> abort_state{0};  ///< 0 none, 1 reason being written, 2 reason readable
  std::atomic<std::uint32_t> roll_call{0};    ///< number of the latest call
  std::atomic<std::uint64_t> token{0};        ///< makes names of shared memory unique
  SharedText reason;
  std::array<Work, 2> work;  ///< alternate like the slots
};

class Segment {
 public:
  /// Borrows `memory` of at least bytes_for(ranks), zeroed, kPageBytes-aligned.
  Segment(std::span<std::byte> memory, int ranks)
      : header_(reinterpret_cast<Header*>(memory.data())),
        cells_(reinterpret_cast<Cell*>(memory.data() + sizeof(Header)), static_cast<std::size_t>(ranks)) {}

  static constexpr std::size_t bytes_for(int ranks) {
    return sizeof(Header) + sizeof(Cell) * static_cast<std::size_t>(ranks);
  }
  /// A run of the segment's memory.
  struct Part {
    std::size_t offset, bytes;
  };
  /// What `local_rank` takes memory for: its cell; rank 0 also for the header.
  static constexpr Part part_of(int local_rank) {
    if (local_rank == 0) return {0, bytes_for(1)};
    return {bytes_for(local_rank), sizeof(Cell)};
  }
  [[nodiscard]] Header& header() const { return *header_; }
  [[nodiscard]] Cell& cell(int local_rank) const { return cells_[static_cast<std::size_t>(local_rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(cells_.size()); }
  /// Process id of a rank as rank `seen_from` may use it; 0 for a thread, in another pid namespace, or not yet known.
  [[nodiscard]] std::uint32_t process_of(int local_rank, int seen_from) const {
    const Cell& its = cell(local_rank);
    const std::uint32_t process = its.process.load(std::memory_order_acquire);
    const auto space = [](const Cell& of) { return of.pid_namespace.load(std::memory_order_relaxed); };
    return process != 0 && space(its) == space(cell(seen_from)) ? process : 0;
  }

 private:
  Header* header_;
  std::span<Cell> cells_;
};

}  // namespace hvd::comm
