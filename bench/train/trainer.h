// One rank's training: network, data, weights, and the engine that averages its gradients. Runs and times one step at a
// time. Derived classes implement a step on the CPU (host_trainer.h) or on a GPU (device_trainer.h), with the same
// phases and probes.
//
// One thread owns a Trainer and makes all calls. Construction, start(), reduce_bucket(), step() and steps() are
// collective: every rank calls them in the same order. In phase solo, step() and steps() are not collective.
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

#include "bench/hardware/roofline.h"
#include "bench/measure/step_series.h"
#include "bench/store/run_record.h"
#include "bench/world/setup.h"
#include "engine/gpu/runtime.h"
#include "engine/runtime/engine.h"
#include "models/random.h"
#include "models/replay/replay.h"
#include "models/train_step.h"

namespace hvd::bench {

/// Bytes of a GPU's memory in use by all processes.
struct MemoryUse {
  std::int64_t before = 0;  ///< before the network was built
  std::int64_t now = 0;
};

/// The GPU on which a rank trains, as a session sees it: what a session asks, and what no Trainer on a CPU could
/// answer. DeviceTrainer implements this interface. The thread that owns the trainer makes all calls.
class TrainingGpu {
 public:
  virtual ~TrainingGpu() = default;

  /// Returns the bound of a step; nothing if the GPU's data sheet is not known.
  [[nodiscard]] virtual const std::optional<StepBound>& bound() const = 0;
  /// Returns models::DeviceStep::engines().
  [[nodiscard]] virtual const std::string& engines() const = 0;
  /// Destroys the captured graphs, so that the following steps are captured anew. Call it on every rank before the same
  /// step, because a graph that reduces must be captured on all ranks at once. Does nothing if there are no graphs.
  virtual void drop_graphs() = 0;
  /// Shape of the graph of the last phase's steps, if they are launched as a graph.
  [[nodiscard]] virtual std::optional<gpu::GraphShape> graph_shape() const = 0;
  /// Number of this rank's steps that were launched while the previous step ran.
  [[nodiscard]] virtual std::uint64_t steps_ahead() const = 0;
  [[nodiscard]] virtual MemoryUse memory_use() = 0;
};

struct BatchPlace {  ///< the rank that the batches belong to
  int rank = 0, world_size = 1;
};

/// The mini-batches of one rank. Images are generated before the timed region and reused in a cycle, as
/// tf_cnn_benchmarks does, because input pipelines are not measured. Labels are new in every step, because a network
/// that has memorised its batches computes with vanishing gradients, which would change the measurement.
class SyntheticBatches {
 public:
  /// Makes `count` batches of `batch_size` images. Batch k holds the images of the global samples from (k * world_size
  /// + rank) * batch_size on, so that all ranks together see the same samples, however many ranks there are.
  SyntheticBatches(const models::SyntheticSpec& spec, std::int64_t batch_size, int count, BatchPlace place,
                   models::LabelRule rule = models::LabelRule::kFresh);

  /// Returns the batch of training step `step`. Images repeat in a cycle, but first_sample, which seeds labels and
  /// dropout, does not. Labels are valid until the next call. Call at() outside the timed region: it makes labels.
  [[nodiscard]] models::Batch at(std::uint64_t step);
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] int count() const { return static_cast<int>(images_.size()); }

 private:
  models::SyntheticSpec spec_;
  BatchPlace place_;
  models::LabelRule rule_;
  std::vector<std::vector<float>> images_;  // [batch], each {n, h, w, c}
  std::vector<std::int32_t> labels_;        // {n}, labels of the step that was requested last
};

/// Returns the number of batches to cycle through: 4, or fewer (at least 1) if 4 would take more than 128 MiB.
int batches_to_cycle(std::int64_t batch_size, std::int64_t image_elements);

/// Facts about the network for the run record, the same in every step.
struct NetworkFacts {
  std::int64_t parameters = 0;
  double flops_per_image = 0;
  std::vector<std::string> notes = {};  ///< lines for the user about how this trainer computes
};

/// A part of the gradient arena within one parameter's slot.
struct GradientPiece {
  std::size_t parameter = 0;
  std::size_t offset = 0;  ///< elements from the start of the arena
  std::size_t count = 0;   ///< elements
};

/// Inspects an untimed step, to check the reduction.
struct StepProbe {
  std::span<const GradientPiece> pieces;  ///< ascending; each piece is copied when it is final, before its reduction
  std::span<std::byte> local;             ///< gets copies of the pieces, back to back
  std::function<void()> reduced;          ///< called while the arena holds all reduced gradients; may use the engine
};

class Trainer {
 public:
  virtual ~Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Copies rank 0's weights to every rank.
  void start();

  /// Runs one training step in `phase`. `probe` (may be null) inspects the step.
  ///
  /// Phase full trains: the learning rate is scaled by the world size (setup.h), and gradients are averaged. In
  /// a session with phase full, phases none and solo run at learning rate 0: the work is the same as at any other rate,
  /// but the ranks' weights stay equal. Phases none and solo make the ranks' momentum differ, so the next step of phase
  /// full uses momentum 0.
  StepTimes step(Phase phase, const StepProbe* probe = nullptr);
  /// Runs `count` steps in `phase` and returns their times in order. A GPU may get a step while the previous step runs.
  virtual std::vector<StepTimes> steps(Phase phase, std::int64_t count);

