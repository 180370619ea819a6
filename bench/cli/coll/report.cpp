#include "bench/cli/coll/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "bench/cli/coll/figures.h"
#include "bench/cli/json_writer.h"
#include "bench/coll/columns.h"
#include "bench/measure/median.h"
#include "bench/measure/units.h"
#include "bench/store/build_info.h"
#include "bench/tune/crossovers.h"
#include "engine/base/json.h"

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

/// Returns microseconds; nothing for an operation that took less time than the clock can tell.
std::optional<double> clocked(double seconds) { return seconds > 0 ? std::optional(seconds * kMicro) : std::nullopt; }

/// Returns the value as JSON; "null" if it is unknown.
std::string json_text(const Value& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value.held)) return std::to_string(*whole);
  if (const auto* number = std::get_if<double>(&value.held)) return json_number(*number);
  if (const auto* text = std::get_if<std::string_view>(&value.held)) return json_string(*text);
  return "null";
}

void write_form(JsonWriter& row, std::string_view key, const CollResult& result, const CellResult* cell) {
  if (!measured(cell)) return row.null(key);
  row.object(key, [&](JsonWriter& form) {
    for (const CellColumn& column : cell_columns()) {
      if (!column.json.empty()) form.raw(column.json, json_text(column.shown(result, *cell)));
    }
    form.truth("settled", cell->settled);
  });
}

/// Writes the keys that nccl-tests writes with -I, except the list of times.
void write_spread(JsonWriter& row, std::string_view key, const CellResult* cell) {
  if (!measured(cell)) return;
  row.object(key, [&](JsonWriter& out) {
    const Spread& spread = cell->spread;
    out.number("min_us", clocked(spread.minimum));
    out.number("max_us", clocked(spread.maximum));
    out.number("avg_us", spread.mean * kMicro);
    out.number("p50_us", clocked(cell->seconds.value));
    out.number("p95_us", clocked(spread.percentile_95));
    out.number("p99_us", clocked(spread.percentile_99));
    out.number("stdev_us", spread.deviation * kMicro);
    out.number("cv_pct", 100 * spread.variation());
  });
}

/// nccl-tests writes booleans as text.
std::string_view truth_text(bool value) { return value ? "true" : "false"; }

void write_row(JsonWriter& rows, const CollResult& result, const Row& row) {
  const CellResult& any = *(row[0] != nullptr ? row[0] : row[1]);
  const Problem& problem = any.cell.problem;
  rows.object({}, [&](JsonWriter& out) {
    out.integer("size", static_cast<std::int64_t>(any.bytes));
    out.integer("count", static_cast<std::int64_t>(problem.count));
    out.text("type", nccl_name(problem.type));
    out.text("redop", reduction_name(problem));
    out.text("root", std::to_string(root_of(problem)));
    write_form(out, "out_of_place", result, row[0]);
    write_spread(out, "out_of_place_per_iter", row[0]);
    write_form(out, "in_place", result, row[1]);
    write_spread(out, "in_place_per_iter", row[1]);
    std::size_t operations = 0;  // of the in-place cell if measured; nccl-tests has one field for both cells
    for (const CellResult* cell : row) operations = measured(cell) ? cell->samples * cell->batch : operations;
    out.integer("actual_iterations", static_cast<std::int64_t>(operations));
    out.text("experiment_name", name(problem.collective));
    out.truth("ragged", problem.ragged);
    out.text("variant", result.variants[static_cast<std::size_t>(any.cell.variant)]);
    out.text("data_plane", any.plane);
  });
}

void write_config(JsonWriter& config, const CollOptions& options, const CollResult& result) {
  config.integer("minimum_bytes", static_cast<std::int64_t>(options.sizes.front()));
  config.integer("maximum_bytes", static_cast<std::int64_t>(options.sizes.back()));
  config.integer("warmup_iters", static_cast<std::int64_t>(options.warmup));
  config.integer("iterations", static_cast<std::int64_t>(options.least_samples));
  config.integer("validation", static_cast<std::int64_t>(options.checks));
  config.text("blocking_collectives", truth_text(options.pace != Pace::kStream));
  config.integer("graph", static_cast<std::int64_t>(options.graph_launches));
  config.integer("blocking", static_cast<std::int64_t>(options.pace));
  config.text("model", options.model);
  config.truth("warm", options.warm);
  config.integer("buffer_bytes", static_cast<std::int64_t>(result.arena_bytes));
  config.integer("cache_bytes", static_cast<std::int64_t>(result.cache_bytes));
  config.integer("seed", static_cast<std::int64_t>(options.seed));
  config.integer("ranks", result.world.ranks);
  config.integer("nodes", result.world.nodes);
  if (result.crossovers) config.text("crossovers", crossover_text(*result.crossovers));
  config.text("comm", result.world.comm);
  config.text("library", result.world.library);
  config.text("gpu", result.world.gpu);
  const auto placed = result.world.facts.find("numa.of_rank");
  config.text("numa", placed != result.world.facts.end() ? placed->second.value : std::string());
  config.array("cautions", [&](JsonWriter& cautions) {
    for (const std::string& caution : caution_lines(result.world.facts)) cautions.element(caution);
  });
  config.array("devices", [&](JsonWriter& devices) {
    for (std::size_t rank = 0; rank < result.world.hosts.size(); ++rank) {
      devices.object({}, [&](JsonWriter& device) {
        device.integer("rank", static_cast<std::int64_t>(rank));
        device.text("hostname", result.world.hosts[rank]);
      });
    }
  });
}

