#include "bench/cli/machine_rate.h"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "engine/base/deadline.h"
#include "models/graph/autodiff.h"
#include "models/graph/builder.h"
#include "models/train_step.h"

namespace hvd::bench {
namespace {

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Runs `work` on `threads` threads that start together. Returns the seconds until the last thread is done.
double timed(int threads, const std::function<void(int thread)>& work) {
  std::barrier start(threads + 1);
  std::vector<std::jthread> workers;
  workers.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      start.arrive_and_wait();
      work(i);
    });
  }
  start.arrive_and_wait();
  const Clock::time_point begin = Clock::now();
  workers.clear();  // joins the threads
  return seconds_since(begin);
}

typedef float Vector __attribute__((vector_size(64)));  // the compiler splits vectors if registers are narrower
constexpr int kChains = 12;                             // keeps all units busy: more than 4 cycles (latency) x 2 units

/// Does `rounds` multiply-adds in each of kChains independent chains of 16 floats.
[[gnu::always_inline]] inline float multiply_add(long rounds) {
  Vector chain[kChains];
  for (int c = 0; c < kChains; ++c) chain[c] = Vector{} + static_cast<float>(c);
  const Vector factor = Vector{} + 0.999F, term = Vector{} + 0.001F;
  for (long round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) chain[c] = chain[c] * factor + term;
  }
  float sum = 0;
  for (const Vector& each : chain) sum += each[0] + each[15];
  return sum;
}

float multiply_add_portable(long rounds) { return multiply_add(rounds); }
#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] float multiply_add_avx2(long rounds) { return multiply_add(rounds); }
[[gnu::target("avx512f,fma")]] float multiply_add_avx512(long rounds) { return multiply_add(rounds); }
#endif

float (*widest_multiply_add())(long) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_add_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_add_avx2;
#endif
  return multiply_add_portable;
}

/// Returns a graph of three parts: the timed convolution, a narrow convolution before it that makes its input, and a
/// loss after it.
models::Graph convolution_graph() {
  constexpr std::int64_t kBatch = 4, kSize = 28, kChannels = 256;
  models::GraphBuilder builder("convolution", kBatch, kSize, 8);
  models::Window same{3, 3};
  same.pad_top = same.pad_bottom = same.pad_left = same.pad_right = 1;
  models::TensorId x = builder.conv("widen", builder.images(), kChannels, models::Window{}, false);
  x = builder.relu("relu1", x);
  x = builder.conv("probe", x, kChannels, same, false);
  x = builder.relu("relu2", x);
  x = builder.global_avg_pool("pool", x);
  x = builder.fully_connected("classify", x, 8);
  builder.softmax_cross_entropy("loss", x);
  return models::differentiate(std::move(builder).build());
}

class IgnoreGradients final : public models::GradientSink {
  void gradient_ready(std::size_t) override {}
};

}  // namespace

double peak_flops(int threads) {
  float (*const run)(long) = widest_multiply_add();
  volatile float sink = 0;
  long rounds = 1 << 16;
  double seconds = 0;
  for (; seconds < 0.1; rounds *= 2) {
    seconds = timed(threads, [&](int thread) {
      const float result = run(rounds);
      if (thread == 0) sink = result;
    });
  }
  const double flops = 2.0 * 16 * kChains * static_cast<double>(rounds) / 2 * threads;
  return flops / seconds;
}

double copy_bandwidth(int threads) {
  constexpr std::size_t kBlock = std::size_t{64} << 20;
  const std::size_t share = kBlock / static_cast<std::size_t>(threads);
  const auto from = std::make_unique<char[]>(kBlock), to = std::make_unique<char[]>(kBlock);
  double best = 0;
  for (int repeat = 0; repeat < 4; ++repeat) {  // the first repeat only touches the pages
    const double seconds = timed(threads, [&](int thread) {
      const std::size_t offset = share * static_cast<std::size_t>(thread);
      std::memcpy(to.get() + offset, from.get() + offset, share);
    });
    if (repeat > 0) best = std::max(best, 2.0 * static_cast<double>(share) * threads / seconds);
  }
  return best;
}

double matrix_rate(DataType type, int threads) {
  if (!models::onednn_unsupported_reason(type).empty()) return 0;
  const models::Graph graph = convolution_graph();
  models::StepOptions options;
  options.compute = type;
  options.threads = threads;
  options.profile = true;
  const models::HeapArena arena = models::make_heap_arena();
  const auto step = models::make_onednn_step(graph, options, arena.allocate);
  const models::Shape& shape = graph.tensor(graph.images).shape;
  const std::vector<float> images(static_cast<std::size_t>(shape.count()), 0.5F);
  const std::vector<std::int32_t> labels(static_cast<std::size_t>(shape[0]), 1);
  models::Batch batch;
  batch.images = images;
  batch.labels = labels;
  IgnoreGradients sink;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < 3 || (i < 30 && seconds_since(begin) < 0.3); ++i) step->forward_backward(batch, sink);
  double best = 0;
  for (const models::OperationProfile& operation : step->profile()) {
    if (operation.library && operation.seconds > 0) best = std::max(best, operation.flops / operation.seconds);
  }
  return best;
}

}  // namespace hvd::bench
