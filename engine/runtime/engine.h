// The engine: overlaps gradient averaging with compute. It owns a Communicator and one thread, which alone
// makes all communication calls and sleeps when there is nothing to do. No globals: two engines can live in
// one process.
//
// Two ways to use it:
//  - any buffers, any order: all_reduce_async(name, ...) and its kin, and wait(); negotiated as in Horovod.
//  - a fixed set of gradients in one arena, every step: set_gradients(), then per step begin_step(),
//    gradient_ready(i), finish_step(); under the static, the sharded or the negotiated schedule or none.
//
// Threads: public methods may be called from any thread unless they say otherwise; a step's methods from one
// thread at a time. Errors of the engine thread surface in the next call that waits, as hvd::Error; after
// the first one the engine is failed and every call throws it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "engine/base/types.h"
#include "engine/comm/chunks.h"
#include "engine/comm/communicator.h"
#include "engine/core/bucket_plan.h"
#include "engine/core/negotiator.h"
#include "engine/gpu/runtime.h"

namespace hvd {

class EngineObserver;

enum class Schedule : std::uint8_t {
  kStatic,      ///< buckets fixed at start, no control plane at all
  kNegotiated,  ///< Horovod's protocol
  kNone,        ///< no reduction: the reference for what communication costs
  kSharded,     ///< the buckets of kStatic, of each of which a rank gets its share only
};
/// Whether gradients are reduced bucket by bucket of the plan, without a control plane.
constexpr bool by_bucket(Schedule schedule) noexcept {
  return schedule == Schedule::kStatic || schedule == Schedule::kSharded;
}
std::string_view name(Schedule schedule) noexcept;

struct EngineOptions {
  Schedule schedule = Schedule::kStatic;
  core::BucketOptions buckets;                           ///< static schedule
  core::NegotiatorOptions negotiation;                   ///< HOROVOD_FUSION_THRESHOLD, HOROVOD_CACHE_CAPACITY
  std::chrono::microseconds cycle_time{1000};            ///< HOROVOD_CYCLE_TIME: pause after a cycle that moved nothing
  Patience deadline = std::chrono::milliseconds(60000);  ///< of every wait for a peer, until set_deadline()
  /// Rank is put before the extension; empty: no trace. All ranks trace or none does.
  std::string timeline_filename;
  /// Gets one line when a collective or a tensor has waited for a quarter of `deadline`: for whom, and what they do.
  /// Called on rank 0, or on rank 1 if rank 0 is missing. From the engine's thread, once per stall; must not throw. May
  /// be null.
  std::function<void(std::string_view line)> warn;
};

/// What one step cost, on this rank. Times of the engine thread overlap with compute; `exposed` does not.
struct StepReport {
  std::chrono::nanoseconds exposed{0};  ///< finish_step() waited this long
  std::chrono::nanoseconds reduce{0};   ///< engine thread inside the data plane
  std::chrono::nanoseconds control{0};  ///< engine thread inside the control plane (0 when static)
  std::chrono::nanoseconds copy{0};     ///< into and out of the fusion buffer (0 when contiguous)
  std::size_t batches = 0;
  std::size_t bytes = 0;  ///< payload of the batches; of an all_to_all what this rank received
};

using Ticket = std::uint64_t;

/// Factors of a reduction of floating-point tensors: each rank's addend is multiplied by `before`, the result by
/// `after` (Horovod: prescale_factor, postscale_factor). All ranks give the same.
struct Scale {
  double before = 1;
  double after = 1;
};

/// The result of an operation whose size the engine determines; see Engine::take_output(). It lies where the operands
/// do: in host memory, or on a device in memory that the engine allocates for it and the caller frees with this object.
/// Freeing device memory may wait for all work on the GPU. The object may outlive the engine, but not the gpu::Runtime.
struct Output {
  std::vector<std::byte> bytes;    ///< empty on a device
  gpu::DeviceMemory device;        ///< exactly as large as the result; empty on a host, and for a result of no bytes
  std::vector<std::int64_t> rows;  ///< [rank]

