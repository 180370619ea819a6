#include "engine/gpu/poll_schedule.h"

#include <algorithm>

namespace hvd::gpu {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

constexpr auto kFirstPolls = 50us;  // at the start, a wait polls for this long without sleeping
constexpr microseconds kShortNap = 20us, kLongNap = 500us;
/// The host polls without sleeping from a margin before the expected end until the same margin after the expected end.
/// The margin is 1/kMarginShare of the expected wait, within [kLeast, kMost], because the duration of a longer step
/// varies more.
constexpr int kMarginShare = 32;
constexpr microseconds kLeast = 200us, kMost = 1000us;

}  // namespace

PollSchedule::PollSchedule(Clock::time_point begin, std::optional<Clock::time_point> expected)
    : begin_(begin), nap_(kShortNap) {
  if (!expected || *expected <= begin) return;
  const auto whole = std::chrono::duration_cast<microseconds>(*expected - begin);
  const microseconds margin = std::clamp(microseconds(whole.count() / kMarginShare), kLeast, kMost);
  poll_from_ = *expected - margin;
  poll_until_ = *expected + margin;
}

microseconds PollSchedule::next_sleep(Clock::time_point now) {
  if (now - begin_ < kFirstPolls) return 0us;
  if (poll_from_ && now >= *poll_from_ && now < *poll_until_) return 0us;
  microseconds nap = nap_;
  nap_ = std::min(nap_ * 2, kLongNap);
  if (poll_from_ && now < *poll_from_) {
    nap = std::min(nap, std::chrono::duration_cast<microseconds>(*poll_from_ - now) + 1us);
    if (now + nap >= *poll_from_)
      nap_ = kShortNap;  // if the work is not finished at poll_until_, sleep briefly at first
  }
  return nap;
}

}  // namespace hvd::gpu
