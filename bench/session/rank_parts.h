// The parts with which one rank trains, and from which its trainer is made. On the CPU the part is the engine over the
// rank's communicator. On a GPU the parts are the GPU and the engine that drives it. Used by the rank's thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/hardware/gpu_facts.h"
#include "bench/train/trainer.h"
#include "bench/tune/schedule_search.h"
#include "bench/world/setup.h"
#include "engine/base/error.h"
#include "engine/comm/communicator.h"
#include "engine/comm/device_communicator.h"
#include "engine/runtime/device_engine.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// Functions that a rank calls when it fails; any may be null.
struct RankEndings {
  /// Called before the constructor throws. If this rank's GPU cannot be opened, the communicator still exists during
  /// the call. If the ranks cannot connect, the communicator is already destroyed.
  std::function<void()> failing;
  StuckRank stuck;  ///< on a CPU, `leave` is called by a StepWatch
};

struct RankTrainer {
  std::unique_ptr<Trainer> trainer;
  TrainingGpu* gpu = nullptr;  ///< the GPU on which `trainer` trains; null on a CPU
};

class RankParts {
 public:
  /// Collective. `gpus` must not be null if `setup` runs on GPUs. `comm`: how `communicator` reduces in host memory.
  /// Errors: those of opening this rank's GPU and of NCCL; the peers get the error's text.
  RankParts(const Setup& setup, const EngineOptions& options, const comm::CommOptions& comm, GpuBackend* gpus,
            std::shared_ptr<comm::Communicator> communicator, const RankEndings& endings);

  [[nodiscard]] bool on_gpu() const { return device_ != nullptr; }
  [[nodiscard]] Engine& engine() { return device_ ? device_->engine() : *host_; }
  /// Returns true if steps become CUDA graphs. The answer is the same in every phase.
  [[nodiscard]] bool graphs() const { return device_ && device_->graphs(); }
  /// Returns one line for each setting that is not as the user asked.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  /// Describes the GPU. Call only if on_gpu(). `engines`: TrainingGpu::engines(); `nccl_log`: log of this process.
  [[nodiscard]] GpuDescription gpu(const std::string& engines, const std::string& nccl_log = {});
  /// Images per step, summed over all ranks.
  [[nodiscard]] std::int64_t images_per_step() { return engine().size() * setup_.model.batch_size; }
  [[nodiscard]] std::string_view unit() const { return setup_.unit(); }  ///< of the work in images_per_step()
  /// The setting that steps use now.
  [[nodiscard]] const ScheduleSetting& setting() const { return setting_; }
  /// Returns the hardware that decides a setting's speed: the GPU as described by gpu(), or the processor and the
  /// number of compute `threads`.
  [[nodiscard]] GpuDescription device(int threads);
  /// Returns the knobs that the search may turn: knobs that the user left at their defaults and that have an effect in
  /// this world.
  [[nodiscard]] std::vector<Knob> knobs();
  /// Collective. Call it between steps. The following steps use `setting`. Errors: those of the engine's setters.
  void apply(const ScheduleSetting& setting);
  /// Collective. `threads`: compute threads on the CPU. Destroy the trainer before this RankParts.
  /// Errors: those of the trainers' constructors.
  [[nodiscard]] RankTrainer make_trainer(int threads);

 private:
  void open_gpu(const EngineOptions& options, std::shared_ptr<comm::Communicator> communicator,
                const RankEndings& endings);

  const Setup& setup_;
  const std::function<void(const Error&)> leave_;  // StuckRank::leave
  const EngineOptions options_;
  const comm::CommOptions comm_options_;
  GpuBackend* const gpus_;
  gpu::DeviceList list_;  // GPUs that this process sees
  std::unique_ptr<Engine> host_;
  std::unique_ptr<gpu::GpuRuntime> runtime_;
  std::vector<std::string> notes_;
  ScheduleSetting setting_;
  std::unique_ptr<DeviceEngine> device_;
};

}  // namespace hvd::bench
