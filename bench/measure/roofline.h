// What a device could do at most, beside what it did: per operation the longer of its arithmetic at the peak and its
// traffic at the memory's rate. Pure.
//
// Source of the model: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/types.h"
#include "models/train_step.h"

namespace hvd::bench {

struct DeviceRates {
  double flops = 0;  ///< per second, dense, in the type computed in
  double bytes = 0;  ///< per second, to and from device memory
};

/// NVIDIA's data sheets, for the GPU of this name (as the driver gives it). `tf32`: fp32 in tf32. Empty: not known
/// here.
std::optional<DeviceRates> published_rates(std::string_view gpu, DataType compute, bool tf32);

/// Seconds that work of this size takes at least.
double bound_seconds(double flops, double bytes, const DeviceRates& rates);

/// One kind of operation: all launches of it in a step.
struct BoundRow {
  std::string kind;
  int launches = 0;
  double seconds = 0;       ///< measured, mean per step
  double bound = 0;         ///< seconds
  bool arithmetic = false;  ///< more of the bound is arithmetic than traffic
};
/// By kind, the most time first.
std::vector<BoundRow> bounds_by_kind(std::span<const models::OperationProfile> operations, const DeviceRates& rates);
/// The rows and their sum as a table: launches, milliseconds measured, bound, ratio, what bounds.
std::string bounds_table(const std::vector<BoundRow>& rows);

/// Model FLOP utilisation: the arithmetic of the images trained per second, against the peak. Source: Chowdhery et al.,
/// arXiv:2204.02311, appendix B.
double flop_utilisation(double images_per_second, double flops_per_image, const DeviceRates& rates);

/// "1234.5 images/s: 41.2 % of the peak's FLOP/s; unfused roofline 2345.6 images/s (52.6 % of it)".
/// `step_bound`: seconds of all operations of a step at their bounds.
std::string bounds_text(double images_per_second, double flops_per_image, double images_per_step, double step_bound,
                        const DeviceRates& rates);

}  // namespace hvd::bench
