// The random numbers of training, from a counter-based generator (engine/base/philox.h): initial weights, dropout
// masks, and synthetic images and labels. Every value is a pure function of a seed and its place, so all backends draw
// the same values, and these do not depend on how the global batch is split over ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/base/philox.h"
#include "models/graph/graph.h"

namespace hvd::models {

/// Sets out[i] to standard normal element `first_index + i` of the generator's stream. The values of a range are the
/// same whether one call or several calls fill the range. Four elements take one Philox block and two Box-Muller pairs
/// in single precision, which is fast enough for the 138 million weights of VGG-16.
void fill_normal(const Philox& generator, std::uint64_t first_index, std::span<float> out);

/// Sets the initial weights of a parameter. Fills `out` (logical row-major, shape.count() elements). The Philox stream
/// is the hash of the parameter's name.
void initial_value(const Parameter& parameter, const Shape& shape, std::uint64_t seed, std::span<float> out);

/// The place in the training at which a dropout mask is drawn.
struct DropoutPoint {
  std::uint64_t seed = 1;          ///< StepOptions::seed
  std::uint64_t step = 0;          ///< Batch::step
  std::uint64_t first_sample = 0;  ///< Batch::first_sample
  std::uint64_t features = 0;      ///< number of elements per sample: h * w * c or features
};

/// Sets keep[i] to 1 if element i of a row-major {n, features} block is kept, else to 0. Row 0 of the block is sample
/// `first_sample`. Forward and backward multiply kept elements by dropout_scale() and set the rest to zero.
void dropout_mask(const DropoutAttr& attr, const DropoutPoint& point, std::span<std::uint8_t> keep);

/// Returns 1 / (1 - rate).
[[nodiscard]] double dropout_scale(const DropoutAttr& attr) noexcept;

/// Rule for the labels of a run's batches. Images repeat in cycles under both rules.
enum class LabelRule : std::uint8_t {
  kFresh,   ///< repeated images get new labels in every step, so that no network can memorise its batches
  kCycled,  ///< repeated images keep their labels; records made before there was a LabelRule used this rule
};
/// Returns "fresh" or "cycled".
std::string_view name(LabelRule rule) noexcept;

/// Sample k of the data set is the same on every rank. Therefore 4 ranks with batch 2 together see the same data as 1
/// rank with batch 8.
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
