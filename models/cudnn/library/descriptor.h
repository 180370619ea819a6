// Owner of one descriptor of cuDNN's backend API. A descriptor points at the descriptors that were set as its
// attributes, so these must outlive it. The classes that build graphs and plans own a descriptor together with its
// attributes. Only one thread at a time may use a descriptor. A Target puts the GPU into descriptors.
//
// Every call that fails throws Error{kBackend} with the call's name and the library's reason. Finalising a graph or a
// plan may fail with "not supported"; code that tries engines catches this error.
#pragma once

#include <cudnn_backend.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/cudnn/library/library.h"

namespace hvd::models::cudnn {

/// Enumerators that cuDNN's headers before 9.8 do not have. Their values are from cudnn_graph_v9.h of cuDNN 9.19.
inline constexpr auto kDevicePropDescriptor = static_cast<cudnnBackendDescriptorType_t>(38);
inline constexpr auto kAttrHeuristicsDeviceProp = static_cast<cudnnBackendAttributeName_t>(204);
inline constexpr auto kAttrConfigWorkspace = static_cast<cudnnBackendAttributeName_t>(303);
inline constexpr auto kAttrPlanDeviceProp = static_cast<cudnnBackendAttributeName_t>(407);
inline constexpr auto kAttrEngineDeviceProp = static_cast<cudnnBackendAttributeName_t>(1307);
inline constexpr auto kAttrDevicePropJson = static_cast<cudnnBackendAttributeName_t>(2702);

class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(const Library& library, cudnnBackendDescriptorType_t type);
  Descriptor(Descriptor&& other) noexcept : library_(other.library_), handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(); }

  [[nodiscard]] cudnnBackendDescriptor_t get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count, const void* data);
  void set(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values) {
    set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  void set(cudnnBackendAttributeName_t name, std::int64_t value) { set(name, CUDNN_TYPE_INT64, 1, &value); }
  void set(cudnnBackendAttributeName_t name, bool value) { set(name, CUDNN_TYPE_BOOLEAN, 1, &value); }
  void set(cudnnBackendAttributeName_t name, float value) { set(name, CUDNN_TYPE_FLOAT, 1, &value); }
  void set(cudnnBackendAttributeName_t name, double value) { set(name, CUDNN_TYPE_DOUBLE, 1, &value); }
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value) { set(name, CUDNN_TYPE_DATA_TYPE, 1, &value); }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.handle_);
  }
  void set(cudnnBackendAttributeName_t name, std::span<const Descriptor> values);

  /// Returns the number of elements of attribute `name`.
  [[nodiscard]] std::int64_t count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const;
  /// Fills `data`, which has room for `capacity` elements. Returns the number of elements of the attribute.
  std::int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t capacity,
                   void* data) const;
  [[nodiscard]] std::int64_t get_int64(cudnnBackendAttributeName_t name) const;
  [[nodiscard]] std::string get_text(cudnnBackendAttributeName_t name) const;

  /// `what` names the descriptor in the error.
  void finalize(const char* what);

 private:
  void reset() noexcept;
  [[noreturn]] void fail(const std::string& call, cudnnStatus_t status) const;

  const Library* library_ = nullptr;
  cudnnBackendDescriptor_t handle_ = nullptr;
};

/// The GPU for which cuDNN plans: a present GPU, given by its handle, or an absent GPU, given by a description.
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
