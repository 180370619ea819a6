// Known pseudo-random inputs of any rank, and a naive reduction of these inputs in higher precision or exact integers.
// The checks of the collectives compare with the naive reduction. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/base/types.h"

namespace hvd::test {

struct Elements {
  std::size_t first;
  std::size_t count;
};

/// Describes a reduction.
struct Reduced {
  DataType dtype;
  ReduceOp op;
  int ranks;
};

std::uint64_t random_bits(int rank, std::size_t i);
std::uint64_t digest(std::span<const std::byte> bytes);

/// Writes `elements` of the input that `rank` gives to a reduction. Shape: at (elements.count).
void write_input(std::byte* at, Elements elements, DataType dtype, ReduceOp op, int rank);

/// Returns an empty string if `result` equals `elements` of the reduction over all ranks. Integers, min and max must be
/// exact. Other results must lie within a bound that holds for every order of additions. Shape: result
/// (elements.count).
std::string compare_reduced(const std::byte* result, Elements elements, const Reduced& reduced);

}  // namespace hvd::test
