// Checks that reductions give the right sums. The gradients of one step are copied before the engine reduces them,
// summed by an independent method (serially, in double precision, on rank 0), and compared with the engine's result.
// The check covers the whole gradient arena if there is memory for it, and otherwise random pieces of the arena that
// include both ends of every tensor.
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

/// Chooses pieces of at most `piece_elements`, in ascending order: the first and the last piece of each tensor, and
/// pieces drawn at random between them. In total about `budget_elements`, or more if the first and last pieces alone
/// exceed that. Pure, so all ranks choose the same pieces.
std::vector<GradientPiece> choose_pieces(std::span<const models::ArenaSlot> slots, std::size_t budget_elements,
                                         std::uint64_t seed, std::size_t piece_elements = 4096);

double element_value(std::span<const std::byte> data, DataType type, std::size_t index);

/// Compares one piece of all ranks with the reduced piece. Returns a line on the first element out of bounds, or "".
/// Bound: if n values are added in any order and every partial sum is rounded to `sum_type`, the error is at most
/// (n - 1) u sum|g| to first order (u: unit roundoff; Higham, Accuracy and Stability, section 4.2). The bound
/// adds three more roundings: for the division in an average, for the result, and for the terms of second order.
std::string compare_piece(std::span<const std::span<const std::byte>> local, std::span<const std::byte> reduced,
                          DataType type, DataType sum_type, ReduceOp op);

struct CheckOutcome {
  bool good = true;
  std::string text;  ///< "gradients equal an independent sum (100 % of 44549160 elements)", or what is wrong
};

/// Collective: checks one training step of phase full. Only rank 0's outcome counts; other ranks return a good one.
/// Memory during the check: at most 256 MiB per rank and 1 GiB on rank 0, and less if the arena is smaller.
CheckOutcome check_reduction(Trainer& trainer, std::uint64_t seed);

/// Compares per-parameter checksums of all ranks. Returns which ranks differ from rank 0, and the first parameter that
/// differs ("ranks 2 and 3 differ from rank 0 in conv1.weight"); "" if no rank differs. Pure.
std::string checksum_difference(std::span<const std::vector<std::uint64_t>> ranks,
                                std::span<const models::ArenaSlot> slots);

}  // namespace hvd::bench
