#include "bench/coll/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/coll/pattern.h"
#include "engine/base/align.h"
#include "engine/base/error.h"
#include "engine/comm/reduce.h"

namespace hvd::bench::coll {
namespace {

constexpr std::size_t kPage = 4096;
/// An element that consists of this byte is 0.0115 in fp32, 1.5e-18 in fp64, 1.06 in fp16, 0.0115 in bf16, 60 in int8.
constexpr std::byte kOrdinary{0x3c};
constexpr std::size_t kStagingElements = kPeriod * 256;  // a multiple of the patterns' period
static_assert(kStagingElements * sizeof(double) == kStagingBytes);

/// Consecutive elements that follow one pattern.
struct Piece {
  std::byte* begin;
  std::size_t count;
  Pattern pattern;
  std::size_t phase = 0;
};

/// inputs() returns the pieces of the input of `rank`, and results() the pieces of its output. Each message begins with
/// element 0 of its pattern.
std::vector<Piece> inputs(const Problem& problem, Buffers at, int rank, int ranks) {
  switch (problem.collective) {
    case MeasuredCollective::kAllReduce:
    case MeasuredCollective::kReduceScatter:
      return {{at.in, problem.in_count(ranks), reduction_input(rank, ranks, problem.type, problem.op)}};
    case MeasuredCollective::kAllGather: return {{at.in, problem.share(rank), message(rank, 0, problem.type)}};
    case MeasuredCollective::kBroadcast:
      // Every rank fills its buffer with its own pattern, so that the check detects a broadcast that does nothing.
      return {{at.in, problem.count, message(rank, 0, problem.type)}};
    case MeasuredCollective::kAllToAll: {
      std::vector<Piece> pieces;
      pieces.reserve(static_cast<std::size_t>(ranks));
      std::byte* next = at.in;
      for (int to = 0; to < ranks; ++to) {
        const std::size_t count = problem.message(rank, to, ranks);
        pieces.push_back({next, count, message(rank, to, problem.type)});
        next += count * size_of(problem.type);
      }
      return pieces;
    }
    case MeasuredCollective::kBarrier: break;
  }
  return {};
}

std::vector<Piece> results(const Problem& problem, Buffers at, int rank, int ranks) {
  switch (problem.collective) {
    case MeasuredCollective::kAllReduce:
      return {{at.out, problem.count, reduction_result(ranks, problem.type, problem.op)}};
    case MeasuredCollective::kReduceScatter:
      return {{at.out, problem.share(rank), reduction_result(ranks, problem.type, problem.op), problem.before(rank)}};
    case MeasuredCollective::kBroadcast: return {{at.out, problem.count, message(0, 0, problem.type)}};
    case MeasuredCollective::kAllGather:
    case MeasuredCollective::kAllToAll: {
      const bool to_me = problem.collective == MeasuredCollective::kAllToAll;
      std::vector<Piece> pieces;
      pieces.reserve(static_cast<std::size_t>(ranks));
      std::byte* next = at.out;
      for (int from = 0; from < ranks; ++from) {
        const std::size_t count = to_me ? problem.message(from, rank, ranks) : problem.share(from);
        pieces.push_back({next, count, message(from, to_me ? rank : 0, problem.type)});
        next += count * size_of(problem.type);
      }
      return pieces;
    }
    case MeasuredCollective::kBarrier: break;
  }
  return {};
}

/// Splits `piece` into parts that fit into the staging memory. Calls `call(memory, bytes, phase)` for each part.
template <class Call>
void for_each_part(const Piece& piece, std::size_t element, Call&& call) {
  for (std::size_t done = 0; done < piece.count; done += kStagingElements) {
    const std::size_t take = std::min(kStagingElements, piece.count - done);
    call(piece.begin + done * element, take * element, piece.phase + done);
  }
}

}  // namespace

void Arena::Free::operator()(std::byte* memory) const noexcept { std::free(memory); }

Arena::Arena(comm::DataPlane& plane, std::size_t bytes, Places places, Deadline deadline)
    : places_(places), registered_(plane.allocate(bytes, deadline)), bytes_(registered_->bytes()) {}

Arena::Arena(std::size_t bytes, Places places) : places_(places) {
  const std::size_t rounded = align_up(std::max(bytes, kPage), kPage);
  plain_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, rounded)));
  if (!plain_) {
    throw Error(Errc::kOutOfMemory,
                fmt::format("coll: the system refuses {} bytes for buffers; give a smaller -e, or --warm", rounded));
  }
  bytes_ = {plain_.get(), rounded};
}

Buffers Arena::next(const Problem& problem, const comm::Topology& topology) {
  const std::size_t footprint = problem.footprint(topology.size);
  if (places_ == Places::kFixed || at_ + footprint > bytes_.size()) at_ = 0;
  std::byte* const begin = bytes_.data() + at_;
  at_ += footprint;
  if (!problem.in_place) {
    return {begin, begin + align_up(problem.in_count(topology.size) * size_of(problem.type), kBufferAlignment)};
  }
  const std::size_t own = problem.before(topology.rank) * size_of(problem.type);
  Buffers buffers{begin, begin};
  if (problem.collective == MeasuredCollective::kReduceScatter) buffers.out += own;
  if (problem.collective == MeasuredCollective::kAllGather) buffers.in += own;
  return buffers;
}

