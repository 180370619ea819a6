// Makes the launches of cuDNN's groups on a GPU: the handle, plans built from the chosen engines, and launches with
// bound addresses. Only one thread at a time may use these classes, with the GPU current on this thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "models/cudnn/library/descriptor.h"
#include "models/cudnn/library/operation_graph.h"
#include "models/cudnn/plan/memory_layout.h"
#include "models/cudnn/plan/plan.h"
#include "models/cudnn/run/own_launch.h"

namespace hvd::models::cudnn {

/// Owner of a cudnnHandle_t.
class Handle {
 public:
  /// Makes a handle for the calling thread's GPU. Errors: backend, with cuDNN's reason (no memory, or a GPU or driver
  /// that this cuDNN does not know).
  explicit Handle(std::shared_ptr<const Library> library);
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();

  [[nodiscard]] cudnnHandle_t get() const noexcept { return handle_; }
  [[nodiscard]] const Library& library() const noexcept { return *library_; }
  /// Sets the stream of all later executions. The call is cheap if `stream` is already set.
  void use(kernels::Stream stream);

 private:
  std::shared_ptr<const Library> library_;
  cudnnHandle_t handle_ = nullptr;
  kernels::Stream stream_ = nullptr;
};

/// A finalised engine with its knobs, for all groups of one signature.
class ExecutionPlan {
 public:
  /// Errors: backend, with cuDNN's reason, if cuDNN refuses `choice` for the group on this GPU.
  ExecutionPlan(const Library& library, const Target& target, const Program& program, const Group& group,
                const EngineChoice& choice);

  [[nodiscard]] const Descriptor& get() const noexcept { return plan_; }
  [[nodiscard]] const Descriptor& config() const noexcept { return config_; }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }

 private:
  OperationGraph graph_;
  Descriptor engine_, config_;
  std::vector<Descriptor> knobs_;
  Descriptor plan_;
  std::size_t workspace_bytes_ = 0;
};

/// Binds `plan` to the addresses of `group`. `handle` must outlive the launch, which shares ownership of `plan`.
Launch cudnn_launch(Handle& handle, std::shared_ptr<const ExecutionPlan> plan, const Addresses& addresses,
                    const Group& group);

}  // namespace hvd::models::cudnn
