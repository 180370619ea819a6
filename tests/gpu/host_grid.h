// A CUDA grid on the host. Blocks run one after another. The threads of a block run as fibers of the calling thread.
// When a thread waits at a barrier, the next fiber runs. The order is fixed, so results are reproducible. A kernel in
// which a barrier is missing gives different results under the two values of ThreadOrder. Not emulated: warps, which no
// kernel of this project uses, and blocks that run at the same time.
//
// Threads: any; each calling thread has its own grids.
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

/// The order in which the threads of a block run between two barriers: by increasing or by decreasing index.
enum class ThreadOrder : std::uint8_t { kUp, kDown };

/// Sets the order of threads for all grids that this host thread runs while the object exists.
class WithThreadOrder {
 public:
  explicit WithThreadOrder(ThreadOrder order);
  WithThreadOrder(const WithThreadOrder&) = delete;
  WithThreadOrder& operator=(const WithThreadOrder&) = delete;
  ~WithThreadOrder();

 private:
  ThreadOrder before_;
};

/// Calls `thread` once for every thread of the grid, after setting threadIdx and blockIdx. Errors: std::logic_error
/// with the name `what`, if only some threads of a block reach a barrier, or if they wait at different source lines.
void run_grid(const char* what, dim3 blocks, unsigned threads, const std::function<void()>& thread);

/// Replaces __syncthreads(). Call it only inside run_grid(). `line` is the source line of the call.
void synchronize_threads(int line);

}  // namespace hvd::test
