#include "bench/cli/coll_report.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "bench/cli/coll_figures.h"
#include "bench/measure/median.h"
#include "bench/measure/units.h"
#include "bench/train/crossovers.h"

namespace hvd::bench::coll {
namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(), pattern, values...);
  return text.data();
}

/// Returns `value` as text of at most seven characters.
std::string figure(double value) {
  return value < 1000 ? format("%.2f", value) : value < 100000 ? format("%.1f", value) : format("%.0f", value);
}

std::string nccl_columns(const CellResult* cell) {
  if (!measured(cell)) return format("  %7s  %6s  %6s  %6s", "-", "-", "-", "-");
  const std::string wrong = cell->wrong ? std::to_string(*cell->wrong) : "N/A";
  return format("  %7s  %6s  %6s  %6s", figure(cell->seconds.value * kMicro).c_str(),
                figure(cell->algorithm_rate * kGiga).c_str(), figure(cell->bus_rate * kGiga).c_str(), wrong.c_str());
}

std::string our_columns(const CellResult* cell) {
  if (!measured(cell)) return format("  | %6s  %6s  %8s  %9s", "-", "-", "-", "-");
  std::string width = cell->seconds.has_interval() ? format("%.1f", 100 * relative_half_width(cell->seconds)) : "?";
  if (!cell->settled) width += "!";
  const std::string bound = cell->bound ? format("%.0f", 100 * *cell->bound) : "-";
  const std::string late = format("%d (%.0f%%)", cell->last_rank, 100 * cell->last_share);
  return format("  | %6s  %6s  %8s  %9s", width.c_str(), bound.c_str(), figure(cell->skew * kMicro).c_str(),
                late.c_str());
}

std::string ratio_column(const CellResult* cell) {
  if (!measured(cell) || !cell->ratio) return format("  %22s", "-");
  const Estimate& ratio = *cell->ratio;
  if (!ratio.has_interval()) return format("  %22s", format("%.3f", ratio.value).c_str());
  return format("  %22s", format("%.3f [%.3f, %.3f]", ratio.value, ratio.low, ratio.high).c_str());
}

std::string row_text(const Row& row, bool compared) {
  const CellResult& any = *(row[0] != nullptr ? row[0] : row[1]);
  const Problem& problem = any.cell.problem;
  std::string text =
      format("%12zu  %12zu  %8s  %6s  %6d", any.bytes, problem.count, std::string(nccl_name(problem.type)).c_str(),
             std::string(reduction_name(problem)).c_str(), root_of(problem));
  for (const CellResult* cell : row) text += nccl_columns(cell);
  for (const CellResult* cell : row) text += our_columns(cell);
  for (const CellResult* cell : row) text += compared ? ratio_column(cell) : "";
  return text + "\n";
}

std::string header(bool compared) {
  std::string text = format("# %10s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop", "root");
  for (int form = 0; form < 2; ++form) text += format("  %7s  %6s  %6s  %6s", "time", "algbw", "busbw", "#wrong");
  for (int form = 0; form < 2; ++form) text += format("  | %6s  %6s  %8s  %9s", "+-", "bound", "skew", "last");
  for (int form = 0; form < 2; ++form) text += compared ? format("  %22s", "time / first side's") : "";
  text += "\n" + format("# %10s  %12s  %8s  %6s  %6s", "(B)", "(elements)", "", "", "");
  for (int form = 0; form < 2; ++form) text += format("  %7s  %6s  %6s  %6s", "(us)", "(GB/s)", "(GB/s)", "");
  for (int form = 0; form < 2; ++form) text += format("  | %6s  %6s  %8s  %9s", "(%)", "(%)", "(us)", "(rank)");
  return "#" + std::string(46, ' ') +
         format("%33s%31s  | %34s  | %34s", "out-of-place", "in-place", "out-of-place", "in-place") + "\n" + text +
         "\n";
}

