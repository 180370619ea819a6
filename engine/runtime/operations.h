// Operations on one tensor whose rows are divided among the ranks. The engine's thread calls these functions, on all
// ranks for the same batch. They own nothing. On a device they only enqueue, except that exchange_rows() waits for the
// exchange of row counts. Errors: those of the planes; out_of_memory if there is no memory for the result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"
#include "engine/core/request.h"
#include "engine/runtime/negotiated_schedule.h"

namespace hvd {

/// Divides `rows` among `ranks` as evenly as possible; the first ranks may get one row more. Returns rows per rank.
std::vector<std::int64_t> share_rows(std::int64_t rows, int ranks);

struct OperationContext {
  comm::Communicator& communicator;
  Deadline deadline;
};

/// Runs an all_gather. All three functions store their result in operands.output. Shapes: rank r contributes
/// batch.rows[r] rows; output: the rows of all ranks, in the order of ranks.
void gather_rows(const OperationContext& here, const core::Batch& batch, Operands& operands);
/// Runs a reduce_scatter. Shapes: rank r gets share_rows()[r] rows of the reduced tensor.
void reduce_scatter_rows(const OperationContext& here, const core::Batch& batch, Operands& operands);
/// Tells every rank how many rows it gets, and then sends the rows. Shapes: operands.split_rows[r] rows go to rank r;
/// output: the rows that all ranks sent to this rank, in the order of ranks.
void exchange_rows(const OperationContext& here, const core::Batch& batch, Operands& operands);

}  // namespace hvd
