#include "tests/comm/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "engine/base/float16.h"

namespace hvd::test {

float load_element(const std::byte* from, DataType type) {
  if (type == DataType::kF32) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return type == DataType::kF16 ? fp16_to_float(bits) : bf16_to_float(bits);
}

void store_element(std::byte* to, float value, DataType type) {
  if (type == DataType::kF32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = type == DataType::kF16 ? float_to_fp16(value) : float_to_bf16(value);
  std::memcpy(to, &bits, sizeof bits);
}

namespace {

using comm::nccl::Collective;
using comm::nccl::Comm;
using comm::nccl::CommConfig;
using comm::nccl::Registration;
using comm::nccl::Result;
using comm::nccl::Status;
using comm::nccl::UniqueId;

constexpr int kSystemError = 2, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;
constexpr Result kDone{};

Result failed(int code) { return {.status = Status::kFailed, .code = code, .remote = code == kRemoteError}; }

/// In rank order, as every ring does it for a given world: element `i` of every part, plus `error`.
float sum_of(const std::vector<Collective>& parts, std::size_t i, float error) {
  const Collective& first = parts.front();
  const std::size_t element = size_of(first.dtype);
  float sum = error;
  for (const Collective& part : parts) {
    sum += load_element(static_cast<const std::byte*>(part.data) + i * element, first.dtype);
  }
  return first.op == ReduceOp::kAverage ? sum / static_cast<float>(parts.size()) : sum;
}

std::byte* element_of(const Collective& part, std::size_t i) {
  return static_cast<std::byte*>(part.data) + i * size_of(part.dtype);
}

/// What real reductions leave undefined.
void spoil(const Collective& part, std::size_t i) { store_element(element_of(part, i), -12345.0F, part.dtype); }

bool alike(const Collective& a, const Collective& b) {
  return a.count == b.count && a.dtype == b.dtype && a.op == b.op && a.root == b.root;
}

}  // namespace

/// One collective on all ranks.
struct FakeNcclHub::Round {
  std::vector<Collective> parts;  // [rank]
  std::vector<bool> here;
  std::vector<std::uint64_t> capture;  // [rank] which of the rank's captured calls this is; 0: not captured
  bool done = false;
  int turns = 0;  // that are to pass before it is over
};

/// One communicator on all ranks.
struct FakeNcclHub::Group {
  Mutex mutex;  // taken by work, which holds the world's
  int size = 0;
  std::vector<bool> joined;
  std::vector<std::size_t> next;  // [rank] rounds begun
  std::vector<std::shared_ptr<Round>> rounds;
  std::atomic<bool> lost{false};
};

/// A rank's end of a communicator.
struct FakeNccl::Member {
  Mutex mutex;  // the owner and a watchdog
  std::shared_ptr<FakeNcclHub::Group> group;
  int rank = 0;
  int max_ctas = 0;
  int in_progress HVD_GUARDED_BY(mutex) = 0;  // state() says so this many times more
  bool joined HVD_GUARDED_BY(mutex) = false;
  std::deque<std::function<void()>> late HVD_GUARDED_BY(mutex);     // what is enqueued when the call is over
  std::deque<std::function<void()>> grouped HVD_GUARDED_BY(mutex);  // what is handed over at the end of the group
  std::shared_ptr<int> held_by_graphs = std::make_shared<int>(0);
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::uint64_t captures = 0;
  int registrations = 0;
};

void FakeNcclHub::note(std::string what) {
  const MutexLock lock(mutex_);
  log_.push_back(std::move(what));
}

std::vector<std::string> FakeNcclHub::log() {
  const MutexLock lock(mutex_);
  return log_;
}

int FakeNcclHub::end(const std::vector<std::weak_ptr<FakeNccl>>& libraries) {
  // One that nothing holds any more is about to return.
  for (int i = 0; aborting() > 0 && i < 20; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const int left = aborting();
  ended_ = true;
  for (const auto& library : libraries) {
    while (!library.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return left;
}

void FakeNcclHub::lose_a_rank() {
  const MutexLock lock(mutex_);
  for (const auto& [id, group] : groups_) group->lost = true;
}

FakeNccl::FakeNccl(FakeNcclHub& hub, FakeRuntime& gpu, FakeNcclOptions options)
    : hub_(hub), gpu_(gpu), options_(std::move(options)) {}

FakeNccl::~FakeNccl() {
  const MutexLock lock(mutex_);
  if (!members_.empty()) hub_.world().report("a communicator was never destroyed");
  if (!memory_.empty()) hub_.world().report("memory of NCCL was never freed");
}

std::string FakeNccl::explain(Result result, Comm /*comm*/) const {
  switch (result.code) {
    case kSystemError: return "unhandled system error";
    case kInvalidUsage: return "invalid usage";
    case kRemoteError: return "remote process exited or there was a network error";
    default: return "code " + std::to_string(result.code);
  }
}

Result FakeNccl::unique_id(UniqueId& id) {
  if (options_.fail_unique_id) return failed(kSystemError);
  const MutexLock lock(hub_.mutex_);
  const std::uint64_t number = hub_.next_id_++;
  std::memcpy(id.data(), &number, sizeof number);
  return kDone;
}

Result FakeNccl::init_rank(Comm& comm, const UniqueId& id, const CommConfig& config) {
  std::uint64_t number = 0;
  std::memcpy(&number, id.data(), sizeof number);
  auto member = std::make_unique<Member>();
  {
    const MutexLock lock(hub_.mutex_);
    auto& group = hub_.groups_[number];
    if (!group) group = std::make_shared<FakeNcclHub::Group>();
    member->group = group;
  }
  {
    FakeNcclHub::Group& group = *member->group;
    const MutexLock group_lock(group.mutex);
    const auto size = static_cast<std::size_t>(config.size);
    group.size = config.size;
    group.joined.resize(size);
    group.next.resize(size);
    group.joined[static_cast<std::size_t>(config.rank)] = true;
  }
  member->rank = config.rank;
  member->max_ctas = config.max_ctas;
  {
    const MutexLock member_lock(member->mutex);
    member->in_progress = options_.polls_in_progress;
  }
  comm.native = member.get();
  const MutexLock lock(mutex_);
  members_.emplace(comm.native, std::move(member));
  return {.status = Status::kInProgress, .code = kInProgress};
}

FakeNccl::Member* FakeNccl::find(Comm comm) {
  const MutexLock lock(mutex_);
  const auto found = members_.find(comm.native);
  if (found == members_.end()) {
    hub_.world().report("a communicator is used that was destroyed or never made");
    return nullptr;
  }
  return found->second.get();
}

Result FakeNccl::state(Comm comm) {
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  if (member->group->lost) return failed(kRemoteError);
  const MutexLock member_lock(member->mutex);
  if (!member->joined) {
    const MutexLock lock(member->group->mutex);
    const auto& joined = member->group->joined;
    member->joined = std::all_of(joined.begin(), joined.end(), [](bool there) { return there; });
    if (!member->joined) return {.status = Status::kInProgress, .code = kInProgress};
  }
  if (member->in_progress > 0) {
    --member->in_progress;
    return {.status = Status::kInProgress, .code = kInProgress};
  }
  while (!member->late.empty()) {
    member->late.front()();
    member->late.pop_front();
  }
  return kDone;
}

Result FakeNccl::finalize(Comm comm) {
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  hub_.note("finalize " + std::to_string(member->rank));
  const MutexLock member_lock(member->mutex);
  member->in_progress = options_.polls_in_progress;
  return {.status = Status::kInProgress, .code = kInProgress};
}

Result FakeNccl::destroy(Comm comm) {
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  hub_.note("destroy " + std::to_string(member->rank));
  if (member->held_by_graphs.use_count() > 1) hub_.world().report("a communicator was destroyed before its graphs");
  if (member->registrations > 0) hub_.world().report("a communicator was destroyed before its registrations");
  const MutexLock lock(mutex_);
  members_.erase(comm.native);
  return kDone;
}

Result FakeNccl::cancel(Comm comm) {
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  hub_.note("abort " + std::to_string(member->rank));
  hub_.aborting_.fetch_add(1);
  *member->aborted = true;  // the kernels see it at once
  const auto stays = [&] { return options_.lets_go != nullptr && !*options_.lets_go; };
  while (!hub_.ended_ && (member->held_by_graphs.use_count() > 1 || stays())) {
    hub_.world().advance();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  {
    const MutexLock lock(mutex_);
    members_.erase(comm.native);
  }
  hub_.aborting_.fetch_sub(1);
  return kDone;
}

const char* FakeNccl::name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce: return "all_reduce";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kReduce: return "reduce";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kAllGather: return "all_gather";
  }
  return "";
}

void FakeNccl::perform(Kind kind, const std::vector<Collective>& parts, float error) {
  const Collective& first = parts.front();
  const auto root = static_cast<std::size_t>(first.root);
  const bool shared = kind == Kind::kReduceScatter || kind == Kind::kAllGather;
  const std::size_t elements = shared ? first.count * parts.size() : first.count;
  const std::size_t bytes = size_of(first.dtype);
  for (std::size_t i = 0; i < elements; ++i) {
    const std::size_t owner = shared ? i / first.count : root;
    if (kind == Kind::kBroadcast || kind == Kind::kAllGather) {
      for (const Collective& part : parts) std::memmove(element_of(part, i), element_of(parts[owner], i), bytes);
      continue;
    }
    const float sum = sum_of(parts, i, error);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      if (kind == Kind::kAllReduce || r == owner) {
        store_element(element_of(parts[r], i), sum, first.dtype);
      } else {
        spoil(parts[r], i);
      }
    }
  }
}

void FakeNccl::enqueue(Member& member, Kind kind, const Collective& what, gpu::StreamView stream) {
  const auto rank = static_cast<std::size_t>(member.rank);
  const bool shared = kind == Kind::kReduceScatter || kind == Kind::kAllGather;
  if (shared && what.place != member.rank) hub_.world().report(std::string(name_of(kind)) + ": not this rank's place");
  const std::string label = std::string(name_of(kind)) + " of " + std::to_string(what.count) +
                            (what.op == ReduceOp::kAverage ? ", a mean" : "");
  const std::size_t shares = shared ? static_cast<std::size_t>(member.group->size) : 1;
  const Range range{static_cast<const std::byte*>(what.data), shares * what.count * size_of(what.dtype)};
  float error = 0;
  if (options_.wrong_sums > 0) {
    --options_.wrong_sums;
    error = 1;
  }
  std::shared_ptr<int> hold;
  std::uint64_t capture = 0;
  if (gpu_.capturing(stream)) {
    hold = member.held_by_graphs;
    capture = ++member.captures;
  }
  const int turns = options_.turns ? options_.turns(member.max_ctas) : 0;
  auto start = [hub = &hub_, group = member.group, aborted = member.aborted, hold, capture, rank, what, label, kind,
                error, turns]() -> Work::Poll {
    hub->note("rank " + std::to_string(rank) + " begins " + label);
    const MutexLock lock(group->mutex);
    const std::size_t number = group->next[rank]++;
    if (group->rounds.size() <= number) group->rounds.resize(number + 1);
    auto& slot = group->rounds[number];
    if (!slot) {
      slot = std::make_shared<FakeNcclHub::Round>();
      slot->parts.resize(static_cast<std::size_t>(group->size));
      slot->here.resize(slot->parts.size());
      slot->capture.resize(slot->parts.size());
    }
    slot->turns = std::max(slot->turns, turns);
    slot->capture[rank] = capture;
    slot->parts[rank] = what;
    slot->here[rank] = true;
    return [group, aborted, round = slot, rank, label, kind, error] {
      const MutexLock poll_lock(group->mutex);
      if (*aborted) {
        round->here[rank] = false;  // its memory may go
        return true;
      }
      if (group->lost) return false;
      if (round->done) return true;
      if (!std::all_of(round->here.begin(), round->here.end(), [](bool there) { return there; })) return false;
      if (round->turns-- > 0) return false;
      for (const Collective& part : round->parts) {
        if (!alike(part, round->parts[rank])) throw std::runtime_error("ranks do not make the same call: " + label);
      }
      for (const std::uint64_t other : round->capture) {
        if (other != round->capture[rank]) throw std::runtime_error("ranks replay graphs of other captures: " + label);
      }
      perform(kind, round->parts, error);
      return round->done = true;
    };
  };
  gpu_.enqueue(stream, {label, {range}, {range}, std::move(start)});
}

Result FakeNccl::collective(Comm comm, Kind kind, const Collective& what, gpu::StreamView stream) {
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  const MutexLock member_lock(member->mutex);
  if (!member->joined || member->in_progress > 0 || !member->late.empty()) {
    hub_.world().report(std::string(name_of(kind)) + ": called while an earlier call is in progress");
    return failed(kInvalidUsage);
  }
  if (grouping_) {
    group_ = member;
    member->grouped.emplace_back([this, member, kind, what, stream] { enqueue(*member, kind, what, stream); });
    return kDone;
  }
  hub_.threads_started_.fetch_add(1);
  if (options_.polls_in_progress > 0) {
    member->in_progress = options_.polls_in_progress;
    member->late.emplace_back([this, member, kind, what, stream] { enqueue(*member, kind, what, stream); });
    return {.status = Status::kInProgress, .code = kInProgress};
  }
  enqueue(*member, kind, what, stream);
  return kDone;
}

Result FakeNccl::begin_group() {
  if (std::exchange(grouping_, true)) hub_.world().report("a group inside a group");
  return kDone;
}

Result FakeNccl::end_group() {
  if (!std::exchange(grouping_, false)) hub_.world().report("the end of a group that was not begun");
  Member* const member = std::exchange(group_, nullptr);
  if (member == nullptr) return kDone;
  hub_.threads_started_.fetch_add(1);
  const MutexLock member_lock(member->mutex);
  member->late.swap(member->grouped);
  member->in_progress = options_.polls_in_progress;
  if (member->in_progress > 0) return {.status = Status::kInProgress, .code = kInProgress};
  while (!member->late.empty()) {
    member->late.front()();
    member->late.pop_front();
  }
  return kDone;
}

Result FakeNccl::all_reduce(Comm comm, const Collective& what, gpu::StreamView stream) {
  return collective(comm, Kind::kAllReduce, what, stream);
}

Result FakeNccl::broadcast(Comm comm, const Collective& what, gpu::StreamView stream) {
  return collective(comm, Kind::kBroadcast, what, stream);
}

Result FakeNccl::reduce(Comm comm, const Collective& what, gpu::StreamView stream) {
  return collective(comm, Kind::kReduce, what, stream);
}

Result FakeNccl::reduce_scatter(Comm comm, const Collective& what, gpu::StreamView stream) {
  return collective(comm, Kind::kReduceScatter, what, stream);
}

Result FakeNccl::all_gather(Comm comm, const Collective& what, gpu::StreamView stream) {
  return collective(comm, Kind::kAllGather, what, stream);
}

Result FakeNccl::allocate(std::size_t bytes, void*& data) {
  gpu::DeviceMemory memory = gpu_.allocate(bytes, "NCCL");
  data = memory->bytes.data();
  const MutexLock lock(mutex_);
  memory_.emplace(data, std::move(memory));
  return kDone;
}

Result FakeNccl::free(void* data) {
  const MutexLock lock(mutex_);
  if (memory_.erase(data) == 0) hub_.world().report("memory freed that is not NCCL's");
  return kDone;
}

Result FakeNccl::enroll(Comm comm, std::span<std::byte> memory, Registration& registration) {
  if (options_.fail_register_code != 0) return failed(options_.fail_register_code);
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  constexpr std::uintptr_t kAlign = 4096;
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % kAlign != 0 || memory.size() % kAlign != 0) {
    hub_.world().report("registered memory is not made of whole pages");
  }
  ++member->registrations;
  registration.native = memory.data();
  return kDone;
}

Result FakeNccl::withdraw(Comm comm, Registration /*registration*/) {
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  --member->registrations;
  return kDone;
}

}  // namespace hvd::test
