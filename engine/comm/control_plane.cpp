#include "engine/comm/control_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/base/error.h"
#include "engine/comm/algorithm/recursive.h"
#include "engine/comm/arguments.h"
#include "engine/comm/chunks.h"

namespace hvd::comm {
namespace {

constexpr std::size_t kWordsPerBlock = kSlotBytes / sizeof(std::uint64_t);

void combine_bits(std::uint64_t* into, const std::uint64_t* other, std::size_t count, BitOp op) {
  for (std::size_t i = 0; i < count; ++i) into[i] = op == BitOp::kAnd ? into[i] & other[i] : into[i] | other[i];
}

std::span<std::byte> bytes_of(std::uint64_t& value) { return std::as_writable_bytes(std::span(&value, 1)); }

void append(Bytes& to, std::span<const std::byte> what) { to.insert(to.end(), what.begin(), what.end()); }

}  // namespace

GroupControl::GroupControl(RankState& state) : state_(state) {
  for (const auto& node : state.layout.members) leaders_.push_back(node.front());
  leader_members_ = {leaders_, static_cast<std::size_t>(state.layout.topology.node)};
  if (state.transport != nullptr) doubling_.emplace(*state.transport);
  lengths_.resize(leaders_.size());
}

void GroupControl::check_length(std::uint64_t length, std::uint64_t most, int from, const Wait& wait) {
  if (length <= most) return;
  state_.faults.throw_mismatch(
      fmt::format("a message of {} in {} claims {} bytes, but can have {} at most: it is damaged, or the ranks are not "
                  "in the same operation",
                  state_.layout.describe(from), wait.text(), length, most));
}

void GroupControl::all_reduce_bits(std::span<std::uint64_t> words, BitOp op, Deadline deadline) {
  const Wait wait = state_.begin("all_reduce_bits", words.size_bytes(), deadline);
  if (state_.layout.topology.size == 1) return;
  for_each_chunk(words.size(), kWordsPerBlock,
                 [&](Range block) { reduce_block(words.subspan(block.begin, block.count), op, wait); });
}

void GroupControl::reduce_block(std::span<std::uint64_t> words, BitOp op, const Wait& wait) {
  NodeGroup& group = state_.group;
  Slot& mine = group.next_slot();
  mine.descriptor.count = words.size();
  mine.descriptor.op = static_cast<std::uint32_t>(op);
  std::memcpy(mine.payload.data(), words.data(), words.size_bytes());
  group.sync(wait);
  for (int r = 0; r < group.size(); ++r) {
    const Slot& slot = group.slot(r);
    if (slot.descriptor.count != words.size() || slot.descriptor.op != static_cast<std::uint32_t>(op)) {
      group.throw_mismatch("ranks disagree on the length or kind of " + wait.text());
    }
  }
  if (state_.one_node() || state_.leader()) {
    for (int r = 0; r < group.size(); ++r) {
      combine_bits(words.data(), reinterpret_cast<const std::uint64_t*>(group.slot(r).payload.data()), words.size(),
                   op);
    }
  }
  if (state_.one_node()) return;
  if (state_.leader()) {
    doubling_->all_reduce(
        leader_members_, std::as_writable_bytes(words),
        [&](std::byte* into, const std::byte* first, const std::byte* second) {
          // `into` is `first` or `second`. The order of operands does not matter for AND and OR.
          const std::byte* other = into == first ? second : first;
          combine_bits(reinterpret_cast<std::uint64_t*>(into), reinterpret_cast<const std::uint64_t*>(other),
                       words.size(), op);
        },
        wait);
    std::memcpy(group.next_slot().payload.data(), words.data(), words.size_bytes());
  }
  group.sync(wait);
  if (!state_.leader()) std::memcpy(words.data(), group.slot(0).payload.data(), words.size_bytes());
}

std::vector<Bytes> GroupControl::gather_in_node(std::span<const std::byte> message, const Wait& wait) {
  NodeGroup& group = state_.group;
  std::vector<Bytes> result(state_.leader() ? static_cast<std::size_t>(group.size()) : 0);
  std::size_t longest = message.size();
  for (std::size_t begin = 0; begin == 0 || begin < longest; begin += kSlotBytes) {
    const std::size_t from = std::min(begin, message.size());
    const auto part = message.subspan(from, std::min(kSlotBytes, message.size() - from));
    Slot& mine = group.next_slot();
    mine.descriptor.count = message.size();
    std::copy(part.begin(), part.end(), mine.payload.begin());
    group.sync(wait);
    for (int r = 0; r < group.size(); ++r) {
      const Slot& slot = group.slot(r);
      const std::size_t length = slot.descriptor.count;
      longest = std::max(longest, length);
      if (state_.leader() && begin < length) {
        append(result[static_cast<std::size_t>(r)],
               std::span(slot.payload).first(std::min(kSlotBytes, length - begin)));
      }
    }
  }
  return result;
}

void GroupControl::send_message(int to, std::span<const std::byte> message, const Wait& wait) {
  std::uint64_t length = message.size();
  Transport& transport = *state_.transport;
  transport.wait(transport.send(to, bytes_of(length)), wait);
  if (length > 0) transport.wait(transport.send(to, message), wait);
}

std::vector<Bytes> GroupControl::gather(std::span<const std::byte> message, Deadline deadline) {
  check_message("gather", message.size(), kMaxMessage);
  const Wait wait = state_.begin("gather", message.size(), deadline);
  const Layout& layout = state_.layout;
  std::vector<Bytes> local = gather_in_node(message, wait);
  if (state_.one_node() || !state_.leader()) return local;

  // A leader sends the lengths of its ranks' messages, followed by the messages back to back.
  if (layout.topology.rank != 0) {
    Bytes packed;
    for (const Bytes& rank_message : local) {
      std::uint64_t length = rank_message.size();
      append(packed, bytes_of(length));
    }
    for (const Bytes& rank_message : local) append(packed, rank_message);
    send_message(0, packed, wait);
    return {};
  }
  std::vector<Bytes> result(static_cast<std::size_t>(layout.topology.size));
  for (std::size_t r = 0; r < local.size(); ++r)
    result[static_cast<std::size_t>(layout.members[0][r])] = std::move(local[r]);
  Transport& transport = *state_.transport;
  std::vector<Transport::Ticket> tickets(leaders_.size());
  for (std::size_t node = 1; node < leaders_.size(); ++node) {
    tickets[node] = transport.receive(leaders_[node], bytes_of(lengths_[node]));
  }
  for (std::size_t node = 1; node < leaders_.size(); ++node) {
    transport.wait(tickets[node], wait);
    const std::vector<int>& members = layout.members[node];
    std::size_t offset = members.size() * sizeof(std::uint64_t);
    check_length(lengths_[node], offset + members.size() * kMaxMessage, leaders_[node], wait);
    Bytes packed(lengths_[node]);
    if (packed.size() < offset) state_.faults.throw_mismatch("ranks are not in the same operation: " + wait.text());
    transport.wait(transport.receive(leaders_[node], packed), wait);
    for (std::size_t r = 0; r < members.size(); ++r) {
      std::uint64_t length = 0;
      std::memcpy(&length, packed.data() + r * sizeof length, sizeof length);
      check_length(length, packed.size() - offset, leaders_[node], wait);
      const auto its = std::span(packed).subspan(offset, length);
      result[static_cast<std::size_t>(members[r])].assign(its.begin(), its.end());
      offset += length;
    }
  }
  return result;
}

void GroupControl::broadcast_in_node(Bytes& message, int root, const Wait& wait) {
  NodeGroup& group = state_.group;
  if (group.size() == 1) return;
  const bool mine = group.rank() == root;
  std::size_t length = message.size();
  if (!mine) message.clear();
  for (std::size_t begin = 0; begin == 0 || begin < length; begin += kSlotBytes) {
    if (mine) {
      Slot& slot = group.next_slot();
      slot.descriptor.count = length;
      std::copy_n(message.begin() + static_cast<std::ptrdiff_t>(begin), std::min(kSlotBytes, length - begin),
                  slot.payload.begin());
    }
    group.sync(wait);
    if (mine) continue;
    const Slot& slot = group.slot(root);
    length = slot.descriptor.count;
    append(message, std::span(slot.payload).first(std::min(kSlotBytes, length - begin)));
  }
}

Bytes GroupControl::broadcast(std::span<const std::byte> message, int root, Deadline deadline) {
  const Layout& layout = state_.layout;
  check_root("broadcast", root, layout.topology.size);
  if (layout.topology.rank == root) check_message("broadcast", message.size(), kMaxMessage);
  const Wait wait = state_.begin("broadcast", 0, deadline);
  Bytes result;
  if (layout.topology.rank == root) result.assign(message.begin(), message.end());
  const auto root_node = static_cast<std::size_t>(layout.node_of[static_cast<std::size_t>(root)]);
  const bool on_root_node = static_cast<std::size_t>(layout.topology.node) == root_node;
  const int local_root = on_root_node ? layout.local_rank_of[static_cast<std::size_t>(root)] : 0;
  if (!state_.one_node() && layout.topology.local_rank == local_root) {
    // [node]: the rank that sends and receives for its node. On the root's node this is the root; on every other node
    // it is the leader.
    std::vector<int> speakers = leaders_;
    speakers[root_node] = root;
    const Members members{speakers, static_cast<std::size_t>(layout.topology.node)};
    std::uint64_t length = result.size();
    tree_broadcast(*state_.transport, members, root_node, bytes_of(length), wait);
    check_length(length, kMaxMessage, root, wait);
    result.resize(length);
    tree_broadcast(*state_.transport, members, root_node, result, wait);
  }
  broadcast_in_node(result, local_root, wait);
  return result;
}

void GroupControl::barrier(Deadline deadline) {
  const Wait wait = state_.begin("barrier", 0, deadline);
  state_.group.sync(wait);
  if (state_.one_node()) return;
  if (state_.leader()) {
    std::array<std::byte, 1> token{};
    doubling_->all_reduce(
        leader_members_, token, [](std::byte*, const std::byte*, const std::byte*) {}, wait);
  }
  state_.group.sync(wait);
}

std::vector<std::optional<std::string>> GroupControl::roll_call(std::string_view status,
                                                                std::chrono::milliseconds patience) {
  return state_.faults.roll_call(status, patience);
}

void GroupControl::answer_roll_call(std::string_view status) { state_.faults.answer_roll_call(status); }

void GroupControl::abort(std::string_view reason) noexcept { state_.faults.abort(reason); }

}  // namespace hvd::comm
