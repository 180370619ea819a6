#include "bench/coll/rank.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "bench/store/host_facts.h"
#include "bench/world/cores.h"
#include "bench/world/memory.h"
#include "engine/base/error.h"
#include "engine/runtime/trace.h"

namespace hvd::bench::coll {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

/// Errors: backend if the message does not consist of `count` values.
template <class T>
std::vector<T> values_of(const comm::Bytes& message, std::size_t count) {
  if (message.size() != count * sizeof(T)) {
    throw Error(Errc::kBackend,
                fmt::format("coll: a rank answered with {} bytes instead of {}", message.size(), count * sizeof(T)));
  }
  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), message.data(), message.size());
  return values;
}

std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// Larger than the second-level caches of present GPUs: 50 MB on an H100 (NVIDIA's H100 white paper), 126 MB on a B200.
constexpr std::size_t kGpuCacheBytes = std::size_t{128} << 20;

/// Returns the free bytes of /dev/shm; 0: unknown. A Docker container has 64 MiB unless --shm-size says otherwise.
std::size_t shared_memory_left() {
  struct statvfs shared_memory = {};
  if (::statvfs("/dev/shm", &shared_memory) != 0) return 0;
  return std::max<std::size_t>(1, std::size_t{shared_memory.f_bavail} * shared_memory.f_frsize);
}

/// Collective. Returns the maximum of `own` over all ranks, so that all ranks have arenas of the same size.
std::size_t agreed_cache(comm::ControlPlane& control, std::size_t own, Deadline deadline) {
  std::vector<std::uint64_t> mine{own};
  for (const comm::Bytes& theirs : control.gather(bytes_of(mine), deadline)) {
    mine[0] = std::max(mine[0], values_of<std::uint64_t>(theirs, 1)[0]);
  }
  return values_of<std::uint64_t>(control.broadcast(bytes_of(mine), 0, deadline), 1)[0];
}

}  // namespace

std::uint32_t largest_batch(const CollOptions& options) {
  const std::uint32_t launches = options.graph_launches;
  if (!options.gpus || options.pace != Pace::kStream || launches > kMostHeld) return ScheduleRule{}.max_batch;
  return launches == 0 ? kMostHeld : kMostHeldInGraphs / launches;
}

Rank::Rank(const CollOptions& options, Variants variants, gpu::GpuRuntime* gpu)
    : options_(options),
      variants_(variants),
      gpu_(gpu),
      topology_(variants[0]->topology()),
      cells_(make_cells(options, topology_.size, topology_.nodes == 1)) {}

void Rank::prepare() {
  comm::Communicator& first = *variants_[0];
  require_equal_settings(first, settings_of(options_), options_.deadline.from_now());
  cache_bytes_ =
      agreed_cache(first.control(), gpu_ ? kGpuCacheBytes : last_level_cache(), options_.deadline.from_now());
  require_no_objection(first, graph_objection(), options_.deadline.from_now());
  require_no_objection(first, memory_objection(), options_.deadline.from_now());
  RankCores own = rank_cores();
  own.cores = cores_of(own.cpus);
  const std::string mine = to_text(own);
  const std::vector<RankCores> cores =
      parse_all_cores(first.control().gather(std::as_bytes(std::span(mine)), options_.deadline.from_now()));
  if (topology_.rank == 0) {
    cores_ = share_cores(cores, topology_.hosts, 1);
    hardware_threads_ = shared_cores(cores, topology_.hosts, 1);
  }
  arena_bytes_ = coll::arena_bytes(options_, cells_, topology_.size, cache_bytes_);
  const Places places = options_.warm ? Places::kFixed : Places::kRotating;
  std::size_t of_planes = 0;
  for (const std::unique_ptr<comm::Communicator>& variant : variants_) {
    const bool wanted = from_plane(options_, options_.variants[arenas_.size()]);
    arenas_.push_back(
        !wanted ? nullptr
                : std::make_unique<Arena>(variant->data(), arena_bytes_, places, options_.deadline.from_now()));
    of_planes += wanted ? 1 : 0;
  }
  if (arena_count(options_, cells_) > of_planes) plain_ = std::make_unique<Arena>(arena_bytes_, places);
  if (gpu_ != nullptr) {
    pinned_ = gpu_->allocate_pinned(kStagingBytes, "the buffers' staging memory");
    staging_ = pinned_->bytes;
    meeting_ = gpu_->allocate(sizeof(float), "the reduction before a sample");
    comm::DevicePlane& plane = dynamic_cast<comm::DeviceCommunicator&>(first).device();
    gpu_->fill(meeting_->bytes.data(), std::byte{0}, sizeof(float), plane.stream());
    plane.complete("zeroing memory", options_.deadline.from_now());
    first_ = gpu_->make_event(gpu::Timing::kOn);
    last_ = gpu_->make_event(gpu::Timing::kOn);
    connected_.resize(cells_.size());
    graphs_.resize(options_.graph_launches > 0 ? cells_.size() : 0);
  } else {
    pageable_.resize(kStagingBytes);
    staging_ = pageable_;
  }
  for (const auto& arena : arenas_) {
    if (arena) fill(*arena);
  }
  if (plain_) fill(*plain_);
}

