// A Communicator whose data plane reduces device memory on a stream of its own, beside the host control plane of
// another backend.
//
// Threads: as a Communicator's, except check() and abort(), which any thread may call at any time.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "engine/comm/communicator.h"
#include "engine/comm/nccl/api.h"
#include "engine/gpu/runtime.h"

namespace hvd::comm {

struct NcclOptions {
  int max_ctas = 0;  ///< thread blocks per collective at most; 0: NCCL's choice
  /// Several ranks may have the same GPU. For tests with one GPU: NCCL refuses it before 2.30, and then wants
  /// NCCL_MULTI_RANK_GPU_ENABLE=1.
  bool share_gpus = false;
  bool register_memory = true;                 ///< allocate() from NCCL and registered, where the version has it
  Patience deadline{std::chrono::minutes(1)};  ///< of finalisation; other waits are given theirs
};

/// Work is enqueued on stream() in the order of the calls, and may be captured, unless capture_refusal() says
/// otherwise: a capture that this stream has joined records it. Ordering with other streams is the caller's affair. The
/// host waits only where a docstring says so.
class DevicePlane : public DataPlane {
 public:
  /// High priority: communication starts when it can, not when the compute leaves room.
  [[nodiscard]] virtual gpu::StreamView stream() const = 0;
  [[nodiscard]] virtual gpu::Runtime& runtime() const = 0;
  /// The watchdog's look. Errors: peer_lost or backend, naming this rank and what the library says, if communication
  /// has failed; interrupted after abort().
  virtual void check() = 0;
  /// Ends what is in flight on the device, so that streams and graphs that wait for it go on (with wrong numbers).
  /// Returns at once: the library is called on a thread of its own, because it comes back only when no graph holds a
  /// reduction. Nothing but await_abort() and destruction is of use afterwards.
  virtual void abort() noexcept = 0;
  /// After abort(): returns whether the library has come back by the deadline. Drop the graphs first. Where it has not,
  /// calls that free memory of the GPU may never return: end the process.
  virtual bool await_abort(Deadline deadline) noexcept = 0;
  /// Why a capture cannot hold all_reduce(), in one line; empty: it can.
  [[nodiscard]] virtual std::string_view capture_refusal() const { return {}; }
  /// Why reduce_scatter(), all_gather() and all_to_all() are unsupported, in one line; empty: they work.
  [[nodiscard]] virtual std::string_view shares_refusal() const { return {}; }
  /// Collective, with nothing enqueued and no graph that holds reductions: the ranks part and connect anew as `options`
  /// says (deadline and share_gpus stay). Memory that allocate() gave stays, registered or not as they say; what was
  /// plain remains so. Errors: as make_nccl(); nothing but destruction is of use afterwards.
  virtual void reconnect(const NcclOptions& options, Deadline deadline) = 0;
  /// Whether what allocate() gives, and gave, is registered. Without any rank to reduce with: false.
  [[nodiscard]] virtual bool registers_memory() const = 0;
  /// What the ranks spent together to be able to reduce; no part of any step.
  [[nodiscard]] virtual std::chrono::nanoseconds creation_time() const = 0;

  // How DataPlane behaves on a device: allocate() gives device memory, 4096-byte aligned, and waits until it is zeroed.
  // broadcast() waits for its end; the caller has waited for what made the data. All other operations enqueue, and so
  // does copy(). Ranks that disagree about counts wait for one another until the deadline of complete(). A rank that
  // finds its own counts or types unfit throws before it has enqueued anything: unsupported for reductions of int16,
  // which NCCL lacks (int16 is moved like any other type).
};

/// Calls of ncclCommAbort() in this process that have not returned. While there are any, end the process without
/// destructors: their threads use the library, and CUDA. Any thread.
int unfinished_aborts() noexcept;

class DeviceCommunicator : public Communicator {
 public:
  [[nodiscard]] virtual DevicePlane& device() = 0;
  [[nodiscard]] virtual gpu::Runtime& runtime() = 0;
};

/// Collective. The control plane and the topology are those of `host`, the GPU is `runtime`'s, which outlives the
/// result. Before NCCL is asked, ranks compare GPUs and NCCL versions, so that a wrong launch is one clear line; then
/// a reduction is tried and its result checked. A world of one needs no NCCL: `api` may be null.
/// Errors, with the same text on all ranks: invalid_argument for two ranks on one GPU; mismatch for different versions.
/// Else: backend, peer_lost, timeout, check_failed, with this rank and what was tried; the peers are told.
std::unique_ptr<DeviceCommunicator> make_nccl(std::unique_ptr<Communicator> host, gpu::Runtime& runtime,
                                              std::shared_ptr<nccl::Api> api, const NcclOptions& options,
                                              Deadline deadline);

/// The worlds that a rank of a reduction in two levels is in. `node` and `across` are null where there is one node.
struct HostLevels {
  std::unique_ptr<Communicator> world;   ///< control plane and topology
  std::unique_ptr<Communicator> node;    ///< the ranks of its node, by local rank
  std::unique_ptr<Communicator> across;  ///< the ranks of its local rank, by node; a thread of the plane uses it
};
/// Collective over MPI's ranks, without a deadline: MPI's splitting has none. Errors: unsupported where `world` has
/// several nodes and is not MPI's; as make_mpi().
HostLevels split_levels(std::unique_ptr<Communicator> world);

/// Collective. As make_nccl(), but NCCL reduces inside the node only, and the host's messages between nodes: a
/// comparison, docs/gpu.md. Where there is one node, it is make_nccl(). The ranks of a node may be processes or
/// threads; those of different nodes are different processes (threads do for tests with fakes): their streams wait for
/// one another.
/// Errors: as make_nccl().
std::unique_ptr<DeviceCommunicator> make_hierarchical(HostLevels hosts, gpu::Runtime& runtime,
                                                      std::shared_ptr<nccl::Api> api, const NcclOptions& options,
                                                      Deadline deadline);

}  // namespace hvd::comm
