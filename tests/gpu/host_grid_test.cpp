// Tests that the host grid runs kernels as a GPU does, and that its results show a missing barrier.
#include "tests/gpu/host_grid.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/gpu/launch.cuh"

namespace hvd::test::host_grid_test {
namespace {

constexpr unsigned kThreads = gpu::kThreads;

TEST(HostGrid, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int> runs(std::size_t{2} * 3 * 4 * kThreads);
  run_grid("counts", dim3(2, 3, 4), kThreads, [&] {
    EXPECT_EQ(gridDim.z, 4U);
    EXPECT_EQ(blockDim.x, kThreads);
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    ++runs[std::size_t{block} * blockDim.x + threadIdx.x];
  });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

/// Adds each thread's number to its right neighbour's number, twice. The last thread's neighbour is the first thread.
void sums_of_neighbours(unsigned* out, bool with_barriers) {
  __shared__ unsigned shared[kThreads];
  shared[threadIdx.x] = threadIdx.x + 1000 * blockIdx.x;
  if (with_barriers) __syncthreads();
  const unsigned sum = shared[threadIdx.x] + shared[(threadIdx.x + 1) % kThreads];
  if (with_barriers) __syncthreads();
  shared[threadIdx.x] = sum;
  if (with_barriers) __syncthreads();
  out[blockIdx.x * kThreads + threadIdx.x] = sum + shared[(threadIdx.x + 1) % kThreads];
}

std::vector<unsigned> summed(bool with_barriers, ThreadOrder order) {
  const WithThreadOrder ordered(order);
  std::vector<unsigned> out(std::size_t{3} * kThreads);
  gpu::launch_blocks("sums", sums_of_neighbours, 3, nullptr, out.data(), with_barriers);
  return out;
}

TEST(HostGrid, ThreadsOfABlockShareMemoryAndWaitForOneAnother) {
  std::vector<unsigned> expected;
  for (unsigned block = 0; block < 3; ++block) {
    const auto at = [&](unsigned i) { return i % kThreads + 1000 * block; };
    for (unsigned i = 0; i < kThreads; ++i) expected.push_back(at(i) + 2 * at(i + 1) + at(i + 2));
  }
  EXPECT_EQ(summed(true, ThreadOrder::kUp), expected);
  EXPECT_EQ(summed(true, ThreadOrder::kDown), expected);
}

TEST(HostGrid, AMissingBarrierShows) { EXPECT_NE(summed(false, ThreadOrder::kUp), summed(false, ThreadOrder::kDown)); }

std::string refused(const std::function<void()>& thread) {
  try {
    run_grid("wrong", 1, kThreads, thread);
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return {};
}

TEST(HostGrid, RefusesABarrierThatNotAllThreadsReach) {
  EXPECT_EQ(refused([] {
              if (threadIdx.x < 100) synchronize_threads(7);
            }),
            "kernel wrong: 100 of 256 threads wait at line 7, the others have ended");
  EXPECT_EQ(refused([] { synchronize_threads(threadIdx.x < 100 ? 7 : 8); }),
            "kernel wrong: threads of a block wait at lines 7 and 8");
  EXPECT_EQ(summed(true, ThreadOrder::kUp), summed(true, ThreadOrder::kDown));  // a refused kernel does no harm
}

}  // namespace
}  // namespace hvd::test::host_grid_test
