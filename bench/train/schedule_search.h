// Searches for the fastest setting of a step, on GPUs and on CPUs: coordinate descent from the defaults, one knob after
// another, and each once more if a knob that was turned after it gained something. Decides only; schedule_trials.h
// trains and measures. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/options.h"

namespace hvd::bench {

/// What the search may change, and nothing else. Equal on all ranks.
struct ScheduleSetting {
  bool graph = true;             ///< GPUs
  bool overlap = true;           ///< GPUs
  std::size_t bucket_bytes = 0;  ///< static schedule
  int max_ctas = 0;              ///< GPUs; 0: NCCL's choice
  bool register_memory = true;   ///< GPUs

  bool on_gpu = true;
  bool negotiated = false;  ///< else the static schedule
  // on CPUs
  comm::Algorithm algorithm = comm::Algorithm::kAuto;
  std::size_t segment_bytes = 0;
  std::size_t threshold_bytes = 0;          ///< negotiated schedule
  std::chrono::microseconds cycle_time{0};  ///< negotiated schedule

  bool operator==(const ScheduleSetting&) const = default;
};
ScheduleSetting gpu_setting(const EngineOptions& engine, const GpuOptions& gpu);
ScheduleSetting cpu_setting(const EngineOptions& engine, const comm::CommOptions& comm);
/// Sets the options as the command line would have set them. Options of the other kind of device stay.
void put(const ScheduleSetting& setting, EngineOptions& engine, GpuOptions& gpu, comm::CommOptions& comm);
/// "CUDA graph, overlap, buckets of 25 MiB, NCCL's choice of CTAs, registered memory", or
/// "buckets of 25 MiB, algorithm auto, segments of 256 KiB".
std::string setting_text(const ScheduleSetting& setting);
/// The options that say it, defaults left out: "--no-overlap --bucket-mb 100".
std::string setting_options(const ScheduleSetting& setting);
/// What of `to` is not as in `from`: "no overlap".
std::string setting_change(const ScheduleSetting& from, const ScheduleSetting& to);

enum class Knob : std::uint8_t {
  kGraph,
  kOverlap,
  kBuckets,
  kCtas,
  kRegistration,
  kAlgorithm,
  kSegment,
  kThreshold,
  kCycle
};

/// What one knob's other positions make of `from`. `gradient_bytes`: buckets and thresholds of this size and more hold
/// all gradients.
std::vector<ScheduleSetting> alternatives(const ScheduleSetting& from, Knob knob, std::size_t gradient_bytes);

/// Median step of each visit, seconds.
using Visits = std::vector<double>;
/// Index of the alternative that is to replace `settings[0]`: the one with the least median, if its slowest visit was
/// faster than the fastest of settings[0], by more than kLeastGain of the medians. As many visits of each.
inline constexpr double kLeastGain = 0.01;
std::optional<std::size_t> replacement(const std::vector<Visits>& settings);

/// A search is a sequence of visits: next() says what to time, add() what it took.
class ScheduleSearch {
 public:
  /// Visits of each setting of a knob, in rounds of alternating direction, so that a drift does not choose.
  static constexpr std::size_t kRounds = 3;
  /// Each knob is turned at most so often. Of 400 synthetic costs whose knobs change one another's effect by up to 3 %,
  /// one turn came within 3 % of the best setting in 83 %, two in 92 %, three in 93 %
  /// (tests/bench/schedule_search_test.cpp).
  static constexpr std::size_t kMostTurns = 2;

  /// One setting, as it was measured beside the others of its knob.
  struct Trial {
    ScheduleSetting setting;
    Visits seconds;
    bool chosen = false;  ///< it was kept: the setting before, or the one that replaced it
  };
  /// A knob that was turned.
  struct Gain {
    ScheduleSetting from, to;
    double from_seconds = 0, to_seconds = 0;  ///< medians over visits
  };

  /// Positions of a knob are those of `start` and alternatives() beside it.
  ScheduleSearch(const ScheduleSetting& start, const std::vector<Knob>& knobs, std::size_t gradient_bytes);

  /// Null when the search is over.
  [[nodiscard]] const ScheduleSetting* next() const;
  /// Of what next() said. Shape: > 0 seconds.
  void add(double seconds);
  /// The fastest so far.
  [[nodiscard]] const ScheduleSetting& chosen() const { return chosen_; }
  [[nodiscard]] const std::vector<Trial>& trials() const { return trials_; }
  [[nodiscard]] const std::vector<Gain>& gains() const { return gains_; }
  [[nodiscard]] std::size_t visits() const { return visits_; }
  /// At most so many are to come, as far as is known.
  [[nodiscard]] std::size_t visits_left() const;
  /// Visits of the knob that begins now; 0 in the middle of one.
  [[nodiscard]] std::size_t visits_of_new_knob() const;
  /// For a search that takes too long: turns no more knobs. Call when a knob begins.
  void leave_out_the_rest();
  /// Whether a knob was never turned for that reason.
  [[nodiscard]] bool left_something_out() const { return left_out_; }

 private:
  struct Turn {
    Knob knob;
    std::size_t turns = 0;
    bool due = true;  ///< not turned yet, or another knob has gained since
  };

  /// Settings with another position of `knob`.
  [[nodiscard]] std::vector<ScheduleSetting> others(Knob knob) const;
  void begin_knob();
  void confirm();
  void decide();
  /// Which of the knob's settings is visited next.
  [[nodiscard]] std::size_t place() const;

  std::vector<Turn> knobs_;
  std::size_t present_ = 0;  // index of the knob that is being turned; knobs_.size(): none
  const std::size_t gradient_bytes_;
  ScheduleSetting chosen_;
  const ScheduleSetting start_;
  std::vector<Trial> at_hand_;  // of the present knob; the first is chosen_
  bool confirming_ = false;     // at_hand_ is start_ and chosen_
  bool left_out_ = false;
  std::size_t visit_ = 0;  // of the present knob
  std::size_t visits_ = 0;
  std::vector<Trial> trials_;
  std::vector<Gain> gains_;
};

}  // namespace hvd::bench
