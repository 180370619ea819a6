// Runs N ranks as threads of the test. Each rank has its own engine. The communicators are loopback communicators.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/philox.h"
#include "engine/runtime/engine.h"
#include "tests/base/patience.h"
#include "tests/base/threads.h"

namespace hvd::test {

/// The Error that the body threw on a rank. Empty if the body threw none.
struct Outcome {
  std::optional<Errc> code;
  std::string text;
};

/// Options of a test's communicators. If `ranks_per_node` > 0, the ranks act as if this many of them were on each node.
struct LoopbackOptions {
  comm::CommOptions comm = {};
  int ranks_per_node = 0;
};

/// Runs body(engine, rank) on `size` ranks. Returns for each rank how the body and the engine's destructor ended.
inline std::vector<Outcome> on_ranks(int size, const EngineOptions& options,
                                     const std::function<void(Engine&, int)>& body,
                                     const LoopbackOptions& loopback = {}) {
  auto communicators = comm::make_loopback(size, loopback.comm, loopback.ranks_per_node);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  on_threads(outcomes.size(), [&](std::size_t rank) {
    try {
      Engine engine(std::move(communicators[rank]), options);
      body(engine, static_cast<int>(rank));
    } catch (const Error& error) {
      outcomes[rank] = {error.code(), error.what()};
    } catch (const std::exception& error) {
      outcomes[rank] = {Errc::kCheckFailed, std::string("not an hvd::Error: ") + error.what()};
    }
  });
  return outcomes;
}

inline void expect_all_good(const std::vector<Outcome>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_FALSE(outcomes[rank].code.has_value()) << "rank " << rank << ": " << outcomes[rank].text;
  }
}

/// Returns options whose deadline never passes.
inline EngineOptions patient_options(Schedule schedule) {
  EngineOptions options;
  options.schedule = schedule;
  options.deadline = kNever;
  return options;
}

/// Returns gradients of unequal sizes. Each gradient starts at a multiple of 16 elements, as in a real arena.
inline std::vector<core::GradientInfo> make_gradients(std::size_t count) {
  std::vector<core::GradientInfo> gradients;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t elements = 1 + (i * 37) % 113;
    gradients.push_back({"layer" + std::to_string(i) + ".weight", offset, elements});
    offset = (offset + elements + 15) / 16 * 16;
  }
  return gradients;
}

inline std::size_t arena_elements(const std::vector<core::GradientInfo>& gradients) {
  return gradients.back().offset + gradients.back().count;
}

/// Gradients of unequal sizes that the engine reduces, and the memory that holds them.
struct GradientArena {
  GradientArena(Engine& owner, std::size_t gradient_count, ReduceOp op = ReduceOp::kSum)
      : engine(owner),
        gradients(make_gradients(gradient_count)),
        elements(arena_elements(gradients)),
        memory(engine.allocate(elements * sizeof(float)).data()),
        values(reinterpret_cast<float*>(memory)) {
    engine.set_gradients(gradients, memory, DataType::kF32, op);
  }
  void mark_all() {
    for (std::size_t g = 0; g < gradients.size(); ++g) engine.gradient_ready(g);
  }
  StepReport step() {
    engine.begin_step();
    mark_all();
    return engine.finish_step();
  }
  /// Calls `use` with the index of every element that belongs to a gradient.
  template <class Use>
  void for_each_element(const Use& use) const {
    for (const core::GradientInfo& gradient : gradients) {
      for (std::size_t i = gradient.offset; i < gradient.offset + gradient.count; ++i) use(i);
    }
  }

  Engine& engine;
  std::vector<core::GradientInfo> gradients;
  std::size_t elements;
  std::byte* memory;
  float* values;
};

/// Submits an all_reduce of a tensor with one element.
inline Ticket submit(Engine& engine, const std::string& name, float& value, ReduceOp op = ReduceOp::kSum) {
  return engine.all_reduce_async(name, &value, {}, DataType::kF32, op);
}

/// Returns the value that rank `rank` contributes to element `index` of the arena in `step`. The values are small
/// integers, so their sums are exact in any order.
inline float contribution(int rank, std::uint64_t step, std::size_t index) {
  return static_cast<float>(Philox(step + 1, static_cast<std::uint64_t>(rank)).block(index)[0] % 64) - 31.0F;
}

inline float expected_sum(int size, std::uint64_t step, std::size_t index) {
  float sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += contribution(rank, step, index);
  return sum;
}

/// Returns options with small buckets and a small threshold, so that some forty gradients make many batches.
inline EngineOptions many_batches(Schedule schedule) {
  EngineOptions options = patient_options(schedule);
  options.buckets.first_bucket_bytes = 256;
  options.buckets.bucket_bytes = 1024;
  options.negotiation.fusion.threshold_bytes = 2048;
  return options;
}

inline std::vector<std::size_t> shuffled(std::size_t count, std::uint32_t seed) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}

}  // namespace hvd::test
