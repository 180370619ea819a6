// The GpuRuntime of a real GPU. Each method calls the CUDA runtime and turns a CUDA error into an Error.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/mutex.h"
#include "engine/base/unique_handle.h"
#include "engine/gpu/kernels.h"
#include "engine/gpu/runtime.h"

namespace hvd::gpu {
namespace {

cudaStream_t native(StreamView stream) { return static_cast<cudaStream_t>(stream.native); }
cudaEvent_t native(EventView event) { return static_cast<cudaEvent_t>(event.native); }

struct GraphTraits {
  using Handle = cudaGraph_t;
  static Handle null() { return nullptr; }
  static void destroy(Handle graph) noexcept { static_cast<void>(cudaGraphDestroy(graph)); }
};

struct GraphExecTraits {
  using Handle = cudaGraphExec_t;
  static Handle null() { return nullptr; }
  static void destroy(Handle graph) noexcept { static_cast<void>(cudaGraphExecDestroy(graph)); }
};

/// The object that GraphView::native points to.
struct CudaGraph {
  UniqueHandle<GraphExecTraits> launched;
  std::optional<GraphShape> shape;
};

CudaGraph* native(GraphView graph) { return static_cast<CudaGraph*>(graph.native); }

template <std::size_t N>
bool among(const std::array<cudaError, N>& known, cudaError_t status) {
  return std::find(known.begin(), known.end(), status) != known.end();
}

std::string bytes_text(std::size_t bytes) { return std::to_string(bytes >> 20U) + " MiB"; }

// CUDA 12.3 added edge types. CUDA 12 returns them from cudaGraphGetEdges_v2(), CUDA 13 from cudaGraphGetEdges().
#if CUDART_VERSION >= 12030
using EdgeData = cudaGraphEdgeData;
bool starts_early(const EdgeData& edge) {
  return edge.type == static_cast<unsigned char>(cudaGraphDependencyTypeProgrammatic);
}
#else
struct EdgeData {};
bool starts_early(const EdgeData& /*edge*/) { return false; }
#endif

cudaError_t get_edges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, [[maybe_unused]] EdgeData* data,
                      std::size_t* count) {
#if CUDART_VERSION >= 13000
  return cudaGraphGetEdges(graph, from, to, data, count);
#elif CUDART_VERSION >= 12030
  return cudaGraphGetEdges_v2(graph, from, to, data, count);
#else
  return cudaGraphGetEdges(graph, from, to, count);
#endif
}

struct Edges {
  std::vector<cudaGraphNode_t> from, to;
  std::size_t early = 0;
};

std::optional<Edges> edges_of(cudaGraph_t graph) {
  std::size_t count = 0;
  if (get_edges(graph, nullptr, nullptr, nullptr, &count) != cudaSuccess) return std::nullopt;
  Edges edges{.from = std::vector<cudaGraphNode_t>(count), .to = std::vector<cudaGraphNode_t>(count)};
  std::vector<EdgeData> data(count);
  if (count > 0 && get_edges(graph, edges.from.data(), edges.to.data(), data.data(), &count) != cudaSuccess) {
    return std::nullopt;
  }
  edges.early = static_cast<std::size_t>(std::count_if(data.begin(), data.end(), starts_early));
  return edges;
}

bool any_twice(std::vector<cudaGraphNode_t> nodes) {
  std::sort(nodes.begin(), nodes.end());
  return std::adjacent_find(nodes.begin(), nodes.end()) != nodes.end();
}

/// Counts `node` in `shape`. Returns false if the driver cannot report the node's attributes.
bool count_node(cudaGraphNode_t node, GraphShape& shape) {
  cudaGraphNodeType type{};
  if (cudaGraphNodeGetType(node, &type) != cudaSuccess) return false;
  switch (type) {
    case cudaGraphNodeTypeKernel: {
      cudaLaunchAttributeValue value{};
      if (cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value) != cudaSuccess) return false;
      ++shape.kernels;
      if (value.priority != 0) ++shape.high_priority;
      break;
    }
    case cudaGraphNodeTypeMemcpy: ++shape.copies; break;
    case cudaGraphNodeTypeMemset: ++shape.fills; break;
    case cudaGraphNodeTypeEventRecord: ++shape.events; break;
    default: ++shape.others;
  }
  return true;
}

