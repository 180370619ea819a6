// Runs steps on a GPU. The communication stream reduces gradients while backward continues, and the host waits only for
// the end of the step. The caller enqueues the compute (in hvd_bench a models::DeviceStep, unknown to this folder).
//
//   compute stream  ── backward ──●ready 0 ─────●ready 1 ──────●ready n  ┊wait┊ update
//   comm stream                   └► bucket 0 ─┐└► bucket 1 .. └► bucket n ─┘
//
//  - static schedule: once the work of all gradients of a bucket is enqueued, the reduction of the bucket is enqueued
//    behind an event. The communication stream forks from the compute stream and joins it again, so that the whole
//    step is captured into one graph.
//  - negotiated schedule: a gradient counts as ready when its work is enqueued. The engine's thread negotiates with the
//    other ranks, and then enqueues copies and reductions behind the gradients' events. These steps are never captured,
//    because the host takes part in each step.
//  - schedule none: a step consists of the compute only, and nothing is reduced.
//
// A captured step may be launched while the previous step runs (may_run_ahead()), so that the GPU never waits for a
// launch. Consecutive steps then use different slots. Each slot() has its own graph and its own set of events that the
// host reads: the StepEvents of this class, and the events that `Work` records.
//
// DeviceEngine owns an Engine for everything that is not a step on the GPU: control plane, negotiation and watchdog.
// The watchdog aborts communication when NCCL reports a fault, a peer gives up, or a step misses the deadline.
// Threads: only the thread that launches the steps' work may call the methods.
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
  bool overlap = true;  ///< false: reductions are enqueued after all of backward
  bool graph = true;    ///< schedules static and none: capture the step, then launch the graph
  bool ahead = true;    ///< captured steps may be launched while the previous step runs
  /// Number of eager steps of a schedule before its capture. They load the kernels, because a load cannot be captured.
  int eager_steps = 2;

  /// Number of steps, after a schedule starts or changes, whose times are not typical of its later steps: the
  /// eager steps and the first launch of each slot's graph.
  [[nodiscard]] constexpr std::int64_t settling_steps() const {
    return eager_steps + static_cast<std::int64_t>(kStepsInFlight);
  }
};

/// Times of one step on this rank's GPU. Reductions (`reduce`) overlap with compute, except during `exposed`.
struct DeviceReport {
  std::size_t slot = 0;                 ///< DeviceEngine::slot() of the step
  std::chrono::nanoseconds step{0};     ///< compute stream: from the start of the first work to the end of the last
  std::chrono::nanoseconds exposed{0};  ///< time that the compute stream waited for reductions
  std::chrono::nanoseconds reduce{0};   ///< time of the reductions on their stream, including waits for peers
  std::chrono::nanoseconds enqueue{0};  ///< time that the host took to enqueue or launch all work
  /// Expected duration of this step, taken from the previous step of the schedule. 0 if unknown.
  std::chrono::nanoseconds expected{0};
  StepReport engine;  ///< times of the host, only under the negotiated schedule
  std::size_t batches = 0;
  std::size_t bytes = 0;
  bool graph = false;  ///< the step was launched as one graph
  bool ahead = false;  ///< the step was launched while the previous step was in flight
};

class DeviceEngine {
 public:
  /// The work of a step on the compute stream. Both functions only enqueue. If the step is captured, they are called
  /// only during the capture: once for each slot(), all in the same step.
  struct Work {
    std::function<void()> forward_backward;  ///< calls gradient_ready()
    std::function<void()> update;            ///< uses the reduced gradients
  };

  DeviceEngine(std::unique_ptr<comm::DeviceCommunicator> communicator, const EngineOptions& options,
               const DeviceOptions& device, StuckRank stuck = {});
  /// Gives up the steps in flight, as an error in a step does. Destroys graphs before communicators.
  ~DeviceEngine();
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;

  /// The Engine for everything except steps: barrier(), messages, allocate() and broadcast() of device memory. Do not
  /// run steps on this Engine.
  [[nodiscard]] Engine& engine() noexcept { return *engine_; }
  [[nodiscard]] comm::DevicePlane& plane() noexcept { return plane_; }

  /// Collective; call it once. `arena` is device memory. Errors: those of Engine::set_gradients().
  void set_gradients(std::vector<core::GradientInfo> gradients, std::byte* arena, DataType dtype, ReduceOp op);
  /// Sets the schedule of later steps. All ranks must set the same one. The first schedule is EngineOptions::schedule.
  void set_schedule(Schedule schedule);

  /// Sets the deadline of every later wait for a peer or for a step on the GPU. Call between steps.
  void set_deadline(Patience deadline);

  /// Counts `steps` that other ranks make without this rank, so that all ranks have equal step numbers. Call between
  /// steps.
  void skip_steps(std::uint64_t steps);

  // After an error of run_step() or finish_step(), communication is aborted, the streams of the step are empty, and all
  // graphs are destroyed, so that the caller may free the memory of the step. A rank that cannot reach this state calls
  // StuckRank::leave. An error for a call in the wrong order has none of these effects.

