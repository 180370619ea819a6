#include "bench/session/session_leader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "bench/hardware/gpu_surroundings.h"
#include "bench/measure/median.h"
#include "bench/measure/resample.h"
#include "bench/measure/stopping_rule.h"
#include "bench/session/gradient_check.h"
#include "bench/session/records.h"
#include "bench/session/work_size.h"
#include "bench/train/checksum.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/runtime/device_watch.h"

namespace hvd::bench {
namespace {

using namespace std::chrono_literals;

constexpr double kSegmentSeconds = 0.5;      // time between two directives; a signal is noticed within this time
constexpr std::size_t kRecordedSteps = 64;   // gradient-ready times are medians over this many steps
constexpr std::int64_t kRecordedApart = 10;  // number of recorded steps if recorded steps must not be measured
// Number of unmeasured steps after recording: the first launch of each of the kStepsInFlight graphs, and one more step.
constexpr std::int64_t kSettle = kStepsInFlight + 1;
constexpr double kWarmUpShare = 0.2;  // largest fraction of the session's time for the warm-up
constexpr auto kProgressEvery = 250ms;

StoppingRule stopping_rule(const Options& options) {
  StoppingRule rule;
  if (options.num_iters) rule.exact_samples = static_cast<std::size_t>(std::max(1, *options.num_iters));
  rule.target_half_width = options.target_interval;
  rule.maximum_seconds = std::chrono::duration<double>(options.max_time).count();
  return rule;
}

double slowest_step(const std::vector<Answer>& answers) {
  std::vector<std::vector<double>> ranks;
  for (const Answer& answer : answers) {
    if (!answer.samples.step.empty()) ranks.push_back(answer.samples.step);
  }
  return ranks.empty() ? 0 : median(max_over_ranks(ranks));
}

}  // namespace

SessionLeader::SessionLeader(const SessionParts& session)
    : session_(session),
      rule_(stopping_rule(session.options)),
      runs_(session),
      rounds_(session.setup.device == Device::kCuda, rule_.exact_samples, session.setup.seed,
              session.options.num_batches_per_iter),
      others_(session.trainer.engine()) {
  if (session.setup.efficiency) rule_.minimum_rounds = RoundPlan::minimum_rounds();
}

double SessionLeader::elapsed() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

void SessionLeader::run() {
  session_.rank_group.run([this] { conduct(); }, [this](const Error& error) { runs_.give_up(error); });
}

void SessionLeader::conduct() {
  begin_ = Clock::now();
  tell_progress("warm-up", runs_.main_run(), 0, -1);  // the first call that can report a problem of the store
  // A dynamic loss scale starts high on purpose, so that early steps may overflow.
  const bool scale_settles = session_.setup.device == Device::kCuda && session_.setup.compute == DataType::kF16 &&
                             session_.setup.gpu.loss_scale == 0;
  const bool check = session_.options.check && session_.setup.reduces();
  if (check && !scale_settles) check_reduction();
  warm_up();
  if (runs_.diverged()) {
    start_runs();  // so that the store has a run that says why nothing was measured
    runs_.require_finite_loss();
  }
  if (check && scale_settles) check_reduction();
  if (session_.setup.reduces() && session_.trainer.engine().size() > 1) time_buckets();
  start_runs();
  if (session_.setup.efficiency) plan_rounds();
  const std::string reason = session_.setup.efficiency ? measure_rounds() : measure_one_phase();
  check_at_the_end();
  complete(reason);
}

void SessionLeader::check_reduction() {
  const std::vector<Answer> answers = session_.rank_group.execute({.task = Task::kCheckReduction});
  if (!answers[0].problem.empty()) throw Error(Errc::kCheckFailed, answers[0].problem);
  checks_ = answers[0].note;
  session_.rank_group.execute({.task = Task::kRelease});
}

void SessionLeader::warm_up() {
  PhaseRun& phase_run = runs_.main_run();
  SteadyOptions steady;
  steady.maximum_seconds = kWarmUpShare * rule_.maximum_seconds;
  SteadyState state(steady);
  const std::optional<int> exact = session_.options.num_warmup_batches;
  const auto settled = [&] { return warm_up_steps_ > static_cast<std::int64_t>(session_.trainer.settling_steps()); };
  const auto missing = [&] { return exact && warm_up_steps_ < *exact; };
  while (!runs_.diverged() && (exact ? missing() && elapsed() < rule_.maximum_seconds : !state.finished())) {
    std::int64_t steps = segment_steps(phase_run.step_seconds);
    if (exact) steps = std::min(steps, *exact - warm_up_steps_);
    const std::vector<Answer> answers =
        session_.rank_group.execute({.task = Task::kSteps, .phase = session_.setup.main_phase(), .steps = steps});
    std::vector<std::vector<double>> ranks(answers.size());
    for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = answers[r].samples.step;
    for (const double step : max_over_ranks(ranks)) state.add(step);
    phase_run.step_seconds = slowest_step(answers);
    warm_up_steps_ += steps;
    runs_.follow_loss(phase_run, answers);
    tell_progress("warm-up", phase_run, 0, -1);
    if (settled()) require_rounds(phase_run.step_seconds, true);
  }
  require_rounds(phase_run.step_seconds, settled());
  last_warm_up_steps_.assign(state.window().begin(), state.window().end());
  findings_.warmed_up = exact ? !missing() : state.steady();
  if (runs_.diverged()) {
    findings_.warm_up = fmt::format("warm-up: {} steps, then the loss was not finite", warm_up_steps_);
  } else if (missing()) {
    findings_.warm_up = fmt::format("warm-up: {} of {} steps, then --max-time was over", warm_up_steps_, *exact);
  } else {
    findings_.warm_up = exact ? fmt::format("{} warm-up steps as asked for", *exact) : "warm-up: " + state.text();
  }
}

void SessionLeader::time_buckets() {
  for (const Answer& answer : session_.rank_group.execute({.task = Task::kTimeBuckets})) {
    findings_.bucket_seconds.resize(answer.bucket_seconds.size(), 0);
    for (std::size_t b = 0; b < answer.bucket_seconds.size(); ++b) {
      findings_.bucket_seconds[b] = std::max(findings_.bucket_seconds[b], answer.bucket_seconds[b]);
    }
  }
}

void SessionLeader::judge_bandwidth(RunRecord& run) const {
  if (findings_.bucket_seconds.empty() || session_.setup.device != Device::kCuda) return;
  const core::BucketPlan& plan = session_.trainer.engine().plan();
  std::vector<double> bytes;
  for (const core::Bucket& bucket : plan.buckets)
    bytes.push_back(static_cast<double>(bucket.count * size_of(plan.dtype)));
  const int ranks = session_.trainer.engine().size();
  const double bus = bus_gigabytes_per_second(ranks, bytes, findings_.bucket_seconds);
  if (bus > 0) run.provenance["comm.bus_gigabytes_per_second"] = {json_number(bus), false};
  add_caution(run.provenance, "slow_reductions",
              bandwidth_caution(session_.facts.gpus.link, ranks, bytes, findings_.bucket_seconds));
}

void SessionLeader::start_runs() {
  for (PhaseRun& phase_run : runs_.phases()) {
    RunRecord& run = phase_run.record;
    run = begin_record(session_, phase_run.phase);
    run.checks = phase_run.phase == Phase::kFull ? checks_ : "";
    run.warmup_steps = warm_up_steps_;
    run.provenance["measurement.warm_up"] = {findings_.warm_up, false};
    judge_bandwidth(run);
    phase_run.recorder = session_.trainer.make_recorder(run.uuid);
  }
  runs_.begin();
  for (PhaseRun& phase_run : runs_.phases()) {
    if (session_.trainer.recording_disturbs()) record_apart(phase_run);
  }
}

void SessionLeader::record_apart(PhaseRun& phase_run) {
  const auto steps = [&](std::int64_t count) {
    session_.rank_group.execute(
        {.task = Task::kSteps, .phase = phase_run.phase, .steps = count, .discard = count, .new_graphs = true});
  };
  session_.trainer.record_into(phase_run.recorder.get());
  steps(kRecordedApart);
  session_.trainer.record_into(nullptr);
  steps(kSettle);
  phase_run.record.warmup_steps += kRecordedApart + kSettle;
}

std::int64_t SessionLeader::segment_steps(double step_seconds) const {
  if (step_seconds <= 0) return 1;
  return std::clamp<std::int64_t>(std::llround(kSegmentSeconds / step_seconds), 1, 1000);
}

void SessionLeader::train(PhaseRun& phase_run, std::int64_t steps, std::int64_t discard) {
  while (steps > 0) {
    const std::int64_t now = std::min(steps, discard > 0 ? discard : segment_steps(phase_run.step_seconds));
    const bool record =
        phase_run.log.samples() < kRecordedSteps && discard == 0 && !session_.trainer.recording_disturbs();
    session_.trainer.record_into(record ? phase_run.recorder.get() : nullptr);
    const bool profile = session_.setup.profile && discard == 0;
    if (profile) phase_run.operations.begin(session_.trainer.train_step().profile(), session_.trainer.steps_done());
    const std::uint64_t cycles_before = session_.trainer.engine().cycle_stats().cycles;
    const std::vector<Answer> answers =
        session_.rank_group.execute({.task = Task::kSteps, .phase = phase_run.phase, .steps = now, .discard = discard});
    if (discard == 0) {
      phase_run.steps += static_cast<std::uint64_t>(now);
      phase_run.cycles += session_.trainer.engine().cycle_stats().cycles - cycles_before;
    }
    session_.trainer.record_into(nullptr);
    if (profile) phase_run.operations.end(session_.trainer.train_step().profile(), session_.trainer.steps_done());
    phase_run.log.add(answers);
    runs_.follow_loss(phase_run, answers);
    if (const double step = slowest_step(answers); step > 0) phase_run.step_seconds = step;
    if (phase_run.log.samples() == 0) require_time_for_samples(phase_run.step_seconds);
    steps -= now;
    discard = 0;
  }
}

// The time cap is checked only between samples or rounds, so the first sample or round must fit into the time cap.
void SessionLeader::require_time_for_samples(double step_seconds) const {
  const std::int64_t per_sample = session_.options.num_batches_per_iter;
  if (per_sample == 1) return;
  const std::int64_t samples = session_.setup.efficiency ? 3 * rounds_.shortest_visit() : 1;
  const double seconds = static_cast<double>(samples * per_sample) * step_seconds;
  if (seconds <= rule_.maximum_seconds) return;
  throw Error(Errc::kInconclusive,
              fmt::format("the first {} sample(s) of {} steps would take about {} s, longer than --max-time {}; lower "
                          "--num-batches-per-iter or raise --max-time",
                          samples, per_sample, std::llround(seconds), session_.options.max_time.count()));
}

void SessionLeader::tell(const std::string& line) const {
  if (session_.observer.tell) session_.observer.tell(line);
}

void SessionLeader::require_rounds(double step_seconds, bool settled) {
  if (room_checked_ || !session_.setup.efficiency || rule_.exact_samples || !(step_seconds > 0)) return;
  room_checked_ = true;
  const ShortestSession shortest = rounds_.shortest_session(session_.options.num_warmup_batches);
  const double cap = rule_.maximum_seconds;
  if (step_seconds <= shortest.longest_step(cap)) return;
  const std::string advice = room_advice(session_.setup, shortest, step_seconds, cap, session_.options.fit);
  if (settled && shortest.rounds(step_seconds, cap - elapsed()) < kMinForInterval) {
    throw Error(Errc::kInconclusive, "too few rounds would fit for an interval: " + advice);
  }
  tell("  caution    " + advice);
}

void SessionLeader::plan_rounds() {
  PhaseRun& full = runs_.main_run();
  std::vector<double> steps = last_warm_up_steps_;
  // The first step of all takes longer. It is among the last ones only if the warm-up was very short.
  if (steps.size() > 1 && steps.size() == static_cast<std::size_t>(warm_up_steps_)) steps.erase(steps.begin());
  if (steps.empty()) return;  // without a warm-up nothing is known yet
  full.step_seconds = median(steps);
  const double half_width = relative_half_width(median_interval(steps, {.seed = session_.setup.seed}));
  const double wider = half_width / rule_.target_half_width;
  const auto per_sample = static_cast<double>(session_.options.num_batches_per_iter);
  const double needed = static_cast<double>(steps.size()) / per_sample * wider * wider;
  const RoundPlan::Times times{.sample_seconds = full.step_seconds * per_sample,
                               .round_seconds = round_step_seconds() * per_sample,
                               .seconds_left = rule_.maximum_seconds - elapsed()};
  const SessionPlan plan = rounds_.plan(times, needed);
  tell("  plan       " + plan_line(plan, full.step_seconds, session_.options.num_batches_per_iter));
  promise(rule_, plan, elapsed());
}

std::string SessionLeader::measure_one_phase() {
  PhaseRun& phase_run = runs_.phases().front();
  const std::int64_t per_sample = session_.options.num_batches_per_iter;
  for (;;) {
    std::int64_t steps = segment_steps(phase_run.step_seconds);
    if (rule_.exact_samples) {
      const auto missing = static_cast<std::int64_t>(*rule_.exact_samples - phase_run.log.samples()) * per_sample;
      steps = std::min(steps, missing);
    }
    // If samples are shorter than a segment, train a whole number of samples; else train part of a sample.
    if (steps > per_sample) steps -= steps % per_sample;
    train(phase_run, steps, 0);
    const MeasurementState state = judge(phase_run.step_seconds * static_cast<double>(per_sample));
    if (const auto reason = reason_to_stop(rule_, state)) return *reason;
    tell_progress("measuring", phase_run, state.half_width,
                  std::min(rule_.maximum_seconds - state.elapsed_seconds,
                           samples_missing(rule_, state) * static_cast<double>(per_sample) * phase_run.step_seconds));
    runs_.save_if_due();
  }
}

std::string SessionLeader::measure_rounds() {
  const std::int64_t per_sample = session_.options.num_batches_per_iter;
  for (;;) {
    const std::int64_t samples = next_visit();
    measure_round(samples, rounds_.rounds());
    rounds_.end_of_round(samples, logs());
    const std::int64_t steps = next_visit() * per_sample + rounds_.unmeasured_steps();
    const MeasurementState state = judge(round_step_seconds() * static_cast<double>(steps));
    if (const auto reason = reason_to_stop(rule_, state)) return *reason;
    const double for_interval = samples_missing(rule_, state) * round_step_seconds() * static_cast<double>(per_sample);
    const std::size_t rounds = std::max(rule_.minimum_rounds, state.rounds) - state.rounds;
    const double least =
        std::max(static_cast<double>(rounds) * state.next_seconds, rule_.earliest_seconds - state.elapsed_seconds);
    tell_progress("measuring", runs_.main_run(), state.half_width,
                  std::min(std::min(rule_.maximum_seconds, rule_.planned_seconds) - state.elapsed_seconds,
                           std::max(for_interval, least)));
  }
}

RoundPlan::Logs SessionLeader::logs() {
  return {&runs_.phases()[0].log, &runs_.phases()[1].log, &runs_.phases()[2].log};
}

double SessionLeader::round_step_seconds() const {
  const double full = runs_.main_run().step_seconds;  // known since the warm-up
  double seconds = 0;
  for (const PhaseRun& phase_run : runs_.phases())
    seconds += phase_run.step_seconds > 0 ? phase_run.step_seconds : full;
  return seconds;
}

std::int64_t SessionLeader::next_visit() {
  const auto per_sample = static_cast<double>(session_.options.num_batches_per_iter);
  return rounds_.next_visit({.sample_seconds = runs_.main_run().step_seconds * per_sample,
                             .round_seconds = round_step_seconds() * per_sample,
                             .seconds_left = std::min(rule_.maximum_seconds, rule_.latest_seconds) - elapsed(),
                             .samples = runs_.main_run().log.samples()});
}

void SessionLeader::measure_round(std::int64_t samples_per_visit, std::uint64_t number) {
  std::vector<std::size_t> order(runs_.phases().size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  Draws draws(session_.setup.seed, 0x726f756e64ULL + number);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draws.below(i)]);

