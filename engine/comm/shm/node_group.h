// Lets the ranks of one node synchronise and send small messages through their segment, and checks that they make the
// same call. One object and thread per rank.
//
// Protocol. All ranks perform the same sequence of operations. For synchronisation k, a rank posts into slot (k mod 2)
// and then arrives. When sync() returns, this rank can read every rank's slot k until this rank arrives at k + 1. A
// slot may be written again for k + 2, because a rank that has arrived at k + 1 has read slot k.
//
// Checks of arguments. Every rank compares the descriptors that the ranks posted at the last synchronisation, in the
// same order. Therefore all ranks throw the same text before any data move, and can go on with the next operation. If
// there are several nodes, a disagreement aborts the other nodes, and the communicator is unusable afterwards.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "engine/base/mutex.h"
#include "engine/comm/faults.h"
#include "engine/comm/flight_record.h"
#include "engine/comm/layout.h"
#include "engine/comm/shm/segment.h"
#include "engine/comm/shm/shared_memory.h"

namespace hvd::comm {

/// Memory that all local ranks can access, with `stride` bytes per local rank.
struct NodeMemory {
  std::shared_ptr<SharedMemory> memory;
  std::size_t stride = 0;
  [[nodiscard]] std::byte* part(int local_rank) const {
    return memory->bytes().data() + stride * static_cast<std::size_t>(local_rank);
  }
};

/// Passes memory from local rank 0 to the other ranks if ranks are threads. All ranks of a node own the Handover, so
/// that it still exists if local rank 0 leaves with an error before the other ranks have called get(). Any thread.
class Handover {
 public:
  void put(std::shared_ptr<SharedMemory> memory) {
    const MutexLock lock(mutex_);
    memory_ = std::move(memory);
  }
  [[nodiscard]] std::shared_ptr<SharedMemory> get() {
    const MutexLock lock(mutex_);
    return memory_;
  }

 private:
  Mutex mutex_;
  std::shared_ptr<SharedMemory> memory_ HVD_GUARDED_BY(mutex_);
};

class NodeGroup {
 public:
  enum class Kind : std::uint8_t { kThreads, kProcesses };

  /// Borrows all arguments. Stores this process' id in the rank's cell.
  NodeGroup(const Layout& layout, Segment segment, Faults& faults, Kind kind);
  /// If ranks are threads, call this before allocate() with an object that all ranks of the node share.
  void set_handover(std::shared_ptr<Handover> handover) { handover_ = std::move(handover); }

  [[nodiscard]] int rank() const { return layout_.topology.local_rank; }
  [[nodiscard]] int size() const { return layout_.topology.local_size; }
  [[nodiscard]] const Layout& layout() const { return layout_; }
  /// Returns true if there are more local ranks than processors, so that spinning takes time from the awaited rank.
  [[nodiscard]] bool crowded() const { return crowded_; }

  /// This rank's slot for the next synchronisation. Write it before sync().
  [[nodiscard]] Slot& next_slot() { return segment_.cell(rank()).slots[(sequence_ + 1) % 2]; }
  /// The slot of any local rank for the last synchronisation.
  [[nodiscard]] const Slot& slot(int local_rank) const { return segment_.cell(local_rank).slots[sequence_ % 2]; }

  /// Returns when all local ranks have arrived. Checks that all of them are in the same operation.
  /// Errors: mismatch; those of Faults::check() and Faults::give_up().
  void sync(const Wait& wait);

  /// Sends `message` of local rank `sender` to all other ranks. The sender does not wait for the readers. A reader that
  /// detects a disagreement about size or sender waits until the other ranks call sync(), which throws the same error
  /// on all ranks. If the other ranks do not arrive before the deadline, only the reader throws the error, and it
  /// aborts.
  /// Shape: up to kNoteBytes. All ranks of the world must be on this node.
  /// Errors: mismatch, naming two ranks and what they have; those of Faults::check() and Faults::give_up().
  void send_note(std::span<std::byte> message, int sender, const Wait& wait);

  /// prepare_work() resets the Work of the next synchronisation; only local rank 0 calls it. work() returns the Work of
  /// the last synchronisation.
  void prepare_work();
  [[nodiscard]] Work& work() { return segment_.header().work[sequence_ % 2]; }
  /// Marks this rank as busy with chunk number `chunk`, counted from 1, or as idle (0), so that an error can name the
  /// ranks that are late.
  void set_working(std::uint32_t chunk) { my_cell().working.store(chunk, std::memory_order_relaxed); }
  /// Returns when `total` chunks of work() are done.
  void await_work(std::uint32_t total, const Wait& wait);

