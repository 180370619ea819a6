#include "engine/runtime/device_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/error.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

/// How long to wait for the error of the engine's thread, which names the rank that gave up and its reason. The
/// engine's thread looks for errors every 20 ms. Then it waits up to 3.5 s for the roll calls of others, and holds its
/// own, which takes up to 1.25 s.
constexpr auto kExplanation = 6s;

std::string bucket_title(std::size_t number, const core::Bucket& bucket,
                         const std::vector<core::GradientInfo>& gradients, std::size_t element) {
  const std::string& last = gradients[bucket.last - 1].name;
  return fmt::format("bucket {} ({}{}, {} bytes)", number, gradients[bucket.first].name,
                     bucket.last - bucket.first > 1 ? " .. " + last : "", bucket.count * element);
}

}  // namespace

DeviceEngine::DeviceEngine(std::unique_ptr<comm::DeviceCommunicator> communicator, const EngineOptions& options,
                           const DeviceOptions& device, StuckRank stuck)
    : runtime_(communicator->runtime()),
      plane_(communicator->device()),
      options_(options),
      device_(device),
      alone_(communicator->topology().size == 1),
      watch_(*communicator, options.deadline, std::move(stuck)),
      engine_(std::make_unique<Engine>(std::move(communicator), options, &watch_)),
      schedule_(options.schedule) {
  for (const Schedule schedule : {Schedule::kStatic, Schedule::kNegotiated, Schedule::kNone}) {
    schedule_states_[schedule];
  }
}

DeviceEngine::~DeviceEngine() {
  abandon("its engine was destroyed inside a step");
  watch_.gave_up();  // disarms the watch: the training thread runs, so it is not stuck freeing GPU memory
}

void DeviceEngine::abandon(std::string_view why) noexcept {
  if (flights_.empty()) return;
  engine_->abort(why);
  give_up();
}

void DeviceEngine::give_up() noexcept {
  enqueuing_ = false;
  capturing_.reset();
  plane_.abort();  // ends kernels that wait for a peer
  for (const gpu::StreamView stream : {compute_, plane_.stream()}) runtime_.drain(stream);
  flights_.clear();
  drop_graphs();  // NCCL returns from the abort only after the graphs are destroyed
  // If NCCL has not returned, the watch stays armed, because freeing GPU memory may block for ever.
  if (plane_.await_abort(Deadline::after(watch_.patience_with_library()))) watch_.gave_up();
}

void DeviceEngine::set_gradients(std::vector<core::GradientInfo> gradients, std::byte* arena, DataType dtype,
                                 ReduceOp op) {
  engine_->set_gradients(gradients, arena, dtype, op);
  arena_ = arena;
  gradients_ = std::move(gradients);
  watch_plan();
}

void DeviceEngine::watch_plan() {
  const core::BucketPlan& plan = engine_->plan();
  marks_.configure(gradients_.size(), plan.buckets);
  std::vector<std::string> titles;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    titles.push_back(bucket_title(b, plan.buckets[b], gradients_, size_of(plan.dtype)));
  }
  // The change runs on the engine's thread, because otherwise that thread might read the watch at the same time.
  engine_->perform("watching a plan", [&] { watch_.configure(std::move(titles), gradients_.size()); });
}

void DeviceEngine::restart_eagerly(const char* call) {
  if (!flights_.empty()) throw Error(Errc::kInvalidArgument, std::string(call) + " inside a step");
  drop_graphs();
  for (auto& [schedule, schedule_state] : schedule_states_) schedule_state.eager = 0;
}

void DeviceEngine::drop_graphs() {
  for (auto& [schedule, schedule_state] : schedule_states_) {
    schedule_state.graphs = {};
    schedule_state.last_duration.reset();
  }
}

void DeviceEngine::set_options(const DeviceOptions& device) {
  restart_eagerly("set_options");
  device_ = device;
}

void DeviceEngine::set_buckets(const core::BucketOptions& buckets) {
  restart_eagerly("set_buckets");
  engine_->set_buckets(buckets);
  watch_plan();
}

void DeviceEngine::reconnect(const comm::NcclOptions& options) {
  restart_eagerly("reconnect");
  engine_->perform("reconnect", [&] { plane_.reconnect(options, options_.deadline.from_now()); });
}

void DeviceEngine::set_deadline(Patience deadline) {
  if (!flights_.empty()) throw Error(Errc::kInvalidArgument, "set_deadline inside a step");
  options_.deadline = deadline;
  engine_->set_deadline(deadline);
  engine_->perform("set_deadline", [&] { watch_.set_deadline(deadline); });  // the engine's thread reads the watch
}

