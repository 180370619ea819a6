// The engine's thread. Only this thread communicates with peers. It sleeps while there is no work.
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "engine/core/pacing.h"
#include "engine/runtime/engine_impl.h"
#include "engine/runtime/roll_call.h"

namespace hvd {
namespace {

/// Interval at which an idle thread checks for roll calls of peers. The checks take about 10 us per second.
constexpr std::chrono::milliseconds kAnswerInterval{1000};
/// The interval of these checks if there is a Watchdog: a peer's abort must soon end work that hangs on a device.
constexpr std::chrono::milliseconds kLookInterval{20};
/// How long a roll call waits for answers: a little longer than kAnswerInterval, so that idle peers can answer.
constexpr std::chrono::milliseconds kRollCallPatience{1250};
/// How long a rank lets the ranks before it call the roll: a little longer than the roll call.
constexpr std::chrono::milliseconds kOthersPatience{1750};

bool lost_peer(Errc code) { return code == Errc::kTimeout || code == Errc::kPeerLost; }

}  // namespace

void Engine::Impl::run() noexcept {
  pthread_setname_np(pthread_self(), "hvd-engine");
  comm::ControlPlane& control = communicator_->control();
  guard([&] {
    if (options_.warn && communicator_->topology().rank < 2) {
      control.on_stall([this](const comm::StalledWait& stalled) { warn_of_stall(stalled); });
    }
    if (trace_) trace_->set_clock(estimate_clock_offset(*communicator_, options_.deadline));
    loop();
  });
  control.on_stall({});  // remove the callback, because a borrowed communicator outlives this engine
}

void Engine::Impl::guard(const std::function<void()>& body) noexcept {
  try {
    body();
  } catch (const Error& error) {
    fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    fail(Errc::kOutOfMemory, here() + ": out of memory on the engine's thread");
  } catch (const std::exception& error) {
    fail(Errc::kBackend, fmt::format("{}: {}", here(), error.what()));
  }
}

void Engine::Impl::loop() {
  for (;;) {
    collect();
    // Commands and steps are in one order on all ranks (work_queue.h). Tensors that were taken from the queue are
    // reduced before the buckets of a static step that began later. A command waits for all entries before it.
    if (negotiated_.pending()) {
      run_cycle();
    } else if (next_bucket_ready()) {
      reduce_bucket(next_bucket_.load());
    } else if (!run_command()) {
      if (finished_for_good()) return;
      idle();
    }
  }
}

/// Takes the callers' work that precedes their next command: tickets, a step, and gradients of a negotiated step.
void Engine::Impl::collect() {
  {
    const MutexLock lock(mutex_);
    if (abort_reason_) throw Error(Errc::kInterrupted, *abort_reason_);
    queue_.take_up_to_command(taken_);
  }
  for (WorkQueue::Submission& submission : taken_.submissions) {
    negotiated_.submit(submission.request, std::move(submission.tensor));
  }
  taken_.submissions.clear();
  if (taken_.step != Schedule::kNone) active_ = std::exchange(taken_.step, Schedule::kNone);
  if (active_ != Schedule::kNegotiated) return;
  const auto now = Clock::now();
  const std::size_t element = size_of(plan_.dtype);
  marks_.take([&](std::size_t gradient) {
    const core::GradientInfo& info = gradients_[gradient];
    negotiated_.submit_gradient(gradient, arena_ + info.offset * element, info.count * element, now);
  });
}

void Engine::Impl::run_cycle() {
  bool tickets = false;
  const bool in_step = active_ == Schedule::kNegotiated;
  const std::size_t left_before = in_step ? left_ : 0;
  const std::size_t bytes_before = in_step ? report_.bytes : 0;  // between steps left_ and report_ belong to the caller
  const bool moved =
      negotiated_.cycle(in_step ? report_ : no_step_, [&](PendingTensor& tensor, const std::string& error) {
        if (tensor.gradient != PendingTensor::kNoGradient) {
          if (!error.empty()) throw Error(Errc::kMismatch, error);
          --left_;
          return;
        }
        const MutexLock lock(mutex_);
        tickets_.finish(tensor.ticket, {error, tensor.operands ? std::move(tensor.operands->output) : Output{}});
        tickets = true;
      });
  {
    const MutexLock lock(mutex_);
    stats_ = negotiated_.stats();
  }
  if (tickets) done_.notify_all();
  if (moved) {
    moved_.fetch_add(1);
  } else {
    sleep(Clock::now() + options_.cycle_time, WakeFor::kTensors);
  }
  if (!in_step) return;
  if (left_ == 0) return complete_step();
  const auto pause =
      core::pause_after({.gradients = left_before - left_,
                         .bytes = report_.bytes - bytes_before,
                         .gradients_to_come = marks_.first_missing(0, marks_.size()) != ReadyMarks::kNone});
  if (pause.count() > 0) std::this_thread::sleep_for(pause);
}

comm::Range Engine::Impl::share(const core::Bucket& bucket, int rank) const {
  return comm::share_of(bucket.count, static_cast<std::size_t>(size_), static_cast<std::size_t>(rank),
                        comm::kShareAlign);
}

std::vector<std::size_t> Engine::Impl::share_counts(const core::Bucket& bucket) const {
  std::vector<std::size_t> counts;
  counts.reserve(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) counts.push_back(share(bucket, rank).count);
  return counts;
}

void Engine::Impl::gather_shares(std::byte* data, DataType dtype) {
  const int rank = communicator_->topology().rank;
  for (const core::Bucket& bucket : plan_.buckets) {
    std::byte* const all = data + bucket.offset * size_of(dtype);
    communicator_->data().all_gather(all, all + share(bucket, rank).begin * size_of(dtype), share_counts(bucket), dtype,
                                     options_.deadline.from_now());
  }
}

void Engine::Impl::reduce_shares(const core::Bucket& bucket) {
  std::byte* const data = arena_ + bucket.offset * size_of(plan_.dtype);
  std::byte* const mine = data + share(bucket, communicator_->topology().rank).begin * size_of(plan_.dtype);
  communicator_->data().reduce_scatter(mine, data, share_counts(bucket), plan_.dtype, plan_.op,
                                       options_.deadline.from_now());
}

void Engine::Impl::reduce_bucket(std::size_t bucket) {
  const core::Bucket& range = plan_.buckets[bucket];
  const std::size_t element = size_of(plan_.dtype);
  const auto begin = Clock::now();
  if (active_ == Schedule::kSharded) {
    reduce_shares(range);
  } else {
    communicator_->data().all_reduce(arena_ + range.offset * element, range.count, plan_.dtype, plan_.op,
                                     options_.deadline.from_now());
  }
  const auto end = Clock::now();
  report_.reduce += end - begin;
  report_.batches += 1;
  report_.bytes += range.count * element;
  if (trace_) {
    const std::string& first = gradients_[range.first].name;
    const std::string& last = gradients_[range.last - 1].name;
    trace_->add_reduce(fmt::format("bucket {}: {}{}", bucket, first, range.last - range.first > 1 ? " .. " + last : ""),
                       begin, end, range.count * element, range.last - range.first);
  }
  moved_.fetch_add(1);
  next_bucket_.store(bucket + 1);
  if (bucket + 1 == plan_.buckets.size()) complete_step();
}

void Engine::Impl::complete_step() {
  if (trace_) trace_->set_algorithm(communicator_->data().description());
  active_ = Schedule::kNone;
  {
    const MutexLock lock(mutex_);
    finished_report_ = report_;
    step_done_ = true;
  }
  done_.notify_all();
}

bool Engine::Impl::run_command() {
  WorkQueue::Command* command = nullptr;
  {
    const MutexLock lock(mutex_);
    command = queue_.take_command();
  }
  if (command == nullptr) return false;
  in_command_ = true;
  command->work();  // an exception fails the engine, which also ends the caller's wait
  in_command_ = false;
  {
    const MutexLock lock(mutex_);
    command->finished = true;
  }
  done_.notify_all();
  return true;
}

bool Engine::Impl::finished_for_good() {
  const MutexLock lock(mutex_);
  return stopping_ && queue_.empty();
}

void Engine::Impl::idle() {
  if (trace_ && active_ == Schedule::kNone && trace_->wants_writing()) trace_->write();
  if (sleep(Clock::now() + (watchdog_ != nullptr ? kLookInterval : kAnswerInterval), WakeFor::kAnything)) return;
  collect();  // a step may have begun without a ready gradient; status() must report the step
  communicator_->control().answer_roll_call(status());
  communicator_->control().look_for_dead();
  if (watchdog_ != nullptr) watchdog_->look();
}

bool Engine::Impl::sleep(Clock::time_point until, WakeFor what) {
  const MutexLock lock(mutex_);
  bool work = false;
  for (;;) {
    sleeping_.store(true);
    work = has_work(what);
    if (work || !work_.wait_until(mutex_, until)) break;
  }
  sleeping_.store(false);
  return work;
}

bool Engine::Impl::has_work(WakeFor what) {
  if (abort_reason_ || queue_.ready()) return true;
  if (active_ == Schedule::kNegotiated && marks_.fresh()) return true;
  return what == WakeFor::kAnything && (stopping_ || !queue_.empty() || next_bucket_ready());
}

bool Engine::Impl::next_bucket_ready() const noexcept {
  return by_bucket(active_) && marks_.ready(next_bucket_.load());
}

void Engine::Impl::fail(Errc code, std::string text) noexcept {
  std::string flights;
  std::string told;  // reason for the peers, if it differs from `text`
  try {
    {
      // If this rank's own abort() ended the wait, report the reason given to abort().
      const MutexLock lock(mutex_);
      if (abort_reason_) {
        code = Errc::kInterrupted;
        text = *abort_reason_;
      }
    }
    text = investigate(code, text);
    if (lost_peer(code) && text.find(comm::kGaveUp) == std::string::npos) flights = communicator_->flight_record();
    // The text of a local error does not name this rank, so add the name for the peers.
    if (!lost_peer(code) && text.find(comm::kGaveUp) == std::string::npos)
      told = fmt::format("{}{}{}", here(), comm::kGaveUp, text);
  } catch (...) {  // the roll call has failed as well: report the error as it is
    text += kRollCallMark;
    text += "it failed";
  }
  // A mismatch needs no abort here: all ranks detected it, or the plane that detected it has already aborted.
  if (code != Errc::kMismatch) communicator_->control().abort(told.empty() ? text : told);
  // The callers of tickets may free the tickets' memory as soon as they hear of the failure, so end its use now.
  if (watchdog_ == nullptr) communicator_->data().abandon();
  {
    const MutexLock lock(mutex_);
    failure_ = Failure{code, text, std::move(flights)};
    failed_.store(true);
  }
  done_.notify_all();
  if (watchdog_ != nullptr) watchdog_->failed(Error(code, text));
}

/// Called inside the stalled wait. The roll call ends at once if all ranks answer.
void Engine::Impl::warn_of_stall(const comm::StalledWait& stalled) {
  const comm::Topology& where = communicator_->topology();
  const auto answers = communicator_->control().roll_call(status(), kRollCallPatience);
  if (where.rank > 0 && answers.front()) {
    // Rank 0 reports the stall, unless rank 0 does not answer or does not wait for its peers.
    const auto root = RankStatus::parse(*answers.front());
    if (!root || root->waits) return;
  }
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(stalled.deadline.remaining()).count();
  options_.warn(fmt::format("{}{}; this rank gives up in {} s ({})", stalled.text,
                            find_late_rank(where.rank, answers, where.hosts).text, seconds, stalled.deadline.set_by()));
}

/// If a wait for a peer failed and `text` names no guilty rank yet, holds a roll call and adds its result. Returns the
/// text of a peer that has done so before.
std::string Engine::Impl::investigate(Errc& code, const std::string& text) {
  if (!lost_peer(code)) return text;
  for (const std::string_view explained : {kRollCallMark, comm::kGaveUp, comm::kProcessEnded}) {
    if (text.find(explained) != std::string::npos) return text;
  }
  const comm::Topology& where = communicator_->topology();
  // If a rank hangs, all others give up at once. Rank 0 calls the roll for all; rank 1 does so if rank 0 is missing.
  const Deadline turn = Deadline::after(std::min(where.rank, 2) * kOthersPatience);
  do {
    communicator_->control().answer_roll_call(status());
    try {
      communicator_->control().throw_if_aborted();
    } catch (const Error& error) {
      code = error.code();
      return error.what();
    }
    if (where.rank > 0) std::this_thread::sleep_for(kLookInterval);
  } while (!turn.passed());
  const RollCallResult late_rank =
      find_late_rank(where.rank, communicator_->control().roll_call(status(), kRollCallPatience), where.hosts);
  if (late_rank.found) code = Errc::kPeerLost;
  return text + late_rank.text;
}

std::string Engine::Impl::here() const {
  const comm::Topology& where = communicator_->topology();
  return comm::rank_at(static_cast<std::size_t>(where.rank), where.hosts);
}

std::string Engine::Impl::status() const {
  RankStatus status;
  status.step = steps_.load();
  status.moved = moved_.load();
  status.waits = in_command_ || negotiated_.pending() || next_bucket_ready();
  if (const char* activity = activity_.load(); activity != nullptr) {
    status.activity = fmt::format("step {}, {}; ", activity_step_.load(), activity);
  }
  if (const auto its = watchdog_ != nullptr ? watchdog_->status() : std::nullopt) {
    status.step = its->step;
    status.moved = its->moved;
    status.waits |= its->waits;
    status.activity += its->activity;
    return status.to_text();
  }
  if (by_bucket(active_)) {
    const std::size_t bucket = next_bucket_.load();
    const core::Bucket& range = plan_.buckets[bucket];
    const std::size_t missing = marks_.first_missing(range.first, range.last);
    status.activity += fmt::format("bucket {} of {} {}", bucket, plan_.buckets.size(),
                                   missing == ReadyMarks::kNone
                                       ? "is being reduced"
                                       : fmt::format("waits for its gradient '{}'", gradients_[missing].name));
  } else if (active_ == Schedule::kNegotiated) {
    status.activity += fmt::format("{} of {} gradients not yet reduced", left_, marks_.size());
  } else {
    status.activity +=
        fmt::format("after {} steps, {}", status.step, status.waits ? "waiting for its peers" : "its engine idle");
  }
  return status.to_text();
}

}  // namespace hvd
