// Synthetic images and labels from a counter-based generator. Sample k of the data set is the same on every rank, so
// that 4 ranks with batch 2 see the same data as 1 rank with batch 8.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace hvd::models {

/// Rule for the labels of a run's batches. Images repeat in cycles under both rules.
enum class LabelRule : std::uint8_t {
  kFresh,   ///< new labels in every step, so that no network can memorise its batches
  kCycled,  ///< each batch of images keeps its labels, as in all records made before this option existed
};
/// "fresh", "cycled".
std::string_view name(LabelRule rule) noexcept;

struct SyntheticSpec {
  std::uint64_t seed = 1;
  std::int64_t image_elements = 0;  ///< h * w * c
  std::int64_t classes = 1000;
};

/// Fills in images {n, h, w, c} as standard normal values, and labels in [0, classes), for the global samples
/// first_sample, first_sample + 1, ... n = labels.size(); images.size() == n * image_elements.
void synthetic_batch(const SyntheticSpec& spec, std::uint64_t first_sample, std::span<float> images,
                     std::span<std::int32_t> labels);

/// Fills in only the labels of synthetic_batch().
void synthetic_labels(const SyntheticSpec& spec, std::uint64_t first_sample, std::span<std::int32_t> labels);

}  // namespace hvd::models
