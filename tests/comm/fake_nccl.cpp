#include "tests/comm/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/comm/fake_nccl_parts.h"

namespace hvd::test {
namespace {

using comm::nccl::Comm;
using comm::nccl::CommConfig;
using comm::nccl::Registration;
using comm::nccl::Result;
using comm::nccl::Status;
using comm::nccl::UniqueId;

constexpr int kSystemError = 2, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;
constexpr Result kDone{};

Result failed(int code) { return {.status = Status::kFailed, .code = code, .remote = code == kRemoteError}; }

}  // namespace

void FakeNcclHub::note(std::string what) {
  const MutexLock lock(mutex_);
  log_.push_back(std::move(what));
}

std::vector<std::string> FakeNcclHub::log() {
  const MutexLock lock(mutex_);
  return log_;
}

int FakeNcclHub::end(const std::vector<std::weak_ptr<FakeNccl>>& libraries) {
  // Wait up to 100 ms for aborts that are about to return. Only a graph or `abort_may_return` delays an abort for
  // longer.
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

void FakeNcclHub::Group::leave(int rank, Leaving how, const std::shared_ptr<int>& held_by_graphs) {
  const MutexLock lock(mutex);
  leaving[static_cast<std::size_t>(rank)] = how;
  if (how == kClosed) holds_of_closed.push_back(held_by_graphs);
}

bool FakeNcclHub::Group::all_left(Leaving how) {
  const MutexLock lock(mutex);
  return std::all_of(leaving.begin(), leaving.end(), [how](Leaving rank) { return rank >= how; });
}

bool FakeNcclHub::Group::reclaimable() {
  const MutexLock lock(mutex);
  return std::all_of(holds_of_closed.begin(), holds_of_closed.end(), [](const auto& held) { return held.expired(); });
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
  require_current("init_rank");
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
    group.leaving.resize(size);
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
  if (member->inside.load() > 0) hub_.world().report("the state is asked for while the owner is inside a call");
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
  if (member->finalized && !member->group->all_left(FakeNcclHub::Group::kFinalized)) {
    return {.status = Status::kInProgress, .code = kInProgress};
  }
  enqueue(*member, std::exchange(member->late, {}));
  return kDone;
}

Result FakeNccl::finalize(Comm comm) {
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  const Inside inside(*this, *member);
  hub_.note("finalize " + std::to_string(member->rank));
  const MutexLock member_lock(member->mutex);
  if (member->caller.expired()) hub_.world().report("the thread of the last call ended before the communicator");
  member->in_progress = options_.polls_in_progress;
  member->finalized = true;
  member->group->leave(member->rank, FakeNcclHub::Group::kFinalized, member->held_by_graphs);
  return {.status = Status::kInProgress, .code = kInProgress};
}

Result FakeNccl::destroy(Comm comm) {
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  hub_.note("destroy " + std::to_string(member->rank));
  if (member->held_by_graphs.use_count() > 1) hub_.world().report("a communicator was destroyed before its graphs");
  if (member->registrations > 0) hub_.world().report("a communicator was destroyed before its registrations");
  if (options_.before_closing) options_.before_closing();
  close(comm, *member, [&] { return options_.one_process || member->group->all_left(FakeNcclHub::Group::kClosed); });
  return kDone;
}

Result FakeNccl::comm_abort(Comm comm) {
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  hub_.note("abort " + std::to_string(member->rank));
  if (options_.abort_stops_kernels) *member->aborted = true;  // kernels on the GPU stop at once
  const auto stays = [&] { return options_.abort_may_return != nullptr && !*options_.abort_may_return; };
  close(comm, *member, [&] {
    hub_.world().advance();
    return (options_.one_process || member->held_by_graphs.use_count() == 1) && !stays();
  });
  return kDone;
}

void FakeNccl::close(Comm comm, Member& member, const std::function<bool()>& may_return) {
  hub_.aborting_.fetch_add(1);
  const std::shared_ptr<FakeNcclHub::Group> group = member.group;
  group->leave(member.rank, FakeNcclHub::Group::kClosed, member.held_by_graphs);
  const bool reclaims = options_.one_process && group->all_left(FakeNcclHub::Group::kClosed);
  while (!hub_.ended_ && !may_return()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  {
    const MutexLock lock(mutex_);
    members_.erase(comm.native);
  }
  while (reclaims && !hub_.ended_ && !group->reclaimable()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  hub_.aborting_.fetch_sub(1);
}

void FakeNccl::require_current(const char* call) {
  if (!gpu_.is_current()) hub_.world().report(std::string(call) + ": the thread's current GPU is another");
}

Result FakeNccl::take(Comm comm, const Call& call) {
  require_current(name_of(call.kind));
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  const Inside inside(*this, *member);
  const int size = member->group->size;
  if (std::min(call.what.root, call.what.peer) < 0 || std::max(call.what.root, call.what.peer) >= size ||
      call.what.dtype == DataType::kI16) {
    hub_.world().report(std::string(name_of(call.kind)) + ": a rank or a type that there is not");
    return failed(kInvalidArgument);
  }
  for (int turn = 0; turn < options_.turns_of_call; ++turn) hub_.world().advance();
  thread_local const auto caller = std::make_shared<int>();
  const MutexLock member_lock(member->mutex);
  member->caller = caller;
  if (!member->joined || member->in_progress > 0 || !member->late.empty()) {
    hub_.world().report(std::string(name_of(call.kind)) + ": called while an earlier call is in progress");
    return failed(kInvalidUsage);
  }
  if (grouping_) {
    group_ = member;
    member->grouped.push_back(call);
    return kDone;
  }
  hub_.threads_started_.fetch_add(1);
  if (options_.polls_in_progress > 0) {
    member->in_progress = options_.polls_in_progress;
    member->late.push_back(call);
    return {.status = Status::kInProgress, .code = kInProgress};
  }
  enqueue(*member, {call});
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
  const Inside inside(*this, *member);
  hub_.threads_started_.fetch_add(1);
  const MutexLock member_lock(member->mutex);
  member->late.swap(member->grouped);
  member->in_progress = options_.polls_in_progress;
  if (member->in_progress > 0) return {.status = Status::kInProgress, .code = kInProgress};
  enqueue(*member, std::exchange(member->late, {}));
  return kDone;
}

Result FakeNccl::allocate(std::size_t bytes, void*& data) {
  require_current("allocate");
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

Result FakeNccl::comm_register(Comm comm, std::span<std::byte> memory, Registration& registration) {
  if (options_.fail_register_code != 0) return failed(options_.fail_register_code);
  if (options_.gives_no_handle) return kDone;
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  const Inside inside(*this, *member);
  constexpr std::uintptr_t kAlign = 4096;
  if (reinterpret_cast<std::uintptr_t>(memory.data()) % kAlign != 0 || memory.size() % kAlign != 0) {
    hub_.world().report("registered memory is not made of whole pages");
  }
  ++member->registrations;
  registration.native = memory.data();
  return kDone;
}

Result FakeNccl::comm_deregister(Comm comm, Registration /*registration*/) {
  Member* const member = find(comm);
  if (member == nullptr) return failed(kInvalidUsage);
  const Inside inside(*this, *member);
  --member->registrations;
  return kDone;
}

}  // namespace hvd::test
