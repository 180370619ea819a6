#include "bench/hardware/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "engine/base/json.h"
#include "models/graph/cost.h"

namespace hvd::bench {
namespace {

struct Sheet {
  std::string_view name;  // part of the name that the driver gives; the first match in the table is used
  double tera_16bit, tera_tf32, tera_fp32, tera_bytes;
};

// Dense rates, for SXM boards unless the name says otherwise. Sources: NVIDIA's data sheets "H200 Tensor Core GPU",
// "H100 Tensor Core GPU", "A100 Tensor Core GPU", "GH200 Grace Hopper Superchip", "V100 Tensor Core GPU", "Tesla P100",
// "L40S"; "GB200 NVL72" and "HGX B200" (per GPU: a half of the superchip's and an eighth of the board's figures).
// Figures that a sheet gives for sparse matrices are halved.
constexpr std::array<Sheet, 14> kSheets{{{"GB200", 2500, 1250, 80, 8.0},
                                         {"B200", 2250, 1125, 75, 7.7},
                                         {"GH200", 989.5, 494.5, 67, 4.0},
                                         {"H200 NVL", 835.5, 417.5, 60, 4.8},
                                         {"H200", 989.5, 494.5, 67, 4.8},
                                         {"H100 PCIe", 756.5, 378, 51, 2.0},
                                         {"H100 NVL", 835.5, 417.5, 60, 3.9},
                                         {"H100", 989.5, 494.5, 67, 3.35},
                                         {"L40S", 366.5, 183, 91.6, 0.864},
                                         {"A100-SXM4-80GB", 312, 156, 19.5, 2.039},
                                         {"A100 80GB PCIe", 312, 156, 19.5, 1.935},
                                         {"A100", 312, 156, 19.5, 1.555},
                                         {"V100", 125, 0, 15.7, 0.9},
                                         {"P100", 21.2, 0, 10.6, 0.732}}};
constexpr double kTera = 1e12;

bool bounded_by_arithmetic(double flops, double bytes, const DeviceRates& rates) {
  return flops / rates.flops > bytes / rates.bytes;
}

std::string percent_text(double part) { return fmt::format("{:.1f} %", 100 * part); }

}  // namespace

std::optional<DeviceRates> published_rates(std::string_view gpu, DataType compute, bool tf32) {
  const auto found = std::find_if(kSheets.begin(), kSheets.end(),
                                  [&](const Sheet& sheet) { return gpu.find(sheet.name) != std::string_view::npos; });
  if (found == kSheets.end()) return std::nullopt;
  const bool has_bf16 = found->tera_tf32 > 0;  // the same GPU generation introduced tf32 and bf16
  double tera = 0;
  switch (compute) {
    case DataType::kF32: tera = tf32 ? found->tera_tf32 : found->tera_fp32; break;
    case DataType::kF16: tera = found->tera_16bit; break;
    case DataType::kBF16: tera = has_bf16 ? found->tera_16bit : 0; break;
    default: break;
  }
  if (tera == 0) return std::nullopt;
  return DeviceRates{.flops = tera * kTera, .bytes = found->tera_bytes * kTera};
}

double bound_seconds(double flops, double bytes, const DeviceRates& rates) {
  return std::max(flops / rates.flops, bytes / rates.bytes);
}

std::vector<BoundRow> bounds_by_kind(std::span<const OperationRow> operations, const DeviceRates& rates) {
  std::map<std::string, BoundRow> by_kind;
  std::map<std::string, double> arithmetic;  // [kind]: sum of the bounds that arithmetic limits, in seconds
  for (const OperationRow& operation : operations) {
    BoundRow& row = by_kind[operation.kind];
    const double bound = bound_seconds(operation.flops, operation.bytes, rates);
    row.kind = operation.kind;
    ++row.launches;
    row.seconds += operation.seconds;
    row.bound += bound;
    if (bounded_by_arithmetic(operation.flops, operation.bytes, rates)) arithmetic[operation.kind] += bound;
  }
  std::vector<BoundRow> rows;
  for (auto& [kind, row] : by_kind) {
    row.arithmetic = 2 * arithmetic[kind] > row.bound;
    rows.push_back(row);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const BoundRow& a, const BoundRow& b) { return a.seconds > b.seconds; });
  return rows;
}

