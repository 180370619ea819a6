// The bound of a whole training step on a device: what its graph must compute and move, operation by operation, at the
// device's rates (roofline.h). Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/measure/roofline.h"
#include "bench/run_record.h"
#include "models/graph/graph.h"

namespace hvd::bench {

/// One rank's step, of the graph as it is: every operation alone, inputs read and outputs written once. Fused
/// operations move less, so that a step can come below `seconds`; it cannot come below flops / peak.
struct StepBound {
  std::string device;  ///< as its driver names it
  DeviceRates rates;   ///< its data sheet's
  double flops = 0, bytes = 0;
  double seconds = 0;  ///< sum over the operations of the longer of arithmetic and traffic
};

/// `graph` is differentiated; its tensors are of type `compute`. None for a device that roofline.h does not
/// know in this type.
std::optional<StepBound> step_bound(const models::Graph& graph, const std::string& device, DataType compute, bool tf32);

/// What is stored with the run: work, data sheet, bound. In no fingerprint.
Provenance bound_facts(const StepBound& bound);
/// The line beside a result, of one rank; empty if `run` has none.
std::string bound_line(const RunRecord& run, const StepBound& bound);
/// The measured operations beside their bounds; empty if none were measured.
std::string bound_table(const RunRecord& run, const StepBound& bound);

}  // namespace hvd::bench
