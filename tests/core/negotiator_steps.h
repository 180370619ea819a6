// Helpers for tests that step a negotiation by hand: they make requests and options, and print a cycle as text. Every
// function is pure or works on the world that the test owns.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/negotiator.h"
#include "tests/base/errors.h"
#include "tests/core/lockstep_world.h"

namespace hvd::core::test {

using hvd::test::error_of;
using hvd::test::expect_error;

inline Request tensor(const std::string& name, std::vector<std::int64_t> shape = {4}) {
  return {name, DataType::kF32, ReduceOp::kSum, std::move(shape)};
}

inline NegotiatorOptions options(std::size_t capacity = 1024, std::size_t threshold = 1 << 20) {
  NegotiatorOptions result;
  result.cache_capacity = capacity;
  result.fusion.threshold_bytes = threshold;
  return result;
}

/// Runs a cycle and expects the same batches on all ranks. Returns the batches as text: "a+b c !d", where "!" marks a
/// failed batch.
inline std::string step(LockstepWorld& world) {
  EXPECT_TRUE(world.all_have_pending());
  const auto done = world.cycle();
  for (const CycleDone& other : done) EXPECT_EQ(other.batches, done.front().batches);
  std::string text;
  for (const Batch& batch : done.front().batches) {
    text += (text.empty() ? "" : " ") + std::string(batch.error.empty() ? "" : "!");
    for (const std::string_view name : batch.names) text.append(name == batch.names.front() ? "" : "+").append(name);
  }
  return text;
}

inline Request of_kind(Collective kind, std::vector<std::int64_t> shape = {4}) {
  Request request = tensor("a", std::move(shape));
  request.terms.kind = kind;
  return request;
}

}  // namespace hvd::core::test
