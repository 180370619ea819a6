#include "engine/comm/nccl/hierarchical.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/chunks.h"
#include "engine/comm/nccl/trial.h"

namespace hvd::comm::nccl {
namespace {

/// Broadcasts pass through the host in pieces of this size.
constexpr std::size_t kBroadcastBytes = std::size_t{16} << 20;

constexpr const char* kSharesRefusal =
    "in two levels there are all_reduce and broadcast only; use plain NCCL between nodes (--comm nccl)";

[[noreturn]] void refuse(const char* operation) {
  throw Error(Errc::kUnsupported, fmt::format("{}: {}", operation, kSharesRefusal));
}

}  // namespace

Pieces divide_all_reduce(std::size_t count, int local_size, bool even) {
  const auto ranks = static_cast<std::size_t>(local_size);
  const std::size_t share = even ? count / ranks / kShareAlign * kShareAlign : 0;
  return {share, count - share * ranks};
}

HierarchicalPlane::HierarchicalPlane(const Levels& levels, gpu::GpuRuntime& runtime, std::shared_ptr<Api> api,
                                     const NcclOptions& options, Deadline deadline)
    : levels_(levels), runtime_(runtime), here_(here_of(levels.world.topology(), runtime)) {
  std::optional<Trial> trial;
  try {
    agree_on_evenness(deadline);
    inside_ = std::make_unique<Plane>(levels_.node, runtime, std::move(api), options, here_, deadline);
    levels_.world.control().barrier(deadline);  // throws if another node has failed
    if (even_ || levels_.world.topology().local_rank == 0)
      inter_node_ = std::make_unique<InterNodeReducer>(levels_.across);
    trial.emplace(runtime);
    trial->run(*this, levels_.world.topology(), here_, deadline);
  } catch (const Error& error) {
    levels_.world.control().abort(error.what());
    abort();
    if (inside_) runtime.drain(stream());
    throw;
  }
}

HierarchicalPlane::~HierarchicalPlane() {
  try {
    check();
    levels_.world.control().throw_if_aborted();
    if (inter_node_ && inter_node_->busy()) abort();
  } catch (...) {  // a destructor cannot throw; without abort() the stream would wait for a lost peer
    abort();
  }
  inter_node_.reset();
  runtime_.drain(stream());  // the stream may still use staging_, which is freed next
}

void HierarchicalPlane::agree_on_evenness(Deadline deadline) {
  const Topology& where = levels_.world.topology();
  const bool mine = where.local_size * where.nodes == where.size;
  std::uint64_t even = mine ? 1 : 0;
  levels_.world.control().all_reduce_bits({&even, 1}, BitOp::kAnd, deadline);
  even_ = even != 0;
}

std::byte* HierarchicalPlane::staging(std::size_t bytes) {
  if (staging_.empty() || staging_.back()->bytes.size() < bytes) {
    staging_.push_back(runtime_.allocate_pinned(bytes, "gradients between nodes"));
  }
  return staging_.back()->bytes.data();
}

std::unique_ptr<RegisteredMemory> HierarchicalPlane::allocate(std::size_t bytes, Deadline deadline) {
  return inside_->allocate(bytes, deadline);
}

void HierarchicalPlane::all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) {
  check();
  if (count == 0) return;
  require_reducible(dtype);
  const Topology& where = levels_.world.topology();
  const Pieces pieces = divide_all_reduce(count, where.local_size, even_);
  const bool leader = where.local_rank == 0;
  const std::size_t element = size_of(dtype);
  const auto shares = static_cast<std::size_t>(where.local_size) * pieces.share;
  auto* const base = static_cast<std::byte*>(data);
  std::byte* const mine = base + static_cast<std::size_t>(where.local_rank) * pieces.share * element;
  std::byte* const rest = base + shares * element;
  const std::vector<std::size_t> share_of_each(static_cast<std::size_t>(where.local_size), pieces.share);
  // An average divides once, after the sum over all ranks. In fp16 that sum could overflow, so each node divides before
  // the sum over nodes. If all nodes have equally many ranks, the node divides its mean by the number of nodes;
  // otherwise it divides its sum by the number of ranks.
  const bool early = op == ReduceOp::kAverage && dtype == DataType::kF16;
  const bool node_means = early && even_;
  const ReduceOp inner = op == ReduceOp::kAverage && !node_means ? ReduceOp::kSum : op;
  inside_->together(
      [&] {
        inside_->reduce_scatter(mine, data, share_of_each, dtype, inner, deadline);
        inside_->reduce(rest, pieces.rest, dtype, inner, 0, deadline);
      },
      deadline);

  const std::size_t carried = pieces.share + (leader ? pieces.rest : 0);
  if (carried > 0 && inter_node_) {
    const std::size_t share_bytes = pieces.share * element, rest_bytes = leader ? pieces.rest * element : 0;
    std::byte* const host = staging(share_bytes + rest_bytes);
    if (share_bytes > 0) copy(host, mine, share_bytes);
    if (rest_bytes > 0) copy(host + share_bytes, rest, rest_bytes);
    const auto gate = std::make_shared<gpu::HostGate>();
    runtime_.hold(stream(), gate);
    inter_node_->submit({.data = host,
                         .count = carried,
                         .dtype = dtype,
                         .op = op,
                         .divisor = node_means ? where.nodes : where.size,
                         .divide_first = early,
                         .deadline = deadline},
                        gate);
    if (share_bytes > 0) copy(mine, host, share_bytes);
    if (rest_bytes > 0) copy(rest, host + share_bytes, rest_bytes);
  }
  inside_->together(
      [&] {
        inside_->all_gather(data, mine, share_of_each, dtype, deadline);
        inside_->enqueue_broadcast(rest, pieces.rest * element, 0, deadline);
      },
      deadline);
}

