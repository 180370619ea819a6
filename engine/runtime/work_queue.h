// Queue of the callers' work for the engine's thread, in the order of their calls: tensors, steps and commands. The
// order must be the same on every rank, because each entry is a collective. Not synchronised: the owner guards it.
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
  /// Owned by the caller, which waits until the command is finished.
  struct Command {
    const std::function<void()>& work;
    bool finished = false;
  };
  /// Entries that come before the first command.
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
  /// Returns null unless a command comes first. Entries before a command must be taken, and completed, first.
  Command* take_command();
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  /// Returns true if the first entry is not a command.
  [[nodiscard]] bool ready() const noexcept { return !entries_.empty() && !command_first(); }

 private:
  [[nodiscard]] bool command_first() const noexcept { return std::holds_alternative<Command*>(entries_.front()); }

  std::deque<std::variant<Submission, Command*, Schedule>> entries_;
};

}  // namespace hvd
