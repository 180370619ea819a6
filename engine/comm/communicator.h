// Communication between ranks: each rank has one Communicator, with a control plane for small host messages and a data
// plane for reductions. The layers above need not know which implementation they use: solo (one rank), loopback (N
// ranks as threads of one process), mpi (processes), or nccl (device memory: device_communicator.h).
//
// Threads: a Communicator is used by one thread at a time (in the program: the engine's thread).
// Errors: every wait has a Deadline. If the deadline passes, the wait throws Error{kTimeout or kPeerLost}, whose text
// names the operation and the rank and host that did not answer. If a peer aborted, the wait throws Error{kPeerLost}
// with the peer's reason.
// A wait may spin for a few microseconds and then sleeps (futex, nap), because the compute needs the cores.
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
#include "engine/base/thresholds.h"
#include "engine/base/types.h"

namespace hvd::gpu {
class GpuRuntime;
}

namespace hvd::comm {

using Bytes = std::vector<std::byte>;

inline std::string text_of(std::span<const std::byte> message) {
  return {reinterpret_cast<const char*>(message.data()), message.size()};
}

struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< index of this rank among the ranks of its host
  int local_size = 1;
  int node = 0;  ///< index of this host; hosts are ordered by their lowest rank
  int nodes = 1;
  std::vector<std::string> hosts;  ///< [rank]
};

/// Returns "rank 3 (host b)", the name of a rank in every message. `hosts` is Topology::hosts.
std::string rank_at(std::size_t rank, const std::vector<std::string>& hosts);

/// A collective in which this rank has waited for a long time.
struct StalledWait {
  std::string text;  ///< "rank 0 (host a) has waited 15.0 s in barrier 3 for rank 1 (host b), which left ... ago"
  int awaited = -1;  ///< rank that this rank waits for; -1: this rank waits for several ranks
  Deadline deadline;
};
using OnStall = std::function<void(const StalledWait&)>;

/// Part of the abort text of a rank that ended because of its own error. Peers that receive a text with this part hold
/// no roll call.
inline constexpr std::string_view kGaveUp = " gave up: ";
/// Part of the error text about a rank whose process has ended. This rank needs no roll call to be found.
inline constexpr std::string_view kProcessEnded = " is lost: its process ";
/// Longest message in bytes that one rank may give to ControlPlane::gather() and broadcast(), in a world of any size.
inline constexpr std::size_t kMaxMessage = std::size_t{1} << 30;

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  /// Combines the words of all ranks by bitwise AND or OR, in place. All ranks give the same number of words.
  virtual void all_reduce_bits(std::span<std::uint64_t> words, BitOp op, Deadline deadline) = 0;
  /// Rank 0 gets one message per rank, in rank order; other ranks get an empty vector. The messages may have different
  /// lengths.
  /// Errors: invalid_argument on the rank whose message is longer than kMaxMessage, before anything is sent.
  virtual std::vector<Bytes> gather(std::span<const std::byte> message, Deadline deadline) = 0;
  /// Returns the message of rank `root` on every rank. The other ranks need not know the length of this message.
  /// Errors: those of gather(), for the message of the root; invalid_argument unless `root` is a rank.
  virtual Bytes broadcast(std::span<const std::byte> message, int root, Deadline deadline) = 0;
  virtual void barrier(Deadline deadline) = 0;
  /// After an error: sends `status` ("step 17, waiting for bucket 3") to the other ranks, and collects their answers
  /// until `patience` is over. Element [rank] is empty if that rank did not answer. Best effort.
  virtual std::vector<std::optional<std::string>> roll_call(std::string_view status,
                                                            std::chrono::milliseconds patience) = 0;
  /// Answers a roll call if a peer has started a roll call. Cheap: a thread may call this again and again while idle.
  virtual void answer_roll_call(std::string_view status) = 0;
  /// Makes all current and future waits of the peers fail at once with Error{kPeerLost, reason}. Never throws.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// Errors: peer_lost with the reason, if this rank has received the abort of a peer (answer_roll_call() receives it).
  /// Cheap; any thread.
  virtual void throw_if_aborted() = 0;
  /// For a rank that waits for its peers outside of this plane, such as for a GPU. Looks about once a second whether
  /// the processes of this host's other ranks still run. Cheap; any thread. Errors: those of throw_if_aborted();
  /// peer_lost if two looks in a row find that a process has ended.
  virtual void look_for_dead() = 0;
  /// Registers a callback. The waiting thread calls the callback once per collective, when this rank has waited for a
  /// quarter of the time to the deadline. The callback may hold a roll call. Does nothing if there are no peers.
  virtual void on_stall(const OnStall& /*told*/) {}
};

/// Memory that the data plane reduces fastest: shared between the ranks of a node, or registered with a library.
/// The memory is zeroed and page-aligned. The destructor frees it. Must not outlive the Communicator.
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
  [[nodiscard]] virtual std::span<std::byte> bytes() const = 0;
};

