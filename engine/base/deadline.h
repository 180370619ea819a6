// A point in time after which a wait gives up. Every wait in the engine takes a Deadline.
#pragma once

#include <time.h>  // NOLINT(modernize-deprecated-headers): clock_gettime()

#include <algorithm>
#include <chrono>

namespace hvd {

using Clock = std::chrono::steady_clock;

/// Returns the time, on Clock, at which the kernel's timer last ticked: up to 10 ms ago. This function takes 3 ns;
/// Clock::now() takes 21 ns, which is measurable in a collective of 150 ns.
inline Clock::time_point coarse_now() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Clock::time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

class Deadline {
 public:
  static constexpr const char* kUnnamed = "the deadline";

  /// Returns the deadline `timeout` from now; nanoseconds::max() means "never". `set_by`: see Patience.
  static Deadline after(std::chrono::nanoseconds timeout, const char* set_by = kUnnamed) {
    const Clock::time_point now = Clock::now();
    return Deadline(
        now + std::min(std::chrono::duration_cast<Clock::duration>(timeout), Clock::time_point::max() - now), set_by);
  }
  explicit Deadline(Clock::time_point when, const char* set_by = kUnnamed) : when_(when), set_by_(set_by) {}

  [[nodiscard]] Clock::time_point when() const noexcept { return when_; }
  /// Name of the option that sets this deadline, for error messages.
  [[nodiscard]] const char* set_by() const noexcept { return set_by_; }
  [[nodiscard]] bool passed() const noexcept { return Clock::now() >= when_; }
  /// Time left; 0 once the deadline has passed.
  [[nodiscard]] std::chrono::nanoseconds remaining() const noexcept {
    const auto left = when_ - Clock::now();
    return left.count() > 0 ? std::chrono::nanoseconds(left) : std::chrono::nanoseconds(0);
  }

 private:
  Clock::time_point when_;
  const char* set_by_;
};

/// Time limit for one wait; each wait starts its own deadline with from_now().
struct Patience {
  template <class Rep, class Period>
  // NOLINTNEXTLINE(google-explicit-constructor): callers pass a duration where a Patience is expected
  constexpr Patience(std::chrono::duration<Rep, Period> limit, const char* option = Deadline::kUnnamed)
      : timeout(std::chrono::duration_cast<std::chrono::milliseconds>(limit)), set_by(option) {}
  [[nodiscard]] Deadline from_now() const { return Deadline::after(timeout, set_by); }

  std::chrono::milliseconds timeout;
  const char* set_by;  ///< string literal: name of the option that sets the timeout, for error messages
};

}  // namespace hvd
