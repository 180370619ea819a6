// Searches for the fastest setting of a step, on GPUs and on CPUs, by coordinate descent from the defaults. A knob is
// one part of the setting, and its positions are the values to try. To turn a knob is to time its positions. The search
// turns one knob after another, and turns a knob once more if a later turn of another knob made steps faster.
// ScheduleSearch decides which setting to time next; schedule_trials.h trains and measures. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/world/options.h"

namespace hvd::bench {

/// The settings that the search may change. Equal on all ranks.
struct ScheduleSetting {
  bool graph = true;             ///< used on GPUs
  bool overlap = true;           ///< used on GPUs
  std::size_t bucket_bytes = 0;  ///< used by the static schedule
  int max_ctas = 0;              ///< used on GPUs; 0: NCCL's choice
  bool register_memory = true;   ///< used on GPUs

  bool on_gpu = true;
  bool negotiated = false;  ///< false: the static schedule
  // on CPUs
  comm::Algorithm algorithm = comm::Algorithm::kAuto;
  std::size_t segment_bytes = 0;
  std::size_t threshold_bytes = 0;          ///< used by the negotiated schedule
  std::chrono::microseconds cycle_time{0};  ///< used by the negotiated schedule

  bool operator==(const ScheduleSetting&) const = default;
};
ScheduleSetting gpu_setting(const EngineOptions& engine, const GpuOptions& gpu);
ScheduleSetting cpu_setting(const EngineOptions& engine, const comm::CommOptions& comm);
/// Sets the options that `setting` stands for, as the command line would. Options of the other kind of device (GPU or
/// CPU) stay unchanged.
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

/// Returns the settings that differ from `from` only in the position of `knob`. `gradient_bytes`: a bucket or threshold
/// of at least this size holds all gradients.
std::vector<ScheduleSetting> alternatives(const ScheduleSetting& from, Knob knob, std::size_t gradient_bytes);

/// The visits to one setting: for each visit the median step time in seconds.
using Visits = std::vector<double>;
/// Returns the index of the setting with the least median over visits, if that setting should replace settings[0]: its
/// slowest visit was faster than the fastest visit of settings[0], and the two medians differ by more than the fraction
/// kMinGain. Returns nothing otherwise. Each setting must have the same number of visits.
inline constexpr double kMinGain = 0.01;
std::optional<std::size_t> replacement(const std::vector<Visits>& settings);

/// A search is a sequence of visits: next() says which setting to time, and add() takes its time.
class ScheduleSearch {
 public:
  /// Number of visits to each setting of a knob. Each round visits every setting once. The next round visits them in
  /// reverse order, so that a machine that becomes slower or faster favours no setting.
  static constexpr std::size_t kRounds = 3;
  /// Maximum number of turns of one knob. A simulation searched 400 synthetic cost functions, in which a knob changes
  /// the effect of other knobs by up to 3 %. With one turn of each knob the search came within 3 % of the best setting
  /// in 83 % of cases, with two turns in 92 %, with three turns in 93 % (tests/bench/tune/schedule_search_test.cpp).
  static constexpr std::size_t kMaxTurns = 2;

  /// One setting and its times. The other settings of its knob were timed in the same rounds.
  struct Trial {
    ScheduleSetting setting;
    Visits seconds;
    bool chosen = false;  ///< true if the search kept this setting and no other setting of the knob
  };
  /// A change of a knob that made steps faster.
  struct Gain {
    ScheduleSetting from, to;
    double from_seconds = 0, to_seconds = 0;  ///< medians over visits
  };

  /// The search tries each knob in its position in `start` and in the positions that alternatives() gives.
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
  /// Returns how many visits may still follow at most. Later gains can raise this number.
  [[nodiscard]] std::size_t visits_left() const;
  /// Returns the number of visits that a knob takes, if the next visit is the first of that knob; otherwise 0.
  [[nodiscard]] std::size_t visits_of_new_knob() const;
  /// Makes the search turn no more knobs. Call it if the search takes too long, before the first visit of a knob.
  void leave_out_the_rest();
  /// Returns true if some knob was never turned because of leave_out_the_rest().
  [[nodiscard]] bool left_something_out() const { return left_out_; }

 private:
  struct Turn {
    Knob knob;
    std::size_t turns = 0;
    bool due = true;  ///< the knob was not turned yet, or another knob has made steps faster since
  };

  /// Returns the settings that differ from chosen_ only in the position of `knob`.
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
  bool confirming_ = false;              // true if settings_of_knob_ holds start_ and chosen_, for the last comparison
  bool left_out_ = false;
  std::size_t visit_ = 0;  // number of the visit within the present knob
  std::size_t visits_ = 0;
  std::vector<Trial> trials_;
  std::vector<Gain> gains_;
};

}  // namespace hvd::bench
