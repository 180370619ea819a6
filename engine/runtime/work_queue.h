// Keeps what callers ask of the engine's thread in the order in which they ask: tensors, steps and commands. The order
// must be the same on every rank, because each of the three is a collective of its own. Not synchronised: the owner
// guards it.
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
  /// One *_async().
  struct Submission {
    core::Request request;
    PendingTensor tensor;
  };
  /// Its caller waits for it and owns it.
  struct Command {
    const std::function<void()>& work;
    bool finished = false;
  };
  /// Entries that come before the first command.
  struct Taken {
    std::vector<Submission> submissions;
    Schedule step = Schedule::kNone;  ///< schedule of a step that has begun; kNone: none has
  };

  void push(Submission submission) { entries_.emplace_back(std::move(submission)); }
  void push(Command& command) { entries_.emplace_back(&command); }
  /// A step of this schedule begins.
  void push(Schedule step) { entries_.emplace_back(step); }

  /// Adds everything before the first command to `taken`.
  void take_up_to_command(Taken& taken);
  /// Null unless a command comes first: whatever was asked for before it has to be taken, and done, first.
  Command* take_command();
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  /// Returns true if the first entry is not a command.
  [[nodiscard]] bool ready() const noexcept { return !entries_.empty() && !command_first(); }

 private:
  [[nodiscard]] bool command_first() const noexcept { return std::holds_alternative<Command*>(entries_.front()); }

  std::deque<std::variant<Submission, Command*, Schedule>> entries_;
};

}  // namespace hvd
