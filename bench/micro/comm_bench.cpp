// Measures what moving and summing gradients costs on one host, without a launcher: the reduction kernels, conversion
// between element types, packing into the fusion buffer, and the data planes between threads. Every case checks its
// answer and reports an error instead of a time if the answer is wrong. Rates count the bytes of one buffer.
//
//   build/release/bin/comm_bench --benchmark_filter=plane
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/types.h"
#include "engine/comm/communicator.h"
#include "engine/comm/reduce.h"
#include "engine/runtime/fusion_buffer.h"

namespace {

using hvd::DataType;
using hvd::Deadline;
using hvd::ReduceOp;
using hvd::comm::Communicator;

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

/// Small whole numbers that are exact in every type. Their period differs from any vector width.
float value(std::size_t i, std::size_t of) { return static_cast<float>((i % 7) + of); }

std::vector<std::byte> filled(DataType dtype, std::size_t count, std::size_t of) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value(i, of);
  std::vector<std::byte> bytes(count * hvd::size_of(dtype));
  if (dtype == DataType::kF32) {
    const auto from = std::as_bytes(std::span(values));
    std::copy(from.begin(), from.end(), bytes.begin());
  } else {
    hvd::comm::convert(bytes.data(), dtype, std::as_bytes(std::span(values)).data(), DataType::kF32, count);
  }
  return bytes;
}

/// range(0): bytes of a buffer; range(1): number of buffers that are summed.
void reduce(benchmark::State& state, DataType dtype) {
  const std::size_t count = static_cast<std::size_t>(state.range(0)) / hvd::size_of(dtype);
  const auto buffers = static_cast<std::size_t>(state.range(1));
  std::vector<std::vector<std::byte>> memory;
  std::vector<const std::byte*> inputs;
  memory.reserve(buffers);
  for (std::size_t k = 0; k < buffers; ++k) memory.push_back(filled(dtype, count, k));
  for (const auto& one : memory) inputs.push_back(one.data());
  std::vector<std::byte> sum(memory.front().size());
  std::byte* const out = sum.data();
  for (auto _ : state) {
    hvd::comm::reduce_many(inputs, std::span<std::byte* const>(&out, 1), count, dtype, ReduceOp::kSum);
    benchmark::ClobberMemory();
  }
  std::vector<float> wanted(count);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < buffers; ++k) wanted[i] += value(i, k);
  }
  std::vector<std::byte> right(sum.size());
  if (dtype == DataType::kF32) {
    const auto from = std::as_bytes(std::span(wanted));
    std::copy(from.begin(), from.end(), right.begin());
  } else {
    hvd::comm::convert(right.data(), dtype, std::as_bytes(std::span(wanted)).data(), DataType::kF32, count);
  }
  if (sum != right) state.SkipWithError("wrong sums");
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(reduce, fp32, DataType::kF32)->ArgsProduct({{4 * kKiB, kMiB, 64 * kMiB}, {2, 8}});
BENCHMARK_CAPTURE(reduce, fp16, DataType::kF16)->ArgsProduct({{4 * kKiB, kMiB, 64 * kMiB}, {2, 8}});
BENCHMARK_CAPTURE(reduce, bf16, DataType::kBF16)->ArgsProduct({{4 * kKiB, kMiB, 64 * kMiB}, {2, 8}});

/// Converts fp32 to 16 bits and back. range(0): bytes of the fp32 buffer.
void round_trip(benchmark::State& state, DataType to) {
  const std::size_t count = static_cast<std::size_t>(state.range(0)) / sizeof(float);
  const std::vector<std::byte> from = filled(DataType::kF32, count, 1);
  std::vector<std::byte> narrow(count * hvd::size_of(to)), back(from.size());
  for (auto _ : state) {
    hvd::comm::convert(narrow.data(), to, from.data(), DataType::kF32, count);
    hvd::comm::convert(back.data(), DataType::kF32, narrow.data(), to, count);
    benchmark::ClobberMemory();
  }
  if (back != from) state.SkipWithError("whole numbers were rounded");
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(round_trip, fp16, DataType::kF16)->Arg(kMiB)->Arg(64 * kMiB);
BENCHMARK_CAPTURE(round_trip, bf16, DataType::kBF16)->Arg(kMiB)->Arg(64 * kMiB);

/// Packs tensors of range(0) bytes, 32 MiB in total, into the fusion buffer and unpacks them.
void pack_and_unpack(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::size_t tensors = static_cast<std::size_t>(32 * kMiB) / bytes;
  const auto world = hvd::comm::make_solo();
  std::vector<std::vector<std::byte>> results(tensors);
  const std::vector<std::byte> operand = filled(DataType::kF32, bytes / sizeof(float), 3);
  std::vector<hvd::Piece> pieces;
  for (auto& result : results) {
    result.resize(bytes);
    pieces.push_back({.data = result.data(), .bytes = bytes, .offset = 0, .from = operand.data()});
  }
  const std::size_t total = hvd::lay_out(pieces, 64);
  hvd::FusionBuffer buffer;
  buffer.reserve(total, total, world->data(), soon());
  for (auto _ : state) {
    buffer.pack(pieces, world->data());
    buffer.unpack(pieces, world->data());
    benchmark::ClobberMemory();
  }
  const auto right = [&](const std::vector<std::byte>& result) { return result == operand; };
  if (!std::all_of(results.begin(), results.end(), right)) state.SkipWithError("a tensor came back changed");
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(tensors * bytes));
}
BENCHMARK(pack_and_unpack)->Arg(kKiB)->Arg(64 * kKiB)->Arg(4 * kMiB)->Unit(benchmark::kMicrosecond);

