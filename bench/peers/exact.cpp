#include "bench/peers/exact.h"

namespace hvd::peers {
namespace {

/// Returns 0..15, the high bits of Knuth's multiplicative hash. Neighbouring elements get different digits, and one
/// element gets different digits in successive laps.
std::uint32_t digit(std::size_t element, std::uint32_t lap) {
  return ((static_cast<std::uint32_t>(element) + lap * 977U) * 2654435761U) >> 28U;
}

/// Element i of a run of elements has the value factor * digit(begin + i) + addend.
struct Run {
  std::size_t begin;
  std::size_t count;
  std::uint32_t factor;
  std::uint32_t addend;
};

std::uint32_t element(const Run& run, std::size_t i, std::uint32_t lap) {
  return run.factor * digit(run.begin + i, lap) + run.addend;
}

template <class T>
void write_run(T* data, const Run& run, std::uint32_t lap) {
  for (std::size_t i = 0; i < run.count; ++i) data[i] = static_cast<T>(element(run, i, lap));
}

template <class T>
std::int64_t wrong_in_run(const T* data, const Run& run, std::uint32_t lap) {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < run.count; ++i) wrong += data[i] != static_cast<T>(element(run, i, lap));
  return wrong;
}

/// Calls visit(T*), where T* is `data` as a pointer to its element type.
template <class Visit>
auto typed(Type type, const void* data, Visit&& visit) {
  void* memory = const_cast<void*>(data);
  switch (type) {
    case Type::kF32: return visit(static_cast<float*>(memory));
    case Type::kF64: return visit(static_cast<double*>(memory));
    case Type::kI32: return visit(static_cast<std::int32_t*>(memory));
    case Type::kI64: break;
  }
  return visit(static_cast<std::int64_t*>(memory));
}

std::uint32_t unsigned_of(int value) { return static_cast<std::uint32_t>(value); }

}  // namespace

void fill(const Call& call, const Place& place) {
  if (call.operation == Collective::kBarrier) return;
  Run run{0, call.count, 1, unsigned_of(place.rank)};
  if (call.operation == Collective::kAllGather) run.begin = call.starts[place.rank];
  if (call.operation == Collective::kAllGather) run.count = call.counts[place.rank];
  const void* data = call.operation == Collective::kBroadcast ? call.out : call.in;
  typed(call.type, data, [&](auto* typed_data) { write_run(typed_data, run, place.lap); });
}

std::int64_t count_wrong(const Call& call, const Place& place) {
  return typed(call.type, call.out, [&](const auto* out) -> std::int64_t {
    const std::uint32_t size = unsigned_of(place.size);
    const std::uint32_t ranks = size * (size - 1) / 2;  // sum of all rank numbers
    const std::size_t begin = call.starts[place.rank];
    const std::size_t mine = call.counts[place.rank];
    std::int64_t wrong = 0;
    switch (call.operation) {
      case Collective::kAllReduce: return wrong_in_run(out, {0, call.count, size, ranks}, place.lap);
      case Collective::kReduceScatter: return wrong_in_run(out, {begin, mine, size, ranks}, place.lap);
      case Collective::kBroadcast: return wrong_in_run(out, {0, call.count, 1, 0}, place.lap);
      case Collective::kAllGather:
        for (std::uint32_t r = 0; r < size; ++r) {
          wrong += wrong_in_run(out + call.starts[r], {call.starts[r], call.counts[r], 1, r}, place.lap);
        }
        return wrong;
      case Collective::kAllToAll:
        for (std::uint32_t r = 0; r < size; ++r) {
          wrong += wrong_in_run(out + r * mine, {begin, mine, 1, r}, place.lap);
        }
        return wrong;
      case Collective::kBarrier: break;
    }
    return 0;
  });
}

void corrupt(const Call& call) {
  if (call.operation == Collective::kBarrier) return;
  typed(call.type, call.out, [](auto* out) { out[0] += 1; });
}

}  // namespace hvd::peers
