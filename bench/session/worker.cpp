#include "bench/session/worker.h"

#include <algorithm>
#include <utility>

#include "bench/measure/median.h"
#include "bench/session/gradient_check.h"
#include "bench/store/host_facts.h"
#include "bench/store/provenance.h"
#include "bench/train/checksum.h"
#include "bench/world/memory.h"
#include "bench/world/settings.h"

namespace hvd::bench {
namespace {

constexpr int kBucketRepeats = 3;

void push(RankSamples& samples, const StepTimes& times) {
  for (const StepSeries& series : kStepSeries) (samples.*series.of_rank).push_back(times.*series.of_step);
}

}  // namespace

Worker::Worker(Trainer& trainer, TrainingGpu* gpu, ProcessFacts process, std::uint64_t seed)
    : trainer_(trainer),
      gpu_(gpu),
      process_(std::move(process)),
      seed_(seed),
      processor_seconds_before_(own_processor_seconds()) {}

void Worker::leave_startup(const Directive& directive) {
  if (directive.turn.number > 0) return;  // the ranks of this turn and later turns have yet to take the step
  if (started_up_ || trainer_.main_steps() < trainer_.settling_steps()) return;
  trainer_.end_startup();
  started_up_ = true;
}

Answer Worker::execute(const Directive& directive) {
  leave_startup(directive);
  Answer answer;
  switch (directive.task) {
    case Task::kSteps: answer = train(directive); break;
    case Task::kCheckReduction: {
      peak_before_check_ = resident_set().peak;
      const CheckOutcome outcome = check_reduction(trainer_, seed_);
      (outcome.good ? answer.note : answer.problem) = outcome.text;
      break;
    }
    case Task::kTimeBuckets: answer = time_buckets(); break;
    case Task::kFinalCheck: answer = final_check(); break;
    case Task::kMeasureMemory: answer = measure_memory(); break;
    case Task::kRelease:
      release_free_memory();
      // If the kernel does not permit the reset, the copies made by the check count as part of the peak.
      if (!reset_peak_resident_set()) peak_before_check_ = 0;
      break;
    case Task::kSumWeights: answer = sum_weights(); break;
    case Task::kSumStep: answer = sum_step(directive.turn); break;
    case Task::kReturnChecksums: answer.snapshot_checksums = snapshots_.at(directive.snapshot); break;
    case Task::kEnd: break;
  }
  if (process_.stop_requested) answer.signal = process_.stop_requested();
  return answer;
}

void Worker::follow() {
  Engine& engine = trainer_.engine();
  for (;;) {
    engine.set_activity("waiting for rank 0's next directive", trainer_.steps_done());
    const Directive directive = decode_directive(engine.broadcast_message({}, 0));
    if (directive.task == Task::kEnd) {
      if (directive.failed) throw AgreedError(directive.code, directive.text);
      return;
    }
    engine.gather(encode(execute(directive)));
  }
}

Answer Worker::train(const Directive& directive) {
  Answer answer;
  if (directive.new_graphs && gpu_ != nullptr) gpu_->drop_graphs();
  // In phase solo the other ranks sleep in the engine until the next directive.
  if (directive.phase == Phase::kSolo && trainer_.engine().rank() != 0) {
    trainer_.skip_steps(directive.phase, static_cast<std::uint64_t>(directive.steps));
    return answer;
  }
  const std::vector<StepTimes> steps = trainer_.steps(directive.phase, directive.steps);
  for (std::size_t i = static_cast<std::size_t>(directive.discard); i < steps.size(); ++i) {
    push(answer.samples, steps[i]);
  }
  return answer;
}

Answer Worker::time_buckets() {
  const core::BucketPlan& plan = trainer_.engine().plan();
  trainer_.clear_gradients();  // because repeated sums of real gradients could overflow

  std::vector<std::vector<double>> seconds(plan.buckets.size());
  for (int repeat = 0; repeat < kBucketRepeats; ++repeat) {
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      seconds[b].push_back(trainer_.reduce_bucket(plan.buckets[b]));
    }
  }
  Answer answer;
  for (const std::vector<double>& repeats : seconds) answer.bucket_seconds.push_back(median(repeats));
  return answer;
}

Answer Worker::final_check() {
  Answer answer;
  const StepProbe probe{{}, {}, [&] { answer.gradient_checksums = trainer_.gradient_checksums(); }};
  trainer_.step(Phase::kFull, &probe);
  answer.parameter_checksums = trainer_.parameter_checksums();
  return answer;
}

Answer Worker::sum_weights() { return keep(trainer_.parameter_checksums()); }

Answer Worker::sum_step(const Turn& turn) {
  // Ranks of other turns sleep in the engine until the next directive.
  if (!turn.is_of(trainer_.engine().topology().local_rank)) return {};
  const StepTimes times = trainer_.step(Phase::kNone);
  Answer answer = keep(trainer_.gradient_checksums());  // still valid, because the update only reads the gradients
  push(answer.samples, times);
  return answer;
}

Answer Worker::keep(std::vector<std::uint64_t> checksums) {
  Answer answer;
  answer.snapshot_checksums = {combined(checksums)};
  snapshots_.push_back(std::move(checksums));
  return answer;
}

Answer Worker::measure_memory() {
  Answer answer;
  answer.processor_seconds = (own_processor_seconds() - processor_seconds_before_) / process_.ranks_here;
  answer.planned_bytes = trainer_.planned_bytes(process_.peers_are_processes);
  if (gpu_ != nullptr) {
    const MemoryUse used = gpu_->memory_use();
    answer.baseline_bytes = used.before;
    answer.peak_bytes = used.now;  // also the peak, because nothing was freed since `before`
    return answer;
  }
  // Ranks in one process share its resident set, so each rank is assigned an equal part.
  answer.baseline_bytes = process_.baseline_bytes / process_.ranks_here;
  answer.peak_bytes = std::max(peak_before_check_, resident_set().peak) / process_.ranks_here;
  return answer;
}

}  // namespace hvd::bench
