#include "models/init.h"

#include <algorithm>
#include <cmath>

#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/base/philox.h"
#include "models/normal.h"

namespace hvd::models {
namespace {

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

}  // namespace hvd::models
