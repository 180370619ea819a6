// Checks the operations of a device plane, on fake or real GPUs, against values computed one by one in double
// precision. The thread of a rank owns that rank's Bench.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/align.h"
#include "engine/base/error.h"
#include "engine/comm/device_communicator.h"
#include "tests/base/elements.h"

namespace hvd::test::device {

using Counts = std::vector<std::size_t>;
/// Gives the value of element i.
using Values = std::function<double(std::size_t)>;

inline Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

/// The type's epsilon; 0 for integers.
inline double epsilon(DataType type) {
  switch (type) {
    case DataType::kF32: return std::numeric_limits<float>::epsilon();
    case DataType::kF64: return std::numeric_limits<double>::epsilon();
    case DataType::kF16: return 0x1p-10;
    case DataType::kBF16: return 0x1p-7;
    default: return 0;
  }
}

/// The largest magnitude that value_of() gives for floating-point types.
inline constexpr double kLargest = 5;

/// Returns small values, so that sums and products over five ranks are exact in all types.
inline double value_of(int rank, std::size_t i, DataType type, ReduceOp op) {
  const auto r = static_cast<std::size_t>(rank);
  if (op == ReduceOp::kProduct) return static_cast<double>(1 + (r + i) % 2);
  return static_cast<double>((7 * r + 3 * i) % 11) - (type == DataType::kU8 ? 0 : 5);
}

inline double reduced(int size, std::size_t i, DataType type, ReduceOp op) {
  double result = value_of(0, i, type, op);
  for (int rank = 1; rank < size; ++rank) {
    const double next = value_of(rank, i, type, op);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage: result += next; break;
      case ReduceOp::kMin: result = std::min(result, next); break;
      case ReduceOp::kMax: result = std::max(result, next); break;
      case ReduceOp::kProduct: result *= next; break;
    }
  }
  if (op != ReduceOp::kAverage) return result;
  return epsilon(type) > 0 ? result / size : std::trunc(result / size);
}

inline std::size_t sum(const Counts& counts) {
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  return total;
}
inline std::size_t offset(const Counts& counts, int rank) {
  return sum(Counts(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(rank)));
}

/// Writes inputs on its own stream, enqueues operations after these writes, and checks all results when the operations
/// have finished. Allocates all memory first: an allocation may wait for the GPU, and work on the GPU may wait for a
/// peer.
class Bench {
 public:
  /// Collective: every rank must construct its Bench.
  Bench(comm::DeviceCommunicator& communicator, DataType type)
      : gpu_(communicator.runtime()),
        plane_(communicator.device()),
        type_(type),
        compute_(gpu_.make_stream(gpu::Priority::kNormal)),
        ready_(gpu_.make_event(gpu::Timing::kOff)),
        device_(gpu_.allocate(kBytes, "a test")),
        source_(gpu_.allocate_pinned(kBytes, "a test")),
        result_(gpu_.allocate_pinned(kBytes, "a test")) {
    communicator.control().barrier(soon());
  }

  /// Returns `count` elements of device memory. check() fails if the guard bytes behind the elements change.
  std::byte* filled(std::size_t count, const Values& values) {
    const std::size_t bytes = count * size_of(type_), all = align_up(bytes + kGuardBytes, kAlign), begin = used_;
    used_ += all;
    if (used_ > kBytes) throw Error(Errc::kOutOfMemory, "a test needs more than " + std::to_string(kBytes) + " bytes");
    std::byte* const source = &source_->bytes[begin];
    std::memset(source, kGuard, all);
    for (std::size_t i = 0; i < count; ++i) store_element(source + i * size_of(type_), values(i), type_);
    gpu_.copy(&device_->bytes[begin], source, all, compute_);
    gpu_.record(ready_, compute_);
    gpu_.wait(plane_.stream(), ready_);
    checks_.emplace_back([guard = result_->bytes.subspan(begin + bytes, all - bytes), bytes] {
      for (const std::byte value : guard) ASSERT_EQ(value, std::byte{kGuard}) << "behind " << bytes << " bytes";
    });
    return &device_->bytes[begin];
  }
  std::byte* empty(std::size_t count) {
    return filled(count, [](std::size_t) { return 99.0; });
  }
  /// Adds a check of `count` elements at `at`, which must lie in memory from filled().
  void expect(const std::string& what, const std::byte* at, std::size_t count, const Values& values,
              double tolerance = 0) {
    const std::byte* const from = result_->bytes.data() + (at - device_->bytes.data());
    checks_.emplace_back([what, from, count, values, tolerance, type = type_] {
      for (std::size_t i = 0; i < count; ++i) {
        const double expected = values(i);
        ASSERT_NEAR(load_element(from + i * size_of(type), type), expected, tolerance)
            << what << ", element " << i << " of " << count << " " << name(type);
      }
    });
  }
  /// Waits for the operations and runs all checks. filled() may then reuse the memory.
  void check() {
    plane_.copy(result_->bytes.data(), device_->bytes.data(), used_);
    plane_.complete("the test's operations", soon());
    for (const auto& expectation : checks_) expectation();
    checks_.clear();
    used_ = 0;
  }
  [[nodiscard]] comm::DevicePlane& plane() { return plane_; }
  [[nodiscard]] DataType type() const { return type_; }
  [[nodiscard]] std::size_t element() const { return size_of(type_); }

