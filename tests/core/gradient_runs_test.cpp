#include "engine/core/gradient_runs.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "engine/core/pacing.h"

namespace hvd::core::gradient_runs_test {
namespace {

using Runs = std::vector<GradientRun>;
constexpr std::size_t kSmall = kWorthItsOwnReduction;

TEST(GradientRuns, NeighboursMakeOneRunThatIsReducedInPlaceHoweverShort) {
  const GradientRuns ranges = gradient_runs({4, 5, 6}, 12);
  EXPECT_EQ(ranges.runs, (Runs{{4, 7}}));
  EXPECT_FALSE(ranges.packed);
  EXPECT_EQ(gradient_runs({0}, 0).runs, (Runs{{0, 1}}));
}

TEST(GradientRuns, TheOrderOfTheBatchDoesNotMatter) {
  EXPECT_EQ(gradient_runs({9, 2, 1, 4, 8}, 1).runs, (Runs{{1, 3}, {4, 5}, {8, 10}}));
}

TEST(GradientRuns, SeveralRunsArePackedIfTheyAreShortOnAverage) {
  EXPECT_FALSE(gradient_runs({0, 2}, 2 * kSmall).packed);
  EXPECT_TRUE(gradient_runs({0, 2}, 2 * kSmall - 1).packed);
  EXPECT_FALSE(gradient_runs({0, 1, 3}, 2 * kSmall).packed) << "the average is over runs, not over gradients";
  EXPECT_TRUE(gradient_runs({0, 2, 4}, 2 * kSmall).packed);
}

TEST(Pacing, PausesAfterASmallCycleWhileGradientsAreToCome) {
  using std::chrono::microseconds;
  EXPECT_EQ(pause_after({.gradients = 1, .bytes = kSmallCycleBytes - 1}), microseconds{20});
  EXPECT_EQ(pause_after({.gradients = 1, .bytes = kSmallCycleBytes}), microseconds{0});
  EXPECT_EQ(pause_after({.gradients = 0, .bytes = 4}), microseconds{0}) << "only tickets";
  EXPECT_EQ(pause_after({.gradients = 1, .bytes = 4, .gradients_to_come = false}), microseconds{0});
}

}  // namespace
}  // namespace hvd::core::gradient_runs_test