void write_steps(JsonWriter& top, const CollOptions& options, const CollResult& result) {
  const ModelTotal total = model_total(options);
  top.array("model_steps", [&](JsonWriter& steps) {
    for (const ModelStep& step : model_steps(options, result)) {
      steps.object({}, [&](JsonWriter& out) {
        const auto time = [](std::optional<double> seconds) {
          return seconds ? std::optional(*seconds * kMicro) : std::nullopt;
        };
        out.text("model", options.model);
        out.integer("buckets", static_cast<std::int64_t>(total.buckets));
        out.integer("bytes", static_cast<std::int64_t>(total.bytes));
        out.text("experiment_name", name(step.collective));
        out.text("redop", reduces(step.collective) ? nccl_name(step.op) : std::string_view("none"));
        out.text("variant", result.variants[static_cast<std::size_t>(step.variant)]);
        out.number("out_of_place_time", time(step.seconds[0]));
        out.number("in_place_time", time(step.seconds[1]));
      });
    }
  });
}

/// Returns the value as a field of CSV; empty if it is unknown.
std::string csv_field(const Value& value) {
  const auto* text = std::get_if<std::string_view>(&value.held);
  if (text == nullptr) return json_text(value) == "null" ? "" : json_text(value);
  if (text->find_first_of(",\"\n\r") == std::string_view::npos) return std::string(*text);
  std::string field = "\"";
  for (const char character : *text) field.append(character == '"' ? 2 : 1, character);
  return field + "\"";
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

std::string json(const CollOptions& options, const CollResult& result, const std::vector<std::string>& argv,
                 const Provenance& environment) {
  std::string out = "{";
  JsonWriter top(out, 1);
  top.integer("version", 2);
  top.text("program", "hvd_bench " + std::string(build_info().version));
  top.text("start_time", result.started_utc);
  top.array("args", [&](JsonWriter& args) {
    for (const std::string& argument : argv) args.element(argument);
  });
  top.array("env", [&](JsonWriter& lines) {
    for (const auto& [key, fact] : environment) lines.element(key + "=" + fact.value);
  });
  top.object("config", [&](JsonWriter& config) { write_config(config, options, result); });
  top.array("results", [&](JsonWriter& rows) {
    for (const MeasuredCollective collective : options.collectives) {
      for (int variant = 0; variant < static_cast<int>(result.variants.size()); ++variant) {
        for (const Row& row : rows_of(result, collective, variant)) write_row(rows, result, row);
      }
    }
  });
  if (!options.model.empty()) write_steps(top, options, result);
  const std::uint64_t wrong = wrong_in_all(result);
  top.object("out_of_bounds", [&](JsonWriter& object) {
    object.integer("count", static_cast<std::int64_t>(wrong));
    object.text("okay", truth_text(wrong == 0));
  });
  top.object("average_bus_bandwidth", [&](JsonWriter& object) {
    object.number("bandwidth", average_bus_rate(result));
    object.text("okay", "unchecked");
  });
  top.text("status", result.interrupted.empty() ? "complete" : "incomplete");
  top.text("status_reason", result.interrupted);
  top.number("clock_uncertainty", result.world.clock_uncertainty * kMicro);
  top.text("end_time", result.finished_utc);
  return out + "\n}\n";
}

std::string csv(const CollResult& result) {
  std::vector<CellColumn> columns;
  std::copy_if(cell_columns().begin(), cell_columns().end(), std::back_inserter(columns),
               [](const CellColumn& column) { return !column.csv.empty(); });
  std::string text;
  for (const CellColumn& column : columns) text.append(text.empty() ? "" : ",").append(column.csv);
  for (const CellResult& cell : result.cells) {
    if (cell.samples == 0) continue;
    std::string line;
    for (const CellColumn& column : columns) line.append(",").append(csv_field(column.shown(result, cell)));
    text.append("\n").append(line.substr(1));
  }
  return text + "\n";
}

}  // namespace hvd::bench::coll
