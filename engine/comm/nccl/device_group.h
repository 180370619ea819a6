// The DeviceCommunicator of any device plane. Owns the plane and the communicators that the plane borrows.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/device_communicator.h"

namespace hvd::comm::nccl {

class DeviceGroup final : public DeviceCommunicator {
 public:
  /// `backend` must be a string literal. `api` gives the library's name and version; null if no library is used. Call
  /// set_plane() before data() and device().
  DeviceGroup(std::string_view backend, std::unique_ptr<Communicator> host, gpu::GpuRuntime& runtime, const Api* api)
      : backend_(backend),
        runtime_(runtime),
        library_(host->library() +
                 (api != nullptr ? ", NCCL " + api->version().text() + " (" + api->name() + ")" : "")),
        host_(std::move(host)) {}
  /// Owns another communicator that the plane borrows.
  Communicator& keep(std::unique_ptr<Communicator> communicator) {
    return *kept_.emplace_back(std::move(communicator));
  }
  void set_plane(std::unique_ptr<DevicePlane> plane) { plane_ = std::move(plane); }
  [[nodiscard]] Communicator& host() { return *host_; }

  [[nodiscard]] const Topology& topology() const override { return host_->topology(); }
  [[nodiscard]] ControlPlane& control() override { return host_->control(); }
  [[nodiscard]] DataPlane& data() override { return *plane_; }
  [[nodiscard]] DevicePlane& device() override { return *plane_; }
  [[nodiscard]] gpu::GpuRuntime& runtime() override { return runtime_; }
  [[nodiscard]] std::string_view backend() const override { return backend_; }
  [[nodiscard]] std::string library() const override { return library_; }
  [[nodiscard]] std::string flight_record() const override { return host_->flight_record(); }

 private:
  const std::string_view backend_;
  gpu::GpuRuntime& runtime_;
  const std::string library_;
  std::unique_ptr<Communicator> host_;
  std::vector<std::unique_ptr<Communicator>> kept_;
  std::unique_ptr<DevicePlane> plane_;  // last, so that it is destroyed first
};

}  // namespace hvd::comm::nccl
