// The GPU that cuDNN is asked about: one that is there, by its handle, or one that is described and not there.
#pragma once

#include <string>

#include "models/cudnn/descriptor.h"

namespace hvd::models::cudnn {

class Target {
 public:
  /// `handle` must outlive it. With every cuDNN from kOldestVersion on.
  explicit Target(cudnnHandle_t handle) : handle_(handle) {}
  /// `properties` as cuDNN writes them (JSON; tests/cudnn/devices). `library` must outlive it. Errors: unsupported if
  /// that is older than kDevicelessVersion; invalid_argument if it does not take the description.
  Target(const Library& library, const std::string& properties);

  /// Null for a GPU that is described.
  [[nodiscard]] cudnnHandle_t handle() const noexcept { return handle_; }
  /// Tell a descriptor, before it is finalised, which GPU it is for.
  void aim_heuristics(Descriptor& heuristics) const;
  void aim_engine(Descriptor& engine) const;
  void aim_plan(Descriptor& plan) const;

 private:
  cudnnHandle_t handle_ = nullptr;
  Descriptor properties_;
};

}  // namespace hvd::models::cudnn
