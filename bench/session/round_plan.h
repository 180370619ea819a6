// Plans the rounds of an interleaved session: how many samples a visit to a phase has, and whether the first step after
// a change of phase counts. The RoundPlan decides and the SessionLeader acts. Rank 0's thread owns a RoundPlan.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/measure/decomposition.h"
#include "bench/measure/session_plan.h"
#include "bench/session/phase_log.h"

namespace hvd::bench {

class RoundPlan {
 public:
  /// `exact_samples`: number of samples per phase that the user asked for.
  /// `steps_per_sample`: --num-batches-per-iter.
  RoundPlan(bool gpu, std::optional<std::size_t> exact_samples, std::uint64_t seed, std::int64_t steps_per_sample = 1)
      : gpu_(gpu), exact_samples_(exact_samples), seed_(seed), steps_per_sample_(steps_per_sample) {}

  /// The logs of phases solo, none and full.
  using Logs = std::array<PhaseLog*, 3>;

  struct Times {
    double sample_seconds = 0;  ///< seconds per sample in phase full
    double round_seconds = 0;   ///< seconds of a round with one sample per visit
    double seconds_left = 0;    ///< seconds until the time cap
    std::size_t samples = 0;    ///< samples of each phase so far
  };
  [[nodiscard]] std::int64_t next_visit(const Times& times) const;
  /// Plans all rounds before the first one. `samples_needed`: SessionPace::samples_needed.
  [[nodiscard]] SessionPlan plan(const Times& times, double samples_needed) const;
  /// Describes the shortest session that has kMinRounds rounds. `warm_up_steps`: as the user asked.
  [[nodiscard]] ShortestSession shortest_session(std::optional<int> warm_up_steps) const;
  /// Returns the least number of samples of a complete visit.
  [[nodiscard]] std::int64_t shortest_visit() const { return gpu_ && !exact_samples_ ? kGpuVisitSamples : 1; }
  /// Returns the number of steps at the start of every visit that are never measured. Returns 0 on CPUs: the first step
  /// is measured, and later its time decides whether it counts. Returns 1 on GPUs, because visits are long there, and
  /// 1 if the user asked for a number of samples, because no sample may be discarded at the end.
  [[nodiscard]] std::int64_t unmeasured_steps() const { return judges_first_steps() ? 0 : 1; }
  /// Returns the least number of rounds after which a session may end because its interval is narrow.
  [[nodiscard]] static std::size_t minimum_rounds() { return kMinRounds; }

  /// Call after every phase was visited for `samples_per_visit` samples.
  void end_of_round(std::int64_t samples_per_visit, const Logs& logs);
  [[nodiscard]] std::size_t rounds() const { return rounds_; }

  /// Removes the first sample of each visit from `logs` if the first steps of visits take longer than the other steps.
  /// Returns the number of removed samples per phase.
  [[nodiscard]] std::size_t settle(const Logs& logs) const;
  /// Returns a text that says whether the first steps of visits were discarded, and why.
  [[nodiscard]] std::string first_steps() const;
  [[nodiscard]] std::vector<Round> measured(const Logs& logs) const;

 private:
  /// Least number of samples of a visit on GPUs, because every visit costs one step that is not measured.
  static constexpr std::int64_t kGpuVisitSamples = 3;

  [[nodiscard]] VisitBudget budget(const Times& times, std::int64_t shortest) const;
  [[nodiscard]] bool judges_first_steps() const { return !gpu_ && !exact_samples_; }
  /// Returns true if the next round should compare first steps with the other steps of their visits, and `times` leaves
  /// enough time for the comparison.
  [[nodiscard]] bool compares_first_steps(const Times& times) const;

  bool gpu_;
  std::optional<std::size_t> exact_samples_;
  std::uint64_t seed_;
  std::int64_t steps_per_sample_;
  std::size_t rounds_ = 0;
  bool single_samples_ = false;  // a visit had one sample, so first steps are no longer judged
  FirstStepVerdict verdict_;
};

}  // namespace hvd::bench
