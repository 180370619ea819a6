// The engine's implementation, shared by engine_impl.cpp (the callers' side) and engine_thread.cpp (the side of the
// engine's thread). Below, "the thread" is the engine's thread.
//
// Fields are guarded by mutex_, or are atomic, or belong to one of the two sides. The caller writes what a step needs
// (marks_, plan_, ...) while no step is active, and the thread reads them after it has taken the step from the queue.
//
// To sleep, the thread sets sleeping_, checks for work, and waits. A caller stores its work and then checks sleeping_.
// Both sides write before they read, in one total order (sequentially consistent). So the thread sees the work, or the
// caller sees sleeping_, or both. No wake-up is lost, and while the thread is awake, a caller pays only for one load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "engine/base/mutex.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/negotiated_schedule.h"
#include "engine/runtime/ready_marks.h"
#include "engine/runtime/roll_call.h"
#include "engine/runtime/trace.h"
#include "engine/runtime/work_queue.h"

namespace hvd {

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): one per engine; grouped by owner, not by size
class Engine::Impl {
 public:
  Impl(std::shared_ptr<comm::Communicator> communicator, const EngineOptions& options, Watchdog* watchdog);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // -- callers' side -----------------------------------------------------------------------------------
  /// Runs `work` on the thread (in a world of one rank: on the caller's thread), after all tickets in flight, and waits
  /// until `work` has returned.
  /// Errors: those of `work`, which fail the engine; invalid_argument inside a step.
  void execute(const char* what, const std::function<void()>& work);
  /// Like execute(), for one operation of the data plane; waits until the operation is complete.
  void on_plane(const char* what, const std::function<void(comm::DataPlane& plane, Deadline deadline)>& operation);
  /// The caller has checked the memory of `tensor`. This method sets the ticket and the time of `tensor`.
  Ticket submit(core::Request request, PendingTensor tensor);
  Output take_output(Ticket ticket);
  std::optional<Error> error_of(Ticket ticket);
  bool done(Ticket ticket);
  std::span<std::byte> allocate(std::size_t bytes);
  void set_gradients(std::vector<core::GradientInfo> gradients, std::byte* arena, DataType dtype, ReduceOp op);
  void set_buckets(const core::BucketOptions& buckets);
  void set_negotiation(const core::FusionOptions& fusion, std::chrono::microseconds cycle_time);
  void begin_step();
  void gradient_ready(std::size_t index);
  StepReport finish_step();
  void abort(std::string_view reason) noexcept;
  std::string data_plane();
  core::CycleStats cycle_stats();
  void close_trace();
  void throw_if_failed();
  std::string flight_record();
  /// Returns the share of `rank` in a bucket under the sharded schedule, in elements from the bucket's start.
  [[nodiscard]] comm::Range share(const core::Bucket& bucket, int rank) const;
  // gather_shares() and reduce_shares() are called on the thread.
  void gather_shares(std::byte* data, DataType dtype);
  void reduce_shares(const core::Bucket& bucket);
  [[nodiscard]] bool solo() const noexcept { return size_ == 1; }

  /// The engine's thread. It does nothing after `over`, but ends only after the communicator: NCCL 2.23 to 2.25 keeps
  /// the state of a call in memory of the thread that called, and reads it when the communicator is destroyed.
  struct EngineThread {
    ~EngineThread() {
      if (!thread.joinable()) return;
      may_end.count_down();
      thread.join();
    }
    std::latch over{1}, may_end{1};
    std::thread thread;
  };

  EngineThread thread_;  // the first member, because it is destroyed last
  const std::shared_ptr<comm::Communicator> communicator_;
  EngineOptions options_;  // only the thread uses `deadline`
  const int size_;
  const std::string library_;
  std::unique_ptr<TraceWriter> trace_;  // null: no trace

  // The caller's current activity, for roll calls.
  std::atomic<const char*> activity_{nullptr};
  std::atomic<std::uint64_t> activity_step_{0};

  // The caller changes these fields between steps.
  Schedule schedule_;
  core::BucketPlan plan_;
  std::vector<core::GradientInfo> gradients_;

  std::atomic<bool> in_step_{false};