/// Returns nullopt if CUDA does not report the graph's nodes and edges.
std::optional<GraphShape> shape_of(cudaGraph_t graph) {
  std::size_t count = 0;
  bool known = cudaGraphGetNodes(graph, nullptr, &count) == cudaSuccess;
  std::vector<cudaGraphNode_t> nodes(count);
  known = known && (count == 0 || cudaGraphGetNodes(graph, nodes.data(), &count) == cudaSuccess);
  GraphShape shape;
  for (std::size_t i = 0; known && i < count; ++i) known = count_node(nodes[i], shape);
  if (const std::optional<Edges> edges = known ? edges_of(graph) : std::nullopt) {
    shape.early_edges = edges->early;
    shape.in_a_row = edges->from.size() + 1 >= count && !any_twice(edges->from) && !any_twice(edges->to);
    return shape;
  }
  static_cast<void>(cudaGetLastError());  // clear the error: an unknown shape is not a fault
  return std::nullopt;
}

/// Returns true if `stream` is captured, or if CUDA does not report whether it is.
bool may_be_capturing(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &state) != cudaSuccess || state != cudaStreamCaptureStatusNone;
}

/// Becomes true when a held stream may go on. The host and the stream share it.
using Opening = std::shared_ptr<const std::atomic<bool>>;

/// CUDA calls this function on a thread of its own, in stream order, and never after a failure of the GPU. The function
/// must not call CUDA.
void CUDART_CB wait_until_open(void* data) {
  const std::unique_ptr<Opening> open(static_cast<Opening*>(data));
  (*open)->wait(false);
}

