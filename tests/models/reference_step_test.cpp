#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "models/random.h"
#include "tests/models/finite_difference.h"
#include "tests/models/small_graphs.h"
#include "tests/models/testing.h"

namespace hvd::models::reference_step_test {
namespace {

using testing::every_operation;
using testing::expect_error;
using testing::Rank;
using testing::Scalar;
using testing::tiny_vgg;

constexpr StepOptions kDouble{.gradient = DataType::kF64, .seed = 3};

TEST(ReferenceStep, ReportsGradientsInArenaOrder) {
  Rank rank(every_operation(3), kDouble);
  rank.forward_backward();
  std::vector<std::size_t> expected(rank.step->slots().size());
  std::iota(expected.begin(), expected.end(), std::size_t{0});
  EXPECT_EQ(rank.sink.ready, expected);
  rank.forward_backward(1);
  EXPECT_EQ(rank.sink.ready.size(), 2 * expected.size());
  std::size_t offset = 0;
  for (const ArenaSlot& slot : rank.step->slots()) {
    EXPECT_EQ(slot.offset, offset);
    EXPECT_EQ(static_cast<std::int64_t>(slot.count), slot.shape.count());
    offset += slot.count;
  }
  EXPECT_EQ(rank.step->gradient_arena().size(), offset * sizeof(double));
  EXPECT_EQ(rank.step->memory_space(), MemorySpace::kHost);
}

// Tests the gradient of a whole graph. The graph covers chain rule, accumulation, shared gradients, dropout and two
// losses.
TEST(ReferenceStep, GradientEqualsFiniteDifferences) {
  Rank rank(every_operation(3), kDouble);
  rank.forward_backward();
  const std::vector<double> analytic(rank.gradients().begin(), rank.gradients().end());
  const auto loss = [&] {
    const double value = rank.forward_backward();
    return Scalar{.value = value, .magnitude = std::max(1.0, value)};
  };
  // The error bound assumes about ten layers with sums of up to 108 products.
  testing::expect_gradient("every parameter", rank.parameters(), analytic, loss, 10 * 108);
}

TEST(ReferenceStep, LossIsTheWeightedSumOfTheHeads) {
  Graph graph = every_operation(2);
  const auto loss_with_weight = [&](double weight) {
    graph.nodes[static_cast<std::size_t>(graph.losses[1])].attr = LossAttr{.weight = weight};
    return Rank(graph, kDouble).forward_backward();
  };
  const double main_only = loss_with_weight(0), auxiliary = loss_with_weight(1) - main_only;
  EXPECT_GT(auxiliary, 0.1);
  EXPECT_NEAR(loss_with_weight(0.4), main_only + 0.4 * auxiliary, 1e-14);
}

TEST(ReferenceStep, UpdateIsSgdWithMomentumAndDecayOnWeightsOnly) {
  Rank rank(tiny_vgg(2), kDouble);
  const SgdOptions sgd{.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01, .gradient_scale = 0.5};
  const Graph graph = differentiate(tiny_vgg(2));
  std::vector<double> weights(rank.parameters().begin(), rank.parameters().end());
  std::vector<double> momentum(weights.size(), 0.0);
  for (std::uint64_t training_step = 0; training_step < 3; ++training_step) {
    rank.forward_backward(training_step);
    const std::vector<double> gradient(rank.gradients().begin(), rank.gradients().end());
    rank.step->update(sgd);
    for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
      const ArenaSlot& slot = rank.step->slots()[p];
      const bool weight = slot.name.ends_with(".weight");
      for (std::size_t i = slot.offset; i < slot.offset + slot.count; ++i) {
        momentum[i] = 0.9 * momentum[i] + (0.5 * gradient[i] + (weight ? 0.01 * weights[i] : 0.0));
        weights[i] -= 0.1 * momentum[i];
        ASSERT_DOUBLE_EQ(rank.parameters()[i], weights[i]) << slot.name << " in step " << training_step;
      }
    }
  }
}

TEST(ReferenceStep, LossFallsOnAFixedBatch) {
  Rank rank(every_operation(4), kDouble);
  const double first = rank.forward_backward();
  double last = first;
  for (std::uint64_t training_step = 0; training_step < 40; ++training_step) {
    last = rank.forward_backward(training_step);
    rank.step->update({.learning_rate = 0.05});
  }
  EXPECT_LT(last, 0.5 * first);
}

TEST(ReferenceStep, IsBitIdenticalForOneSeed) {
  const auto train = [](std::uint64_t seed) {
    Rank rank(every_operation(2), {.gradient = DataType::kF32, .seed = seed});
    for (std::uint64_t training_step = 0; training_step < 4; ++training_step) {
      rank.forward_backward(training_step);
      rank.step->update({});
    }
    return std::vector<double>(rank.parameters().begin(), rank.parameters().end());
  };
  const auto once = train(1);
  const auto again = train(1);
  EXPECT_EQ(std::memcmp(once.data(), again.data(), once.size() * sizeof(double)), 0);
  EXPECT_NE(once, train(2));
}

// Compares 4 ranks of batch 2 with 1 rank of batch 8, for several steps with dropout. The test averages the gradients
// of the 4 ranks.
TEST(ReferenceStep, RanksTogetherEqualOneRankWithTheWholeBatch) {
  constexpr std::size_t kRanks = 4;
  Rank whole(tiny_vgg(8), kDouble);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (std::size_t r = 0; r < kRanks; ++r) ranks.push_back(std::make_unique<Rank>(tiny_vgg(2), kDouble, 2 * r));
  for (std::uint64_t training_step = 0; training_step < 5; ++training_step) {
    const double whole_loss = whole.forward_backward(training_step);
    whole.step->update({});
    double mean_loss = 0;
    std::vector<double> sum(whole.gradients().size(), 0.0);
    for (const auto& rank : ranks) {
      mean_loss += rank->forward_backward(training_step) / kRanks;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += rank->gradients()[i];
    }
    for (const auto& rank : ranks) {
      std::copy(sum.begin(), sum.end(), rank->gradients().begin());
      rank->step->update({.gradient_scale = 1.0 / kRanks});
    }
    EXPECT_NEAR(mean_loss, whole_loss, 1e-13);
  }
  // The results differ only by roundings. Each gradient sums at most 8 * 64 products. There are five steps and five
  // layers.
  const double bound = 5 * 5 * std::sqrt(8.0 * 64) * 2.2e-16;
  for (std::size_t i = 0; i < whole.parameters().size(); ++i) {
    ASSERT_NEAR(ranks[0]->parameters()[i], whole.parameters()[i], bound);
  }
}

TEST(ReferenceStep, GradientArenaHasTheAskedForType) {
  Rank exact(tiny_vgg(2), kDouble);
  exact.forward_backward();
  struct Case {
    DataType type;
    double relative_error;  // half a unit in the last place of a significand of the type
    double smallest;        // values below this one are subnormal, so their error is absolute
  };
  for (const Case& c : {Case{DataType::kF32, 0x1p-24, 0x1p-126}, Case{DataType::kBF16, 0x1p-8, 0x1p-126},
                        Case{DataType::kF16, 0x1p-11, 0x1p-14}}) {
    SCOPED_TRACE(name(c.type));
    Rank rank(tiny_vgg(2), {.gradient = c.type, .seed = 3});
    EXPECT_EQ(rank.step->gradient_type(), c.type);
    rank.forward_backward();
    EXPECT_EQ(rank.step->gradient_arena().size(), exact.gradients().size() * size_of(c.type));
    for (std::size_t p = 0; p < rank.step->slots().size(); ++p) {
      const ArenaSlot& slot = rank.step->slots()[p];
      std::vector<float> values(slot.count);
      rank.step->read_gradient(p, values);
      for (std::size_t i = 0; i < slot.count; ++i) {
        const double expected = exact.gradients()[slot.offset + i];
        // A double is rounded to float before it is rounded to 16 bits. The first rounding adds 2^-24 to the relative
        // error.
        EXPECT_NEAR(values[i], expected, (c.relative_error + 0x1p-24) * std::max(std::abs(expected), c.smallest));
      }
    }
  }
}

TEST(ReferenceStep, ReadsAndWritesParameters) {
  Rank rank(tiny_vgg(2), kDouble);
  const ArenaSlot& slot = rank.step->slots()[2];
  std::vector<float> values(slot.count);
  rank.step->read_parameter(2, values);
  std::vector<float> initial(slot.count);
  const Graph graph = differentiate(tiny_vgg(2));
  initial_value(graph.parameters[2], slot.shape, 3, initial);
  EXPECT_EQ(values, initial);
  std::iota(values.begin(), values.end(), 1.0F);
  rank.step->write_parameter(2, values);
  EXPECT_EQ(rank.parameters()[slot.offset + 1], 2.0);
  std::vector<float> back(slot.count);
  rank.step->read_parameter(2, back);
  EXPECT_EQ(back, values);
}

TEST(ReferenceStep, StateToBroadcastHoldsWeightsAndRunningStatistics) {
  Rank source(every_operation(2), {.gradient = DataType::kF64, .seed = 1});
  Rank target(every_operation(2), {.gradient = DataType::kF64, .seed = 2});
  source.forward_backward();
  const auto from = source.step->state_to_broadcast();
  const auto to = target.step->state_to_broadcast();
  ASSERT_EQ(from.size(), 1U + 2U);  // the parameters, and the mean and the variance of one batch normalisation
  for (std::size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].size(), to[i].size());
    EXPECT_NE(std::memcmp(from[i].data(), to[i].data(), from[i].size()), 0) << i;
    std::memcpy(to[i].data(), from[i].data(), from[i].size());
  }
  target.step->state_changed();
  const std::size_t count = target.step->slots()[0].count;
  std::vector<float> sent(count), received(count);
  source.step->read_parameter(0, sent);
  target.step->read_parameter(0, received);
  EXPECT_EQ(received, sent);
}

