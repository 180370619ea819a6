#include "models/cudnn/library/target.h"

#include "engine/base/error.h"

namespace hvd::models::cudnn {

Target::Target(const Library& library, const std::string& properties) {
  if (library.version() < kDevicelessVersion) {
    throw Error(Errc::kUnsupported, library.name() + " is cuDNN " + library.version().text() +
                                        "; planning for a GPU that is not there needs " + kDevicelessVersion.text());
  }
  try {
    properties_ = Descriptor(library, kDevicePropDescriptor);
    properties_.set(kAttrDevicePropJson, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(properties.size()),
                    properties.data());
    properties_.finalize("device properties");
  } catch (const Error& error) {
    throw Error(Errc::kInvalidArgument, std::string("cuDNN does not take this description of a GPU: ") + error.what());
  }
}

void Target::aim_heuristics(Descriptor& heuristics) const {
  if (handle_ == nullptr) heuristics.set(kAttrHeuristicsDeviceProp, properties_);
}

void Target::aim_engine(Descriptor& engine) const {
  if (handle_ == nullptr) engine.set(kAttrEngineDeviceProp, properties_);
}

void Target::aim_plan(Descriptor& plan) const {
  if (handle_ == nullptr) {
    plan.set(kAttrPlanDeviceProp, properties_);
  } else {
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle_);
  }
}

}  // namespace hvd::models::cudnn
