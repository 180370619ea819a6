// Runs the networks through the reference backend at reduced image size.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "models/normal.h"
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

// Checks all gradients at once: the derivative along a direction d is g . d.
TEST_P(ReducedNetwork, GradientEqualsTheDirectionalDerivative) {
  const Graph forward = build_model({.model = GetParam().model,
                                     .batch_size = GetParam().batch_size,
                                     .image_size = GetParam().image_size,
                                     .classes = 10});
  Rank rank(forward, {.gradient = DataType::kF64, .seed = 1});
  const double loss = rank.forward_backward();
  ASSERT_TRUE(std::isfinite(loss));
  EXPECT_EQ(rank.sink.ready.size(), forward.parameters.size());

  // Every tensor moves along its own gradient plus noise of the same norm, so that every tensor changes the loss
  // visibly.
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
  // Untrained deep networks are steep. Along direction / slope the loss rises by 1 per unit, so the step of the
  // difference quotient changes the loss by 1e-5 for every network.
  double move = 0;
  const auto parameters = rank.parameters();
  const std::vector<double> start(parameters.begin(), parameters.end());
  const auto along = [&] {
    for (std::size_t i = 0; i < start.size(); ++i) parameters[i] = start[i] + move / slope * direction[i];
    const double value = rank.forward_backward();
    return testing::Scalar{.value = value, .magnitude = std::max(1.0, value)};
  };
  // At most a thousand roundings follow one another. For a few of a million values, ReLU or maximum takes another
  // branch at the displaced point. These kinks cause a first-order error. D(2h) - D(h) shows this error but does not
  // bound it, so the test allows 10 times as much.
  const testing::Derivative numeric = testing::derivative(move, along, static_cast<double>(forward.nodes.size()));
  EXPECT_NEAR(numeric.value, 1.0, 10 * numeric.error);
  // Each of the three hundred tensors contributes about 3e-3 of the slope. A bound of 3e-3 would miss a wrong tensor.
  EXPECT_LT(10 * numeric.error, 1e-3);
  ::testing::Test::RecordProperty("relative_error", std::to_string(numeric.value - 1.0));
}

std::string model_name(const ::testing::TestParamInfo<Reduced>& info) { return info.param.model; }

// These sizes leave several values per channel to the last batch normalisations.
INSTANTIATE_TEST_SUITE_P(Zoo, ReducedNetwork,
                         ::testing::Values(Reduced{"vgg16", 1, 32}, Reduced{"resnet101", 2, 64},
                                           Reduced{"inception3", 4, 75}),
                         model_name);

// VGG-16 has no batch normalisation, so 4 ranks x batch 2 with averaged gradients equal 1 rank x batch 8.
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
  // The loss goes through some ten layers of sums of at most K = 4608 products; rounding errors add up at random.
  constexpr double kLayers = 16;
  EXPECT_NEAR(mean_loss, loss, kLayers * std::sqrt(4608.0) * kEpsilon * loss);
  for (const ArenaSlot& slot : whole.step->slots()) {
    const auto expected = whole.gradients().subspan(slot.offset, slot.count);
    std::vector<double> difference(slot.count);
    for (std::size_t i = 0; i < slot.count; ++i) difference[i] = average[slot.offset + i] - expected[i];
    // The first layer's weight gradients sum K = 8 x 32 x 32 products.
    EXPECT_LE(norm(difference), kLayers * std::sqrt(8.0 * 32 * 32) * kEpsilon * norm(expected)) << slot.name;
  }
}

}  // namespace
}  // namespace hvd::models::networks_test
