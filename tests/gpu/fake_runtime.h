// A gpu::GpuRuntime that needs no GPU: its streams, events and graphs use a FakeWorld. To find mistakes it is stricter
// than CUDA. Addresses must lie in memory of this GPU, a stream must belong to this GPU, and an event must have been
// recorded before a capture waits for the event. As in CUDA, freeing memory of the GPU or pinned memory waits for all
// work of the GPU, a full launch queue makes the host wait, and each thread has a current GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/gpu/runtime.h"
#include "tests/gpu/fake_world.h"

namespace hvd::test {

struct FakeOptions {
  std::size_t memory_bytes = std::size_t{64} << 20;
  std::string uuid;           ///< if empty, the fake GPU makes a uuid of its own
  std::string name = "fake";  ///< the GPU's name, as a driver would report it
  int visible = 1;            ///< number of GPUs that the process is supposed to see
  /// If true, a block of memory takes no space until it is written, and copies and fills do nothing. Used for call logs
  /// of steps that do not fit into this host's memory.
  bool dry = false;
  /// Number of pending calls (work, events, launches of graphs) at which the next call waits. CUDA does not document
  /// its limit; about 1024 is seen.
  std::size_t launch_queue = 1024;
};

/// A call that changes something on the GPU, or a call of finished() that returned true.
struct FakeCall {
  std::string what;              ///< name of the call, such as "allocate" or "record"; for work, the label of the work
  const void* stream = nullptr;  ///< the call's stream; null if the call has no stream
  const void* object = nullptr;  ///< the event, graph or stream that the call records, makes or destroys
  std::vector<Range> reads = {}, writes = {};
  std::string detail = {};  ///< the purpose of allocated memory, for people who read a log
};

class FakeRuntime final : public gpu::GpuRuntime {
 public:
  /// Borrows `world`, which must outlive this object.
  FakeRuntime(FakeWorld& world, int index, FakeOptions options = {});
  ~FakeRuntime() override;

  /// Enqueues `work` in place of a kernel.
  void enqueue(gpu::StreamView stream, Work work);
  /// Enqueues work that runs `body` once and is then over.
  void kernel(gpu::StreamView stream, std::string label, std::vector<Range> reads, std::vector<Range> writes,
              std::function<void()> body);
  [[nodiscard]] bool capturing(gpu::StreamView stream);
  [[nodiscard]] FakeWorld& world() noexcept { return world_; }
  /// After this call every query and every wait fails, as after an illegal memory access in a kernel.
  void break_down(std::string why) { world_.break_device(id_, std::move(why)); }
  /// Called with every call, in order. May be null. The function must not call the GPU. Set on_call before other
  /// threads use the GPU.
  std::function<void(const FakeCall&)> on_call;
  /// launch() calls this function first, so that a test can make launch() hang. May be null.
  std::function<void()> on_launch;
  /// begin_capture() calls this function first. May be null.
  std::function<void()> on_capture;
  /// Called when a wait of await_timer() runs, with the wait multiplied by the timer's factor. The wait then ends at
  /// once. May be null. The function must not call the GPU.
  std::function<void(std::chrono::nanoseconds)> on_timer;
  /// The text that scale_refusal() returns.
  std::string no_scaling;
  /// Number of streams, events, graphs and memory blocks that still have an owner.
  [[nodiscard]] std::size_t objects();

