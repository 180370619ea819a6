// Tests the trainer on fake GPUs: the weights after each phase, and the gradients and weights that its checks read.
#include "bench/train/device_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "tests/base/patience.h"
#include "tests/bench/fake_gpus.h"
#include "tests/comm/gpu_ranks.h"

namespace hvd::bench::device_trainer_test {
namespace {

using test::FakeGpus;
using test::FakeStep;
using test::GpuRank;

constexpr std::int64_t kBatch = 2;
constexpr std::int64_t kImageSize = 32;

Options options() {
  Options options;
  options.model = "resnet50";
  options.device = Device::kCuda;
  options.batch_size = kBatch;
  options.image_size = kImageSize;
  options.sgd.learning_rate = 0.125;
  options.sgd.momentum = 0.5;
  options.sgd.weight_decay = 0;
  return options;
}

/// The input that a FakeStep computes from the batch of `step`.
float input_of(int rank, int ranks, const bench::Setup& setup, int count, std::uint64_t step) {
  SyntheticBatches batches({setup.seed, 3 * kImageSize * kImageSize, setup.model.classes}, kBatch, count,
                           {rank, ranks});
  return FakeStep::input_of(batches.at(step));
}

/// Runs `body` with `ranks` trainers, each on its own fake GPU.
void with_trainers(int ranks, const bench::Setup& setup, const std::function<void(DeviceTrainer&, GpuRank&)>& body,
                   test::GpuWorldOptions world = {}) {
  world.seed = 5;
  const test::GpuOutcome outcome = test::on_gpu_ranks(ranks, world, [&](GpuRank& rank) {
    EngineOptions engine_options;
    engine_options.deadline = test::kNever;
    engine_options.buckets = {.bucket_bytes = 1024, .first_bucket_bytes = 256};
    DeviceEngine engine(rank.connect(), engine_options, setup.gpu.schedule);
    FakeGpus gpus(ranks);
    DeviceTrainer trainer(setup, engine, rank.gpu, gpus);
    trainer.start();
    body(trainer, rank);
  });
  EXPECT_TRUE(outcome.good()) << outcome.text();
}

/// Settings with which each rank has one batch and trains on it in every step.
bench::Setup make_setup() {
  FakeGpus gpus(1);
  bench::Setup setup = settle(options(), &gpus);
  setup.batches = 1;
  setup.rate_scaling = {.warm_up_steps = 0, .bound = 1};
  return setup;
}

std::vector<float> weights_of(DeviceTrainer& trainer) {
  std::vector<float> all;
  for (std::size_t p = 0; p < trainer.train_step().slots().size(); ++p) {
    std::vector<float> values(FakeStep::kCounts[p]);
    trainer.train_step().read_parameter(p, values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(DeviceTrainer, PhasesTrainAsTheyDoOnTheHost) {
  constexpr int kRanks = 3;
  const bench::Setup setup = make_setup();
  // Steps of phase none do not change the weights. The first full step after phase none starts without momentum.
  constexpr std::array kPhases{Phase::kFull, Phase::kFull, Phase::kFull, Phase::kNone,
                               Phase::kNone, Phase::kFull, Phase::kFull};

  std::vector<float> expected(FakeStep::kElements, 0.0F);
  std::vector<float> momentum(FakeStep::kElements, 0.0F);
  for (std::size_t s = 0; s < kPhases.size(); ++s) {
    if (kPhases[s] == Phase::kNone) continue;
    const bool after_none = s > 0 && kPhases[s - 1] == Phase::kNone;
    float inputs = 0;
    for (int r = 0; r < kRanks; ++r) inputs += input_of(r, kRanks, setup, 1, s);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      // The update uses the mean of the ranks' gradients. The learning rate is 0.125 times the number of ranks.
      const float gradient = FakeStep::gradient_of(inputs / kRanks, expected[k], k);
      momentum[k] = (after_none ? 0.0F : 0.5F) * momentum[k] + gradient;
      expected[k] -= 0.125F * kRanks * momentum[k];
    }
  }
  with_trainers(kRanks, setup, [&](DeviceTrainer& trainer, GpuRank&) {
    for (const Phase phase : kPhases) trainer.step(phase);
    EXPECT_EQ(trainer.steps_done(), kPhases.size());
    const std::vector<float> got = weights_of(trainer);
    // In each step the GPUs add up about ten terms, in another order than the test. The bound allows an error of 10 *
    // 2^-24 per step, relative to the largest weight.
    float largest = 0;
    for (const float value : expected) largest = std::max(largest, std::abs(value));
    const float bound = static_cast<float>(kPhases.size()) * 10 * std::ldexp(1.0F, -24) * largest;
    for (std::size_t k = 0; k < got.size(); ++k) ASSERT_NEAR(got[k], expected[k], bound) << k;
  });
}

TEST(DeviceTrainer, StepsLaunchedAheadTrainAsStepsOneByOne) {
  bench::Setup setup = make_setup();
  setup.batches = 3;
  struct Visit {
    Phase phase;
    std::int64_t steps;
  };
  constexpr std::array kVisits{Visit{Phase::kFull, 7}, Visit{Phase::kNone, 5}, Visit{Phase::kFull, 1},
                               Visit{Phase::kFull, 4}, Visit{Phase::kNone, 1}, Visit{Phase::kFull, 3}};
  std::array<std::vector<float>, 2> one_by_one, at_once;  // [rank]
  with_trainers(2, setup, [&](DeviceTrainer& trainer, GpuRank& rank) {
    for (const auto& [phase, steps] : kVisits) {
      for (std::int64_t i = 0; i < steps; ++i) trainer.step(phase);
    }
    one_by_one.at(static_cast<std::size_t>(rank.rank)) = weights_of(trainer);
  });
  with_trainers(2, setup, [&](DeviceTrainer& trainer, GpuRank& rank) {
    double number = 0;
    for (const auto& [phase, steps] : kVisits) {
      const std::vector<StepTimes> times = trainer.steps(phase, steps);
      EXPECT_EQ(times.size(), static_cast<std::size_t>(steps));
      for (std::size_t i = 0; i < times.size(); ++i) {
        EXPECT_EQ(times[i].loss, ++number);  // the loss of a FakeStep is the number of the step
        // In the first visit of each phase (steps 1 to 7 and 8 to 12) the trainer waits for three steps: two eager
        // steps and a capture. In later visits the trainer waits only for the first step.
        EXPECT_EQ(times[i].ahead, i > (number < 13 ? 2U : 0U)) << "step " << number;
      }
    }
    EXPECT_EQ(trainer.steps_done(), 21U);
    at_once.at(static_cast<std::size_t>(rank.rank)) = weights_of(trainer);
  });
  EXPECT_EQ(at_once, one_by_one);
  EXPECT_NE(one_by_one[0][0], 0.0F);
}

TEST(DeviceTrainer, SeveralBatchesAreLoadedInTurn) {
  bench::Setup setup = make_setup();
  setup.batches = 2;
  setup.schedule = Schedule::kNone;
  std::vector<float> expected(FakeStep::kElements, 0.0F);
  std::vector<float> momentum(FakeStep::kElements, 0.0F);
  for (std::uint64_t step = 0; step < 5; ++step) {
    const float input = input_of(0, 1, setup, 2, step);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      FakeStep::update({.learning_rate = 0.125F, .momentum = 0.5F}, FakeStep::gradient_of(input, expected[k], k),
                       momentum[k], expected[k]);
    }
  }
  with_trainers(1, setup, [&](DeviceTrainer& trainer, GpuRank&) {
    for (int step = 0; step < 5; ++step) trainer.step(Phase::kNone);
    EXPECT_EQ(weights_of(trainer), expected);
  });
}

TEST(DeviceTrainer, AProbeSeesGradientsBeforeAndAfterTheReductionInAnyStep) {
  const bench::Setup setup = make_setup();
  with_trainers(2, setup, [&](DeviceTrainer& trainer, GpuRank& rank) {
    for (int step = 0; step < 4; ++step) trainer.step(Phase::kFull);  // step 4 runs a captured graph
    const std::vector<float> weights = weights_of(trainer);
    const std::vector<GradientPiece> pieces{{0, 2, 3}, {1, 7, 1}, {4, FakeStep::kElements - 1, 1}};
    std::vector<std::byte> local(5 * sizeof(float));
    std::vector<float> reduced(FakeStep::kElements);
    const StepProbe probe{pieces, local, [&] {
                            const auto bytes = trainer.gradients(0, reduced.size() * sizeof(float));
                            std::memcpy(reduced.data(), bytes.data(), bytes.size());
                          }};
    trainer.step(Phase::kFull, &probe);
    const float mine = input_of(rank.rank, 2, setup, 1, 4);
    const float other = input_of(1 - rank.rank, 2, setup, 1, 4);
    const std::vector<std::size_t> elements{2, 3, 4, 7, FakeStep::kElements - 1};
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const std::size_t k = elements[i];
      float got = 0;
      std::memcpy(&got, local.data() + i * sizeof(float), sizeof got);
      EXPECT_EQ(got, FakeStep::gradient_of(mine, weights[k], k)) << k;
      EXPECT_FLOAT_EQ(reduced[k], got + FakeStep::gradient_of(other, weights[k], k)) << k;
    }
    trainer.step(Phase::kFull);  // captures a new graph, without the probe's copies
    EXPECT_EQ(trainer.gradient_checksums().size(), FakeStep::kCounts.size());
  });
}

/// The host takes 5 ms for each call of NCCL, which must not count: a reduction takes a few turns of 1 us.
TEST(DeviceTrainer, BucketsAreTimedOnTheGpuWithoutTheHost) {
  test::GpuWorldOptions world;
  world.nccl.assign(2, {.turns_of_call = 5000});
  const auto reduce_all = [](DeviceTrainer& trainer, GpuRank&) {
    trainer.clear_gradients();
    for (const core::Bucket& bucket : trainer.engine().plan().buckets) {
      const double seconds = trainer.reduce_bucket(bucket);
      EXPECT_GT(seconds, 0);
      EXPECT_LT(seconds, 1e-3);
    }
    trainer.step(Phase::kFull);
  };
  with_trainers(2, make_setup(), reduce_all, world);
}

}  // namespace
}  // namespace hvd::bench::device_trainer_test
