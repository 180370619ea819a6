// For tests of operations with tickets on fake GPUs: the engine and the memory of one rank, and a comparison of
// results. Each rank's thread owns its Tickets and is the only thread that calls it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "tests/base/errors.h"
#include "tests/base/patience.h"
#include "tests/comm/device_checks.h"
#include "tests/comm/gpu_ranks.h"
#include "tests/runtime/ranks.h"

namespace hvd::test {

/// One rank's engine with tensors on a fake GPU. The host may read the memory of a fake GPU while the GPU is idle.
class Tickets {
 public:
  explicit Tickets(GpuRank& rank, std::chrono::milliseconds deadline = kNever) : gpu_(rank.gpu), rank_(rank.rank) {
    EngineOptions options = patient_options(Schedule::kNegotiated);
    options.deadline = deadline;
    engine_ = std::make_unique<Engine>(rank.connect(), options);
  }
  /// Returns device memory with `count` elements. Every call returns another address, even if `count` is 0.
  std::byte* filled(std::size_t count, DataType type, const device::Values& values) {
    memory_.push_back(gpu_.allocate(std::max<std::size_t>(count * size_of(type), 1), "a test"));
    std::byte* const data = memory_.back()->bytes.data();
    for (std::size_t i = 0; i < count; ++i) store_element(data + i * size_of(type), values(i), type);
    return data;
  }
  [[nodiscard]] Engine& engine() { return *engine_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return engine_->size(); }
  void end() { engine_.reset(); }

 private:
  FakeRuntime& gpu_;
  const int rank_;
  std::vector<gpu::DeviceMemory> memory_;
  std::unique_ptr<Engine> engine_;  // last member, so destroyed before memory_, which its operations use
};

struct Expected {
  DataType type;
  device::Values values;
  double tolerance = 0;
};

inline void expect_values(const std::string& what, std::span<const std::byte> got, std::size_t count,
                          const Expected& want) {
  ASSERT_EQ(got.size(), count * size_of(want.type)) << what;
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_NEAR(load_element(&got[i * size_of(want.type)], want.type), want.values(i), want.tolerance)
        << what << ", element " << i << " of " << count << " " << name(want.type);
  }
}

/// Checks that an output lies in device memory, or has no memory if it is empty, and that it has the expected elements.
inline void expect_output(const std::string& what, const Output& output, std::size_t count, const Expected& want) {
  EXPECT_TRUE(output.bytes.empty()) << what;
  EXPECT_EQ(static_cast<bool>(output.device), count > 0) << what;
  expect_values(what, output.data(), count, want);
}

}  // namespace hvd::test
