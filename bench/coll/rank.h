// One rank of a session of collectives: takes memory, and does what rank 0 orders. The calls that are collective say
// so.
//
// Threads: one, the rank's; it owns the object and uses the communicators.
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
#include "bench/train/agreement.h"
#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"
#include "engine/comm/device_communicator.h"
#include "engine/gpu/runtime.h"

namespace hvd::bench::coll {

/// One communicator for each of CollOptions::variants.
using Variants = std::span<const std::unique_ptr<comm::Communicator>>;

/// What rank 0 tells all ranks to do next.
enum class Task : std::uint32_t { kEnd, kClock, kSample, kCheck };
struct Order {
  Task task = Task::kEnd;
  std::vector<Visit> visits;  ///< of kCheck: the cells
};

/// What must be equal on all ranks for their lists of cells and their buffers to be equal.
Wishes wishes_of(const CollOptions& options);

class Rank {
 public:
  /// `gpu`: this rank's, which outlives it; null where buffers are in memory of the host. Errors: as make_cells().
  Rank(const CollOptions& options, Variants variants, Patience patience, gpu::Runtime* gpu = nullptr);
  /// Collective: agrees with the others, and takes memory. Errors, on all ranks alike: mismatch, invalid_argument where
  /// memory would not do; else those of the planes.
  void prepare();
  /// Other ranks than 0: obeys until rank 0 orders kEnd.
  void follow();
  /// Rank 0: gives the order, obeys it, returns all ranks' answers, [rank], each of `values` numbers. Of a sample:
  /// begin and end of each visit in nanoseconds of rank 0's clock; of a check: wrong elements of each cell; of a clock:
  /// how far it may be off, in nanoseconds.
  std::vector<std::vector<std::int64_t>> ask(const Order& order, std::size_t values);
  /// Collective.
  void barrier();
  /// Call after a fault, when nothing is left on the GPU: NCCL's abort waits for the graphs that hold its operations.
  void drop_graphs() noexcept { graphs_.clear(); }

  [[nodiscard]] const std::vector<Cell>& cells() const { return cells_; }
  [[nodiscard]] std::size_t cache_bytes() const { return cache_bytes_; }
  [[nodiscard]] std::size_t arena_bytes() const { return arena_bytes_; }
  /// Rank 0, after prepare(): whether some host has more ranks than processors that they may use.
  [[nodiscard]] bool oversubscribed() const { return oversubscribed_; }

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
  [[nodiscard]] comm::DeviceCommunicator& on_gpu(const Cell& cell);
  /// Why the variants' operations cannot be captured; empty: they can, or nobody asks.
  [[nodiscard]] std::string graph_objection() const;
  /// Returns a graph that holds what `enqueue` puts on the stream of the cell's communicator.
  [[nodiscard]] gpu::Graph capture(const Cell& cell, const std::function<void()>& enqueue);
  /// Enqueues the operations of a sample.
  void enqueue_sample(const Visit& visit, Deadline deadline);
  std::uint64_t check_cell(std::uint32_t index);

  const CollOptions& options_;
  const Variants variants_;
  const Patience patience_;
  gpu::Runtime* const gpu_;
  const comm::Topology topology_;
  const std::vector<Cell> cells_;
  std::size_t cache_bytes_ = 0, arena_bytes_ = 0;
  bool oversubscribed_ = false;
  std::vector<std::unique_ptr<Arena>> arenas_;  // [variant], null: plain_
  std::unique_ptr<Arena> plain_;
  gpu::PinnedMemory pinned_;         // behind staging_, on a GPU
  std::vector<std::byte> pageable_;  // else
  std::span<std::byte> staging_;
  gpu::Event first_, last_;  // of a sample on a GPU
  struct CellGraph {
    std::uint32_t batch = 0;  // operations in the graph; 0: there is none
    gpu::Graph graph;
  };
  std::vector<CellGraph> graphs_;       // [cell], with graph_launches; before the communicators go
  std::chrono::nanoseconds offset_{0};  // to rank 0's clock
};

}  // namespace hvd::bench::coll
