// A trainer for steps on a GPU: a DeviceStep that only enqueues, and a DeviceEngine that puts the reductions beside its
// work, captures both into one graph where it can, and waits for the end. Times are the GPU's own: from events.
// Batches are loaded before a step, outside of its times: input pipelines are not what is measured. Captured steps are
// launched one ahead, so that what the host does for a step, it does while the one before runs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "bench/train/gpu_backend.h"
#include "bench/train/trainer.h"
#include "engine/runtime/device_engine.h"

namespace hvd::bench {

class DeviceTrainer final : public Trainer {
 public:
  /// Builds the network on `runtime`'s GPU, with `threads` threads to compile in, and plans the reduction.
  /// Errors: those of the model, the backend and the engine; out_of_memory, naming rank and GPU, with what is needed
  /// and the batch that would fit.
  DeviceTrainer(const Setup& setup, DeviceEngine& device, gpu::Runtime& runtime, GpuBackend& backend, int threads = 1);
  /// After a reduction alone that failed: ends it first.
  ~DeviceTrainer() override;

  std::vector<StepTimes> steps(Phase phase, std::int64_t count) override;
  void sit_out(Phase phase, std::uint64_t steps) override;
  [[nodiscard]] std::uint64_t settling_steps() const override;
  /// Recorded steps hold an event per gradient.
  [[nodiscard]] bool recording_disturbs() const override { return true; }
  void drop_graphs() override { device_.drop_graphs(); }
  [[nodiscard]] std::optional<gpu::GraphShape> graph_shape() const override { return device_.graph_shape(); }
  void clear_gradients() override;
  double reduce_bucket(const core::Bucket& bucket) override;
  std::span<const std::byte> gradients(std::size_t first_byte, std::size_t bytes) override;
  /// Device memory: the step's arenas and the fusion buffer.
  [[nodiscard]] std::int64_t planned_bytes(bool processes) const override;
  [[nodiscard]] std::optional<MemoryUse> device_memory() override;

 private:
  class Sink;
  /// Recorded anew by every step with this DeviceEngine::slot(); compute stream.
  struct Marks {
    gpu::Event begin, backward_end, update_begin, update_end;
  };

  StepTimes run(const models::SgdOptions& sgd, const StepProbe* probe) override;
  struct Finished {
    StepTimes times;
    DeviceReport report;
  };
  /// Errors of `body`, which trains, leave no step in flight, and the peers are told.
  template <class Body>
  void leave_nothing_in_flight(Body&& body);
  /// Hands over one step to the GPU.
  void launch(const models::SgdOptions& sgd, Sink& sink);
  /// Waits for the oldest step in flight.
  Finished finish();
  /// Not with a batch that is new: its load may allocate, which waits for the GPU.
  [[nodiscard]] bool may_run_ahead() const;
  void set_schedule(Schedule schedule) override { device_.set_schedule(schedule); }
  void apply_deadline() override;
  void build(GpuBackend& backend, int threads);
  /// All ranks run the engines that rank 0 found to be the fastest; none of one rank.
  [[nodiscard]] models::AgreeOnWinners agreement() const;
  /// Each rank hears of the engines that do not run on any of them; none of one rank.
  [[nodiscard]] models::ShareWithRanks sharing() const;
  void forward_backward(Sink& sink);
  void update();
  void record_times(const Sink& sink, const DeviceReport& report);
  void wait(gpu::StreamView stream, const char* what);
  [[nodiscard]] double between(const gpu::Event& begin, const gpu::Event& end);
  /// Pinned memory of at least `bytes`, for the host to read what the device copied.
  std::span<std::byte> landing(std::size_t bytes);

  DeviceEngine& device_;
  gpu::Runtime& runtime_;
  models::DeviceStep* on_device_ = nullptr;  // step_
  std::int64_t used_before_ = 0;             // bytes of the GPU before the network was built
  std::optional<SyntheticBatches> batches_;
  std::vector<bool> loaded_;  // [batch] once at least
  bool reducing_ = false;     // a bucket alone, which may wait for peers
  gpu::PinnedMemory landing_;
  std::array<Marks, kFlights> marks_;
  std::vector<gpu::Event> ready_;         // compute stream, of recorded steps
  gpu::Event reduce_begin_, reduce_end_;  // communication stream
  Clock::time_point last_end_{};  // by the host's clock: of a step, or when the steps that follow were asked for
};

}  // namespace hvd::bench
