// The scheduler of the fake GPUs. It runs the work of all GPUs on the CPU. Each piece of work runs after the pieces
// that it waits for, but otherwise the order is free. Work runs only when a caller asks if a piece of work is over. The
// world then chooses, by its seed, among the pieces that may run. Each piece of work declares the memory that it reads
// and writes. The world reports a race if two pieces touch the same bytes, at least one of them writes, and no
// dependency orders the two pieces. It does not matter in which order the two pieces ran.
//
// Threads: any. One lock guards the whole FakeWorld.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/mutex.h"

namespace hvd::test {

using Range = std::span<const std::byte>;

/// One kernel, copy or collective operation.
struct Work {
  /// A function that is called repeatedly while the work lasts. Returns true when the work is over.
  using Poll = std::function<bool()>;

  std::string label;
  std::vector<Range> reads, writes;
  /// Called when everything that the work waits for is over. Returns a Poll that tells when the work itself is over, or
  /// null if the work is over at once. If this function throws, the GPU is broken: every later query fails with the
  /// error's text.
  std::function<Poll()> start;
};

/// [line of work]: number of pieces of the line that are over. `a` happened before `b` if no element of a's clock is
/// larger than the same element of b's clock.
using VectorClock = std::vector<std::uint64_t>;

struct Op {
  std::shared_ptr<const Work> work;  // null: the op only orders other work and does nothing itself
  std::size_t device = 0;
  std::size_t line = 0;  // the line of the op's stream, or of a stream inside a graph
  VectorClock clock;     // the clock when the op ends
  std::vector<std::shared_ptr<Op>> waits_for;
  Work::Poll poll;
  std::size_t queue_share = 0;
  bool started = false;
  bool done = false;
  std::uint64_t done_at = 0;  // number of the turn of the world in which the op ended
};
using OpRef = std::shared_ptr<Op>;

class FakeWorld {
 public:
  /// Shares of a launch queue. How much of CUDA's queue a node of a graph takes is not documented.
  static constexpr std::size_t kCall = 64, kGraphNode = 1;

  explicit FakeWorld(std::uint64_t seed) : state_(seed * 2 + 1) {}

  /// Returns mistakes that a real GPU might not show, such as races and memory freed while in use. One line for each
  /// mistake.
  [[nodiscard]] std::vector<std::string> violations();
  void report(std::string violation);
  /// Runs up to `turns` pieces of work, chosen by the seed. Returns true if at least one piece ran.
  bool advance(int turns = 1);

  // -- for FakeRuntime -----------------------------------------------------------------------------------
  std::size_t add_device();
  std::size_t add_line();
  /// Adds a piece of work. The work waits for `waits_for` and for all work that the host of `device` has seen finish.
  /// `queue_share` is its part of the device's launch queue.
  OpRef enqueue(std::size_t device, std::size_t line, std::shared_ptr<const Work> work, std::vector<OpRef> waits_for,
                std::size_t queue_share = kCall);
  /// Returns the sum of the queue shares of the device's unfinished work. A device that failed has no work.
  [[nodiscard]] std::size_t queued(std::size_t device);
  /// Takes a few turns and then returns true if `op` is over. Errors: backend if work of `device` failed.
  bool finished(std::size_t device, const OpRef& op);
  [[nodiscard]] std::uint64_t done_at(const OpRef& op);
  /// Returns the label of an unfinished piece of work that touches `memory`. Returns an empty text if there is none.
  [[nodiscard]] std::string user_of(Range memory);
  /// Returns the label of an unfinished piece of work of `device`. Returns an empty text if there is none. A device
  /// that failed has no work.
  [[nodiscard]] std::string work_of(std::size_t device);
  /// Call this when `memory` is freed.
  void forget(Range memory);
  void break_device(std::size_t device, std::string why);

 private:
  struct Access {
    Range range;
    bool write = false;
    std::size_t line = 0;     // line of the work that made this access
    std::uint64_t count = 0;  // number of the work on this line
    std::string label;
  };
  struct Device {
    VectorClock seen;  // the work that the device's host has seen finish
    std::string broken;
    std::size_t queued = 0;
  };

  std::uint64_t random() HVD_REQUIRES(mutex_);
  bool step() HVD_REQUIRES(mutex_);
  void run(const OpRef& op) HVD_REQUIRES(mutex_);
  void check_races(const OpRef& op) HVD_REQUIRES(mutex_);

  Mutex mutex_;
  std::uint64_t state_ HVD_GUARDED_BY(mutex_);
  std::uint64_t turn_ HVD_GUARDED_BY(mutex_) = 0;
  std::vector<Device> devices_ HVD_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> lines_ HVD_GUARDED_BY(mutex_);    // [line]: number of pieces of work enqueued
  std::vector<std::uint64_t> weights_ HVD_GUARDED_BY(mutex_);  // [line]: relative chance that its work is chosen
  std::vector<OpRef> pending_ HVD_GUARDED_BY(mutex_);
  std::vector<Access> accesses_ HVD_GUARDED_BY(mutex_);
  std::vector<std::string> violations_ HVD_GUARDED_BY(mutex_);
};

}  // namespace hvd::test