  /// The result, wherever it lies.
  [[nodiscard]] std::span<const std::byte> data() const {
    return device ? std::span<const std::byte>(device->bytes) : std::span<const std::byte>(bytes);
  }
};

/// One tensor of a grouped all-reduce.
struct GroupTensor {
  void* data = nullptr;
  std::span<const std::int64_t> shape;
};

class Engine {
 public:
  Engine(std::unique_ptr<comm::Communicator> communicator, const EngineOptions& options);
  /// Waits for what is in flight (bounded by the deadline) and stops the thread. Inside a step, or while an
  /// exception unwinds the stack, the peers are told at once that this rank leaves.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const comm::Topology& topology() const;
  [[nodiscard]] int rank() const { return topology().rank; }
  [[nodiscard]] int size() const { return topology().size; }
  /// "shm", "ring", ...; see DataPlane::description().
  [[nodiscard]] std::string data_plane() const;
  [[nodiscard]] std::string library() const;

  // -- any buffers -------------------------------------------------------------------------------------
  // Ranks match by `name`, in whatever order each submits. All memory must stay valid and untouched until wait()
  // returns. On a device all of it is device memory, and what makes the operands is over on the GPU before the call;
  // when wait() returns, so is the operation. Shapes, splits and rows are the host's.
  // Errors: invalid_argument for the caller's mistakes, and inside a step of the static schedule; unsupported on a
  // device for reductions of int16, for factors where gpu::Runtime::scale_refusal() says why, and for all_gather,
  // reduce_scatter and all_to_all where DevicePlane::shares_refusal() does. Where ranks disagree (kind of operation,
  // shape, type, operation, root, factors), the ticket fails on all of them with the same text, and the engine stays
  // usable. A device that has no memory for an output fails the engine. "Rows" are the first dimension: a shape of
  // [5, 3] has 5 rows of 3 elements.
  /// In place.
  Ticket all_reduce_async(std::string_view name, void* data, std::span<const std::int64_t> shape, DataType dtype,
                          ReduceOp op, Scale scale = {});
  /// `in` stays as it is; the two are the same or do not overlap.
  Ticket all_reduce_into_async(std::string_view name, void* out, const void* in, std::span<const std::int64_t> shape,
                               DataType dtype, ReduceOp op, Scale scale = {});
  /// All of the tensors or none, together and in place. Groups match by `name`; `tensors` is not kept.
  Ticket grouped_all_reduce_async(std::string_view name, std::span<const GroupTensor> tensors, DataType dtype,
                                  ReduceOp op, Scale scale = {});
  /// Output: the rows of all ranks, in the order of ranks. Their numbers of rows may differ.
  Ticket all_gather_async(std::string_view name, const void* data, std::span<const std::int64_t> shape, DataType dtype);
  /// Output: this rank's rows of the reduced tensor. Rows are divided evenly; the first ranks get one more.
  Ticket reduce_scatter_async(std::string_view name, const void* data, std::span<const std::int64_t> shape,
                              DataType dtype, ReduceOp op, Scale scale = {});
  /// In place: all ranks get what `root` has.
  Ticket broadcast_async(std::string_view name, void* data, std::span<const std::int64_t> shape, DataType dtype,
                         int root);
  /// `split_rows[r]` rows go to rank r; empty: the same number to each. Output: what all ranks sent here, in the order
  /// of ranks. Neither rows nor splits need be equal on the ranks.
  Ticket all_to_all_async(std::string_view name, const void* data, std::span<const std::int64_t> shape,
                          std::span<const std::int64_t> split_rows, DataType dtype);
  /// Done when every rank has submitted it.
  Ticket barrier_async(std::string_view name);
  /// Waits, throws the ticket's error if it has one, and forgets the ticket and its output.
  /// Errors (also those of the next three): invalid_argument for a ticket that was never issued or is forgotten.
  void wait(Ticket ticket);
  /// As wait(), and returns the output: its memory, and rows per rank that it came from (reduce_scatter: rows that each
  /// rank got). Empty where the result is in the caller's memory.
  Output take_output(Ticket ticket);
  [[nodiscard]] bool done(Ticket ticket) const;
  /// What wait() would throw; nullopt if it would not, or not yet. Does not wait; the ticket stays.
  [[nodiscard]] std::optional<Error> error_of(Ticket ticket) const;

