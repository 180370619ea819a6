#include "engine/runtime/device_engine.h"

#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "engine/base/error.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

/// For the GPU to come to rest when a step is left half-way.
constexpr auto kRest = 5s;
/// The engine's thread knows more than a wait that fails: who gave up, and why. It looks every 20 ms and then calls the
/// roll, which takes up to 1.25 s.
constexpr auto kExplanation = 3s;

std::string bucket_title(std::size_t number, const core::Bucket& bucket,
                         const std::vector<core::GradientInfo>& gradients, std::size_t element) {
  const std::string& last = gradients[bucket.last - 1].name;
  return "bucket " + std::to_string(number) + " (" + gradients[bucket.first].name +
         (bucket.last - bucket.first > 1 ? " .. " + last : "") + ", " + std::to_string(bucket.count * element) +
         " bytes)";
}

}  // namespace

DeviceEngine::DeviceEngine(std::unique_ptr<comm::DeviceCommunicator> communicator, const EngineOptions& options,
                           const DeviceOptions& device)
    : runtime_(communicator->runtime()),
      plane_(communicator->device()),
      options_(options),
      device_(device),
      alone_(communicator->topology().size == 1),
      watch_(*communicator, options.deadline),
      engine_(std::make_unique<Engine>(std::move(communicator), options)),
      schedule_(options.schedule) {
  if (!alone_) engine_->observe(&watch_);
}

DeviceEngine::~DeviceEngine() {
  if (!watch_.active()) return;
  engine_->abort("its engine was destroyed inside step " + std::to_string(steps_));
  give_up();
}

void DeviceEngine::give_up() noexcept {
  enqueuing_ = false;
  plane_.abort();
  try {
    const Deadline deadline = Deadline::after(kRest);
    for (const gpu::StreamView stream : {compute_, plane_.stream()}) {
      runtime_.synchronize(stream, deadline, "the step that is given up");
    }
  } catch (...) {  // the GPU has failed, and with it all that it was doing
  }
  watch_.finished();
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
  // On the engine's thread, which may be looking at it.
  engine_->perform("watching a plan", [&] { watch_.configure(std::move(titles), gradients_.size()); });
}

void DeviceEngine::begin_anew(const char* call) {
  if (watch_.active()) throw Error(Errc::kInvalidArgument, std::string(call) + " inside a step");
  drop_graphs();
  eager_.clear();
}

void DeviceEngine::drop_graphs() {
  graphs_.clear();
  lasted_.clear();
}

void DeviceEngine::set_options(const DeviceOptions& device) {
  begin_anew("set_options");
  device_ = device;
}

void DeviceEngine::set_buckets(const core::BucketOptions& buckets) {
  begin_anew("set_buckets");
  engine_->set_buckets(buckets);
  watch_plan();
}

void DeviceEngine::reconnect(const comm::NcclOptions& options) {
  begin_anew("reconnect");
  engine_->perform("reconnect", [&] { plane_.reconnect(options, Deadline::after(options_.deadline)); });
}

void DeviceEngine::set_schedule(Schedule schedule) {
  if (watch_.active()) throw Error(Errc::kInvalidArgument, "set_schedule inside a step");
  engine_->set_schedule(schedule);
  schedule_ = schedule;
}

bool DeviceEngine::to_be_captured() const {
  if (!device_.graph || !graph_refusal().empty()) return false;
  const auto before = eager_.find(schedule_);
  return (before == eager_.end() ? 0 : before->second) >= device_.eager_steps;
}

std::string_view DeviceEngine::graph_refusal() const {
  if (!device_.graph || alone_ || schedule_ == Schedule::kNone) return {};
  if (schedule_ == Schedule::kNegotiated) {
    return "the host takes part in negotiated steps, which no CUDA graph can hold: every step is enqueued";
  }
  return plane_.capture_refusal();
}

std::optional<gpu::GraphShape> DeviceEngine::graph_shape() const {
  const auto known = graphs_.find(schedule_);
  return known == graphs_.end() ? std::nullopt : runtime_.shape(known->second);
}

void DeviceEngine::run_step(gpu::StreamView compute, const Work& work) {
  if (gradients_.empty()) throw Error(Errc::kInvalidArgument, "run_step: call set_gradients() first");
  if (watch_.active()) throw Error(Errc::kInvalidArgument, "run_step: the last step is not finished");
  engine_->throw_if_failed();
  begun_ = Clock::now();
  captured_ = false;
  compute_ = compute;
  report_ = {};
  const bool reduces = schedule_ != Schedule::kNone && !alone_;
  watch_.begin(steps_, reduces && schedule_ == Schedule::kStatic ? watch_.events().buckets.size() : 0);
  try {
    report_.graph = to_be_captured();
    if (report_.graph) {
      if (const auto known = graphs_.find(schedule_); known == graphs_.end()) {
        captured_ = true;
        gpu::Capture capture(runtime_, compute);
        enqueue(work);
        graphs_[schedule_] = capture.finish();
      }
      runtime_.record(watch_.events().begin, compute);
      runtime_.launch(graphs_[schedule_], compute);
    } else {
      runtime_.record(watch_.events().begin, compute);
      enqueue(work);
      ++eager_[schedule_];
    }
    runtime_.record(watch_.events().end, compute);
  } catch (const Error& error) {
    rethrow_explained(error);
  } catch (...) {
    give_up();
    throw;
  }
  watch_.enqueued();
  report_.enqueue = Clock::now() - begun_;
}

