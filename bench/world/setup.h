// Describes what a run trains, and at which learning rate. Before anything is built, settle() makes a Setup from the
// options, fills in defaults and refuses impossible options. A Setup is plain data and equal on all ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/store/run_record.h"
#include "bench/world/gpu_backend.h"
#include "bench/world/options.h"
#include "models/replay/replay.h"
#include "models/zoo/zoo.h"

namespace hvd::bench {

/// The learning rate grows with the number of ranks, as Horovod's guide says, but gradually and up to a bound, so that
/// the loss stays finite at 512 ranks. The update does the same work at any rate.
struct RateScaling {
  /// Steps in which the rate grows from one rank's rate to the scaled rate. Goyal et al., arXiv:1706.02677, section
  /// 2.2, use 5 epochs of ImageNet's 1.28 million images: 195 steps at 32,768 images per step (512 ranks of 64).
  std::uint64_t warm_up_steps = 200;
  /// Largest scaled rate, unless one rank's rate is already higher.
  double bound = 0.02;
};

/// Returns the rate after the warm-up: `one_rank` times the number of ranks, but at most `scaling.bound`.
double scaled_learning_rate(double one_rank, int ranks, const RateScaling& scaling);

/// Returns the rate of step `step` (from 0), which grows linearly from `one_rank` to the scaled rate.
/// Source: gradual warm-up, arXiv:1706.02677, section 2.2.
double learning_rate_of_step(double one_rank, int ranks, std::uint64_t step, const RateScaling& scaling);

struct Setup : TrainingChoices {
  models::ModelSpec model;  ///< with canonical name, batch size and image size filled in
  Device device = Device::kCpu;
  DataType allreduce = DataType::kF32;  ///< requested; on GPUs for the whole all-reduce, on CPUs only between nodes
  DataType gradient = DataType::kF32;   ///< type of the gradient arena
  RateScaling rate_scaling;
  int batches = 0;  ///< number of mini-batches to cycle through; 0: batches_to_cycle()
  /// Schedule of phase full; kNone: there is no phase full and nothing is reduced.
  Schedule schedule = Schedule::kStatic;
  std::size_t fusion_threshold_bytes = 0;
  Patience deadline = std::chrono::milliseconds(60000);          ///< limit of every wait after the first steps
  Patience startup_deadline = std::chrono::milliseconds(60000);  ///< limit of every wait until the first steps are done
  bool equal_batches = false;  ///< every rank trains on the batches that a world of one rank would have
  std::optional<models::ReplayProfile> replay;
  std::string replay_hash;         ///< RecordedStep::hash of --replay; empty without it
  std::vector<std::string> notes;  ///< describe choices made for the user

  /// Type in which gradients are sent between nodes if gradients lie in host memory.
  [[nodiscard]] DataType wire() const { return device == Device::kCuda ? DataType::kF32 : allreduce; }
  [[nodiscard]] bool reduces() const { return schedule != Schedule::kNone; }
  /// The phase in which the session warms up. A session with only one phase measures this phase.
  [[nodiscard]] Phase main_phase() const { return reduces() ? Phase::kFull : Phase::kNone; }
  [[nodiscard]] std::string_view device_name() const;  ///< "cpu", "cuda", "replay"
  [[nodiscard]] std::string compute_name() const;      ///< "fp32", "tf32", ...
  /// What a step works on, in the plural: "images", or the unit of the replayed profile.
  [[nodiscard]] std::string_view unit() const { return replay ? std::string_view(replay->unit) : models::kImages; }
};

/// A profile, and the hash of its file's bytes, 16 hexadecimal digits (scripts/hvdb/base/identity.py computes the
/// same). Two recordings may have one name; the hash tells them apart.
struct RecordedStep {
  models::ReplayProfile profile;
  std::string hash;
  std::string file;  ///< the path of the file that was read
};
/// Reads the profile that `named` means, a file or a step that ships (step_file()). Errors: io if the file cannot be
/// read; invalid_argument for a malformed text.
RecordedStep read_replay(const std::string& named);

/// Makes the setup of a run. If `gpus` is null, there are no GPUs. --device auto uses a GPU if possible; otherwise a
/// note says why not. Errors: unsupported for a device, communication or type that this build, machine or processor
/// does not have; invalid_argument for an unknown model, numbers out of range, or options that contradict the replay
/// file; io if the replay file cannot be read.
Setup settle(const Options& options, GpuBackend* gpus = nullptr);

}  // namespace hvd::bench
