// Replay: a TrainStep that computes nothing and plays back the recorded times of a real run, with real
// gradients arenas and so with real communication. The profile is a small text file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/deadline.h"
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

/// The same times with every gradient cut to 1/`divisor` of its elements (rounded up), so that worlds of hundreds of
/// ranks fit into one machine. The model's name tells ("resnet101-div64"): what is measured with it can never be
/// taken for a result of the whole network. A divisor of 1 changes nothing.
/// Errors: invalid_argument for a divisor below 1.
ReplayProfile shrink_gradients(ReplayProfile profile, std::int64_t divisor);

/// Builds a profile from per-step samples taken by the training loop, which calls, in this order, begin_step,
/// gradient_ready for every parameter, end_backward, begin_update (once the reduced gradients are there; the
/// wait for them is not part of the profile) and end_update. One thread. `header` supplies what times do not:
/// model, sizes, device, type, run, and forward_seconds, which a loop around forward_backward() cannot see.
class ReplayRecorder {
 public:
  ReplayRecorder(std::vector<ArenaSlot> slots, ReplayProfile header);
  void begin_step();
  void gradient_ready(std::size_t parameter);
  void end_backward();
  void begin_update();
  void end_update();

  /// A step whose times were taken elsewhere (a GPU's events), seconds from its start. Per parameter: when the host
  /// handed the gradient over, and when it was final.
  struct Step {
    std::vector<double> submit, ready;
    double backward_end = 0, update = 0;
  };
  /// Errors: invalid_argument unless there is a time for every parameter.
  void add(const Step& step);
  /// Median over the recorded steps. Errors: invalid_argument if no step was recorded.
  [[nodiscard]] ReplayProfile profile() const;

 private:
  [[nodiscard]] double since_step_start() const;

  std::vector<ArenaSlot> slots_;
  ReplayProfile header_;
  std::vector<std::vector<double>> submit_, ready_;  // [parameter][step]
  std::vector<double> backward_end_, update_;        // [step], complete steps only
  std::vector<double> current_ready_;                // [parameter], of the step being recorded
  double current_backward_end_ = 0, update_start_ = 0;
  Clock::time_point step_start_;
};

/// What a replayed gradient holds before reduction, equal on all ranks: element `element` of gradient
/// `parameter`. Multiples of 1/4 in [-3/4, 3/4], so that sums over hundreds of ranks are exact in 16-bit types.
double replay_gradient_value(std::size_t parameter, std::size_t element) noexcept;

/// Sleeps (never spins) until each recorded ready time, then reports the gradient, filled anew each step with
/// replay_gradient_value(). update() sleeps for update_seconds. There are no weights: state_to_broadcast() is
/// empty, reading or writing a parameter is an error (unsupported). A step that falls behind its recorded times
/// does not wait. `gradient` is the arena's type. Errors: invalid_argument for a profile without gradients.
std::unique_ptr<TrainStep> make_replay_step(ReplayProfile profile, DataType gradient, const ArenaAllocator& allocate);

}  // namespace hvd::models
