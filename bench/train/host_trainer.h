// A trainer for steps on the CPU. The TrainStep (oneDNN, replay) reports gradients from inside backward, and
// the Engine's thread reduces them while backward goes on. Times are measured by the host's clock. Checks that all
// ranks store their parameters in the same memory layouts, which depend on the processor.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/train/step_watch.h"
#include "bench/train/trainer.h"
#include "bench/world/settings.h"
#include "engine/base/error.h"
#include "engine/runtime/engine.h"
#include "models/train_step.h"

namespace hvd::bench {

/// The memory layouts in which a rank stores its parameters.
struct StoredLayouts {
  std::string maker;    ///< processor and library, such as "Intel Xeon Platinum 8481C, onednn 2.6.0 avx512_core_bf16"
  RunSettings layouts;  ///< parameter and layout; empty if the backend stores plain rows
  [[nodiscard]] std::uint64_t hash() const;
};
StoredLayouts stored_layouts(const models::TrainStep& step);

/// Collective, on the engine. Ranks exchange gradients and weights as bytes, so the layouts of all ranks must be equal.
/// Errors: mismatch on all ranks; the text names the parameter, both layouts, the ranks, hosts and processors.
void require_equal_layouts(Engine& engine, const StoredLayouts& mine);

class HostTrainer final : public Trainer {
 public:
  /// Builds the network and plans the reduction. `threads`: number of compute threads. `hangs`: called by a StepWatch.
  /// Errors: those of the model, the backend and the engine; out_of_memory, with the batch that would fit.
  HostTrainer(const Setup& setup, Engine& engine, int threads, std::function<void(const Error&)> hangs = {});

  /// Returns false because a recorder only reads the host's clock.
  [[nodiscard]] bool recording_disturbs() const override { return false; }
  /// Returns 1: the first step touches all memory.
  [[nodiscard]] std::uint64_t settling_steps() const override { return 1; }
  void clear_gradients() override;
  double reduce_bucket(const core::Bucket& bucket) override;
  std::span<const std::byte> gradients(std::size_t first_byte, std::size_t bytes) override;
  [[nodiscard]] std::int64_t planned_bytes(bool processes) const override;

 private:
  class Sink;

  StepTimes run(const models::SgdOptions& sgd, const StepProbe* probe) override;
  void set_schedule(Schedule schedule) override;
  void apply_deadline() override;
  void build(const models::StepOptions& options, const models::ArenaAllocator& allocate);

  /// For the sharded schedule: limits this rank's updates, and the momentum that it keeps, to its share of the weights.
  void take_share();
  /// Adopts the shares of the engine's current plan; Engine::set_buckets() changes the plan. The momentum of a weight
  /// that another rank updated under the previous plan starts at zero on this rank.
  void follow_plan();
  /// Updates the weights. Under the sharded schedule, also gathers the updated weights of all ranks. Adds the durations
  /// of the update and of the gathering to `times`.
  void update(const models::SgdOptions& sgd, StepTimes& times);

  std::optional<SyntheticBatches> batches_;   // none for a replay
  models::ShardedUpdate* sharded_ = nullptr;  // null if the schedule is not sharded or there is one rank
  std::vector<models::ArenaRange> share_;
  bool in_shares_ = false;  // true if the following steps update only this rank's share
  StepWatch watch_;
};

}  // namespace hvd::bench
