// How ranks talk: a control plane for small host messages and a data plane for reductions, behind one
// Communicator per rank. Implementations: solo (one rank), loopback (N ranks as threads of one process),
// mpi (processes), nccl (device memory, over one of the others; device_communicator.h). Nothing above this header knows
// which one it has.
//
// Threads: a Communicator is used by one thread at a time (in the program: the engine's thread).
// Errors: every wait has a Deadline. When it passes: Error{kTimeout or kPeerLost} whose text says what was
// waited for and from which rank and host. When a peer aborted: Error{kPeerLost} with the peer's reason.
// Waits sleep (futex, nap); they may spin for a few microseconds first, never longer: the cores belong to
// the compute.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/types.h"

namespace hvd::comm {

using Bytes = std::vector<std::byte>;

/// A message that is text.
inline std::string text_of(std::span<const std::byte> message) {
  return {reinterpret_cast<const char*>(message.data()), message.size()};
}

struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks of this host
  int local_size = 1;
  int node = 0;  ///< index of this host, by lowest rank
  int nodes = 1;
  std::vector<std::string> hosts;  ///< [rank]
};

/// A collective that takes long. What is known of it on this rank.
struct StalledWait {
  std::string text;  ///< "rank 0 (host a) has waited 15.0 s in barrier 3 for rank 1 (host b), which left ... ago"
  int awaited = -1;  ///< rank; -1: several
  Deadline deadline;
};
using OnStall = std::function<void(const StalledWait&)>;

/// Longest message of one rank to ControlPlane::gather() and broadcast(), with any number of ranks and nodes.
inline constexpr std::size_t kLongestMessage = std::size_t{1} << 30;

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  /// Bitwise AND or OR over ranks, in place; same length everywhere.
  virtual void all_reduce_bits(std::span<std::uint64_t> words, BitOp op, Deadline deadline) = 0;
  /// Rank 0 gets one message per rank, in rank order; the others get an empty vector. Lengths may differ.
  /// Errors: invalid_argument, on the rank that gives it and before anything is sent, for more than kLongestMessage.
  virtual std::vector<Bytes> gather(std::span<const std::byte> message, Deadline deadline) = 0;
  /// Returns rank `root`'s message on every rank. Length need not be known elsewhere.
  /// Errors: as gather(), for the message of the root; invalid_argument unless `root` is a rank.
  virtual Bytes broadcast(std::span<const std::byte> message, int root, Deadline deadline) = 0;
  virtual void barrier(Deadline deadline) = 0;
  /// Best effort, after something went wrong: tells the other ranks `status` ("step 17, waiting for bucket
  /// 3") and collects theirs until `patience` is over. [rank] is empty for a rank that did not answer.
  virtual std::vector<std::optional<std::string>> roll_call(std::string_view status,
                                                            std::chrono::milliseconds patience) = 0;
  /// Answers a roll call that a peer may have started, if any; cheap. For a thread that is otherwise idle.
  virtual void answer_roll_call(std::string_view status) = 0;
  /// Makes peers' current and future waits fail at once with Error{kPeerLost, reason}. Never throws.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// Errors: peer_lost with the reason if a peer has aborted, as far as this rank has heard (answer_roll_call()
  /// listens). Cheap; any thread.
  virtual void throw_if_aborted() = 0;
  /// Has `told` called once for each collective in which this rank has waited for a quarter of the time to its
  /// deadline, on the waiting thread, which may call the roll there. Does nothing where there are no peers.
  virtual void on_stall(const OnStall& /*told*/) {}
};

/// Memory that the data plane can reduce fastest (shared between the ranks of a node, registered).
/// Zeroed, page-aligned. The owner frees it; it must not outlive its Communicator.
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
  [[nodiscard]] virtual std::span<std::byte> bytes() const = 0;
};

enum class Algorithm : std::uint8_t {
  kAuto,               ///< chosen by size and topology, recorded
  kSharedMemory,       ///< one node: each rank reduces its share of everybody's buffer in place
  kRing,               ///< segmented ring over point-to-point messages
  kHierarchical,       ///< shared memory within a node, rings between nodes
  kMpiAllreduce,       ///< the library's own
  kRecursiveDoubling,  ///< small messages
  kRabenseifner        ///< recursive halving, then doubling: a ring's bytes in log2(n) steps
};
std::string_view name(Algorithm algorithm) noexcept;
/// Errors: invalid_argument that lists the names ("auto", "shm", "ring", "hierarchical", "mpi", "doubling",
/// "rabenseifner").
Algorithm parse_algorithm(std::string_view text);

