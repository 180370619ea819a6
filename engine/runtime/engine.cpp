#include "engine/runtime/engine.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <utility>

#include "engine/base/error.h"
#include "engine/runtime/engine_impl.h"
#include "engine/runtime/operations.h"

namespace hvd {
namespace {

using core::Collective;

void check_root(const char* what, int root, int size) {
  if (root >= 0 && root < size) return;
  throw Error(Errc::kInvalidArgument, fmt::format("{}: root {} is not one of the {} ranks", what, root, size));
}

/// Checks the counts on the caller's thread, because the same error on the engine's thread would fail the engine.
void check_counts(const char* what, comm::Counts counts, int ranks, std::size_t element) {
  if (counts.size() != static_cast<std::size_t>(ranks)) {
    throw Error(Errc::kInvalidArgument, fmt::format("{}: {} counts for {} ranks", what, counts.size(), ranks));
  }
  std::size_t left = ~std::size_t{0} / element;
  for (const std::size_t count : counts) {
    if (count > left) throw Error(Errc::kInvalidArgument, std::string(what) + ": the counts add up beyond 64 bits");
    left -= count;
  }
}

void check_memory(const core::Request& request, const void* data, std::size_t bytes) {
  if (data != nullptr || bytes == 0) return;
  throw Error(Errc::kInvalidArgument,
              fmt::format("{}_async: tensor '{}' has no memory", core::name(request.terms.kind), request.name));
}

void check_apart(std::string_view name, const void* out, const void* in, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(out);
  const auto second = reinterpret_cast<std::uintptr_t>(in);
  if ((first < second ? second - first : first - second) >= bytes) return;
  throw Error(
      Errc::kInvalidArgument,
      fmt::format("all_reduce_into_async: input and output of tensor '{}' overlap; use the same memory or memory apart",
                  name));
}

core::Request request_of(std::string_view name, std::span<const std::int64_t> shape, DataType dtype, ReduceOp op,
                         Collective kind, Scale scale = {}) {
  return {std::string(name), dtype, op, {shape.begin(), shape.end()}, {kind, 0, scale.before, scale.after}};
}

/// Makes the PendingTensor of an operation that runs in place at `data`. Errors: invalid_argument if `data` is null and
/// the tensor is not empty.
PendingTensor place(const core::Request& request, void* data) {
  PendingTensor tensor;
  tensor.data = static_cast<std::byte*>(data);
  tensor.bytes = request.bytes();
  check_memory(request, data, tensor.bytes);
  return tensor;
}

/// Makes the PendingTensor of an operation whose result is an Output, so that `data` is only read. Errors: those of
/// place().
PendingTensor rows_of(const core::Request& request, const void* data, std::span<const std::int64_t> shape) {
  PendingTensor tensor;
  tensor.operands = std::make_unique<Operands>();
  tensor.operands->data = static_cast<const std::byte*>(data);
  tensor.operands->shape.assign(shape.begin(), shape.end());
  tensor.bytes = core::count_of(tensor.operands->shape, request.name) * size_of(request.dtype);
  check_memory(request, data, tensor.bytes);
  return tensor;
}

std::vector<std::int64_t> splits_of(std::string_view name, std::int64_t rows, std::span<const std::int64_t> split_rows,
                                    int ranks) {
  const auto refuse = [&](const std::string& why) {
    throw Error(Errc::kInvalidArgument, fmt::format("all_to_all_async: tensor '{}': {}", name, why));
  };
  if (split_rows.empty()) {
    if (rows % ranks != 0) {
      refuse(fmt::format("{} rows cannot be divided evenly among {} ranks; give the splits", rows, ranks));
    }
    return share_rows(rows, ranks);
  }
  if (split_rows.size() != static_cast<std::size_t>(ranks)) {
    refuse(fmt::format("{} splits for {} ranks", split_rows.size(), ranks));
  }
  std::int64_t left = rows;
  for (const std::int64_t split : split_rows) {
    if (split < 0 || split > left) {
      refuse(fmt::format("the splits {} do not add up to its {} rows",
                         core::to_text({split_rows.begin(), split_rows.end()}), rows));
    }
    left -= split;
  }
  if (left != 0) {
    refuse(fmt::format("the splits {} leave {} of its {} rows", core::to_text({split_rows.begin(), split_rows.end()}),
                       left, rows));
  }
  return {split_rows.begin(), split_rows.end()};
}

}  // namespace

std::string_view name(Schedule schedule) noexcept {
  switch (schedule) {
    case Schedule::kStatic: return "static";
    case Schedule::kNegotiated: return "negotiated";
    case Schedule::kNone: return "none";
    case Schedule::kSharded: return "sharded";
  }
  return "unknown";
}

Engine::Engine(std::shared_ptr<comm::Communicator> communicator, const EngineOptions& options, Watchdog* watchdog) {
  if (!communicator) throw Error(Errc::kInvalidArgument, "Engine: no communicator");
  impl_ = std::make_unique<Impl>(std::move(communicator), options, watchdog);
}
Engine::~Engine() = default;

const comm::Topology& Engine::topology() const { return impl_->communicator_->topology(); }
std::string Engine::data_plane() const { return impl_->data_plane(); }
std::string Engine::library() const { return impl_->library_; }

Ticket Engine::all_reduce_async(std::string_view name, void* data, std::span<const std::int64_t> shape, DataType dtype,
                                ReduceOp op, Scale scale) {
  core::Request request = request_of(name, shape, dtype, op, Collective::kAllReduce, scale);
  PendingTensor tensor = place(request, data);
  return impl_->submit(std::move(request), std::move(tensor));
}

Ticket Engine::all_reduce_into_async(std::string_view name, void* out, const void* in,
                                     std::span<const std::int64_t> shape, DataType dtype, ReduceOp op, Scale scale) {
  if (in == out) return all_reduce_async(name, out, shape, dtype, op, scale);
  core::Request request = request_of(name, shape, dtype, op, Collective::kAllReduce, scale);
  PendingTensor tensor = place(request, out);
  check_memory(request, in, tensor.bytes);
  check_apart(name, out, in, tensor.bytes);
  tensor.operands = std::make_unique<Operands>();
  tensor.operands->pieces.push_back({tensor.data, tensor.bytes, 0, static_cast<const std::byte*>(in)});
  return impl_->submit(std::move(request), std::move(tensor));
}

Ticket Engine::grouped_all_reduce_async(std::string_view name, std::span<const GroupTensor> tensors, DataType dtype,
                                        ReduceOp op, Scale scale) {
  if (tensors.empty()) {
    throw Error(Errc::kInvalidArgument, fmt::format("grouped_all_reduce_async: group '{}' has no tensors", name));
  }
  core::Request request = request_of(name, {}, dtype, op, Collective::kGroupedAllReduce, scale);
  PendingTensor pending;
  pending.operands = std::make_unique<Operands>();
  for (const GroupTensor& tensor : tensors) {
    core::append_shape(request.shape, tensor.shape);
    const std::size_t bytes = core::count_of({tensor.shape.begin(), tensor.shape.end()}, name) * size_of(dtype);
    check_memory(request, tensor.data, bytes);
    pending.operands->pieces.push_back({static_cast<std::byte*>(tensor.data), bytes});
    pending.bytes += bytes;
  }
  return impl_->submit(std::move(request), std::move(pending));
}

Ticket Engine::all_gather_async(std::string_view name, const void* data, std::span<const std::int64_t> shape,
                                DataType dtype) {
  core::Request request = request_of(name, shape, dtype, ReduceOp::kSum, Collective::kAllGather);
  PendingTensor tensor = rows_of(request, data, shape);
  return impl_->submit(std::move(request), std::move(tensor));
}

Ticket Engine::reduce_scatter_async(std::string_view name, const void* data, std::span<const std::int64_t> shape,
                                    DataType dtype, ReduceOp op, Scale scale) {
  core::Request request = request_of(name, shape, dtype, op, Collective::kReduceScatter, scale);
  PendingTensor tensor = rows_of(request, data, shape);
  return impl_->submit(std::move(request), std::move(tensor));
}

Ticket Engine::broadcast_async(std::string_view name, void* data, std::span<const std::int64_t> shape, DataType dtype,
                               int root) {
  check_root("broadcast_async", root, size());
  core::Request request = request_of(name, shape, dtype, ReduceOp::kSum, Collective::kBroadcast);
  request.terms.root = root;
  PendingTensor tensor = place(request, data);
  return impl_->submit(std::move(request), std::move(tensor));
}

Ticket Engine::all_to_all_async(std::string_view name, const void* data, std::span<const std::int64_t> shape,
                                std::span<const std::int64_t> split_rows, DataType dtype) {
  if (shape.empty()) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("all_to_all_async: tensor '{}': a scalar has no rows; give it the shape [1]", name));
  }
  core::Request request = request_of(name, shape.subspan(1), dtype, ReduceOp::kSum, Collective::kAllToAll);
  PendingTensor tensor = rows_of(request, data, shape);
  tensor.operands->split_rows = splits_of(name, shape.front(), split_rows, size());
  return impl_->submit(std::move(request), std::move(tensor));
}

