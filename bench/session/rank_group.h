// Rank 0 sends a directive to all ranks, including itself, and collects all answers before it sends the next directive.
#pragma once

#include <functional>
#include <vector>

#include "bench/session/message.h"
#include "bench/session/worker.h"
#include "engine/base/error.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

class RankGroup {
 public:
  RankGroup(Engine& engine, Worker& own) : engine_(engine), own_(own) {}

  /// Every rank carries out `directive`. Returns the answers, [rank]. Errors: interrupted if a rank was asked to stop
  /// (every rank then waits for the next directive); errors of the engine and of rank 0's own work.
  std::vector<Answer> execute(const Directive& directive);
  /// Runs `work`, in which rank 0 sends directives, and then ends the session on every rank. After an error, calls
  /// `give_up` and ends the session. Errors: those of `work`, as AgreedError if every rank throws the same error.
  void run(const std::function<void()>& work, const std::function<void(const Error&)>& give_up);

 private:
  /// Makes every rank throw `error` (AgreedError). Returns false if ranks are still carrying out a directive. These
  /// ranks cannot receive another directive, so the caller must abort their waits.
  [[nodiscard]] bool end(const Error& error) noexcept;
  void tell(const Directive& directive);

  Engine& engine_;
  Worker& own_;
  bool in_lockstep_ = true;  // every rank waits for a directive
};

}  // namespace hvd::bench
