#include "engine/gpu/vigil.h"

#include <algorithm>

namespace hvd::gpu {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

constexpr auto kFirstLooks = 50us;  // a wait polls for this long before its first sleep
constexpr microseconds kShortNap = 20us, kLongNap = 500us;
/// The host polls without sleeping from this margin before the expected end until this margin after it. The margin is
/// 1/kPart of the expected wait, within [kLeast, kMost], because the times of steps vary in proportion to their length.
constexpr int kPart = 32;
constexpr microseconds kLeast = 200us, kMost = 1000us;

}  // namespace

Vigil::Vigil(Clock::time_point begin, std::optional<Clock::time_point> expected) : begin_(begin), nap_(kShortNap) {
  if (!expected || *expected <= begin) return;
  const auto whole = std::chrono::duration_cast<microseconds>(*expected - begin);
  const microseconds margin = std::clamp(microseconds(whole.count() / kPart), kLeast, kMost);
  wake_ = *expected - margin;
  doze_ = *expected + margin;
}

microseconds Vigil::nap(Clock::time_point now) {
  if (now - begin_ < kFirstLooks) return 0us;
  if (wake_ && now >= *wake_ && now < *doze_) return 0us;
  microseconds nap = nap_;
  nap_ = std::min(nap_ * 2, kLongNap);
  if (wake_ && now < *wake_) {
    nap = std::min(nap, std::chrono::duration_cast<microseconds>(*wake_ - now) + 1us);
    if (now + nap >= *wake_) nap_ = kShortNap;  // if the work is late, start again with short sleeps after doze_
  }
  return nap;
}

}  // namespace hvd::gpu
