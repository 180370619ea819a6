// Synthetic images and labels from a counter-based generator: sample k of the data set is the same on
// whatever rank draws it, so 4 ranks x batch 2 see the same data as 1 rank x batch 8.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace hvd::models {

/// Which labels the batches of a run have. Images cycle in either case.
enum class LabelRule : std::uint8_t {
  kFresh,   ///< new labels in every step, so that no network can memorise its batches
  kCycled,  ///< each batch of images keeps its labels, as in records before there was a choice
};
/// "fresh", "cycled".
std::string_view name(LabelRule rule) noexcept;

struct SyntheticSpec {
  std::uint64_t seed = 1;
  std::int64_t image_elements = 0;  ///< h * w * c
  std::int64_t classes = 1000;
};

/// Images as standard normal values {n, h, w, c} and labels in [0, classes) of the global samples
/// first_sample, first_sample + 1, ... n = labels.size(); images.size() == n * image_elements.
void synthetic_batch(const SyntheticSpec& spec, std::uint64_t first_sample, std::span<float> images,
                     std::span<std::int32_t> labels);

/// The labels of synthetic_batch() alone.
void synthetic_labels(const SyntheticSpec& spec, std::uint64_t first_sample, std::span<std::int32_t> labels);

}  // namespace hvd::models
