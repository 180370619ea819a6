// The NCCL data plane: decides when and how long to wait for NCCL, and what an error says. It calls NCCL through Api
// and the GPU through gpu::GpuRuntime, so it includes no header of NCCL or CUDA.
//
// Threads: only the owner's thread may call, except that any thread may call check(), abort() and await_abort().
// abort() starts a thread that calls NCCL. The owner may be inside a call at that time; later calls of the owner throw.
// No lock is held during a call that can wait.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/comm/device_communicator.h"

namespace hvd::comm::nccl {

class Plane final : public DevicePlane {
 public:
  /// Collective: creates the communicator and tries a reduction. Borrows `host` and `runtime`. `here` names this rank
  /// in messages.
  Plane(Communicator& host, gpu::GpuRuntime& runtime, std::shared_ptr<Api> api, const NcclOptions& options,
        std::string here, Deadline deadline);
  ~Plane() override;

  std::unique_ptr<RegisteredMemory> allocate(std::size_t bytes, Deadline deadline) override;
  void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) override;
  void all_reduce_into(void* out, const void* in, std::size_t count, DataType dtype, ReduceOp op,
                       Deadline deadline) override;
  void reduce_scatter(void* out, const void* in, Counts counts, DataType dtype, ReduceOp op,
                      Deadline deadline) override;
  void all_gather(void* out, const void* in, Counts counts, DataType dtype, Deadline deadline) override;
  void all_to_all(void* out, Counts receive_counts, const void* in, Counts send_counts, DataType dtype,
                  Deadline deadline) override;
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void scale(std::byte* data, std::size_t count, DataType dtype, double factor) override;
  void complete(std::string_view what, Deadline deadline) override;
  void abandon() noexcept override;
  void together(const std::function<void()>& calls, Deadline deadline) override;
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] gpu::GpuRuntime* gpu() const override { return &runtime_; }
  [[nodiscard]] std::string reduce_refusal(DataType dtype) const override;
  [[nodiscard]] std::string scale_refusal() const override { return runtime_.scale_refusal(); }
  [[nodiscard]] gpu::StreamView stream() const override { return stream_; }
  void check() override;
  void abort() noexcept override;
  bool await_abort(Deadline deadline) noexcept override;
  void reconnect(const NcclOptions& options, Deadline deadline) override;
  [[nodiscard]] bool registers_memory() const override;

 private:
  class Memory;

  [[nodiscard]] bool alone() const;
  /// Returns text such as "rank 1 (host b): ncclAllReduce (26214400 bytes)".
  [[nodiscard]] std::string doing(const std::string& what) const;
  /// Collective: creates the communicator and tries a reduction. An error is also sent to the peers.
  void connect(Deadline deadline);
  void create(Deadline deadline);
  /// Collective: finalises and destroys the communicator.
  void disconnect(Deadline deadline);
  void destroy(Deadline deadline);
  using Function = Result (Api::*)(Comm, const CallArguments&, gpu::StreamView);
  /// Enqueues `function`, unless the count is 0.
  void enqueue(Function function, const std::string& name, const CallArguments& what, Deadline deadline);
  /// Passes the operations that `calls` enqueues to NCCL as one group. Errors call the group `name`.
  void group(const std::function<void()>& calls, const std::string& name, Deadline deadline);
  /// A world of one rank copies its own share instead of calling NCCL.
  void copy_own_share(void* out, const void* in, std::size_t count, DataType dtype);
  UniqueId agree_on_id(Deadline deadline);
  /// Waits while the call that returned `result` is in progress. Errors: those of make_nccl() for a failure or a passed
  /// deadline, naming `what`; interrupted after abort().
  void wait_for_call(Result result, const std::string& what, Deadline deadline);
  /// Call between the polls of a wait. `status` answers roll calls.
  /// Errors: interrupted after abort(); those of ControlPlane::look_for_dead().
  void hear_peers(const std::string& status);
  [[noreturn]] void refuse(Result result, const std::string& what);
  void throw_if_aborted();
  Result state();
  [[nodiscard]] std::string explain(Result result);
  [[nodiscard]] bool wait_timed_out() const;
  /// Returns the communicator, which the caller must free. await_abort() waits for this.
  Comm release_communicator() HVD_REQUIRES(mutex_);
  /// Runs `body`, which uses the communicator. The aborting thread waits up to kCourtesy until `body` has returned.
  template <class Call>
  Result call(Call&& body);

  /// Runs `work`, which frees the communicator and may never return, on a thread that may outlive the plane.
  template <class Work>
  void free_on_thread(Work work);

  /// State shared by the plane and the thread that frees its communicator. The thread may outlive the plane.
  struct Ending {
    std::atomic<int> calls{0};  // number of the owner's calls that have not returned
    Mutex mutex;
    CondVar changed;
    bool freeing HVD_GUARDED_BY(mutex) = false;         // the communicator is being aborted or destroyed
    bool wait_timed_out HVD_GUARDED_BY(mutex) = false;  // await_abort() reached its deadline
  };

  Communicator& host_;
  gpu::GpuRuntime& runtime_;
  const std::shared_ptr<Api> api_;
  NcclOptions options_;
  const std::string here_;
  gpu::Stream stream_;
  bool grouped_ = false;         // true while together() runs
  std::string unregistered_;     // why memory is not registered; empty if it is registered or not yet allocated
  std::vector<Memory*> memory_;  // all memory from allocate() that is not yet destroyed

  const std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();
  std::atomic<bool> aborted_{false};
  /// Held during a call of the owner. Since NCCL 2.26 such a call ends in ncclCommGetAsyncError(), which joins the
  /// thread of the call; two threads in this function would both join it. abort() does not wait for this mutex.
  std::mutex owners_call_;
  Mutex mutex_;
  Comm comm_ HVD_GUARDED_BY(mutex_);  // null before create(), and after release_communicator() or abort()
};

}  // namespace hvd::comm::nccl
