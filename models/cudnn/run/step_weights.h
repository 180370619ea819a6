// The weights of a step on the device, and copies of their values to and from the host. The calling thread waits for
// these copies, so do not make them in a timed step. One thread uses the object, with the GPU current on this thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "models/cudnn/kernels/table.h"
#include "models/cudnn/plan/plan.h"
#include "models/cudnn/run/staging.h"
#include "models/cudnn/run/step_memory.h"
#include "models/graph/graph.h"

namespace hvd::models::cudnn {

/// Returns the loss scale of the first step: `wanted`, or the start of a dynamic scale if `wanted` is 0. Always 1 if
/// `compute` is not fp16. Pure.
float first_loss_scale(ComputeType compute, double wanted);

class StepWeights {
 public:
  /// All arguments must outlive this object.
  StepWeights(const Graph& graph, const Plan& plan, const StepMemory& memory, const kernels::Table& kernels,
              gpu::GpuRuntime& runtime, gpu::StreamView stream);

  /// Uploads the table that says which parameters have weight decay, and the first loss scale.
  void upload_constants(float loss_scale);
  /// Uploads initial weights (random.h) and running statistics: mean 0, variance 1.
  void upload_initial(std::uint64_t seed);
  /// Enqueues a copy of the master weights to the 16-bit weights that operations read, if there are any.
  void refresh_copies();

  /// read_parameter(), write_parameter() and read_gradient() do the work of TrainStep's functions of the same names.
  /// read_gradient() divides by the loss scale that is on the device now. Between forward_backward() and update(), the
  /// gradients in memory are multiplied by this scale.
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
