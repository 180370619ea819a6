#include "models/synthetic.h"

#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/base/philox.h"
#include "models/normal.h"

namespace hvd::models {

std::string_view name(LabelRule rule) noexcept { return rule == LabelRule::kFresh ? "fresh" : "cycled"; }

void synthetic_batch(const SyntheticSpec& spec, std::uint64_t first_sample, std::span<float> images,
                     std::span<std::int32_t> labels) {
  HVD_ASSERT(spec.classes > 0 && images.size() == labels.size() * static_cast<std::size_t>(spec.image_elements));
  const Philox pixels(spec.seed, Hasher().text("images").value());
  fill_normal(pixels, first_sample * static_cast<std::uint64_t>(spec.image_elements), images);
  synthetic_labels(spec, first_sample, labels);
}

void synthetic_labels(const SyntheticSpec& spec, std::uint64_t first_sample, std::span<std::int32_t> labels) {
  const Philox classes(spec.seed, Hasher().text("labels").value());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    // A multiplication and a shift map 32 random bits to a class in [0, classes). A remainder would favour low classes.
    const std::uint64_t word = classes.block(first_sample + i)[0];
    labels[i] = static_cast<std::int32_t>((word * static_cast<std::uint64_t>(spec.classes)) >> 32);
  }
}

}  // namespace hvd::models
