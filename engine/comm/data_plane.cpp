#include "engine/comm/data_plane.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/comm/algorithm/tree_broadcast.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"

namespace hvd::comm {
namespace {

/// Between nodes: below this, latency counts more than the log2(n) copies on the wire.
constexpr std::size_t kDoublingBytes = std::size_t{32} << 10;
/// Broadcasts between nodes go down the tree in pieces of this size.
constexpr std::size_t kBroadcastBytes = std::size_t{1} << 20;
constexpr std::size_t kAlign = 64;

class NodeRegistered final : public RegisteredMemory {
 public:
  NodeRegistered(std::shared_ptr<Regions> regions, std::uint64_t number, std::span<std::byte> bytes)
      : regions_(std::move(regions)), number_(number), bytes_(bytes) {}
  ~NodeRegistered() override { regions_->remove(number_); }
  NodeRegistered(const NodeRegistered&) = delete;
  NodeRegistered& operator=(const NodeRegistered&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const override { return bytes_; }

 private:
  std::shared_ptr<Regions> regions_;
  std::uint64_t number_;
  std::span<std::byte> bytes_;
};

}  // namespace

std::uint64_t Regions::add(std::size_t bytes, NodeMemory memory) {
  const std::uint64_t number = next_++;
  regions_.emplace(number, Region{number, bytes, std::move(memory)});
  return number;
}

const Region* Regions::find(std::uint64_t number) const {
  const auto found = regions_.find(number);
  return found == regions_.end() ? nullptr : &found->second;
}

NodeReducer::Place Regions::locate(const std::byte* data, std::size_t bytes, int local_rank) const {
  for (const auto& [number, region] : regions_) {
    const std::byte* begin = region.memory.part(local_rank);
    if (data >= begin && data + bytes <= begin + region.bytes) {
      return {number, static_cast<std::uint64_t>(data - begin)};
    }
  }
  return {};
}

GroupData::GroupData(Core& core, const CommOptions& options)
    : core_(core),
      options_(options),
      reducer_(core.group, core.layout.max_local_size, std::max<std::size_t>(options.segment_bytes, 1024)),
      regions_(std::make_shared<Regions>()),
      all_ranks_(static_cast<std::size_t>(core.layout.topology.size)) {
  const Layout& layout = core.layout;
  if (options.algorithm == Algorithm::kSharedMemory && !core.one_node()) {
    throw Error(Errc::kInvalidArgument, "algorithm shm needs all ranks on one host, but there are " +
                                            std::to_string(layout.topology.nodes) +
                                            " hosts; use auto, hierarchical or ring");
  }
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  if (layout.topology.local_rank < layout.min_local_size) {
    for (const auto& node : layout.members) {
      carriers_.push_back(node[static_cast<std::size_t>(layout.topology.local_rank)]);
    }
  }
  if (core.transport != nullptr) {
    ring_.emplace(*core.transport, std::max<std::size_t>(options.segment_bytes, 1024));
    doubling_.emplace(*core.transport);
  }
}

Members GroupData::everybody() const { return {all_ranks_, static_cast<std::size_t>(core_.layout.topology.rank)}; }

std::unique_ptr<RegisteredMemory> GroupData::allocate(std::size_t bytes, Deadline deadline) {
  const Wait wait = core_.begin("allocate", bytes, deadline);
  NodeMemory memory = core_.group.allocate(bytes, wait);
  std::byte* mine = memory.part(core_.layout.topology.local_rank);
  const std::uint64_t number = regions_->add(bytes, std::move(memory));
  return std::make_unique<NodeRegistered>(regions_, number, std::span(mine, bytes));
}

Algorithm GroupData::choose(std::size_t bytes) const {
  if (options_.algorithm != Algorithm::kAuto) return options_.algorithm;
  if (core_.one_node()) return Algorithm::kSharedMemory;
  const bool one_rank_per_node = core_.layout.topology.size == core_.layout.topology.nodes;
  if (!one_rank_per_node) return Algorithm::kHierarchical;
  return bytes <= kDoublingBytes ? Algorithm::kRecursiveDoubling : Algorithm::kRing;
}

void GroupData::all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) {
  const int world = core_.layout.topology.size;
  const Wait wait = core_.begin("all_reduce", count * size_of(dtype), deadline);
  if (count == 0 || world == 1) return;
  auto* bytes = static_cast<std::byte*>(data);
  const Reduction reduction{count, dtype, op, op == ReduceOp::kAverage ? world : 1};
  switch (choose(wait.bytes)) {
    case Algorithm::kAuto:
    case Algorithm::kSharedMemory: return shared_memory(bytes, reduction, wait);
    case Algorithm::kHierarchical: return hierarchical(bytes, reduction, wait);
    case Algorithm::kRing: return flat_ring(bytes, reduction, wait);
    case Algorithm::kMpiAllreduce: return library(bytes, reduction, wait);
    case Algorithm::kRecursiveDoubling:
      ran_.insert("doubling over " + core_.transport->name());
      return doubling_->all_reduce(everybody(), bytes, count, dtype, op, reduction.divisor, wait);
  }
}

void GroupData::flat_ring(std::byte* data, const Reduction& reduction, const Wait& wait) {
  ran_.insert("ring over " + core_.transport->name());
  ring_->all_reduce(everybody(), data, reduction.count, reduction.dtype, reduction.op, reduction.divisor, wait);
}

void GroupData::library(std::byte* data, const Reduction& reduction, const Wait& wait) {
  if (!core_.transport->library_all_reduce(data, reduction.count, reduction.dtype, reduction.op, wait)) {
    return flat_ring(data, reduction, wait);  // fp16 and bf16 are no MPI types; description() tells
  }
  ran_.insert(core_.transport->name() + "'s own");
  divide(data, reduction.count, reduction.dtype, reduction.divisor);
}

std::vector<std::byte*> GroupData::parts_of(std::byte* data, const Reduction& reduction, const Wait& wait) {
  const NodeReducer::Place mine = regions_->locate(data, wait.bytes, core_.group.rank());
  const auto places = reducer_.exchange_places(mine, reduction, wait);
  // All ranks must come to the same decision, so it may rest only on what was exchanged: a rank that names a
  // region has not freed it, hence one region named by all is known to all.
  const std::uint64_t number = places.front().region;
  const bool same = std::all_of(places.begin(), places.end(), [&](const auto& p) { return p.region == number; });
  if (number == 0 || !same) return {};
  const Region* region = regions_->find(number);
  HVD_ASSERT(region != nullptr);
  std::vector<std::byte*> parts;
  parts.reserve(places.size());
  for (std::size_t r = 0; r < places.size(); ++r) {
    parts.push_back(region->memory.part(static_cast<int>(r)) + places[r].offset);
  }
  return parts;
}

void GroupData::shared_memory(std::byte* data, const Reduction& reduction, const Wait& wait) {
  ran_.insert("shm");
  if (wait.bytes <= kSlotBytes) return reducer_.reduce_small(data, reduction, wait);
  const auto parts = parts_of(data, reduction, wait);
  if (parts.empty()) return reducer_.reduce_staged(data, reduction, wait);
  reducer_.reduce_in_place(parts, reduction, wait);
}

void GroupData::between_nodes(std::byte* data, const Reduction& share, std::size_t carriers, const Wait& wait) {
  const Members members{carriers_, static_cast<std::size_t>(core_.layout.topology.node)};
  const std::size_t bytes = share.count * size_of(share.dtype);
  const bool small = bytes * carriers <= kDoublingBytes;
  ran_.insert("hierarchical(shm+" + std::string(small ? "doubling" : "ring") + " over " + core_.transport->name() +
              ")");
  if (small) {
    doubling_->all_reduce(members, data, share.count, share.dtype, share.op, share.divisor, wait);
  } else {
    ring_->all_reduce(members, data, share.count, share.dtype, share.op, share.divisor, wait);
  }
}

void GroupData::hierarchical(std::byte* data, const Reduction& reduction, const Wait& wait) {
  if (core_.one_node()) return shared_memory(data, reduction, wait);
  if (core_.group.size() == 1 && core_.layout.min_local_size == 1 &&
      core_.layout.topology.size == core_.layout.topology.nodes) {
    return between_nodes(data, reduction, 1, wait);
  }
  if (wait.bytes <= kSlotBytes) return hierarchical_small(data, reduction, wait);
  if (const auto parts = parts_of(data, reduction, wait); !parts.empty()) {
    return hierarchical_block(parts, reduction, wait);
  }
  const std::size_t element = size_of(reduction.dtype);
  std::vector<std::byte*> staged;
  staged.reserve(static_cast<std::size_t>(core_.group.size()));
  for (int r = 0; r < core_.group.size(); ++r) staged.push_back(reducer_.staging(r, 0, wait));
  std::byte* mine = staged[static_cast<std::size_t>(core_.group.rank())];
  for_each_chunk(reduction.count, 4 * reducer_.block_bytes() / element, [&](Range range) {
    Reduction block = reduction;
    block.count = range.count;
    std::memcpy(mine, data + range.begin * element, range.count * element);
    core_.group.sync(wait);
    hierarchical_block(staged, block, wait);
    std::memcpy(data + range.begin * element, mine, range.count * element);
  });
}

void GroupData::hierarchical_small(std::byte* data, const Reduction& reduction, const Wait& wait) {
  reducer_.reduce_small_to_leader(data, reduction, wait);
  if (core_.leader()) between_nodes(data, reduction, 1, wait);
  reducer_.broadcast_small(data, wait.bytes, 0, wait);
}

// Every carrier (as many per node as the smallest node has ranks) reduces its share of all local buffers,
// takes it through its own ring over the nodes, and writes the result into all local buffers.
void GroupData::hierarchical_block(std::span<std::byte* const> parts, const Reduction& reduction, const Wait& wait) {
  const auto me = static_cast<std::size_t>(core_.group.rank());
  const auto carriers = static_cast<std::size_t>(core_.layout.min_local_size);
  if (me < carriers) {
    const std::size_t element = size_of(reduction.dtype);
    const Range range = share_of(reduction.count, carriers, me, kAlign);
    std::vector<std::byte*> mine;
    mine.reserve(parts.size());
    for (std::byte* part : parts) mine.push_back(part + range.begin * element);
    const std::vector<const std::byte*> inputs(mine.begin(), mine.end());
    Reduction share = reduction;
    share.count = range.count;
    if (range.count > 0) {
      reduce_many(inputs, std::span<std::byte* const>(&mine[me], 1), range.count, reduction.dtype, reduction.op);
      between_nodes(mine[me], share, carriers, wait);
      for (std::size_t r = 0; r < mine.size(); ++r) {
        if (r != me) std::memcpy(mine[r], mine[me], range.count * element);
      }
    }
  }
  core_.group.sync(wait);
}

void GroupData::broadcast(void* data, std::size_t bytes, int root, Deadline deadline) {
  const Layout& layout = core_.layout;
  if (root < 0 || root >= layout.topology.size) {
    throw Error(Errc::kInvalidArgument, "broadcast from rank " + std::to_string(root) + " in a world of " +
                                            std::to_string(layout.topology.size));
  }
  const Wait wait = core_.begin("broadcast", bytes, deadline);
  if (bytes == 0 || layout.topology.size == 1) return;
  const auto root_node = static_cast<std::size_t>(layout.node_of[static_cast<std::size_t>(root)]);
  const bool on_root_node = static_cast<std::size_t>(layout.topology.node) == root_node;
  const int speaker = on_root_node ? layout.local_rank_of[static_cast<std::size_t>(root)] : 0;
  std::vector<int> speakers;  // one per node
  for (const auto& node : layout.members) speakers.push_back(node.front());
  speakers[root_node] = root;
  const std::span<std::byte> all(static_cast<std::byte*>(data), bytes);
  for_each_chunk(bytes, kBroadcastBytes, [&](Range range) {
    const auto piece = all.subspan(range.begin, range.count);
    if (!core_.one_node() && core_.group.rank() == speaker) {
      const Members members{speakers, static_cast<std::size_t>(layout.topology.node)};
      tree_broadcast(*core_.transport, members, root_node, piece, wait);
    }
    if (core_.group.size() == 1) return;
    if (range.count <= kSlotBytes) {
      reducer_.broadcast_small(piece.data(), range.count, speaker, wait);
    } else {
      reducer_.broadcast_staged(piece.data(), range.count, speaker, wait);
    }
  });
}

std::string GroupData::description() const {
  std::string text;
  for (const std::string& one : ran_) text += (text.empty() ? "" : " + ") + one;
  if (text.empty()) text = std::string(name(options_.algorithm)) + " (nothing reduced yet)";
  return text;
}

}  // namespace hvd::comm
