#include "bench/train/batches.h"

#include <algorithm>

namespace hvd::bench {

SyntheticBatches::SyntheticBatches(const models::SyntheticSpec& spec, std::int64_t batch_size, int count,
                                   BatchPlace place)
    : batch_size_(batch_size), place_(place) {
  const auto n = static_cast<std::size_t>(batch_size);
  for (int k = 0; k < count; ++k) {
    images_.emplace_back(n * static_cast<std::size_t>(spec.image_elements));
    labels_.emplace_back(n);
    const auto first = (static_cast<std::uint64_t>(k) * static_cast<std::uint64_t>(place.world_size) +
                        static_cast<std::uint64_t>(place.rank)) *
                       static_cast<std::uint64_t>(batch_size);
    models::synthetic_batch(spec, first, images_.back(), labels_.back());
  }
}

models::Batch SyntheticBatches::at(std::uint64_t step) const {
  const std::size_t k = static_cast<std::size_t>(step % images_.size());
  models::Batch batch;
  batch.images = images_[k];
  batch.labels = labels_[k];
  batch.step = step;
  batch.content = k + 1;
  batch.first_sample =
      (step * static_cast<std::uint64_t>(place_.world_size) + static_cast<std::uint64_t>(place_.rank)) *
      static_cast<std::uint64_t>(batch_size_);
  return batch;
}

std::size_t SyntheticBatches::bytes() const {
  std::size_t total = 0;
  for (const auto& images : images_) total += images.size() * sizeof(float);
  for (const auto& labels : labels_) total += labels.size() * sizeof(std::int32_t);
  return total;
}

int batches_to_cycle(std::int64_t batch_size, std::int64_t image_elements) {
  constexpr double kBudgetBytes = 128.0 * 1024 * 1024;
  const double bytes = static_cast<double>(batch_size) * static_cast<double>(image_elements) * sizeof(float);
  return static_cast<int>(std::clamp(kBudgetBytes / bytes, 1.0, 4.0));
}

}  // namespace hvd::bench
