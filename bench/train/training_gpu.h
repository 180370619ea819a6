// The GPU on which a rank trains, as a session sees it: what a session asks, and what no Trainer on a CPU could answer.
//
// DeviceTrainer implements this interface. The thread that owns the trainer makes all calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bench/hardware/step_bound.h"
#include "engine/gpu/runtime.h"

namespace hvd::bench {

/// Bytes of a GPU's memory in use by all processes.
struct MemoryUse {
  std::int64_t before = 0;  ///< before the network was built
  std::int64_t now = 0;
};

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

}  // namespace hvd::bench
