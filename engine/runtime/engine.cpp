#include "engine/runtime/engine.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/runtime/engine_impl.h"

namespace hvd {
namespace {

void check_root(const char* what, int root, int size) {
  if (root >= 0 && root < size) return;
  throw Error(Errc::kInvalidArgument, std::string(what) + ": root " + std::to_string(root) + " is not one of the " +
                                          std::to_string(size) + " ranks");
}

}  // namespace

std::string_view name(Schedule schedule) noexcept {
  switch (schedule) {
    case Schedule::kStatic: return "static";
    case Schedule::kNegotiated: return "negotiated";
    case Schedule::kNone: return "none";
  }
  return "unknown";
}

Engine::Engine(std::unique_ptr<comm::Communicator> communicator, const EngineOptions& options) {
  if (!communicator) throw Error(Errc::kInvalidArgument, "Engine: no communicator");
  impl_ = std::make_unique<Impl>(std::move(communicator), options);
}
Engine::~Engine() = default;

const comm::Topology& Engine::topology() const { return impl_->communicator_->topology(); }
std::string Engine::data_plane() const { return impl_->data_plane(); }
std::string Engine::library() const { return impl_->library_; }

Ticket Engine::all_reduce_async(std::string_view name, void* data, std::span<const std::int64_t> shape, DataType dtype,
                                ReduceOp op) {
  return impl_->submit({std::string(name), dtype, op, {shape.begin(), shape.end()}}, static_cast<std::byte*>(data));
}
void Engine::wait(Ticket ticket) { impl_->wait(ticket); }
bool Engine::done(Ticket ticket) const { return impl_->done(ticket); }

std::span<std::byte> Engine::allocate(std::size_t bytes) { return impl_->allocate(bytes); }
void Engine::set_gradients(std::vector<core::GradientInfo> gradients, std::byte* arena, DataType dtype, ReduceOp op) {
  impl_->set_gradients(std::move(gradients), arena, dtype, op);
}
void Engine::set_buckets(const core::BucketOptions& buckets) { impl_->set_buckets(buckets); }
const core::BucketPlan& Engine::plan() const {
  if (impl_->gradients_.empty()) throw Error(Errc::kInvalidArgument, "plan: call set_gradients() first");
  return impl_->plan_;
}
void Engine::set_schedule(Schedule schedule) {
  if (impl_->in_step_.load()) throw Error(Errc::kInvalidArgument, "set_schedule inside a step");
  impl_->schedule_ = schedule;
}
void Engine::begin_step() { impl_->begin_step(); }
void Engine::gradient_ready(std::size_t index) { impl_->gradient_ready(index); }
StepReport Engine::finish_step() { return impl_->finish_step(); }

void Engine::barrier() {
  impl_->execute("barrier", [&] { impl_->communicator_->control().barrier(impl_->options_.deadline.from_now()); });
}

void Engine::broadcast(void* data, std::size_t bytes, int root) {
  check_root("broadcast", root, size());
  impl_->execute("broadcast", [&] {
    impl_->communicator_->data().broadcast(data, bytes, root, impl_->options_.deadline.from_now());
  });
}

std::vector<comm::Bytes> Engine::gather(std::span<const std::byte> message) {
  std::vector<comm::Bytes> result;
  impl_->execute(
      "gather", [&] { result = impl_->communicator_->control().gather(message, impl_->options_.deadline.from_now()); });
  return result;
}

comm::Bytes Engine::broadcast_message(std::span<const std::byte> message, int root) {
  check_root("broadcast_message", root, size());
  comm::Bytes result;
  impl_->execute("broadcast_message", [&] {
    result = impl_->communicator_->control().broadcast(message, root, impl_->options_.deadline.from_now());
  });
  return result;
}

void Engine::all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op) {
  impl_->execute("all_reduce", [&] {
    comm::DataPlane& plane = impl_->communicator_->data();
    const Deadline deadline = impl_->options_.deadline.from_now();
    plane.all_reduce(data, count, dtype, op, deadline);
    plane.complete("all_reduce", deadline);
  });
}

void Engine::set_deadline(Patience deadline) {
  impl_->execute("set_deadline", [&] { impl_->options_.deadline = deadline; });
}

void Engine::perform(const char* what, const std::function<void()>& work) { impl_->execute(what, work); }

void Engine::set_activity(const char* activity, std::uint64_t step) noexcept {
  impl_->activity_.store(activity, std::memory_order_relaxed);
  impl_->activity_step_.store(step, std::memory_order_relaxed);
}
core::CycleStats Engine::cycle_stats() const { return impl_->cycle_stats(); }
void Engine::abort(std::string_view reason) noexcept { impl_->abort(reason); }

void Engine::throw_if_failed() const { impl_->throw_if_failed(); }
void Engine::observe(EngineObserver* observer) { impl_->observe(observer); }

bool Engine::tracing() const noexcept { return impl_->trace_ != nullptr; }
void Engine::trace_span(std::string_view name, Clock::time_point begin, Clock::time_point end) {
  if (impl_->trace_) impl_->trace_->add(TraceTrack::kCompute, name, begin, end);
}
void Engine::close_trace() { impl_->close_trace(); }

}  // namespace hvd
