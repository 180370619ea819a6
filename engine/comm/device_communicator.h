// A Communicator whose data plane reduces device memory on its own stream. The control plane is that of a host
// Communicator of another backend. Owns its data plane and the communicator that this plane borrows.
//
// Threads: as for every Communicator, except that any thread may call check() and abort() of the plane at any time.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/comm/communicator.h"
#include "engine/comm/nccl/api.h"
#include "engine/gpu/runtime.h"

namespace hvd::comm {

struct NcclOptions {
  int max_ctas = 0;  ///< maximum thread blocks per collective; 0: NCCL's choice
  /// Several ranks may use the same GPU, for tests with one GPU. NCCL before 2.30 refuses this; NCCL 2.30 and newer
  /// need NCCL_MULTI_RANK_GPU_ENABLE=1.
  bool share_gpus = false;
  bool register_memory = true;                 ///< allocate() gets registered memory from NCCL, if NCCL can
  Patience deadline{std::chrono::minutes(1)};  ///< for finalisation; other waits get their deadline as an argument
};

/// The member functions enqueue work on stream(), in the order of the calls. If stream() has joined a capture, the
/// capture records the work. The caller must order stream() with other streams. The host waits only where a docstring
/// says so.
class DevicePlane : public DataPlane {
 public:
  /// The stream has high priority, so that communication does not wait for multiprocessors that the compute uses.
  [[nodiscard]] virtual gpu::StreamView stream() const = 0;
  /// For the watchdog. Errors: peer_lost or backend, with this rank and the library's message, if communication failed;
  /// interrupted after abort().
  virtual void check() = 0;
  /// Ends the communication in flight on the device, so that streams and graphs that wait for it continue, with wrong
  /// numbers. Returns at once: another thread calls the library, because that call returns only when no graph holds a
  /// reduction any more. Afterwards only abandon(), await_abort() and the destructor may be called.
  virtual void abort() noexcept = 0;
  /// Call after abort(), and after destroying the graphs. Returns true if the library's abort has returned by the
  /// deadline. If it has not returned, calls that free memory of the GPU may never return: end the process.
  virtual bool await_abort(Deadline deadline) noexcept = 0;
  /// Collective. Disconnects the ranks and connects them again with `options`, except that deadline and share_gpus keep
  /// their old values. Nothing may be enqueued, and no graph may hold a reduction. Memory that allocate() returned
  /// stays valid. Afterwards `options` decides whether this memory is registered; memory that did not come from NCCL
  /// stays unregistered. Errors: those of make_nccl(). After an error only the destructor may be called.
  virtual void reconnect(const NcclOptions& options, Deadline deadline) = 0;
  /// Returns true if memory from allocate() is registered. Returns false in a world of one rank.
  [[nodiscard]] virtual bool registers_memory() const = 0;

  // Behaviour of DataPlane's methods on a device: allocate() returns device memory, 4096-byte aligned, and waits until
  // it is zeroed. broadcast() waits for its own end; before the call, the caller must wait for the work that writes the
  // data. All other operations, copy() and scale() only enqueue. abandon() calls abort() and drains stream(). If ranks
  // disagree about counts, they wait for one another until the deadline of complete(). If a rank's own counts or types
  // are invalid, the call throws before it enqueues anything. Reductions of int16 throw unsupported, because NCCL does
  // not have them; other operations accept int16.
};

/// Returns text such as "rank 1 (host b, GPU 0 (NVIDIA H200))".
std::string here_of(const Topology& where, const gpu::GpuRuntime& runtime);

/// Number of calls of ncclCommAbort() and ncclCommDestroy() in this process that have not returned. If it is not 0, end
/// the process without running destructors, because the threads of these calls still use NCCL and CUDA. Any thread.
int unfinished_aborts() noexcept;

class DeviceCommunicator final : public Communicator {
 public:
  /// `backend` must be a string literal. `api` gives the library's name and version, and is null without a library.
  /// Call set_plane() before data() and device().
  DeviceCommunicator(std::string_view backend, std::shared_ptr<Communicator> host, gpu::GpuRuntime& runtime,
                     const nccl::Api* api)
      : backend_(backend),
        runtime_(runtime),
        library_(host->library() +
                 (api != nullptr ? ", NCCL " + api->version().text() + " (" + api->name() + ")" : "")),
        host_(std::move(host)) {}
  void set_plane(std::unique_ptr<DevicePlane> plane) { plane_ = std::move(plane); }
  [[nodiscard]] Communicator& host() { return *host_; }

  [[nodiscard]] const Topology& topology() const override { return host_->topology(); }
  [[nodiscard]] ControlPlane& control() override { return host_->control(); }
  [[nodiscard]] DataPlane& data() override { return *plane_; }
  [[nodiscard]] DevicePlane& device() { return *plane_; }
  [[nodiscard]] gpu::GpuRuntime& runtime() { return runtime_; }
  [[nodiscard]] std::string_view backend() const override { return backend_; }
  [[nodiscard]] std::string library() const override { return library_; }
  [[nodiscard]] std::string flight_record() const override { return host_->flight_record(); }

 private:
  const std::string_view backend_;
  gpu::GpuRuntime& runtime_;
  const std::string library_;
  std::shared_ptr<Communicator> host_;
  // The last member, so that the plane is destroyed before the communicator that it borrows.
  std::unique_ptr<DevicePlane> plane_;
};

/// Collective. The result uses the control plane and the topology of `host` and the GPU of `runtime`, which must
/// outlive the result. Before the ranks start NCCL, they compare GPUs and NCCL versions, so that a wrong launch gives
/// one clear error line. Then they try a reduction and check its result. For a world of one rank, `api` may be null.
/// Errors, with the same text on all ranks: invalid_argument for two ranks on one GPU; mismatch for different NCCL
/// versions.
/// Other errors, also sent to the peers: backend, peer_lost, timeout, check_failed, naming this rank and what failed.
std::unique_ptr<DeviceCommunicator> make_nccl(std::shared_ptr<Communicator> host, gpu::GpuRuntime& runtime,
                                              std::shared_ptr<nccl::Api> api, const NcclOptions& options,
                                              Deadline deadline);

}  // namespace hvd::comm
