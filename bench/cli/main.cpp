// hvd_bench: builds the parts from the command line, runs the session, prints and stores the results.
// Only this file turns an Error into an exit code and ends the process.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "bench/cli/coll_output.h"
#include "bench/cli/command_line.h"
#include "bench/cli/console.h"
#include "bench/cli/doctor.h"
#include "bench/cli/environment.h"
#include "bench/cli/json_report.h"
#include "bench/cli/launch.h"
#include "bench/cli/mpi_deadline.h"
#include "bench/cli/nccl_log.h"
#include "bench/cli/preflight.h"
#include "bench/cli/record_keeper.h"
#include "bench/cli/report.h"
#include "bench/cli/run_facts.h"
#include "bench/cli/signal_watch.h"
#include "bench/cli/stored_output.h"
#include "bench/coll/session.h"
#include "bench/measure/units.h"
#include "bench/store/host_facts.h"
#include "bench/store/provenance.h"
#include "bench/store/result_store.h"
#include "bench/train/gpu_backend.h"
#include "bench/train/rank_group.h"
#include "bench/train/ranks.h"
#include "bench/train/session.h"
#include "engine/base/error.h"
#include "engine/base/mutex.h"
#include "engine/comm/communicator.h"
#include "engine/comm/device_communicator.h"
#include "engine/comm/process.h"

namespace hvd::bench {
namespace {

constexpr int kDefect = 9;  // exit code for an exception that is not an hvd::Error
// mpirun (Open MPI 4.1) ends the other ranks one second after the first one has left; the rest is a margin.
constexpr std::chrono::milliseconds kWaitForLauncher(1500);
constexpr std::chrono::milliseconds kWaitBeforeTheRanksMeet(5000);  // no other rank waits for this one yet
/// How long rank 1 waits for rank 0 to report that ranks never joined. mpirun wakes a stopped rank some seconds before
/// it ends that rank (odls_base_sigkill_timeout), and the stopped rank's deadline has passed by then.
constexpr std::chrono::milliseconds kWaitForTheRoot(5000);
constexpr std::chrono::milliseconds kLetTheRootLeave(2500);
constexpr std::chrono::seconds kForcedEnd(10);
constexpr std::chrono::seconds kWaitForTheStore(30);         // while another program holds a lock on it
constexpr std::chrono::milliseconds kForcedClose(250);       // mpirun of Open MPI 4 kills 1 s after SIGTERM
constexpr std::chrono::milliseconds kForcedClosePrrte(120);  // mpirun of Open MPI 5 kills 0.25 s after SIGTERM

class Application {
 public:
  explicit Application(std::vector<std::string> argv)
      : argv_(std::move(argv)),
        start_(process_start(process_environment())),
        gpus_(make_cuda_backend(start_.environment)) {}

  int run();
  /// Reports the error, keeps what was measured, returns the exit code.
  int fail(const Error& error);

