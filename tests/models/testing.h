// Helpers that the model tests share: random values, a recording sink, a step on one rank, checks of errors.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/philox.h"
#include "models/graph/autodiff.h"
#include "models/random.h"
#include "models/train_step.h"
#include "tests/base/errors.h"
#include "tests/models/reference/reference_step.h"

namespace hvd::models::testing {

using hvd::test::expect_error;

/// Returns values of the standard normal distribution. The same arguments give the same values.
inline std::vector<double> random_values(std::int64_t count, std::uint64_t stream) {
  const Philox generator(20240611, stream);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(generator.normal(i));
  return values;
}

class RecordingSink final : public GradientSink {
 public:
  void gradient_ready(std::size_t parameter) override { ready.push_back(parameter); }
  std::vector<std::size_t> ready;
};

/// A step of the reference backend with its memory, and a batch of the synthetic data set.
struct Rank {
  Rank(const Graph& forward, const StepOptions& options, std::uint64_t first_sample = 0)
      : arena(make_heap_arena()),
        step(make_reference_step(differentiate(forward), options, arena.allocate)),
        images(static_cast<std::size_t>(forward.tensor(forward.images).shape.count())),
        labels(static_cast<std::size_t>(forward.batch_size)),
        first(first_sample) {
    const SyntheticSpec spec{.seed = 7,
                             .image_elements = forward.tensor(forward.images).shape.count() / forward.batch_size,
                             .classes = forward.classes};
    synthetic_batch(spec, first_sample, images, labels);
  }
  double forward_backward(std::uint64_t training_step = 0) {
    return step->forward_backward({.images = images, .labels = labels, .first_sample = first, .step = training_step},
                                  sink);
  }
  /// Returns all parameters. The reference backend keeps its parameters as one array of doubles, in arena order.
  [[nodiscard]] std::span<double> parameters() const {
    const auto bytes = step->state_to_broadcast().at(0);
    return {reinterpret_cast<double*>(bytes.data()), bytes.size() / sizeof(double)};
  }
  /// Call only if options.gradient = kF64.
  [[nodiscard]] std::span<double> gradients() const {
    const auto bytes = step->gradient_arena();
    return {reinterpret_cast<double*>(bytes.data()), bytes.size() / sizeof(double)};
  }

  HeapArena arena;
  std::unique_ptr<TrainStep> step;
  std::vector<float> images;
  std::vector<std::int32_t> labels;
  std::uint64_t first = 0;
  RecordingSink sink;
};

}  // namespace hvd::models::testing