std::string Rank::graph_objection() const {
  if (options_.graph_launches == 0 || variants_[0]->data().gpu() != nullptr) return {};
  return "-G: a CUDA graph holds operations of a GPU; leave -G out";
}

std::string Rank::memory_objection() {
  const std::size_t arenas = arena_count(options_, cells_);
  const auto objection = [&](const MemoryBudget& budget) {
    return coll::memory_objection(options_, cells_, topology_.size, cache_bytes_, budget);
  };
  if (gpu_ != nullptr) return objection({"this GPU", 1, arenas, gpu_->memory().free_bytes});  // one rank per GPU
  const auto of_host = static_cast<std::size_t>(std::max<std::int64_t>(0, available_bytes()));
  std::string host = objection({"this host", topology_.local_size, arenas, of_host});
  if (!host.empty() || variants_[0]->backend() != "mpi" || topology_.local_size == 1) return host;
  // Processes share memory through files in /dev/shm, which has its own limit.
  const auto shared =
      static_cast<std::size_t>(std::count_if(options_.variants.begin(), options_.variants.end(),
                                             [&](const Variant& variant) { return from_plane(options_, variant); }));
  return objection({"this host in /dev/shm", topology_.local_size, shared, shared_memory_left()});
}

void Rank::fill(Arena& arena) {
  fill_ordinary(variants_[0]->data(), arena.bytes(), staging_, options_.deadline.from_now());
}

comm::Bytes Rank::perform(const Order& order) {
  std::vector<std::int64_t> answer;
  switch (order.task) {
    case Task::kEnd: break;
    case Task::kClock: answer.push_back(read_clock()); break;
    case Task::kSample:
      for (const Visit& visit : order.visits) sample(visit, answer);
      break;
    case Task::kCheck:
      for (const Visit& visit : order.visits) answer.push_back(static_cast<std::int64_t>(check_cell(visit.cell)));
      break;
  }
  const auto bytes = bytes_of(answer);
  return {bytes.begin(), bytes.end()};
}

void Rank::follow() {
  for (Order order = hear(); order.task != Task::kEnd; order = hear()) {
    control().gather(perform(order), options_.deadline.from_now());
  }
}

std::vector<std::vector<std::int64_t>> Rank::ask(const Order& order, std::size_t values) {
  std::vector<std::uint32_t> words{static_cast<std::uint32_t>(order.task)};
  for (const Visit& visit : order.visits) words.insert(words.end(), {visit.cell, visit.batch});
  control().broadcast(bytes_of(words), 0, options_.deadline.from_now());
  std::vector<std::vector<std::int64_t>> answers;
  if (order.task == Task::kEnd) return answers;
  for (const comm::Bytes& answer : control().gather(perform(order), options_.deadline.from_now())) {
    answers.push_back(values_of<std::int64_t>(answer, values));
  }
  return answers;
}

