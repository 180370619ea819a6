// Runs the networks with the reference backend and small images.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "models/random.h"
#include "models/zoo/zoo.h"
#include "tests/models/finite_difference.h"
#include "tests/models/testing.h"

namespace hvd::models::networks_test {
namespace {

using testing::Rank;

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

struct Reduced {
  const char* model;
  std::int64_t batch_size, image_size;
};

class ReducedNetwork : public ::testing::TestWithParam<Reduced> {};

double norm(std::span<const double> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

// Checks all gradients g at once: the derivative of the loss along a direction d must be g . d.
TEST_P(ReducedNetwork, GradientEqualsTheDirectionalDerivative) {
  const Graph forward = build_model({.model = GetParam().model,
                                     .batch_size = GetParam().batch_size,
                                     .image_size = GetParam().image_size,
                                     .classes = 10});
  Rank rank(forward, {.gradient = DataType::kF64, .seed = 1});
  const double loss = rank.forward_backward();
  ASSERT_TRUE(std::isfinite(loss));
  EXPECT_EQ(rank.sink.ready.size(), forward.parameters.size());

  // The direction of every tensor is its own gradient plus noise of the same norm. Every tensor therefore changes the
  // loss visibly.
  const auto gradients = rank.gradients();
  std::vector<float> noise(gradients.size());
  fill_normal(Philox(5), 0, noise);
  std::vector<double> direction(gradients.size());
  double slope = 0;
  for (const ArenaSlot& slot : rank.step->slots()) {
    const auto gradient = gradients.subspan(slot.offset, slot.count);
    const double size = norm(gradient);
    ASSERT_TRUE(std::isfinite(size)) << slot.name;
    ASSERT_GT(size, 0.0) << slot.name << ": no gradient reached it";
    for (std::size_t i = 0; i < slot.count; ++i) {
      double& d = direction[slot.offset + i];
      d = gradient[i] / size + noise[slot.offset + i] / std::sqrt(static_cast<double>(slot.count));
      slope += gradient[i] * d;
    }
  }
  // The loss of an untrained deep network changes steeply. Along direction / slope the loss rises by 1 per unit of
  // `move`. The difference quotient moves by 1e-5 and so changes the loss by 1e-5 for every network.
  double move = 0;
  const auto parameters = rank.parameters();
  const std::vector<double> start(parameters.begin(), parameters.end());
  const auto along = [&] {
    for (std::size_t i = 0; i < start.size(); ++i) parameters[i] = start[i] + move / slope * direction[i];
    const double value = rank.forward_backward();
    return testing::Scalar{.value = value, .magnitude = std::max(1.0, value)};
  };
  // At most a thousand roundings follow one another. At the displaced point a few of a million values take another
  // branch in a ReLU or a maximum. These kinks cause a first-order error. D(2h) - D(h) shows this error but does not
  // bound it, so the test allows an error that is 10 times as large.
  const testing::Derivative numeric = testing::derivative(move, along, static_cast<double>(forward.nodes.size()));
  EXPECT_NEAR(numeric.value, 1.0, 10 * numeric.error);
  // Each of the three hundred tensors contributes about 3e-3 of the slope. With a bound of 3e-3 a wrong tensor would
  // pass.
  EXPECT_LT(10 * numeric.error, 1e-3);
  ::testing::Test::RecordProperty("relative_error", std::to_string(numeric.value - 1.0));
}

std::string model_name(const ::testing::TestParamInfo<Reduced>& info) { return info.param.model; }

// With these image sizes the last batch normalisations still get several values per channel.
INSTANTIATE_TEST_SUITE_P(Zoo, ReducedNetwork,
                         ::testing::Values(Reduced{"vgg16", 1, 32}, Reduced{"resnet101", 2, 64},
                                           Reduced{"inception3", 4, 75}),
                         model_name);

// VGG-16 has no batch normalisation. Averaged gradients of 4 ranks with batch 2 must therefore equal those of 1 rank
// with batch 8.
TEST(Vgg16, FourRanksTimesTwoEqualOneRankTimesEight) {
  const auto vgg = [](std::int64_t batch) {
    return build_model({.model = "vgg16", .batch_size = batch, .image_size = 32, .classes = 10});
  };
  constexpr StepOptions kOptions{.gradient = DataType::kF64, .seed = 1};
  std::vector<double> average;
  double mean_loss = 0;
  for (std::uint64_t r = 0; r < 4; ++r) {
    Rank rank(vgg(2), kOptions, 2 * r);
    mean_loss += rank.forward_backward() / 4;
    const auto gradients = rank.gradients();
    average.resize(gradients.size(), 0.0);
    for (std::size_t i = 0; i < average.size(); ++i) average[i] += gradients[i] / 4;
  }
  Rank whole(vgg(8), kOptions);
  const double loss = whole.forward_backward();
  // The loss passes through some ten layers with sums of at most K = 4608 products. The signs of rounding errors are
  // random.
  constexpr double kLayers = 16;
  EXPECT_NEAR(mean_loss, loss, kLayers * std::sqrt(4608.0) * kEpsilon * loss);
  for (const ArenaSlot& slot : whole.step->slots()) {
    const auto expected = whole.gradients().subspan(slot.offset, slot.count);
    std::vector<double> difference(slot.count);
    for (std::size_t i = 0; i < slot.count; ++i) difference[i] = average[slot.offset + i] - expected[i];
    // A weight gradient of the first layer is a sum of K = 8 x 32 x 32 products.
    EXPECT_LE(norm(difference), kLayers * std::sqrt(8.0 * 32 * 32) * kEpsilon * norm(expected)) << slot.name;
  }
}

}  // namespace
}  // namespace hvd::models::networks_test