 private:
  static constexpr std::size_t kBytes = std::size_t{64} << 10, kGuardBytes = 32, kAlign = 64;
  static constexpr int kGuard = 0xA5;

  gpu::GpuRuntime& gpu_;
  comm::DevicePlane& plane_;
  const DataType type_;
  gpu::Stream compute_;
  gpu::Event ready_;
  gpu::DeviceMemory device_;
  gpu::PinnedMemory source_, result_;
  std::size_t used_ = 0;
  std::vector<std::function<void()>> checks_;
};

struct World {
  int rank, size;
};

inline Values mine(const Bench& bench, int rank, ReduceOp op = ReduceOp::kSum) {
  return [=, type = bench.type()](std::size_t i) { return value_of(rank, i, type, op); };
}

/// Returns the largest error that an average may have. NCCL multiplies every addend by the rounded reciprocal of the
/// rank count, then adds. Each multiplication and addition is off by at most epsilon / 2 times kLargest.
inline double tolerance_of(const Bench& bench, World world, ReduceOp op) {
  return op == ReduceOp::kAverage ? (world.size + 1) / 2.0 * epsilon(bench.type()) * kLargest : 0;
}

inline std::string text_of(const char* operation, ReduceOp op, bool in_place) {
  return std::string(operation) + " (" + std::string(name(op)) + (in_place ? ", in place)" : ")");
}

inline void all_reduce(Bench& bench, World world, std::size_t count, ReduceOp op, bool in_place) {
  std::byte* const in = bench.filled(count, mine(bench, world.rank, op));
  std::byte* const out = in_place ? in : bench.empty(count);
  if (in_place) {
    bench.plane().all_reduce(in, count, bench.type(), op, soon());
  } else {
    bench.plane().all_reduce_into(out, in, count, bench.type(), op, soon());
    bench.expect("input", in, count, mine(bench, world.rank, op));
  }
  const auto values = [=, type = bench.type()](std::size_t i) { return reduced(world.size, i, type, op); };
  bench.expect(text_of("all_reduce", op, in_place), out, count, values, tolerance_of(bench, world, op));
}

inline void reduce_scatter(Bench& bench, World world, const Counts& counts, ReduceOp op, bool in_place) {
  const std::size_t begin = offset(counts, world.rank), count = counts[static_cast<std::size_t>(world.rank)];
  std::byte* const in = bench.filled(sum(counts), mine(bench, world.rank, op));
  std::byte* const out = in_place ? in + begin * bench.element() : bench.empty(count);
  bench.plane().reduce_scatter(out, in, counts, bench.type(), op, soon());
  if (!in_place) bench.expect("input", in, sum(counts), mine(bench, world.rank, op));
  const auto values = [=, type = bench.type()](std::size_t i) { return reduced(world.size, begin + i, type, op); };
  bench.expect(text_of("reduce_scatter", op, in_place), out, count, values, tolerance_of(bench, world, op));
}

inline void all_gather(Bench& bench, World world, const Counts& counts, bool in_place) {
  const std::size_t begin = offset(counts, world.rank), count = counts[static_cast<std::size_t>(world.rank)];
  const Values own = mine(bench, world.rank);
  const auto at_first = [=](std::size_t i) {
    return in_place && i >= begin && i < begin + count ? own(i - begin) : 99.0;
  };
  std::byte* const out = bench.filled(sum(counts), at_first);
  std::byte* const in = in_place ? out + begin * bench.element() : bench.filled(count, own);
  bench.plane().all_gather(out, in, counts, bench.type(), soon());
  if (!in_place) bench.expect("input", in, count, own);
  for (int rank = 0; rank < world.size; ++rank) {
    bench.expect(text_of("all_gather", ReduceOp::kSum, in_place), out + offset(counts, rank) * bench.element(),
                 counts[static_cast<std::size_t>(rank)], mine(bench, rank));
  }
}

/// `counts(from, to)` gives the number of elements that rank `from` sends to rank `to`.
inline void all_to_all(Bench& bench, World world, const std::function<std::size_t(int, int)>& counts) {
  const auto sent_by = [&](int rank) {
    Counts all;
    for (int to = 0; to < world.size; ++to) all.push_back(counts(rank, to));
    return all;
  };
  Counts received;
  for (int from = 0; from < world.size; ++from) received.push_back(counts(from, world.rank));
  const Counts sent = sent_by(world.rank);
  std::byte* const in = bench.filled(sum(sent), mine(bench, world.rank));
  std::byte* const out = bench.empty(sum(received));
  bench.plane().all_to_all(out, received, in, sent, bench.type(), soon());
  bench.expect("input", in, sum(sent), mine(bench, world.rank));
  for (int from = 0; from < world.size; ++from) {
    const std::size_t begin = offset(sent_by(from), world.rank);
    const Values values = mine(bench, from);
    bench.expect("all_to_all from " + std::to_string(from), out + offset(received, from) * bench.element(),
                 counts(from, world.rank), [=](std::size_t i) { return values(begin + i); });
  }
}