Order Rank::hear() {
  const comm::Bytes message = control().broadcast({}, 0, options_.deadline.from_now());
  const auto words = values_of<std::uint32_t>(message, message.size() / sizeof(std::uint32_t));
  Order order{static_cast<Task>(words.at(0)), {}};
  for (std::size_t i = 1; i + 1 < words.size(); i += 2) order.visits.push_back({words[i], words[i + 1]});
  return order;
}

void Rank::barrier() { control().barrier(options_.deadline.from_now()); }

// Sets offset_ and returns its uncertainty. An offset that is smaller than its uncertainty becomes 0, because ranks of
// a host share a clock.
std::int64_t Rank::read_clock() {
  const ClockOffset clock = estimate_clock_offset(*variants_[0], options_.deadline);
  const bool one_clock = std::chrono::abs(clock.offset) <= clock.uncertainty;
  offset_ = one_clock ? std::chrono::nanoseconds(0) : clock.offset;
  return one_clock ? 0 : clock.uncertainty.count();
}

Arena& Rank::arena_of(const Cell& cell) {
  if (cell.variant == kBare) return *plain_;
  const auto& own = arenas_[static_cast<std::size_t>(cell.variant)];
  return own ? *own : *plain_;
}

void Rank::run(const Cell& cell, std::uint32_t batch, Deadline deadline) {
  Arena& arena = arena_of(cell);
  if (cell.variant == kBare) {
    const Problem shape = bare_shape(cell.problem, topology_.size);
    for (std::uint32_t i = 0; i < batch; ++i) run_bare(cell.problem, arena.next(shape, topology_), topology_);
    return;
  }
  comm::Communicator& communicator = *variants_[static_cast<std::size_t>(cell.variant)];
  const bool wait_each = options_.pace == Pace::kWaitEach || options_.pace == Pace::kBarrierInside;
  for (std::uint32_t i = 0; i < batch; ++i) {
    start(communicator, cell.problem, arena.next(cell.problem, topology_), deadline);
    if (wait_each) communicator.data().complete(name(cell.problem.collective), deadline);
    if (options_.pace == Pace::kBarrierInside) communicator.control().barrier(deadline);
  }
}

comm::DeviceCommunicator& Rank::on_gpu(const Cell& cell) {
  return dynamic_cast<comm::DeviceCommunicator&>(*variants_[static_cast<std::size_t>(cell.variant)]);
}

void Rank::meet(const Cell& cell, Deadline deadline) {
  on_gpu(cell).device().all_reduce(meeting_->bytes.data(), 1, DataType::kF32, ReduceOp::kSum, deadline);
}

gpu::Graph Rank::capture(const Cell& cell, const std::function<void()>& enqueue) {
  gpu::Capture capture(*gpu_, on_gpu(cell).device().stream());
  enqueue();
  return capture.finish();
}

void Rank::enqueue_sample(const Visit& visit, Deadline deadline) {
  const Cell& cell = cells_[visit.cell];
  if (graphs_.empty()) return run(cell, visit.batch, deadline);
  for (std::uint32_t i = 0; i < options_.graph_launches; ++i) {
    gpu_->launch(graphs_[visit.cell].graph, on_gpu(cell).device().stream());
  }
}

bool Rank::may_hold(const Visit& visit) const {
  const std::uint32_t launches = graphs_.empty() ? visit.batch : options_.graph_launches;
  const bool waits_each = options_.pace == Pace::kWaitEach || options_.pace == Pace::kBarrierInside;
  const MeasuredCollective collective = cells_[visit.cell].problem.collective;
  return launches <= kMostHeld && !waits_each && collective != MeasuredCollective::kBroadcast &&
         collective != MeasuredCollective::kBarrier;
}

