// Tests OperationLog, which computes the profile of the measured steps from means over all steps.
#include <gtest/gtest.h>

#include "bench/session/phase_log.h"

namespace hvd::bench::operation_log_test {
namespace {

std::vector<models::OperationProfile> profile_of(double conv, double relu) {
  return {{.node = "a", .kind = "conv", .implementation = "jit", .library = true, .seconds = conv, .flops = 5},
          {.node = "b", .kind = "relu", .implementation = "own", .seconds = relu}};
}

TEST(OperationLog, OnlyStepsThatCount) {
  // Each profile is a mean over all steps so far. Times of operation a, in this order: 9 s in each of 2 warm-up steps,
  // 4 s in total in 2 measured steps, 100 s in 1 step that is not measured, 5 s in 1 measured step.
  OperationLog log;
  EXPECT_TRUE(log.rows().empty());
  log.begin(profile_of(9, 9), 2);
  log.end(profile_of((18.0 + 4) / 4, (18.0 + 0.4) / 4), 4);
  log.begin(profile_of((22.0 + 100) / 5, (18.4 + 100) / 5), 5);
  log.end(profile_of((122.0 + 5) / 6, (118.4 + 0.5) / 6), 6);
  const std::vector<OperationRow> rows = log.rows();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].node + rows[0].kind + rows[0].implementation, "aconvjit");
  EXPECT_TRUE(rows[0].library);
  EXPECT_EQ(rows[0].flops, 5);
  EXPECT_NEAR(rows[0].seconds, 3, 1e-12);
  EXPECT_NEAR(rows[1].seconds, 0.3, 1e-12);
}

TEST(OperationLog, ABackendMayBeSilentBeforeItsFirstStep) {
  OperationLog log;
  log.begin({}, 0);
  log.end(profile_of(2, 1), 3);
  ASSERT_EQ(log.rows().size(), 2U);
  EXPECT_NEAR(log.rows()[0].seconds, 2, 1e-12);
}

TEST(OperationLog, WithoutAProfileThereAreNoRows) {
  OperationLog log;
  log.begin({}, 1);
  log.end({}, 2);
  EXPECT_TRUE(log.rows().empty());
}

}  // namespace
}  // namespace hvd::bench::operation_log_test
