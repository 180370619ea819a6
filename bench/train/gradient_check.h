// Is the reduction right? One step's gradients are copied before the engine gets them, summed a second,
// independent way (serially, in double precision, on rank 0), and compared with what the engine made of them.
// What is compared are pieces of the arena: all of it where that is affordable, else a random choice that
// holds the two ends of every tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/train/trainer.h"
#include "engine/base/types.h"
#include "models/train_step.h"

namespace hvd::bench {

/// Pieces of at most `piece_elements`, in ascending order, together about `budget_elements` (more where the
/// ends of the tensors alone are more). Pure: equal on all ranks.
std::vector<GradientPiece> choose_pieces(std::span<const models::ArenaSlot> slots, std::size_t budget_elements,
                                         std::uint64_t seed, std::size_t piece_elements = 4096);

/// Value of element `index` of `data`.
double element_value(std::span<const std::byte> data, DataType type, std::size_t index);

/// Elements of one piece from all ranks against the reduced ones. Returns one line that names the first
/// element out of bounds, or an empty string. Pure.
///
/// Bound: n values added in any order with every partial sum rounded to `sum_type` are off by at most
/// (n - 1) u sum|g| to first order (u: unit roundoff; Higham, Accuracy and Stability, section 4.2), an average
/// by one rounding more; two more cover the second order and the rounding of the result.
std::string compare_piece(std::span<const std::span<const std::byte>> local, std::span<const std::byte> reduced,
                          DataType type, DataType sum_type, ReduceOp op);

struct CheckOutcome {
  bool good = true;
  std::string text;  ///< "gradients equal an independent sum (100 % of 44549160 elements)", or what is wrong
};

/// Collective: one training step of phase full, checked. Rank 0's outcome counts; the others' is good.
/// Memory: at most 256 MiB per rank and 1 GiB on rank 0 for a while, less where the arena is smaller.
CheckOutcome check_reduction(Trainer& trainer, std::uint64_t seed);

/// Compares per-parameter checksums of all ranks. Returns which ranks differ from rank 0 and in which parameter
/// first ("ranks 2 and 3 differ from rank 0 in conv1.weight"), or an empty string. Pure.
std::string checksum_difference(std::span<const std::vector<std::uint64_t>> ranks,
                                std::span<const models::ArenaSlot> slots);

}  // namespace hvd::bench
