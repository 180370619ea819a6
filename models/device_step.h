// A TrainStep whose work runs on a GPU: it enqueues work on a stream and does not wait for it. The driver (the training
// loop) enqueues the reductions of the gradients on other streams, makes the compute stream wait for them, calls for
// the update, and may capture all of this into one graph. The DeviceStep does not know about communication.
//
// One step, eager or while the compute stream is captured:
//
//   load(batch)  set_sgd(options)               called before each step, never captured
//   enqueue_forward_backward(sink)              calls sink.gradient_ready(i) when all work that writes gradient i is
//                                               on the stream
//   (the driver makes compute_stream() wait for the work that it put on other streams)
//   enqueue_update()
//   (the driver waits for an event of its own)
//   loss()
//
// The driver may enqueue a step before the previous step is finished. The driver then calls keep_loss_in(), so that the
// two steps write their losses to different places.
//
// The enqueue functions only enqueue, so that a captured step can be launched many times. They allocate nothing, wait
// for nothing and query nothing. The enqueued work reads values that change from step to step (images, labels, step
// number, learning rate, loss scale) from device memory with a fixed address. Eager and captured steps do the same
// work.
//
// Threads: one thread owns a DeviceStep and makes all calls, with the GPU made current (gpu::GpuRuntime::make_current).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/gpu/runtime.h"
#include "models/train_step.h"

namespace hvd::models {

class DeviceStep : public TrainStep {
 public:
  static constexpr std::size_t kLossPlaces = 2;

  [[nodiscard]] MemorySpace memory_space() const noexcept final { return MemorySpace::kDevice; }

  // The contract of TrainStep for MemorySpace::kDevice, where compute_stream() is the step's stream:
  //  - the ArenaAllocator's memory is registered with the communication library.
  //  - a gradient is final once compute_stream() has finished the work that was enqueued before its gradient_ready().
  //  - forward_backward() is load(), enqueue_forward_backward(), and a host wait for the loss. update() is set_sgd()
  //    and enqueue_update(). Tests call forward_backward() and update() to compare backends; a training loop calls the
  //    functions below.
  //  - read_parameter(), write_parameter(), read_gradient() wait for the stream.

  /// The stream on which the work of a step starts and ends. An enqueue function may put work on other streams of the
  /// step. It makes compute_stream() wait for this work before it returns, and before it calls a gradient_ready() that
  /// depends on the work.
  [[nodiscard]] virtual gpu::StreamView compute_stream() const = 0;

  /// Enqueues the copies of a batch to the memory from which the step reads it; the last copies are on
  /// compute_stream(). Images are copied through pinned memory on a separate stream. If the device keeps the images of
  /// an earlier batch with the same Batch::content, the kept images are copied instead; the first load of images to be
  /// kept may allocate memory. Labels are always copied through pinned memory. The host waits (bounded by `deadline`)
  /// only until the copies of the batch before last have left the pinned memory. Must not be captured. Errors:
  /// invalid_argument if the batch has the wrong size; timeout.
  virtual void load(const Batch& batch, Deadline deadline) = 0;
  /// Sets the options of later updates, eager or captured. Enqueues a copy if an option changed. Must not be captured.
  virtual void set_sgd(const SgdOptions& options) = 0;

  /// Enqueues forward, loss and backward of the batch that load() put on the device. May be captured.
  virtual void enqueue_forward_backward(GradientSink& sink) = 0;
  /// Enqueues the update. It uses the gradients that are in gradient_arena() when it runs. May be captured.
  virtual void enqueue_update() = 0;

  /// Sets the place, 0 (default) or 1, of the losses of later forward passes. A captured pass keeps its place.
  virtual void keep_loss_in(std::size_t place) = 0;
  /// Returns the mean loss of the last finished step with this place. Call after waiting for the step.
  [[nodiscard]] virtual double loss(std::size_t place) const = 0;
  /// Returns the number of steps whose update was skipped because gradients overflowed (dynamic loss scale). Call while
  /// no step is in flight.
  [[nodiscard]] virtual std::uint64_t skipped_updates() const { return 0; }
  /// Names the library's engine for each kind of operation, in one line, for provenance; empty if the backend does not
  /// choose engines. Equal texts mean equal engines.
  [[nodiscard]] virtual std::string engines() const { return {}; }
  /// Lists deviations from the requested options, one per line: fusions that the library lacks, engines that failed.
  [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
};

}  // namespace hvd::models
