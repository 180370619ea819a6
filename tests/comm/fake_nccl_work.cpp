// The collectives and messages of the fake NCCL, as work on the fake streams.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "engine/comm/reduce.h"
#include "tests/base/elements.h"
#include "tests/comm/fake_nccl_parts.h"

namespace hvd::test {
namespace {

using comm::nccl::CallArguments;

std::size_t bytes_of(const CallArguments& part) { return part.count * size_of(part.dtype); }

/// Returns share `index` of the input, which holds one share for each rank.
const std::byte* share_of(const CallArguments& part, std::size_t index) {
  return static_cast<const std::byte*>(part.in) + index * bytes_of(part);
}

/// Overwrites memory that real reductions leave undefined.
void spoil(void* memory, std::size_t bytes) { std::memset(memory, 0x5A, bytes); }

/// Reduces in rank order. NCCL's rings also reduce in one fixed order per world. Shapes: inputs[r] is the input of rank
/// r; every input and output is flat (what.count).
void combine(const std::vector<const std::byte*>& inputs, const std::vector<std::byte*>& outputs,
             const CallArguments& what, bool wrong) {
  const int divisor = what.op == ReduceOp::kAverage ? static_cast<int>(inputs.size()) : 1;
  comm::reduce_many(inputs, outputs, what.count, what.dtype, what.op, divisor);
  if (!wrong) return;
  for (std::byte* const output : outputs) store_element(output, load_element(output, what.dtype) + 1, what.dtype);
}

bool alike(const CallArguments& a, const CallArguments& b) {
  return a.count == b.count && a.dtype == b.dtype && a.op == b.op && a.root == b.root;
}

}  // namespace

void FakeNcclHub::Lane::meet(const std::string& label) {
  for (; !sends.empty() && !receives.empty(); sends.pop_front(), receives.pop_front()) {
    End &from = *sends.front(), &to = *receives.front();
    if (!alike(from.what, to.what)) throw std::runtime_error("a send and its receive differ: " + label);
    if (from.capture != to.capture) throw std::runtime_error("ranks replay graphs of other captures: " + label);
    std::memmove(to.what.out, from.what.in, bytes_of(from.what));
    from.met = to.met = true;
  }
}

const char* FakeNccl::name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce: return "all_reduce";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kReduce: return "reduce";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kAllGather: return "all_gather";
    case Kind::kSend: return "send";
    case Kind::kReceive: return "receive";
  }
  return "";
}

void FakeNccl::perform(Kind kind, const std::vector<CallArguments>& parts, bool wrong) {
  const CallArguments& first = parts.front();
  const auto root = static_cast<std::size_t>(first.root);
  const std::size_t bytes = bytes_of(first);
  const auto inputs = [&](std::size_t share) {
    std::vector<const std::byte*> all;
    all.reserve(parts.size());
    for (const CallArguments& part : parts) all.push_back(share_of(part, share));
    return all;
  };
  const auto out = [&](std::size_t rank, std::size_t share) {
    return static_cast<std::byte*>(parts[rank].out) + share * bytes;
  };
  std::vector<std::byte*> outputs;
  for (std::size_t r = 0; r < parts.size(); ++r) outputs.push_back(out(r, 0));
  switch (kind) {
    case Kind::kAllReduce: return combine(inputs(0), outputs, first, wrong);
    case Kind::kReduce:
      combine(inputs(0), {outputs[root]}, first, wrong);
      for (std::size_t r = 0; r < parts.size(); ++r) {
        if (r != root && outputs[r] != nullptr) spoil(outputs[r], bytes);
      }
      return;
    case Kind::kReduceScatter:
      for (std::size_t r = 0; r < parts.size(); ++r) combine(inputs(r), {outputs[r]}, first, wrong);
      for (std::size_t r = 0; r < parts.size(); ++r) {
        if (outputs[r] != share_of(parts[r], r)) continue;
        for (std::size_t other = 0; other < parts.size(); ++other) {
          if (other != r) spoil(outputs[r] - r * bytes + other * bytes, bytes);
        }
      }
      return;
    case Kind::kBroadcast:
      for (std::byte* const output : outputs) std::memmove(output, parts[root].in, bytes);
      return;
    case Kind::kAllGather:
      for (std::size_t r = 0; r < parts.size(); ++r) {
        for (std::size_t share = 0; share < parts.size(); ++share) {
          std::memmove(out(r, share), parts[share].in, bytes);
        }
      }
      return;
    case Kind::kSend:
    case Kind::kReceive: break;
  }
}

void FakeNccl::enqueue(Member& member, const std::vector<Call>& calls) {
  std::vector<Call> messages;
  for (const Call& call : calls) {
    if (call.kind == Kind::kSend || call.kind == Kind::kReceive) {
      messages.push_back(call);
    } else {
      enqueue_collective(member, call);
    }
  }
  if (!messages.empty()) enqueue_messages(member, messages);
}