std::string bounds_table(const std::vector<BoundRow>& rows) {
  constexpr double kMilli = 1e3;
  std::string table = "launches  measured ms    bound ms   ratio  bound by    operation\n";
  const auto line = [&](const BoundRow& row, const char* by) {
    table += fmt::format("{:8}{:13.3f}{:12.3f}{:8.2f}  {:12}{}\n", row.launches, kMilli * row.seconds,
                         kMilli * row.bound, row.bound > 0 ? row.seconds / row.bound : 0, by, row.kind);
  };
  BoundRow sum{.kind = "all"};
  for (const BoundRow& row : rows) {
    line(row, row.arithmetic ? "arithmetic" : "memory");
    sum.launches += row.launches;
    sum.seconds += row.seconds;
    sum.bound += row.bound;
  }
  line(sum, "");
  return table;
}

double flop_utilisation(double images_per_second, double flops_per_image, const DeviceRates& rates) {
  return images_per_second * flops_per_image / rates.flops;
}

std::string bounds_text(double images_per_second, double flops_per_image, double images_per_step, double step_bound,
                        const DeviceRates& rates) {
  const double most = images_per_step / step_bound;
  return fmt::format("{:.1f} images/s: {} of the peak's FLOP/s; unfused roofline {:.1f} images/s ({} of it)",
                     images_per_second, percent_text(flop_utilisation(images_per_second, flops_per_image, rates)), most,
                     percent_text(images_per_second / most));
}

std::optional<StepBound> step_bound(const models::Graph& graph, const std::string& device, DataType compute,
                                    bool tf32) {
  const std::optional<DeviceRates> rates = published_rates(device, compute, tf32);
  if (!rates) return std::nullopt;
  StepBound bound{.device = device, .rates = *rates};
  for (const models::Node& node : graph.nodes) {
    const models::NodeCost cost = models::cost(graph, node, static_cast<double>(size_of(compute)));
    bound.flops += cost.flops;
    bound.bytes += cost.bytes;
    bound.seconds += bound_seconds(cost.flops, cost.bytes, *rates);
  }
  return bound;
}

Provenance bound_facts(const StepBound& bound) {
  Provenance facts;
  const auto add = [&](const char* key, double value) {
    facts.insert({std::string("bound.") + key, {json_number(value), false}});
  };
  add("flops_per_step", bound.flops);
  add("bytes_per_step", bound.bytes);
  add("step_seconds", bound.seconds);
  add("peak_flops", bound.rates.flops);
  add("peak_bytes_per_second", bound.rates.bytes);
  return facts;
}

std::string bound_line(const RunRecord& run, const StepBound& bound) {
  if (!run.images_per_second) return {};
  const auto images = static_cast<double>(run.batch_size);
  return fmt::format(
      "bound per GPU (data sheet of {}: {:.1f} TFLOP/s in {}, {:.2f} TB/s; {:.1f} GFLOP and {:.1f} MB per image, "
      "operations unfused): {}",
      bound.device, bound.rates.flops * 1e-12, run.compute_type, bound.rates.bytes * 1e-12, bound.flops / images * 1e-9,
      bound.bytes / images * 1e-6,
      bounds_text(run.images_per_second->value / run.world_size, bound.flops / images, images, bound.seconds,
                  bound.rates));
}

std::string bound_table(const RunRecord& run, const StepBound& bound) {
  if (run.operations.empty()) return {};
  return bounds_table(bounds_by_kind(run.operations, bound.rates));
}

std::string time_table(const RunRecord& run) {
  std::map<std::string, std::pair<std::size_t, double>> by_kind;  // [kind]: operations, seconds
  double all = 0;
  for (const OperationRow& row : run.operations) {
    auto& [count, seconds] = by_kind[row.kind];
    ++count;
    seconds += row.seconds;
    all += row.seconds;
  }
  std::vector<std::pair<std::string, std::pair<std::size_t, double>>> kinds(by_kind.begin(), by_kind.end());
  std::stable_sort(kinds.begin(), kinds.end(),
                   [](const auto& a, const auto& b) { return a.second.second > b.second.second; });
  std::string table;
  for (const auto& [kind, sum] : kinds) {
    table += fmt::format("{:8}{:13.3f}{:10.1f}  {}\n", sum.first, 1e3 * sum.second,
                         all > 0 ? 100 * sum.second / all : 0, kind);
  }
  return table.empty() ? table : "   count  measured ms  per cent  operation\n" + table;
}

}  // namespace hvd::bench
