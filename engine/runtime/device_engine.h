// Steps on a GPU: gradients are reduced on the communication stream while backward goes on, and nothing waits on the
// host but the end of the step. It drives what somebody else enqueues (a models::DeviceStep; it does not know that).
//
//   compute stream  ── backward ──●ready 0 ─────●ready 1 ──────●ready n  ┊wait┊ update
//   comm stream                   └► bucket 0 ─┐└► bucket 1 .. └► bucket n ─┘
//
//  - static schedule: a bucket whose last gradient's work is enqueued is enqueued behind an event. The step forks from
//    the compute stream and joins it again, so that all of it can be captured into one graph, and is.
//  - negotiated: ready means enqueued; the ranks agree on the host, on the engine's thread, which puts copies and
//    reductions behind the gradients' events. Never captured: the host takes part in every step.
//  - none: the step alone.
//
// A captured step may be launched while the one before it runs (may_run_ahead()), so that the GPU never waits for a
// launch. Steps that follow one another then use different sets of whatever the host reads back: StepEvents here, and
// whatever `Work` records, by slot(). Each has a graph of its own.
//
// It owns an Engine for everything that is not a step on the GPU: control plane, negotiation, and the watchdog, which
// aborts communication when the library reports a fault, a peer gives up, or a step does not end by the deadline.
// Threads: one thread, the one that launches the step's work.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/error.h"
#include "engine/comm/device_communicator.h"
#include "engine/runtime/device_watch.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/ready_marks.h"

namespace hvd {

struct DeviceOptions {
  bool overlap = true;  ///< false: reductions start when all of backward is enqueued before them
  bool graph = true;    ///< static schedule and none: capture the step, then launch it
  bool ahead = true;    ///< captured steps may be launched while the step before runs
  /// Eager steps of a schedule before it is captured: libraries load kernels and connect when first used, which cannot
  /// be captured.
  int eager_steps = 2;

  /// Steps of a schedule, at first or after a change, that say little of those behind them: the eager ones, and the
  /// first launch of each slot's graph.
  [[nodiscard]] constexpr std::int64_t settling_steps() const {
    return eager_steps + static_cast<std::int64_t>(kFlights);
  }
};

/// What one step cost on this rank's GPU. `reduce` overlaps with compute; `exposed` does not.
struct DeviceReport {
  std::size_t slot = 0;                 ///< as in DeviceEngine::slot()
  std::chrono::nanoseconds step{0};     ///< first to last work on the compute stream
  std::chrono::nanoseconds exposed{0};  ///< the compute stream waited for reductions
  std::chrono::nanoseconds reduce{0};   ///< reductions on the communication stream, waits for peers included
  std::chrono::nanoseconds enqueue{0};  ///< host, until all was enqueued or launched
  /// When the step was to be over, after its begin or the end of the one before it, by how long that took; 0: nobody
  /// knew.
  std::chrono::nanoseconds expected{0};
  StepReport engine;  ///< host, negotiated schedule only
  std::size_t batches = 0;
  std::size_t bytes = 0;
  bool graph = false;  ///< it was one launch
  bool ahead = false;  ///< launched while the step before was in flight
};

class DeviceEngine {
 public:
  /// What a step puts on the compute stream. Both only enqueue; with a graph they are called when it is captured, once
  /// for each slot() in the same step, and never again.
  struct Work {
    std::function<void()> forward_backward;  ///< calls gradient_ready()
    std::function<void()> update;            ///< with the reduced gradients
  };

  DeviceEngine(std::unique_ptr<comm::DeviceCommunicator> communicator, const EngineOptions& options,
               const DeviceOptions& device, StuckRank stuck = {});
  /// Inside a step: gives it up, as an error does. Graphs go before communicators.
  ~DeviceEngine();
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;

  /// For everything but steps: barrier(), messages, allocate() (device memory), broadcast() of it. Not its own steps.
  [[nodiscard]] Engine& engine() noexcept { return *engine_; }
  [[nodiscard]] comm::DevicePlane& plane() noexcept { return plane_; }

  /// Collective, once. `arena` is device memory. Errors: those of Engine::set_gradients().
  void set_gradients(std::vector<core::GradientInfo> gradients, std::byte* arena, DataType dtype, ReduceOp op);
  /// Of the steps that follow; all ranks alike. Starts as EngineOptions::schedule.
  void set_schedule(Schedule schedule);

  /// Between steps. Sets the deadline of every later wait for a peer or for a step on the GPU.
  void set_deadline(Patience deadline);

  /// Between steps: others take so many without this rank. So that steps have the same numbers everywhere.
  void sit_out(std::uint64_t steps);

  // After an error of the next two, other than for calling them out of turn, communication is aborted and the GPU at
  // rest: what the step used may be freed. Graphs are gone. A rank that cannot get there calls StuckRank::leave.

