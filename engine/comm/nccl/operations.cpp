// The operations of the NCCL data plane, made of NCCL's calls.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "engine/base/error.h"
#include "engine/comm/chunks.h"
#include "engine/comm/nccl/plane.h"

namespace hvd::comm::nccl {
namespace {

/// Returns the type to give to NCCL for moving data. NCCL has no int16; fp16 has the same size.
DataType moved_as(DataType dtype) { return dtype == DataType::kI16 ? DataType::kF16 : dtype; }

bool all_equal(Counts counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

std::string with_bytes(const char* operation, std::size_t count, DataType dtype) {
  return fmt::format("{} ({} bytes)", operation, count * size_of(dtype));
}

}  // namespace

std::string Plane::reduce_refusal(DataType dtype) const {
  if (alone() || dtype != DataType::kI16) return {};
  return fmt::format("NCCL cannot reduce {}, because NCCL has no such type; reduce int32, or host memory", name(dtype));
}

void Plane::copy_own_share(void* out, const void* in, std::size_t count, DataType dtype) {
  throw_if_aborted();
  if (out != in && count > 0) copy(out, in, count * size_of(dtype));
}

void Plane::all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) {
  enqueue(&Api::all_reduce, "ncclAllReduce", {.in = data, .out = data, .count = count, .dtype = dtype, .op = op},
          deadline);
}

void Plane::all_reduce_into(void* out, const void* in, std::size_t count, DataType dtype, ReduceOp op,
                            Deadline deadline) {
  if (alone()) return copy_own_share(out, in, count, dtype);
  enqueue(&Api::all_reduce, "ncclAllReduce", {.in = in, .out = out, .count = count, .dtype = dtype, .op = op},
          deadline);
}

void Plane::reduce_scatter(void* out, const void* in, Counts counts, DataType dtype, ReduceOp op, Deadline deadline) {
  const Topology& where = host_.topology();
  check_counts("reduce_scatter", counts, where.size);
  const auto offsets = offsets_of(counts);
  if (alone()) return copy_own_share(out, in, counts.front(), dtype);
  if (all_equal(counts)) {
    enqueue(&Api::reduce_scatter, "ncclReduceScatter",
            {.in = in, .out = out, .count = counts.front(), .dtype = dtype, .op = op}, deadline);
    return;
  }
  const auto* const base = static_cast<const std::byte*>(in);
  const auto reduce_all = [&] {
    for (int root = 0; root < where.size; ++root) {
      const auto r = static_cast<std::size_t>(root);
      enqueue(&Api::reduce, "ncclReduce",
              {.in = base + offsets[r] * size_of(dtype),
               .out = root == where.rank ? out : nullptr,
               .count = counts[r],
               .dtype = dtype,
               .op = op,
               .root = root},
              deadline);
    }
  };
  group(reduce_all, with_bytes("reduce_scatter", offsets.back(), dtype), deadline);
}

void Plane::all_gather(void* out, const void* in, Counts counts, DataType dtype, Deadline deadline) {
  const Topology& where = host_.topology();
  check_counts("all_gather", counts, where.size);
  const auto offsets = offsets_of(counts);
  if (alone()) return copy_own_share(out, in, counts.front(), dtype);
  if (all_equal(counts)) {
    enqueue(&Api::all_gather, "ncclAllGather",
            {.in = in, .out = out, .count = counts.front(), .dtype = moved_as(dtype)}, deadline);
    return;
  }
  // NCCL 2.29.2 and newer merge a group of broadcasts into one operation, AllGatherV. Source: src/enqueue.cc.
  auto* const base = static_cast<std::byte*>(out);
  const auto broadcast_all = [&] {
    for (int root = 0; root < where.size; ++root) {
      const auto r = static_cast<std::size_t>(root);
      std::byte* const share = base + offsets[r] * size_of(dtype);
      enqueue(&Api::broadcast, "ncclBroadcast",
              {.in = root == where.rank ? in : share,
               .out = share,
               .count = counts[r],
               .dtype = moved_as(dtype),
               .root = root},
              deadline);
    }
  };
  group(broadcast_all, with_bytes("all_gather", offsets.back(), dtype), deadline);
}

void Plane::all_to_all(void* out, Counts receive_counts, const void* in, Counts send_counts, DataType dtype,
                       Deadline deadline) {
  const Topology& where = host_.topology();
  check_counts("all_to_all", send_counts, where.size);
  check_counts("all_to_all", receive_counts, where.size);
  const auto from = offsets_of(send_counts), to = offsets_of(receive_counts);
  const auto me = static_cast<std::size_t>(where.rank);
  if (send_counts[me] != receive_counts[me]) {
    throw Error(Errc::kInvalidArgument,
                fmt::format("{}: all_to_all: this rank sends itself {} elements, but expects {}", here_,
                            send_counts[me], receive_counts[me]));
  }
  if (alone()) return copy_own_share(out, in, receive_counts.front(), dtype);
  const auto* const sent = static_cast<const std::byte*>(in);
  auto* const received = static_cast<std::byte*>(out);
  const auto exchange_all = [&] {
    for (int peer = 0; peer < where.size; ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      enqueue(&Api::send, "ncclSend",
              {.in = sent + from[p] * size_of(dtype), .count = send_counts[p], .dtype = moved_as(dtype), .peer = peer},
              deadline);
      enqueue(&Api::receive, "ncclRecv",
              {.out = received + to[p] * size_of(dtype),
               .count = receive_counts[p],
               .dtype = moved_as(dtype),
               .peer = peer},
              deadline);
    }
  };
  group(exchange_all, with_bytes("all_to_all", from.back(), dtype), deadline);
}

void Plane::broadcast(void* data, std::size_t bytes, int root, Deadline deadline) {
  enqueue(&Api::broadcast, "ncclBroadcast",
          {.in = data, .out = data, .count = bytes, .dtype = DataType::kU8, .root = root}, deadline);
  if (!alone() && bytes > 0) complete(with_bytes("ncclBroadcast", bytes, DataType::kU8), deadline);
}

void Plane::copy(void* to, const void* from, std::size_t bytes) { runtime_.copy(to, from, bytes, stream_); }

void Plane::scale(std::byte* data, std::size_t count, DataType dtype, double factor) {
  if (factor != 1 && count > 0) runtime_.scale(data, count, dtype, factor, stream_);
}

}  // namespace hvd::comm::nccl