void fill_ordinary(comm::DataPlane& plane, std::span<std::byte> memory, std::span<std::byte> staging,
                   Deadline deadline) {
  staging = staging.first(std::min(memory.size(), kStagingBytes));
  std::fill(staging.begin(), staging.end(), kOrdinary);
  while (!memory.empty()) {
    const std::size_t take = std::min(memory.size(), staging.size());
    plane.copy(memory.data(), staging.data(), take);
    memory = memory.subspan(take);
  }
  plane.complete("filling the buffers", deadline);
}

void start(comm::Communicator& communicator, const Problem& problem, Buffers at, Deadline deadline) {
  comm::DataPlane& plane = communicator.data();
  const DataType type = problem.type;
  switch (problem.collective) {
    case MeasuredCollective::kAllReduce:
      if (problem.in_place) return plane.all_reduce(at.out, problem.count, type, problem.op, deadline);
      return plane.all_reduce_into(at.out, at.in, problem.count, type, problem.op, deadline);
    case MeasuredCollective::kBroadcast: return plane.broadcast(at.out, problem.count * size_of(type), 0, deadline);
    case MeasuredCollective::kBarrier: return communicator.control().barrier(deadline);
    case MeasuredCollective::kReduceScatter:
    case MeasuredCollective::kAllGather:
    case MeasuredCollective::kAllToAll: break;
  }
  const comm::Topology& topology = communicator.topology();
  if (problem.collective == MeasuredCollective::kAllToAll) {
    std::vector<std::size_t> send, receive;
    send.reserve(topology.hosts.size());
    receive.reserve(topology.hosts.size());
    for (int other = 0; other < topology.size; ++other) {
      send.push_back(problem.message(topology.rank, other, topology.size));
      receive.push_back(problem.message(other, topology.rank, topology.size));
    }
    return plane.all_to_all(at.out, receive, at.in, send, type, deadline);
  }
  const std::vector<std::size_t> counts = problem.shares(topology.size);
  if (problem.collective == MeasuredCollective::kAllGather)
    return plane.all_gather(at.out, at.in, counts, type, deadline);
  plane.reduce_scatter(at.out, at.in, counts, type, problem.op, deadline);
}

Problem bare_shape(const Problem& problem, int ranks) {
  if (reduces(problem.collective)) return problem;
  return {MeasuredCollective::kAllReduce, problem.out_count(ranks), problem.type, ReduceOp::kSum, false, false};
}

void run_bare(const Problem& problem, Buffers at, const comm::Topology& topology) {
  const auto ranks = static_cast<std::size_t>(topology.size);
  const std::size_t element = size_of(problem.type);
  if (!reduces(problem.collective)) {
    const bool root = problem.collective == MeasuredCollective::kBroadcast && topology.rank == 0;
    const bool has_own = problem.collective == MeasuredCollective::kAllGather && problem.in_place;
    const std::size_t there = root || has_own ? problem.share(topology.rank) : 0;
    std::memcpy(at.out, at.in, (problem.out_count(topology.size) - there) * element);
    return;
  }
  const bool everywhere = problem.collective == MeasuredCollective::kAllReduce;
  // If shares are ragged, use the mean share, because the work is least if all ranks have equal shares.
  const std::size_t share = everywhere ? problem.count / ranks : problem.in_count(topology.size) / ranks;
  if (share == 0) return;
  std::vector<const std::byte*> from(ranks);
  std::vector<std::byte*> to(everywhere ? ranks : 1);
  for (std::size_t r = 0; r < from.size(); ++r) from[r] = at.in + r * share * element;
  for (std::size_t r = 0; r < to.size(); ++r) to[r] = at.out + r * share * element;
  const int divisor = problem.op == ReduceOp::kAverage ? topology.size : 1;
  comm::reduce_many(from, to, share, problem.type, problem.op, divisor);
}

std::uint64_t check(comm::Communicator& communicator, const Problem& problem, Buffers at, std::span<std::byte> staging,
                    Deadline deadline, const std::function<void()>& once) {
  comm::DataPlane& plane = communicator.data();
  const int rank = communicator.topology().rank;
  const int ranks = communicator.topology().size;
  const std::size_t element = size_of(problem.type);
  for (const Piece& piece : inputs(problem, at, rank, ranks)) {
    for_each_part(piece, element, [&](std::byte* memory, std::size_t bytes, std::size_t phase) {
      piece.pattern.fill(staging.first(bytes), phase);
      plane.copy(memory, staging.data(), bytes);
      plane.complete("filling an input", deadline);
    });
  }
  communicator.control().barrier(deadline);
  if (once) {
    once();
  } else {
    start(communicator, problem, at, deadline);
  }
  plane.complete(name(problem.collective), deadline);
  std::uint64_t wrong = 0;
  for (const Piece& piece : results(problem, at, rank, ranks)) {
    for_each_part(piece, element, [&](std::byte* memory, std::size_t bytes, std::size_t phase) {
      plane.copy(staging.data(), memory, bytes);
      plane.complete("reading an output", deadline);
      wrong += piece.pattern.wrong(staging.first(bytes), phase);
    });
  }
  return wrong;
}

}  // namespace hvd::bench::coll
