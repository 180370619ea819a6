// The interface to one GPU for all layers above: memory, streams, events, graphs, and work that is put on streams in
// order. The interface needs no vendor header. make_cuda_runtime() makes the implementation for CUDA; the tests have an
// implementation for the CPU.
//
// Owners are move-only and release the object that they own; all other code passes views. A GpuRuntime outlives all
// owners that it made. Threads: any thread may call any method. Only one thread at a time uses an object (stream,
// event, graph), except that any thread may ask whether an event is finished(). Errors: every failure is an hvd::Error
// that names the GPU, the call and its purpose. Errors of work on a stream appear later: the next call that checks
// (finished, synchronize, copy, ...) and every call after it throw backend.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/deadline.h"
#include "engine/base/types.h"
#include "engine/gpu/device.h"
#include "engine/gpu/timer.h"

namespace hvd::gpu {

class GpuRuntime;

/// The form in which kernels and libraries take a stream: `native` is a cudaStream_t.
struct StreamView {
  void* native = nullptr;
  bool operator==(const StreamView&) const = default;
};
struct EventView {
  void* native = nullptr;  ///< cudaEvent_t
};
struct GraphView {
  void* native = nullptr;  ///< private to the GpuRuntime
};
struct DeviceBlock {
  std::span<std::byte> bytes;  ///< device addresses, 256-byte aligned; not initialised
};
struct PinnedBlock {
  std::span<std::byte> bytes;  ///< host addresses that the device can copy from and to without help from the CPU
};

/// Owns the object that `View` refers to. An Owned is empty after default construction and after a move.
template <class View>
class Owned {
 public:
  Owned() noexcept = default;
  Owned(GpuRuntime& runtime, View view) noexcept : runtime_(&runtime), view_(view) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Owned(Owned&& other) noexcept : runtime_(std::exchange(other.runtime_, nullptr)), view_(other.view_) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this == &other) return *this;
    reset();
    runtime_ = std::exchange(other.runtime_, nullptr);
    view_ = other.view_;
    return *this;
  }
  ~Owned() { reset(); }

  explicit operator bool() const noexcept { return runtime_ != nullptr; }
  [[nodiscard]] const View& view() const noexcept { return view_; }
  operator View() const noexcept { return view_; }  // NOLINT(google-explicit-constructor): a view borrows
  const View* operator->() const noexcept { return &view_; }
  void reset() noexcept;
  /// Gives up ownership: nobody destroys the object.
  void release() noexcept { runtime_ = nullptr; }

 private:
  GpuRuntime* runtime_ = nullptr;
  View view_{};
};

using DeviceMemory = Owned<DeviceBlock>;
using PinnedMemory = Owned<PinnedBlock>;
using Stream = Owned<StreamView>;
using Event = Owned<EventView>;
/// An instantiated graph, which can be launched any number of times. Launches of one graph never overlap.
using Graph = Owned<GraphView>;

enum class Priority : std::uint8_t {
  kNormal,
  kHigh,  ///< for communication: kernels of this stream get free multiprocessors first
};
enum class Timing : std::uint8_t { kOff, kOn };

struct MemoryState {
  std::size_t free_bytes = 0, total_bytes = 0;
};

/// The kinds and numbers of a graph's nodes, which decide how long the host takes to launch it.
struct GraphShape {
  std::size_t kernels = 0, copies = 0, fills = 0, events = 0, others = 0;
  std::size_t high_priority = 0;  ///< number of kernels that were captured from a stream of Priority::kHigh
  std::size_t early_edges = 0;    ///< edges whose second node may start before the first ends (programmatic launch)
  bool in_a_row = true;           ///< each node waits for the previous node, and for no other node
  /// Returns a text like "one graph of 9 nodes in a row: 5 kernels (1 of high priority), 2 copies, 1 fill, 1 event; 2
  /// may start early".
  [[nodiscard]] std::string text() const;
};

class GpuRuntime {
 public:
  GpuRuntime() = default;
  GpuRuntime(const GpuRuntime&) = delete;
  GpuRuntime& operator=(const GpuRuntime&) = delete;
  virtual ~GpuRuntime() = default;