void HierarchicalPlane::reduce_scatter(void* /*out*/, const void* /*in*/, Counts /*counts*/, DataType /*dtype*/,
                                       ReduceOp /*op*/, Deadline /*deadline*/) {
  refuse("reduce_scatter");
}

void HierarchicalPlane::all_gather(void* /*out*/, const void* /*in*/, Counts /*counts*/, DataType /*dtype*/,
                                   Deadline /*deadline*/) {
  refuse("all_gather");
}

void HierarchicalPlane::all_to_all(void* /*out*/, Counts /*receive_counts*/, const void* /*in*/, Counts /*send_counts*/,
                                   DataType /*dtype*/, Deadline /*deadline*/) {
  refuse("all_to_all");
}

void HierarchicalPlane::broadcast(void* data, std::size_t bytes, int root, Deadline deadline) {
  check();
  const bool root_is_here = levels_.world.topology().rank == root;
  for_each_chunk(bytes, kBroadcastBytes, [&](Range range) {
    std::byte* const host = staging(range.count);
    std::byte* const piece = static_cast<std::byte*>(data) + range.begin;
    if (root_is_here) {
      copy(host, piece, range.count);
      complete("the data to broadcast", deadline);
    }
    levels_.world.data().broadcast(host, range.count, root, deadline);
    if (root_is_here) return;
    copy(piece, host, range.count);
    complete("the data that was broadcast", deadline);
  });
}

void HierarchicalPlane::copy(void* to, const void* from, std::size_t bytes) { inside_->copy(to, from, bytes); }

void HierarchicalPlane::complete(std::string_view what, Deadline deadline) {
  runtime_.synchronize(stream(), deadline, fmt::format("{}: {}", here_, what), [this] {
    check();
    levels_.world.control().throw_if_aborted();
  });
  check();
}

std::string HierarchicalPlane::description() const {
  return fmt::format("hierarchical({} in the node; {} between nodes)", inside_->description(),
                     inter_node_ ? levels_.across.data().description() : "local rank 0");
}

std::string_view HierarchicalPlane::capture_refusal() const {
  return "hierarchical reductions pass through the host, which no CUDA graph can hold: every step is enqueued";
}

std::string_view HierarchicalPlane::shares_refusal() const { return kSharesRefusal; }

void HierarchicalPlane::check() {
  if (aborted_) throw Error(Errc::kInterrupted, here_ + ": communication was aborted");
  inside_->check();
  if (!inter_node_) return;
  try {
    inter_node_->check();
  } catch (const Error& error) {
    const std::string text = fmt::format("{}: {}", here_, error.what());
    throw_if_world_aborted(text);  // if a rank of the world has aborted, throws that rank's reason
    throw Error(error.code(), text);
  }
}

void HierarchicalPlane::reconnect(const NcclOptions& options, Deadline deadline) {
  complete("what was enqueued before connecting anew", deadline);
  try {
    inside_->reconnect(options, deadline);
    levels_.world.control().barrier(deadline);  // throws if another node has failed
  } catch (const Error& error) {
    levels_.world.control().abort(error.what());
    abort();
    throw;
  }
}

void HierarchicalPlane::throw_if_world_aborted(const std::string& status) {
  levels_.world.control().answer_roll_call(status);  // also receives an abort that another node has sent
  levels_.world.control().throw_if_aborted();
}

std::string HierarchicalPlane::reason_to_give_up() {
  std::string mine = here_ + " gave up";
  try {
    throw_if_world_aborted(mine);
  } catch (const Error& told) {
    return told.what();
  }
  return mine;
}

void HierarchicalPlane::abort() noexcept {
  if (aborted_.exchange(true)) return;
  const std::string reason = reason_to_give_up();
  levels_.node.control().abort(reason);
  if (inside_) inside_->abort();
  if (inter_node_) inter_node_->abort(reason);
}

}  // namespace hvd::comm::nccl

namespace hvd::comm {

std::unique_ptr<DeviceCommunicator> make_hierarchical(HostLevels hosts, gpu::GpuRuntime& runtime,
                                                      std::shared_ptr<nccl::Api> api, const NcclOptions& options,
                                                      Deadline deadline) {
  if (hosts.world->topology().nodes == 1) {
    return make_nccl(std::move(hosts.world), runtime, std::move(api), options, deadline);
  }
  nccl::check_world(*hosts.world, runtime, api.get(), options, deadline);
  auto group = std::make_unique<DeviceCommunicator>("hierarchical", std::move(hosts.world), runtime, api.get());
  Communicator& node = group->keep(std::move(hosts.node));
  Communicator& across = group->keep(std::move(hosts.across));
  group->set_plane(std::make_unique<nccl::HierarchicalPlane>(
      nccl::HierarchicalPlane::Levels{.world = group->host(), .node = node, .across = across}, runtime, std::move(api),
      options, deadline));
  return group;
}

HostLevels split_levels(std::unique_ptr<Communicator> world) {
  HostLevels hosts{.world = std::move(world), .node = nullptr, .across = nullptr};
  const Topology& where = hosts.world->topology();
  if (where.nodes == 1) return hosts;
  if (hosts.world->backend() != "mpi") {
    throw Error(Errc::kUnsupported, fmt::format("a reduction in two levels takes its messages between nodes from MPI, "
                                                "not from {}: launch with mpirun or srun",
                                                hosts.world->backend()));
  }
  hosts.node = make_mpi_subset(where.node, false);
  hosts.across = make_mpi_subset(where.local_rank, true);
  return hosts;
}

}  // namespace hvd::comm
