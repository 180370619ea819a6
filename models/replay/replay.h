// Replay is a TrainStep that computes nothing and plays back the recorded times of a real run. Its gradient arena has
// the size of the real run's arena, so that communication is real. The recorded times are in a profile, a small text
// file.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/deadline.h"
#include "models/device_step.h"
#include "models/train_step.h"

namespace hvd::models {

constexpr std::string_view kImages = "images";  ///< the unit of work of the networks of this program
constexpr std::size_t kMaxFactors = 4096;       ///< factors that a profile may have
constexpr double kMinFactor = 1e-3, kMaxFactor = 1e3;

/// Times are medians over the recorded steps, in seconds. All times except update_seconds count from the start of the
/// step. `submit_seconds` is the time at which the host reported the gradient, `ready_seconds` the time at which the
/// device had finished the gradient. On a CPU both times are equal.
struct ReplayProfile {
  std::string model;
  std::string unit = std::string(kImages);  ///< what a step works on: "images", "sequences", "tokens", ...
  std::int64_t units_per_step = 0;          ///< of one rank; the batch size if the units are images
  std::int64_t image_size = 0;              ///< 0: the network takes no images, or their size is unknown
  std::string device;                       ///< processor or GPU on which the run was recorded
  std::string compute_type;                 ///< "fp32", ...
  std::string source_run;                   ///< uuid of the recorded run
  double forward_seconds = 0;               ///< 0: not measured
  double backward_end_seconds = 0;
  double update_seconds = 0;
  /// Time of the forward and backward pass in each of successive recorded steps, divided by the median. Empty: unknown.
  std::vector<double> factors;
  struct Gradient {
    std::string name;
    std::size_t count = 0;
    double submit_seconds = 0;
    double ready_seconds = 0;
  };
  std::vector<Gradient> gradients;
};

/// Returns the text form, with one record per line and a version line: "hvd-replay 2", or "hvd-replay 1" for images
/// without factors. parse_replay(to_text(p)) == p.
std::string to_text(const ReplayProfile& profile);
/// Reads both versions. Errors: invalid_argument for a malformed text, with `origin` (the file) and the line.
ReplayProfile parse_replay(const std::string& text, const std::string& origin);

/// Returns the profile with the same times and with every gradient cut to 1/`divisor` of its elements (rounded up), so
/// that hundreds of ranks fit into one machine. The model's name gets a suffix ("resnet101-div64"), so that nobody
/// mistakes the results for results of the whole network. A divisor of 1 changes nothing.
/// Errors: invalid_argument for a divisor below 1.
ReplayProfile shrink_gradients(ReplayProfile profile, std::int64_t divisor);

/// Builds a profile from per-step samples. The training loop calls, in this order, begin_step, end_forward (or never),
/// gradient_ready for every parameter, end_backward, begin_update and end_update. The loop calls begin_update when the
/// gradients are reduced, so that the profile does not contain the wait for the reductions. Used by one thread.
/// `header` gives the fields that the recorder does not measure: model, work, device, type and run.
class ReplayRecorder {
 public:
  ReplayRecorder(std::vector<ArenaSlot> slots, ReplayProfile header);
  void begin_step();
  /// The loss is computed. The last call of a step counts.
  void end_forward();
  void gradient_ready(std::size_t parameter);
  void end_backward();
  void begin_update();
  void end_update();

  /// A step whose times were measured elsewhere (by a GPU's events), in seconds from the step's start. At
  /// submit[parameter] the host reported the gradient; at ready[parameter] the gradient was final.
  struct Step {
    std::vector<double> submit, ready;
    double backward_end = 0, update = 0;
    double forward = 0;  ///< 0: not measured
  };
  /// Adds a step. Errors: invalid_argument if the number of times differs from the number of parameters.
  void add(const Step& step);
  /// Returns the medians over the recorded steps, and the factors of the first kMaxFactors of them. Errors:
  /// invalid_argument if no step was recorded.
  [[nodiscard]] ReplayProfile profile() const;

 private:
  [[nodiscard]] double since_step_start() const;

  std::vector<ArenaSlot> slots_;
  ReplayProfile header_;
  std::vector<std::vector<double>> submit_, ready_;      // [parameter][step]
  std::vector<double> forward_, backward_end_, update_;  // [step]; only complete steps have an element
  std::vector<double> current_ready_;                    // [parameter] for the step being recorded
  double current_forward_ = 0, current_backward_end_ = 0, update_start_ = 0;
  Clock::time_point step_start_;
};

/// Returns the value of element `element` of replayed gradient `parameter` before the reduction; equal on all ranks.
/// The values are multiples of 1/4 in [-3/4, 3/4], so that sums over hundreds of ranks are exact in 16-bit types.
double replay_gradient_value(std::size_t parameter, std::size_t element) noexcept;

/// Makes a step that sleeps (never spins) until each recorded ready time and then reports the gradient, which is filled
/// with replay_gradient_value() in each step. update() sleeps for update_seconds. The step has no weights:
/// state_to_broadcast() is empty, and access to a parameter throws unsupported. A step that is behind its recorded
/// times does not sleep. If the profile has factors, step k of rank `rank` takes factor (first(rank) + k) mod their
/// number times as long until the end of backward, so that replayed ranks are not equally fast in a step, as real ranks
/// are not. `gradient` is the arena's type. Errors: invalid_argument for a profile without gradients.
std::unique_ptr<TrainStep> make_replay_step(ReplayProfile profile, DataType gradient, const ArenaAllocator& allocate,
                                            int rank = 0);

/// Returns the factor with which a rank's step begins: ranks are spread over the factors by the golden ratio, so that
/// any number of ranks lie far apart. Returns 0 if there are no factors.
std::size_t first_factor(int rank, std::size_t factors) noexcept;

/// Replays on a GPU. The gradients lie in device memory, and a timer on the compute stream makes each gradient ready
/// when it was ready in the recorded run, so that reductions, streams and graphs are those of training. Replay needs no
/// cuDNN. It has never run on a GPU (docs/gpu.md).
///
/// Makes a step that does on `runtime`'s GPU what the step of make_replay_step() does on a CPU. The wait for each
/// gradient is a kernel of one block, and the gradient's values are a copy, so a step can be captured. load() gives
/// each step its factor. enqueue_forward_backward() calls `paced`, unless it is null. If `paced` returns true, the host
/// sleeps until each gradient's recorded submit time, where that differs from the ready time, before it enqueues the
/// gradient.
/// Errors: invalid_argument for a profile without gradients; unsupported if a wait is longer than gpu::kMaxTimerWait,
/// or if there are no kernels for this GPU (gpu::GpuRuntime::scale_refusal()); out_of_memory; backend.
std::unique_ptr<DeviceStep> make_device_replay_step(ReplayProfile profile, DataType gradient, gpu::GpuRuntime& runtime,
                                                    const ArenaAllocator& allocate, int rank = 0,
                                                    std::function<bool()> paced = {});

}  // namespace hvd::models
