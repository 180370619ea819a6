// A trainer for steps on a GPU. The DeviceStep only enqueues compute. The DeviceEngine enqueues reductions beside the
// compute, captures compute and reductions into one graph if possible, and waits for the end of the step. Times come
// from the GPU's events. Batches are loaded before a step and outside its times, because input pipelines are not
// measured. Captured steps are launched one step ahead: the host prepares a step while the GPU runs the previous one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/train/trainer.h"
#include "bench/world/gpu_backend.h"
#include "engine/base/error.h"
#include "engine/runtime/device_engine.h"

namespace hvd::bench {

class DeviceTrainer final : public Trainer, public TrainingGpu {
 public:
  /// Builds the network, or its replay, on `runtime`'s GPU, compiles kernels with `threads` threads, and plans the
  /// reduction. A replay does not use `backend`.
  /// Errors: those of the model, the backend and the engine; out_of_memory, with a text that names rank and GPU, the
  /// memory needed, and the batch that would fit.
  DeviceTrainer(const Setup& setup, DeviceEngine& device, gpu::GpuRuntime& runtime, GpuBackend& backend,
                int threads = 1);
  /// If a stand-alone reduction failed, the destructor first ends that reduction.
  ~DeviceTrainer() override;

  std::vector<StepTimes> steps(Phase phase, std::int64_t count) override;
  void skip_steps(Phase phase, std::uint64_t steps) override;
  [[nodiscard]] std::uint64_t settling_steps() const override;
  /// Returns true because a step records one more event per gradient while recorder_ is set.
  [[nodiscard]] bool recording_disturbs() const override { return true; }
  void clear_gradients() override;
  double reduce_bucket(const core::Bucket& bucket) override;
  std::span<const std::byte> gradients(std::size_t first_byte, std::size_t bytes) override;
  /// Returns the device memory of the step's arenas and of the fusion buffer.
  [[nodiscard]] std::int64_t planned_bytes(bool processes) const override;

  [[nodiscard]] const std::optional<StepBound>& bound() const override { return bound_; }
  [[nodiscard]] const std::string& engines() const override { return engines_; }
  void drop_graphs() override { device_.drop_graphs(); }
  [[nodiscard]] std::optional<gpu::GraphShape> graph_shape() const override { return device_.graph_shape(); }
  [[nodiscard]] std::uint64_t steps_ahead() const override { return steps_ahead_; }
  [[nodiscard]] MemoryUse memory_use() override;

 private:
  class Sink;
  /// Events of one DeviceEngine::slot() on the compute stream. Every step in that slot records these events anew.
  struct Marks {
    gpu::Event begin, backward_end, update_begin, update_end;
  };

  StepTimes run(const models::SgdOptions& sgd, const StepProbe* probe) override;
  struct Finished {
    StepTimes times;
    DeviceReport report;
  };
  /// Runs `body`, which trains. If `body` throws, abandons the steps in flight and sends the error to the peers.
  template <class Body>
  void abandon_steps_on_error(Body&& body);
  /// Enqueues one step on the GPU.
  void launch(const models::SgdOptions& sgd, Sink& sink);
  /// Waits for the oldest step in flight.
  Finished finish();
  /// Returns false before the first use of a batch, because loading it may allocate memory, and an allocation waits
  /// for the GPU.
  [[nodiscard]] bool may_run_ahead() const;
  void set_schedule(Schedule schedule) override { device_.set_schedule(schedule); }
  void apply_deadline() override;
  void build(GpuBackend& backend, int threads);
  /// Makes a step that replays setup_.replay.
  void build_replay();
  /// Returns an error that also names rank and GPU.
  [[nodiscard]] Error out_of_memory(const Error& error) const;
  void forward_backward(Sink& sink);
  void update();
  void record_times(const Sink& sink, const DeviceReport& report);
  void wait(gpu::StreamView stream, const char* what);
  [[nodiscard]] double between(const gpu::Event& begin, const gpu::Event& end);
  /// Returns pinned memory of at least `bytes` into which the device copies and from which the host reads.
  std::span<std::byte> host_buffer(std::size_t bytes);

  DeviceEngine& device_;
  gpu::GpuRuntime& runtime_;
  models::DeviceStep* on_device_ = nullptr;  // step_ as a DeviceStep
  std::optional<StepBound> bound_;
  std::string engines_;
  std::uint64_t steps_ahead_ = 0;
  std::int64_t used_before_ = 0;             // bytes used on the GPU before the network was built
  std::optional<SyntheticBatches> batches_;  // none for a replay
  std::vector<bool> loaded_;                 // [batch]: loaded at least once; one element for a replay
  bool reducing_ = false;                    // a stand-alone reduction is running, and may be waiting for peers
  gpu::PinnedMemory host_buffer_;
  std::array<Marks, kStepsInFlight> marks_;
  std::vector<gpu::Event> ready_;         // one per gradient, on the compute stream; used while recorder_ is set
  gpu::Event reduce_begin_, reduce_end_;  // recorded on the communication stream
  Clock::time_point last_end_{};          // when the host saw the last step end, or was asked for new steps after it
};

}  // namespace hvd::bench