  [[nodiscard]] virtual const Device& device() const noexcept = 0;
  /// Returns the name of this GPU for errors: "GPU 0 (NVIDIA H200)".
  [[nodiscard]] std::string label() const;
  [[nodiscard]] virtual MemoryState memory() = 0;
  /// Makes this GPU the calling thread's current one. A thread must call this before it launches kernels or calls a
  /// library with a stream of this GpuRuntime. The methods below do not need this call.
  virtual void make_current() = 0;

  /// Allocates memory on this GPU. `what` names the memory in errors: "the gradient arena".
  /// Errors: out_of_memory (the text gives the requested and the free bytes); invalid_argument for zero bytes.
  [[nodiscard]] virtual DeviceMemory allocate(std::size_t bytes, std::string_view what) = 0;
  [[nodiscard]] virtual PinnedMemory allocate_pinned(std::size_t bytes, std::string_view what) = 0;
  /// Makes a stream, which does not synchronise with CUDA's legacy default stream.
  [[nodiscard]] virtual Stream make_stream(Priority priority) = 0;
  [[nodiscard]] virtual Event make_event(Timing timing) = 0;

  /// Enqueues a copy in any direction. Both ranges must be in memory of this GpuRuntime or memory registered with this
  /// GPU, because a copy from other host memory makes the host wait.
  virtual void copy(void* to, const void* from, std::size_t bytes, StreamView stream) = 0;
  /// Enqueues work that sets every byte to `value`.
  virtual void fill(void* to, std::byte value, std::size_t bytes, StreamView stream) = 0;
  /// Enqueues a kernel that multiplies `count` elements of device memory by `factor`. The results have the same bits as
  /// those of hvd::scale() (engine/base/scale.h). Errors: invalid_argument for integers; unsupported if scale_refusal()
  /// returns a reason.
  virtual void scale(void* data, std::size_t count, DataType dtype, double factor, StreamView stream) = 0;
  /// Returns the reason why scale() and the timers are unsupported, in one line, or an empty text if they are
  /// supported.
  [[nodiscard]] virtual std::string scale_refusal() const { return {}; }

  /// Enqueues a kernel that sets `timer->start` to the present. `timer` is in device memory. Errors: as scale().
  virtual void start_timer(DeviceTimer* timer, StreamView stream) = 0;
  /// Enqueues a kernel that lasts until `after`, multiplied by `timer->factor`, has passed since `timer->start`. If
  /// that time has passed already, the kernel ends at once. It always ends by itself, after kMaxTimerWait or, if the
  /// GPU's clock stands still, after about a second. Only one of its threads waits. Errors: as scale().
  virtual void await_timer(const DeviceTimer* timer, std::chrono::nanoseconds after, StreamView stream) = 0;

  /// Enqueues a recording of the event. The event is finished when all earlier work on `stream` is finished. While
  /// `stream` is captured, the event is a dependency inside the graph: no code outside the graph may wait for the event
  /// or query it.
  virtual void record(EventView event, StreamView stream) = 0;
  /// Outside a capture, this is the same as record(). Inside a capture, each launch of the graph records the event, so
  /// that the host can wait for the event and read times. The event is then no dependency inside the graph, and must
  /// outlive the graph.
  virtual void record_outside(EventView event, StreamView stream) = 0;
  /// Makes later work on `stream` start only when the event's last recording, if any, is finished. Returns at once.
  virtual void wait(StreamView stream, EventView event) = 0;
  /// Makes later work on `stream` start only when `open` is true; prefer the class Hold below. Whoever sets `open`
  /// calls its notify_all(). Errors: invalid_argument while `stream` is captured.
  virtual void hold(StreamView stream, std::shared_ptr<const std::atomic<bool>> open) = 0;
  /// Returns true if the work before the event's last recording, or all work on the stream, is finished. Never waits.
  /// Errors: backend if work on the GPU failed; invalid_argument if the event or stream is part of a capture.
  [[nodiscard]] virtual bool finished(EventView event) = 0;
  [[nodiscard]] virtual bool finished(StreamView stream) = 0;
  /// Returns the time from `begin` to `end`. Both events must have timing and be finished. CUDA resolves about 0.5 us.
  [[nodiscard]] virtual std::chrono::nanoseconds elapsed(EventView begin, EventView end) = 0;

