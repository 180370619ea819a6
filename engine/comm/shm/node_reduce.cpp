#include "engine/comm/shm/node_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "engine/base/error.h"
#include "engine/comm/reduce.h"
#include "engine/comm/shm/node_group.h"

namespace hvd::comm {
namespace {

/// Smallest chunk that a rank claims. A claim is an atomic operation on one cache line; smaller chunks need too many
/// claims.
constexpr std::size_t kMinChunkBytes = std::size_t{16} << 10;
/// Half the size of a typical second-level cache. The buffers that are in use at the same time share these bytes.
constexpr std::size_t kStagingBytes = std::size_t{1} << 20;

/// Inputs and Outputs are on the heap: their allocation takes no noticeable time compared with a large operation.
using Inputs = std::vector<const std::byte*>;
using Outputs = std::vector<std::byte*>;

}  // namespace

NodeReducer::NodeReducer(NodeGroup& group, int largest_group, std::size_t segment_bytes)
    : group_(group),
      segment_bytes_(segment_bytes),
      block_bytes_(
          std::max(kSlotBytes, kStagingBytes / static_cast<std::size_t>(largest_group) / kSlotBytes * kSlotBytes)) {}

void NodeReducer::post(std::byte* data, const Reduction& reduction, const Wait& wait) {
  Slot& slot = group_.next_slot();
  slot.descriptor.count = reduction.count;
  slot.descriptor.dtype = static_cast<std::uint32_t>(reduction.dtype);
  slot.descriptor.op = static_cast<std::uint32_t>(reduction.op);
  slot.descriptor.block = 0;
  std::memcpy(slot.payload.data(), data, reduction.count * size_of(reduction.dtype));
  group_.sync(wait);
  check_same_arguments(group_, wait);
}

void NodeReducer::sum_slots(std::byte* data, const Reduction& reduction, int divisor) {
  inputs_.clear();
  for (int r = 0; r < group_.size(); ++r) inputs_.push_back(group_.slot(r).payload.data());
  reduce_many(inputs_, std::span<std::byte* const>(&data, 1), reduction.count, reduction.dtype, reduction.op, divisor);
}

void NodeReducer::reduce_small(std::byte* data, const Reduction& reduction, const Wait& wait) {
  post(data, reduction, wait);
  sum_slots(data, reduction, reduction.divisor);
}

void NodeReducer::reduce_small_to_leader(std::byte* data, const Reduction& reduction, const Wait& wait) {
  post(data, reduction, wait);
  if (group_.rank() == 0) sum_slots(data, reduction, 1);
}

void NodeReducer::broadcast_small(std::byte* data, std::size_t bytes, int root, const Wait& wait) {
  if (group_.rank() == root) std::memcpy(group_.next_slot().payload.data(), data, bytes);
  group_.sync(wait);
  if (group_.rank() != root) std::memcpy(data, group_.slot(root).payload.data(), bytes);
}

std::span<const NodeReducer::Place> NodeReducer::exchange_places(Place mine, const std::byte* data,
                                                                 const Reduction& reduction, const Wait& wait) {
  Slot& slot = group_.next_slot();
  Descriptor& descriptor = slot.descriptor;
  const std::size_t bytes = reduction.count * size_of(reduction.dtype);
  if (mine.region == 0 && bytes <= kSlotBytes) std::memcpy(slot.payload.data(), data, bytes);
  descriptor.count = reduction.count;
  descriptor.dtype = static_cast<std::uint32_t>(reduction.dtype);
  descriptor.op = static_cast<std::uint32_t>(reduction.op);
  descriptor.region = mine.region;
  descriptor.offset = mine.offset;
  descriptor.block = segment_bytes_;
  if (group_.rank() == 0) group_.prepare_work();
  group_.sync(wait);
  check_same_arguments(group_, wait);
  places_.clear();
  for (int r = 0; r < group_.size(); ++r) {
    const Descriptor& its = group_.slot(r).descriptor;
    places_.push_back({its.region, its.offset});
  }
  return places_;
}

void NodeReducer::reduce_posted(std::byte* data, const Reduction& reduction, const Wait& wait) {
  const bool posted = std::all_of(places_.begin(), places_.end(), [](const Place& place) { return place.region == 0; });
  if (!posted) return reduce_small(data, reduction, wait);
  sum_slots(data, reduction, reduction.divisor);
}

void NodeReducer::reduce_in_place(std::span<std::byte* const> parts, const Reduction& reduction, const Wait& wait) {
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t bytes = reduction.count * element;
  const std::size_t chunk_bytes =
      std::clamp(bytes / (4 * parts.size()), std::min(kMinChunkBytes, segment_bytes_), segment_bytes_);
  const std::size_t chunk = std::max(kShareAlign, chunk_bytes / element / kShareAlign * kShareAlign);
  const std::size_t total = chunk_count(reduction.count, chunk);
  if (total > UINT32_MAX / 2) {
    throw Error(Errc::kInvalidArgument, fmt::format("segment_bytes is too small for {} elements", reduction.count));
  }

  Work& work = group_.work();
  Inputs inputs(parts.size());
  Outputs outputs(parts.size());
  while (true) {
    const std::uint32_t index = work.next.load(std::memory_order_relaxed) < total ? work.next.fetch_add(1) : UINT32_MAX;
    if (index >= total) break;
    group_.set_working(index + 1);
    const Range range = chunk_range(reduction.count, chunk, index);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      outputs[r] = parts[r] + range.begin * element;
      inputs[r] = outputs[r];
    }
    reduce_many(inputs, outputs, range.count, reduction.dtype, reduction.op, reduction.divisor);
    group_.set_working(0);
    if (work.done.value.fetch_add(1) + 1 == total && work.done.sleepers.load() != 0) NodeGroup::wake(work.done);
  }
  group_.await_work(static_cast<std::uint32_t>(total), wait);
}

