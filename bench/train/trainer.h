// One rank's training: network, data, weights, and the engine that averages its gradients; one step at a time, timed.
// This is the place where models and the engine meet. What a step is depends on where the network runs
// (host_trainer.h, device_trainer.h); what trains in which phase, and how it is looked into, does not.
//
// One thread owns a Trainer and makes all calls. Construction, start(), reduce_bucket() and, but for phase solo, step()
// and steps() are collective: every rank calls them in the same order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/measure/step_bound.h"
#include "bench/run_record.h"
#include "bench/train/batches.h"
#include "bench/train/setup.h"
#include "engine/gpu/runtime.h"
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
  /// By the host's clock, from the end of the step before, or from when it was asked for if it is the first of several
  /// or alone, to its end as the host noticed it. Loading its batch is part of it. On a CPU the same as `step`.
  double host = 0;
  double launch = 0;  ///< by the host's clock: until all was launched or enqueued on the GPU; 0 on a CPU
  double loss = 0;
  bool ahead = false;  ///< launched on the GPU while the step before it ran
};

/// What does not depend on the step, for the run record.
struct NetworkFacts {
  std::int64_t parameters = 0;
  double flops_per_image = 0;
  std::optional<StepBound> bound = {};  ///< of a GPU that we have the data sheet of
  std::string engines = {};             ///< of a GPU: models::DeviceStep::engines()
  std::vector<std::string> notes = {};  ///< of a GPU: models::DeviceStep::notes(), and why there is no bound
};

/// Of a GPU's memory, bytes, whoever uses it.
struct MemoryUse {
  std::int64_t before = 0;  ///< the network was built
  std::int64_t now = 0;
};

/// A part of the gradient arena within one parameter's slot.
struct GradientPiece {
  std::size_t parameter = 0;
  std::size_t offset = 0;  ///< elements from the start of the arena
  std::size_t count = 0;   ///< elements
};

/// Looks into an untimed step; for the check of the reduction.
struct StepProbe {
  std::span<const GradientPiece> pieces;  ///< ascending; copied when they are final and before they are reduced,
  std::span<std::byte> local;             ///< one behind the other, to here
  std::function<void()> reduced;          ///< all are reduced and still in the arena; may use the engine
};

class Trainer {
 public:
  virtual ~Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Every rank takes rank 0's weights.
  void start();

  /// One training step in `phase`; `probe` (may be null) looks into it.
  ///
  /// Phase full trains: learning rate scaled by the world size (learning_rate.h), gradients averaged. A session with
  /// phase full runs none and solo at learning rate 0: the same work, but the ranks' weights stay equal.
  /// Their momentum does not, so the first step in full after another phase runs with momentum 0.
  StepTimes step(Phase phase, const StepProbe* probe = nullptr);
  /// `count` steps in `phase`, one after the other; a GPU may be given the next before one is over. Their times, in
  /// order.
  virtual std::vector<StepTimes> steps(Phase phase, std::int64_t count);

  /// This rank sleeps while others take `steps` steps in `phase`: its data and its momentum's history go on with
  /// theirs.
  virtual void sit_out(Phase phase, std::uint64_t steps);

  /// Takes the times of the steps that follow, when not null; the caller keeps it alive. Where recording disturbs,
  /// every rank calls drop_graphs() before the next step: a graph that reduces is of one capture on all of them.
  virtual void record_into(models::ReplayRecorder* recorder) { recorder_ = recorder; }
  /// Whether steps that are recorded take longer, so that they are not to be measured.
  [[nodiscard]] virtual bool recording_disturbs() const { return false; }
  /// Captured steps are captured anew. Nothing where there are none.
  virtual void drop_graphs() {}
  /// Of the graph that steps of the last phase are launched as, if they are.
  [[nodiscard]] virtual std::optional<gpu::GraphShape> graph_shape() const { return std::nullopt; }
  [[nodiscard]] std::unique_ptr<models::ReplayRecorder> make_recorder(const std::string& source_run) const;

  /// All gradients become zero.
  virtual void clear_gradients() = 0;
  /// Seconds that the reduction of `bucket` takes when nothing else goes on.
  virtual double reduce_bucket(const core::Bucket& bucket) = 0;

