// GPUs that are described, not present (devices/), for tests of plans made with the real cuDNN.
#pragma once

#include <dlfcn.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "models/cudnn/plan.h"

namespace hvd::models::cudnn::testing {

/// Returns cuDNN's description of GPU `name`: "h200" or "a100".
inline std::string device_properties(const std::string& name) {
  std::ifstream file(std::string(HVD_DEVICES) + "/" + name + ".json");
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

/// Returns why cuDNN cannot list all engines here. Empty: it can.
inline std::string no_planner() {
  if (std::string reason = planner_unsupported_reason(); !reason.empty()) return reason;
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) return {};
  return "no libcuda.so.1 (a driver, or the stub of the CUDA Toolkit): engines compiled at run time cannot answer";
}

}  // namespace hvd::models::cudnn::testing
