// Application runs the program after main() has read the environment and found out how the process was launched. It
// builds the parts from the command line, runs the session, and prints and stores the results. The functions that end
// the process before the session is over are in application_end.cpp. Threads: main()'s thread calls run() and fail().
// The threads of SignalWatch, MpiDeadline and the engine call the functions that end the process.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bench/cli/command_line.h"
#include "bench/cli/console.h"
#include "bench/cli/launch.h"
#include "bench/cli/mpi_deadline.h"
#include "bench/cli/nccl_log.h"
#include "bench/cli/record_keeper.h"
#include "bench/cli/signal_watch.h"
#include "bench/coll/session.h"
#include "bench/session/session.h"
#include "bench/store/process_start.h"
#include "bench/store/run_record.h"
#include "bench/world/gpu_backend.h"
#include "engine/base/error.h"
#include "engine/base/mutex.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// How long the thread that ends the process may take, and how long other threads wait for that thread.
inline constexpr std::chrono::seconds kForcedEnd(10);

class Application {
 public:
  Application(std::vector<std::string> argv, ProcessStart start);

  /// Does what the command line asks and returns the exit code. Errors: any Errc.
  int run();
  /// Reports the error, stores the results measured so far, and returns the exit code.
  int fail(const Error& error);

 private:
  int train(Options options);
  int coll(const CollCommand& command);
  void watch_signals();
  void arm_join(const Options& options);
  void keep_store_problem(const std::function<void()>& open);
  void open_store(const Options& options);
  SessionObserver observer(const Options& options);
  void announce(const Options& options, const std::string& text);
  void prepare(const Options& options, RunRecord& run);
  int close(const Options& options, const SessionResult& result);
  // The functions below are in application_end.cpp.
  [[noreturn]] void end_now(const std::string& reason);
  void look_for_lost_neighbour();
  [[noreturn]] void end_alone(Patience waited);
  [[noreturn]] void end_stuck(const Error& error);
  [[noreturn]] void leave_now(const std::string& reason, Errc code, std::chrono::milliseconds for_the_store);
  bool say(const Error& error);
  std::string what_is_kept(const RecordKeeper* keeper) const;
  void write_coll_now(const std::string& reason, std::chrono::milliseconds patience);
  void let_the_root_leave_first() const;

  const std::vector<std::string> argv_;
  const ProcessStart start_;
  const Launch& launch_ = start_.launch;
  const std::unique_ptr<GpuBackend> gpus_;
  std::string session_uuid_;
  Provenance provenance_;
  std::exception_ptr store_problem_;  // why an output cannot be written; thrown when rank 0 can tell the other ranks
  ErrorStage stage_ = ErrorStage::kUsage;
  std::atomic<bool> ranks_have_met_ = false;
  Mutex mutex_;
  std::vector<comm::Neighbour> neighbours_ HVD_GUARDED_BY(mutex_);
  std::string flights_ HVD_GUARDED_BY(mutex_);  // table from SessionObserver::flight_record
  bool looked_for_lost_ = false;                // used only on SignalWatch's thread
  std::string lost_rank_text_;                  // used only on SignalWatch's thread; begins the text of an error
  std::atomic<bool> leaving_ = false;           // this rank is leaving MPI's world
  std::atomic<bool> end_begun_ = false;         // a thread has begun to report how the session ended
  bool main_thread_ends_ = false;               // close(), on the main thread, reports how the session ended
  std::atomic<bool> is_coll_ = false;
  std::timed_mutex coll_output_;  // held while writing results of `coll`; guards coll_snapshot_ and write_coll_
  coll::Snapshot coll_snapshot_;
  std::function<void(const coll::CollResult&, std::chrono::milliseconds)> write_coll_;
  std::atomic<bool> coll_written_ = false;  // the results of `coll` are printed and written to their files
  bool world_announced_ = false;
  std::optional<NcclLog> nccl_log_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<RecordKeeper> keeper_;
  std::atomic<RecordKeeper*> keeper_to_close_ = nullptr;  // equals keeper_; read by SignalWatch's thread
  std::unique_ptr<SignalWatch> watch_;  // destroyed before the members above, because its thread uses them
  std::unique_ptr<MpiDeadline> join_;   // destroyed first, because its thread uses watch_
};

}  // namespace hvd::bench