class CudaRuntime final : public GpuRuntime {
 public:
  explicit CudaRuntime(Device device) : device_(std::move(device)) {
    make_current();
    check(cudaFree(nullptr), "cudaFree", "making this process's context");  // the first CUDA call creates the context
    int least = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &high_priority_), "cudaDeviceGetStreamPriorityRange", "");
  }

  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] MemoryState memory() override {
    make_current();
    MemoryState state;
    check(cudaMemGetInfo(&state.free_bytes, &state.total_bytes), "cudaMemGetInfo", "");
    return state;
  }
  void make_current() override { check(cudaSetDevice(device_.index), "cudaSetDevice", ""); }

  [[nodiscard]] DeviceMemory allocate(std::size_t bytes, std::string_view what) override {
    require_nonzero(bytes, what);
    make_current();
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) throw_out_of_memory(bytes, what);
    check(status, "cudaMalloc", what);
    return {*this, DeviceBlock{{static_cast<std::byte*>(data), bytes}}};
  }
  [[nodiscard]] PinnedMemory allocate_pinned(std::size_t bytes, std::string_view what) override {
    require_nonzero(bytes, what);
    make_current();
    void* data = nullptr;
    const cudaError_t status = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
    if (status == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw Error(Errc::kOutOfMemory,
                  fmt::format("{}: the host cannot pin {} for {}; free host memory, or raise ulimit -l", label(),
                              bytes_text(bytes), what));
    }
    check(status, "cudaHostAlloc", what);
    return {*this, PinnedBlock{{static_cast<std::byte*>(data), bytes}}};
  }
  [[nodiscard]] Stream make_stream(Priority priority) override {
    make_current();
    cudaStream_t stream = nullptr;
    const int level = priority == Priority::kHigh ? high_priority_ : 0;
    check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, level), "cudaStreamCreateWithPriority", "");
    if (priority == Priority::kHigh) {
      const MutexLock lock(mutex_);
      high_priority_streams_.insert(stream);
    }
    return {*this, StreamView{stream}};
  }
  [[nodiscard]] Event make_event(Timing timing) override {
    make_current();
    cudaEvent_t event = nullptr;
    const unsigned flags = timing == Timing::kOn ? cudaEventDefault : cudaEventDisableTiming;
    check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags", "");
    return {*this, EventView{event}};
  }

  void copy(void* to, const void* from, std::size_t bytes, StreamView stream) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, native(stream)), "cudaMemcpyAsync", "");
  }
  void fill(void* to, std::byte value, std::size_t bytes, StreamView stream) override {
    make_current();  // cudaMemsetAsync() needs the current device; cudaMemcpyAsync() does not
    check(cudaMemsetAsync(to, std::to_integer<int>(value), bytes, native(stream)), "cudaMemsetAsync", "");
  }
  void scale(void* data, std::size_t count, DataType dtype, double factor, StreamView stream) override {
    if (const std::string why = scale_refusal(); !why.empty()) {
      throw Error(Errc::kUnsupported, fmt::format("{}: scaling: {}", label(), why));
    }
    make_current();
    scale_on_gpu(static_cast<std::byte*>(data), count, dtype, factor, native(stream));
  }
  [[nodiscard]] std::string scale_refusal() const override { return kernels_refusal(device_); }
  void start_timer(DeviceTimer* timer, StreamView stream) override {
    require_kernels();
    make_current();
    start_timer_on_gpu(timer, native(stream));
  }
  void await_timer(const DeviceTimer* timer, std::chrono::nanoseconds after, StreamView stream) override {
    require_kernels();
    make_current();
    await_timer_on_gpu(timer, after, native(stream));
  }
  void record(EventView event, StreamView stream) override {
    check(cudaEventRecord(native(event), native(stream)), "cudaEventRecord", "");
  }
  void record_outside(EventView event, StreamView stream) override {
    // Outside a capture, CUDA rejects cudaEventRecordExternal.
    const unsigned flags = capturing(stream) ? cudaEventRecordExternal : cudaEventRecordDefault;
    check(cudaEventRecordWithFlags(native(event), native(stream), flags), "cudaEventRecordWithFlags", "");
  }
  void wait(StreamView stream, EventView event) override {
    check(cudaStreamWaitEvent(native(stream), native(event), cudaEventWaitDefault), "cudaStreamWaitEvent", "");
  }
  void hold(StreamView stream, Opening open) override {
    if (capturing(stream))
      throw Error(Errc::kInvalidArgument, label() + ": a captured stream cannot wait for the host");
    make_current();
    auto owner = std::make_unique<Opening>(std::move(open));
    check(cudaLaunchHostFunc(native(stream), wait_until_open, owner.get()), "cudaLaunchHostFunc", "");
    static_cast<void>(owner.release());  // wait_until_open() deletes it
  }
  [[nodiscard]] bool finished(EventView event) override {
    return finished(cudaEventQuery(native(event)), "cudaEventQuery");
  }
  [[nodiscard]] bool finished(StreamView stream) override {
    return finished(cudaStreamQuery(native(stream)), "cudaStreamQuery");
  }
  [[nodiscard]] std::chrono::nanoseconds elapsed(EventView begin, EventView end) override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, native(begin), native(end)), "cudaEventElapsedTime", "");
    constexpr double kNanosecondsPerMillisecond = 1e6;
    return std::chrono::nanoseconds(static_cast<std::int64_t>(kNanosecondsPerMillisecond * milliseconds));
  }

  void begin_capture(StreamView stream) override {
    // The capture is limited to this thread, so that other threads may allocate and query events meanwhile.
    check(cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture", "");
  }
  [[nodiscard]] Graph end_capture(StreamView stream) override {
    // Without node priorities, all nodes run at the priority of the stream that the graph is launched into. Use node
    // priorities only if a stream of high priority took part in the capture: they may slow the launch on the host.
    const bool prioritised = captures_high_priority();
    UniqueHandle<GraphTraits> recorded;
    check(cudaStreamEndCapture(native(stream), recorded.out()), "cudaStreamEndCapture", "");
    auto graph = std::make_unique<CudaGraph>();
    graph->shape = shape_of(recorded.get());
    check(cudaGraphInstantiateWithFlags(graph->launched.out(), recorded.get(),
                                        prioritised ? cudaGraphInstantiateFlagUseNodePriority : 0),
          "cudaGraphInstantiateWithFlags", "");
    return {*this, GraphView{graph.release()}};
  }
  [[nodiscard]] std::optional<GraphShape> shape(GraphView graph) override { return native(graph)->shape; }
  void abandon_capture(StreamView stream) noexcept override {
    UniqueHandle<GraphTraits> recorded;
    if (may_be_capturing(native(stream))) {
      static_cast<void>(cudaStreamEndCapture(native(stream), recorded.out()));
    }
    static_cast<void>(cudaGetLastError());
  }
  void launch(GraphView graph, StreamView stream) override {
    make_current();
    check(cudaGraphLaunch(native(graph)->launched.get(), native(stream)), "cudaGraphLaunch", "");
  }

  void destroy(const DeviceBlock& block) noexcept override { static_cast<void>(cudaFree(block.bytes.data())); }
  void destroy(const PinnedBlock& block) noexcept override { static_cast<void>(cudaFreeHost(block.bytes.data())); }
  void destroy(StreamView stream) noexcept override {
    {
      const MutexLock lock(mutex_);
      high_priority_streams_.erase(native(stream));
    }
    static_cast<void>(cudaStreamDestroy(native(stream)));
  }
  void destroy(EventView event) noexcept override { static_cast<void>(cudaEventDestroy(native(event))); }
  void destroy(GraphView graph) noexcept override { delete native(graph); }

 private:
  void check(cudaError_t status, const char* call, std::string_view what) const {
    if (status == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());  // clear the error, if CUDA allows it; `text` reports the error
    std::string text = fmt::format("{}: {}{}{}: {} ({})", label(), call, what.empty() ? "" : " for ", what,
                                   cudaGetErrorString(status), cudaGetErrorName(status));
    if (among(kKernelsFaults, status)) {
      text += "; a kernel enqueued earlier caused it: run under compute-sanitizer to see which";
    } else if (status == cudaErrorDevicesUnavailable) {
      text += "; another process uses this GPU exclusively (see nvidia-smi)";
    }
    if (status == cudaErrorMemoryAllocation) throw Error(Errc::kOutOfMemory, text);  // e.g. no memory for a graph
    throw Error(among(kCallersFaults, status) ? Errc::kInvalidArgument : Errc::kBackend, text);
  }
  [[nodiscard]] bool finished(cudaError_t status, const char* call) const {
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // clear the status: unfinished work is not a fault
      return false;
    }
    check(status, call, "");
    return true;
  }
  /// Returns true if a stream of high priority takes part, or may take part, in a capture of this or another thread.
  [[nodiscard]] bool captures_high_priority() noexcept {
    const MutexLock lock(mutex_);
    return std::any_of(high_priority_streams_.begin(), high_priority_streams_.end(), may_be_capturing);
  }
  [[nodiscard]] bool capturing(StreamView stream) const {
    cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(native(stream), &state), "cudaStreamIsCapturing", "");
    return state != cudaStreamCaptureStatusNone;
  }
  void require_kernels() const {
    if (const std::string why = kernels_refusal(device_); !why.empty()) {
      throw Error(Errc::kUnsupported, fmt::format("{}: timers: {}", label(), why));
    }
  }
  void require_nonzero(std::size_t bytes, std::string_view what) const {
    if (bytes == 0) throw Error(Errc::kInvalidArgument, fmt::format("{}: zero bytes for {}", label(), what));
  }
  [[noreturn]] void throw_out_of_memory(std::size_t bytes, std::string_view what) {
    static_cast<void>(cudaGetLastError());
    const MemoryState now = memory();
    throw Error(Errc::kOutOfMemory,
                fmt::format("{}: not enough memory for {}: {} requested, {} of {} free; use a smaller batch, or see "
                            "nvidia-smi for other users of this GPU",
                            label(), what, bytes_text(bytes), bytes_text(now.free_bytes), bytes_text(now.total_bytes)));
  }

  static constexpr std::array kCallersFaults = {cudaErrorInvalidValue,
                                                cudaErrorStreamCaptureUnsupported,
                                                cudaErrorStreamCaptureInvalidated,
                                                cudaErrorStreamCaptureMerge,
                                                cudaErrorStreamCaptureUnmatched,
                                                cudaErrorStreamCaptureUnjoined,
                                                cudaErrorStreamCaptureIsolation,
                                                cudaErrorStreamCaptureImplicit,
                                                cudaErrorCapturedEvent,
                                                cudaErrorStreamCaptureWrongThread};
  static constexpr std::array kKernelsFaults = {
      cudaErrorIllegalAddress, cudaErrorMisalignedAddress,  cudaErrorInvalidAddressSpace,
      cudaErrorInvalidPc,      cudaErrorIllegalInstruction, cudaErrorHardwareStackError,
      cudaErrorLaunchFailure,  cudaErrorLaunchTimeout,      cudaErrorAssert};

  const Device device_;
  int high_priority_ = 0;
  Mutex mutex_;
  std::set<cudaStream_t> high_priority_streams_ HVD_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<GpuRuntime> make_cuda_runtime(int index) {
  const DeviceList list = list_devices();
  if (list.devices.empty()) throw Error(Errc::kUnsupported, "no GPU can be used: " + list.reason);
  for (const Device& device : list.devices) {
    if (device.index == index) return std::make_unique<CudaRuntime>(device);
  }
  throw Error(Errc::kUnsupported,
              fmt::format("there is no GPU {}: this process sees {}, counted from 0 (CUDA_VISIBLE_DEVICES)", index,
                          list.devices.size()));
}

}  // namespace hvd::gpu
