// Figures of a session of collectives that more than one report shows: rows of cells, steps of a network, totals. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "bench/coll/columns.h"
#include "bench/coll/options.h"
#include "bench/coll/result.h"

namespace hvd::bench::coll {

/// The two cells of one row: [0] out of place, [1] in place; null if the session has no such cell.
using Row = std::array<const CellResult*, 2>;

/// Returns the rows in the order of make_cells(): by type, reduction and size.
std::vector<Row> rows_of(const CollResult& result, MeasuredCollective collective, int variant);

/// Returns true if the cell exists and has samples.
bool measured(const CellResult* cell);

/// Time to reduce, one after the other, all gradient buckets of one training step of a network.
struct ModelStep {
  MeasuredCollective collective = MeasuredCollective::kAllReduce;
  int variant = 0;
  ReduceOp op = ReduceOp::kSum;
  /// [0] out of place, [1] in place; nullopt if the size of some bucket was not measured.
  std::array<std::optional<double>, 2> seconds{0.0, 0.0};
};

/// Returns the steps of the network of --from-model; an empty list without this option.
std::vector<ModelStep> model_steps(const CollOptions& options, const CollResult& result);

/// Number and total size of the gradient buckets of one training step.
struct ModelTotal {
  std::size_t buckets = 0, bytes = 0;
};

ModelTotal model_total(const CollOptions& options);

/// Returns the number of wrong elements over all cells.
std::uint64_t wrong_in_all(const CollResult& result);
/// Returns the mean bus bandwidth over the measured cells in GB/s, as nccl-tests defines it.
double average_bus_rate(const CollResult& result);

}  // namespace hvd::bench::coll