// The host notices the end of a GPU's work up to half a millisecond late (engine/gpu/poll_schedule.h). Therefore the
// time on a GPU is measured by two events, one before and one after the operations. The stream is held until the host
// has enqueued the sample and all ranks have arrived. The ranks release their streams some microseconds apart, so the
// GPUs meet before the first event. Where the stream cannot be held, it is idle before the sample, so the first event
// occurs at once and the time includes the first launch.
void Rank::sample(const Visit& visit, std::vector<std::int64_t>& answer) {
  const Cell& cell = cells_.at(visit.cell);
  const Deadline deadline = options_.deadline.from_now();
  if (options_.warm || (gpu_ != nullptr && !connected_[visit.cell])) {
    // Other cells have used the caches since this cell's last visit, so an untimed operation loads this cell's buffers.
    // On a GPU, NCCL connects in a cell's first operation, which must not happen during a capture or on a held stream.
    if (gpu_ != nullptr && !connected_[visit.cell]) meet(cell, deadline);
    run(cell, 1, deadline);
    if (cell.variant != kBare) {
      variants_[static_cast<std::size_t>(cell.variant)]->data().complete(name(cell.problem.collective), deadline);
    }
    if (gpu_ != nullptr) connected_[visit.cell] = true;
  }
  if (!graphs_.empty() && graphs_[visit.cell].batch != visit.batch) {
    graphs_[visit.cell] = {visit.batch, capture(cell, [&] { run(cell, visit.batch, deadline); })};
  }
  Clock::time_point begin, end;
  const auto arrive = [&] {
    barrier();
    begin = Clock::now();
  };
  if (gpu_ != nullptr) {
    comm::DeviceCommunicator& communicator = on_gpu(cell);
    const gpu::StreamView stream = communicator.device().stream();
    std::optional<gpu::Hold> hold;
    if (may_hold(visit)) {
      hold.emplace(*gpu_, stream);
      meet(cell, deadline);
    } else {
      arrive();
    }
    gpu_->record(first_, stream);
    enqueue_sample(visit, deadline);
    gpu_->record(last_, stream);
    if (hold) {
      arrive();
      hold->release();
    }
    communicator.data().complete(name(cell.problem.collective), deadline);
    end = begin + gpu_->elapsed(first_, last_);
  } else {
    arrive();
    run(cell, visit.batch, deadline);
    end = Clock::now();
  }
  answer.push_back(nanoseconds(begin + offset_));
  answer.push_back(nanoseconds(end + offset_));
}

std::uint64_t Rank::check_cell(std::uint32_t index) {
  const Cell& cell = cells_.at(index);
  comm::Communicator& communicator = *variants_[static_cast<std::size_t>(cell.variant)];
  const Buffers at = arena_of(cell).next(cell.problem, topology_);
  std::function<void()> once;
  gpu::Graph graph;  // only one operation: in place, a second operation would get the first one's result as input
  if (!graphs_.empty()) {
    graphs_[index] = {};  // the graph of the samples is not needed now: the cell has all its samples
    graph = capture(cell, [&] { start(communicator, cell.problem, at, options_.deadline.from_now()); });
    once = [&] { gpu_->launch(graph, on_gpu(cell).device().stream()); };
  }
  std::uint64_t wrong = 0;
  for (std::size_t pass = 0; pass < options_.checks; ++pass) {
    wrong += check(communicator, cell.problem, at, staging_, options_.deadline.from_now(), once);
  }
  // The check leaves small integers in the buffers. Read as numbers of another type, their bits are denormal numbers,
  // which would slow later cells of that type.
  fill_ordinary(communicator.data(), {std::min(at.in, at.out), cell.problem.footprint(topology_.size)}, staging_,
                options_.deadline.from_now());
  return wrong;
}

}  // namespace hvd::bench::coll
