// Ends the process when it cannot go on: after a signal, after an error, or when the ranks do not join or leave MPI's
// world in time. Decides which rank reports the reason, what is said about the results, and in which order the ranks
// leave. Holds what the threads that may end the process share with main()'s thread.
//
// Threads: main()'s thread makes all calls of a ProcessEnd, except that any thread may call end_stuck(),
// flight_record() and signal(). The threads of SignalWatch and MpiDeadline call private functions that end the process.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/cli/coll/output.h"
#include "bench/cli/console.h"
#include "bench/cli/launch.h"
#include "bench/cli/record_keeper.h"
#include "bench/cli/signal_watch.h"
#include "bench/store/process_start.h"
#include "bench/world/ranks.h"
#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "engine/base/mutex.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// A deadline for MPI_Init and MPI_Finalize. These calls wait for every process of the launch and have no deadline of
/// their own.
class MpiDeadline {
 public:
  /// This object's own thread calls `overdue`, at most once, when an armed deadline has passed. `overdue` must end the
  /// process, because the thread that waits in MPI cannot be woken.
  explicit MpiDeadline(std::function<void()> overdue);
  ~MpiDeadline();
  MpiDeadline(const MpiDeadline&) = delete;
  MpiDeadline& operator=(const MpiDeadline&) = delete;

  /// Sets the deadline, replacing an earlier one. Any thread may call it.
  void arm(std::chrono::milliseconds patience);
  void disarm();

 private:
  void watch();

  const std::function<void()> overdue_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<Deadline> deadline_ HVD_GUARDED_BY(mutex_);
  bool ended_ HVD_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

/// Returns the time limit for leaving MPI's world: three times the deadline of one wait, and at least 30 s.
Patience patience_to_leave(Patience deadline);

class ProcessEnd {
 public:
  /// `launch` must outlive the object.
  explicit ProcessEnd(const Launch& launch) : launch_(launch) {}

  /// Ends the process after a signal. Call before any thread starts.
  void watch_signals();
  [[nodiscard]] std::string signal() const { return watch_->requested(); }
  /// Ends the process if the ranks do not join MPI's world before the deadline of start-up, or do not leave it in time
  /// (patience_to_leave()). Does nothing if there is one process.
  void watch_world(const WorldOptions& world, Patience deadline);
  /// Call when the process has left MPI's world.
  void left_world() { join_.reset(); }

  /// What the process was doing when it failed (error_reporting()).
  void set_stage(ErrorStage stage) { stage_ = stage; }
  /// The keepers of the results, which must outlive the object.
  void set_keeper(RecordKeeper* keeper) { keeper_ = keeper; }
  void set_keeper(CollKeeper* keeper) { coll_keeper_ = keeper; }

  /// These are the callbacks of the same names of SessionObserver and CollObserver.
  void joined();
  void met(std::vector<comm::Neighbour> neighbours);
  void leaving();
  void flight_record(std::string table);

  /// Ends the process when this rank's training thread does not return from its GPU or from a step.
  [[noreturn]] void end_stuck(const Error& error);
  /// Call before main()'s thread reports the session's end. Does not return if another thread ends the process.
  void begin_report();
  /// Reports the error, stores the results measured so far, and returns the exit code. `console` may be null.
  int fail(const Error& error, Console* console);

 private:
  [[noreturn]] void end_now(const std::string& reason);
  void look_for_lost_neighbour();
  [[noreturn]] void end_alone(Patience waited);
  [[noreturn]] void leave_now(const std::string& reason, Errc code, std::chrono::milliseconds for_the_store);
  bool say(const Error& error);
  std::string what_is_kept() const;
  bool coll_is_written() const;
  void let_the_root_leave_first() const;

  const Launch& launch_;
  ErrorStage stage_ = ErrorStage::kUsage;
  std::chrono::milliseconds patience_to_leave_{0};
  std::atomic<bool> ranks_have_met_ = false;
  Mutex mutex_;
  std::vector<comm::Neighbour> neighbours_ HVD_GUARDED_BY(mutex_);
  std::string flights_ HVD_GUARDED_BY(mutex_);  // table from SessionObserver::flight_record
  bool looked_for_lost_ = false;                // used only on SignalWatch's thread
  std::string lost_rank_text_;                  // used only on SignalWatch's thread; begins the text of an error
  std::atomic<bool> leaving_ = false;           // this rank is leaving MPI's world
  std::atomic<bool> end_begun_ = false;         // a thread has begun to report how the session ended
  bool main_thread_ends_ = false;               // main()'s thread reports how the session ended
  std::atomic<RecordKeeper*> keeper_ = nullptr;
  std::atomic<CollKeeper*> coll_keeper_ = nullptr;  // not null: the session is one of `coll`
  std::unique_ptr<SignalWatch> watch_;              // destroyed before the members above, because its thread uses them
  std::unique_ptr<MpiDeadline> join_;               // destroyed first, because its thread uses watch_
};

}  // namespace hvd::bench
