// The scheduler of the fake GPUs. It runs the work of all GPUs on the CPU. Each piece of work runs after the pieces
// that it waits for. Apart from that the order is free. Work runs only when a caller asks if some piece is over. A seed
// then chooses among the pieces that may run. Work declares the memory that it reads and writes. If two pieces touch
// the same bytes, one of them writes, and no dependency orders them, a race is reported, in whichever order they ran.
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

/// One kernel, copy or collective.
struct Work {
  /// Called repeatedly while the work lasts. Returns true when the work is over.
  using Poll = std::function<bool()>;

  std::string label;
  std::vector<Range> reads, writes;
  /// Runs when everything that the work waits for is over. Returns a Poll that tells when the work itself is over, or
  /// null if it is over at once. If it throws, the GPU is broken: every later query gets the text of the error.
  std::function<Poll()> start;
};

/// [line of work]: number of pieces that are over. `a` happened before `b` if no element of a's clock exceeds b's.
using VectorClock = std::vector<std::uint64_t>;

struct Op {
  std::shared_ptr<const Work> work;  // null: the op only orders other work
  std::size_t device = 0;
  std::size_t line = 0;  // line of its stream, or of a stream inside a graph
  VectorClock clock;     // clock at its end
  std::vector<std::shared_ptr<Op>> waits_for;
  Work::Poll poll;
  bool started = false;
  bool done = false;
  std::uint64_t done_at = 0;  // number of the world's turn in which the op ended
};
using OpRef = std::shared_ptr<Op>;

class FakeWorld {
 public:
  explicit FakeWorld(std::uint64_t seed) : state_(seed * 2 + 1) {}

  /// Faults that a real GPU might have let pass, such as races and memory freed in use. One line each.
  [[nodiscard]] std::vector<std::string> violations();
  void report(std::string violation);
  /// Lets up to `turns` pieces of work run, chosen by the seed. Returns true if any ran.
  bool advance(int turns = 1);

  // -- for FakeRuntime -----------------------------------------------------------------------------------
  std::size_t add_device();
  std::size_t add_line();
  /// The new work also waits for all work that the host of `device` has seen finish.
  OpRef enqueue(std::size_t device, std::size_t line, std::shared_ptr<const Work> work, std::vector<OpRef> waits_for);
  /// Takes a few turns, then returns whether `op` is over. Errors: backend if work of `device` failed.
  bool finished(std::size_t device, const OpRef& op);
  [[nodiscard]] std::uint64_t done_at(const OpRef& op);
  /// Returns the label of unfinished work that touches `memory`, or an empty text if there is none.
  [[nodiscard]] std::string user_of(Range memory);
  /// Call when the memory is freed.
  void forget(Range memory);
  void break_device(std::size_t device, std::string why);

 private:
  struct Access {
    Range range;
    bool write = false;
    std::size_t line = 0;     // line of the work that made the access
    std::uint64_t count = 0;  // number of that work on its line
    std::string label;
  };
  struct Device {
    VectorClock seen;  // work that its host has seen finish
    std::string broken;
  };

  std::uint64_t random() HVD_REQUIRES(mutex_);
  bool step() HVD_REQUIRES(mutex_);
  void run(const OpRef& op) HVD_REQUIRES(mutex_);
  void check_races(const OpRef& op) HVD_REQUIRES(mutex_);

  Mutex mutex_;
  std::uint64_t state_ HVD_GUARDED_BY(mutex_);
  std::uint64_t turn_ HVD_GUARDED_BY(mutex_) = 0;
  std::vector<Device> devices_ HVD_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> lines_ HVD_GUARDED_BY(mutex_);    // [line] pieces of work enqueued
  std::vector<std::uint64_t> weights_ HVD_GUARDED_BY(mutex_);  // [line] relative chance to be chosen
  std::vector<OpRef> pending_ HVD_GUARDED_BY(mutex_);
  std::vector<Access> accesses_ HVD_GUARDED_BY(mutex_);
  std::vector<std::string> violations_ HVD_GUARDED_BY(mutex_);
};

}  // namespace hvd::test