void DeviceEngine::skip_steps(std::uint64_t steps) {
  if (!flights_.empty()) throw Error(Errc::kInvalidArgument, "skip_steps inside a step");
  steps_ += steps;
}

void DeviceEngine::set_schedule(Schedule schedule) {
  if (!flights_.empty()) throw Error(Errc::kInvalidArgument, "set_schedule inside a step");
  engine_->set_schedule(schedule);
  schedule_ = schedule;
}

bool DeviceEngine::to_be_captured() const {
  if (!device_.graph || !graph_refusal().empty()) return false;
  return schedule_state().eager >= device_.eager_steps;
}

std::string_view DeviceEngine::graph_refusal() const {
  if (!device_.graph || alone_ || schedule_ == Schedule::kNone) return {};
  if (schedule_ == Schedule::kNegotiated) {
    return "the host takes part in negotiated steps, which no CUDA graph can hold: every step is enqueued";
  }
  return {};
}

std::size_t DeviceEngine::slot() const {
  return capturing_.value_or(device_.ahead ? schedule_state().steps % kStepsInFlight : 0);
}

std::optional<gpu::GraphShape> DeviceEngine::graph_shape() const {
  const gpu::Graph& graph = schedule_state().graphs[0];  // the graphs of all slots have the same shape
  return graph ? runtime_.shape(graph) : std::nullopt;
}

bool DeviceEngine::may_run_ahead() const {
  const std::size_t flights = flights_.size();
  return device_.ahead && flights > 0 && flights < kStepsInFlight && to_be_captured() &&
         schedule_state().graphs[slot()];
}

void DeviceEngine::run_step(gpu::StreamView compute, const Work& work) {
  if (gradients_.empty()) throw Error(Errc::kInvalidArgument, "run_step: call set_gradients() first");
  const bool ahead = may_run_ahead();
  if (!flights_.empty() && !ahead) throw Error(Errc::kInvalidArgument, "run_step: the last step is not finished");
  try {
    engine_->throw_if_failed();
  } catch (...) {
    if (ahead) give_up();
    throw;
  }
  StepInFlight& flight = flights_.emplace_back();
  flight.begun = Clock::now();
  flight.report.slot = slot();
  flight.report.ahead = ahead;
  flight.report.graph = to_be_captured();
  compute_ = compute;
  const bool reduces = schedule_ != Schedule::kNone && !alone_;
  watch_.begin({.step = steps_,
                .slot = slot(),
                .buckets = reduces && schedule_ == Schedule::kStatic ? events().buckets.size() : 0});
  try {
    if (flight.report.graph) {
      const gpu::Graph& graph = schedule_state().graphs[slot()];
      flight.captured = !graph;
      if (!graph) capture(work);
      runtime_.record(events().begin, compute);
      runtime_.launch(graph, compute);
    } else {
      runtime_.record(events().begin, compute);
      enqueue(work);
      ++schedule_state().eager;
    }
    runtime_.record(events().end, compute);
  } catch (const Error& error) {
    rethrow_explained(error);
  } catch (...) {
    give_up();
    throw;
  }
  watch_.enqueued();
  ++steps_;
  ++schedule_state().steps;
  flight.report.enqueue = Clock::now() - flight.begun;
}

void DeviceEngine::capture(const Work& work) {
  for (std::size_t slot = 0; slot < (device_.ahead ? kStepsInFlight : 1); ++slot) {
    capturing_ = slot;
    gpu::Capture capture(runtime_, compute_);
    enqueue(work);
    schedule_state().graphs[slot] = capture.finish();
  }
  capturing_.reset();
}

void DeviceEngine::enqueue(const Work& work) {
  enqueuing_ = true;
  next_bucket_ = 0;
  marks_.reset();
  const bool negotiates = schedule_ == Schedule::kNegotiated && !alone_;
  if (negotiates) engine_->begin_step();
  work.forward_backward();
  runtime_.record_outside(events().backward_end, compute_);
  if (negotiates) {
    DeviceReport& report = flights_.back().report;
    report.engine = engine_->finish_step();
    report.batches = report.engine.batches;
    report.bytes = report.engine.bytes;
  } else {
    if (!alone_ && schedule_ == Schedule::kStatic) reduce_ready_buckets();
    require_all_marked();
  }
  join();
  runtime_.record_outside(events().joined, compute_);
  enqueuing_ = false;
  work.update();
}

