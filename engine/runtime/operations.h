// Operations on one tensor whose rows are divided among the ranks, and scaling, on a plane of host memory. Called by
// the engine's thread, on all ranks for the same batch; owns nothing. Errors: those of the data plane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/deadline.h"
#include "engine/base/types.h"
#include "engine/comm/communicator.h"
#include "engine/core/request.h"
#include "engine/runtime/negotiated_schedule.h"

namespace hvd {

/// Divides `rows` among `ranks`: as evenly as can be, the first ranks get one more. [rank]
std::vector<std::int64_t> share_rows(std::int64_t rows, int ranks);

/// Multiplies `count` elements of a floating-point type by `factor` in double precision and rounds each product once to
/// the type. Nothing for 1.
void scale(std::byte* data, std::size_t count, DataType dtype, double factor);

/// The result goes to operands.output. Shapes: rank r contributes batch.rows[r] rows; output: all of them, in the order
/// of ranks.
void gather_rows(comm::DataPlane& plane, const core::Batch& batch, Operands& operands, Deadline deadline);
/// Shapes: each rank gets share_rows() of the reduced tensor.
void reduce_scatter_rows(comm::DataPlane& plane, const comm::Topology& topology, const core::Batch& batch,
                         Operands& operands, Deadline deadline);
/// Tells every rank how many rows it gets, and then sends them. Shapes: operands.split_rows[r] rows go to rank r;
/// output: what all ranks sent here, in the order of ranks.
void exchange_rows(comm::DataPlane& plane, const core::Batch& batch, Operands& operands, Deadline deadline);

}  // namespace hvd
