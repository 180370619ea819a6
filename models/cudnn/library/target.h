// The GPU for which cuDNN plans: a present GPU, given by its handle, or an absent GPU, given by a description.
#pragma once

#include <string>

#include "models/cudnn/library/descriptor.h"

namespace hvd::models::cudnn {

class Target {
 public:
  /// `handle` must outlive this object. Works with every cuDNN from kOldestVersion on.
  explicit Target(cudnnHandle_t handle) : handle_(handle) {}
  /// `properties`: JSON in cuDNN's form (tests/cudnn/devices). `library` must outlive this object. Errors: unsupported
  /// if `library` is older than kDevicelessVersion; invalid_argument if cuDNN refuses the description.
  Target(const Library& library, const std::string& properties);

  /// Null if the GPU is given by a description.
  [[nodiscard]] cudnnHandle_t handle() const noexcept { return handle_; }
  /// Each of these functions sets the GPU in a descriptor. Call the function before the descriptor is finalised.
  void aim_heuristics(Descriptor& heuristics) const;
  void aim_engine(Descriptor& engine) const;
  void aim_plan(Descriptor& plan) const;

 private:
  cudnnHandle_t handle_ = nullptr;
  Descriptor properties_;
};

}  // namespace hvd::models::cudnn
