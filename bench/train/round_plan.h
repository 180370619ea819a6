// The rounds of an interleaved session: how long its visits of a phase are, and whether the first step after a change
// of phase counts. It decides; the Conductor acts. One thread, rank 0's, owns it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/measure/decomposition.h"
#include "bench/measure/visits.h"
#include "bench/train/phase_log.h"

namespace hvd::bench {

class RoundPlan {
 public:
  /// `exact_samples`: asked for by the user, per phase.
  RoundPlan(bool gpu, std::optional<std::size_t> exact_samples, std::uint64_t seed)
      : gpu_(gpu), exact_samples_(exact_samples), seed_(seed) {}

  /// The logs of phases solo, none and full.
  using Logs = std::array<PhaseLog*, 3>;

  struct Times {
    double sample_seconds = 0;  ///< of phase full
    double round_seconds = 0;   ///< of a round of one sample per visit
    double seconds_left = 0;    ///< until the time cap
    std::size_t samples = 0;    ///< of each phase so far
  };
  [[nodiscard]] std::int64_t next_visit(const Times& times) const;
  /// No whole visit has fewer samples.
  [[nodiscard]] std::int64_t shortest_visit() const { return gpu_ && !exact_samples_ ? kGpuVisitSamples : 1; }
  /// Steps that every visit begins with and that are never measured. On CPUs 0: the first is measured and judged by
  /// what it shows. A GPU's visits are long, and samples that were asked for are not taken away at the end: 1 there.
  [[nodiscard]] std::int64_t unmeasured_steps() const { return on_trial() ? 0 : 1; }
  /// Before so many rounds no session ends because an interval is narrow.
  [[nodiscard]] std::size_t minimum_rounds() const { return gpu_ ? 0 : kFewestRounds; }

  /// Every phase was visited once more, for `samples_per_visit` samples.
  void end_of_round(std::int64_t samples_per_visit, const Logs& logs);
  [[nodiscard]] std::size_t rounds() const { return rounds_; }

  /// Takes the first samples of visits out of `logs` if they take longer. Returns how many of each phase.
  [[nodiscard]] std::size_t settle(const Logs& logs) const;
  /// Says what was decided about first steps, and why.
  [[nodiscard]] std::string first_steps() const;
  [[nodiscard]] std::vector<Round> measured(const Logs& logs) const;

 private:
  static constexpr std::int64_t kGpuVisitSamples = 3;  // at least, because one step of a visit is not measured

  [[nodiscard]] bool on_trial() const { return !gpu_ && !exact_samples_; }
  /// Whether first steps are to be compared with others of their visits, and `times` allows it.
  [[nodiscard]] bool compares_first_steps(const Times& times) const;

  bool gpu_;
  std::optional<std::size_t> exact_samples_;
  std::uint64_t seed_;
  std::size_t rounds_ = 0;
  bool single_samples_ = false;  // some visits had one sample: first steps are no longer judged
  FirstStepVerdict verdict_;
};

}  // namespace hvd::bench