  /// Enqueues or launches one step on `compute`, always the same stream. The last step is finished, or may_run_ahead().
  /// Errors: those of `work`; invalid_argument if a gradient was not marked; the engine's.
  void run_step(gpu::StreamView compute, const Work& work);
  /// A step is in flight, and run_step() would launch a known graph behind it.
  [[nodiscard]] bool may_run_ahead() const;
  /// Steps that are not finished.
  [[nodiscard]] std::size_t in_flight() const noexcept { return flights_.size(); }
  /// From inside Work: which of kFlights sets of events and the like this step, or the graph that is captured, uses.
  /// Two steps in flight use different ones; ranks use the same one for the same step of a schedule.
  [[nodiscard]] std::size_t slot() const;
  /// After an error of the caller's own between steps, some in flight: tells the peers `why`, aborts communication, and
  /// leaves the GPU at rest. Nothing where nothing is in flight.
  void abandon(std::string_view why) noexcept;
  /// From inside Work::forward_backward: what writes gradient `index` is enqueued on the compute stream. Any order.
  /// Errors: invalid_argument outside a step, for no such gradient, or one marked twice.
  void gradient_ready(std::size_t index);
  /// Sleeps until the oldest step in flight is over on the GPU, but for the time around the expected end. Errors: the
  /// engine's; timeout; backend if the GPU failed.
  DeviceReport finish_step();
  /// Whether a graph is asked for.
  [[nodiscard]] bool graphs() const noexcept { return device_.graph; }
  /// Why steps of the schedule are enqueued one by one though a graph is asked for, in one line; empty: they are
  /// captured, or nobody asks.
  [[nodiscard]] std::string_view graph_refusal() const;
  /// Of the graph that the schedule's steps are launched as; nothing before it is captured, or if none is.
  [[nodiscard]] std::optional<gpu::GraphShape> graph_shape() const;
  /// No graph is asked for any more, whatever the schedule.
  void enqueue_every_step() { device_.graph = false; }

  // Between steps, all ranks alike, after set_gradients(): the steps that follow are of another kind. Graphs are
  // forgotten, and captured anew after eager steps.
  void set_options(const DeviceOptions& device);
  /// Collective. Errors: those of Engine::set_buckets().
  void set_buckets(const core::BucketOptions& buckets);
  /// Collective. Errors: those of comm::DevicePlane::reconnect(), which fail the engine.
  void reconnect(const comm::NcclOptions& options);
  /// Forgets captured graphs: the next steps are captured anew. After a change of what Work enqueues.
  void drop_graphs();

 private:
  /// A step between run_step() and finish_step().
  struct Flight {
    DeviceReport report;
    Clock::time_point begun;
    bool captured = false;  ///< in this step
  };
  /// Of one schedule.
  struct Course {
    std::uint64_t turns = 0;                         ///< steps so far; ranks may differ in those of other schedules
    int eager = 0;                                   ///< of them, since graphs were last ruled out
    std::optional<std::chrono::nanoseconds> lasted;  ///< the last step, by the host's clock; nothing after a capture
    std::array<gpu::Graph, kFlights> graphs;         ///< [slot]
  };

  /// Errors: invalid_argument inside a step.
  void begin_anew(const char* call);
  /// Of the engine's plan.
  void watch_plan();
  [[nodiscard]] bool to_be_captured() const;
  [[nodiscard]] Course& course() { return courses_.at(schedule_); }
  [[nodiscard]] const Course& course() const { return courses_.at(schedule_); }
  /// The graph of each slot.
  void capture(const Work& work);
  void enqueue(const Work& work);
  /// Of the step that is enqueued.
  [[nodiscard]] StepEvents& events() { return watch_.events(slot()); }
  void reduce_ready_buckets();
  void reduce_bucket(std::size_t bucket);
  void join();
  void require_all_marked() const;
  /// Of a step that is over.
  void measure(const StepEvents& events, DeviceReport& report);
  /// Inside the handler of `error`: if communication failed, throws what the engine's thread finds out about it in a
  /// while; else tells the peers and throws on. Gives up the step.
  [[noreturn]] void rethrow_explained(const Error& error);
  /// Aborts communication, waits until the step's streams are empty, and drops the graphs. NCCL returns from the abort
  /// only after that.
  void give_up() noexcept;

  gpu::Runtime& runtime_;
  comm::DevicePlane& plane_;
  EngineOptions options_;
  DeviceOptions device_;
  const bool alone_;
  DeviceWatch watch_;               // after engine_: its thread looks at it to the end
  std::unique_ptr<Engine> engine_;  // after graphs_: a communicator outlives them

  Schedule schedule_;
  ReadyMarks marks_;
  std::byte* arena_ = nullptr;
  std::vector<core::GradientInfo> gradients_;

  gpu::StreamView compute_;
  std::uint64_t steps_ = 0;  // enqueued, launched, or sat out so far
  std::size_t next_bucket_ = 0;
  bool enqueuing_ = false;
  std::deque<Flight> flights_;            // oldest first
  Clock::time_point last_end_{};          // of a step, by the host's clock
  std::optional<std::size_t> capturing_;  // the slot that is captured
  std::map<Schedule, Course> courses_;    // last: graphs are destroyed first
};

}  // namespace hvd
