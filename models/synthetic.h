// Synthetic images and labels from a counter-based generator. Sample k of the data set is the same on every rank.
// Therefore 4 ranks with batch 2 together see the same data as 1 rank with batch 8.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace hvd::models {

/// Rule for the labels of a run's batches. Images repeat in cycles under both rules.
enum class LabelRule : std::uint8_t {
  kFresh,   ///< repeated images get new labels in every step, so that no network can memorise its batches
  kCycled,  ///< repeated images keep their labels; records made before there was a LabelRule used this rule
};
/// Returns "fresh" or "cycled".
std::string_view name(LabelRule rule) noexcept;

struct SyntheticSpec {
  std::uint64_t seed = 1;
  std::int64_t image_elements = 0;  ///< h * w * c
  std::int64_t classes = 1000;
};

/// Fills `images` {n, h, w, c} with standard normal values, and `labels` with classes in [0, classes), for the n global
/// samples from `first_sample` on. n = labels.size(); images.size() must be n * image_elements.
void synthetic_batch(const SyntheticSpec& spec, std::uint64_t first_sample, std::span<float> images,
                     std::span<std::int32_t> labels);

/// Fills `labels` like synthetic_batch(), without making images.
void synthetic_labels(const SyntheticSpec& spec, std::uint64_t first_sample, std::span<std::int32_t> labels);

}  // namespace hvd::models
