// The engine's inside, shared by engine_impl.cpp (the callers' side) and engine_thread.cpp (the thread's side).
//
// Who touches what: fields are either guarded by mutex_, or atomic, or belong to one of the two sides. What a
// step needs (marks_, plan_, ...) is written by the caller while no step is active and read by the thread
// once it has taken the step from the queue.
//
// How the thread sleeps: it sets sleeping_, looks for work, and waits. A caller leaves its work, then looks
// at sleeping_. Both sides write before they read, in one total order (sequentially consistent), so one of
// them sees the other: no wake-up is lost, and a thread that is awake costs its callers one load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
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
#include "engine/comm/device_communicator.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/negotiated_schedule.h"
#include "engine/runtime/observer.h"
#include "engine/runtime/ready_marks.h"
#include "engine/runtime/tickets.h"
#include "engine/runtime/trace.h"
#include "engine/runtime/work_queue.h"

namespace hvd {

// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): one per engine; grouped by owner, not by size
class Engine::Impl {
 public:
  Impl(std::unique_ptr<comm::Communicator> communicator, const EngineOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // -- callers' side -----------------------------------------------------------------------------------
  /// Runs `work` where the Communicator may be used, after all tickets in flight, and waits for it.
  /// Errors: those of `work`, which fail the engine; invalid_argument inside a step.
  void execute(const char* what, const std::function<void()>& work);
  /// The same for one operation of the data plane, until it is complete.
  void on_plane(const char* what, const std::function<void(comm::DataPlane& plane, Deadline deadline)>& operation);
  /// `tensor` says where the memory is, which is checked already; ticket and time are filled in.
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
  void observe(EngineObserver* observer);
  /// Rank `rank`'s part of a bucket under the sharded schedule, from the bucket's start.
  [[nodiscard]] comm::Range share(const core::Bucket& bucket, int rank) const;
  // On the thread.
  void gather_shares(std::byte* data, DataType dtype);
  void reduce_shares(const core::Bucket& bucket);
  [[nodiscard]] bool solo() const noexcept { return size_ == 1; }
  /// DevicePlane: NCCL has no int16.
  [[nodiscard]] bool can_reduce(DataType dtype) const noexcept {
    return device_ == nullptr || solo() || dtype != DataType::kI16;
  }

  const std::unique_ptr<comm::Communicator> communicator_;
  EngineOptions options_;  // `deadline` is the thread's
  const int size_;
  comm::DevicePlane* const device_;  // null: the data plane is the host's
  const std::string library_;
  std::unique_ptr<TraceWriter> trace_;  // null: no trace

  // What the caller is doing, for roll calls.
  std::atomic<const char*> activity_{nullptr};
  std::atomic<std::uint64_t> activity_step_{0};

  // Caller's, between steps.
  Schedule schedule_;
  core::BucketPlan plan_;
  std::vector<core::GradientInfo> gradients_;

  std::atomic<bool> in_step_{false};

 private:
  struct Failure {
    Errc code;
    std::string text;
    std::string flights = {};  ///< flight record, where a peer was lost
  };
  /// Of a rank that ended the run on its own account; its peers need not ask who is to blame.
  static constexpr std::string_view kGaveUp = " gave up: ";

  enum class WakeFor : std::uint8_t { kAnything, kTensors };

  // -- the thread's side (engine_thread.cpp) -------------------------------------------------------------
  void run() noexcept;
  /// Runs `body`; what it throws is the engine's failure.
  void guard(const std::function<void()>& body) noexcept;
  void loop();
  void collect();
  void run_cycle();
  void reduce_bucket(std::size_t bucket);
  /// Elements per rank of a bucket, [rank].
  [[nodiscard]] std::vector<std::size_t> share_counts(const core::Bucket& bucket) const;
  bool run_command();
  void complete_step();
  /// Until there is work or `until` has passed; returns whether there is work.
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
  /// Collective: takes `plan`, of `gradients`, if the ranks have the same. Errors: mismatch.
  void adopt(core::BucketPlan plan, const std::vector<core::GradientInfo>& gradients);
  void ring() noexcept;
  void throw_failure() HVD_REQUIRES(mutex_);
  /// Errors: unsupported for what the data plane cannot do.
  void refuse_unsupported(const core::Request& request) const;
  /// Issues and stamps a ticket. Errors: invalid_argument for a gradient's name; the engine's failure.
  Ticket admit(const core::Request& request, PendingTensor& tensor) HVD_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar work_;  // the thread waits
  CondVar done_;  // callers wait
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
  Mutex solo_mutex_;  // with one rank there is no thread; callers take turns

  std::atomic<bool> sleeping_{false};
  std::atomic<bool> failed_{false};                       // failure_ is set
  std::atomic<Schedule> step_schedule_{Schedule::kNone};  // of the step that the caller is in
  std::atomic<std::size_t> next_bucket_{0};               // the thread's; the caller resets it between steps
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<std::uint64_t> moved_{0};  // batches of the step

  // Written between steps, read by the thread in a step.
  ReadyMarks marks_;
  std::byte* arena_ = nullptr;
  std::size_t left_ = 0;  // gradients of a negotiated step not yet reduced
  StepReport report_;     // the thread's, of the step at hand
  StepReport no_step_;    // the thread's, of tickets outside a step; nobody reads it

  Schedule active_ = Schedule::kNone;   // the thread's: of the step that it works on; kNone: no step
  EngineObserver* observer_ = nullptr;  // the thread's
  bool in_command_ = false;             // the thread's
  NegotiatedSchedule negotiated_;       // the thread's
  WorkQueue::Taken taken_;              // the thread's
  std::vector<std::unique_ptr<comm::RegisteredMemory>> memory_;  // the thread's

  const int exceptions_at_birth_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace hvd
