// The Watchdog of a DeviceEngine: tracks which steps are in flight on the GPU, and for how long. The training thread
// reports steps. The engine's thread checks the steps, and makes negotiated batches wait for their gradients. A
// DeviceWatch owns the events by which both threads follow the GPU's progress.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/error.h"
#include "engine/base/mutex.h"
#include "engine/comm/device_communicator.h"
#include "engine/core/bucket_plan.h"
#include "engine/runtime/roll_call.h"

namespace hvd {

/// Maximum number of steps in flight: the running step, and the step that is launched behind it.
inline constexpr std::size_t kStepsInFlight = 2;

/// The events of one step. Once the step is no longer in flight, a later step records the same events again.
struct StepEvents {
  gpu::Event begin, end;            ///< compute stream: `begin` and `end` of the step
  gpu::Event backward_end, joined;  ///< compute stream: `backward_end` before its wait for reductions, `joined` after
  struct Bucket {
    gpu::Event ready;        ///< compute stream: recorded when the bucket's gradients are complete
    gpu::Event begin, done;  ///< communication stream: `begin` before, `done` after the bucket's reduction
  };
  std::vector<Bucket> buckets;
  gpu::Event all_reduced;  ///< communication stream: recorded after the step's last work
};

/// Says what to do if a rank cannot leave a step that has failed. Its training thread is then stuck in a CUDA call, or
/// is stuck freeing GPU memory because NCCL has not returned from the abort. The process must end without clean-up.
struct StuckRank {
  /// The engine's thread calls `leave` at most once, with the error that failed the engine. Null: nothing is done.
  std::function<void(const Error& why)> leave;
  /// How long after a failure of the engine the training thread may take to leave the step. If NCCL does not return
  /// from the abort, the thread must also destroy the DeviceEngine in this time. Must be longer than
  /// DeviceEngine::give_up() takes.
  std::chrono::milliseconds patience{40000};
  /// How long give_up() waits for NCCL to return from the abort after all graphs are gone.
  std::chrono::milliseconds library_patience{5000};
};

class DeviceWatch final : public Watchdog {
 public:
  DeviceWatch(comm::DeviceCommunicator& communicator, Patience deadline, StuckRank stuck);

  // -- for the training thread ---------------------------------------------------------------------------
  /// Makes the events; `titles` [bucket] is for messages. Call between steps, while no other thread calls look().
  void configure(std::vector<std::string> titles, std::size_t gradients);
  [[nodiscard]] StepEvents& events(std::size_t slot) { return events_.at(slot); }
  /// Returns the event by which the compute stream marks a gradient as complete. Only for the negotiated schedule.
  [[nodiscard]] gpu::EventView gradient_event(std::size_t gradient) const { return gradients_[gradient]; }
  struct Step {
    std::uint64_t step = 0;   ///< number of the step, by which the progress of ranks is compared
    std::size_t slot = 0;     ///< index of the StepEvents that the step records
    std::size_t buckets = 0;  ///< number of buckets that the communication stream reduces; 0 while unknown
  };
  void begin(const Step& step);
  /// Call when all work of the step begun last is enqueued, including its event `end`.
  void enqueued();
  /// Call when the oldest step in flight is finished. If another step is in flight, its deadline counts from this call.
  void finished();
  /// Call when the training thread has left a failed step. No step is in flight afterwards.
  void gave_up();
  [[nodiscard]] std::chrono::milliseconds patience_with_library() const { return stuck_.library_patience; }
  /// Returns the name of this rank for messages: "rank 1 (host b, GPU 0 (NVIDIA H200))".
  [[nodiscard]] std::string here() const;

  // -- for the engine's thread -----------------------------------------------------------------------------
  /// Sets how long a step may take on the GPU.
  void set_deadline(Patience deadline) { deadline_ = deadline; }
  void before_gradient(std::size_t gradient) override;
  void look() override;
  std::optional<RankStatus> status() override;
  void failed(const Error& why) noexcept override;

 private:
  struct StepInFlight : Step {
    bool enqueued = false;
    Clock::time_point since{};
  };
  struct State {
    bool begun = false;  // true once a step has begun
    std::size_t in_flight = 0;
    std::array<StepInFlight, kStepsInFlight>
        flights;  // steps in flight, oldest first; if no step is in flight, flights[0] is the last step
    [[nodiscard]] bool active() const { return in_flight > 0; }
  };
  State state();
  /// Returns true if the GPU is known to have finished the step, even if the training thread has not noticed yet.
  bool finished_on_gpu(const StepInFlight& flight) noexcept;
  /// Returns the oldest step in flight that the GPU has not finished; the last step if all are finished.
  StepInFlight current(const State& state) noexcept;
  /// Returns how many reductions of a step in flight are known to be finished.
  std::size_t done_as_far_as_known(const StepInFlight& flight) noexcept;
  std::string in_flight(const State& state);

  comm::DeviceCommunicator& communicator_;
  gpu::GpuRuntime& runtime_;
  Patience deadline_;  // used by the engine's thread
  const StuckRank stuck_;
  std::array<StepEvents, kStepsInFlight> events_;  // changed only between steps
  std::vector<gpu::Event> gradients_;              // changed only between steps
  std::vector<std::string> titles_;                // changed only between steps
  std::optional<std::uint64_t> behind_;  // engine's thread: the step that was seen to run after the oldest step ended
  Clock::time_point behind_since_;       // engine's thread: when step `behind_` was first seen to run
  Mutex mutex_;
  CondVar changed_;  // notified when the number of steps in flight falls
  State state_ HVD_GUARDED_BY(mutex_);
};

}  // namespace hvd
