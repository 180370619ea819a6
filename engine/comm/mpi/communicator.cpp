// Ranks as MPI processes: determines which ranks share a host, makes the segment of each host, and builds the
// RankState.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/hash.h"
#include "engine/comm/group_communicator.h"
#include "engine/comm/mpi/environment.h"
#include "engine/comm/mpi/from_handle.h"
#include "engine/comm/mpi/transport.h"

namespace hvd::comm {
namespace {

class MpiCommunicator final : public GroupCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiEnvironment> environment, std::unique_ptr<RankState> state,
                  const CommOptions& options)
      : GroupCommunicator(std::move(state), options, "mpi", environment->library()),
        environment_(std::move(environment)) {}
  ~MpiCommunicator() override {
    if (failed()) environment_->abandon();
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

 private:
  std::shared_ptr<MpiEnvironment> environment_;
};

/// A communicator whose destructor holds the environment's lock, because other engines of this process may call MPI.
class LockedComm {
 public:
  explicit LockedComm(MpiEnvironment& environment) : environment_(environment) {}
  ~LockedComm() {
    const MutexLock lock(environment_.calls());
    if (environment_.abandoned()) static_cast<void>(comm_.release());  // MPI_Comm_free would wait for a lost peer
    comm_.reset();
  }
  LockedComm(const LockedComm&) = delete;
  LockedComm& operator=(const LockedComm&) = delete;
  /// Hold the environment's lock while you use the result.
  [[nodiscard]] MpiComm& comm() { return comm_; }