  [[nodiscard]] const gpu::Device& device() const noexcept override { return device_; }
  [[nodiscard]] gpu::MemoryState memory() override;
  void make_current() override { current() = this; }
  /// Returns true if this GPU is the calling thread's current one. NCCL's calls need this.
  [[nodiscard]] bool is_current() const { return current() == this; }
  [[nodiscard]] gpu::DeviceMemory allocate(std::size_t bytes, std::string_view what) override;
  [[nodiscard]] gpu::PinnedMemory allocate_pinned(std::size_t bytes, std::string_view what) override;
  [[nodiscard]] gpu::Stream make_stream(gpu::Priority priority) override;
  [[nodiscard]] gpu::Event make_event(gpu::Timing timing) override;
  void copy(void* to, const void* from, std::size_t bytes, gpu::StreamView stream) override;
  void fill(void* to, std::byte value, std::size_t bytes, gpu::StreamView stream) override;
  void scale(void* data, std::size_t count, DataType dtype, double factor, gpu::StreamView stream) override;
  [[nodiscard]] std::string scale_refusal() const override { return no_scaling; }
  void start_timer(gpu::DeviceTimer* timer, gpu::StreamView stream) override;
  void await_timer(const gpu::DeviceTimer* timer, std::chrono::nanoseconds after, gpu::StreamView stream) override;
  void record(gpu::EventView event, gpu::StreamView stream) override;
  void record_outside(gpu::EventView event, gpu::StreamView stream) override;
  void wait(gpu::StreamView stream, gpu::EventView event) override;
  void hold(gpu::StreamView stream, std::shared_ptr<const std::atomic<bool>> open) override;
  [[nodiscard]] bool finished(gpu::EventView event) override;
  [[nodiscard]] bool finished(gpu::StreamView stream) override;
  [[nodiscard]] std::chrono::nanoseconds elapsed(gpu::EventView begin, gpu::EventView end) override;
  void begin_capture(gpu::StreamView stream) override;
  [[nodiscard]] gpu::Graph end_capture(gpu::StreamView stream) override;
  void abandon_capture(gpu::StreamView stream) noexcept override;
  /// Every node of the graph counts as a kernel, except copies, fills and events.
  [[nodiscard]] std::optional<gpu::GraphShape> shape(gpu::GraphView graph) override;
  void launch(gpu::GraphView graph, gpu::StreamView stream) override;
  void destroy(const gpu::DeviceBlock& block) noexcept override;
  void destroy(const gpu::PinnedBlock& block) noexcept override;
  void destroy(gpu::StreamView stream) noexcept override;
  void destroy(gpu::EventView event) noexcept override;
  void destroy(gpu::GraphView graph) noexcept override;

 private:
  struct FakeStream;
  struct FakeEvent;
  struct FakeGraph;
  struct Recording;
  struct Block {
    std::shared_ptr<std::byte> storage;
    std::size_t bytes = 0;
    bool device = false;
  };

  static const FakeRuntime*& current() {
    static thread_local const FakeRuntime* gpu = nullptr;
    return gpu;
  }
  /// Waits until `done` returns true, as the host does in a call of CUDA that waits for the GPU.
  void wait_on_host(const std::function<bool()>& done, const std::string& call);
  /// Waits while the launch queue is full.
  void await_room();
  void tell(FakeCall call) const {
    if (on_call) on_call(call);
  }
  std::span<std::byte> make_block(std::size_t bytes, bool device, std::string_view what);
  /// Returns true if work was about to use the memory.
  bool free_block(std::span<std::byte> bytes) noexcept;
  FakeStream& find(gpu::StreamView stream) HVD_REQUIRES(mutex_);
  FakeEvent& find(gpu::EventView event) HVD_REQUIRES(mutex_);
  FakeGraph& find(gpu::GraphView graph) HVD_REQUIRES(mutex_);
  OpRef last_recording(gpu::EventView event);
  void enqueue_locked(FakeStream& stream, Work work, FakeEvent* outside) HVD_REQUIRES(mutex_);
  void require_known(Range range, const char* call) HVD_REQUIRES(mutex_);
  void drop_recording(FakeStream& stream) HVD_REQUIRES(mutex_);
  /// Returns true if the calling thread captures. CUDA then refuses all calls that may wait for the GPU.
  bool captured_here() HVD_REQUIRES(mutex_);
  [[noreturn]] void refuse(const std::string& what) const;

  FakeWorld& world_;
  const std::size_t id_;
  const bool dry_;
  const std::size_t launch_queue_;
  gpu::Device device_;
  Mutex mutex_;
  std::size_t used_ HVD_GUARDED_BY(mutex_) = 0;
  std::map<const std::byte*, Block> blocks_ HVD_GUARDED_BY(mutex_);  // by the block's first address
  std::map<const void*, std::unique_ptr<FakeStream>> streams_ HVD_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<FakeEvent>> events_ HVD_GUARDED_BY(mutex_);
  std::map<const void*, std::unique_ptr<FakeGraph>> graphs_ HVD_GUARDED_BY(mutex_);
};

}  // namespace hvd::test
