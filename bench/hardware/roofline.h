// The roofline model: an operation takes at least the longer of two times, the time of its arithmetic at the device's
// peak rate and the time of its memory traffic at the memory's rate. Computes these bounds for operations and for a
// whole training step, and compares them with measured times. Pure.
//
// Source of the model: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/store/run_record.h"
#include "engine/base/types.h"
#include "models/graph/graph.h"

namespace hvd::bench {

struct DeviceRates {
  double flops = 0;  ///< per second, for dense matrices, in the compute type
  double bytes = 0;  ///< per second, to and from device memory
};

/// Returns the rates from NVIDIA's data sheet for the GPU with this name (as the driver gives it). `tf32`: fp32 is
/// computed in tf32. Returns nothing if the table does not know the GPU or its rate in this type.
std::optional<DeviceRates> published_rates(std::string_view gpu, DataType compute, bool tf32);

/// Returns the least number of seconds that work of this size takes.
double bound_seconds(double flops, double bytes, const DeviceRates& rates);

/// All launches of one kind of operation in a step.
struct BoundRow {
  std::string kind;
  int launches = 0;
  double seconds = 0;       ///< measured, mean per step
  double bound = 0;         ///< seconds
  bool arithmetic = false;  ///< true if arithmetic limits more than half of the bound
};
/// Groups the operations by kind. The kind with the most time comes first.
std::vector<BoundRow> bounds_by_kind(std::span<const OperationRow> operations, const DeviceRates& rates);
/// Returns the rows and their sum as a table: launches, milliseconds measured, bound, ratio, and what limits the kind.
std::string bounds_table(const std::vector<BoundRow>& rows);

/// Returns the model FLOP utilisation: the arithmetic of the images trained per second, divided by the peak. Source:
/// Chowdhery et al., arXiv:2204.02311, appendix B.
double flop_utilisation(double images_per_second, double flops_per_image, const DeviceRates& rates);

/// Returns "1234.5 images/s: 41.2 % of the peak's FLOP/s; unfused roofline 2345.6 images/s (52.6 % of it)".
/// `step_bound`: sum of the bounds of all operations of a step, in seconds.
std::string bounds_text(double images_per_second, double flops_per_image, double images_per_step, double step_bound,
                        const DeviceRates& rates);

/// The bound of one rank's step if every operation runs alone, reads its inputs once and writes its outputs once. Fused
/// operations move fewer bytes, so a step can be faster than `seconds`; a step cannot be faster than flops / peak.
struct StepBound {
  std::string device;  ///< the name that the device's driver gives
  DeviceRates rates;   ///< from the device's data sheet
  double flops = 0, bytes = 0;
  double seconds = 0;  ///< sum over operations of the longer of two times: of its arithmetic, of its traffic
};

/// `graph` must be differentiated; its tensors have type `compute`. Returns nothing if published_rates() does not know
/// the device or its rate in this type.
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
