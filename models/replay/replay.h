// Replay: a TrainStep that computes nothing and plays back the recorded times of a real run, with real
// gradients arenas and so with real communication. The profile is a small text file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/train_step.h"

namespace hvd::models {

/// Times in seconds from the start of the step, the median over the recorded steps. `submit` is when the
/// host handed the gradient over, `ready` when the device had finished it; equal on a CPU.
struct ReplayProfile {
  std::string model;
  std::int64_t batch_size = 0;
  std::int64_t image_size = 0;
  std::string device;        ///< processor or GPU it was recorded on
  std::string compute_type;  ///< "fp32", ...
  std::string source_run;    ///< uuid of the recorded run
  double forward_seconds = 0;
  double backward_end_seconds = 0;
  double update_seconds = 0;
  struct Gradient {
    std::string name;
    std::size_t count = 0;
    double submit_seconds = 0;
    double ready_seconds = 0;
  };
  std::vector<Gradient> gradients;
};

/// Text form, one record a line, versioned ("hvd-replay 1"); write(read(x)) == x.
std::string to_text(const ReplayProfile& profile);
/// Errors: invalid_argument naming `origin` (the file) and the line.
ReplayProfile parse_replay(const std::string& text, const std::string& origin);

/// Builds a profile from per-step samples taken by the training loop.
class ReplayRecorder {
 public:
  ReplayRecorder(std::vector<ArenaSlot> slots, ReplayProfile header);
  void begin_step();
  void gradient_ready(std::size_t parameter);
  void end_backward();
  void end_update();
  /// Median over the recorded steps. Errors: invalid_argument if no step was recorded.
  [[nodiscard]] ReplayProfile profile() const;

 private:
  struct Step;
  std::vector<ArenaSlot> slots_;
  ReplayProfile header_;
  std::vector<std::vector<double>> ready_;  // [step][parameter]
  std::vector<double> backward_end_, update_;
  double step_start_ = 0, update_start_ = 0;
};

/// Sleeps (never spins) until each recorded time, then reports the gradient. Gradients hold a value that
/// depends on rank-independent data so that reductions can be checked. `gradient` is the arena's type.
std::unique_ptr<TrainStep> make_replay_step(ReplayProfile profile, DataType gradient, const ArenaAllocator& allocate);

}  // namespace hvd::models
