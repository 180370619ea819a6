// Known pseudo-random inputs of any rank, and a naive reduction of them in higher precision or exact integers: what the
// checks of the collectives compare with. Pure functions, any thread.
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

/// What was reduced.
struct Reduced {
  DataType dtype;
  ReduceOp op;
  int ranks;
};

std::uint64_t random_bits(int rank, std::size_t i);
std::uint64_t digest(std::span<const std::byte> bytes);

/// Elements `of` rank's input to a reduction. Shape: at (of.count).
void write_input(std::byte* at, Elements of, DataType dtype, ReduceOp op, int rank);

/// Empty if `result` is the reduction of all ranks' elements `of`: exact for integers, min and max, else within the
/// bound of the roundings that any order of combination makes. Shape: result (of.count).
std::string compare_reduced(const std::byte* result, Elements of, const Reduced& what);

}  // namespace hvd::test
