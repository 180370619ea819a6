// A fake NCCL for N ranks of one process, each with a fake GPU. A collective is work on the fake streams; it ends when
// all ranks have reached it. The fake behaves as the real NCCL does:
// - A communicator is non-blocking: a call may be in progress for a while. Collectives that are called meanwhile are
//   enqueued after this call.
// - state() shows faults of peers. While the owner is inside a call, no other thread may call state(), because NCCL
//   2.26 ends each call with ncclCommGetAsyncError(), which is not safe against itself.
// - The state of a call lies in memory of the thread that called (NCCL 2.23 to 2.25), so this thread must live until
//   the communicator is finalised.
// - An abort ends the communicator's collectives at once, but returns only when no graph holds the communicator, as
//   commDestroySync() of NCCL 2.19 to 2.30 does.
// - finalize() is in progress until all ranks have called it. destroy() returns when all ranks have closed the
//   communicator, by destroy() or by an abort.
// - Among ranks of one process, all but the last to call destroy() or comm_abort() return at once, and this last call
//   waits for the graphs of all of them, as commReclaim() of NCCL 2.19 to 2.30 does.
// - A message moves when its sender and its receiver have reached it. Messages of one group move side by side. Messages
//   outside a group move one after another, so a send without its receive blocks the stream for ever.
// A collective in a graph must come from the same capture on all ranks. Destroying a communicator that a graph still
// holds is an error in the fake, while the real NCCL hangs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/mutex.h"
#include "engine/comm/nccl/api.h"
#include "tests/gpu/fake_runtime.h"

namespace hvd::test {

struct FakeNcclOptions {
  comm::nccl::Version version{.major = 2, .minor = 28, .patch = 9};
  int polls_in_progress = 3;  ///< how often state() reports "in progress" before a call ends
  int turns_of_call = 0;      ///< how many turns of the world the host takes to call a collective
  bool fail_unique_id = false;
  int fail_register_code = 0;    ///< if not 0, comm_register() fails with this code
  bool gives_no_handle = false;  ///< comm_register() is done, but its handle is null
  int wrong_sums = 0;            ///< how many reductions, from the first on, give a wrong result
  /// comm_abort() waits until no graph holds the communicator and this flag is set. null: it waits only for graphs.
  std::shared_ptr<std::atomic<bool>> abort_may_return = {};
  bool one_process = false;         ///< the ranks are threads of one process, not processes
  bool abort_stops_kernels = true;  ///< false: a kernel of this rank that waits for a peer waits for ever
  /// destroy() calls this function before the peers see that this rank has closed the communicator. null: does nothing.
  std::function<void()> before_closing = {};
  /// The owner calls this function inside every call of a communicator. null: does nothing.
  std::function<void()> inside = {};
  /// Returns how many turns of the world a collective takes under the communicator's limit of CTAs. null: 0 turns.
  std::function<int(int max_ctas)> turns = {};
};

class FakeNccl;

/// The state of the fake NCCL that all ranks share.
class FakeNcclHub {
 public:
  explicit FakeNcclHub(FakeWorld& world) : world_(world) {}
  /// From now on all communicators report a remote error, and their collectives never end.
  void lose_a_rank();
  [[nodiscard]] std::vector<std::string> log();
  /// Ends the calls of comm_abort() and destroy() that would wait for ever, as the end of a process does, and returns
  /// the number of these calls. Waits until `libraries` have no owner.
  int end(const std::vector<std::weak_ptr<FakeNccl>>& libraries);
  /// Number of calls of comm_abort() and destroy() that have not returned.
  [[nodiscard]] int aborting() const { return aborting_.load(); }
  /// Number of threads that NCCL 2.28 would have started to enqueue collectives, on all ranks together.
  [[nodiscard]] int threads_started() const { return threads_started_.load(); }
  [[nodiscard]] FakeWorld& world() noexcept { return world_; }

  struct Round;
  struct End;
  struct Lane;
  struct Group;

  void note(std::string what);

 private:
  friend class FakeNccl;

