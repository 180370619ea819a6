// All-reduce in two levels: NCCL inside the node, messages of the host between nodes. This plane serves to measure how
// much faster NCCL's own transport between nodes is (docs/gpu.md, "In two levels"). The plane is not meant to be faster
// than NCCL.
//
//   stream  reduce-scatter ─ copy out ─●gate┊ waits ┊─ copy in ─ all-gather
//   InterNodeReducer's thread                  └► ring between nodes ┘
//
// If all nodes have equally many ranks, every local rank reduces its share between nodes; otherwise local rank 0
// reduces everything. The choice and the order of every sum depend only on the world and the count.
// broadcast() goes through the host. All other operations throw unsupported; plain NCCL has them.
// Threads: those of nccl::Plane.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/nccl/inter_node_reducer.h"
#include "engine/comm/nccl/plane.h"

namespace hvd::comm::nccl {

/// How divide_all_reduce() divides the elements of an all-reduce among the local ranks.
struct Pieces {
  std::size_t share = 0;  ///< elements that each local rank reduces between nodes
  std::size_t rest = 0;   ///< elements after the shares; local rank 0 reduces them as well
};
/// Pure. `even`: all nodes have `local_size` ranks.
Pieces divide_all_reduce(std::size_t count, int local_size, bool even);

class HierarchicalPlane final : public DevicePlane {
 public:
  /// The communicators of this rank; borrowed. `node` has the ranks of this node, ordered by local rank. `across` has
  /// the ranks with this rank's local rank, ordered by node.
  struct Levels {
    Communicator& world;
    Communicator& node;
    Communicator& across;
  };
  /// Collective: connects the ranks inside each node and tries a reduction over all nodes. Needs several nodes.
  HierarchicalPlane(const Levels& levels, gpu::GpuRuntime& runtime, std::shared_ptr<Api> api,
                    const NcclOptions& options, Deadline deadline);
  ~HierarchicalPlane() override;

  std::unique_ptr<RegisteredMemory> allocate(std::size_t bytes, Deadline deadline) override;
  void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) override;
  /// reduce_scatter(), all_gather() and all_to_all() throw unsupported on all ranks.
  void reduce_scatter(void* out, const void* in, Counts counts, DataType dtype, ReduceOp op,
                      Deadline deadline) override;
  void all_gather(void* out, const void* in, Counts counts, DataType dtype, Deadline deadline) override;
  void all_to_all(void* out, Counts receive_counts, const void* in, Counts send_counts, DataType dtype,
                  Deadline deadline) override;
  void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void complete(std::string_view what, Deadline deadline) override;
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] gpu::StreamView stream() const override { return inside_->stream(); }
  [[nodiscard]] gpu::GpuRuntime& runtime() const override { return runtime_; }
  [[nodiscard]] std::string_view capture_refusal() const override;
  [[nodiscard]] std::string_view shares_refusal() const override;
  void check() override;
  void abort() noexcept override;
  bool await_abort(Deadline deadline) noexcept override { return !inside_ || inside_->await_abort(deadline); }
  void reconnect(const NcclOptions& options, Deadline deadline) override;
  [[nodiscard]] bool registers_memory() const override { return inside_->registers_memory(); }

 private:
  void agree_on_evenness(Deadline deadline);
  /// If a rank of the world has aborted, throws the reason. Answers roll calls with `status`.
  void throw_if_world_aborted(const std::string& status);
  /// Returns the reason to send to ranks that wait in `node` or `across`: if a rank of the world has
  /// aborted, that rank's reason; otherwise a reason of this rank.
  std::string reason_to_give_up();
  /// Returns pinned memory of at least `bytes`. One block at a time suffices, because one stream uses it, and a stream
  /// does its work in order.
  std::byte* staging(std::size_t bytes);

  const Levels levels_;
  gpu::GpuRuntime& runtime_;
  const std::string here_;
  bool even_ = false;
  std::atomic<bool> aborted_{false};
  std::vector<gpu::PinnedMemory> staging_;  // new work uses the last block; earlier work may still use the other blocks
  std::unique_ptr<Plane> inside_;
  std::unique_ptr<InterNodeReducer> inter_node_;  // null if this rank reduces nothing between nodes
};

}  // namespace hvd::comm::nccl
