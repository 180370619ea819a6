#include "models/cudnn/library/descriptor.h"

#include "engine/base/error.h"

namespace hvd::models::cudnn {

Descriptor::Descriptor(const Library& library, cudnnBackendDescriptorType_t type) : library_(&library) {
  if (const cudnnStatus_t status = library.call().create(type, &handle_); status != CUDNN_STATUS_SUCCESS) {
    handle_ = nullptr;
    fail("cudnnBackendCreateDescriptor(" + std::to_string(type) + ")", status);
  }
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    library_ = other.library_;
    handle_ = std::exchange(other.handle_, nullptr);
  }
  return *this;
}

void Descriptor::reset() noexcept {
  if (handle_ != nullptr) static_cast<void>(library_->call().destroy(handle_));
  handle_ = nullptr;
}

void Descriptor::fail(const std::string& call, cudnnStatus_t status) const {
  throw Error(Errc::kBackend, call + ": " + library_->explain(status));
}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                     const void* data) {
  if (const cudnnStatus_t status = library_->call().set(handle_, name, type, count, data);
      status != CUDNN_STATUS_SUCCESS) {
    fail("cudnnBackendSetAttribute(" + std::to_string(name) + ")", status);
  }
}

void Descriptor::set(cudnnBackendAttributeName_t name, std::span<const Descriptor> values) {
  std::vector<cudnnBackendDescriptor_t> handles;
  handles.reserve(values.size());
  for (const Descriptor& value : values) handles.push_back(value.handle_);
  set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(handles.size()), handles.data());
}

std::int64_t Descriptor::count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
  return get(name, type, 0, nullptr);
}

std::int64_t Descriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t capacity,
                             void* data) const {
  std::int64_t count = 0;
  if (const cudnnStatus_t status = library_->call().get(handle_, name, type, capacity, &count, data);
      status != CUDNN_STATUS_SUCCESS) {
    fail("cudnnBackendGetAttribute(" + std::to_string(name) + ")", status);
  }
  return count;
}

std::int64_t Descriptor::get_int64(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0;
  get(name, CUDNN_TYPE_INT64, 1, &value);
  return value;
}

std::string Descriptor::get_text(cudnnBackendAttributeName_t name) const {
  std::string text(static_cast<std::size_t>(count(name, CUDNN_TYPE_CHAR)), '\0');
  get(name, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(text.size()), text.data());
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

void Descriptor::finalize(const char* what) {
  if (const cudnnStatus_t status = library_->call().finalize(handle_); status != CUDNN_STATUS_SUCCESS) {
    fail(std::string("cudnnBackendFinalize(") + what + ")", status);
  }
}

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
