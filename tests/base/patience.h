// Limits of tests of waits. They hold on any processor, slow or busy, and under a sanitizer.
#pragma once

#include <chrono>

namespace hvd::test {

/// A deadline that never passes in a good test. Where a rank waits for it, the test takes longer than kAtOnce.
inline constexpr std::chrono::seconds kNever{600};
/// Longest time of what takes milliseconds on an idle machine. A test that compares with this limit shows that nobody
/// waited for kNever.
inline constexpr std::chrono::seconds kAtOnce{300};

}  // namespace hvd::test