 private:
  MpiEnvironment& environment_;
  MpiComm comm_;
};

/// Splits `world` into nodes. A node consists of the ranks that share memory or, if `ranks_per_node` > 0 (for tests),
/// of that many consecutive ranks.
MpiComm split_by_node(HvdMpiHandle world, int rank, int ranks_per_node) {
  MpiComm node;
  if (ranks_per_node > 0) {
    check(mpi().comm_split(world, rank / ranks_per_node, rank, node.out()), "MPI_Comm_split");
  } else {
    check(mpi().comm_split_shared(world, rank, node.out()), "MPI_Comm_split_type");
  }
  return node;
}

MpiComm duplicate(HvdMpiHandle comm) {
  MpiComm copy;
  check(mpi().comm_dup(comm, copy.out()), "MPI_Comm_dup");
  return copy;
}

/// Gathers `mine` of all ranks of `comm`: [rank].
template <class Value>
std::vector<Value> gather_all(const Value& mine, int size, HvdMpiHandle comm) {
  std::vector<Value> all(static_cast<std::size_t>(size));
  check(mpi().all_gather(&mine, sizeof mine, all.data(), comm), "MPI_Allgather");
  return all;
}

using FixedText = std::array<char, 1024>;

FixedText fixed_text(const std::string& text) {
  FixedText result{};
  std::copy_n(text.begin(), std::min(text.size(), result.size() - 1), result.begin());
  return result;
}

Layout find_layout(HvdMpiHandle world, HvdMpiHandle node, bool pretended) {
  int rank = 0;
  int size = 0;
  check(mpi().comm_rank(world, &rank), "MPI_Comm_rank");
  check(mpi().comm_size(world, &size), "MPI_Comm_size");
  int leader = rank;  // the lowest rank of a node identifies the node
  check(mpi().broadcast(&leader, sizeof leader, 0, node), "MPI_Bcast");
  const std::vector<int> node_of = gather_all(leader, size, world);

  std::array<char, 257> host{};  // MPI_MAX_PROCESSOR_NAME is 256 in Open MPI, and 128 in MPICH
  check(mpi().processor_name(host.data(), host.size()), "MPI_Get_processor_name");
  std::vector<std::string> hosts;
  for (const auto& text : gather_all(host, size, world)) {
    hosts.emplace_back(text.data());
    if (pretended) hosts.back().append("/").append(std::to_string(node_of[hosts.size() - 1]));
  }
  return {rank, node_of, std::move(hosts)};
}

/// Makes the node's control segment. Every rank commits its own cell, so that the cell is on the rank's NUMA node.
/// Collective over the node. If ranks fail, all ranks of the node throw the error of the lowest one, naming them all.
std::shared_ptr<SharedMemory> make_segment(HvdMpiHandle node, const Layout& layout) {
  int local_rank = 0;
  int local_size = 0;
  check(mpi().comm_rank(node, &local_rank), "MPI_Comm_rank");
  check(mpi().comm_size(node, &local_size), "MPI_Comm_size");
  const std::size_t bytes = Segment::bytes_for(local_size);
  const auto now = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  FixedText name = fixed_text(fmt::format("/hvd_bench.{}.{}", getpid(), hex64(now)));
  check(mpi().broadcast(name.data(), name.size(), 0, node), "MPI_Bcast");

  std::shared_ptr<SharedMemory> memory;
  std::string problem;
  bool own_problem = false;  // otherwise `problem` is another rank's
  const auto attempt = [&](auto&& step) {
    try {
      if (problem.empty()) step();
    } catch (const Error& error) {
      problem = error.what();
      own_problem = true;
    }
  };
  const auto tell = [&](int from) {
    FixedText text = fixed_text(problem);
    check(mpi().broadcast(text.data(), text.size(), from, node), "MPI_Bcast");
    problem = text.data();
  };
  if (local_rank == 0) {
    attempt([&] { memory = std::make_shared<SharedMemory>(SharedMemory::create(name.data(), bytes)); });
  }
  tell(0);
  if (local_rank != 0) {
    attempt([&] { memory = std::make_shared<SharedMemory>(SharedMemory::open(name.data(), bytes)); });
  }
  const Segment::Part mine = Segment::part_of(local_rank);
  attempt([&] { memory->commit(mine.offset, mine.bytes); });
  const int failed = own_problem ? 1 : 0;
  const std::vector<int> all_failed = gather_all(failed, local_size, node);
  if (local_rank == 0) SharedMemory::unlink(name.data());  // all ranks have attached: a crash leaves nothing behind
  std::vector<int> ranks;
  for (std::size_t r = 0; r < all_failed.size(); ++r) {
    if (all_failed[r] != 0) ranks.push_back(layout.my_node()[r]);
  }
  if (ranks.empty()) return memory;
  tell(layout.local_rank_of[static_cast<std::size_t>(ranks.front())]);
  throw Error(Errc::kOutOfMemory, fmt::format("{}: {}", layout.describe(ranks), problem));
}

/// Waits until every rank has called meet(). Afterwards the caller may make a blocking collective call of MPI while it
/// holds the environment's mutex. The mutex stops the other engines of this process during that call. This causes no
/// deadlock, because every rank makes the same MPI call before it waits for a stopped engine. Errors: timeout. After a
/// timeout the environment is abandoned, because the barrier cannot be completed.
void meet(HvdMpiHandle ranks, MpiEnvironment& environment, const Patience& patience) {
  constexpr auto kBarrierNap = std::chrono::microseconds(200);
  const Deadline deadline = patience.from_now();
  Mutex& calls = environment.calls();
  HvdMpiHandle request = mpi().request_null;
  {
    const MutexLock lock(calls);
    check(mpi().begin_barrier(ranks, &request), "MPI_Ibarrier");
  }
  for (int done = 0;;) {
    {
      const MutexLock lock(calls);
      check(mpi().test(&request, &done), "MPI_Test");
    }
    if (done != 0) return;
    if (deadline.passed()) {
      environment.abandon();  // MPI_Finalize would wait for the barrier, which cannot be cancelled
      throw Error(Errc::kTimeout, fmt::format("not all ranks called make_mpi() or make_mpi_set() within {} ms; the "
                                              "call is collective: every rank must make it",
                                              patience.timeout.count()));
    }
    std::this_thread::sleep_for(kBarrierNap);
  }
}

/// Errors: mismatch unless all of MPI's ranks give the same list.
void compare_lists(std::span<const int> list, Mutex& calls) {
  Hasher hasher;
  for (const int rank : list) hasher.number(static_cast<std::uint64_t>(rank));
  const std::uint64_t mine = hasher.value();
  int size = 0;
  std::vector<std::uint64_t> all;
  {
    const MutexLock lock(calls);
    check(mpi().comm_size(mpi().comm_world, &size), "MPI_Comm_size");
    all = gather_all(mine, size, mpi().comm_world);
  }
  const auto other = std::find_if(all.begin(), all.end(), [&](std::uint64_t hash) { return hash != all.front(); });
  if (other == all.end()) return;
  throw Error(Errc::kMismatch,
              fmt::format("process set: ranks 0 and {} gave different lists of ranks; give the same list on all ranks",
                          other - all.begin()));
}

std::unique_ptr<Communicator> make(HvdMpiHandle ranks, const CommOptions& options, const Patience& patience) {
  auto environment = MpiEnvironment::acquire();
  LockedComm world(*environment);
  LockedComm notices(*environment);
  std::optional<Layout> layout;
  std::shared_ptr<SharedMemory> memory;
  std::uint64_t eager_bytes = 0;
  meet(ranks, *environment, patience);
  {
    const MutexLock lock(environment->calls());
    world.comm() = duplicate(ranks);
    notices.comm() = duplicate(ranks);
    const HvdMpiHandle all = world.comm().get();
    int rank = 0;
    check(mpi().comm_rank(all, &rank), "MPI_Comm_rank");
    const MpiComm node = split_by_node(all, rank, options.ranks_per_node);
    layout.emplace(find_layout(all, node.get(), options.ranks_per_node > 0));
    memory = make_segment(node.get(), *layout);
    // All ranks must cut their messages alike, so the smallest limit holds for all.
    eager_bytes = environment->tcp_eager_bytes();
    check(mpi().all_reduce_min(&eager_bytes, all), "MPI_Allreduce");
  }
  auto state = std::make_unique<RankState>(std::move(*layout), std::move(memory), NodeGroup::Kind::kProcesses);
  state->set_transport(std::make_unique<MpiTransport>(environment, std::move(world.comm()), std::move(notices.comm()),
                                                      state->faults, state->group.crowded(), eager_bytes));
  return std::make_unique<MpiCommunicator>(environment, std::move(state), options);
}

void split_world(int group, int key, LockedComm& ranks, MpiEnvironment& environment, const Patience& patience) {
  meet(mpi().comm_world, environment, patience);
  const MutexLock lock(environment.calls());
  check(mpi().comm_split(mpi().comm_world, group, key, ranks.comm().out()), "MPI_Comm_split");
}

}  // namespace

