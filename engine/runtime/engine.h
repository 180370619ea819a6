// The engine overlaps gradient averaging with compute. It owns a Communicator and one thread. Only this thread makes
// communication calls; it sleeps when there is nothing to do. No globals: two engines can live in one process.
//
// There are two ways to use an Engine:
//  - To reduce any buffers in any order, call all_reduce_async(name, ...) or a similar method, then wait(). The ranks
//    negotiate the order as in Horovod.
//  - To reduce a fixed set of gradients in one arena in every step, call set_gradients() once, and in each step
//    begin_step(), gradient_ready(i) and finish_step(). Any Schedule can be used.
//
// Threads: any thread may call a public method unless its comment says otherwise. Only one thread at a time may call
// the methods of a step. If the engine's thread meets an error, the next call that waits throws it as hvd::Error. The
// engine has then failed, and every later call throws the same error.
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
#include "engine/core/schedule.h"
#include "engine/gpu/runtime.h"

namespace hvd {

class Watchdog;

std::string_view name(Schedule schedule) noexcept;

struct EngineOptions {
  Schedule schedule = Schedule::kStatic;
  core::BucketOptions buckets;                 ///< for the static and the sharded schedule
  core::NegotiatorOptions negotiation;         ///< HOROVOD_FUSION_THRESHOLD, HOROVOD_CACHE_CAPACITY
  std::chrono::microseconds cycle_time{1000};  ///< HOROVOD_CYCLE_TIME: pause after a cycle that reduced nothing
  Patience deadline = std::chrono::milliseconds(60000);  ///< of every wait for a peer, until set_deadline()
  /// Name of the trace (HOROVOD_TIMELINE). Each rank writes a file with its rank before the extension. Empty: no trace.
  /// Set it on all ranks or on none.
  std::string timeline_filename;
  /// Called with one line when a collective or a tensor has waited for a quarter of `deadline`. The line names the
  /// ranks that are missing and what they do. The engine's thread calls it once per stall, on rank 0, or on rank 1 if
  /// rank 0 is missing. Must not throw. May be null.
  std::function<void(std::string_view line)> warn;
};

/// Communication times of one step on this rank. The caller's compute runs during the times of the engine's thread, but
/// not during `exposed`.
struct StepReport {
  std::chrono::nanoseconds exposed{0};  ///< time that finish_step() waited
  std::chrono::nanoseconds reduce{0};   ///< time of the engine's thread in the data plane
  std::chrono::nanoseconds control{0};  ///< time of the engine's thread in the control plane (static schedule: 0)
  std::chrono::nanoseconds copy{0};     ///< copies into and out of the fusion buffer (0 if tensors are contiguous)
  std::size_t batches = 0;
  std::size_t bytes = 0;  ///< payload of the batches; for an all_to_all the bytes that this rank received
};

using Ticket = std::uint64_t;

/// Factors for a reduction of floating-point tensors: the engine multiplies each rank's addend by `before` and the
/// result by `after` (Horovod: prescale_factor, postscale_factor). All ranks must pass the same factors.
struct Scale {
  double before = 1;
  double after = 1;
};

/// The result of an operation whose size the engine determines; see Engine::take_output(). The result is in host memory
/// if the operands are, otherwise in device memory. This object owns the memory. Freeing device memory may wait for all
/// work on the GPU. The object may outlive the engine, but not the gpu::GpuRuntime.
struct Output {
  std::vector<std::byte> bytes;    ///< empty on a device
  gpu::DeviceMemory device;        ///< exactly as large as the result; empty on a host, and if the result has no bytes
  std::vector<std::int64_t> rows;  ///< [rank]; see Engine::take_output()

  /// The result, in host or device memory.
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
  /// `watchdog` watches work that its owner runs outside the engine (engine/runtime/roll_call.h); null: none.
  Engine(std::shared_ptr<comm::Communicator> communicator, const EngineOptions& options, Watchdog* watchdog = nullptr);
  /// Waits for work in flight, up to the deadline, and stops the thread. Inside a step, or while an exception unwinds
  /// the stack, the destructor tells the peers at once that this rank leaves.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] const comm::Topology& topology() const;
  [[nodiscard]] int rank() const { return topology().rank; }
  [[nodiscard]] int size() const { return topology().size; }
  /// Returns "shm", "ring", ...; see DataPlane::description().
  [[nodiscard]] std::string data_plane() const;
  [[nodiscard]] std::string library() const;