TEST(ReferenceStep, ProfilesEveryNodeOnlyWhenAsked) {
  Rank plain(tiny_vgg(2), kDouble);
  plain.forward_backward();
  EXPECT_TRUE(plain.step->profile().empty());
  Rank profiled(tiny_vgg(2), {.profile = true});
  profiled.forward_backward();
  const auto operations = profiled.step->profile();
  EXPECT_EQ(operations.size(), differentiate(tiny_vgg(2)).nodes.size());
  EXPECT_EQ(operations.at(0).node, "conv1");
  EXPECT_EQ(operations.at(0).kind, "conv");
  EXPECT_FALSE(operations.at(0).library);
  for (const OperationProfile& operation : operations) EXPECT_GE(operation.seconds, 0) << operation.node;
}

TEST(ReferenceStep, ReportsItsMemory) {
  Rank rank(tiny_vgg(2), {.gradient = DataType::kBF16});
  const auto count = static_cast<std::size_t>(tiny_vgg(2).parameter_count());
  EXPECT_EQ(rank.step->memory().parameters, count * 8);
  EXPECT_EQ(rank.step->memory().gradients, count * 2);
  EXPECT_GT(rank.step->memory().activations, 2U * 8 * 8 * 6 * 8);
  EXPECT_EQ(rank.step->memory().momentum, 0U);
  rank.forward_backward();
  rank.step->update({});
  EXPECT_EQ(rank.step->memory().momentum, count * 8);
}

TEST(ReferenceStep, RefusesBadInput) {
  const HeapArena arena = make_heap_arena();
  expect_error(Errc::kInvalidArgument, {"tiny_vgg", "differentiate()"},
               [&] { make_reference_step(tiny_vgg(2), {}, arena.allocate); });
  expect_error(Errc::kInvalidArgument, {"int32", "fp32"},
               [&] { make_reference_step(differentiate(tiny_vgg(2)), {.gradient = DataType::kI32}, arena.allocate); });
  Rank rank(tiny_vgg(2), kDouble);
  rank.images.pop_back();
  expect_error(Errc::kInvalidArgument, {"tiny_vgg", "2x8x8x3", "383"}, [&] { rank.forward_backward(); });
  std::vector<float> wrong(3);
  expect_error(Errc::kInvalidArgument, {"parameter 1"}, [&] { rank.step->read_parameter(1, wrong); });
  expect_error(Errc::kInvalidArgument, {"parameter 99"}, [&] { rank.step->read_gradient(99, wrong); });
  expect_error(Errc::kInvalidArgument, {"parameter 0"}, [&] { rank.step->write_parameter(0, wrong); });
}

}  // namespace
}  // namespace hvd::models::reference_step_test