  /// Enqueues or launches one step on `compute`, which must always be the same stream. Call it if no step is in flight,
  /// or if may_run_ahead() is true. Errors: those of `work` and the engine; invalid_argument if a gradient is not
  /// marked.
  void run_step(gpu::StreamView compute, const Work& work);
  /// Returns true if a step is in flight and run_step() can launch an already captured graph behind it.
  [[nodiscard]] bool may_run_ahead() const;
  /// Number of steps that run_step() began and finish_step() has not finished.
  [[nodiscard]] std::size_t in_flight() const noexcept { return flights_.size(); }
  /// For use inside Work: index (below kStepsInFlight) of the set of events and similar objects that this step or
  /// captured graph uses. Two steps in flight use different slots. All ranks use the same slot for the n-th step of a
  /// schedule.
  [[nodiscard]] std::size_t slot() const;
  /// Call after an error of the caller outside run_step() and finish_step(). If steps are in flight, tells the peers
  /// `why`, aborts communication, and waits until the streams are empty. Otherwise does nothing.
  void abandon(std::string_view why) noexcept;
  /// Called inside Work::forward_backward, in any order, when the work that writes gradient `index` is enqueued on the
  /// compute stream. Errors: invalid_argument outside a step, if there is no such gradient, or if it is already marked.
  void gradient_ready(std::size_t index);
  /// Waits until the GPU has finished the oldest step in flight. The wait sleeps, except around the expected end.
  /// Errors: those of the engine; timeout; backend if the GPU failed.
  DeviceReport finish_step();
  [[nodiscard]] bool graphs() const noexcept { return device_.graph; }
  /// If the options ask for graphs but steps of the current schedule cannot be captured, returns the reason in one
  /// line; else empty.
  [[nodiscard]] std::string_view graph_refusal() const;
  /// Returns the shape of the current schedule's graph; nullopt if none is captured.
  [[nodiscard]] std::optional<gpu::GraphShape> graph_shape() const;
  /// Turns graphs off for all schedules.
  void enqueue_every_step() { device_.graph = false; }

  // The next four functions change later steps. Call them between steps, on all ranks, after set_gradients(). They
  // destroy the captured graphs. The first three also make the next steps eager before graphs are captured again.
  void set_options(const DeviceOptions& device);
  /// Collective. Errors: those of Engine::set_buckets().
  void set_buckets(const core::BucketOptions& buckets);
  /// Collective. Errors: those of comm::DevicePlane::reconnect(), which fail the engine.
  void reconnect(const comm::NcclOptions& options);
  /// Destroys captured graphs, so that the next steps are captured again. Call it after a change of what Work enqueues.
  void drop_graphs();

 private:
  /// A step between run_step() and finish_step().
  struct StepInFlight {
    DeviceReport report;
    Clock::time_point begun;
    bool captured = false;  ///< the graph was captured in this step
  };
  /// State of one schedule. Steps are counted per schedule, because ranks may differ in their steps of other schedules.
  struct ScheduleState {
    std::uint64_t steps = 0;                                ///< number of steps of this schedule so far
    int eager = 0;                                          ///< number of eager steps since restart_eagerly()
    std::optional<std::chrono::nanoseconds> last_duration;  ///< of the last step, host's clock; nullopt after a capture
    std::array<gpu::Graph, kStepsInFlight> graphs;          ///< [slot]
  };

  /// Destroys all graphs and makes the next steps eager. Errors: invalid_argument inside a step, naming `call`.
  void restart_eagerly(const char* call);
  /// Configures the marks and the watch for the engine's plan.
  void watch_plan();
  [[nodiscard]] bool to_be_captured() const;
  [[nodiscard]] ScheduleState& schedule_state() { return schedule_states_.at(schedule_); }
  [[nodiscard]] const ScheduleState& schedule_state() const { return schedule_states_.at(schedule_); }
  /// Captures the graphs of all slots.
  void capture(const Work& work);
  void enqueue(const Work& work);
  /// Events of the current step.
  [[nodiscard]] StepEvents& events() { return watch_.events(slot()); }
  void reduce_ready_buckets();
  void reduce_bucket(std::size_t bucket);
  void join();
  void require_all_marked() const;
  /// Call only after the step has finished.
  void measure(const StepEvents& events, DeviceReport& report);
  /// Call in the catch clause that caught `error`. If communication failed, waits up to kExplanation for the error of
  /// the engine's thread and throws that error; otherwise tells the peers and rethrows `error`. Always gives up the
  /// step.
  [[noreturn]] void rethrow_explained(const Error& error);
  /// Aborts communication, waits until the step's streams are empty, destroys the graphs, and waits for NCCL's abort.
  void give_up() noexcept;

  gpu::GpuRuntime& runtime_;
  comm::DevicePlane& plane_;
  EngineOptions options_;
  DeviceOptions device_;
  const bool alone_;
  DeviceWatch watch_;               // destroyed after engine_, whose thread reads it to the end
  std::unique_ptr<Engine> engine_;  // destroyed after the graphs, because the communicator must outlive them

  Schedule schedule_;
  ReadyMarks marks_;
  std::byte* arena_ = nullptr;
  std::vector<core::GradientInfo> gradients_;

  gpu::StreamView compute_;
  std::uint64_t steps_ = 0;  // number of steps that this rank enqueued, launched or skipped
  std::size_t next_bucket_ = 0;
  bool enqueuing_ = false;
  std::deque<StepInFlight> flights_;                   // oldest first
  Clock::time_point last_end_{};                       // end of the last finished step, by the host's clock
  std::optional<std::size_t> capturing_;               // slot of the graph under capture
  std::map<Schedule, ScheduleState> schedule_states_;  // last member, so that its graphs are destroyed first
};

}  // namespace hvd
