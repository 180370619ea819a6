// Least time of a whole training step on a device: the work and traffic of each operation of the graph at the device's
// rates (roofline.h). Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/store/run_record.h"
#include "bench/train/roofline.h"
#include "models/graph/graph.h"

namespace hvd::bench {

/// The step of one rank, for the graph as it is: every operation runs alone, reads its inputs and writes its outputs
/// once. Fused operations move less, so a step can be faster than `seconds`; it cannot be faster than flops / peak.
struct StepBound {
  std::string device;  ///< the name that its driver gives
  DeviceRates rates;   ///< from its data sheet
  double flops = 0, bytes = 0;
  double seconds = 0;  ///< sum over the operations of the longer of arithmetic and traffic
};

/// `graph` must be differentiated; its tensors have type `compute`. Returns nothing if roofline.h does not know the
/// device or its rate in this type.
std::optional<StepBound> step_bound(const models::Graph& graph, const std::string& device, DataType compute, bool tf32);

/// The facts stored with the run: work, data sheet, bound. They are not part of the fingerprint.
Provenance bound_facts(const StepBound& bound);
/// The line printed beside the result of one rank; empty if `run` has no result.
std::string bound_line(const RunRecord& run, const StepBound& bound);
/// A table of the measured operations beside their bounds; empty if no operations were measured.
std::string bound_table(const RunRecord& run, const StepBound& bound);

}  // namespace hvd::bench