void FakeNccl::enqueue_collective(Member& member, const Call& call) {
  const auto& [kind, what, stream] = call;
  const auto rank = static_cast<std::size_t>(member.rank);
  const std::string label = std::string(name_of(kind)) + " of " + std::to_string(what.count) +
                            (what.op == ReduceOp::kAverage ? ", a mean" : "");
  const std::size_t bytes = bytes_of(what);
  const std::size_t all = static_cast<std::size_t>(member.group->size) * bytes;
  const bool scattered = kind == Kind::kReduceScatter;
  const bool in_place = scattered && what.out == share_of(what, rank);
  std::vector<Range> reads, writes;
  if (kind != Kind::kBroadcast || what.root == member.rank) {
    reads.emplace_back(static_cast<const std::byte*>(what.in), scattered ? all : bytes);
  }
  if (in_place) {
    writes = reads;  // the shares of the other ranks become undefined
  } else if (what.out != nullptr) {
    writes.emplace_back(static_cast<const std::byte*>(what.out), kind == Kind::kAllGather ? all : bytes);
  }
  const bool wrong = options_.wrong_sums > 0;
  if (wrong) --options_.wrong_sums;
  const bool captured = gpu_.capturing(stream);
  const std::uint64_t capture = captured ? ++member.captures : 0;
  const std::shared_ptr<int> hold = captured ? member.held_by_graphs : nullptr;
  const int turns = options_.turns ? options_.turns(member.max_ctas) : 0;
  auto start = [hub = &hub_, group = member.group, aborted = member.aborted, hold, capture, rank, what = what, label,
                kind = kind, wrong, turns]() -> Work::Poll {
    hub->note("rank " + std::to_string(rank) + " begins " + label);
    const MutexLock lock(group->mutex);
    const std::size_t number = group->next[rank]++;
    if (group->rounds.size() <= number) group->rounds.resize(number + 1);
    auto& slot = group->rounds[number];
    if (!slot) {
      slot = std::make_shared<FakeNcclHub::Round>();
      slot->parts.resize(static_cast<std::size_t>(group->size));
      slot->here.resize(slot->parts.size());
      slot->capture.resize(slot->parts.size());
    }
    slot->turns = std::max(slot->turns, turns);
    slot->capture[rank] = capture;
    slot->parts[rank] = what;
    slot->here[rank] = true;
    return [group, aborted, round = slot, rank, label, kind, wrong] {
      const MutexLock poll_lock(group->mutex);
      if (*aborted) {
        round->here[rank] = false;  // the caller may now free its memory
        return true;
      }
      if (group->lost) return false;
      if (round->done) return true;
      if (!std::all_of(round->here.begin(), round->here.end(), [](bool there) { return there; })) return false;
      if (round->turns-- > 0) return false;
      for (const CallArguments& part : round->parts) {
        if (!alike(part, round->parts[rank])) throw std::runtime_error("ranks do not make the same call: " + label);
      }
      for (const std::uint64_t other : round->capture) {
        if (other != round->capture[rank]) throw std::runtime_error("ranks replay graphs of other captures: " + label);
      }
      perform(kind, round->parts, wrong);
      return round->done = true;
    };
  };
  gpu_.enqueue(stream, {label, std::move(reads), std::move(writes), std::move(start)});
}

void FakeNccl::enqueue_messages(Member& member, const std::vector<Call>& messages) {
  struct Mine {
    bool sent;
    std::pair<int, int> lane;  // sender and receiver
    FakeNcclHub::End end;
  };
  const gpu::StreamView stream = messages.front().stream;
  const bool captured = gpu_.capturing(stream);
  std::vector<Mine> mine;
  std::vector<Range> reads, writes;
  for (const Call& call : messages) {
    const bool sent = call.kind == Kind::kSend;
    const int peer = call.what.peer;
    const auto lane = sent ? std::pair(member.rank, peer) : std::pair(peer, member.rank);
    mine.push_back({sent, lane, {call.what, captured ? ++member.captured_ends[{sent, peer}] : 0}});
    (sent ? reads : writes)
        .emplace_back(static_cast<const std::byte*>(sent ? call.what.in : call.what.out), bytes_of(call.what));
  }
  const std::string label = std::to_string(reads.size()) + " sends and " + std::to_string(writes.size()) + " receives";
  const std::shared_ptr<int> hold = captured ? member.held_by_graphs : nullptr;
  auto start = [hub = &hub_, group = member.group, aborted = member.aborted, hold, rank = member.rank, mine,
                label]() -> Work::Poll {
    hub->note("rank " + std::to_string(rank) + " begins " + label);
    const MutexLock lock(group->mutex);
    std::vector<std::pair<FakeNcclHub::Lane*, std::shared_ptr<FakeNcclHub::End>>> ends;
    for (const Mine& message : mine) {
      FakeNcclHub::Lane& lane = group->lanes[message.lane];
      const auto end = std::make_shared<FakeNcclHub::End>(message.end);
      (message.sent ? lane.sends : lane.receives).push_back(end);
      ends.emplace_back(&lane, end);
    }
    return [group, aborted, ends, label] {
      const MutexLock poll_lock(group->mutex);
      if (*aborted) {
        for (const auto& [lane, end] : ends) {  // the caller may now free the messages' memory
          std::erase(lane->sends, end);
          std::erase(lane->receives, end);
        }
        return true;
      }
      if (group->lost) return false;
      for (const auto& [lane, end] : ends) lane->meet(label);
      return std::all_of(ends.begin(), ends.end(), [](const auto& end) { return end.second->met; });
    };
  };
  gpu_.enqueue(stream, {label, std::move(reads), std::move(writes), std::move(start)});
}

}  // namespace hvd::test
