// One rank's side of a problem: where its buffers lie, the collective call itself, the bare kernel that moves the same
// bytes without any other rank, and the check of the result.
//
// Threads: an Arena and the calls belong to one rank's thread.
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

/// Buffers of one operation. In place, the smaller lies inside the larger as DataPlane wants it.
struct Buffers {
  std::byte* in = nullptr;
  std::byte* out = nullptr;
};

/// Where successive operations find their buffers.
enum class Places : std::uint8_t {
  kRotating,  ///< in successive places, so that an operation finds none of its data in a cache smaller than the arena
  kFixed      ///< at the beginning of the arena, so that the data may stay in caches
};

/// The memory of the buffers.
class Arena {
 public:
  /// Collective, from the plane, registered. Errors: those of DataPlane::allocate().
  Arena(comm::DataPlane& plane, std::size_t bytes, Places places, Deadline deadline);
  /// Plain memory of this process. Errors: out_of_memory.
  Arena(std::size_t bytes, Places places);
  /// The buffers of the next operation of `problem`; the same places on all ranks that ask in the same order. Needs an
  /// arena of at least the problem's footprint.
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

/// Bytes of memory of the host through which buffers are filled and checked. A GPU wants it pinned.
inline constexpr std::size_t kStagingBytes = std::size_t{1021} * 256 * 8;

/// Fills memory with one byte value that is an ordinary number in every type: not 0, not denormal, not a NaN. `staging`
/// has kStagingBytes.
void fill_ordinary(comm::DataPlane& plane, std::span<std::byte> memory, std::span<std::byte> staging,
                   Deadline deadline);

/// The collective call. On a device plane it is enqueued: complete() waits for it.
/// Errors: those of the plane.
void start(comm::Communicator& communicator, const Problem& problem, Buffers buffers, Deadline deadline);

/// What a rank must at least do for `problem` where all ranks share one memory: the same reads, additions and writes as
/// its part, from and to its own memory.
/// - all_reduce: reduces its share of every rank's input, writes it to every rank's output.
/// - reduce_scatter: the same, writes it once.
/// - all_gather, all_to_all, broadcast: copies the output, but for what is in its place already.
/// - barrier: nothing.
void run_bare(const Problem& problem, Buffers buffers, const comm::Topology& topology);
/// What Arena::next() is asked for run_bare(): as large a problem, with room to copy from.
Problem bare_shape(const Problem& problem, int ranks);

/// Collective. Fills the inputs, does the operation once with `once`, and returns how many elements of this rank's
/// output are wrong. `once` calls start() or launches a graph of it; null: start(). `staging` has kStagingBytes.
std::uint64_t check(comm::Communicator& communicator, const Problem& problem, Buffers buffers,
                    std::span<std::byte> staging, Deadline deadline, const std::function<void()>& once = {});

}  // namespace hvd::bench::coll
