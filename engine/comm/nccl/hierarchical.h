// All-reduce in two levels: NCCL inside the node, messages of the host between nodes. For the question what NCCL's own
// way between nodes is worth (docs/gpu.md, "In two levels"); not faster by design.
//
//   stream  reduce-scatter ─ copy out ─●gate┊ waits ┊─ copy in ─ all-gather
//   Crossing's thread                  └► ring between nodes ┘
//
// Every local rank carries its share between nodes where all nodes have as many ranks; else local rank 0 carries all.
// Both depend on nothing but the world and the count, and so does the order of every sum.
// broadcast() goes through the host. All other operations are refused as unsupported: plain NCCL has them.
// Threads: as nccl::Plane.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/comm/nccl/crossing.h"
#include "engine/comm/nccl/plane.h"

namespace hvd::comm::nccl {

/// What an all-reduce of `count` elements is made of. Pure.
struct Pieces {
  std::size_t share = 0;  ///< elements that each local rank carries
  std::size_t rest = 0;   ///< elements behind the shares, which local rank 0 carries as well
};
/// `even`: all nodes have `local_size` ranks.
Pieces cut(std::size_t count, int local_size, bool even);

class HierarchicalPlane final : public DevicePlane {
 public:
  /// The worlds that this rank is in; borrowed. `node` holds the ranks of its node by local rank, `across` those of its
  /// local rank by node.
  struct Levels {
    Communicator& world;
    Communicator& node;
    Communicator& across;
  };
  /// Collective: connects inside the node and tries all of it. Several nodes.
  HierarchicalPlane(const Levels& levels, gpu::Runtime& runtime, std::shared_ptr<Api> api, const NcclOptions& options,
                    Deadline deadline);
  ~HierarchicalPlane() override;

  std::unique_ptr<RegisteredMemory> allocate(std::size_t bytes, Deadline deadline) override;
  void all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) override;
  /// This function and the next two throw unsupported, on all ranks alike.
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
  [[nodiscard]] gpu::Runtime& runtime() const override { return runtime_; }
  [[nodiscard]] std::string_view capture_refusal() const override;
  [[nodiscard]] std::string_view shares_refusal() const override;
  void check() override;
  void abort() noexcept override;
  bool await_abort(Deadline deadline) noexcept override { return !inside_ || inside_->await_abort(deadline); }
  void reconnect(const NcclOptions& options, Deadline deadline) override;
  [[nodiscard]] bool registers_memory() const override { return inside_->registers_memory(); }
  [[nodiscard]] std::chrono::nanoseconds creation_time() const override { return creation_time_; }

 private:
  void agree_on_evenness(Deadline deadline);
  /// Throws what the world was told, if it was. `status` is for those who call the roll.
  void hear_the_world(const std::string& status);
  /// What this rank has heard in the world, for those that wait in a part of it.
  std::string reason_to_give_up();
  /// Pinned memory of at least `bytes`. One is enough: what uses it is on one stream, in order.
  std::byte* staging(std::size_t bytes);

  const Levels levels_;
  gpu::Runtime& runtime_;
  const std::string here_;
  bool even_ = false;
  std::chrono::nanoseconds creation_time_{0};
  std::atomic<bool> aborted_{false};
  std::vector<gpu::PinnedMemory> staging_;  // the last is in use; those before it may be, by work enqueued earlier
  std::unique_ptr<Plane> inside_;
  std::unique_ptr<Crossing> crossing_;  // null where this rank carries nothing
};

}  // namespace hvd::comm::nccl
