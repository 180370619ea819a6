// Rank 0's hand on all ranks, itself included: one directive to all, all answers back, nothing in between.
#pragma once

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
  /// The session is over on every rank.
  void end();
  /// Tells every rank to throw `error` (AgreedError). Returns false when a directive was under way, so that the
  /// ranks cannot be told and must be torn out of their waits.
  [[nodiscard]] bool end(const Error& error) noexcept;

 private:
  void tell(const Directive& directive);

  Engine& engine_;
  Worker& own_;
  bool in_lockstep_ = true;  // every rank waits for a directive
};

}  // namespace hvd::bench
