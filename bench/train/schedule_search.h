// Searches for the fastest setting of a step, on GPUs and on CPUs, by coordinate descent from the defaults. One knob is
// turned after another. A knob is turned once more if another knob has made steps faster since. ScheduleSearch only
// decides; schedule_trials.h trains and measures. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/train/options.h"

namespace hvd::bench {

/// The settings that the search may change. Equal on all ranks.
struct ScheduleSetting {
  bool graph = true;             ///< used on GPUs
  bool overlap = true;           ///< used on GPUs
  std::size_t bucket_bytes = 0;  ///< static schedule
  int max_ctas = 0;              ///< used on GPUs; 0: NCCL's choice
  bool register_memory = true;   ///< used on GPUs

  bool on_gpu = true;
  bool negotiated = false;  ///< false: the static schedule
  // on CPUs
  comm::Algorithm algorithm = comm::Algorithm::kAuto;
  std::size_t segment_bytes = 0;
  std::size_t threshold_bytes = 0;          ///< negotiated schedule
  std::chrono::microseconds cycle_time{0};  ///< negotiated schedule

  bool operator==(const ScheduleSetting&) const = default;
};
ScheduleSetting gpu_setting(const EngineOptions& engine, const GpuOptions& gpu);
ScheduleSetting cpu_setting(const EngineOptions& engine, const comm::CommOptions& comm);
/// Sets the options that the command line would set. Options of the other kind of device (GPU or CPU) stay unchanged.
void put(const ScheduleSetting& setting, EngineOptions& engine, GpuOptions& gpu, comm::CommOptions& comm);
/// Returns "CUDA graph, overlap, buckets of 25 MiB, NCCL's choice of CTAs, registered memory", or "buckets of 25 MiB,
/// algorithm auto, segments of 256 KiB".
std::string setting_text(const ScheduleSetting& setting);
/// Returns the command-line options for the setting, without defaults: "--no-overlap --bucket-mb 100".
std::string setting_options(const ScheduleSetting& setting);
/// Returns the parts of `to` that differ from `from`, such as "no overlap".
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

/// Returns the settings that differ from `from` in the position of one knob. `gradient_bytes`: a bucket or threshold of
/// at least this size holds all gradients.
std::vector<ScheduleSetting> alternatives(const ScheduleSetting& from, Knob knob, std::size_t gradient_bytes);

/// Median step time of each visit to a setting, in seconds.
using Visits = std::vector<double>;
/// Returns the index of the setting that should replace settings[0], if any: the setting with the least median, if its
/// slowest visit was faster than the fastest visit of settings[0] and the medians differ by more than kLeastGain. Each
/// setting must have the same number of visits.
inline constexpr double kLeastGain = 0.01;
std::optional<std::size_t> replacement(const std::vector<Visits>& settings);

/// A search is a sequence of visits: next() says which setting to time, and add() takes its time.
class ScheduleSearch {
 public:
  /// Visits to each setting of a knob. Rounds alternate in direction, so that a drift of the machine does not decide.
  static constexpr std::size_t kRounds = 3;
  /// Maximum number of turns of one knob. In a simulation of 400 synthetic costs, whose knobs change one another's
  /// effect by up to 3 %, one turn of each knob came within 3 % of the best setting in 83 % of cases, two turns in
  /// 92 %, three turns in 93 % (tests/bench/schedule_search_test.cpp).
  static constexpr std::size_t kMostTurns = 2;

  /// One setting and its times, measured beside the other settings of its knob.
  struct Trial {
    ScheduleSetting setting;
    Visits seconds;
    bool chosen = false;  ///< true for the setting that was kept: the previous one or its replacement
  };
  /// A change of a knob that made steps faster.
  struct Gain {
    ScheduleSetting from, to;
    double from_seconds = 0, to_seconds = 0;  ///< medians over visits
  };

  /// The positions of a knob are those of `start` and those of alternatives().
  ScheduleSearch(const ScheduleSetting& start, const std::vector<Knob>& knobs, std::size_t gradient_bytes);

  /// Returns the setting to time next, or null when the search is over.
  [[nodiscard]] const ScheduleSetting* next() const;
  /// Takes the median step time of the setting that next() returned, > 0 seconds.
  void add(double seconds);
  /// The fastest setting so far.
  [[nodiscard]] const ScheduleSetting& chosen() const { return chosen_; }
  [[nodiscard]] const std::vector<Trial>& trials() const { return trials_; }
  [[nodiscard]] const std::vector<Gain>& gains() const { return gains_; }
  [[nodiscard]] std::size_t visits() const { return visits_; }
  /// Returns the largest number of visits still to come, as far as is known.
  [[nodiscard]] std::size_t visits_left() const;
  /// Returns the number of visits that the knob which begins now will take; 0 in the middle of a knob.
  [[nodiscard]] std::size_t visits_of_new_knob() const;
  /// Turns no more knobs, because the search takes too long. Call it at the beginning of a knob.
  void leave_out_the_rest();
  /// Returns true if some knob was never turned because of leave_out_the_rest().
  [[nodiscard]] bool left_something_out() const { return left_out_; }

 private:
  struct Turn {
    Knob knob;
    std::size_t turns = 0;
    bool due = true;  ///< the knob was not turned yet, or another knob has made steps faster since
  };

  /// Returns chosen_ with each other position of `knob`.
  [[nodiscard]] std::vector<ScheduleSetting> others(Knob knob) const;
  void begin_knob();
  void confirm();
  void decide();
  /// Returns which of the knob's settings is visited next.
  [[nodiscard]] std::size_t place() const;

  std::vector<Turn> knobs_;
  std::size_t current_knob_ = 0;  // index of the knob that is being turned; knobs_.size(): none
  const std::size_t gradient_bytes_;
  ScheduleSetting chosen_;
  const ScheduleSetting start_;
  std::vector<Trial> settings_of_knob_;  // settings of the present knob; the first is chosen_
  bool confirming_ = false;              // settings_of_knob_ holds start_ and chosen_
  bool left_out_ = false;
  std::size_t visit_ = 0;  // number of the visit within the present knob
  std::size_t visits_ = 0;
  std::vector<Trial> trials_;
  std::vector<Gain> gains_;
};

}  // namespace hvd::bench