  /// Bytes of the gradient arena as the host can read them; good until the next call.
  virtual std::span<const std::byte> gradients(std::size_t first_byte, std::size_t bytes) = 0;
  /// Of each gradient's part of the arena, as reduced; for StepProbe::reduced.
  [[nodiscard]] std::vector<std::uint64_t> gradient_checksums();
  /// Of each parameter as fp32; empty for replay, which has none.
  [[nodiscard]] std::vector<std::uint64_t> parameter_checksums();

  /// The type that partial sums of gradients are rounded to on their way through the ranks.
  [[nodiscard]] DataType sum_type() const {
    return engine_.topology().nodes > 1 && setup_.wire() != DataType::kF32 ? setup_.wire() : setup_.gradient;
  }
  [[nodiscard]] models::TrainStep& train_step() { return *step_; }
  [[nodiscard]] const models::TrainStep& train_step() const { return *step_; }
  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] const NetworkFacts& facts() const { return facts_; }
  [[nodiscard]] std::uint64_t steps_done() const { return steps_; }
  /// Steps that this rank itself has begun in the session's main phase.
  [[nodiscard]] std::uint64_t main_steps() const { return main_steps_; }
  /// Steps that may take far longer than those behind them, because something is done for the first time.
  [[nodiscard]] virtual std::uint64_t settling_steps() const { return 1; }
  /// From now on, waits for other ranks have the deadline of a step.
  void end_startup();
  /// Steps of this rank that were launched on a GPU while the step before ran.
  [[nodiscard]] std::uint64_t steps_ahead() const { return steps_ahead_; }
  /// Memory plan of this rank where it trains: the step's arenas and workspaces, the batches, and the engine's
  /// buffers: the fusion buffer, and, between processes of one host (`processes`), its peers' arenas: shared memory
  /// that this rank reduces parts of, no more of the host's memory, but counted in the resident set of every rank.
  [[nodiscard]] virtual std::int64_t planned_bytes(bool processes) const = 0;
  /// Of the GPU that it trains on, if it does.
  [[nodiscard]] virtual std::optional<MemoryUse> device_memory() { return std::nullopt; }
  /// Gradients are summed. The update divides them by the number of ranks; in fp16, where a sum could overflow, the
  /// gradient of the loss is divided instead (prescale()).
  static constexpr ReduceOp kReduction = ReduceOp::kSum;

 protected:
  Trainer(const Setup& setup, Engine& engine) : setup_(setup), engine_(engine), deadline_(setup.startup_deadline) {}

  /// What must be done before a step in `phase` is begun: sets the schedule, and says with what numbers it updates.
  models::SgdOptions enter(Phase phase);
  /// One step of what `phase` asks for; the schedule is set.
  virtual StepTimes run(const models::SgdOptions& sgd, const StepProbe* probe) = 0;
  /// Of the steps that follow.
  virtual void set_schedule(Schedule schedule) = 0;
  /// Hands `deadline_` to whoever waits for other ranks.
  virtual void apply_deadline();

  static double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }
  /// StepOptions of the setup; threads are left to the caller.
  [[nodiscard]] models::StepOptions step_options() const;
  [[nodiscard]] SyntheticBatches make_batches() const;
  /// The slots of step_ as the engine wants them.
  [[nodiscard]] std::vector<core::GradientInfo> gradient_infos() const;

  const Setup& setup_;
  Engine& engine_;
  Patience deadline_;
  std::unique_ptr<models::TrainStep> step_;  // by the constructor of who derives
  NetworkFacts facts_;
  models::ReplayRecorder* recorder_ = nullptr;
  std::uint64_t steps_ = 0, main_steps_ = 0, steps_ahead_ = 0;

 private:
  [[nodiscard]] models::SgdOptions sgd(Phase phase) const;
  /// StepOptions::gradient_prescale. Only GPUs reduce in fp16.
  [[nodiscard]] double prescale() const;

  std::optional<Phase> last_phase_;
};

}  // namespace hvd::bench
