// The messages that ranks exchange between segments of steps: rank 0 broadcasts a directive, every rank carries it out,
// and rank 0 gathers the answers. Plain data with its own byte encoding. Sender and receiver are the same program, so
// numbers are sent in the machine's representation.
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
  kMeasureMemory,    ///< return the peak of memory so far, before the checks at the end raise it, and processor time
  kRelease,          ///< return freed memory to the system and reset the peak of memory
  kSumWeights,       ///< compute checksums of the weights; every rank keeps its own checksums
  kSumStep,          ///< for ranks of Directive::turn: one step, then checksums of its gradients, which the rank keeps
  kReturnChecksums,  ///< return the checksums of one snapshot
  kEnd,              ///< end the session; if `failed`, every rank throws
};

/// Ranks of a host that share cores run in groups, one group after another. A Turn is one of these groups.
struct Turn {
  int number = 0;
  int ranks_at_once = 1;  ///< number of ranks of a host in one group
  [[nodiscard]] bool is_of(int local_rank) const { return local_rank / ranks_at_once == number; }
};

struct Directive {
  Task task = Task::kEnd;
  Phase phase = Phase::kFull;
  std::int64_t steps = 0;
  std::int64_t discard = 0;  ///< the samples of the first `discard` steps are not kept
  bool new_graphs = false;   ///< kSteps: every rank captures its steps anew, because rank 0 began or ended recording
  bool failed = false;       ///< kEnd: every rank throws Error{code, text}
  Errc code = Errc::kInterrupted;
  std::string text = {};
  Turn turn = {};  ///< kSumStep: the ranks that take the step
  /// kReturnChecksums: number of the snapshot, from 0 on. kSumWeights and kSumStep each make a snapshot.
  std::uint64_t snapshot = 0;
};

/// One rank's answer. Fields that the task does not fill are empty.
struct Answer {
  std::string signal;   ///< name of the signal that asks this rank to stop
  RankSamples samples;  ///< kSteps; empty on ranks that sleep in this phase
  std::vector<std::uint64_t> gradient_checksums, parameter_checksums;  ///< kFinalCheck: one checksum per parameter
  /// kReturnChecksums: one checksum per parameter. kSumWeights, kSumStep: one checksum over all parameters.
  std::vector<std::uint64_t> snapshot_checksums;
  std::int64_t planned_bytes = 0, baseline_bytes = 0, peak_bytes = 0;  ///< kMeasureMemory
  double processor_seconds = 0;  ///< kMeasureMemory: this rank's share of what its process used since the worker began
  std::vector<double> bucket_seconds;  ///< kTimeBuckets: this rank's median for each bucket
  std::string problem;                 ///< kCheckReduction: what is wrong
  std::string note;                    ///< kCheckReduction: what was checked
};

/// Returns "stopped by SIGTERM on rank 1 (HOST)" for the first rank asked to stop, or "". `answers`, `hosts`: [rank].
std::string stop_text(const std::vector<Answer>& answers, const std::vector<std::string>& hosts);

std::vector<std::byte> encode(const Directive& directive);
std::vector<std::byte> encode(const Answer& answer);
Directive decode_directive(std::span<const std::byte> bytes);
Answer decode_answer(std::span<const std::byte> bytes);

void append(RankSamples& samples, const RankSamples& more);

}  // namespace hvd::bench