  for (const std::size_t index : order) visit(runs_.phases()[index], samples_per_visit);
}

void SessionLeader::visit(PhaseRun& phase_run, std::int64_t samples) {
  const std::int64_t index = &phase_run - runs_.phases().data();
  const std::int64_t discard = index == last_phase_ ? 0 : rounds_.unmeasured_steps();
  phase_run.record.warmup_steps += discard;
  last_phase_ = index;
  train(phase_run, samples * session_.options.num_batches_per_iter + discard, discard);
  phase_run.log.end_of_visit();
  tell_progress("measuring", phase_run, phase_run.half_width, -1);
  runs_.save_if_due();
}

MeasurementState SessionLeader::judge(double next_seconds) {
  MeasurementState state;
  state.rounds = rounds_.rounds();
  state.samples = runs_.phases().front().log.samples();
  for (PhaseRun& phase_run : runs_.phases()) {
    phase_run.judge(session_.setup.seed);
    state.half_width = std::max(state.half_width, phase_run.half_width);
    state.samples = std::min(state.samples, phase_run.log.samples());
  }
  state.elapsed_seconds = elapsed();
  state.next_seconds = next_seconds;
  return state;
}

void SessionLeader::check_at_the_end() {
  const std::vector<Answer> memory = session_.rank_group.execute({.task = Task::kMeasureMemory});
  const std::optional<OtherUse> others = others_.use(memory);
  for (PhaseRun& phase_run : runs_.phases()) fill_use(phase_run.record, memory, others);
  if (!session_.setup.reduces()) return;

  std::vector<std::vector<std::uint64_t>> gradients;
  std::vector<std::vector<std::uint64_t>> parameters;
  for (Answer& answer : session_.rank_group.execute({.task = Task::kFinalCheck})) {
    gradients.push_back(std::move(answer.gradient_checksums));
    parameters.push_back(std::move(answer.parameter_checksums));
  }
  const std::span<const models::ArenaSlot> slots = session_.trainer.train_step().slots();
  if (const std::string differ = checksum_difference(gradients, slots); !differ.empty()) {
    throw Error(Errc::kCheckFailed, "reduced gradients differ between ranks: " + differ);
  }
  if (const std::string differ = checksum_difference(parameters, slots); !differ.empty()) {
    throw Error(Errc::kCheckFailed, "weights differ between ranks after training: " + differ);
  }
  RunRecord& full = runs_.main_run().record;
  for (std::size_t r = 0; r < full.ranks.size(); ++r) full.ranks[r].gradient_checksum = hex64(combined(gradients[r]));
  if (!full.checks.empty()) full.checks += "; ";
  full.checks += "equal on all ranks at the end: gradients " + hex64(combined(gradients[0]));
  if (!parameters[0].empty()) full.checks += ", weights " + hex64(combined(parameters[0]));
}

