// The mini-batches of one rank. Images are generated before the timed region and reused in a cycle, as
// tf_cnn_benchmarks does, because input pipelines are not measured. Labels are new in every step, because a network
// that has memorised its batches computes with vanishing gradients, which would change the measurement.
#pragma once

#include <cstdint>
#include <vector>

#include "models/synthetic.h"
#include "models/train_step.h"

namespace hvd::bench {

struct BatchPlace {  ///< the rank that the batches belong to
  int rank = 0, world_size = 1;
};

class SyntheticBatches {
 public:
  /// Makes `count` batches of `batch_size` images. Batch k holds the images of the global samples from (k * world_size
  /// + rank) * batch_size on, so that all ranks together see the same samples, however many ranks there are.
  SyntheticBatches(const models::SyntheticSpec& spec, std::int64_t batch_size, int count, BatchPlace place,
                   models::LabelRule rule = models::LabelRule::kFresh);

  /// Returns the batch of training step `step`. Images repeat in a cycle, but first_sample, which seeds labels and
  /// dropout, does not. Labels are valid until the next call. Call at() outside the timed region: it makes labels.
  [[nodiscard]] models::Batch at(std::uint64_t step);
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] int count() const { return static_cast<int>(images_.size()); }

 private:
  models::SyntheticSpec spec_;
  BatchPlace place_;
  models::LabelRule rule_;
  std::vector<std::vector<float>> images_;  // [batch], each {n, h, w, c}
  std::vector<std::int32_t> labels_;        // {n}, labels of the step that was requested last
};

/// Returns the number of batches to cycle through: 4, or fewer (at least 1) if 4 would take more than 128 MiB.
int batches_to_cycle(std::int64_t batch_size, std::int64_t image_elements);

}  // namespace hvd::bench
