// Compares the element functions of the loss, the update and the synthetic input with the reference. The functions run
// on the host. The GPU's kernels use the same source.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "engine/base/hash.h"
#include "models/cudnn/kernels/input_element.h"
#include "models/cudnn/kernels/loss_element.h"
#include "models/cudnn/kernels/sgd_element.h"
#include "models/synthetic.h"
#include "tests/cudnn/element_tensor.h"

namespace hvd::models::cudnn::kernels::update_element_test {
namespace {

using element_testing::run;
using element_testing::Tensor;
using element_testing::type_of;
using element_testing::Types;
using models::testing::random_values;

template <class T>
class UpdateElementTest : public ::testing::Test {};
TYPED_TEST_SUITE(UpdateElementTest, Types);

TYPED_TEST(UpdateElementTest, LossBackward) {
  using T = TypeParam;
  const Shape shape{3, 7};
  std::vector<double> logits = random_values(21, 1), probabilities(21);
  const std::vector<std::int32_t> labels{0, 6, 3};
  reference::softmax_cross_entropy({logits, shape}, labels, {probabilities, shape});
  const std::vector<float> given(probabilities.begin(), probabilities.end());
  Tensor<T> dlogits(shape, 1);
  const float loss_scale = 128;
  run(SoftmaxCrossEntropyBackwardBody<T>{given.data(), labels.data(), 0.4F / 3, &loss_scale, dlogits.matrix()}, 21);
  reference::softmax_cross_entropy_backward(0.4 * 128, {probabilities, shape}, labels, dlogits.out());
  dlogits.expect_near("loss backward", 20);
}

TYPED_TEST(UpdateElementTest, SgdIsTheReferencesFormula) {
  using T = TypeParam;
  constexpr std::int64_t kCount = 192;
  const std::vector<std::uint8_t> decays{1, 0, 1};
  alignas(16) static std::array<float, kCount> w, m;
  alignas(16) static std::array<T, kCount> gradient, copied;
  const std::vector<double> drawn = random_values(3 * kCount, 6);
  std::vector<double> expected_w(kCount), expected_m(kCount);
  const StepScalars scalars{.learning_rate = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F, .gradient_scale = 4.0F};
  for (std::size_t i = 0; i < kCount; ++i) {
    w[i] = static_cast<float>(drawn[i]);
    m[i] = static_cast<float>(drawn[i + kCount]);
    gradient[i] = from_float<T>(static_cast<float>(drawn[i + 2 * kCount]));
    const double decay = decays[i / 64] != 0 ? static_cast<double>(scalars.weight_decay) : 0;
    const auto start = static_cast<double>(w[i]);
    const double g = 4.0 / 8 * static_cast<double>(to_float(gradient[i])) + decay * start;
    expected_m[i] = static_cast<double>(scalars.momentum) * static_cast<double>(m[i]) + g;
    expected_w[i] = start - static_cast<double>(scalars.learning_rate) * expected_m[i];
  }
  LossScale loss_scale{.scale = 8, .overflow = 1};
  const Sgd work{.weights = w.data(),
                 .momentum = m.data(),
                 .gradients = gradient.data(),
                 .gradient_type = type_of<T>(),
                 .copy = copied.data(),
                 .copy_type = type_of<T>(),
                 .decays = decays.data(),
                 .count = kCount,
                 .scalars = &scalars,
                 .loss_scale = &loss_scale};
  const std::array<float, kCount> before = w;
  run(SgdBody<T, T>{work}, kCount / 4);
  EXPECT_EQ(w, before);  // after an overflow no weight may change
  loss_scale.overflow = 0;
  run(SgdBody<T, T>{work}, kCount / 4);
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(static_cast<double>(w[i]), expected_w[i], 8 * 0x1.0p-24 * (1 + std::abs(expected_w[i])));
    EXPECT_NEAR(static_cast<double>(m[i]), expected_m[i], 8 * 0x1.0p-24 * (1 + std::abs(expected_m[i])));
    EXPECT_EQ(to_float(copied[i]), to_float(from_float<T>(w[i])));
  }
}

TYPED_TEST(UpdateElementTest, FindsWhatIsNotFinite) {
  using T = TypeParam;
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    alignas(16) std::array<T, 64> gradients;
    gradients.fill(from_float<T>(65504.0F));  // 65504 is the largest finite number of fp16
    LossScale loss_scale;
    const FindOverflowBody<T> body{gradients.data(), &loss_scale};
    run(body, 64 / body.kVector);
    EXPECT_EQ(loss_scale.overflow, 0);
    gradients[43] = from_float<T>(bad);
    run(body, 64 / body.kVector);
    EXPECT_EQ(loss_scale.overflow, 1);
  }
}

TEST(LossScaleElement, HalvesAfterAnOverflowAndGrowsAfterGoodSteps) {
  LossScale now{.scale = 4, .overflow = 1, .good_steps = 1};
  const AdjustLossScaleBody adjust{&now, 2};
  const auto expect = [&](float scale, int good, int skipped) {
    adjust(0);
    EXPECT_EQ(now.scale, scale);
    EXPECT_EQ(now.good_steps, good);
    EXPECT_EQ(now.skipped, skipped);
    EXPECT_EQ(now.overflow, 0);
  };
  expect(2, 0, 1);
  expect(2, 1, 1);
  expect(4, 0, 1);
  now.overflow = 1;
  expect(2, 0, 2);
  now.overflow = 1;
  expect(1, 0, 3);
  now.overflow = 1;
  expect(1, 0, 4);  // the scale stays at 1, because an overflow without scaling has another cause
  now.scale = AdjustLossScaleBody::kLargest;
  expect(AdjustLossScaleBody::kLargest, 1, 4);
  expect(AdjustLossScaleBody::kLargest, 0, 4);
}

TEST(SyntheticElement, DrawsTheDataSetOfAllBackends) {
  constexpr std::int64_t kElements = 7 * 5 * 3, kSamples = 3;  // odd, so that samples begin inside a block of Philox
  for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{12345}}) {
    std::vector<float> expected(kElements * kSamples), images(expected.size(), -100);
    std::vector<std::int32_t> expected_labels(kSamples), labels(kSamples);
    models::synthetic_batch({.seed = 9, .image_elements = kElements, .classes = 1000}, first, expected,
                            expected_labels);
    run(SyntheticImagesBody<float>{9, Hasher().text("images").value(), &first, kElements, kElements * kSamples,
                                   images.data()},
        kElements * kSamples / 4 + 2);
    run(SyntheticLabelsBody{9, Hasher().text("labels").value(), &first, 1000, labels.data()}, kSamples);
    EXPECT_EQ(labels, expected_labels);
    for (std::size_t i = 0; i < images.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(images[i]), static_cast<double>(expected[i]), 1e-6) << i;
    }
  }
}

}  // namespace
}  // namespace hvd::models::cudnn::kernels::update_element_test
