// Measures the processor time of the control plane without any communication: the pure negotiation. Every case checks
// its answer and reports an error instead of a time if the answer is wrong.
// For comparison: Horovod negotiates a thousand small tensors per step in 5 to 8 ms.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/negotiator.h"

namespace {

using namespace hvd::core;
using hvd::DataType;
using hvd::ReduceOp;

constexpr std::size_t kTensors = 1000;
constexpr std::size_t kResNet101 = 314;  // number of parameters of ResNet-101

std::string name_of(std::size_t i) {  // as long as real names, so that the string allocates memory
  return fmt::format("model/stage3/block{}/conv{}/weight/gradient", i / 6, i % 6);
}

std::vector<Request> requests_of(std::size_t tensors) {
  std::vector<Request> requests;
  for (std::size_t i = 0; i < tensors; ++i) {
    requests.push_back({name_of(i), DataType::kF32, ReduceOp::kAverage, {16, 16}});
  }
  return requests;
}

class World {
 public:
  explicit World(int size, const NegotiatorOptions& options) {
    for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(rank, size, options);
    cached_.resize(ranks_.size());
  }

  /// Submits all requests of every rank, negotiates one cycle, and puts each rank's result into done_.
  void step(const std::vector<std::vector<Request>>& requests) {
    for (std::size_t r = 0; r < ranks_.size(); ++r) submit(r, requests[r]);
    std::vector<Action> actions;
    for (Negotiator& rank : ranks_) actions.push_back(rank.begin_cycle());
    while (!std::holds_alternative<CycleDone>(actions.front())) advance(actions);
    done_.clear();
    for (Action& action : actions) done_.push_back(std::get<CycleDone>(std::move(action)));
  }

  /// Returns true if all ranks execute the same batches and the batches contain `tensors` tensors.
  [[nodiscard]] bool right(std::size_t tensors) const {
    std::size_t names = 0;
    for (const Batch& batch : done_.front().batches) names += batch.error.empty() ? batch.names.size() : 0;
    for (const CycleDone& rank : done_) {
      if (rank.batches != done_.front().batches) return false;
    }
    return names == tensors;
  }
  [[nodiscard]] const CycleStats& stats() const { return ranks_.front().stats(); }
  /// Returns the time that rank 0 spent in on_gathered() in the last step.
  [[nodiscard]] std::chrono::nanoseconds coordinator() const { return coordinator_; }

 private:
  /// Submits the requests of a step on rank `r` in the way the engine does.
  void submit(std::size_t r, const std::vector<Request>& requests) {
    Negotiator& rank = ranks_[r];
    cached_[r].resize(requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CachedAt& at = cached_[r][i];
      const auto tag = static_cast<Tag>(i);
      if (!rank.submit_cached(at, tag)) at = rank.submit(requests[i], tag).value_or(CachedAt{});
    }
  }

  void advance(std::vector<Action>& actions) {
    if (auto* first = std::get_if<AllReduceBits>(&actions.front())) {
      const AllReduceBits total = reduce(std::move(*first), std::span(actions).subspan(1));
      for (std::size_t r = 0; r < ranks_.size(); ++r) actions[r] = ranks_[r].on_bits(total.words);
    } else if (std::holds_alternative<Gather>(actions.front())) {
      std::vector<Bytes> messages;
      for (Action& action : actions) messages.push_back(std::get<Gather>(std::move(action)).message);
      const auto started = std::chrono::steady_clock::now();
      actions[0] = ranks_[0].on_gathered(messages);
      coordinator_ = std::chrono::steady_clock::now() - started;
      for (std::size_t r = 1; r < ranks_.size(); ++r) actions[r] = ranks_[r].on_gathered({});
    } else {
      const Bytes answer = std::get<Broadcast>(std::move(actions.front())).message;
      for (std::size_t r = 0; r < ranks_.size(); ++r) actions[r] = ranks_[r].on_broadcast(answer);
    }
  }

  static AllReduceBits reduce(AllReduceBits total, std::span<const Action> others) {
    for (const Action& action : others) {
      const auto& words = std::get<AllReduceBits>(action).words;
      for (std::size_t i = 0; i < words.size(); ++i) {
        total.words[i] = total.op == hvd::BitOp::kAnd ? total.words[i] & words[i] : total.words[i] | words[i];
      }
    }
    return total;
  }

  std::vector<Negotiator> ranks_;
  std::vector<std::vector<CachedAt>> cached_;  // [rank][request]
  std::vector<CycleDone> done_;
  std::chrono::nanoseconds coordinator_{0};
};

/// Measures one rank's processor time for a cycle of cached tensors. range(0): ranks, range(1): tensors.
void negotiate_cached(benchmark::State& state) {
  const auto ranks = static_cast<std::size_t>(state.range(0));
  const auto tensors = static_cast<std::size_t>(state.range(1));
  const std::vector<std::vector<Request>> requests(ranks, requests_of(tensors));
  World world(static_cast<int>(ranks), {});
  world.step(requests);  // fills the caches
  world.step(requests);  // learns the place of each request in the caches
  for (auto _ : state) {
    const auto started = std::chrono::steady_clock::now();
    world.step(requests);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - started;
    state.SetIterationTime(elapsed.count() / static_cast<double>(ranks));
    if (!world.right(tensors)) state.SkipWithError("ranks disagree");
  }
  if (world.stats().coordinated != 1) state.SkipWithError("a cached cycle went through the coordinator");
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(tensors));
}
BENCHMARK(negotiate_cached)->Args({2, kResNet101})->Args({2, kTensors})->UseManualTime()->Unit(benchmark::kMicrosecond);
// The number of iterations is fixed, because an iteration with 512 ranks takes 512 times the reported time.
BENCHMARK(negotiate_cached)
    ->Args({512, kResNet101})
    ->Args({512, kTensors})
    ->Iterations(8)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// Measures rank 0's part of the first cycle: nothing is cached, so rank 0 handles all requests of all ranks.
void coordinate_first_cycle(benchmark::State& state) {
  const auto ranks = static_cast<std::size_t>(state.range(0));
  const std::vector<std::vector<Request>> requests(ranks, requests_of(kTensors));
  for (auto _ : state) {
    World world(static_cast<int>(ranks), {});
    world.step(requests);
    state.SetIterationTime(std::chrono::duration<double>(world.coordinator()).count());
    if (!world.right(kTensors)) state.SkipWithError("ranks disagree");
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kTensors * ranks));
}
BENCHMARK(coordinate_first_cycle)->Arg(2)->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(coordinate_first_cycle)->Arg(512)->Iterations(4)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace

BENCHMARK_MAIN();
