// The weights of a step on the device, and the way of their values to and from the host. Not timed: everything that the
// host reads or writes here is waited for. One thread; the GPU must be current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "models/cudnn/kernels/table.h"
#include "models/cudnn/plan.h"
#include "models/cudnn/staging.h"
#include "models/cudnn/step_memory.h"
#include "models/graph/graph.h"

namespace hvd::models::cudnn {

/// What a step starts with: `wanted`, or where that is 0 the first of a dynamic scale. 1 for types that need none.
/// Pure.
float first_loss_scale(ComputeType compute, double wanted);

class StepWeights {
 public:
  /// Everything given must outlive it.
  StepWeights(const Graph& graph, const Plan& plan, const StepMemory& memory, const kernels::Table& kernels,
              gpu::GpuRuntime& runtime, gpu::StreamView stream);

  /// Which parameters decay, and the first loss scale.
  void upload_constants(float loss_scale);
  /// Initial weights (init.h) and running statistics.
  void upload_initial(std::uint64_t seed);
  /// The weights that the operations read, from the master weights. Enqueues.
  void refresh_copies();

  /// As TrainStep. Gradients come without the loss scale, as that is now: between forward_backward() and update() it is
  /// the one that they were made with.
  void read_parameter(std::size_t parameter, std::span<float> out);
  void write_parameter(std::size_t parameter, std::span<const float> in);
  void read_gradient(std::size_t parameter, std::span<float> out);

 private:
  [[nodiscard]] const ArenaSlot& slot_of(std::size_t parameter, std::size_t size) const;
  [[nodiscard]] bool is_variance(TensorId tensor) const;

  const Graph& graph_;
  const Plan& plan_;
  const StepMemory& memory_;
  const kernels::Table& kernels_;
  gpu::StreamView stream_;
  StagedCopy staged_copy_;
};

}  // namespace hvd::models::cudnn
