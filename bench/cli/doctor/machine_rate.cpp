#include "bench/cli/doctor/machine_rate.h"

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "engine/base/assert.h"
#include "engine/base/deadline.h"
#include "models/graph/autodiff.h"
#include "models/graph/builder.h"
#include "models/train_step.h"

namespace hvd::bench {
namespace {

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// Runs `work` on `threads` threads that start together. Returns the seconds from the first thread's start to the last
/// thread's end. The threads look at the clock themselves, because the calling thread may get a core too late.
double timed(int threads, const std::function<void(int thread)>& work) {
  struct Span {
    Clock::time_point begin, end;
  };
  std::vector<Span> spans(static_cast<std::size_t>(threads));
  std::barrier start(threads);
  {
    std::vector<std::jthread> workers;
    workers.reserve(spans.size());
    for (int i = 0; i < threads; ++i) {
      workers.emplace_back([&, i] {
        start.arrive_and_wait();
        Span& own = spans[static_cast<std::size_t>(i)];
        own.begin = Clock::now();
        work(i);
        own.end = Clock::now();
      });
    }
  }  // joins the threads
  Span all = spans.front();
  for (const Span& span : spans) all = {std::min(all.begin, span.begin), std::max(all.end, span.end)};
  return std::chrono::duration<double>(all.end - all.begin).count();
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

PeakRate peak_rate(int threads, VectorLevel level) {
  // Other programs can only slow down a run, so the fastest of many short runs counts. The runs for the rate and for
  // the clock take turns, so that a change of the clock meets both. One thread alone may have a higher clock than all
  // together: the measured clock is an upper bound.
  constexpr int kTurns = 20;
  constexpr long kRounds = 1L << 20, kAdditions = 1L << 22;  // some milliseconds, and one
  std::vector<float> results(static_cast<std::size_t>(threads));
  long sum = 0;
  double rate_seconds = std::numeric_limits<double>::infinity(), clock_seconds = rate_seconds;
  for (int turn = 0; turn < kTurns; ++turn) {
    rate_seconds = std::min(rate_seconds, timed(threads, [&](int thread) {
                              results[static_cast<std::size_t>(thread)] = multiply_add(level, kRounds);
                            }));
    clock_seconds = std::min(clock_seconds, timed(1, [&](int) { sum = dependent_additions(kAdditions); }));
  }
  for (const float result : results) HVD_ASSERT(std::isfinite(result));
  HVD_ASSERT(sum == kAdditions);
  return {.flops = flops_per_round(level) * static_cast<double>(kRounds) * threads / rate_seconds,
          .clock = static_cast<double>(kAdditions) / clock_seconds};
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
  options.winograd = false;  // its rate would be counted as if it multiplied as often as a direct convolution
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
