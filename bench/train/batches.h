// The mini-batches of one rank. Images are generated before the timed region and cycled, as tf_cnn_benchmarks does with
// its synthetic data, because input pipelines are not what is measured. Labels are new in every step: a network that
// has memorised its batches computes with vanishing gradients, and that is not what is to be measured either.
#pragma once

#include <cstdint>
#include <vector>

#include "models/synthetic.h"
#include "models/train_step.h"

namespace hvd::bench {

struct BatchPlace {  ///< whose batches these are
  int rank = 0, world_size = 1;
};

class SyntheticBatches {
 public:
  /// `count` batches of `batch_size` images; batch k holds the images of the global samples from
  /// (k * world_size + rank) * batch_size, so that the world sees the same samples however they are divided.
  SyntheticBatches(const models::SyntheticSpec& spec, std::int64_t batch_size, int count, BatchPlace place,
                   models::LabelRule rule = models::LabelRule::kFresh);

  /// The batch of training step `step`: images cycle, first_sample (labels, dropout) does not. Labels are good until
  /// the next call. Call it outside of what is timed: it generates them.
  [[nodiscard]] models::Batch at(std::uint64_t step);
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] int count() const { return static_cast<int>(images_.size()); }

 private:
  models::SyntheticSpec spec_;
  BatchPlace place_;
  models::LabelRule rule_;
  std::vector<std::vector<float>> images_;  // [batch], each {n, h, w, c}
  std::vector<std::int32_t> labels_;        // {n}, of the step that was asked for last
};

/// Batches to cycle: 4, fewer where they would take more than 128 MiB, at least 1.
int batches_to_cycle(std::int64_t batch_size, std::int64_t image_elements);

}  // namespace hvd::bench