/// Returns unequal counts: 1, 4, 0, 3, 6 for five ranks.
inline Counts ragged(int size) {
  Counts counts;
  for (int rank = 0; rank < size; ++rank) counts.push_back(static_cast<std::size_t>(3 * rank + 1) % 7);
  return counts;
}
inline Counts equal(int size, std::size_t count) { return Counts(static_cast<std::size_t>(size), count); }

inline constexpr DataType kAllTypes[] = {DataType::kF32,  DataType::kF64, DataType::kF16,
                                         DataType::kBF16, DataType::kI32, DataType::kI64,
                                         DataType::kU8,   DataType::kI8,  DataType::kI16};
inline constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
                                       ReduceOp::kProduct};

/// Runs every operation on elements of `type` with equal, unequal and zero counts, in place and out of place. Enqueues
/// all operations before it waits for the first.
inline void check_all(comm::DeviceCommunicator& communicator, DataType type) {
  const World world{communicator.topology().rank, communicator.topology().size};
  Bench bench(communicator, type);
  const bool reducible = type != DataType::kI16 || world.size == 1;
  for (const bool in_place : {false, true}) {
    for (const Counts& counts : {equal(world.size, 5), ragged(world.size), equal(world.size, 0)}) {
      all_gather(bench, world, counts, in_place);
      if (!reducible) continue;
      for (const ReduceOp op : kAllOps) reduce_scatter(bench, world, counts, op, in_place);
    }
    if (!reducible) continue;
    for (const ReduceOp op : kAllOps) all_reduce(bench, world, 11, op, in_place);
    all_reduce(bench, world, 0, ReduceOp::kSum, in_place);
  }
  all_to_all(bench, world, [](int, int) { return 3; });
  all_to_all(bench, world, [](int from, int to) { return static_cast<std::size_t>(2 * from + 3 * to) % 5; });
  all_to_all(bench, world, [](int, int) { return 0; });
  bench.check();
}

/// Captures operations with unequal counts in a graph and launches the graph several times. Each operation reads the
/// results of the previous operation. With three ranks or more, rank 2 contributes no elements.
inline void check_graph(comm::DeviceCommunicator& communicator) {
  const World world{communicator.topology().rank, communicator.topology().size};
  gpu::GpuRuntime& gpu = communicator.runtime();
  comm::DevicePlane& plane = communicator.device();
  constexpr DataType kType = DataType::kF32;
  const Counts counts = ragged(world.size);
  const auto r = static_cast<std::size_t>(world.rank), ranks = counts.size();
  const std::size_t total = sum(counts), row = (total + ranks) * sizeof(float), left = (r + ranks - 1) % ranks;
  const gpu::DeviceMemory memory = gpu.allocate(4 * row, "a test");
  const gpu::PinnedMemory staging = gpu.allocate_pinned(4 * row, "a test");
  const auto device = [&](std::size_t line) { return &memory->bytes[line * row]; };
  const auto element = [&](std::size_t line, std::size_t i) { return &staging->bytes[line * row + i * sizeof(float)]; };
  Counts sent(ranks, 0), received(ranks, 0);
  sent[(r + 1) % ranks] = counts[r];
  received[left] = counts[left];
  communicator.control().barrier(soon());  // from here on no rank allocates
  const auto enqueue = [&] {
    plane.reduce_scatter(device(1), device(0), counts, kType, ReduceOp::kSum, soon());
    plane.all_to_all(device(2), received, device(1), sent, kType, soon());
    plane.all_gather(device(3), device(1), counts, kType, soon());
    plane.reduce_scatter(device(3) + r * sizeof(float), device(3), Counts(ranks, 1), kType, ReduceOp::kMax, soon());
  };
  const auto launch = [&](int factor, const std::function<void()>& step) {
    for (std::size_t i = 0; i < total; ++i) {
      store_element(element(0, i), factor * value_of(world.rank, i, kType, ReduceOp::kSum), kType);
    }
    plane.copy(device(0), element(0, 0), total * sizeof(float));
    step();
    plane.copy(element(1, 0), device(1), 3 * row);
    plane.complete("the graph", soon());
    const auto whole = [&](std::size_t i) { return factor * reduced(world.size, i, kType, ReduceOp::kSum); };
    for (std::size_t i = 0; i < counts[left]; ++i) {
      ASSERT_EQ(load_element(element(2, i), kType), whole(offset(counts, static_cast<int>(left)) + i))
          << "launch " << factor;
    }
    ASSERT_EQ(load_element(element(3, r), kType), whole(r)) << "launch " << factor;
  };
  launch(1, enqueue);  // this run makes NCCL's connections, which a capture does not allow
  gpu::Capture capture(gpu, plane.stream());
  enqueue();
  const gpu::Graph graph = capture.finish();
  for (int factor = 2; factor <= 4; ++factor) launch(factor, [&] { gpu.launch(graph, plane.stream()); });
  communicator.control().barrier(soon());
}

}  // namespace hvd::test::device
