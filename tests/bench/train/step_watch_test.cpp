// Tests the watch that finds a step which never ends.
#include "bench/train/step_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>

#include "tests/base/patience.h"

namespace hvd::bench::step_watch_test {
namespace {

using namespace std::chrono_literals;

TEST(PartTimer, AddsUpTheTimeOfOnePartOnly) {
  PartTimer timer;
  EXPECT_EQ(timer.observe(5, 100ms), 0ms) << "the part may have begun a moment ago";
  EXPECT_EQ(timer.observe(5, 100ms), 100ms);
  EXPECT_EQ(timer.observe(5, 50ms), 150ms);
  EXPECT_EQ(timer.observe(6, 100ms), 0ms) << "another part";
  EXPECT_EQ(timer.observe(9, 100ms), 0ms) << "another step";
  EXPECT_EQ(timer.observe(9, 100ms), 100ms);
  EXPECT_EQ(timer.observe(0, 100ms), 0ms);
  EXPECT_EQ(timer.observe(0, 1h), 0ms) << "between steps";
  EXPECT_EQ(timer.observe(9, 100ms), 0ms);
}

TEST(StepWatch, AllowsTwentyTimesTheLongestStep) {
  EXPECT_EQ(StepWatch::limit(60s, 0s, 1), 60s);
  EXPECT_EQ(StepWatch::limit(60s, 3s, 1), 60s);
  EXPECT_EQ(StepWatch::limit(60s, 4s, 1), 80s);
}

TEST(StepWatch, LetsOtherRanksReportFirst) {
  EXPECT_EQ(StepWatch::limit(60s, 0s, 2), 120s);
  EXPECT_EQ(StepWatch::limit(60s, 7s, 2), 140s);
}

class Watched : public testing::Test {
 protected:
  std::string fault() {
    if (fault_.wait_for(test::kAtOnce) != std::future_status::ready) return "never";
    return fault_.get();
  }
  void overdue(const Error& error) { overdue_.set_value(std::to_string(exit_code(error.code())) + ' ' + error.what()); }

  std::promise<std::string> overdue_;
  std::future<std::string> fault_ = overdue_.get_future();
  const comm::Topology alone_{.hosts = {"a"}};
  const std::function<void(const Error&)> tell_ = [this](const Error& error) { overdue(error); };
};

TEST_F(Watched, AStepThatNeverEndsIsToldOnce) {
  StepWatch watch(alone_, {2s, "--deadline-seconds"}, tell_);
  watch.ended(50ms);
  const StepWatch::Running running(watch, 17, StepPart::kUpdate);
  EXPECT_EQ(fault(),
            "5 rank 0 (host a): the update of step 17 did not end within 2 s; the longest step before took 0.05 s; "
            "find out what blocks it (OpenMP's threads, oneDNN, the file system), or raise --deadline-seconds");
}

TEST_F(Watched, TheDeadlineOfStepsReplacesThatOfStartUp) {
  StepWatch watch(alone_, {1h, "--startup-deadline-seconds"}, tell_);
  const StepWatch::Running running(watch, 0, StepPart::kBackward);
  watch.set_patience({1s, "--deadline-seconds"});
  const std::string text = fault();
  EXPECT_EQ(text.find("5 rank 0 (host a): forward and backward of step 0 did not end within 1 s; no step has ended "),
            0);
  EXPECT_NE(text.find("raise --deadline-seconds"), std::string::npos);
}

TEST_F(Watched, NothingIsToldBetweenSteps) {
  StepWatch watch(alone_, {1h, "--startup-deadline-seconds"}, tell_);
  { const StepWatch::Running running(watch, 0, StepPart::kBackward); }
  watch.set_patience({1ms, "--deadline-seconds"});
  EXPECT_EQ(fault_.wait_for(200ms), std::future_status::timeout);
}

}  // namespace
}  // namespace hvd::bench::step_watch_test