  FakeWorld& world_;
  Mutex mutex_;
  std::uint64_t next_id_ HVD_GUARDED_BY(mutex_) = 1;
  std::map<std::uint64_t, std::shared_ptr<Group>> groups_ HVD_GUARDED_BY(mutex_);
  std::vector<std::string> log_ HVD_GUARDED_BY(mutex_);
  std::atomic<int> aborting_{0}, threads_started_{0};
  std::atomic<bool> ended_{false};
};

class FakeNccl final : public comm::nccl::Api {
 public:
  using Arguments = comm::nccl::CallArguments;
  using Comm = comm::nccl::Comm;
  using Registration = comm::nccl::Registration;
  using Result = comm::nccl::Result;

  /// Each rank makes its own object. Borrows `hub` and `gpu`.
  FakeNccl(FakeNcclHub& hub, FakeRuntime& gpu, FakeNcclOptions options = {});
  ~FakeNccl() override;

  [[nodiscard]] comm::nccl::Version version() const override { return options_.version; }
  [[nodiscard]] std::string name() const override { return "fake"; }
  [[nodiscard]] std::string explain(Result result, Comm comm) const override;
  Result unique_id(comm::nccl::UniqueId& id) override;
  Result init_rank(Comm& comm, const comm::nccl::UniqueId& id, const comm::nccl::CommConfig& config) override;
  Result state(Comm comm) override;
  Result finalize(Comm comm) override;
  Result destroy(Comm comm) override;
  Result comm_abort(Comm comm) override;
  Result begin_group() override;
  Result end_group() override;
  Result all_reduce(Comm comm, const Arguments& what, gpu::StreamView stream) override {
    return take(comm, {Kind::kAllReduce, what, stream});
  }
  Result broadcast(Comm comm, const Arguments& what, gpu::StreamView stream) override {
    return take(comm, {Kind::kBroadcast, what, stream});
  }
  Result reduce(Comm comm, const Arguments& what, gpu::StreamView stream) override {
    return take(comm, {Kind::kReduce, what, stream});
  }
  Result reduce_scatter(Comm comm, const Arguments& what, gpu::StreamView stream) override {
    return take(comm, {Kind::kReduceScatter, what, stream});
  }
  Result all_gather(Comm comm, const Arguments& what, gpu::StreamView stream) override {
    return take(comm, {Kind::kAllGather, what, stream});
  }
  Result send(Comm comm, const Arguments& what, gpu::StreamView stream) override {
    return take(comm, {Kind::kSend, what, stream});
  }
  Result receive(Comm comm, const Arguments& what, gpu::StreamView stream) override {
    return take(comm, {Kind::kReceive, what, stream});
  }
  Result allocate(std::size_t bytes, void*& data) override;
  Result free(void* data) override;
  Result comm_register(Comm comm, std::span<std::byte> memory, Registration& registration) override;
  Result comm_deregister(Comm comm, Registration registration) override;

 private:
  struct Member;
  class Inside;

  enum class Kind : std::uint8_t { kAllReduce, kBroadcast, kReduce, kReduceScatter, kAllGather, kSend, kReceive };
  struct Call {
    Kind kind;
    Arguments what;
    gpu::StreamView stream;
  };
  static const char* name_of(Kind kind);
  /// Performs an operation for all ranks at once. Call when all ranks have reached the operation.
  static void perform(Kind kind, const std::vector<Arguments>& parts, bool wrong);
  /// Closes the rank's communicator and erases `member`. Waits until `may_return`.
  void close(Comm comm, Member& member, const std::function<bool()>& may_return);
  /// NCCL uses the calling thread's current GPU. Reports a call on another GPU.
  void require_current(const char* call);
  Result take(Comm comm, const Call& call);
  Member* find(Comm comm);
  /// Enqueues the calls of a group, or one call outside a group. Collectives run one after another, messages side by
  /// side.
  void enqueue(Member& member, const std::vector<Call>& calls);
  void enqueue_collective(Member& member, const Call& call);
  void enqueue_messages(Member& member, const std::vector<Call>& messages);

  FakeNcclHub& hub_;
  FakeRuntime& gpu_;
  FakeNcclOptions options_;
  bool grouping_ = false;    // true while a group is open; only the owner's thread uses it
  Member* group_ = nullptr;  // the open group's communicator, or null; only the owner's thread uses it
  Mutex mutex_;
  std::map<void*, std::unique_ptr<Member>> members_ HVD_GUARDED_BY(mutex_);
  std::map<void*, gpu::DeviceMemory> memory_ HVD_GUARDED_BY(mutex_);
};

}  // namespace hvd::test
