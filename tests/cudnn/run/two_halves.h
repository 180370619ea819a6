// Checks that two ranks take the same step as one rank with the whole batch, if each has half the batch and their
// gradients are averaged. Use it only for networks without batch norm, because batch norm's statistics come from one
// rank's batch.
#pragma once

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/graph/autodiff.h"
#include "models/train_step.h"
#include "tests/comm/shared_gpu.h"
#include "tests/models/testing.h"

namespace hvd::models::testing {

/// A function that makes a step for a differentiated graph on the shared GPU.
using StepMaker = std::function<std::unique_ptr<TrainStep>(Graph graph, const ArenaAllocator& allocate)>;

/// A step whose gradients are in an allocation of their own.
struct StepOnSharedGpu {
  StepOnSharedGpu(const StepMaker& make, const Graph& forward, gpu::GpuRuntime& runtime) {
    step = make(differentiate(forward), [&](std::size_t bytes) {
      const gpu::Stream stream = runtime.make_stream(gpu::Priority::kNormal);
      gradients = runtime.allocate(bytes, "the gradients");
      runtime.fill(gradients->bytes.data(), std::byte{0}, bytes, stream);
      runtime.synchronize(stream.view(), Deadline::after(std::chrono::seconds(60)), "zeroes");
      return gradients->bytes;
    });
  }
  [[nodiscard]] std::vector<std::vector<float>> all_gradients() const {
    std::vector<std::vector<float>> all;
    for (std::size_t p = 0; p < step->slots().size(); ++p) {
      all.emplace_back(static_cast<std::size_t>(step->slots()[p].shape.count()));
      step->read_gradient(p, all.back());
    }
    return all;
  }

  gpu::DeviceMemory gradients;
  std::unique_ptr<TrainStep> step;
};

/// Returns two Euclidean norms: that of a - b and that of b.
inline std::pair<double, double> distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double value = b[i], apart = a[i] - value;
    error += apart * apart;
    norm += value * value;
  }
  return {std::sqrt(error), std::sqrt(norm)};
}

/// Runs two steps on this rank's half of the batch and two steps on the whole batch. Each step is followed by an
/// update. `forward_of(batch)` builds the network. Returns a text with the gradients that differ by more than
/// `tolerance` times their norm, or "".
inline std::string compare_halves_with_whole(int rank, gpu::GpuRuntime& runtime, test::SharedGpu& shared,
                                             const StepMaker& make,
                                             const std::function<Graph(std::int64_t)>& forward_of,
                                             std::int64_t half_batch, double tolerance) {
  const auto first = static_cast<std::uint64_t>(rank * half_batch);
  const Rank half_data(forward_of(half_batch), {}, first), whole_data(forward_of(2 * half_batch), {});
  const StepOnSharedGpu half(make, forward_of(half_batch), runtime), whole(make, forward_of(2 * half_batch), runtime);
  RecordingSink sink;
  std::string text;
  for (std::uint64_t number = 0; number < 2; ++number) {
    half.step->forward_backward(
        {.images = half_data.images, .labels = half_data.labels, .first_sample = first, .step = number}, sink);
    shared.all_reduce(half.gradients->bytes, half.step->gradient_type(), ReduceOp::kAverage,
                      Deadline::after(std::chrono::seconds(60)));
    whole.step->forward_backward({.images = whole_data.images, .labels = whole_data.labels, .step = number}, sink);
    const auto got = half.all_gradients(), expected = whole.all_gradients();
    for (std::size_t p = 0; p < expected.size(); ++p) {
      const auto [error, norm] = distance(got[p], expected[p]);
      if (error <= tolerance * norm && norm > 0) continue;
      text += "step " + std::to_string(number) + ", " + whole.step->slots()[p].name + ": off by " +
              std::to_string(error) + " of " + std::to_string(norm) + "; ";
    }
    half.step->update({});
    whole.step->update({});
  }
  return text;
}

}  // namespace hvd::models::testing
