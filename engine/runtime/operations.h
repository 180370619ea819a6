// Operations on one tensor whose rows are divided among the ranks. Called by the engine's thread, on all ranks for the
// same batch; owns nothing. On a device all but the exchange of row counts is enqueued. Errors: those of the planes;
// out_of_memory where there is none for a result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/comm/communicator.h"
#include "engine/core/request.h"
#include "engine/runtime/negotiated_schedule.h"
#include "engine/runtime/tensor_memory.h"

namespace hvd {

/// Divides `rows` among `ranks`: as evenly as can be, the first ranks get one more. [rank]
std::vector<std::int64_t> share_rows(std::int64_t rows, int ranks);

/// The communicator, the memory and the deadline of an operation.
struct Workplace {
  comm::Communicator& communicator;
  const TensorMemory& memory;
  Deadline deadline;
};

/// The result goes to operands.output. Shapes: rank r contributes batch.rows[r] rows; output: all of them, in the order
/// of ranks.
void gather_rows(const Workplace& here, const core::Batch& batch, Operands& operands);
/// Shapes: each rank gets share_rows() of the reduced tensor.
void reduce_scatter_rows(const Workplace& here, const core::Batch& batch, Operands& operands);
/// Tells every rank how many rows it gets, and then sends them. Shapes: operands.split_rows[r] rows go to rank r;
/// output: what all ranks sent here, in the order of ranks.
void exchange_rows(const Workplace& here, const core::Batch& batch, Operands& operands);

}  // namespace hvd
