#include "bench/cli/coll_report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <tuple>

#include "bench/cli/json_writer.h"
#include "bench/measure/median.h"
#include "bench/measure/units.h"
#include "bench/store/build_info.h"
#include "bench/train/crossovers.h"

namespace hvd::bench::coll {
namespace {

constexpr double kMicro = 1e6;
constexpr double kGiga = 1e-9;

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

/// The two forms of one row: [0] out of place, [1] in place; null if there is no such cell.
using Row = std::array<const CellResult*, 2>;

/// Rows keep the order of make_cells(): by type, reduction and size.
std::vector<Row> rows_of(const CollResult& result, Collective collective, int variant) {
  std::vector<Row> rows;
  std::map<std::tuple<DataType, ReduceOp, std::size_t>, std::size_t> known;
  for (const CellResult& cell : result.cells) {
    const Problem& problem = cell.cell.problem;
    if (problem.collective != collective || cell.cell.variant != variant) continue;
    const auto [at, is_new] = known.emplace(std::tuple(problem.type, problem.op, problem.count), rows.size());
    if (is_new) rows.push_back({nullptr, nullptr});
    rows[at->second][problem.in_place ? 1 : 0] = &cell;
  }
  return rows;
}

bool measured(const CellResult* cell) { return cell != nullptr && cell->samples > 0; }

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
  for (int form = 0; form < 2; ++form) text += compared ? format("  %22s", "time over the first") : "";
  text += "\n" + format("# %10s  %12s  %8s  %6s  %6s", "(B)", "(elements)", "", "", "");
  for (int form = 0; form < 2; ++form) text += format("  %7s  %6s  %6s  %6s", "(us)", "(GB/s)", "(GB/s)", "");
  for (int form = 0; form < 2; ++form) text += format("  | %6s  %6s  %8s  %9s", "(%)", "(%)", "(us)", "(rank)");
  return "#" + std::string(46, ' ') +
         format("%33s%31s  | %34s  | %34s", "out-of-place", "in-place", "out-of-place", "in-place") + "\n" + text +
         "\n";
}

/// Time to reduce all buckets of one step of a network, one after the other.
struct ModelStep {
  Collective collective = Collective::kAllReduce;
  int variant = 0;
  ReduceOp op = ReduceOp::kSum;
  std::array<std::optional<double>, 2> seconds{0.0, 0.0};  ///< out of place, in place; nullopt: a size is missing
};

std::vector<ModelStep> model_steps(const CollOptions& options, const CollResult& result) {
  std::vector<ModelStep> steps;
  if (options.repeats.size() != options.sizes.size()) return steps;
  for (const Collective collective : options.collectives) {
    if (collective == Collective::kBarrier) continue;
    for (int variant = 0; variant < static_cast<int>(result.variants.size()); ++variant) {
      for (const ReduceOp op : reduces(collective) ? options.ops : std::vector{ReduceOp::kSum}) {
        ModelStep step{collective, variant, op};
        for (std::size_t form = 0; form < 2; ++form) {
          for (std::size_t i = 0; i < options.sizes.size(); ++i) {
            const Problem wanted = problem_of(collective, options.sizes[i], options.types.front(), op,
                                              {form == 1, options.ragged}, result.world.ranks);
            const auto cell = std::find_if(result.cells.begin(), result.cells.end(), [&](const CellResult& each) {
              return each.cell.variant == variant && each.cell.problem == wanted && each.samples > 0;
            });
            std::optional<double>& sum = step.seconds[form];
            if (cell == result.cells.end()) sum.reset();
            if (sum) *sum += static_cast<double>(options.repeats[i]) * cell->seconds.value;
          }
        }
        if (step.seconds[0] || step.seconds[1]) steps.push_back(step);
      }
    }
  }
  return steps;
}

struct ModelTotal {
  std::size_t buckets = 0, bytes = 0;
};

ModelTotal model_total(const CollOptions& options) {
  ModelTotal total;
  for (std::size_t i = 0; i < options.repeats.size(); ++i) {
    total.buckets += options.repeats[i];
    total.bytes += options.repeats[i] * options.sizes[i];
  }
  return total;
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

std::uint64_t wrong_in_all(const CollResult& result) {
  std::uint64_t wrong = 0;
  for (const CellResult& cell : result.cells) wrong += cell.wrong.value_or(0);
  return wrong;
}

/// Returns the mean bus bandwidth over the measured cells in GB/s, as nccl-tests defines it.
double average_bus_rate(const CollResult& result) {
  double sum = 0;
  std::size_t count = 0;
  for (const CellResult& cell : result.cells) {
    if (cell.samples == 0 || cell.cell.problem.collective == Collective::kBarrier) continue;
    sum += cell.bus_rate * kGiga;
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
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
  if (result.crossovers) text += "# Between hosts        : " + crossover_text(*result.crossovers) + "\n";
  if (!result.interrupted.empty()) text += "# INCOMPLETE           : stopped by " + result.interrupted + "\n";
  return text;
}

std::string plane_of(const CollResult& result, int variant) {
  const auto found = std::find_if(result.cells.begin(), result.cells.end(),
                                  [&](const CellResult& cell) { return cell.cell.variant == variant; });
  return found == result.cells.end() ? std::string() : found->plane;
}

void write_form(JsonWriter& row, std::string_view key, const CellResult* cell) {
  if (!measured(cell)) return row.null(key);
  row.object(key, [&](JsonWriter& form) {
    const std::optional<double> unknown;
    const bool interval = cell->seconds.has_interval();
    form.number("time", cell->seconds.value * kMicro);
    form.number("alg_bw", cell->algorithm_rate * kGiga);
    form.number("bus_bw", cell->bus_rate * kGiga);
    form.number("nwrong", cell->wrong ? std::optional(static_cast<double>(*cell->wrong)) : unknown);
    form.number("time_low", interval ? std::optional(cell->seconds.low * kMicro) : unknown);
    form.number("time_high", interval ? std::optional(cell->seconds.high * kMicro) : unknown);
    form.number("transfer_time", cell->transfer * kMicro);
    form.number("skew", cell->skew * kMicro);
    form.integer("last_rank", cell->last_rank);
    form.number("last_rank_share", cell->last_share);
    form.number("bound", cell->bound);
    form.number("ratio", cell->ratio ? std::optional(cell->ratio->value) : unknown);
    form.number("ratio_low", cell->ratio ? std::optional(cell->ratio->low) : unknown);
    form.number("ratio_high", cell->ratio ? std::optional(cell->ratio->high) : unknown);
    form.integer("samples", static_cast<std::int64_t>(cell->samples));
    form.integer("operations_per_sample", static_cast<std::int64_t>(cell->batch));
    form.truth("settled", cell->settled);
    form.text("stop_reason", cell->stop_reason);
  });
}

/// Writes the keys of nccl-tests' -I, without its list of times.
void write_spread(JsonWriter& row, std::string_view key, const CellResult* cell) {
  if (!measured(cell)) return;
  row.object(key, [&](JsonWriter& out) {
    const Spread& spread = cell->spread;
    out.number("min_us", spread.minimum * kMicro);
    out.number("max_us", spread.maximum * kMicro);
    out.number("avg_us", spread.mean * kMicro);
    out.number("p50_us", cell->seconds.value * kMicro);
    out.number("p95_us", spread.percentile_95 * kMicro);
    out.number("p99_us", spread.percentile_99 * kMicro);
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
    write_form(out, "out_of_place", row[0]);
    write_spread(out, "out_of_place_per_iter", row[0]);
    write_form(out, "in_place", row[1]);
    write_spread(out, "in_place_per_iter", row[1]);
    std::size_t operations = 0;  // number in the last measured form, because nccl-tests reports that of one form
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
  const auto placed = result.world.numa.find("numa.of_rank");
  config.text("numa", placed != result.world.numa.end() ? placed->second.value : std::string());
  config.array("cautions", [&](JsonWriter& cautions) {
    for (const std::string& caution : caution_lines(result.world.numa)) cautions.element(caution);
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

/// Quotes a CSV field that may contain a comma or a quotation mark.
std::string quoted(const std::string& text) {
  std::string field = "\"";
  for (const char each : text) field.append(each == '"' ? 2 : 1, each);
  return field + "\"";
}

std::string csv_number(std::optional<double> value) { return value ? json_number(*value) : std::string(); }

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
    for (const Collective collective : options.collectives) {
      for (int variant = 0; variant < static_cast<int>(result.variants.size()); ++variant) {
        for (const Row& row : rows_of(result, collective, variant)) write_row(rows, result, row);
      }
    }
  });
  if (!options.model.empty()) write_steps(top, options, result);
  const std::uint64_t wrong = wrong_in_all(result);
  top.object("out_of_bounds", [&](JsonWriter& found) {
    found.integer("count", static_cast<std::int64_t>(wrong));
    found.text("okay", truth_text(wrong == 0));
  });
  top.object("average_bus_bandwidth", [&](JsonWriter& found) {
    found.number("bandwidth", average_bus_rate(result));
    found.text("okay", "unchecked");
  });
  top.text("status", result.interrupted.empty() ? "complete" : "incomplete");
  top.text("status_reason", result.interrupted);
  top.number("clock_uncertainty", result.world.clock_uncertainty * kMicro);
  top.text("end_time", result.finished_utc);
  return out + "\n}\n";
}

std::string csv(const CollResult& result) {
  std::string text =
      "collective,variant,data_plane,size,count,type,redop,in_place,ragged,time_us,time_low_us,time_high_us,time_min_"
      "us,"
      "time_max_us,time_p99_us,cv_pct,transfer_us,skew_us,last_rank,last_rank_share,algbw,busbw,bound,ratio,ratio_low,"
      "ratio_high,wrong,samples,operations_per_sample,"
      "stop_reason\n";
  for (const CellResult& cell : result.cells) {
    if (cell.samples == 0) continue;
    const Problem& problem = cell.cell.problem;
    const bool interval = cell.seconds.has_interval();
    const auto time = [&](double seconds) { return csv_number(seconds * kMicro); };
    const std::array<std::string, 30> fields{
        std::string(name(problem.collective)),
        result.variants[static_cast<std::size_t>(cell.cell.variant)],
        quoted(cell.plane),
        std::to_string(cell.bytes),
        std::to_string(problem.count),
        std::string(nccl_name(problem.type)),
        std::string(reduction_name(problem)),
        problem.in_place ? "1" : "0",
        problem.ragged ? "1" : "0",
        time(cell.seconds.value),
        interval ? time(cell.seconds.low) : "",
        interval ? time(cell.seconds.high) : "",
        time(cell.spread.minimum),
        time(cell.spread.maximum),
        time(cell.spread.percentile_99),
        csv_number(100 * cell.spread.variation()),
        time(cell.transfer),
        time(cell.skew),
        std::to_string(cell.last_rank),
        csv_number(cell.last_share),
        csv_number(cell.algorithm_rate * kGiga),
        csv_number(cell.bus_rate * kGiga),
        csv_number(cell.bound),
        csv_number(cell.ratio ? std::optional(cell.ratio->value) : std::nullopt),
        csv_number(cell.ratio && cell.ratio->has_interval() ? std::optional(cell.ratio->low) : std::nullopt),
        csv_number(cell.ratio && cell.ratio->has_interval() ? std::optional(cell.ratio->high) : std::nullopt),
        cell.wrong ? std::to_string(*cell.wrong) : "",
        std::to_string(cell.samples),
        std::to_string(cell.batch),
        quoted(cell.stop_reason)};
    for (std::size_t i = 0; i < fields.size(); ++i) text.append(i > 0 ? "," : "").append(fields[i]);
    text += "\n";
  }
  return text;
}

}  // namespace hvd::bench::coll
