// Reads descriptions of GPUs (folder devices/). Tests use them to make plans with the real cuDNN for GPUs that are not
// present.
#pragma once

#include <dlfcn.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "models/cudnn/plan/plan.h"

namespace hvd::models::cudnn::testing {

/// Returns cuDNN's description of the GPU `name`, which is "h200" or "a100".
inline std::string device_properties(const std::string& name) {
  std::ifstream file(std::string(HVD_DEVICES) + "/" + name + ".json");
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

/// Returns the reason why cuDNN cannot list all its engines on this machine. Empty if it can.
inline std::string no_planner() {
  if (std::string reason = planner_unsupported_reason(); !reason.empty()) return reason;
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) return {};
  return "no libcuda.so.1 (a driver, or the stub of the CUDA Toolkit): engines compiled at run time cannot answer";
}

}  // namespace hvd::models::cudnn::testing
