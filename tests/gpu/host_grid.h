// A CUDA grid on the host: blocks one after another, and the threads of a block as fibers of the calling thread that
// take turns at barriers. The order is fixed, so that results are the same on every run; a second order shows what was
// not ordered by a barrier. Not emulated: warps (none of our kernels knows of them), and blocks at one time.
//
// Threads: any; each has grids of its own.
#pragma once

#include <cstdint>
#include <functional>

namespace hvd::test {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3() = default;
  constexpr dim3(unsigned of_x, unsigned of_y = 1, unsigned of_z = 1)  // NOLINT(google-explicit-constructor): as CUDA's
      : x(of_x), y(of_y), z(of_z) {}
};
inline constinit thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

/// Which thread goes first from one barrier to the next.
enum class ThreadOrder : std::uint8_t { kUp, kDown };

/// For grids that this thread runs while it lives.
class WithThreadOrder {
 public:
  explicit WithThreadOrder(ThreadOrder order);
  WithThreadOrder(const WithThreadOrder&) = delete;
  WithThreadOrder& operator=(const WithThreadOrder&) = delete;
  ~WithThreadOrder();

 private:
  ThreadOrder before_;
};

/// Calls `thread` once for every thread of the grid, with its indices set. Errors: std::logic_error, naming `what`, for
/// a barrier that not all threads of a block reach, or at which they stand in different lines.
void run_grid(const char* what, dim3 blocks, unsigned threads, const std::function<void()>& thread);

/// __syncthreads(). Inside run_grid() only.
void synchronize_threads(int line);

}  // namespace hvd::test
