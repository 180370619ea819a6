#include "engine/comm/shm/node_exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "engine/base/assert.h"
#include "engine/base/error.h"
#include "engine/comm/arguments.h"
#include "engine/comm/shm/node_group.h"

namespace hvd::comm {
namespace {

/// A lane is the part of a staging block that one reader reads, or that all readers read. Lanes begin at multiples of
/// this many bytes, so that each cache line belongs to one lane.
constexpr std::size_t kLaneAlign = 64;
/// Segments per staging block if ranks outnumber cores; otherwise a block has one segment. With more ranks than cores
/// every synchronisation costs a wake-up, and larger blocks need fewer of them.
constexpr std::size_t kCrowdedSegments = 16;
/// A broadcast divides the staging block by this number, because the root fills one block while the readers copy out
/// the previous one. With eighths of a block, a broadcast of 256 KiB (one whole block) took 0.47 of the time that it
/// takes with whole blocks; a broadcast of 1 MiB (four whole blocks) took 0.82.
constexpr std::size_t kBroadcastBlocks = 8;
/// Maximum size of each half of a node's staging memory. Both halves together fit into a container's /dev/shm (64 MiB
/// by default).
constexpr std::size_t kMaxStagedBytes = std::size_t{8} << 20;

/// An input in registered memory is copied into the slot if it has at most this many bytes. The copy costs less than
/// the second synchronisation that reading registered memory needs.
constexpr std::size_t kMaxCopied = std::size_t{8} << 10;

/// Returns how many bytes of input a rank may post in its slot after a table of `table` bytes.
std::size_t most_posted(std::uint64_t region, std::size_t table) {
  const std::size_t most = region == 0 ? kSlotBytes : kMaxCopied;
  return most - std::min(table, most);
}

Range share_at(Offsets offsets, std::size_t p) { return {offsets[p], offsets[p + 1] - offsets[p]}; }

void append_shares(std::vector<Range>& shares, Offsets offsets) {
  for (std::size_t p = 0; p + 1 < offsets.size(); ++p) shares.push_back(share_at(offsets, p));
}

void append_counts(std::vector<std::size_t>& counts, Offsets offsets) {
  for (std::size_t p = 0; p + 1 < offsets.size(); ++p) counts.push_back(share_at(offsets, p).count);
}

}  // namespace

NodeExchange::NodeExchange(NodeGroup& group, const Regions& regions, std::size_t segment_bytes)
    : group_(group), regions_(regions) {
  set_segment(segment_bytes);
}

void NodeExchange::set_segment(std::size_t bytes) {
  const auto n = static_cast<std::size_t>(group_.size());
  const std::size_t most = kMaxStagedBytes / n;
  const std::size_t segments = group_.crowded() ? kCrowdedSegments : 1;
  const std::size_t wanted = std::max(bytes < most / segments ? segments * bytes : most, n * kLaneAlign);
  block_bytes_ = wanted / kLaneAlign * kLaneAlign;
  // The next operation that stages data allocates new memory on all ranks. A peer that still reads its last block keeps
  // the old memory alive with its own reference.
  staging_.reset();
}

void NodeExchange::post(std::span<const std::byte> in, const Arguments& arguments, std::span<const std::size_t> table,
                        const Wait& wait, Input input) {
  if (table.size_bytes() > kSlotBytes) {
    throw Error(Errc::kUnsupported,
                fmt::format("{} between {} ranks of one host: their counts do not fit; use algorithm ring",
                            wait.operation, group_.size()));
  }
  Slot& slot = group_.next_slot();
  const auto place = in.empty() ? NodeReducer::Place{} : regions_.locate(in.data(), in.size(), group_.rank());
  slot.descriptor.count = arguments.count;
  slot.descriptor.dtype = static_cast<std::uint32_t>(arguments.dtype);
  slot.descriptor.op = arguments.op;
  slot.descriptor.region = place.region;
  slot.descriptor.offset = place.offset;
  slot.descriptor.block = block_bytes_;
  const auto entries = std::as_bytes(table);
  copy_bytes(slot.payload.data(), entries.data(), entries.size());
  const std::uint64_t region = input == Input::kCopied ? 0 : place.region;
  if (input != Input::kUnread && in.size() <= most_posted(region, entries.size()))
    copy_bytes(slot.payload.data() + entries.size(), in.data(), in.size());
  group_.sync(wait);
  check_same_arguments(group_, wait);
}

std::span<const std::size_t> NodeExchange::posted_table(int local_rank, std::size_t entries) const {
  return {reinterpret_cast<const std::size_t*>(group_.slot(local_rank).payload.data()), entries};
}

const std::byte* NodeExchange::posted_input(int local_rank, std::size_t entries) const {
  return group_.slot(local_rank).payload.data() + entries * sizeof(std::size_t);
}

void NodeExchange::check_same_counts(std::size_t entries, const Wait& wait) const {
  const auto first = posted_table(0, entries);
  for (int r = 1; r < group_.size(); ++r) {
    const auto other = posted_table(r, entries);
    const auto [mine, theirs] = std::mismatch(first.begin(), first.end(), other.begin());
    if (mine == first.end()) continue;
    const std::string whose = rank_name(group_, static_cast<int>(mine - first.begin()));
    throw_disagreement(group_, wait,
                       fmt::format("{} gives {} a share of {} elements, {} one of {}", rank_name(group_, 0), whose,
                                   *mine, rank_name(group_, r), *theirs));
  }
}

NodeExchange::Method NodeExchange::method(const Plan& plan) const {
  bool fit = true;
  bool registered = true;
  std::uint64_t region = 0;
  for (int r = 0; r < group_.size(); ++r) {
    const std::size_t bytes = plan.given[static_cast<std::size_t>(r)] * plan.element;
    if (bytes == 0) continue;
    const std::uint64_t its = group_.slot(r).descriptor.region;
    fit = fit && bytes <= most_posted(its, plan.table * sizeof(std::size_t));
    registered = registered && its != 0 && (region == 0 || its == region);
    region = its;
  }
  if (fit) return Method::kSlots;
  // A rank whose input is empty names no region. It may have freed the region that the other ranks name, so no rank
  // reads in place then.
  registered = registered && std::none_of(plan.given.begin(), plan.given.end(), [](std::size_t n) { return n == 0; });
  return registered ? Method::kRegistered : Method::kStaged;
}

const Region& NodeExchange::posted_region() const {
  const Region* const region = regions_.find(group_.slot(0).descriptor.region);
  HVD_ASSERT(region != nullptr);
  return *region;
}

std::byte* NodeExchange::posted_place(const Region& region, int local_rank) const {
  return region.memory.part(local_rank) + group_.slot(local_rank).descriptor.offset;
}

NodeExchange::Plan& NodeExchange::new_plan(const std::byte* in, std::size_t element, std::size_t table) {
  plan_.in = in;
  plan_.element = element;
  plan_.table = table;
  plan_.lanes.clear();
  plan_.wanted.clear();
  plan_.given.clear();
  plan_.longest = 0;
  plan_.block = block_bytes_;
  return plan_;
}

template <class Take>
void NodeExchange::transfer(const Take& take, const Wait& wait) {
  const Plan& plan = plan_;
  const Method chosen = method(plan);
  if (chosen == Method::kStaged) return transfer_staged(take, wait);
  const Region* const region = chosen == Method::kRegistered ? &posted_region() : nullptr;
  pieces_.clear();
  for (int r = 0; r < group_.size(); ++r) {
    const Range wanted = plan.wanted[static_cast<std::size_t>(r)];
    const std::byte* input = r == group_.rank()  ? plan.in
                             : region != nullptr ? posted_place(*region, r)
                                                 : posted_input(r, plan.table);
    pieces_.push_back({input + wanted.begin * plan.element, {0, wanted.count}});
  }
  take(std::span<const Piece>(pieces_));
  if (chosen == Method::kRegistered) group_.sync(wait);
}

template <class Take>
void NodeExchange::transfer_staged(const Take& take, const Wait& wait) {
  const Plan& plan = plan_;
  if (!staging_) staging_ = group_.allocate(2 * block_bytes_, wait);
  const auto me = static_cast<std::size_t>(group_.rank());
  const bool shared = plan.lanes.size() == 1;  // all ranks read one lane
  const std::size_t lane_bytes = plan.block / plan.lanes.size() / kLaneAlign * kLaneAlign;
  const std::size_t chunk = lane_bytes / plan.element;
  const auto lane = [&](std::size_t rank, std::size_t reader) {
    return staging_->part(static_cast<int>(rank)) + blocks_ % 2 * block_bytes_ + (shared ? 0 : reader * lane_bytes);
  };
  pieces_.resize(plan.wanted.size());
  for (std::size_t k = 0; k < chunk_count(plan.longest, chunk); ++k) {
    for (std::size_t l = 0; l < plan.lanes.size(); ++l) {
      if (!shared && l == me) continue;
      const Range part = chunk_range(plan.lanes[l].count, chunk, k);
      copy_bytes(lane(me, l), plan.in + (plan.lanes[l].begin + part.begin) * plan.element, part.count * plan.element);
    }
    group_.sync(wait);
    for (std::size_t r = 0; r < pieces_.size(); ++r) {
      const Range part = chunk_range(plan.wanted[r].count, chunk, k);
      pieces_[r] = {r == me ? plan.in + (plan.wanted[r].begin + part.begin) * plan.element : lane(r, me), part};
    }
    take(std::span<const Piece>(pieces_));
    ++blocks_;
  }
}

void NodeExchange::reduce_scatter(std::byte* out, const std::byte* in, Offsets offsets, const Reduction& share,
                                  const Wait& wait) {
  const auto n = static_cast<std::size_t>(group_.size());
  const std::size_t element = size_of(share.dtype);
  table_.clear();
  append_counts(table_, offsets);
  post({in, offsets.back() * element}, {offsets.back(), share.dtype, static_cast<std::uint32_t>(share.op)}, table_,
       wait);
  check_same_counts(n, wait);
  Plan& plan = new_plan(in, element, n);
  append_shares(plan.lanes, offsets);
  plan.wanted.assign(n, share_at(offsets, static_cast<std::size_t>(group_.rank())));
  plan.given.assign(n, offsets.back());
  plan.longest = *std::max_element(table_.begin(), table_.end());
  inputs_.resize(n);
  transfer(
      [&](std::span<const Piece> pieces) {
        const Range range = pieces.front().range;
        if (range.count == 0) return;
        for (std::size_t r = 0; r < n; ++r) inputs_[r] = pieces[r].from;
        std::byte* to = out + range.begin * element;
        reduce_many(inputs_, std::span<std::byte* const>(&to, 1), range.count, share.dtype, share.op, share.divisor);
      },
      wait);
}

void NodeExchange::all_gather(std::byte* out, const std::byte* in, Offsets offsets, DataType dtype, const Wait& wait) {
  const auto n = static_cast<std::size_t>(group_.size());
  const std::size_t element = size_of(dtype);
  const std::size_t own = share_at(offsets, static_cast<std::size_t>(group_.rank())).count;
  table_.clear();
  append_counts(table_, offsets);
  post({in, own * element}, {offsets.back(), dtype, kNoReduction}, table_, wait);
  check_same_counts(n, wait);
  Plan& plan = new_plan(in, element, n);
  plan.lanes.push_back({0, own});
  plan.given = table_;
  plan.longest = *std::max_element(table_.begin(), table_.end());
  for (const std::size_t count : table_) plan.wanted.push_back({0, count});
  transfer(
      [&](std::span<const Piece> pieces) {
        for (std::size_t r = 0; r < n; ++r) {
          const auto& [from, range] = pieces[r];
          copy_bytes(out + (offsets[r] + range.begin) * element, from, range.count * element);
        }
      },
      wait);
}

void NodeExchange::all_to_all(std::byte* out, Offsets to, const std::byte* in, Offsets from, DataType dtype,
                              const Wait& wait) {
  const auto n = static_cast<std::size_t>(group_.size());
  const std::size_t element = size_of(dtype);
  table_.clear();
  append_counts(table_, from);
  append_counts(table_, to);  // post the expected counts, too: all ranks compare them with the sent counts
  post({in, from.back() * element}, {0, dtype, kNoReduction}, table_, wait);
  Plan& plan = new_plan(in, element, 2 * n);
  append_shares(plan.lanes, from);
  for (std::size_t s = 0; s < n; ++s) {
    const auto sent = posted_table(static_cast<int>(s), 2 * n).first(n);
    std::size_t begin = 0;
    for (std::size_t r = 0; r < n; ++r) {
      const std::size_t wanted = posted_table(static_cast<int>(r), 2 * n)[n + s];
      if (sent[r] != wanted) {
        throw_disagreement(
            group_, wait,
            fmt::format("{} sends {} elements to {}, which expects {}", rank_name(group_, static_cast<int>(s)), sent[r],
                        rank_name(group_, static_cast<int>(r)), wanted));
      }
      if (r == static_cast<std::size_t>(group_.rank())) plan.wanted.push_back({begin, wanted});
      begin += wanted;
      plan.longest = std::max(plan.longest, wanted);
    }
    plan.given.push_back(begin);
  }
  transfer(
      [&](std::span<const Piece> pieces) {
        for (std::size_t r = 0; r < n; ++r) {
          const auto& [piece, range] = pieces[r];
          copy_bytes(out + (to[r] + range.begin) * element, piece, range.count * element);
        }
      },
      wait);
}

void NodeExchange::all_reduce(std::byte* out, const std::byte* in, const Reduction& whole, const Wait& wait) {
  const auto n = static_cast<std::size_t>(group_.size());
  const std::size_t bytes = whole.count * size_of(whole.dtype);
  if (bytes <= kSlotBytes) {
    post({in, bytes}, {whole.count, whole.dtype, static_cast<std::uint32_t>(whole.op)}, {}, wait, Input::kCopied);
    inputs_.resize(n);
    for (std::size_t r = 0; r < n; ++r) inputs_[r] = posted_input(static_cast<int>(r), 0);
    return reduce_many(inputs_, std::span<std::byte* const>(&out, 1), whole.count, whole.dtype, whole.op,
                       whole.divisor);
  }
  std::vector<std::size_t> offsets;
  for (std::size_t r = 0; r < n; ++r) offsets.push_back(share_of(whole.count, n, r, kShareAlign).begin);
  offsets.push_back(whole.count);
  const Range own = share_at(offsets, static_cast<std::size_t>(group_.rank()));
  std::byte* const mine = out + own.begin * size_of(whole.dtype);
  reduce_scatter(mine, in, offsets, {own.count, whole.dtype, whole.op, whole.divisor}, wait);
  all_gather(out, mine, offsets, whole.dtype, wait);
}

void NodeExchange::check_same_roots(const Wait& wait) const {
  const std::size_t first = posted_table(0, 1).front();
  for (int r = 1; r < group_.size(); ++r) {
    const std::size_t other = posted_table(r, 1).front();
    if (other == first) continue;
    throw_disagreement(group_, wait,
                       fmt::format("{} names rank {} as the root, {} names rank {}", rank_name(group_, 0), first,
                                   rank_name(group_, r), other));
  }
}

void NodeExchange::check_same_root(std::size_t bytes, int root, const Wait& wait) {
  const auto named = static_cast<std::size_t>(root);
  post({}, {bytes, DataType::kU8, kNoReduction}, {&named, 1}, wait);
  check_same_roots(wait);
}

void NodeExchange::broadcast(std::byte* data, std::size_t bytes, int root, const Wait& wait) {
  if (bytes <= kNoteBytes) return group_.send_note({data, bytes}, root, wait);
  const auto n = static_cast<std::size_t>(group_.size());
  const auto from = static_cast<std::size_t>(root);
  post({data, bytes}, {bytes, DataType::kU8, kNoReduction}, {&from, 1}, wait,
       group_.rank() == root ? Input::kShown : Input::kUnread);
  check_same_roots(wait);
  Plan& plan = new_plan(data, 1, 1);
  plan.lanes.push_back({0, group_.rank() == root ? bytes : 0});
  plan.wanted.resize(n);
  plan.wanted[from] = {0, bytes};
  plan.given.assign(n, bytes);
  plan.longest = bytes;
  if (!group_.crowded()) plan.block = std::max(block_bytes_ / kBroadcastBlocks, kLaneAlign);
  if (method(plan) == Method::kRegistered) return broadcast_registered(data, bytes, root, wait);
  transfer(
      [&](std::span<const Piece> pieces) {
        copy_bytes(data + pieces[from].range.begin, pieces[from].from, pieces[from].range.count);
      },
      wait);
}

// The message has one share per rank. Every other rank reads all shares but the last from the root, and the root writes
// the last share to every other rank. Thus every rank copies the same number of bytes.
void NodeExchange::broadcast_registered(std::byte* data, std::size_t bytes, int root, const Wait& wait) {
  const auto n = static_cast<std::size_t>(group_.size());
  const Region& region = posted_region();
  const Range written = share_of(bytes, n, n - 1, kLaneAlign);
  if (group_.rank() != root) {
    copy_bytes(data, posted_place(region, root), written.begin);
  } else {
    for (int r = 0; r < group_.size(); ++r) {
      if (r != root) copy_bytes(posted_place(region, r) + written.begin, data + written.begin, written.count);
    }
  }
  group_.sync(wait);
}

}  // namespace hvd::comm
