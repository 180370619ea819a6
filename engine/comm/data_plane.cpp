#include "engine/comm/data_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/comm/algorithm/pairwise.h"
#include "engine/comm/algorithm/recursive.h"
#include "engine/comm/arguments.h"
#include "engine/comm/chunks.h"
#include "engine/comm/reduce.h"

namespace hvd::comm {
namespace {

/// A broadcast between nodes sends pieces of this size down the tree.
constexpr std::size_t kBroadcastBytes = std::size_t{1} << 20;
/// On one node, an all-reduce of up to this many bytes copies even registered memory, because reducing in place needs
/// more synchronisation than reducing copies (time in place / time with copies, on two cores of an AMD EPYC: 1.09 at 16
/// KiB, 0.67 at 32 KiB).
constexpr std::size_t kCopiedBytes = std::size_t{16} << 10;

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

GroupData::GroupData(RankState& state, const CommOptions& options)
    : state_(state),
      options_(options),
      reducer_(state.group, state.layout.max_local_size, std::max<std::size_t>(options.segment_bytes, 1024)),
      regions_(std::make_shared<Regions>()),
      exchange_(state.group, *regions_, std::max<std::size_t>(options.segment_bytes, 1024)),
      all_ranks_(static_cast<std::size_t>(state.layout.topology.size)) {
  const Layout& layout = state.layout;
  std::iota(all_ranks_.begin(), all_ranks_.end(), 0);
  if (layout.topology.local_rank < layout.min_local_size) {
    for (const auto& node : layout.members) {
      carriers_.push_back(node[static_cast<std::size_t>(layout.topology.local_rank)]);
    }
  }
  if (state.transport != nullptr) {
    doubling_.emplace(*state.transport);
    halving_.emplace(*state.transport);
  }
  choose(options);
}

void GroupData::choose(const CommOptions& options) {
  if (options.algorithm == Algorithm::kSharedMemory && !state_.one_node()) {
    throw Error(
        Errc::kInvalidArgument,
        fmt::format("algorithm shm needs all ranks on one host, but there are {} hosts; use auto, hierarchical or ring",
                    state_.layout.topology.nodes));
  }
  options_ = options;
  options_.segment_bytes = std::max<std::size_t>(options.segment_bytes, 1024);
  reducer_.set_segment(options_.segment_bytes);
  exchange_.set_segment(options_.segment_bytes);
  if (state_.transport == nullptr) return;
  // Between nodes no segment is longer than the eager limit: with longer ones, the rings of Open MPI over TCP took 1.1
  // to 1.8 times as long (docs/algorithms.md).
  const std::size_t eager = state_.transport->eager_bytes();
  const std::size_t segment = eager == 0 ? options_.segment_bytes : std::min(options_.segment_bytes, eager);
  ring_.emplace(*state_.transport, segment);
  share_ring_.emplace(*state_.transport, segment);
}

Members GroupData::everybody() const { return {all_ranks_, static_cast<std::size_t>(state_.layout.topology.rank)}; }

std::unique_ptr<RegisteredMemory> GroupData::allocate(std::size_t bytes, Deadline deadline) {
  const Wait wait = state_.begin("allocate", bytes, deadline);
  NodeMemory memory = state_.group.allocate(bytes, wait);
  std::byte* mine = memory.part(state_.layout.topology.local_rank);
  const std::uint64_t number = regions_->add(bytes, std::move(memory));
  return std::make_unique<NodeRegistered>(regions_, number, std::span(mine, bytes));
}

Algorithm GroupData::choose(std::size_t bytes) const {
  if (options_.algorithm != Algorithm::kAuto) return options_.algorithm;
  if (state_.one_node()) return Algorithm::kSharedMemory;
  const bool one_rank_per_node = state_.layout.topology.size == state_.layout.topology.nodes;
  return one_rank_per_node ? choose_between_nodes(bytes) : Algorithm::kHierarchical;
}

Algorithm GroupData::choose_between_nodes(std::size_t bytes) const {
  switch (options_.thresholds.all_reduce(bytes)) {
    case Exchange::kDoubling: return Algorithm::kRecursiveDoubling;
    case Exchange::kRabenseifner: return Algorithm::kRabenseifner;
    case Exchange::kRing: break;
  }
  return Algorithm::kRing;
}

bool GroupData::use_shared_memory() const {
  if (!state_.one_node()) return false;
  switch (options_.algorithm) {
    case Algorithm::kAuto:
    case Algorithm::kSharedMemory:
    case Algorithm::kHierarchical:
    case Algorithm::kMpiAllreduce: return true;  // kMpiAllreduce replaces only all_reduce()
    case Algorithm::kRing:
    case Algorithm::kRecursiveDoubling:
    case Algorithm::kRabenseifner: return state_.layout.topology.size == 1;
  }
  return false;
}

GroupData::Shares GroupData::choose_shares(std::size_t bytes) const {
  if (use_shared_memory()) return Shares::kSharedMemory;
  const bool direct = options_.algorithm == Algorithm::kRecursiveDoubling ||
                      options_.algorithm == Algorithm::kRabenseifner ||
                      (options_.algorithm != Algorithm::kRing && options_.thresholds.is_direct(bytes));
  if (!direct) return Shares::kRing;
  return std::has_single_bit(all_ranks_.size()) ? Shares::kHalving : Shares::kPairwise;
}

void GroupData::note(std::string_view algorithm, std::string_view detail) {
  ran_.insert(fmt::format("{} over {}{}", algorithm, state_.transport->name(), detail));
}

Reduction GroupData::reduction_of(std::size_t count, DataType dtype, ReduceOp op) const {
  return {count, dtype, op, op == ReduceOp::kAverage ? state_.layout.topology.size : 1};
}

void GroupData::all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) {
  const Wait wait = state_.begin("all_reduce", buffer_bytes("all_reduce", count, dtype), deadline, dtype);
  if (count == 0 || state_.layout.topology.size == 1) return;
  auto* bytes = static_cast<std::byte*>(data);
  const Reduction reduction = reduction_of(count, dtype, op);
  const Algorithm algorithm = choose(wait.bytes);
  switch (algorithm) {
    case Algorithm::kAuto:
    case Algorithm::kSharedMemory: return shared_memory(bytes, reduction, wait);
    case Algorithm::kHierarchical: return hierarchical(bytes, reduction, wait);
    case Algorithm::kMpiAllreduce: return library(bytes, reduction, wait);
    case Algorithm::kRing:
    case Algorithm::kRecursiveDoubling:
    case Algorithm::kRabenseifner:
      note(name(algorithm), wire_text(reduction));
      return over_transport(algorithm, everybody(), bytes, reduction, wait);
  }
}

void GroupData::all_reduce_into(void* out, const void* in, std::size_t count, DataType dtype, ReduceOp op,
                                Deadline deadline) {
  const std::size_t bytes = buffer_bytes("all_reduce_into", count, dtype);
  const std::span to(static_cast<std::byte*>(out), bytes);
  const std::span from(static_cast<const std::byte*>(in), bytes);
  check_apart("all_reduce_into", to, from);
  if (!use_shared_memory() || options_.algorithm == Algorithm::kMpiAllreduce) {
    copy_bytes(to.data(), from.data(), bytes);
    return all_reduce(out, count, dtype, op, deadline);
  }
  const Wait wait = state_.begin("all_reduce_into", bytes, deadline, dtype);
  if (count == 0) return;
  note_shared_memory();
  exchange_.all_reduce(to.data(), from.data(), reduction_of(count, dtype, op), wait);
}

DataType GroupData::wire_of(const Reduction& reduction) const {
  const bool adds = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  return adds && reduction.dtype == DataType::kF32 && !state_.one_node() ? options_.wire : reduction.dtype;
}

std::string GroupData::wire_text(const Reduction& reduction) const {
  const DataType wire = wire_of(reduction);
  return wire == reduction.dtype ? "" : fmt::format(", {} on the wire", hvd::name(wire));
}

void GroupData::over_transport(Algorithm algorithm, const Members& members, std::byte* data, const Reduction& reduction,
                               const Wait& wait) {
  const DataType wire = wire_of(reduction);
  if (algorithm == Algorithm::kRing) return ring_->all_reduce(members, data, reduction, wire, wait);
  // Doubling and halving run entirely in the wire's type: both partners of an exchange combine the values that were
  // sent.
  const bool rounds = wire != reduction.dtype;
  const Reduction travels = rounds ? Reduction{reduction.count, wire, reduction.op, 1} : reduction;
  std::byte* values = data;
  if (rounds) {
    if (wire_.size() < reduction.count * size_of(wire)) wire_.resize(reduction.count * size_of(wire));
    values = wire_.data();
    convert(values, wire, data, reduction.dtype, reduction.count);
  }
  if (algorithm == Algorithm::kRecursiveDoubling) {
    doubling_->all_reduce(members, values, travels.count, travels.dtype, travels.op, travels.divisor, wait);
  } else {
    halving_->all_reduce(members, values, travels, wait);
  }
  if (!rounds) return;
  convert(data, reduction.dtype, values, wire, reduction.count);
  divide(data, reduction.count, reduction.dtype, reduction.divisor);
}

void GroupData::library(std::byte* data, const Reduction& reduction, const Wait& wait) {
  // MPI has no fp16 and bf16. The ring reduces these two types, and description() then names the ring.
  if (wire_of(reduction) != reduction.dtype ||
      !state_.transport->library_all_reduce(data, reduction.count, reduction.dtype, reduction.op, wait)) {
    note("ring", wire_text(reduction));
    return over_transport(Algorithm::kRing, everybody(), data, reduction, wait);
  }
  ran_.insert(state_.transport->name() + "'s own");
  divide(data, reduction.count, reduction.dtype, reduction.divisor);
}

std::vector<std::byte*> GroupData::parts_of(std::byte* data, const Reduction& reduction, const Wait& wait) {
  const NodeReducer::Place mine = regions_->locate(data, wait.bytes, state_.group.rank());
  const auto places = reducer_.exchange_places(mine, data, reduction, wait);
  // All ranks must decide in the same way, so the decision uses only the places that the ranks exchanged. A rank that
  // names a region has not freed it. So if all ranks name the same region, all of them have it.
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
  note_shared_memory();
  if (wait.bytes <= kCopiedBytes) return reducer_.reduce_small(data, reduction, wait);
  const auto parts = parts_of(data, reduction, wait);
  if (!parts.empty()) return reducer_.reduce_in_place(parts, reduction, wait);
  if (wait.bytes <= kSlotBytes) return reducer_.reduce_posted(data, reduction, wait);
  reducer_.reduce_staged(data, reduction, wait);
}

void GroupData::between_nodes(std::byte* data, const Reduction& share, const Wait& wait) {
  const Members members{carriers_, static_cast<std::size_t>(state_.layout.topology.node)};
  // The thresholds are for whole messages: choose by the size of the whole message, even if `share` is a block of it.
  const Algorithm algorithm = choose_between_nodes(wait.bytes);
  note(fmt::format("hierarchical(shm+{}", name(algorithm)), wire_text(share) + ")");
  over_transport(algorithm, members, data, share, wait);
}

void GroupData::hierarchical(std::byte* data, const Reduction& reduction, const Wait& wait) {
  if (state_.one_node()) return shared_memory(data, reduction, wait);
  if (state_.group.size() == 1 && state_.layout.min_local_size == 1 &&
      state_.layout.topology.size == state_.layout.topology.nodes) {
    return between_nodes(data, reduction, wait);
  }
  if (wait.bytes <= kSlotBytes) return hierarchical_small(data, reduction, wait);
  if (const auto parts = parts_of(data, reduction, wait); !parts.empty()) {
    return hierarchical_block(parts, reduction, wait);
  }
  const std::size_t element = size_of(reduction.dtype);
  std::vector<std::byte*> staged;
  staged.reserve(static_cast<std::size_t>(state_.group.size()));
  for (int r = 0; r < state_.group.size(); ++r) staged.push_back(reducer_.staging(r, 0, wait));
  std::byte* mine = staged[static_cast<std::size_t>(state_.group.rank())];
  for_each_chunk(reduction.count, 4 * reducer_.block_bytes() / element, [&](Range range) {
    Reduction block = reduction;
    block.count = range.count;
    std::memcpy(mine, data + range.begin * element, range.count * element);
    state_.group.sync(wait);
    hierarchical_block(staged, block, wait);
    std::memcpy(data + range.begin * element, mine, range.count * element);
  });
}

void GroupData::hierarchical_small(std::byte* data, const Reduction& reduction, const Wait& wait) {
  reducer_.reduce_small_to_leader(data, reduction, wait);
  if (state_.leader()) between_nodes(data, reduction, wait);
  reducer_.broadcast_small(data, wait.bytes, 0, wait);
}

// A carrier is a rank that reduces one share of the data. Each node has as many carriers as the smallest node has
// ranks. A carrier reduces its share of all local buffers, reduces the result with the carriers of the other nodes that
// have the same share, and writes that sum into all local buffers.
void GroupData::hierarchical_block(std::span<std::byte* const> parts, const Reduction& reduction, const Wait& wait) {
  const auto me = static_cast<std::size_t>(state_.group.rank());
  const auto carriers = static_cast<std::size_t>(state_.layout.min_local_size);
  if (me < carriers) {
    const std::size_t element = size_of(reduction.dtype);
    const Range range = share_of(reduction.count, carriers, me, kShareAlign);
    std::vector<std::byte*> mine;
    mine.reserve(parts.size());
    for (std::byte* part : parts) mine.push_back(part + range.begin * element);
    const std::vector<const std::byte*> inputs(mine.begin(), mine.end());
    Reduction share = reduction;
    share.count = range.count;
    if (range.count > 0) {
      reduce_many(inputs, std::span<std::byte* const>(&mine[me], 1), range.count, reduction.dtype, reduction.op);
      between_nodes(mine[me], share, wait);
      for (std::size_t r = 0; r < mine.size(); ++r) {
        if (r != me) std::memcpy(mine[r], mine[me], range.count * element);
      }
    }
  }
  state_.group.sync(wait);
}

void GroupData::reduce_scatter(void* out, const void* in, Counts counts, DataType dtype, ReduceOp op,
                               Deadline deadline) {
  check_counts("reduce_scatter", counts, state_.layout.topology.size);
  const Offsets offsets = offsets_of(counts, offsets_);
  const std::size_t bytes = buffer_bytes("reduce_scatter", offsets.back(), dtype);
  const auto me = static_cast<std::size_t>(state_.layout.topology.rank);
  const std::size_t element = size_of(dtype);
  auto* to = static_cast<std::byte*>(out);
  const auto* from = static_cast<const std::byte*>(in);
  const std::byte* own_place = from + offsets[me] * element;
  if (to != own_place) check_apart("reduce_scatter", {to, counts[me] * element}, {from, bytes});
  const Wait wait = state_.begin("reduce_scatter", bytes, deadline, dtype);
  if (wait.bytes == 0) return;
  const Reduction share = reduction_of(counts[me], dtype, op);
  switch (choose_shares(wait.bytes)) {
    case Shares::kSharedMemory: note_shared_memory(); return exchange_.reduce_scatter(to, from, offsets, share, wait);
    case Shares::kRing: note("ring"); return share_ring_->reduce_scatter(everybody(), to, from, offsets, share, wait);
    case Shares::kPairwise:
      note("pairwise");
      return pairwise_reduce_scatter(*state_.transport, everybody(), to, from, offsets, share, scratch_, wait);
    case Shares::kHalving:
      note("halving");
      scratch_.assign(from, from + wait.bytes);
      halving_->reduce_scatter(everybody(), scratch_.data(), offsets, reduction_of(offsets.back(), dtype, op), wait);
      copy_bytes(to, scratch_.data() + offsets[me] * element, share.count * element);
  }
}

void GroupData::all_gather(void* out, const void* in, Counts counts, DataType dtype, Deadline deadline) {
  check_counts("all_gather", counts, state_.layout.topology.size);
  const Offsets offsets = offsets_of(counts, offsets_);
  const std::size_t bytes = buffer_bytes("all_gather", offsets.back(), dtype);
  const auto me = static_cast<std::size_t>(state_.layout.topology.rank);
  const std::size_t element = size_of(dtype);
  auto* to = static_cast<std::byte*>(out);
  const auto* from = static_cast<const std::byte*>(in);
  std::byte* own_place = to + offsets[me] * element;
  if (from != own_place) check_apart("all_gather", {to, bytes}, {from, counts[me] * element});
  const Wait wait = state_.begin("all_gather", bytes, deadline, dtype);
  if (wait.bytes == 0) return;
  switch (choose_shares(wait.bytes)) {
    case Shares::kSharedMemory: note_shared_memory(); return exchange_.all_gather(to, from, offsets, dtype, wait);
    case Shares::kRing: note("ring"); return share_ring_->all_gather(everybody(), to, from, offsets, element, wait);
    case Shares::kPairwise:
      note("pairwise");
      return pairwise_all_gather(*state_.transport, everybody(), to, from, offsets, element, wait);
    case Shares::kHalving:
      note("doubling");
      copy_bytes(own_place, from, counts[me] * element);
      return halving_->all_gather(everybody(), to, offsets, element, wait);
  }
}

void GroupData::all_to_all(void* out, Counts receive_counts, const void* in, Counts send_counts, DataType dtype,
                           Deadline deadline) {
  check_counts("all_to_all", send_counts, state_.layout.topology.size);
  check_counts("all_to_all", receive_counts, state_.layout.topology.size);
  const Offsets to = offsets_of(receive_counts, receive_offsets_);
  const Offsets from = offsets_of(send_counts, offsets_);
  const std::size_t bytes = buffer_bytes("all_to_all", from.back(), dtype);
  auto* target = static_cast<std::byte*>(out);
  const auto* source = static_cast<const std::byte*>(in);
  check_apart("all_to_all", {target, buffer_bytes("all_to_all", to.back(), dtype)}, {source, bytes});
  const auto me = static_cast<std::size_t>(state_.layout.topology.rank);
  // With shared memory no check is needed here: all ranks see all counts and detect a difference together.
  if (!use_shared_memory()) check_own_block(me, send_counts[me], receive_counts[me]);
  const Wait wait = state_.begin("all_to_all", bytes, deadline, dtype);
  if (use_shared_memory()) {
    note_shared_memory();
    return exchange_.all_to_all(target, to, source, from, dtype, wait);
  }
  note("pairwise");
  pairwise_all_to_all(*state_.transport, everybody(), target, to, source, from, size_of(dtype), wait);
}

void GroupData::broadcast(void* data, std::size_t bytes, int root, Deadline deadline) {
  const Layout& layout = state_.layout;
  check_root("broadcast", root, layout.topology.size);
  const Wait wait = state_.begin("broadcast", bytes, deadline);
  if (bytes == 0 || layout.topology.size == 1) return;
  const std::span<std::byte> all(static_cast<std::byte*>(data), bytes);
  if (state_.one_node()) return exchange_.broadcast(all.data(), bytes, root, wait);
  exchange_.check_same_root(bytes, root, wait);
  const auto root_node = static_cast<std::size_t>(layout.node_of[static_cast<std::size_t>(root)]);
  const bool on_root_node = static_cast<std::size_t>(layout.topology.node) == root_node;
  const int speaker = on_root_node ? layout.local_rank_of[static_cast<std::size_t>(root)] : 0;
  // [node]: the rank that sends and receives for its node: on the root's node the root, on other nodes the leader.
  std::vector<int> speakers;
  for (const auto& node : layout.members) speakers.push_back(node.front());
  speakers[root_node] = root;
  for_each_chunk(bytes, kBroadcastBytes, [&](Range range) {
    const auto piece = all.subspan(range.begin, range.count);
    if (state_.group.rank() == speaker) {
      const Members members{speakers, static_cast<std::size_t>(layout.topology.node)};
      tree_broadcast(*state_.transport, members, root_node, piece, wait);
    }
    if (state_.group.size() == 1) return;
    if (range.count <= kSlotBytes) {
      reducer_.broadcast_small(piece.data(), range.count, speaker, wait);
    } else {
      reducer_.broadcast_staged(piece.data(), range.count, speaker, wait);
    }
  });
}

std::string GroupData::description() const {
  std::string text;
  for (const std::string& algorithm : ran_) text += (text.empty() ? "" : " + ") + algorithm;
  if (text.empty()) text = std::string(name(options_.algorithm)) + " (nothing reduced yet)";
  return text;
}

}  // namespace hvd::comm