Ticket Engine::barrier_async(std::string_view name) {
  constexpr std::array<std::int64_t, 1> kNothing{0};
  return impl_->submit(request_of(name, kNothing, DataType::kU8, ReduceOp::kSum, Collective::kBarrier), {});
}

void Engine::wait(Ticket ticket) { static_cast<void>(impl_->take_output(ticket)); }
Output Engine::take_output(Ticket ticket) { return impl_->take_output(ticket); }
std::optional<Error> Engine::error_of(Ticket ticket) const { return impl_->error_of(ticket); }
bool Engine::done(Ticket ticket) const { return impl_->done(ticket); }

std::span<std::byte> Engine::allocate(std::size_t bytes) { return impl_->allocate(bytes); }
void Engine::set_gradients(std::vector<core::GradientInfo> gradients, std::byte* arena, DataType dtype, ReduceOp op) {
  impl_->set_gradients(std::move(gradients), arena, dtype, op);
}
void Engine::set_buckets(const core::BucketOptions& buckets) { impl_->set_buckets(buckets); }
void Engine::set_negotiation(const core::FusionOptions& fusion, std::chrono::microseconds cycle_time) {
  impl_->set_negotiation(fusion, cycle_time);
}
void Engine::set_reduction(const comm::CommOptions& options) {
  impl_->execute("set_reduction", [&] { impl_->communicator_->data().choose(options); });
}
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

