// What ranks exchange between segments of steps: rank 0 broadcasts a directive, every rank carries it out, and rank 0
// gathers the answers. Plain data with its own byte encoding. Both ends are the same program, so numbers are sent in
// the machine's representation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/store/run_record.h"
#include "engine/base/error.h"

namespace hvd::bench {

enum class Task : std::uint8_t {
  kSteps,            ///< train
  kCheckReduction,   ///< one step whose gradients are compared with an independent sum
  kTimeBuckets,      ///< time the reduction of each bucket alone
  kFinalCheck,       ///< one step, then checksums of gradients and parameters
  kMeasureMemory,    ///< peak so far, before the checks at the end raise it
  kRelease,          ///< give freed memory back and reset the peak
  kSumWeights,       ///< compute checksums of the weights; the rank keeps them
  kSumStep,          ///< for ranks of Directive::turn: one step, then checksums of its gradients; the rank keeps them
  kReturnChecksums,  ///< return the checksums of one snapshot
  kEnd,              ///< end the session; if `failed`, every rank throws
};

/// One of the groups in which the ranks of a host run one after another, if they share cores.
struct Turn {
  int number = 0;
  int ranks_at_once = 1;  ///< per host
  [[nodiscard]] bool is_of(int local_rank) const { return local_rank / ranks_at_once == number; }
};

struct Directive {
  Task task = Task::kEnd;
  Phase phase = Phase::kFull;
  std::int64_t steps = 0;
  std::int64_t discard = 0;  ///< samples of this many first steps are not kept
  bool new_graphs = false;   ///< kSteps: every rank captures its steps anew, because one rank's capture has changed
  bool failed = false;       ///< kEnd: every rank throws Error{code, text}
  Errc code = Errc::kInterrupted;
  std::string text = {};
  Turn turn = {};  ///< kSumStep
  std::uint64_t snapshot =
      0;  ///< kReturnChecksums: number of the snapshot; kSumWeights and kSumStep make one each, from 0 on
};

/// One rank's answer. Fields that the task does not fill are empty.
struct Answer {
  std::string signal;   ///< name of the signal that asks this rank to stop
  RankSamples samples;  ///< kSteps; empty on ranks that sleep in this phase
  std::vector<std::uint64_t> gradient_checksums, parameter_checksums;  ///< kFinalCheck, per parameter
  std::vector<std::uint64_t>
      snapshot_checksums;  ///< kReturnChecksums: per parameter; kSumWeights, kSumStep: one over all
  std::int64_t planned_bytes = 0, baseline_bytes = 0, peak_bytes = 0;  ///< kMeasureMemory
  std::vector<double> bucket_seconds;                                  ///< kTimeBuckets, this rank's median per bucket
  std::string problem;                                                 ///< kCheckReduction: what is wrong
  std::string note;                                                    ///< kCheckReduction: what was checked
};

/// "stopped by SIGTERM on rank 1 (HOST)" for the first rank that is asked to stop; "" if none is. `answers`, `hosts`:
/// [rank].
std::string stop_text(const std::vector<Answer>& answers, const std::vector<std::string>& hosts);

std::vector<std::byte> encode(const Directive& directive);
std::vector<std::byte> encode(const Answer& answer);
Directive decode_directive(std::span<const std::byte> bytes);
Answer decode_answer(std::span<const std::byte> bytes);

/// Appends every series of `more` to `samples`.
void append(RankSamples& samples, const RankSamples& more);

}  // namespace hvd::bench
