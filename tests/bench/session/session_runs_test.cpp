// Tests the cautions and errors of LossWatch for the losses of a session.
#include "bench/session/session_runs.h"

#include <gtest/gtest.h>

#include <limits>

#include "bench/session/phase_log.h"

namespace hvd::bench::session_runs_test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns a LossWatch that has seen losses[rank][step].
LossWatch watch(const std::vector<std::vector<double>>& losses) {
  std::vector<Answer> answers(losses.size());
  for (std::size_t r = 0; r < losses.size(); ++r) answers[r].samples.loss = losses[r];
  LossWatch watch;
  watch.add(answers, 1);
  return watch;
}

TEST(LossWatch, GoodLosses) {
  for (const auto& losses : std::vector<std::vector<std::vector<double>>>{
           {}, {{}}, {{6.9, 6.9, 7.1}}, {{6.9, 0.007}}, {{6.9, 8.0}, {6.9, 8.0}}, {{0, 0}}, {{5, 4}, {}}}) {
    EXPECT_FALSE(watch(losses).failed()) << watch(losses).problem();
    EXPECT_EQ(watch(losses).caution(), "");
  }
}

TEST(LossWatch, NamesTheFirstLossThatIsNotFinite) {
  LossWatch bad = watch({{6.5, 7, 8}, {7.5, 7, -kNan}});
  EXPECT_TRUE(bad.failed());
  EXPECT_EQ(bad.problem().find("the loss of rank 1 was nan in training step 3, and 7 in the first: "), 0U)
      << bad.problem();
  EXPECT_NE(bad.problem().find("lower --learning-rate"), std::string::npos);
  const std::string before = bad.problem();
  Answer later;
  later.samples.loss = {kInfinity};
  bad.add({later, later}, 4);
  EXPECT_EQ(bad.problem(), before);

  EXPECT_EQ(watch({{kInfinity}}).problem().find("the loss of rank 0 was inf in training step 1: "), 0U);
}

TEST(LossWatch, CollapsesBelowAThousandthOfTheFirst) {
  EXPECT_EQ(watch({{6, 0.0061}, {8, 0.0079}}).caution(), "");
  const std::string caution = watch({{6, 3, 0.0061, 1}, {8, 3, 0.0078, 1}}).caution();
  EXPECT_EQ(caution.find("the loss has collapsed, from 7 to 0.00695 in training step 3: "), 0U) << caution;
  EXPECT_NE(watch({{7}, {7}}).caution(), watch({{7, 9e-10}, {7, 9e-10}}).caution());
  EXPECT_EQ(watch({{7, kNan}}).caution(), "") << "that is a problem";
}

// Tests OperationLog, which computes the profile of the measured steps from means over all steps.

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

}  // namespace hvd::bench::session_runs_test
