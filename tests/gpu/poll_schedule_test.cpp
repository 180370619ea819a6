// Tests, with simulated time, when a host thread that waits for a GPU polls the GPU.
#include "engine/gpu/poll_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace hvd::poll_schedule_test {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

constexpr microseconds kSlack = 60us;  // a nap lasts this much longer than requested
constexpr microseconds kLook = 2us;
constexpr microseconds kFirst = 52us;  // every wait first polls without naps for this long

struct Wait {
  microseconds late;   // time from the end of the work until the wait notices the end
  microseconds awake;  // time that the wait spends polling without naps
  int looks = 0;
};

/// Simulates a wait for work that ends `end` after the wait began. `expected` is the expected duration, if known.
Wait wait_for(microseconds end, std::optional<microseconds> expected) {
  const Clock::time_point begin{};
  gpu::PollSchedule poll_schedule(begin, expected ? std::optional(begin + *expected) : std::nullopt);
  microseconds now = 0us;
  Wait wait{.late = 0us, .awake = 0us};
  for (; now < end; ++wait.looks) {
    const microseconds nap = poll_schedule.next_sleep(begin + now);
    now += nap.count() > 0 ? nap + kSlack : kLook;
    if (nap.count() == 0) wait.awake += kLook;
  }
  wait.late = now - end;
  return wait;
}

TEST(PollSchedule, NapsWhereNobodyKnowsTheEnd) {
  microseconds latest = 0us;
  for (microseconds end = 9ms; end < 11ms; end += 10us) {
    const Wait wait = wait_for(end, {});
    EXPECT_LT(wait.looks, 80) << end.count();
    EXPECT_LE(wait.late, 560us);
    latest = std::max(latest, wait.late);
  }
  EXPECT_GT(latest, 500us);
}

TEST(PollSchedule, IsAwakeWhenTheEndIsNear) {
  for (const microseconds expected : {1000us, 10000us, 50000us, 400000us}) {
    const microseconds margin = std::clamp(expected / 40, 120us, 900us);
    for (const microseconds end : {expected - margin, expected, expected + margin}) {
      const Wait wait = wait_for(end, expected);
      EXPECT_LE(wait.late, kLook) << end.count() << " of " << expected.count();
    }
    for (const microseconds end : {expected, 2 * expected, 10 * expected}) {
      EXPECT_LE(wait_for(end, expected).awake, kFirst + 2 * std::clamp(expected / 32, 200us, 1000us) + kLook);
    }
  }
}

TEST(PollSchedule, AnEndThatIsFarFromTheOneExpectedIsNoLaterThanByNaps) {
  for (const microseconds end : {3ms, 7ms, 20ms, 200ms}) {
    const Wait wait = wait_for(end, 10ms);
    EXPECT_LE(wait.late, 560us) << end.count();
    EXPECT_LT(wait.looks, 500 + end / 500us) << end.count();
  }
}

TEST(PollSchedule, AnEndThatIsPastIsNotWaitedFor) {
  EXPECT_LE(wait_for(5ms, 0us).late, 560us);
  EXPECT_LE(wait_for(5ms, microseconds(-3)).late, 560us);
}

}  // namespace
}  // namespace hvd::poll_schedule_test
