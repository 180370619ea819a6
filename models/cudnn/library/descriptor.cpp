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

}  // namespace hvd::models::cudnn
