// The scheduler under the fake GPUs: all work of all of them, run on the CPU in an order that respects nothing but what
// each piece of work waits for. Nothing runs before somebody asks whether something is over, then a seeded choice of
// what may run does. Work declares what memory it reads and writes, so that two pieces that touch the same bytes with
// nothing between them to order them are found (a race), whichever order they happened to run in.
//
// Threads: any; a FakeWorld is one lock.
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
  /// Asked again and again, whenever the work could go on, until it says that it is over.
  using Poll = std::function<bool()>;

  std::string label;
  std::vector<Range> reads, writes;
  /// Runs when everything that the work waits for is over. May return a question about when the work itself is; null:
  /// at once. What it throws breaks the GPU: everybody who asks from then on gets the text.
  std::function<Poll()> start;
};

/// When something happened: [line of work] how much of it. `a` happened before `b` if b has seen all of a.
using VectorClock = std::vector<std::uint64_t>;

struct Op {
  std::shared_ptr<const Work> work;  // null: only an order
  std::size_t device = 0;
  std::size_t line = 0;  // its stream, or a stream inside a graph
  VectorClock clock;     // at its end
  std::vector<std::shared_ptr<Op>> waits_for;
  Work::Poll poll;
  bool started = false;
  bool done = false;
  std::uint64_t done_at = 0;  // turn of the world
};
using OpRef = std::shared_ptr<Op>;

class FakeWorld {
 public:
  explicit FakeWorld(std::uint64_t seed) : state_(seed * 2 + 1) {}

  /// What went wrong that a real GPU might have let pass: races, memory freed in use. One line each.
  [[nodiscard]] std::vector<std::string> violations();
  void report(std::string violation);
  /// Lets some work run, chosen by the seed; returns whether there was any.
  bool advance(int turns = 1);

  // -- for FakeRuntime -----------------------------------------------------------------------------------
  std::size_t add_device();
  std::size_t add_line();
  /// `after`: what the host of `device` has seen happen is seen by its later work.
  OpRef enqueue(std::size_t device, std::size_t line, std::shared_ptr<const Work> work, std::vector<OpRef> waits_for);
  /// Whether it is over, after a few turns. Errors: backend if work of `device` failed.
  bool finished(std::size_t device, const OpRef& op);
  [[nodiscard]] std::uint64_t done_at(const OpRef& op);
  /// Work that is not over and touches `memory`; empty if there is none.
  [[nodiscard]] std::string user_of(Range memory);
  /// The memory belongs to nobody any more.
  void forget(Range memory);
  void break_device(std::size_t device, std::string why);

 private:
  struct Access {
    Range range;
    bool write = false;
    std::size_t line = 0;     // whose
    std::uint64_t count = 0;  // how much of the line
    std::string label;
  };
  struct Device {
    VectorClock seen;  // by its host
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
  std::vector<std::uint64_t> lines_ HVD_GUARDED_BY(mutex_);    // [line] work enqueued
  std::vector<std::uint64_t> weights_ HVD_GUARDED_BY(mutex_);  // [line] how readily it is chosen
  std::vector<OpRef> pending_ HVD_GUARDED_BY(mutex_);
  std::vector<Access> accesses_ HVD_GUARDED_BY(mutex_);
  std::vector<std::string> violations_ HVD_GUARDED_BY(mutex_);
};

}  // namespace hvd::test
