// A trainer for steps on the CPU: a TrainStep (oneDNN, reference, replay) that tells its gradients from inside
// backward, and an Engine whose thread reduces them meanwhile. Times are the host's.
#pragma once

#include <optional>
#include <vector>

#include "bench/train/trainer.h"

namespace hvd::bench {

class HostTrainer final : public Trainer {
 public:
  /// Builds the network and plans the reduction. `threads`: for the compute.
  /// Errors: those of the model, the backend and the engine; out_of_memory with the batch that would fit.
  HostTrainer(const Setup& setup, Engine& engine, int threads);

  void clear_gradients() override;
  double reduce_bucket(const core::Bucket& bucket) override;
  std::span<const std::byte> gradients(std::size_t first_byte, std::size_t bytes) override;
  [[nodiscard]] std::int64_t planned_bytes(bool processes) const override;

 private:
  class Sink;

  StepTimes run(const models::SgdOptions& sgd, const StepProbe* probe) override;
  void set_schedule(Schedule schedule) override;
  void build(const models::StepOptions& options, const models::ArenaAllocator& allocate);

  /// Sharded schedule: takes this rank's share of the weights and of the momentum.
  void take_share();
  /// Takes the shares of the engine's present plan, which Engine::set_buckets() changes. Momentum of weights that
  /// another rank updated until then starts at zero here.
  void follow_plan();
  /// The update, and what follows it under the sharded schedule. Adds to `times`.
  void update(const models::SgdOptions& sgd, StepTimes& times);

  std::optional<SyntheticBatches> batches_;   // none for replay
  models::ShardedUpdate* sharded_ = nullptr;  // null: no sharded schedule, or one rank
  std::vector<models::ArenaRange> share_;
  bool in_shares_ = false;  // the steps that follow
};

}  // namespace hvd::bench
