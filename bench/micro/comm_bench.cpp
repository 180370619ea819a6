// Measures what summing and packing gradients costs on one thread: the reduction kernels, conversion between element
// types, and packing into the fusion buffer. hvd_bench coll measures the data planes. Every case checks its answer and
// reports an error instead of a time if the answer is wrong. Rates count the bytes of one buffer.
//
//   build/release/bin/comm_bench --benchmark_filter=reduce
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = 1024 * kKiB;

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

/// Small whole numbers that are exact in every type. Their period differs from any vector width.
float value(std::size_t i, std::size_t buffer) { return static_cast<float>((i % 7) + buffer); }

std::vector<std::byte> in_type(DataType dtype, const std::vector<float>& values) {
  const auto from = std::as_bytes(std::span(values));
  if (dtype == DataType::kF32) return {from.begin(), from.end()};
  std::vector<std::byte> bytes(values.size() * hvd::size_of(dtype));
  hvd::comm::convert(bytes.data(), dtype, from.data(), DataType::kF32, values.size());
  return bytes;
}

std::vector<std::byte> filled(DataType dtype, std::size_t count, std::size_t buffer) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value(i, buffer);
  return in_type(dtype, values);
}

/// range(0): bytes of a buffer; range(1): number of buffers that are summed.
void reduce(benchmark::State& state, DataType dtype) {
  const std::size_t count = static_cast<std::size_t>(state.range(0)) / hvd::size_of(dtype);
  const auto buffers = static_cast<std::size_t>(state.range(1));
  std::vector<std::vector<std::byte>> memory;
  std::vector<const std::byte*> inputs;
  memory.reserve(buffers);
  for (std::size_t k = 0; k < buffers; ++k) memory.push_back(filled(dtype, count, k));
  for (const auto& buffer : memory) inputs.push_back(buffer.data());
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
  if (sum != in_type(dtype, wanted)) state.SkipWithError("wrong sums");
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

}  // namespace

BENCHMARK_MAIN();
