// The NCCL data plane: when to wait for the library, for how long, and what to say when it fails. The library itself
// is behind Api; the GPU behind gpu::Runtime; neither header of theirs is needed here.
//
// Threads: the owner's, except check(), abort() and await_abort(). While the library aborts, on a thread of its own,
// the owner may be inside a call; later calls of the owner throw. No lock is held over a call that can wait.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/comm/device_communicator.h"

namespace hvd::comm::nccl {

/// "rank 1 (host b, GPU 0 (NVIDIA H200))".
std::string here_of(const Topology& where, const gpu::Runtime& runtime);

/// Errors: unsupported for a type that NCCL has no reduction of. Ranks that reduce the same get the same error.
void require_reducible(DataType dtype);

class Plane final : public DevicePlane {
 public:
  /// Collective: creates the communicator and tries it. Borrows `host` and `runtime`. `here` is who this is in
  /// messages: here_of() of the world, which may be larger than that of `host`.
  Plane(Communicator& host, gpu::Runtime& runtime, std::shared_ptr<Api> api, const NcclOptions& options,
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
  void complete(std::string_view what, Deadline deadline) override;
  void together(const std::function<void()>& calls, Deadline deadline) override;
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] gpu::StreamView stream() const override { return stream_; }
  [[nodiscard]] gpu::Runtime& runtime() const override { return runtime_; }
  void check() override;
  void abort() noexcept override;
  bool await_abort(Deadline deadline) noexcept override;
  void reconnect(const NcclOptions& options, Deadline deadline) override;
  [[nodiscard]] bool registers_memory() const override;
  [[nodiscard]] std::chrono::nanoseconds creation_time() const override { return creation_time_; }

  // For planes that put something between the parts of an all-reduce. In place, enqueued, errors as those of
  // all_reduce().
  /// Of `count` elements, to rank `root`; what is in the others is undefined.
  void reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, int root, Deadline deadline);
  /// As broadcast(), but only enqueued.
  void enqueue_broadcast(void* data, std::size_t bytes, int root, Deadline deadline);

 private:
  class Memory;

  [[nodiscard]] bool alone() const;
  /// "rank 1 (host b): ncclAllReduce (26214400 bytes)".
  [[nodiscard]] std::string doing(const std::string& what) const;
  /// Collective: creates the communicator and tries it. Errors: the peers are told.
  void connect(Deadline deadline);
  void create(Deadline deadline);
  /// Collective: the ranks part.
  void disconnect(Deadline deadline);
  using Function = Result (Api::*)(Comm, const Operation&, gpu::StreamView);
  /// A count of 0 is nothing to enqueue.
  void enqueue(Function function, const std::string& name, const Operation& what, Deadline deadline);
  /// Hands the operations that `calls` enqueues over as one group, which errors call `name`.
  void group(const std::function<void()>& calls, const std::string& name, Deadline deadline);
  /// A world of one copies its own share instead of calling NCCL.
  void take(void* out, const void* in, std::size_t count, DataType dtype);
  UniqueId agree_on_id(Deadline deadline);
  [[nodiscard]] std::string no_registration() const;
  /// After a call: waits while it is in progress. Errors: as its docstring's, naming `what`.
  void settle(Result result, const std::string& what, Deadline deadline);
  [[noreturn]] void refuse(Result result, const std::string& what);
  void throw_if_aborted();
  Result state();
  [[nodiscard]] std::string explain(Result result);
  [[nodiscard]] bool left_behind() const;
  /// The communicator, which is then this plane's no more.
  Comm give_away();
  /// Runs a call that uses the communicator; whoever aborts waits a little for it to return.
  template <class Call>
  Result call(Call&& body);

  /// State shared by the plane and its aborting thread. The thread may outlive the plane.
  struct Ending {
    std::atomic<int> calls{0};  // of the owner, under way
    Mutex mutex;
    CondVar changed;
    bool aborting HVD_GUARDED_BY(mutex) = false;
    bool left_behind HVD_GUARDED_BY(mutex) = false;  // somebody has waited for its end in vain
  };

  Communicator& host_;
  gpu::Runtime& runtime_;
  const std::shared_ptr<Api> api_;
  NcclOptions options_;
  const std::string here_;
  gpu::Stream stream_;
  std::chrono::nanoseconds creation_time_{0};
  bool grouped_ = false;         // inside together()
  std::string unregistered_;     // why memory is not registered; empty: it is, or there is none yet
  std::vector<Memory*> memory_;  // that lives

  const std::shared_ptr<Ending> ending_ = std::make_shared<Ending>();
  std::atomic<bool> aborted_{false};
  Mutex mutex_;
  Comm comm_ HVD_GUARDED_BY(mutex_);  // null: none yet, or given away to be destroyed or aborted
};

}  // namespace hvd::comm::nccl
