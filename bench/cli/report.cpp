#include "bench/cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ostream>
#include <string_view>

#include "bench/cli/console.h"
#include "bench/measure/decomposition.h"
#include "bench/measure/median.h"
#include "bench/measure/units.h"
#include "bench/session/notes.h"
#include "bench/store/build_info.h"
#include "engine/base/error.h"

namespace hvd::bench {
namespace {

const char* phase_name(const RunRecord& run) {
  const bool alone = run.allocation_size == 1;
  switch (run.phase) {
    case Phase::kFull: return alone ? "one rank" : "all ranks, reducing";
    case Phase::kNone: return alone ? "one rank, engine off" : "all ranks, not reducing";
    case Phase::kSolo: return alone ? "one rank, baseline" : "one rank alone";
  }
  return "";
}

std::string count_of(std::int64_t n, const char* noun) { return fmt::format("{} {}{}", n, noun, n == 1 ? "" : "s"); }

std::string plan_of_measurement(const Options& options) {
  if (options.validate) {
    return fmt::format("  validating {} of every rank, after some of warm-up\n",
                       count_of(options.validate->steps, "step"));
  }
  const std::string length = options.num_iters
                                 ? fmt::format("{} of {}", count_of(*options.num_iters, "sample"),
                                               count_of(options.num_batches_per_iter, "step"))
                                 : fmt::format("until the median is known to +- {:g} %", 100 * options.target_interval);
  const std::string warm_up = options.num_warmup_batches ? count_of(*options.num_warmup_batches, "step") + " of warm-up"
                                                         : "a warm-up until steady";
  return fmt::format("  measuring  {}, after {}, at most {}\n", length, warm_up,
                     duration_text(static_cast<double>(options.max_time.count())));
}

std::string interval_text(const Estimate& estimate) {
  return estimate.has_interval() ? fmt::format("{:.2f} .. {:.2f}", estimate.low, estimate.high) : "-";
}

std::string phase_table(const SessionResult& result) {
  bool few = false;
  std::string text = fmt::format("\n{:<24} {:>5} {:>10} {:>21} {:>10} {:>10} {:>6}\n", "", "ranks",
                                 result.runs.back().unit + "/s", "95 % interval", "per rank", "step (ms)", "steps");
  for (const RunRecord& run : result.runs) {
    if (!run.images_per_second || !run.step_seconds) {
      text += fmt::format("{:<24} {:>5}   not measured\n", phase_name(run), run.world_size);
      continue;
    }
    const Estimate& rate = *run.images_per_second;
    const bool weak = run.measured_steps < static_cast<std::int64_t>(kMinToBelieve) * run.batches_per_iter;
    few = few || weak;
    text +=
        fmt::format("{:<24} {:>5} {:>10.2f} {:>21} {:>10.2f} {:>10.2f} {:>6}{}{}\n", phase_name(run), run.world_size,
                    rate.value, interval_text(rate), rate.value / run.world_size, 1e3 * run.step_seconds->value,
                    run.measured_steps, weak ? " *" : "", run.status == RunStatus::kIncomplete ? "  (incomplete)" : "");
  }
  if (few) {
    text += fmt::format("* fewer than {} samples: too few for an interval to be relied on; measure longer ({})\n",
                        kMinToBelieve, result.runs.front().device == "torch" ? "seconds=" : "--max-time");
  }
  return text;
}

std::string_view component_title(std::string_view component) {
  for (const auto& [name, title] : kComponents) {
    if (component == name) return title;
  }
  return component;
}

/// Shows each row's share of the step as a bar of at most 40 columns. A row whose interval contains 0 has no bar.
std::string decomposition_table(const RunRecord& run) {
  if (run.decomposition.empty()) return {};
  constexpr double kColumns = 40;
  std::string text = "\nwhere a step goes\n";
  double sum = 0;
  bool unresolved = false;
  for (const DecompositionRow& row : run.decomposition) {
    sum += row.fraction;
    if (row.component == "efficiency" && !is_resolved(estimate_of(row))) {
      text += fmt::format("  {:<26} {}\n", component_title(row.component), efficiency_text(estimate_of(row)));
      continue;
    }
    unresolved = unresolved || row.unresolved();
    const std::string interval =
        row.low && row.high ? fmt::format("{:>6.1f} ..{:>6.1f} %", 100 * *row.low, 100 * *row.high) : std::string();
    const auto columns = static_cast<std::size_t>(std::lround(kColumns * std::clamp(std::abs(row.fraction), 0.0, 1.0)));
    const std::string bar = row.unresolved() ? "not resolved" : std::string(columns, row.fraction < 0 ? '-' : '#');
    text += fmt::format("  {:<26} {:>6.1f} % {:>18} {:>9.2f} ms  {}\n", component_title(row.component),
                        100 * row.fraction, interval, 1e3 * row.seconds, bar);
  }
  text += fmt::format("  {:<26} {:>6.1f} %\n", "sum", 100 * sum);
  if (unresolved) text += "  not resolved: the interval holds 0, so this run does not tell whether the part is there\n";
  return text;
}

/// Names the part that loses most, of those that are resolved, and where to find a remedy.
std::string largest_loss(const RunRecord& run, const StoredIn& stored) {
  if (run.decomposition.empty()) return {};
  const DecompositionRow* most = nullptr;
  for (const DecompositionRow& row : run.decomposition) {
    if (row.component == "efficiency" || !row.low || *row.low <= 0) continue;
    if (most == nullptr || row.fraction > most->fraction) most = &row;
  }
  if (most == nullptr) {
    return "\nloses most  not resolved: no part's interval lies above 0; measure longer, or on a quieter machine\n";
  }
  const Estimate lost = estimate_of(*most);
  const bool in_file = !stored.file.empty() && stored.problem.empty();
  return fmt::format("\nloses most  {}, {:.1f} % [{:.1f}, {:.1f}]; what to try: {}docs/report.md#what-to-try-next\n",
                     component_title(most->component), 100 * lost.value, 100 * lost.low, 100 * lost.high,
                     in_file ? fmt::format("scripts/report {}, or ", printable(stored.file)) : "");
}

const DecompositionRow* row_of(const RunRecord& run, std::string_view component) {
  const auto row = std::find_if(run.decomposition.begin(), run.decomposition.end(),
                                [&](const DecompositionRow& part) { return part.component == component; });
  return row == run.decomposition.end() ? nullptr : &*row;
}

/// Compares images/s with perfect scaling: the world size times the rate of one rank that trains alone in the same
/// allocation.
std::string bound_line(const SessionResult& result, const RunRecord& full) {
  const auto solo = std::find_if(result.runs.begin(), result.runs.end(), [](const RunRecord& run) {
    return run.phase == Phase::kSolo && run.images_per_second;
  });
  if (solo == result.runs.end() || !full.images_per_second) return {};
  const DecompositionRow* const row = row_of(full, "efficiency");
  const bool by_rounds = row != nullptr;
  // Where steps wait for their batch, the rank alone is one that never waits.
  const bool fed = by_rounds && row_of(full, "input") != nullptr && row->seconds > 0;
  const double alone = fed ? static_cast<double>(full.batch_size) / row->seconds : solo->images_per_second->value;
  const double bound = full.world_size * alone;
  if (!(bound > 0)) return {};
  const Estimate efficiency = by_rounds ? estimate_of(*row) : Estimate{0, kNoInterval, kNoInterval};
  return fmt::format("\nscaling     {:.2f} {}/s of {:.2f} ({} x one rank alone{}): efficiency {}{}\n",
                     full.images_per_second->value, full.unit, bound, full.world_size, fed ? ", always fed" : "",
                     efficiency_text(efficiency), is_resolved(efficiency) ? ", round by round" : "");
}

std::string compute_line(const RunRecord& run) {
  if (!run.images_per_second || !(run.flops_per_image > 0)) return {};
  const double rate = run.images_per_second->value * run.flops_per_image;
  if (run.device == "cuda") {
    return fmt::format("arithmetic  {:.2f} TFLOP/s, {:.2f} per rank\n", 1e-12 * rate, 1e-12 * rate / run.world_size);
  }
  return fmt::format("arithmetic  {:.1f} GFLOP/s, {:.1f} per compute thread\n", 1e-9 * rate,
                     1e-9 * rate / (run.world_size * std::max(run.threads, 1)));
}

std::string notes_and_store(const SessionResult& result, const StoredIn& stored, bool verbose) {
  std::vector<std::string> notes = verbose ? explanations(*headline(result)) : std::vector<std::string>();
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  std::string text;
  for (const std::string& note : notes) text += fmt::format("note        {}\n", printable(note));
  if (!result.operations.empty()) text += fmt::format("\noperations on rank 0, per step\n{}\n", result.operations);
  if (!stored.problem.empty()) {
    text += fmt::format("not stored  {}\n", printable(stored.problem));
  } else if (!stored.file.empty()) {
    text += fmt::format("stored      {}\n", printable(stored.file));
    for (const RunRecord& run : result.runs) text += fmt::format("  run       {}  {}\n", run.uuid, phase_name(run));
  }
  return text;
}

constexpr std::size_t kShownRanks = 16;  // `hvdb ranks` has the same limit

std::string slower_text(const ValidatedRank& rank) {
  if (!rank.time) return "-";
  return fmt::format("{:.1f} [{:.1f}, {:.1f}]", 100 * rank.time->slower, 100 * rank.time->low, 100 * rank.time->high);
}

/// Returns the ranks that the table shows: the slowest, then those whose bits differ from other ranks' bits.
std::vector<std::size_t> shown_ranks(const Validation& validation) {
  std::vector<std::size_t> order(validation.ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto slower = [&](std::size_t r) { return validation.ranks[r].time ? validation.ranks[r].time->slower : 0.0; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return slower(a) > slower(b); });
  order.resize(std::min(order.size(), kShownRanks));
  for (const ValidationFinding& finding : validation.findings) {
    if (finding.kind != ValidationFinding::Kind::kDiffers) continue;
    for (const int rank : finding.ranks) {
      const auto r = static_cast<std::size_t>(rank);
      if (std::find(order.begin(), order.end(), r) == order.end()) order.push_back(r);
    }
  }
  return order;
}

std::string all_is_good(const Validation& validation) {
  std::string text = fmt::format("equal bits on equal ranks in {} steps, and no rank is slow", validation.steps);
  double reach = 0;
  for (const ValidatedRank& rank : validation.ranks) reach = std::max(reach, rank.time ? rank.time->high : 0);
  if (reach < validation.threshold) return text;
  return text + fmt::format(" as far as can be told: intervals reach up to {:.1f} %", 100 * reach);
}

std::string row(std::size_t rank, const ValidatedRank& validated) {
  return fmt::format("{:>5} {:>5} {:>10.2f} {:>22}  {:<16}  {}{}{}\n", rank, validated.group, 1e3 * validated.seconds,
                     slower_text(validated), validated.weights, printable(validated.host),
                     validated.gpu.empty() ? "" : ", ", printable(validated.gpu));
}

}  // namespace

std::string plan_text(const Options& options, const Setup& setup, const std::string& partial) {
  const models::ModelSpec& model = setup.model;
  std::string work = fmt::format("batch {} per rank", model.batch_size);
  if (setup.unit() != models::kImages) work = fmt::format("{} {} a step per rank", model.batch_size, setup.unit());
  if (options.fit) work += " or fewer (--fit)";
  if (model.image_size != 0) work += fmt::format(", images {} x {}", model.image_size, model.image_size);
  std::string text = fmt::format(
      "{}\n  {:<10} {}{}, {}, {} on {}{}\n", version_text(), setup.replay ? "replaying" : "training",
      printable(model.model), model.auxiliary_head ? " with its auxiliary head" : "", work, setup.compute_name(),
      setup.device_name(), setup.replay && setup.device == Device::kCuda ? ", gradients on GPUs" : "");
  text += plan_of_measurement(options);
  text += fmt::format("  stored in  {}\n", options.db_file.empty() ? "nothing (--no-db)" : printable(options.db_file));
  if (!partial.empty()) text += fmt::format("  until then {}\n", printable(partial));
  return text;
}

namespace {

/// Returns "fp32", "bf16", or "fp32, bf16 between nodes".
std::string gradient_type_text(const RunRecord& run) {
  if (on_gpus(run) || run.allreduce_type == "fp32") return run.allreduce_type;
  return fmt::format("fp32, {} between nodes{}", run.allreduce_type, run.nodes > 1 ? "" : ", of which there is one");
}

}  // namespace

std::string world_text(const Options& options, const RunRecord& run) {
  const std::string text =
      fmt::format("  on         {}, {}, {} per rank\n  averaging  ", count_of(run.allocation_size, "rank"),
                  count_of(run.nodes, "host"), on_gpus(run) ? "one GPU" : count_of(run.threads, "compute thread"));
  if (options.validate) {
    const std::string& turns = run.provenance.at("validate.turns").value;
    return text + "nothing: every rank trains the same batches, " +
           (turns == "1" ? "all at once\n" : "in " + turns + " turns, because ranks share cores\n");
  }
  if (run.allocation_size <= 1) return text + "nothing (one rank)\n";
  if (options.engine.schedule == Schedule::kNone) return text + "nothing (--comm none)\n";
  return fmt::format("{}{} schedule over {} ({}), {:.1f} M parameters, {} of gradients in {}\n", text,
                     name(options.engine.schedule), run.comm, run.data_plane,
                     static_cast<double>(run.parameters) * 1e-6, bytes_text(static_cast<double>(run.gradient_bytes)),
                     gradient_type_text(run));
}

std::string progress_text(const Progress& progress) {
  std::string text = progress.stage;
  if (!progress.phase.empty()) text += " " + progress.phase;
  if (progress.steps > 0) text += fmt::format(": step {}", progress.steps);
  if (progress.images_per_second > 0) text += fmt::format(", {:.2f} {}/s", progress.images_per_second, progress.unit);
  if (progress.interval > 0) text += fmt::format(" +- {:.1f} %", 100 * progress.interval);
  if (progress.seconds_left >= 0) text += fmt::format(", about {} left", duration_text(progress.seconds_left));
  return text;
}

std::string closing_text(const SessionResult& result, const StoredIn& stored, bool verbose) {
  const RunRecord* run = headline(result);
  if (run == nullptr) return {};
  if (result.validation) return validation_text(*result.validation) + notes_and_store(result, stored, verbose);
  std::string text = phase_table(result) + bound_line(result, *run) + decomposition_table(*run);
  text += largest_loss(*run, stored) + "\n";
  text += compute_line(*run);
  if (run->final_loss) text += fmt::format("loss        {:.4f} at the end\n", *run->final_loss);
  text += fmt::format("checks      {}\n", run->checks.empty() ? "none" : run->checks);
  if (!run->stop_reason.empty()) text += fmt::format("stopped     {}\n", run->stop_reason);
  return text + notes_and_store(result, stored, verbose);
}

const RunRecord* headline(const SessionResult& result) { return result.runs.empty() ? nullptr : &result.runs.back(); }

std::string total_line(const RunRecord& run) {
  return fmt::format("total {}/sec: {:.2f}", run.unit, run.images_per_second->value);
}

std::string validation_text(const Validation& validation) {
  std::string text = fmt::format("\n{:>5} {:>5} {:>10} {:>22}  {:<16}  {}\n", "rank", "group", "ms", "slower % [99 %]",
                                 "weights at the end", "host");
  const std::vector<std::size_t> shown = shown_ranks(validation);
  for (const std::size_t r : shown) text += row(r, validation.ranks[r]);
  if (const std::size_t more = validation.ranks.size() - shown.size(); more > 0) {
    text += fmt::format("  and {} more that are faster\n", more);
  }
  text += "\n";
  for (std::size_t g = 0; g < validation.groups.size(); ++g) {
    const auto ranks = std::count_if(validation.ranks.begin(), validation.ranks.end(),
                                     [g](const ValidatedRank& rank) { return rank.group == g; });
    text += fmt::format("group {}     {} equal ranks: {}\n", g, ranks, printable(validation.groups[g]));
  }
  for (const ValidationFinding& finding : validation.findings) {
    text += fmt::format("FOUND       {}\n", printable(finding.text));
  }
  if (validation.findings.empty()) text += fmt::format("good        {}\n", all_is_good(validation));
  for (const std::string& note : validation.notes) text += fmt::format("note        {}\n", printable(note));
  return text;
}

int print_stored_labels(const StoredLabels& labels, std::ostream& out) {
  for (const std::string& value : labels.values) out << printable(value) << '\n';
  if (!labels.note.empty()) say_warning(labels.note);
  for (const std::string& problem : labels.problems) say_error(problem + "; what it holds is not listed");
  return labels.problems.empty() ? 0 : exit_code(Errc::kIo);
}

}  // namespace hvd::bench
