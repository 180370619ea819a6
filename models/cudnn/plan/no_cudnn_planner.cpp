// Replaces the part of the cuDNN backend that calls the library, in builds without cuDNN's headers.
#include "engine/base/error.h"
#include "models/cudnn/plan/plan.h"

namespace hvd::models::cudnn {

std::string planner_unsupported_reason() {
  return "this build has no cuDNN: install the CUDA Toolkit 12 or newer and cuDNN 8.9 or 9 with headers, then "
         "configure and build again (-DHVD_CUDNN_ROOT=... if it is in a place of its own)";
}

std::unique_ptr<Planner> make_planner(const std::string& /*device_properties*/) {
  throw Error(Errc::kUnsupported, planner_unsupported_reason());
}

}  // namespace hvd::models::cudnn
