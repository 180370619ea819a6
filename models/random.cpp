#include "models/random.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/base/philox.h"

namespace hvd::models {
namespace {

std::array<float, 4> normal_block(const Philox& generator, std::uint64_t block) {
  const auto words = generator.block(block);
  std::array<float, 4> values{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    // u is in [2^-32, 1], so its logarithm is finite. The largest normal value is sqrt(2 * 32 * ln 2) = 6.7.
    const float u = (static_cast<float>(words.at(pair)) + 1.0F) * 0x1.0p-32F;
    const float angle = 6.2831853F * (static_cast<float>(words.at(pair + 1)) * 0x1.0p-32F);
    const float radius = std::sqrt(-2.0F * std::log(std::min(u, 1.0F)));
    values.at(pair) = radius * std::cos(angle);
    values.at(pair + 1) = radius * std::sin(angle);
  }
  return values;
}

struct Fan {
  double in = 0, out = 0;
};

// Returns how many inputs each output sums, and how many outputs each input contributes to. The weights `shape` are
// {out, features} or {out, h, w, in}. In a convolution each input contributes to h * w * out outputs.
Fan fan(const Shape& shape) {
  const auto out = static_cast<double>(shape[0]);
  const double in = static_cast<double>(shape.count()) / out;
  const double area = shape.rank() == 4 ? static_cast<double>(shape[1] * shape[2]) : 1.0;
  return {.in = in, .out = out * area};
}

void scaled_normal(const Philox& generator, double deviation, std::span<float> out) {
  fill_normal(generator, 0, out);
  for (float& value : out) value *= static_cast<float>(deviation);
}

void uniform(const Philox& generator, double limit, std::span<float> out) {
  const auto scale = static_cast<float>(2 * limit);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = (generator.uniform(i) - 0.5F) * scale;
}

}  // namespace

void fill_normal(const Philox& generator, std::uint64_t first_index, std::span<float> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::uint64_t index = first_index + done;
    const auto values = normal_block(generator, index / 4);
    const std::size_t lane = index % 4;
    const std::size_t take = std::min<std::size_t>(4 - lane, out.size() - done);
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(lane), take,
                out.begin() + static_cast<std::ptrdiff_t>(done));
    done += take;
  }
}

void initial_value(const Parameter& parameter, const Shape& shape, std::uint64_t seed, std::span<float> out) {
  HVD_ASSERT(static_cast<std::int64_t>(out.size()) == shape.count());
  const Philox generator(seed, Hasher().text("parameter").text(parameter.name).value());
  switch (parameter.init) {
    // He et al., arXiv:1502.01852, equation 10: keeps the variance through ReLU layers.
    case Init::kHeNormal: scaled_normal(generator, std::sqrt(2.0 / fan(shape).in), out); return;
    // Glorot and Bengio, AISTATS 2010, equation 16.
    case Init::kGlorotUniform: uniform(generator, std::sqrt(6.0 / (fan(shape).in + fan(shape).out)), out); return;
    case Init::kNormal001: scaled_normal(generator, 0.01, out); return;
    case Init::kZero: std::fill(out.begin(), out.end(), 0.0F); return;
    case Init::kOne: std::fill(out.begin(), out.end(), 1.0F); return;
  }
}

void dropout_mask(const DropoutAttr& attr, const DropoutPoint& point, std::span<std::uint8_t> keep) {
  const Philox generator(point.seed, Hasher().text("dropout").number(attr.stream).number(point.step).value());
  // The comparison below is on integers, so that the mask does not depend on floating-point rounding.
  const auto dropped_below = static_cast<std::uint64_t>(attr.rate * 0x1.0p32);
  std::uint64_t index = point.first_sample * point.features;
  auto words = generator.block(index / 4);
  for (std::uint8_t& flag : keep) {
    if (index % 4 == 0) words = generator.block(index / 4);
    flag = words[index % 4] >= dropped_below ? 1 : 0;
    ++index;
  }
}

double dropout_scale(const DropoutAttr& attr) noexcept { return 1.0 / (1.0 - attr.rate); }

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
