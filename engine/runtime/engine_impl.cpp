// The callers' side of the engine: the work of the threads that call the methods of Engine.
#include "engine/runtime/engine_impl.h"

#include <fmt/format.h>

#include <csignal>
#include <exception>
#include <utility>

#include "engine/base/error.h"
#include "engine/runtime/plan_check.h"

namespace hvd {
namespace {

/// Starts `body` on a thread that blocks all signals, so that the program's own threads receive them.
template <class Body>
std::thread start_quiet_thread(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

std::unique_ptr<TraceWriter> open_trace(comm::Communicator& communicator, const std::string& filename) {
  if (filename.empty()) return nullptr;
  try {
    return std::make_unique<TraceWriter>(filename, communicator.topology());
  } catch (const Error& error) {
    communicator.control().abort(error.what());
    throw;
  }
}

bool reduces(core::Collective kind) {
  return kind == core::Collective::kAllReduce || kind == core::Collective::kGroupedAllReduce ||
         kind == core::Collective::kReduceScatter;
}

}  // namespace

Engine::Impl::Impl(std::shared_ptr<comm::Communicator> communicator, const EngineOptions& options, Watchdog* watchdog)
    : communicator_(std::move(communicator)),
      options_(options),
      size_(communicator_->topology().size),
      library_(communicator_->library()),
      trace_(open_trace(*communicator_, options.timeline_filename)),
      schedule_(options.schedule),
      data_plane_(communicator_->data().description()),
      watchdog_(solo() ? nullptr : watchdog),
      negotiated_(*communicator_, options_, trace_.get(), watchdog_),
      exceptions_at_birth_(std::uncaught_exceptions()) {
  if (solo()) return;
  try {
    thread_.thread = start_quiet_thread([this] {
      run();
      thread_.over.count_down();
      thread_.may_end.wait();
    });
  } catch (const std::exception& error) {  // the system cannot start another thread
    communicator_->control().abort(fmt::format("{}{}{}", here(), comm::kGaveUp, error.what()));
    throw;
  }
}

Engine::Impl::~Impl() {
  if (thread_.thread.joinable()) {
    // Peers may wait for this rank. The abort ends their waits before the deadline.
    if (std::uncaught_exceptions() > exceptions_at_birth_) {
      abort("it ends because of its own error");
    } else if (in_step_.load()) {
      abort("its engine was destroyed inside a step");
    }
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    work_.notify_one();
    thread_.over.wait();
  }
  // Wait for the remaining work of the data plane, because it uses memory that this engine frees.
  if (failed_.load()) communicator_->data().abandon();
}

void Engine::Impl::wake_thread() noexcept {
  if (!sleeping_.load() || !sleeping_.exchange(false)) return;
  // While this lock is held, the thread is not between its check for work and its wait, so it cannot miss the wake-up.
  { const MutexLock lock(mutex_); }
  work_.notify_one();
}

void Engine::Impl::throw_failure() {
  if (failure_) throw Error(failure_->code, failure_->text);
}

void Engine::Impl::throw_if_failed() {
  if (!failed_.load(std::memory_order_relaxed)) return;
  const MutexLock lock(mutex_);
  throw_failure();
}

std::string Engine::Impl::flight_record() {
  const MutexLock lock(mutex_);
  return failure_ ? failure_->flights : std::string();
}

void Engine::Impl::execute(const char* what, const std::function<void()>& work) {
  if (in_step_.load()) {
    throw Error(Errc::kInvalidArgument, std::string(what) + " inside a step: call it after finish_step()");
  }
  if (solo()) {
    throw_if_failed();
    const MutexLock lock(solo_mutex_);
    work();
    return;
  }
  WorkQueue::Command command{work};
  const MutexLock lock(mutex_);
  throw_failure();
  queue_.push(command);
  work_.notify_one();
  // This loop ends, because every wait of the thread has a deadline, and a thread that fails sets failure_.
  while (!command.finished && !failure_) done_.wait(mutex_);
  if (!command.finished) throw_failure();
}

void Engine::Impl::on_plane(const char* what,
                            const std::function<void(comm::DataPlane& plane, Deadline deadline)>& operation) {
  std::exception_ptr refused;
  execute(what, [&] {
    comm::DataPlane& plane = communicator_->data();
    const Deadline deadline = options_.deadline.from_now();
    try {
      operation(plane, deadline);
    } catch (const Error& error) {
      if (error.code() != Errc::kInvalidArgument && error.code() != Errc::kUnsupported) throw;
      refused = std::current_exception();  // nothing has been sent, so the engine stays usable
      return;
    }
    plane.complete(what, deadline);
  });
  if (refused) std::rethrow_exception(refused);
}

namespace {

[[noreturn]] void refuse(const core::Request& request, Errc code, std::string_view why) {
  throw Error(code, fmt::format("{}_async: tensor '{}'{}", core::name(request.terms.kind), request.name, why));
}

}  // namespace

Ticket Engine::Impl::admit(const core::Request& request, PendingTensor& tensor) {
  throw_failure();
  if (gradient_names_.contains(request.name)) {
    refuse(request, Errc::kInvalidArgument, " has the name of a gradient");
  }
  tensor.ticket = tickets_.issue(request.name);
  tensor.since = Clock::now();
  return tensor.ticket;
}

void Engine::Impl::refuse_unsupported(const core::Request& request) const {
  const comm::DataPlane& plane = communicator_->data();
  const core::Terms& terms = request.terms;
  if (reduces(terms.kind)) {
    if (const auto why = plane.reduce_refusal(request.dtype); !why.empty()) {
      refuse(request, Errc::kUnsupported, ": " + why);
    }
  }
  if (terms.prescale != 1 || terms.postscale != 1) {
    if (const auto why = plane.scale_refusal(); !why.empty()) {
      refuse(request, Errc::kUnsupported, ": scale factors are not supported: " + why);
    }
  }
}

Ticket Engine::Impl::submit(core::Request request, PendingTensor tensor) {
  request.check();
  refuse_unsupported(request);
  if (const Schedule schedule = step_schedule_.load(); in_step_.load() && by_bucket(schedule)) {
    refuse(request, Errc::kInvalidArgument,
           fmt::format(": not possible inside a step of the {} schedule, which has no control plane", name(schedule)));
  }
  Ticket ticket = 0;
  if (!solo()) {
    {
      const MutexLock lock(mutex_);
      ticket = admit(request, tensor);
      queue_.push({std::move(request), std::move(tensor)});
    }
    wake_thread();
    return ticket;
  }
  {
    const MutexLock lock(mutex_);
    ticket = admit(request, tensor);
  }
  const MutexLock lock(solo_mutex_);
  guard([&] {
    negotiated_.submit(request, std::move(tensor));
    run_cycle();
  });
  return ticket;
}

Output Engine::Impl::take_output(Ticket ticket) {
  TicketTable::Outcome outcome;
  {
    const MutexLock lock(mutex_);
    while (!tickets_.finished(ticket) && !failure_) done_.wait(mutex_);
    throw_failure();
    outcome = tickets_.take(ticket);
  }
  if (!outcome.error.empty()) throw Error(Errc::kMismatch, outcome.error);
  return std::move(outcome.output);
}

std::optional<Error> Engine::Impl::error_of(Ticket ticket) {
  const MutexLock lock(mutex_);
  const TicketTable::Outcome* const outcome = tickets_.outcome(ticket);
  if (failure_) return Error(failure_->code, failure_->text);
  if (outcome == nullptr || outcome->error.empty()) return std::nullopt;
  return Error(Errc::kMismatch, outcome->error);
}

bool Engine::Impl::done(Ticket ticket) {
  const MutexLock lock(mutex_);
  return tickets_.finished(ticket) || failure_.has_value();
}

std::span<std::byte> Engine::Impl::allocate(std::size_t bytes) {
  if (bytes == 0) throw Error(Errc::kInvalidArgument, "allocate: zero bytes");
  std::span<std::byte> result;
  execute("allocate", [&] {
    memory_.push_back(communicator_->data().allocate(bytes, options_.deadline.from_now()));
    result = memory_.back()->bytes();
  });
  return result;
}

void Engine::Impl::set_gradients(std::vector<core::GradientInfo> gradients, std::byte* arena, DataType dtype,
                                 ReduceOp op) {
  if (!gradients_.empty()) throw Error(Errc::kInvalidArgument, "set_gradients: the gradients are already set");
  if (arena == nullptr) throw Error(Errc::kInvalidArgument, "set_gradients: no arena");
  if (const auto why = communicator_->data().reduce_refusal(dtype); !why.empty()) {
    throw Error(Errc::kUnsupported, "set_gradients: " + why);
  }
  core::BucketPlan plan = core::plan_buckets(gradients, dtype, op, options_.buckets);
  std::unordered_set<std::string> names;
  std::vector<core::Request> requests;
  for (const core::GradientInfo& gradient : gradients) {
    if (!names.insert(gradient.name).second) {
      throw Error(Errc::kInvalidArgument, fmt::format("set_gradients: two gradients are called '{}'", gradient.name));
    }
    requests.push_back({gradient.name, dtype, op, {static_cast<std::int64_t>(gradient.count)}});
  }
  adopt(std::move(plan), gradients);
  gradients_ = std::move(gradients);
  if (!solo()) {
    execute("set_gradients", [&] { negotiated_.set_gradients(std::move(requests)); });
  }
  arena_ = arena;
  const MutexLock lock(mutex_);
  gradient_names_ = std::move(names);
}

void Engine::Impl::set_buckets(const core::BucketOptions& buckets) {
  if (gradients_.empty()) throw Error(Errc::kInvalidArgument, "set_buckets: call set_gradients() first");
  if (in_step_.load()) throw Error(Errc::kInvalidArgument, "set_buckets inside a step");
  adopt(core::plan_buckets(gradients_, plan_.dtype, plan_.op, buckets), gradients_);
}

void Engine::Impl::set_negotiation(const core::FusionOptions& fusion, std::chrono::microseconds cycle_time) {
  execute("set_negotiation", [&] {
    options_.negotiation.fusion = fusion;
    options_.cycle_time = cycle_time;
    negotiated_.set_fusion(fusion);
  });
}

void Engine::Impl::adopt(core::BucketPlan plan, const std::vector<core::GradientInfo>& gradients) {
  if (!solo()) {
    execute("comparing bucket plans",
            [&] { compare_plans(*communicator_, plan, gradients, options_.deadline.from_now()); });
  }
  marks_.configure(gradients.size(), plan.buckets);
  plan_ = std::move(plan);
}

void Engine::Impl::begin_step() {
  throw_if_failed();
  if (in_step_.load()) throw Error(Errc::kInvalidArgument, "begin_step: the last step is not finished");
  if (gradients_.empty()) throw Error(Errc::kInvalidArgument, "begin_step: call set_gradients() first");
  const Schedule schedule = solo() ? Schedule::kNone : schedule_;
  step_schedule_.store(schedule, std::memory_order_relaxed);
  in_step_.store(true, std::memory_order_relaxed);
  if (solo() && trace_ && trace_->wants_writing()) trace_->write();
  if (schedule == Schedule::kNone) return;
  marks_.reset();
  report_ = {};
  left_ = gradients_.size();
  next_bucket_.store(0);
  moved_.store(0);
  steps_.fetch_add(1);
  const MutexLock lock(mutex_);
  step_done_ = false;
  queue_.push(schedule);  // the thread reads the fields written above only after it has taken the step
}

void Engine::Impl::gradient_ready(std::size_t index) {
  if (trace_ && index < gradients_.size()) {
    trace_->add_instant(TraceTrack::kCompute, gradients_[index].name, Clock::now());
  }
  const Schedule schedule = step_schedule_.load(std::memory_order_relaxed);
  if (schedule == Schedule::kNone && in_step_.load(std::memory_order_relaxed)) return;
  if (!in_step_.load(std::memory_order_relaxed) || index >= marks_.size()) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("gradient_ready({}): {}", index,
                            index < marks_.size() ? "no step has begun"
                                                  : fmt::format("there are {} gradients", marks_.size())));
  }
  ReadyMarks::Marked marked;
  if (schedule == Schedule::kNegotiated) {
    marked.again = !marks_.mark_fresh(index);
  } else {
    marked = marks_.mark(index);
  }
  if (marked.again) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("gradient_ready: '{}' is already marked as ready", gradients_[index].name));
  }
  // A completed bucket that is not the next to be reduced needs no wake-up: the thread finds it after earlier buckets.
  if (schedule == Schedule::kNegotiated || marked.completed == next_bucket_.load()) wake_thread();
}

