// Reductions between nodes, of pinned host memory, on a thread of their own: what the streams of a hierarchical plane
// wait for at their gates. Jobs are done one by one, in the order of their submission.
//
// Threads: submit() is the plane's owner's; check() and abort() are anybody's.
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

class Crossing {
 public:
  struct Job {
    void* data = nullptr;  ///< pinned memory, filled when the stream reaches the gate
    std::size_t count = 0;
    DataType dtype = DataType::kF32;
    ReduceOp op = ReduceOp::kSum;  ///< between nodes; kAverage: sums, divided by `divisor`
    int divisor = 1;
    bool divide_first = false;  ///< before the sum: where sums could overflow (fp16)
    Deadline deadline;
  };

  /// `across`: one rank per node, in the order of the nodes; nobody else uses it. Borrowed.
  explicit Crossing(Communicator& across);
  /// Nothing is being done, or it was aborted.
  ~Crossing();
  Crossing(const Crossing&) = delete;
  Crossing& operator=(const Crossing&) = delete;

  /// `gate` is on the stream, behind what fills the job's memory. It opens when the job is done, and on abort(); not
  /// when the job fails: the stream stays there, so that nobody computes with what is not reduced.
  void submit(const Job& job, std::shared_ptr<gpu::HostGate> gate);
  /// Whether a job is not done.
  [[nodiscard]] bool busy();
  /// Errors: what ended the thread, if a job failed.
  void check();
  /// Ends the wait of the thread and of the streams: the stream of the job that the thread has in its hands goes on
  /// when the thread has let go of its memory. `reason` is for the peers.
  void abort(const std::string& reason) noexcept;

 private:
  struct Entry {
    Job job;
    std::shared_ptr<gpu::HostGate> gate;
  };
  void run();
  std::optional<Entry> next();
  void perform(const Entry& entry);
  void await_stream(const Entry& entry);

  Communicator& across_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Entry> entries_ HVD_GUARDED_BY(mutex_);  // the first is being done
  std::optional<Error> failure_ HVD_GUARDED_BY(mutex_);
  bool performing_ HVD_GUARDED_BY(mutex_) = false;  // the first, by the thread
  bool over_ HVD_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace hvd::comm::nccl
