// Computes the least time of a whole training step on a device, from the arithmetic and the memory traffic of each
// operation and the device's rates (roofline.h). Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/hardware/roofline.h"
#include "bench/store/run_record.h"
#include "models/graph/graph.h"

namespace hvd::bench {

/// The bound of one rank's step if every operation runs alone, reads its inputs once and writes its outputs once. Fused
/// operations move fewer bytes, so a step can be faster than `seconds`; a step cannot be faster than flops / peak.
struct StepBound {
  std::string device;  ///< the name that the device's driver gives
  DeviceRates rates;   ///< from the device's data sheet
  double flops = 0, bytes = 0;
  double seconds = 0;  ///< sum over operations of the longer of two times: of its arithmetic, of its traffic
};

/// `graph` must be differentiated; its tensors have type `compute`. Returns nothing if roofline.h does not know the
/// device or its rate in this type.
std::optional<StepBound> step_bound(const models::Graph& graph, const std::string& device, DataType compute, bool tf32);

/// Returns the facts stored with the run: work, data sheet, bound. These facts are not part of the fingerprint.
Provenance bound_facts(const StepBound& bound);
/// Returns the line printed beside the result of one rank; empty if `run` has no result.
std::string bound_line(const RunRecord& run, const StepBound& bound);
/// Returns a table of the measured operations beside their bounds; empty if no operations were measured.
std::string bound_table(const RunRecord& run, const StepBound& bound);
/// Returns a table of the times of the measured operations by kind; empty if no operations were measured.
std::string time_table(const RunRecord& run);

}  // namespace hvd::bench