  /// Waits until `event` is finished. The host sleeps between polls, except around the time `expected`, when it polls
  /// without sleeping (poll_schedule.h). `between` is called after each poll, and may throw to end the wait.
  /// Errors: timeout at the deadline, with `what` ("step 17") in the text.
  void synchronize(EventView event, Deadline deadline, std::string_view what, const std::function<void()>& between = {},
                   std::optional<Clock::time_point> expected = {});
  void synchronize(StreamView stream, Deadline deadline, std::string_view what,
                   const std::function<void()>& between = {});
  /// Waits until no work is left on the stream, at most 5 s, and ignores errors. For use before memory is freed.
  void drain(StreamView stream) noexcept;

  /// From now on, work that this thread enqueues on `stream`, or on streams that wait for an event of `stream`, is
  /// recorded instead of run. Prefer the class Capture below, whose destructor ends a capture that was not finished.
  virtual void begin_capture(StreamView stream) = 0;
  /// Ends the capture and returns its graph. Errors: invalid_argument if another stream took part and `stream` did not
  /// wait for all work of the other stream (a missing join), or if an operation was enqueued that cannot be captured.
  /// The capture ends in these cases, too.
  [[nodiscard]] virtual Graph end_capture(StreamView stream) = 0;
  /// Ends the capture of `stream`, if there is one, and throws the recorded work away.
  virtual void abandon_capture(StreamView stream) noexcept = 0;
  /// Returns the shape of the captured graph; nullopt if the driver does not report it.
  [[nodiscard]] virtual std::optional<GraphShape> shape(GraphView graph) = 0;
  /// Enqueues all work of the graph as one piece of work of `stream`.
  virtual void launch(GraphView graph, StreamView stream) = 0;

  // Only owners call destroy(). If work still uses the object, the call waits, or the driver frees the object later.
  virtual void destroy(const DeviceBlock& block) noexcept = 0;
  virtual void destroy(const PinnedBlock& block) noexcept = 0;
  virtual void destroy(StreamView stream) noexcept = 0;
  virtual void destroy(EventView event) noexcept = 0;
  virtual void destroy(GraphView graph) noexcept = 0;
};

template <class View>
void Owned<View>::reset() noexcept {
  if (GpuRuntime* const runtime = std::exchange(runtime_, nullptr); runtime != nullptr) runtime->destroy(view_);
}

/// Keeps work that is enqueued on `stream` after the constructor from starting before release(), so that events around
/// this work measure the GPU's time and not the time in which the host enqueued it. The destructor releases the stream.
/// Until then do not wait for the stream, and do not call anything that may wait for the whole GPU (allocation, the
/// first use of a library's operation). A launch waits while about a thousand are pending, so enqueue fewer.
class Hold {
 public:
  Hold(GpuRuntime& runtime, StreamView stream) { runtime.hold(stream, open_); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { release(); }
  void release() noexcept {
    *open_ = true;
    open_->notify_all();
  }

 private:
  const std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

/// A capture in progress. The destructor abandons the capture unless finish() was called.
class Capture {
 public:
  Capture(GpuRuntime& runtime, StreamView stream) : runtime_(runtime), stream_(stream) {
    runtime.begin_capture(stream);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    if (open_) runtime_.abandon_capture(stream_);
  }
  [[nodiscard]] Graph finish() {
    open_ = false;
    return runtime_.end_capture(stream_);
  }

 private:
  GpuRuntime& runtime_;
  StreamView stream_;
  bool open_ = true;
};

/// Opens the GPU with number `index` in list_devices(). Errors: unsupported, with the reason, if CUDA, the driver or
/// this GPU is absent; backend if the GPU cannot be used (another process uses it exclusively, or it is off the bus).
std::unique_ptr<GpuRuntime> make_cuda_runtime(int index);

}  // namespace hvd::gpu
