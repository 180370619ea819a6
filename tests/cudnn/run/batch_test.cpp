// Tests how a step on a GPU gets its batches. A batch has images, which the step may keep on the GPU, and labels, which
// are new in every step. Uses the fakes of machine.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "tests/cudnn/lowering/fusions.h"
#include "tests/cudnn/lowering/oracles.h"
#include "tests/cudnn/run/machine.h"
#include "tests/models/small_graphs.h"
#include "tests/models/testing.h"

namespace hvd::models::cudnn::testing::batch_test {
namespace {

using namespace std::chrono_literals;

TEST(Batches, ImagesThatComeAgainCrossOnce) {
  ServesAll oracle;
  Wish wish{.forward = models::testing::tiny_vgg(2)};
  wish.plan = {.compute = ComputeType::kBf16, .gradient = DataType::kBF16, .fusion = reading(ImageLayout::kPadded, 1)};
  Machine machine(wish, oracle);
  const std::vector<float> first = machine.images;
  const auto loss = [&](std::uint64_t content, std::uint64_t number) {
    Batch batch = machine.batch(number);
    batch.content = content;
    return machine.step->forward_backward(batch, machine.sink);
  };
  const double expected = loss(1, 0);
  std::fill(machine.images.begin(), machine.images.end(), 0.0F);
  const double zeroes = loss(2, 0);
  EXPECT_NE(zeroes, expected);
  EXPECT_EQ(loss(1, 0), expected);  // the GPU uses the images of content 1 that it kept, not the host's
  EXPECT_EQ(loss(0, 0), zeroes);    // the images of content 0 are always copied from the host
  EXPECT_NE(loss(1, 1), expected);  // step 1 has another dropout mask than step 0
  // The GPU keeps a limited number of batches, which must also fit into its memory. All other batches are copied in
  // every step.
  for (std::uint64_t content = 3; content < 8; ++content) EXPECT_EQ(loss(content, 0), zeroes);
  machine.images = first;
  EXPECT_EQ(loss(7, 0), zeroes);  // the previous step loaded content 7, so its images are not copied again
  EXPECT_EQ(loss(6, 0), expected);
}

/// Returns labels for step `number` that differ from the labels of the previous step and of the next step.
std::vector<std::int32_t> labels_of_step(const Machine& machine, std::uint64_t number, std::int64_t classes) {
  std::vector<std::int32_t> labels(machine.labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    labels[i] = static_cast<std::int32_t>((number + i) % static_cast<std::uint64_t>(classes));
  }
  return labels;
}

TEST(Batches, LabelsAreThoseOfTheStepWhoeverKeepsTheImages) {
  ServesAll oracle;
  const Graph forward = models::testing::tiny_vgg(2);
  Wish wish{.forward = forward};
  wish.plan = {.compute = ComputeType::kFp32, .gradient = DataType::kF32, .fusion = reading(ImageLayout::kPadded, 1)};
  const auto loss = [&](Machine& machine, std::uint64_t content, std::uint64_t number) {
    const std::vector<std::int32_t> labels = labels_of_step(machine, number, forward.classes);
    Batch batch = machine.batch();
    batch.labels = labels;
    batch.content = content;
    return machine.step->forward_backward(batch, machine.sink);
  };
  std::vector<double> losses;
  {  // `crossing` must be destroyed before another Machine replaces its recorder
    Machine crossing(wish, oracle);
    for (std::uint64_t number = 0; number < 4; ++number) losses.push_back(loss(crossing, 0, number));
  }
  EXPECT_NE(losses[0], losses[1]);
  Machine keeping(wish, oracle);
  for (std::uint64_t number = 0; number < 4; ++number) EXPECT_EQ(loss(keeping, 1, number), losses[number]) << number;
  (void)loss(keeping, 2, 0);
  EXPECT_EQ(loss(keeping, 1, 3), losses[3]) << "images from where they were kept";
}

// Loads the next batch and its labels while a step runs, as the training loop does.
TEST(Batches, ALaunchedStepKeepsItsLabelsWhenTheNextIsLoaded) {
  ServesAll oracle;
  const Graph forward = models::testing::tiny_vgg(2);
  const Wish wish{.forward = forward};
  constexpr std::uint64_t kSteps = 6;
  const auto batch_of = [](const Machine& machine, std::uint64_t number, std::span<const std::int32_t> labels,
                           std::uint64_t content) {
    Batch batch = machine.batch(number);
    batch.labels = labels;
    batch.content = content;
    return batch;
  };
  std::vector<double> expected;
  {
    Machine one_by_one(wish, oracle);
    for (std::uint64_t number = 0; number < kSteps; ++number) {
      const std::vector<std::int32_t> labels = labels_of_step(one_by_one, number, forward.classes);
      expected.push_back(one_by_one.step->forward_backward(batch_of(one_by_one, number, labels, 0), one_by_one.sink));
    }
  }
  for (std::uint64_t schedule = 1; schedule <= 8; ++schedule) {
    Machine ahead(wish, oracle, schedule);
    std::vector<std::int32_t> labels;  // one buffer, like a caller that generates labels one step at a time
    for (std::uint64_t number = 0; number < kSteps; number += 2) {
      for (const std::size_t place : {0U, 1U}) {
        labels = labels_of_step(ahead, number + place, forward.classes);
        ahead.step->load(batch_of(ahead, number + place, labels, 1 + place), Deadline::after(60s));
        ahead.step->keep_loss_in(place);
        ahead.step->enqueue_forward_backward(ahead.sink);
      }
      ahead.finish();
      EXPECT_EQ(ahead.step->loss(0), expected[number]);
      EXPECT_EQ(ahead.step->loss(1), expected[number + 1]);
    }
  }  // the destructor of Machine checks for races
}

TEST(Batches, RefusesABatchOfAnotherSize) {
  ServesAll oracle;
  const Machine machine({.forward = models::testing::tiny_vgg(2)}, oracle);
  Batch batch = machine.batch();
  batch.labels = batch.labels.first(1);
  models::testing::expect_error(Errc::kInvalidArgument, {"tiny_vgg: a batch of 1 labels and 384 values", "2x8x8x3"},
                                [&] { machine.step->load(batch, Deadline::after(60s)); });
}

}  // namespace
}  // namespace hvd::models::cudnn::testing::batch_test