void DeviceEngine::gradient_ready(std::size_t index) {
  if (!enqueuing_ || index >= marks_.size()) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("gradient_ready({}): {}", index,
                            index < marks_.size() ? "no step is being enqueued"
                                                  : fmt::format("there are {} gradients", marks_.size())));
  }
  if (marks_.mark(index).again) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("gradient_ready: '{}' is already marked as ready", gradients_[index].name));
  }
  if (alone_ || schedule_ == Schedule::kNone) return;
  if (schedule_ == Schedule::kNegotiated) {
    runtime_.record(watch_.gradient_event(index), compute_);
    engine_->gradient_ready(index);
  } else if (device_.overlap) {
    reduce_ready_buckets();
  }
}

void DeviceEngine::reduce_ready_buckets() {
  while (next_bucket_ < marks_.buckets() && marks_.ready(next_bucket_)) reduce_bucket(next_bucket_++);
}

void DeviceEngine::reduce_bucket(std::size_t bucket) {
  const core::BucketPlan& plan = engine_->plan();
  const core::Bucket& range = plan.buckets[bucket];
  const std::size_t element = size_of(plan.dtype);
  const StepEvents::Bucket& events = this->events().buckets[bucket];
  const gpu::StreamView stream = plane_.stream();
  runtime_.record(events.ready, compute_);
  runtime_.wait(stream, events.ready);
  runtime_.record_outside(events.begin, stream);
  plane_.all_reduce(arena_ + range.offset * element, range.count, plan.dtype, plan.op, options_.deadline.from_now());
  runtime_.record_outside(events.done, stream);
}

void DeviceEngine::require_all_marked() const {
  if (const std::size_t missing = marks_.first_missing(0, marks_.size()); missing != ReadyMarks::kNone) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("run_step: gradient '{}' was never marked ready", gradients_[missing].name));
  }
}

void DeviceEngine::join() {
  if (alone_ || schedule_ == Schedule::kNone) return;
  const gpu::Event& all_reduced = events().all_reduced;
  runtime_.record(all_reduced, plane_.stream());
  runtime_.wait(compute_, all_reduced);
}

void DeviceEngine::rethrow_explained(const Error& error) {
  const bool communication = error.code() == Errc::kPeerLost || error.code() == Errc::kTimeout ||
                             error.code() == Errc::kBackend || error.code() == Errc::kInterrupted;
  try {
    for (const Deadline patience = Deadline::after(kExplanation); communication && !alone_ && !patience.passed();) {
      engine_->throw_if_failed();
      std::this_thread::sleep_for(10ms);
    }
  } catch (const Error&) {
    give_up();
    throw;
  }
  engine_->abort(error.what());
  give_up();
  throw;  // rethrows `error`
}

void DeviceEngine::measure(const StepEvents& events, DeviceReport& report) {
  report.step = runtime_.elapsed(events.begin, events.end);
  report.exposed = runtime_.elapsed(events.backward_end, events.joined);
  if (alone_ || schedule_ != Schedule::kStatic) return;
  const core::BucketPlan& plan = engine_->plan();
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    report.reduce += runtime_.elapsed(events.buckets[b].begin, events.buckets[b].done);
    report.bytes += plan.buckets[b].count * size_of(plan.dtype);
  }
  report.batches = plan.buckets.size();
}

DeviceReport DeviceEngine::finish_step() {
  if (flights_.empty()) throw Error(Errc::kInvalidArgument, "finish_step: no step has been run");
  const StepInFlight& flight = flights_.front();
  const std::uint64_t number = steps_ - flights_.size();
  const StepEvents& events = watch_.events(flight.report.slot);
  const Clock::time_point begun = std::max(flight.begun, last_end_);
  DeviceReport report = flight.report;
  try {
    // This wait outlasts the watchdog's deadline, because the watchdog's error says more than a timeout here. A world
    // of one rank has no watchdog.
    const Deadline deadline =
        Deadline::after(options_.deadline.timeout + (alone_ ? 0s : kExplanation), options_.deadline.set_by);
    std::optional<Clock::time_point> expected;
    if (const auto& last_duration = schedule_state().last_duration) {
      report.expected = *last_duration;
      expected = begun + *last_duration;
    }
    runtime_.synchronize(
        events.end, deadline, fmt::format("{}: step {}", watch_.here(), number), [this] { engine_->throw_if_failed(); },
        expected);
    last_end_ = Clock::now();
    engine_->throw_if_failed();
    measure(events, report);
  } catch (const Error& error) {
    rethrow_explained(error);
  }
  schedule_state().last_duration.reset();
  if (!flight.captured) schedule_state().last_duration = last_end_ - begun;
  watch_.finished();
  flights_.pop_front();
  return report;
}

}  // namespace hvd