bool mpi_available() noexcept { return true; }

std::unique_ptr<Communicator> make_mpi(const CommOptions& options, const Patience& patience) {
  const auto environment = MpiEnvironment::acquire();  // MPI_COMM_WORLD is valid only after MPI is initialised
  return make(mpi().comm_world, options, patience);
}

std::unique_ptr<Communicator> make_mpi_of(HvdMpiHandle ranks, const CommOptions& options, const Patience& patience) {
  if (ranks == mpi().comm_null) throw Error(Errc::kInvalidArgument, "make_mpi: MPI_COMM_NULL has no ranks");
  const auto environment = MpiEnvironment::acquire();
  return make(ranks, options, patience);
}

bool mpi_threads_supported() {
  const auto environment = MpiEnvironment::acquire();
  const MutexLock lock(environment->calls());
  int threads = HVD_MPI_ONE_THREAD;
  check(mpi().query_threads(&threads), "MPI_Query_thread");
  return threads == HVD_MPI_MULTIPLE;
}

std::unique_ptr<Communicator> make_mpi_set(std::span<const int> ranks, const CommOptions& options,
                                           const Patience& patience) {
  const auto environment = MpiEnvironment::acquire_started("make_mpi_set");
  Mutex& calls = environment->calls();
  meet(mpi().comm_world, *environment, patience);
  compare_lists(ranks, calls);
  int size = 0;
  int rank = 0;
  {
    const MutexLock lock(calls);
    check(mpi().comm_size(mpi().comm_world, &size), "MPI_Comm_size");
    check(mpi().comm_rank(mpi().comm_world, &rank), "MPI_Comm_rank");
  }
  check_set(ranks, size);
  const auto place = std::find(ranks.begin(), ranks.end(), rank);
  const bool member = place != ranks.end();
  LockedComm set(*environment);
  split_world(member ? 0 : -1, static_cast<int>(place - ranks.begin()), set, *environment, patience);
  return member ? make(set.comm().get(), options, patience) : nullptr;
}

}  // namespace hvd::comm
