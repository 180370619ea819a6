// What one rank trains with: the engine over its communicator, on the CPU, or a GPU with the engine that drives it. Who
// trains is made from them. One thread, the rank's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/train/gpu_facts.h"
#include "bench/train/schedule_search.h"
#include "bench/train/setup.h"
#include "bench/train/trainer.h"
#include "engine/comm/communicator.h"
#include "engine/comm/device_communicator.h"
#include "engine/runtime/device_engine.h"
#include "engine/runtime/engine.h"

namespace hvd::bench {

/// Functions that a rank calls when it fails; any may be null.
struct RankEndings {
  /// Called before an error leaves the constructor: before the communicator is destroyed if this rank's GPU cannot be
  /// opened, after that if the ranks cannot connect.
  std::function<void()> failing;
  StuckRank stuck;
};

class RankParts {
 public:
  /// Collective. `gpus` is not null where `setup` is to run on GPUs. Errors: those of opening this rank's GPU and of
  /// NCCL; the peers are told.
  /// `comm`: how `communicator` reduces in the host's memory.
  RankParts(const Setup& setup, const EngineOptions& options, const comm::CommOptions& comm, GpuBackend* gpus,
            std::unique_ptr<comm::Communicator> communicator, const RankEndings& endings);

  [[nodiscard]] bool on_gpu() const { return device_ != nullptr; }
  [[nodiscard]] Engine& engine() { return device_ ? device_->engine() : *host_; }
  /// Only where on_gpu(): "nccl" or "hierarchical", as it came to be.
  [[nodiscard]] const std::string& comm() const { return comm_; }
  /// Whether steps become CUDA graphs, in every phase alike.
  [[nodiscard]] bool graphs() const { return device_ && device_->graphs(); }
  /// What is not as was asked for, one line each.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  /// Only where on_gpu(). `engines`: NetworkFacts::engines; `nccl_log`: what NCCL has logged in this process.
  [[nodiscard]] GpuDescription gpu(const std::string& engines, const std::string& nccl_log = {});
  /// Of all ranks.
  [[nodiscard]] std::int64_t images_per_step() { return engine().size() * setup_.model.batch_size; }
  /// Of the steps as they are.
  [[nodiscard]] const ScheduleSetting& setting() const { return setting_; }
  /// What the speed of a setting depends on here: the GPU as gpu() says it, or the processor and `threads` of compute.
  [[nodiscard]] GpuDescription device(int threads);
  /// Knobs that the search may turn, because nobody asked for a position and they matter here.
  [[nodiscard]] std::vector<Knob> knobs();
  /// Between steps. Collective: the steps that follow are as `setting` says.
  /// Errors: those of the engine's methods for it.
  void apply(const ScheduleSetting& setting);
  /// Collective. `threads`: for compute on the CPU. What it returns must go first. Errors: those of the trainers.
  [[nodiscard]] std::unique_ptr<Trainer> make_trainer(int threads);

 private:
  void open_gpu(const EngineOptions& options, std::unique_ptr<comm::Communicator> communicator,
                const RankEndings& endings);
  std::unique_ptr<comm::DeviceCommunicator> connect(std::unique_ptr<comm::Communicator> communicator,
                                                    std::shared_ptr<comm::nccl::Api> nccl);

  const Setup& setup_;
  const EngineOptions options_;
  const comm::CommOptions comm_options_;
  GpuBackend* const gpus_;
  gpu::DeviceList list_;  // of this process
  std::unique_ptr<Engine> host_;
  std::unique_ptr<gpu::Runtime> runtime_;
  std::string comm_;
  std::vector<std::string> notes_;
  ScheduleSetting setting_;
  std::unique_ptr<DeviceEngine> device_;
};

}  // namespace hvd::bench