  // -- any buffers -------------------------------------------------------------------------------------
  // The engine matches calls of different ranks by `name`; each rank may submit in any order. Only a collective of the
  // sections below fixes the order: a ticket that one rank submits before a call such as barrier() or set_buckets(), or
  // before begin_step() of the static or the sharded schedule, must be submitted before that call on every rank.
  // Tickets and the gradients of a negotiated step have no order. All memory must stay valid and untouched until wait()
  // returns. On a device, all operands are in device memory, and before the call the
  // GPU must have finished the work that writes them. When wait() returns, the GPU has finished the operation. Shapes,
  // splits and rows are in host memory.
  // Errors: invalid_argument for the caller's mistakes, and inside a step of the static schedule; unsupported on a
  // device for reductions of int16, and for factors if gpu::GpuRuntime::scale_refusal() gives a reason. If ranks
  // disagree (kind of operation, shape, type, reduction, root, factors), the ticket fails on all ranks with the same
  // text, and the engine stays usable. If a device has no memory for an output, the engine fails. "Rows" are the first
  // dimension: a tensor of shape [5, 3] has 5 rows of 3 elements.
  /// Reduces `data` in place.
  Ticket all_reduce_async(std::string_view name, void* data, std::span<const std::int64_t> shape, DataType dtype,
                          ReduceOp op, Scale scale = {});
  /// Like all_reduce_async(), but writes the result to `out` and does not change `in`. `in` and `out` must not overlap,
  /// or must be the same memory.
  Ticket all_reduce_into_async(std::string_view name, void* out, const void* in, std::span<const std::int64_t> shape,
                               DataType dtype, ReduceOp op, Scale scale = {});
  /// Reduces all tensors together and in place, or none of them. `name` is the name of the group. The call copies
  /// `tensors`, but not the memory to which `tensors` points.
  Ticket grouped_all_reduce_async(std::string_view name, std::span<const GroupTensor> tensors, DataType dtype,
                                  ReduceOp op, Scale scale = {});
  /// Output: the rows of all ranks, in the order of ranks. Ranks may submit different numbers of rows.
  Ticket all_gather_async(std::string_view name, const void* data, std::span<const std::int64_t> shape, DataType dtype);
  /// Output: this rank's rows of the reduced tensor. Rows are divided evenly; the first ranks may get one row more.
  Ticket reduce_scatter_async(std::string_view name, const void* data, std::span<const std::int64_t> shape,
                              DataType dtype, ReduceOp op, Scale scale = {});
  /// In place: all ranks get the data of `root`.
  Ticket broadcast_async(std::string_view name, void* data, std::span<const std::int64_t> shape, DataType dtype,
                         int root);
  /// Sends split_rows[r] rows to rank r; if `split_rows` is empty, the same number to each rank. Output: the rows that
  /// all ranks sent to this rank, in the order of ranks. The numbers of rows may differ between ranks.
  Ticket all_to_all_async(std::string_view name, const void* data, std::span<const std::int64_t> shape,
                          std::span<const std::int64_t> split_rows, DataType dtype);
  /// The ticket is done when every rank has submitted the barrier.
  Ticket barrier_async(std::string_view name);
  /// Waits until the ticket is finished, throws its error if there is one, and forgets the ticket and its output.
  /// Errors of all methods that take a Ticket: invalid_argument for a ticket that was never issued or is forgotten.
  void wait(Ticket ticket);
  /// Like wait(), and returns the output. Output::rows holds the rows that came from each rank (reduce_scatter: the
  /// rows that each rank got). The output is empty if the result is in the caller's memory.
  Output take_output(Ticket ticket);
  [[nodiscard]] bool done(Ticket ticket) const;
  /// Returns the error that wait() would throw; nullopt if the ticket is not finished or has no error. Does not wait,
  /// and does not forget the ticket.
  [[nodiscard]] std::optional<Error> error_of(Ticket ticket) const;

