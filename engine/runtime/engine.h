// The engine: overlaps gradient averaging with compute. It owns a Communicator and one thread, which alone
// makes all communication calls and sleeps when there is nothing to do. No globals: two engines can live in
// one process.
//
// Two ways to use it:
//  - any buffers, any order: all_reduce_async(name, ...) and wait(); negotiated as in Horovod.
//  - a fixed set of gradients in one arena, every step: set_gradients(), then per step begin_step(),
//    gradient_ready(i), finish_step(); under the static or the negotiated schedule or none.
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
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/types.h"
#include "engine/comm/communicator.h"
#include "engine/core/bucket_plan.h"
#include "engine/core/negotiator.h"

namespace hvd {

class EngineObserver;

enum class Schedule : std::uint8_t {
  kStatic,      ///< buckets fixed at start, no control plane at all
  kNegotiated,  ///< Horovod's protocol
  kNone,        ///< no reduction: the reference for what communication costs
};
std::string_view name(Schedule schedule) noexcept;

struct EngineOptions {
  Schedule schedule = Schedule::kStatic;
  core::BucketOptions buckets;                           ///< static schedule
  core::NegotiatorOptions negotiation;                   ///< HOROVOD_FUSION_THRESHOLD, HOROVOD_CACHE_CAPACITY
  std::chrono::microseconds cycle_time{1000};            ///< HOROVOD_CYCLE_TIME: pause after a cycle that moved nothing
  Patience deadline = std::chrono::milliseconds(60000);  ///< of every wait for a peer, until set_deadline()
  /// Rank is put before the extension; empty: no trace. All ranks trace or none does.
  std::string timeline_filename;
};

/// What one step cost, on this rank. Times of the engine thread overlap with compute; `exposed` does not.
struct StepReport {
  std::chrono::nanoseconds exposed{0};  ///< finish_step() waited this long
  std::chrono::nanoseconds reduce{0};   ///< engine thread inside the data plane
  std::chrono::nanoseconds control{0};  ///< engine thread inside the control plane (0 when static)
  std::chrono::nanoseconds copy{0};     ///< into and out of the fusion buffer (0 when contiguous)
  std::size_t batches = 0;
  std::size_t bytes = 0;
};

using Ticket = std::uint64_t;

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
  /// In place over all ranks; `data` must stay valid and untouched until wait() returns. Ranks match by
  /// `name`; a mismatch of shape, type or operation fails the ticket on all ranks with the same text.
  Ticket all_reduce_async(std::string_view name, void* data, std::span<const std::int64_t> shape, DataType dtype,
                          ReduceOp op);
  void wait(Ticket ticket);
  [[nodiscard]] bool done(Ticket ticket) const;

  // -- a fixed set of gradients ------------------------------------------------------------------------
  /// Collective. Zeroed memory for the arena, shared or registered where the data plane has such.
  std::span<std::byte> allocate(std::size_t bytes);
  /// Collective, once. Plans the buckets and compares the plan's hash over ranks.
  /// Errors: mismatch naming a rank that differs, its host and the first tensor that differs.
  void set_gradients(std::vector<core::GradientInfo> gradients, std::byte* arena, DataType dtype, ReduceOp op);
  /// Collective, between steps, after set_gradients(): plans the buckets anew. Errors: as set_gradients().
  void set_buckets(const core::BucketOptions& buckets);
  [[nodiscard]] const core::BucketPlan& plan() const;
  /// Schedule of the steps that follow; every rank must switch at the same step. Starts as options.schedule.
  void set_schedule(Schedule schedule);
  void begin_step();
  /// Gradient i of set_gradients() is final and untouched until finish_step() returns. Cheap: no allocation,
  /// no wait for peers. Any order. Errors: invalid_argument for the caller's mistakes only (no such gradient,
  /// marked twice); what the engine's thread met is thrown by finish_step().
  void gradient_ready(std::size_t index);
  /// Returns when every gradient of the step is reduced on this rank.
  /// Errors: those of the engine's thread; invalid_argument if a gradient was not marked, which leaves the
  /// step open.
  StepReport finish_step();

  // -- small collectives on the engine's thread, in program order with nothing else in flight -----------
  // They wait for all tickets issued before. Errors: invalid_argument inside a step.
  void barrier();
  void broadcast(void* data, std::size_t bytes, int root);
  /// Rank 0 gets one message per rank; the others get an empty vector.
  std::vector<comm::Bytes> gather(std::span<const std::byte> message);
  comm::Bytes broadcast_message(std::span<const std::byte> message, int root);
  void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op);
  /// What there is no method for. `what` is for messages.
  void perform(const char* what, const std::function<void()>& work);

  /// What the caller is doing ("step 17, backward of layer4.2.conv3"), shown when a peer loses patience.
  /// Cheap; `activity` must be a string that outlives the engine, e.g. a literal.
  void set_activity(const char* activity, std::uint64_t step) noexcept;
  [[nodiscard]] core::CycleStats cycle_stats() const;
  /// Tells the peers that this rank gives up, so that they fail at once rather than at the deadline. Does not
  /// wait; this rank's next call throws Error{kInterrupted, reason}.
  void abort(std::string_view reason) noexcept;

  /// Sets the deadline of every later wait for a peer. Not collective; ranks may differ. Errors: invalid_argument inside
  /// a step.
  void set_deadline(Patience deadline);
  /// Throws what the engine's thread met, if it has failed. Cheap.
  void throw_if_failed() const;
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
