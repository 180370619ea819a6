// Replaces engine/gpu/device_clock.cuh when tests compile the kernel sources for the host.
#pragma once

#include <cstdint>

#include "tests/gpu/host_clock.h"

namespace hvd::gpu {

inline std::uint64_t device_nanoseconds() { return test::host_clock.nanoseconds; }
inline std::uint64_t device_cycles() { return test::host_clock.cycles; }
inline void nap() { test::host_clock.nap(); }

}  // namespace hvd::gpu
