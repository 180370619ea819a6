#include "bench/hardware/step_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/json.h"
#include "models/graph/cost.h"

namespace hvd::bench {

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