/// Sizes of the whole message up to which `auto` takes an algorithm between nodes. Equal on all ranks.
/// docs/algorithms.md explains the trade-off.
struct Thresholds {
  std::size_t doubling_bytes = std::size_t{32} << 10;  ///< all_reduce: recursive doubling; latency counts most
  std::size_t rabenseifner_bytes = 0;                  ///< all_reduce: then Rabenseifner's, above that a ring
  /// reduce_scatter, all_gather: direct or by halving and doubling, above that a ring.
  std::size_t direct_bytes = std::size_t{32} << 10;
  bool operator==(const Thresholds&) const = default;
};

struct CommOptions {
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t segment_bytes = std::size_t{256} << 10;  ///< pipelining unit of ring and shared memory
  /// fp16 or bf16: fp32 sums and averages travel so between nodes, at half the bytes. Within a node nothing is rounded.
  DataType wire = DataType::kF32;
  int ranks_per_node = 0;  ///< > 0: pretended nodes of so many consecutive ranks, for tests on one host
  Thresholds thresholds = {};
};

/// Elements per rank of a collective whose shares may differ, [rank]. Zeros are allowed.
using Counts = std::span<const std::size_t>;

/// One contract for planes of host memory and of device memory. Operations are collective: every rank makes the same
/// calls in the same order. Work is done in that order, and asynchronously on a device plane: a call returns when its
/// work is enqueued, and complete() waits for it. On a host plane a call returns when its work is done.
/// Errors of all operations: invalid_argument, before anything is sent, for counts that do not fit the world; mismatch
/// where ranks are found to disagree; those of Watch. If only some ranks can find a disagreement, they abort, so that
/// the others end at once with peer_lost and the same text. A count of 0 is no error: nothing is done, on all ranks.
class DataPlane {
 public:
  virtual ~DataPlane() = default;
  /// Collective: every rank calls it with the same size, in the same order.
  virtual std::unique_ptr<RegisteredMemory> allocate(std::size_t bytes, Deadline deadline) = 0;
  /// In place, `count` elements, any 64-bit count. Same count, dtype, op on all ranks. Any memory; fastest
  /// when it lies in RegisteredMemory at the same offset on all ranks. The order of summation depends only
  /// on (count, world, algorithm): the same world gives bit-identical sums, equal on all ranks.
  virtual void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) = 0;
  /// The same out of place: `in` stays as it is; the two do not overlap.
  virtual void all_reduce_into(void* out, const void* in, std::size_t count, DataType dtype, ReduceOp op,
                               Deadline deadline) {
    copy(out, in, count * size_of(dtype));
    all_reduce(out, count, dtype, op, deadline);
  }
  /// Rank r gets share r of the reduction of all ranks' `in`.
  /// Shapes: in (sum of counts), out (counts[rank]). `out` may be the rank's own share of `in`, which then ends
  /// undefined elsewhere; otherwise the two do not overlap and `in` stays as it is. Equal counts on all ranks.
  virtual void reduce_scatter(void* out, const void* in, Counts counts, DataType dtype, ReduceOp op,
                              Deadline deadline) = 0;
  /// Every rank gets the shares of all ranks, in the order of ranks.
  /// Shapes: in (counts[rank]), out (sum of counts). `in` may be the rank's own share of `out`; otherwise the two do
  /// not overlap. Equal counts on all ranks.
  virtual void all_gather(void* out, const void* in, Counts counts, DataType dtype, Deadline deadline) = 0;
  /// Rank r gets block r of every rank's `in`, in the order of ranks.
  /// Shapes: in (sum of send_counts), out (sum of receive_counts); receive_counts[s] here is send_counts[rank] on rank
  /// s. The two do not overlap.
  virtual void all_to_all(void* out, Counts receive_counts, const void* in, Counts send_counts, DataType dtype,
                          Deadline deadline) = 0;
  virtual void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) = 0;
  /// Runs `calls`, which may only call all_reduce() on disjoint memory. A plane may start all reductions after `calls`
  /// has returned. Errors: those of the calls.
  virtual void together(const std::function<void()>& calls, Deadline /*deadline*/) { calls(); }
  /// Into and out of memory that allocate() gave: this plane knows how to reach it. No overlap.
  virtual void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  /// Waits for all that was enqueued; `what` is for the message. Planes of host memory have nothing to wait for.
  virtual void complete(std::string_view /*what*/, Deadline /*deadline*/) {}
  /// Collective, between operations: later all-reduces run with the algorithm and the segments of `options`. Memory
  /// that allocate() gave stays good. Planes that have no choice ignore it. Errors: invalid_argument where the
  /// algorithm cannot run here.
  virtual void choose(const CommOptions& /*options*/) {}
  /// What really ran, for provenance: "shm", "hierarchical(shm+ring over tcp)", ...
  [[nodiscard]] virtual std::string description() const = 0;
};

