// A queue of the callers' work for the engine's thread: tensors, steps and commands, in the order of the calls.
// Commands and steps are collectives, so every rank must queue them in one order. The tensors between two of them may
// be in another order on each rank, because the ranks negotiate the order of tensors by name. A tensor that one rank
// queues before a command, or before a static or sharded step, must be before it on every rank; engine.h says this to
// callers. Not synchronised: the owner guards the queue.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <variant>
#include <vector>

#include "engine/core/request.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/negotiated_schedule.h"

namespace hvd {

class WorkQueue {
 public:
  /// One call of an *_async() function.
  struct Submission {
    core::Request request;
    PendingTensor tensor;
  };
  /// The caller owns the command and waits until it is finished.
  struct Command {
    const std::function<void()>& work;
    bool finished = false;
  };
  /// The entries that come before the first command of the queue.
  struct Taken {
    std::vector<Submission> submissions;
    Schedule step = Schedule::kNone;  ///< schedule of a step that has begun; kNone: no step has begun
  };

  void push(Submission submission) { entries_.emplace_back(std::move(submission)); }
  void push(Command& command) { entries_.emplace_back(&command); }
  /// Adds the beginning of a step with schedule `step`.
  void push(Schedule step) { entries_.emplace_back(step); }

  /// Adds everything before the first command to `taken`.
  void take_up_to_command(Taken& taken);
  /// If the first entry is a command, takes and returns it; else returns null. Call only after all entries that were
  /// taken before are completed.
  Command* take_command();
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  /// Returns true if the first entry is not a command.
  [[nodiscard]] bool ready() const noexcept { return !entries_.empty() && !command_first(); }

 private:
  [[nodiscard]] bool command_first() const noexcept { return std::holds_alternative<Command*>(entries_.front()); }

  std::deque<std::variant<Submission, Command*, Schedule>> entries_;
};

}  // namespace hvd
