// One rank's part of a problem: the places of its buffers, the collective call, the bare kernel that moves the same
// bytes without other ranks, and the check of the result.
//
// Threads: only the rank's own thread uses an Arena and these functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "bench/coll/problem.h"
#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"

namespace hvd::bench::coll {

/// Buffers of one operation. In place, the smaller buffer lies inside the larger one, at the place that DataPlane
/// requires.
struct Buffers {
  std::byte* in = nullptr;
  std::byte* out = nullptr;
};

/// The places in an Arena of the buffers of successive operations.
enum class Places : std::uint8_t {
  kRotating,  ///< one after another, so that a cache smaller than the arena loses a buffer before it is used again
  kFixed      ///< all at the beginning of the arena, so that data may stay in caches
};

/// Memory from which one rank's operations get their buffers.
class Arena {
 public:
  /// Collective. Allocates memory from the plane; the plane may register the memory. Errors: those of
  /// DataPlane::allocate().
  Arena(comm::DataPlane& plane, std::size_t bytes, Places places, Deadline deadline);
  /// Allocates plain memory of this process. Errors: out_of_memory.
  Arena(std::size_t bytes, Places places);
  /// Returns the buffers of the next operation of `problem`. Ranks that call next() in the same order get buffers at
  /// the same offsets. The arena must be at least as large as the problem's footprint.
  Buffers next(const Problem& problem, const comm::Topology& topology);
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  const Places places_;
  std::unique_ptr<comm::RegisteredMemory> registered_;
  std::unique_ptr<std::byte, Free> plain_;
  std::span<std::byte> bytes_;
  std::size_t at_ = 0;  // where the next buffers begin
};

/// Size of the staging memory: host memory, pinned if there is a GPU, through which buffers are filled and checked.
inline constexpr std::size_t kStagingBytes = std::size_t{1021} * 256 * 8;

/// Fills `memory` with one byte value that gives an ordinary number in every type: not 0, not denormal, not a NaN.
/// `staging` is kStagingBytes long.
void fill_ordinary(comm::DataPlane& plane, std::span<std::byte> memory, std::span<std::byte> staging,
                   Deadline deadline);

/// Makes the collective call. On a device plane the call only enqueues the operation; DataPlane::complete() waits for
/// its end. Errors: those of the plane.
void start(comm::Communicator& communicator, const Problem& problem, Buffers buffers, Deadline deadline);

/// Does the least work that one rank must do for `problem` if all ranks share one memory: the same reads, additions and
/// writes as the rank's part of the operation, but only in the rank's own memory.
/// - all_reduce: in a world of n ranks, reduces n shares to one share, and writes the result n times.
/// - reduce_scatter: reduces n shares to one share, and writes the result once.
/// - all_gather, all_to_all, broadcast: copies as many elements as the output has, except elements already in place.
/// - barrier: does nothing.
void run_bare(const Problem& problem, Buffers buffers, const comm::Topology& topology);
/// Returns the problem to pass to Arena::next() for the buffers of run_bare(). This is `problem` if it is a reduction;
/// otherwise it is a problem whose input is as large as the output of `problem`.
Problem bare_shape(const Problem& problem, int ranks);

/// Collective. Fills the inputs, runs the operation once, and returns the number of wrong elements in this rank's
/// output. `once` runs the operation, for example as a graph; if null, start() runs it. `staging` is kStagingBytes
/// long.
std::uint64_t check(comm::Communicator& communicator, const Problem& problem, Buffers buffers,
                    std::span<std::byte> staging, Deadline deadline, const std::function<void()>& once = {});

}  // namespace hvd::bench::coll
