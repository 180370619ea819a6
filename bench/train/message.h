// What rank 0 tells the ranks between segments of steps, and what they answer. Plain data with a byte form of
// its own; both ends are the same program, so numbers travel in the machine's own representation.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/run_record.h"
#include "engine/base/error.h"

namespace hvd::bench {

enum class Task : std::uint8_t {
  kSteps,           ///< train
  kCheckReduction,  ///< one step, gradients compared with an independent sum
  kTimeBuckets,     ///< each bucket's reduction alone, nothing else going on
  kFinalCheck,      ///< one step, checksums of gradients and parameters
  kMeasureMemory,   ///< peak so far, before the checks at the end disturb it
  kRelease,         ///< gives freed memory back and forgets the peak so far
  kSumWeights,      ///< checksums of the weights; the rank keeps them
  kSumStep,         ///< one step of the ranks whose turn it is, and checksums of its gradients; the rank keeps them
  kTellSums,        ///< the checksums of one snapshot
  kEnd,             ///< the session is over; with an error: everywhere
};

/// Ranks of a host that share cores take turns.
struct Turn {
  int number = 0;
  int ranks_at_once = 1;  ///< of each host
  [[nodiscard]] bool is_of(int local_rank) const { return local_rank / ranks_at_once == number; }
};

struct Directive {
  Task task = Task::kEnd;
  Phase phase = Phase::kFull;
  std::int64_t steps = 0;
  std::int64_t discard = 0;  ///< the first of them are not kept
  bool new_graphs = false;   ///< kSteps: every rank captures its steps anew, for one rank's capture has changed
  bool failed = false;       ///< kEnd: every rank throws Error{code, text}
  Errc code = Errc::kInterrupted;
  std::string text = {};
  Turn turn = {};              ///< kSumStep
  std::uint64_t snapshot = 0;  ///< kTellSums: kSumWeights and kSumStep make one each, from 0 on
};

/// One rank's answer. What a task does not fill is empty.
struct Answer {
  std::string signal;   ///< name of the signal that asks this rank to stop
  RankSamples samples;  ///< kSteps; empty on ranks that a phase leaves asleep
  std::vector<std::uint64_t> gradient_checksums, parameter_checksums;  ///< kFinalCheck, per parameter
  std::vector<std::uint64_t> snapshot_checksums;  ///< kTellSums: per parameter; kSumWeights, kSumStep: one over all
  std::int64_t planned_bytes = 0, baseline_bytes = 0, peak_bytes = 0;  ///< kMeasureMemory
  std::vector<double> bucket_seconds;                                  ///< kTimeBuckets, this rank's median per bucket
  std::string problem;                                                 ///< kCheckReduction: what is wrong
  std::string note;                                                    ///< kCheckReduction: what was checked
};

/// Of rank 0's collection [rank]: "stopped by SIGTERM on rank 1 (HOST)", of the first rank that is asked to stop;
/// empty: none is. `hosts`: [rank].
std::string stop_text(const std::vector<Answer>& answers, const std::vector<std::string>& hosts);

std::vector<std::byte> encode(const Directive& directive);
std::vector<std::byte> encode(const Answer& answer);
Directive decode_directive(std::span<const std::byte> bytes);
Answer decode_answer(std::span<const std::byte> bytes);

/// The series of RankSamples.
inline constexpr std::array<std::vector<double> RankSamples::*, 10> kSampleSeries{
    &RankSamples::step, &RankSamples::compute, &RankSamples::exposed, &RankSamples::reduce, &RankSamples::control,
    &RankSamples::copy, &RankSamples::update,  &RankSamples::host,    &RankSamples::launch, &RankSamples::loss};

/// Appends every series of `more` to `samples`.
void append(RankSamples& samples, const RankSamples& more);

}  // namespace hvd::bench