  // -- a fixed set of gradients ------------------------------------------------------------------------
  /// Collective. Zeroed memory for the arena, shared or registered where the data plane has such.
  std::span<std::byte> allocate(std::size_t bytes);
  /// Collective, once. Plans the buckets and compares the plan's hash over ranks.
  /// Errors: mismatch naming a rank that differs, its host and the first tensor that differs; unsupported for int16 on
  /// a device.
  void set_gradients(std::vector<core::GradientInfo> gradients, std::byte* arena, DataType dtype, ReduceOp op);
  /// Collective, between steps, after set_gradients(): plans the buckets anew. Errors: as set_gradients().
  void set_buckets(const core::BucketOptions& buckets);
  /// Collective, between steps, with no ticket in flight: later negotiations fuse and pause like this.
  void set_negotiation(const core::FusionOptions& fusion, std::chrono::microseconds cycle_time);
  /// Collective, between steps: DataPlane::choose(). Errors: as there.
  void set_reduction(const comm::CommOptions& options);
  [[nodiscard]] const core::BucketPlan& plan() const;
  /// Schedule of the steps that follow; every rank must switch at the same step. Starts as options.schedule.
  void set_schedule(Schedule schedule);
  void begin_step();
  /// Gradient i of set_gradients() is final and untouched until finish_step() returns. Cheap: no allocation,
  /// no wait for peers. Any order. Errors: invalid_argument for the caller's mistakes only (no such gradient,
  /// marked twice); what the engine's thread met is thrown by finish_step().
  void gradient_ready(std::size_t index);
  /// Returns when every gradient of the step is reduced on this rank; under the sharded schedule when shares() are, and
  /// the rest of the arena is undefined.
  /// Errors: those of the engine's thread; invalid_argument if a gradient was not marked, which leaves the
  /// step open.
  StepReport finish_step();

  // -- the sharded schedule, host memory only -----------------------------------------------------------
  /// This rank's part of each bucket, elements of the arena. Follows from the plan, the rank and the world size.
  [[nodiscard]] std::vector<comm::Range> shares() const;
  /// Collective, between steps: every rank gets the shares of all ranks, in place. `data` is laid out as the arena of
  /// set_gradients(), of any type. Errors: those of the engine's thread; invalid_argument inside a step.
  void gather_shares(std::byte* data, DataType dtype);
  /// Collective, between steps: what a sharded step does with `bucket`, alone.
  void reduce_shares(const core::Bucket& bucket);

  // -- small collectives on the engine's thread, in program order with nothing else in flight -----------
  // They wait for all tickets issued before. Errors: invalid_argument inside a step and for arguments that cannot be
  // meant, unsupported for what the data plane cannot do. Both leave the engine usable, because nothing has been sent.
  // Other errors fail the engine.
  void barrier();
  void broadcast(void* data, std::size_t bytes, int root);
  /// Rank 0 gets one message per rank; the others get an empty vector.
  std::vector<comm::Bytes> gather(std::span<const std::byte> message);
  comm::Bytes broadcast_message(std::span<const std::byte> message, int root);
  void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op);
  // Shapes of the next three: as in comm::DataPlane. Counts are elements per rank, [rank], and must agree.
  void reduce_scatter(void* out, const void* in, comm::Counts counts, DataType dtype, ReduceOp op);
  void all_gather(void* out, const void* in, comm::Counts counts, DataType dtype);
  void all_to_all(void* out, comm::Counts receive_counts, const void* in, comm::Counts send_counts, DataType dtype);
  /// What there is no method for. `what` is for messages.
  void perform(const char* what, const std::function<void()>& work);

  /// What the caller is doing ("step 17, backward of layer4.2.conv3"), shown when a peer loses patience.
  /// Cheap; `activity` must be a string that outlives the engine, e.g. a literal.
  void set_activity(const char* activity, std::uint64_t step) noexcept;
  [[nodiscard]] core::CycleStats cycle_stats() const;
  /// Tells the peers that this rank gives up, so that they fail at once rather than at the deadline. Does not
  /// wait; this rank's next call throws Error{kInterrupted, reason}.
  void abort(std::string_view reason) noexcept;

  /// Sets the deadline of every later wait for a peer. Not collective; ranks may differ. Errors: invalid_argument
  /// inside a step.
  void set_deadline(Patience deadline);
  /// Throws what the engine's thread met, if it has failed. Cheap.
  void throw_if_failed() const;
  /// After the engine has lost a peer: Communicator::flight_record() of that moment, else empty.
  [[nodiscard]] std::string flight_record() const;
  /// For what reduces on a device beside the engine (DeviceEngine); null: nobody. Borrowed until the engine's end.
  void observe(EngineObserver* observer);

  // -- timeline ------------------------------------------------------------------------------------------
  [[nodiscard]] bool tracing() const noexcept;
  /// A span of the caller's own ("forward", "update") on the compute track. Nothing without a trace.
  void trace_span(std::string_view name, Clock::time_point begin, Clock::time_point end);
  /// Writes what is left of the timeline; spans after it are dropped. The destructor does it too, but cannot
  /// tell of errors. Errors: io (disk full).
  void close_trace();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd
