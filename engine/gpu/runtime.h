// One GPU, as everything above sees it: memory, streams, events, graphs, and work put on streams in order. No vendor
// header: the implementations are CUDA's (make_cuda_runtime) and, in the tests, one that runs on the CPU.
//
// Owners are move-only and release what they own; everyone else passes views. A Runtime outlives all owners that it
// made. Threads: any thread may call any method; one object (stream, event, graph) is used by one thread at a time,
// but that any thread may ask whether an event is finished().
// Errors: every failure is an hvd::Error that names the GPU, the call and what it was for. Work on a stream fails
// later: the next call that asks (finished, synchronize, copy, ...) throws backend, and then every one does.
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
#include <utility>

#include "engine/base/deadline.h"
#include "engine/base/types.h"
#include "engine/gpu/device.h"
#include "engine/gpu/host_gate.h"

namespace hvd::gpu {

class Runtime;

/// What kernels and libraries want: `native` is a cudaStream_t.
struct StreamView {
  void* native = nullptr;
  bool operator==(const StreamView&) const = default;
};
struct EventView {
  void* native = nullptr;  ///< cudaEvent_t
};
struct GraphView {
  void* native = nullptr;  ///< the Runtime's own
};
struct DeviceBlock {
  std::span<std::byte> bytes;  ///< device addresses, 256-byte aligned; what they hold at first is undefined
};
struct PinnedBlock {
  std::span<std::byte> bytes;  ///< host addresses that the device can copy from and to without the host's help
};

/// Owns what `View` shows. Empty when made without arguments or moved from.
template <class View>
class Owned {
 public:
  Owned() noexcept = default;
  Owned(Runtime& runtime, View view) noexcept : runtime_(&runtime), view_(view) {}
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
  operator View() const noexcept { return view_; }  // NOLINT(google-explicit-constructor): a view is a borrow
  const View* operator->() const noexcept { return &view_; }
  void reset() noexcept;

 private:
  Runtime* runtime_ = nullptr;
  View view_{};
};

using DeviceMemory = Owned<DeviceBlock>;
using PinnedMemory = Owned<PinnedBlock>;
using Stream = Owned<StreamView>;
using Event = Owned<EventView>;
/// Instantiated: ready to be launched any number of times. Launches of one graph never overlap.
using Graph = Owned<GraphView>;

enum class Priority : std::uint8_t {
  kNormal,
  kHigh,  ///< its kernels get free multiprocessors first: for communication
};
enum class Timing : std::uint8_t { kOff, kOn };

struct MemoryState {
  std::size_t free_bytes = 0, total_bytes = 0;
};

/// What a graph holds, which decides how long the host takes to launch it.
struct GraphShape {
  std::size_t kernels = 0, copies = 0, fills = 0, events = 0, others = 0;
  std::size_t high_priority = 0;  ///< of the kernels, those from a stream of Priority::kHigh
  std::size_t early_edges = 0;    ///< whose later node may start before the earlier is over (programmatic launch)
  bool in_a_row = true;           ///< each node waits for the one before it, and for no other
  /// "one graph of 9 nodes in a row: 5 kernels (1 of high priority), 2 copies, 1 fill, 1 event; 2 may start early".
  [[nodiscard]] std::string text() const;
};

class Runtime {
 public:
  Runtime() = default;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  virtual ~Runtime() = default;

  [[nodiscard]] virtual const Device& device() const noexcept = 0;
  /// "GPU 0 (NVIDIA H200)": how errors name it.
  [[nodiscard]] std::string label() const;
  [[nodiscard]] virtual MemoryState memory() = 0;
  /// Makes this the calling thread's GPU. Before a thread launches kernels or calls a library with a stream of this
  /// Runtime; the methods below do it themselves where it matters.
  virtual void make_current() = 0;

  /// `what` is for the message: "the gradient arena". Errors: out_of_memory with the bytes asked for and free;
  /// invalid_argument for zero bytes.
  [[nodiscard]] virtual DeviceMemory allocate(std::size_t bytes, std::string_view what) = 0;
  [[nodiscard]] virtual PinnedMemory allocate_pinned(std::size_t bytes, std::string_view what) = 0;
  /// Does not synchronise with the legacy default stream.
  [[nodiscard]] virtual Stream make_stream(Priority priority) = 0;
  [[nodiscard]] virtual Event make_event(Timing timing) = 0;