 private:
  struct Failure {
    Errc code;
    std::string text;
    std::string flights = {};  ///< Communicator::flight_record() if a peer was lost; else empty
  };

  enum class WakeFor : std::uint8_t { kAnything, kTensors };

  // -- the thread's side (engine_thread.cpp) -------------------------------------------------------------
  void run() noexcept;
  /// Runs `body`; an exception from it fails the engine.
  void guard(const std::function<void()>& body) noexcept;
  void loop();
  void collect();
  void run_cycle();
  void reduce_bucket(std::size_t bucket);
  /// Number of elements in each rank's share of a bucket, indexed by rank.
  [[nodiscard]] std::vector<std::size_t> share_counts(const core::Bucket& bucket) const;
  bool run_command();
  void complete_step();
  /// Sleeps until there is work or `until` has passed. Returns true if there is work.
  bool sleep(Clock::time_point until, WakeFor what);
  bool has_work(WakeFor what) HVD_REQUIRES(mutex_);
  bool next_bucket_ready() const noexcept;
  bool finished_for_good();
  void idle();
  void fail(Errc code, std::string text) noexcept;
  void warn_of_stall(const comm::StalledWait& stalled);
  std::string investigate(Errc& code, const std::string& text);
  std::string status() const;
  std::string here() const;

  // -- callers' side -----------------------------------------------------------------------------------
  /// Collective. Compares `plan`, made from `gradients`, with the plans of all ranks, and uses it from now on.
  /// Errors: mismatch if the plans differ.
  void adopt(core::BucketPlan plan, const std::vector<core::GradientInfo>& gradients);
  void wake_thread() noexcept;
  void throw_failure() HVD_REQUIRES(mutex_);
  /// Errors: unsupported if the data plane cannot perform the request.
  void refuse_unsupported(const core::Request& request) const;
  /// Issues a ticket, and sets the ticket and time of `tensor`. Errors: invalid_argument if the request has the name of
  /// a gradient; the error of a failed engine.
  Ticket admit(const core::Request& request, PendingTensor& tensor) HVD_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar work_;  // the thread waits here for work
  CondVar done_;  // callers wait here for results
  WorkQueue queue_ HVD_GUARDED_BY(mutex_);
  TicketTable tickets_ HVD_GUARDED_BY(mutex_);
  std::unordered_set<std::string> gradient_names_ HVD_GUARDED_BY(mutex_);
  bool stopping_ HVD_GUARDED_BY(mutex_) = false;
  std::optional<std::string> abort_reason_ HVD_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ HVD_GUARDED_BY(mutex_);
  bool step_done_ HVD_GUARDED_BY(mutex_) = false;
  StepReport finished_report_ HVD_GUARDED_BY(mutex_);
  core::CycleStats stats_ HVD_GUARDED_BY(mutex_);
  std::string data_plane_ HVD_GUARDED_BY(mutex_);
  Mutex solo_mutex_;  // serialises callers in a world of one rank, which has no thread

  std::atomic<bool> sleeping_{false};
  std::atomic<bool> failed_{false};                       // true if failure_ is set
  std::atomic<Schedule> step_schedule_{Schedule::kNone};  // schedule of the caller's current step
  std::atomic<std::size_t> next_bucket_{0};               // the thread advances it; the caller resets it between steps
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::uint64_t> moved_{0};  // batches reduced in the current step

  // The caller writes these fields between steps; during a step they belong to the thread.
  ReadyMarks marks_;
  std::byte* arena_ = nullptr;
  std::size_t left_ = 0;  // number of gradients of a negotiated step that are not yet reduced
  StepReport report_;     // report of the current step

  // Only the thread uses these fields.
  StepReport no_step_;                 // collects the figures of tickets while there is no step; never read
  Schedule active_ = Schedule::kNone;  // schedule of the step that the thread works on; kNone: no step
  Watchdog* const watchdog_;           // null: none
  bool in_command_ = false;
  NegotiatedSchedule negotiated_;
  WorkQueue::Taken taken_;
  std::vector<std::unique_ptr<comm::RegisteredMemory>> memory_;

  const int exceptions_at_birth_;
};

}  // namespace hvd
