// One rank's training: network, data, weights, and the engine that averages its gradients; one step at a
// time, timed. This is the place where a TrainStep and an Engine meet.
//
// One thread owns a Trainer and makes all calls. Construction, start() and, but for phase solo, step() are
// collective: every rank calls them in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/run_record.h"
#include "bench/train/batches.h"
#include "bench/train/setup.h"
#include "engine/runtime/engine.h"
#include "models/replay/replay.h"
#include "models/train_step.h"

namespace hvd::bench {

/// One step of one rank, seconds.
struct StepTimes {
  double step = 0;                           ///< forward to update
  double compute = 0;                        ///< forward and backward, without waits
  double exposed = 0;                        ///< waited for the engine
  double reduce = 0, control = 0, copy = 0;  ///< the engine's thread, overlapping with compute
  double update = 0;
  double loss = 0;
};

/// What does not depend on the step, for the run record.
struct NetworkFacts {
  std::int64_t parameters = 0;
  double flops_per_image = 0;
};

/// Looks into an untimed step; for the check of the reduction.
struct StepProbe {
  std::function<void(std::size_t parameter)> gradient;  ///< before it is handed to the engine, inside backward
  std::function<void()> reduced;                        ///< all are reduced, none is used yet; may use the engine
};

class Trainer {
 public:
  /// Builds the network and plans the reduction. `threads`: for the compute.
  /// Errors: those of the model, the backend and the engine; out_of_memory with the batch that would fit.
  Trainer(const Setup& setup, Engine& engine, int threads);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Every rank takes rank 0's weights.
  void start();

  /// One training step in `phase`; `probe` (may be null) looks into it.
  ///
  /// Phase full trains: learning rate times world size (Horovod's guide), gradients averaged. A session with
  /// phase full runs none and solo at learning rate 0: the same work, but the ranks' weights stay equal.
  /// Their momentum does not, so the first step in full after another phase runs with momentum 0.
  StepTimes step(Phase phase, const StepProbe* probe = nullptr);

  /// This rank sleeps while others take `steps` steps in `phase`: its data and its momentum's history go on with
  /// theirs.
  void sit_out(Phase phase, std::uint64_t steps);

  /// Takes the times of the steps that follow, when not null; the caller keeps it alive.
  void record_into(models::ReplayRecorder* recorder) { recorder_ = recorder; }
  [[nodiscard]] std::unique_ptr<models::ReplayRecorder> make_recorder(const std::string& source_run) const;

  /// Of each gradient's part of the arena, as reduced; for StepProbe::reduced.
  [[nodiscard]] std::vector<std::uint64_t> gradient_checksums();
  /// Of each parameter as fp32; empty for replay, which has none.
  [[nodiscard]] std::vector<std::uint64_t> parameter_checksums();

  [[nodiscard]] models::TrainStep& train_step() { return *step_; }
  [[nodiscard]] const models::TrainStep& train_step() const { return *step_; }
  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] const NetworkFacts& facts() const { return facts_; }
  [[nodiscard]] std::uint64_t steps_done() const { return steps_; }
  /// Memory plan of this rank: the step's arenas and workspaces, the batches, and the engine's buffers: the
  /// fusion buffer, and, between processes of one host (`processes`), its peers' arenas: shared memory that this
  /// rank reduces parts of, no more of the host's memory, but counted in the resident set of every rank.
  [[nodiscard]] std::int64_t planned_bytes(bool processes) const;
  /// Sum, and then divided in the update, which scales anyhow; average where a sum could overflow (fp16).
  [[nodiscard]] ReduceOp reduction() const;

 private:
  class Sink;

  void build(const models::StepOptions& options, const models::ArenaAllocator& allocate);
  [[nodiscard]] models::SgdOptions sgd(Phase phase) const;

  const Setup& setup_;
  Engine& engine_;
  std::unique_ptr<models::TrainStep> step_;
  std::optional<SyntheticBatches> batches_;  // none for replay
  NetworkFacts facts_;
  models::ReplayRecorder* recorder_ = nullptr;
  std::uint64_t steps_ = 0;
  std::optional<Phase> last_phase_;
};

}  // namespace hvd::bench
