#include "bench/cli/coll/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/cli/coll/figures.h"
#include "bench/measure/median.h"
#include "bench/measure/units.h"
#include "bench/tune/crossovers.h"

namespace hvd::bench::coll {
namespace {

/// Returns `value` as text of at most seven characters.
std::string figure(double value) { return fmt::format("{:.{}f}", value, value < 1000 ? 2 : value < 100000 ? 1 : 0); }

std::string nccl_columns(std::string_view time, std::string_view algbw, std::string_view busbw,
                         std::string_view wrong) {
  return fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", time, algbw, busbw, wrong);
}

/// One rank (`alone`) sends nothing, and in place it moves nothing, so these rates do not exist.
std::string nccl_columns(const CellResult* cell, bool alone) {
  if (!measured(cell)) return nccl_columns("-", "-", "-", "-");
  const bool moves = !alone || !cell->cell.problem.in_place;
  return nccl_columns(figure(cell->seconds.value * kMicro), moves ? figure(cell->algorithm_rate * kGiga) : "-",
                      alone ? "-" : figure(cell->bus_rate * kGiga), cell->wrong ? std::to_string(*cell->wrong) : "N/A");
}

std::string our_columns(std::string_view width, std::string_view bound, std::string_view skew, std::string_view last) {
  return fmt::format("  | {:>6}  {:>6}  {:>8}  {:>9}", width, bound, skew, last);
}

std::string our_columns(const CellResult* cell) {
  if (!measured(cell)) return our_columns("-", "-", "-", "-");
  std::string width =
      cell->seconds.has_interval() ? fmt::format("{:.1f}", 100 * relative_half_width(cell->seconds)) : "?";
  if (!cell->settled) width += "!";
  return our_columns(width, cell->bound ? fmt::format("{:.0f}", 100 * *cell->bound) : "-", figure(cell->skew * kMicro),
                     fmt::format("{} ({:.0f}%)", cell->last_rank, 100 * cell->last_share));
}

std::string ratio_column(const CellResult* cell) {
  if (!measured(cell) || !cell->ratio) return fmt::format("  {:>22}", "-");
  const Estimate& ratio = *cell->ratio;
  if (!ratio.has_interval()) return fmt::format("  {:>22.3f}", ratio.value);
  return fmt::format("  {:>22}", fmt::format("{:.3f} [{:.3f}, {:.3f}]", ratio.value, ratio.low, ratio.high));
}

std::string row_text(const Row& row, bool compared, bool alone) {
  const CellResult& any = *(row[0] != nullptr ? row[0] : row[1]);
  const Problem& problem = any.cell.problem;
  std::string text = fmt::format("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}", any.bytes, problem.count,
                                 nccl_name(problem.type), reduction_name(problem), root_of(problem));
  for (const CellResult* cell : row) text += nccl_columns(cell, alone);
  for (const CellResult* cell : row) text += our_columns(cell);
  for (const CellResult* cell : row) text += compared ? ratio_column(cell) : "";
  return text + "\n";
}

std::string header(bool compared) {
  std::string text = fmt::format("#{:46}{:>33}{:>31}  | {:>34}  | {:>34}\n", "", "out-of-place", "in-place",
                                 "out-of-place", "in-place");
  text += fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", "size", "count", "type", "redop", "root");
  for (int form = 0; form < 2; ++form) text += nccl_columns("time", "algbw", "busbw", "#wrong");
  for (int form = 0; form < 2; ++form) text += our_columns("+-", "bound", "skew", "last");
  for (int form = 0; form < 2; ++form) text += compared ? fmt::format("  {:>22}", "time / first side's") : "";
  text += fmt::format("\n# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", "(B)", "(elements)", "", "", "");
  for (int form = 0; form < 2; ++form) text += nccl_columns("(us)", "(GB/s)", "(GB/s)", "");
  for (int form = 0; form < 2; ++form) text += our_columns("(%)", "(%)", "(us)", "(rank)");
  return text + "\n";
}

std::string steps_text(const CollOptions& options, const CollResult& result) {
  const ModelTotal total = model_total(options);
  std::string text;
  for (const ModelStep& step : model_steps(options, result)) {
    const std::string& label = result.variants[static_cast<std::size_t>(step.variant)];
    text += fmt::format("# One step of {}, {} buckets of {}: {}{}{}{}{}: ", options.model, total.buckets,
                        bytes_text(static_cast<double>(total.bytes)), name(step.collective),
                        reduces(step.collective) ? " " : "", reduces(step.collective) ? nccl_name(step.op) : "",
                        label.empty() ? "" : ", ", label);
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
  std::string text = fmt::format("# Out of bounds values : {} {}\n", wrong, wrong == 0 ? "OK" : "FAILED");
  if (result.world.ranks == 1) {
    text +=
        "# Avg bus bandwidth    : not measured, because one rank sends nothing; the times are those of calls and "
        "copies."
        " Start more ranks: mpirun -n N hvd_bench coll, or --ranks N\n";
  } else {
    text += fmt::format("# Avg bus bandwidth    : {:g}\n", average_bus_rate(result));
  }
  if (open > 0) {
    text += fmt::format("# !                    : {} of {} cells ended before their interval was narrow enough\n", open,
                        result.cells.size());
  }
  const double clocks = result.world.clock_uncertainty * kMicro;
  if (clocks > 0) text += fmt::format("# Clocks of hosts      : skew may be wrong by {:.1f} us\n", clocks);
  for (const std::string& caution : caution_lines(result.world.facts)) text += fmt::format("# {}\n", caution);
  if (result.crossovers) text += fmt::format("# Crossovers           : {}\n", crossover_text(*result.crossovers));
  if (!result.interrupted.empty()) text += fmt::format("# INCOMPLETE           : stopped by {}\n", result.interrupted);
  return text;
}

std::string plane_of(const CollResult& result, int variant) {
  const auto found = std::find_if(result.cells.begin(), result.cells.end(),
                                  [&](const CellResult& cell) { return cell.cell.variant == variant; });
  return found == result.cells.end() ? std::string() : found->plane;
}

std::string graph_line(const CollOptions& options) {
  if (options.graph_launches == 0) return {};
  return fmt::format("# a sample is {} launch(es) of a CUDA graph of operations (-G)\n", options.graph_launches);
}

}  // namespace

std::string table(const CollOptions& options, const CollResult& result) {
  const bool compared = result.variants.size() > 1;
  const World& world = result.world;
  std::string text = fmt::format("# {} ranks on {} node(s), {}, {}{}{}\n", world.ranks, world.nodes, world.comm,
                                 world.library, world.gpu.empty() ? "" : ", ", world.gpu);
  text += fmt::format("# buffers rotate through {} a rank, the cache holds {}{}\n{}",
                      bytes_text(static_cast<double>(result.arena_bytes)),
                      result.cache_bytes > 0 ? bytes_text(static_cast<double>(result.cache_bytes)) : "an unknown size",
                      options.warm ? " (--warm)" : "", graph_line(options));
  for (const MeasuredCollective collective : options.collectives) {
    for (int variant = 0; variant < static_cast<int>(result.variants.size()); ++variant) {
      const std::vector<Row> rows = rows_of(result, collective, variant);
      if (rows.empty()) continue;
      const std::string& label = result.variants[static_cast<std::size_t>(variant)];
      const bool ragged = options.ragged && has_shares(collective);
      const std::string plane = plane_of(result, variant);
      text += fmt::format("#\n# {}{}{}{}{}{}\n{}", name(collective), ragged ? ", ragged" : "",
                          label.empty() ? "" : ", ", label, plane.empty() ? "" : ", over ", plane, header(compared));
      for (const Row& row : rows) text += row_text(row, compared, world.ranks == 1);
    }
  }
  return text + steps_text(options, result) + footer(result);
}

}  // namespace hvd::bench::coll
