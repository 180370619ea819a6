// Tests that the peak rate of each vector level is one that a processor can have. Rates are compared with the clock
// that is measured in between, so that the result does not depend on the processor's speed or on other programs.
#include <gtest/gtest.h>

#include <string>

#include "bench/cli/doctor/machine_rate.h"

namespace hvd::bench::vector_peak_test {
namespace {

class Peak : public ::testing::TestWithParam<VectorLevel> {};

// Processors begin multiply_add_units() multiply-adds per cycle, or half of that. Vectors that the compiler split gave
// 0.04 of two; a chain that it left out, 1.09. Other programs can disturb one measurement of the rate or of the clock,
// but hardly each of ten.
TEST_P(Peak, IsWhatTheUnitsOfAProcessorCanDo) {
  double share = 0;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const PeakRate peak = peak_rate(1, GetParam());
    ASSERT_GT(peak.clock, 0);
    share = peak.flops / most_flops(GetParam(), peak.clock);
    if (share > 0.1 && share < 1.05) return;  // a busy hyper-thread takes half of the units
  }
  ADD_FAILURE() << share << " of " << multiply_add_units() << " multiply-adds per cycle";
}

TEST(VectorPeak, FlopsAreTwoPerLane) {
  EXPECT_EQ(most_flops(VectorLevel::kBase, 3e9), multiply_add_units() * 24e9);
  EXPECT_EQ(most_flops(VectorLevel::kAvx2, 3e9), multiply_add_units() * 48e9);
  EXPECT_EQ(most_flops(VectorLevel::kAvx512, 3e9), multiply_add_units() * 96e9);
  EXPECT_EQ(flops_per_round(VectorLevel::kAvx2), 2 * flops_per_round(VectorLevel::kBase));
  EXPECT_EQ(dependent_additions(1 << 10), 1 << 10);
}

// The chains stay or become 1, so that neither overflow nor denormal numbers slow them down.
TEST_P(Peak, ChainsEndAtOne) {
  const auto chains = static_cast<float>(flops_per_round(GetParam()) / 2);
  EXPECT_NEAR(multiply_add(GetParam(), 1 << 16) / chains, 1, 0.01);
}

INSTANTIATE_TEST_SUITE_P(, Peak, ::testing::ValuesIn(available_levels()),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace hvd::bench::vector_peak_test