 private:
  int train(Options options);
  int coll(const CollCommand& command);
  void watch_signals();
  void arm_join(const Options& options);
  void open_store(const Options& options);
  SessionObserver observer(const Options& options);
  void announce(const Options& options, const std::string& text);
  void prepare(const Options& options, RunRecord& run);
  int close(const Options& options, const SessionResult& result);
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
  std::exception_ptr store_problem_;  // thrown later, when the other ranks can be told
  ErrorStage stage_ = ErrorStage::kUsage;
  std::atomic<bool> ranks_have_met_ = false;
  Mutex mutex_;
  std::vector<comm::Neighbour> neighbours_ HVD_GUARDED_BY(mutex_);
  std::string flights_ HVD_GUARDED_BY(mutex_);  // SessionObserver::flight_record
  bool looked_for_lost_ = false;                // used on the signal watch's thread only
  std::string lost_rank_text_;                  // used there too; begins the error if a rank of this host ended first
  std::atomic<bool> leaving_ = false;           // this rank is leaving MPI's world
  std::atomic<bool> end_begun_ = false;         // a thread has begun to report how the session ended
  bool main_thread_ends_ = false;               // that thread is the main thread, in close()
  std::atomic<bool> is_coll_ = false;
  std::timed_mutex coll_output_;  // held by the thread that writes the results of `coll`; guards the next two members
  coll::Snapshot coll_snapshot_;
  std::function<void(const coll::CollResult&, std::chrono::milliseconds)> write_coll_;
  std::atomic<bool> coll_written_ = false;  // the results of `coll` are printed and written to their files
  bool world_announced_ = false;
  std::optional<NcclLog> nccl_log_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<RecordKeeper> keeper_;
  std::atomic<RecordKeeper*> keeper_to_close_ = nullptr;  // keeper_, for the signal watch's thread
  std::unique_ptr<SignalWatch> watch_;  // destroyed before the members above, because its thread uses them
  std::unique_ptr<MpiDeadline> join_;   // destroyed first, because its thread uses watch_
};

int Application::run() {
  CommandLine line = parse_command_line(argv_, start_.environment);
  switch (line.command) {
    case Command::kPrint: {
      if (launch_.rank != 0) return 0;
      Console(Console::Settings{}).print(line.text);
      return 0;
    }
    case Command::kDoctor: {
      std::ostringstream text;
      const int code = print_findings(examine(line.options.db_file, start_), launch_, text);
      Console(Console::Settings{}).print(text.str());
      return code;
    }
    case Command::kStored: {
      std::ostringstream text;
      const int code = print_stored_labels(stored_labels(line.label, line.files), text);
      Console(Console::Settings{}).print(text.str());
      return code;
    }
    case Command::kColl: return coll(line.coll);
    case Command::kTrain: break;
  }
  return train(std::move(line.options));
}

int Application::train(Options options) {
  watch_signals();
  console_ = std::make_unique<Console>(Console::Settings{options.quiet, ::isatty(STDERR_FILENO) == 1});
  check_launch(launch_, options, comm::mpi_available());
  stage_ = ErrorStage::kHost;
  const Setup setup = check_model(options, gpus_.get());
  if (launch_.rank == 0) open_store(options);
  if (launch_.rank == 0) announce(options, plan_text(options, setup, keeper_->partial()));
  stage_ = ErrorStage::kSession;
  if (setup.device == Device::kCuda && (launch_.size > 1 || options.ranks > 1)) nccl_log_.emplace(start_.environment);
  arm_join(options);
  const SessionResult result = run_session(
      options, observer(options), [&](RunRecord& run) { prepare(options, run); }, gpus_.get(), start_);
  join_.reset();
  if (!result.is_root) return 0;
  return close(options, result);
}

int Application::coll(const CollCommand& command) {
  watch_signals();
  console_ = std::make_unique<Console>(Console::Settings{});
  is_coll_ = true;
  Options world = command.world;
  check_launch(launch_, world, comm::mpi_available());
  stage_ = ErrorStage::kHost;
  std::unique_ptr<CollStore> store;
  if (launch_.rank == 0) {
    check_coll_outputs(command.options);
    const std::string& file = command.options.db_file;
    if (!file.empty()) store = std::make_unique<CollStore>(file, argv_, start_);
  }
  stage_ = ErrorStage::kSession;
  arm_join(world);
  const CollOutput output{command.options, argv_, start_.environment, *console_, store.get()};
  coll::CollObserver observer = coll_observer(this->observer(world), *console_);
  // No other thread reads write_coll_ before it has a snapshot.
  write_coll_ = [output](const coll::CollResult& result, std::chrono::milliseconds for_the_store) {
    put_coll_outputs(output, result, for_the_store);
  };
  observer.finished = [this](const coll::CollResult& result) {
    const std::lock_guard lock(coll_output_);
    if (coll_written_) return;
    write_coll_(result, kWaitForTheStore);
    coll_written_ = true;
  };
  observer.snapshot = [this](coll::Snapshot snapshot) {
    const std::lock_guard lock(coll_output_);
    coll_snapshot_ = std::move(snapshot);
  };
  const coll::CollResult result = coll::run_coll(world, command.options, observer, gpus_.get(), start_);
  join_.reset();
  return result.exit_code();
}

void Application::watch_signals() {
  SignalWatch::block();  // before any thread starts
  watch_ =
      std::make_unique<SignalWatch>(SignalWatch::Callbacks{[this](int signal_number) {
                                                             look_for_lost_neighbour();
                                                             return grace(launch_, signal_number);
                                                           },
                                                           [this](const std::string& reason) { end_now(reason); }});
}

void Application::arm_join(const Options& options) {
  if (launch_.size == 1) return;
  join_ = std::make_unique<MpiDeadline>([this, join = options.startup_deadline, leave = patience_to_leave(options)] {
    end_alone(leaving_ ? leave : join);
  });
  join_->arm(options.startup_deadline.timeout);
}

void Application::open_store(const Options& options) {
  session_uuid_ = new_uuid();
  provenance_ = collect_provenance(argv_, start_);
  std::unique_ptr<ResultStore> store;
  try {
    check_outputs(options, std::max(launch_.size, options.ranks));
    if (!options.db_file.empty()) {
      store = std::make_unique<ResultStore>(options.db_file, session_uuid_, quoted_command_line(argv_, start_));
    }
  } catch (const Error&) {
    // Throw now if this rank is alone or if mpirun ends the others. Otherwise the other ranks would wait for this rank
    // inside MPI's start, so the session tells them later.
    if (launch_.size == 1 || launch_.launcher == Launcher::kMpirun) throw;
    store_problem_ = std::current_exception();
  }
  keeper_ = std::make_unique<RecordKeeper>(std::move(store), [this](std::string_view text) { console_->warn(text); });
  keeper_to_close_ = keeper_.get();
}

SessionObserver Application::observer(const Options& options) {
  SessionObserver observer;
  observer.stop_requested = [this] { return watch_->requested(); };
  if (nccl_log_) observer.nccl_log = [this] { return nccl_log_->text(); };
  observer.stuck = [this](const Error& error) { end_stuck(error); };
  if (join_) {
    observer.joined = [this] { join_->disarm(); };
    observer.met = [this](std::vector<comm::Neighbour> neighbours) {
      ranks_have_met_ = true;
      const MutexLock lock(mutex_);
      neighbours_ = std::move(neighbours);
    };
    observer.leaving = [this, patience = patience_to_leave(options).timeout] {
      leaving_ = true;
      join_->arm(patience);
    };
  }
  observer.warn = [](std::string_view line) { say_warning(line); };
  observer.flight_record = [this](std::string table) {
    const MutexLock lock(mutex_);
    if (flights_.empty()) flights_ = std::move(table);  // keeps the table of the first rank of this process
  };
  if (launch_.rank != 0) return observer;
  observer.progress = [this](const Progress& progress) {
    // Not during "building": the ranks can be told, and end with the same exit code, only once they follow rank 0.
    if (store_problem_ && progress.stage != "building") std::rethrow_exception(store_problem_);
    console_->show(progress);
  };
  observer.save = [this, &options](const RunRecord& run) {
    // Announce the session's main phase only: a baseline phase runs on the host of one rank and uses no transport.
    const bool main = !options.efficiency || run.phase == Phase::kFull;
    if (main && !std::exchange(world_announced_, true)) announce(options, world_text(options, run));
    keeper_->save(run);
  };
  return observer;
}

void Application::announce(const Options& options, const std::string& text) {
  if (options.quiet) return;
  options.json ? console_->narrate(text) : console_->print(text);
}

void Application::prepare(const Options& options, RunRecord& run) {
  if (store_problem_) std::rethrow_exception(store_problem_);
  check_world(launch_, run.allocation_size, options);
  run.uuid = new_uuid();
  run.session_uuid = session_uuid_;
  add_run_facts(options, provenance_, run);
}

int Application::close(const Options& options, const SessionResult& result) {
  if (end_begun_.exchange(true)) std::this_thread::sleep_for(kForcedEnd);
  main_thread_ends_ = true;
  StoredIn stored{keeper_->file(), {}};
  int code = 0;
  try {
    keeper_->finish();
  } catch (const Error& error) {
    stored.problem = error.what();
    code = exit_code(error.code());
  }
  if (!stored.problem.empty()) say_error(stored.problem);
  for (const std::string& fault : result.faults) {
    say_error(fault + "; all was measured");
    if (code == 0) code = exit_code(Errc::kIo);
  }
  if (code == 0 && result.validation) code = result.validation->exit_code();
  const RunRecord* run = headline(result);
  std::string text;
  if (options.json) {
    text = json_report(result, stored);
  } else if (!options.quiet) {
    text = closing_text(result, stored);
  }
  if (run != nullptr && run->images_per_second) {
    const std::string total = total_line(run->images_per_second->value) + "\n";
    options.json ? console_->narrate(total) : static_cast<void>(text += total);
  }
  try {
    console_->print(text);
  } catch (const Error& error) {
    throw Error(error.code(),
                std::string(error.what()) + (stored.file.empty()      ? "; the results are lost (--no-db)"
                                             : stored.problem.empty() ? "; the results are in " + stored.file
                                                                      : ""));
  }
  return code;
}

void Application::end_now(const std::string& reason) {
  const bool first = !end_begun_.exchange(true);
  RecordKeeper* const keeper = keeper_to_close_;
  const std::chrono::milliseconds for_the_store = launch_.prrte ? kForcedClosePrrte : kForcedClose;
  if (first && is_coll_ && launch_.rank == 0) write_coll_now(lost_rank_text_ + reason, for_the_store);
  // Print the line first, because printing takes no time; the launcher may not leave enough time for the disk. If the
  // ranks have not met, the launcher ends this rank because another one failed and has already said why.
  if (first && launch_.rank == 0 && (launch_.size == 1 || ranks_have_met_)) {
    const char* const work = is_coll_ ? "operations" : "step";
    say_error(lost_rank_text_ + "stopped by " + reason + " before the " + work + " in progress could end; " +
              what_is_kept(keeper));
  }
  leave_now(lost_rank_text_ + reason, lost_rank_text_.empty() ? Errc::kInterrupted : Errc::kPeerLost, for_the_store);
}

/// Called when the first signal arrives. A launcher sends a signal because a rank has ended, and this rank may be in no
/// wait that would notice that. Later signals are not examined: other ranks then end because of the first signal.
void Application::look_for_lost_neighbour() {
  if (std::exchange(looked_for_lost_, true) || leaving_ || end_begun_) return;  // ranks that are leaving are not lost
  const MutexLock lock(mutex_);
  for (const comm::Neighbour& other : neighbours_) {
    if (!comm::has_ended(other.process)) continue;
    lost_rank_text_ = other.rank + " is lost: its process " + std::to_string(other.process) + " has ended; ";
    return;
  }
}

void Application::leave_now(const std::string& reason, Errc code, std::chrono::milliseconds for_the_store) {
  if (RecordKeeper* const keeper = keeper_to_close_; keeper != nullptr) {
    if (const std::string problem = keeper->close_now(reason, Deadline::after(for_the_store)); !problem.empty()) {
      say_error(problem);
    }
  }
  let_the_root_leave_first();
  comm::remove_shared_names();
  std::_Exit(exit_code(code));  // runs no destructors, because other threads may still use the objects
}

/// Ends the process when this rank's training thread does not return from its GPU.
void Application::end_stuck(const Error& error) {
  if (end_begun_.exchange(true)) std::this_thread::sleep_for(kForcedEnd);
  say(error);
  leave_now(error.what(), error.code(), kForcedEnd);
}

/// Ends the process when other ranks never joined or never left MPI's world. Every rank finds out; one reports it.
void Application::end_alone(Patience waited) {
  if (end_begun_.exchange(true)) std::this_thread::sleep_for(kForcedEnd);
  const Error error(
      Errc::kTimeout,
      launch_.evidence + ": not all of these processes " + (leaving_ ? "left" : "joined") + " the MPI world within " +
          duration_text(std::chrono::duration<double>(waited.timeout).count()) +
          "; one is stopped, ended or on a host that the others cannot reach: see mpirun's output and ps, or raise " +
          waited.set_by);
  RecordKeeper* const keeper = keeper_to_close_;
  const bool saved = leaving_ && keeper != nullptr && keeper->has_saved();
  // Rank 0 reports it. If rank 0 itself is missing, rank 1 does.
  if (launch_.rank == 0 || (launch_.rank == 1 && !watch_->wait(kWaitForTheRoot))) {
    say_error(error.what() + (saved ? "; the results are in " + keeper->file() : std::string()));
  }
  leave_now(error.what(), error.code(), kForcedEnd);
}

void Application::let_the_root_leave_first() const {
  // mpirun kills all ranks as soon as one has left, so rank 0 must print and store first. If rank 0 is alive, mpirun's
  // SIGTERM usually ends this wait; kLetTheRootLeave limits it if rank 0 is gone.
  if (launch_.rank == 0 || launch_.launcher != Launcher::kMpirun || !watch_) return;
  if (watch_->requested().empty()) {
    [[maybe_unused]] const bool told_to_leave = watch_->wait(kLetTheRootLeave);
  } else {
    std::this_thread::sleep_for(kLetTheRootLeave);
  }
}

/// Text for the line that says how a session ended early.
std::string Application::what_is_kept(const RecordKeeper* keeper) const {
  if (is_coll_) {
    return coll_written_ ? "what was measured is printed and written" : "nothing is printed or written";
  }
  if (keeper != nullptr && keeper->has_saved()) {
    return "what was measured goes to " + keeper->file() + ", marked incomplete";
  }
  return keeper != nullptr && keeper->file().empty() ? "nothing is stored (--no-db)" : "nothing was measured yet";
}

/// Writes the results of `coll` if the main thread waits for a peer. If that thread is writing, waits up to `patience`.
void Application::write_coll_now(const std::string& reason, std::chrono::milliseconds patience) {
  const std::unique_lock lock(coll_output_, patience);
  if (!lock || coll_written_ || !coll_snapshot_) return;
  const std::optional<coll::CollResult> result = coll_snapshot_(reason);
  if (!result) return;
  try {
    write_coll_(*result, patience);
    coll_written_ = true;
  } catch (const Error& error) {
    say_error(error.what());
  }
}

/// Prints the error if this rank is the one to report it. Returns true if it did.
bool Application::say(const Error& error) {
  // An AgreedError came from rank 0, which has reported it.
  if (launch_.rank != 0 && dynamic_cast<const AgreedError*>(&error) != nullptr) return false;
  std::string text = error.what();
  const bool saved = coll_written_ || (keeper_ != nullptr && keeper_->has_saved() && !main_thread_ends_);
  if (saved || (error.code() == Errc::kInterrupted && launch_.rank == 0)) text += "; " + what_is_kept(keeper_.get());
  if (launch_.rank != 0) text = "rank " + std::to_string(launch_.rank) + " on " + host_name() + ": " + text;
  switch (error_reporting(launch_, error, stage_)) {
    case ErrorReporting::kSilent: return false;
    case ErrorReporting::kUnlessStopped:
      if (watch_ && watch_->wait(stage_ == ErrorStage::kHost ? kWaitBeforeTheRanksMeet : kWaitForLauncher))
        return false;
      [[fallthrough]];
    case ErrorReporting::kNow: say_error(text);
  }
  return true;
}

int Application::fail(const Error& error) {
  if (!main_thread_ends_ && end_begun_.exchange(true)) {
    std::this_thread::sleep_for(kForcedEnd);  // end_now() runs on another thread and ends the process
  }
  const bool said = say(error);
  if (said && console_) {
    const MutexLock lock(mutex_);
    if (!flights_.empty()) console_->narrate("collectives that the ranks entered last:\n" + flights_);
  }
  if (keeper_) {
    try {
      keeper_->finish(error.what());
    } catch (const Error& problem) {
      if (std::string_view(problem.what()) != error.what()) say_error(problem.what());
    }
  }
  if (!said) let_the_root_leave_first();
  return exit_code(error.code());
}

/// Ends main(). If an abort of NCCL has not returned, its thread still uses the library, so no destructors may run.
int leave(int code) {
  if (comm::unfinished_aborts() > 0) std::_Exit(code);
  return code;
}

}  // namespace
}  // namespace hvd::bench

int main(int argc, char** argv) {
  using hvd::bench::Application;
  using hvd::bench::leave;
  // Writing to a closed pipe, or beyond a limit on file sizes, must fail that one call and not end the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  hvd::bench::occupy_standard_descriptors();
  try {
    Application program(std::vector<std::string>(argv, argv + argc));
    try {
      return leave(program.run());
    } catch (const hvd::Error& error) {
      return leave(program.fail(error));
    } catch (const std::bad_alloc&) {
      const hvd::Error refused(hvd::Errc::kOutOfMemory, "out of memory; use a smaller --batch-size or --image-size");
      return leave(program.fail(refused));
    } catch (const std::system_error& error) {
      return leave(program.fail(hvd::bench::resource_fault(error)));
    }
  } catch (const std::exception& error) {
    hvd::bench::say_error(std::string("unexpected: ") + error.what() +
                          "; this is a defect of hvd_bench, please report it");
    return leave(hvd::bench::kDefect);
  }
}