  /// advance() and bump() add one to a counter and wake the ranks that sleep on it; wake() only wakes them.
  void advance(Counter Cell::*counter) { bump(my_cell().*counter); }
  static void bump(Counter& counter);
  static void wake(Counter& counter) noexcept;
  /// await_one() returns when `counter` of `local_rank` has reached `target` (modulo 2^32); await_all() returns when
  /// `counter` of every local rank has reached `target`.
  void await_one(Counter Cell::*counter, int local_rank, std::uint32_t target, const Wait& wait);
  void await_all(Counter Cell::*counter, std::uint32_t target, const Wait& wait);

  /// Always throws mismatch; see Faults::throw_node_mismatch(). Call if the data posted for the last synchronisation
  /// disagree. All local ranks see these data, so all of them call this method.
  [[noreturn]] void throw_mismatch(const std::string& text) const { faults_.throw_node_mismatch(text); }

  /// Collective. Returns zeroed memory with one page-aligned part per local rank. Errors: out_of_memory, on all local
  /// ranks.
  NodeMemory allocate(std::size_t bytes_per_rank, const Wait& wait);

 private:
  [[nodiscard]] Cell& my_cell() const { return segment_.cell(rank()); }
  [[nodiscard]] int global(int local_rank) const { return layout_.my_node()[static_cast<std::size_t>(local_rank)]; }
  /// Spins briefly, then sleeps, until ready() returns true. `counter` must change whenever the result of ready() may
  /// change. `awaited` is the local rank that this rank waits for, or -1 if unknown.
  template <class Ready, class OnDeadline>
  void await(Counter& counter, int awaited, const Wait& wait, Ready ready, OnDeadline on_deadline);
  [[noreturn]] void throw_late(std::span<const int> local_ranks, const Wait& wait);
  /// Throws an error that names the local ranks whose `counter` has not reached `target`, if there are any.
  void blame_late(Counter Cell::*counter, std::uint32_t target, const Wait& wait);
  void check_same_operation(const Wait& wait) const;
  /// `set` is the value of sequence_ when the notes were written.
  [[nodiscard]] Note& note(int local_rank, std::uint32_t set, std::size_t index) const {
    return segment_.cell(local_rank).notes[set % 2][index];
  }
  [[nodiscard]] static std::uint64_t note_number(std::uint32_t set, std::size_t index) {
    return std::uint64_t{set} * kNotes + index + 1;
  }
  /// Returns null if the rank has not written this note.
  [[nodiscard]] const Note* note_of(int local_rank, std::uint32_t set, std::size_t index) const {
    const Note& its = note(local_rank, set, index);
    return its.number.load(std::memory_order_acquire) == note_number(set, index) ? &its : nullptr;
  }
  /// Compares the notes written before the synchronisation that has just ended. Errors: mismatch, always.
  [[noreturn]] void throw_different_notes() const;
  /// Returns how the notes of two local ranks differ: "broadcast 3: rank 0 (host a) has 8 bytes from rank 1, ...".
  [[nodiscard]] std::string difference(int first, int second, std::uint32_t set, std::size_t index) const;
  /// For a reader whose note `index` differs from note `index` of `sender`. Errors: those of send_note().
  [[noreturn]] void throw_note_mismatch(int sender, std::size_t index, const Wait& wait);
  NodeMemory allocate_for_processes(std::size_t stride, const Wait& wait);
  NodeMemory allocate_for_threads(std::size_t stride, const Wait& wait);

  const Layout& layout_;
  Segment segment_;
  Faults& faults_;
  Kind kind_;
  const bool crowded_;
  std::shared_ptr<Handover> handover_;
  std::uint32_t sequence_ = 0;  ///< number of synchronisations that this rank has reached
  std::size_t notes_ = 0;       ///< number of notes since the last synchronisation
  std::uint64_t noted_ = 0;     ///< hash of the notes since the last synchronisation
  std::uint32_t allocations_ = 0;
};

/// Short hash of an operation's name.
std::uint64_t operation_id(std::string_view operation) noexcept;

/// Descriptor::op of operations that reduce nothing.
inline constexpr std::uint32_t kNoReduction = UINT32_MAX;

/// Returns text such as "rank 3 (host b)".
std::string rank_name(const NodeGroup& group, int local_rank);

/// Throws mismatch: "all_gather 17: `facts`; all ranks must make the same calls with the same arguments".
[[noreturn]] void throw_disagreement(const NodeGroup& group, const Wait& wait, const std::string& facts);

/// Errors: mismatch unless all local ranks posted the same count, type, operation and block.
void check_same_arguments(const NodeGroup& group, const Wait& wait);

}  // namespace hvd::comm
