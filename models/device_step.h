// A TrainStep whose work runs on a GPU: it puts work on a stream and does not wait for it. Who drives it (the training
// loop) puts the reductions of the gradients beside that work, makes the stream wait for them, lets it put the update
// behind, and may capture all of it into one graph. It does not know that communication exists.
//
// One step, eager or while the compute stream is captured:
//
//   load(batch)  set_sgd(options)               host, before each step, never captured
//   enqueue_forward_backward(sink)              tells sink i: all work that writes gradient i is on the stream
//   (the driver makes compute_stream() wait for what it put on other streams)
//   enqueue_update()
//   (the driver waits for an event of its own)  then: loss()
//
// The driver may enqueue a step before the one before it is over. The losses of the two are kept apart: keep_loss_in().
//
// The enqueue functions only enqueue, so that a captured step can be launched again and again: they allocate nothing,
// wait for nothing, ask nothing, and read what changes from step to step (images, labels, step number, learning rate,
// loss scale) from device memory with a fixed address. The same calls give the same work, eager or captured.
//
// Threads: one thread owns it and makes all calls, with the GPU made current (gpu::Runtime::make_current).
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

  // Of TrainStep, here:
  //  - gradient_arena() and state_to_broadcast() are device addresses, which the host must not read.
  //  - the ArenaAllocator gives zeroed device memory, 4096-byte aligned (registered with the communication library).
  //  - GradientSink::gradient_ready(i): what writes gradient i has been enqueued on compute_stream(); it is final once
  //    the stream has got there. In parameter order, each once per enqueue_forward_backward().
  //  - forward_backward() is load(), enqueue_forward_backward(), and a host wait for the loss; update() likewise is
  //    set_sgd() and enqueue_update(). For tests, which compare backends; a training loop uses the functions below.
  //  - read_parameter(), write_parameter(), read_gradient() wait for the stream.
  //  - state_changed() enqueues on compute_stream().

  /// Where all work of the step goes in and comes out. Work may fork to streams of the step's own inside, joined again
  /// before the function that enqueued it returns; it has joined before a gradient_ready() that depends on it.
  [[nodiscard]] virtual gpu::StreamView compute_stream() const = 0;

  /// Enqueues the batch's way to where the step reads it, of which compute_stream() does the end. Images come through
  /// pinned memory, on a stream of their own, or from where images of the same Batch::content were kept on the device;
  /// to keep them, their first load may allocate. Labels always come from `batch`, through pinned memory. Waits
  /// (bounded by `deadline`) only until the copies of the batch before last have left the pinned memory. Not captured.
  /// Errors: invalid_argument for a batch of another size; timeout.
  virtual void load(const Batch& batch, Deadline deadline) = 0;
  /// For the updates enqueued or launched from now on. Enqueues a copy of the numbers if they changed. Not captured.
  virtual void set_sgd(const SgdOptions& options) = 0;

  /// Forward, loss, backward, of the batch that load() left on the device. Only enqueues; may be captured.
  virtual void enqueue_forward_backward(GradientSink& sink) = 0;
  /// The update with what gradient_arena() holds when the stream gets there. Only enqueues; may be captured.
  virtual void enqueue_update() = 0;

  /// Where the losses of forward passes that are enqueued from now on go: place 0, as at first, or 1. A captured one
  /// keeps its place.
  virtual void keep_loss_in(std::size_t place) = 0;
  /// The mean loss of the last step with this place whose work is over, as a host number. Call after waiting for it.
  [[nodiscard]] virtual double loss(std::size_t place) const = 0;
  /// Steps whose gradients overflowed and whose update was left out (dynamic loss scale), of those that are over. With
  /// nothing on its way.
  [[nodiscard]] virtual std::uint64_t skipped_updates() const { return 0; }
  /// Which engine of the library runs each distinct kind of operation, in one line, for the record; empty where there
  /// is nothing to choose. Equal texts mean equal engines.
  [[nodiscard]] virtual std::string engines() const { return {}; }
  /// What is not as was asked for, a line each: fusions that the library does not serve, engines that did not run.
  [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
};

}  // namespace hvd::models