/// A rank of this host in a process of its own.
struct Neighbour {
  std::string rank;  ///< "rank 3 (host b)"
  std::uint32_t process = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual const Topology& topology() const = 0;
  [[nodiscard]] virtual ControlPlane& control() = 0;
  [[nodiscard]] virtual DataPlane& data() = 0;
  /// "solo", "loopback", "mpi", "nccl".
  [[nodiscard]] virtual std::string_view backend() const = 0;
  /// Library and transport for provenance, e.g. "Open MPI v4.1.4, btl vader,tcp".
  [[nodiscard]] virtual std::string library() const = 0;
  /// A table of the collectives that the ranks entered last, as far as this rank can see: those of its host, and what
  /// the others answered to the last roll call. Lines end with a newline; empty if nothing was entered. Any thread.
  [[nodiscard]] virtual std::string flight_record() const { return {}; }
  /// Other ranks of this host, as far as their process ids are known here: all of them after the first collective call.
  [[nodiscard]] virtual std::vector<Neighbour> neighbours() const { return {}; }
};

/// One rank, nothing to reduce.
std::unique_ptr<Communicator> make_solo();

/// `size` ranks of this process; hand one to each thread. Element r is rank r. `ranks_per_node` > 0 makes
/// several pretended nodes, so that hierarchical code is tested without a cluster.
std::vector<std::unique_ptr<Communicator>> make_loopback(int size, const CommOptions& options = {},
                                                         int ranks_per_node = 0);

/// The same rank of the same world for an owner that goes before `lender` does; nobody uses `lender` meanwhile.
std::unique_ptr<Communicator> borrow(Communicator& lender);

/// Whether this build has MPI.
bool mpi_available() noexcept;

// The functions make_mpi*() are collective and block in MPI. Concurrent calls in one process can deadlock: one thread
// at a time may be in them, and every rank must call them in the same order.

/// How long a rank waits for the others to call, unless told otherwise: as long as start-up may take.
inline constexpr Patience kMeetPatience = std::chrono::minutes(5);

/// Initialises MPI (once per process) if need be and finalises it when the last MPI Communicator goes.
/// Errors: unsupported without MPI; backend when MPI fails; timeout if not all ranks call within `patience`, after
/// which MPI is not finalised any more.
std::unique_ptr<Communicator> make_mpi(const CommOptions& options = {}, const Patience& patience = kMeetPatience);
/// Collective over all of MPI's ranks: those that give the same `group` become a world of their own, in their order,
/// with planes of its own that another thread may use. `one_per_node`: they run on different nodes, really or as
/// CommOptions::ranks_per_node pretends. Errors: as make_mpi().
std::unique_ptr<Communicator> make_mpi_subset(int group, bool one_per_node);

// Process sets: each call makes a world of some ranks, to which an Engine of its own is given. Sets may overlap. They
// cannot deadlock one another, because each has communicators of its own and each engine a thread of its own: a wait
// for a peer in one set keeps nothing in another set from going on. Order matters within a set only.

/// Collective over all of MPI's ranks, which give the same `ranks`: rank ranks[i] is rank i of the new world. Null for
/// ranks that are not in it. Engines of this process may be at work meanwhile. Does not start MPI: the program has done
/// so, or holds a communicator of the world.
/// Errors: as make_mpi(); on all ranks alike: invalid_argument where MPI has not been started, and for a list that is
/// empty, repeats a rank or names one that is not there; mismatch where the lists differ.
std::unique_ptr<Communicator> make_mpi_set(std::span<const int> ranks, const CommOptions& options = {},
                                           const Patience& patience = kMeetPatience);
/// The same for a loopback world of `size` ranks: [rank], null for those that are not in the set.
std::vector<std::unique_ptr<Communicator>> make_loopback_set(int size, std::span<const int> ranks,
                                                             const CommOptions& options = {});
/// Errors: invalid_argument unless `ranks` are different ranks of a world of `size`, and at least one.
void check_set(std::span<const int> ranks, int size);

/// For a process that ends without unwinding, after a signal: removes the names of shared memory that it made and that
/// not all peers have attached to. Any thread.
void remove_shared_names() noexcept;

}  // namespace hvd::comm
