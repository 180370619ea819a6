// Rank 0's hand on all ranks, itself included: one directive to all, all answers back, nothing in between.
#pragma once

#include <functional>
#include <vector>

#include "bench/train/message.h"
#include "bench/train/worker.h"
#include "engine/base/error.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// An error that every rank has been told of and throws alike: nobody needs to be torn out of a wait.
class AgreedError : public Error {
 public:
  using Error::Error;
};

class Crew {
 public:
  Crew(Engine& engine, Worker& own) : engine_(engine), own_(own) {}

  /// Every rank carries out `directive`; [rank] answers. Errors: interrupted when a rank was asked to stop
  /// (every rank waits for the next directive then); those of the engine and of rank 0's own work.
  std::vector<Answer> perform(const Directive& directive);
  /// Runs `course`, what rank 0 does with all ranks, and ends the session on every rank. On an error `give_up` is
  /// called before the ranks are told. Errors: those of `course`, as AgreedError where every rank throws the same.
  void lead(const std::function<void()>& course, const std::function<void(const Error&)>& give_up);

 private:
  /// Tells every rank to throw `error` (AgreedError). Returns false when a directive was under way, so that the
  /// ranks cannot be told and must be torn out of their waits.
  [[nodiscard]] bool end(const Error& error) noexcept;
  void tell(const Directive& directive);

  Engine& engine_;
  Worker& own_;
  bool in_lockstep_ = true;  // every rank waits for a directive
};

}  // namespace hvd::bench