void SessionLeader::settle_rounds() {
  const auto discarded = static_cast<std::int64_t>(rounds_.settle(logs()));
  findings_.first_steps = rounds_.first_steps();
  findings_.rounds = rounds_.rounds();
  findings_.efficiency = analyse_efficiency(rounds_.measured(logs()), {.seed = session_.setup.seed});
  RunRecord& full = runs_.main_run().record;
  full.decomposition = findings_.efficiency->rows;
  full.efficiency_replicates = findings_.efficiency->efficiency_replicates;
  for (PhaseRun& phase_run : runs_.phases()) {
    phase_run.record.warmup_steps += discarded * session_.options.num_batches_per_iter;
    phase_run.record.provenance["measurement.rounds"] = {std::to_string(findings_.rounds), false};
    phase_run.record.provenance["measurement.first_steps"] = {findings_.first_steps, false};
  }
}

void SessionLeader::complete(const std::string& stop_reason) {
  if (session_.setup.efficiency) settle_rounds();
  if (!rule_.exact_samples) findings_.target_half_width = rule_.target_half_width;
  // Use the ready times of phase none if it was measured: its ranks compute at the same time, but do not reduce.
  const PhaseRun& undisturbed = runs_.phases().size() > 1 ? runs_.phases()[1] : runs_.phases().front();
  if (undisturbed.log.samples() > 0) findings_.ready = undisturbed.recorder->profile();
  runs_.complete(stop_reason);
}

void SessionLeader::tell_progress(const char* stage, const PhaseRun& phase_run, double half_width,
                                  double seconds_left) {
  if (!session_.observer.progress || Clock::now() - last_progress_ < kProgressEvery) return;
  last_progress_ = Clock::now();
  Progress progress;
  progress.stage = stage;
  progress.phase = name(phase_run.phase);
  progress.steps = static_cast<std::int64_t>(session_.trainer.steps_done());
  const double ranks = phase_run.phase == Phase::kSolo ? 1 : session_.trainer.engine().size();
  if (phase_run.step_seconds > 0) {
    progress.unit = session_.setup.unit();
    progress.images_per_second = ranks * static_cast<double>(session_.setup.model.batch_size) / phase_run.step_seconds;
  }
  progress.interval = half_width;
  progress.seconds_left = seconds_left < 0 ? -1 : seconds_left;
  session_.observer.progress(progress);
}

}  // namespace hvd::bench