std::string steps_text(const CollOptions& options, const CollResult& result) {
  const ModelTotal total = model_total(options);
  std::string text;
  for (const ModelStep& step : model_steps(options, result)) {
    const std::string& label = result.variants[static_cast<std::size_t>(step.variant)];
    text += "# One step of " + options.model + ", " + std::to_string(total.buckets) + " buckets of " +
            bytes_text(static_cast<double>(total.bytes)) + ": " + std::string(name(step.collective)) +
            (reduces(step.collective) ? " " + std::string(nccl_name(step.op)) : "") +
            (label.empty() ? "" : ", " + label) + ": ";
    if (step.seconds[0]) text += figure(*step.seconds[0] * kMicro) + " us out of place";
    if (step.seconds[0] && step.seconds[1]) text += ", ";
    if (step.seconds[1]) text += figure(*step.seconds[1] * kMicro) + " us in place";
    text += "\n";
  }
  return text;
}

std::string footer(const CollResult& result) {
  std::size_t open = 0;
  for (const CellResult& cell : result.cells) open += cell.settled ? 0 : 1;
  const std::uint64_t wrong = wrong_in_all(result);
  std::string text = format("# Out of bounds values : %llu %s\n", static_cast<unsigned long long>(wrong),
                            wrong == 0 ? "OK" : "FAILED");
  text += format("# Avg bus bandwidth    : %g\n", average_bus_rate(result));
  if (open > 0)
    text += format("# !                    : %zu of %zu cells ended before their interval was narrow enough\n", open,
                   result.cells.size());
  if (result.world.clock_uncertainty > 0) {
    text += format("# Clocks of hosts      : skew may be wrong by %.1f us\n", result.world.clock_uncertainty * kMicro);
  }
  for (const std::string& caution : caution_lines(result.world.numa)) text += "# " + caution + "\n";
  if (result.crossovers) text += "# Crossovers           : " + crossover_text(*result.crossovers) + "\n";
  if (!result.interrupted.empty()) text += "# INCOMPLETE           : stopped by " + result.interrupted + "\n";
  return text;
}

std::string plane_of(const CollResult& result, int variant) {
  const auto found = std::find_if(result.cells.begin(), result.cells.end(),
                                  [&](const CellResult& cell) { return cell.cell.variant == variant; });
  return found == result.cells.end() ? std::string() : found->plane;
}

std::string graph_line(const CollOptions& options) {
  if (options.graph_launches == 0) return {};
  return "# a sample is " + std::to_string(options.graph_launches) + " launch(es) of a CUDA graph of operations (-G)\n";
}

}  // namespace

std::string table(const CollOptions& options, const CollResult& result) {
  const bool compared = result.variants.size() > 1;
  std::string text = "# " + std::to_string(result.world.ranks) + " ranks on " + std::to_string(result.world.nodes) +
                     " node(s), " + result.world.comm + ", " + result.world.library +
                     (result.world.gpu.empty() ? "" : ", " + result.world.gpu) + "\n";
  text += "# buffers rotate through " + bytes_text(static_cast<double>(result.arena_bytes)) +
          " a rank, the cache holds " +
          (result.cache_bytes > 0 ? bytes_text(static_cast<double>(result.cache_bytes)) : "an unknown size") +
          (options.warm ? " (--warm)" : "") + "\n" + graph_line(options);
  for (const Collective collective : options.collectives) {
    for (int variant = 0; variant < static_cast<int>(result.variants.size()); ++variant) {
      const std::vector<Row> rows = rows_of(result, collective, variant);
      if (rows.empty()) continue;
      const std::string& label = result.variants[static_cast<std::size_t>(variant)];
      const bool ragged = options.ragged && has_shares(collective);
      text +=
          "#\n# " + std::string(name(collective)) + (ragged ? ", ragged" : "") + (label.empty() ? "" : ", " + label);
      const std::string plane = plane_of(result, variant);
      text += (plane.empty() ? "" : ", over " + plane) + "\n" + header(compared);
      for (const Row& row : rows) text += row_text(row, compared);
    }
  }
  return text + steps_text(options, result) + footer(result);
}

}  // namespace hvd::bench::coll
