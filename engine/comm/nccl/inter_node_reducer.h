// A thread that reduces pinned host memory between nodes. The streams of a hierarchical plane wait at gates for these
// reductions. The thread does the jobs one by one, in the order of their submission.
//
// Threads: only the plane's owner calls submit(); any thread may call check() and abort().
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/mutex.h"
#include "engine/comm/communicator.h"
#include "engine/gpu/host_gate.h"

namespace hvd::comm::nccl {

class InterNodeReducer {
 public:
  struct Job {
    void* data = nullptr;  ///< pinned memory, filled when the stream reaches the gate
    std::size_t count = 0;
    DataType dtype = DataType::kF32;
    ReduceOp op = ReduceOp::kSum;  ///< kAverage: the sum over nodes, divided by `divisor`
    int divisor = 1;
    bool divide_first = false;  ///< divide before the sum, because the sum could overflow (fp16)
    Deadline deadline;
  };

  /// Borrows `across`, which has one rank per node, in the order of the nodes. No other code may use `across`.
  explicit InterNodeReducer(Communicator& across);
  /// Call only when all jobs are done, or after abort().
  ~InterNodeReducer();
  InterNodeReducer(const InterNodeReducer&) = delete;
  InterNodeReducer& operator=(const InterNodeReducer&) = delete;

  /// Before the call, put `gate` on the stream, after the work that fills the job's memory. The gate opens when the job
  /// is done, or on abort(). If the job fails, the gate stays closed until abort() and the stream waits, so that no
  /// kernel computes with data that are not reduced.
  void submit(const Job& job, std::shared_ptr<gpu::HostGate> gate);
  /// Returns true while a submitted job is not done.
  [[nodiscard]] bool busy();
  /// Errors: if a job failed, the error that ended the thread.
  void check();
  /// Ends the waits of the thread and of the streams. If the thread is reducing a job, the job's stream continues once
  /// the thread no longer uses the job's memory. Sends `reason` to the peers.
  void abort(const std::string& reason) noexcept;

 private:
  struct Entry {
    Job job;
    std::shared_ptr<gpu::HostGate> gate;
  };
  void run();
  std::optional<Entry> next();
  void reduce(const Entry& entry);
  void await_stream(const Entry& entry);

  Communicator& across_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Entry> entries_ HVD_GUARDED_BY(mutex_);  // the thread works on the first entry
  std::optional<Error> failure_ HVD_GUARDED_BY(mutex_);
  bool reducing_ HVD_GUARDED_BY(mutex_) = false;  // the thread uses the memory of the first entry
  bool over_ HVD_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the last member, because the thread uses all members above
};

}  // namespace hvd::comm::nccl