  /// For a rank that sleeps while other ranks take `steps` steps in `phase`: counts these steps and remembers the
  /// phase.
  virtual void skip_steps(Phase phase, std::uint64_t steps);

  /// If not null, `recorder` takes the times of the following steps; the caller keeps `recorder` alive. If
  /// recording_disturbs(), every rank captures its steps anew before the next step (TrainingGpu::drop_graphs()).
  void record_into(models::ReplayRecorder* recorder) { recorder_ = recorder; }
  /// Returns true if recorded steps take longer than other steps. Recorded steps must not be measured then.
  [[nodiscard]] virtual bool recording_disturbs() const = 0;
  [[nodiscard]] std::unique_ptr<models::ReplayRecorder> make_recorder(const std::string& source_run) const;

  /// Sets all gradients to zero.
  virtual void clear_gradients() = 0;
  /// Reduces `bucket` while nothing else runs. Returns the seconds that the reduction takes.
  virtual double reduce_bucket(const core::Bucket& bucket) = 0;

  /// Returns a part of the gradient arena, in memory that the host can read. The memory is valid until the next call.
  virtual std::span<const std::byte> gradients(std::size_t first_byte, std::size_t bytes) = 0;
  /// Returns a checksum of each reduced gradient in the arena. For use in StepProbe::reduced.
  [[nodiscard]] std::vector<std::uint64_t> gradient_checksums();
  /// Returns a checksum of each parameter as fp32; empty for a replay, which has no parameters.
  [[nodiscard]] std::vector<std::uint64_t> parameter_checksums();

  /// Type to which partial sums of gradients are rounded while they travel through the ranks.
  [[nodiscard]] DataType sum_type() const {
    return engine_.topology().nodes > 1 && setup_.wire() != DataType::kF32 ? setup_.wire() : setup_.gradient;
  }
  [[nodiscard]] models::TrainStep& train_step() { return *step_; }
  [[nodiscard]] const models::TrainStep& train_step() const { return *step_; }
  [[nodiscard]] Engine& engine() { return engine_; }
  [[nodiscard]] const NetworkFacts& facts() const { return facts_; }
  [[nodiscard]] std::uint64_t steps_done() const { return steps_; }
  /// Number of steps that this rank itself has begun in the session's main phase.
  [[nodiscard]] std::uint64_t main_steps() const { return main_steps_; }
  /// Number of first steps that may take far longer than later steps, because something happens for the first time.
  [[nodiscard]] virtual std::uint64_t settling_steps() const = 0;
  /// From now on, waits for other ranks have the deadline of steps and no longer the deadline of start-up.
  void end_startup();
  /// Returns the bytes that this rank plans to use in host or GPU memory: the step's arenas and workspaces, the
  /// batches, and the engine's fusion buffer. If the ranks are processes (`processes`), the sum includes the arenas
  /// of the other ranks of the host. This rank reduces parts of those arenas in shared memory. The arenas therefore
  /// count in every rank's resident set, although the host has them only once.
  [[nodiscard]] virtual std::int64_t planned_bytes(bool processes) const = 0;
  /// Gradients are summed. The update divides the sums by the number of ranks. In fp16, where a sum could overflow, the
  /// gradient of the loss is divided instead (prescale()).
  static constexpr ReduceOp kReduction = ReduceOp::kSum;

 protected:
  Trainer(const Setup& setup, Engine& engine) : setup_(setup), engine_(engine), deadline_(setup.startup_deadline) {}

  /// Call before a step in `phase`: sets the schedule, and returns learning rate and momentum for the update.
  models::SgdOptions begin_step_in(Phase phase);
  /// Runs one step. begin_step_in() has set the schedule.
  virtual StepTimes run(const models::SgdOptions& sgd, const StepProbe* probe) = 0;
  /// Sets the schedule of the following steps.
  virtual void set_schedule(Schedule schedule) = 0;
  /// Passes `deadline_` to the objects that wait for other ranks.
  virtual void apply_deadline();

  static double seconds(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }
  /// Returns the StepOptions of the setup. The caller sets the number of threads.
  [[nodiscard]] models::StepOptions step_options() const;
  [[nodiscard]] SyntheticBatches make_batches() const;
  /// Returns the gradients of step_ in the form that the engine needs.
  [[nodiscard]] std::vector<core::GradientInfo> gradient_infos() const;

  const Setup& setup_;
  Engine& engine_;
  Patience deadline_;
  std::unique_ptr<models::TrainStep> step_;  // made by the derived class's constructor
  NetworkFacts facts_;
  models::ReplayRecorder* recorder_ = nullptr;
  std::uint64_t steps_ = 0, main_steps_ = 0;

 private:
  [[nodiscard]] models::SgdOptions sgd(Phase phase) const;
  /// Returns StepOptions::gradient_prescale. The value is 1 unless gradients are fp16, which only GPUs reduce.
  [[nodiscard]] double prescale() const;

  std::optional<Phase> last_phase_;
};

}  // namespace hvd::bench