  /// Enqueues; any direction. Both ranges lie in memory of this Runtime or registered with this GPU: copies from
  /// other host memory would make the host wait.
  virtual void copy(void* to, const void* from, std::size_t bytes, StreamView stream) = 0;
  /// Enqueues; every byte becomes `value`.
  virtual void fill(void* to, std::byte value, std::size_t bytes, StreamView stream) = 0;
  /// Enqueues: `count` elements of device memory are multiplied by `factor`, with the bits of hvd::scale()
  /// (engine/base/scale.h). Errors: invalid_argument for integers; unsupported where scale_refusal() says why.
  virtual void scale(void* data, std::size_t count, DataType dtype, double factor, StreamView stream) = 0;
  /// Why scale() is unsupported, in one line; empty: it works.
  [[nodiscard]] virtual std::string scale_refusal() const { return {}; }

  /// Enqueues: the event is over when all work before it on `stream` is. While `stream` is captured, this is a
  /// dependency inside the graph: nobody outside may wait for the event or ask about it.
  virtual void record(EventView event, StreamView stream) = 0;
  /// The same outside a capture. Inside one, each launch of the graph records the event, so that the host can wait and
  /// time; it is no dependency inside the graph. The event outlives the graph.
  virtual void record_outside(EventView event, StreamView stream) = 0;
  /// Enqueues: later work on `stream` starts when the event's last recording is over. The host does not wait. An event
  /// that was never recorded holds nothing up.
  virtual void wait(StreamView stream, EventView event) = 0;
  /// Enqueues: later work on `stream` starts when the host has opened the gate (host_gate.h), which knows when the
  /// stream gets there. Errors: invalid_argument while `stream` is captured: a gate opens once.
  virtual void hold(StreamView stream, std::shared_ptr<HostGate> gate) = 0;
  /// Whether the work is over; never waits. Errors: backend if work on the GPU failed; invalid_argument while captured.
  [[nodiscard]] virtual bool finished(EventView event) = 0;
  [[nodiscard]] virtual bool finished(StreamView stream) = 0;
  /// From one event to the other, both recorded with timing and over. Resolution some 0.5 us.
  [[nodiscard]] virtual std::chrono::nanoseconds elapsed(EventView begin, EventView end) = 0;

  /// The host sleeps until the work is over. `between` is called between looks, and may throw to end the wait. At about
  /// the time `expected` the host is awake (vigil.h).
  /// Errors: timeout at the deadline, with `what` ("step 17") in the text.
  void synchronize(EventView event, Deadline deadline, std::string_view what, const std::function<void()>& between = {},
                   std::optional<Clock::time_point> expected = {});
  void synchronize(StreamView stream, Deadline deadline, std::string_view what,
                   const std::function<void()>& between = {});
  /// Waits until nothing is left on the stream, 5 s at most, whatever became of it: before memory goes.
  void run_dry(StreamView stream) noexcept;

  /// What this thread enqueues on `stream` from now on, and on streams that wait for an event of it, is recorded
  /// instead of run. Use Capture below, which cannot be forgotten.
  virtual void begin_capture(StreamView stream) = 0;
  /// Errors: invalid_argument if another stream took part and `stream` did not wait for all its work (a missing join)
  /// or if something was done that cannot be captured; the capture is over then, too.
  [[nodiscard]] virtual Graph end_capture(StreamView stream) = 0;
  /// Ends a capture, if there is one, and throws away what it recorded.
  virtual void abandon_capture(StreamView stream) noexcept = 0;
  /// Of what was captured; nothing where that cannot be found out.
  [[nodiscard]] virtual std::optional<GraphShape> shape(GraphView graph) = 0;
  /// Enqueues all work of the graph as one piece of work of `stream`.
  virtual void launch(GraphView graph, StreamView stream) = 0;

  // For the owners. Work that still uses the object is finished first, or the object outlives it in secret.
  virtual void destroy(const DeviceBlock& block) noexcept = 0;
  virtual void destroy(const PinnedBlock& block) noexcept = 0;
  virtual void destroy(StreamView stream) noexcept = 0;
  virtual void destroy(EventView event) noexcept = 0;
  virtual void destroy(GraphView graph) noexcept = 0;
};

template <class View>
void Owned<View>::reset() noexcept {
  if (Runtime* const runtime = std::exchange(runtime_, nullptr); runtime != nullptr) runtime->destroy(view_);
}

/// A capture in progress; leaving the scope without finish() abandons it.
class Capture {
 public:
  Capture(Runtime& runtime, StreamView stream) : runtime_(runtime), stream_(stream) { runtime.begin_capture(stream); }
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
  Runtime& runtime_;
  StreamView stream_;
  bool open_ = true;
};

/// The GPU with this index in list_devices(). Errors: unsupported without CUDA, driver or such a GPU, with the reason;
/// backend if it cannot be used (in use exclusively by another process, fallen off the bus).
std::unique_ptr<Runtime> make_cuda_runtime(int index);

}  // namespace hvd::gpu
