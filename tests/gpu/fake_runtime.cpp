#include "tests/gpu/fake_runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/scale.h"
#include "tests/gpu/fake_runtime_parts.h"

namespace hvd::test {
namespace {

constexpr std::size_t kAlign = 4096;
constexpr std::byte kGarbage{0xCD};

std::shared_ptr<std::byte> heap_storage(std::size_t bytes) {
  std::shared_ptr<std::byte> storage(new std::byte[bytes], std::default_delete<std::byte[]>());
  std::fill_n(storage.get(), bytes, kGarbage);
  return storage;
}

/// Returns pages of zeroes that take no memory until they are written.
std::shared_ptr<std::byte> address_space(std::size_t bytes) {
  void* const pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw Error(Errc::kOutOfMemory, "no address space for the memory of a fake GPU");
  return {static_cast<std::byte*>(pages), [bytes](std::byte* first) { munmap(first, bytes); }};
}

}  // namespace

FakeRuntime::FakeRuntime(FakeWorld& world, int index, FakeOptions options)
    : world_(world), id_(world.add_device()), dry_(options.dry), launch_queue_(options.launch_queue) {
  device_.index = index;
  device_.name = options.name;
  device_.uuid = options.uuid.empty() ? "GPU-fake-" + std::to_string(id_) : std::move(options.uuid);
  device_.memory_bytes = options.memory_bytes;
  device_.multiprocessors = 1;
  device_.visible = options.visible;
}

FakeRuntime::~FakeRuntime() {
  if (const std::size_t left = objects(); left > 0) {
    world_.report("GPU " + std::to_string(id_) + ": " + std::to_string(left) + " objects outlive their runtime");
  }
}

std::size_t FakeRuntime::objects() {
  const MutexLock lock(mutex_);
  return streams_.size() + events_.size() + graphs_.size() + blocks_.size();
}

void FakeRuntime::refuse(const std::string& what) const { throw Error(Errc::kInvalidArgument, label() + ": " + what); }

FakeRuntime::FakeStream& FakeRuntime::find(gpu::StreamView stream) {
  const auto found = streams_.find(stream.native);
  if (found == streams_.end()) {
    world_.report("a stream that is not of this GPU, or destroyed, is used");  // CUDA would not report this mistake
    refuse("a stream that is not of this GPU, or destroyed");
  }
  return *found->second;
}
FakeRuntime::FakeEvent& FakeRuntime::find(gpu::EventView event) {
  const auto found = events_.find(event.native);
  if (found == events_.end()) refuse("an event that is not of this GPU, or destroyed");
  return *found->second;
}
FakeRuntime::FakeGraph& FakeRuntime::find(gpu::GraphView graph) {
  const auto found = graphs_.find(graph.native);
  if (found == graphs_.end()) refuse("a graph that is not of this GPU, or destroyed");
  return *found->second;
}

// -- memory ------------------------------------------------------------------------------------------------

gpu::MemoryState FakeRuntime::memory() {
  const MutexLock lock(mutex_);
  return {device_.memory_bytes - used_, device_.memory_bytes};
}

std::span<std::byte> FakeRuntime::make_block(std::size_t bytes, bool device, std::string_view what) {
  if (bytes == 0) refuse("zero bytes for " + std::string(what));
  const MutexLock lock(mutex_);
  if (captured_here()) refuse("memory allocated during a capture: " + std::string(what));
  if (device && bytes > device_.memory_bytes - used_) {
    throw Error(Errc::kOutOfMemory, label() + ": not enough memory for " + std::string(what) + ": " +
                                        std::to_string(bytes) + " bytes requested, " +
                                        std::to_string(device_.memory_bytes - used_) + " free");
  }
  if (device) used_ += bytes;
  Block block{dry_ ? address_space(bytes + kAlign) : heap_storage(bytes + kAlign), bytes, device};
  const auto address = reinterpret_cast<std::uintptr_t>(block.storage.get());
  std::byte* const data = block.storage.get() + (kAlign - address % kAlign);
  blocks_.emplace(data, std::move(block));
  tell({.what = device ? "allocate" : "allocate pinned", .writes = {{data, bytes}}, .detail = std::string(what)});
  return {data, bytes};
}

bool FakeRuntime::free_block(std::span<std::byte> bytes) noexcept {
  tell({.what = "free", .writes = {bytes}});
  const std::string user = world_.user_of(bytes);
  if (!user.empty()) {
    world_.report("memory freed while '" + user + "' has yet to use it");
  }
  world_.forget(bytes);
  const MutexLock lock(mutex_);
  if (captured_here()) world_.report("memory freed during a capture");
  const auto found = blocks_.find(bytes.data());
  if (found != blocks_.end()) {
    if (found->second.device) used_ -= found->second.bytes;
    blocks_.erase(found);
  }
  return !user.empty();
}

gpu::DeviceMemory FakeRuntime::allocate(std::size_t bytes, std::string_view what) {
  return {*this, gpu::DeviceBlock{make_block(bytes, true, what)}};
}
gpu::PinnedMemory FakeRuntime::allocate_pinned(std::size_t bytes, std::string_view what) {
  return {*this, gpu::PinnedBlock{make_block(bytes, false, what)}};
}
void FakeRuntime::wait_on_host(const std::function<bool()>& done, const std::string& call) {
  for (const Deadline deadline = Deadline::after(std::chrono::seconds(5)); !done();) {
    if (deadline.passed()) return world_.report(call + " waits for '" + world_.work_of(id_) + "' for ever");
    if (!world_.advance()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}
// cudaFree() and cudaFreeHost() wait for all work of the GPU, also for work that does not use the memory.
void FakeRuntime::destroy(const gpu::DeviceBlock& block) noexcept {
  if (free_block(block.bytes)) return;  // this mistake is already reported
  wait_on_host([this] { return world_.work_of(id_).empty(); }, "freeing memory");
}
void FakeRuntime::destroy(const gpu::PinnedBlock& block) noexcept {
  if (free_block(block.bytes)) return;
  wait_on_host([this] { return world_.work_of(id_).empty(); }, "freeing pinned memory");
}
void FakeRuntime::await_room() {
  wait_on_host([this] { return world_.queued(id_) < launch_queue_ * FakeWorld::kCall; }, "a launch");
}

void FakeRuntime::require_known(Range range, const char* call) {
  auto block = blocks_.upper_bound(range.data());
  if (block == blocks_.begin()) refuse(std::string(call) + ": memory that is not of this GPU");
  block = std::prev(block);
  if (range.data() + range.size() > block->first + block->second.bytes) {
    refuse(std::string(call) + ": memory that is not of this GPU");
  }
}

// -- work --------------------------------------------------------------------------------------------------

gpu::Stream FakeRuntime::make_stream(gpu::Priority priority) {
  auto stream = std::make_unique<FakeStream>();
  stream->high_priority = priority == gpu::Priority::kHigh;
  stream->line = world_.add_line();
  const gpu::StreamView view{stream.get()};
  tell({.what = priority == gpu::Priority::kHigh ? "make stream of high priority" : "make stream",
        .object = view.native});
  const MutexLock lock(mutex_);
  streams_.emplace(view.native, std::move(stream));
  return {*this, view};
}

gpu::Event FakeRuntime::make_event(gpu::Timing timing) {
  auto event = std::make_unique<FakeEvent>();
  event->timing = timing == gpu::Timing::kOn;
  const gpu::EventView view{event.get()};
  tell({.what = timing == gpu::Timing::kOn ? "make event with timing" : "make event", .object = view.native});
  const MutexLock lock(mutex_);
  events_.emplace(view.native, std::move(event));
  return {*this, view};
}

void FakeRuntime::destroy(gpu::StreamView stream) noexcept {
  tell({.what = "destroy stream", .object = stream.native});
  const MutexLock lock(mutex_);
  const auto found = streams_.find(stream.native);
  if (found == streams_.end()) return;
  if (found->second->recording) world_.report("a stream was destroyed while it is captured");
  streams_.erase(found);
}
void FakeRuntime::destroy(gpu::EventView event) noexcept {
  tell({.what = "destroy event", .object = event.native});
  const MutexLock lock(mutex_);
  const auto found = events_.find(event.native);
  if (found == events_.end()) return;
  for (const auto& [view, graph] : graphs_) {
    for (Recording::Node& node : graph->nodes) {
      if (node.outside != found->second.get()) continue;
      world_.report("an event was destroyed before a graph that records it");
      node.outside = nullptr;
    }
  }
  events_.erase(found);
}
void FakeRuntime::destroy(gpu::GraphView graph) noexcept {
  tell({.what = "destroy graph", .object = graph.native});
  // `gone` must outlive the lock, because the graph's work may own objects whose destructors lock.
  std::unique_ptr<FakeGraph> gone;
  const MutexLock lock(mutex_);
  const auto found = graphs_.find(graph.native);
  if (found == graphs_.end()) return;
  gone = std::move(found->second);
  graphs_.erase(found);
}

void FakeRuntime::enqueue_locked(FakeStream& stream, Work work, FakeEvent* outside) {
  auto shared = std::make_shared<const Work>(std::move(work));
  if (stream.recording) {
    Recording& recording = *stream.recording;
    recording.nodes.push_back({std::move(shared), recording.lines.at(&stream), std::move(stream.recorded_tail), outside,
                               stream.high_priority});
    stream.recorded_tail = {recording.nodes.size() - 1};
    return;
  }
  OpRef op = world_.enqueue(id_, stream.line, std::move(shared), std::move(stream.tail));
  if (outside != nullptr) outside->op = op;
  stream.tail = {std::move(op)};
}

void FakeRuntime::enqueue(gpu::StreamView stream, Work work) {
  if (on_call) tell({.what = work.label, .stream = stream.native, .reads = work.reads, .writes = work.writes});
  await_room();
  const MutexLock lock(mutex_);
  for (const auto* ranges : {&work.reads, &work.writes}) {
    for (const Range range : *ranges) require_known(range, work.label.c_str());
  }
  enqueue_locked(find(stream), std::move(work), nullptr);
}

void FakeRuntime::kernel(gpu::StreamView stream, std::string label, std::vector<Range> reads, std::vector<Range> writes,
                         std::function<void()> body) {
  const auto start = [body = std::move(body)]() -> Work::Poll {
    body();
    return nullptr;
  };
  enqueue(stream, {std::move(label), std::move(reads), std::move(writes), start});
}

void FakeRuntime::copy(void* to, const void* from, std::size_t bytes, gpu::StreamView stream) {
  kernel(stream, "copy", {{static_cast<const std::byte*>(from), bytes}}, {{static_cast<const std::byte*>(to), bytes}},
         [=, dry = dry_] {
           if (!dry) std::memcpy(to, from, bytes);
         });
}

void FakeRuntime::fill(void* to, std::byte value, std::size_t bytes, gpu::StreamView stream) {
  kernel(stream, "fill", {}, {{static_cast<const std::byte*>(to), bytes}}, [=, dry = dry_] {
    if (!dry) std::memset(to, std::to_integer<int>(value), bytes);
  });
}

void FakeRuntime::scale(void* data, std::size_t count, DataType dtype, double factor, gpu::StreamView stream) {
  if (!no_scaling.empty()) throw Error(Errc::kUnsupported, label() + ": scaling: " + no_scaling);
  const Range range{static_cast<const std::byte*>(data), count * size_of(dtype)};
  kernel(stream, "scale", {range}, {range}, [=] { hvd::scale(static_cast<std::byte*>(data), count, dtype, factor); });
}

void FakeRuntime::start_timer(gpu::DeviceTimer* timer, gpu::StreamView stream) {
  if (!no_scaling.empty()) throw Error(Errc::kUnsupported, label() + ": timers: " + no_scaling);
  const Range start = std::as_bytes(std::span(&timer->start, 1));
  kernel(stream, "start timer", {}, {start}, [timer] { timer->start = 1; });
}

void FakeRuntime::await_timer(const gpu::DeviceTimer* timer, std::chrono::nanoseconds after, gpu::StreamView stream) {
  if (!no_scaling.empty()) throw Error(Errc::kUnsupported, label() + ": timers: " + no_scaling);
  kernel(stream, "await timer", {std::as_bytes(std::span(timer, 1))}, {}, [this, timer, after] {
    if (timer->start != 1) throw Error(Errc::kBackend, "a timer is awaited that was not started");
    const std::chrono::duration<double, std::nano> scaled = after * timer->factor;
    if (on_timer) on_timer(std::chrono::round<std::chrono::nanoseconds>(scaled));
  });
}

void FakeRuntime::record(gpu::EventView event, gpu::StreamView stream) {
  {
    const MutexLock lock(mutex_);
    FakeStream& its = find(stream);
    if (its.recording) {
      tell({.what = "record", .stream = stream.native, .object = event.native});
      FakeEvent& recorded = find(event);
      recorded.recording = its.recording;
      recorded.edge = true;
      recorded.recorded = its.recorded_tail;
      return;
    }
  }
  record_outside(event, stream);
}

void FakeRuntime::record_outside(gpu::EventView event, gpu::StreamView stream) {
  await_room();
  const MutexLock lock(mutex_);
  tell({.what = find(stream).recording ? "record outside" : "record", .stream = stream.native, .object = event.native});
  FakeEvent& recorded = find(event);
  recorded.edge = false;
  enqueue_locked(find(stream), {"event", {}, {}, {}}, &recorded);
}

void FakeRuntime::wait(gpu::StreamView stream, gpu::EventView event) {
  tell({.what = "wait", .stream = stream.native, .object = event.native});
  const MutexLock lock(mutex_);
  FakeStream& its = find(stream);
  FakeEvent& recorded = find(event);
  if (!recorded.edge) {
    if (its.recording) refuse("a captured stream waits for an event from outside the capture");
    if (recorded.op) its.tail.push_back(recorded.op);
    return;
  }
  const std::shared_ptr<Recording> recording = recorded.recording.lock();
  if (!recording) refuse("a stream waits for an event that was recorded in a capture which is over");
  if (its.recording && its.recording != recording) refuse("a wait would join two captures");
  if (!its.recording) {
    its.recording = recording;
    its.recorded_tail.clear();
    recording->lines.emplace(&its, recording->lines.size());
  }
  its.recorded_tail.insert(its.recorded_tail.end(), recorded.recorded.begin(), recorded.recorded.end());
}

void FakeRuntime::hold(gpu::StreamView stream, std::shared_ptr<const std::atomic<bool>> open) {
  if (capturing(stream)) refuse("a captured stream cannot wait for the host");
  enqueue(stream,
          {"hold", {}, {}, [open = std::move(open)]() -> Work::Poll { return [open] { return open->load(); }; }});
}

OpRef FakeRuntime::last_recording(gpu::EventView event) {
  const MutexLock lock(mutex_);
  const FakeEvent& recorded = find(event);
  if (recorded.edge) refuse("an event that was last recorded in a capture is asked about");
  return recorded.op;
}

bool FakeRuntime::finished(gpu::EventView event) {
  const OpRef recording = last_recording(event);
  {
    const MutexLock lock(mutex_);
    if (captured_here()) refuse("an event is asked about during a capture");
  }
  const bool over = world_.finished(id_, recording);
  if (over) tell({.what = "finished", .object = event.native});
  return over;
}

bool FakeRuntime::finished(gpu::StreamView stream) {
  std::vector<OpRef> tail;
  {
    const MutexLock lock(mutex_);
    const FakeStream& its = find(stream);
    if (its.recording) refuse("a captured stream is asked about");
    if (captured_here()) refuse("a stream is asked about during a capture");
    tail = its.tail;
  }
  const bool over =
      tail.empty() ? world_.finished(id_, nullptr)
                   : std::all_of(tail.begin(), tail.end(), [&](const OpRef& op) { return world_.finished(id_, op); });
  if (over) tell({.what = "finished", .stream = stream.native});
  return over;
}

std::chrono::nanoseconds FakeRuntime::elapsed(gpu::EventView begin, gpu::EventView end) {
  for (const gpu::EventView event : {begin, end}) {
    const MutexLock lock(mutex_);
    if (!find(event).timing) refuse("elapsed time of an event without timing");
  }
  // One turn of the world counts as one microsecond.
  const auto turns = static_cast<std::int64_t>(world_.done_at(last_recording(end))) -
                     static_cast<std::int64_t>(world_.done_at(last_recording(begin)));
  return std::chrono::microseconds(turns);
}

}  // namespace hvd::test