enum class Algorithm : std::uint8_t {
  kAuto,               ///< chosen by size and topology; description() names the choice
  kSharedMemory,       ///< one node: each rank reduces its share of all ranks' buffers in place
  kRing,               ///< segmented ring over point-to-point messages
  kHierarchical,       ///< shared memory within a node, rings between nodes
  kMpiAllreduce,       ///< MPI_Allreduce
  kRecursiveDoubling,  ///< log2(n) exchanges of the whole message; for small messages
  kRabenseifner        ///< recursive halving, then doubling, in log2(n) steps each; sends as many bytes as a ring
};
std::string_view name(Algorithm algorithm) noexcept;
/// Errors: invalid_argument that lists the names ("auto", "shm", "ring", "hierarchical", "mpi", "doubling",
/// "rabenseifner").
Algorithm parse_algorithm(std::string_view text);

using hvd::Thresholds;

struct CommOptions {
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t segment_bytes = std::size_t{256} << 10;  ///< ring and shared memory work in segments of this size
  /// If `wire` is fp16 or bf16, fp32 sums and averages are sent between nodes in that type. Within a node nothing is
  /// rounded.
  DataType wire = DataType::kF32;
  int ranks_per_node = 0;  ///< if > 0: this many consecutive ranks pretend to be a node, for tests on one host
  Thresholds thresholds = {};
};

/// Number of elements of each rank's share, indexed by rank. The shares may differ in size; zeros are allowed.
using Counts = std::span<const std::size_t>;

/// Planes of host memory and of device memory have the same contract. Operations are collective: every rank makes the
/// same calls in the same order, and the work is done in that order. On a host plane a call returns when its work is
/// done. On a device plane a call returns when its work is enqueued, and complete() waits for it.
/// Errors of all operations: invalid_argument, before anything is sent, for counts that do not fit the world; mismatch
/// if ranks disagree; those of Faults. If only some ranks can detect a disagreement, they abort, so that the other
/// ranks end at once with peer_lost and the same text. A count of 0 is not an error; the operation then does nothing.
class DataPlane {
 public:
  virtual ~DataPlane() = default;
  /// Returns memory of `bytes` bytes. Collective: all ranks make their calls with the same sizes in the same order.
  virtual std::unique_ptr<RegisteredMemory> allocate(std::size_t bytes, Deadline deadline) = 0;
  /// Reduces `count` elements in place. `count` may be any 64-bit number. All ranks give the same count, dtype and op.
  /// Works with any memory, and is fastest if `data` is in RegisteredMemory at the same offset on all ranks. The order
  /// of summation depends only on (count, world, algorithm), so the same world gives the same bits in every run and on
  /// all ranks.
  virtual void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) = 0;
  /// Like all_reduce(), out of place: `in` is not changed. `out` and `in` must not overlap.
  virtual void all_reduce_into(void* out, const void* in, std::size_t count, DataType dtype, ReduceOp op,
                               Deadline deadline) {
    copy(out, in, count * size_of(dtype));
    all_reduce(out, count, dtype, op, deadline);
  }
  /// Rank r gets share r of the reduction of all ranks' `in`.
  /// Shapes: in (sum of counts), out (counts[rank]). `out` may be the rank's own share within `in`; the rest of `in` is
  /// then undefined afterwards. Otherwise `out` and `in` must not overlap, and `in` is not changed. All ranks give
  /// equal `counts`.
  virtual void reduce_scatter(void* out, const void* in, Counts counts, DataType dtype, ReduceOp op,
                              Deadline deadline) = 0;
  /// Every rank gets the shares of all ranks, in the order of ranks.
  /// Shapes: in (counts[rank]), out (sum of counts). `in` may be the rank's own share within `out`; otherwise `in` and
  /// `out` must not overlap. All ranks give equal `counts`.
  virtual void all_gather(void* out, const void* in, Counts counts, DataType dtype, Deadline deadline) = 0;
  /// Rank r gets block r of every rank's `in`, in the order of ranks.
  /// Shapes: in (sum of send_counts), out (sum of receive_counts). receive_counts[s] on this rank must equal
  /// send_counts[rank] on rank s. `in` and `out` must not overlap.
  virtual void all_to_all(void* out, Counts receive_counts, const void* in, Counts send_counts, DataType dtype,
                          Deadline deadline) = 0;
  virtual void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) = 0;
  /// Runs `calls`, which may only call all_reduce(), on different memory in each call. A plane may delay all of these
  /// reductions until `calls` has returned. Errors: those of the calls.
  virtual void together(const std::function<void()>& calls, Deadline /*deadline*/) { calls(); }
  /// Copies `bytes` bytes into or out of memory that allocate() returned, even if this is device memory. The ranges
  /// must not overlap.
  virtual void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  /// Multiplies `count` elements of a floating-point type by `factor`, with the same bits on hosts and devices, in
  /// order with the operations. Does nothing if `factor` is 1. Errors: unsupported if scale_refusal() gives a reason.
  virtual void scale(std::byte* data, std::size_t count, DataType dtype, double factor);
  /// Waits for all enqueued work; `what` names the wait in errors. Planes of host memory have nothing to wait for.
  virtual void complete(std::string_view /*what*/, Deadline /*deadline*/) {}
  /// Ends all enqueued work after an error, with wrong numbers, and waits until the work uses no memory any more, 5 s
  /// at most. Afterwards no operation may be called, only abandon() again. Planes of host memory have nothing to end.
  virtual void abandon() noexcept {}
  /// Makes later all-reduces use the algorithm and the segment size of `options`. Collective; call between operations.
  /// Memory that allocate() returned stays valid. Planes with only one algorithm ignore this call.
  /// Errors: invalid_argument if the algorithm cannot run in this world.
  virtual void choose(const CommOptions& /*options*/) {}
  /// Returns the algorithms that have run, for provenance: "shm", "hierarchical(shm+ring over tcp)", ...
  [[nodiscard]] virtual std::string description() const = 0;

  // Any thread may call the next three methods.
  /// Returns the GPU in whose memory all operands and results must lie; null: they lie in host memory.
  [[nodiscard]] virtual gpu::GpuRuntime* gpu() const { return nullptr; }
  /// Returns the reason why reductions of `dtype` throw unsupported, in one line that is equal on all ranks; empty if
  /// they are supported.
  [[nodiscard]] virtual std::string reduce_refusal(DataType /*dtype*/) const { return {}; }
  /// Returns the reason why scale() throws unsupported, in one line; empty if it is supported.
  [[nodiscard]] virtual std::string scale_refusal() const { return {}; }
};