void DeviceEngine::enqueue(const Work& work) {
  enqueuing_ = true;
  next_bucket_ = 0;
  marks_.reset();
  const bool negotiates = schedule_ == Schedule::kNegotiated && !alone_;
  if (negotiates) engine_->begin_step();
  work.forward_backward();
  StepEvents& events = watch_.events();
  runtime_.record_outside(events.backward_end, compute_);
  if (negotiates) {
    report_.engine = engine_->finish_step();
    report_.batches = report_.engine.batches;
    report_.bytes = report_.engine.bytes;
  } else {
    if (!alone_ && schedule_ == Schedule::kStatic) reduce_ready_buckets();
    require_all_marked();
  }
  join();
  runtime_.record_outside(events.joined, compute_);
  enqueuing_ = false;
  work.update();
}

void DeviceEngine::gradient_ready(std::size_t index) {
  if (!enqueuing_ || index >= marks_.size()) {
    throw Error(Errc::kInvalidArgument,
                "gradient_ready(" + std::to_string(index) + "): " +
                    (index < marks_.size() ? "no step is being enqueued"
                                           : "there are " + std::to_string(marks_.size()) + " gradients"));
  }
  if (marks_.mark(index).again) {
    throw Error(Errc::kInvalidArgument, "gradient_ready: '" + gradients_[index].name + "' was ready already");
  }
  if (alone_ || schedule_ == Schedule::kNone) return;
  if (schedule_ == Schedule::kNegotiated) {
    runtime_.record(watch_.events().gradients[index], compute_);
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
  const StepEvents::Bucket& events = watch_.events().buckets[bucket];
  const gpu::StreamView stream = plane_.stream();
  runtime_.record(events.ready, compute_);
  runtime_.wait(stream, events.ready);
  runtime_.record_outside(events.begin, stream);
  plane_.all_reduce(arena_ + range.offset * element, range.count, plan.dtype, plan.op,
                    Deadline::after(options_.deadline));
  runtime_.record_outside(events.done, stream);
}

void DeviceEngine::require_all_marked() const {
  if (const std::size_t missing = marks_.first_missing(0, marks_.size()); missing != ReadyMarks::kNone) {
    throw Error(Errc::kInvalidArgument, "run_step: gradient '" + gradients_[missing].name + "' was never marked ready");
  }
}

void DeviceEngine::join() {
  if (alone_ || schedule_ == Schedule::kNone) return;
  const gpu::Event& all_reduced = watch_.events().all_reduced;
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
  throw;  // what the caller is handling
}

DeviceReport DeviceEngine::finish_step() {
  if (!watch_.active()) throw Error(Errc::kInvalidArgument, "finish_step: no step has been run");
  const StepEvents& events = watch_.events();
  try {
    // The watchdog has the same deadline and more to say; a world of one has none.
    const Deadline deadline = Deadline::after(options_.deadline + (alone_ ? 0s : kExplanation));
    std::optional<Clock::time_point> expected;
    if (const auto last = lasted_.find(schedule_); last != lasted_.end()) {
      report_.expected = last->second;
      expected = begun_ + last->second;
    }
    runtime_.synchronize(
        events.end, deadline, watch_.here() + ": step " + std::to_string(steps_),
        [this] { engine_->throw_if_failed(); }, expected);
    lasted_.erase(schedule_);
    if (!captured_) lasted_[schedule_] = Clock::now() - begun_;
  } catch (const Error& error) {
    rethrow_explained(error);
  }
  engine_->throw_if_failed();
  report_.step = runtime_.elapsed(events.begin, events.end);
  report_.exposed = runtime_.elapsed(events.backward_end, events.joined);
  if (!alone_ && schedule_ == Schedule::kStatic) {
    const core::BucketPlan& plan = engine_->plan();
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      report_.reduce += runtime_.elapsed(events.buckets[b].begin, events.buckets[b].done);
      report_.bytes += plan.buckets[b].count * size_of(plan.dtype);
    }
    report_.batches = plan.buckets.size();
  }
  watch_.finished();
  ++steps_;
  return report_;
}

}  // namespace hvd