StepReport Engine::Impl::finish_step() {
  const Schedule schedule = step_schedule_.load(std::memory_order_relaxed);
  if (!in_step_.load()) throw Error(Errc::kInvalidArgument, "finish_step: no step has begun");
  if (schedule == Schedule::kNone) {
    in_step_.store(false, std::memory_order_relaxed);
    throw_if_failed();
    return {};
  }
  const auto begin = Clock::now();
  StepReport report;
  {
    const MutexLock lock(mutex_);
    if (failure_) {
      in_step_.store(false);
      throw_failure();
    }
    if (const std::size_t missing = marks_.first_missing(0, marks_.size()); missing != ReadyMarks::kNone) {
      throw Error(Errc::kInvalidArgument,
                  fmt::format("finish_step: gradient '{}' was never marked ready", gradients_[missing].name));
    }
    while (!step_done_ && !failure_) done_.wait(mutex_);
    in_step_.store(false);
    throw_failure();
    report = finished_report_;
  }
  const auto end = Clock::now();
  report.exposed = end - begin;
  if (trace_) trace_->add(TraceTrack::kCompute, "finish_step", begin, end);
  return report;
}

/// Tells the peers directly instead of through the thread, because the thread may be waiting for a peer.
void Engine::Impl::abort(std::string_view reason) noexcept {
  try {
    const std::string text = fmt::format("{}{}{}", here(), comm::kGaveUp, reason);
    {
      const MutexLock lock(mutex_);
      if (failure_ || abort_reason_) return;
      abort_reason_ = text;
      if (solo()) {
        failure_ = Failure{Errc::kInterrupted, text};
        failed_.store(true);
      }
    }
    communicator_->control().abort(text);
    work_.notify_one();
  } catch (...) {  // no memory for the reason: the peers' waits end at their deadlines
    return;
  }
}

std::string Engine::Impl::data_plane() {
  if (!in_step_.load() && !failed_.load()) {
    std::string now;
    execute("data_plane", [&] { now = communicator_->data().description(); });
    const MutexLock lock(mutex_);
    data_plane_ = std::move(now);
  }
  const MutexLock lock(mutex_);
  return data_plane_;
}

/// Only the engine's thread writes to the file, so it must also close the file. The caller gets the error, if any.
void Engine::Impl::close_trace() {
  if (!trace_) return;
  std::exception_ptr error;
  execute("close_trace", [&] {
    try {
      trace_->close();
    } catch (const Error&) {
      error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

core::CycleStats Engine::Impl::cycle_stats() {
  const MutexLock lock(mutex_);
  return stats_;
}

}  // namespace hvd