/// Another rank of this host, in another process.
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
  /// Returns a table of the last collectives that the ranks entered. For ranks of this host it shows their flight
  /// records; for ranks of other hosts, their answers to the last roll call. Every line ends with a newline. The table
  /// is empty if no rank has entered a collective.
  [[nodiscard]] virtual std::string flight_record() const { return {}; }
  /// The other ranks of this host whose process ids are known. The list is complete after the first collective call.
  [[nodiscard]] virtual std::vector<Neighbour> neighbours() const { return {}; }
};

/// Makes a world of one rank, which has nothing to reduce.
std::unique_ptr<Communicator> make_solo();

/// Makes a world of `size` ranks in this process; give one Communicator to each thread. Element r of the result is for
/// rank r.
/// `ranks_per_node` > 0 makes several pretended nodes, so that hierarchical code can be tested without a cluster.
std::vector<std::unique_ptr<Communicator>> make_loopback(int size, const CommOptions& options = {},
                                                         int ranks_per_node = 0);

/// Returns true if this build has MPI.
bool mpi_available() noexcept;

// The functions make_mpi*() are collective and block in MPI. Concurrent calls in one process can deadlock: only one
// thread at a time may call them, and every rank must call them in the same order.

/// Default time that a rank waits for the other ranks at start-up.
inline constexpr Patience kMeetPatience = std::chrono::minutes(5);

/// Makes a Communicator over all of MPI's ranks. Initialises MPI if the program has not, and finalises MPI when the
/// last MPI Communicator is destroyed. Errors: unsupported without MPI; backend if MPI fails; timeout if not all ranks
/// call make_mpi() within `patience`. After a timeout MPI is never finalised.
std::unique_ptr<Communicator> make_mpi(const CommOptions& options = {}, const Patience& patience = kMeetPatience);

// Process sets: each call makes a world of some ranks, which gets its own Engine. Sets may overlap. Sets cannot
// deadlock one another, because each set has its own communicators and each engine its own thread: a wait for a peer in
// one set does not block another set. The order of calls matters only within a set.

/// Collective over all of MPI's ranks, which must give the same `ranks`: rank ranks[i] becomes rank i of the new world.
/// Returns null on ranks that are not in the set. Engines of this process may run during this call. This call does not
/// start MPI: the program must have started MPI, or must have a Communicator of make_mpi(). Errors: those of
/// make_mpi(). Further errors, on all ranks: invalid_argument if MPI has not been started, or if `ranks` is empty,
/// repeats a rank, or names a rank that does not exist; mismatch if the ranks' lists differ.
std::unique_ptr<Communicator> make_mpi_set(std::span<const int> ranks, const CommOptions& options = {},
                                           const Patience& patience = kMeetPatience);
/// Like make_mpi_set(), for a loopback world of `size` ranks. Element [rank] is null for ranks that are not in the set.
std::vector<std::unique_ptr<Communicator>> make_loopback_set(int size, std::span<const int> ranks,
                                                             const CommOptions& options = {});
/// Errors: invalid_argument if `ranks` is empty, repeats a rank, or names a rank outside [0, size).
void check_set(std::span<const int> ranks, int size);

/// For a process that ends without unwinding, for example after a signal. Removes the names of shared memory that this
/// process made and that not all peers have opened yet. Any thread.
void remove_shared_names() noexcept;

}  // namespace hvd::comm