std::byte* NodeReducer::staging(int local_rank, std::size_t half, const Wait& wait) {
  // A rank has two blocks for its input and two blocks for the results of its shares.
  if (!staging_) staging_ = group_.allocate(4 * block_bytes_, wait);
  return staging_->part(local_rank) + half * block_bytes_;
}

// reduce_staged() is for buffers that the other ranks cannot read. The message passes, block by block, through staging
// memory that all ranks of the node see; every rank has some for its input and some for its result. In each block every
// rank has a share, which it sums over all ranks:
//
//   rank 1 of 3, one block       shares 0 1 2
//   1 copy in      own buffer    [ a b c ] ──► input of rank 1   [ a . c ]      the others will sum these
//   2 sum          share 1 of input of rank 0 + own buffer + input of rank 2 ──► own buffer, and result of rank 1
//   3 copy out     share 0 of result of rank 0, share 2 of result of rank 2 ──► own buffer
//
// A rank's own share is never staged, because the rank reads and writes it in its own buffer. Inputs are added in the
// order of ranks, whoever adds them, so the bits do not depend on the cuts.
//
// Each rank counts the blocks that it has copied in (`filled`) and the blocks whose share it has summed (`reduced`),
// and waits twice per block until the counters of all ranks have come so far. It copies block k + 1 in before it waits
// for the sums of block k, so that it has work while slower ranks still sum:
//
//   in 0 ▸filled 1▸ sum 0, in 1 ▸reduced 1▸ out 0 ▸filled 2▸ sum 1, in 2 ▸reduced 2▸ out 1 ▸filled 3▸ ...
//
// Staging has two halves that alternate, and block k + 2 may use the half of block k. Its inputs are copied in after
// all ranks have reduced block k. Its results are written after all ranks have copied block k out, because a rank
// advances `filled` for block k + 2 only then.
void NodeReducer::reduce_staged(std::byte* data, const Reduction& reduction, const Wait& wait) {
  const auto n = static_cast<std::size_t>(group_.size());
  const auto me = static_cast<std::size_t>(group_.rank());
  const std::size_t element = size_of(reduction.dtype);
  const std::size_t block = block_bytes_ / element;
  const std::size_t blocks = chunk_count(reduction.count, block);
  const std::uint32_t before = blocks_;
  staging(0, 0, wait);
  const auto half = [&](std::size_t k) { return (before + k) % 2; };
  const auto shares = [&](std::size_t k, std::size_t r) {
    return share_of(chunk_range(reduction.count, block, k).count, n, r, kShareAlign);
  };
  const auto own = [&](std::size_t k, Range share) { return data + (k * block + share.begin) * element; };
  const auto input = [&](std::size_t r, std::size_t k) { return staging(static_cast<int>(r), half(k), wait); };
  const auto result = [&](std::size_t r, std::size_t k) { return staging(static_cast<int>(r), 2 + half(k), wait); };

  const auto copy_in = [&](std::size_t k) {
    for (std::size_t r = 0; r < n; ++r) {
      const Range share = shares(k, r);
      if (r != me) std::memcpy(input(me, k) + share.begin * element, own(k, share), share.count * element);
    }
    group_.advance(&Cell::filled);
  };
  Inputs inputs(n);
  Outputs outputs(2);
  copy_in(0);
  for (std::size_t k = 0; k < blocks; ++k) {
    const auto done = before + static_cast<std::uint32_t>(k) + 1;
    group_.await_all(&Cell::filled, done, wait);
    const Range mine = shares(k, me);
    for (std::size_t r = 0; r < n; ++r) inputs[r] = r == me ? own(k, mine) : input(r, k) + mine.begin * element;
    outputs = {own(k, mine), result(me, k) + mine.begin * element};
    reduce_many(inputs, outputs, mine.count, reduction.dtype, reduction.op, reduction.divisor);
    group_.advance(&Cell::reduced);
    if (k + 1 < blocks) copy_in(k + 1);
    group_.await_all(&Cell::reduced, done, wait);
    for (std::size_t r = 0; r < n; ++r) {
      const Range share = shares(k, r);
      if (r != me) std::memcpy(own(k, share), result(r, k) + share.begin * element, share.count * element);
    }
  }
  blocks_ += static_cast<std::uint32_t>(blocks);
}

void NodeReducer::broadcast_staged(std::byte* data, std::size_t bytes, int root, const Wait& wait) {
  const std::size_t block = block_bytes_;
  const std::size_t blocks = chunk_count(bytes, block);
  const std::uint32_t before = blocks_;
  staging(0, 0, wait);
  for (std::size_t k = 0; k < blocks; ++k) {
    const Range range = chunk_range(bytes, block, k);
    std::byte* shared = staging(root, (before + k) % 2, wait);
    const auto done = before + static_cast<std::uint32_t>(k) + 1;
    if (group_.rank() == root) {
      // Block k - 2 used this half, so all ranks must have copied block k - 2 out.
      if (k >= 2) group_.await_all(&Cell::reduced, done - 2, wait);
      std::memcpy(shared, data + range.begin, range.count);
      group_.advance(&Cell::filled);
      group_.advance(&Cell::reduced);
    } else {
      group_.advance(&Cell::filled);
      group_.await_one(&Cell::filled, root, done, wait);
      std::memcpy(data + range.begin, shared, range.count);
      group_.advance(&Cell::reduced);
    }
  }
  blocks_ += static_cast<std::uint32_t>(blocks);
  group_.await_all(&Cell::reduced, blocks_, wait);
}

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

}  // namespace hvd::comm
