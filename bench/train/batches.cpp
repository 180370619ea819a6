#include "bench/train/batches.h"

#include <algorithm>

namespace hvd::bench {
namespace {

/// Returns the global number of the first sample in the rank's batch of step `step`.
std::uint64_t first_sample(std::uint64_t step, BatchPlace place, std::size_t batch_size) {
  return (step * static_cast<std::uint64_t>(place.world_size) + static_cast<std::uint64_t>(place.rank)) * batch_size;
}

}  // namespace

SyntheticBatches::SyntheticBatches(const models::SyntheticSpec& spec, std::int64_t batch_size, int count,
                                   BatchPlace place, models::LabelRule rule)
    : spec_(spec), place_(place), rule_(rule), labels_(static_cast<std::size_t>(batch_size)) {
  for (int k = 0; k < count; ++k) {
    images_.emplace_back(labels_.size() * static_cast<std::size_t>(spec.image_elements));
    models::synthetic_batch(spec, first_sample(static_cast<std::uint64_t>(k), place, labels_.size()), images_.back(),
                            labels_);
  }
}

models::Batch SyntheticBatches::at(std::uint64_t step) {
  const std::uint64_t k = step % images_.size();
  const bool fresh = rule_ == models::LabelRule::kFresh;
  models::synthetic_labels(spec_, first_sample(fresh ? step : k, place_, labels_.size()), labels_);
  models::Batch batch;
  batch.images = images_[k];
  batch.labels = labels_;
  batch.step = step;
  batch.content = k + 1;
  batch.first_sample = first_sample(step, place_, labels_.size());
  return batch;
}

std::size_t SyntheticBatches::bytes() const {
  std::size_t total = labels_.size() * sizeof(std::int32_t);
  for (const auto& images : images_) total += images.size() * sizeof(float);
  return total;
}

int batches_to_cycle(std::int64_t batch_size, std::int64_t image_elements) {
  constexpr double kBudgetBytes = 128.0 * 1024 * 1024;
  const double bytes = static_cast<double>(batch_size) * static_cast<double>(image_elements) * sizeof(float);
  return static_cast<int>(std::clamp(kBudgetBytes / bytes, 1.0, 4.0));
}

}  // namespace hvd::bench
