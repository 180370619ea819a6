// The times of a training step that a run records, and the one table that names them. To add a series, add a member to
// StepTimes, a member to RankSamples and a line to kStepSeries. Messages between ranks, phases, RunRecord and the store
// then need no change. Plain data.
#pragma once

#include <array>
#include <string_view>
#include <vector>

namespace hvd::bench {

/// Times of one step of one rank in seconds.
struct StepTimes {
  double step = 0;                           ///< forward to update
  double compute = 0;                        ///< forward and backward, without waits
  double exposed = 0;                        ///< time of waiting for the engine
  double reduce = 0, control = 0, copy = 0;  ///< engine thread's time for each of these; overlaps with compute
  double update = 0;
  double input =
      0;  ///< part of `step` in which it waits for its batch; 0 in the program's own trainings, which never wait
  /// Time by the host's clock from the end of the previous step until the host noticed the end of this step. Includes
  /// loading the batch. If several steps are requested at once, the time of the first step begins with the request. On
  /// a CPU equal to `step`.
  double host = 0;
  double launch = 0;  ///< time by the host's clock until all work was launched or enqueued on the GPU; 0 on a CPU
  double loss = 0;
  bool ahead = false;  ///< the step was launched on the GPU while the previous one ran
};

/// Per-step samples of one rank in seconds (loss: dimensionless). All series have equal length.
struct RankSamples {
  std::vector<double> step, compute, exposed, reduce, control, copy, update, input, host, launch, loss;
};

/// Which runs store a series.
enum class Stored : unsigned char {
  kAlways,
  kOnGpus,       ///< on a CPU the series is 0 or equal to `step`
  kIfAboveZero,  ///< runs in which a value of some rank is above 0
};

struct StepSeries {
  std::string_view kind;  ///< name in the store's table `sample`; ends with the unit, except for the loss
  double StepTimes::*of_step;
  std::vector<double> RankSamples::*of_rank;
  Stored stored = Stored::kAlways;
};
inline constexpr std::array<StepSeries, 11> kStepSeries{{
    {"step_seconds", &StepTimes::step, &RankSamples::step},
    {"compute_seconds", &StepTimes::compute, &RankSamples::compute},
    {"exposed_seconds", &StepTimes::exposed, &RankSamples::exposed},
    {"reduce_seconds", &StepTimes::reduce, &RankSamples::reduce},
    {"control_seconds", &StepTimes::control, &RankSamples::control},
    {"copy_seconds", &StepTimes::copy, &RankSamples::copy},
    {"update_seconds", &StepTimes::update, &RankSamples::update},
    {"input_seconds", &StepTimes::input, &RankSamples::input, Stored::kIfAboveZero},
    {"host_seconds", &StepTimes::host, &RankSamples::host, Stored::kOnGpus},
    {"launch_seconds", &StepTimes::launch, &RankSamples::launch, Stored::kOnGpus},
    {"loss", &StepTimes::loss, &RankSamples::loss},
}};

}  // namespace hvd::bench
