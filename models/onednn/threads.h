// The OpenMP threads that the library and our own kernels share. Each calling thread has its own thread count (OpenMP's
// nthreads-var), so that ranks which are threads of one process do not disturb each other.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>

namespace hvd::models::onednn {

/// Sets the calling thread's OpenMP thread count for the lifetime of this object. OpenMP must not give fewer threads
/// when the machine is busy (OMP_DYNAMIC): the library's compiled code would wait for ever for the threads that lack.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : threads_before_(omp_get_max_threads()), dynamic_before_(omp_get_dynamic()) {
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
  }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;
  ~ThreadScope() {
    omp_set_num_threads(threads_before_);
    omp_set_dynamic(dynamic_before_);
  }

 private:
  int threads_before_, dynamic_before_;
};

/// Calls body(begin, end) on each thread with the thread's share of [0, count). Shares begin at multiples of `unit`,
/// and depend only on the arguments and the thread count. body must not throw.
template <class Body>
void parallel_ranges(std::size_t count, std::size_t unit, const Body& body) {
  constexpr std::size_t kWorthATeam = 16384;  // with fewer elements, one thread is done before other threads wake
  if (omp_get_max_threads() == 1 || count < kWorthATeam) {
    if (count > 0) body(std::size_t{0}, count);
    return;
  }
#pragma omp parallel
  {
    const auto threads = static_cast<std::size_t>(omp_get_num_threads());
    const auto self = static_cast<std::size_t>(omp_get_thread_num());
    const std::size_t units = (count + unit - 1) / unit;
    const std::size_t begin = std::min(count, units * self / threads * unit);
    const std::size_t end = std::min(count, units * (self + 1) / threads * unit);
    if (begin < end) body(begin, end);
  }
}

}  // namespace hvd::models::onednn
