// Groups of cuDNN's on a device that is there: a handle, plans built from the engines that were chosen, and what binds
// them to addresses. One thread at a time; the caller's GPU must be current.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "models/cudnn/addresses.h"
#include "models/cudnn/descriptor.h"
#include "models/cudnn/operation_graph.h"
#include "models/cudnn/own_launch.h"
#include "models/cudnn/plan.h"
#include "models/cudnn/target.h"

namespace hvd::models::cudnn {

/// Owner of a cudnnHandle_t.
class Handle {
 public:
  /// For the calling thread's GPU. Errors: backend, with cuDNN's reason (a GPU or a driver that this cuDNN does not
  /// know, no memory).
  explicit Handle(std::shared_ptr<const Library> library);
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle();

  [[nodiscard]] cudnnHandle_t get() const noexcept { return handle_; }
  [[nodiscard]] const Library& library() const noexcept { return *library_; }
  /// Everything that is executed from now on goes to `stream`. Cheap where it is the one already.
  void use(kernels::Stream stream);

 private:
  std::shared_ptr<const Library> library_;
  cudnnHandle_t handle_ = nullptr;
  kernels::Stream stream_ = nullptr;
};

/// An engine with its knobs for the groups of one signature, finalised.
class ExecutionPlan {
 public:
  /// Errors: backend, with cuDNN's reason, where the engine does not take the group after all.
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

/// Binds `plan` to the addresses of `group`. `handle` must outlive the launch; `plan` is kept by it.
Launch cudnn_launch(Handle& handle, std::shared_ptr<const ExecutionPlan> plan, const Addresses& addresses,
                    const Group& group);

}  // namespace hvd::models::cudnn
