// What is in flight on the GPU, and for how long: written by the training thread, looked at by the engine's thread,
// which is the watchdog. Owns the events by which both see how far the GPU is.
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
#include "engine/runtime/observer.h"

namespace hvd {

/// Steps that may be in flight: the one that runs, and the one that is launched behind it.
inline constexpr std::size_t kFlights = 2;

/// Of one step; recorded anew by a later one, which is not in flight beside it.
struct StepEvents {
  gpu::Event begin, end;            ///< compute stream, around the step
  gpu::Event backward_end, joined;  ///< compute stream, around its wait for the reductions
  struct Bucket {
    gpu::Event ready;        ///< compute stream: its gradients are there
    gpu::Event begin, done;  ///< communication stream, around its reduction
  };
  std::vector<Bucket> buckets;
  gpu::Event all_reduced;  ///< communication stream: nothing of the step is left
};

/// Says what to do when a rank cannot leave a step that has failed. Its training thread is stuck in a call of CUDA, or
/// NCCL has not returned from the abort and the training thread is stuck freeing GPU memory. The process has to end as
/// it is.
struct StuckRank {
  /// Called by the engine's thread, at most once, with what failed. Null: nothing is done.
  std::function<void(const Error& why)> leave;
  /// How long the training thread may take to leave the step after the engine has failed. If NCCL does not come back:
  /// how long it may take to destroy the DeviceEngine. Longer than DeviceEngine::give_up().
  std::chrono::milliseconds patience{40000};
  /// How long give_up() waits for NCCL to return from the abort after all graphs are gone.
  std::chrono::milliseconds library_patience{5000};
};

class DeviceWatch final : public EngineObserver {
 public:
  DeviceWatch(comm::DeviceCommunicator& communicator, Patience deadline, StuckRank stuck);

  // -- the training thread's -----------------------------------------------------------------------------
  /// Makes the events; between steps, and with the engine's thread not looking. `titles` [bucket] name the buckets for
  /// messages.
  void configure(std::vector<std::string> titles, std::size_t gradients);
  [[nodiscard]] StepEvents& events(std::size_t slot) { return events_.at(slot); }
  /// Compute stream, negotiated schedule, which has one step in flight.
  [[nodiscard]] gpu::EventView gradient_event(std::size_t gradient) const { return gradients_[gradient]; }
  /// What is begun.
  struct Step {
    std::uint64_t step = 0;   ///< its number, which ranks are compared by
    std::size_t slot = 0;     ///< whose events it records
    std::size_t buckets = 0;  ///< that the communication stream reduces; 0 while that is not known
  };
  void begin(const Step& step);
  /// All of the step begun last is enqueued, its event `end` after it.
  void enqueued();
  /// The oldest step in flight; the one behind it, if there is one, runs from now on.
  void finished();
  /// Nothing is in flight any more.
  void gave_up();
  [[nodiscard]] std::chrono::milliseconds patience_with_library() const { return stuck_.library_patience; }
  /// "rank 1 (host b, GPU 0 (NVIDIA H200))".
  [[nodiscard]] std::string here() const;

  // -- the engine's thread's -------------------------------------------------------------------------------
  /// Sets how long a step may take on the GPU.
  void set_deadline(Patience deadline) { deadline_ = deadline; }
  void before_gradient(std::size_t gradient) override;
  void look() override;
  std::optional<RankStatus> status() override;
  void failed(const Error& why) noexcept override;

 private:
  struct Flight : Step {
    bool enqueued = false;
    Clock::time_point since{};
  };
  struct State {
    bool begun = false;  // any step at all
    std::size_t in_flight = 0;
    std::array<Flight, kFlights> flights;  // those in flight, the oldest first; first the last that was, where none is
    [[nodiscard]] bool active() const { return in_flight > 0; }
  };
  State state();
  /// On the GPU, as far as is known; the host may not have noticed.
  bool over(const Flight& flight) noexcept;
  /// The step to speak of: the oldest in flight that is not over, or the last.
  Flight current(const State& state) noexcept;
  /// Reductions of a step in flight that are over.
  std::size_t done_as_far_as_known(const Flight& flight) noexcept;
  std::string in_flight(const State& state);

  comm::DeviceCommunicator& communicator_;
  gpu::Runtime& runtime_;
  Patience deadline_;  // the engine's thread's
  const StuckRank stuck_;
  std::array<StepEvents, kFlights> events_;  // made between steps
  std::vector<gpu::Event> gradients_;        // likewise
  std::vector<std::string> titles_;          // likewise
  std::optional<std::uint64_t> behind_;      // the engine's thread's: a step that was seen to be the only one left
  Clock::time_point behind_since_;           // likewise: since when
  Mutex mutex_;
  CondVar changed_;  // fewer steps are in flight
  State state_ HVD_GUARDED_BY(mutex_);
};

}  // namespace hvd