std::vector<comm::Range> Engine::shares() const {
  std::vector<comm::Range> shares;
  for (const core::Bucket& bucket : plan().buckets) {
    const comm::Range share = impl_->share(bucket, rank());
    shares.push_back({bucket.offset + share.begin, share.count});
  }
  return shares;
}

void Engine::gather_shares(std::byte* data, DataType dtype) {
  impl_->execute("gather_shares", [&] { impl_->gather_shares(data, dtype); });
}

void Engine::reduce_shares(const core::Bucket& bucket) {
  impl_->execute("reduce_shares", [&] { impl_->reduce_shares(bucket); });
}

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
  impl_->on_plane("all_reduce", [&](comm::DataPlane& plane, Deadline deadline) {
    plane.all_reduce(data, count, dtype, op, deadline);
  });
}

void Engine::reduce_scatter(void* out, const void* in, comm::Counts counts, DataType dtype, ReduceOp op) {
  check_counts("reduce_scatter", counts, size(), size_of(dtype));
  impl_->on_plane("reduce_scatter", [&](comm::DataPlane& plane, Deadline deadline) {
    plane.reduce_scatter(out, in, counts, dtype, op, deadline);
  });
}

void Engine::all_gather(void* out, const void* in, comm::Counts counts, DataType dtype) {
  check_counts("all_gather", counts, size(), size_of(dtype));
  impl_->on_plane("all_gather", [&](comm::DataPlane& plane, Deadline deadline) {
    plane.all_gather(out, in, counts, dtype, deadline);
  });
}

void Engine::all_to_all(void* out, comm::Counts receive_counts, const void* in, comm::Counts send_counts,
                        DataType dtype) {
  check_counts("all_to_all", receive_counts, size(), size_of(dtype));
  check_counts("all_to_all", send_counts, size(), size_of(dtype));
  impl_->on_plane("all_to_all", [&](comm::DataPlane& plane, Deadline deadline) {
    plane.all_to_all(out, receive_counts, in, send_counts, dtype, deadline);
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
std::string Engine::flight_record() const { return impl_->flight_record(); }

bool Engine::tracing() const noexcept { return impl_->trace_ != nullptr; }
void Engine::trace_span(std::string_view name, Clock::time_point begin, Clock::time_point end) {
  if (impl_->trace_) impl_->trace_->add(TraceTrack::kCompute, name, begin, end);
}
void Engine::close_trace() { impl_->close_trace(); }

}  // namespace hvd