/// Two ranks as threads of this process; rank 0 is the benchmark's thread.
class TwoRanks {
 public:
  using Operation = std::function<void(Communicator&, std::span<float>)>;

  /// `registered`: the buffers lie in memory that both ranks see. Shape of each buffer: (count).
  TwoRanks(std::size_t count, bool registered, Operation operation)
      : world_(hvd::comm::make_loopback(2)), operation_(std::move(operation)), plain_{std::vector<float>(count), {}} {
    plain_[1].resize(count);
    other_ = std::jthread([this, count, registered](const std::stop_token& stop) {
      std::vector<float>& mine = plain_[1];
      std::unique_ptr<hvd::comm::RegisteredMemory> memory;
      const std::span<float> data = place(*world_[1], mine, count, registered, memory);
      for (;;) {
        start(data, 1);
        meet_.arrive_and_wait();
        if (stop.stop_requested()) return;
        for (std::size_t i = 0; i < calls_; ++i) operation_(*world_[1], data);
      }
    });
    data_ = place(*world_[0], plain_[0], count, registered, memory_);
  }
  ~TwoRanks() {
    other_.request_stop();
    meet_.arrive_and_wait();
  }
  TwoRanks(const TwoRanks&) = delete;
  TwoRanks& operator=(const TwoRanks&) = delete;

  /// Returns rank 0's seconds for `calls` operations on inputs that start as value(i, rank).
  double run(std::size_t calls) {
    calls_ = calls;
    start(data_, 0);
    meet_.arrive_and_wait();
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < calls; ++i) operation_(*world_[0], data_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  [[nodiscard]] std::span<const float> data() const { return data_; }

 private:
  static std::span<float> place(Communicator& rank, std::vector<float>& plain, std::size_t count, bool registered,
                                std::unique_ptr<hvd::comm::RegisteredMemory>& memory) {
    if (!registered) return plain;
    memory = rank.data().allocate(count * sizeof(float), soon());
    return {reinterpret_cast<float*>(memory->bytes().data()), count};
  }
  static void start(std::span<float> data, std::size_t rank) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = value(i, rank);
  }

  std::vector<std::unique_ptr<Communicator>> world_;
  Operation operation_;
  std::array<std::vector<float>, 2> plain_;
  std::unique_ptr<hvd::comm::RegisteredMemory> memory_;
  std::span<float> data_;
  std::size_t calls_ = 0;
  std::barrier<> meet_{2};
  std::jthread other_;
};

/// Reduces 1 MiB in one or more calls of range(0) bytes each. The operation is the maximum over both ranks, so
/// that repeating it does not change the data. range(1): 1 if the memory is registered.
void plane_all_reduce(benchmark::State& state) {
  const std::size_t count = static_cast<std::size_t>(state.range(0)) / sizeof(float);
  const std::size_t calls = std::max<std::size_t>(1, static_cast<std::size_t>(kMiB / state.range(0)));
  TwoRanks ranks(count, state.range(1) != 0, [](Communicator& rank, std::span<float> data) {
    rank.data().all_reduce(data.data(), data.size(), DataType::kF32, ReduceOp::kMax, soon());
  });
  for (auto _ : state) state.SetIterationTime(ranks.run(calls));
  for (std::size_t i = 0; i < count; ++i) {
    if (ranks.data()[i] == value(i, 1)) continue;
    state.SkipWithError("wrong maximum");
    break;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(calls) * state.range(0));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(calls));
}
BENCHMARK(plane_all_reduce)
    ->ArgsProduct({{1 * kKiB, 32 * kKiB, kMiB, 64 * kMiB}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// Broadcasts 1 MiB in one or more calls of range(0) bytes each. range(1): 1 if the memory is registered.
void plane_broadcast(benchmark::State& state) {
  const std::size_t count = static_cast<std::size_t>(state.range(0)) / sizeof(float);
  const std::size_t calls = std::max<std::size_t>(1, static_cast<std::size_t>(kMiB / state.range(0)));
  TwoRanks ranks(count, state.range(1) != 0, [](Communicator& rank, std::span<float> data) {
    rank.data().broadcast(data.data(), data.size_bytes(), 1, soon());
  });
  for (auto _ : state) state.SetIterationTime(ranks.run(calls));
  for (std::size_t i = 0; i < count; ++i) {
    if (ranks.data()[i] == value(i, 1)) continue;
    state.SkipWithError("rank 0 has other data than the root");
    break;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(calls) * state.range(0));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(calls));
}
BENCHMARK(plane_broadcast)
    ->ArgsProduct({{1 * kKiB, 32 * kKiB, kMiB, 64 * kMiB}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
