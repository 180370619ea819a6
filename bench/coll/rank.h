// One rank of a session of collectives: allocates the rank's buffers and performs the orders of rank 0.
//
// Threads: only the rank's own thread uses the object and the communicators.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/coll/cells.h"
#include "bench/coll/operation.h"
#include "bench/coll/options.h"
#include "bench/coll/schedule.h"
#include "bench/world/cores.h"
#include "bench/world/settings.h"
#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"
#include "engine/comm/device_communicator.h"
#include "engine/gpu/runtime.h"

namespace hvd::bench::coll {

/// One communicator for each of CollOptions::variants.
using Variants = std::span<const std::unique_ptr<comm::Communicator>>;

/// Maximum number of launches on a held stream: far below the number of pending launches at which CUDA makes the host
/// wait (about 1024), of which an operation of NCCL takes a few.
inline constexpr std::uint32_t kMostHeld = 64;
/// Maximum number of operations in all graphs that are launched on a held stream. CUDA does not say how much of its
/// launch queue a graph takes.
inline constexpr std::uint32_t kMostHeldInGraphs = 512;
/// Returns the largest batch of a sample: on GPUs, so many operations that the stream can be held. Pure.
std::uint32_t largest_batch(const CollOptions& options);

/// The next task of all ranks, sent by rank 0.
enum class Task : std::uint32_t { kEnd, kClock, kSample, kCheck };
struct Order {
  Task task = Task::kEnd;
  std::vector<Visit> visits;  ///< kSample: the samples to take; kCheck: the cells to check, with `batch` ignored
};

class Rank {
 public:
  /// `gpu` is this rank's GPU, which must outlive the object; null on CPUs. Errors: those of make_cells().
  Rank(const CollOptions& options, Variants variants, gpu::GpuRuntime* gpu = nullptr);
  /// Collective: compares options with the other ranks and allocates memory. Errors on all ranks: mismatch if options
  /// differ; invalid_argument if memory does not suffice, or if -G is given and graphs are impossible. Also throws the
  /// planes' errors.
  void prepare();
  /// For ranks other than 0: performs orders until rank 0 orders kEnd.
  void follow();
  /// For rank 0: sends the order, performs it, and returns the answers of all ranks, [rank]. Each answer has `values`
  /// numbers. The answer to kSample is the begin and end of each visit, in nanoseconds of rank 0's clock; the answer to
  /// kCheck is the number of wrong elements of each cell; the answer to kClock is the uncertainty of the clock offset
  /// in nanoseconds.
  std::vector<std::vector<std::int64_t>> ask(const Order& order, std::size_t values);
  /// Collective: returns when all ranks have called barrier().
  void barrier();
  /// Call after a fault, once the GPU has no work left. NCCL's abort waits until graphs with NCCL's operations are
  /// gone.
  void drop_graphs() noexcept { graphs_.clear(); }

  [[nodiscard]] const std::vector<Cell>& cells() const { return cells_; }
  [[nodiscard]] std::size_t cache_bytes() const { return cache_bytes_; }
  [[nodiscard]] std::size_t arena_bytes() const { return arena_bytes_; }
  /// For rank 0, after prepare(): the processors of the ranks, each of which computes with one thread.
  [[nodiscard]] const CoreShare& cores() const { return cores_; }
  /// For rank 0, after prepare(): the caution of shared_cores() in bench/world/cores.h; "" if there is none.
  [[nodiscard]] const std::string& hardware_threads() const { return hardware_threads_; }

 private:
  [[nodiscard]] comm::ControlPlane& control() { return variants_[0]->control(); }
  comm::Bytes perform(const Order& order);
  Order hear();
  std::int64_t read_clock();
  [[nodiscard]] std::string memory_objection();
  void fill(Arena& arena);
  Arena& arena_of(const Cell& cell);
  void sample(const Visit& visit, std::vector<std::int64_t>& answer);
  void run(const Cell& cell, std::uint32_t batch, Deadline deadline);
  /// Enqueues a reduction of one element, after which no rank's GPU is far ahead of another's.
  void meet(const Cell& cell, Deadline deadline);
  [[nodiscard]] comm::DeviceCommunicator& on_gpu(const Cell& cell);
  /// Returns the reason why the operations cannot be captured in a graph; empty if no graph is wanted, or if they can.
  [[nodiscard]] std::string graph_objection() const;
  /// Returns a graph of the work that `enqueue` puts on the stream of the cell's communicator.
  [[nodiscard]] gpu::Graph capture(const Cell& cell, const std::function<void()>& enqueue);
  /// Returns true if the stream of a GPU can be held while the host enqueues this sample: the host takes no part in the
  /// operations, and few enough launches will be pending.
  [[nodiscard]] bool may_hold(const Visit& visit) const;
  void enqueue_sample(const Visit& visit, Deadline deadline);
  std::uint64_t check_cell(std::uint32_t index);

  const CollOptions& options_;
  const Variants variants_;
  gpu::GpuRuntime* const gpu_;
  const comm::Topology topology_;
  const std::vector<Cell> cells_;
  std::size_t cache_bytes_ = 0, arena_bytes_ = 0;
  CoreShare cores_;
  std::string hardware_threads_;
  std::vector<std::unique_ptr<Arena>> arenas_;  // [variant]; null if the variant uses plain_
  std::unique_ptr<Arena> plain_;
  gpu::PinnedMemory pinned_;         // with a GPU: the memory of staging_
  std::vector<std::byte> pageable_;  // without a GPU: the memory of staging_
  std::span<std::byte> staging_;
  std::vector<bool> connected_;  // [cell]: NCCL has run an operation of this cell; empty without a GPU
  gpu::DeviceMemory meeting_;    // on a GPU: the element of meet(), always 0
  gpu::Event first_, last_;      // on a GPU: `first_` is recorded before a sample, `last_` after it
  struct CellGraph {
    std::uint32_t batch = 0;  // operations in the graph; 0: there is no graph
    gpu::Graph graph;
  };
  std::vector<CellGraph> graphs_;       // [cell]; empty without -G; must be destroyed before the communicators
  std::chrono::nanoseconds offset_{0};  // rank 0's clock minus this rank's clock
};

}  // namespace hvd::bench::coll
