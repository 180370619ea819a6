// The memory that the ranks of one node share for control: arrivals at synchronisations, small messages, faults. It is
// plain memory for threads and POSIX shared memory for processes. All-zero bytes are a valid initial state.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "engine/comm/flight_record.h"

namespace hvd::comm {

/// A short text that one rank writes and other ranks read at any time. A sequence lock excludes torn reads. The words
/// are atomic, so that ThreadSanitizer accepts the lock.
class SharedText {
 public:
  static constexpr std::size_t kCapacity = 1024;

  /// Cuts the text off at kCapacity bytes. Only one rank may call write().
  void write(std::string_view text) noexcept {
    const std::uint32_t before = version_.load(std::memory_order_relaxed);
    version_.store(before + 1, std::memory_order_relaxed);
    const std::size_t length = std::min(text.size(), kCapacity);
    length_.store(static_cast<std::uint32_t>(length), std::memory_order_release);
    for (std::size_t i = 0; i * 8 < length; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + i * 8, std::min<std::size_t>(8, length - i * 8));
      words_[i].store(word, std::memory_order_release);
    }
    version_.store(before + 2, std::memory_order_release);
  }
  /// Returns "(unreadable)" after 10000 attempts, for example if the writer died during write().
  [[nodiscard]] std::string read() const {
    for (int attempt = 0; attempt < 10000; ++attempt) {
      const std::uint32_t before = version_.load(std::memory_order_acquire);
      if (before % 2 != 0) continue;
      const std::size_t length = std::min<std::size_t>(length_.load(std::memory_order_acquire), kCapacity);
      std::string text(length, '\0');
      for (std::size_t i = 0; i * 8 < length; ++i) {
        const std::uint64_t word = words_[i].load(std::memory_order_acquire);
        std::memcpy(text.data() + i * 8, &word, std::min<std::size_t>(8, length - i * 8));
      }
      if (version_.load(std::memory_order_relaxed) == before) return text;
    }
    return "(unreadable)";
  }

 private:
  std::atomic<std::uint32_t> version_{0};
  std::atomic<std::uint32_t> length_{0};
  std::array<std::atomic<std::uint64_t>, kCapacity / 8> words_{};
};

/// Two cache lines, because the adjacent-line prefetcher fetches lines in pairs.
inline constexpr std::size_t kCacheUnit = 128;

/// The smallest page size of common machines. Where pages are larger, neighbouring cells share a page.
inline constexpr std::size_t kPageBytes = 4096;

/// A number that grows (modulo 2^32). Other ranks may sleep until it changes.
struct alignas(kCacheUnit) Counter {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};

/// A rank's arguments of an operation. The rank writes them before it arrives; other ranks read them afterwards.
struct Descriptor {
  /// Number of the synchronisation; stored last. This number shares a cache line with the fields below, which are read
  /// next.
  std::atomic<std::uint32_t> sequence{0};
  std::uint64_t operation = 0;  ///< hash of the operation's name, to detect ranks that are in different operations
  std::uint64_t count = 0;      ///< elements, or bytes of a message
  std::uint32_t dtype = 0;
  std::uint32_t op = 0;
  std::uint64_t region = 0;  ///< number of the region that contains the data, from 1; 0 if the data are not registered
  std::uint64_t offset = 0;  ///< bytes from the region's start
  std::uint64_t notes = 0;   ///< hash of the notes since the last synchronisation
  std::uint64_t block = 0;   ///< bytes per staging block or claimed chunk; 0 if the message is one piece
};

inline constexpr std::size_t kSlotBytes = std::size_t{32} << 10;

struct alignas(kCacheUnit) Slot {
  Descriptor descriptor;
  /// The payload starts in the same pair of cache lines as the descriptor.
  alignas(kCacheUnit / 2) std::array<std::byte, kSlotBytes> payload;
};

inline constexpr std::size_t kNoteBytes = std::size_t{2} << 10;
/// Maximum number of notes between two synchronisations.
inline constexpr std::size_t kNotes = 8;

/// A small broadcast, in which only readers wait. Each rank writes size and sender into its own note; the sender also
/// writes the payload.
struct alignas(kCacheUnit) Note {
  std::atomic<std::uint64_t> number{0};  ///< number of this note, from 1; stored last
  std::uint64_t sequence = 0;            ///< number of the operation
  std::uint64_t bytes = 0;
  std::uint64_t sender = 0;  ///< local rank
  std::array<std::byte, kNoteBytes> payload;
};

/// The control memory of one rank. A cell begins at a page, so that it can be on the NUMA node of its rank.
struct alignas(kPageBytes) Cell {
  Counter arrived;                         ///< number of synchronisations that this rank reached
  Counter told;                            ///< number of notes sent
  Counter filled;                          ///< number of staging blocks that this rank has copied in
  Counter reduced;                         ///< number of staging blocks whose share this rank has reduced
  std::atomic<std::uint32_t> working{0};   ///< chunk index + 1 while reducing a chunk, else 0
  std::atomic<std::uint32_t> answered{0};  ///< number of the last roll call that this rank answered
  SharedText status;
  std::atomic<std::uint32_t> process{0};  ///< process id; 0 for a thread, or if not yet known
  std::atomic<std::uint64_t> pid_namespace{0};
  FlightRecord flights;
  std::array<Slot, 2> slots;                      ///< used alternately: one is read while the next is written
  std::array<std::array<Note, kNotes>, 2> notes;  ///< two sets, used alternately: each synchronisation changes the set
};

/// Work of one large all-reduce. Every running rank claims chunks of it.
struct Work {
  alignas(kCacheUnit) std::atomic<std::uint32_t> next{0};
  Counter done;
};

struct alignas(kPageBytes) Header {
  std::atomic<std::uint32_t> abort_state{0};  ///< 0 none, 1 reason being written, 2 reason readable
  std::atomic<std::uint32_t> roll_call{0};    ///< number of the latest roll call
  std::atomic<std::uint64_t> token{0};        ///< makes names of shared memory unique
  SharedText reason;
  std::array<Work, 2> work;  ///< used alternately, like Cell::slots
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
  /// A contiguous part of the segment's memory.
  struct Part {
    std::size_t offset, bytes;
  };
  /// The part that `local_rank` commits: its cell; local rank 0 also commits the header.
  static constexpr Part part_of(int local_rank) {
    if (local_rank == 0) return {0, bytes_for(1)};
    return {bytes_for(local_rank), sizeof(Cell)};
  }
  [[nodiscard]] Header& header() const { return *header_; }
  [[nodiscard]] Cell& cell(int local_rank) const { return cells_[static_cast<std::size_t>(local_rank)]; }
  [[nodiscard]] int size() const { return static_cast<int>(cells_.size()); }
  /// Returns the process id of a rank, valid for rank `seen_from`. Returns 0 for a thread, for a process of another pid
  /// namespace, and before the id is known.
  [[nodiscard]] std::uint32_t process_of(int local_rank, int seen_from) const {
    const Cell& its = cell(local_rank);
    const std::uint32_t process = its.process.load(std::memory_order_acquire);
    const auto space = [](const Cell& rank_cell) { return rank_cell.pid_namespace.load(std::memory_order_relaxed); };
    return process != 0 && space(its) == space(cell(seen_from)) ? process : 0;
  }

 private:
  Header* header_;
  std::span<Cell> cells_;
};

}  // namespace hvd::comm
