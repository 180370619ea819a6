// The clocks that kernels read when tests compile them for the host (tests/gpu/host). Only nap() moves them.
#pragma once

#include <cstdint>

namespace hvd::test {

struct HostClock {
  std::uint64_t nanoseconds = 0, cycles = 0;                ///< present values
  std::uint64_t nap_nanoseconds = 1000, nap_cycles = 2000;  ///< added by a nap; 0: the clock stands still
  std::uint64_t naps = 0;

  void nap() {
    ++naps;
    nanoseconds += nap_nanoseconds;
    cycles += nap_cycles;
  }
};
inline constinit thread_local HostClock host_clock;

}  // namespace hvd::test
