#include "bench/session/notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "bench/measure/decomposition.h"
#include "bench/measure/median.h"
#include "engine/sim/step_simulator.h"

namespace hvd::bench {
namespace {

double milliseconds(double seconds) { return 1e3 * seconds; }

// Returns a note on the phase whose step time has the widest interval, if that interval is wider than the target.
std::string precision_note(std::span<const RunRecord> runs, const Findings& findings) {
  const RunRecord* worst = nullptr;
  for (const RunRecord& run : runs) {
    if (!run.step_seconds) continue;
    if (worst == nullptr || relative_half_width(*run.step_seconds) > relative_half_width(*worst->step_seconds))
      worst = &run;
  }
  if (worst == nullptr || findings.target_half_width <= 0) return {};
  const double half_width = relative_half_width(*worst->step_seconds);
  if (half_width <= findings.target_half_width) return {};
  return fmt::format(
      "caution: the measurement ended ({}) with an interval of +- {:.1f} % for the step time of phase {}; the target "
      "is +- {:g} %; {}",
      worst->stop_reason, 100 * half_width, name(worst->phase), 100 * findings.target_half_width,
      worst->stop_reason == "planned time" ? "a smaller --target-interval plans more rounds"
                                           : "give it more with --max-time");
}

std::string rounds_note(const Findings& findings) {
  if (findings.rounds >= kMinRoundsToBelieve) return {};
  if (findings.rounds == 1) {
    return "caution: the efficiency comes from one round of its phases, so that it has no interval; give it more with "
           "--max-time or --num-iters";
  }
  return fmt::format(
      "caution: the efficiency comes from {} rounds of its phases; from fewer than {} its interval is often too narrow",
      findings.rounds, kMinRoundsToBelieve);
}

constexpr double kBeyond = 1.005;  // tolerance for the noise of ranks that only sleep or replay

// A rank that waits for ranks on the same machine cannot be faster than a rank that runs alone. The note warns if the
// measured efficiency is nevertheless above 100 %.
std::string beyond_note(const RunRecord& full, const EfficiencyAnalysis& measured) {
  const Estimate& efficiency = measured.efficiency;
  if (full.world_size == 1 || (efficiency.has_interval() ? efficiency.low : efficiency.value) <= kBeyond) return {};
  return "caution: above 100 %, rank 0 alone was slower than it is among the others: something else ran beside it, or "
         "its clock was lower; measure again on a quiet machine, in more rounds (--num-iters)";
}

std::string unresolved_note(const EfficiencyAnalysis& measured) {
  if (!measured.efficiency.has_interval() || is_resolved(measured.efficiency)) return {};
  return "caution: the efficiency is not resolved; measure again on a quiet machine, or in more rounds (--num-iters "
         "with "
         "ten times the rounds narrows the interval to a third)";
}

const RunRecord* find(std::span<const RunRecord> runs, Phase phase) {
  const auto run = std::find_if(runs.begin(), runs.end(), [&](const RunRecord& r) { return r.phase == phase; });
  return run == runs.end() ? nullptr : &*run;
}

double shortest_wait(const RunRecord& run) {
  std::vector<std::vector<double>> waits;
  for (const RankRecord& rank : run.ranks) waits.push_back(rank.samples.exposed);
  return median(min_over_ranks(waits));
}

double seconds_of(const RunRecord& run, std::string_view component) {
  for (const DecompositionRow& row : run.decomposition) {
    if (row.component == component) return row.seconds;
  }
  return 0;
}

std::string memory_note(const RunRecord& run) {
  double worst = 0;
  const RankRecord* rank = nullptr;
  for (const RankRecord& candidate : run.ranks) {
    const auto allowed = static_cast<double>(candidate.planned_bytes + candidate.baseline_bytes);
    if (allowed <= 0) continue;
    const double ratio = static_cast<double>(candidate.peak_bytes) / allowed;
    if (rank == nullptr || ratio > worst) {
      worst = ratio;
      rank = &candidate;
    }
  }
  if (rank == nullptr) return {};
  return fmt::format(
      "memory per rank: peak {:.0f} MB, plan {:.0f} MB + program {:.0f} MB, ratio {:.2f} (rank {}, the highest)",
      static_cast<double>(rank->peak_bytes) / 1e6, static_cast<double>(rank->planned_bytes) / 1e6,
      static_cast<double>(rank->baseline_bytes) / 1e6, worst, rank->rank);
}

// Simulates rank 0 with the times of a session: backward decides when each bucket is ready, and a reduction takes as
// long as alone. If the engine has no core of its own, a reduction stops the compute. Returns nullopt if a bucket of
// `plan` was not timed, or if it is not known when gradients were ready.
std::optional<sim::StepResult> expectation(const Findings& findings, const core::BucketPlan& plan, bool spare_core) {
  if (!findings.ready || findings.bucket_seconds.empty() || findings.bucket_seconds.size() != plan.buckets.size()) {
    return std::nullopt;
  }
  sim::World world;
  world.profile.backward_end_seconds = findings.ready->backward_end_seconds;
  for (const auto& gradient : findings.ready->gradients) {
    world.profile.gradients.push_back(
        {.submit_seconds = gradient.ready_seconds, .ready_seconds = gradient.ready_seconds});
  }
  world.buckets = plan.buckets;
  world.costs.bucket_seconds = findings.bucket_seconds;
  world.costs.overlap_slowdown = spare_core ? 0 : 1;
  return sim::StepSimulator(std::move(world)).step();
}

std::string exposed_note(const RunRecord& full, const RunRecord* none, const std::optional<sim::StepResult>& expected,
                         bool spare_core) {
  const double engine = shortest_wait(full);
  std::string text =
      fmt::format("exposed communication per step: {:.2f} ms by the engine's clock", milliseconds(engine));
  if (none != nullptr) {
    const double difference = full.step_seconds->value - none->step_seconds->value;
    text += fmt::format(", {:.2f} ms as full minus none", milliseconds(difference));
  }
  if (expected) {
    text += fmt::format(", {:.2f} ms expected (queue of the buckets)", milliseconds(expected->exposed));
    if (expected->exposed > 0) text += fmt::format(", measured / expected {:.2f}", engine / expected->exposed);
  }
  if (!spare_core)
    text += "; with no core left over the engine works in the compute's time, which is 'compute slowed by overlap'";
  return text;
}

// Lists the parts of (step time of phase full - step time of phase none) besides the exposed communication.
std::string reconciliation_note(const RunRecord& full) {
  const double unexplained = seconds_of(full, "stragglers") + seconds_of(full, "residual");
  return fmt::format(
      "step time of full minus none: exposed communication, and compute slowed by overlap {:+.2f} ms, update {:+.2f} "
      "ms, unexplained {:+.2f} ms",
      milliseconds(seconds_of(full, "overlap_slowdown")), milliseconds(seconds_of(full, "update")),
      milliseconds(unexplained));
}

std::string efficiency_note(const RunRecord& full, const RunRecord& none, const RunRecord& solo,
                            const EfficiencyAnalysis& measured, const std::optional<sim::StepResult>& expected,
                            bool spare_core) {
  std::string text = "efficiency " + efficiency_text(measured.efficiency);
  if (expected && full.world_size > 1) {
    const double step = none.step_seconds->value + expected->exposed + expected->slowed;
    const double bound = solo.step_seconds->value / step;
    text += fmt::format(", expected {:.1f} %", 100 * bound);
    if (is_resolved(measured.efficiency))
      text += fmt::format(", measured / expected {:.3f}", measured.efficiency.value / bound);
    if (!spare_core) text += " (no core is left over for the engine: its reductions take compute time)";
  }
  return text;
}

std::string independent_note(const RunRecord& full, const EfficiencyAnalysis& measured) {
  const Estimate& rate = measured.against_independent;
  if (full.world_size > 1) return "against independent ranks (phase none): " + efficiency_text(rate);
  std::string text =
      fmt::format("step time {} / none, interleaved in one process: {:.4f}", full.schedule, 1 / rate.value);
  if (rate.has_interval()) text += fmt::format(" [{:.4f}, {:.4f}]", 1 / rate.high, 1 / rate.low);
  return text;
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The host notices the end of a step after a varying delay. The delay cancels out in the mean time from the end of one
// step to the end of the next.
std::string launch_note(const RunRecord& run, bool ahead) {
  std::vector<std::vector<double>> launch;
  for (const RankRecord& rank : run.ranks) launch.push_back(rank.samples.launch);
  const auto faster = [](const RankRecord& a, const RankRecord& b) {
    return mean(a.samples.host) < mean(b.samples.host);
  };
  const RankSamples& slowest = std::max_element(run.ranks.begin(), run.ranks.end(), faster)->samples;
  const double step = run.step_seconds->value, by_launch = median(max_over_ranks(launch));
  return fmt::format(
      "step time: {:.3f} ms by the GPU's events (images/s come from these), {:.3f} ms on average from end to end by "
      "the host's clock ({:+.1f} % over the mean by events), waits and loading included; launching it ({:.3f} ms, "
      "{:.1f} % of the step) {}",
      milliseconds(step), milliseconds(mean(slowest.host)), 100 * (mean(slowest.host) / mean(slowest.step) - 1),
      milliseconds(by_launch), 100 * by_launch / step,
      ahead ? "overlaps with the previous step" : "is part of that time");
}

constexpr std::string_view kFirstSteps = "first_steps";
/// The explanations in their order: the name of the fact after "measurement.".
constexpr std::array<std::string_view, 10> kExplanations{
    "warm_up", "memory", "exposed_communication", kFirstSteps, "full_minus_none", "efficiency", "independent", "bound",
    "launch",  "graph"};

void add(RunRecord& run, const char* explanation, std::string text) {
  if (text.empty()) return;
  run.provenance.insert_or_assign(std::string("measurement.") + explanation, ProvenanceFact{std::move(text), false});
}

}  // namespace

std::vector<std::string> closing_cautions(std::span<const RunRecord> runs, const Findings& findings,
                                          const SessionFacts& facts) {
  std::vector<std::string> cautions{findings.warmed_up ? "" : "caution: " + findings.warm_up,
                                    precision_note(runs, findings)};
  const RunRecord* full = find(runs, Phase::kFull);
  if (findings.efficiency && full != nullptr && full->step_seconds) {
    cautions.push_back(rounds_note(findings));
    cautions.push_back(unresolved_note(*findings.efficiency));
    cautions.push_back(beyond_note(*full, *findings.efficiency));
  }
  if (facts.traced) cautions.emplace_back("caution: traced or profiled: not comparable with runs that are not");
  std::erase(cautions, std::string());
  return cautions;
}

void explain(std::span<RunRecord> runs, const Findings& findings, const core::BucketPlan& plan,
             const SessionFacts& facts) {
  RunRecord& main = runs.back();
  add(main, "memory", memory_note(main));
  const RunRecord* full = find(runs, Phase::kFull);
  const RunRecord* none = find(runs, Phase::kNone);
  const RunRecord* solo = find(runs, Phase::kSolo);
  if (full == nullptr || !full->step_seconds) return;
  const bool spare_core = facts.spare_core || full->device == "replay";  // a replay sleeps and needs no core
  const std::optional<sim::StepResult> expected = expectation(findings, plan, spare_core);
  if (full->world_size > 1) add(main, "exposed_communication", exposed_note(*full, none, expected, spare_core));
  if (!findings.efficiency || none == nullptr || solo == nullptr) return;
  if (full->world_size > 1) add(main, "full_minus_none", reconciliation_note(*full));
  add(main, "efficiency", efficiency_note(*full, *none, *solo, *findings.efficiency, expected, spare_core));
  add(main, "independent", independent_note(*full, *findings.efficiency));
}

void explain_gpu(RunRecord& run, const TrainingGpu& gpu) {
  if (!run.step_seconds) return;
  if (const auto& bound = gpu.bound()) add(run, "bound", bound_line(run, *bound));
  add(run, "launch", launch_note(run, gpu.steps_ahead() > 0));
  if (const auto graph = gpu.graph_shape()) add(run, "graph", "a step is " + graph->text());
}

std::vector<std::string> explanations(const RunRecord& run) {
  std::vector<std::string> lines;
  for (const std::string_view name : kExplanations) {
    const auto fact = run.provenance.find(std::string("measurement.").append(name));
    if (fact == run.provenance.end()) continue;
    lines.push_back((name == kFirstSteps ? "first step after a change of phase: " : "") + fact->second.value);
  }
  return lines;
}

}  // namespace hvd::bench
