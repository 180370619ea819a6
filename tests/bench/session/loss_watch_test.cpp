// Tests the cautions and errors of LossWatch for the losses of a session.
#include <gtest/gtest.h>

#include <limits>

#include "bench/session/session_runs.h"

namespace hvd::bench::loss_watch_test {
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

}  // namespace
}  // namespace hvd::bench::loss_watch_test