  // -- a fixed set of gradients ------------------------------------------------------------------------
  /// Collective. Returns zeroed memory for the arena. The data plane shares or registers the memory if it can.
  std::span<std::byte> allocate(std::size_t bytes);
  /// Collective; call it once. Plans the buckets and compares the plan's hash over ranks.
  /// Errors: mismatch, naming a differing rank, its host and its first differing tensor; on a device,
  /// unsupported for int16.
  void set_gradients(std::vector<core::GradientInfo> gradients, std::byte* arena, DataType dtype, ReduceOp op);
  /// Collective, between steps, after set_gradients(): plans the buckets again. Errors: those of set_gradients().
  void set_buckets(const core::BucketOptions& buckets);
  /// Collective, between steps, with no ticket in flight: sets the fusion and the cycle time of later negotiations.
  void set_negotiation(const core::FusionOptions& fusion, std::chrono::microseconds cycle_time);
  /// Collective, between steps: calls DataPlane::choose(). Errors: those of that call.
  void set_reduction(const comm::CommOptions& options);
  [[nodiscard]] const core::BucketPlan& plan() const;
  /// Sets the schedule of later steps; every rank must switch at the same step. The first is EngineOptions::schedule.
  void set_schedule(Schedule schedule);
  void begin_step();
  /// Marks gradient `index` of set_gradients() as final. The caller must not touch the gradient until finish_step()
  /// returns. Does not allocate or wait for peers. Gradients may be marked in any order. Errors: invalid_argument if
  /// there is no such gradient or it is already marked; finish_step() throws errors of the engine's thread.
  void gradient_ready(std::size_t index);
  /// Returns when every gradient of the step is reduced on this rank. Under the sharded schedule only shares() are
  /// reduced, and the rest of the arena is undefined.
  /// Errors: those of the engine's thread; invalid_argument, without ending the step, if a gradient is not marked.
  StepReport finish_step();

  // -- the sharded schedule, host memory only -----------------------------------------------------------
  /// Returns this rank's range of arena elements in each bucket. Depends only on the plan, the rank and the world size.
  [[nodiscard]] std::vector<comm::Range> shares() const;
  /// Collective, between steps: every rank gets the shares of all ranks, in place. `data` has the layout of the arena
  /// of set_gradients(), and any type. Errors: those of the engine's thread; invalid_argument inside a step.
  void gather_shares(std::byte* data, DataType dtype);
  /// Collective, between steps: reduces `bucket` alone, like a sharded step.
  void reduce_shares(const core::Bucket& bucket);

  // -- small collectives on the engine's thread, in program order with nothing else in flight -----------
  // These calls wait for all earlier tickets. Errors: invalid_argument inside a step and for invalid arguments;
  // unsupported if the data plane does not have the operation. After invalid_argument and unsupported the engine stays
  // usable, because nothing has been sent. After other errors the engine has failed.
  void barrier();
  void broadcast(void* data, std::size_t bytes, int root);
  /// Rank 0 gets one message per rank; other ranks get an empty vector.
  std::vector<comm::Bytes> gather(std::span<const std::byte> message);
  comm::Bytes broadcast_message(std::span<const std::byte> message, int root);
  void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op);
  // Shapes of the next three methods: those of comm::DataPlane. Counts are numbers of elements, indexed by rank. The
  // counts that the ranks pass must fit together.
  void reduce_scatter(void* out, const void* in, comm::Counts counts, DataType dtype, ReduceOp op);
  void all_gather(void* out, const void* in, comm::Counts counts, DataType dtype);
  void all_to_all(void* out, comm::Counts receive_counts, const void* in, comm::Counts send_counts, DataType dtype);
  /// Runs `work` on the engine's thread, like the small collectives above. `what` names the work in messages.
  void perform(const char* what, const std::function<void()>& work);

  /// Sets what the caller is doing ("step 17, backward of layer4.2.conv3"), for errors of peers that wait for this
  /// rank. Cheap. `activity` must outlive the engine: pass a string literal.
  void set_activity(const char* activity, std::uint64_t step) noexcept;
  [[nodiscard]] core::CycleStats cycle_stats() const;
  /// Tells the peers that this rank gives up. The peers then fail at once and not at the deadline. Does not wait. This
  /// rank's next call throws Error{kInterrupted, reason}.
  void abort(std::string_view reason) noexcept;

  /// Sets the deadline of every later wait for a peer. Not collective; ranks may differ. Errors: invalid_argument
  /// inside a step.
  void set_deadline(Patience deadline);
  /// Throws the error of the engine's thread if there is one. Cheap.
  void throw_if_failed() const;
  /// Returns Communicator::flight_record() as it was when the engine lost a peer; empty if it has lost no peer.
  [[nodiscard]] std::string flight_record() const;

  // -- timeline ------------------------------------------------------------------------------------------
  [[nodiscard]] bool tracing() const noexcept;
  /// Adds a span of the caller ("forward", "update") to the compute track. Does nothing without a trace.
  void trace_span(std::string_view name, Clock::time_point begin, Clock::time_point end);
  /// Writes the rest of the timeline. Later spans are dropped. The destructor writes it as well, but reports no errors.
  /// Errors: io (disk full).
  void close_trace();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd
