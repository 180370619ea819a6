#include "bench/cli/process_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "bench/measure/units.h"
#include "bench/store/host_facts.h"
#include "bench/world/settings.h"
#include "engine/base/deadline.h"
#include "engine/comm/process.h"

namespace hvd::bench {
namespace {

/// How long the thread that ends the process may take, and how long other threads wait for that thread.
constexpr std::chrono::seconds kForcedEnd(10);
/// How long a rank with an error waits for mpirun to end this rank, before the rank prints the error. mpirun (Open MPI
/// 4.1) ends the other ranks one second after the first rank has left; 0.5 s are margin.
constexpr std::chrono::milliseconds kWaitForLauncher(1500);
/// Used instead of kWaitForLauncher before the ranks join. It is longer, because no other rank waits for this rank yet.
constexpr std::chrono::milliseconds kWaitBeforeTheRanksMeet(5000);
/// How long rank 1 waits for rank 0 to report that ranks never joined. mpirun wakes a stopped rank some seconds before
/// it ends that rank (odls_base_sigkill_timeout). The woken rank finds that its deadline has passed, and reports this.
constexpr std::chrono::milliseconds kWaitForTheRoot(5000);
constexpr std::chrono::milliseconds kLetTheRootLeave(2500);  // how long other ranks let rank 0 print and store first
/// How long storing may take after SIGTERM. mpirun of Open MPI 4 kills this process after 1 s. mpirun of Open MPI 5,
/// which uses PRRTE, kills it after 0.25 s; kForcedClosePrrte is the limit for this mpirun.
constexpr std::chrono::milliseconds kForcedClose(250);
constexpr std::chrono::milliseconds kForcedClosePrrte(120);

}  // namespace

MpiDeadline::MpiDeadline(std::function<void()> overdue) : overdue_(std::move(overdue)), thread_([this] { watch(); }) {}

MpiDeadline::~MpiDeadline() {
  {
    const MutexLock lock(mutex_);
    ended_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void MpiDeadline::arm(std::chrono::milliseconds patience) {
  {
    const MutexLock lock(mutex_);
    deadline_ = Deadline::after(patience);
  }
  changed_.notify_one();
}

void MpiDeadline::disarm() {
  {
    const MutexLock lock(mutex_);
    deadline_.reset();
  }
  changed_.notify_one();
}

void MpiDeadline::watch() {
  {
    const MutexLock lock(mutex_);
    while (!ended_ && !(deadline_ && deadline_->passed())) {
      if (deadline_) {
        changed_.wait_until(mutex_, deadline_->when());
      } else {
        changed_.wait(mutex_);
      }
    }
    if (ended_) return;
  }
  overdue_();
}

Patience patience_to_leave(Patience deadline) {
  constexpr std::chrono::milliseconds kLeast(30000);
  return {std::max(kLeast, 3 * deadline.timeout), deadline.set_by};
}

void ProcessEnd::watch_signals() {
  SignalWatch::block();  // before any thread starts
  watch_ =
      std::make_unique<SignalWatch>(SignalWatch::Callbacks{[this](int signal_number) {
                                                             look_for_lost_neighbour();
                                                             return grace(launch_, signal_number);
                                                           },
                                                           [this](const std::string& reason) { end_now(reason); }});
}

void ProcessEnd::watch_world(const WorldOptions& world, Patience deadline) {
  if (launch_.size == 1) return;
  const Patience leave = patience_to_leave(deadline);
  patience_to_leave_ = leave.timeout;
  join_ = std::make_unique<MpiDeadline>(
      [this, join = world.startup_deadline, leave] { end_alone(leaving_ ? leave : join); });
  join_->arm(world.startup_deadline.timeout);
}

void ProcessEnd::joined() { join_->disarm(); }

void ProcessEnd::met(std::vector<comm::Neighbour> neighbours) {
  ranks_have_met_ = true;
  const MutexLock lock(mutex_);
  neighbours_ = std::move(neighbours);
}

void ProcessEnd::leaving() {
  leaving_ = true;
  join_->arm(patience_to_leave_);
}

void ProcessEnd::flight_record(std::string table) {
  const MutexLock lock(mutex_);
  if (flights_.empty()) flights_ = std::move(table);  // keeps the first table if several ranks of this process fail
}

void ProcessEnd::begin_report() {
  if (end_begun_.exchange(true)) std::this_thread::sleep_for(kForcedEnd);
  main_thread_ends_ = true;
}

void ProcessEnd::end_now(const std::string& reason) {
  const bool first = !end_begun_.exchange(true);
  CollKeeper* const coll = coll_keeper_;
  const std::chrono::milliseconds for_the_store = launch_.prrte ? kForcedClosePrrte : kForcedClose;
  if (first && coll != nullptr && launch_.rank == 0) coll->write_now(lost_rank_text_ + reason, for_the_store);
  // Print the line before storing: printing takes no time, and the launcher may kill this process during the write to
  // the disk. Print nothing if the ranks have not joined, because then another rank has failed and has printed why.
  if (first && launch_.rank == 0 && (launch_.size == 1 || ranks_have_met_)) {
    say_error(fmt::format("{}stopped in the middle of {} by {}; {}", lost_rank_text_,
                          coll != nullptr ? "an operation" : "a step", reason, what_is_kept()));
  }
  leave_now(lost_rank_text_ + reason, lost_rank_text_.empty() ? Errc::kInterrupted : Errc::kPeerLost, for_the_store);
}

/// Called when a signal arrives. The launcher may have sent it because a rank ended, which this rank notices only while
/// it waits for that rank. The first call therefore looks for a neighbour whose process has ended. Later calls do
/// nothing, because by then ranks end because of the first signal.
void ProcessEnd::look_for_lost_neighbour() {
  if (std::exchange(looked_for_lost_, true) || leaving_ || end_begun_) return;  // ranks that are leaving are not lost
  const MutexLock lock(mutex_);
  for (const comm::Neighbour& other : neighbours_) {
    if (!comm::has_ended(other.process)) continue;
    lost_rank_text_ = fmt::format("{} is lost: its process {} has ended; ", other.rank, other.process);
    return;
  }
}

void ProcessEnd::leave_now(const std::string& reason, Errc code, std::chrono::milliseconds for_the_store) {
  if (RecordKeeper* const keeper = keeper_; keeper != nullptr) {
    if (const std::string problem = keeper->close_now(reason, Deadline::after(for_the_store)); !problem.empty()) {
      say_error(problem);
    }
  }
  let_the_root_leave_first();
  comm::remove_shared_names();
  std::_Exit(exit_code(code));  // runs no destructors, because other threads may still use the objects
}

void ProcessEnd::end_stuck(const Error& error) {
  if (end_begun_.exchange(true)) std::this_thread::sleep_for(kForcedEnd);
  say(error);
  leave_now(error.what(), error.code(), kForcedEnd);
}

/// Ends the process when other ranks did not join or leave MPI's world in time. Every rank notices this; only one rank
/// reports it.
void ProcessEnd::end_alone(Patience waited) {
  if (end_begun_.exchange(true)) std::this_thread::sleep_for(kForcedEnd);
  const Error error(
      Errc::kTimeout,
      fmt::format("{}: some of these processes did not {} the MPI world within {}; a process may be stopped, may have "
                  "ended, or may run on a host that the others cannot reach: see mpirun's output and ps, or raise {}",
                  launch_.evidence, leaving_ ? "leave" : "join",
                  duration_text(std::chrono::duration<double>(waited.timeout).count()), waited.set_by));
  RecordKeeper* const keeper = keeper_;
  const bool saved = leaving_ && keeper != nullptr && keeper->has_saved();
  // Rank 0 reports the error. If rank 0 itself is missing, rank 1 reports it.
  if (launch_.rank == 0 || (launch_.rank == 1 && !watch_->wait(kWaitForTheRoot))) {
    say_error(error.what() + (saved ? "; the results are in " + keeper->file() : std::string()));
  }
  leave_now(error.what(), error.code(), kForcedEnd);
}

void ProcessEnd::let_the_root_leave_first() const {
  // mpirun kills all ranks as soon as one rank has left, so rank 0 must print and store first. If rank 0 is alive,
  // mpirun's SIGTERM usually ends this wait. If rank 0 is gone, kLetTheRootLeave limits the wait.
  if (launch_.rank == 0 || launch_.launcher != Launcher::kMpirun || !watch_) return;
  if (watch_->requested().empty()) {
    [[maybe_unused]] const bool told_to_leave = watch_->wait(kLetTheRootLeave);
  } else {
    std::this_thread::sleep_for(kLetTheRootLeave);
  }
}

/// Returns what the line about an early end says about the results: whether they were stored or printed.
std::string ProcessEnd::what_is_kept() const {
  if (coll_keeper_ != nullptr) {
    return coll_is_written() ? "the results so far are printed and written" : "no results are printed or written";
  }
  const RecordKeeper* const keeper = keeper_;
  if (keeper != nullptr && keeper->has_saved()) {
    return fmt::format("the results so far go to {}, marked incomplete", keeper->file());
  }
  return keeper != nullptr && keeper->file().empty() ? "nothing is stored (--no-db)" : "nothing was measured yet";
}

bool ProcessEnd::coll_is_written() const {
  const CollKeeper* const keeper = coll_keeper_;
  return keeper != nullptr && keeper->written();
}

/// Prints the error if this rank is to report it. Returns true if the error was printed.
bool ProcessEnd::say(const Error& error) {
  // An AgreedError came from rank 0, which has printed it already.
  if (launch_.rank != 0 && dynamic_cast<const AgreedError*>(&error) != nullptr) return false;
  std::string text = error.what();
  const RecordKeeper* const keeper = keeper_;
  const bool saved = coll_is_written() || (keeper != nullptr && keeper->has_saved() && !main_thread_ends_);
  if (saved || (error.code() == Errc::kInterrupted && launch_.rank == 0)) text += "; " + what_is_kept();
  if (launch_.rank != 0) text = fmt::format("rank {} on {}: {}", launch_.rank, host_name(), text);
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

int ProcessEnd::fail(const Error& error, Console* console) {
  if (!main_thread_ends_ && end_begun_.exchange(true)) {
    std::this_thread::sleep_for(kForcedEnd);  // end_now() runs on another thread and ends the process
  }
  const bool said = say(error);
  if (said && console != nullptr) {
    const MutexLock lock(mutex_);
    if (!flights_.empty()) console->narrate("the last collectives that each rank entered:\n" + flights_);
  }
  if (RecordKeeper* const keeper = keeper_; keeper != nullptr) {
    try {
      keeper->finish(error.what());
    } catch (const Error& problem) {
      if (std::string_view(problem.what()) != error.what()) say_error(problem.what());
    }
  }
  if (!said) let_the_root_leave_first();
  return exit_code(error.code());
}

}  // namespace hvd::bench
