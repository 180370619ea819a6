// What a run trains, settled once before anything is built: defaults filled in, impossible wishes refused.
// Plain data, equal on all ranks; read by every rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/options.h"
#include "bench/run_record.h"
#include "bench/train/gpu_backend.h"
#include "bench/train/learning_rate.h"
#include "models/replay/replay.h"
#include "models/synthetic.h"
#include "models/train_step.h"
#include "models/zoo/zoo.h"

namespace hvd::bench {

struct Setup {
  models::ModelSpec model;  ///< canonical name, batch and image size filled in
  Device device = Device::kCpu;
  DataType compute = DataType::kF32;
  DataType allreduce = DataType::kF32;  ///< As requested. GPU: type of the whole all-reduce. CPU: type between nodes.
  DataType gradient = DataType::kF32;   ///< of the gradient arena
  std::uint64_t seed = 1;
  models::SgdOptions sgd;  ///< for one rank, as given
  RateScaling rate_scaling;
  bool winograd = true;  ///< device kCpu
  bool profile = false;
  models::LabelRule labels = models::LabelRule::kFresh;
  int batches = 0;  ///< different mini-batches to cycle; 0: batches_to_cycle()
  /// Schedule of phase full; kNone: there is no phase full, nothing is ever reduced.
  Schedule schedule = Schedule::kStatic;
  std::size_t fusion_threshold_bytes = 0;
  Patience deadline = std::chrono::milliseconds(60000);          ///< of every wait once the first steps are over
  Patience startup_deadline = std::chrono::milliseconds(60000);  ///< of every wait before
  GpuOptions gpu;                                                ///< device kCuda
  ScheduleTuning tuning;
  bool interleaved = false;    ///< phases solo, none and full in rounds
  bool equal_batches = false;  ///< every rank trains on those of a world of one rank
  std::optional<models::ReplayProfile> replay;
  std::vector<std::string> notes;  ///< choices made for the user

  /// What travels between nodes where gradients lie in host memory.
  [[nodiscard]] DataType wire() const { return device == Device::kCuda ? DataType::kF32 : allreduce; }
  [[nodiscard]] bool reduces() const { return schedule != Schedule::kNone; }
  /// The phase of a session of one phase, and of the warm-up.
  [[nodiscard]] Phase main_phase() const { return reduces() ? Phase::kFull : Phase::kNone; }
  [[nodiscard]] std::string_view device_name() const;  ///< "cpu", "cuda", "reference", "replay"
  [[nodiscard]] std::string compute_name() const;      ///< "fp32", "tf32", ...
};

/// `gpus` may be null: there are none. --device auto takes a GPU where one can be used, and a note says why not.
/// Errors: unsupported for a device, communication or type that this build, machine or processor lacks;
/// invalid_argument for an unknown model, numbers out of range, or options that contradict the replay file;
/// io when that file cannot be read.
Setup settle(const Options& options, GpuBackend* gpus = nullptr);

}  // namespace hvd::bench
